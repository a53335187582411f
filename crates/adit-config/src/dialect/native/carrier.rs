//! The keys of what takes TCP's place.

use std::time::Duration;

use adit_proto::kcp::crypt::Method;
use adit_proto::kcp::fec;
use adit_proto::wire::Target;

use super::fields::{Fields, Report};
use super::keys::Head;
use super::rows::link::{self as rows, Carrier};
use super::write::Entries;
use crate::dialect::value::Problem;
use crate::model::{KCP_MTU, Kcp, KcpClient, KcpParity, OutboundProtocol};

/// Keys that mean nothing without a carrier.
static SETTINGS: [&Head; 8] = [
    rows::CARRIER_KEY.head(),
    rows::CARRIER_CRYPT.head(),
    rows::CARRIER_PARITY.head(),
    rows::CARRIER_MTU.head(),
    rows::CARRIER_COMPRESSION.head(),
    rows::CARRIER_SMUX.head(),
    rows::CARRIER_SERVER.head(),
    rows::CARRIER_SESSIONS.head(),
];

/// The keys of both ends.
pub(super) fn kcp(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<Kcp> {
    let carrier = fields.read(report, &rows::CARRIER).unwrap_or(Carrier::Tcp);
    if carrier == Carrier::Tcp {
        refuse_settings(fields, report);
        return None;
    }
    let key = fields.require(report, &rows::CARRIER_KEY);
    let crypt = fields.read(report, &rows::CARRIER_CRYPT).unwrap_or(Method::Aes128Gcm);
    let parity = fields.read(report, &rows::CARRIER_PARITY).unwrap_or(KcpParity::Measured);
    let mtu = fields.read(report, &rows::CARRIER_MTU).unwrap_or(KCP_MTU);
    let compression = fields.read(report, &rows::CARRIER_COMPRESSION).unwrap_or(false);
    let version = fields.read(report, &rows::CARRIER_SMUX).unwrap_or(None);
    debug_assert!(128 > crypt.head_len() + crypt.tail_len() + fec::HEADER_LEN + 24, "room for data");
    Some(Kcp { parity, mtu, compression, version, ..Kcp::new(key?, crypt) })
}

/// Without a carrier there is nothing to set.
fn refuse_settings(fields: &mut Fields<'_>, report: &mut Report<'_>) {
    for key in SETTINGS {
        let at = fields.place(key);
        if fields.take(key).is_some() {
            let problem = Problem::new("no carrier is set, so this key has no effect");
            report.error(&at, fields.path(key), problem.hint("write carrier = \"kcp\" too, or leave it out"));
        }
    }
}

/// The keys of outbounds alone. Its own server is the carrier's unless another one is named.
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
        Some(own) => Some(fields.read(report, &rows::CARRIER_SERVER).unwrap_or(own)),
        None => fields.require(report, &rows::CARRIER_SERVER),
    };
    let server: Target = named?;
    let sessions = fields.read(report, &rows::CARRIER_SESSIONS).unwrap_or(1);
    let linger = Duration::from_secs(600);
    Some(KcpClient { sessions, linger, ..KcpClient::new(kcp, server) })
}

pub(super) fn write(out: &mut Entries, kcp: &Kcp) {
    out.put(&rows::CARRIER, &Carrier::Kcp);
    out.put(&rows::CARRIER_KEY, &kcp.key);
    out.put(&rows::CARRIER_CRYPT, &kcp.crypt);
    out.put(&rows::CARRIER_PARITY, &kcp.parity);
    out.put(&rows::CARRIER_MTU, &kcp.mtu);
    out.put_unless(&rows::CARRIER_COMPRESSION, &kcp.compression, &false);
    out.put(&rows::CARRIER_SMUX, &kcp.version);
}
