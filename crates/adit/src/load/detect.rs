//! Files of other programs, and links: recognised, or named by `--as`.

use std::path::Path;

use adit_formats::detect::{self, Shape};
use adit_formats::kcptun::{self, KcptunProgram as Kcptun, Release, Side};
use adit_formats::read::loaded::Loaded;
use adit_formats::shadowsocks::{Control, ProgramFamily, ShadowsocksSetup, sip008};
use adit_formats::share::Form;
use adit_formats::{adit_toml, clash, import, snell};
use adit_formats::{shadowsocks_libev, shadowsocks_rust, shadowsocksr};
use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};

use crate::load::files;
use crate::load::providers;
use crate::load::supported;

/// The kind of a file: the program that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// adit.toml.
    Native,
    /// `snell-server` or `snell-client`.
    Snell(snell::SnellProgram),
    /// A program of shadowsocks-libev.
    Libev(shadowsocks_libev::LibevProgram),
    /// A program of shadowsocks-rust.
    Rust(shadowsocks_rust::RustProgram),
    /// A program of ShadowsocksR.
    Ssr(shadowsocksr::SsrProgram),
    /// A list of servers (SIP008).
    Servers,
    /// A program of kcptun.
    Kcptun(Side),
    /// mihomo and other programs of the Clash family.
    Clash,
    /// Servers as another client writes them; without a form it is told from the text.
    Entries(Option<Form>),
}

/// All that can be named.
const ALL: [Format; 22] = [
    Format::Native,
    Format::Snell(snell::SnellProgram::Server),
    Format::Snell(snell::SnellProgram::Client),
    Format::Libev(shadowsocks_libev::LibevProgram::Local),
    Format::Libev(shadowsocks_libev::LibevProgram::Server),
    Format::Libev(shadowsocks_libev::LibevProgram::Tunnel),
    Format::Libev(shadowsocks_libev::LibevProgram::Manager),
    Format::Libev(shadowsocks_libev::LibevProgram::Redir),
    Format::Rust(shadowsocks_rust::RustProgram::Local),
    Format::Rust(shadowsocks_rust::RustProgram::Server),
    Format::Rust(shadowsocks_rust::RustProgram::Manager),
    Format::Ssr(shadowsocksr::SsrProgram::Local),
    Format::Ssr(shadowsocksr::SsrProgram::Tunnel),
    Format::Ssr(shadowsocksr::SsrProgram::Redir),
    Format::Ssr(shadowsocksr::SsrProgram::Server),
    Format::Servers,
    Format::Kcptun(Side::Client),
    Format::Kcptun(Side::Server),
    Format::Clash,
    Format::Entries(Some(Form::Surge)),
    Format::Entries(Some(Form::SingBox)),
    Format::Entries(Some(Form::Shadowrocket)),
];

/// The use that is made of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It is looked at, as the program that it is for would read it.
    Look,
    /// It runs under adit's own name.
    Run,
    /// It becomes adit.toml.
    Convert,
}

impl Format {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "adit",
            Self::Snell(program) => program.name(),
            Self::Libev(program) => program.name(),
            Self::Rust(program) => program.name(),
            Self::Ssr(program) => program.name(),
            Self::Servers => "sip008",
            Self::Kcptun(Side::Client) => "kcptun-client",
            Self::Kcptun(Side::Server) => "kcptun-server",
            Self::Clash | Self::Entries(Some(Form::Mihomo)) => "mihomo",
            Self::Entries(Some(Form::Surge)) => "surge",
            Self::Entries(Some(Form::SingBox)) => "sing-box",
            Self::Entries(Some(Form::Shadowrocket | Form::OpenSnell | Form::Adit) | None) => "links",
        }
    }

    /// All names.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        ALL.into_iter().map(Self::name)
    }

    /// The format of that name.
    ///
    /// # Errors
    /// With all names.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let names = || Self::names().collect::<Vec<_>>().join(", ");
        ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| format!("one of {}", names()))
    }

    /// The file that is read when none is named.
    pub(crate) fn default_path(self) -> Option<&'static str> {
        match self {
            Self::Snell(program) => Some(program.default_path()),
            Self::Libev(_) => Some("/etc/shadowsocks-libev/config.json"),
            Self::Ssr(shadowsocksr::SsrProgram::Server) => Some("user-config.json"),
            Self::Ssr(_) => Some("/etc/shadowsocks-libev/config.json"),
            Self::Native
            | Self::Rust(_)
            | Self::Servers
            | Self::Kcptun(_)
            | Self::Clash
            | Self::Entries(_) => None,
        }
    }

    /// The format of a text, with a warning where it fits two programs.
    ///
    /// # Errors
    /// Why the text is of no format.
    pub(crate) fn of(path: &Path, name: &str, text: &str) -> Result<(Self, Option<Diagnostic>), Diagnostic> {
        let found = match detect::recognise(name, text) {
            Ok(found) => found,
            // The name says it; the text may be damaged.
            Err(_) if path.extension().is_some_and(|end| end == "toml") => return Ok((Self::Native, None)),
            Err(error) => return Err(error),
        };
        let format = match found.shape {
            Shape::Native => Self::Native,
            Shape::Snell(program) => Self::Snell(program),
            Shape::Libev(program) => Self::Libev(program),
            Shape::Rust(program) => Self::Rust(program),
            Shape::Ssr(program) => Self::Ssr(program),
            Shape::Servers => Self::Servers,
            Shape::Kcptun(side) => Self::Kcptun(side),
            Shape::Clash => Self::Clash,
            Shape::Entries => Self::Entries(None),
        };
        Ok((format, found.doubt))
    }

    /// The configuration that this build makes of the file, with its warnings.
    ///
    /// # Errors
    /// Everything that keeps it from running.
    pub(crate) fn check(self, path: &Path) -> Result<Loaded, Diagnostics> {
        let (name, text) = files::read(path)?;
        self.load(Use::Look, path, &name, &text)
    }

    /// The same of a text that was read; `name` stands for it in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it, and every setting that cannot be obeyed in that use.
    pub(crate) fn load(
        self,
        purpose: Use,
        path: &Path,
        name: &str,
        text: &str,
    ) -> Result<Loaded, Diagnostics> {
        match self.read(purpose, path, name, text)? {
            Read::Config(loaded) => Ok(*loaded),
            Read::Setup(family, setup) => match purpose {
                Use::Convert => expressible(name, *setup),
                Use::Look => {
                    let setup = supported::fit(self.name(), family, *setup)?;
                    Ok(Loaded { config: setup.config, diagnostics: setup.diagnostics })
                }
                Use::Run => {
                    let setup = only_config(name, self.name(), *setup)?;
                    let setup = supported::fit(self.name(), family, setup)?;
                    Ok(Loaded { config: setup.config, diagnostics: setup.diagnostics })
                }
            },
        }
    }

    fn read(self, purpose: Use, path: &Path, name: &str, text: &str) -> Result<Read, Diagnostics> {
        let file = Some((name, text));
        let loaded = match self {
            Self::Native => adit_toml::load(name, text)?,
            Self::Snell(program) => snell::parse(program, None, name, text)?,
            Self::Libev(program) => {
                let setup =
                    shadowsocks_libev::load(program, &shadowsocks_libev::LibevFlags::default(), file)?;
                return Ok(Read::Setup(ProgramFamily::Libev, Box::new(setup)));
            }
            Self::Rust(program) => {
                let flags = shadowsocks_rust::RustFlags::default();
                let setup = shadowsocks_rust::load(program, &flags, file, supported::outside());
                return setup
                    .map(|setup| Read::Setup(ProgramFamily::Rust, Box::new(setup)))
                    .map_err(|(_, found)| found);
            }
            Self::Ssr(program) => {
                let setup = supported::load_ssr(program, &shadowsocksr::SsrFlags::default(), path, text)?;
                return Ok(Read::Setup(ProgramFamily::Libev, Box::new(setup)));
            }
            Self::Servers => {
                let (list, diagnostics) = sip008::parse(name, text, None)?;
                Loaded { config: sip008::config(&list), diagnostics }
            }
            Self::Kcptun(side) => of_kcptun(side, name, text)?,
            Self::Clash if purpose != Use::Convert && clash::is_clash(text) => {
                let load = || clash::load(name, text, files::home(path));
                match purpose {
                    Use::Run => providers::complete(load()?, load)?.run()?,
                    Use::Look | Use::Convert => load()?.look()?,
                }
            }
            Self::Clash if clash::is_clash(text) => {
                match clash::convert_file(name, text, files::home(path)) {
                    Ok(loaded) => loaded,
                    Err(why) => servers_alone(name, text, &why)?,
                }
            }
            Self::Clash => import::parse(Some(Form::Mihomo), name, text)?,
            Self::Entries(form) => import::parse(form, name, text)?,
        };
        Ok(Read::Config(Box::new(loaded)))
    }
}

enum Read {
    Config(Box<Loaded>),
    Setup(ProgramFamily, Box<ShadowsocksSetup>),
}

/// The servers and ports of a file of mihomo that does not fit whole; the reason is a remark.
fn servers_alone(name: &str, text: &str, why: &Diagnostics) -> Result<Loaded, Diagnostics> {
    let mut loaded = import::parse(Some(Form::Mihomo), name, text)?;
    if let Some(first) = why.iter().find(|found| found.severity == Severity::Error) {
        let problem = format!("servers and ports alone are taken over: {}", first.problem);
        loaded.diagnostics.push(Diagnostic { severity: Severity::Warning, problem, ..first.clone() });
    }
    Ok(loaded)
}

/// A file of kcptun; files for logs and counters are the old name's.
fn of_kcptun(side: Side, name: &str, text: &str) -> Result<Loaded, Diagnostics> {
    let program = Kcptun { side, release: Release::Debian };
    let setup = kcptun::load(program, kcptun::KcptunValues::default(), None, Some((name, text)))?;
    let mut found = setup.diagnostics;
    for (key, is_there) in [("log", setup.log.is_some()), ("snmplog", setup.counters.is_some())] {
        if is_there {
            let problem = "left out: adit.toml has no such setting";
            let hint = format!("the file works as it is under the name {}", program.name());
            found.push(Diagnostic::warning(&name.into(), key, problem).hint(hint));
        }
    }
    Ok(Loaded { config: setup.config, diagnostics: found })
}

/// Refuses what is more than a configuration: such a file runs under its program's name alone.
fn only_config(file: &str, program: &str, setup: ShadowsocksSetup) -> Result<ShadowsocksSetup, Diagnostics> {
    let mut found = Diagnostics::new();
    let mut refuse = |key: &str, is_there: bool| {
        if is_there {
            let error = Diagnostic::error(&file.into(), key, format!("{program} alone does this"));
            found.push(error.hint(format!("adit {program} -c {file}")));
        }
    };
    refuse("manager_address", matches!(setup.control, Control::Report(_)));
    refuse("port_password", matches!(setup.control, Control::Manage(_)));
    refuse("mudb.json", matches!(setup.control, Control::Users(_)));
    refuse("online_config", !setup.online.is_empty());
    refuse("user", setup.process.user.is_some());
    if found.has_errors() { Err(found) } else { Ok(setup) }
}

/// Refuses settings that `adit.toml` does not have, each by its name.
fn expressible(file: &str, setup: ShadowsocksSetup) -> Result<Loaded, Diagnostics> {
    let ShadowsocksSetup { config, process, acl, acl_of, control, online, diagnostics: mut found } = setup;
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
