//! From "a client wants X" to a connection and its record: the only way, for every inbound.
//!
//! ```text
//!   inbound ─ Request ─→ Origin::route ─ Routed ─→ connect ─ Session ─→ run: relay, retry, record, release
//! ```
//!
//! If a rule asks for the protocol that the client speaks to the target, `route_after` waits for the first bytes.
//! Nothing here knows a protocol: an inbound makes the request, an [`Outbound`] makes the connection.

mod error;
mod failure_signals;
mod first_bytes;
mod outbound;
mod programs;
mod route_context;
mod session;
mod unsniffable;

use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_model::rule::{FindProgram, Network, RejectMethod, Verdict};
use adit_model::{RuleLine, Tag};
use adit_net::program::{self, Program};
use adit_net::reach::Reach;
use adit_net::rt::{self, Pool, Stream};
use adit_proto::wire::{Host, Target};

use crate::admission::{Places, StreamSlot};
use crate::connections::listing::Ask;
use crate::connections::refusal_log::RefusalLog;
use crate::connections::table::Conns;
use crate::counters::InboundMetrics;
use crate::datagram::{DatagramRouter as _, Renewal};
use crate::dns::{FakeLookup, FakePin};
use crate::relay::Early;
use crate::routing::{self, Query, RouteOutcome, Router};
use crate::users::Account;

pub(crate) use self::error::{OpenError, chain};
pub(crate) use self::outbound::{
    ConnectTarget, DialledMember, Future, OpenedConnection, Outbound, may_retry,
};
pub(crate) use self::route_context::{OutboundHandle, Outbounds, RouteContext};
pub(crate) use self::session::RelaySession;

/// A request that is dropped by a rule is held this long, and then reset.
const SILENCE: Duration = Duration::from_secs(30);

/// State that the connections of one core share.
pub(crate) struct CoreContext {
    /// Buffers.
    pub(crate) pool: Pool,
    /// The table of connections.
    pub(crate) conns: Rc<Conns>,
    /// The descriptors and memory that connections draw on.
    pub(crate) places: Rc<Places>,
    /// Whether targets may appear in log lines of level info.
    pub(crate) log_destinations: Cell<bool>,
    /// Lines about clients that are refused, of all cores together.
    pub(crate) refusals: RefusalLog,
    /// The listeners of associations, whose flows are in the list of connections.
    pub(crate) associations: Associations,
}

/// Listeners that last as long as a connection of their client.
#[derive(Default)]
pub(crate) struct Associations(RefCell<Vec<Weak<Renewal>>>);

impl Associations {
    /// A listener begins.
    pub(crate) fn add(&self, listener: &Rc<Renewal>) {
        let mut all = self.0.borrow_mut();
        // Those that have ended leave before there is room for more.
        if all.len() == all.capacity() {
            all.retain(|known| known.strong_count() > 0);
        }
        all.push(Rc::downgrade(listener));
    }

    /// Asks all.
    pub(crate) fn ask(&self, ask: &Ask) {
        self.0.borrow().iter().filter_map(Weak::upgrade).for_each(|listener| listener.ask(ask.clone()));
    }
}

/// State that the requests of one inbound share, on one core.
pub(crate) struct Origin {
    /// The inbound's name in logs and status.
    pub(crate) inbound: Tag,
    /// Counters of the inbound.
    pub(crate) metrics: Arc<InboundMetrics>,
    /// State that the connections of the core share.
    pub(crate) core: Rc<CoreContext>,
    /// Outbounds and rules for its requests.
    pub(crate) live: Rc<RouteContext>,
}

/// The client of a request.
#[derive(Clone)]
pub(crate) struct RequestSource {
    /// The inbound.
    pub(crate) origin: Rc<Origin>,
    /// The client.
    pub(crate) peer: SocketAddr,
    /// The user, where the inbound knows its users.
    pub(crate) user: Option<Arc<Account>>,
}

/// One request of one client for a stream.
pub(crate) struct StreamRequest {
    /// The client.
    pub(crate) source: RequestSource,
    /// The target.
    pub(crate) target: Target,
    /// When the request was complete.
    pub(crate) since: Instant,
    /// The protocol that the client speaks to the target, as far as its first bytes have told.
    protocol: Option<&'static str>,
    /// The protocol by which the client asked, where its port takes several; for the list of connections.
    pub(crate) entry: &'static str,
    /// The traffic class of the client's packets, where rules may ask.
    class: u8,
    alias: Alias,
    /// The name that the first bytes have told, where rules judge it.
    sniffed: Option<Box<Sniffed>>,
    /// More about the client, where rules may ask.
    client: Option<Box<Client>>,
}

/// A name from a client's first bytes, with the port of the target.
struct Sniffed {
    judged: Target,
    /// The address that the client asked for, where the stream goes to that.
    asked_for: Option<IpAddr>,
}

/// A client of a stream, where rules may ask for its program or its port.
#[derive(Default)]
struct Client {
    /// The address of this host that it came to.
    local: Option<SocketAddr>,
    /// The address that it named: where its traffic is captured, its socket is connected to it.
    named: Option<SocketAddr>,
    /// Its program has been sought.
    is_sought: bool,
    /// Its program, if it was found.
    program: Option<Program>,
}

/// The address that a client named, where it stands for a name.
enum Alias {
    /// It stands for itself, or the client named the name.
    None,
    /// It is a fake one: the target is its name, which keeps it while this lives.
    Fake { _pin: FakePin },
    /// It is a fake one of no name.
    Unmapped,
    /// A client was told that it is the address of this name, which rules judge with it.
    Known(Box<Target>),
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// A rule refuses it.
    Rule(RejectMethod),
    /// Its target is a fake address of no name.
    Unmapped,
}

/// A request whose way is decided.
pub(crate) struct Routed {
    pub(crate) request: StreamRequest,
    /// The outbound that it takes.
    pub(crate) outbound: Rc<dyn Outbound>,
    /// The only addresses that may be dialled, where the rules judged the target by its addresses.
    addresses: Option<Box<[IpAddr]>>,
    /// The addresses at which this machine may dial it.
    reach: Reach,
    /// Why it is refused, if it is.
    refusal: Option<Refusal>,
    /// The descriptor of the connection to its target.
    slot: OnceCell<StreamSlot>,
    /// The rule that decided, where control programs may ask.
    rule: Option<Arc<RuleLine>>,
}

impl Origin {
    /// A request from `peer` for `target`, complete at this moment.
    pub(crate) fn request(
        self: &Rc<Self>,
        peer: SocketAddr,
        user: Option<Arc<Account>>,
        target: Target,
    ) -> StreamRequest {
        let source = RequestSource { origin: self.clone(), peer, user };
        let client = self.live.asks_client().then(|| {
            let named = match &target.host {
                Host::Ip(ip) => Some(SocketAddr::new(*ip, target.port)),
                Host::Name(_) => None,
            };
            Box::new(Client { named, ..Client::default() })
        });
        let (target, alias) = self.look_behind(target);
        StreamRequest {
            source,
            target,
            since: rt::now(),
            protocol: None,
            entry: "",
            class: 0,
            alias,
            sniffed: None,
            client,
        }
    }

    /// The name in the place of a fake address.
    fn look_behind(&self, target: Target) -> (Target, Alias) {
        let Host::Ip(ip) = &target.host else {
            let renamed = self.live.renamed(&target);
            return (renamed.unwrap_or(target), Alias::None);
        };
        let (ip, port) = (*ip, target.port);
        let named = |name: &str| Target { host: Host::Name(name.into()), port };
        match self.live.fake().map_or(FakeLookup::Other, |fake| fake.look(ip)) {
            FakeLookup::Name(name, pin) => (named(&name), Alias::Fake { _pin: pin }),
            FakeLookup::Unmapped => (target, Alias::Unmapped),
            FakeLookup::Other => {
                let known = self.live.name_behind(ip);
                (target, known.map_or(Alias::None, |name| Alias::Known(Box::new(named(&name)))))
            }
        }
    }
}

impl StreamRequest {
    /// The same, of a client that came to this host on `stream`.
    #[must_use]
    pub(crate) fn on(mut self, stream: &Stream) -> Self {
        if let Some(client) = &mut self.client {
            client.local = stream.local_addr().ok();
        }
        if self.source.origin.live.asks_class() {
            self.class = stream.accepted_class();
        }
        self
    }

    /// The client's program, if it was sought and found.
    fn program(&self) -> Option<&Program> {
        self.client.as_ref()?.program.as_ref()
    }

    /// Whether the client's program has been sought, or no rule can ask for it.
    fn is_sought(&self) -> bool {
        self.client.as_ref().is_none_or(|client| client.is_sought)
    }

    /// Seeks the client's program, once.
    async fn seek_program(&mut self) {
        let from = route_context::source(self.source.peer);
        let Some(client) = self.client.as_mut().filter(|client| !client.is_sought) else { return };
        client.is_sought = true;
        let to = client.local.into_iter().chain(client.named).collect();
        if let Some(from) = from {
            client.program = program::find(program::Client { is_udp: false, from, to }).await;
        }
    }

    /// Decides the way, once.
    pub(crate) async fn route(mut self) -> Routed {
        let live = self.source.origin.live.clone();
        // The inbound may have been closed while the request came in.
        if self.source.origin.core.conns.is_cut() {
            return Routed::refused(self, live.leaf().outbound, Refusal::Rule(RejectMethod::Protocol));
        }
        if matches!(self.alias, Alias::Unmapped) {
            return Routed::refused(self, live.leaf().outbound, Refusal::Unmapped);
        }
        let router = live.router();
        if router.find_program() == FindProgram::Always {
            Box::pin(self.seek_program()).await;
        }
        if router.is_empty() {
            let outbound = live.leaf().outbound;
            return Routed {
                request: self,
                outbound,
                addresses: None,
                reach: live.reach(),
                refusal: None,
                slot: OnceCell::new(),
                rule: None,
            };
        }
        let mut addresses = None;
        if let Some(ip) = self.asked_for() {
            addresses = Some(vec![ip]);
        }
        let decision = loop {
            match self.decide(&router, addresses.as_deref()) {
                RouteOutcome::Decided(decision) => break decision,
                RouteOutcome::NeedsProgram if !self.is_sought() => Box::pin(self.seek_program()).await,
                RouteOutcome::NeedsAddresses if addresses.is_none() => {
                    let Host::Name(name) = &self.target.host else {
                        unreachable!("an address is judged as it is")
                    };
                    let resolver = live.resolver().outbound;
                    addresses = Some(resolver.lookup(name).await.unwrap_or_default());
                }
                RouteOutcome::NeedsProgram | RouteOutcome::NeedsAddresses => {
                    return Routed::refused(
                        self,
                        live.leaf().outbound,
                        Refusal::Rule(RejectMethod::Protocol),
                    );
                }
            }
        };
        let addresses = addresses.filter(|addresses| decision.judged && !addresses.is_empty());
        match (decision.verdict, live.leaf_of(decision.verdict)) {
            (Verdict::Reject(manner), _) => {
                Routed::refused(self, live.leaf().outbound, Refusal::Rule(*manner))
            }
            (_, leaf) => {
                let outbound = leaf.unwrap_or_else(|| live.leaf()).outbound;
                let reach = live.reach_of(&decision);
                let rule = decision.rule.and_then(|rule| router.label(rule).cloned());
                Routed {
                    request: self,
                    outbound,
                    addresses: addresses.map(Vec::into_boxed_slice),
                    reach,
                    refusal: None,
                    slot: OnceCell::new(),
                    rule,
                }
            }
        }
    }

    /// Directly to the target, without the rules: for targets of the configuration.
    pub(crate) fn direct(self) -> Routed {
        let outbound = self.source.origin.live.resolver().outbound;
        Routed {
            request: self,
            outbound,
            addresses: None,
            reach: Reach::Anywhere,
            refusal: None,
            slot: OnceCell::new(),
            rule: None,
        }
    }

    fn decide<'r>(&self, router: &'r Router, addresses: Option<&[IpAddr]>) -> RouteOutcome<'r> {
        self.source.origin.live.decide(router, &self.query(), addresses)
    }

    /// The target that rules judge.
    fn judged(&self) -> &Target {
        match (&self.sniffed, &self.alias) {
            (Some(sniffed), _) => &sniffed.judged,
            (None, Alias::Known(name)) => name,
            (None, Alias::None | Alias::Fake { .. } | Alias::Unmapped) => &self.target,
        }
    }

    /// The address that the client asked for, where rules judge a name that stands behind it.
    fn asked_for(&self) -> Option<IpAddr> {
        match (&self.sniffed, &self.alias, &self.target.host) {
            (Some(sniffed), ..) => sniffed.asked_for,
            (None, Alias::Known(_), Host::Ip(ip)) => Some(*ip),
            (None, ..) => None,
        }
    }

    /// The name that the client's first bytes have told, if one was found and is used.
    fn sniffed_name(&self) -> Option<&str> {
        name_of(&self.sniffed.as_ref()?.judged)
    }

    /// The name that stands behind the address that the client named.
    fn name(&self) -> Option<&str> {
        match &self.alias {
            Alias::Known(target) => name_of(target),
            Alias::None | Alias::Fake { .. } | Alias::Unmapped => None,
        }
    }

    /// The request, as rules see it.
    fn query(&self) -> Query<'_> {
        Query {
            inbound: &self.source.origin.inbound,
            source: route_context::source(self.source.peer),
            user: self.source.user.as_ref().map(|account| &*account.name),
            network: Network::Tcp,
            target: self.judged(),
            protocol: self.protocol,
            known: self.known(),
        }
    }

    /// Facts about the client.
    fn known(&self) -> routing::ClientFacts<'_> {
        let live = &self.source.origin.live;
        let entry = if self.entry.is_empty() { live.entry() } else { self.entry };
        let local = self.client.as_ref().and_then(|client| client.local).map(|local| local.port());
        let program = self.program();
        routing::ClientFacts {
            port: live.port().or(local),
            entry: Some(entry),
            process: program.and_then(|program| program.path.as_deref()),
            uid: program.map(|program| program.uid),
            is_sought: self.is_sought(),
            dscp: self.class >> 2,
            asked_for: self.asked_for(),
        }
    }
}

fn name_of(target: &Target) -> Option<&str> {
    match &target.host {
        Host::Name(name) => Some(name),
        Host::Ip(_) => None,
    }
}

impl Routed {
    fn refused(request: StreamRequest, outbound: Rc<dyn Outbound>, refusal: Refusal) -> Self {
        Self {
            request,
            outbound,
            addresses: None,
            reach: Reach::Public,
            refusal: Some(refusal),
            slot: OnceCell::new(),
            rule: None,
        }
    }

    /// A connection of the outbound, counted as a request.
    pub(crate) async fn open(&self) -> Result<OpenedConnection, OpenError> {
        let metrics = &self.request.source.origin.metrics;
        metrics.requests.add(1);
        let opened = match self.refusal {
            Some(Refusal::Rule(manner)) => Err(self.refuse(manner).await),
            Some(Refusal::Unmapped) => Err(OpenError::Unmapped),
            None => {
                self.slot.get_or_init(|| self.request.source.origin.core.places.stream());
                self.dial(false).await
            }
        };
        if let Ok(opened) = &opened {
            metrics.results.ok.add_alone(1);
            self.note_opened(opened);
        }
        opened.inspect_err(|error| {
            self.request.source.origin.live.outbounds().note_open_error(&*self.outbound, error);
            let private = error.private();
            let is_refused = private.is_some() || matches!(error, OpenError::Blocked(_));
            metrics.refused.rule.add(u64::from(is_refused));
            metrics.refused.unmapped.add(u64::from(matches!(error, OpenError::Unmapped)));
            let is_refused = is_refused || matches!(error, OpenError::Unmapped);
            if is_refused { &metrics.results.refused } else { &metrics.results.dial_failed }.add_alone(1);
            if let Some(kind) = private {
                self.request.source.origin.live.note_private(kind);
            }
            self.log_open_error(error);
        })
    }

    /// Waits where the client is to get no answer.
    async fn refuse(&self, manner: RejectMethod) -> OpenError {
        if manner == RejectMethod::Drop {
            rt::sleep(SILENCE).await;
        }
        OpenError::Blocked(manner)
    }

    /// Once more, for a kept connection that the server had given up; never on a kept one.
    pub(crate) async fn open_again(&self) -> Result<OpenedConnection, OpenError> {
        self.dial(true).await.inspect_err(|error| self.log_open_error(error))
    }

    /// The session of this request of the client at `near`, ready for the relay.
    ///
    /// # Errors
    /// When there is no way to the target, or when the carrier of `near` gives the client up meanwhile: the connection that
    /// is under way is dropped then.
    pub(crate) async fn connect(self, near: &Stream, early: Early) -> Result<Box<RelaySession>, OpenError> {
        let lost = async {
            near.lost().await;
            Err(OpenError::Lost)
        };
        let opened = rt::race(lost, Box::pin(self.open())).await?;
        Ok(Box::new(RelaySession::new(self, opened, early)))
    }

    async fn dial(&self, fresh: bool) -> Result<OpenedConnection, OpenError> {
        let (target, addresses) = (&self.request.target, self.addresses.as_deref());
        let source = route_context::source(self.request.source.peer).map(|peer| peer.ip());
        let to = ConnectTarget { target, addresses, reach: self.reach, source };
        self.outbound.connect(to, fresh).await
    }

    /// One line about a connection that could not be opened.
    fn log_open_error(&self, error: &OpenError) {
        let StreamRequest { source, target, .. } = &self.request;
        let (inbound, outbound) = (&*source.origin.inbound, &**self.outbound.name());
        let error = error.chain();
        if source.origin.core.log_destinations.get() {
            tracing::info!(inbound, outbound, %target, error, "connection could not be opened");
        } else {
            tracing::debug!(inbound, outbound, %target, error, "connection could not be opened");
        }
    }
}
