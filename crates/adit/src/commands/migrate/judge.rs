//! The fate of a service's settings when adit runs it.

use std::ffi::OsString;
use std::path::Path;

use adit_formats::kcptun::{self, KcptunInvocation, KcptunProgram, Release, Side};
use adit_formats::read::loaded::Loaded;
use adit_formats::shadowsocks::{ProgramFamily, acl};
use adit_formats::snell;
use adit_formats::{shadowsocks_libev, shadowsocks_rust, shadowsocksr};
use adit_model::diagnostic::{Diagnostics, Severity};
use adit_model::{Config, Inbound};
use serde::Serialize;

use super::unit::ForeignService;
use crate::load::detect::Format;
use crate::machine::Root;

/// `0A` in the state column of `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Settings by their fate.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Judgement {
    /// The file that the service reads.
    pub(super) file: Option<String>,
    /// Taken over as they are.
    pub(super) kept: Vec<String>,
    /// Taken over, and something is to be said.
    pub(super) changed: Vec<String>,
    /// Reasons why adit cannot run it.
    pub(super) unsupported: Vec<String>,
    /// TCP ports that it listens on.
    #[serde(skip)]
    pub(super) ports: Vec<u16>,
}

pub(super) fn judge(root: &Root, unit: &ForeignService) -> Judgement {
    let mut judgement = Judgement { file: file(unit), ..Judgement::default() };
    let is_known = side(&unit.program).is_some() || format(&unit.program).is_some();
    if !is_known || !crate::answers_to(&unit.program) {
        judgement.unsupported.push(format!("adit does not run in the place of {}", unit.program));
        return judgement;
    }
    if let Err(found) = check_flags(unit) {
        judgement.unsupported.extend(lines(&found, Severity::Error));
        return judgement;
    }
    judge_lists(root, unit, &mut judgement);
    let Some(path) = judgement.file.clone() else {
        judgement.kept.push(format!("flags: {} words", unit.args.len()));
        return judgement;
    };
    match load(root, unit, &path) {
        Ok(loaded) => {
            judgement.kept.push(format!("file {path}"));
            if loaded.config.acl.is_some() {
                judgement.kept.push("access list of the file, for every port".to_owned());
            }
            describe(&loaded.config, &mut judgement);
            judgement.changed.extend(lines(&loaded.diagnostics, Severity::Warning));
        }
        Err(found) => {
            judgement.unsupported.extend(lines(&found, Severity::Error));
            judgement.changed.extend(lines(&found, Severity::Warning));
        }
    }
    judgement
}

/// Access lists that the arguments name. One that cannot be read stops the start.
fn judge_lists(root: &Root, unit: &ForeignService, judgement: &mut Judgement) {
    let family = match format(&unit.program) {
        Some(Format::Libev(_) | Format::Ssr(_)) => ProgramFamily::Libev,
        Some(Format::Rust(_)) => ProgramFamily::Rust,
        Some(
            Format::Native
            | Format::Servers
            | Format::Snell(_)
            | Format::Kcptun(_)
            | Format::Clash
            | Format::Entries(_),
        )
        | None => return,
    };
    let mut args = unit.args.iter();
    while let Some(arg) = args.next() {
        let path = if arg == "--acl" { args.next().map(String::as_str) } else { arg.strip_prefix("--acl=") };
        let Some(path) = path else { continue };
        let read =
            adit_formats::read::source::read_up_to(&root.at(path), acl::MAX_LEN).map_err(Diagnostics::from);
        match read.and_then(|text| acl::parse(family, path, &text)) {
            Ok((_, found)) => {
                judgement.kept.push(format!("access list {path}, for every port"));
                judgement.changed.extend(lines(&found, Severity::Warning));
            }
            Err(found) => judgement.unsupported.extend(lines(&found, Severity::Error)),
        }
    }
}

/// The file that the arguments name, else the program's default.
fn file(unit: &ForeignService) -> Option<String> {
    let mut args = unit.args.iter();
    while let Some(arg) = args.next() {
        if ["-c", "--config", "--c", "-config"].contains(&arg.as_str()) {
            return args.next().cloned();
        }
        if let Some(path) = arg.strip_prefix("--config=").or_else(|| arg.strip_prefix("-c=")) {
            return Some(path.to_owned());
        }
    }
    let format = format(&unit.program)?;
    let is_alone = unit.args.is_empty() || unit.program.starts_with("snell-");
    format.default_path().filter(|_| is_alone).map(str::to_owned)
}

fn load(root: &Root, unit: &ForeignService, path: &str) -> Result<Loaded, Diagnostics> {
    let at = root.at(path);
    match side(&unit.program) {
        Some(side) => load_kcptun(side, unit, &at),
        None => format(&unit.program).ok_or_else(Diagnostics::new)?.check(&at),
    }
}

/// The format of a program's file.
fn format(program: &str) -> Option<Format> {
    let program = if program == "server.py" { "ssr-server" } else { program };
    Format::parse(program).ok()
}

/// The side of a program of kcptun.
fn side(program: &str) -> Option<Side> {
    match program {
        "kcptun-client" | "client_linux_amd64" => Some(Side::Client),
        "kcptun-server" | "server_linux_amd64" => Some(Side::Server),
        _ => None,
    }
}

/// Flags as the program's own grammar has them.
fn check_flags(unit: &ForeignService) -> Result<(), Diagnostics> {
    let args = || unit.args.iter().map(OsString::from);
    match format(&unit.program) {
        Some(Format::Snell(program)) => snell::flags(program, args()).map(drop),
        Some(Format::Libev(program)) => shadowsocks_libev::flags(program, args()).map(drop),
        Some(Format::Rust(program)) => shadowsocks_rust::flags(program, args()).map(drop),
        Some(Format::Ssr(program)) => shadowsocksr::flags(program, args()).map(drop),
        Some(Format::Native | Format::Servers | Format::Kcptun(_) | Format::Clash | Format::Entries(_))
        | None => Ok(()),
    }
}

fn load_kcptun(side: Side, unit: &ForeignService, path: &Path) -> Result<Loaded, Diagnostics> {
    let release = if unit.program.ends_with("amd64") { Release::Last } else { Release::Debian };
    let program = KcptunProgram { side, release };
    let flags = match kcptun::flags(program, unit.args.iter().map(Into::into))? {
        KcptunInvocation::Run(flags) => flags,
        KcptunInvocation::Help | KcptunInvocation::Version => return Err(Diagnostics::new()),
    };
    let text = adit_formats::read::source::read(path)?;
    let setup = kcptun::load(program, flags, None, Some((&path.to_string_lossy(), &text)))?;
    Ok(Loaded { config: setup.config, diagnostics: setup.diagnostics })
}

fn describe(config: &Config, judgement: &mut Judgement) {
    for inbound in &config.inbounds {
        let listen: Vec<String> = inbound.listen.iter().map(ToString::to_string).collect();
        let users = match inbound.protocol.users().len() {
            0 => String::new(),
            count => format!(", {count} users"),
        };
        let spoken = inbound.protocol.label();
        judgement.kept.push(format!("{spoken} on {}, key{users}", listen.join(", ")));
        if is_tcp(inbound) {
            judgement.ports.extend(inbound.listen.iter().map(std::net::SocketAddr::port));
        }
    }
}

fn is_tcp(inbound: &Inbound) -> bool {
    use adit_model::InboundProtocol as Protocol;
    let carries = match &inbound.protocol {
        Protocol::Shadowsocks(server) => server.transports.tcp(),
        Protocol::Tunnel { transports, .. } => transports.tcp(),
        Protocol::Captured(captured) => captured.transports.tcp(),
        Protocol::Dns(server) => server.transports.tcp(),
        Protocol::Snell(_) | Protocol::Ssr(_) | Protocol::Obfs(_) | Protocol::Local(_) => true,
        Protocol::Tun(_) => false,
    };
    carries && inbound.socket.carrier.is_none()
}

fn lines(found: &Diagnostics, severity: Severity) -> Vec<String> {
    let of = found.iter().filter(|finding| finding.severity == severity);
    of.map(|finding| {
        let place = if finding.line > 0 { format!("line {}: ", finding.line) } else { String::new() };
        let key = if finding.key.is_empty() { String::new() } else { format!("{}: ", finding.key) };
        format!("{place}{key}{}", finding.problem)
    })
    .collect()
}

/// Those of `ports` that no TCP socket listens on, as far as the machine tells.
pub(super) fn silent_ports(root: &Root, ports: &[u16]) -> Vec<u16> {
    let tables: String =
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|path| root.read(path)).collect();
    if tables.is_empty() {
        return Vec::new();
    }
    let listening: Vec<u16> = tables
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, _, state) = (words.next()?, words.next()?, words.next()?);
            let port = local.rsplit_once(':')?.1;
            (state == LISTEN).then(|| u16::from_str_radix(port, 16).ok()).flatten()
        })
        .collect();
    ports.iter().copied().filter(|port| *port != 0 && !listening.contains(port)).collect()
}
