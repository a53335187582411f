//! The interface of a way out.

use std::net::IpAddr;
use std::pin::Pin;

use adit_model::Tag;
use adit_model::rule::Network;
use adit_net::reach::Reach;
use adit_net::rt::Pool;
use adit_proto::wire::{Target, WireError};

use super::OpenError;
use crate::connections::record::{EndReason, Side};
use crate::relay::{Endpoint, Policy, RelayOutcome};

/// A boxed future on the core at hand.
pub(crate) type Future<'a, T> = Pin<Box<dyn std::future::Future<Output = T> + 'a>>;

/// Target of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectTarget<'a> {
    /// As the client named it.
    pub(crate) target: &'a Target,
    /// The only addresses that may be dialled, where the target's address is looked up on this machine.
    pub(crate) addresses: Option<&'a [IpAddr]>,
    /// The addresses that may be dialled where this machine dials the target itself.
    pub(crate) reach: Reach,
    /// Address of the client, if there is one and it has one.
    pub(crate) source: Option<IpAddr>,
}

impl<'a> From<&'a Target> for ConnectTarget<'a> {
    fn from(target: &'a Target) -> Self {
        Self { target, addresses: None, reach: Reach::Anywhere, source: None }
    }
}

/// One way out, on one core.
pub(crate) trait Outbound {
    /// Name in logs and status.
    fn name(&self) -> &Tag;

    /// Whether the target's answer to a connection is known only after the relay has begun.
    fn is_tunnel(&self) -> bool;

    /// Whether a connection is of no use before the client has sent something.
    fn wants_first_bytes(&self) -> bool {
        false
    }

    /// Whether requests of this kind go on to the next rule: the member of a group that is chosen says so, or it carries no
    /// datagrams by the word of the file.
    fn passes(&self, network: Network) -> bool {
        let _ = network;
        false
    }

    /// A connection that leads to `to`; with `fresh` never one that was kept.
    fn connect<'a>(
        &'a self,
        to: ConnectTarget<'a>,
        fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>>;

    /// Whether a server with the right key has sent something on a connection that has ended so. A tunnel's reply may
    /// prove that before the target's first byte.
    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        let _ = opened;
        outcome.down > 0
    }

    /// The relay is done with a connection of [`Outbound::connect`]: keeps it for the next request, or closes it.
    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool);

    /// An inbound leads here from now on.
    fn begin_use(&self) {}

    /// The addresses that a connection to `name` would try, where this machine looks names up.
    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>>;
}

/// The member of a group that a connection goes over.
pub(crate) trait DialledMember {
    /// Its name; of a group within a group, the outbound at the end.
    fn name(&self) -> &Tag;

    /// As [`Outbound::has_replied`], for the member's own connection.
    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool;

    /// The names from the outbound at the end to the member itself.
    fn chain(&self) -> Vec<Tag> {
        vec![self.name().clone()]
    }

    /// As [`Outbound::release`], for the member's own connection.
    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool);
}

/// A connection that is ready for the relay.
pub(crate) struct OpenedConnection {
    /// The end towards the target.
    pub(crate) far: Endpoint,
    /// Policy of the relay for it.
    pub(crate) policy: Policy,
    /// The member that it goes over, for one of a group.
    pub(crate) member: Option<Box<dyn DialledMember>>,
    /// Whether its answer is waited for by the watch over its outbound.
    pub(crate) is_watched: bool,
}

impl OpenedConnection {
    /// A connection that goes over no group.
    pub(crate) fn new(far: Endpoint, policy: Policy) -> Self {
        Self { far, policy, member: None, is_watched: false }
    }

    /// Name of the outbound that it really goes over, which is `outbound` unless that is a group.
    pub(crate) fn name_of<'a>(&'a self, outbound: &'a dyn Outbound) -> &'a Tag {
        self.member.as_ref().map_or_else(|| outbound.name(), |member| member.name())
    }
}

/// Whether `outcome` says that the server had given up a kept connection: nothing came back, and all that was sent is
/// known.
pub(crate) fn may_retry(outcome: &RelayOutcome) -> bool {
    let closed_unanswered = match &outcome.reason {
        EndReason::Socket(side, _) => *side == Side::Far,
        EndReason::Wire(WireError::Truncated { .. }) => true,
        EndReason::Finished
        | EndReason::Idle
        | EndReason::Crowded
        | EndReason::Kicked
        | EndReason::Stopped
        | EndReason::Limited(_)
        | EndReason::Wire(_) => false,
    };
    closed_unanswered && outcome.replay.is_some()
}
