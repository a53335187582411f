//! A real Prometheus that scrapes a node, with the alert rules and the queries of the dashboard of this tree.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use super::support::wait_for;
use crate::support::{Dir, finish};

/// A file of `contrib`.
fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// Asks with HTTP/1.0, whose answers come in one piece; `None` while nobody answers.
fn ask(at: SocketAddr, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(at).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

fn query(at: SocketAddr, expr: &str) -> Value {
    let escaped: String = expr.bytes().map(|byte| format!("%{byte:02X}")).collect();
    ask(at, &format!("/api/v1/query?query={escaped}")).unwrap_or_default()
}

/// The queries of a dashboard.
fn queries(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            into.extend(map.get("expr").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| queries(value, into));
        }
        Value::Array(list) => list.iter().for_each(|value| queries(value, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A Prometheus scrapes `metrics`, evaluates all rules without an error, and takes all queries of the dashboard.
pub(super) fn takes(metrics: SocketAddr) {
    let (dir, at, rules) = (Dir::new(), adit_testkit::unused_addr(), contrib("prometheus/adit.rules.yml"));
    let (code, out, err) = finish(dir.command("promtool", &["check", "rules", rules.to_str().unwrap()]), "");
    assert_eq!(code, 0, "{out}{err}");
    dir.file(
        "prometheus.yml",
        &format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
             scrape_configs:\n- job_name: adit\n  static_configs: [{{targets: ['{metrics}']}}]\n",
            rules.display()
        ),
    );
    let listen = format!("--web.listen-address={at}");
    let args = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", &listen];
    let mut child =
        dir.command("prometheus", &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_up = |answer: &Value| answer["data"]["result"][0]["value"][1] == "1";
    wait_for("the node is scraped", || is_up(&query(at, "up{job=\"adit\"}")));
    wait_for("all rules are evaluated", || {
        let answer = ask(at, "/api/v1/rules").unwrap_or_default();
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{answer}");
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] == "ok")
    });
    let dashboard = std::fs::read_to_string(contrib("grafana/adit.json")).unwrap();
    let mut all = Vec::new();
    queries(&serde_json::from_str(&dashboard).unwrap(), &mut all);
    assert!(all.len() > 20, "{}", all.len());
    for expr in &all {
        let expr = expr.replace("$__rate_interval", "1m").replace("$job", "adit");
        let expr = expr.replace("$node", ".*").replace("$inbound", ".*");
        let answer = query(at, &expr);
        assert_eq!(answer["status"], "success", "{expr}: {answer}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
