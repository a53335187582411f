//! The words by which mihomo's interface shows protocols and ports.

use adit_model::{CapturedBy, InboundProtocol, LocalProtocols, OutboundProtocol, Policy, ProxyKind, Refusal};

/// The type of an outbound of this name.
pub fn type_name(protocol: &OutboundProtocol, name: &str) -> String {
    let known = match protocol {
        OutboundProtocol::Direct if name == "COMPATIBLE" => "Compatible",
        OutboundProtocol::Direct => "Direct",
        OutboundProtocol::Reject => "Reject",
        OutboundProtocol::Snell(_) => "Snell",
        OutboundProtocol::Shadowsocks(_) => "Shadowsocks",
        OutboundProtocol::Ssr(_) => "ShadowsocksR",
        OutboundProtocol::Obfs(_) => "Obfs",
        OutboundProtocol::Group(_) => "LoadBalance",
        OutboundProtocol::Dns { .. } => "Dns",
        OutboundProtocol::Refuse(Refusal::Drop) => "RejectDrop",
        OutboundProtocol::Refuse(Refusal::Pass) => "Pass",
        OutboundProtocol::Refuse(Refusal::Dead { kind, .. }) => return capital(kind),
        OutboundProtocol::Proxy(client) => match client.kind {
            ProxyKind::Socks5 { .. } => "Socks5",
            ProxyKind::Http { .. } => "Http",
        },
        OutboundProtocol::Choice(choice) => match choice.policy {
            Policy::Select(_) => "Selector",
            Policy::UrlTest(_) => "URLTest",
            Policy::Fallback => "Fallback",
            Policy::LoadBalance(_) => "LoadBalance",
        },
    };
    known.to_owned()
}

/// The type of an entry that adit does not speak, as it is shown.
fn capital(kind: &str) -> String {
    match kind {
        "ss" => "Shadowsocks".to_owned(),
        "ssr" => "ShadowsocksR".to_owned(),
        "wireguard" => "WireGuard".to_owned(),
        "anytls" => "AnyTLS".to_owned(),
        kind => {
            let mut letters = kind.chars();
            letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
        }
    }
}

/// The key of a file whose port an inbound has, if there is one.
pub fn port_key(protocol: &InboundProtocol) -> Option<&'static str> {
    Some(match protocol {
        InboundProtocol::Local(local) => match local.accepts {
            LocalProtocols::Socks => "socks-port",
            LocalProtocols::Http => "port",
            LocalProtocols::Mixed => "mixed-port",
        },
        InboundProtocol::Captured(captured) => match captured.by {
            CapturedBy::Redirect => "redir-port",
            CapturedBy::Tproxy => "tproxy-port",
        },
        InboundProtocol::Snell(_)
        | InboundProtocol::Shadowsocks(_)
        | InboundProtocol::Ssr(_)
        | InboundProtocol::Obfs(_)
        | InboundProtocol::Tunnel { .. }
        | InboundProtocol::Tun(_)
        | InboundProtocol::Dns(_) => return None,
    })
}
