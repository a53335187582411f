//! Datagrams from unknown sources, where each user has a key of its own: a thread finds the user, then the datagram comes
//! back to its core and is opened there like one of a known source.
//!
//! The thread takes a quarter of a core at most. It begins with the first such datagram and ends when none has come for a
//! while. Few datagrams wait, and few of one source, each in its turn: a client that sends again neither ends the search for
//! its first datagram nor begins many, and a source that sends garbage delays another one by two searches a round.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_net::rt;
use adit_net::run_behind;

use super::multi_key::{MultiKeyUsers, others};
use crate::admission::prefix;
use crate::datagram::{Moved, Peer, SessionOwners};
use crate::users::Search;

/// Datagrams that wait for a search, one after the other.
pub(super) const WAITING: usize = 64;
/// And of one source, with the one that is searched for.
pub(super) const WAITING_PER_SOURCE: usize = 2;
/// Keys that are tried between two rests.
const CHUNK: usize = 32;
/// A rest is so many times as long as the work before it.
const REST: u32 = 3;
/// The thread ends when it has had nothing to do for so long.
const LINGER: Duration = Duration::from_secs(5);

/// The datagrams that wait for a search.
#[derive(Debug, Default)]
pub(super) struct KeySearchQueue {
    line: Mutex<Line>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<(Unknown, Search)>,
    /// The source of the datagram that is searched for.
    current: Option<IpAddr>,
    has_thread: bool,
}

/// A datagram whose user is unknown.
#[derive(Debug)]
pub(super) struct Unknown {
    pub(super) peer: Peer,
    pub(super) class: u8,
    pub(super) bytes: Vec<u8>,
    /// The cores of the listener, and the one that the datagram goes back to.
    pub(super) exchange: (Arc<SessionOwners>, usize),
}

impl Unknown {
    fn source(&self) -> IpAddr {
        prefix(self.peer.at.ip())
    }

    /// Goes back to its core. If its user has not been found, it is counted there.
    fn give_back(self) {
        let Self { peer, class, bytes, exchange: (exchange, core) } = self;
        exchange.post(core, Moved { header: Box::new(()), bytes, peer, class });
    }
}

/// Has the user of a datagram found among those of `each`; false if too many wait already.
pub(super) fn submit(each: &Arc<MultiKeyUsers>, unknown: Unknown) -> bool {
    let unknowns = each.unknowns();
    let mut line = unknowns.line();
    if line.of(unknown.source()) >= WAITING_PER_SOURCE {
        return false;
    }
    let search = each.searches().begin();
    if line.waiting.len() >= WAITING || !(line.has_thread || start(each)) {
        return false;
    }
    search.take_place();
    line.has_thread = true;
    line.waiting.push_back((unknown, search));
    unknowns.work.notify_one();
    true
}

fn start(each: &Arc<MultiKeyUsers>) -> bool {
    let each = each.clone();
    let thread = std::thread::Builder::new().name("adit-unknown".into());
    thread.spawn(move || work(&each)).is_ok()
}

fn work(each: &MultiKeyUsers) {
    // Event loops come first where there is not a core for each.
    run_behind();
    while let Some((unknown, search)) = each.unknowns().next() {
        let source = unknown.peer.at.ip();
        if let Some(user) = find(each, source, &unknown.bytes, &search) {
            search.note_found();
            each.note(source, user);
        }
        drop(search);
        each.unknowns().line().current = None;
        unknown.give_back();
    }
}

/// The user whose key opens the datagram: one who has come from the source meanwhile, or any, the last active first.
fn find(each: &MultiKeyUsers, source: IpAddr, datagram: &[u8], search: &Search) -> Option<usize> {
    let mut copy = Vec::with_capacity(datagram.len());
    let mut opens = |user: &usize| {
        search.note_keys(1);
        each.opens_datagram(*user, datagram, &mut copy)
    };
    let known = each.known(source);
    if let Some(user) = others(&known, &[]).find(&mut opens) {
        return Some(user);
    }
    let order = each.order();
    for users in order.all().chunks(CHUNK) {
        let since = rt::now();
        if let Some(user) = others(users, &known).find(&mut opens) {
            return Some(user);
        }
        std::thread::sleep((rt::now() - since) * REST);
    }
    None
}

impl KeySearchQueue {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next datagram, once there is one; `None` after a while without: the thread ends.
    fn next(&self) -> Option<(Unknown, Search)> {
        let waited = self.work.wait_timeout_while(self.line(), LINGER, |line| line.waiting.is_empty());
        let (mut line, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let next = line.waiting.pop_front();
        line.current = next.as_ref().map(|(unknown, _)| unknown.source());
        line.has_thread = next.is_some();
        next
    }

    /// Datagrams that wait, of all sources and of one.
    #[cfg(test)]
    pub(super) fn waiting(&self, source: IpAddr) -> (usize, usize) {
        let line = self.line();
        (line.waiting.len(), line.of(prefix(source)))
    }
}

impl Line {
    /// Datagrams of one source, with the one that is searched for.
    fn of(&self, source: IpAddr) -> usize {
        let waiting = self.waiting.iter().filter(|(unknown, _)| unknown.source() == source).count();
        waiting + usize::from(self.current == Some(source))
    }
}
