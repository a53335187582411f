//! The engine's orders to a core. A core follows all parts of one [`LoopCommand`] before it looks at its sockets again.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use adit_model::{self as model, Config, Tag};
use adit_net::handover::Label;
use adit_net::pace::Pacer;
use adit_net::udp::divert::Passed;

use super::jobs::Job;
use super::sockets::Sockets;
use crate::carrier;
use crate::dns;
use crate::listener;

use crate::counters::{InboundMetrics, OutboundMetrics};
use crate::protocols::registry;
use crate::routing::Router;

/// A change of what a core runs.
#[derive(Default)]
pub(super) struct LoopCommand {
    /// The configuration from now on, if it is another one.
    pub(super) config: Option<(Arc<Config>, Arc<Router>)>,
    /// The settings of names from now on, if they are others.
    pub(super) names: Option<Arc<dns::Settings>>,
    /// Outbounds that are new or replace one of that name; groups behind all others.
    pub(super) put: Vec<AddOutbound>,
    /// Outbounds that requests take no longer.
    pub(super) remove: Vec<Tag>,
    /// Inbounds to be served.
    pub(super) open: Vec<OpenInboundCommand>,
    /// Inbounds that keep their sockets and connections, and differ in something else.
    pub(super) update: Vec<Update>,
    /// Inbounds that listen elsewhere from now on, behind their updates.
    pub(super) relisten: Vec<Relisten>,
    /// Inbounds to be served no more; their connections end.
    pub(super) close: Vec<u64>,
    /// Its sockets for datagrams go to another process, or come back.
    pub(super) hand_over: Option<HandOver>,
    /// Time for connections to finish, in the place of that of the configuration.
    pub(super) drain: Option<Duration>,
    /// Work to begin once all of it has been done; for the first core.
    pub(super) jobs: Vec<Job>,
    /// Dropped when all of it has been done.
    pub(super) done: Option<mpsc::Sender<()>>,
}

/// A change of the reader of sockets for datagrams.
#[derive(Clone)]
pub(super) enum HandOver {
    /// Those with these purposes are passed on under these numbers. Each reader answers, and each is counted before it does.
    Pass(Arc<HashMap<Label, usize>>, mpsc::Sender<Passed>, Arc<AtomicUsize>),
    /// All are read here again.
    Undo,
}

/// One core's part of an outbound.
pub(super) struct AddOutbound {
    pub(super) model: Arc<model::Outbound>,
    pub(super) shared: Arc<registry::OutboundShared>,
    pub(super) metrics: Arc<OutboundMetrics>,
    pub(super) carrier: Option<Arc<carrier::CarrierShared>>,
    pub(super) pacer: Option<Arc<Pacer>>,
}

/// One core's part of a new inbound.
pub(super) struct OpenInboundCommand {
    pub(super) id: u64,
    pub(super) model: Arc<model::Inbound>,
    pub(super) shared: registry::InboundShared,
    pub(super) serve: Vec<PartSockets>,
    pub(super) pacer: Option<Arc<Pacer>>,
    pub(super) carrier: Option<listener::CarrierOptions>,
    pub(super) metrics: Arc<InboundMetrics>,
}

/// One core's sockets of a part of an inbound.
pub(super) struct PartSockets {
    /// The number of the part.
    pub(super) part: u64,
    pub(super) sockets: Sockets,
    /// Lives as long as a socket does.
    pub(super) alive: mpsc::Sender<()>,
}

/// One core's part of an inbound that listens elsewhere: its connections go on.
pub(super) struct Relisten {
    pub(super) id: u64,
    /// With the part of the same port whose readers of datagrams go over to it, if there is one.
    pub(super) open: Vec<(PartSockets, Option<u64>)>,
    pub(super) close: Vec<u64>,
}

/// One core's part of an inbound that is changed in place.
pub(super) struct Update {
    pub(super) id: u64,
    pub(super) model: Arc<model::Inbound>,
    pub(super) shared: registry::InboundShared,
}

impl std::fmt::Debug for LoopCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order").field("close", &self.close).finish_non_exhaustive()
    }
}
