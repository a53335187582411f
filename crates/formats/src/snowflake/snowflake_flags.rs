//! Flags as Go's package `flag` reads them: `-x v`, `-x=v`, `--x`; a boolean takes its value behind `=` alone. The first
//! word that is no flag ends them.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::read::usage;

/// A flag.
#[derive(Debug, Clone, Copy)]
pub(super) struct SnowflakeFlag {
    /// Its name, and others for it.
    pub(super) names: &'static [&'static str],
    /// A word for its value; none for a boolean.
    pub(super) value: Option<&'static str>,
    /// The value that it has otherwise.
    pub(super) default: &'static str,
    /// Its meaning.
    pub(super) what: &'static str,
}

/// A flag with a value.
pub(super) const fn text(
    names: &'static [&'static str],
    value: &'static str,
    default: &'static str,
    what: &'static str,
) -> SnowflakeFlag {
    SnowflakeFlag { names, value: Some(value), default, what }
}

/// A flag that is set or not.
pub(super) const fn switch(names: &'static [&'static str], what: &'static str) -> SnowflakeFlag {
    SnowflakeFlag { names, value: None, default: "false", what }
}

/// Why a program does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnowflakeExit {
    /// Its flags were asked for.
    Help,
    /// Its version was.
    Version,
    /// The flags are wrong: the reason, with status 2 as Go has it.
    Wrong(String),
}

/// The values of flags.
#[derive(Debug)]
pub(super) struct FlagValues {
    flags: &'static [SnowflakeFlag],
    given: BTreeMap<&'static str, String>,
}

impl FlagValues {
    /// Reads the arguments of a program.
    pub(super) fn read(flags: &'static [SnowflakeFlag], args: Vec<OsString>) -> Result<Self, SnowflakeExit> {
        let mut given = BTreeMap::new();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let arg =
                arg.into_string().map_err(|_| SnowflakeExit::Wrong("an argument is no UTF-8".to_owned()))?;
            let Some(name) = arg.strip_prefix('-').filter(|name| !name.is_empty()) else { break };
            if arg == "--" {
                break;
            }
            let name = name.strip_prefix('-').unwrap_or(name);
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            if matches!(name, "h" | "help") {
                return Err(SnowflakeExit::Help);
            }
            let found = flags.iter().find(|flag| flag.names.contains(&name));
            let flag = found
                .ok_or_else(|| SnowflakeExit::Wrong(format!("flag provided but not defined: -{name}")))?;
            let value = match (flag.value, value) {
                (None, None) => "true".to_owned(),
                (None, Some(value)) => boolean(name, &value)?,
                (Some(_), Some(value)) => value,
                (Some(_), None) => {
                    let next = args.next().and_then(|next| next.into_string().ok());
                    next.ok_or_else(|| SnowflakeExit::Wrong(format!("flag needs an argument: -{name}")))?
                }
            };
            given.insert(flag.names[0], value);
        }
        Ok(Self { flags, given })
    }

    /// The value of a flag, given or not.
    pub(super) fn get(&self, name: &str) -> &str {
        if let Some(value) = self.given.get(name) {
            return value;
        }
        let flag = self.flags.iter().find(|flag| flag.names[0] == name);
        flag.map_or("", |flag| flag.default)
    }

    /// Whether a boolean is set.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.get(name) == "true"
    }

    /// The same, read by `parse`.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, SnowflakeExit> {
        let value = self.get(name);
        parse(value)
            .map_err(|why| SnowflakeExit::Wrong(format!("invalid value \"{value}\" for flag -{name}: {why}")))
    }
}

fn boolean(name: &str, value: &str) -> Result<String, SnowflakeExit> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok("true".to_owned()),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok("false".to_owned()),
        _ => Err(SnowflakeExit::Wrong(format!("invalid boolean value \"{value}\" for -{name}: parse error"))),
    }
}

/// The flags, for a person.
pub(super) fn usage(name: &str, peer: &str, flags: &[SnowflakeFlag], closing: &str) -> String {
    let mut out = usage::head(name, peer);
    for flag in flags {
        let names: Vec<String> = flag.names.iter().map(|name| format!("-{name}")).collect();
        let left = format!("{} {}", names.join(", "), flag.value.unwrap_or_default());
        let default = match flag.default {
            "" | "false" => String::new(),
            default => format!(" (default {})", default.replace(',', ", ")),
        };
        out.push_str(&usage::flag(left.trim_end(), &format!("{}{default}", flag.what), 28));
    }
    out.push('\n');
    out.push_str(&usage::paragraph(closing));
    out
}

/// A duration as Go writes it: `300ms`, `30s`, `5m`, `1h30m`, `0`.
pub(super) fn duration(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || format!("time: invalid duration \"{text}\"");
    if text == "0" {
        return Ok(std::time::Duration::ZERO);
    }
    let mut total = 0.0;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..unit] {
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        total += number * seconds;
        rest = &rest[unit..];
    }
    std::time::Duration::try_from_secs_f64(total).map_err(|_| wrong())
}
