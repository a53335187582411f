//! Files of mihomo: 530 recorded decisions, and the programs under its names.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::Dir;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash");

/// The recorded configuration with its databases, in a fresh folder.
fn folder() -> Dir {
    let dir = Dir::new();
    let from = Path::new(FOLDER);
    fs::copy(from.join("config.yaml"), dir.path().join("config.yaml")).unwrap();
    for file in fs::read_dir(from.join("geo")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    dir
}

/// The decision that is wanted: the recorded one, unless adit is meant to differ. The record
/// of a difference has neither payload nor chain.
fn wanted(case: &Value) -> Value {
    case.get("adit").unwrap_or_else(|| &case["result"]).clone()
}

#[test]
fn recorded_decisions() {
    let dir = folder();
    let text = fs::read_to_string(Path::new(FOLDER).join("decisions.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    let mut lines = format!("{}\n", json!({ "client": recorded["client"] }));
    for case in cases {
        let mut case = case.clone();
        let fields = case.as_object_mut().unwrap();
        fields.remove("result");
        fields.remove("adit");
        fields.remove("logged_host");
        // A name without addresses does not resolve.
        fields.entry("dns").or_insert(json!([]));
        lines.push_str(&format!("{case}\n"));
    }
    dir.file("cases.jsonl", &lines);
    let (status, out, err) = dir.run(&["explain", "-c", "config.yaml", "--batch", "cases.jsonl"]);
    assert_eq!(status, 0, "{err}");
    let answers: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((answers.len(), cases.len()), (530, 530));
    let mut wrong = Vec::new();
    for (case, answer) in cases.iter().zip(&answers) {
        let want = wanted(case);
        let same = want.as_object().unwrap().iter().all(|(key, value)| key == "why" || answer[key] == *value);
        if !same || answer["id"] != case["id"] {
            wrong.push(format!("{case}\n  {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// The result of `adit import` decides as the file does; a warning names each rule of which that is not so.
#[test]
fn imported_rules_decide_alike() {
    let dir = folder();
    let text = fs::read_to_string(Path::new(FOLDER).join("decisions.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let mut lines = format!("{}\n", json!({ "client": recorded["client"] }));
    for case in recorded["cases"].as_array().unwrap() {
        let mut case = case.clone();
        case.as_object_mut().unwrap().entry("dns").or_insert(json!([]));
        lines.push_str(&format!("{case}\n"));
    }
    dir.file("cases.jsonl", &lines);
    let (status, toml, said) = dir.run(&["import", "config.yaml"]);
    assert_eq!(status, 0, "{said}");
    dir.file("adit.toml", &toml);
    let answers = |file: &str| -> Vec<Value> {
        let (status, out, err) = dir.run(&["explain", "-c", file, "--batch", "cases.jsonl"]);
        assert_eq!(status, 0, "{err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (before, after) = (answers("config.yaml"), answers("adit.toml"));
    assert_eq!((before.len(), after.len()), (530, 530));
    // The first rule stands in line 92. Two lead datagrams to a server without any, one has a host's address: warnings that
    // stand for all such rules name them.
    let (first_line, named_together) = (92, [44, 63, 64]);
    let target = |answer: &Value| match answer["target"].as_str() {
        Some("REJECT") => "protocol".to_owned(),
        Some("REJECT-DROP") => "drop".to_owned(),
        other => other.unwrap_or("dropped").to_owned(),
    };
    let (mut differing, mut unnamed) = (std::collections::BTreeSet::new(), Vec::new());
    for (before, after) in before.iter().zip(&after) {
        if target(before) != target(after) {
            let index = before["index"].as_u64().unwrap_or(u64::MAX);
            let line = format!("config.yaml:{}:", first_line + index);
            let is_named =
                said.lines().any(|warning| warning.starts_with(&line)) || named_together.contains(&index);
            unnamed.extend((!is_named).then(|| format!("{before}\n{after}")));
            differing.insert(index);
        }
    }
    assert!(unnamed.is_empty(), "{}\n{said}", unnamed.join("\n"));
    assert!(differing.len() <= 17, "{differing:?}");
    assert!(said.contains("kept 9 inbounds, 13 outbounds, 7 groups, 53 rules, 12 lists"), "{said}");
}

/// A small file that adit can run.
const FILE: &str = "\
mixed-port: PORT
mode: rule
proxies:
- {name: far, type: snell, server: 127.0.0.1, port: 1, psk: hunter2, version: 3}
- {name: other, type: vmess, server: 127.0.0.1, port: 1}
proxy-groups:
- {name: Proxy, type: select, proxies: [far, DIRECT]}
- {name: Dead, type: select, proxies: [other, DIRECT]}
rules:
- DOMAIN-SUFFIX,far.test,Proxy
- DOMAIN-SUFFIX,dead.test,Dead
- MATCH,DIRECT
";

#[test]
fn tests_of_files() {
    let dir = Dir::new();
    let test = |text: &str| {
        dir.file("config.yaml", text);
        dir.run(&["mihomo", "-d", ".", "-t"])
    };
    let (status, out, err) = test(&FILE.replace("PORT", "7890"));
    assert_eq!((status, &*err), (0, ""), "{out}");
    assert!(out.ends_with("configuration file ./config.yaml test is successful\n"), "{out}");
    assert!(out.contains("1 proxy of type vmess is dead"), "{out}");
    assert!(out.contains("adit does not speak vmess: other"), "{out}");
    assert!(!out.contains("hunter2"), "{out}");
    for (line, wants) in [
        ("- FINAL,DIRECT", "Parse config error: ./config.yaml:13:3: rules[3]: [FINAL,DIRECT] error: "),
        ("- DOMAIN,a.test,none", "proxy [none] not found"),
        ("- RULE-SET,none,DIRECT", "rule set [none] not found"),
        ("- SUB-RULE,(DOMAIN,a.test),none", "sub-rule [none] not found"),
        ("- DST-PORT,70000,DIRECT", "no number from 0 to 65535"),
        ("- GEOSITE,cn,DIRECT", "GEOSITE rules need GeoSite.dat"),
        ("- 'AND,((DOMAIN,a.test),(MATCH)),DIRECT'", "payloadRule error"),
        ("- 'PROCESS-NAME-REGEX,(,DIRECT'", "bad regular expression: unclosed group"),
        ("dns: {enable: true, fallback: [192.0.2.1]}", "it needs the database of countries"),
        ("dns: {enable: true, respect-rules: true}", "it needs proxy-server-nameserver"),
        ("dns: {enable: true, nameserver-policy: {'geosite:cn': 1.1.1.1}}", "GEOSITE rules need GeoSite.dat"),
    ] {
        let (status, out, err) = test(&format!("{}{line}\n", FILE.replace("PORT", "7890")));
        assert_eq!((status, &*err), (1, ""), "{line}: {out}");
        assert!(out.ends_with("configuration file ./config.yaml test failed\n"), "{line}: {out}");
        assert!(out.contains(wants) && out.contains(" level=error msg="), "{line}: {out}");
    }
}

#[test]
fn version_and_bad_flags() {
    let dir = Dir::new();
    for name in ["mihomo", "clash", "clash-meta"] {
        let (status, out, _) = dir.run(&[name, "-v"]);
        assert!(status == 0 && out.starts_with("Mihomo Meta ") && out.lines().count() == 2, "{out}");
        let (status, _, err) = dir.run(&[name, "-x"]);
        assert!(status == 2 && err.contains("flag provided but not defined: -x"), "{err}");
    }
}

/// A dead proxy refuses, and neither its group nor a later rule lets the traffic through.
#[test]
fn dead_proxies_refuse() {
    let dir = Dir::new();
    dir.file("config.yaml", &FILE.replace("PORT", "7890"));
    let way = |host: &str| {
        let (status, out, err) = dir.run(&["explain", "-c", "config.yaml", "--to", host]);
        assert_eq!(status, 0, "{err}");
        out
    };
    let found = way("a.far.test:1");
    assert!(found.ends_with("outbound: Proxy\n  one of its members: far\n"), "{found}");
    let found = way("a.dead.test:1");
    let refused = "outbound: Dead\n  one of its members: other\nrefused: the outbound does not carry tcp\n";
    assert!(found.ends_with(refused), "{found}");
    assert!(way("a.test:1").ends_with("outbound: DIRECT\n"), "{}", way("a.test:1"));
}

/// Rematches: the rules are asked once more, from a list of sub-rules or with a mark; eight times at most.
#[test]
fn rematches() {
    let dir = Dir::new();
    dir.file(
        "config.yaml",
        "mixed-port: 7890\n\
         proxies:\n\
         - {name: far, type: socks5, server: 127.0.0.1, port: 1}\n\
         - {name: marked, type: rematch, target-rematch-name: seen}\n\
         - {name: aside, type: rematch, target-sub-rule: list}\n\
         - {name: round, type: rematch}\n\
         sub-rules:\n  list:\n  - DOMAIN,a.aside.test,far\n  - DOMAIN,b.aside.test,marked\n\
         rules:\n\
         - AND,((REMATCH-NAME,seen),(DOMAIN-SUFFIX,test)),REJECT\n\
         - DOMAIN-SUFFIX,aside.test,aside\n\
         - DOMAIN,mark.test,marked\n\
         - DOMAIN,round.test,round\n\
         - MATCH,far\n",
    );
    let hosts = ["a.aside.test", "b.aside.test", "c.aside.test", "mark.test", "round.test", "other.test"];
    let line = |host: &&str| format!("{{\"network\":\"tcp\",\"host\":\"{host}\",\"port\":443}}\n");
    dir.file("cases", &hosts.iter().map(line).collect::<String>());
    let (status, out, err) = dir.run(&["explain", "-c", "config.yaml", "--batch", "cases"]);
    assert_eq!(status, 0, "{err}");
    let found: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let target = |n: usize| found[n]["target"].as_str().unwrap();
    assert_eq!([0, 1, 3, 5].map(target), ["far", "REJECT", "REJECT", "far"], "{out}");
    // The end of a list: nothing has matched.
    assert_eq!((&found[2]["rule"], target(2)), (&Value::Null, "DIRECT"), "{out}");
    let (_, out, _) = dir.run(&["explain", "-c", "config.yaml", "--to", "round.test:1"]);
    assert!(out.ends_with("refused: protocol\n"), "{out}");
    assert!(out.contains("has the rules asked once more"), "{out}");
}
