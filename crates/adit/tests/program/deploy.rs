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
    dir.file("adit.toml", "[admin]\nhttp = \"127.0.0.1:9466\"\n");
    let chart = format!("{}/../../contrib/helm/adit", env!("CARGO_MANIFEST_DIR"));
    let render = |values: &str| {
        let fixed =
            ["template", "x", &chart, "--kube-version", "1.30.0", "--set-file", "config=adit.toml", "--set"];
        let mut command = dir.command("helm", &fixed);
        command.arg(values).output()
    };
    if render("kind=DaemonSet").is_err() {
        return adit_testkit::skipped("helm is not installed");
    }
    for (values, wanted) in [
        (
            "kind=DaemonSet",
            &["kind: DaemonSet", "hostNetwork: true", "maxSurge: 0", "Seconds: 45", "/ready"][..],
        ),
        (
            "kind=Deployment,hostNetwork=false,service.enabled=true,persistence.type=emptyDir",
            &["kind: Deployment", "hostNetwork: false", "kind: Service", "externalTrafficPolicy: Local"],
        ),
        (
            "kind=StatefulSet,hostNetwork=false,persistence.type=claim,pdb.enabled=true",
            &["kind: StatefulSet", "volumeClaimTemplates:", "kind: PodDisruptionBudget"],
        ),
        (
            "metrics.serviceMonitor=true,metrics.rules=true,metrics.dashboard=true",
            &["kind: PodMonitor", "kind: PrometheusRule", "adit_panel_in_doubt_bytes", "x-adit-dashboard"],
        ),
    ] {
        let out = render(values).unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{values}: {}", String::from_utf8_lossy(&out.stderr));
        for word in wanted {
            assert!(text.contains(word), "{values}: {word}\n{text}");
        }
    }
    for (values, problem) in [
        ("kind=CronJob", "kind must be DaemonSet, StatefulSet or Deployment"),
        ("persistence.type=claim", "persistence.type claim needs kind StatefulSet"),
    ] {
        let out = render(values).unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(problem), "{values}: {text}");
    }
}
