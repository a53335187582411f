//! The command line of mihomo, in the grammar of Go's flags: `-x v`, `-x=v`, one dash or two.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use adit_model::Secret;
use adit_model::diagnostic::{Diagnostic, Diagnostics};

use super::MAX_LEN;
use super::subscription::decode;
use crate::read::usage;

/// Flags with a value that is not looked at, and their variables.
const LEFT_OUT: [(&str, &str); 1] = [("ext-ctl-pipe", "CLASH_OVERRIDE_EXTERNAL_CONTROLLER_PIPE")];

/// Flags and variables that outrank keys of the file.
const OVERLAY: [(&str, &str, &str); 4] = [
    ("ext-ctl", "CLASH_OVERRIDE_EXTERNAL_CONTROLLER", "external-controller"),
    ("ext-ctl-unix", "CLASH_OVERRIDE_EXTERNAL_CONTROLLER_UNIX", "external-controller-unix"),
    ("secret", "CLASH_OVERRIDE_SECRET", "secret"),
    ("ext-ui", "CLASH_OVERRIDE_EXTERNAL_UI_DIR", "external-ui"),
];

/// The task that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClashInvocation {
    /// The usage.
    Help,
    /// The version.
    Version,
    /// Another form of a rule set (`convert-ruleset`): behavior, format, source, destination.
    Convert(Vec<OsString>),
    /// A run or a test.
    Run(ClashFlags),
}

/// The flags of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClashFlags {
    /// The folder of lists and databases (`-d`).
    pub home: Option<PathBuf>,
    /// The file (`-f`).
    pub file: Option<PathBuf>,
    /// The whole configuration, in the place of a file (`-config`, in base64).
    pub inline: Option<Secret>,
    /// Read the file and say whether it is good (`-t`).
    pub test: bool,
    /// Addresses of countries from `GeoIP.dat` (`-m`).
    pub geodata: bool,
    /// Flags without effect, by name.
    pub left_out: Vec<String>,
    /// Values in the place of those of keys of the file.
    pub overlay: Vec<(&'static str, Secret)>,
}

impl ClashFlags {
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

    /// Takes the variables of the environment that outrank keys of the file, as far as no flag does.
    pub fn add_variables(&mut self, env: impl Fn(&str) -> Option<OsString>) {
        for (_, variable, key) in OVERLAY {
            let value = env(variable).filter(|value| !value.is_empty());
            let is_flag = self.overlay.iter().any(|(known, _)| *known == key);
            if let Some(value) = value.filter(|_| !is_flag) {
                self.overlay.push((key, Secret::new(value.to_string_lossy())));
            }
        }
        for (flag, variable) in LEFT_OUT {
            let is_said = env(variable).is_some_and(|value| !value.is_empty());
            if is_said && !self.left_out.iter().any(|known| known == flag) {
                self.left_out.push(flag.to_owned());
            }
        }
        let inline = env("CLASH_CONFIG_STRING").filter(|value| !value.is_empty());
        if let Some(value) = inline.filter(|_| self.inline.is_none()) {
            self.inline = Some(Secret::new(value.to_string_lossy()));
        }
    }

    /// The text of [`ClashFlags::inline`], if there is one.
    ///
    /// # Errors
    /// When it is no base64, or longer than a file may be.
    pub fn text(&self) -> Option<Result<String, Diagnostics>> {
        let inline = self.inline.as_ref()?;
        let problem = |text: &str| Diagnostics::from(Diagnostic::error(&"-config".into(), "", text));
        Some(match decode(inline.expose()) {
            Some(text) if text.len() <= MAX_LEN => Ok(text),
            Some(_) => Err(problem("longer than a file may be")),
            None => Err(problem("no base64 of a text")),
        })
    }
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// The problem, in a line.
pub fn flags(args: Vec<OsString>) -> Result<ClashInvocation, String> {
    let mut flags = ClashFlags::default();
    if args.first().is_some_and(|first| first == "convert-ruleset") {
        let words: Vec<OsString> = args.into_iter().skip(1).collect();
        let usage = "convert-ruleset takes domain|ipcidr yaml|text|mrs|srs SOURCE DESTINATION";
        return if words.len() == 4 { Ok(ClashInvocation::Convert(words)) } else { Err(usage.to_owned()) };
    }
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
            "h" | "help" => return Ok(ClashInvocation::Help),
            "v" => return Ok(ClashInvocation::Version),
            "t" => flags.test = is_on,
            "m" => flags.geodata = is_on,
            "d" => flags.home = Some(value()?.into()),
            "f" => flags.file = Some(value()?.into()),
            "config" => flags.inline = Some(Secret::new(value()?.to_string_lossy())),
            name if OVERLAY.iter().any(|(flag, ..)| *flag == name) => {
                let value = value()?.to_string_lossy().into_owned();
                let key = OVERLAY.iter().find(|(flag, ..)| *flag == name).map_or("", |(.., key)| key);
                flags.overlay.push((key, Secret::new(value)));
            }
            name if LEFT_OUT.iter().any(|(flag, _)| *flag == name) => {
                value()?;
                flags.left_out.push(name.to_owned());
            }
            _ => return Err(format!("flag provided but not defined: -{name}")),
        }
    }
    Ok(ClashInvocation::Run(flags))
}

/// The usage.
pub fn usage(program: &str) -> String {
    let mut out = usage::head(program, "mihomo");
    for (left, what) in [
        ("-d DIR", "folder of lists and databases (CLASH_HOME_DIR; ~/.config/mihomo)"),
        ("-f FILE", "configuration (CLASH_CONFIG_FILE; config.yaml in that folder), - for standard input"),
        ("-config BASE64", "the whole configuration in the place of a file (CLASH_CONFIG_STRING)"),
        ("-t", "read the configuration, say whether it is good, and end"),
        ("-m", "addresses of countries from GeoIP.dat"),
        ("-ext-ctl ADDR", "address of the control interface"),
        ("-ext-ctl-unix PATH", "unix socket of the control interface"),
        ("-ext-ui DIR", "folder of a dashboard, served under /ui/"),
        ("-secret TEXT", "secret of the control interface"),
        ("-v", "print the version"),
        ("convert-ruleset", "BEHAVIOR FORMAT SOURCE DESTINATION: a rule set in its other form"),
    ] {
        out.push_str(&usage::flag(left, what, 20));
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

    fn read(args: &[&str]) -> Result<ClashInvocation, String> {
        flags(args.iter().map(Into::into).collect())
    }

    #[test]
    fn go_flags() {
        let run = |flags| Ok(ClashInvocation::Run(flags));
        let home = Some(PathBuf::from("h"));
        assert_eq!(
            read(&["-d", "h", "-t"]),
            run(ClashFlags { home: home.clone(), test: true, ..ClashFlags::default() })
        );
        assert_eq!(
            read(&["--d=h", "-m", "-t=false"]),
            run(ClashFlags { home, geodata: true, ..ClashFlags::default() })
        );
        let left_out = vec!["ext-ctl-pipe".to_owned()];
        assert_eq!(read(&["-ext-ctl-pipe", "s"]), run(ClashFlags { left_out, ..ClashFlags::default() }));
        let overlay = vec![("external-controller", Secret::new(":1")), ("secret", Secret::new("s"))];
        let Ok(ClashInvocation::Run(mut found)) = read(&["-ext-ctl", ":1", "--secret=s"]) else { panic!() };
        assert_eq!(found.overlay, overlay);
        found.add_variables(|name| Some(name.to_lowercase().into()));
        let keys: Vec<&str> = found.overlay.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["external-controller", "secret", "external-controller-unix", "external-ui"]);
        assert_eq!(found.overlay[1].1.expose(), "s");
        assert_eq!(found.left_out, ["ext-ctl-pipe"]);
        let inline = found.inline.map(|text| text.expose().to_owned());
        assert_eq!(inline.as_deref(), Some("clash_config_string"));
        assert_eq!(read(&["-v"]), Ok(ClashInvocation::Version));
        let words = vec!["domain".into(), "text".into(), "a".into(), "b".into()];
        let given = read(&["convert-ruleset", "domain", "text", "a", "b"]);
        assert_eq!(given, Ok(ClashInvocation::Convert(words)));
        assert!(read(&["convert-ruleset", "domain"]).is_err());
        for bad in [&["-x"][..], &["-d"], &["file"], &["-"]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_whole_configuration() {
        let of = |args: &[&str]| {
            let Ok(ClashInvocation::Run(flags)) = read(args) else { panic!() };
            flags.text().map(|text| text.map_err(|found| found.to_string()))
        };
        assert_eq!(of(&["-f", "x"]), None);
        assert_eq!(of(&["-config", "bW9kZTogcnVsZQo="]), Some(Ok("mode: rule\n".to_owned())));
        assert!(of(&["-config=%"]).unwrap().unwrap_err().contains("no base64"));
    }

    #[test]
    fn folder_and_file() {
        let env = |name: &str| (name == "CLASH_HOME_DIR").then(|| "/e".into());
        assert_eq!(ClashFlags::default().paths(env), ("/e".into(), "/e/config.yaml".into()));
        let flags =
            ClashFlags { home: Some("/d".into()), file: Some("x.yaml".into()), ..ClashFlags::default() };
        assert_eq!(flags.paths(env), ("/d".into(), "x.yaml".into()));
    }
}
