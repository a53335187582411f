//! Names that `--list` shows and that shells complete.

use std::io::Write;

use anyhow::Result;
use clap::builder::{PossibleValue, TypedValueParser};

use crate::subject;

/// Names of a list that shells complete; others are accepted as well.
#[derive(Clone)]
pub(crate) struct Known(pub(crate) fn() -> Vec<&'static str>);

impl TypedValueParser for Known {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// The built-in subjects.
pub(crate) fn subject_names() -> Vec<&'static str> {
    static NAMES: std::sync::LazyLock<Vec<String>> =
        std::sync::LazyLock::new(|| subject::builtin().into_iter().map(|subject| subject.name).collect());
    NAMES.iter().map(String::as_str).collect()
}

/// One measure of each kind.
pub(crate) fn measure_names() -> Vec<&'static str> {
    let streams = [
        "down1",
        "up8",
        "get8",
        "put1",
        "ping1",
        "busy-connect2",
        "latency",
        "conn",
        "conn8",
        "first-byte",
        "idle",
        "idle1000",
        "calls",
        "base",
        "wire1",
    ];
    let datagrams = [
        "udp-bulk64",
        "udp-bulk1400-gso",
        "udp-max64",
        "udp-low64",
        "udp-scatter512",
        "udp-echo64",
        "udp-latency64",
        "udp-jitter1400",
        "udp-over64",
        "udp-idle",
        "busy-echo2",
    ];
    let links = ["path-down1", "path-up1", "path-ping", "path-share"];
    streams.into_iter().chain(datagrams).chain(links).collect()
}

/// A name and its description, within 80 columns.
pub(crate) fn entry(out: &mut dyn Write, name: &str, about: &str) -> Result<()> {
    const LEFT: usize = 24;
    let mut line = format!("  {name:<width$}", width = LEFT - 2);
    if line.chars().count() > LEFT {
        writeln!(out, "{}", line.trim_end())?;
        line = " ".repeat(LEFT);
    }
    for word in about.split_whitespace() {
        let len = line.chars().count();
        if len > LEFT && len + 1 + word.chars().count() > 80 {
            writeln!(out, "{line}")?;
            line = " ".repeat(LEFT);
        }
        line.push(' ');
        line.push_str(word);
    }
    writeln!(out, "{line}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measure;

    #[test]
    fn lines_fit_a_terminal() {
        let mut out = Vec::new();
        entry(&mut out, "a-name", &"word ".repeat(40)).unwrap();
        entry(&mut out, "a-name-that-is-longer-than-its-column", "about").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("word").count(), 40);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.contains("its-column\n"), "{text}");
    }

    #[test]
    fn every_measure_has_its_name() {
        for name in measure_names() {
            assert!(name.parse::<Measure>().is_ok(), "{name}");
        }
        assert!(!subject_names().is_empty());
    }
}
