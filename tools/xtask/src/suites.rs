//! The suites that are too long, or need too much installed, for every change.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::process::{cargo, output, run};
use crate::{instructions, size};

/// Time for each fuzz target in the long suite, in seconds, unless `ADIT_FUZZ_SECONDS` says otherwise.
const FUZZ_SECONDS: u32 = 30;

/// Measures the `dist` binary; `args` are a scenario, `quick` if there is none, and options of `adit bench run`.
pub(crate) fn bench(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    run(cargo(root).args(["build", "--profile", "dist", "--package", "adit", "--package", "adit-lab"]))?;
    let lab = target_dir(root)?.join("dist").join(format!("adit-bench{}", std::env::consts::EXE_SUFFIX));
    let (scenario, options) = match args {
        [scenario, options @ ..] if !scenario.starts_with('-') => (*scenario, options),
        options => ("quick", options),
    };
    let dir = target_dir(root)?.join("bench");
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    // A scenario may be a file: its name alone is wanted.
    let name = Path::new(scenario).file_stem().unwrap_or_default();
    let (page, raw) = (dir.join(name).with_extension("html"), dir.join(name).with_extension("json"));
    let mut command = Command::new(lab);
    command.current_dir(root).args(["run", scenario]).args(options);
    let result = run(command.arg("--html").arg(&page).arg("--json").arg(&raw));
    println!("bench: {} and {}", page.display(), raw.display());
    result
}

/// Draws plots as PNG by the program in `tools/plots`, a workspace of its own. `dir` counts from where the command was called.
pub(crate) fn png(root: &Path, dir: &str) -> anyhow::Result<()> {
    let dir = Path::new(dir).canonicalize().with_context(|| format!("find {dir}"))?;
    let target = target_dir(root)?.join("plots");
    let mut command = cargo(root);
    command
        .args(["run", "--quiet", "--locked", "--manifest-path", "tools/plots/Cargo.toml", "--target-dir"])
        .arg(target);
    run(command.arg("--").arg(dir))
}

/// Drives real peers both ways.
pub(crate) fn interop(root: &Path) -> anyhow::Result<()> {
    report_peers();
    run(&mut long_tests(root, Some("interop")))
}

/// Without its peer a test of interop passes, and the harness swallows that it says so.
fn report_peers() {
    let program = std::env::var_os("ADIT_SING_BOX").unwrap_or_else(|| "sing-box".into());
    match output(Command::new(&program).arg("version")) {
        Ok(version) => println!("interop: {}", version.lines().next().unwrap_or_default()),
        Err(_) => println!("interop: skipped, no sing-box in the path, and ADIT_SING_BOX names none"),
    }
}

/// Everything. A part that fails does not keep the next from running.
pub(crate) fn full(root: &Path) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    let mut part = |name: &'static str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            println!("full: {name}: {error:#}");
            failed.push(name);
        }
    };
    part("ci", run(Command::new(root.join(".ci/run")).current_dir(root)));
    part("advisories", advisories(root));
    part("size", size::size(root, &[]));
    report_peers();
    part("long tests", run(&mut long_tests(root, None)));
    part("instructions", instructions::part(root));
    part("fuzz", fuzz(root));
    if failed.is_empty() {
        println!("full: all parts passed");
        return Ok(());
    }
    bail!("parts failed: {}", failed.join(", "));
}

/// Known holes in the crates that this one is made of. Without the program, or its list of them, it is skipped.
fn advisories(root: &Path) -> anyhow::Result<()> {
    let deny = |args: &[&str]| {
        let mut command = cargo(root);
        command.args(["deny", "--log-level", "error"]).args(args);
        command
    };
    if output(&mut deny(&["fetch", "db"])).is_err() {
        println!("advisories: skipped, cargo-deny is not installed, or its database cannot be reached");
        return Ok(());
    }
    run(&mut deny(&["check", "advisories"]))
}

/// The ignored tests, one at a time: each may load the whole machine.
fn long_tests(root: &Path, filter: Option<&str>) -> Command {
    let mut command = cargo(root);
    command.args(["test", "--profile=long", "--workspace", "--no-fail-fast"]);
    command.args(["--", "--ignored", "--test-threads=1"]).args(filter);
    command
}

/// Looks for new inputs with every fuzz target, for a limited time each.
fn fuzz(root: &Path) -> anyhow::Result<()> {
    let nightly = |args: &[&str]| {
        let mut command = Command::new("rustup");
        let (word, rest) = args.split_first().expect("a command of cargo fuzz");
        command.args(["run", "nightly", "cargo", "fuzz", word, "--fuzz-dir", "tools/fuzz"]).args(rest);
        command.current_dir(root);
        command
    };
    let Ok(list) = output(&mut nightly(&["list"])) else {
        println!("fuzz: skipped, needs a nightly toolchain and cargo-fuzz");
        return Ok(());
    };
    let seconds = match std::env::var("ADIT_FUZZ_SECONDS") {
        Ok(text) => text.parse().with_context(|| format!("ADIT_FUZZ_SECONDS: not a number: {text}"))?,
        Err(_) => FUZZ_SECONDS,
    };
    let time = format!("-max_total_time={seconds}");
    let mut failed = Vec::new();
    for target in list.split_whitespace() {
        println!("fuzz: {target}, {seconds} s");
        if let Err(error) = run(&mut nightly(&["run", target, "--", &time])) {
            println!("fuzz: {target}: {error:#}");
            failed.push(target);
        }
    }
    ensure!(failed.is_empty(), "targets failed: {}", failed.join(", "));
    Ok(())
}

pub(crate) fn target_dir(root: &Path) -> anyhow::Result<PathBuf> {
    let metadata = output(cargo(root).args(["metadata", "--format-version=1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("read cargo metadata")?;
    Ok(metadata["target_directory"].as_str().context("target_directory")?.into())
}
