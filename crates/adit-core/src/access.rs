//! Access control: which way the rules give a target, and whose connections are taken.
//!
//! A client's rules send targets past the tunnel, a server's refuse targets and clients. A name that the rules leave to
//! its addresses is looked up once, and the connection goes to the addresses that were judged: a name that answers
//! differently the second time gets nowhere.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_config::model::acl::{AccessList, Verdict};
use adit_config::model::{Config, Dial, Inbound, InboundProtocol, Outbound as Model, OutboundProtocol};
use adit_proto::wire::{Host, Target};

use crate::datagram::Far;
use crate::dns::Dns;
use crate::metrics::OutboundMetrics;
use crate::outbound::{self, OpenError, Opened, Outbound};

/// Name in logs of the way past a tunnel.
const DIRECT: &str = "direct";

/// The rules of one inbound, on one core.
pub(crate) struct Access {
    list: AccessList,
    role: Role,
}

enum Role {
    /// Targets may go past the tunnel.
    Client { direct: Rc<Outbound>, far: Rc<Far> },
    /// Targets and clients may be refused.
    Server,
}

/// The way past the tunnels, on one core.
pub(crate) struct Past {
    direct: Rc<Outbound>,
    far: Rc<Far>,
}

/// The way to one target.
pub(crate) struct Route {
    /// The way out.
    pub(crate) outbound: Rc<Outbound>,
    fate: Fate,
}

enum Fate {
    /// It is opened.
    Open,
    /// It leads to these addresses alone.
    At(Vec<IpAddr>),
    /// A rule refuses the target.
    Blocked,
}

/// Where a client's datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Through the tunnel.
    Through,
    /// Past it.
    Past,
}

impl Past {
    /// The way past the tunnels of `config`, with the socket options of the first; `None` without rules.
    pub(crate) fn new(config: &Config, dns: &Rc<Dns>) -> Option<Self> {
        if config.acl.is_none() && config.acl_of.is_empty() {
            return None;
        }
        let is_leaf = |outbound: &&Model| !matches!(outbound.protocol, OutboundProtocol::Group(_));
        let dial = config.outbounds.iter().find(is_leaf).map(|outbound| outbound.dial.clone());
        let dial = Dial { fast_open: false, unix: None, ..dial.unwrap_or_default() };
        let model = Model { name: DIRECT.into(), dial, protocol: OutboundProtocol::Direct };
        let metrics = Arc::new(OutboundMetrics::default());
        let direct = Outbound::new(&model, &outbound::Shared::None, metrics, dns);
        Some(Self { direct: Rc::new(direct), far: Rc::new(Far::new(&model, &config.udp, dns)?) })
    }
}

impl Access {
    /// The rules of `config` for an inbound, if there are any.
    pub(crate) fn new(config: &Config, inbound: &Inbound, past: Option<&Past>) -> Option<Rc<Self>> {
        let list = config.access(inbound)?.clone();
        let role = match &inbound.protocol {
            InboundProtocol::Local(_) | InboundProtocol::Tunnel { .. } => {
                let Past { direct, far } = past?;
                Role::Client { direct: direct.clone(), far: far.clone() }
            }
            InboundProtocol::Snell(_) | InboundProtocol::Shadowsocks(_) => Role::Server,
        };
        Some(Rc::new(Self { list, role }))
    }

    /// Whether connections and datagrams from this address are taken.
    pub(crate) fn accepts(&self, client: IpAddr) -> bool {
        match self.role {
            Role::Client { .. } => true,
            Role::Server => self.list.accepts(client),
        }
    }

    /// The way to `target`, where `through` leads without rules.
    pub(crate) async fn way(&self, through: &Rc<Outbound>, target: &Target) -> Route {
        let outbound = through.clone();
        match &self.role {
            Role::Client { direct, .. } => {
                let verdict = match (self.list.proxies(&target.host), &target.host) {
                    (Verdict::Resolve, Host::Name(name)) => {
                        let found = direct.lookup(name).await;
                        // What has no address here may have one at the other end.
                        found
                            .map_or_else(|_| self.list.proxies_unknown(), |ips| self.list.proxies_any(ips))
                            .into()
                    }
                    (verdict, _) => verdict,
                };
                let is_past = verdict == Verdict::No;
                Route { outbound: if is_past { direct.clone() } else { outbound }, fate: Fate::Open }
            }
            Role::Server => {
                let fate = match (self.list.reaches(&target.host), &target.host) {
                    (Verdict::No, _) => Fate::Blocked,
                    (Verdict::Resolve, Host::Name(name)) => match through.lookup(name).await {
                        Ok(ips) if self.list.reaches_any(ips.iter().copied()) => Fate::At(ips),
                        Ok(_) => Fate::Blocked,
                        // The error is to be reported as always.
                        Err(_) => Fate::Open,
                    },
                    (Verdict::Yes | Verdict::Resolve, _) => Fate::Open,
                };
                Route { outbound, fate }
            }
        }
    }

    /// Where a client's datagrams for `target` go; `None` while that depends on addresses that `ip` does not give.
    pub(crate) fn side(&self, target: &Target, ip: impl FnOnce(&Far) -> Option<IpAddr>) -> Option<Side> {
        let Role::Client { far, .. } = &self.role else { return Some(Side::Through) };
        let through = match self.list.proxies(&target.host) {
            Verdict::Yes => true,
            Verdict::No => false,
            Verdict::Resolve => self.list.proxies_any([ip(far)?]),
        };
        Some(if through { Side::Through } else { Side::Past })
    }

    /// The way past the tunnel for datagrams.
    pub(crate) fn past(&self) -> Option<&Rc<Far>> {
        match &self.role {
            Role::Client { far, .. } => Some(far),
            Role::Server => None,
        }
    }

    /// Whether a server passes a datagram for `target` on to another server, which looks names up itself.
    pub(crate) fn may_reach(&self, target: &Target) -> bool {
        match (&self.role, self.list.reaches(&target.host)) {
            (Role::Client { .. }, _) | (Role::Server, Verdict::Yes | Verdict::Resolve) => true,
            (Role::Server, Verdict::No) => false,
        }
    }

    /// Whether a server sends a datagram for `target` to this address.
    pub(crate) fn reaches(&self, target: &Target, ip: IpAddr) -> bool {
        match (&self.role, self.list.reaches(&target.host)) {
            (Role::Client { .. }, _) | (Role::Server, Verdict::Yes) => true,
            (Role::Server, Verdict::No) => false,
            (Role::Server, Verdict::Resolve) => self.list.reaches_any([ip]),
        }
    }
}

impl Route {
    /// A way without rules.
    pub(crate) fn open_to_all(outbound: Rc<Outbound>) -> Self {
        Self { outbound, fate: Fate::Open }
    }

    /// No way.
    pub(crate) fn blocked(outbound: Rc<Outbound>) -> Self {
        Self { outbound, fate: Fate::Blocked }
    }

    /// A connection towards `target`.
    pub(crate) async fn open(&self, target: &Target) -> Result<Opened, OpenError> {
        match &self.fate {
            Fate::Open => self.outbound.open(target, false).await,
            Fate::At(ips) => self.outbound.open_at(ips, target).await,
            Fate::Blocked => Err(OpenError::Blocked),
        }
    }
}
