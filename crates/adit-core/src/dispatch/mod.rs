//! From "a client wants X" to a connection and its record: the only way, for every inbound.
//!
//! ```text
//!   inbound ─ Request ─→ Origin::route ─ Routed ─→ connect ─ Session ─→ run: relay, retry, record, release
//! ```
//!
//! Nothing here knows a protocol: an inbound makes the request, an [`Outbound`] makes the connection.

mod error;
mod outbound;
mod session;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use adit_config::model::Tag;
use adit_net::rt::{self, Pool};
use adit_proto::wire::Target;

use crate::access::Fate;
use crate::conns::Conns;
use crate::metrics::InboundMetrics;
use crate::relay::Early;
use crate::user::Account;

pub(crate) use self::error::OpenError;
pub(crate) use self::outbound::{Destination, Future, Member, Opened, Outbound, may_retry};
pub(crate) use self::session::Session;
pub(crate) use self::table::{Leaf, Live, Outbounds};

/// What the connections of one core share.
pub(crate) struct CoreContext {
    /// Buffers.
    pub(crate) pool: Pool,
    /// The table of connections.
    pub(crate) conns: Rc<Conns>,
    /// Whether targets may appear in log lines of level info.
    pub(crate) log_destinations: bool,
}

/// What the requests of one inbound have in common, on one core.
pub(crate) struct Origin {
    /// The inbound's name in logs and status.
    pub(crate) inbound: Tag,
    /// Where the inbound counts.
    pub(crate) metrics: Arc<InboundMetrics>,
    /// What the connections of the core share.
    pub(crate) core: Rc<CoreContext>,
    /// Where its requests go, and by which rules.
    pub(crate) live: Rc<Live>,
}

/// Who asks.
#[derive(Clone)]
pub(crate) struct Source {
    /// The inbound.
    pub(crate) origin: Rc<Origin>,
    /// The client.
    pub(crate) peer: SocketAddr,
    /// The user, where the inbound knows its users.
    pub(crate) user: Option<Arc<Account>>,
}

/// One request of one client for a stream.
pub(crate) struct Request {
    /// Who asks.
    pub(crate) source: Source,
    /// Where to.
    pub(crate) target: Target,
    /// When the request was complete.
    pub(crate) since: Instant,
}

/// A request whose way is decided.
pub(crate) struct Routed {
    pub(crate) request: Request,
    /// The outbound that it takes.
    pub(crate) outbound: Rc<dyn Outbound>,
    /// The only addresses that may be dialled, where the rules judged the target by its addresses.
    addresses: Option<Vec<IpAddr>>,
    is_blocked: bool,
}

impl Origin {
    /// A request from `peer` for `target`, complete at this moment.
    pub(crate) fn request(
        self: &Rc<Self>,
        peer: SocketAddr,
        user: Option<Arc<Account>>,
        target: Target,
    ) -> Request {
        Request { source: Source { origin: self.clone(), peer, user }, target, since: rt::now() }
    }
}

impl Request {
    /// Decides the way, once.
    pub(crate) async fn route(self) -> Routed {
        let origin = &self.source.origin;
        let through = origin.live.leaf().outbound;
        // The inbound may have been closed while the request came in.
        let is_cut = origin.core.conns.is_cut();
        let (outbound, fate) = match origin.live.access() {
            _ if is_cut => (through, Fate::Blocked),
            None => (through, Fate::Open),
            Some(access) => Box::pin(async { access.way(&through, &self.target).await }).await,
        };
        let is_blocked = matches!(fate, Fate::Blocked);
        let addresses = if let Fate::At(addresses) = fate { Some(addresses) } else { None };
        Routed { request: self, outbound, addresses, is_blocked }
    }
}

impl Routed {
    /// A connection of the outbound, counted as a request; with `fresh` never one that was kept.
    pub(crate) async fn open(&self) -> Result<Opened, OpenError> {
        let metrics = &self.request.source.origin.metrics;
        metrics.requests.add(1);
        let opened = if self.is_blocked { Err(OpenError::Blocked) } else { self.dial(false).await };
        opened.inspect_err(|error| {
            metrics.refused.rule.add(u64::from(matches!(error, OpenError::Blocked)));
            self.log_open_error(error);
        })
    }

    /// Once more, for a kept connection that the server had given up; never on a kept one.
    pub(crate) async fn open_again(&self) -> Result<Opened, OpenError> {
        self.dial(true).await.inspect_err(|error| self.log_open_error(error))
    }

    /// The session of this request, ready for the relay.
    pub(crate) async fn connect(self, early: Early) -> Result<Box<Session>, OpenError> {
        let opened = Box::pin(self.open()).await?;
        Ok(Box::new(Session::new(self, opened, early)))
    }

    async fn dial(&self, fresh: bool) -> Result<Opened, OpenError> {
        let to = Destination { target: &self.request.target, addresses: self.addresses.as_deref() };
        self.outbound.connect(to, fresh).await
    }

    /// One line about a connection that could not be opened.
    fn log_open_error(&self, error: &OpenError) {
        let Request { source, target, .. } = &self.request;
        let (inbound, outbound) = (&*source.origin.inbound, &**self.outbound.name());
        let error = error.chain();
        if source.origin.core.log_destinations {
            tracing::info!(inbound, outbound, %target, error, "connection could not be opened");
        } else {
            tracing::debug!(inbound, outbound, %target, error, "connection could not be opened");
        }
    }
}
