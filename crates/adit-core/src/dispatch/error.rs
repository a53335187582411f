//! Why there is no way out.

use std::io;
use std::time::Duration;

use adit_config::model::Tag;
use adit_config::model::rule::Manner;
use adit_net::dial::DialError;
use adit_net::reach::Private;
use adit_proto::wire::Failure as WireFailure;

/// Why there is no way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The configuration says no.
    #[error("the outbound refuses all requests")]
    Rejected,
    /// A rule or an access list refuses the target.
    #[error("refused by a rule")]
    Blocked(Manner),
    /// The target is a fake address that stands for no name: it is never dialled.
    #[error("a fake address of no name: the name was forgotten, and has to be looked up again")]
    Unmapped,
    /// The connection could not be made, for a tunnel: the one to its server.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The outbound that this one dials through opened no stream.
    #[error("through outbound {outbound}")]
    Through {
        /// Its name.
        outbound: Tag,
        /// Why there is none.
        source: io::Error,
    },
    /// The server is there, but its part of a handshake is wrong or does not come.
    #[error("handshake with the server failed")]
    Handshake(#[source] io::Error),
    /// No member of a group can be used.
    #[error("no member of the group can be used")]
    NoMember,
    /// The server of a member was given up for the next one.
    #[error("no connection within {waited:?}")]
    Slow {
        /// Time that the attempt took.
        waited: Duration,
    },
    /// The member of a group that was tried last.
    #[error("through {member}")]
    Member {
        /// Its name.
        member: Tag,
        /// Why there is no way.
        source: Box<Self>,
    },
}

impl OpenError {
    /// Why the target is refused, if that is because it is private.
    pub(crate) fn private(&self) -> Option<Private> {
        match self {
            Self::Dial(DialError::Private { kind, .. }) => Some(*kind),
            Self::Member { source, .. } => source.private(),
            Self::Rejected
            | Self::Blocked(_)
            | Self::Unmapped
            | Self::Dial(_)
            | Self::Through { .. }
            | Self::Handshake(_)
            | Self::NoMember
            | Self::Slow { .. } => None,
        }
    }

    /// Whether the client gets no answer but a reset.
    pub(crate) fn wants_reset(&self) -> bool {
        matches!(self, Self::Blocked(Manner::Reset | Manner::Drop))
    }

    /// The failure as a local client is told of it.
    pub(crate) fn failure(&self) -> WireFailure {
        match self {
            Self::Rejected | Self::Blocked(_) | Self::Dial(DialError::Private { .. }) => {
                WireFailure::NotAllowed
            }
            Self::Unmapped => WireFailure::HostUnreachable,
            Self::NoMember => WireFailure::NetworkUnreachable,
            Self::Handshake(error) if error.kind() == io::ErrorKind::TimedOut => WireFailure::TimedOut,
            Self::Handshake(_) => WireFailure::General,
            Self::Slow { .. } => WireFailure::TimedOut,
            Self::Through { .. } => WireFailure::General,
            Self::Member { source, .. } => source.failure(),
            Self::Dial(DialError::Refused { .. }) => WireFailure::ConnectionRefused,
            Self::Dial(DialError::Timeout { .. }) => WireFailure::TimedOut,
            Self::Dial(DialError::Resolve(_) | DialError::Port) => WireFailure::HostUnreachable,
            Self::Dial(DialError::Unreachable { source, .. }) => {
                if source.kind() == io::ErrorKind::HostUnreachable {
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
                if source.kind() == io::ErrorKind::PermissionDenied {
                    WireFailure::NotAllowed
                } else {
                    WireFailure::General
                }
            }
        }
    }

    /// The errno that stands for it on a wire, 0 where none does.
    pub(crate) fn errno(&self) -> u8 {
        /// Linux's number on every platform: clients know that one.
        const ETIMEDOUT: u8 = 110;
        const EACCES: u8 = 13;
        const EHOSTUNREACH: u8 = 113;
        match self {
            Self::Rejected | Self::Blocked(_) | Self::Dial(DialError::Private { .. }) => EACCES,
            Self::Dial(DialError::Timeout { .. }) | Self::Slow { .. } => ETIMEDOUT,
            Self::Unmapped => EHOSTUNREACH,
            Self::NoMember | Self::Through { .. } | Self::Handshake(_) => 0,
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
