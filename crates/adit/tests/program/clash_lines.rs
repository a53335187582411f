//! Check 2: good and bad rule lines through `-t`, with the status and the kind of error that mihomo has answered.
//! `ADIT_TEST_IN_PLACE=PATH` puts mihomo in the place of adit: what was recorded is to come again.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::clash_api::peer;
use crate::support::{Dir, finish};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash");

/// The text of an error: it stands behind the line in brackets. mihomo wrote no colon behind `type` at first; programs since the
/// end of February 2025 do.
fn said(out: &str) -> String {
    let line = out.lines().rfind(|line| line.contains(" level=error msg=")).unwrap_or_default();
    let text = line.split_once("] error: ").map_or(line, |(_, text)| text);
    text.trim_end_matches('"').replace("rule type: ", "rule type ")
}

#[test]
fn recorded_lines() {
    let recorded = fs::read_to_string(Path::new(FOLDER).join("rule_lines.json")).unwrap();
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    assert!(cases.len() >= 150, "{}", cases.len());
    let dir = Dir::new();
    for file in fs::read_dir(Path::new(FOLDER).join("geo")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let (peer, mut wrong) = (peer(), Vec::new());
    for case in cases {
        let config = format!("{}rules: [{}]\n", recorded["config"].as_str().unwrap(), json!(case["line"]));
        dir.file("config.yaml", &config);
        let (status, out, err) = match &peer {
            Some(program) => finish(dir.command(program, &["-d", ".", "-t"]), ""),
            None => dir.run(&["mihomo", "-d", ".", "-t"]),
        };
        let differs = case["adit"].is_object() && peer.is_none();
        let wanted = if differs { &case["adit"]["status"] } else { &case["status"] };
        let is_status = *wanted == status;
        // A reason stands with each difference.
        let is_named =
            !differs || case["adit"]["why"].is_string() && case["adit"]["status"] != case["status"];
        let is_text = match case["text"].as_str().filter(|_| status == 1 && !differs) {
            // The rest of it says which part of the payload is wrong.
            Some(text @ "payloadRule error") => said(&out).starts_with(text),
            Some(text) => said(&out) == text,
            None => true,
        };
        if !is_status || !is_named || !is_text || !err.is_empty() {
            wrong.push(format!("{case}\n  {status} {out}{err}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
