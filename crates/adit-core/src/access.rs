//! Access control: which way the rules give a target, and whose connections are taken.
//!
//! A client's rules send targets past the tunnel, a server's refuse targets and clients. A name that the rules leave to
//! its addresses is looked up once, and the connection goes to the addresses that were judged: a name that answers
//! differently the second time gets nowhere.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use adit_config::model::acl::{AccessList, Verdict};
use adit_config::model::{Config, Dial, Inbound, InboundProtocol, Outbound as Model, OutboundProtocol};
use adit_proto::wire::{Host, Target};

use crate::dispatch::Outbound;
use crate::metrics::OutboundMetrics;
use crate::outbound::{Connector, Direct, DirectPackets};
use crate::packet::{Decision, Known, PacketOutbound, Question, Routes, Tick, Via};

/// Name in logs of the way past a tunnel.
const DIRECT: &str = "direct";

/// The rules of one inbound, on one core.
pub(crate) struct Access {
    list: AccessList,
    role: Role,
}

enum Role {
    /// Targets may go past the tunnel.
    Client { direct: Rc<dyn Outbound>, packets: Rc<DirectPackets> },
    /// Targets and clients may be refused.
    Server,
}

/// The way past the tunnels, on one core.
pub(crate) struct DirectRoute {
    direct: Rc<dyn Outbound>,
    packets: Rc<DirectPackets>,
}

/// What the rules say of one target.
pub(crate) enum Fate {
    /// It is opened.
    Open,
    /// It leads to these addresses alone.
    At(Vec<IpAddr>),
    /// A rule refuses the target.
    Blocked,
}

impl DirectRoute {
    /// The way past the tunnels of `config`, with the socket options of the first; `None` without rules.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        if config.acl.is_none() && config.acl_of.is_empty() {
            return None;
        }
        let is_leaf = |outbound: &&Model| !matches!(outbound.protocol, OutboundProtocol::Group(_));
        let dial = config.outbounds.iter().find(is_leaf).map(|outbound| outbound.dial.clone());
        let dial = Dial { fast_open: false, unix: None, ..dial.unwrap_or_default() };
        let model = Model { name: DIRECT.into(), dial, protocol: OutboundProtocol::Direct };
        let direct = Direct::new(Connector::new(&model, Arc::new(OutboundMetrics::default()), (None, None)));
        Some(Self { direct: Rc::new(direct), packets: Rc::new(DirectPackets::new(&model, &config.udp)) })
    }
}

impl Access {
    /// The rules of `config` for an inbound, if there are any.
    pub(crate) fn new(config: &Config, inbound: &Inbound, past: Option<&DirectRoute>) -> Option<Rc<Self>> {
        let list = config.access(inbound)?.clone();
        let role = match &inbound.protocol {
            InboundProtocol::Local(_) | InboundProtocol::Tunnel { .. } => {
                let DirectRoute { direct, packets } = past?;
                Role::Client { direct: direct.clone(), packets: packets.clone() }
            }
            InboundProtocol::Snell(_) | InboundProtocol::Shadowsocks(_) | InboundProtocol::Ssr(_) => {
                Role::Server
            }
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
    pub(crate) async fn way(&self, through: &Rc<dyn Outbound>, target: &Target) -> (Rc<dyn Outbound>, Fate) {
        let outbound = through.clone();
        match &self.role {
            Role::Client { direct, .. } => {
                let verdict = match (self.list.proxies(&target.host), &target.host) {
                    (Verdict::Resolve, Host::Name(name)) => {
                        let found = direct.lookup(name).await;
                        // What has no address here may have one at the other end.
                        found
                            .map_or_else(|| self.list.proxies_unknown(), |ips| self.list.proxies_any(ips))
                            .into()
                    }
                    (verdict, _) => verdict,
                };
                let is_past = verdict == Verdict::No;
                (if is_past { direct.clone() } else { outbound }, Fate::Open)
            }
            Role::Server => {
                let fate = match (self.list.reaches(&target.host), &target.host) {
                    (Verdict::No, _) => Fate::Blocked,
                    (Verdict::Resolve, Host::Name(name)) => match through.lookup(name).await {
                        Some(ips) if self.list.reaches_any(ips.iter().copied()) => Fate::At(ips),
                        Some(_) => Fate::Blocked,
                        // The error is to be reported as always.
                        None => Fate::Open,
                    },
                    (Verdict::Yes | Verdict::Resolve, _) => Fate::Open,
                };
                (outbound, fate)
            }
        }
    }
}

/// The number of the direct outbound, which a client's rules may choose.
const DIRECT_VIA: Via = Via(1);

/// Which way an inbound's datagrams take: `outbound`, unless its access list says otherwise.
pub(crate) struct PacketRoutes {
    outbound: Rc<dyn PacketOutbound>,
    access: Option<Rc<Access>>,
}

impl PacketRoutes {
    /// The routes of an inbound with this outbound and access list.
    pub(crate) fn new(outbound: Rc<dyn PacketOutbound>, access: Option<Rc<Access>>) -> Self {
        Self { outbound, access }
    }
}

impl Routes for PacketRoutes {
    fn is_fixed(&self) -> bool {
        self.access.is_none()
    }

    fn accepts(&self, source: IpAddr) -> bool {
        self.access.as_ref().is_none_or(|access| access.accepts(source))
    }

    fn decide(&self, question: &Question<'_>, waker: &Waker, now: Tick) -> Decision {
        let through = Decision::Through(Via::DEFAULT);
        let Some(access) = &self.access else { return through };
        let (list, target) = (&access.list, question.target);
        match &access.role {
            Role::Client { packets, .. } => match list.proxies(&target.host) {
                Verdict::Yes => through,
                Verdict::No => Decision::Through(DIRECT_VIA),
                Verdict::Resolve => match packets.find(target, None, Some(waker), now) {
                    Known::Addr(addr) if !list.proxies_any([addr.ip()]) => {
                        Decision::At(DIRECT_VIA, addr.ip())
                    }
                    // A name that has no address here may have one at the other end.
                    Known::Addr(_) | Known::Nothing => through,
                    Known::Pending => Decision::Pending,
                },
            },
            Role::Server => match list.reaches(&target.host) {
                Verdict::Yes => through,
                Verdict::No => Decision::Reject,
                Verdict::Resolve => match self.outbound.address_of(target, Some(waker), now) {
                    // Another server looks the name up, and judges its addresses by its own rules.
                    None => through,
                    Some(Known::Addr(addr)) if list.reaches_any([addr.ip()]) => {
                        Decision::At(Via::DEFAULT, addr.ip())
                    }
                    Some(Known::Addr(_)) => Decision::Reject,
                    Some(Known::Nothing) => Decision::Unresolved,
                    Some(Known::Pending) => Decision::Pending,
                },
            },
        }
    }

    fn outbound(&self, via: Via) -> Option<Rc<dyn PacketOutbound>> {
        if via == Via::DEFAULT {
            return Some(self.outbound.clone());
        }
        match &self.access.as_ref()?.role {
            Role::Client { packets, .. } => Some(packets.clone()),
            Role::Server => None,
        }
    }
}
