//! The size of the program, held against its limit and shown beside earlier sizes.
//!
//! `bench/size.tsv` has one row for each time that somebody stored the sizes: at a release, or when a change moved them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::process::{cargo, output, run};
use crate::suites::target_dir;

/// Largest `dist` binary, in bytes: half of what the programs ship that it stands beside.
const MAX_LEN: u64 = 24_000_000;
/// The stored sizes, from the root of the workspace.
const HISTORY: &str = "bench/size.tsv";
/// Earlier sizes that are shown.
const SHOWN: usize = 5;

/// One row of [`HISTORY`]: sizes in bytes, `None` where that profile was not built.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    date: String,
    compiler: String,
    dist: u64,
    small: Option<u64>,
    commit: String,
}

/// Builds the `dist` binary, prints its size beside earlier ones, says if it is above the limit, and fails above [`bound`].
/// `--profile small` does the same for that profile, without a limit. `--save` builds both and stores their sizes.
pub(crate) fn size(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join(HISTORY)).with_context(|| format!("read {HISTORY}"))?;
    let rows = parse(&text)?;
    match args {
        [] => dist(root, &rows).map(drop),
        ["--profile", "dist"] => dist(root, &rows).map(drop),
        ["--profile", "small"] => small(root, &rows).map(drop),
        ["--save"] => {
            let row = Row { dist: dist(root, &rows)?, small: Some(small(root, &rows)?), ..about(root)? };
            std::fs::write(root.join(HISTORY), text + &line(&row))
                .with_context(|| format!("write {HISTORY}"))?;
            println!("size: stored in {HISTORY}");
            Ok(())
        }
        _ => bail!("unknown option: {}\nhint: --profile small, or --save", args.join(" ")),
    }
}

/// Builds the program and gives its path.
pub(crate) fn build(root: &Path, profile: &str) -> anyhow::Result<PathBuf> {
    run(cargo(root).args(["build", "--profile", profile, "--package", "adit"]))?;
    Ok(target_dir(root)?.join(profile).join(format!("adit{}", std::env::consts::EXE_SUFFIX)))
}

fn dist(root: &Path, rows: &[Row]) -> anyhow::Result<u64> {
    let len = built(root, "dist")?;
    let percent = 100.0 * to_f64(len) / to_f64(MAX_LEN);
    println!(
        "size: dist: {len} bytes, {percent:.0} % of the limit of {MAX_LEN}{}",
        since(rows, len, |row| Some(row.dist))
    );
    for row in &rows[rows.len().saturating_sub(SHOWN)..] {
        let small = row.small.map_or(String::new(), |small| format!(", small {small}"));
        println!(
            "size: before: {} dist {}{small} ({}, after \"{}\")",
            row.date, row.dist, row.compiler, row.commit
        );
    }
    if let Some(over) = len.checked_sub(MAX_LEN).filter(|over| *over > 0) {
        println!("size: MISSED: {over} bytes above the limit");
    }
    let bound = bound(rows);
    ensure!(len <= bound, "the dist binary is larger than {bound} bytes: {len}");
    Ok(len)
}

/// The size that is an error: above the limit, or above the last stored size and a fiftieth where that has missed the limit
/// already, so that a miss does not grow unseen.
fn bound(rows: &[Row]) -> u64 {
    let last = rows.last().map_or(0, |row| row.dist);
    if last > MAX_LEN { last + last / 50 } else { MAX_LEN }
}

fn small(root: &Path, rows: &[Row]) -> anyhow::Result<u64> {
    let len = built(root, "small")?;
    println!("size: small: {len} bytes{}", since(rows, len, |row| row.small));
    Ok(len)
}

fn built(root: &Path, profile: &str) -> anyhow::Result<u64> {
    let binary = build(root, profile)?;
    Ok(binary.metadata().with_context(|| format!("look at {}", binary.display()))?.len())
}

/// Difference of `len` from the last stored size.
fn since(rows: &[Row], len: u64, of: impl Fn(&Row) -> Option<u64>) -> String {
    let last = rows.iter().rev().find_map(|row| Some((of(row)?, &row.date)));
    last.map_or(String::new(), |(last, date)| {
        let percent = 100.0 * (to_f64(len) / to_f64(last) - 1.0);
        format!(", {percent:+.1} % since {date}")
    })
}

#[expect(clippy::cast_precision_loss, reason = "for a figure of three digits")]
fn to_f64(len: u64) -> f64 {
    len as f64
}

/// A row without sizes: today, this compiler, the last commit.
fn about(root: &Path) -> anyhow::Result<Row> {
    let compiler = output(Command::new("rustc").arg("--version").current_dir(root))?;
    let compiler = compiler.split_whitespace().nth(1).context("version of rustc")?.to_owned();
    let head = output(
        Command::new("git").args(["log", "-1", "--date=short", "--format=%cd%x09%s"]).current_dir(root),
    )?;
    let (date, commit) = head.trim_end().split_once('\t').context("date and subject of the last commit")?;
    let commit = commit.replace('\t', " ");
    Ok(Row { date: date.to_owned(), compiler, dist: 0, small: None, commit })
}

fn line(row: &Row) -> String {
    let Row { date, compiler, dist, small, commit } = row;
    let small = small.map_or("-".to_owned(), |small| small.to_string());
    format!("{date}\t{compiler}\t{dist}\t{small}\t{commit}\n")
}

fn parse(text: &str) -> anyhow::Result<Vec<Row>> {
    text.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

fn row(line: &str) -> anyhow::Result<Row> {
    let bad = || format!("{HISTORY}: bad row: {line}");
    let [date, compiler, dist, small, commit] = *line.split('\t').collect::<Vec<_>>() else {
        bail!(bad());
    };
    let small = match small {
        "-" => None,
        small => Some(small.parse().with_context(bad)?),
    };
    let dist = dist.parse().with_context(bad)?;
    let [date, compiler, commit] = [date, compiler, commit].map(str::to_owned);
    Ok(Row { date, compiler, dist, small, commit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_sizes_can_be_read_and_written() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let text = std::fs::read_to_string(root.join(HISTORY)).unwrap();
        let rows = parse(&text).unwrap();
        assert!(!rows.is_empty());
        let again: String = rows.iter().map(line).collect();
        assert!(text.ends_with(&again), "{again}");
        for bad in ["2026-01-01\t1.95.0\t1\t2", "2026-01-01\t1.95.0\tx\t-\tc", "2026-01-01\t1.95.0\t1\t\tc"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_miss_of_the_limit_may_not_grow() {
        let rows = |dist: u64| parse(&format!("d\tc\t{dist}\t-\tone\n")).unwrap();
        assert_eq!(bound(&[]), MAX_LEN);
        assert_eq!(bound(&rows(MAX_LEN)), MAX_LEN);
        assert_eq!(bound(&rows(25_000_000)), 25_500_000);
    }

    #[test]
    fn the_trend_is_against_the_last_row_that_has_the_size() {
        let rows = parse("d1\tc\t100\t50\tone\nd2\tc\t200\t-\ttwo\n").unwrap();
        assert_eq!(since(&rows, 210, |row| Some(row.dist)), ", +5.0 % since d2");
        assert_eq!(since(&rows, 49, |row| row.small), ", -2.0 % since d1");
        assert_eq!(since(&[], 49, |row| row.small), "");
    }
}
