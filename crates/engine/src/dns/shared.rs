//! State that all cores share: the cache, the questions under way, and the lists of name servers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_model::{self as model, DnsTransport, HostTable, NameServer, StateFile, Upstream};
use adit_net::resolve::ResolveError;
use adit_net::rt;
use adit_net::tls::Roots;

use super::cache::{Cache, CacheLimits, Hit, Key, QueryOutcome};
use super::fake::Fake;
use super::fallback::{FallbackNameServers, Trusted};
use super::message::Body;
use super::reverse::Reverse;
use super::system::System;
use super::tls::Tls;
use crate::admission::{EvictionQueue, EvictionRank, HolderId, prefix};

/// Questions under way at the same time in the whole process, where descriptors are plenty: each holds a socket or two. Of
/// a smaller number one in [`FLIGHTS_PART`] is for them, and so many always are.
const MAX_FLIGHTS: usize = 1024;
const FLIGHTS_PART: u64 = 8;
const MIN_FLIGHTS: usize = 16;

/// The most questions under way at the same time. One more has the oldest give way.
pub(super) fn most_flights() -> usize {
    let descriptors = adit_net::fd_limit().map_or(1024, |(soft, _)| soft);
    usize::try_from(descriptors / FLIGHTS_PART).unwrap_or(MAX_FLIGHTS).clamp(MIN_FLIGHTS, MAX_FLIGHTS)
}

/// The one whose question it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// This process: a connection or a datagram waits for its target.
    Own,
    /// A client of a port that answers questions.
    Client(IpAddr),
}

impl Asker {
    /// Its place among those who give way.
    fn place(self) -> (EvictionRank, IpAddr) {
        match self {
            Self::Own => (EvictionRank::Answered, Ipv6Addr::UNSPECIFIED.into()),
            Self::Client(ip) => (EvictionRank::Unanswered, prefix(ip)),
        }
    }
}

/// The part of the DNS service that all cores share.
pub(crate) struct DnsShared {
    pub(super) system: System,
    pub(super) tls: Tls,
    /// Fake addresses, if there are any.
    pub(super) fake: Option<Arc<Fake>>,
    /// Names of addresses that clients were given, where they are remembered.
    reverse: Mutex<Reverse>,
    bypass: Mutex<Option<Bypass>>,
    state: Mutex<State>,
    lists: Mutex<Lists>,
    /// For cores that start.
    settings: Mutex<Arc<Settings>>,
    /// The networks that a fallback trusts, which come once the lists have been read.
    trusted: Arc<Mutex<Trusted>>,
    /// The names of lists that policies are about, which come at the same time.
    named: Arc<Mutex<PolicyNames>>,
}

/// The names of each list that a policy is about, with the number of its servers; see [`model::Dns::list_for`].
pub(crate) type PolicyNames = Vec<(usize, super::NameList)>;

/// The part of the service that a configuration says. Another configuration brings another one; each core takes it with
/// the rest of that configuration.
pub(crate) struct Settings {
    pub(super) config: model::Dns,
    pub(super) hosts: HostTable,
    /// Servers for addresses that others are not believed for, if there are any.
    pub(super) fallback: Option<FallbackNameServers>,
    /// By the number of [`model::Dns::list_for`].
    lists: Vec<Arc<List>>,
    named: Arc<Mutex<PolicyNames>>,
}

/// Name servers that are asked in order. Lists with the same servers are one for as long as somebody has it, also over a
/// change of the configuration: answers and questions under way belong to a list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) number: u32,
    /// Empty for the system's.
    pub(super) servers: Arc<[Arc<Upstream>]>,
    /// Whether the fallback is asked where an address of theirs is not believed.
    pub(super) is_doubted: bool,
}

/// The lists that somebody has.
#[derive(Default)]
struct Lists {
    all: Vec<Weak<List>>,
    next: u32,
}

impl Lists {
    fn get(&mut self, servers: Arc<[Arc<Upstream>]>, is_doubted: bool) -> Arc<List> {
        let is_same = |list: &Arc<List>| list.servers == servers && list.is_doubted == is_doubted;
        let known = self.all.iter().filter_map(Weak::upgrade).find(is_same);
        known.unwrap_or_else(|| {
            self.all.retain(|list| list.strong_count() > 0);
            let list = Arc::new(List { number: self.next, servers, is_doubted });
            self.next = self.next.wrapping_add(1);
            self.all.push(Arc::downgrade(&list));
            list
        })
    }
}

impl Settings {
    fn new(
        config: &model::Dns,
        lists: &mut Lists,
        trusted: &Arc<Mutex<Trusted>>,
        named: &Arc<Mutex<PolicyNames>>,
    ) -> Self {
        // Names that the policy has servers for are theirs.
        let is_doubted = |number| number == 0 && config.fallback.is_some();
        let mut get = |number| lists.get(config.list(number).into(), is_doubted(number));
        let numbered = (0..=config.policy.len()).map(&mut get).collect();
        let fallback = config.fallback.as_deref().map(|fallback| {
            let list = lists.get(fallback.upstreams.as_slice().into(), false);
            FallbackNameServers::new(fallback, list, trusted.clone())
        });
        let named = named.clone();
        Self { hosts: HostTable::new(config), fallback, lists: numbered, named, config: config.clone() }
    }

    /// The name servers for a name in lower case without a dot at its end.
    pub(super) fn list_for(&self, name: &str) -> &Arc<List> {
        // While the configuration changes, the lists may be those of the other one.
        self.lists.get(self.number_for(name)).unwrap_or(&self.lists[0])
    }

    /// The number of the policy for a name, or of the first list with it that no domain is about; 0 for none.
    fn number_for(&self, name: &str) -> usize {
        let number = self.config.list_for(name);
        if number > 0 || !self.config.policy.iter().any(|policy| policy.set().is_some()) {
            return number;
        }
        let named = lock(&self.named);
        named.iter().find(|(_, names)| names.holds(name)).map_or(0, |(number, _)| *number)
    }

    /// Whether the policy for a name leaves it its real addresses.
    pub(super) fn is_direct(&self, name: &str) -> bool {
        let policy = self.number_for(name).checked_sub(1).and_then(|at| self.config.policy.get(at));
        policy.is_some_and(|policy| policy.direct)
    }
}

/// Told of the addresses of names that are to be left alone by the capture, with the time for which they hold, before
/// the answer leaves.
pub(crate) type Bypass = Arc<dyn Fn(&[IpAddr], Duration) + Send + Sync>;

struct State {
    cache: Cache,
    flights: HashMap<Key, Arc<Flight>>,
    /// The order in which flights give way, the oldest of a source with far more than its part first.
    order: EvictionQueue<Key>,
    most_flights: usize,
}

/// One question under way.
pub(super) struct Flight(Mutex<Progress>);

enum Progress {
    Waiting(Vec<Waker>),
    Over(QueryOutcome),
}

/// The duty to answer a question; dropping it is a failure.
pub(super) struct QueryDuty {
    shared: Arc<DnsShared>,
    pub(super) key: Key,
    flight: Arc<Flight>,
    place: HolderId,
    is_done: bool,
}

/// Result of asking a question.
pub(super) struct StartedQuery {
    pub(super) known: Begins,
    /// A question that the caller has to ask, on this core.
    pub(super) ticket: Option<QueryDuty>,
}

/// The part of the result that is known at once.
pub(super) enum Begins {
    /// The cache knows it.
    Known(Hit),
    /// It is being asked for.
    Wait(Arc<Flight>),
}

impl DnsShared {
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

    /// The capture is to leave these addresses alone for so long.
    pub(super) fn note_direct(&self, ips: &[IpAddr], ttl: Duration) {
        let bypass = lock(&self.bypass).clone();
        bypass.iter().for_each(|bypass| bypass(ips, ttl));
    }

    /// Names of addresses that clients were given.
    pub(super) fn reverse(&self) -> MutexGuard<'_, Reverse> {
        lock(&self.reverse)
    }

    pub(super) fn with_system(config: &model::Dns, system: System, roots: Roots) -> Self {
        let (mut lists, trusted, named) = (Lists::default(), Arc::default(), Arc::default());
        let settings = Mutex::new(Arc::new(Settings::new(config, &mut lists, &trusted, &named)));
        let cache = Cache::new(terms(config));
        Self {
            settings,
            trusted,
            named,
            fake: None,
            reverse: Mutex::default(),
            bypass: Mutex::default(),
            system,
            tls: Tls::new(roots),
            state: Mutex::new(State {
                cache,
                flights: HashMap::new(),
                order: EvictionQueue::default(),
                most_flights: most_flights(),
            }),
            lists: Mutex::new(lists),
        }
    }

    /// The settings of the configuration that runs.
    pub(super) fn settings(&self) -> Arc<Settings> {
        lock(&self.settings).clone()
    }

    /// Ports of this process that answer questions, which are not asked as name servers of the system.
    pub(crate) fn set_own_ports(&self, ports: Vec<SocketAddr>) {
        self.system.set_own_ports(ports);
    }

    /// Takes another configuration, but for its fake addresses, as of `now`. Each core is to be given the result, by
    /// [`super::Dns::follow`]. Answers of name servers that both have are kept, and so are questions under way.
    pub(crate) fn change(&self, config: &model::Dns, now: Instant) -> Arc<Settings> {
        let settings = Arc::new(Settings::new(config, &mut lock(&self.lists), &self.trusted, &self.named));
        if self.settings().config.fallback != config.fallback {
            // Another fallback may not believe what is remembered.
            self.flush();
        }
        lock(&self.state).cache.set_terms(terms(config), now);
        if !config.reverse_map {
            *self.reverse() = Reverse::default();
        }
        *lock(&self.settings) = settings.clone();
        settings
    }

    /// The list with these servers, asked by UDP.
    pub(super) fn list_of(&self, servers: &[NameServer]) -> Arc<List> {
        let upstream = |server: &NameServer| match server {
            NameServer::System => Arc::new(Upstream::system(None, None)),
            NameServer::At(server) => plain(*server),
            NameServer::Refused => Arc::new(Upstream::refused()),
        };
        self.list_of_upstreams(servers.iter().map(upstream).collect())
    }

    /// The servers of a list as they are at this time: those of the system in the place of the one that stands for them.
    pub(super) fn present(&self, servers: &Arc<[Arc<Upstream>]>, now: Instant) -> Arc<[Arc<Upstream>]> {
        if servers.is_empty() {
            return self.system.read(now).servers.clone();
        }
        if !servers.iter().any(|server| server.is_system()) {
            return servers.clone();
        }
        let system = self.system.read(now).servers.clone();
        let mut all: Vec<Arc<Upstream>> = Vec::with_capacity(servers.len() + system.len());
        for server in &**servers {
            if !server.is_system() {
                all.push(server.clone());
                continue;
            }
            let (through, by_rules) = (&server.through, &server.by_rules);
            all.extend(system.iter().map(|one| {
                let (through, by_rules) = (through.clone(), by_rules.clone());
                Arc::new(Upstream { through, by_rules, ..Upstream::clone(one) })
            }));
        }
        all.into()
    }

    /// The list with these servers.
    pub(super) fn list_of_upstreams(&self, upstreams: Arc<[Arc<Upstream>]>) -> Arc<List> {
        lock(&self.lists).get(upstreams, false)
    }

    /// The system's list.
    pub(super) fn system_list(&self) -> Arc<List> {
        self.list_of(&[])
    }

    /// Looks up a question; `name` is in lower case. Asks the servers if the answer is not known, once per process.
    pub(super) fn begin(
        self: &Arc<Self>,
        asker: Asker,
        name: &str,
        list: u32,
        kind: u16,
        now: Instant,
    ) -> StartedQuery {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let hit = state.cache.find(name, list, kind, now);
        if let Some(hit) = &hit
            && !hit.is_stale
        {
            return StartedQuery { known: Begins::Known(hit.clone()), ticket: None };
        }
        let key = Key { name: name.into(), list, kind };
        let (flight, ticket, victim) = match state.flights.get(&key) {
            Some(flight) => (flight.clone(), None, None),
            None => {
                let is_full = state.flights.len() >= state.most_flights;
                let victim =
                    is_full.then(|| state.order.take_victim(EvictionRank::Answered, |_| 0)).flatten();
                let victim = victim.and_then(|victim| state.flights.remove(&victim));
                let flight = Arc::new(Flight(Mutex::new(Progress::Waiting(Vec::new()))));
                state.flights.insert(key.clone(), flight.clone());
                let (rank, source) = asker.place();
                let place = state.order.enter(rank, source, 0, key.clone());
                let (shared, is_done) = (self.clone(), false);
                let ticket = QueryDuty { shared, key, flight: flight.clone(), place, is_done };
                (flight, Some(ticket), victim)
            }
        };
        drop(guard);
        if let Some(victim) = victim {
            victim.end(Err(ResolveError::Busy));
        }
        let known = hit.map_or(Begins::Wait(flight), Begins::Known);
        StartedQuery { known, ticket }
    }

    /// From now on addresses within these networks are believed, where there is a fallback that asks for it.
    pub(crate) fn set_trusted(&self, trusted: Trusted) {
        *lock(&self.trusted) = trusted;
    }

    /// From now on policies about lists have these names.
    pub(crate) fn set_named(&self, named: PolicyNames) {
        *lock(&self.named) = named;
    }

    /// Forgets all answers.
    pub(crate) fn flush(&self) {
        lock(&self.state).cache.clear();
    }

    /// Lists that are remembered.
    #[cfg(test)]
    pub(super) fn lists(&self) -> usize {
        lock(&self.lists).all.len()
    }

    /// Answers that are remembered, and questions under way.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.cache.entries(), state.flights.len())
    }
}

/// The limits of the cache.
fn terms(config: &model::Dns) -> CacheLimits {
    let (min_ttl, max_ttl, stale) = (config.min_ttl, config.max_ttl, config.stale);
    CacheLimits { entries: config.cache.max(1), min_ttl, max_ttl, stale }
}

/// A server that is asked by UDP, straight from this machine.
pub(super) fn plain(server: SocketAddr) -> Arc<Upstream> {
    let (name, transport) = (server.to_string().into(), DnsTransport::Udp);
    Arc::new(Upstream {
        name,
        transport,
        server: server.into(),
        bootstrap: Vec::new(),
        through: None,
        by_rules: None,
    })
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for DnsShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Flight {
    /// The outcome; `waker` is woken once there is one.
    pub(super) fn poll(&self, waker: Option<&Waker>) -> Option<QueryOutcome> {
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

    /// The outcome is there.
    fn end(&self, outcome: QueryOutcome) {
        let before = std::mem::replace(&mut *lock(&self.0), Progress::Over(outcome));
        if let Progress::Waiting(wakers) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits for the outcome.
    pub(super) async fn wait(&self) -> QueryOutcome {
        std::future::poll_fn(|cx: &mut Context<'_>| {
            self.poll(Some(cx.waker())).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl QueryDuty {
    /// The question has been answered, for so many seconds, or nobody could.
    pub(super) fn finish(mut self, outcome: Result<(Body, u32), ResolveError>, now: Instant) {
        self.end(outcome, now);
    }

    fn end(&mut self, outcome: Result<(Body, u32), ResolveError>, now: Instant) {
        self.is_done = true;
        let mut state = lock(&self.shared.state);
        if state.order.leave(self.place).is_none() {
            // It has given way, and its name may be asked for by another one.
            return;
        }
        let known = state.cache.insert(&self.key, outcome, now);
        state.flights.remove(&self.key);
        drop(state);
        self.flight.end(known);
    }

    /// Returns once the question has had to give way.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + 'static {
        let flight = self.flight.clone();
        async move { drop(flight.wait().await) }
    }
}

impl Drop for QueryDuty {
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
