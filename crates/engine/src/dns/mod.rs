//! The one owner of names: every look-up of the process goes through here.
//!
//! ```text
//!   dialers, datagrams ─→ Scope (one per outbound and core) ─→ Shared: hosts, cache, questions under way
//!                                                                │ a question that nobody asks yet
//!                           Dns (one per core) ←─ ticket ────────┘
//!                             └ race: upstreams of the list, one after the other
//!                                 └ exchange: UDP socket | kept TCP, TLS or HTTPS connection ─→ name server
//! ```
//!
//! [`DnsShared`] is what all cores share; a question is asked by the core that came first, and everybody else waits for the
//! same answer. A name server behind an outbound is reached through [`Streams`], which the outbounds implement.

mod cache;
mod debug;
mod exchange;
mod fake;
mod fallback;
mod files;
pub(crate) mod lookup;
mod message;
pub(crate) mod question;
mod race;
pub(crate) mod resolver;
mod responder;
mod reverse;
mod shared;
mod system;
mod tls;
mod upstream_connection;

#[cfg(test)]
mod tests;

use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use adit_model::{AddressFamilies, Dial, NameServer, Tag};
use adit_net::resolve::{Answers, KnownAnswers, Resolve, ResolveError, is_allowed, literal};
use adit_net::rt::{self, Stream};
use adit_proto::wire::Target;
use hickory_proto::rr::{Name, RecordType};

use self::exchange::Exchanges;
use self::lookup::{Candidate, Lookup};
use self::message::{Body, absolute};
use self::shared::{Asker, Begins, List, QueryDuty, StartedQuery};

pub use self::debug::{DnsRecord, DnsReply};
pub(crate) use self::debug::{ask, question};
pub(crate) use self::fake::{Fake, FakeLookup, FakePin, Filter, NameList};
pub use self::fake::{fake_names, fuzz_fake_store};
pub(crate) use self::fallback::Trusted;
pub use self::files::fuzz_dns_files;
pub use self::message::fuzz_dns_reply;
pub(crate) use self::question::MAX_SHORT;
pub use self::question::fuzz_dns_asked;
pub(crate) use self::responder::{Answerer, DirectNames, FastAnswer};
pub(crate) use self::shared::{DnsShared, PolicyNames, Settings};

/// A stream that is being opened.
pub(crate) type OpeningStream<'a> = Pin<Box<dyn Future<Output = io::Result<Stream>> + 'a>>;

/// Opens streams through outbounds, for name servers that are reached through one.
pub(crate) trait Streams {
    /// A stream to `to` through the outbound `via`.
    fn connect<'a>(&'a self, via: &'a str, to: &'a Target) -> OpeningStream<'a>;

    /// The way that the rules say for a request of this process itself to `to`, through `default` where they say nothing.
    /// `addresses` are those of its name, once they have been looked up.
    fn decide(&self, default: &Tag, to: &Target, addresses: Option<&[IpAddr]>) -> OwnRoute;
}

/// The way of a request of this process itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnRoute {
    /// Through this outbound.
    Outbound(Tag),
    /// A rule refuses it.
    Refused,
    /// A rule asks for the addresses of its name.
    NeedsAddresses,
}

/// Result of looking up the target of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetLookup {
    /// Its address.
    Address(IpAddr),
    /// It is being asked for.
    Pending,
    /// It has none, or none of an allowed family.
    Nothing,
}

/// The DNS service on one core.
pub(crate) struct Dns {
    shared: Arc<DnsShared>,
    settings: RefCell<Arc<Settings>>,
    /// Grows with each change of the settings.
    changes: Cell<u32>,
    exchanges: Exchanges,
    /// The server of a list that is asked first, if not the first one, and since when.
    preferred: RefCell<HashMap<u32, (usize, Instant)>>,
}

/// Names as one outbound sees them: by servers of its own, or by those of the process.
#[derive(Clone)]
pub(crate) struct Scope {
    dns: Rc<Dns>,
    /// The list of servers; `None` for the one that the policy says.
    list: Option<Arc<List>>,
    /// The outbound's own, which may leave it open.
    family: AddressFamilies,
    recent: Rc<RefCell<Recent>>,
}

/// Addresses that [`Scope::find`] has just given, so that a datagram costs one look: thousands go to one name. Each is
/// used until the time beside it, a second at most.
#[derive(Default)]
struct Recent {
    known: HashMap<Box<str>, (IpAddr, Instant)>,
    /// The number of the settings that they come from.
    of: u32,
}

/// Lifetime of [`Recent`], and its size in addresses; the cache's own times are no finer.
const RECENT: Duration = Duration::from_secs(1);
const MAX_RECENT: usize = 256;

impl Dns {
    /// The service on this core.
    pub(crate) fn new(shared: Arc<DnsShared>) -> Rc<Self> {
        let settings = RefCell::new(shared.settings());
        let (exchanges, preferred, changes) = (Exchanges::default(), RefCell::default(), Cell::new(0));
        Rc::new(Self { shared, settings, changes, exchanges, preferred })
    }

    /// New questions are asked by these settings; those under way end as they began.
    pub(crate) fn follow(&self, settings: Arc<Settings>) {
        self.settings.replace(settings);
        self.changes.set(self.changes.get().wrapping_add(1));
        self.preferred.borrow_mut().clear();
    }

    fn settings(&self) -> Ref<'_, Settings> {
        Ref::map(self.settings.borrow(), |settings| &**settings)
    }

    /// A client is about to be told that `name` has these addresses for so long.
    fn note_answer(&self, name: &str, ips: &[IpAddr], ttl: Duration, now: Instant) {
        let settings = self.settings();
        if settings.is_direct(name) {
            self.shared.note_direct(ips, ttl);
        }
        if settings.config.reverse_map {
            self.shared.reverse().insert(name, ips, ttl, now);
        }
    }

    /// The name of an address that a client was given, if names are remembered.
    pub(crate) fn name_behind(&self, ip: IpAddr, now: Instant) -> Option<Arc<str>> {
        let is_remembered = self.settings().config.reverse_map;
        if is_remembered { self.shared.reverse().find(ip, now) } else { None }
    }

    /// The service of all cores.
    pub(crate) fn shared(&self) -> &Arc<DnsShared> {
        &self.shared
    }

    /// From now on name servers behind an outbound are reached through `streams`.
    pub(crate) fn set_streams(&self, streams: Rc<dyn Streams>) {
        self.exchanges.set_streams(streams);
    }

    /// A stream to `to` through the outbound `via`.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn stream_through(&self, via: &str, to: &Target) -> io::Result<Stream> {
        let streams = self.exchanges.streams().ok_or(io::ErrorKind::NotConnected)?;
        streams.connect(via, to).await
    }

    /// Lets go of the outbounds, whose dialers hold this service.
    pub(crate) fn clear_streams(&self) {
        self.exchanges.clear_streams();
    }

    /// Names for an outbound that dials like this.
    pub(crate) fn scope(self: &Rc<Self>, dial: &Dial) -> Scope {
        let list = (!dial.dns.is_empty()).then(|| self.shared.list_of(&dial.dns));
        Scope { dns: self.clone(), list, family: dial.family, recent: Rc::default() }
    }

    /// Names for this core's own use, by the servers of `list`.
    fn listed(self: &Rc<Self>, list: Arc<List>, family: AddressFamilies) -> Scope {
        Scope { dns: self.clone(), list: Some(list), family, recent: Rc::default() }
    }

    /// Begins to ask for this process itself, here if nobody else does.
    fn begin(self: &Rc<Self>, name: &str, list: &Arc<List>, kind: RecordType, now: Instant) -> Begins {
        self.begin_for(Asker::Own, name, list, kind, now)
    }

    /// Begins to ask, here if nobody else does.
    fn begin_for(
        self: &Rc<Self>,
        asker: Asker,
        name: &str,
        list: &Arc<List>,
        kind: RecordType,
        now: Instant,
    ) -> Begins {
        let StartedQuery { known, ticket } = self.shared.begin(asker, name, list.number, kind.into(), now);
        if let Some(ticket) = ticket {
            rt::spawn_local(self.clone().answer(list.clone(), ticket));
        }
        known
    }

    async fn answer(self: Rc<Self>, list: Arc<List>, ticket: QueryDuty) {
        let outcome = match absolute(&ticket.key.name) {
            Ok(name) => {
                let kind = RecordType::from(ticket.key.kind);
                let gone = ticket.gone();
                let gone = async {
                    gone.await;
                    Err(ResolveError::Busy)
                };
                let answer = rt::race(gone, self.ask_believed(&list, &name, kind)).await;
                answer.map(|answer| (answer.body, answer.ttl))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &outcome {
            tracing::debug!(%error, "name servers");
        }
        ticket.finish(outcome, rt::now());
    }

    /// The answer of a list; of the fallback, if that is not believed.
    async fn ask_believed(
        self: &Rc<Self>,
        list: &List,
        name: &Name,
        kind: RecordType,
    ) -> Result<message::DnsAnswer, ResolveError> {
        let answer = race::ask(self, list, name, kind).await;
        if !list.is_doubted || !matches!(kind, RecordType::A | RecordType::AAAA) {
            return answer;
        }
        let settings = self.settings.borrow().clone();
        match &settings.fallback {
            Some(fallback) if !fallback.believes(&answer) => {
                race::ask(self, &fallback.list, name, kind).await
            }
            Some(_) | None => answer,
        }
    }

    /// Whether a name in lower case has addresses that need no name server.
    fn is_fixed(&self, name: &str, now: Instant) -> bool {
        literal(name).is_some()
            || self.settings().hosts.addresses(name).is_some()
            || self.shared.system.read(now).hosts.find(name).is_some()
    }

    /// The addresses that need no name server: in text, localhost, and the hosts of configuration and system.
    fn fixed(&self, name: &str, now: Instant) -> Option<Vec<IpAddr>> {
        if let Some(ips) = literal(name) {
            return Some(ips);
        }
        let plain = name.strip_suffix('.').unwrap_or(name);
        let lower = plain.to_ascii_lowercase();
        if let Some(ips) = self.settings().hosts.addresses(&lower) {
            return Some(ips.to_vec());
        }
        self.shared.system.read(now).hosts.find(&lower).map(<[IpAddr]>::to_vec)
    }
}

impl Scope {
    /// The names that `name` may stand for, in order, each with the list of servers that know it.
    fn candidates(&self, name: &str, now: Instant) -> Result<Vec<Candidate>, ResolveError> {
        let whole = absolute(name)?;
        let own = key_of(&whole);
        let list = self.list_for(&own);
        if !list.servers.is_empty() {
            return Ok(vec![(own, list)]);
        }
        let names = self.dns.shared.system.read(now).candidates(name, whole);
        Ok(names.iter().map(|name| (key_of(name), list.clone())).collect())
    }

    /// The name servers for a name in lower case without a dot at its end.
    fn list_for(&self, name: &str) -> Arc<List> {
        self.list.clone().unwrap_or_else(|| self.dns.settings().list_for(name).clone())
    }

    /// All addresses of `name`; see [`adit_net::resolve::lookup`].
    ///
    /// # Errors
    /// [`ResolveError`].
    pub(crate) async fn lookup(
        &self,
        name: &str,
        family: AddressFamilies,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        adit_net::resolve::lookup(self, name, family).await
    }

    /// The address of `name` that a datagram is sent to, as of `now`; `waker` is woken once it is known if it is not.
    /// With both families allowed it is an IPv4 address where there is one: a datagram has no second attempt.
    pub(crate) fn find(&self, name: &str, waker: Option<&Waker>, now: Instant) -> TargetLookup {
        let of = self.dns.changes.get();
        let recent = self.recent.borrow();
        if let Some((ip, until)) = recent.known.get(name)
            && now < *until
            && recent.of == of
        {
            return TargetLookup::Address(*ip);
        }
        drop(recent);
        let found = self.find_anew(name, waker, now);
        if let TargetLookup::Address(ip) = found {
            let mut recent = self.recent.borrow_mut();
            if recent.known.len() >= MAX_RECENT || recent.of != of {
                recent.known.clear();
                recent.of = of;
            }
            recent.known.insert(name.into(), (ip, now + RECENT));
        }
        found
    }

    fn find_anew(&self, name: &str, waker: Option<&Waker>, now: Instant) -> TargetLookup {
        if let Some(ips) = self.dns.fixed(name, now) {
            let family = self.family();
            let allowed = || ips.iter().filter(|ip| is_allowed(**ip, family));
            let ip = allowed().find(|ip| ip.is_ipv4()).or_else(|| allowed().next());
            return ip.map_or(TargetLookup::Nothing, |ip| TargetLookup::Address(*ip));
        }
        let Ok(candidates) = self.candidates(name, now) else { return TargetLookup::Nothing };
        for (name, list) in candidates {
            match self.find_one(&name, &list, waker, now) {
                TargetLookup::Nothing => {}
                found @ (TargetLookup::Address(_) | TargetLookup::Pending) => return found,
            }
        }
        TargetLookup::Nothing
    }

    fn find_one(&self, name: &str, list: &Arc<List>, waker: Option<&Waker>, now: Instant) -> TargetLookup {
        let kinds: &[RecordType] = match self.family() {
            AddressFamilies::Any | AddressFamilies::PreferV4 => &[RecordType::A, RecordType::AAAA],
            AddressFamilies::V4Only => &[RecordType::A],
            AddressFamilies::V6Only => &[RecordType::AAAA],
        };
        let mut pending = false;
        for kind in kinds {
            let outcome = match self.dns.begin(name, list, *kind, now) {
                Begins::Known(hit) => Some(hit.outcome),
                Begins::Wait(flight) => flight.poll(waker),
            };
            match outcome {
                // The other family counts only once this one is known to be missing.
                Some(Ok(Body::Addresses(ips))) if !pending => return TargetLookup::Address(ips[0]),
                Some(_) => {}
                None => pending = true,
            }
        }
        if pending { TargetLookup::Pending } else { TargetLookup::Nothing }
    }

    /// The families that are asked for: the outbound's own, or those of the service where that leaves them open.
    pub(crate) fn family(&self) -> AddressFamilies {
        if self.family == AddressFamilies::Any { self.dns.settings().config.family } else { self.family }
    }
}

impl Resolve for Scope {
    fn family(&self, own: AddressFamilies) -> AddressFamilies {
        if own == AddressFamilies::Any { self.family() } else { own }
    }

    fn start(&self, name: &str, family: AddressFamilies) -> Box<dyn Answers> {
        let now = rt::now();
        if let Some(ips) = self.dns.fixed(name, now) {
            return Box::new(KnownAnswers::new(&ips, family));
        }
        match self.candidates(name, now) {
            Ok(candidates) => Box::new(Lookup::new(self.dns.clone(), candidates, family)),
            Err(error) => Box::new(KnownAnswers::failed(error)),
        }
    }
}

/// A name as the cache knows it: ASCII in lower case, without the dot of the root.
fn key_of(name: &Name) -> Box<str> {
    let text = name.to_ascii().to_ascii_lowercase();
    text.strip_suffix('.').unwrap_or(&text).into()
}

/// The name servers of the system (resolv.conf).
pub(crate) fn system_servers() -> Vec<SocketAddr> {
    files::ResolvConf::read(std::path::Path::new("/etc/resolv.conf")).servers
}

/// The names of the system's hosts file (hosts(5)) with their addresses.
pub(crate) fn system_hosts() -> Vec<(Box<str>, Vec<IpAddr>)> {
    files::Hosts::read(std::path::Path::new("/etc/hosts")).into_entries()
}

/// Names for what runs beside the configuration, on the current event loop, by these name servers or the system's.
pub fn resolver(servers: &[NameServer]) -> Rc<dyn Resolve> {
    let dns = Dns::new(Arc::new(DnsShared::new(&adit_model::Dns::default())));
    Rc::new(dns.scope(&Dial { dns: servers.to_vec(), ..Dial::default() }))
}

/// The addresses of `name` by a configuration's own service, for an outbound that dials like `dial`, on the current event
/// loop. Name servers behind an outbound are not reached.
///
/// # Errors
/// [`ResolveError`].
pub async fn lookup(service: &adit_model::Dns, dial: &Dial, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
    let scope = Dns::new(Arc::new(DnsShared::new(service))).scope(dial);
    scope.lookup(name, scope.family()).await
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dns").finish_non_exhaustive()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("list", &self.list)
            .field("family", &self.family())
            .finish_non_exhaustive()
    }
}
