//! Files of contrib that bring adit to machines: the configuration in each is one that adit takes without a warning, and a
//! script goes no further than its first failure.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

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
    let script = first_boot();
    assert!(script.contains("\nadit check --strict /etc/adit/main.toml\n"), "{script}");
    assert!(script.ends_with("\nsystemctl enable --now adit@main\n"), "{script}");
}

/// The script of cloud-init: the only command of the list, a block under `sh -euc`.
fn first_boot() -> String {
    let text = contrib("cloud-init/user-data.yaml");
    let block =
        text.split_once("\nruncmd:\n  - - sh\n    - -euc\n    - |\n").expect("one script under sh -eu").1;
    let line = |line: &str| {
        let inside = line.strip_prefix("      ");
        inside.unwrap_or_else(|| panic!("no other command stands behind the script: {line}")).to_owned()
            + "\n"
    };
    block.lines().map(line).collect()
}

/// Runs the script of the first boot with commands that only note that they ran, of which `failing` fails; the package is
/// one with the right checksum if `is_right`. Returns whether the script was content, and the commands that ran.
fn boot(is_right: bool, failing: &str) -> (bool, Vec<String>) {
    let dir = Dir::new();
    let (bin, log) = (dir.path().join("bin"), dir.path().join("ran"));
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(&log, "").unwrap();
    for name in ["curl", "dpkg", "chown", "sysctl", "adit", "systemctl"] {
        let work = if name == "curl" { "printf package >\"$package_file\"\n" } else { "" };
        let status = u8::from(name == failing);
        let stub = format!("#!/bin/sh\necho \"{name} $1\" >>'{}'\n{work}exit {status}\n", log.display());
        let path = bin.join(name);
        std::fs::write(&path, stub).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let package = dir.path().join("adit.deb");
    let sum = sha256(if is_right { "package" } else { "another" });
    let script = first_boot();
    for part in ["/run/adit.deb", "REPLACE-WITH-SHA256"] {
        assert_eq!(script.matches(part).count(), 1, "{script}");
    }
    let script =
        script.replace("/run/adit.deb", package.to_str().unwrap()).replace("REPLACE-WITH-SHA256", &sum);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-euc", &script])
        .env("PATH", path)
        .env("package_file", &package)
        .output()
        .unwrap();
    let ran = std::fs::read_to_string(&log).unwrap();
    (output.status.success(), ran.lines().map(str::to_owned).collect())
}

fn sha256(text: &str) -> String {
    let script = format!("printf {text} | sha256sum | cut -d' ' -f1");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let sum = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert_eq!(sum.len(), 64, "{sum}");
    sum
}

#[test]
fn the_first_boot_ends_at_its_first_failure() {
    let all = ["curl -fsSL", "dpkg -i", "chown adit:adit", "sysctl -p", "adit check", "systemctl enable"];
    assert_eq!(boot(true, ""), (true, all.map(str::to_owned).into()));
    for (is_right, failing, count) in [
        (false, "", 1),
        (true, "curl", 1),
        (true, "dpkg", 2),
        (true, "chown", 3),
        (true, "adit", 5),
        (true, "systemctl", 6),
    ] {
        let (is_content, ran) = boot(is_right, failing);
        assert!(!is_content, "{failing} fails, checksum right: {is_right}");
        assert_eq!(ran, all[..count], "{failing} fails, checksum right: {is_right}");
    }
    // Buffers are no reason to have no server.
    assert_eq!(boot(true, "sysctl"), (true, all.map(str::to_owned).into()));
}

/// Nothing that is fetched is run, or installed, without a look at its checksum.
#[test]
fn no_download_goes_into_a_shell() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let list = Command::new("git").args(["ls-files"]).current_dir(root).output();
    let Ok(list) = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()) else { return };
    for file in list.lines() {
        let is_text = ["contrib/", "packaging/", ".github/", ".ci/", "docs/", "README.md"];
        if !is_text.iter().any(|folder| file.starts_with(folder)) {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(format!("{root}{file}")) else { continue };
        for line in text.lines().filter(|line| line.contains("curl ") || line.contains("wget ")) {
            let into = line.split_once('|').map(|(_, into)| into.trim_start().trim_start_matches("sudo "));
            let is_shell = into.is_some_and(|into| {
                ["sh", "bash", "python3"].contains(&into.split_whitespace().next().unwrap_or_default())
            });
            assert!(!is_shell, "{file}: {line}");
        }
    }
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
