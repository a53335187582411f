//! Connection numbers: the counters of a client, and the memory of a server.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Refusal;
use crate::wire::Rng;

/// A client draws a new id when its count of connections passes this (observed from SSRR 3.2.2).
const MAX_CONNECTION_ID: u32 = 0xff00_0000;
/// Distance by which a connection may be in front of the oldest open id (observed from SSRR 3.2.2).
const MAX_AHEAD: u32 = 0x4000;
/// Distance by which a late connection may be behind the newest id (observed from SSRR 3.2.2).
const MAX_BEHIND: u32 = 0x1000;
/// Ids in front of the first one seen that are accepted all the same.
const SLACK: u32 = 64;
/// A client that has been silent for so long makes room for another one, in seconds (as SSRR 3.2.2).
const IDLE_S: u64 = 180;
/// Clients of one user that are remembered at most. Past that the one that has been silent longest is forgotten.
const MAX_REMEMBERED: usize = 4096;

/// The numbers of one client process: a random id, and a count of its connections. Share one per server.
#[derive(Debug, Default)]
pub struct ClientIds(Mutex<Option<ConnectionIds>>);

/// The identity that a connection claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionIds {
    /// Only the first four bytes are sent, save by `auth_sha1_v2`.
    pub(super) client: [u8; 8],
    pub(super) connection: u32,
}

impl ClientIds {
    /// Nothing drawn yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The numbers of the next connection.
    pub(super) fn next(&self, rng: &mut dyn Rng) -> ConnectionIds {
        let mut ids = lock(&self.0);
        let mut next = match *ids {
            Some(ids) if ids.connection <= MAX_CONNECTION_ID => ids,
            Some(_) | None => draw(rng),
        };
        next.connection += 1;
        *ids = Some(next);
        next
    }
}

fn draw(rng: &mut dyn Rng) -> ConnectionIds {
    let (mut client, mut connection) = ([0; 8], [0; 4]);
    rng.fill(&mut client);
    rng.fill(&mut connection[..3]);
    ConnectionIds { client, connection: u32::from_le_bytes(connection) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections that a server has accepted, so that none is accepted twice. Shared by all connections of one
/// listener, over all users and clients.
///
/// The Python server starts over with a client that was idle. This memory does not: ids of a client only rise, so its
/// history is three numbers and a few gaps, and is kept until [`Clients::MAX_ENTRIES`] or 4096 of the same user are
/// reached; then that user's client goes that has been silent longest.
#[derive(Debug)]
pub struct Clients {
    max_active: usize,
    users: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    users: HashMap<u32, HashMap<u64, Window>>,
    entries: usize,
}

impl Default for Clients {
    fn default() -> Self {
        Self::new(Self::DEFAULT_MAX_ACTIVE)
    }
}

impl Clients {
    /// Clients of all users that are remembered at most; about 100 bytes each, and up to 2 KiB more for one that keeps
    /// leaving gaps.
    pub const MAX_ENTRIES: usize = 1 << 18;
    /// Clients of one user at a time, where `protocol_param` does not say otherwise.
    pub const DEFAULT_MAX_ACTIVE: usize = 64;

    /// An empty table. At most `max_active` clients of a user (1 at least) are active at a time: one is until it has
    /// been silent for 180 s.
    pub fn new(max_active: usize) -> Self {
        Self { max_active: max_active.max(1), users: Mutex::default() }
    }

    /// Enters a connection that has authenticated.
    pub(super) fn admit(&self, user: u32, client: u64, connection: u32, unix_s: u64) -> Result<(), Refusal> {
        let mut table = lock(&self.users);
        let Table { users, entries } = &mut *table;
        let clients = users.entry(user).or_default();
        if let Some(window) = clients.get_mut(&client) {
            return window.insert(connection, unix_s);
        }
        let active = clients.values().filter(|window| window.is_active(unix_s)).count();
        if active >= self.max_active {
            return Err(Refusal::TooManyClients { limit: self.max_active });
        }
        if clients.len() >= MAX_REMEMBERED || *entries >= Self::MAX_ENTRIES {
            let idle = clients.iter().filter(|(_, window)| !window.is_active(unix_s));
            let Some(oldest) = idle.min_by_key(|(_, window)| window.used_s).map(|(client, _)| *client) else {
                return Err(Refusal::TooManyClients { limit: Self::MAX_ENTRIES });
            };
            clients.remove(&oldest);
            *entries -= 1;
        }
        clients.insert(client, Window::new(connection, unix_s));
        *entries += 1;
        Ok(())
    }
}

/// The ids of one client: all below `front` are used or too late, bit `n` of `seen` stands for `front + n`.
#[derive(Debug)]
struct Window {
    front: u32,
    seen: Vec<u64>,
    used_s: u64,
}

impl Window {
    fn new(connection: u32, unix_s: u64) -> Self {
        let mut window = Self { front: connection.saturating_sub(SLACK), seen: Vec::new(), used_s: unix_s };
        window.mark(connection - window.front);
        window
    }

    fn is_active(&self, unix_s: u64) -> bool {
        unix_s.saturating_sub(self.used_s) < IDLE_S
    }

    fn insert(&mut self, connection: u32, unix_s: u64) -> Result<(), Refusal> {
        let Some(ahead) = connection.checked_sub(self.front) else { return Err(Refusal::Replay) };
        if self.is_marked(ahead) {
            return Err(Refusal::Replay);
        }
        if ahead > MAX_AHEAD {
            if self.is_active(unix_s) {
                return Err(Refusal::ConnectionId { ahead });
            }
            // Going up is always safe: everything below is refused from now on.
            *self = Self::new(connection, unix_s);
            return Ok(());
        }
        self.mark(ahead);
        self.used_s = unix_s;
        Ok(())
    }

    fn is_marked(&self, ahead: u32) -> bool {
        self.seen.get(ahead as usize / 64).is_some_and(|word| word >> (ahead % 64) & 1 == 1)
    }

    /// Marks an id and moves the front past what is complete or too old, a word at a time.
    fn mark(&mut self, ahead: u32) {
        let word = ahead as usize / 64;
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        self.seen[word] |= 1 << (ahead % 64);
        let complete = self.seen.iter().take_while(|word| **word == u64::MAX).count();
        let old = self.seen.len().saturating_sub(MAX_BEHIND as usize / 64 + 1);
        let gone = complete.max(old).min(self.seen.len());
        self.seen.drain(..gone);
        self.front += u32::try_from(64 * gone).expect("a window has at most 257 words");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zero;

    impl Rng for Zero {
        fn fill(&mut self, out: &mut [u8]) {
            out.fill(0xff);
        }
    }

    #[test]
    fn a_client_counts() {
        let ids = ClientIds::new();
        let first = ids.next(&mut Zero);
        assert_eq!(first, ConnectionIds { client: [0xff; 8], connection: 0x0100_0000 });
        assert_eq!(ids.next(&mut Zero).connection, 0x0100_0001);
        *lock(&ids.0) = Some(ConnectionIds { client: [1; 8], connection: MAX_CONNECTION_ID });
        assert_eq!(ids.next(&mut Zero).client, [1; 8]);
        assert_eq!(ids.next(&mut Zero).client, [0xff; 8], "a new one when the count has passed its end");
    }

    #[test]
    fn each_connection_once() {
        let clients = Clients::new(64);
        let admit = |connection, at| clients.admit(1, 7, connection, at);
        assert_eq!(admit(1_000, 0), Ok(()));
        assert_eq!(admit(1_000, 0), Err(Refusal::Replay));
        assert_eq!(admit(936, 0), Ok(()), "64 before the first one");
        assert_eq!(admit(935, 0), Err(Refusal::Replay));
        for connection in (1_001..3_000).rev() {
            assert_eq!(admit(connection, 1), Ok(()), "{connection}");
            assert_eq!(admit(connection, 1), Err(Refusal::Replay), "{connection}");
        }
        assert_eq!(admit(40_000, 1), Err(Refusal::ConnectionId { ahead: 40_000 - 936 }));
        assert_eq!(admit(40_000, 1_000), Ok(()), "after a pause");
        for connection in [0, 936, 1_000, 2_999, 39_935] {
            assert_eq!(admit(connection, 9_000), Err(Refusal::Replay), "{connection}");
        }
    }

    #[test]
    fn clients_make_room_when_they_are_idle() {
        let clients = Clients::new(2);
        assert_eq!(clients.admit(1, 1, 5, 0), Ok(()));
        assert_eq!(clients.admit(1, 2, 5, 100), Ok(()));
        assert_eq!(clients.admit(1, 3, 5, 179), Err(Refusal::TooManyClients { limit: 2 }));
        assert_eq!(clients.admit(2, 3, 5, 179), Ok(()), "another user");
        assert_eq!(clients.admit(1, 3, 5, 180), Ok(()));
        assert_eq!(clients.admit(1, 1, 5, 500), Err(Refusal::Replay), "it is remembered all the same");
        assert_eq!(clients.admit(1, 1, 6, 500), Ok(()));
    }

    #[test]
    fn memory_is_bounded() {
        let clients = Clients::new(1);
        for client in 0..10_000 {
            assert_eq!(clients.admit(1, client, 1, 200 * client), Ok(()));
        }
        let table = lock(&clients.users);
        assert_eq!((table.users[&1].len(), table.entries), (MAX_REMEMBERED, MAX_REMEMBERED));
        drop(table);
        let mut window = Window::new(0, 0);
        for connection in (0..u32::from(u16::MAX)).step_by(100).skip(1) {
            assert_eq!(window.insert(connection, 0), Ok(()));
            assert!(window.seen.len() <= MAX_BEHIND as usize / 64 + 1);
        }
    }
}
