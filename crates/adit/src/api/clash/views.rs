//! Views of the engine in the shapes that dashboards read.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use adit_engine::{ConnectionStatus, DelaySample, ProxyView};
use adit_formats::clash::{port_key, type_name};
use adit_model::rule::Verdict;
use adit_model::{Config, Facade, Inbound, InboundProtocol, Level, OutboundProtocol, Policy, Refusal, Tag};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::text::{name_id, time, uuid};

/// The proxy, with the name of the provider that lists it.
pub(super) fn proxy(view: &ProxyView, provider: &str) -> Value {
    let dial = &view.model.dial;
    let is_stream_of_datagrams = matches!(view.model.protocol, OutboundProtocol::Snell(_));
    let mut out = json!({
        "name": &*view.name,
        "type": type_name(&view.model.protocol, &view.name),
        "udp": view.udp,
        "uot": is_stream_of_datagrams,
        "xudp": false,
        "tfo": dial.fast_open,
        "mptcp": false,
        "smux": false,
        "alive": view.history.alive,
        "history": samples(&view.history.samples),
        "extra": extra(view),
        "interface": dial.egress.interface.as_deref().unwrap_or_default(),
        "dialer-proxy": dial.through.as_deref().unwrap_or_default(),
        "routing-mark": dial.egress.mark.unwrap_or(0),
        "provider-name": provider,
    });
    let Some(fields) = out.as_object_mut() else { return out };
    match &view.group {
        Some(_) => add_group(fields, view),
        None => put(fields, "id", uuid(name_id(&view.name), name_id(&view.name) >> 16)),
    }
    if let OutboundProtocol::Refuse(Refusal::Dead { why, .. }) = &view.model.protocol {
        put(fields, "unsupported", &**why);
    }
    out
}

fn put(fields: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    fields.insert(key.to_owned(), value.into());
}

fn add_group(fields: &mut Map<String, Value>, view: &ProxyView) {
    let Some(group) = &view.group else { return };
    put(fields, "all", group.all.iter().map(|name| Value::from(&**name)).collect::<Vec<_>>());
    put(fields, "hidden", group.model.hidden);
    put(fields, "icon", &*group.model.icon);
    if !matches!(group.model.policy, Policy::LoadBalance(_)) {
        put(fields, "now", group.now.as_deref().unwrap_or_default());
    }
    if !matches!(group.model.policy, Policy::Select(_)) {
        put(fields, "testUrl", &*group.model.test.url);
        put(fields, "expectedStatus", group.model.test.expected_text());
    }
    if matches!(group.model.policy, Policy::UrlTest(_) | Policy::Fallback) {
        put(fields, "fixed", group.fixed.as_deref().unwrap_or_default());
    }
}

fn samples(all: &[DelaySample]) -> Value {
    all.iter().map(|one| json!({ "time": time(one.unix_s, 0), "delay": one.delay_ms })).collect()
}

fn extra(view: &ProxyView) -> Value {
    let urls = view.history.by_url.iter();
    let of =
        |(is_alive, all): &(bool, Vec<DelaySample>)| json!({ "alive": is_alive, "history": samples(all) });
    Value::Object(urls.map(|(url, one)| (url.clone(), of(one))).collect())
}

/// A group of everything, for configurations that have none: dashboards take the order of all groups from it.
pub(super) fn global(views: &[ProxyView]) -> Value {
    let names: Vec<&str> = views.iter().map(|view| &*view.name).collect();
    json!({
        "name": "GLOBAL", "type": "Selector", "udp": true, "uot": false, "xudp": false, "tfo": false,
        "mptcp": false, "smux": false, "alive": true, "history": [], "extra": {}, "interface": "",
        "dialer-proxy": "", "routing-mark": 0, "provider-name": "", "hidden": false, "icon": "",
        "now": names.first().copied().unwrap_or_default(), "all": names,
    })
}

/// The rules, in the words of the file where it has some.
pub(super) fn rules(config: &Config) -> Value {
    let show = |(index, line): (usize, &adit_model::RuleLine)| {
        json!({
            "index": index, "type": &*line.kind, "payload": &*line.payload, "proxy": &*line.target, "size": -1,
        })
    };
    let rules: Vec<Value> = match &config.facade {
        Some(facade) => facade.rules.iter().enumerate().map(show).collect(),
        None => {
            let shown = config.rules.iter().filter(|rule| !matches!(rule.verdict, Verdict::Pass(_)));
            shown.map(adit_engine::routing::line).enumerate().map(|(n, line)| show((n, &line))).collect()
        }
    };
    json!({ "rules": rules })
}

/// `GET /configs`.
pub(super) fn configs(config: &Config, level: Level) -> Value {
    let own;
    let facade = match &config.facade {
        Some(facade) => &**facade,
        None => {
            own = seen(config);
            &own
        }
    };
    let port = |key| facade.ports.get(key).copied().unwrap_or(0);
    let list = |all: &[Box<str>]| match all {
        [] => Value::Null,
        all => all.iter().map(|text| Value::from(&**text)).collect(),
    };
    let geo = |key: &str| facade.geo_urls.get(key).map(|url| &**url).unwrap_or_default();
    let users = list(&facade.users);
    let [allowed, disallowed, open_to] = facade.clients.each_ref().map(|all| list(all));
    let allowed = if allowed.is_null() { json!(["0.0.0.0/0", "::/0"]) } else { allowed };
    let mut out = json!({
        "port": port("port"), "socks-port": port("socks-port"), "redir-port": port("redir-port"),
        "tproxy-port": port("tproxy-port"), "mixed-port": port("mixed-port"),
        "tun": tun(config),
        "tuic-server": {
            "enable": false, "listen": "", "certificate": "", "private-key": "",
            "mux-option": { "brutal": { "enabled": false } },
        },
        "ss-config": "", "vmess-config": "",
        "authentication": users, "skip-auth-prefixes": open_to,
        "lan-allowed-ips": allowed, "lan-disallowed-ips": disallowed,
        "allow-lan": facade.allow_lan, "bind-address": &*facade.bind_address,
        "inbound-tfo": false, "inbound-mptcp": false,
        "mode": facade.mode, "unified-delay": facade.unified_delay, "log-level": level_name(level),
        "ipv6": facade.ipv6, "interface-name": &*facade.egress.0, "routing-mark": facade.egress.1,
        "geox-url": {
            "geo-ip": geo("geoip"), "mmdb": geo("mmdb"), "asn": geo("asn"), "geo-site": geo("geosite"),
        },
    });
    let more = json!({
        "geo-auto-update": facade.geo_updates.0, "geo-update-interval": facade.geo_updates.1,
        "geodata-mode": false,
        "geodata-loader": "memconservative", "geosite-matcher": "succinct",
        "tcp-concurrent": false, "find-process-mode": config.find_program.name(), "sniffing": config.sniffer.is_some(),
        "global-client-fingerprint": "", "global-ua": &*facade.agent, "etag-support": true,
        "keep-alive-idle": 0, "keep-alive-interval": 0, "disable-keep-alive": false,
        // A file without modes has one.
        "modes": if config.facade.is_some() { json!(["rule", "global", "direct"]) } else { json!(["rule"]) },
    });
    if let (Some(out), Value::Object(more)) = (out.as_object_mut(), more) {
        out.extend(more);
    }
    out
}

fn tun(config: &Config) -> Value {
    let of = |inbound: &Inbound| {
        matches!(inbound.protocol, InboundProtocol::Tun(_)).then(|| inbound.name.to_string())
    };
    let device = config.inbounds.iter().find_map(of);
    json!({
        "enable": device.is_some() || config.capture.is_some(), "device": device.unwrap_or_default(),
        "stack": "gVisor", "dns-hijack": [], "auto-route": config.capture.is_some(),
        "auto-detect-interface": true, "inet4-address": [], "inet6-address": [], "file-descriptor": 0,
    })
}

/// The facts of a configuration whose file has no such words.
fn seen(config: &Config) -> Facade {
    let mut ports = adit_model::map::Map::new();
    let mut is_open = false;
    for inbound in &config.inbounds {
        let Some(key) = port_key(&inbound.protocol) else { continue };
        if let Some(address) = inbound.listen.first() {
            ports.entry(key).or_insert_with(|| address.port());
            is_open |= !address.ip().to_canonical().is_loopback();
        }
    }
    Facade {
        mode: "rule",
        ports,
        allow_lan: is_open,
        bind_address: "*".into(),
        ipv6: true,
        geo_updates: (false, 24),
        ..Facade::default()
    }
}

/// A level as it is written.
pub(super) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug | Level::Trace => "debug",
    }
}

/// The kinds of the inbounds of a configuration, and the ends of its outbounds, for lists of connections.
#[derive(Debug, Default)]
pub(super) struct Ends {
    inbounds: BTreeMap<Tag, (&'static str, Option<SocketAddr>)>,
    servers: BTreeMap<Tag, String>,
}

impl Ends {
    pub(crate) fn of(config: &Config) -> Self {
        let inbound = |inbound: &Inbound| {
            (inbound.name.clone(), (inbound.protocol.entry(), inbound.listen.first().copied()))
        };
        let server = |outbound: &adit_model::Outbound| {
            let target = outbound.protocol.server()?;
            Some((outbound.name.clone(), split(&target.to_string()).0.to_owned()))
        };
        Self {
            inbounds: config.inbounds.iter().map(inbound).collect(),
            servers: config.outbounds.iter().filter_map(server).collect(),
        }
    }
}

/// Host and port, without brackets.
fn split(text: &str) -> (&str, &str) {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "0"));
    (host.trim_matches(['[', ']']), port)
}

/// The list of connections. It is written as it is: dashboards ask for it each second.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct List<'a> {
    pub(super) download_total: u64,
    pub(super) upload_total: u64,
    /// `None` without any.
    pub(super) connections: Option<Vec<Connection<'a>>>,
    /// Bytes of memory of the process.
    pub(super) memory: u64,
}

/// A connection in the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connection<'a> {
    id: String,
    metadata: Metadata<'a>,
    upload: u64,
    download: u64,
    start: String,
    chains: Vec<&'a str>,
    provider_chains: [(); 0],
    rule: &'a str,
    rule_payload: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    network: &'a str,
    r#type: &'a str,
    #[serde(rename = "sourceIP")]
    source_ip: &'a str,
    #[serde(rename = "destinationIP")]
    destination_ip: &'a str,
    #[serde(rename = "sourceGeoIP")]
    source_geo: (),
    #[serde(rename = "destinationGeoIP")]
    destination_geo: (),
    #[serde(rename = "sourceIPASN")]
    source_asn: &'static str,
    #[serde(rename = "destinationIPASN")]
    destination_asn: &'static str,
    source_port: &'a str,
    destination_port: &'a str,
    #[serde(rename = "inboundIP")]
    inbound_ip: String,
    inbound_port: String,
    inbound_name: &'a str,
    inbound_user: &'a str,
    host: &'a str,
    dns_mode: &'static str,
    uid: u32,
    process: &'a str,
    process_path: &'a str,
    special_proxy: &'static str,
    special_rules: &'static str,
    remote_destination: &'a str,
    dscp: u8,
    sniff_host: &'a str,
}

/// A connection; `start` is the time of its beginning, and `born` that of the process in seconds since 1970.
pub(super) fn connection<'a>(
    of: &'a ConnectionStatus,
    ends: &'a Ends,
    start: String,
    born: u64,
) -> Connection<'a> {
    let chains: Vec<&str> = if of.way.chain.is_empty() {
        vec![&of.outbound]
    } else {
        of.way.chain.iter().map(String::as_str).collect()
    };
    let leaf = chains.first().copied().unwrap_or_default();
    Connection {
        id: uuid(born, of.id),
        metadata: metadata(of, ends, leaf),
        upload: of.up_bytes,
        download: of.down_bytes,
        start,
        chains,
        provider_chains: [],
        rule: &of.way.rule,
        rule_payload: &of.way.payload,
    }
}

fn metadata<'a>(of: &'a ConnectionStatus, ends: &'a Ends, leaf: &str) -> Metadata<'a> {
    let (host, destination_port) = if of.target == "*" { ("", "0") } else { split(&of.target) };
    let (name, destination_ip) = match (host.parse::<IpAddr>(), of.way.name.as_deref()) {
        (Ok(_), Some(name)) => (name, host),
        (Ok(_), None) => ("", host),
        (Err(_), _) => (host, ""),
    };
    // An address of a unix socket has no port.
    let (source_ip, source_port) = match of.source.parse::<IpAddr>() {
        Ok(_) => (&*of.source, "0"),
        Err(_) => split(&of.source),
    };
    let (kind, listen) = ends.inbounds.get(&*of.inbound).copied().unwrap_or(("Inner", None));
    let path = of.way.program.as_deref().unwrap_or_default();
    Metadata {
        network: &of.network,
        r#type: if of.way.entry.is_empty() { kind } else { &of.way.entry },
        source_ip,
        destination_ip,
        source_geo: (),
        destination_geo: (),
        source_asn: "",
        destination_asn: "",
        source_port,
        destination_port,
        inbound_ip: listen.map(|addr| addr.ip().to_string()).unwrap_or_default(),
        inbound_port: listen.map_or(0, |addr| addr.port()).to_string(),
        inbound_name: &of.inbound,
        inbound_user: of.user.as_deref().unwrap_or_default(),
        host: name,
        dns_mode: if of.way.name.is_some() { "redir-host" } else { "normal" },
        uid: of.way.uid.unwrap_or(0),
        process: path.rsplit('/').next().unwrap_or_default(),
        process_path: path,
        special_proxy: "",
        special_rules: "",
        remote_destination: ends.servers.get(leaf).map_or(host, String::as_str),
        dscp: 0,
        sniff_host: of.way.sniffed.as_deref().unwrap_or_default(),
    }
}
