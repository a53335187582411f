//! Project commands: `cargo xtask <command>`.
//!
//! `tidy` checks what neither the compiler nor clippy can see, the architecture's invariants; the other commands
//! run the suites that are too long for every change. Plain cargo does everything else.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people at a terminal")]

mod figures;
mod instructions;
mod process;
mod repeat;
mod size;
mod suites;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

const USAGE: &str = "\
usage: cargo xtask <command>

  tidy      check the architecture's invariants (ARCHITECTURE.md, \"Invariants\")
  lines [--save] [--names]
            count lines, names of types, places that match on protocols, and circles between folders; store them in
            bench/lines.tsv; print the names that several types of a crate have
  size [--profile small | --save]
            build the dist binary, print its size beside earlier ones (bench/size.tsv), fail above the limit; or print the
            size of the build for routers (`cargo build --profile small`); or build both and store their sizes
  bench [SCENARIO [OPTIONS]]
            build the dist binary and measure it: `adit bench run SCENARIO OPTIONS`, `quick` unless named; page and raw
            data go to target/bench
  instructions [CASE...] [--save]
            count instructions and allocations of the codecs under valgrind and hold them against bench/instructions.tsv, or
            store them
  figures [--check]
            write the tables of figures in README.md from bench/results, or say whether they differ
  png DIR   draw each SVG file of a folder, such as plots of `adit bench run --svg DIR`, as PNG beside it
  interop   run the tests that drive real peers: ignored ones with `interop` in their path
  repeat [--times N] [--busy N]
            run `cargo test --workspace` N times (10), beside N threads at full speed (2); a row for each run goes to
            target/repeat/log.tsv, and after an interruption the next call goes on behind the last row of the same commit
  full      the long suite: .ci/run, advisories about dependencies, the size of the dist binary, every ignored test (interop
            and soak are among them), instruction counts, fuzz discovery
            (ADIT_SING_BOX: the sing-box to drive, unless it is in the path;
            ADIT_FUZZ_SECONDS: time for each fuzz target, default 30)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> anyhow::Result<()> {
    let root = workspace_root();
    match args {
        ["tidy"] => tidy(&root),
        ["lines", rest @ ..] => tidy::lines(&root, rest),
        ["size", rest @ ..] => size::size(&root, rest),
        ["bench", rest @ ..] => suites::bench(&root, rest),
        ["instructions", rest @ ..] => instructions::instructions(&root, rest),
        ["figures", rest @ ..] => figures::figures(&root, rest),
        ["png", dir] => suites::png(&root, dir),
        ["interop"] => suites::interop(&root),
        ["repeat", rest @ ..] => repeat::repeat(&root, rest),
        ["full"] => suites::full(&root),
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            Ok(())
        }
        [] => bail!("no command\n\n{USAGE}"),
        _ => bail!("unknown command: {}\n\n{USAGE}", args.join(" ")),
    }
}

fn tidy(root: &Path) -> anyhow::Result<()> {
    let report = tidy::check(root)?;
    for question in &report.questions {
        println!("question: {question}");
    }
    for finding in &report.findings {
        println!("{finding}");
    }
    match report.findings.len() {
        0 => {
            println!("tidy: {} files, {} crates, no findings", report.files, report.crates);
            Ok(())
        }
        count => bail!("tidy: findings: {count}"),
    }
}

/// The folder above this crate's own: xtask always runs from a checkout.
fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("xtask lies inside the workspace")
        .to_path_buf()
}
