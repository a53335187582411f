//! The present state, summed over all cores.

mod group;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use adit_config::model::{Config, InboundProtocol, LocalProtocols, OutboundProtocol, Tag};
use serde::{Deserialize, Serialize};

use crate::carrier::CarrierMetrics;
use crate::carrier::kcp::{KcpStatus, MemoryStatus};
use crate::metrics::{CoreMetrics, Counter};
use crate::outbound::GroupShared;
use crate::user::{Account, Accounts};

pub use group::{ChoiceStatus, GroupStatus, HealthStatus, MemberStatus};

/// What `adit status` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Process id.
    pub pid: u32,
    /// Event loops.
    pub cores: usize,
    /// Every inbound.
    pub inbounds: Vec<InboundStatus>,
    /// Every outbound.
    pub outbounds: Vec<OutboundStatus>,
    /// Every group among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupStatus>,
    /// What the sessions of carriers hold, where there are carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier_memory: Option<MemoryStatus>,
}

/// One inbound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundStatus {
    /// Its name.
    pub name: String,
    /// What it speaks.
    pub protocol: String,
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// The name of the outbound that its connections take.
    pub outbound: String,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections that are open.
    pub open: i64,
    /// Requests served since the start.
    pub requests: u64,
    /// Payload bytes from clients.
    pub up_bytes: u64,
    /// Payload bytes to clients.
    pub down_bytes: u64,
    /// Connections refused since the start, by cause.
    pub refused: BTreeMap<String, u64>,
    /// Datagrams, once there were any.
    #[serde(default)]
    pub datagrams: Option<DatagramStatus>,
    /// Its users, where a key tells them apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserStatus>,
    /// What carries it, where that is not TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<KcpStatus>,
}

/// The datagrams of one inbound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramStatus {
    /// Flows that live.
    pub flows: i64,
    /// Flows that have begun since the start.
    pub begun: u64,
    /// Flows that had to make room for others.
    pub evicted: u64,
    /// Flows that ended because their only target is not there.
    pub unreachable: u64,
    /// Datagrams from clients that were passed on.
    pub up: u64,
    /// Datagrams to clients that were passed on.
    pub down: u64,
    /// Datagrams that went no further, by cause.
    pub dropped: BTreeMap<String, u64>,
}

/// One user of an inbound. What it has used outlives the process where there is a state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user's name.
    pub name: String,
    /// Requests served.
    pub requests: u64,
    /// Payload bytes from the user.
    pub up_bytes: u64,
    /// Payload bytes to the user.
    pub down_bytes: u64,
    /// Connections that are open.
    #[serde(default)]
    pub open: u32,
    /// Bytes of the present period, both ways together.
    #[serde(default)]
    pub used_bytes: u64,
    /// How many those may be, where there is a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Why the user is cut off, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited: Option<String>,
}

/// One outbound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboundStatus {
    /// Its name.
    pub name: String,
    /// What it speaks.
    pub protocol: String,
    /// Connections made since the start.
    pub dialled: u64,
    /// Connections that could not be made.
    pub failed: u64,
    /// Requests that went over a kept connection.
    pub reused: u64,
    /// Kept connections that wait for a request.
    pub idle: i64,
    /// Connections that the server closed before any reply.
    pub early_closes: u64,
    /// What carries it, where that is not TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<KcpStatus>,
}

/// What does not change while a configuration runs, with the counters of all cores.
#[derive(Debug)]
pub(crate) struct Directory {
    inbounds: Vec<(Tag, &'static str, Vec<SocketAddr>, Tag)>,
    outbounds: Vec<(Tag, &'static str)>,
    groups: Vec<Arc<GroupShared>>,
    users: Vec<Accounts>,
    cores: Vec<Arc<CoreMetrics>>,
    carriers: CarrierMetrics,
    since: Instant,
}

impl Directory {
    pub(crate) fn new(
        config: &Config,
        addresses: Vec<Vec<SocketAddr>>,
        groups: Vec<Arc<GroupShared>>,
        users: Vec<Accounts>,
        (cores, carriers): (Vec<Arc<CoreMetrics>>, CarrierMetrics),
        since: Instant,
    ) -> Self {
        let inbounds = config.inbounds.iter().zip(addresses);
        Self {
            inbounds: inbounds
                .map(|(inbound, listen)| {
                    (inbound.name.clone(), inbound_name(&inbound.protocol), listen, inbound.outbound.clone())
                })
                .collect(),
            outbounds: config
                .outbounds
                .iter()
                .map(|o| (o.name.clone(), outbound_name(&o.protocol)))
                .collect(),
            groups,
            users,
            cores,
            carriers,
            since,
        }
    }

    pub(crate) fn addresses(&self) -> Vec<(Tag, SocketAddr)> {
        let all = self.inbounds.iter();
        all.flat_map(|(name, _, listen, _)| listen.iter().map(|addr| (name.clone(), *addr))).collect()
    }

    /// Port and payload bytes, both ways together, of every inbound.
    pub(crate) fn bytes(&self) -> Vec<(u16, u64)> {
        let bytes = |(index, (_, _, listen, _)): (usize, &(_, _, Vec<SocketAddr>, _))| {
            let cores = self.cores.iter().map(|core| &core.inbounds[index].traffic);
            let sum = cores.map(|traffic| traffic.up.value() + traffic.down.value()).sum();
            Some((listen.first()?.port(), sum))
        };
        self.inbounds.iter().enumerate().filter_map(bytes).collect()
    }

    /// The group of this name.
    pub(crate) fn group(&self, name: &str) -> Option<&Arc<GroupShared>> {
        self.groups.iter().find(|group| **group.name() == *name)
    }

    pub(crate) fn status(&self, now: Instant) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: now.saturating_duration_since(self.since).as_secs(),
            pid: std::process::id(),
            cores: self.cores.len(),
            inbounds: (0..self.inbounds.len()).map(|index| self.inbound(index)).collect(),
            outbounds: (0..self.outbounds.len()).map(|index| self.outbound(index)).collect(),
            groups: self.groups.iter().map(|group| GroupStatus::of(group)).collect(),
            carrier_memory: self.carriers.memory.as_ref().map(|memory| memory.status()),
        }
    }

    fn inbound(&self, index: usize) -> InboundStatus {
        let (name, protocol, listen, outbound) = &self.inbounds[index];
        let cores = || self.cores.iter().map(move |core| &core.inbounds[index]);
        let mut refused = BTreeMap::new();
        for core in cores() {
            for (cause, count) in core.refused.causes() {
                *refused.entry(cause.to_owned()).or_default() += count;
            }
        }
        refused.retain(|_, count| *count > 0);
        InboundStatus {
            name: name.to_string(),
            protocol: (*protocol).into(),
            listen: listen.clone(),
            outbound: outbound.to_string(),
            accepted: sum(cores().map(|core| &core.accepted)),
            open: cores().map(|core| core.open.value()).sum(),
            requests: sum(cores().map(|core| &core.requests)),
            up_bytes: sum(cores().map(|core| &core.traffic.up)),
            down_bytes: sum(cores().map(|core| &core.traffic.down)),
            refused,
            datagrams: self.datagrams(index),
            users: self.users[index].iter().map(|account| user(account)).collect(),
            carrier: self.carriers.inbounds[index].as_ref().map(|metrics| metrics.status()),
        }
    }

    fn datagrams(&self, index: usize) -> Option<DatagramStatus> {
        let mut all = DatagramStatus::default();
        for core in self.cores.iter().map(|core| &core.inbounds[index].datagrams) {
            all.flows += core.flows.value();
            all.begun += core.begun.value();
            all.evicted += core.evicted.value();
            all.unreachable += core.unreachable.value();
            all.up += core.up.value();
            all.down += core.down.value();
            for (cause, count) in core.dropped.causes() {
                if count > 0 {
                    *all.dropped.entry(cause.to_owned()).or_default() += count;
                }
            }
        }
        (all != DatagramStatus::default()).then_some(all)
    }

    fn outbound(&self, index: usize) -> OutboundStatus {
        let (name, protocol) = &self.outbounds[index];
        let cores = || self.cores.iter().map(move |core| &core.outbounds[index]);
        OutboundStatus {
            name: name.to_string(),
            protocol: (*protocol).into(),
            dialled: sum(cores().map(|core| &core.dialled)),
            failed: sum(cores().map(|core| &core.failed)),
            reused: sum(cores().map(|core| &core.reused)),
            idle: cores().map(|core| core.idle.value()).sum(),
            early_closes: sum(cores().map(|core| &core.early_closes)),
            carrier: self.carriers.outbounds[index].as_ref().map(|metrics| metrics.status()),
        }
    }
}

fn user(user: &Account) -> UserStatus {
    UserStatus {
        name: user.name.to_string(),
        requests: user.requests.value(),
        up_bytes: user.traffic.up.value(),
        down_bytes: user.traffic.down.value(),
        open: user.open(),
        used_bytes: user.used(),
        quota_bytes: user.limits.quota,
        limited: user.over().map(|limit| limit.to_string()),
    }
}

fn sum<'a>(counters: impl Iterator<Item = &'a Counter>) -> u64 {
    counters.map(Counter::value).sum()
}

fn inbound_name(protocol: &InboundProtocol) -> &'static str {
    match protocol {
        InboundProtocol::Local(local) => match local.accepts {
            LocalProtocols::Socks => "socks",
            LocalProtocols::Http => "http",
            LocalProtocols::Mixed => "mixed",
        },
        InboundProtocol::Snell(_) => "snell",
        InboundProtocol::Shadowsocks(_) => "shadowsocks",
        InboundProtocol::Ssr(_) => "ssr",
        InboundProtocol::Tunnel { .. } => "tunnel",
    }
}

fn outbound_name(protocol: &OutboundProtocol) -> &'static str {
    match protocol {
        OutboundProtocol::Direct => "direct",
        OutboundProtocol::Reject => "reject",
        OutboundProtocol::Snell(_) => "snell",
        OutboundProtocol::Shadowsocks(_) => "shadowsocks",
        OutboundProtocol::Ssr(_) => "ssr",
        OutboundProtocol::Group(_) => "group",
    }
}
