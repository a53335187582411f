//! Every fuzz target: the name of the program says which.

#![no_main]

#[path = "../targets.rs"]
mod targets;

use std::sync::LazyLock;

static RUN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = env!("CARGO_BIN_NAME");
    let (_, run) = targets::TARGETS.iter().find(|target| target.0 == name).expect("a line in targets.rs");
    *run
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| RUN(data));
