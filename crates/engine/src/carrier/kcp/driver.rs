//! One socket on one core, with the sessions that it carries.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use adit_net::rt;
use adit_net::udp::divert::{Passing, Switch};
use adit_net::udp::{Sent, Socket};
use adit_proto::smux::{SmuxRole, StreamId};

use super::memory::RESERVED;
use super::session::{KcpSession, SessionFailure, as_u64, conversation};
use super::shared::CarrierShared;
use super::socket::CarrierSocket;
use super::{Context, Scratch};
use crate::datagram::rebind::{LAST_BATCHES, Rebind, Successor};

/// Data packets that one session sends in one turn, at most: what two GSO messages hold, with parity.
const PER_SESSION: usize = 64;
/// Datagrams that wait for one call, at most.
const PER_CALL: usize = 128;
/// Sessions of one server socket. Each holds 64 KiB at rest, at most.
const MAX_SESSIONS: usize = 4096;
/// The same where clients come by streams, each of which costs them a connection.
const MAX_SESSIONS_BY_STREAMS: usize = 64 << 10;
/// One session in so many is left to newcomers, whose peers have not acknowledged anything.
const NEWCOMERS: usize = 4;
/// Least time between two looks for a session at rest: each look goes through all.
const LOOK: Duration = Duration::from_millis(100);
/// Pause between two reports for people.
const REPORT: Duration = Duration::from_secs(1);

/// A session with what the others need to reach it.
pub(super) struct Handle {
    pub(super) shared: Arc<CarrierShared>,
    pub(super) session: RefCell<KcpSession>,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    context: Context,
    desk: Rc<Desk>,
    me: RefCell<std::rc::Weak<Self>>,
    is_listed: Cell<bool>,
    /// When its timer is set to.
    due_at: Cell<Option<Instant>>,
    /// It counts among the connections that a drain waits for.
    is_unflushed: Cell<bool>,
    /// Its driver knows it no more.
    is_forgotten: Cell<bool>,
    /// Bytes that it has taken of the process's memory.
    charged: Cell<usize>,
    /// When people are told of it again.
    reports_at: Cell<Instant>,
    /// Something may have changed since.
    is_unreported: Cell<bool>,
    /// Takes no further streams, and ends then at the latest.
    pub(super) retires_at: Cell<Option<Instant>>,
}

/// Queues by which sessions report to their driver.
#[derive(Default)]
struct Desk {
    waker: RefCell<Option<Waker>>,
    busy: RefCell<Vec<Rc<Handle>>>,
}

impl Handle {
    /// The driver looks at this session in its next turn.
    pub(super) fn touch(&self) {
        if self.is_listed.replace(true) {
            return;
        }
        if let Some(me) = self.me.borrow().upgrade() {
            self.desk.busy.borrow_mut().push(me);
        }
        if let Some(waker) = self.desk.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Whether the process has so little memory left that sessions are to hold no more.
    pub(super) fn is_short(&self) -> bool {
        self.context.memory.is_short()
    }

    /// Number of bytes, of `len`, that `session` may queue for sending: those of its own reserve, and those for which
    /// the process has memory. Memory for them is charged to the session, until [`Handle::charge`] says what it holds.
    pub(super) fn reserve(&self, session: &KcpSession, len: usize) -> usize {
        let own = session.sending_reserve();
        let Some(more) = len.checked_sub(own) else { return len };
        let reserved = self.context.memory.reserve(more.saturating_mul(KcpSession::COST_PER_BYTE));
        self.charged.set(self.charged.get() + reserved);
        own + reserved / KcpSession::COST_PER_BYTE
    }

    /// Keeps the account of the process's memory up to date.
    pub(super) fn charge(&self, bytes: usize) {
        self.context.memory.change(self.charged.replace(bytes), bytes);
    }

    /// Keeps the accounts up to date.
    fn settle(&self, charge: usize, is_unflushed: bool) {
        self.charge(charge);
        let active = &self.context.active;
        match (self.is_unflushed.replace(is_unflushed), is_unflushed) {
            (false, true) => active.set(active.get() + 1),
            (true, false) => active.set(active.get() - 1),
            (true, true) | (false, false) => {}
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.settle(0, false);
    }
}

/// Handles a stream that the peer has opened.
pub(super) type Accept = Box<dyn Fn(&Rc<Handle>, StreamId)>;

/// One socket with its sessions.
pub(super) struct Driver {
    shared: Arc<CarrierShared>,
    context: Context,
    link: CarrierSocket,
    local: SocketAddr,
    desk: Rc<Desk>,
    sessions: HashMap<SocketAddr, Rc<Handle>>,
    /// Those whose peers have not acknowledged anything, oldest first: a recorded datagram gets no further.
    unproven: BTreeMap<u64, Rc<Handle>>,
    /// When it may be looked for a session at rest again.
    looks_at: Option<Instant>,
    /// A session has ended for another one since the last turn of other tasks.
    has_evicted: bool,
    /// By when they have to be looked at.
    timers: BTreeMap<(Instant, u64), Rc<Handle>>,
    /// `None` on the side that makes sessions.
    accept: Option<Accept>,
    /// Sessions that have something to do in this turn.
    working: Vec<Rc<Handle>>,
    reported: HashMap<u64, Reported>,
    /// Tells it to leave the socket to another process.
    switch: Rc<Switch>,
    /// Tells it to go over to another socket of this process.
    rebind: Rc<Rebind>,
    /// When the other process is told of the peers again.
    tells_at: Option<Instant>,
}

/// Sets the options of a link's socket, of a server or a client. Gives its address.
fn set_up(link: &CarrierSocket, shared: &CarrierShared, is_server: bool) -> io::Result<SocketAddr> {
    let config = &shared.config;
    let local = link.local_addr()?;
    if is_server && local.ip().is_unspecified() {
        // Answers come from where the question went to.
        link.report_destination()?;
    }
    if let Some(len) = config.socket_buffer {
        link.set_buffers(len)?;
    }
    let class = if local.is_ipv6() { config.class_v6 } else { config.class_v4 };
    if class > 0 {
        link.set_traffic_class(class)?;
    }
    Ok(local)
}

/// The part of a session's counters that has been added to the metrics.
#[derive(Default, Clone, Copy)]
struct Reported(adit_proto::kcp::arq::Stats);

impl Driver {
    pub(super) fn new(
        shared: Arc<CarrierShared>,
        context: Context,
        link: CarrierSocket,
        accept: Option<Accept>,
    ) -> io::Result<Self> {
        let local = set_up(&link, &shared, accept.is_some())?;
        Ok(Self {
            shared,
            context,
            link,
            local,
            desk: Rc::default(),
            sessions: HashMap::new(),
            unproven: BTreeMap::new(),
            looks_at: None,
            has_evicted: false,
            timers: BTreeMap::new(),
            accept,
            working: Vec::new(),
            reported: HashMap::new(),
            switch: Rc::default(),
            rebind: Rc::default(),
            tells_at: None,
        })
    }

    /// The same, with those who may have it leave its socket: to another process, or for another socket.
    pub(super) fn passed_by(self, switch: Rc<Switch>, rebind: Rc<Rebind>) -> Self {
        Self { switch, rebind, ..self }
    }

    /// Goes over to another socket, with all sessions. Datagrams that wait at the one before are taken first.
    ///
    /// # Errors
    /// When the new one cannot be used: the one before is not read on.
    fn follow_socket(&mut self, (socket, alive): Successor, cx: &mut TaskContext<'_>) -> io::Result<()> {
        for _ in 0..LAST_BATCHES {
            if self.poll_receive(cx)?.is_pending() {
                break;
            }
        }
        let link = CarrierSocket::Udp(Socket::listening(socket)?);
        self.local = set_up(&link, &self.shared, self.accept.is_some())?;
        self.link = link;
        self.rebind.opened(alive);
        Ok(())
    }

    /// The peers of all sessions, those of processes before this one included.
    fn peers(&self) -> HashSet<SocketAddr> {
        let mut peers = self.link.earlier_peers();
        peers.extend(self.sessions.keys());
        peers
    }

    /// Leaves the socket to another process.
    fn pass_on(&mut self, passing: Passing) {
        let peers = self.peers().into_iter().collect();
        if let Err(error) = passing.follow(peers, |pair, peers| self.link.pass_on(pair, peers)) {
            tracing::error!(carrier = &*self.shared.name, %error, "the socket cannot be handed over");
        }
        self.tells_at = Some(rt::now());
    }

    /// Tells the process that reads the socket which sessions there are, once a second.
    fn follow_handover(&mut self, now: Instant) {
        if !self.switch.is_passed() || self.tells_at.is_some_and(|at| now < at) && !self.sessions.is_empty() {
            return;
        }
        self.tells_at = Some(now + REPORT);
        let peers = self.peers();
        self.switch.note_left(peers.len());
        self.link.keep_peers(peers);
    }

    /// Begins a session with `peer`; another one with the same peer is replaced.
    pub(super) fn begin(&mut self, peer: SocketAddr, conv: u32, now: Instant) -> Rc<Handle> {
        let role = if self.accept.is_some() { SmuxRole::Server } else { SmuxRole::Client };
        let session = KcpSession::new(self.shared.clone(), role, conv, peer, now);
        self.shared.metrics.begin(role == SmuxRole::Server);
        let handle = Rc::new_cyclic(|me| Handle {
            shared: self.shared.clone(),
            session: RefCell::new(session),
            peer,
            local: self.local,
            context: self.context.clone(),
            desk: self.desk.clone(),
            me: RefCell::new(me.clone()),
            is_listed: Cell::new(false),
            due_at: Cell::new(None),
            is_unflushed: Cell::new(false),
            is_forgotten: Cell::new(false),
            charged: Cell::new(0),
            reports_at: Cell::new(now),
            is_unreported: Cell::new(false),
            retires_at: Cell::new(None),
        });
        if let Some(old) = self.sessions.insert(peer, handle.clone()) {
            old.session.borrow_mut().fail(SessionFailure::Replaced);
            self.forget(&old);
            self.has_evicted = true;
        }
        if role == SmuxRole::Server {
            let number = handle.session.borrow().number;
            self.unproven.insert(number, handle.clone());
        }
        handle.charge(RESERVED);
        handle.touch();
        handle
    }

    fn most_sessions(&self) -> usize {
        if matches!(self.link, CarrierSocket::Streams(_)) { MAX_SESSIONS_BY_STREAMS } else { MAX_SESSIONS }
    }

    /// Whether there is room for one session more, once others have made it.
    fn makes_room(&mut self, now: Instant) -> bool {
        if self.sessions.len() < self.most_sessions() && self.context.memory.admits() {
            return true;
        }
        let is_evicted = if self.unproven.len() >= self.sessions.len() / NEWCOMERS {
            self.evict_one_unanswered()
        } else {
            self.evict_one_at_rest(now) || self.evict_one_unanswered()
        };
        is_evicted && self.context.memory.admits()
    }

    /// Ends the oldest session whose peer has not acknowledged anything; false if there is none. Its streams are reset.
    fn evict_one_unanswered(&mut self) -> bool {
        let Some((_, handle)) = self.unproven.first_key_value() else { return false };
        let handle = handle.clone();
        self.evict(&handle);
        true
    }

    /// Ends the session without streams whose peer has been silent for longest; false if there is none.
    fn evict_one_at_rest(&mut self, now: Instant) -> bool {
        if self.looks_at.is_some_and(|at| now < at) {
            return false;
        }
        self.looks_at = Some(now + LOOK);
        let at_rest = self.sessions.values().filter_map(|handle| {
            let session = handle.session.borrow();
            let is_at_rest = session.stream_count() == 0 && !session.is_unflushed(now);
            is_at_rest.then_some((session.heard_at, session.number, handle))
        });
        let Some((_, _, handle)) = at_rest.min_by_key(|(heard_at, number, _)| (*heard_at, *number)) else {
            return false;
        };
        let handle = handle.clone();
        self.evict(&handle);
        true
    }

    fn evict(&mut self, handle: &Rc<Handle>) {
        self.shared.metrics.evicted.add(1);
        handle.session.borrow_mut().fail(SessionFailure::Replaced);
        self.remove(handle);
        self.has_evicted = true;
    }

    /// Runs until no session is left; a server's never ends.
    pub(super) async fn run(mut self) {
        loop {
            let timer = self.timers.first_key_value().map(|((at, _), _)| *at);
            let tells_at = self.tells_at.filter(|_| self.switch.is_passed());
            let timer = timer.into_iter().chain(tells_at).min();
            let turn = poll_fn(|cx| self.poll_turn(cx));
            match timer {
                Some(at) => {
                    let sleep = async {
                        rt::sleep_until(at).await;
                        Ok(())
                    };
                    if let Err(error) = rt::race(turn, sleep).await {
                        return self.fail(&error);
                    }
                }
                None => {
                    if let Err(error) = turn.await {
                        return self.fail(&error);
                    }
                }
            }
            self.work();
            // The tasks of sessions that have made room hold memory until they have had their turn.
            let has_evicted = std::mem::take(&mut self.has_evicted);
            if has_evicted || !self.desk.busy.borrow().is_empty() {
                rt::yield_now().await;
            }
            if self.accept.is_none() && self.sessions.is_empty() {
                return;
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        tracing::error!(carrier = &*self.shared.name, %error, "socket lost");
        let metrics = &self.shared.metrics;
        self.sessions.retain(|_, handle| {
            let mut session = handle.session.borrow_mut();
            session.fail(SessionFailure::Gone);
            metrics.end(session.number);
            false
        });
    }

    /// Ready once there is something to do: what has come is with its sessions then.
    fn poll_turn(&mut self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        if let Some(passing) = self.switch.take(cx) {
            self.pass_on(passing);
        }
        if let Some(next) = self.rebind.take(cx) {
            self.follow_socket(next, cx)?;
        }
        let received = self.poll_receive(cx)?;
        if received.is_ready() || !self.desk.busy.borrow().is_empty() {
            return Poll::Ready(Ok(()));
        }
        *self.desk.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Takes one batch.
    fn poll_receive(&mut self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        if let CarrierSocket::Streams(hub) = &self.link {
            let (hub, now) = (hub.clone(), rt::now());
            let (bytes, count) = std::task::ready!(hub.poll_receive(cx, |from, packet| {
                self.take(from, None, packet, now);
            }));
            self.shared.metrics.in_datagrams.add(as_u64(count));
            self.shared.metrics.in_bytes.add(as_u64(bytes));
            for client in hub.take_renewed() {
                if let Some(handle) = self.sessions.get(&client) {
                    handle.session.borrow_mut().arq.handle_new_stream();
                    handle.touch();
                }
            }
            return Poll::Ready(Ok(()));
        }
        let scratch = self.context.scratch.clone();
        let mut scratch = scratch.borrow_mut();
        let Scratch { batch, .. } = &mut **scratch.get_or_insert_default();
        let mut lost = 0;
        std::task::ready!(self.link.poll_receive(cx, batch, &mut lost))?;
        let now = rt::now();
        let mut bytes = 0;
        for at in 0..batch.len() {
            let Some(datagram) = batch.get(at) else { continue };
            let block = &mut batch.block[datagram.range()];
            bytes += block.len();
            match self.shared.crypt.open(block) {
                Ok(range) => self.take(datagram.from, datagram.to, &block[range], now),
                Err(_) => self.refuse(datagram.from, now),
            }
        }
        let metrics = &self.shared.metrics;
        metrics.in_datagrams.add(as_u64(batch.len()));
        metrics.in_bytes.add(as_u64(bytes));
        metrics.kernel.add(lost);
        Poll::Ready(Ok(()))
    }

    /// A datagram that has opened.
    fn take(&mut self, from: SocketAddr, to: Option<IpAddr>, payload: &[u8], now: Instant) {
        let shown = conversation(payload);
        let known = self.sessions.get(&from).cloned();
        let handle = match (known, shown) {
            // Parity and datagrams beside the stream belong to the current session.
            (Some(handle), None) => handle,
            (Some(handle), Some((conv, _))) if handle.session.borrow().arq.conv() == conv => handle,
            (Some(_), Some((conv, 0))) if self.accept.is_some() => self.begin(from, conv, now),
            (None, Some((conv, _))) if self.accept.is_some() => {
                if !self.makes_room(now) {
                    return self.turn_away(now);
                }
                self.begin(from, conv, now)
            }
            _ => {
                self.shared.metrics.malformed.add(1);
                return;
            }
        };
        let mut session = handle.session.borrow_mut();
        session.from = to;
        session.handle_datagram(payload, now, handle.is_short());
        handle.charge(session.charge());
        drop(session);
        handle.touch();
    }

    /// One session too many.
    fn turn_away(&self, now: Instant) {
        self.shared.metrics.refused.add(1);
        let Some(times) = self.shared.notices.crowded.due(now) else { return };
        let (carrier, sessions) = (&*self.shared.name, self.sessions.len());
        let text = if sessions >= self.most_sessions() {
            "too many sessions"
        } else {
            "no memory for more sessions"
        };
        tracing::warn!(carrier, times, sessions, "{text}: no more are taken");
    }

    /// A datagram that does not open: nobody is told on the wire.
    fn refuse(&mut self, from: SocketAddr, now: Instant) {
        self.shared.metrics.unopened.add(1);
        if let Some(handle) = self.sessions.get(&from) {
            handle.session.borrow_mut().unopened += 1;
        }
        if let Some(times) = self.shared.notices.unopened.due(now) {
            tracing::warn!(
                carrier = &*self.shared.name,
                peer = %from,
                times,
                crypt = self.shared.crypt.method().name(),
                "datagrams do not open: key or crypt differ, they are no KCP, or somebody probes"
            );
        }
    }

    /// Gives everybody who has something to do a turn.
    fn work(&mut self) {
        let now = rt::now();
        self.follow_handover(now);
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let handle = entry.remove();
            handle.due_at.set(None);
            handle.touch();
        }
        let mut working = std::mem::take(&mut self.working);
        working.append(&mut self.desk.busy.borrow_mut());
        let scratch = self.context.scratch.clone();
        let mut scratch = scratch.borrow_mut();
        let scratch = scratch.get_or_insert_default();
        for handle in working.drain(..) {
            handle.is_listed.set(false);
            self.step(&handle, scratch, now);
        }
        self.flush(scratch);
        self.working = working;
    }

    fn step(&mut self, handle: &Rc<Handle>, scratch: &mut Scratch, now: Instant) {
        if handle.is_forgotten.get() {
            return;
        }
        let mut session = handle.session.borrow_mut();
        let is_short = handle.is_short();
        session.step(now, is_short);
        if is_short && let Some(times) = self.context.memory.tell_shortage(now) {
            let most = self.context.memory.most();
            tracing::warn!(
                times,
                most,
                "KCP memory limit reached (carrier-memory): new data is accepted only as old data leaves"
            );
        }
        let opened = std::mem::take(&mut session.opened);
        if !opened.is_empty() {
            drop(session);
            if let Some(accept) = &self.accept {
                opened.into_iter().for_each(|id| accept(handle, id));
            }
            session = handle.session.borrow_mut();
        }
        if session.transmit(now, PER_SESSION, &mut scratch.outbox) {
            // More than its share: the others come first.
            handle.touch();
        }
        if scratch.outbox.len() >= PER_CALL {
            self.flush(scratch);
        }
        self.count(&mut session);
        if now >= handle.reports_at.get() {
            handle.reports_at.set(now + REPORT);
            session.wake_late(now);
            session.rest();
            self.shared.metrics.report(session.number, session.status());
            handle.is_unreported.set(false);
        } else {
            handle.is_unreported.set(true);
        }
        if !self.unproven.is_empty() && session.is_proven() {
            self.unproven.remove(&session.number);
        }
        self.tell_silence(&mut session, handle.peer, now);
        let retired = handle.retires_at.get();
        let is_unflushed = session.is_unflushed(now);
        if retired.is_some_and(|at| now >= at || session.stream_count() == 0 && !is_unflushed) {
            session.fail(SessionFailure::Replaced);
        }
        handle.settle(session.charge(), is_unflushed);
        let timeout = session.poll_timeout(now).into_iter().chain(retired).min();
        // While it does something it is looked at once a second, for those who watch.
        let is_watched = handle.is_unreported.get() || session.stream_count() > 0;
        let watch = is_watched.then_some(handle.reports_at.get());
        let timeout = timeout.into_iter().chain(watch).min();
        if session.is_over() {
            self.tell_end(&session, handle.peer, now);
            drop(session);
            return self.remove(handle);
        }
        let number = session.number;
        drop(session);
        self.set_timer(handle, number, timeout);
    }

    fn set_timer(&mut self, handle: &Rc<Handle>, number: u64, at: Option<Instant>) {
        if handle.due_at.get() == at {
            return;
        }
        if let Some(old) = handle.due_at.replace(at) {
            self.timers.remove(&(old, number));
        }
        if let Some(at) = at {
            self.timers.insert((at, number), handle.clone());
        }
    }

    fn remove(&mut self, handle: &Rc<Handle>) {
        let is_current = self.sessions.get(&handle.peer).is_some_and(|current| Rc::ptr_eq(current, handle));
        if is_current {
            self.sessions.remove(&handle.peer);
        }
        self.forget(handle);
    }

    fn forget(&mut self, handle: &Rc<Handle>) {
        if handle.is_forgotten.replace(true) {
            return;
        }
        let number = handle.session.borrow().number;
        if let Some(old) = handle.due_at.take() {
            self.timers.remove(&(old, number));
        }
        self.unproven.remove(&number);
        self.reported.remove(&number);
        self.shared.metrics.end(number);
        handle.settle(0, false);
    }

    fn flush(&self, scratch: &mut Scratch) {
        let Scratch { batch, outbox } = scratch;
        if outbox.len() == 0 {
            return;
        }
        let Sent { sent, full, too_big, failed, .. } =
            self.link.send_from(batch, &outbox.block, &outbox.datagrams);
        let metrics = &self.shared.metrics;
        metrics.out_datagrams.add(as_u64(sent));
        metrics.out_bytes.add(as_u64(outbox.block.len()));
        metrics.full.add(as_u64(full));
        metrics.failed.add(as_u64(too_big + failed));
        outbox.clear();
    }

    /// Adds what a session has counted since the last time.
    fn count(&mut self, session: &mut KcpSession) {
        let metrics = &self.shared.metrics;
        let counts = std::mem::take(&mut session.counts);
        for (counter, n) in [
            (&metrics.sent, counts.sent),
            (&metrics.received, counts.received),
            (&metrics.malformed, counts.malformed),
            (&metrics.parity, counts.parity),
            (&metrics.recovered, counts.recovered),
            (&metrics.bad_parity, counts.bad_parity),
        ] {
            if n > 0 {
                counter.add(n);
            }
        }
        let (now, Reported(before)) = (
            session.arq.stats(),
            self.reported.insert(session.number, Reported(session.arq.stats())).unwrap_or_default(),
        );
        let again = now.sent_again - before.sent_again;
        let timed_out = now.timed_out - before.timed_out;
        metrics.out_segments.add(now.sent - before.sent);
        metrics.in_segments.add(now.received - before.received);
        metrics.repeated.add(now.repeated - before.repeated);
        metrics.timed_out.add(timed_out);
        metrics.overtaken.add(again - timed_out);
    }

    fn tell_silence(&self, session: &mut KcpSession, peer: SocketAddr, now: Instant) {
        if !session.takes_silence(now) || self.accept.is_some() {
            return;
        }
        let Some(times) = self.shared.notices.silent.due(now) else { return };
        let carrier = &*self.shared.name;
        let text = if matches!(self.link, CarrierSocket::Streams(_)) {
            "no byte comes back through proxies: none was found, or no server of this carrier stands behind the bridge"
        } else if session.unopened > 0 {
            "the server answers, but its datagrams do not open: key or crypt differ"
        } else {
            "the server does not answer: nothing listens there, datagrams are dropped on the way, or key or crypt differ"
        };
        tracing::warn!(carrier, %peer, times, "{text}");
    }

    fn tell_end(&self, session: &KcpSession, peer: SocketAddr, now: Instant) {
        let carrier = &*self.shared.name;
        match session.failure() {
            Some(SessionFailure::Wire(error)) => {
                let Some(times) = self.shared.notices.illegal.due(now) else { return };
                let text = "the session's bytes make no sense: compression, smux version or QPP differ from the peer's";
                tracing::warn!(carrier, %peer, times, %error, "{text}");
            }
            Some(SessionFailure::Gone) if session.is_mute() && self.accept.is_none() => {
                let Some(times) = self.shared.notices.silent.due(now) else { return };
                let text = "the peer takes our datagrams and says nothing: compression or smux version differ, or it has ended";
                tracing::warn!(carrier, %peer, times, "{text}");
            }
            Some(SessionFailure::Gone) => {
                if let Some(times) = self.shared.notices.gone.due(now) {
                    tracing::info!(carrier, %peer, times, "session over: the peer has gone");
                }
            }
            Some(SessionFailure::Forgotten) => {
                if let Some(times) = self.shared.notices.gone.due(now) {
                    tracing::info!(carrier, %peer, times, "session over: the server was started anew");
                }
            }
            Some(SessionFailure::Replaced) | None => tracing::debug!(carrier, %peer, "session over"),
        }
    }
}

#[cfg(test)]
mod tests;
