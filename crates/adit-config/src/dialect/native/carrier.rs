//! The keys of what takes TCP's place.

use std::time::Duration;

use adit_proto::kcp::crypt::Method;
use adit_proto::kcp::fec::{self, Shards};
use adit_proto::smux::Version;
use adit_proto::wire::Target;

use super::fields::{Fields, Report};
use crate::dialect::value::{self, Problem, excerpt, secret};
use crate::model::{KCP_MTU, Kcp, KcpClient, KcpParity, OutboundProtocol};

/// Longest key in bytes.
const MAX_KEY: usize = 1024;
/// Most sessions of an outbound.
const MAX_SESSIONS: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Tcp,
    Kcp,
}

const CARRIERS: &[(&str, Carrier)] = &[("tcp", Carrier::Tcp), ("kcp", Carrier::Kcp)];

pub(super) const VERSIONS: &[(&str, Option<Version>)] =
    &[("auto", None), ("1", Some(Version::V1)), ("2", Some(Version::V2))];

/// Keys that mean nothing without a carrier.
const SETTINGS: [&str; 8] = [
    "carrier-key",
    "carrier-crypt",
    "carrier-parity",
    "carrier-mtu",
    "carrier-compression",
    "carrier-smux",
    "carrier-server",
    "carrier-sessions",
];

/// What both ends write.
pub(super) fn kcp(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<Kcp> {
    let carrier = fields.one_of(report, "carrier", CARRIERS).unwrap_or(Carrier::Tcp);
    if carrier == Carrier::Tcp {
        refuse_settings(fields, report);
        return None;
    }
    let key =
        fields.require(report, "carrier-key").and_then(|f| f.parsed(report, |text| secret(text, MAX_KEY)));
    let crypt = fields.parsed(report, "carrier-crypt", crypt).map_or(Method::Aes128Gcm, |crypt| crypt.value);
    let parity =
        fields.parsed(report, "carrier-parity", parity).map_or(KcpParity::Measured, |parity| parity.value);
    let mtu = fields.integer(report, "carrier-mtu", 128..=1500).unwrap_or(KCP_MTU);
    let compression = fields.flag(report, "carrier-compression").unwrap_or(false);
    let version = fields.one_of(report, "carrier-smux", VERSIONS).unwrap_or(None);
    debug_assert!(128 > crypt.head_len() + crypt.tail_len() + fec::HEADER_LEN + 24, "room for data");
    Some(Kcp { parity, mtu, compression, version, ..Kcp::new(key?.value, crypt) })
}

/// Without a carrier there is nothing to set.
fn refuse_settings(fields: &mut Fields<'_>, report: &mut Report<'_>) {
    for key in SETTINGS {
        let at = fields.place(key);
        if fields.take(key).is_some() {
            let problem = Problem::new("there is no carrier that it could be for");
            report.error(&at, fields.path(key), problem.hint("write carrier = \"kcp\" too, or leave it out"));
        }
    }
}

/// What an outbound writes besides. Its own server is the carrier's unless another one is named.
pub(super) fn client(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    protocol: Option<&OutboundProtocol>,
) -> Option<KcpClient> {
    let kcp = kcp(fields, report)?;
    let own = match protocol {
        Some(OutboundProtocol::Snell(client)) => Some(client.server.clone()),
        Some(OutboundProtocol::Shadowsocks(client)) => Some(client.server.clone()),
        Some(OutboundProtocol::Ssr(client)) => Some(client.server.clone()),
        Some(OutboundProtocol::Obfs(client)) => client.servers().first().cloned(),
        _ => None,
    };
    let named = match own {
        Some(own) => {
            fields.parsed(report, "carrier-server", value::target).map_or(Some(own), |s| Some(s.value))
        }
        None => {
            let field = fields.require(report, "carrier-server");
            field.and_then(|field| field.parsed(report, value::target)).map(|server| server.value)
        }
    };
    let server: Target = named?;
    let sessions = fields.integer(report, "carrier-sessions", 1..=MAX_SESSIONS).unwrap_or(1);
    let linger = Duration::from_secs(600);
    Some(KcpClient { sessions, linger, ..KcpClient::new(kcp, server) })
}

fn crypt(text: &str) -> Result<Method, Problem> {
    Method::from_name(text).ok_or_else(|| {
        let problem = Problem::new(format!("no such cipher: {}", excerpt(text)));
        match value::closest(text, Method::ALL.map(Method::name)) {
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
