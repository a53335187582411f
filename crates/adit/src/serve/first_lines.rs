//! The first lines of the log: the program with its file, and each listener with all that people compare.
//!
//! ```text
//!   adit 0.1.0, /etc/adit/adit.toml, pid 123
//!   listening inbound=home protocol=Shadowsocks network=tcp+udp method=aes-256-gcm users=2 address=0.0.0.0:8388
//! ```

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use adit_engine::Running;
use adit_engine::transparent::CaptureReport;
use adit_formats::snell;
use adit_model::rule::Verdict;
use adit_model::{
    Config, Inbound, InboundProtocol, Kcp, KcpParity, ObfsServer, ObfsServerLayer, Outbound,
    OutboundProtocol, ServerCover,
};

use crate::load::files::is_link;
use crate::load::readable;
use crate::serve::LEADS_ANYWHERE;

/// The first line: the version, the files and the process. `name` is the program that adit stands in for.
pub(crate) fn announce(name: Option<&str>, files: &[PathBuf]) {
    readable::note(files);
    let version = env!("CARGO_PKG_VERSION");
    let program = match name {
        Some("snell-server") => snell::version(snell::SnellProgram::Server).trim_end().to_owned(),
        Some(name) => format!("{name} (adit {version})"),
        None => format!("adit {version}"),
    };
    let from = match files {
        [] => "no file".to_owned(),
        [only] if only == Path::new("-") => "standard input".to_owned(),
        files => files.iter().map(|file| shown(file)).collect::<Vec<_>>().join(", "),
    };
    let pid = std::process::id();
    tracing::info!("{program}, {from}, pid {pid}");
}

/// The name of a file. A link holds its key, so it has none.
fn shown(file: &Path) -> String {
    if is_link(file) { "a link".to_owned() } else { file.display().to_string() }
}

/// One listening address.
struct Listening {
    inbound: String,
    protocol: &'static str,
    address: String,
    facts: Facts,
}

/// All that two people compare when a connection fails. The line leaves out absent facts.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Facts {
    network: Option<&'static str>,
    method: Option<String>,
    obfs: Option<String>,
    users: Option<usize>,
    target: Option<String>,
    server: Option<String>,
    interface: Option<String>,
}

/// The facts about a start that are logged.
pub(crate) struct Start {
    listening: Vec<Listening>,
    /// Settings of carriers that both ends must have alike, by inbound or outbound.
    carriers: Vec<(String, String)>,
    dns: Vec<(String, String)>,
    egress: Vec<(String, String)>,
    warnings: Vec<String>,
    capture: Option<CaptureReport>,
    /// Servers whose clients may be led to private addresses.
    lead_anywhere: Vec<String>,
    /// [`has_rejects`] of the configuration.
    has_rejects: bool,
}

/// Whether some rule of `config` rejects targets, or an access list this machine.
pub(crate) fn has_rejects(config: &Config) -> bool {
    let this_machine = [IpAddr::from(Ipv4Addr::LOCALHOST)];
    config.rules.iter().any(|rule| matches!(rule.verdict, Verdict::Reject(_)))
        || config
            .inbounds
            .iter()
            .any(|inbound| config.access(inbound).is_some_and(|list| !list.reaches_any(this_machine)))
}

impl Start {
    /// Those of `config`, as it runs. Its rules are gone by now, so that `has_rejects` was asked before.
    pub(crate) fn new(config: &Config, running: &Running, has_rejects: bool) -> Self {
        let of = |name: &str, address: String| {
            let inbound = config.inbounds.iter().find(|inbound| *inbound.name == *name);
            let protocol = inbound.map_or("captured traffic", |inbound| inbound.protocol.label());
            let facts = inbound.map(|inbound| facts(inbound, config)).unwrap_or_default();
            Listening { inbound: name.to_owned(), protocol, address, facts }
        };
        let raw = |name: &str| {
            let inbound = config.inbounds.iter().find(|inbound| *inbound.name == *name);
            inbound.and_then(|i| i.socket.carrier.as_ref()).is_some_and(|carrier| carrier.raw_tcp)
        };
        let listening = running.addresses().into_iter();
        let direct = config.outbounds.iter().filter(|out| out.protocol == OutboundProtocol::Direct);
        Self {
            listening: listening
                .flat_map(|(name, addr)| {
                    let raw = raw(&name).then(|| (name.clone(), format!("{addr}/tcp")));
                    std::iter::once((name, addr.to_string())).chain(raw)
                })
                .chain(config.inbounds.iter().filter_map(|inbound| {
                    Some((inbound.name.clone(), inbound.socket.unix.as_ref()?.display().to_string()))
                }))
                .map(|(name, addr)| of(&name, addr))
                .collect(),
            carriers: carriers(config),
            dns: direct.map(|out| (out.name.to_string(), servers(&out.dial.dns))).collect(),
            egress: egress(config),
            warnings: running.warnings().to_vec(),
            capture: running.capture(),
            lead_anywhere: config
                .inbounds
                .iter()
                .filter(|inbound| inbound.allow_private && inbound.protocol.is_server())
                .map(|inbound| inbound.name.to_string())
                .collect(),
            has_rejects,
        }
    }

    /// Writes them.
    pub(crate) fn write(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        if !self.lead_anywhere.is_empty() {
            let inbounds = self.lead_anywhere.join(", ");
            let but = if self.has_rejects { ", unless a rule rejects them" } else { "" };
            tracing::info!(
                inbounds,
                "clients may reach private addresses, and this machine{but}: {LEADS_ANYWHERE}"
            );
        }
        for (outbound, servers) in &self.dns {
            tracing::info!(outbound, servers, "effective DNS");
        }
        for (outbounds, interface) in &self.egress {
            tracing::info!(outbounds, interface, "egress interface");
        }
        if let Some(CaptureReport { mode, tcp, udp, dns, lan, why, after_kill }) = &self.capture {
            tracing::info!(mode, tcp, udp, dns, lan, why, "capturing, {after_kill}");
        }
        for (name, settings) in &self.carriers {
            tracing::info!(name, "KCP settings that both ends must have: {settings}");
        }
        for Listening { inbound, protocol, address, facts } in &self.listening {
            let Facts { network, method, obfs, users, target, server, interface } = facts;
            tracing::info!(
                inbound,
                protocol,
                network,
                method,
                obfs,
                users,
                target,
                server,
                interface,
                address,
                "listening"
            );
        }
    }
}

/// The transports that clients use, with UDP only where the outbound carries it.
fn network(inbound: &Inbound, config: &Config) -> &'static str {
    if let Some(carrier) = &inbound.socket.carrier {
        return match (carrier.has_streams(), carrier.raw_tcp) {
            (true, _) => "tcp",
            (false, true) => "udp, and udp that looks like tcp",
            (false, false) => "udp",
        };
    }
    let is_dns = matches!(inbound.protocol, InboundProtocol::Dns(_));
    // A virtual interface has datagrams without a port.
    let takes = inbound.takes_datagrams() || inbound.interface_name().is_some();
    let has_datagrams = takes && (is_dns || config.carries_datagrams(&inbound.outbound));
    match (inbound.transports().tcp(), has_datagrams) {
        (true, true) => "tcp+udp",
        (false, _) => "udp",
        (true, false) => "tcp",
    }
}

fn facts(inbound: &Inbound, config: &Config) -> Facts {
    let users = Some(inbound.protocol.users().len()).filter(|count| *count > 0);
    let interface = inbound.socket.interface.as_deref().map(str::to_owned);
    let facts = Facts { network: Some(network(inbound, config)), users, interface, ..Facts::default() };
    let server = || config.outbound(&inbound.outbound).and_then(server_of);
    match &inbound.protocol {
        InboundProtocol::Snell(snell) => Facts { obfs: obfs(snell.obfs), ..facts },
        InboundProtocol::Shadowsocks(ss) => {
            let obfs = match &ss.cover {
                ServerCover::Obfs(kind) => obfs(*kind),
                ServerCover::Plugin(plugin) => Some(format!("plugin {}", plugin.program)),
            };
            Facts { method: Some(ss.key.method().name().to_owned()), obfs, ..facts }
        }
        InboundProtocol::Ssr(ssr) => Facts {
            method: Some(format!("{}, {}", ssr.method.name(), ssr.protocol.name())),
            obfs: Some(ssr.obfs.name().to_owned()),
            ..facts
        },
        InboundProtocol::Obfs(layer) => {
            let obfs = match &layer.layer {
                ObfsServerLayer::Simple(kind) => obfs(*kind),
                ObfsServerLayer::GoQuiet(_) => None,
            };
            Facts { obfs, target: Some(layer.target.to_string()), ..facts }
        }
        InboundProtocol::Tunnel { target, .. } => {
            Facts { target: Some(target.to_string()), server: server(), ..facts }
        }
        InboundProtocol::Local(_) | InboundProtocol::Captured(_) => Facts { server: server(), ..facts },
        InboundProtocol::Tun(tun) => {
            Facts { interface: Some(tun.name.to_string()), server: server(), ..facts }
        }
        InboundProtocol::Dns(port) => {
            Facts { server: port.upstreams.first().map(|server| server.name.to_string()), ..facts }
        }
    }
}

fn obfs(kind: ObfsServer) -> Option<String> {
    match kind {
        ObfsServer::Off => None,
        ObfsServer::Http => Some("http".to_owned()),
        ObfsServer::Tls => Some("tls".to_owned()),
    }
}

/// The server of a way out, with its protocol and method.
#[allow(clippy::wildcard_enum_match_arm, reason = "the rest has no server of its own")]
fn server_of(outbound: &Outbound) -> Option<String> {
    if let Some(carrier) = &outbound.dial.carrier {
        if carrier.has_streams() {
            return Some(format!("snowflake {}", carrier.server));
        }
        let (server, last) = (&carrier.server, carrier.last_port);
        let range = if last > server.port { format!("-{last}") } else { String::new() };
        return Some(format!("kcp {server}{range}"));
    }
    match &outbound.protocol {
        OutboundProtocol::Snell(client) => Some(format!("snell {}", client.server)),
        OutboundProtocol::Shadowsocks(client) => {
            Some(format!("shadowsocks {} {}", client.server, client.key.method().name()))
        }
        OutboundProtocol::Ssr(client) => Some(format!(
            "shadowsocksr {} {}, {}, {}",
            client.server,
            client.method.name(),
            client.protocol.name(),
            client.obfs.name()
        )),
        OutboundProtocol::Obfs(client) => client.servers().first().map(|server| format!("obfs {server}")),
        OutboundProtocol::Group(_) => Some(format!("group {}", outbound.name)),
        _ => None,
    }
}

/// Most outbounds of one interface that are named.
const MAX_NAMED: usize = 8;

/// The interfaces that outbounds are bound to, behind these outbounds.
fn egress(config: &Config) -> Vec<(String, String)> {
    let mut found: Vec<(Vec<&str>, &str)> = Vec::new();
    for outbound in &config.outbounds {
        let Some(interface) = outbound.dial.egress.interface.as_deref() else { continue };
        match found.iter_mut().find(|(_, known)| *known == interface) {
            Some((names, _)) => names.push(&outbound.name),
            None => found.push((vec![&outbound.name], interface)),
        }
    }
    let text = |(names, interface): (Vec<&str>, &str)| {
        let more = names.len().saturating_sub(MAX_NAMED);
        let shown = names.into_iter().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (format!("{shown}{more}"), interface.to_owned())
    };
    found.into_iter().map(text).collect()
}

/// The settings of each carrier that both ends must have alike. Settings that agree are the same text at both ends.
fn carriers(config: &Config) -> Vec<(String, String)> {
    let inbounds = config.inbounds.iter().filter_map(|inbound| {
        let kcp = inbound.socket.carrier.as_deref().filter(|kcp| !kcp.has_streams())?;
        Some((inbound.name.to_string(), shared_settings(kcp)))
    });
    let outbounds = config.outbounds.iter().filter_map(|outbound| {
        let carrier = outbound.dial.carrier.as_ref().filter(|carrier| !carrier.has_streams())?;
        Some((outbound.name.to_string(), shared_settings(&carrier.kcp)))
    });
    inbounds.chain(outbounds).collect()
}

fn shared_settings(kcp: &Kcp) -> String {
    let parity = match kcp.parity {
        KcpParity::Off => "datashard 0, parityshard 0".to_owned(),
        KcpParity::Measured => "parity measured".to_owned(),
        KcpParity::Fixed(shards) => format!("datashard {}, parityshard {}", shards.data(), shards.parity()),
    };
    let qpp = kcp.pads.map_or_else(|| "off".to_owned(), |pads| pads.to_string());
    format!("crypt {}, nocomp {}, {parity}, qpp {qpp}", kcp.crypt.name(), !kcp.compression)
}

fn servers(dns: &[adit_model::NameServer]) -> String {
    if dns.is_empty() {
        return "system".to_owned();
    }
    dns.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use adit_formats::kcptun::{KcptunProgram, Release, Side, flags, load};

    use super::*;

    fn settings(side: Side, args: &[&str]) -> Vec<(String, String)> {
        let program = KcptunProgram { side, release: Release::Debian };
        let args: Vec<std::ffi::OsString> = args.iter().map(Into::into).collect();
        let Ok(adit_formats::kcptun::KcptunInvocation::Run(flags)) = flags(program, args) else { panic!() };
        carriers(&load(program, flags, None, None).unwrap().config)
    }

    #[test]
    fn settings_that_must_agree_are_one_text_at_both_ends() {
        let server =
            settings(Side::Server, &["-crypt", "xtea", "-mode", "fast3", "-mtu", "900", "-key", "geheim"]);
        let client = settings(Side::Client, &["-crypt", "xtea", "-conn", "3", "-key", "geheim"]);
        assert_eq!(server[0].1, client[0].1);
        assert!(!server[0].1.contains("geheim"), "{server:?}");
        let other = settings(Side::Client, &["-crypt", "xtea", "-nocomp"]);
        assert_ne!(server[0].1, other[0].1);
    }
}
