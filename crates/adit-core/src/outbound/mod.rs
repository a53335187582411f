//! The registry of ways out.

mod shadowsocks;
mod snell;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use adit_config::model;
use adit_net::dial::{DialError, Dialer};
use adit_net::plugin::Plugins;
use adit_net::rt::{Pool, Stream};
use adit_proto::wire::{Failure, Target, WireError};

use crate::carrier::kcp;
use crate::datagram::Far;
use crate::metrics::OutboundMetrics;
use crate::notice;
use crate::record::EndReason;
use crate::relay::{Endpoint, HalfClose, Outcome, Policy};

pub(crate) use shadowsocks::ShadowsocksShared;
pub(crate) use snell::{SnellOutbound, SnellShared};

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
    metrics: Arc<OutboundMetrics>,
}

enum Kind {
    Direct,
    Reject,
    Shadowsocks(Arc<ShadowsocksShared>),
    Snell(Rc<SnellOutbound>),
}

/// What an outbound shares over all cores.
pub(crate) enum Shared {
    /// Nothing.
    None,
    /// A Shadowsocks client's key and plugin.
    Shadowsocks(Arc<ShadowsocksShared>),
    /// A Snell client's keys.
    Snell(Arc<SnellShared>),
}

impl Shared {
    /// What `outbound` needs once per process.
    ///
    /// # Errors
    /// When a thread cannot be made, or a plugin cannot be started.
    pub(crate) fn new(outbound: &model::Outbound, plugins: &mut Plugins) -> std::io::Result<Self> {
        Ok(match &outbound.protocol {
            model::OutboundProtocol::Direct | model::OutboundProtocol::Reject => Self::None,
            model::OutboundProtocol::Snell(snell) => Self::Snell(SnellShared::start(snell)?),
            model::OutboundProtocol::Shadowsocks(client) => {
                Self::Shadowsocks(Arc::new(ShadowsocksShared::start(&outbound.name, client, plugins)?))
            }
            model::OutboundProtocol::Group(_) => return Err(std::io::ErrorKind::Unsupported.into()),
        })
    }
}

/// Why there is no way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The configuration says no.
    #[error("refused by a rule")]
    Rejected,
    /// The connection could not be made, for a tunnel: the one to its server.
    #[error(transparent)]
    Dial(#[from] DialError),
}

impl OpenError {
    /// What a local client is told.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Rejected => Failure::NotAllowed,
            Self::Dial(DialError::Refused { .. }) => Failure::ConnectionRefused,
            Self::Dial(DialError::Timeout { .. }) => Failure::TimedOut,
            Self::Dial(DialError::Resolve(_) | DialError::Port) => Failure::HostUnreachable,
            Self::Dial(DialError::Unreachable { source, .. }) => {
                if source.kind() == std::io::ErrorKind::HostUnreachable {
                    Failure::HostUnreachable
                } else {
                    Failure::NetworkUnreachable
                }
            }
            Self::Dial(
                DialError::Connect { source, .. }
                | DialError::Unix { source, .. }
                | DialError::Socket { source, .. },
            ) => {
                if source.kind() == std::io::ErrorKind::PermissionDenied {
                    Failure::NotAllowed
                } else {
                    Failure::General
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
            Self::Rejected => EACCES,
            Self::Dial(DialError::Timeout { .. }) => ETIMEDOUT,
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
        Dialer::new(&outbound.dial).warnings().iter().map(ToString::to_string).collect();
    if let model::OutboundProtocol::Shadowsocks(client) = &outbound.protocol {
        warnings.extend(notice::method_warning(client.key.method()));
        if client.transports.udp() && Far::new(outbound).is_none() {
            warnings.push("datagrams through a plugin are not in this build".into());
        }
    }
    warnings.iter().map(|warning| format!("outbound {}: {warning}", outbound.name)).collect()
}

impl Outbound {
    /// Builds the outbound for one core.
    pub(crate) fn new(
        outbound: &model::Outbound,
        shared: &Shared,
        carrier: Option<kcp::Client>,
        metrics: Arc<OutboundMetrics>,
    ) -> Self {
        let kind = match (&outbound.protocol, shared) {
            (model::OutboundProtocol::Direct, _) => Kind::Direct,
            (model::OutboundProtocol::Snell(snell), Shared::Snell(shared)) => Kind::Snell(Rc::new(
                SnellOutbound::new(outbound.name.clone(), snell, shared.clone(), metrics.clone()),
            )),
            (model::OutboundProtocol::Shadowsocks(_), Shared::Shadowsocks(shared)) => {
                Kind::Shadowsocks(shared.clone())
            }
            (
                model::OutboundProtocol::Reject
                | model::OutboundProtocol::Snell(_)
                | model::OutboundProtocol::Shadowsocks(_)
                | model::OutboundProtocol::Group(_),
                _,
            ) => Kind::Reject,
        };
        let loopback = Dialer::new(&model::Dial { timeout: outbound.dial.timeout, ..model::Dial::default() });
        let (name, dialer) = (outbound.name.clone(), Dialer::new(&outbound.dial));
        let unix = outbound.dial.unix.clone();
        Self { name, kind, dialer, loopback, carrier, unix, metrics }
    }

    /// True if what the far target says is known only after the relay has begun.
    pub(crate) fn is_tunnel(&self) -> bool {
        matches!(self.kind, Kind::Snell(_) | Kind::Shadowsocks(_)) || self.carrier.is_some()
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
                Ok(Opened { far: Endpoint::plain(stream), policy: Policy::default() })
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
        }
    }

    /// The relay is done with a far end: takes and keeps its stream for the next request where that is possible.
    pub(crate) fn close(&self, far: Endpoint, outcome: &Outcome, pool: &Pool) {
        match &self.kind {
            Kind::Reject => {}
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
            EndReason::Finished | EndReason::Idle | EndReason::Stopped | EndReason::Wire(_) => false,
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
        match Box::pin(dialer.dial(target)).await {
            Ok(stream) => {
                self.metrics.dialled.add(1);
                Ok(stream.into())
            }
            Err(error) => {
                self.metrics.failed.add(1);
                Err(error)
            }
        }
    }
}
