//! The rows of inbounds, of their users, of outbounds and of the members of groups: protocols and their keys. The way
//! to the other side is in [`link`](super::link).

use std::net::SocketAddr;
use std::time::Duration;

use adit_model::rule::Cidr;
use adit_model::{
    Expiry, HalfClose, HttpUrl, ObfsServer, Quic, Redirect, ReplayPolicy, Reply, SNELL_MODES, Secret,
    SnellMode, Transports, Tun, TunAddressError, TunPrefix, Udp,
};
use adit_proto::goquiet::Browser;
use adit_proto::ssr::{NameError, Obfs, SsrProtocol};
use adit_proto::wire::Target;

use super::root::MAX_OUTBOUNDS;
use super::rule::{OneOrMany, cidr, list};
use super::{
    ALL, OBFS, ON_OFF, REPLAY, Row, TRANSPORTS, Tables, all_quoted, any_text, chosen, exposed, flag, quoted,
    row, rows, span, tables,
};
use crate::adit_toml::fields::Spanned;
use crate::adit_toml::keys::{TomlTable, key};
use crate::adit_toml::{inbound, obfs, outbound};
use crate::read::value::{
    MAX_CREDENTIAL, MAX_LISTEN, Problem, duration, duration_text, listen, name_server, obfs_host, psk, quote,
    secret, size, size_text, target, text_of,
};

const LOCAL: &[&str] = &["mixed", "socks", "http"];
const USERS_OF: &[&str] = &["mixed", "socks", "http", "snell", "shadowsocks", "ssr"];
const SNELL: &[&str] = &["snell"];
const SHADOWSOCKS: &[&str] = &["shadowsocks"];
const WITH_OBFS: &[&str] = &["snell", "shadowsocks"];
const SSR: &[&str] = &["ssr"];
const CIPHERED: &[&str] = &["shadowsocks", "ssr"];
const NAMED: &[&str] = &["snell", "ssr"];
/// Protocols of which one side is a server of adit's kind.
pub(in crate::adit_toml) const SERVERS: &[&str] = &["snell", "shadowsocks", "ssr"];
const ALONE: &[&str] = &["obfs"];
const FIXED: &[&str] = &["tunnel", "obfs"];
const FALLING_BACK: &[&str] = &["ssr", "obfs"];
const CARRYING: &[&str] = &["shadowsocks", "ssr", "tunnel", "redirect"];
const TPROXY: &[&str] = &["tproxy"];
const OPEN: &[&str] = &["mixed", "socks", "http", "snell"];
const GROUP: &[&str] = &["group"];
const TUN: &[&str] = &["tun"];
/// Inbounds with an address to listen on.
pub(in crate::adit_toml) const LISTENING: &[&str] =
    &["mixed", "socks", "http", "snell", "shadowsocks", "ssr", "obfs", "tunnel", "dns"];

/// Longest path of a plugin, and longest of its options and arguments, in bytes.
const MAX_PLUGIN: usize = 4096;
/// Most arguments of a plugin.
const MAX_ARGUMENTS: usize = 64;
/// Longest parameter of an obfs in bytes.
const MAX_PARAMETER: usize = 4096;
/// Most clients, connections and addresses that a limit may allow.
const MOST: usize = 1 << 20;
/// Longest key of an obfs in bytes.
const MAX_KEY: usize = 4096;
/// Most servers of one outbound of protocol obfs.
const MAX_SERVERS: usize = 64;
/// Most fallback servers.
const MAX_FALLBACKS: usize = 256;
/// Longest address that is fetched to compare members, in bytes.
const MAX_URL: usize = 1024;
/// Most users of an inbound: a file of [`crate::read::source::MAX_LEN`] has place for as many.
const MAX_USERS: usize = 16_384;
/// Networks of one inbound.
const MAX_OPEN_TO: usize = 1024;

const REPLIES: &[(&str, Reply)] = &[("early", Reply::Early), ("connected", Reply::Connected)];
const HALF_CLOSES: &[(&str, HalfClose)] =
    &[("auto", HalfClose::Auto), ("on", HalfClose::On), ("late", HalfClose::Late)];
pub(in crate::adit_toml) const QUIC: &[(&str, Quic)] =
    &[("auto", Quic::Auto), ("on", Quic::On), ("off", Quic::Off)];
/// The words of Surge for the same.
const BLOCK: &[(&str, Quic)] = &[("auto", Quic::Auto), ("on", Quic::Block), ("off", Quic::On)];

rows! { ENDS;
    NAME: Row<Spanned<Box<str>>, str> = row(key("name", "text of 1 to 64 characters", "\"home\"")
        .at(TomlTable::Inbound, ALL, "the protocol", "name in logs and status")
        .at(TomlTable::Outbound, ALL, "the protocol", "name in logs, status and in `outbound` of inbounds"),
        |field, report| field.spanned(report, super::name), quote);
    INBOUND_PROTOCOL: Row<inbound::InboundKind, str> = row(key("protocol", "mixed, socks, http, snell, shadowsocks, ssr, obfs, tunnel, redirect, tproxy, tun or dns", "\"mixed\"")
        .at(TomlTable::Inbound, ALL, "required", "protocol of the port"),
        |field, report| field.choice(report, inbound::KINDS), quote);
    OUTBOUND_PROTOCOL: Row<outbound::OutboundKind, str> = row(key("protocol", "direct, reject, snell, shadowsocks, ssr, obfs, socks5, http, dns, group, select, url-test, fallback or load-balance", "\"direct\"")
        .at(TomlTable::Outbound, ALL, "required", "protocol to reach targets"),
        |field, report| field.choice(report, outbound::KINDS), quote);
    LISTEN: Row<Vec<Spanned<SocketAddr>>, [SocketAddr]> = row(key("listen", "address:port, or a list", "\"127.0.0.1:1080\"")
        .at(TomlTable::Inbound, LISTENING, "required", "addresses to listen on; `:port` is every address of the machine"),
        |field, report| field.list(report, MAX_LISTEN, listen), all_quoted);
    OUTBOUND_OF: Row<Spanned<Box<str>>, str> = row(key("outbound", "name of an outbound", "\"home\"")
        .at(TomlTable::Inbound, ALL, "the first outbound", "outbound of its connections"),
        |field, report| field.spanned(report, |text| Ok(text.into())), quote);
    SERVER: Row<Spanned<Target>, Target> = row(key("server", "host:port", "\"example.com:6160\"")
        .at(TomlTable::Outbound, SERVERS, "required", "the server")
        .at(TomlTable::User, SHADOWSOCKS, "none", "passes the user on to this server, unread (SIP023); all users of an inbound, or none"),
        |field, report| field.spanned(report, target), quoted);
    USERS: Tables = tables(key("users", "list of { name, password }", "[{ name = \"ann\", password = \"change me, ann\" }]")
        .at(TomlTable::Inbound, USERS_OF, "none", "its users; the keys of an entry are below"), TomlTable::User, MAX_USERS);
    PANEL_OF: Row<Spanned<Box<str>>, str> = row(key("panel", "name of a [[panel]], or store", "\"home\"")
        .at(TomlTable::Inbound, SERVERS, "none", "serves the users of that panel, in the place of `users`; shadowsocks: the panel gives the password too; store: the users that the store lists"),
        |field, report| field.spanned(report, super::name), quote);
    ALLOW_LAN: Row<bool> = flag(key("allow-lan", "true or false", "true")
        .at(TomlTable::Inbound, OPEN, "false", "lets a port without users, or snell in mode unsafe-raw, listen beyond loopback"));
    ALLOW_PRIVATE: Row<bool> = flag(key("allow-private", "true or false", "true")
        .at(TomlTable::Inbound, SERVERS, "false", "lets clients reach loopback, link-local and private addresses, and this machine; without it only a rule that matches does"));
    OPEN_TO: OneOrMany<Cidr> = list(key("open-to", "address or network, or a list", "\"192.168.0.0/16\"")
        .at(TomlTable::Inbound, LOCAL, "none", "clients that need no password where there are users"),
        |field, report| field.list(report, MAX_OPEN_TO, cidr));
    REPLY: Row<Reply> = row(key("reply", "early or connected", "\"connected\"")
        .at(TomlTable::Inbound, LOCAL, "early", "reports success of tunnels at once, or when their server has been dialled; direct: always when the target has"),
        |field, report| field.choice(report, REPLIES), |reply| chosen(REPLIES, reply));
    TARGET: Row<Spanned<Target>, Target> = row(key("target", "host:port", "\"mail.example.com:25\"")
        .at(TomlTable::Inbound, FIXED, "required", "target of every connection"),
        |field, report| field.spanned(report, target), quoted);

    PSK: Row<Spanned<Secret>, Secret> = row(key("psk", "text", "\"a pre-shared key\"")
        .at(TomlTable::Inbound, SNELL, "required without users", "the pre-shared key; with users either this and their passwords are client ids, or left out and their passwords are pre-shared keys")
        .at(TomlTable::Outbound, SNELL, "required", "the pre-shared key of the server"),
        |field, report| field.spanned(report, psk), exposed);
    USER_KEY: Row<Secret> = row(key("user-key", "text of 1 to 255 bytes", "\"ann\"")
        .at(TomlTable::Outbound, NAMED, "none", "snell: client id, by which a server tells users of one psk apart, `userkey` of sing-box; ssr: secret of the user"),
        |field, report| field.parsed(report, |text| secret(text, MAX_CREDENTIAL)), exposed);
    USER_ID_OF: Row<u32> = row(key("user-id", "0 to 4294967295", "1001")
        .at(TomlTable::Outbound, SSR, "none", "number of the user, with user-key; together the protocol_param of other programs"),
        |field, report| field.number(report, 0..=u32::MAX as usize), ToString::to_string);
    SERVER_VERSION: Row<Option<u8>> = row(key("version", "1 to 6, or auto", "4")
        .at(TomlTable::Inbound, SNELL, "5", "version of the clients; 4 and 5 are alike; auto takes 4, 5 and 6"),
        |field, report| if field.text() == Some("auto") { Some(None) } else { field.number(report, 1..=6).map(Some) },
        |number| number.map_or_else(|| quote("auto"), |number| number.to_string()));
    VERSION: Row<u8> = row(key("version", "1 to 6", "4")
        .at(TomlTable::Outbound, SNELL, "5", "version of the server; 4 and 5 are alike"),
        |field, report| field.number(report, 1..=6), ToString::to_string);
    MODE: Row<SnellMode> = row(key("mode", "default, unshaped or unsafe-raw", "\"unshaped\"")
        .at(TomlTable::Inbound, SNELL, "default", "mode of version 6")
        .at(TomlTable::Outbound, SNELL, "default", "mode of version 6"),
        |field, report| field.choice(report, SNELL_MODES), |mode| chosen(SNELL_MODES, mode));
    OBFS_MODE: Row<ObfsServer> = row(key("obfs", "off, http or tls", "\"http\"")
        .at(TomlTable::Inbound, WITH_OBFS, "off", "obfs that clients must use")
        .at(TomlTable::Outbound, WITH_OBFS, "off", "obfs that the server expects"),
        |field, report| field.choice(report, OBFS), |obfs| chosen(OBFS, obfs));
    OBFS_HOST: Row<Spanned<Box<str>>, str> = row(key("obfs-host", "host name", "\"www.example.com\"")
        .at(TomlTable::Outbound, WITH_OBFS, "host of server", "host that obfs names"),
        |field, report| field.spanned(report, obfs_host), quote);
    REUSE: Row<bool> = flag(key("reuse", "true or false", "true")
        .at(TomlTable::Outbound, SNELL, "false; true in version 2", "keeps connections for further requests; not in versions 1 and 3"));
    HALF_CLOSE: Row<HalfClose> = row(key("half-close", "auto, on or late", "\"late\"")
        .at(TomlTable::Outbound, SNELL, "auto", "passes on the end of local data at once, or after the answer; auto: at once to adit"),
        |field, report| field.choice(report, HALF_CLOSES), |half_close| chosen(HALF_CLOSES, half_close));
    UDP: Row<bool> = flag(key("udp", "true or false", "false")
        .at(TomlTable::Inbound, SNELL, "true", "serves datagrams over streams")
        .at(TomlTable::Outbound, SNELL, "true", "carries datagrams"));
    UDP_RELAY: Row<bool> = flag(key("udp-relay", "true or false", "false")
        .at(TomlTable::Outbound, SNELL, "true", "other name of `udp`"));
    SERVER_QUIC: Row<bool> = flag(key("quic", "true or false", "false")
        .at(TomlTable::Inbound, SNELL, "true", "takes QUIC on the UDP port of the same number"));
    CLIENT_QUIC: Row<Quic> = row(key("quic", "auto, on or off", "\"on\"")
        .at(TomlTable::Outbound, SNELL, "auto", "sends QUIC to the UDP port of the server as it is; off: over the stream; auto: over the stream when nothing answers"),
        |field, report| field.choice(report, QUIC), |quic| chosen(QUIC, quic));
    BLOCK_QUIC: Row<Quic> = row(key("block-quic", "auto, on or off", "\"on\"")
        .at(TomlTable::Outbound, SNELL, "auto", "on refuses QUIC, so that applications use TCP; off is short for quic = \"on\""),
        |field, report| field.choice(report, BLOCK), |quic| chosen(BLOCK, quic));

    METHOD: Row<Box<str>, str> = any_text(key("method", "name of a method", "\"aes-128-ctr\"")
        .at(TomlTable::Inbound, CIPHERED, "required", "the cipher")
        .at(TomlTable::Outbound, CIPHERED, "required", "the cipher"));
    PASSWORD: Row<Secret> = row(key("password", "text; for 2022 methods base64", "\"change me\"")
        .at(TomlTable::Inbound, CIPHERED, "required unless method is none", "password of the clients")
        .at(TomlTable::Outbound, CIPHERED, "required unless method is none", "what the server expects; for 2022 methods identities come first, between colons"),
        |field, report| field.parsed(report, |text| Ok(Secret::new(text))), exposed);
    KEY: Row<Secret> = row(key("key", "base64", "\"MDEyMzQ1Njc4OWFiY2RlZg==\"")
        .at(TomlTable::Inbound, SHADOWSOCKS, "none", "the key itself, in the place of password")
        .at(TomlTable::Outbound, SHADOWSOCKS, "none", "the key itself, in the place of password"),
        |field, report| field.parsed(report, |text| Ok(Secret::new(text))), exposed);
    SERVED: Row<Transports> = row(key("network", "tcp, udp or tcp-and-udp", "\"tcp-and-udp\"").formerly("mode")
        .at(TomlTable::Inbound, CARRYING, "tcp", "traffic that is served: streams, datagrams or both")
        .at(TomlTable::Outbound, CIPHERED, "tcp", "traffic for the server: streams, datagrams or both"),
        |field, report| field.choice(report, TRANSPORTS), |both| chosen(TRANSPORTS, both));
    TAKEN: Row<Transports> = row(key("network", "tcp, udp or tcp-and-udp", "\"udp\"")
        .at(TomlTable::Inbound, TPROXY, "tcp-and-udp", "traffic that the firewall brings: streams, datagrams or both"),
        |field, report| field.choice(report, TRANSPORTS), |both| chosen(TRANSPORTS, both));
    REPLAYED: Row<ReplayPolicy> = row(key("replay", "refuse, report or ignore", "\"report\"")
        .at(TomlTable::Inbound, SHADOWSOCKS, "refuse", "policy for recorded connections; 2022 methods always refuse them"),
        |field, report| field.choice(report, REPLAY), |replay| chosen(REPLAY, replay));
    PLUGIN: Row<Box<str>, str> = row(key("plugin", "program", "\"v2ray-plugin\"")
        .at(TomlTable::Inbound, CIPHERED, "none", "SIP003 plugin that listens in the place of adit")
        .at(TomlTable::Outbound, CIPHERED, "none", "SIP003 plugin that connects in the place of adit"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PLUGIN)), quote);
    PLUGIN_OPTIONS: Row<Box<str>, str> = row(key("plugin-options", "text", "\"path=/ws\"")
        .at(TomlTable::Inbound, CIPHERED, "none", "options of the plugin, as `key=value;flag`")
        .at(TomlTable::Outbound, CIPHERED, "none", "options of the plugin, as `key=value;flag`"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PLUGIN)), quote);
    PLUGIN_ARGUMENTS: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("plugin-arguments", "text, or a list", "[\"-x\", \"1\"]")
        .at(TomlTable::Inbound, CIPHERED, "none", "arguments of the plugin")
        .at(TomlTable::Outbound, CIPHERED, "none", "arguments of the plugin"),
        |field, report| field.list(report, MAX_ARGUMENTS, |text| text_of(text, MAX_PLUGIN)), all_quoted);
    PLUGIN_NETWORK: Row<Transports> = row(key("plugin-network", "tcp, udp or tcp-and-udp", "\"udp\"").formerly("plugin-mode")
        .at(TomlTable::Inbound, CIPHERED, "tcp", "traffic through the plugin: streams, datagrams or both")
        .at(TomlTable::Outbound, CIPHERED, "tcp", "traffic through the plugin: streams, datagrams or both"),
        |field, report| field.choice(report, TRANSPORTS), |both| chosen(TRANSPORTS, both));

    SERVER_PROTOCOL: Row<(SsrProtocol, bool), (&'static str, bool)> = row(key("ssr-protocol", "name of a protocol of ShadowsocksR", "\"auth_aes128_md5\"")
        .at(TomlTable::Inbound, SSR, "origin", "framing and authentication; `_compatible` behind it serves clients with origin too"),
        |field, report| field.parsed(report, |text| of_ssr(text, SsrProtocol::parse_server)), compatible);
    CLIENT_PROTOCOL: Row<SsrProtocol, str> = row(key("ssr-protocol", "name of a protocol of ShadowsocksR", "\"auth_aes128_md5\"")
        .at(TomlTable::Outbound, SSR, "origin", "framing and authentication that the server expects"),
        |field, report| field.parsed(report, |text| of_ssr(text, str::parse)), quote);
    SERVER_OBFS: Row<(Obfs, bool), (&'static str, bool)> = row(key("ssr-obfs", "name of an obfs of ShadowsocksR", "\"http_simple_compatible\"")
        .at(TomlTable::Inbound, SSR, "plain", "obfs that clients must use; `_compatible` behind it serves clients with plain too"),
        |field, report| field.parsed(report, |text| of_ssr(text, Obfs::parse_server)), compatible);
    CLIENT_OBFS: Row<Obfs, str> = row(key("ssr-obfs", "name of an obfs of ShadowsocksR", "\"http_simple\"")
        .at(TomlTable::Outbound, SSR, "plain", "obfs that the server expects"),
        |field, report| field.parsed(report, |text| of_ssr(text, str::parse)), quote);
    OBFS_PARAM: Row<Box<str>, str> = row(key("ssr-obfs-param", "text", "\"www.example.com\"")
        .at(TomlTable::Inbound, SSR, "none", "http: hosts that are accepted; tls: seconds that a client's clock may be off")
        .at(TomlTable::Outbound, SSR, "host of server", "host names to choose from, separated by commas; http: further lines of the head behind a #"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PARAMETER)), quote);
    MAX_CLIENTS: Row<usize> = row(key("max-clients", "1 to 1048576", "3")
        .at(TomlTable::Inbound, SSR, "64", "most client programs of one user at a time"),
        |field, report| field.number(report, 1..=MOST), ToString::to_string);
    FALLBACK: Row<Vec<Spanned<Redirect>>, [Redirect]> = row(key("fallback", "host[:port] or pattern[:port]#host[:port], or a list", "\"127.0.0.1:8443\"")
        .at(TomlTable::Inbound, FALLING_BACK, "none: such a client is never answered", "server, such as a web server, that gets the connections of unauthenticated clients with every byte they sent; the port is 80 unless given; pattern is a regular expression for the first bytes, or *, the port in front of # that of the listener"),
        |field, report| field.list(report, MAX_FALLBACKS, |text| text.parse::<Redirect>().map_err(|error| Problem::new(error.to_string()))), all_quoted);
    KEY_INTERVAL: Row<Duration> = span(key("key-interval", "duration, in whole seconds", "\"1h\"")
        .at(TomlTable::Inbound, SSR, "24h", "time between two lists of sizes of auth_chain_f; both ends must agree")
        .at(TomlTable::Outbound, SSR, "24h", "time between two lists of sizes of auth_chain_f; both ends must agree"));
    OVER_TCP: Row<bool> = flag(key("udp-over-tcp", "true or false", "true")
        .at(TomlTable::Outbound, SSR, "false", "datagrams travel in streams to the server, one for each client; the Python server and adit take them"));

    ALONE_SERVER: Row<obfs::ObfsKind> = row(key("obfs", "http, tls or go_quiet", "\"tls\"")
        .at(TomlTable::Inbound, ALONE, "required", "obfs that clients must use"),
        |field, report| field.choice(report, obfs::SERVER_KINDS), |kind| chosen(obfs::SERVER_KINDS, kind));
    ALONE_CLIENT: Row<obfs::ObfsKind> = row(key("obfs", "http, tls, go_quiet, or name of an obfs of ShadowsocksR", "\"http_simple\"")
        .at(TomlTable::Outbound, ALONE, "required", "obfs that the server expects"),
        |field, report| field.choice(report, obfs::CLIENT_KINDS), |kind| chosen(obfs::CLIENT_KINDS, kind));
    ALONE_SERVERS: Row<Vec<Spanned<Target>>, [Target]> = row(key("server", "host:port, or a list", "\"example.com:6160\"")
        .at(TomlTable::Outbound, ALONE, "required", "the server; of a list each connection takes one at random"),
        |field, report| field.list(report, MAX_SERVERS, target), all_quoted);
    ALONE_HOST: Row<Box<str>, str> = row(key("obfs-host", "host name, or as ssr-obfs-param", "\"www.example.com\"")
        .at(TomlTable::Outbound, ALONE, "host of server", "host that obfs names"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PARAMETER)), quote);
    ALONE_KEY: Row<Secret> = row(key("password", "text", "\"change me\"")
        .at(TomlTable::Inbound, ALONE, "required for go_quiet", "key of go_quiet")
        .at(TomlTable::Outbound, ALONE, "required for go_quiet and tls1.2_*", "key of go_quiet and of tls1.2_*"),
        |field, report| field.parsed(report, |text| secret(text, MAX_KEY)), exposed);
    BROWSER: Row<Browser> = row(key("browser", "chrome or firefox", "\"firefox\"")
        .at(TomlTable::Outbound, ALONE, "chrome", "go_quiet: browser whose client hello is sent"),
        |field, report| field.choice(report, obfs::BROWSERS), |browser| chosen(obfs::BROWSERS, browser));
    TICKET_INTERVAL: Row<Duration> = span(key("ticket-interval", "duration, in whole seconds", "\"2h\"")
        .at(TomlTable::Outbound, ALONE, "1h", "go_quiet: time in which connections show one session ticket"));

    ADDRESS: Row<Vec<Spanned<TunPrefix>>, [TunPrefix]> = row(key("address", "address/prefix, or one of IPv4 and one of IPv6", "[\"198.18.7.1/30\", \"fd00:7::1/126\"]")
        .at(TomlTable::Inbound, TUN, "198.18.0.1/30 and fdad:17:ad17::1/126", "addresses of the interface; the address behind each belongs to it too"),
        |field, report| field.list(report, 2, |text| text.parse::<TunPrefix>().map_err(tun_address)), all_quoted);
    TUN_MTU: Row<u16> = row(key("mtu", "1280 to 65535 bytes", "1500")
        .at(TomlTable::Inbound, TUN, "65535; 9000 without offload", "largest packet of the interface; 1500 suits applications that size datagrams by it"),
        |field, report| field.number(report, Tun::MIN_MTU.into()..=u16::MAX.into()), ToString::to_string);
    OFFLOAD: Row<bool> = row(key("offload", "on or off", "\"off\"")
        .at(TomlTable::Inbound, TUN, "on", "takes many packets of the kernel as one, if it gives them so"),
        |field, report| field.choice(report, ON_OFF), |on| chosen(ON_OFF, on));
    UDP_TIMEOUT: Row<Duration> = row(key("udp-timeout", "duration, at least 60s", "\"2m\"")
        .at(TomlTable::Inbound, TUN, "idle of [udp]", "forgets a flow of datagrams without one in either direction for this long"),
        |field, report| field.parsed(report, udp_idle), |span| quote(&duration_text(*span)));

    MEMBERS: Tables = tables(key("members", "list of { name }", "[{ name = \"home\" }]")
        .at(TomlTable::Outbound, GROUP, "required", "outbounds of which the one that answers best is used"), TomlTable::Member, MAX_OUTBOUNDS);
    CHECK_URL: Row<Box<str>, str> = row(key("check-url", "address that begins with http://", "\"http://example.com/\"")
        .at(TomlTable::Outbound, GROUP, "http://www.gstatic.com/generate_204", "page that is fetched through each member to compare them"),
        |field, report| field.parsed(report, url), quote);
    CHECK_DNS: Row<SocketAddr> = row(key("check-dns", "address of a name server", "\"192.0.2.53:53\"")
        .at(TomlTable::Outbound, GROUP, "8.8.8.8:53", "which server is asked through each member to compare them for datagrams"),
        |field, report| field.parsed(report, name_server), quoted);
    CHECK_INTERVAL: Row<Duration> = span(key("check-interval", "duration", "\"30s\"")
        .at(TomlTable::Outbound, GROUP, "10s", "time between two checks of a member"));
    CHECK_INTERVAL_IN_USE: Row<Duration> = span(key("check-interval-in-use", "duration", "\"5s\"")
        .at(TomlTable::Outbound, GROUP, "check-interval", "the same for the member in use"));
    CHECK_TIMEOUT: Row<Duration> = span(key("check-timeout", "duration", "\"3s\"")
        .at(TomlTable::Outbound, GROUP, "5s", "an answer that takes longer is none"));
    TOLERANCE: Row<Duration> = span(key("tolerance", "duration", "\"20ms\"")
        .at(TomlTable::Outbound, GROUP, "50ms", "latency by which another member must be better to take over"));

    USER_NAME: Row<Box<str>, str> = any_text(key("name", "text of 1 to 255 bytes", "\"ann\"")
        .at(TomlTable::User, ALL, "required", "user name"));
    USER_PASSWORD: Row<Secret> = row(key("password", "text of 1 to 255 bytes", "\"change me, ann\"")
        .at(TomlTable::User, ALL, "required", "password; for shadowsocks a key in base64; for snell the client id, or without `psk` the pre-shared key"),
        |field, report| field.parsed(report, |text| secret(text, MAX_CREDENTIAL)), exposed);
    USER_ID: Row<u32> = row(key("id", "0 to 4294967295", "1002")
        .at(TomlTable::User, SSR, "required of more than one user", "number of the user, the part of protocol_param before the colon; without it the whole port belongs to the one user"),
        |field, report| field.number(report, 0..=u32::MAX as usize), ToString::to_string);
    QUOTA: Row<u64> = row(key("quota", "number of bytes with a unit, as 500GB or 10MiB", "\"500GB\"")
        .at(TomlTable::User, ALL, "none", "ends the user's connections when so many bytes have passed, both ways together"),
        |field, report| field.parsed(report, size), |size| quote(&size_text(*size)));
    RESET_DAY: Row<u8> = row(key("reset-day", "1 to 28", "15")
        .at(TomlTable::User, ALL, "never", "day of the month on which the quota begins anew, at midnight UTC"),
        |field, report| field.number(report, 1..=28), ToString::to_string);
    EXPIRES: Row<Expiry> = row(key("expires", "a date, as 2030-12-31, or a date and time, as 2030-12-31T18:00:00Z", "\"2030-12-31\"")
        .at(TomlTable::User, ALL, "never", "end of service; a date is the last day, which ends at midnight UTC"),
        |field, report| field.time(report, expiry), quoted);
    RATE: Row<u64> = row(key("rate", "number of bytes with a unit", "\"10MB\"")
        .at(TomlTable::User, ALL, "none", "most bytes per second, each way"),
        |field, report| field.parsed(report, size), |size| quote(&size_text(*size)));
    CONNECTIONS: Row<u32> = row(key("connections", "1 to 1048576", "200")
        .at(TomlTable::User, ALL, "none", "most connections at a time"),
        |field, report| field.number(report, 1..=MOST), ToString::to_string);
    ADDRESSES: Row<u32> = row(key("addresses", "1 to 1048576", "3")
        .at(TomlTable::User, ALL, "none", "most source addresses (IPv4 address, IPv6 /64) at a time"),
        |field, report| field.number(report, 1..=MOST), ToString::to_string);

    MEMBER_NAME: Row<Spanned<Box<str>>, str> = row(key("name", "name of an outbound", "\"home\"")
        .at(TomlTable::Member, ALL, "required", "which outbound it is; not one of protocol group"),
        |field, report| field.spanned(report, super::name), quote);
    TCP_WEIGHT: Row<u8> = row(key("tcp-weight", "percent, 0 to 100", "80")
        .at(TomlTable::Member, ALL, "100", "preference for streams; 0 is never"),
        |field, report| field.number(report, 0..=100), ToString::to_string);
    UDP_WEIGHT: Row<u8> = row(key("udp-weight", "percent, 0 to 100", "50")
        .at(TomlTable::Member, ALL, "100", "the same for datagrams"),
        |field, report| field.number(report, 0..=100), ToString::to_string);
}

fn tun_address(error: TunAddressError) -> Problem {
    Problem::new(error.to_string()).hint("write for instance 198.18.0.1/30")
}

fn udp_idle(text: &str) -> Result<Duration, Problem> {
    let idle = duration(text)?;
    if idle < Udp::MIN_IDLE { Err(Problem::new("less than 60s")) } else { Ok(idle) }
}

fn of_ssr<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, NameError>) -> Result<T, Problem> {
    parse(text).map_err(|error| Problem::new(error.to_string()))
}

/// The name as servers write it.
fn compatible((name, is_compatible): &(&'static str, bool)) -> String {
    quote(&format!("{name}{}", if *is_compatible { "_compatible" } else { "" }))
}

fn expiry(text: &str) -> Result<Expiry, Problem> {
    text.parse::<Expiry>().map_err(|error| Problem::new(error.to_string()))
}

fn url(text: &str) -> Result<Box<str>, Problem> {
    let url = text_of(text, MAX_URL)?;
    match HttpUrl::parse(&url) {
        Ok(_) => Ok(url),
        Err(error) => {
            Err(Problem::new(error.to_string()).hint("write http:// and something that is small and public"))
        }
    }
}
