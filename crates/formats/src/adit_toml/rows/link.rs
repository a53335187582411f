//! The rows of the way between two machines, of inbounds and outbounds: addresses, TCP, rates and carriers.

use std::net::IpAddr;
use std::time::Duration;

use adit_model::{AddressFamilies, KcpParity, NameServer, Pace, Secret, TcpOptions};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::SmuxVersion;
use adit_proto::wire::Target;

use super::port_keys::{LISTENING, SERVERS};
use super::{ALL, FAMILIES, Row, all_quoted, chosen, exposed, flag, quoted, row, rows, span};
use crate::adit_toml::fields::Spanned;
use crate::adit_toml::keys::{TomlTable, key};
use crate::read::value::{
    self, MAX_DNS, Problem, bind_address, excerpt, interface, plain_server, quote, secret,
};

pub(super) const DIALLING: &[&str] = &["direct", "snell", "shadowsocks", "ssr", "obfs", "socks5", "http"];

/// Longest key of a carrier in bytes.
const MAX_KEY: usize = 1024;
/// Most sessions of an outbound.
const MAX_SESSIONS: usize = 1024;

/// The ways in which a connection is carried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::adit_toml) enum Carrier {
    Tcp,
    Kcp,
    Snowflake,
}

const CARRIERS: &[(&str, Carrier)] =
    &[("tcp", Carrier::Tcp), ("kcp", Carrier::Kcp), ("snowflake", Carrier::Snowflake)];

pub(in crate::adit_toml) const VERSIONS: &[(&str, Option<SmuxVersion>)] =
    &[("auto", None), ("1", Some(SmuxVersion::V1)), ("2", Some(SmuxVersion::V2))];

rows! { LINKS;
    DIAL_FAMILY: Row<AddressFamilies> = row(key("family", "any, prefer-ipv4, ipv4-only or ipv6-only", "\"prefer-ipv4\"")
        .at(TomlTable::Outbound, DIALLING, "any", "which address families are used"),
        |field, report| field.choice(report, FAMILIES), |family| chosen(FAMILIES, family));
    IPV6: Row<bool> = flag(key("ipv6", "true or false", "false")
        .at(TomlTable::Outbound, DIALLING, "true", "false is short for family = \"ipv4-only\""));
    INTERFACE: Row<Box<str>, str> = row(key("interface", "name of an interface", "\"eth0\"")
        .at(TomlTable::Inbound, ALL, "any; tun: adit0", "listens on this interface alone; tun: name of the interface that is made")
        .at(TomlTable::Outbound, DIALLING, "by routing", "sends through this interface"),
        |field, report| field.parsed(report, interface), quote);
    EGRESS_INTERFACE: Row<Box<str>, str> = row(key("egress-interface", "name of an interface", "\"eth1\"")
        .at(TomlTable::Outbound, DIALLING, "by routing", "other name of `interface`"),
        |field, report| field.parsed(report, interface), quote);
    BIND_ADDRESS: Row<Vec<Spanned<IpAddr>>, [IpAddr]> = row(key("bind-address", "address, or one of IPv4 and one of IPv6", "[\"192.0.2.1\", \"2001:db8::1\"]")
        .at(TomlTable::Outbound, DIALLING, "by routing", "sends from this address of the machine"),
        |field, report| field.list(report, 2, bind_address), all_quoted);
    FWMARK: Row<u32> = row(key("fwmark", "1 to 4294967295", "255")
        .at(TomlTable::Outbound, DIALLING, "none", "marks sent packets for routing rules and firewalls (Linux, CAP_NET_ADMIN)"),
        |field, report| field.number(report, 1..=u32::MAX as usize), ToString::to_string);
    THROUGH: Row<Spanned<Box<str>>, str> = row(key("through", "name of an outbound", "\"home\"")
        .at(TomlTable::Outbound, DIALLING, "none", "carries every connection of this outbound, in the place of TCP; without datagrams"),
        |field, report| field.spanned(report, super::name), quote);
    DNS: Row<Vec<Spanned<NameServer>>, [NameServer]> = row(key("dns", "address, address:port, system, or a list", "[\"1.1.1.1\", \"8.8.8.8:53\"]")
        .at(TomlTable::Outbound, DIALLING, "those of [dns]", "name servers of this outbound alone, asked by UDP; port 53 unless given; `system` for those of /etc/resolv.conf"),
        |field, report| field.list(report, MAX_DNS, plain_server), all_quoted);
    REUSE_PORT: Row<bool> = flag(key("reuse-port", "true or false", "true")
        .at(TomlTable::Inbound, LISTENING, "false", "lets other processes of the same user listen there as well"));
    FAST_OPEN: Row<bool> = flag(key("tcp-fast-open", "true or false", "true")
        .at(TomlTable::Inbound, LISTENING, "false", "accepts data in the first packet")
        .at(TomlTable::Outbound, DIALLING, "false", "sends data in the first packet"));
    KEEP_ALIVE: Row<Duration> = span(key("tcp-keep-alive", "duration, 1s to 32767s", "\"60s\"")
        .at(TomlTable::Inbound, ALL, "15s", "silence after which the peer is asked whether it is there, and time between questions")
        .at(TomlTable::Outbound, DIALLING, "15s", "silence after which the peer is asked whether it is there, and time between questions"));
    SEND_BUFFER: Row<u32> = row(key("tcp-send-buffer", "1 to 1073741823 bytes", "1000000")
        .at(TomlTable::Inbound, ALL, "by the system", "room for bytes that are not acknowledged, fixed (SO_SNDBUF)")
        .at(TomlTable::Outbound, DIALLING, "by the system", "room for bytes that are not acknowledged, fixed (SO_SNDBUF)"),
        |field, report| field.number(report, 1..=TcpOptions::MAX_BUFFER as usize), ToString::to_string);
    RECEIVE_BUFFER: Row<u32> = row(key("tcp-receive-buffer", "1 to 1073741823 bytes", "1000000")
        .at(TomlTable::Inbound, ALL, "by the system", "room for bytes that are not read yet, fixed (SO_RCVBUF)")
        .at(TomlTable::Outbound, DIALLING, "by the system", "room for bytes that are not read yet, fixed (SO_RCVBUF)"),
        |field, report| field.number(report, 1..=TcpOptions::MAX_BUFFER as usize), ToString::to_string);
    MULTIPATH: Row<bool> = flag(key("tcp-multipath", "true or false", "true")
        .at(TomlTable::Inbound, LISTENING, "false", "accepts Multipath TCP (RFC 8684) where the system has it")
        .at(TomlTable::Outbound, DIALLING, "false", "asks for Multipath TCP (RFC 8684) where the system has it"));
    TIMEOUT: Row<Duration> = span(key("timeout", "duration", "\"20s\"")
        .at(TomlTable::Outbound, DIALLING, "10s", "time for name resolution and all attempts to connect together"));
    PACING: Row<u32> = row(key("pacing-mbps", "1 to 1000000 million bits/s", "100")
        .at(TomlTable::Inbound, SERVERS, "none", "rate at which all connections of one client (IPv4 address, IPv6 /64) are sent to together")
        .at(TomlTable::Outbound, SERVERS, "none", "rate at which all connections to the server send together"),
        |field, report| field.number(report, *Pace::MBPS.start() as usize..=*Pace::MBPS.end() as usize), ToString::to_string);
    BRUTAL: Row<u32> = row(key("brutal-mbps", "1 to 1000000 million bits/s", "100")
        .at(TomlTable::Inbound, SERVERS, "none", "a rate that losses do not lower, by the kernel module tcp-brutal; without it as pacing-mbps")
        .at(TomlTable::Outbound, SERVERS, "none", "a rate that losses do not lower, by the kernel module tcp-brutal; without it as pacing-mbps"),
        |field, report| field.number(report, *Pace::MBPS.start() as usize..=*Pace::MBPS.end() as usize), ToString::to_string);
    GAIN: Row<u32> = row(key("brutal-cwnd-gain", "5 to 80 tenths", "20")
        .at(TomlTable::Inbound, SERVERS, "15", "window of brutal, in tenths of the window that the rate needs")
        .at(TomlTable::Outbound, SERVERS, "15", "window of brutal, in tenths of the window that the rate needs"),
        |field, report| field.number(report, *Pace::GAINS.start() as usize..=*Pace::GAINS.end() as usize), ToString::to_string);

    CARRIER: Row<Carrier> = row(key("carrier", "tcp, kcp or snowflake", "\"kcp\"")
        .at(TomlTable::Inbound, LISTENING, "tcp", "transport of incoming connections; kcp: streams of sessions over datagrams; snowflake: the same that proxies bring by WebSockets")
        .at(TomlTable::Outbound, DIALLING, "tcp", "transport of outgoing connections; kcp: streams of a session over datagrams; snowflake: the same through proxies that a broker finds"),
        |field, report| field.choice(report, CARRIERS), |carrier| chosen(CARRIERS, carrier));
    CARRIER_SERVER: Row<Target> = row(key("carrier-server", "host:port", "\"kcp.example.com:29900\"")
        .at(TomlTable::Outbound, DIALLING, "server; required for direct", "the other end of the carrier; with direct it says where streams go"),
        |field, report| field.parsed(report, value::target), quoted);
    CARRIER_KEY: Row<Secret> = row(key("carrier-key", "text", "\"known to both ends\"")
        .at(TomlTable::Inbound, LISTENING, "required with kcp", "secret that both ends of the carrier share")
        .at(TomlTable::Outbound, DIALLING, "required with kcp", "secret that both ends of the carrier share"),
        |field, report| field.parsed(report, |text| secret(text, MAX_KEY)), exposed);
    CARRIER_CRYPT: Row<KcpMethod> = row(key("carrier-crypt", "name of a cipher", "\"salsa20\"")
        .at(TomlTable::Inbound, LISTENING, "aes-128-gcm", "the carrier's cipher")
        .at(TomlTable::Outbound, DIALLING, "aes-128-gcm", "the carrier's cipher"),
        |field, report| field.parsed(report, crypt), |crypt| quote(crypt.name()));
    CARRIER_PARITY: Row<KcpParity> = row(key("carrier-parity", "auto, off, or data/parity", "\"10/3\"")
        .at(TomlTable::Inbound, LISTENING, "auto", "parity packets that are sent along, for instance 10/3; auto follows the loss")
        .at(TomlTable::Outbound, DIALLING, "auto", "parity packets that are sent along, for instance 10/3; auto follows the loss"),
        |field, report| field.parsed(report, parity), |parity| quote(&parity_text(*parity)));
    CARRIER_MTU: Row<usize> = row(key("carrier-mtu", "128 to 1500", "1200")
        .at(TomlTable::Inbound, LISTENING, "1350", "length of datagrams")
        .at(TomlTable::Outbound, DIALLING, "1350", "length of datagrams"),
        |field, report| field.number(report, 128..=1500), ToString::to_string);
    CARRIER_COMPRESSION: Row<bool> = flag(key("carrier-compression", "true or false", "true")
        .at(TomlTable::Inbound, LISTENING, "false", "compresses; both ends must agree")
        .at(TomlTable::Outbound, DIALLING, "false", "compresses; both ends must agree"));
    CARRIER_SMUX: Row<Option<SmuxVersion>> = row(key("carrier-smux", "auto, 1 or 2", "\"1\"")
        .at(TomlTable::Inbound, LISTENING, "auto", "version of the multiplexer; auto takes what clients speak")
        .at(TomlTable::Outbound, DIALLING, "auto", "version of the multiplexer; auto is 2"),
        |field, report| field.choice(report, VERSIONS), |version| chosen(VERSIONS, version));
    CARRIER_SESSIONS: Row<usize> = row(key("carrier-sessions", "1 to 1024", "4")
        .at(TomlTable::Outbound, DIALLING, "1", "sessions that streams are spread over; every event loop has one at least"),
        |field, report| field.number(report, 1..=MAX_SESSIONS), ToString::to_string);
}

fn crypt(text: &str) -> Result<KcpMethod, Problem> {
    KcpMethod::from_name(text).ok_or_else(|| {
        let problem = Problem::new(format!("no such cipher: {}", excerpt(text)));
        match value::closest(text, KcpMethod::ALL.map(KcpMethod::name)) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem.hint("write for instance aes-128-gcm"),
        }
    })
}

/// `auto`, `off`, or data and parity packets of a group as `10/3`.
fn parity(text: &str) -> Result<KcpParity, Problem> {
    match text {
        "auto" => return Ok(KcpParity::Measured),
        "off" => return Ok(KcpParity::Off),
        _ => {}
    }
    let numbers =
        text.split_once('/').and_then(|(k, m)| Some((k.trim().parse().ok()?, m.trim().parse().ok()?)));
    numbers.and_then(|(data, parity)| Shards::new(data, parity)).map(KcpParity::Fixed).ok_or_else(|| {
        Problem::new(format!("no group of packets: {}", excerpt(text)))
            .hint("write auto, off, or for instance \"10/3\"")
    })
}

fn parity_text(parity: KcpParity) -> String {
    match parity {
        KcpParity::Measured => "auto".into(),
        KcpParity::Off => "off".into(),
        KcpParity::Fixed(shards) => format!("{}/{}", shards.data(), shards.parity()),
    }
}
