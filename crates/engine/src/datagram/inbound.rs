//! The client side: what a protocol does with the datagrams of its clients.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use adit_net::udp::{DatagramBatch, Outgoing, Sent};
use adit_proto::wire::{Room, Target, WireError};

use super::session_exchange::Moved;
use super::{DropReason, FlowTick};
use crate::users::Account;

/// Identity of one client of a listener: the client side of a flow's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FlowClient {
    /// A client is its address.
    Address(SocketAddr),
    /// A client is its address and the number of its user: one address may be several users.
    User(SocketAddr, usize),
    /// A client is a session, which may change its address.
    Session(u64),
}

/// Address of a client, and the address of this host that it sends to, if that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The client's address.
    pub(crate) at: SocketAddr,
    /// The address of this host.
    pub(crate) local: Option<IpAddr>,
}

/// A datagram's circumstances.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Address that it came from.
    pub(crate) peer: Peer,
    /// The address and port that the application sent it to, where a firewall or an interface brought it here.
    pub(crate) original: Option<SocketAddr>,
    /// Its traffic class.
    pub(crate) class: u8,
    /// Seconds since the engine started.
    pub(crate) now: FlowTick,
    /// Seconds since 1970.
    pub(crate) unix_s: u64,
}

/// Target of a datagram. A target that many datagrams share is not copied for each of them.
#[derive(Debug, Clone)]
pub(crate) enum DatagramTarget {
    /// The datagram itself says so.
    Own(Target),
    /// The client or the listener has one target.
    Shared(Rc<Target>),
}

impl Deref for DatagramTarget {
    type Target = Target;

    fn deref(&self) -> &Target {
        match self {
            Self::Own(target) => target,
            Self::Shared(target) => target,
        }
    }
}

/// A client's datagram, opened.
#[derive(Debug)]
pub(crate) struct OpenedDatagram {
    /// The client that sent it.
    pub(crate) client: FlowClient,
    /// Its target.
    pub(crate) target: DatagramTarget,
    /// The payload, as a range into the datagram.
    pub(crate) payload: Range<usize>,
    /// The client begins anew: its flows end.
    pub(crate) begins_anew: bool,
}

impl OpenedDatagram {
    /// A datagram of a client that goes on, or is not known yet.
    pub(crate) fn new(client: FlowClient, target: DatagramTarget, payload: Range<usize>) -> Self {
        Self { client, target, payload, begins_anew: false }
    }
}

/// The protocol of the clients of one listener, on one core.
///
/// A protocol that remembers something of a client keeps it while the client is held: [`PacketInbound::hold`] and
/// [`PacketInbound::release`] come in pairs, one for each flow of the client. State from the first datagram
/// stays until the next unknown client's datagram at least, for the flow begins after that.
pub(crate) trait PacketInbound: Any {
    /// Whether datagrams are encrypted or travel with what is: they must not be longer than the path takes.
    fn is_sealed(&self) -> bool;

    /// Whether clients may be other machines: their flows are forgotten early while nothing has come back.
    fn has_foreign_clients(&self) -> bool {
        self.is_sealed()
    }

    /// Whether answers are taken from the flow's target alone.
    fn is_connected(&self) -> bool {
        false
    }

    /// Number of datagrams that [`PacketInbound::expect`] wants to see at once; 0 for none.
    fn together(&self) -> usize {
        0
    }

    /// The next datagrams of a batch are about to be opened.
    fn expect(&mut self, _next: &mut dyn Iterator<Item = &[u8]>) {}

    /// Opens a datagram in place. `None`: it has been handed to the core that has its client.
    ///
    /// # Errors
    /// Why it goes no further.
    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason>;

    /// A datagram that another core has handed over; `None` if there is none, and `waker` is woken when there is.
    fn next_moved(&mut self, waker: &Waker) -> Option<Moved> {
        let _ = waker;
        None
    }

    /// Opens what [`PacketInbound::next_moved`] gave; `datagram` is a copy of its bytes.
    ///
    /// # Errors
    /// Why it goes no further.
    fn open_moved(
        &mut self,
        moved: &Moved,
        arrival: &Arrival,
        datagram: &mut [u8],
    ) -> Result<OpenedDatagram, DropReason> {
        let _ = (moved, arrival, datagram);
        Err(DropReason::Gone)
    }

    /// The account of a client, where there are users.
    fn account(&self, client: &FlowClient) -> Option<&Arc<Account>> {
        let _ = client;
        None
    }

    /// Current address of a client that may move; `None` if it is still the address at which its flow began.
    fn peer(&mut self, client: &FlowClient) -> Option<Peer> {
        let _ = client;
        None
    }

    /// The bytes that must lie free around an answer from `source`, and its longest payload.
    fn room(&mut self, client: &FlowClient, source: &Target) -> Room;

    /// Seals an answer from `source` for the client and returns where the datagram lies.
    ///
    /// # Errors
    /// When it cannot be sealed.
    fn seal(
        &mut self,
        client: &FlowClient,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, WireError>;

    /// Sends sealed datagrams from `batch` itself, where they do not leave by the listener's socket; called behind each
    /// batch of answers, with none too. `None`: the listener sends them.
    fn send(&mut self, batch: &mut DatagramBatch, datagrams: &[Outgoing]) -> Option<Sent> {
        let _ = (batch, datagrams);
        None
    }

    /// Takes over the clients that `old` holds, which this one replaces: users may have changed.
    fn take_over(&mut self, old: &mut dyn PacketInbound) {
        let _ = old;
    }

    /// The client has been silent for a while: what can be derived again may be given up.
    fn rest(&mut self, client: &FlowClient) {
        let _ = client;
    }

    /// A flow of the client begins, or one of its datagrams waits for a decision.
    ///
    /// # Errors
    /// When nothing is known of the client.
    fn hold(&mut self, client: &FlowClient) -> Result<(), DropReason> {
        let _ = client;
        Ok(())
    }

    /// Releases what was held for the client.
    fn release(&mut self, client: &FlowClient) {
        let _ = client;
    }
}

/// Announces the datagrams of `batch` from `at` on to `expect`, where so many have been opened that the next are due.
/// `together` of them are announced at once, 0 means none.
pub(super) fn next_together(
    batch: &DatagramBatch,
    at: usize,
    together: usize,
) -> Option<impl Iterator<Item = &[u8]>> {
    if together == 0 || !at.is_multiple_of(together) {
        return None;
    }
    let next = (at..batch.len()).filter_map(|at| batch.get(at));
    Some(next.take(together).map(|datagram| &batch.block[datagram.range()]))
}

/// No room is needed around a payload that leaves as it is.
pub(crate) fn bare_room() -> Room {
    Room { head: 0, tail: 0, max_payload: usize::from(u16::MAX) }
}
