//! The registry of ways out for datagrams.

use std::rc::Rc;

use adit_config::model::{self, OutboundProtocol, Udp};
use adit_net::rt::Pool;

use super::direct_packets::DirectPackets;
use super::shadowsocks::ShadowsocksPackets;
use super::snell::SnellPackets;
use super::{Outbound, shadowsocks};
use crate::packet::PacketOutbound;

/// Whether a member of a group like `outbound` carries datagrams: over sockets, for streams are not compared.
pub(crate) fn carries(outbound: &model::Outbound) -> bool {
    match &outbound.protocol {
        OutboundProtocol::Direct => true,
        OutboundProtocol::Shadowsocks(client) => client.transports.udp(),
        OutboundProtocol::Reject | OutboundProtocol::Snell(_) | OutboundProtocol::Group(_) => false,
    }
}

/// Whether `outbound`, which is no group, carries datagrams.
fn carries_somehow(outbound: &model::Outbound) -> bool {
    if let OutboundProtocol::Snell(client) = &outbound.protocol {
        return client.udp && client.version.has_datagrams();
    }
    carries(outbound)
}

/// Whether the outbound of this number carries datagrams, or may come to.
pub(crate) fn carries_any(outbounds: &[model::Outbound], index: usize) -> bool {
    let OutboundProtocol::Group(group) = &outbounds[index].protocol else {
        return carries_somehow(&outbounds[index]);
    };
    let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
    group.grows || members.any(|member| carries(&outbounds[member.outbound]))
}

/// The datagrams of an `outbound` that needs nothing but sockets; `None` if it carries none that way.
pub(crate) fn over_sockets(outbound: &model::Outbound, udp: &Udp) -> Option<Rc<dyn PacketOutbound>> {
    Some(match &outbound.protocol {
        OutboundProtocol::Direct => Rc::new(DirectPackets::new(outbound, udp)),
        OutboundProtocol::Shadowsocks(client)
            if client.transports.udp() && !shadowsocks::sends_by_plugin(client) =>
        {
            Rc::new(ShadowsocksPackets::new(outbound, client, None, udp))
        }
        OutboundProtocol::Reject
        | OutboundProtocol::Snell(_)
        | OutboundProtocol::Shadowsocks(_)
        | OutboundProtocol::Group(_) => return None,
    })
}

/// The datagrams of `outbound`, which is no group; `running` is the same outbound on this core. `None` if it carries
/// none.
pub(crate) fn of(
    outbound: &model::Outbound,
    udp: &Udp,
    running: &Rc<Outbound>,
    pool: &Pool,
) -> Option<Rc<dyn PacketOutbound>> {
    match &outbound.protocol {
        OutboundProtocol::Shadowsocks(client) if running.datagram_plugin().is_some() => {
            let plugin = running.datagram_plugin().cloned();
            Some(Rc::new(ShadowsocksPackets::new(outbound, client, plugin, udp)))
        }
        OutboundProtocol::Snell(client) if carries_somehow(outbound) => {
            Some(Rc::new(SnellPackets::new(outbound, client, udp, (running, pool))))
        }
        OutboundProtocol::Direct
        | OutboundProtocol::Reject
        | OutboundProtocol::Shadowsocks(_)
        | OutboundProtocol::Snell(_)
        | OutboundProtocol::Group(_) => over_sockets(outbound, udp),
    }
}
