//! `adit bench soak`.

use std::fs;
use std::path::Path;

use adit_testkit::wait_for;
use serde_json::Value;

use crate::support::{Dir, Running};

#[test]
fn a_soak_run_that_is_stopped_keeps_its_data() {
    if !Path::new(env!("CARGO_BIN_EXE_adit")).with_file_name("adit-bench").is_file() {
        return adit_testkit::skipped("adit-bench is not built: cargo build -p adit-lab");
    }
    let dir = Dir::new();
    let page = dir.path().join("page.html");
    let words = ["bench", "soak", "--hours", "1", "--html", page.to_str().unwrap()];
    let (status, _, err) = dir.run(&words);
    assert!(status != 0 && err.contains("is no dist build") && !page.exists(), "{err}");
    let running = Running::start(dir.adit(&[&words[..], &["--any-profile"]].concat()));
    running.line("60 minutes of mixed load; samples: adit-soak.jsonl");
    let samples = dir.path().join("adit-soak.jsonl");
    wait_for("two samples", || fs::read_to_string(&samples).is_ok_and(|text| text.lines().count() >= 2));
    running.signal("INT");
    let (status, log) = running.end();
    assert!(status.success() && log.contains("too short to tell") && log.contains(" 0 failed"), "{log}");
    let text = fs::read_to_string(samples).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for count in ["requests", "transfers", "datagrams_back"] {
        assert!(last[count].as_u64() > Some(0), "{count}: {last}");
    }
    for end in ["server", "client"] {
        assert!(
            last[end]["rss_kib"].as_u64() > Some(1_000) && last[end]["descriptors"].as_u64() > Some(10),
            "{last}"
        );
    }
    assert!(fs::read_to_string(page).unwrap().contains("first byte of fresh connections"));
}
