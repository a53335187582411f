//! Files of other programs, as `adit check --as`, `adit explain --as` and `adit convert --as` read them.

use std::path::Path;

use adit_config::diagnostic::{Diagnostic, Diagnostics};
use adit_config::dialect::shadowsocks::{Control, Family, Setup, libev, rust, sip008, ssr};
use adit_config::dialect::{Loaded, opensnell};

use crate::cli::FileArgs;
use crate::commands::files;
use crate::shadowsocks;

/// The program that the file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `snell-server` or `snell-client`.
    Snell(opensnell::Program),
    /// A program of shadowsocks-libev.
    Libev(libev::Program),
    /// A program of shadowsocks-rust.
    Rust(rust::Program),
    /// A program of ShadowsocksR.
    Ssr(ssr::Program),
    /// A list of servers (SIP008).
    Servers,
}

/// All of them.
const ALL: [Format; 15] = [
    Format::Snell(opensnell::Program::Server),
    Format::Snell(opensnell::Program::Client),
    Format::Libev(libev::Program::Local),
    Format::Libev(libev::Program::Server),
    Format::Libev(libev::Program::Tunnel),
    Format::Libev(libev::Program::Manager),
    Format::Libev(libev::Program::Redir),
    Format::Rust(rust::Program::Local),
    Format::Rust(rust::Program::Server),
    Format::Rust(rust::Program::Manager),
    Format::Ssr(ssr::Program::Local),
    Format::Ssr(ssr::Program::Tunnel),
    Format::Ssr(ssr::Program::Redir),
    Format::Ssr(ssr::Program::Server),
    Format::Servers,
];

impl Format {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Snell(program) => program.name(),
            Self::Libev(program) => program.name(),
            Self::Rust(program) => program.name(),
            Self::Ssr(program) => program.name(),
            Self::Servers => "sip008",
        }
    }

    /// The format of that name.
    ///
    /// # Errors
    /// With all names.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let names = || ALL.map(Self::name).join(", ");
        ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| format!("one of {}", names()))
    }

    /// The file that is read when none is named.
    pub(super) fn default_path(self) -> Option<&'static str> {
        match self {
            Self::Snell(program) => Some(program.default_path()),
            Self::Libev(_) => Some("/etc/shadowsocks-libev/config.json"),
            Self::Ssr(ssr::Program::Server) => Some("user-config.json"),
            Self::Ssr(_) => Some("/etc/shadowsocks-libev/config.json"),
            Self::Rust(_) | Self::Servers => None,
        }
    }

    /// The configuration that this build makes of the file, with its warnings.
    ///
    /// # Errors
    /// Everything that keeps it from running.
    pub(crate) fn check(self, path: &Path) -> Result<Loaded, Diagnostics> {
        match self.read(path)? {
            Read::Config(loaded) => Ok(*loaded),
            Read::Setup(family, setup) => {
                let setup = shadowsocks::fit(self.name(), family, *setup)?;
                Ok(Loaded { config: setup.config, diagnostics: setup.diagnostics })
            }
        }
    }

    /// The file as adit's own configuration.
    ///
    /// # Errors
    /// Everything that is wrong, and every setting that `adit.toml` lacks.
    pub(super) fn convert(self, path: &Path) -> Result<Loaded, Diagnostics> {
        match self.read(path)? {
            Read::Config(loaded) => Ok(*loaded),
            Read::Setup(_, setup) => expressible(&path.to_string_lossy(), *setup),
        }
    }

    fn read(self, path: &Path) -> Result<Read, Diagnostics> {
        let (name, text) = files::read(path)?;
        let file = Some((&*name, text.as_str()));
        match self {
            Self::Snell(program) => {
                Ok(Read::Config(Box::new(opensnell::parse(program, None, &name, &text)?)))
            }
            Self::Libev(program) => {
                let setup = libev::load(program, &libev::Flags::default(), file)?;
                Ok(Read::Setup(Family::Libev, Box::new(setup)))
            }
            Self::Rust(program) => {
                let flags = rust::Flags::default();
                let setup = rust::load(program, &flags, file, shadowsocks::rust::outside());
                setup.map(|setup| Read::Setup(Family::Rust, Box::new(setup))).map_err(|(_, found)| found)
            }
            Self::Ssr(program) => {
                let setup = shadowsocks::ssr::load(program, &ssr::Flags::default(), path, &text)?;
                Ok(Read::Setup(Family::Libev, Box::new(setup)))
            }
            Self::Servers => {
                let (list, diagnostics) = sip008::parse(&name, &text, None)?;
                let config = sip008::config(&list);
                Ok(Read::Config(Box::new(Loaded { config, diagnostics })))
            }
        }
    }
}

enum Read {
    Config(Box<Loaded>),
    Setup(Family, Box<Setup>),
}

/// Reads the files of a command, which are another program's if `format` says so: the last of them counts then.
///
/// # Errors
/// Everything that is wrong with all of them.
pub(super) fn load(format: Option<Format>, files: &FileArgs) -> Result<Loaded, Diagnostics> {
    let Some(format) = format else { return files::load(files) };
    let paths = match (&*files.config, format.default_path()) {
        ([], Some(path)) => &[path.into()],
        ([], None) => {
            let error = Diagnostic::error(&format.name().into(), "", "no file is named");
            return Err(error.hint("write its name behind the flags").into());
        }
        (named, _) => named,
    };
    let mut last = None;
    let mut found = Diagnostics::new();
    for path in paths {
        match format.check(path) {
            Ok(loaded) => {
                found.append(loaded.diagnostics);
                last = Some(loaded.config);
            }
            Err(errors) => found.append(errors),
        }
    }
    match last {
        Some(config) if !found.has_errors() => Ok(Loaded { config, diagnostics: found }),
        _ => Err(found),
    }
}

/// Refuses settings that `adit.toml` does not have, each by its name.
fn expressible(file: &str, setup: Setup) -> Result<Loaded, Diagnostics> {
    let Setup { config, process, acl, acl_of, control, online, diagnostics: mut found } = setup;
    let mut refuse = |key: &str, is_there: bool, hint: &str| {
        if is_there {
            let error = Diagnostic::error(&file.into(), key, "adit.toml has no such setting");
            found.push(error.hint(hint));
        }
    };
    let keep = "run the file under the old program's name, which adit answers to";
    refuse("acl", acl.is_some() || !acl_of.is_empty(), keep);
    refuse("manager_address", matches!(control, Control::Report(_)), keep);
    refuse("port_password", matches!(control, Control::Manage(_)), keep);
    refuse("mudb.json", matches!(control, Control::Users(_)), keep);
    refuse("online_config", !online.is_empty(), keep);
    refuse("user", process.user.is_some(), "User= of a systemd unit does the same");
    if found.has_errors() {
        return Err(found);
    }
    let mut warn = |key: &str, is_there: bool, hint: &str| {
        if is_there {
            let problem = "left out: adit.toml has no such setting";
            found.push(Diagnostic::warning(&file.into(), key, problem).hint(hint));
        }
    };
    warn("nofile", process.open_files.is_some(), "LimitNOFILE= of a systemd unit does the same");
    warn("use_syslog", process.syslog, "a journal takes standard error");
    Ok(Loaded { config, diagnostics: found })
}
