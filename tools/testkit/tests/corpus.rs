//! Replays the fuzz corpus through every target, on stable Rust and without libFuzzer.

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use targets::TARGETS;

/// Cuts and flips that are tried on each input, at most: enough for every header, bounded for long inputs.
const MAX_VARIANTS: usize = 512;

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn names() -> BTreeSet<String> {
    TARGETS.iter().map(|target| target.0.to_string()).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = match folder.read_dir() {
        Ok(entries) => entries.map(|entry| entry.expect("an entry of the corpus").path()).collect(),
        Err(error) => panic!("{}: {error}", folder.display()),
    };
    entries.sort();
    entries
}

/// Whether a corpus file is tracked. libFuzzer names its own discoveries by their SHA-1; those are not replayed.
fn is_kept(file: &Path) -> bool {
    let name = file.file_name().expect("a file in a folder").as_encoded_bytes();
    !(name.len() == 40 && name.iter().all(u8::is_ascii_hexdigit))
}

/// Runs one input; a panic is reported with the way to reproduce it.
fn run(target: &str, function: fn(&[u8]), input: &[u8], origin: &str) {
    let result = catch_unwind(AssertUnwindSafe(|| function(input)));
    assert!(result.is_ok(), "{target} fails on {origin}: {:?}", String::from_utf8_lossy(input));
}

/// The input, cut short at each of its bytes, and with one bit of each byte flipped.
fn replay(target: &str, function: fn(&[u8]), file: &Path) {
    let input = std::fs::read(file).expect("a file of the corpus");
    let name = file.display();
    run(target, function, &input, &name.to_string());
    for at in 0..input.len().min(MAX_VARIANTS) {
        run(target, function, &input[..at], &format!("{name} cut to {at} bytes"));
        let mut flipped = input.clone();
        flipped[at] ^= 1 << (at % 8);
        run(target, function, &flipped, &format!("{name} with byte {at} flipped"));
    }
}

#[test]
fn corpus() {
    for &(target, function) in TARGETS {
        run(target, function, &[], "the empty input");
        let mut files = entries(&fuzz_dir().join("corpus").join(target));
        files.retain(|file| is_kept(file));
        assert!(!files.is_empty(), "tools/fuzz/corpus/{target} holds no input");
        for file in files {
            replay(target, function, &file);
        }
    }
}

#[test]
fn no_corpus_without_a_target() {
    for folder in entries(&fuzz_dir().join("corpus")) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_string();
        assert!(
            names().contains(&name),
            "tools/fuzz/corpus/{name} belongs to no line of tools/fuzz/targets.rs"
        );
    }
}

#[test]
fn both_tables_name_the_same_targets() {
    let manifest = std::fs::read_to_string(fuzz_dir().join("Cargo.toml")).unwrap();
    let programs = manifest.lines().filter_map(|line| line.trim().strip_prefix("{ name = \""));
    let programs: BTreeSet<String> = programs.map(|rest| rest.split('"').next().unwrap().into()).collect();
    assert_eq!(programs, names(), "tools/fuzz/Cargo.toml (left) and tools/fuzz/targets.rs (right) differ");
    assert!(TARGETS.is_sorted_by_key(|target| target.0), "tools/fuzz/targets.rs is not sorted by name");
}
