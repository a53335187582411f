//! The end of a connection: one named reason, one line.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use adit_proto::wire::{Target, WireError};

use crate::users::UserLimit;

/// The two sides of a relayed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side of the client.
    Near,
    /// The side of the target.
    Far,
}

impl Side {
    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// Both directions ended in order.
    Finished,
    /// No bytes in either direction for the configured time.
    Idle,
    /// It had to make room for others: descriptors or memory were short.
    Crowded,
    /// The operator has ended it.
    Kicked,
    /// The process ends, and has waited long enough.
    Stopped,
    /// The user may use no more.
    Limited(UserLimit),
    /// A socket failed on this side.
    Socket(Side, io::ErrorKind),
    /// The protocol's bytes were not what they must be, or the far end reported an error.
    Wire(WireError),
}

impl EndReason {
    /// The reason's name, for counting and searching.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Idle => "idle",
            Self::Crowded => "crowded",
            Self::Kicked => "kicked",
            Self::Stopped => "stopped",
            Self::Limited(_) => "user-limit",
            Self::Socket(Side::Near, _) => "near-reset",
            Self::Socket(Side::Far, _) => "far-reset",
            Self::Wire(WireError::Remote { .. }) => "far-error",
            Self::Wire(_) => "protocol-error",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished | Self::Idle | Self::Crowded | Self::Kicked | Self::Stopped => {
                f.write_str(self.name())
            }
            Self::Limited(limit) => write!(f, "{}: {limit}", self.name()),
            Self::Socket(_, kind) => write!(f, "{}: {kind}", self.name()),
            Self::Wire(error) => write!(f, "{}: {error}", self.name()),
        }
    }
}

/// The record of a connection; written once, when it has ended.
#[derive(Debug)]
pub(crate) struct ConnectionRecord<'a> {
    /// Name of the inbound.
    pub(crate) inbound: &'a str,
    /// Name of the outbound.
    pub(crate) outbound: &'a str,
    /// The client.
    pub(crate) peer: Option<SocketAddr>,
    /// The requested target.
    pub(crate) target: &'a Target,
    /// When the request was whole.
    pub(crate) since: Instant,
}

impl ConnectionRecord<'_> {
    /// Writes the record: at info without the addresses if `destinations` allows no more, at debug otherwise.
    pub(crate) fn write(&self, now: Instant, up: u64, down: u64, reason: &EndReason, destinations: bool) {
        let took = Elapsed(now.saturating_duration_since(self.since));
        let Self { inbound, outbound, peer, target, .. } = self;
        let peer = peer.map(tracing::field::display);
        if destinations {
            tracing::info!(inbound, outbound, peer, %target, up, down, %took, %reason, "connection ended");
        } else {
            tracing::debug!(inbound, outbound, peer, %target, up, down, %took, %reason, "connection ended");
        }
    }
}

struct Elapsed(Duration);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}
