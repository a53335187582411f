use thiserror::Error;

use crate::wire::WireError;

/// Why a server does not accept a client: for the log, and for the choice of the reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// The first proof is wrong: another password, method, protocol or obfs at the client, or no client at all.
    #[error("wrong password, method or protocol, or not a ShadowsocksR client")]
    WrongKey,
    /// The server's password fits, but it has no user with this id.
    #[error("unknown user id: {id}")]
    UnknownUser {
        /// The id that the client sent.
        id: u32,
    },
    /// The user exists, but the secret is another one.
    #[error("wrong secret of user id: {id}")]
    WrongSecret {
        /// The user's id.
        id: u32,
    },
    /// The client's clock is too far off.
    #[error("client's clock is {offset_s} s ahead of ours, more than {window_s} s are not accepted")]
    Clock {
        /// The client's time minus ours, in seconds.
        offset_s: i64,
        /// The accepted distance in seconds.
        window_s: u32,
    },
    /// The connection has been seen before.
    #[error("repeated connection (a replay)")]
    Replay,
    /// The client's number of the connection is too far from its other ones.
    #[error("connection id too far ahead: {ahead}")]
    ConnectionId {
        /// Distance to the oldest id that is still open.
        ahead: u32,
    },
    /// The user has as many clients as it may.
    #[error("too many clients at a time, the limit is {limit}")]
    TooManyClients {
        /// The limit.
        limit: usize,
    },
    /// The proofs fit, a field does not.
    #[error("bad {what}")]
    Malformed {
        /// The field.
        what: &'static str,
    },
    /// An obfs was expected and is not there, or not as it should be.
    #[error("not the expected obfs: bad {what}")]
    Obfs {
        /// The part that was wrong.
        what: &'static str,
    },
}

impl From<Refusal> for WireError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::WrongKey => Self::Authentication { what: "header" },
            Refusal::UnknownUser { .. } => Self::Authentication { what: "user id" },
            Refusal::WrongSecret { .. } => Self::Authentication { what: "user's secret" },
            Refusal::Clock { offset_s, window_s } => Self::Clock { offset_s, window_s },
            Refusal::Replay => Self::Replayed { what: "connection id" },
            Refusal::ConnectionId { ahead } => Self::Malformed { what: "connection id", got: ahead.into() },
            Refusal::TooManyClients { .. } => Self::Exhausted { what: "number of clients" },
            Refusal::Malformed { what } | Refusal::Obfs { what } => Self::Malformed { what, got: 0 },
        }
    }
}

/// Checks a client's 32-bit time against ours; both may have wrapped.
pub(super) fn check_clock(client_s: u32, unix_s: u64, window_s: u32) -> Result<(), Refusal> {
    let ours = low_32(unix_s);
    let offset_s = i64::from(client_s.wrapping_sub(ours).cast_signed());
    if offset_s.unsigned_abs() <= window_s.into() {
        return Ok(());
    }
    Err(Refusal::Clock { offset_s, window_s })
}

/// Unix time as the protocols carry it: modulo 2^32.
pub(super) fn low_32(unix_s: u64) -> u32 {
    let [a, b, c, d, ..] = unix_s.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
