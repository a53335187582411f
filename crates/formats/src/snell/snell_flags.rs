//! The command line, as Go's `flag` package reads it: one dash or two, `-c x` or `-c=x`, and the first argument
//! that is no flag ends them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use adit_model::Level;
use adit_model::diagnostic::{Diagnostic, Diagnostics};

use super::SnellProgram;
use crate::read::usage;

/// Action that a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnellInvocation {
    /// To run.
    Run(SnellFlags),
    /// To print [`usage`] and to exit with status 0.
    Help,
    /// To print [`version`] and to exit with status 0.
    Version,
}

/// The flags of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnellFlags {
    /// The configuration file: `-c FILE`, or the program's default path.
    pub config: PathBuf,
    /// Level of the log: `-v` for debug, `-l LEVEL` as the official server has it; `None` for info.
    pub level: Option<Level>,
    /// `-tun`: captures, even if the file says otherwise.
    pub tun: bool,
    /// Warnings about arguments that have no effect.
    pub diagnostics: Diagnostics,
}

/// Levels of `-l`, as the official server names them.
const LEVELS: &[(&str, Level)] = &[
    ("verbose", Level::Debug),
    ("debug", Level::Debug),
    ("info", Level::Info),
    ("notify", Level::Info),
    ("warn", Level::Warn),
    ("warning", Level::Warn),
    ("err", Level::Error),
    ("error", Level::Error),
];

/// The flags of a program, for a person.
pub fn usage(program: SnellProgram) -> String {
    let file = format!("configuration file (default {})", program.default_path());
    let mut out = usage::head(program.name(), "OpenSnell and the official server");
    let captures = ("-tun", "captures the traffic of this machine, as enable = true in [snell-tun]");
    let of_client = (program == SnellProgram::Client).then_some(captures);
    for (left, what) in [
        ("-c FILE", &*file),
        ("-l LEVEL", "least severe level of the log: verbose, info, notify, warn or err (default info)"),
        ("-v", "writes debug lines too"),
        ("-V, --version", "prints the version"),
        ("-h", "prints this text"),
    ]
    .into_iter()
    .chain(of_client)
    {
        out.push_str(&usage::flag(left, what, 18));
    }
    out
}

/// The version, as scripts for the official server look for it: `v5.0.1`, whose protocol this program speaks.
pub fn version(program: SnellProgram) -> String {
    format!("{} v5.0.1 (adit {})\n", program.name(), env!("CARGO_PKG_VERSION"))
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The first flag that is none; the programs exit with status 2 then.
pub fn flags(
    program: SnellProgram,
    args: impl IntoIterator<Item = OsString>,
) -> Result<SnellInvocation, Diagnostics> {
    let mut reader = Reader { program, file: "command line".into(), args: args.into_iter() };
    let mut flags = SnellFlags {
        config: program.default_path().into(),
        level: None,
        tun: false,
        diagnostics: Diagnostics::new(),
    };
    while let Some(arg) = reader.args.next() {
        let Some((name, value)) = split(&arg) else {
            if arg != "--" {
                flags.diagnostics.push(reader.ignored(&arg));
            }
            break;
        };
        match &*name {
            "h" | "help" => return Ok(SnellInvocation::Help),
            "V" | "version" => return Ok(SnellInvocation::Version),
            "c" => flags.config = reader.value(&name, value)?.into(),
            "l" => flags.level = flags.level.max(Some(reader.level(&name, value)?)),
            "v" => {
                if reader.switch(&name, value)? {
                    flags.level = flags.level.max(Some(Level::Debug));
                }
            }
            "tun" if program == SnellProgram::Client => flags.tun = reader.switch(&name, value)?,
            _ => return Err(reader.error(&name, "no such flag").hint("-h lists the flags").into()),
        }
    }
    Ok(SnellInvocation::Run(flags))
}

/// Name and value of `-name`, `--name`, `-name=value` and `--name=value`; `None` for what ends the flags.
fn split(arg: &OsString) -> Option<(String, Option<OsString>)> {
    let bytes = arg.as_encoded_bytes();
    let body =
        bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")).filter(|body| !body.is_empty())?;
    let Some(equals) = body.iter().position(|b| *b == b'=') else {
        return Some((String::from_utf8_lossy(body).into_owned(), None));
    };
    let value = match arg.to_str() {
        Some(text) => OsString::from(&text[text.len() - (body.len() - equals - 1)..]),
        None => String::from_utf8_lossy(&body[equals + 1..]).into_owned().into(),
    };
    Some((String::from_utf8_lossy(&body[..equals]).into_owned(), Some(value)))
}

struct Reader<I> {
    program: SnellProgram,
    file: Arc<str>,
    args: I,
}

impl<I: Iterator<Item = OsString>> Reader<I> {
    fn value(&mut self, name: &str, value: Option<OsString>) -> Result<OsString, Diagnostic> {
        value.or_else(|| self.args.next()).ok_or_else(|| self.error(name, "a value must follow"))
    }

    fn level(&mut self, name: &str, value: Option<OsString>) -> Result<Level, Diagnostic> {
        let value = self.value(name, value)?;
        let level = LEVELS.iter().find(|(text, _)| value == *text);
        level.map(|(_, level)| *level).ok_or_else(|| {
            self.error(name, "no such level").hint("the levels are verbose, info, notify, warn and err")
        })
    }

    /// A flag without a value of its own: `-v`, but `-v=false` too.
    fn switch(&self, name: &str, value: Option<OsString>) -> Result<bool, Diagnostic> {
        let Some(value) = value else { return Ok(true) };
        match value.to_str() {
            Some("1" | "t" | "T" | "TRUE" | "true" | "True") => Ok(true),
            Some("0" | "f" | "F" | "FALSE" | "false" | "False") => Ok(false),
            _ => Err(self.error(name, "neither true nor false")),
        }
    }

    fn error(&self, name: &str, problem: &str) -> Diagnostic {
        let name = crate::read::value::excerpt(name);
        Diagnostic::error(&self.file, format!("{} -{name}", self.program.name()), problem)
    }

    fn ignored(&self, arg: &OsString) -> Diagnostic {
        let key = crate::read::value::excerpt(&arg.to_string_lossy());
        Diagnostic::warning(&self.file, key, "no flag, so this and what follows has no effect")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<SnellInvocation, Diagnostics> {
        flags(SnellProgram::Server, args.iter().map(OsString::from))
    }

    #[test]
    fn forms() {
        let default = "/etc/snell-server/snell-server.conf";
        for (args, config, level) in [
            (&[][..], default, None),
            (&["-c", "x"], "x", None),
            (&["-c=x"], "x", None),
            (&["--c", "x"], "x", None),
            (&["--c=x=y"], "x=y", None),
            (&["-c="], "", None),
            (&["-c", "x", "-c", "-y"], "-y", None),
            (&["-v"], default, Some(Level::Debug)),
            (&["-v=false"], default, None),
            (&["-l", "notify"], default, Some(Level::Info)),
            (&["-l=err", "-v"], default, Some(Level::Debug)),
            (&["--", "-c"], default, None),
        ] {
            let Ok(SnellInvocation::Run(flags)) = read(args) else { panic!("{args:?}") };
            assert_eq!((flags.config, flags.level), (PathBuf::from(config), level), "{args:?}");
        }
        for args in [&["-V"][..], &["--version"], &["-version"]] {
            assert_eq!(read(args), Ok(SnellInvocation::Version), "{args:?}");
        }
        for args in [&["-h"][..], &["--help"], &["-v", "-h"]] {
            assert_eq!(read(args), Ok(SnellInvocation::Help), "{args:?}");
        }
    }

    #[test]
    fn errors() {
        for (args, want) in [
            (&["-x"][..], "command line: snell-server -x: no such flag\n  hint: -h lists the flags\n"),
            (&["-c"], "command line: snell-server -c: a value must follow\n"),
            (&["-v=maybe"], "command line: snell-server -v: neither true nor false\n"),
            (&["-l", "loud"], "command line: snell-server -l: no such level\n"),
            (&["-tun"], "command line: snell-server -tun: no such flag\n"),
            (&["---c"], "command line: snell-server --c: no such flag\n"),
        ] {
            let found = read(args).unwrap_err().to_string();
            assert!(found.starts_with(want), "{found}");
        }
    }

    #[test]
    fn what_is_no_flag_ends_them() {
        let Ok(SnellInvocation::Run(flags)) = read(&["start", "-c", "x"]) else { panic!() };
        assert_eq!(flags.config, PathBuf::from(SnellProgram::Server.default_path()));
        assert_eq!(flags.diagnostics.len(), 1);
        let client = super::flags(SnellProgram::Client, ["-tun".into()]);
        let Ok(SnellInvocation::Run(flags)) = client else { panic!() };
        assert!(flags.tun && flags.diagnostics.is_empty());
        assert!(usage(SnellProgram::Client).contains("/etc/snell-server/snell-client.conf"));
    }
}
