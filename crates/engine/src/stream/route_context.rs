//! The outbounds of one core, by name, and the way that an inbound's requests take among them.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use adit_model::codes;
use adit_model::map::Map;
use adit_model::rule::{FindProgram, Network, RejectMethod, Verdict};
use adit_model::{Inbound, InboundProtocol, Tag};
use adit_net::program::{Client, Program};
use adit_net::reach::{Private, Reach};
use adit_net::rt;
use adit_proto::sniff::SniffedProtocol;
use adit_proto::wire::{Host, Target};

use super::programs::Programs;
use super::unsniffable::UnsniffableTargets;
use super::{OpenError, Outbound};
use crate::datagram::{
    DatagramDecision, DatagramRouter, FlowLookup, FlowTick, OutboundId, PacketOutbound, RouteQuery,
    RouteReason,
};
use crate::dns::{DirectNames, Dns, Fake};
use crate::errors::{ConfigPart, Fault, Faults, Watch, Watches};
use crate::log_throttle::LogThrottle;
use crate::routing::{self, Glimpse, Query, RouteOutcome, Router};

/// The port that names are judged for, where nobody has said one.
const HTTPS_PORT: u16 = 443;

/// An outbound as a core has it.
#[derive(Clone)]
pub(crate) struct OutboundHandle {
    /// For streams.
    pub(crate) outbound: Rc<dyn Outbound>,
    /// For datagrams, if it carries them.
    pub(crate) packets: Option<Rc<dyn PacketOutbound>>,
}

/// The outbounds on one core, by name. A request looks its outbound up, so that nobody holds an old one.
pub(crate) struct Outbounds {
    leaves: RefCell<Map<Tag, OutboundHandle>>,
    nowhere: OutboundHandle,
    /// Watches over their servers.
    watches: Watches,
    /// Grows with each change.
    changes: Cell<u32>,
}

impl Outbounds {
    /// No outbounds; `nowhere` takes the place of one that is not there. Their errors go to `faults`.
    pub(crate) fn new(nowhere: OutboundHandle, faults: Arc<Faults>) -> Self {
        Self { leaves: RefCell::default(), nowhere, watches: Watches::new(faults), changes: Cell::new(0) }
    }

    /// The outbound of this name; one that refuses all requests if there is none.
    pub(crate) fn find(&self, name: &str) -> OutboundHandle {
        self.leaves.borrow().get(name).unwrap_or(&self.nowhere).clone()
    }

    /// The outbound of this name.
    pub(crate) fn get(&self, name: &str) -> Option<OutboundHandle> {
        self.leaves.borrow().get(name).cloned()
    }

    /// Whether requests of this kind that a rule sends to a group go on to the next rule.
    pub(crate) fn passes(&self, name: &str, network: Network) -> bool {
        self.get(name).is_some_and(|leaf| leaf.outbound.passes(network))
    }

    /// Requests take this one from now on. Open connections over the one before go on.
    pub(crate) fn put(&self, name: Tag, leaf: OutboundHandle) {
        self.watches.forget(&name);
        self.leaves.borrow_mut().insert(name, leaf);
        self.changes.set(self.changes.get().wrapping_add(1));
    }

    /// Watches over their servers.
    pub(crate) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// `outbound` could not open a connection.
    pub(crate) fn note_open_error(&self, outbound: &dyn Outbound, error: &OpenError) {
        if let Some(fault) = error.fault(outbound.is_tunnel()) {
            self.watches.faults().note(&ConfigPart::Outbound(outbound.name().clone()), fault, rt::now());
        }
    }

    /// Requests take it no longer. Open connections over it go on.
    pub(crate) fn remove(&self, name: &str) {
        self.watches.forget(name);
        self.leaves.borrow_mut().remove(name);
        self.changes.set(self.changes.get().wrapping_add(1));
    }
}

/// Outbounds and rules for an inbound's requests: the part that may change under open connections.
pub(crate) struct RouteContext {
    inbound: Tag,
    /// The way by which clients ask, unless a request says more.
    entry: &'static str,
    /// The port that clients come to, where it is one.
    port: Option<u16>,
    programs: Rc<Programs>,
    in_vain: UnsniffableTargets,
    outbounds: Rc<Outbounds>,
    outbound: RefCell<Tag>,
    router: RefCell<Arc<Router>>,
    /// The reach of requests that no rule decides.
    reach: Cell<Reach>,
    /// Requests for private targets.
    refused: LogThrottle,
    changes: Cell<u32>,
    dns: Rc<Dns>,
    /// The outbounds that flows of datagrams go over.
    vias: RefCell<Vec<FlowOutbound>>,
    next_via: Cell<u32>,
}

/// An outbound that flows of datagrams go over.
struct FlowOutbound {
    via: OutboundId,
    /// The outbound's name, if it is a tunnel.
    tunnel: Option<Tag>,
    outbound: Rc<dyn PacketOutbound>,
    reach: Reach,
    /// The outbound within its reach, where that makes a difference.
    within: Option<Rc<dyn PacketOutbound>>,
}

impl RouteContext {
    /// The outbounds of the core.
    pub(crate) fn outbounds(&self) -> &Outbounds {
        &self.outbounds
    }

    /// The requests of `inbound`, by `router` among `outbounds`; without a matching rule they take its outbound.
    pub(crate) fn new(
        inbound: &Inbound,
        outbounds: Rc<Outbounds>,
        router: Arc<Router>,
        dns: Rc<Dns>,
    ) -> Self {
        let is_captured = matches!(inbound.protocol, InboundProtocol::Captured(_));
        let port = match &*inbound.listen {
            [first] => Some(first.port()),
            [first, ..] if is_captured => Some(first.port()),
            _ => None,
        };
        Self {
            inbound: inbound.name.clone(),
            entry: inbound.protocol.entry(),
            port: port.filter(|port| *port > 0),
            programs: Rc::default(),
            in_vain: UnsniffableTargets::default(),
            dns,
            outbounds,
            outbound: RefCell::new(inbound.outbound.clone()),
            router: RefCell::new(router),
            reach: Cell::default(),
            refused: LogThrottle::default(),
            changes: Cell::new(0),
            vias: RefCell::default(),
            next_via: Cell::new(0),
        }
    }

    /// The names of this core.
    pub(crate) fn dns(&self) -> &Rc<Dns> {
        &self.dns
    }

    /// The fake addresses, if there are any.
    pub(super) fn fake(&self) -> Option<&Arc<Fake>> {
        self.dns.shared().fake()
    }

    /// The target that a named one stands for, by the hosts of the configuration.
    pub(super) fn renamed(&self, target: &Target) -> Option<Target> {
        let Host::Name(name) = &target.host else { return None };
        let router = self.router.borrow();
        router.alias(name).map(|name| Target { host: Host::Name(name.into()), port: target.port })
    }

    /// The name that a client was given this address for, if such names are remembered.
    pub(super) fn name_behind(&self, ip: IpAddr) -> Option<Arc<str>> {
        self.dns.name_behind(ip, rt::now())
    }

    /// Requests that no rule decides take this outbound from now on.
    pub(crate) fn set_outbound(&self, outbound: &Tag) {
        self.outbound.replace(outbound.clone());
        self.changes.set(self.changes.get().wrapping_add(1));
    }

    /// Requests that no rule decides lead so far from now on.
    pub(crate) fn set_reach(&self, reach: Reach) {
        if self.reach.replace(reach) != reach {
            self.changes.set(self.changes.get().wrapping_add(1));
        }
    }

    /// The reach of requests that no rule decides.
    pub(super) fn reach(&self) -> Reach {
        self.reach.get()
    }

    /// The reach of a request: a rule that matches is the operator's own word.
    pub(super) fn reach_of(&self, decision: &routing::RouteDecision<'_>) -> Reach {
        if decision.rule.is_some() { Reach::Anywhere } else { self.reach() }
    }

    /// Requests follow these rules from now on.
    pub(crate) fn set_router(&self, router: Arc<Router>) {
        self.router.replace(router);
        self.changes.set(self.changes.get().wrapping_add(1));
    }

    /// The outbound that requests take unless a rule says otherwise.
    pub(crate) fn leaf(&self) -> OutboundHandle {
        self.outbounds.find(&self.outbound.borrow())
    }

    /// The rules at this time.
    pub(super) fn router(&self) -> Arc<Router> {
        self.router.borrow().clone()
    }

    /// The way by which clients ask, unless a request says more.
    pub(super) fn entry(&self) -> &'static str {
        self.entry
    }

    /// The port that clients come to, where it is one.
    pub(super) fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether decisions may ask for a client's program, or for the port that it came to.
    pub(super) fn asks_client(&self) -> bool {
        self.router.borrow().asks_client()
    }

    /// Whether rules ask for the traffic class of clients.
    pub(super) fn asks_class(&self) -> bool {
        self.router.borrow().asks_class()
    }

    /// Whether names are read from the first bytes of clients.
    pub(super) fn sniffs(&self) -> bool {
        self.router.borrow().sniffing().is_some()
    }

    /// Targets whose clients tell no name.
    pub(super) fn in_vain(&self) -> &UnsniffableTargets {
        &self.in_vain
    }

    /// Whether a rule asks for the protocol that a client speaks to its target.
    pub(super) fn needs_protocol(&self) -> bool {
        self.router.borrow().needs_protocol()
    }

    /// The outbound of a verdict; `None` if the request is refused.
    pub(super) fn leaf_of(&self, verdict: &Verdict) -> Option<OutboundHandle> {
        match verdict {
            Verdict::Default => Some(self.leaf()),
            Verdict::Outbound(name)
            | Verdict::Streams { outbound: name, .. }
            | Verdict::Ask { outbound: name, .. } => Some(self.outbounds.find(name)),
            Verdict::Reject(_) | Verdict::Pass(_) | Verdict::Again { .. } => None,
        }
    }

    /// The decision about a request. A group passes it on where the member that is chosen does.
    pub(super) fn decide<'r>(
        &self,
        router: &'r Router,
        query: &Query<'_>,
        addresses: Option<&[IpAddr]>,
    ) -> RouteOutcome<'r> {
        router.decide_with(query, addresses, &|group| self.outbounds.passes(group, query.network))
    }

    /// The outbound whose name servers answer where rules ask for addresses.
    pub(super) fn resolver(&self) -> OutboundHandle {
        let direct = self.outbounds.leaves.borrow().get(routing::DIRECT).cloned();
        direct.unwrap_or_else(|| self.leaf())
    }

    /// The number of an outbound within this reach: the same for as long as it is the same outbound.
    fn via(&self, outbound: &dyn Outbound, packets: &Rc<dyn PacketOutbound>, reach: Reach) -> OutboundId {
        let mut vias = self.vias.borrow_mut();
        let is_it = |known: &&FlowOutbound| known.reach == reach && Rc::ptr_eq(&known.outbound, packets);
        if let Some(known) = vias.iter().find(is_it) {
            return known.via;
        }
        // Outbounds that nobody else holds are gone.
        let here =
            |of: &FlowOutbound| vias.iter().filter(|known| Rc::ptr_eq(&known.outbound, &of.outbound)).count();
        let gone = vias.iter().filter(|known| Rc::strong_count(&known.outbound) == here(known));
        let gone: Vec<OutboundId> = gone.map(|known| known.via).collect();
        vias.retain(|known| !gone.contains(&known.via));
        let via = OutboundId(self.next_via.replace(self.next_via.get().wrapping_add(1)));
        let tunnel = outbound.is_tunnel().then(|| outbound.name().clone());
        vias.push(FlowOutbound {
            via,
            tunnel,
            outbound: packets.clone(),
            reach,
            within: packets.within(reach),
        });
        via
    }

    /// A datagram's client and `target`, as rules see them.
    fn query<'q>(
        &'q self,
        question: &'q RouteQuery<'_>,
        target: &'q Target,
        program: Option<&'q Option<Program>>,
        asked_for: Option<IpAddr>,
    ) -> Query<'q> {
        let found = program.and_then(Option::as_ref);
        Query {
            inbound: &self.inbound,
            source: source(question.source),
            user: question.user.map(|account| &*account.name),
            network: Network::Udp,
            target,
            protocol: question.protocol,
            known: routing::ClientFacts {
                port: self.port,
                entry: Some(self.entry),
                process: found.and_then(|program| program.path.as_deref()),
                uid: found.map(|program| program.uid),
                is_sought: program.is_some(),
                dscp: question.class >> 2,
                asked_for,
            },
        }
    }

    /// The program that a datagram comes from; `None` while it is sought.
    fn program(&self, question: &RouteQuery<'_>, waker: &Waker, now: FlowTick) -> Option<Option<Program>> {
        let Some(from) = source(question.source) else { return Some(None) };
        let (local, named) = question.to;
        let client = Client { is_udp: true, from, to: local.into_iter().chain(named).collect() };
        self.programs.find(client, waker, now)
    }

    /// The address of a datagram's target that rules judge: `None` where another server looks the name up.
    fn address(&self, question: &RouteQuery<'_>, waker: &Waker, now: FlowTick) -> Option<FlowLookup> {
        self.resolver().packets?.address_of(question.target, Some(waker), now)
    }
}

/// The address that rules may judge a client by. A client behind a unix socket has none.
pub(super) fn source(peer: SocketAddr) -> Option<SocketAddr> {
    (peer.port() != 0).then_some(peer)
}

impl DirectNames for RouteContext {
    fn is_direct(&self, name: &str, addresses: Option<&[IpAddr]>) -> Option<bool> {
        let router = self.router();
        let target = Target { host: Host::Name(name.into()), port: HTTPS_PORT };
        let query = Query {
            inbound: &self.inbound,
            source: None,
            user: None,
            network: Network::Tcp,
            target: &target,
            protocol: None,
            // A name that is looked up has no client.
            known: routing::ClientFacts { is_sought: true, ..routing::ClientFacts::default() },
        };
        match router.decide(&query, addresses) {
            RouteOutcome::Decided(decided) => {
                let leaf = self.leaf_of(decided.verdict);
                Some(leaf.is_some_and(|leaf| !leaf.outbound.is_tunnel()))
            }
            RouteOutcome::NeedsAddresses | RouteOutcome::NeedsProgram => addresses.is_some().then_some(false),
        }
    }
}

impl RouteContext {
    /// The manner in which the rules refuse a packet from `peer` to `host` that is no stream and no datagram, if they do: as
    /// for UDP, without a port.
    pub(crate) fn refuses(&self, peer: SocketAddr, host: IpAddr) -> Option<RejectMethod> {
        let router = self.router();
        let target = Target::from(SocketAddr::new(host, 0));
        let query = Query {
            inbound: &self.inbound,
            source: source(peer),
            user: None,
            network: Network::Udp,
            target: &target,
            protocol: None,
            known: routing::ClientFacts::default(),
        };
        let RouteOutcome::Decided(decided) = Self::decide(self, &router, &query, Some(&[host])) else {
            return None;
        };
        if let Verdict::Reject(manner) = *decided.verdict { Some(manner) } else { None }
    }
}

impl DatagramRouter for RouteContext {
    fn changes(&self) -> u32 {
        self.changes.get().wrapping_add(self.outbounds.changes.get())
    }

    fn fixed(&self) -> Option<OutboundId> {
        let router = self.router.borrow();
        if !router.is_empty() || router.find_program() == FindProgram::Always {
            return None;
        }
        drop(router);
        let leaf = self.leaf();
        leaf.packets.as_ref().map(|packets| self.via(&*leaf.outbound, packets, self.reach()))
    }

    fn fake(&self) -> Option<&Arc<Fake>> {
        Self::fake(self)
    }

    fn renamed(&self, target: &Target) -> Option<Target> {
        Self::renamed(self, target)
    }

    fn accepts(&self, source: IpAddr) -> bool {
        self.router.borrow().accepts(&self.inbound, source)
    }

    fn needs_protocol(&self) -> bool {
        Self::needs_protocol(self)
    }

    fn needs_class(&self) -> bool {
        self.asks_class()
    }

    fn seeks_name(&self, peer: SocketAddr, target: &Target) -> bool {
        let router = self.router.borrow();
        let Some(sniffing) = router.sniffing() else { return false };
        let mapped = matches!(target.host, Host::Ip(ip) if self.name_behind(ip).is_some());
        sniffing.looks(&Glimpse { network: Network::Udp, source: source(peer), target, mapped })
    }

    fn decide(
        &self,
        question: &RouteQuery<'_>,
        waker: &Waker,
        now: FlowTick,
        why: &mut Option<Rc<RouteReason>>,
    ) -> DatagramDecision {
        let router = self.router();
        let port = question.target.port;
        let takes = |name: &&str| {
            let protocol = SniffedProtocol::NAMED_DATAGRAMS;
            router.sniffing().is_some_and(|sniffing| sniffing.takes(protocol, name, port).is_some())
        };
        let sniffed = question.name.filter(takes);
        let (name, ip) = match question.target.host {
            Host::Ip(ip) => (sniffed.map(Into::into).or_else(|| self.name_behind(ip)), Some(ip)),
            Host::Name(_) => (sniffed.map(Into::into), None),
        };
        let named = name.map(|name| Target { host: Host::Name((*name).into()), port });
        let target = named.as_ref().unwrap_or(question.target);
        // A datagram goes to the address that the client named, not to one behind the name.
        let asked_for = ip.filter(|_| named.is_some());
        let mut address = asked_for;
        let mut program = None;
        if router.find_program() == FindProgram::Always {
            match self.program(question, waker, now) {
                Some(found) => program = Some(found),
                None => return DatagramDecision::Pending,
            }
        }
        let mut is_looked_up = address.is_some();
        let decided = loop {
            let query = self.query(question, target, program.as_ref(), asked_for);
            let given = is_looked_up.then_some(address.as_slice());
            match Self::decide(self, &router, &query, given) {
                RouteOutcome::Decided(decided) => break decided,
                RouteOutcome::NeedsProgram if program.is_none() => match self.program(question, waker, now) {
                    Some(found) => program = Some(found),
                    None => return DatagramDecision::Pending,
                },
                RouteOutcome::NeedsAddresses if !is_looked_up => {
                    is_looked_up = true;
                    address = match self.address(question, waker, now) {
                        Some(FlowLookup::Addr(addr)) => Some(addr.ip()),
                        Some(FlowLookup::Pending) => return DatagramDecision::Pending,
                        Some(FlowLookup::Nothing | FlowLookup::Private(_)) | None => None,
                    };
                }
                RouteOutcome::NeedsProgram | RouteOutcome::NeedsAddresses => {
                    return DatagramDecision::Unresolved;
                }
            }
        };
        let rule = decided.rule.and_then(|rule| router.label(rule).cloned());
        let program = program.flatten();
        let sniffed: Option<Box<str>> = sniffed.map(Into::into);
        let is_known = rule.is_some() || program.is_some() || sniffed.is_some();
        *why = is_known.then(|| Rc::new(RouteReason { rule, program, sniffed }));
        if *decided.verdict == Verdict::Reject(RejectMethod::Drop) {
            return DatagramDecision::Drop;
        }
        let Some(leaf) = self.leaf_of(decided.verdict) else { return DatagramDecision::Reject };
        let Some(packets) = &leaf.packets else { return DatagramDecision::Reject };
        let via = self.via(&*leaf.outbound, packets, self.reach_of(&decided));
        match address.filter(|_| decided.judged) {
            Some(ip) => DatagramDecision::At(via, ip),
            None => DatagramDecision::Through(via),
        }
    }

    fn outbound(&self, via: OutboundId) -> Option<Rc<dyn PacketOutbound>> {
        let vias = self.vias.borrow();
        let known = vias.iter().find(|known| known.via == via)?;
        Some(known.within.as_ref().unwrap_or(&known.outbound).clone())
    }

    fn watch(&self, via: OutboundId, target: &Target) -> Option<Rc<Watch>> {
        let vias = self.vias.borrow();
        let tunnel = vias.iter().find(|known| known.via == via)?.tunnel.as_ref()?;
        let watches = self.outbounds.watches();
        let watch = watches.of(tunnel);
        watch.begin_flow(watches.hash(target), rt::now());
        Some(watch)
    }

    fn note_too_big(&self, len: usize, fits: Option<usize>) {
        let fits = fits.map_or_else(|| "less".to_owned(), |fits| format!("no more than {fits}"));
        let text = format!(
            "datagrams of {len} bytes are dropped: the path (its MTU) takes {fits}; use a lower MTU above adit"
        );
        let fault = Fault::new(codes::UDP_TOO_BIG, text);
        self.outbounds.watches().faults().note(&ConfigPart::Inbound(self.inbound.clone()), fault, rt::now());
    }

    fn name(&self, via: OutboundId) -> Option<Tag> {
        let vias = self.vias.borrow();
        let outbound = &vias.iter().find(|known| known.via == via)?.outbound;
        let leaves = self.outbounds.leaves.borrow();
        let is_it = |leaf: &OutboundHandle| {
            leaf.packets.as_ref().is_some_and(|packets| Rc::ptr_eq(packets, outbound))
        };
        Some(leaves.iter().find(|(_, leaf)| is_it(leaf))?.0.clone())
    }

    fn note_private(&self, kind: Private) {
        if let Some(refused) = self.refused.due(rt::now()) {
            tracing::warn!(
                inbound = &*self.inbound,
                refused,
                "a client asked for a private target ({kind}): refused; allow-private = true in this inbound, or a rule \
                 that matches such requests, lets clients reach them"
            );
        }
    }
}
