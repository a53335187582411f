//! Why there is no way out.

use std::io;
use std::time::Duration;

use adit_model::Tag;
use adit_model::codes;
use adit_model::rule::RejectMethod;
use adit_net::dial::DialError;
use adit_net::reach::Private;
use adit_net::resolve::ResolveError;
use adit_proto::wire::ConnectFailure;

use crate::errors::{Fault, SERVER};

/// Why there is no way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The configuration says no.
    #[error("the outbound refuses all requests")]
    Rejected,
    /// The outbound is one that adit cannot speak.
    #[error("outbound {name} is dead: {why}")]
    Dead {
        /// Its name.
        name: Tag,
        /// Why.
        why: Box<str>,
    },
    /// A rule or an access list refuses the target.
    #[error("refused by a rule")]
    Blocked(RejectMethod),
    /// The target is a fake address that stands for no name: it is never dialled.
    #[error("a fake address of no name: the name was forgotten, and has to be looked up again")]
    Unmapped,
    /// The client's carrier has given it up: there is nobody to connect for.
    #[error("the client's session has ended")]
    Lost,
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
            | Self::Dead { .. }
            | Self::Blocked(_)
            | Self::Unmapped
            | Self::Lost
            | Self::Dial(_)
            | Self::Through { .. }
            | Self::Handshake(_)
            | Self::NoMember
            | Self::Slow { .. } => None,
        }
    }

    /// Whether the client gets no answer but a reset.
    pub(crate) fn wants_reset(&self) -> bool {
        match self {
            Self::Blocked(manner) => matches!(manner, RejectMethod::Reset | RejectMethod::Drop),
            Self::Member { source, .. } => source.wants_reset(),
            Self::Lost => true,
            Self::Rejected
            | Self::Unmapped
            | Self::Dead { .. }
            | Self::Dial(_)
            | Self::Through { .. }
            | Self::Handshake(_)
            | Self::NoMember
            | Self::Slow { .. } => false,
        }
    }

    /// The failure as a local client is told of it.
    pub(crate) fn failure(&self) -> ConnectFailure {
        match self {
            Self::Rejected | Self::Blocked(_) | Self::Dial(DialError::Private { .. }) => {
                ConnectFailure::NotAllowed
            }
            Self::Unmapped => ConnectFailure::HostUnreachable,
            Self::NoMember => ConnectFailure::NetworkUnreachable,
            Self::Handshake(error) if error.kind() == io::ErrorKind::TimedOut => ConnectFailure::TimedOut,
            Self::Handshake(_) => ConnectFailure::General,
            Self::Slow { .. } => ConnectFailure::TimedOut,
            Self::Through { .. } | Self::Dead { .. } | Self::Lost => ConnectFailure::General,
            Self::Member { source, .. } => source.failure(),
            Self::Dial(DialError::Refused { .. }) => ConnectFailure::ConnectionRefused,
            Self::Dial(DialError::Timeout { .. }) => ConnectFailure::TimedOut,
            Self::Dial(DialError::Resolve(_) | DialError::Port) => ConnectFailure::HostUnreachable,
            Self::Dial(DialError::Unreachable { source, .. }) => {
                if source.kind() == io::ErrorKind::HostUnreachable {
                    ConnectFailure::HostUnreachable
                } else {
                    ConnectFailure::NetworkUnreachable
                }
            }
            Self::Dial(
                DialError::Connect { source, .. }
                | DialError::Unix { source, .. }
                | DialError::Socket { source, .. },
            ) => {
                if source.kind() == io::ErrorKind::PermissionDenied {
                    ConnectFailure::NotAllowed
                } else {
                    ConnectFailure::General
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
            Self::NoMember | Self::Dead { .. } | Self::Through { .. } | Self::Handshake(_) | Self::Lost => 0,
            Self::Member { source, .. } => source.errno(),
            Self::Dial(error) => error.errno().and_then(|errno| u8::try_from(errno).ok()).unwrap_or(0),
        }
    }

    /// The error with its causes, in one line.
    pub(crate) fn chain(&self) -> String {
        chain(self)
    }

    /// The trouble of an outbound that this error shows, if it does. Targets of a direct outbound fail all the time: there
    /// only errors of this machine and of its name servers count, and the text names no target.
    pub(crate) fn fault(&self, is_tunnel: bool) -> Option<Fault> {
        let of_server = |code, text: String| is_tunnel.then(|| Fault::new(code, text));
        match self {
            Self::Rejected
            | Self::Blocked(_)
            | Self::Unmapped
            | Self::Lost
            | Self::Dial(DialError::Private { .. } | DialError::Port) => None,
            Self::Dial(DialError::Resolve(error)) => name_fault(error, is_tunnel),
            Self::Dial(DialError::Socket { source, .. }) => Some(socket_fault(source)),
            Self::Dial(DialError::Refused { addr, .. }) => {
                of_server(codes::NET_REFUSED, format!("cannot reach {SERVER}: connection to {addr} refused"))
            }
            Self::Dial(DialError::Timeout { addr }) => {
                of_server(codes::NET_TIMEOUT, format!("cannot reach {SERVER}: no answer from {addr} in time"))
            }
            Self::Dial(DialError::Unreachable { addr, source }) => {
                of_server(codes::NET_ROUTE, format!("cannot reach {SERVER}: no route to {addr}: {source}"))
            }
            Self::Slow { waited } => {
                let text = format!("cannot reach {SERVER}: no connection within {} s", waited.as_secs_f32());
                of_server(codes::NET_TIMEOUT, text)
            }
            Self::Handshake(error) => of_server(
                codes::AUTH_SERVER,
                format!(
                    "handshake with {SERVER} failed: {error}: key, method, obfs or clock differ, or it is another server"
                ),
            ),
            Self::Dial(DialError::Connect { .. } | DialError::Unix { .. }) | Self::Through { .. } => {
                of_server(codes::NET_OTHER, format!("cannot reach {SERVER}: {}", chain(self)))
            }
            Self::Dead { .. } => Some(Fault::new(codes::NET_OTHER, self.to_string())),
            Self::NoMember => Some(Fault::new(codes::GROUP_DEAD, "no member of the group can be used")),
            Self::Member { member, source } => {
                let last = source.chain();
                let text = format!("no member of the group can be used; the last one, {member}: {last}");
                source.fault(is_tunnel).map(|_| Fault::new(codes::GROUP_DEAD, text))
            }
        }
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The trouble with a name: of the outbound's server, or of the name servers.
fn name_fault(error: &ResolveError, is_tunnel: bool) -> Option<Fault> {
    let text = chain(error);
    let whole = if is_tunnel {
        format!("cannot reach {SERVER}: {text}")
    } else {
        format!("names do not resolve: {text}")
    };
    if text.contains("certificate") {
        return Some(Fault::new(codes::TLS_CERTIFICATE, whole));
    }
    match error {
        ResolveError::Timeout | ResolveError::Io(_) => Some(Fault::new(codes::DNS_DEAD, whole)),
        ResolveError::Other(_) => Some(Fault::new(codes::DNS_FAILED, whole)),
        ResolveError::Server(_) | ResolveError::Busy => {
            is_tunnel.then(|| Fault::new(codes::DNS_FAILED, whole))
        }
        ResolveError::NotFound | ResolveError::NoAddress | ResolveError::BadName => {
            let text = format!("cannot reach {SERVER}: name does not resolve: {error}");
            is_tunnel.then(|| Fault::new(codes::NET_NAME, text))
        }
    }
}

/// The trouble behind a socket that could not be made.
pub(super) fn socket_fault(error: &io::Error) -> Fault {
    const NO_DESCRIPTOR: [i32; 2] = [23, 24];
    if error.raw_os_error().is_some_and(|number| NO_DESCRIPTOR.contains(&number)) {
        return Fault::new(codes::SYS_DESCRIPTORS, format!("no socket for a connection: {error}"));
    }
    Fault::new(codes::NET_SOCKET, format!("no socket for a connection: {error}"))
}
