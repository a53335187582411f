//! The versions that the programs of a run print.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::subject::{Programs, Subject};

/// A program that has not answered by then is asked no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer that are looked at: a version stands at its begin.
const SHOWN: usize = 200;

/// One program of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Version {
    /// Its name in the subjects.
    pub program: String,
    /// The line in which it says its version; "?" if it says none.
    pub text: String,
}

/// The argument by which a program prints its version and ends, if it has one.
fn argument(program: &str) -> Option<&'static str> {
    Some(match program {
        "sing-box" => "version",
        "mihomo" | "kcptun-client" | "kcptun-server" => "-v",
        "ss-server" | "ss-local" | "ss-tunnel" => "-h",
        "opensnell-server" | "opensnell-client" => return None,
        _ => "--version",
    })
}

/// The versions of all programs of these subjects, by name; the lab itself is left out.
#[must_use]
pub(crate) fn read(subjects: &[Subject], programs: &Programs) -> Vec<Version> {
    let names: BTreeMap<&str, _> = subjects
        .iter()
        .flat_map(|subject| &subject.process)
        .filter(|process| process.program != "@lab")
        .filter_map(|process| Some((process.program.as_str(), programs.find(&process.program)?)))
        .collect();
    let version = |(name, path): (&str, PathBuf)| {
        let text = argument(name).and_then(|argument| ask(&path, argument)).unwrap_or_else(|| "?".to_owned());
        Version { program: name.to_owned(), text }
    };
    names.into_iter().map(version).collect()
}

/// The end of the version of an adit that was built with the profile of packages, whose figures may be published.
const DIST: &str = "(dist)";

/// Fails for an adit of another profile than that of packages: its figures are not those that users get.
///
/// # Errors
/// With the version that it prints.
pub(crate) fn require_dist(adit: &Path) -> Result<()> {
    let text = ask(adit, "--version").unwrap_or_else(|| "?".to_owned());
    ensure!(
        text.ends_with(DIST),
        "{} is no dist build, so its figures are not written: {text}\n\
         hint: `cargo build --profile dist -p adit` makes one; --any-profile takes this one, and the report says so",
        adit.display()
    );
    Ok(())
}

/// The remark of a report about an adit of another profile.
pub(crate) fn remark(versions: &[Version]) -> Option<String> {
    let adit = versions.iter().find(|version| version.program == "adit" && !version.text.ends_with(DIST))?;
    Some(format!("{} is no dist build: packages have other figures", adit.text))
}

/// The first line with a digit or the word "version" in what the program prints.
fn ask(program: &Path, argument: &str) -> Option<String> {
    let mut child = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let end = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > end {
            child.kill().ok()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().ok()?;
    line(&[output.stdout, output.stderr].concat())
}

fn line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let has_version =
        |line: &&str| line.bytes().any(|byte| byte.is_ascii_digit()) || line.contains("version");
    let line = text.lines().map(str::trim).find(has_version)?;
    Some(line.chars().filter(|c| matches!(c, ' '..='~')).take(SHOWN).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_line_that_has_one() {
        assert_eq!(
            line(b"\nusage:\nshadowsocks-libev 3.3.5\nmore 1\n").as_deref(),
            Some("shadowsocks-libev 3.3.5")
        );
        assert_eq!(line(b"kcptun version SELFBUILD\n").as_deref(), Some("kcptun version SELFBUILD"));
        assert_eq!(line(b"no number\n"), None);
        assert_eq!(line(&[b'1'; 1000]).map(|line| line.len()), Some(SHOWN));
    }

    #[test]
    fn a_program_that_does_not_end_is_left() {
        let begin = Instant::now();
        assert_eq!(ask(Path::new("/bin/sleep"), "30"), None);
        assert!(begin.elapsed() < 5 * PATIENCE);
        assert_eq!(ask(Path::new("/nonexistent"), "1"), None);
    }

    #[test]
    fn other_profiles_are_named() {
        let of = |text: &str| remark(&[Version { program: "adit".to_owned(), text: text.to_owned() }]);
        assert_eq!(of("adit 0.1.0 (dist)"), None);
        assert_eq!(
            of("adit 0.1.0 (dev)").as_deref(),
            Some("adit 0.1.0 (dev) is no dist build: packages have other figures")
        );
        assert!(require_dist(Path::new("/nonexistent")).unwrap_err().to_string().contains("--any-profile"));
    }
}
