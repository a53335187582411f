//! From the entries of a file to the model.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{
    AddressFamilies, Config, Dial, Egress, HalfClose, Inbound, InboundProtocol, Level, Limits, Local,
    LocalProtocols, Log, NameServer, ObfsClient, ObfsServer, Outbound, OutboundProtocol, Quic, Reply, Secret,
    SnellClient, SnellServer, SocketOptions,
};
use adit_proto::wire::Target;
use zeroize::Zeroizing;

use super::ini::{DEFAULT, Ini, IniEntry, IniSection, references};
use super::{SnellProgram, tun};
use crate::read::loaded::Loaded;
use crate::read::source::Source;
use crate::read::value::{self, MAX_DNS, MAX_LISTEN, Problem};

const SERVER_TIMEOUT: Duration = Duration::from_secs(5);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(8);
const SERVER_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 2333);
const CLIENT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1080);

/// Most unknown keys that are named.
const MAX_UNKNOWN: usize = 100;

/// Values of `dns-ip-preference`; both families are tried IPv6 first unless told otherwise.
const FAMILIES: &[(&str, AddressFamilies)] = &[
    ("default", AddressFamilies::Any),
    ("prefer-ipv6", AddressFamilies::Any),
    ("prefer-ipv4", AddressFamilies::PreferV4),
    ("ipv4-only", AddressFamilies::V4Only),
    ("ipv6-only", AddressFamilies::V6Only),
];

/// Keys that are missed when they are empty.
const MUST_BE_THERE: &[&str] = &["psk", "server"];

/// Name of the client's outbound.
pub(super) const CLIENT: &str = "snell";

pub(super) fn translate(
    program: SnellProgram,
    level: Option<Level>,
    is_captured: bool,
    source: &Source<'_>,
    ini: &Ini,
    found: Diagnostics,
) -> Result<Loaded, Diagnostics> {
    let Some(section) = ini.sections.get(program.name()) else {
        return Err(no_section(program, source, ini).into());
    };
    let mut keys = Keys { source, ini, section, known: Vec::new(), found };
    let mut config = match program {
        SnellProgram::Server => server(&mut keys),
        SnellProgram::Client => client(&mut keys, is_captured),
    };
    config.log = Log { level: level.unwrap_or(Level::Info), ..Log::default() };
    keys.finish(program);
    Loaded::conclude(config, keys.found)
}

fn no_section(program: SnellProgram, source: &Source<'_>, ini: &Ini) -> Diagnostic {
    let name = program.name();
    let error = Diagnostic::error(&source.file, "", format!("there is no section [{name}]"));
    match ini.sections.iter().find(|(other, _)| other.trim().eq_ignore_ascii_case(name)) {
        Some((_, section)) => error.at(section.place).hint(format!("write [{name}], in these very letters")),
        None => error.at((1, 1)).hint(format!("put [{name}] above the keys")),
    }
}

fn server(keys: &mut Keys<'_>) -> Config {
    let listen = keys.list("listen", MAX_LISTEN, value::listen);
    let psk = keys.psk();
    let obfs = keys.obfs();
    let interface = keys.egress_interface();
    let fast_open = keys.flag("tfo", false);
    let dial = Dial {
        family: keys.family(),
        egress: Egress { interface, ..Egress::default() },
        dns: keys.list("dns", MAX_DNS, |text| value::name_server(text).map(NameServer::At)),
        fast_open,
        timeout: SERVER_TIMEOUT,
        ..Dial::default()
    };
    let versions = keys.server_versions(&psk, obfs);
    let (udp, quic) = (keys.flag("udp", true), keys.flag("quic", true));
    let pace = keys.pace();
    keys.check_distinct(&listen);
    let listen = if listen.is_empty() { vec![SERVER_LISTEN] } else { listen };
    keys.check_exposure(versions, &listen);
    Config {
        limits: Limits { idle: None, ..Limits::default() },
        inbounds: vec![Inbound {
            name: SnellProgram::Server.name().into(),
            listen,
            socket: SocketOptions { fast_open, pace, ..SocketOptions::default() },
            outbound: "direct".into(),
            allow_private: true,
            protocol: InboundProtocol::Snell(SnellServer { psk: psk.into(), versions, obfs, udp, quic }),
        }],
        outbounds: vec![Outbound { name: "direct".into(), dial, protocol: OutboundProtocol::Direct }],
        ..Config::default()
    }
}

fn client(keys: &mut Keys<'_>, is_forced: bool) -> Config {
    let nothing = IniSection::default();
    let mut tun_keys = keys.of_section(tun::NAME, &nothing);
    let is_captured = tun::is_enabled(&mut tun_keys, is_forced);
    let listen = keys.client_listen(is_captured);
    let server = keys.server();
    let psk = keys.psk();
    let obfs = keys.client_obfs(&server);
    let version = keys.client_version(&psk, obfs.kind());
    let reuse = keys.client_reuse(version);
    let fast_open = keys.flag("tfo", false);
    let dial = Dial { fast_open, timeout: CLIENT_TIMEOUT, pace: keys.pace(), ..Dial::default() };
    let (udp, quic) = (keys.flag("udp", true), keys.client_quic());
    let host = server.host.clone();
    let client = SnellClient {
        server,
        psk,
        client_id: None,
        version,
        obfs,
        reuse,
        half_close: HalfClose::Auto,
        udp,
        quic,
    };
    // OpenSnell speaks SOCKS5 alone; what else the port takes does not disturb a SOCKS5 client.
    let local =
        Local { accepts: LocalProtocols::Mixed, users: Vec::new(), reply: Reply::Early, open_to: Vec::new() };
    let inbounds = listen.into_iter().map(|listen| Inbound {
        name: "local".into(),
        listen: vec![listen],
        socket: SocketOptions::default(),
        outbound: CLIENT.into(),
        allow_private: true,
        protocol: InboundProtocol::Local(local.clone()),
    });
    let outbounds = vec![Outbound { name: CLIENT.into(), dial, protocol: OutboundProtocol::Snell(client) }];
    let mut config = Config { inbounds: inbounds.collect(), outbounds, ..Config::default() };
    if is_captured {
        let socks = config.inbounds.first().map(|inbound| inbound.name.clone());
        tun::apply(&mut tun_keys, &mut config, &host, socks.as_ref());
        tun_keys.name_unknown();
    }
    keys.found.append(tun_keys.found);
    config
}

/// The entries of the program's section, of which keys are taken one by one.
pub(super) struct Keys<'a> {
    source: &'a Source<'a>,
    ini: &'a Ini,
    pub(super) section: &'a IniSection,
    known: Vec<&'static str>,
    found: Diagnostics,
}

/// An entry that is not empty.
pub(super) struct IniValue<'a> {
    pub(super) text: Zeroizing<String>,
    pub(super) entry: &'a IniEntry,
}

impl<'a> Keys<'a> {
    /// The value of a key. An empty one counts as absent, as for the programs, with a warning where nothing else is said
    /// about it.
    pub(super) fn take(&mut self, key: &'static str) -> Option<IniValue<'a>> {
        let is_first = !self.known.contains(&key);
        self.known.push(key);
        let entry = self.section.entries.get(key)?;
        let Some(text) = self.ini.value(self.section, entry) else {
            self.error(entry, key, Problem::new("%(..)s refers to itself without end"));
            return None;
        };
        if text.is_empty() && is_first && !MUST_BE_THERE.contains(&key) {
            self.warning(entry, key, Problem::new("empty, so it counts as not written"));
        }
        (!text.is_empty()).then_some(IniValue { text, entry })
    }

    /// The interface of outgoing connections. OpenSnell binds its listeners too, which locks out clients that come by
    /// another one.
    fn egress_interface(&mut self) -> Option<Box<str>> {
        const KEY: &str = "egress-interface";
        let entry = self.section.entries.get(KEY);
        let interface = self.parsed(KEY, value::interface)?;
        if let Some(entry) = entry.filter(|_| !self.listens_on_loopback()) {
            let problem = Problem::new(format!(
                "{interface} is for outgoing connections alone: clients are taken on all interfaces, where OpenSnell takes them on {interface} alone"
            ));
            self.warning(
                entry,
                KEY,
                problem.hint("a firewall, or an address of that interface in listen, keeps others out"),
            );
        }
        Some(interface)
    }

    /// Whether nobody but this machine reaches the listeners.
    fn listens_on_loopback(&self) -> bool {
        let Some(text) =
            self.section.entries.get("listen").and_then(|entry| self.ini.value(self.section, entry))
        else {
            return false;
        };
        text.split(',').all(|part| part.trim().parse::<SocketAddr>().is_ok_and(|at| at.ip().is_loopback()))
    }

    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        let value = self.take(key)?;
        match parse(&value.text) {
            Ok(parsed) => Some(parsed),
            Err(problem) => {
                self.error(value.entry, key, problem);
                None
            }
        }
    }

    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Vec<T> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let mut parts = value.text.split(',').filter(|part| !part.trim().is_empty());
        let mut list = Vec::new();
        for part in parts.by_ref().take(max) {
            match parse(part) {
                Ok(parsed) => list.push(parsed),
                Err(problem) => self.error(value.entry, key, problem),
            }
        }
        if parts.next().is_some() {
            self.error(value.entry, key, Problem::new(format!("more than {max} entries")));
        } else if value.text.split(',').all(|part| part.trim().is_empty()) {
            self.error(value.entry, key, Problem::new("a list without an entry"));
        }
        list
    }

    /// A switch; what is neither on nor off counts as the default.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let Some(value) = self.take(key) else { return default };
        boolean(&value.text).unwrap_or_else(|| {
            let problem = Problem::new(format!("neither true nor false, so {default} is used"));
            self.warning(value.entry, key, problem);
            default
        })
    }

    fn psk(&mut self) -> Secret {
        const KEY: &str = "psk";
        let entry = self.section.entries.get(KEY);
        if let Some(entry) = entry.filter(|entry| entry.cut) {
            let problem = Problem::new("`#` and `;` start a comment, so the key ends in front of it");
            self.warning(entry, KEY, problem.hint("put the key between backquotes if it goes on"));
        }
        if let Some(psk) = self.parsed(KEY, value::psk) {
            return psk;
        }
        match entry {
            None => {
                let error = Diagnostic::error(&self.source.file, KEY, "missing").at(self.section.place);
                self.found.push(error.hint("psk = and the key that both ends share"));
            }
            Some(entry) if entry.value.is_empty() => {
                self.error(entry, KEY, Problem::new("it is empty").hint("`adit key` prints a good one"))
            }
            Some(_) => {}
        }
        Secret::new("")
    }

    fn obfs(&mut self) -> ObfsServer {
        let obfs = self.parsed("obfs", |text| match text {
            "off" => Ok(ObfsServer::Off),
            "http" => Ok(ObfsServer::Http),
            "tls" => Ok(ObfsServer::Tls),
            _ => Err(Problem::new(format!("unknown value: {}", value::excerpt(text)))
                .hint("write one of off, http, tls")),
        });
        obfs.unwrap_or_default()
    }

    fn client_obfs(&mut self, server: &Target) -> ObfsClient {
        let mode = self.obfs();
        let host = self.parsed("obfs-host", value::obfs_host);
        let host = host.unwrap_or_else(|| server.host.to_string().into());
        match mode {
            ObfsServer::Off => ObfsClient::Off,
            ObfsServer::Http => ObfsClient::Http(host),
            ObfsServer::Tls => ObfsClient::Tls(host),
        }
    }

    fn server(&mut self) -> Target {
        const KEY: &str = "server";
        let server = self.parsed(KEY, value::target);
        if server.is_none() && self.section.entries.get(KEY).is_none_or(|entry| entry.value.is_empty()) {
            let error = Diagnostic::error(&self.source.file, KEY, "missing").at(self.section.place);
            self.found.push(error.hint("server = host:port"));
        }
        server.unwrap_or_else(|| Target::from(CLIENT_LISTEN))
    }

    /// The local port; none where that is switched off and something else is captured.
    fn client_listen(&mut self, is_captured: bool) -> Option<SocketAddr> {
        const KEY: &str = "listen";
        let entry = self.section.entries.get(KEY);
        let is_empty = entry.is_some_and(|entry| tun::is_off(&entry.value));
        if is_captured && is_empty {
            self.known.push(KEY);
            return None;
        }
        let listen = self.parsed(KEY, |text| {
            if tun::is_off(text) {
                let problem = Problem::new("a client needs a local port or [snell-tun]");
                return Err(problem.hint("enable = true in [snell-tun], or the flag -tun"));
            }
            value::listen(text)
        });
        let listen = listen.unwrap_or(CLIENT_LISTEN);
        if let Some(entry) =
            self.section.entries.get(KEY).filter(|_| !listen.ip().to_canonical().is_loopback())
        {
            let problem = Problem::new("everybody who reaches this address can use the proxy");
            self.warning(entry, KEY, problem.hint("127.0.0.1:1080 serves this machine alone"));
        }
        Some(listen)
    }

    /// OpenSnell's client sends no QUIC past its stream; adit's does when it is told to.
    fn client_quic(&mut self) -> Quic {
        let quic = self.parsed("quic", |text| match (text, boolean(text)) {
            ("auto", _) => Ok(Quic::Auto),
            (_, Some(true)) => Ok(Quic::On),
            (_, Some(false)) => Ok(Quic::Off),
            (_, None) => Err(Problem::new(format!("unknown value: {}", value::excerpt(text)))
                .hint("write one of auto, on, off")),
        });
        quic.unwrap_or(Quic::Off)
    }

    /// `ipv6`, and the official server's order of address families.
    fn family(&mut self) -> AddressFamilies {
        const KEY: &str = "dns-ip-preference";
        let ipv6 = self.flag("ipv6", true);
        let wanted = self.take(KEY).and_then(|value| {
            let family = FAMILIES.iter().find(|(name, _)| *name == *value.text).map(|(_, family)| *family);
            if family.is_none() {
                let problem = Problem::new(format!(
                    "unknown value, so it has no effect: {}",
                    value::excerpt(&value.text)
                ));
                let names = "write one of default, prefer-ipv4, prefer-ipv6, ipv4-only, ipv6-only";
                self.warning(value.entry, KEY, problem.hint(names));
            }
            family.map(|family| (family, value.entry))
        });
        match wanted {
            Some((AddressFamilies::V6Only, entry)) if !ipv6 => {
                self.error(entry, KEY, Problem::new("ipv6 = false leaves no address family"));
                AddressFamilies::V4Only
            }
            Some((family, _)) if ipv6 => family,
            _ if ipv6 => AddressFamilies::Any,
            _ => AddressFamilies::V4Only,
        }
    }

    /// The keys of another section of the file, or of `nothing` if it is not there.
    fn of_section<'b>(&self, name: &str, nothing: &'b IniSection) -> Keys<'b>
    where
        'a: 'b,
    {
        let section = self.ini.sections.get(name).unwrap_or(nothing);
        Keys { source: self.source, ini: self.ini, section, known: Vec::new(), found: Diagnostics::new() }
    }

    /// The file, for places in it.
    pub(super) fn file(&self) -> std::sync::Arc<str> {
        self.source.file.clone()
    }

    /// An error about the value of a key, which may be missing.
    pub(super) fn wrong(&mut self, key: &'static str, problem: Problem) {
        if let Some(entry) = self.section.entries.get(key) {
            self.error(entry, key, problem);
        }
    }

    /// A warning about the value of a key, which may be missing.
    pub(super) fn remark(&mut self, key: &'static str, problem: Problem) {
        if let Some(entry) = self.section.entries.get(key) {
            self.warning(entry, key, problem);
        }
    }

    fn check_distinct(&mut self, listen: &[SocketAddr]) {
        let mut seen = HashSet::new();
        let Some(entry) = self.section.entries.get("listen") else { return };
        for addr in listen.iter().filter(|addr| addr.port() != 0) {
            if !seen.insert(addr) {
                self.error(entry, "listen", Problem::new(format!("listed twice: {addr}")));
            }
        }
    }

    /// A warning for each setting that the program would pass over in silence.
    fn finish(&mut self, program: SnellProgram) {
        self.name_unknown();
        self.outside(program);
        let foreign = [SnellProgram::Server.name(), SnellProgram::Client.name(), tun::NAME, DEFAULT];
        for (name, section) in self.ini.sections.iter().filter(|(name, _)| !foreign.contains(&name.as_str()))
        {
            let key = format!("[{}]", value::excerpt(name));
            let warning = Diagnostic::warning(&self.source.file, key, "unknown section, so it has no effect");
            self.found.push(warning.at(section.place));
        }
    }

    /// A warning for each key of the section that nobody has asked for.
    fn name_unknown(&mut self) {
        let unknown = self.section.entries.iter().filter(|(name, _)| !self.known.contains(&name.as_str()));
        for (name, entry) in unknown.take(MAX_UNKNOWN) {
            let warning = Diagnostic::warning(
                &self.source.file,
                value::excerpt(name),
                "unknown key, so it has no effect",
            );
            let hint = value::closest(name, self.known.iter().copied());
            let warning = warning.at(entry.place);
            self.found.push(match hint {
                Some(key) => warning.hint(format!("did you mean `{key}`?")),
                None => warning,
            });
        }
    }

    /// Keys above all sections serve `%(key)s` alone.
    fn outside(&mut self, program: SnellProgram) {
        let Some(section) = self.ini.sections.get(DEFAULT) else { return };
        let used: HashSet<&str> = references(self.source.text).collect();
        for (name, entry) in &section.entries {
            if !used.contains(name.as_str()) {
                let problem = format!("stands outside [{}], so it has no effect", program.name());
                let warning = Diagnostic::warning(&self.source.file, value::excerpt(name), problem);
                self.found.push(warning.at(entry.place));
            }
        }
    }

    pub(super) fn error(&mut self, entry: &IniEntry, key: &str, problem: Problem) {
        self.found.push(self.finding(
            Diagnostic::error(&self.source.file, key, discreet(entry, problem.text)),
            entry,
            problem.hint,
        ));
    }

    pub(super) fn warning(&mut self, entry: &IniEntry, key: &str, problem: Problem) {
        self.found.push(self.finding(
            Diagnostic::warning(&self.source.file, key, discreet(entry, problem.text)),
            entry,
            problem.hint,
        ));
    }

    fn finding(&self, finding: Diagnostic, entry: &IniEntry, hint: Option<String>) -> Diagnostic {
        let mut finding = finding.at(entry.place);
        finding.hint = hint;
        finding
    }
}

/// A message about a value that may have had the key put in does not quote it.
fn discreet(entry: &IniEntry, text: String) -> String {
    if entry.value.contains("%(") { "bad value".to_owned() } else { text }
}

/// The words that go-ini takes for a truth value.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" | "YES" | "yes" | "Yes" | "y" | "ON" | "on" | "On" => {
            Some(true)
        }
        "0" | "f" | "F" | "false" | "FALSE" | "False" | "NO" | "no" | "No" | "n" | "OFF" | "off" | "Off" => {
            Some(false)
        }
        _ => None,
    }
}
