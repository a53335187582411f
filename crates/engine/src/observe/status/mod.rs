//! The present state, summed over all cores.

mod group;
mod live;
mod process;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use adit_model::Tag;
use adit_model::map::Map;
use adit_net::rt::{OrderSender, Stop};
use serde::{Deserialize, Serialize};

use crate::admission::{Budget, BudgetStatus};
use crate::carrier::{self, MemoryStatus};
use crate::connections::listing::{Ask, ConnectionStatus};
use crate::counters::{Counter, Distribution, InboundMetrics, OutboundMetrics};
use crate::errors::{ConfigPart, Faults, LastError};
use crate::groups::best::GroupShared;
use crate::observe::fleet::{FleetStatus, FleetView};
use crate::observe::loop_lag::LoopLag;
use crate::replay::ReplayFilter;
use crate::users::{Account, AccountLedger, Accounts, KnownSources, SearchStatus, StateFileStatus};

pub use group::{ChoiceStatus, GroupStatus, HealthStatus, MemberStatus};
pub use live::{LagStatus, ProcessHealth};
pub(crate) use process::LogView;
pub use process::ProcessStatus;

/// The one snapshot of what runs. `adit status`, `adit top`, `adit conns` and `/metrics` are views of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Milliseconds since the start, for rates between two snapshots.
    #[serde(default)]
    pub uptime_ms: u64,
    /// Seconds from 1970 to the start.
    #[serde(default)]
    pub started_unix_s: u64,
    /// Whether it serves, and why not.
    #[serde(default)]
    pub health: ProcessHealth,
    /// The process as the machine sees it.
    #[serde(default)]
    pub process: ProcessStatus,
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
    /// The budget of the process, and the part of it in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetStatus>,
    /// Memory held by the sessions of carriers, if there are carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier_memory: Option<MemoryStatus>,
    /// Lateness of each event loop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lags: Vec<LagStatus>,
    /// The state file.
    #[serde(default)]
    pub state_file: StateFileStatus,
    /// Panels and the store, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
    /// Open connections, by number, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionStatus>,
    /// Open connections that were asked for and did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_left_out: u64,
}

/// Whether a number is 0.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One inbound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundStatus {
    /// Its name.
    pub name: String,
    /// Name of its protocol.
    pub protocol: String,
    /// Addresses that it listens on.
    pub listen: Vec<SocketAddr>,
    /// The name of the outbound that its connections take.
    pub outbound: String,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections that are open.
    pub open: i64,
    /// Requests served since the start.
    pub requests: u64,
    /// Requests by their result, once they have one.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub results: Map<String, u64>,
    /// Connections by their time from the request to the end.
    #[serde(default, skip_serializing_if = "Distribution::is_empty")]
    pub connection_times: Distribution,
    /// Requests by the time to the first byte of the answer.
    #[serde(default, skip_serializing_if = "Distribution::is_empty")]
    pub first_byte_times: Distribution,
    /// Payload bytes from clients.
    pub up_bytes: u64,
    /// Payload bytes to clients.
    pub down_bytes: u64,
    /// Of the bytes from clients, those in datagrams.
    #[serde(default)]
    pub up_datagram_bytes: u64,
    /// Of the bytes to clients, those in datagrams.
    #[serde(default)]
    pub down_datagram_bytes: u64,
    /// Connections refused since the start, by cause.
    pub refused: Map<String, u64>,
    /// Datagrams, once there were any.
    #[serde(default)]
    pub datagrams: Option<DatagramStatus>,
    /// Searches for users by trial, once there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searches: Option<SearchStatus>,
    /// Its users, where a key tells them apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserStatus>,
    /// Counters of its carrier, if it uses one instead of TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<carrier::Status>,
    /// Its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
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
    pub dropped: Map<String, u64>,
}

/// One user of an inbound. The counters outlive the process if there is a state file.
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
    /// Whether bytes have moved in the last minute.
    #[serde(default)]
    pub is_online: bool,
    /// Bytes of the present period, both ways together.
    #[serde(default)]
    pub used_bytes: u64,
    /// The quota in bytes, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Why the user is cut off, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited: Option<String>,
    /// The last limit that was in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

/// One outbound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboundStatus {
    /// Its name.
    pub name: String,
    /// Name of its protocol.
    pub protocol: String,
    /// Connections made since the start.
    pub dialled: u64,
    /// Connections that could not be made.
    pub failed: u64,
    /// Connections made, by the time that it took.
    #[serde(default, skip_serializing_if = "Distribution::is_empty")]
    pub dial_times: Distribution,
    /// Connections that could not be made, by the time that it took.
    #[serde(default, skip_serializing_if = "Distribution::is_empty")]
    pub failed_dial_times: Distribution,
    /// Requests that went over a kept connection.
    pub reused: u64,
    /// Kept connections that wait for a request.
    pub idle: i64,
    /// Connections that the server closed before any reply.
    pub early_closes: u64,
    /// Counters of its carrier, if it uses one instead of TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<carrier::Status>,
    /// The last error of its server, or of all members of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

/// All counters, by name: one view of the running configuration, replaced as a whole when a configuration is applied.
#[derive(Debug)]
pub(crate) struct CounterDirectory {
    view: Mutex<Arc<View>>,
    budget: Arc<Budget>,
    faults: Arc<Faults>,
    since: Instant,
    since_unix_s: u64,
    /// The way to ask each core.
    asks: Vec<OrderSender<Ask>>,
    pulses: Arc<[LoopLag]>,
    fleet: FleetView,
    log: LogView,
    is_open: AtomicBool,
    stop: Stop,
}

/// The parts that [`CounterDirectory::new`] takes.
pub(crate) struct Cores {
    /// The way to ask each core.
    pub(crate) asks: Vec<OrderSender<Ask>>,
    /// The beat of each core.
    pub(crate) pulses: Arc<[LoopLag]>,
    /// Tells when they drain.
    pub(crate) stop: Stop,
}

/// All that can be looked up at one time, in the order of the configuration.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Every inbound.
    pub(crate) inbounds: Vec<InboundView>,
    /// Every outbound.
    pub(crate) outbounds: Vec<OutboundView>,
    /// Every group among them.
    pub(crate) groups: Vec<Arc<GroupShared>>,
    /// The memory budget of all sessions of carriers, if there are any.
    pub(crate) memory: Option<Arc<carrier::Memory>>,
    /// The accounts.
    pub(crate) ledger: Option<Arc<AccountLedger>>,
    /// The salts that servers have seen, if there are servers.
    pub(crate) salts: Option<Arc<ReplayFilter>>,
}

/// One inbound, with its counters of every core.
#[derive(Debug)]
pub(crate) struct InboundView {
    pub(crate) name: Tag,
    pub(crate) protocol: &'static str,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) outbound: Tag,
    pub(crate) metrics: Arc<[Arc<InboundMetrics>]>,
    pub(crate) users: Accounts,
    /// Of users that are found by trial.
    pub(crate) sources: Option<Arc<KnownSources>>,
    pub(crate) carrier: Option<Arc<carrier::Metrics>>,
}

/// One outbound, with its counters of every core.
#[derive(Debug)]
pub(crate) struct OutboundView {
    pub(crate) name: Tag,
    pub(crate) protocol: &'static str,
    /// The server's address, if there is one.
    pub(crate) server: Option<String>,
    pub(crate) metrics: Arc<[Arc<OutboundMetrics>]>,
    pub(crate) carrier: Option<Arc<carrier::Metrics>>,
}

impl CounterDirectory {
    /// Of nothing yet, on these cores.
    pub(crate) fn new(
        cores: Cores,
        budget: Arc<Budget>,
        faults: Arc<Faults>,
        since: Instant,
        since_unix_s: u64,
    ) -> Self {
        let Cores { asks, pulses, stop } = cores;
        let (view, fleet, log, is_open) = Default::default();
        Self { view, budget, faults, since, since_unix_s, asks, pulses, fleet, log, is_open, stop }
    }

    /// Replaces the view by that of the configuration that runs from now on.
    pub(crate) fn set(&self, view: View) {
        let inbounds = view.inbounds.iter().map(|inbound| (ConfigPart::Inbound(inbound.name.clone()), None));
        let outbounds = view.outbounds.iter().map(|outbound| {
            let server = outbound.server.as_ref().map(|server| format!("{} {server}", outbound.protocol));
            (ConfigPart::Outbound(outbound.name.clone()), server)
        });
        self.faults.set_parts(inbounds.chain(outbounds).collect());
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    pub(crate) fn fleet(&self) -> &FleetView {
        &self.fleet
    }

    pub(crate) fn log(&self) -> &LogView {
        &self.log
    }

    fn process(&self, view: &View) -> ProcessStatus {
        let users = view.inbounds.iter().flat_map(|inbound| &*inbound.users);
        ProcessStatus {
            users_bytes: users.map(|account| account.memory() as u64).sum(),
            salts_bytes: view.salts.as_ref().map_or(0, |salts| salts.memory() as u64),
            drain_remaining: self.stop.is_draining().then(|| u64::try_from(self.open()).unwrap_or_default()),
            log_errors: self.log.errors(),
            ..ProcessStatus::now()
        }
    }

    fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn addresses(&self) -> Vec<(Tag, SocketAddr)> {
        let view = self.view();
        let all = view.inbounds.iter();
        all.flat_map(|inbound| inbound.listen.iter().map(|addr| (inbound.name.clone(), *addr))).collect()
    }

    /// Connections of clients that are open.
    pub(crate) fn open(&self) -> i64 {
        self.view()
            .inbounds
            .iter()
            .flat_map(|inbound| inbound.metrics.iter())
            .map(|core| core.open.value())
            .sum()
    }

    /// Port and payload bytes, both ways together, of every inbound.
    pub(crate) fn bytes(&self) -> Vec<(u16, u64)> {
        let bytes = |inbound: &InboundView| {
            let cores = inbound.metrics.iter().map(|core| &core.traffic);
            let sum = cores.map(|traffic| traffic.up.value() + traffic.down.value()).sum();
            Some((inbound.listen.first()?.port(), sum))
        };
        self.view().inbounds.iter().filter_map(bytes).collect()
    }

    /// Payload bytes of all inbounds, from clients and to them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let view = self.view();
        let cores = view.inbounds.iter().flat_map(|inbound| inbound.metrics.iter());
        cores
            .fold((0, 0), |(up, down), core| (up + core.traffic.up.value(), down + core.traffic.down.value()))
    }

    pub(crate) fn status(&self, now: Instant) -> Status {
        let view = self.view();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: now.saturating_duration_since(self.since).as_secs(),
            uptime_ms: u64::try_from(now.saturating_duration_since(self.since).as_millis())
                .unwrap_or(u64::MAX),
            started_unix_s: self.since_unix_s,
            health: self.health(now),
            process: self.process(&view),
            pid: std::process::id(),
            cores: self.asks.len(),
            inbounds: view.inbounds.iter().map(|inbound| inbound.status(&self.faults)).collect(),
            outbounds: view.outbounds.iter().map(|outbound| outbound.status(&self.faults)).collect(),
            groups: view.groups.iter().map(|group| GroupStatus::of(group)).collect(),
            budget: Some(self.budget.status()),
            carrier_memory: view.memory.as_ref().map(|memory| memory.status()),
            lags: self.pulses.iter().map(LagStatus::of).collect(),
            state_file: view.ledger.as_ref().map(|ledger| ledger.file_status()).unwrap_or_default(),
            fleet: self.fleet.status(),
            connections: Vec::new(),
            connections_left_out: 0,
        }
    }
}

impl InboundView {
    fn status(&self, faults: &Faults) -> InboundStatus {
        let cores = || self.metrics.iter();
        let mut results = Map::new();
        for (result, count) in cores().flat_map(|core| core.results.all()) {
            *results.entry(result.to_owned()).or_default() += count;
        }
        let mut refused = Map::new();
        for core in cores() {
            for (cause, count) in core.refused.causes() {
                *refused.entry(cause.to_owned()).or_default() += count;
            }
        }
        refused.retain(|_, count| *count > 0);
        InboundStatus {
            name: self.name.to_string(),
            protocol: self.protocol.into(),
            listen: self.listen.clone(),
            outbound: self.outbound.to_string(),
            accepted: sum(cores().map(|core| &core.accepted)),
            open: cores().map(|core| core.open.value()).sum(),
            requests: sum(cores().map(|core| &core.requests)),
            results,
            connection_times: Distribution::of(cores().map(|core| &core.times.connection)),
            first_byte_times: Distribution::of(cores().map(|core| &core.times.first_byte)),
            up_bytes: sum(cores().map(|core| &core.traffic.up)),
            down_bytes: sum(cores().map(|core| &core.traffic.down)),
            up_datagram_bytes: sum(cores().map(|core| &core.datagrams.traffic.up)),
            down_datagram_bytes: sum(cores().map(|core| &core.datagrams.traffic.down)),
            refused,
            datagrams: self.datagrams(),
            searches: self.sources.as_ref().and_then(|sources| sources.searches().status()),
            users: self.users.iter().map(|account| user(account)).collect(),
            carrier: self.carrier.as_ref().map(|metrics| metrics.status()),
            last_error: faults.last(&ConfigPart::Inbound(self.name.clone())),
        }
    }

    fn datagrams(&self) -> Option<DatagramStatus> {
        let mut all = DatagramStatus::default();
        for core in self.metrics.iter().map(|core| &core.datagrams) {
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
}

impl OutboundView {
    fn status(&self, faults: &Faults) -> OutboundStatus {
        let cores = || self.metrics.iter();
        let dial_times = Distribution::of(cores().map(|core| &core.dials.ok));
        let failed_dial_times = Distribution::of(cores().map(|core| &core.dials.failed));
        OutboundStatus {
            name: self.name.to_string(),
            protocol: self.protocol.into(),
            dialled: dial_times.count(),
            failed: failed_dial_times.count(),
            dial_times,
            failed_dial_times,
            reused: sum(cores().map(|core| &core.reused)),
            idle: cores().map(|core| core.idle.value()).sum(),
            early_closes: sum(cores().map(|core| &core.early_closes)),
            carrier: self.carrier.as_ref().map(|metrics| metrics.status()),
            last_error: faults.last(&ConfigPart::Outbound(self.name.clone())),
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
        is_online: user.is_online(),
        used_bytes: user.used(),
        quota_bytes: user.limits().quota,
        limited: user.over().map(|limit| limit.to_string()),
        last_error: user.last_error(),
    }
}

fn sum<'a>(counters: impl Iterator<Item = &'a Counter>) -> u64 {
    counters.map(Counter::value).sum()
}
