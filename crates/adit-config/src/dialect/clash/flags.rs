//! The command line of mihomo, in the grammar of Go's flags: `-x v`, `-x=v`, one dash or two.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::dialect::usage;

/// Flags with a value that is not looked at: the control interface is not served yet.
const LEFT_OUT: [&str; 5] = ["ext-ctl", "ext-ctl-unix", "ext-ctl-pipe", "secret", "ext-ui"];

/// The task that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// The usage.
    Help,
    /// The version.
    Version,
    /// A run or a test.
    Run(Flags),
}

/// The flags of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// The folder of lists and databases (`-d`).
    pub home: Option<PathBuf>,
    /// The file (`-f`).
    pub file: Option<PathBuf>,
    /// Read the file and say whether it is good (`-t`).
    pub test: bool,
    /// Addresses of countries from `GeoIP.dat` (`-m`).
    pub geodata: bool,
    /// Flags without effect, by name.
    pub left_out: Vec<String>,
}

impl Flags {
    /// The folder and the file. `env` gives variables of the environment.
    pub fn paths(&self, env: impl Fn(&str) -> Option<OsString>) -> (PathBuf, PathBuf) {
        let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user = || {
            let usual = set("HOME").unwrap_or_default().join(".config/mihomo");
            let other = set("XDG_CONFIG_HOME").map(|folder| folder.join("mihomo"));
            if usual.exists() { usual } else { other.unwrap_or(usual) }
        };
        let home = self.home.clone().or_else(|| set("CLASH_HOME_DIR")).unwrap_or_else(user);
        let file = self.file.clone().or_else(|| set("CLASH_CONFIG_FILE"));
        let file = file.unwrap_or_else(|| home.join("config.yaml"));
        (home, file)
    }
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The problem, in a line.
pub fn flags(args: Vec<OsString>) -> Result<Invocation, String> {
    let mut flags = Flags::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        let Some(name) =
            text.strip_prefix("--").or_else(|| text.strip_prefix('-')).filter(|name| !name.is_empty())
        else {
            return Err(format!("unexpected argument: {text}"));
        };
        let (name, given) = match name.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (name, None),
        };
        let is_on = given.as_ref().is_none_or(|value| value == "true" || value == "1");
        let mut value = || {
            given.clone().or_else(|| args.next()).ok_or_else(|| format!("flag needs an argument: -{name}"))
        };
        match name {
            "h" | "help" => return Ok(Invocation::Help),
            "v" => return Ok(Invocation::Version),
            "t" => flags.test = is_on,
            "m" => flags.geodata = is_on,
            "d" => flags.home = Some(value()?.into()),
            "f" => flags.file = Some(value()?.into()),
            name if LEFT_OUT.contains(&name) => {
                value()?;
                flags.left_out.push(name.to_owned());
            }
            _ => return Err(format!("flag provided but not defined: -{name}")),
        }
    }
    Ok(Invocation::Run(flags))
}

/// The usage.
pub fn usage(program: &str) -> String {
    let mut out = usage::head(program, "mihomo");
    for (left, what) in [
        ("-d DIR", "folder of lists and databases (CLASH_HOME_DIR; ~/.config/mihomo)"),
        ("-f FILE", "configuration (CLASH_CONFIG_FILE; config.yaml in that folder), - for standard input"),
        ("-t", "read the configuration, say whether it is good, and end"),
        ("-m", "addresses of countries from GeoIP.dat"),
        ("-v", "print the version"),
    ] {
        out.push_str(&usage::flag(left, what, 12));
    }
    out
}

/// Whether a path stands for standard input.
pub fn is_input(path: &Path) -> bool {
    path == Path::new("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Invocation, String> {
        flags(args.iter().map(Into::into).collect())
    }

    #[test]
    fn go_flags() {
        let run = |flags| Ok(Invocation::Run(flags));
        let home = Some(PathBuf::from("h"));
        assert_eq!(
            read(&["-d", "h", "-t"]),
            run(Flags { home: home.clone(), test: true, ..Flags::default() })
        );
        assert_eq!(
            read(&["--d=h", "-m", "-t=false"]),
            run(Flags { home, geodata: true, ..Flags::default() })
        );
        let left_out = vec!["ext-ctl-unix".to_owned()];
        assert_eq!(read(&["-ext-ctl-unix", "s"]), run(Flags { left_out, ..Flags::default() }));
        assert_eq!(read(&["-v"]), Ok(Invocation::Version));
        for bad in [&["-x"][..], &["-d"], &["file"], &["-"]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn folder_and_file() {
        let env = |name: &str| (name == "CLASH_HOME_DIR").then(|| "/e".into());
        assert_eq!(Flags::default().paths(env), ("/e".into(), "/e/config.yaml".into()));
        let flags = Flags { home: Some("/d".into()), file: Some("x.yaml".into()), ..Flags::default() };
        assert_eq!(flags.paths(env), ("/d".into(), "x.yaml".into()));
    }
}
