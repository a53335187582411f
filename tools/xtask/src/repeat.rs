//! The test command again and again beside threads at full speed, as on a machine that has other things to do.
//!
//! ```text
//! target/repeat/log.tsv      commit  run  began  seconds  passed  failed  skipped  names of failed tests
//! target/repeat/COMMIT-RUN   what that run printed
//! ```
//!
//! A row is written when a run has ended. After an interruption the next call goes on behind the last row of the same
//! commit: the interrupted run begins again.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};

use crate::process::{cargo, output, run};
use crate::suites::target_dir;

/// Runs unless `--times` says otherwise.
const TIMES: usize = 10;
/// Threads at full speed unless `--busy` says otherwise.
const BUSY: usize = 2;

/// Results of one run of the test command.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Number of test programs that printed a result.
    programs: usize,
    failures: Vec<String>,
}

/// Runs `cargo test --workspace` until the log has `--times` runs of this commit, each beside `--busy` threads.
///
/// # Errors
/// A test that failed in any of them, or a run that printed no result.
pub(crate) fn repeat(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let (times, busy) = options(args)?;
    let commit = commit(root)?;
    let dir = target_dir(root)?.join("repeat");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let log = dir.join("log.tsv");
    run(cargo(root).args(["test", "--workspace", "--no-run"]))?;
    let mut rows = rows_of(&fs::read_to_string(&log).unwrap_or_default(), &commit);
    for number in rows.len() + 1..=times {
        println!("repeat: run {number} of {times} beside {busy} busy threads, commit {commit}");
        let row = one_run(root, &dir.join(format!("{commit}-{number}")), busy)
            .map(|(began, seconds, outcome)| row(&commit, number, began, seconds, &outcome))?;
        println!("repeat: {row}");
        let mut file = OpenOptions::new().create(true).append(true).open(&log).context("open the log")?;
        writeln!(file, "{row}").context("write the log")?;
        rows.push(row);
    }
    let good = rows.iter().filter(|row| is_good(row)).count();
    println!("repeat: {good} of {} runs passed; log: {}", rows.len(), log.display());
    ensure!(good == rows.len(), "runs with failed tests: {}", rows.len() - good);
    Ok(())
}

fn options(args: &[&str]) -> anyhow::Result<(usize, usize)> {
    let (mut times, mut busy) = (TIMES, BUSY);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let number = || args.clone().next().and_then(|value| value.parse().ok());
        let number = || number().with_context(|| format!("{arg} needs a number"));
        match *arg {
            "--times" => times = number()?,
            "--busy" => busy = number()?,
            _ => bail!("unknown option: {arg}"),
        }
        args.next();
    }
    Ok((times, busy))
}

/// The commit, with a mark if the tree differs from it.
fn commit(root: &Path) -> anyhow::Result<String> {
    let git = |args: &[&str]| output(Command::new("git").current_dir(root).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain"])?.trim().is_empty();
    Ok(format!("{}{}", commit.trim(), if is_changed { "+" } else { "" }))
}

/// Runs of `commit` in the log.
fn rows_of(log: &str, commit: &str) -> Vec<String> {
    let is_ours = |line: &&str| line.split('\t').next() == Some(commit);
    log.lines().filter(is_ours).map(str::to_owned).collect()
}

fn row(commit: &str, number: usize, began: u64, seconds: u64, outcome: &Outcome) -> String {
    let Outcome { passed, failed, skipped, failures, .. } = outcome;
    let names = failures.join(" ");
    format!("{commit}\t{number}\t{began}\t{seconds}\t{passed}\t{failed}\t{skipped}\t{names}")
}

fn is_good(row: &str) -> bool {
    let fields: Vec<&str> = row.split('\t').collect();
    fields.get(5) == Some(&"0") && fields.get(7).is_none_or(|names| names.is_empty())
}

/// Runs the test command once; what it prints goes to `file`. Seconds since 1970 at the beginning, and its duration.
fn one_run(root: &Path, file: &Path, busy: usize) -> anyhow::Result<(u64, u64, Outcome)> {
    let out = File::create(file).with_context(|| format!("create {}", file.display()))?;
    #[expect(clippy::disallowed_methods, reason = "the clock of a log for people")]
    let (since, began) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..busy)
        .map(|_| {
            let is_over = is_over.clone();
            thread::spawn(move || while !is_over.load(Ordering::Relaxed) {})
        })
        .collect();
    let mut command = cargo(root);
    command.args(["test", "--workspace", "--no-fail-fast"]).stdin(Stdio::null());
    let status = command.stdout(out.try_clone()?).stderr(out).status();
    is_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let status = status.with_context(|| format!("run {command:?}"))?;
    let mut text = String::new();
    File::open(file)?.read_to_string(&mut text).with_context(|| format!("read {}", file.display()))?;
    let mut outcome = outcome(&text);
    ensure!(outcome.programs > 0, "no test ran: see {}", file.display());
    if !status.success() && outcome.failures.is_empty() {
        outcome.failures.push(format!("({status})"));
    }
    Ok((began, since.elapsed().as_secs(), outcome))
}

/// Counts the results of all test programs.
fn outcome(text: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
            outcome.failures.push(name.to_owned());
        }
        let Some(result) = line.strip_prefix("test result: ") else { continue };
        outcome.programs += 1;
        let words: Vec<&str> = result.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[0].parse::<usize>() else { continue };
            match pair[1] {
                "passed" => outcome.passed += count,
                "failed" => outcome.failed += count,
                "ignored" => outcome.skipped += count,
                _ => {}
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
running 3 tests
test a::b ... ok
test a::c ... FAILED
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.10s
test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn results_are_counted_and_failures_named() {
        let counted = outcome(TEXT);
        let failures = vec!["a::c".to_owned()];
        assert_eq!(counted, Outcome { passed: 6, failed: 1, skipped: 1, programs: 2, failures });
    }

    #[test]
    fn a_log_goes_on_behind_the_runs_of_its_commit() {
        let bad = row("c0ffee", 1, 7, 60, &outcome(TEXT));
        let good = row("c0ffee", 2, 8, 60, &Outcome { passed: 9, programs: 1, ..Outcome::default() });
        let log = format!("{bad}\n{good}\nother\t1\t0\t1\t1\t0\t0\t\n");
        assert_eq!(rows_of(&log, "c0ffee"), [bad.clone(), good.clone()]);
        assert!(!is_good(&bad) && is_good(&good));
    }

    #[test]
    fn options_are_numbers() {
        assert_eq!(options(&[]).unwrap(), (TIMES, BUSY));
        assert_eq!(options(&["--busy", "0", "--times", "3"]).unwrap(), (3, 0));
        assert!(
            options(&["--times"]).is_err() && options(&["--times", "x"]).is_err() && options(&["x"]).is_err()
        );
    }
}
