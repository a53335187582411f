//! From one entry to an outbound. The forms differ in the names of their keys and in what holds without them.

use adit_model::{
    AddressFamilies, ClientCover, Dial, Egress, HalfClose, ObfsClient, Outbound, OutboundProtocol, Plugin,
    Quic, SNELL_MODES, Secret, ShadowsocksClient, SnellClient, SnellVersion, SsrClient, Transports,
};
use adit_proto::wire::{Host, Target};

use super::{Dialect, ImportEntry, tables};
use crate::adit_toml;
use crate::clash::proxy;
use crate::read::json::{JsonValue, Node};
use crate::read::json_fields::JsonReport;
use crate::read::kinds::{self, Typing, ValueKind};
use crate::read::value::{self, Problem};
use crate::read::yaml_access;
use crate::shadowsocks::{self, ShadowsocksProfile, setup};
use crate::shadowsocksr::{link, names};

/// The names of keys; empty for what a form does not have.
struct Words {
    name: &'static str,
    port: &'static str,
    reuse: &'static str,
    udp: &'static str,
    fast_open: &'static str,
    interface: &'static str,
    mark: &'static str,
    /// Addresses to send from.
    sources: &'static [&'static str],
    method: &'static str,
    obfs: &'static str,
    obfs_host: &'static str,
    /// Keys that say how a client shows or tests a server.
    harmless: &'static [&'static str],
}

const SURGE: Words = Words {
    name: "name",
    port: "port",
    reuse: "reuse",
    udp: "udp-relay",
    fast_open: "tfo",
    interface: "interface",
    mark: "",
    sources: &[],
    method: "encrypt-method",
    obfs: "obfs",
    obfs_host: "obfs-host",
    harmless: &["test-url", "test-timeout", "test-udp", "no-error-alert"],
};

const MIHOMO: Words = Words {
    name: "name",
    port: "port",
    reuse: "reuse",
    udp: "udp",
    fast_open: "tfo",
    interface: "interface-name",
    mark: "routing-mark",
    sources: &[],
    method: "cipher",
    obfs: "mode",
    obfs_host: "host",
    harmless: &[],
};

const SING_BOX: Words = Words {
    name: "tag",
    port: "server_port",
    reuse: "reuse",
    udp: "",
    fast_open: "tcp_fast_open",
    interface: "bind_interface",
    mark: "routing_mark",
    sources: &["inet4_bind_address", "inet6_bind_address"],
    method: "method",
    obfs: "obfs_mode",
    obfs_host: "obfs_host",
    harmless: &[],
};

const LINK: Words = Words {
    name: "name",
    port: "",
    reuse: "reuse",
    udp: "udp",
    fast_open: "tfo",
    interface: "",
    mark: "",
    sources: &[],
    method: "",
    obfs: "obfs",
    obfs_host: "obfs-host",
    harmless: &[],
};

fn words(dialect: Dialect) -> &'static Words {
    match dialect {
        Dialect::Surge => &SURGE,
        Dialect::Mihomo => &MIHOMO,
        Dialect::SingBox => &SING_BOX,
        Dialect::Link => &LINK,
    }
}

/// Host of an obfs without a host (mihomo, sing-box 1.14).
const OBFS_HOST: &str = "bing.com";

/// Longest password and parameter of ShadowsocksR, in bytes.
const MAX_PASSWORD: usize = 4096;

/// Names that every client has, without a server behind them.
const BUILT_IN: [&str; 8] =
    ["direct", "reject", "block", "dns", "selector", "urltest", "reject-tinygif", "pass"];

/// An entry with values of the types of its keys; others are reported, and taken out.
pub(super) fn typed(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    value: &JsonValue,
    path: &str,
) -> JsonValue {
    let mut value = value.clone();
    if matches!(value.node, Node::Object(_)) {
        let wrong = match dialect {
            Dialect::SingBox => {
                kinds::settle(&mut value, &ValueKind::Map(tables::SERVER), Typing::Strict, path)
            }
            Dialect::Mihomo => {
                let kind = yaml_access::text_of(&value, "type").unwrap_or_default().to_owned();
                proxy::settle(&mut value, &kind, path)
            }
            Dialect::Surge | Dialect::Link => Vec::new(),
        };
        super::wrong(report, wrong);
    }
    value
}

/// The outbound of an entry, which is [`typed`]; `None` for what is left out, or is wrong, which has been reported.
pub(super) fn server(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    value: &JsonValue,
    path: String,
) -> Option<Outbound> {
    let mut entry = ImportEntry::new(report, value, path, dialect.is_typed())?;
    let words = words(dialect);
    let kind = entry.require(report, "type")?;
    let protocol = match (&**kind, dialect) {
        ("snell", _) => snell(report, dialect, words, &mut entry).map(OutboundProtocol::Snell),
        ("ss", Dialect::Surge | Dialect::Mihomo) | ("shadowsocks", Dialect::SingBox) => {
            shadowsocks(report, dialect, words, &mut entry).map(OutboundProtocol::Shadowsocks)
        }
        ("ssr", Dialect::Mihomo) => ssr(report, dialect, words, &mut entry).map(OutboundProtocol::Ssr),
        (kind, _) => {
            if !BUILT_IN.contains(&kind) {
                let problem =
                    Problem::new(format!("left out, adit does not speak it: {}", value::excerpt(kind)));
                let at = entry.take("type").map_or(entry.at, |value| value.at);
                report.warning(at, entry.path("type"), problem);
            }
            return None;
        }
    };
    let name = entry.require(report, words.name);
    let name = name.and_then(|name| entry.checked(report, words.name, adit_toml::name(&name)));
    let dial = dial(report, dialect, words, &mut entry);
    entry.finish(report, words.harmless);
    Some(Outbound { name: (*name?).into(), dial, protocol: protocol? })
}

/// The direct outbound of an entry of mihomo.
pub(super) fn mihomo_direct(report: &mut JsonReport<'_>, value: &JsonValue) -> Option<Outbound> {
    let mut entry = ImportEntry::new(report, value, String::new(), Dialect::Mihomo.is_typed())?;
    let dial = dial(report, Dialect::Mihomo, &MIHOMO, &mut entry);
    entry.finish(report, &["name", "type", "udp"]);
    Some(Outbound { name: "direct".into(), dial, protocol: OutboundProtocol::Direct })
}

/// The outbound of a link for Shadowsocks; its path is that of the line.
pub(super) fn profile(
    report: &mut JsonReport<'_>,
    at: usize,
    path: &str,
    profile: ShadowsocksProfile,
) -> Option<Outbound> {
    let ShadowsocksProfile { name, id: _, server, key, plugin } = profile;
    let name = name.unwrap_or_else(|| server.to_string().into());
    let name = match adit_toml::name(&name) {
        Ok(name) => name,
        Err(problem) => {
            report.error(at, format!("{path}.name"), problem);
            return None;
        }
    };
    let cover = setup::client_cover(plugin);
    let client = ShadowsocksClient { server, key, transports: Transports::Both, cover };
    Some(Outbound {
        name: (*name).into(),
        dial: Dial::default(),
        protocol: OutboundProtocol::Shadowsocks(client),
    })
}

/// The outbound of a link for ShadowsocksR; its path is that of the line.
pub(super) fn ssr_profile(
    report: &mut JsonReport<'_>,
    at: usize,
    path: &str,
    profile: link::SsrProfile,
) -> Option<Outbound> {
    let link::SsrProfile { name, group: _, client } = profile;
    let name = name.unwrap_or_else(|| client.server.to_string().into());
    match adit_toml::name(&name) {
        Ok(name) => Some(Outbound {
            name: (*name).into(),
            dial: Dial::default(),
            protocol: OutboundProtocol::Ssr(client),
        }),
        Err(problem) => {
            report.error(at, format!("{path}.name"), problem);
            None
        }
    }
}

/// An entry of type ssr, as mihomo has it: there a user whose id is no number is none.
fn ssr(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<SsrClient> {
    let server = target(report, dialect, words, entry);
    let method = entry.require(report, words.method);
    let method = method.and_then(|name| entry.checked(report, words.method, names::method(&name)));
    let password = entry.require(report, "password");
    let password =
        password.and_then(|text| entry.checked(report, "password", value::secret(&text, MAX_PASSWORD)));
    let protocol = entry.require(report, "protocol");
    let protocol = protocol.and_then(|name| entry.checked(report, "protocol", names::protocol(&name)));
    let obfs = entry.require(report, "obfs");
    let obfs = obfs.and_then(|name| entry.checked(report, "obfs", names::obfs(&name)));
    let obfs_param = entry.text(report, "obfs-param").filter(|text| !text.is_empty());
    let obfs_param =
        obfs_param.and_then(|text| entry.checked(report, "obfs-param", value::text_of(&text, MAX_PASSWORD)));
    let param = entry.text(report, "protocol-param").filter(|text| !text.is_empty());
    let user = param.and_then(|param| {
        let (id, key) = param.split_once(':')?;
        let id = id.trim().parse::<u32>().ok()?;
        Some((id, entry.checked(report, "protocol-param", value::secret(key, value::MAX_CREDENTIAL))?))
    });
    let udp = udp(report, dialect, words, entry).unwrap_or(false);
    let (protocol, _) = protocol?;
    let client = SsrClient::new(server?, method?, password?, protocol);
    let client = SsrClient {
        user: user.filter(|_| protocol.has_users()),
        obfs: obfs?.0,
        obfs_param: obfs_param.unwrap_or_default(),
        transports: if udp { Transports::Both } else { Transports::Tcp },
        ..client
    };
    let checked = client.check().map_err(|error| Problem::new(error.to_string()));
    entry.checked(report, "protocol", checked).map(|()| client)
}

fn target(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<Target> {
    if dialect == Dialect::Link {
        let address = entry.require(report, "address")?;
        return entry.checked(report, "address", value::target(&address));
    }
    let (host, port) = (entry.require(report, "server"), entry.require(report, words.port));
    let port = port.and_then(|_| entry.number(report, words.port, 1..=u16::MAX.into()));
    let host = host.and_then(|host| {
        let host = Host::parse(host.as_bytes()).map_err(|error| Problem::new(error.to_string()));
        entry.checked(report, "server", host)
    });
    Some(Target { host: host?, port: u16::try_from(port?).ok()? })
}

fn snell(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<SnellClient> {
    let server = target(report, dialect, words, entry);
    let psk = entry.require(report, "psk");
    let psk = psk.and_then(|psk| entry.checked(report, "psk", value::psk(&psk)));
    let id = if dialect == Dialect::SingBox { entry.text(report, "userkey") } else { None };
    let client_id =
        id.and_then(|id| entry.checked(report, "userkey", value::secret(&id, value::MAX_CREDENTIAL)));
    let version = version(report, dialect, entry);
    let obfs = obfs(report, dialect, words, entry);
    let reuse = entry.flag(report, words.reuse).unwrap_or(false);
    let udp = udp(report, dialect, words, entry);
    let quic = quic(report, dialect, entry);
    let (version, psk) = (version?, psk?);
    let lens = version.psk_lens();
    if !lens.contains(&psk.expose().len()) {
        let problem = Problem::new(format!("version 6 wants {} to {} bytes", lens.start(), lens.end()));
        entry.checked::<()>(report, "psk", Err(problem));
    }
    let obfs = obfs?;
    if obfs != ObfsClient::Off && !version.has_obfs() {
        let problem = Err(Problem::new("version 6 has no obfs"));
        entry.checked::<()>(
            report,
            if dialect == Dialect::Mihomo { "obfs-opts" } else { words.obfs },
            problem,
        );
    }
    Some(SnellClient {
        server: server?,
        psk,
        client_id,
        version,
        obfs,
        // Clients pass over what the version decides.
        reuse: version.fixed_reuse().unwrap_or(reuse),
        half_close: HalfClose::Auto,
        udp: udp.unwrap_or(true),
        quic,
    })
}

/// Clients of Surge and mihomo speak version 1 unless told otherwise; what sing-box and links mean is not known.
fn version(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    entry: &mut ImportEntry<'_>,
) -> Option<SnellVersion> {
    let has_default = matches!(dialect, Dialect::Surge | Dialect::Mihomo);
    if !has_default {
        entry.require(report, "version")?;
    }
    let number = if entry.take("version").is_some() { entry.number(report, "version", 1..=6)? } else { 1 };
    // The name of mihomo's obfs is another thing, one level below.
    let mode = entry.one_of(report, "mode", SNELL_MODES);
    let number = u8::try_from(number).ok()?;
    if mode.is_some() && number != 6 {
        entry.checked::<()>(report, "mode", Err(Problem::new("only version 6 has modes")));
    }
    SnellVersion::new(number, mode.unwrap_or_default())
}

/// `None` when it is wrong, which has been reported.
fn obfs(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<ObfsClient> {
    if dialect != Dialect::Mihomo {
        return obfs_fields(report, words, entry);
    }
    if entry.take("obfs-opts").is_none() {
        return Some(ObfsClient::Off);
    }
    let mut below = entry.below(report, "obfs-opts")?;
    let obfs = obfs_fields(report, words, &mut below);
    below.finish(report, &[]);
    obfs
}

fn obfs_fields(
    report: &mut JsonReport<'_>,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<ObfsClient> {
    type Make = fn(Box<str>) -> ObfsClient;
    const MODES: &[(&str, Option<Make>)] = &[
        ("off", None),
        ("none", None),
        ("", None),
        ("http", Some(ObfsClient::Http)),
        ("tls", Some(ObfsClient::Tls)),
    ];
    let host = entry.text(report, words.obfs_host);
    if entry.take(words.obfs).is_none() {
        return Some(ObfsClient::Off);
    }
    let Some(make) = entry.one_of(report, words.obfs, MODES)? else { return Some(ObfsClient::Off) };
    let host = host.filter(|host| !host.is_empty());
    let host = value::obfs_host(host.as_ref().map_or(OBFS_HOST, |host| host.as_str()));
    entry.checked(report, words.obfs_host, host).map(make)
}

/// Whether datagrams are carried; `None` if nothing is said.
fn udp(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<bool> {
    match dialect {
        Dialect::SingBox => entry.one_of(report, "network", &[("tcp", false)]),
        // Off unless said.
        Dialect::Mihomo => Some(entry.flag(report, words.udp).unwrap_or(false)),
        Dialect::Surge | Dialect::Link => entry.flag(report, words.udp),
    }
}

/// Surge alone sends QUIC past the stream.
fn quic(report: &mut JsonReport<'_>, dialect: Dialect, entry: &mut ImportEntry<'_>) -> Quic {
    const BLOCK: &[(&str, Quic)] = &[("auto", Quic::Auto), ("on", Quic::Block), ("off", Quic::On)];
    match dialect {
        Dialect::Surge => entry.one_of(report, "block-quic", BLOCK).unwrap_or(Quic::Auto),
        Dialect::Mihomo | Dialect::SingBox => Quic::Off,
        Dialect::Link => Quic::Auto,
    }
}

fn shadowsocks(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<ShadowsocksClient> {
    let server = target(report, dialect, words, entry);
    let method = entry.require(report, words.method);
    let method = method.and_then(|method| entry.checked(report, words.method, shadowsocks::method(&method)));
    let password = entry.require(report, "password");
    let key = match (method, password) {
        (Some(method), Some(password)) => {
            let key = shadowsocks::key(method, Secret::new(password.as_str()));
            entry.checked(report, "password", key)
        }
        _ => None,
    };
    let cover = cover(report, dialect, words, entry);
    let udp = udp(report, dialect, words, entry).unwrap_or(dialect == Dialect::SingBox);
    let transports = if udp { Transports::Both } else { Transports::Tcp };
    Some(ShadowsocksClient { server: server?, key: key?, transports, cover: cover? })
}

/// The obfs of simple-obfs, in any spelling, or another plugin, which is a program beside adit.
fn cover(
    report: &mut JsonReport<'_>,
    dialect: Dialect,
    words: &Words,
    entry: &mut ImportEntry<'_>,
) -> Option<ClientCover> {
    match dialect {
        Dialect::Surge | Dialect::Link => obfs_fields(report, words, entry).map(ClientCover::Obfs),
        Dialect::Mihomo => {
            let plugin = entry.text(report, "plugin").filter(|plugin| !plugin.is_empty());
            if plugin.is_none() {
                return Some(ClientCover::default());
            }
            let is_obfs = entry.one_of(report, "plugin", &[("obfs", true), ("v2ray-plugin", false)])?;
            let mut below = entry.below(report, "plugin-opts")?;
            let cover = if is_obfs {
                obfs_fields(report, words, &mut below).map(ClientCover::Obfs)
            } else {
                v2ray_plugin(report, &mut below).map(ClientCover::Plugin)
            };
            below.finish(report, &[]);
            cover
        }
        Dialect::SingBox => {
            let is_there = |text: zeroize::Zeroizing<String>| !text.is_empty();
            if !entry.text(report, "plugin").is_some_and(is_there) {
                return Some(ClientCover::default());
            }
            let program = entry.parsed(report, "plugin", |text| value::text_of(text, MAX_PLUGIN))?;
            let has_options = entry.text(report, "plugin_opts").is_some_and(is_there);
            let options = if has_options {
                entry.parsed(report, "plugin_opts", |text| value::text_of(text, MAX_PLUGIN))?
            } else {
                Box::default()
            };
            Some(setup::client_cover(Some(plugin(&program, options))))
        }
    }
}

/// Longest name and options of a plugin in bytes, as in adit.toml.
const MAX_PLUGIN: usize = 4096;

/// A plugin for streams.
fn plugin(program: &str, options: Box<str>) -> Plugin {
    Plugin { program: program.into(), options, args: Vec::new(), transports: Transports::Tcp }
}

/// mihomo's own v2ray-plugin as options of the program of that name (1.3), which is started in its place.
fn v2ray_plugin(report: &mut JsonReport<'_>, entry: &mut ImportEntry<'_>) -> Option<Plugin> {
    let mut options: Vec<String> = Vec::new();
    let is_quic = entry.one_of(report, "mode", &[("websocket", false), ("quic", true)]);
    if is_quic == Some(true) {
        options.push("mode=quic".to_owned());
    }
    if entry.flag(report, "tls") == Some(true) {
        options.push("tls".to_owned());
    }
    let host = entry.text(report, "host").filter(|host| !host.is_empty());
    options.push(format!("host={}", escaped(host.as_ref().map_or(OBFS_HOST, |host| host.as_str()))));
    if let Some(path) = entry.text(report, "path").filter(|path| !path.is_empty()) {
        options.push(format!("path={}", escaped(&path)));
    }
    if entry.flag(report, "mux") == Some(false) {
        options.push("mux=0".to_owned());
    }
    Some(plugin("v2ray-plugin", options.join(";").into()))
}

/// A value as SIP003 writes it: `\`, `;` and `=` with a backslash in front.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        if matches!(c, '\\' | ';' | '=') {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

fn egress(report: &mut JsonReport<'_>, words: &Words, entry: &mut ImportEntry<'_>) -> Egress {
    let mut egress = Egress {
        interface: entry.parsed(report, words.interface, value::interface),
        mark: entry.parsed(report, words.mark, value::mark).flatten(),
        ..Egress::default()
    };
    for word in words.sources {
        if let Some(source) = entry.parsed(report, word, value::bind_address) {
            egress.set_source(source);
        }
    }
    egress
}

fn dial(report: &mut JsonReport<'_>, dialect: Dialect, words: &Words, entry: &mut ImportEntry<'_>) -> Dial {
    const SURGE: &[(&str, AddressFamilies)] = &[
        ("dual", AddressFamilies::Any),
        ("v4-only", AddressFamilies::V4Only),
        ("v6-only", AddressFamilies::V6Only),
        ("prefer-v4", AddressFamilies::PreferV4),
        ("prefer-v6", AddressFamilies::Any),
    ];
    const MIHOMO: &[(&str, AddressFamilies)] = &[
        ("dual", AddressFamilies::Any),
        ("ipv4", AddressFamilies::V4Only),
        ("ipv6", AddressFamilies::V6Only),
        ("ipv4-prefer", AddressFamilies::PreferV4),
        ("ipv6-prefer", AddressFamilies::Any),
    ];
    let family = match dialect {
        Dialect::Surge => entry.one_of(report, "ip-version", SURGE),
        Dialect::Mihomo => entry.one_of(report, "ip-version", MIHOMO),
        Dialect::SingBox | Dialect::Link => None,
    };
    Dial {
        family: family.unwrap_or_default(),
        egress: egress(report, words, entry),
        fast_open: entry.flag(report, words.fast_open).unwrap_or(false),
        ..Dial::default()
    }
}
