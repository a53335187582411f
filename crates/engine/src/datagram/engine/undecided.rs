//! Datagrams whose way depends on an address that is being looked up.

use std::net::SocketAddr;
use std::task::Waker;

use adit_net::udp::Datagram;

use super::{Engine, MAX_WAITING};
use crate::datagram::drops::DropReason;
use crate::datagram::inbound::{DatagramTarget, FlowClient, Peer};
use crate::datagram::scratch::{Payload, Scratch};

/// Datagrams that wait for decisions, all clients of a listener together.
const MAX_ALL: usize = 256;

/// The datagrams that wait, oldest first.
pub(super) struct Undecided {
    waiting: Vec<UndecidedDatagram>,
    waker: Waker,
}

pub(super) struct UndecidedDatagram {
    client: FlowClient,
    peer: Peer,
    target: DatagramTarget,
    bytes: Vec<u8>,
    class: u8,
}

impl Undecided {
    /// None; `waker` is woken when a decision can be asked for again.
    pub(super) fn new(waker: Waker) -> Self {
        Self { waiting: Vec::new(), waker }
    }

    /// The waker to wake when a decision can be asked for again.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The number of datagrams that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The addresses of their clients.
    pub(super) fn peers(&self) -> impl Iterator<Item = SocketAddr> {
        self.waiting.iter().map(|entry| entry.peer.at)
    }

    /// Whether one more datagram of `client` may wait.
    fn has_room(&self, client: &FlowClient) -> bool {
        let own = self.waiting.iter().filter(|entry| entry.client == *client).count();
        self.waiting.len() < MAX_ALL && own < MAX_WAITING
    }
}

impl Engine {
    /// Keeps a datagram until its way can be decided.
    pub(super) fn keep_undecided(
        &mut self,
        client: FlowClient,
        peer: Peer,
        class: u8,
        target: DatagramTarget,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        if !self.undecided.has_room(&client) {
            return Err(DropReason::Unresolved);
        }
        self.inbound.hold(&client)?;
        let bytes = payload.to_vec();
        self.undecided.waiting.push(UndecidedDatagram { client, peer, target, bytes, class });
        Ok(())
    }

    /// Asks again for the decisions that were pending, and sends what has one.
    pub(super) fn decide_again(&mut self, scratch: &mut Scratch) {
        for entry in std::mem::take(&mut self.undecided.waiting) {
            let client = entry.client;
            let result = match Payload::copy(scratch, &entry.bytes, entry.class) {
                Some(payload) => self.pass_on(client, entry.peer, &entry.target, &payload, scratch),
                None => Err(DropReason::TooBig),
            };
            self.refused(entry.peer, &entry.target, &result);
            // The flow that has begun meanwhile holds the client as well.
            self.inbound.release(&client);
            if let Err(reason) = result {
                self.count(&reason);
            }
            self.flush_targets(scratch);
        }
        self.flush_streams();
    }

    /// The address of this host that a datagram was sent to, and that of its sender.
    pub(super) fn peer_of(datagram: &Datagram) -> Peer {
        Peer { at: datagram.from, local: datagram.to }
    }
}
