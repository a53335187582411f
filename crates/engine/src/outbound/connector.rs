//! Opens the streams of an outbound: over TCP, a unix socket, or a carrier.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use adit_model::{self as model, Tag};
use adit_net::dial::{DialError, Dialer};
use adit_net::pace::Pacer;
use adit_net::reach::Reach;
use adit_net::rt::{self, Stream};
use adit_proto::wire::Target;

use crate::carrier;
use crate::connections::record::EndReason;
use crate::counters::{Dials, OutboundMetrics};
use crate::dns::Dns;
use crate::relay::RelayOutcome;
use crate::stream::{ConnectTarget, OpenError, OpenedConnection};

/// The name of an outbound and the way it makes its streams, on one core.
pub(crate) struct Connector {
    /// The outbound's name in logs and status.
    pub(crate) name: Tag,
    dialer: Dialer,
    /// Takes the place of TCP.
    carrier: Option<Rc<carrier::KcpSessions>>,
    /// The outbound that carries every connection, with the way to open streams through it.
    through: Option<(Tag, Rc<Dns>)>,
    /// The unix socket for every connection, with any target.
    unix: Option<PathBuf>,
    /// The rate at which all connections to one address send together.
    pacer: Option<Arc<Pacer>>,
    /// Counters of the outbound.
    pub(crate) metrics: Arc<OutboundMetrics>,
}

impl Connector {
    /// The connector of `outbound`, over `carrier` and at the rate of `pacer` where there is such, with names from `dns`.
    pub(crate) fn new(
        outbound: &model::Outbound,
        metrics: Arc<OutboundMetrics>,
        carrier: Option<carrier::KcpSessions>,
        pacer: Option<Arc<Pacer>>,
        dns: &Rc<Dns>,
    ) -> Self {
        let names = dns.scope(&outbound.dial);
        let (name, dialer) = (outbound.name.clone(), Dialer::new(&outbound.dial, Rc::new(names)));
        let carrier = carrier.map(Rc::new);
        carrier.iter().for_each(|carrier| carrier.host(&dialer));
        let unix = outbound.dial.unix.clone();
        let through = outbound.dial.through.clone().map(|through| (through, dns.clone()));
        Self { name, dialer, carrier, through, unix, pacer, metrics }
    }

    /// Whether a connection may fail behind this machine after it has been made.
    pub(crate) fn is_carried(&self) -> bool {
        self.carrier.is_some() || self.through.is_some()
    }

    /// A stream to `target`, or to what stands in its place.
    pub(crate) async fn dial(&self, target: &Target) -> Result<Stream, OpenError> {
        if let Some((through, dns)) = &self.through {
            return self.dial_through(through, dns, target).await;
        }
        let since = rt::now();
        let stream = if let Some(carrier) = &self.carrier {
            Box::pin(carrier.open(&self.dialer)).await
        } else if let Some(path) = &self.unix {
            Box::pin(self.dialer.dial_unix(path)).await.map(Stream::from)
        } else {
            return self.dial_since(&self.dialer, target, since).await;
        };
        self.count(stream.is_ok(), since);
        Ok(stream?)
    }

    /// A stream to a direct target, to these addresses of it alone where they are given.
    pub(crate) async fn dial_direct(&self, to: ConnectTarget<'_>) -> Result<Stream, OpenError> {
        let is_fixed = self.carrier.is_some() || self.unix.is_some();
        let addresses = to.addresses.filter(|_| self.through.is_none());
        // Those lead where the configuration says, or have the target dialled elsewhere.
        if addresses.is_none() && (is_fixed || self.through.is_some()) {
            return self.dial(to.target).await;
        }
        let since = rt::now();
        let dialled = match addresses {
            Some(addresses) => {
                let addrs: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, to.target.port)).collect();
                Box::pin(self.dialer.dial_addrs_within(&addrs, to.reach, since)).await
            }
            None => Box::pin(self.dialer.dial_within(to.target, to.reach, since)).await,
        };
        self.pace(dialled, since)
    }

    async fn dial_through(&self, through: &Tag, dns: &Dns, target: &Target) -> Result<Stream, OpenError> {
        let since = rt::now();
        let stream = dns.stream_through(through, target).await;
        self.count(stream.is_ok(), since);
        stream.map_err(|source| OpenError::Through { outbound: through.clone(), source })
    }

    /// The same as [`Connector::dial`] by another dialer, over TCP in any case.
    pub(crate) async fn dial_with(&self, dialer: &Dialer, target: &Target) -> Result<Stream, OpenError> {
        self.dial_since(dialer, target, rt::now()).await
    }

    async fn dial_since(
        &self,
        dialer: &Dialer,
        target: &Target,
        since: Instant,
    ) -> Result<Stream, OpenError> {
        self.pace(Box::pin(dialer.dial_within(target, Reach::Anywhere, since)).await, since)
    }

    /// The addresses of a name that a direct connection would try.
    pub(crate) async fn lookup(&self, name: &str) -> Option<Vec<IpAddr>> {
        self.dialer.lookup(name).await.ok()
    }

    /// `opened` as the carrier beneath it needs it treated.
    pub(crate) fn settle(&self, mut opened: OpenedConnection) -> OpenedConnection {
        if self.carrier.as_ref().is_some_and(|carrier| !carrier.passes_half_close()) {
            opened.policy.carrier_drops = true;
        }
        opened
    }

    fn pace(
        &self,
        dialled: Result<impl Into<Stream>, DialError>,
        since: Instant,
    ) -> Result<Stream, OpenError> {
        self.count(dialled.is_ok(), since);
        let stream = dialled?.into();
        Ok(match &self.pacer {
            Some(pacer) => stream.paced(pacer),
            None => stream,
        })
    }

    /// Counts a dial that began at `since`.
    fn count(&self, is_connected: bool, since: Instant) {
        let Dials { ok, failed } = &self.metrics.dials;
        let took = rt::now().saturating_duration_since(since);
        if is_connected { ok } else { failed }.note_time_alone(took);
    }
}

/// Closes the far end with a reset if what was sent to it broke off: the target must not take a part for the whole.
pub(crate) fn end_of_cut(opened: &OpenedConnection, outcome: &RelayOutcome) {
    let is_whole = outcome.near_ended || matches!(outcome.reason, EndReason::Finished | EndReason::Idle);
    if !is_whole {
        opened.far.stream.abort_on_close();
    }
}
