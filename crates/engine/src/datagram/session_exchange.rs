//! Sessions that change their address. The system spreads datagrams over the cores by address, so such a client may
//! reach a core that does not have its session.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::inbound::Peer;

/// Datagrams that wait for one core. A core that cannot keep up with these loses them like those of a full socket.
const MAX_WAITING: usize = 256;
/// Locks for the owners.
const SHARDS: usize = 16;

/// A datagram on its way to the core of its session.
#[derive(Debug)]
pub(crate) struct Moved {
    /// The header as its protocol has read it; reading may have changed the bytes.
    pub(crate) header: Box<dyn Any + Send>,
    /// The datagram.
    pub(crate) bytes: Vec<u8>,
    /// Address that it came from.
    pub(crate) peer: Peer,
    /// Its traffic class.
    pub(crate) class: u8,
}

/// Owner core of each session of one listener, and a mailbox per core. Touched when a session begins or
/// for datagrams of unknown ones, never for the others.
#[derive(Debug)]
pub(crate) struct SessionOwners {
    owners: [Mutex<HashMap<u64, usize>>; SHARDS],
    boxes: Vec<Mutex<Mailbox>>,
}

#[derive(Debug, Default)]
struct Mailbox {
    waiting: VecDeque<Moved>,
    engine: Option<Waker>,
}

impl SessionOwners {
    /// For so many cores.
    pub(crate) fn new(cores: usize) -> Self {
        Self { owners: Default::default(), boxes: (0..cores).map(|_| Mutex::default()).collect() }
    }

    /// `core` has begun a session.
    pub(crate) fn claim(&self, session: u64, core: usize) {
        lock(self.shard(session)).insert(session, core);
    }

    /// `core` has ended a session.
    pub(crate) fn release(&self, session: u64, core: usize) {
        let mut owners = lock(self.shard(session));
        if owners.get(&session) == Some(&core) {
            owners.remove(&session);
        }
    }

    /// The core of a session.
    pub(crate) fn owner(&self, session: u64) -> Option<usize> {
        lock(self.shard(session)).get(&session).copied()
    }

    /// Hands a datagram over; false if the mailbox is full.
    pub(crate) fn post(&self, core: usize, datagram: Moved) -> bool {
        let mut mailbox = lock(&self.boxes[core]);
        let has_room = mailbox.waiting.len() < MAX_WAITING;
        if has_room {
            mailbox.waiting.push_back(datagram);
        }
        if let Some(engine) = mailbox.engine.take() {
            engine.wake();
        }
        has_room
    }

    /// The next datagram for `core`, or whom to wake when there is one.
    pub(crate) fn take(&self, core: usize, engine: &Waker) -> Option<Moved> {
        let mut mailbox = lock(&self.boxes[core]);
        let next = mailbox.waiting.pop_front();
        if next.is_none() && !mailbox.engine.as_ref().is_some_and(|old| old.will_wake(engine)) {
            mailbox.engine = Some(engine.clone());
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
