//! State that all cores share: the cache, the questions under way, and the lists of name servers.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_config::model::{self, DnsTransport, HostTable, StateFile, Upstream};
use adit_net::resolve::ResolveError;
use adit_net::rt;
use adit_net::tls::Roots;

use super::cache::{Cache, Hit, Key, Outcome, Terms};
use super::fake::Fake;
use super::fallback::{Fallback, Trusted};
use super::message::Body;
use super::reverse::Reverse;
use super::system::System;
use super::tls::Tls;

/// Questions under way at the same time in the whole process; each holds a socket or two.
pub(super) const MAX_FLIGHTS: usize = 1024;

/// The part of the DNS service that all cores share.
pub(crate) struct Shared {
    pub(super) config: model::Dns,
    pub(super) hosts: HostTable,
    /// Servers for addresses that others are not believed for, if there are any.
    pub(super) fallback: Option<Fallback>,
    pub(super) system: System,
    pub(super) tls: Tls,
    /// Fake addresses, if there are any.
    pub(super) fake: Option<Arc<Fake>>,
    /// Names of addresses that clients were given, if they are remembered.
    reverse: Option<Mutex<Reverse>>,
    bypass: Mutex<Option<Bypass>>,
    state: Mutex<State>,
    /// Name servers by the number of their list: first those of [`model::Dns::list_for`].
    lists: Mutex<Vec<Arc<[Arc<Upstream>]>>>,
}

/// Told of the addresses of names that are to be left alone by the capture, with the time for which they hold, before
/// the answer leaves.
pub(crate) type Bypass = Arc<dyn Fn(&[IpAddr], Duration) + Send + Sync>;

struct State {
    cache: Cache,
    flights: HashMap<Key, Arc<Flight>>,
}

/// One question under way.
pub(super) struct Flight(Mutex<Progress>);

enum Progress {
    Waiting(Vec<Waker>),
    Over(Outcome),
}

/// The duty to answer a question; dropping it is a failure.
pub(super) struct Ticket {
    shared: Arc<Shared>,
    pub(super) key: Key,
    flight: Arc<Flight>,
    is_done: bool,
}

/// Result of asking a question.
pub(super) struct Begun {
    pub(super) known: Begins,
    /// A question that the caller has to ask, on this core.
    pub(super) ticket: Option<Ticket>,
}

/// The part of the result that is known at once.
pub(super) enum Begins {
    /// The cache knows it.
    Known(Hit),
    /// It is being asked for.
    Wait(Arc<Flight>),
    /// Too many questions are under way.
    Busy,
}

impl Shared {
    /// A service with an empty cache. Name servers must have certificates of the system's authorities.
    pub(crate) fn new(config: &model::Dns) -> Self {
        Self::with_system(config, System::default(), Roots::System)
    }

    /// The same with the fake addresses of the configuration, which are kept beside the file of `state`; a warning if
    /// they cannot be kept.
    pub(crate) fn with_fake(config: &model::Dns, state: &StateFile) -> (Self, Option<String>) {
        let mut shared = Self::new(config);
        let Some(fake) = &config.fake else { return (shared, None) };
        let (fake, warning) = Fake::open(fake, state);
        shared.fake = Some(Arc::new(fake));
        (shared, warning)
    }

    /// The fake addresses, if there are any.
    pub(crate) fn fake(&self) -> Option<&Arc<Fake>> {
        self.fake.as_ref()
    }

    /// From now on `bypass` is told of the addresses of direct names.
    pub(crate) fn set_bypass(&self, bypass: Bypass) {
        *lock(&self.bypass) = Some(bypass);
    }

    /// A client is about to be told that a name, which may be `direct`, has these addresses for so long.
    pub(super) fn note_answer(
        &self,
        name: &str,
        ips: &[IpAddr],
        ttl: Duration,
        is_direct: bool,
        now: Instant,
    ) {
        if is_direct {
            let bypass = lock(&self.bypass).clone();
            bypass.iter().for_each(|bypass| bypass(ips, ttl));
        }
        if let Some(reverse) = &self.reverse {
            lock(reverse).insert(name, ips, ttl, now);
        }
    }

    /// The name of an address that a client was given, if names are remembered.
    pub(crate) fn name_behind(&self, ip: IpAddr, now: Instant) -> Option<Arc<str>> {
        lock(self.reverse.as_ref()?).find(ip, now)
    }

    pub(super) fn with_system(config: &model::Dns, system: System, roots: Roots) -> Self {
        let terms = Terms {
            entries: config.cache.max(1),
            min_ttl: config.min_ttl,
            max_ttl: config.max_ttl,
            stale: config.stale,
        };
        let lists = (0..=config.policy.len()).map(|number| config.list(number).into());
        let mut lists: Vec<Arc<[Arc<Upstream>]>> = lists.collect();
        let fallback = config.fallback.as_deref().map(|fallback| {
            lists.push(fallback.upstreams.as_slice().into());
            Fallback::new(fallback, u32::try_from(lists.len() - 1).unwrap_or(u32::MAX))
        });
        Self {
            hosts: HostTable::new(config),
            fallback,
            config: config.clone(),
            fake: None,
            reverse: config.reverse_map.then(Mutex::default),
            bypass: Mutex::default(),
            system,
            tls: Tls::new(roots),
            state: Mutex::new(State { cache: Cache::new(terms), flights: HashMap::new() }),
            lists: Mutex::new(lists),
        }
    }

    /// The number of the list with these servers, asked by UDP; equal lists have one number.
    pub(super) fn list_of(&self, servers: &[SocketAddr]) -> u32 {
        self.list_of_upstreams(servers.iter().map(|server| plain(*server)).collect())
    }

    /// The number of the list with these servers; equal lists have one number.
    pub(super) fn list_of_upstreams(&self, upstreams: Arc<[Arc<Upstream>]>) -> u32 {
        let mut lists = lock(&self.lists);
        let first = self.config.policy.len() + 1 + usize::from(self.fallback.is_some());
        let known = lists.iter().skip(first).position(|list| *list == upstreams);
        let number = known.map_or(lists.len(), |at| at + first);
        if number == lists.len() {
            lists.push(upstreams);
        }
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// The number of the system's list.
    pub(super) fn system_list(&self) -> u32 {
        self.list_of(&[])
    }

    /// The servers of a list; empty for the system's.
    pub(super) fn servers(&self, list: u32) -> Arc<[Arc<Upstream>]> {
        let lists = lock(&self.lists);
        usize::try_from(list).ok().and_then(|at| lists.get(at)).cloned().unwrap_or_else(|| Arc::new([]))
    }

    /// Looks up a question; `name` is in lower case. Asks the servers if the answer is not known, once per process.
    pub(super) fn begin(self: &Arc<Self>, name: &str, list: u32, kind: u16, now: Instant) -> Begun {
        let mut state = lock(&self.state);
        let hit = state.cache.find(name, list, kind, now);
        if let Some(hit) = &hit
            && !hit.is_stale
        {
            return Begun { known: Begins::Known(hit.clone()), ticket: None };
        }
        let key = Key { name: name.into(), list, kind };
        let (flight, ticket) = match state.flights.get(&key) {
            Some(flight) => (Some(flight.clone()), None),
            None if state.flights.len() >= MAX_FLIGHTS => (None, None),
            None => {
                let flight = Arc::new(Flight(Mutex::new(Progress::Waiting(Vec::new()))));
                state.flights.insert(key.clone(), flight.clone());
                let ticket = Ticket { shared: self.clone(), key, flight: flight.clone(), is_done: false };
                (Some(flight), Some(ticket))
            }
        };
        let known = match (hit, flight) {
            (Some(hit), _) => Begins::Known(hit),
            (None, Some(flight)) => Begins::Wait(flight),
            (None, None) => Begins::Busy,
        };
        Begun { known, ticket }
    }

    /// From now on addresses within these lists are believed, where there is a fallback.
    pub(crate) fn set_trusted(&self, trusted: Trusted) {
        if let Some(fallback) = &self.fallback {
            fallback.set_trusted(trusted);
        }
    }

    /// Forgets all answers.
    pub(crate) fn flush(&self) {
        lock(&self.state).cache.clear();
    }

    /// Answers that are remembered, and questions under way.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.cache.entries(), state.flights.len())
    }
}

/// A server that is asked by UDP, straight from this machine.
pub(super) fn plain(server: SocketAddr) -> Arc<Upstream> {
    let (name, transport) = (server.to_string().into(), DnsTransport::Udp);
    Arc::new(Upstream { name, transport, server: server.into(), bootstrap: Vec::new(), through: None })
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Flight {
    /// The outcome; `waker` is woken once there is one.
    pub(super) fn poll(&self, waker: Option<&Waker>) -> Option<Outcome> {
        match &mut *lock(&self.0) {
            Progress::Over(outcome) => Some(outcome.clone()),
            Progress::Waiting(wakers) => {
                if let Some(waker) = waker
                    && !wakers.iter().any(|known| known.will_wake(waker))
                {
                    wakers.push(waker.clone());
                }
                None
            }
        }
    }

    /// Waits for the outcome.
    pub(super) async fn wait(&self) -> Outcome {
        std::future::poll_fn(|cx: &mut Context<'_>| {
            self.poll(Some(cx.waker())).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Ticket {
    /// The question has been answered, for so many seconds, or nobody could.
    pub(super) fn finish(mut self, outcome: Result<(Body, u32), ResolveError>, now: Instant) {
        self.end(outcome, now);
    }

    fn end(&mut self, outcome: Result<(Body, u32), ResolveError>, now: Instant) {
        self.is_done = true;
        let mut state = lock(&self.shared.state);
        let known = state.cache.insert(&self.key, outcome, now);
        state.flights.remove(&self.key);
        drop(state);
        let before = std::mem::replace(&mut *lock(&self.flight.0), Progress::Over(known));
        if let Progress::Waiting(wakers) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_done {
            self.end(Err(ResolveError::Timeout), rt::now());
        }
    }
}

/// A panic elsewhere leaves nothing half done here.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
