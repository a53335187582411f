//! Files of contrib that bring adit to machines: the configuration in each is one that adit takes without a warning.

use crate::support::Dir;

const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";

fn contrib(file: &str) -> String {
    std::fs::read_to_string(format!("{}/../../contrib/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn takes(text: &str) {
    let dir = Dir::new();
    dir.file("node.toml", text);
    let (code, out, err) = dir.run(&["check", "--strict", "node.toml"]);
    assert_eq!(code, 0, "{out}{err}\n{text}");
}

#[test]
fn the_file_of_cloud_init_is_taken() {
    let text = contrib("cloud-init/user-data.yaml");
    let file = text.split("path: /etc/adit/main.toml").nth(1).unwrap().split("content: |\n").nth(1).unwrap();
    let lines: Vec<&str> = file
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("      "))
        .map(|line| line.trim_start_matches("      "))
        .collect();
    let file = lines.join("\n");
    assert!(file.contains("[[inbound]]") && file.contains("REPLACE: adit key"), "{file}");
    takes(&file.replace("REPLACE: adit key 2022-blake3-aes-128-gcm", KEY));
    // The commands name the same file and the same instance.
    let check = "[adit, check, --strict, /etc/adit/main.toml]";
    assert!(text.contains(check) && text.contains("\"adit@main\""), "{text}");
}

#[test]
fn the_template_of_ansible_is_taken() {
    let (mut text, defaults) = (
        contrib("ansible/roles/adit/templates/adit.toml.j2"),
        contrib("ansible/roles/adit/defaults/main.yml"),
    );
    for line in defaults.lines().filter(|line| line.starts_with("adit_")) {
        let (name, value) = line.split_once(": ").unwrap();
        let value = if name == "adit_password" { KEY } else { value.trim_matches('"') };
        text = text.replace(&format!("{{{{ {name} }}}}"), value);
        text = text.replace(&format!("{{{{ {name} | to_json }}}}"), value);
    }
    text = text.replace("{{ ansible_managed }}", "managed");
    assert!(!text.contains("{{"), "every variable has a default: {text}");
    takes(&text);
    // Commands of the role that this program has.
    let tasks =
        contrib("ansible/roles/adit/tasks/main.yml") + &contrib("ansible/roles/adit/handlers/main.yml");
    assert!(tasks.contains("validate: adit check --strict %s") && tasks.contains("cmd: \"adit reload -c "));
}

/// The chart, rendered by helm where it is installed: each kind of workload, and values that exclude each other.
#[test]
fn the_chart_is_rendered() {
    let dir = Dir::new();
    dir.file("adit.toml", "[admin]\nhttp = \"127.0.0.1:9466\"\n# {{ no template }}\n");
    let chart = format!("{}/../../contrib/helm/adit", env!("CARGO_MANIFEST_DIR"));
    let helm = |fixed: &[&str], values: &str| {
        let mut command = dir.command("helm", fixed);
        command.args([&chart, "--kube-version", "1.30.0", "--set-file", "config=adit.toml", "--set", values]);
        command.output()
    };
    if helm(&["lint", "--strict"], "kind=DaemonSet").is_err() {
        return adit_testkit::skipped("helm is not installed");
    }
    let bare = "hostNetwork=false,persistence.type=emptyDir";
    for (values, wanted, unwanted) in [
        (
            "kind=DaemonSet".to_owned(),
            &[
                "kind: DaemonSet",
                "hostNetwork: true",
                "maxSurge: 0",
                "Seconds: 45",
                "/ready",
                "{{ no template }}",
            ][..],
            "kind: Service",
        ),
        (
            format!("kind=Deployment,service.enabled=true,{bare}"),
            &["kind: Deployment", "hostNetwork: false", "kind: Service", "externalTrafficPolicy: Local"],
            "kind: DaemonSet",
        ),
        (
            format!("kind=Deployment,service.enabled=true,service.type=ClusterIP,{bare}"),
            &["type: ClusterIP", "maxSurge: 1", "sessionAffinity: ClientIP"],
            "externalTrafficPolicy",
        ),
        (
            "kind=StatefulSet,hostNetwork=false,persistence.type=claim,pdb.enabled=true".to_owned(),
            &["kind: StatefulSet", "volumeClaimTemplates:", "kind: PodDisruptionBudget", "clusterIP: None"],
            "hostPath",
        ),
        (
            "metrics.serviceMonitor=true,metrics.rules=true,metrics.dashboard=true".to_owned(),
            &["kind: PodMonitor", "kind: PrometheusRule", "adit_panel_in_doubt_bytes", "adit-overview"],
            "authorization:\n        credentials",
        ),
        (
            "existingSecret=own,panel.existingSecret=token,store.existingSecret=url".to_owned(),
            &["secretName: own", "secretName: token", "mountPath: /run/secrets/adit/store"],
            "kind: Secret",
        ),
        (
            "inbounds[0].name=a-long-name-of-one,inbounds[0].port=443,inbounds[0].protocols={udp}".to_owned(),
            &["name: a-long-name-udp, containerPort: 443, protocol: UDP"],
            "8388",
        ),
        (
            "preStopSeconds=0,drainSeconds=5,admin.enabled=false".to_owned(),
            &["terminationGracePeriodSeconds: 10"],
            "preStop",
        ),
    ] {
        for command in [&["template", "1.x"][..], &["lint", "--strict"]] {
            let out = helm(command, &values).unwrap();
            assert!(out.status.success(), "{values}: {}", String::from_utf8_lossy(&out.stderr));
        }
        let out = helm(&["template", "1.x"], &values).unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        for word in wanted.iter().chain(&["name: adit-1-x"]) {
            assert!(text.contains(word), "{values}: {word}\n{text}");
        }
        assert!(!text.contains(unwanted), "{values}: {unwanted}\n{text}");
    }
}

/// The chart refuses values that do not fit together, or are none.
#[test]
fn the_chart_refuses_values() {
    let dir = Dir::new();
    let chart = format!("{}/../../contrib/helm/adit", env!("CARGO_MANIFEST_DIR"));
    for (values, problem) in [
        ("config=", "write the configuration into `config`"),
        ("kind=CronJob", "/kind"),
        ("hostnetwork=false", "'hostnetwork' not allowed"),
        ("drainSeconds=30s", "/drainSeconds"),
        ("persistence.type=claim", "persistence.type claim needs kind StatefulSet"),
        (
            "kind=Deployment,hostNetwork=false",
            "persistence.type hostPath needs kind DaemonSet or hostNetwork",
        ),
        ("updateStrategy.maxUnavailable=0", "updateStrategy.maxUnavailable must be 1 or more"),
        ("admin.enabled=false,metrics.serviceMonitor=true", "metrics.serviceMonitor needs admin.enabled"),
        (
            "inbounds[0].name=a,inbounds[0].port=1,inbounds[0].protocols={TCP},inbounds[1].name=a,inbounds[1].port=2,inbounds[1].protocols={tcp}",
            "two inbounds have the port name a-tcp",
        ),
    ] {
        let fixed = ["template", "x", &chart, "--kube-version", "1.30.0", "--set", "config=x", "--set"];
        let Ok(out) = dir.command("helm", &fixed).arg(values).output() else {
            return adit_testkit::skipped("helm is not installed");
        };
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(problem), "{values}: {text}");
    }
}
