//! Whether a configuration is a secret.

use super::{
    Config, Inbound, InboundProtocol, ObfsClientLayer, ObfsServerLayer, Outbound, OutboundProtocol,
    PanelToken,
};

impl Config {
    /// Whether it holds keys, passwords or tokens, so that its file is for nobody else.
    pub fn holds_keys(&self) -> bool {
        self.inbounds.iter().any(inbound)
            || self.outbounds.iter().any(outbound)
            || self.manage.is_some()
            || self.admin_http.as_ref().is_some_and(|admin| admin.token.is_some())
            || self.controller.as_ref().is_some_and(|controller| controller.secret.is_some())
            || self.panels.iter().any(|panel| matches!(panel.token, PanelToken::Text(_)))
            || self.store.is_some()
            || self.outbound_lists.iter().any(|list| list.download.is_some() || !list.links.is_empty())
    }
}

fn inbound(inbound: &Inbound) -> bool {
    let is_keyed = match &inbound.protocol {
        InboundProtocol::Snell(_) | InboundProtocol::Shadowsocks(_) | InboundProtocol::Ssr(_) => true,
        InboundProtocol::Local(local) => !local.users.is_empty(),
        InboundProtocol::Obfs(obfs) => matches!(obfs.layer, ObfsServerLayer::GoQuiet(_)),
        InboundProtocol::Captured(_)
        | InboundProtocol::Tunnel { .. }
        | InboundProtocol::Tun(_)
        | InboundProtocol::Dns(_) => false,
    };
    is_keyed || inbound.socket.carrier.as_ref().is_some_and(|carrier| !carrier.key.expose().is_empty())
}

fn outbound(outbound: &Outbound) -> bool {
    let is_keyed = match &outbound.protocol {
        OutboundProtocol::Snell(_) | OutboundProtocol::Shadowsocks(_) | OutboundProtocol::Ssr(_) => true,
        OutboundProtocol::Proxy(proxy) => proxy.credentials.is_some(),
        OutboundProtocol::Obfs(obfs) => !matches!(obfs.layer(), ObfsClientLayer::Simple(_)),
        OutboundProtocol::Direct
        | OutboundProtocol::Reject
        | OutboundProtocol::Group(_)
        | OutboundProtocol::Choice(_)
        | OutboundProtocol::Dns { .. }
        | OutboundProtocol::Refuse(_) => false,
    };
    is_keyed || outbound.dial.carrier.as_ref().is_some_and(|carrier| !carrier.kcp.key.expose().is_empty())
}
