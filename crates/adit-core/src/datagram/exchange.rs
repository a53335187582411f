//! Sessions that wander: the system spreads datagrams over the cores by address, so a client that changes its own may
//! reach a core that does not have its session.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use adit_proto::shadowsocks::aead2022::Header;

/// Datagrams that wait for one core. A core that cannot keep up with these loses them like those of a full socket.
const MAX_WAITING: usize = 256;
/// Locks for the owners.
const SHARDS: usize = 16;

/// A datagram on its way to the core of its session.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
    pub(super) from: SocketAddr,
    pub(super) to: Option<IpAddr>,
    pub(super) class: u8,
}

/// Which core owns which session of one listener, and a mailbox per core. Touched when a session begins or ends and
/// for datagrams of unknown ones, never for the others.
#[derive(Debug)]
pub(crate) struct Exchange {
    owners: [Mutex<HashMap<u64, usize>>; SHARDS],
    boxes: Vec<Mutex<Mailbox>>,
}

#[derive(Debug, Default)]
struct Mailbox {
    waiting: VecDeque<Moved>,
    relay: Option<Waker>,
}

impl Exchange {
    /// For so many cores.
    pub(crate) fn new(cores: usize) -> Self {
        Self { owners: Default::default(), boxes: (0..cores).map(|_| Mutex::default()).collect() }
    }

    /// `core` has begun a session.
    pub(super) fn claim(&self, session: u64, core: usize) {
        lock(self.shard(session)).insert(session, core);
    }

    /// `core` has ended a session.
    pub(super) fn release(&self, session: u64, core: usize) {
        let mut owners = lock(self.shard(session));
        if owners.get(&session) == Some(&core) {
            owners.remove(&session);
        }
    }

    /// The core of a session.
    pub(super) fn owner(&self, session: u64) -> Option<usize> {
        lock(self.shard(session)).get(&session).copied()
    }

    /// Hands a datagram over; false if the mailbox is full.
    pub(super) fn post(&self, core: usize, datagram: Moved) -> bool {
        let mut mailbox = lock(&self.boxes[core]);
        let has_room = mailbox.waiting.len() < MAX_WAITING;
        if has_room {
            mailbox.waiting.push_back(datagram);
        }
        if let Some(relay) = mailbox.relay.take() {
            relay.wake();
        }
        has_room
    }

    /// The next datagram for `core`, or whom to wake when there is one.
    pub(super) fn take(&self, core: usize, relay: &Waker) -> Option<Moved> {
        let mut mailbox = lock(&self.boxes[core]);
        let next = mailbox.waiting.pop_front();
        if next.is_none() && !mailbox.relay.as_ref().is_some_and(|old| old.will_wake(relay)) {
            mailbox.relay = Some(relay.clone());
        }
        next
    }

    fn shard(&self, session: u64) -> &Mutex<HashMap<u64, usize>> {
        &self.owners[usize::try_from(session % SHARDS as u64).expect("below 16")]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
