//! The registry of ways out.

mod group;
mod shadowsocks;
mod snell;
mod through;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_config::model;
use adit_net::dial::{DialError, Dialer};
use adit_net::pace::{Pacer, check_pace};
use adit_net::plugin::{PluginPort, Plugins};
use adit_net::resolve::ResolveError;
use adit_net::rt::{self, Pool, Stream};
use adit_proto::snell::DirectionKey;
use adit_proto::wire::{Failure as WireFailure, Target, WireError};

use crate::carrier::kcp;
use crate::dns::Dns;
use crate::layer::Stack;
use crate::metrics::OutboundMetrics;
use crate::notice;
use crate::record::EndReason;
use crate::relay::{Endpoint, HalfClose, Outcome, Policy};

pub(crate) use group::run as check_members;
pub(crate) use group::{Check, Failure, Group, GroupShared, Health, Here, Leaf, Passage, Report, Transport};
pub(crate) use shadowsocks::ShadowsocksShared;
pub(crate) use snell::{SnellOutbound, SnellShared};
pub(crate) use through::Through;

/// A stream that is being dialled, and what is spoken on it.
pub(crate) type DatagramStream = (Pin<Box<dyn Future<Output = Result<Stream, DialError>>>>, Box<Stack>);

/// One way out, on one core.
pub(crate) struct Outbound {
    /// Name in logs and status.
    pub(crate) name: Arc<str>,
    kind: Kind,
    dialer: Dialer,
    /// To a plugin on this machine, whatever the way out from it.
    loopback: Dialer,
    /// Where connections go out in the place of TCP.
    carrier: Option<kcp::Client>,
    /// Where all of them go, whatever their target.
    unix: Option<PathBuf>,
    /// How fast they send, if there is a rate.
    pacer: Option<Arc<Pacer>>,
    metrics: Arc<OutboundMetrics>,
}

enum Kind {
    Direct,
    Reject,
    Shadowsocks(Arc<ShadowsocksShared>),
    Snell(Rc<SnellOutbound>),
    Group(Rc<Group>),
}

/// What an outbound shares over all cores.
#[derive(Debug)]
pub(crate) enum Shared {
    /// Nothing.
    None,
    /// A Shadowsocks client's key and plugin.
    Shadowsocks(Arc<ShadowsocksShared>),
    /// A Snell client's keys.
    Snell(Arc<SnellShared>),
    /// A group's members and the choice among them.
    Group(Arc<GroupShared>),
}

impl Shared {
    /// What `outbound` needs once per process; `all` are those that its members are among.
    ///
    /// # Errors
    /// When a thread cannot be made, a plugin cannot be started, or a group cannot be checked.
    pub(crate) fn new(
        outbound: &model::Outbound,
        all: &[model::Outbound],
        plugins: &mut Plugins,
    ) -> std::io::Result<Self> {
        Ok(match &outbound.protocol {
            model::OutboundProtocol::Direct | model::OutboundProtocol::Reject => Self::None,
            model::OutboundProtocol::Snell(snell) => Self::Snell(SnellShared::start(snell)?),
            model::OutboundProtocol::Shadowsocks(client) => {
                Self::Shadowsocks(Arc::new(ShadowsocksShared::start(&outbound.name, client, plugins)?))
            }
            model::OutboundProtocol::Group(group) => {
                Check::new(&group.check)?;
                Self::Group(Arc::new(GroupShared::new(&outbound.name, group, all, rt::now())))
            }
        })
    }
}

impl Shared {
    /// What a group shares.
    pub(crate) fn group(&self) -> Option<&Arc<GroupShared>> {
        match self {
            Self::Group(group) => Some(group),
            Self::None | Self::Shadowsocks(_) | Self::Snell(_) => None,
        }
    }
}

/// Why there is no way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The configuration says no.
    #[error("refused by a rule")]
    Rejected,
    /// The access control list refuses the target.
    #[error("refused by the access control list")]
    Blocked,
    /// The connection could not be made, for a tunnel: the one to its server.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A group has no member that could be used.
    #[error("there is no server to use")]
    NoMember,
    /// The server of a member was given up for the next one.
    #[error("no connection within {waited:?}")]
    Slow {
        /// How long was waited.
        waited: Duration,
    },
    /// The member of a group that was tried last.
    #[error("through {member}")]
    Member {
        /// Its name.
        member: Arc<str>,
        /// Why there is no way.
        source: Box<Self>,
    },
}

impl OpenError {
    /// What a local client is told.
    pub(crate) fn failure(&self) -> WireFailure {
        match self {
            Self::Rejected | Self::Blocked => WireFailure::NotAllowed,
            Self::NoMember => WireFailure::NetworkUnreachable,
            Self::Slow { .. } => WireFailure::TimedOut,
            Self::Member { source, .. } => source.failure(),
            Self::Dial(DialError::Refused { .. }) => WireFailure::ConnectionRefused,
            Self::Dial(DialError::Timeout { .. }) => WireFailure::TimedOut,
            Self::Dial(DialError::Resolve(_) | DialError::Port) => WireFailure::HostUnreachable,
            Self::Dial(DialError::Unreachable { source, .. }) => {
                if source.kind() == std::io::ErrorKind::HostUnreachable {
                    WireFailure::HostUnreachable
                } else {
                    WireFailure::NetworkUnreachable
                }
            }
            Self::Dial(
                DialError::Connect { source, .. }
                | DialError::Unix { source, .. }
                | DialError::Socket { source, .. },
            ) => {
                if source.kind() == std::io::ErrorKind::PermissionDenied {
                    WireFailure::NotAllowed
                } else {
                    WireFailure::General
                }
            }
        }
    }

    /// The errno that stands for it on a wire, 0 where none does.
    pub(crate) fn errno(&self) -> u8 {
        /// Linux's numbers, whatever the platform: they are what clients know.
        const ETIMEDOUT: u8 = 110;
        const EACCES: u8 = 13;
        match self {
            Self::Rejected | Self::Blocked => EACCES,
            Self::Dial(DialError::Timeout { .. }) | Self::Slow { .. } => ETIMEDOUT,
            Self::NoMember => 0,
            Self::Member { source, .. } => source.errno(),
            Self::Dial(error) => error.errno().and_then(|errno| u8::try_from(errno).ok()).unwrap_or(0),
        }
    }

    /// The error with its causes, in one line.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}

/// A connection that is ready for the relay.
pub(crate) struct Opened {
    /// The far end.
    pub(crate) far: Endpoint,
    /// How the relay is to treat it.
    pub(crate) policy: Policy,
    /// The member that it goes over, for one of a group.
    pub(crate) passage: Option<Box<Passage>>,
}

impl Opened {
    /// A connection that goes over no group.
    pub(crate) fn new(far: Endpoint, policy: Policy) -> Self {
        Self { far, policy, passage: None }
    }
}

/// Closes `far` with a reset if what was sent to it broke off: it must not be taken for all there was.
fn end_of_cut(far: &Endpoint, outcome: &Outcome) {
    let is_whole = outcome.near_ended || matches!(outcome.reason, EndReason::Finished | EndReason::Idle);
    if !is_whole {
        far.stream.abort_on_close();
    }
}

/// What is to be said once about `outbound`: what the system does not give, and what should not be used.
pub(crate) fn warnings(outbound: &model::Outbound) -> Vec<String> {
    let mut warnings: Vec<String> =
        Dialer::by_system(&outbound.dial).warnings().iter().map(ToString::to_string).collect();
    warnings.extend(outbound.dial.pace.as_ref().and_then(check_pace).map(|warning| warning.to_string()));
    if let model::OutboundProtocol::Shadowsocks(client) = &outbound.protocol {
        warnings.extend(notice::method_warning(client.key.method()));
    }
    warnings.iter().map(|warning| format!("outbound {}: {warning}", outbound.name)).collect()
}

impl Outbound {
    /// Builds the outbound for one core.
    pub(crate) fn new(
        outbound: &model::Outbound,
        shared: &Shared,
        metrics: Arc<OutboundMetrics>,
        dns: &Rc<Dns>,
    ) -> Self {
        let kind = match (&outbound.protocol, shared) {
            (model::OutboundProtocol::Direct, _) => Kind::Direct,
            (model::OutboundProtocol::Snell(snell), Shared::Snell(shared)) => Kind::Snell(Rc::new(
                SnellOutbound::new(outbound.name.clone(), snell, shared.clone(), metrics.clone()),
            )),
            (model::OutboundProtocol::Shadowsocks(_), Shared::Shadowsocks(shared)) => {
                Kind::Shadowsocks(shared.clone())
            }
            // A group is made of what is built here: see [`Outbound::group`].
            (
                model::OutboundProtocol::Reject
                | model::OutboundProtocol::Snell(_)
                | model::OutboundProtocol::Shadowsocks(_)
                | model::OutboundProtocol::Group(_),
                _,
            ) => Kind::Reject,
        };
        let names = dns.scope(&outbound.dial);
        let here = model::Dial { timeout: outbound.dial.timeout, ..model::Dial::default() };
        let loopback = Dialer::new(&here, Rc::new(names.clone()));
        let dial = model::Dial { family: names.family(), ..outbound.dial.clone() };
        let (name, dialer) = (outbound.name.clone(), Dialer::new(&dial, Rc::new(names.clone())));
        let unix = outbound.dial.unix.clone();
        Self { name, kind, dialer, loopback, carrier: None, unix, pacer: None, metrics }
    }

    /// Where a plugin takes the datagrams of this outbound, if there is one that does.
    pub(crate) fn datagram_plugin(&self) -> Option<&PluginPort> {
        let Kind::Shadowsocks(shadowsocks) = &self.kind else { return None };
        shadowsocks.datagram_plugin()
    }

    /// The same with what takes the place of TCP, if there is something.
    pub(crate) fn with_carrier(self, carrier: Option<kcp::Client>) -> Self {
        Self { carrier, ..self }
    }

    /// The same with a rate for all cores, if there is one.
    pub(crate) fn with_pacer(self, pacer: Option<Arc<Pacer>>) -> Self {
        Self { pacer, ..self }
    }

    /// The outbound for a group on one core.
    pub(crate) fn group(
        outbound: &model::Outbound,
        group: Rc<Group>,
        metrics: Arc<OutboundMetrics>,
        dns: &Rc<Dns>,
    ) -> Self {
        Self { kind: Kind::Group(group), ..Self::new(outbound, &Shared::None, metrics, dns) }
    }

    /// The group, if it is one.
    pub(crate) fn as_group(&self) -> Option<&Rc<Group>> {
        match &self.kind {
            Kind::Group(group) => Some(group),
            Kind::Direct | Kind::Reject | Kind::Shadowsocks(_) | Kind::Snell(_) => None,
        }
    }

    /// The name of what `opened` goes over.
    pub(crate) fn name_of<'a>(&'a self, opened: &'a Opened) -> &'a Arc<str> {
        opened.passage.as_ref().map_or(&self.name, |passage| &passage.outbound().name)
    }

    /// True if what the far target says is known only after the relay has begun.
    pub(crate) fn is_tunnel(&self) -> bool {
        match &self.kind {
            Kind::Snell(_) | Kind::Shadowsocks(_) => true,
            Kind::Direct | Kind::Reject => self.carrier.is_some(),
            Kind::Group(group) => group.is_tunnel(),
        }
    }

    /// A connection towards `target`; with `fresh` never one that was kept.
    pub(crate) async fn open(&self, target: &Target, fresh: bool) -> Result<Opened, OpenError> {
        let mut opened = self.open_kind(target, fresh).await?;
        if self.carrier.as_ref().is_some_and(|carrier| !carrier.passes_half_close()) {
            opened.policy.half_close = HalfClose::Late;
        }
        Ok(opened)
    }

    async fn open_kind(&self, target: &Target, fresh: bool) -> Result<Opened, OpenError> {
        match &self.kind {
            Kind::Reject => Err(OpenError::Rejected),
            Kind::Direct => {
                let stream = self.dial(target).await?;
                Ok(Opened::new(Endpoint::plain(stream), Policy::default()))
            }
            Kind::Shadowsocks(shadowsocks) => {
                if !shadowsocks.carries_streams() {
                    return Err(OpenError::Rejected);
                }
                let stream = match shadowsocks.plugin() {
                    Some(plugin) => self.dial_with(&self.loopback, &plugin).await?,
                    None => self.dial(shadowsocks.server()).await?,
                };
                Ok(shadowsocks.start_stream(stream, target))
            }
            Kind::Snell(snell) => {
                if !fresh && let Some(opened) = snell.take_kept(target).await {
                    return Ok(opened);
                }
                let stream = self.dial(snell.server()).await?;
                Ok(snell.start(stream, target))
            }
            Kind::Group(group) => Box::pin(group.open(target, fresh)).await,
        }
    }

    /// A stream that is to carry datagrams, being dialled, and what is spoken on it; `None` if there is no such thing.
    pub(crate) fn dial_for_datagrams(self: &Rc<Self>) -> Option<DatagramStream> {
        let Kind::Snell(snell) = &self.kind else { return None };
        let (outbound, stack) = (self.clone(), snell.datagram_stack());
        let dial = async move {
            let Kind::Snell(snell) = &outbound.kind else { unreachable!("it is Snell") };
            outbound.dial(snell.server()).await
        };
        Some((Box::pin(dial), stack))
    }

    /// A fresh key of our own for one datagram, where the protocol has such.
    pub(crate) fn datagram_key(&self) -> Option<DirectionKey> {
        match &self.kind {
            Kind::Snell(snell) => Some(snell.take_key()),
            Kind::Direct | Kind::Reject | Kind::Shadowsocks(_) | Kind::Group(_) => None,
        }
    }

    /// What tells this user from others with the same key, in the requests of the protocol.
    pub(crate) fn client_id(&self) -> &[u8] {
        match &self.kind {
            Kind::Snell(snell) => snell.client_id(),
            Kind::Direct | Kind::Reject | Kind::Shadowsocks(_) | Kind::Group(_) => &[],
        }
    }

    /// The same to these addresses of `target` alone, where the addresses are up to this end.
    pub(crate) async fn open_at(&self, ips: &[IpAddr], target: &Target) -> Result<Opened, OpenError> {
        if !matches!(self.kind, Kind::Direct) {
            return self.open(target, false).await;
        }
        let addrs: Vec<_> = ips.iter().map(|ip| SocketAddr::new(*ip, target.port)).collect();
        let stream = self.count(Box::pin(self.dialer.dial_addrs(&addrs)).await)?;
        Ok(Opened::new(Endpoint::plain(stream), Policy::default()))
    }

    /// The addresses of a name that a direct connection would try.
    pub(crate) async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        self.dialer.lookup(name).await
    }

    /// The relay is done with a far end: takes and keeps its stream for the next request where that is possible.
    pub(crate) fn close(&self, opened: Opened, outcome: &Outcome, pool: &Pool) {
        let Opened { far, policy, passage } = opened;
        if let Some(passage) = passage {
            passage.note_end(outcome);
            return passage.outbound().close(Opened::new(far, policy), outcome, pool);
        }
        match &self.kind {
            Kind::Reject | Kind::Group(_) => {}
            Kind::Direct => end_of_cut(&far, outcome),
            Kind::Shadowsocks(shadowsocks) => {
                end_of_cut(&far, outcome);
                shadowsocks.note_end(&self.name, outcome, &self.metrics);
            }
            Kind::Snell(snell) => snell.close(far, outcome, pool),
        }
    }

    /// Whether `outcome` says that a kept connection had been given up by the server: nothing came back, and what
    /// was sent is known.
    pub(crate) fn may_retry(outcome: &Outcome) -> bool {
        let closed_unanswered = match &outcome.reason {
            EndReason::Socket(side, _) => *side == crate::record::Side::Far,
            EndReason::Wire(WireError::Truncated { .. }) => true,
            EndReason::Finished
            | EndReason::Idle
            | EndReason::Stopped
            | EndReason::Limited(_)
            | EndReason::Wire(_) => false,
        };
        closed_unanswered && outcome.replay.is_some()
    }

    async fn dial(&self, target: &Target) -> Result<Stream, DialError> {
        let stream = if let Some(carrier) = &self.carrier {
            Box::pin(carrier.open(&self.dialer)).await
        } else if let Some(path) = &self.unix {
            Box::pin(self.dialer.dial_unix(path)).await.map(Stream::from)
        } else {
            return self.dial_with(&self.dialer, target).await;
        };
        if stream.is_ok() { &self.metrics.dialled } else { &self.metrics.failed }.add(1);
        stream
    }

    async fn dial_with(&self, dialer: &Dialer, target: &Target) -> Result<Stream, DialError> {
        self.count(Box::pin(dialer.dial(target)).await)
    }

    fn count(&self, dialled: Result<impl Into<Stream>, DialError>) -> Result<Stream, DialError> {
        match dialled {
            Ok(stream) => {
                self.metrics.dialled.add(1);
                let stream = stream.into();
                Ok(match &self.pacer {
                    Some(pacer) => stream.paced(pacer),
                    None => stream,
                })
            }
            Err(error) => {
                self.metrics.failed.add(1);
                Err(error)
            }
        }
    }
}
