//! Which outbounds carry datagrams, by their configuration.

use adit_config::model::{self, Config, OutboundProtocol};

/// Whether a member of a group like `outbound` carries datagrams: over sockets, for streams are not compared.
pub(crate) fn carries(outbound: &model::Outbound) -> bool {
    match &outbound.protocol {
        OutboundProtocol::Direct => true,
        OutboundProtocol::Shadowsocks(client) => client.transports.udp(),
        OutboundProtocol::Ssr(client) => client.transports.udp(),
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

/// Whether the outbound of this name carries datagrams, or may come to.
pub(crate) fn carries_any(config: &Config, name: &str) -> bool {
    let Some(outbound) = config.outbound(name) else { return false };
    let OutboundProtocol::Group(group) = &outbound.protocol else { return carries_somehow(outbound) };
    let mut members = group.members.iter().filter(|member| member.udp_weight > 0);
    group.grows || members.any(|member| config.outbound(&member.outbound).is_some_and(carries))
}
