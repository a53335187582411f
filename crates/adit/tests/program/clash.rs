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

/// The decision that is wanted: the recorded one, unless adit is meant to differ. Where adit differs, the record has
/// neither payload nor chain.
fn wanted(case: &Value) -> Value {
    case.get("adit").unwrap_or(&case["result"]).clone()
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
