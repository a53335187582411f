//! The control interface that dashboards of the Clash family speak.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use super::Secret;
use crate::map::Map;

/// The control interface for dashboards: where it listens, and for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controller {
    /// Address of the HTTP interface: of loopback unless there is a secret.
    pub listen: Option<SocketAddr>,
    /// Unix socket with the same interface and without a secret; its mode is 0600.
    pub unix: Option<PathBuf>,
    /// The secret that each client must show; without one only pages of this machine are answered.
    pub secret: Option<Secret>,
    /// The folder of a dashboard, served under `/ui/`.
    pub ui: Option<PathBuf>,
    /// Origins of other pages that may use the interface with the secret; empty for all.
    pub origins: Vec<Box<str>>,
    /// Whether pages of public networks may reach it in a private one.
    pub private_network: bool,
}

impl Controller {
    /// The address that is listened on: without a secret one of this machine. The second value tells whether that is
    /// another one.
    pub fn narrowed(listen: SocketAddr, has_secret: bool) -> (SocketAddr, bool) {
        if has_secret || listen.ip().to_canonical().is_loopback() {
            return (listen, false);
        }
        (SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), listen.port()), true)
    }
}

/// Facts about a file that its engine has no use for, as control programs show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facade {
    /// `rule`, `global` or `direct`.
    pub mode: &'static str,
    /// Ports of the five kinds, by their keys; those that are off are missing.
    pub ports: Map<&'static str, u16>,
    /// Whether other machines may use the ports.
    pub allow_lan: bool,
    /// The address of the ports, if other machines may use them.
    pub bind_address: Box<str>,
    /// Whether IPv6 is used.
    pub ipv6: bool,
    /// Whether the second request of a delay test counts.
    pub unified_delay: bool,
    /// The name that downloads give.
    pub agent: Box<str>,
    /// Names of the users of the ports.
    pub users: Vec<Box<str>>,
    /// Networks whose clients may use the ports, those whose clients may not, and those whose clients need no password.
    pub clients: [Vec<Box<str>>; 3],
    /// The addresses of databases as they are written, by `geoip`, `mmdb`, `asn` and `geosite`.
    pub geo_urls: Map<Box<str>, Box<str>>,
    /// Whether databases are fetched by time, and the hours between two fetches.
    pub geo_updates: (bool, u64),
    /// Interface and mark of outgoing sockets.
    pub egress: (Box<str>, u32),
    /// The rules, as they are written.
    pub rules: Vec<RuleLine>,
    /// The line that each rule of the configuration stands for; `None` for one that stands for none.
    pub labels: Vec<Option<Arc<RuleLine>>>,
    /// Lines of lists that stand in the file, by the name of their provider.
    pub payloads: Map<Box<str>, Vec<Box<str>>>,
}

/// A line of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleLine {
    /// Type.
    pub kind: Box<str>,
    /// Payload.
    pub payload: Box<str>,
    /// Target.
    pub target: Box<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_secret_it_stays_on_this_machine() {
        for (listen, has_secret, want) in [
            ("127.0.0.1:1", false, ("127.0.0.1:1", false)),
            ("[::1]:1", false, ("[::1]:1", false)),
            ("[::ffff:127.0.0.1]:1", false, ("[::ffff:127.0.0.1]:1", false)),
            ("0.0.0.0:9", false, ("127.0.0.1:9", true)),
            ("[::]:9", false, ("127.0.0.1:9", true)),
            ("192.0.2.1:9", false, ("127.0.0.1:9", true)),
            ("0.0.0.0:9", true, ("0.0.0.0:9", false)),
        ] {
            let (found, is_other) = Controller::narrowed(listen.parse().unwrap(), has_secret);
            assert_eq!((found.to_string().as_str(), is_other), want);
        }
    }
}
