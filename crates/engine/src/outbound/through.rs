//! Streams through outbounds for this process itself: for name servers that are behind one.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::Tag;
use adit_model::rule::{Network, Verdict};
use adit_net::rt::{self, Pool, Stream};
use adit_proto::wire::Target;

use crate::connections::table::Conns;
use crate::counters::Traffic;
use crate::dns::{OpeningStream, OwnRoute, Streams};
use crate::relay::{Early, Endpoint, Relay};
use crate::routing::{ClientFacts, Query, RouteOutcome, Router};
use crate::stream::{ConnectTarget, Outbounds};

/// The outbounds of one core, by name.
pub(crate) struct Through {
    outbounds: Rc<Outbounds>,
    router: RefCell<Arc<Router>>,
    pool: Pool,
    /// A table of its own: who uses these streams ends them, and no sweep does.
    conns: Rc<Conns>,
    /// Bytes are not those of a client.
    traffic: Rc<Traffic>,
}

impl Through {
    /// Streams through `outbounds`, as they are when a stream is opened.
    pub(crate) fn new(outbounds: Rc<Outbounds>, pool: Pool) -> Self {
        let (router, conns, traffic) = Default::default();
        Self { outbounds, router, pool, conns, traffic }
    }

    /// From now on these rules are asked.
    pub(crate) fn follow(&self, router: Arc<Router>) {
        self.router.replace(router);
    }
}

/// The way of a request of this process itself; see [`Streams::decide`].
pub(crate) fn way(
    router: &Router,
    outbounds: &Outbounds,
    default: &Tag,
    target: &Target,
    addresses: Option<&[IpAddr]>,
) -> OwnRoute {
    let query = Query {
        inbound: "",
        source: None,
        user: None,
        network: Network::Tcp,
        target,
        protocol: None,
        // Its own requests have no client.
        known: ClientFacts { entry: Some("Inner"), is_sought: true, ..ClientFacts::default() },
    };
    let asked = |group: &Tag| outbounds.passes(group, Network::Tcp);
    let RouteOutcome::Decided(decision) = router.decide_with(&query, addresses, &asked) else {
        return if addresses.is_none() { OwnRoute::NeedsAddresses } else { OwnRoute::Refused };
    };
    match decision.verdict {
        Verdict::Outbound(name)
        | Verdict::Streams { outbound: name, .. }
        | Verdict::Ask { outbound: name, .. } => OwnRoute::Outbound(name.clone()),
        Verdict::Default => OwnRoute::Outbound(default.clone()),
        Verdict::Reject(_) | Verdict::Pass(_) | Verdict::Again { .. } => OwnRoute::Refused,
    }
}

impl Streams for Through {
    fn decide(&self, default: &Tag, to: &Target, addresses: Option<&[IpAddr]>) -> OwnRoute {
        way(&self.router.borrow(), &self.outbounds, default, to, addresses)
    }

    fn connect<'a>(&'a self, via: &'a str, to: &'a Target) -> OpeningStream<'a> {
        Box::pin(async move {
            let outbound = self.outbounds.find(via).outbound;
            let opened = outbound.connect(ConnectTarget::from(to), true).await;
            let opened = opened.inspect_err(|error| self.outbounds.note_open_error(&*outbound, error));
            let mut opened = opened.map_err(|error| io::Error::other(error.chain()))?;
            if opened.far.stack.is_none() && opened.member.is_none() {
                return Ok(opened.far.stream);
            }
            let (near, ours) = Stream::pair()?;
            let pool = self.pool.clone();
            let (entry, traffic) = (self.conns.enter(), self.traffic.clone());
            rt::spawn_local(async move {
                let mut near = Endpoint::plain(near);
                let policy = opened.policy;
                let outcome = {
                    let relay = Relay::new(
                        &mut near,
                        &mut opened.far,
                        Early::default(),
                        &pool,
                        &entry,
                        &traffic,
                        policy,
                    );
                    Box::pin(relay).await
                };
                outbound.release(opened, &outcome, &pool);
            });
            Ok(ours)
        })
    }
}
