//! Lines about clients that are refused: one for each source and minute, ten a minute altogether.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_proto::goquiet::NotOurs;
use adit_proto::ssr::Refusal;
use adit_proto::wire::WireError;

use crate::guard::prefix;
use crate::notice::skew;

/// Length of a turn, in which each source gets one line.
const TURN: Duration = Duration::from_secs(60);
/// Lines in a turn.
const LINES: usize = 10;

/// The likely cause of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::inbound) enum Cause {
    /// Protocol, cipher or obfs say so.
    Refused(Refusal),
    /// GoQuiet says so.
    Quiet(NotOurs),
    /// Bytes behind a good beginning are wrong.
    Wire(WireError),
    /// Its bytes ended, or stayed away, in the middle of its header.
    Cut,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Refusal::Clock { offset_s, window_s }) => {
                f.write_str(&skew("the client's", *offset_s, *window_s))
            }
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Quiet(reason) => reason.fmt(f),
            Self::Wire(error) => error.fmt(f),
            Self::Cut => f.write_str(
                "its bytes ended before the header was complete: another protocol or obfs, a broken connection, or a probe",
            ),
        }
    }
}

impl Cause {
    /// The same for counters.
    pub(in crate::inbound) fn error(&self) -> WireError {
        match self {
            Self::Refused(refusal) => (*refusal).into(),
            Self::Quiet(NotOurs::Replay) => WireError::Replayed { what: "client hello" },
            Self::Quiet(NotOurs::NoProof) => WireError::Authentication { what: "client hello" },
            Self::Quiet(NotOurs::NotTls | NotOurs::Broken) => {
                WireError::Malformed { what: "client hello", got: 0 }
            }
            Self::Wire(error) => error.clone(),
            Self::Cut => WireError::Truncated { what: "header" },
        }
    }
}

/// Decides which refusals are written, for all cores of one inbound.
#[derive(Debug, Default)]
pub(in crate::inbound) struct Refusals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    /// The sources that have had their line, at most [`LINES`].
    named: HashSet<IpAddr>,
    /// Refusals of this turn without a line.
    silent: u64,
}

/// The log lines that are due for one refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Due {
    /// Refusals of the turn before without a line, once it is over.
    sum: Option<u64>,
    /// Whether this one gets a line.
    line: bool,
}

impl Refusals {
    /// Writes the line about a refusal, if it is due.
    pub(in crate::inbound) fn report(&self, inbound: &str, peer: SocketAddr, cause: &Cause, now: Instant) {
        let Due { sum, line } = self.due(peer.ip(), now);
        if let Some(count) = sum {
            tracing::warn!(inbound, count, "further clients were refused in the minute before");
        }
        if line {
            tracing::warn!(inbound, %peer, "client refused: {cause}");
        }
    }

    fn due(&self, source: IpAddr, now: Instant) -> Due {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Due::default();
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= TURN) {
            due.sum = (state.silent > 0).then_some(state.silent);
            *state = State { since: Some(now), ..State::default() };
        }
        due.line = state.named.len() < LINES && state.named.insert(prefix(source));
        state.silent += u64::from(!due.line);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_few() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let now = Instant::now();
        let (refusals, ip) = (Refusals::default(), |n: u8| IpAddr::from([192, 0, 2, n]));
        let line = |line| Due { sum: None, line };
        assert_eq!(refusals.due(ip(1), now), line(true));
        assert_eq!(refusals.due(ip(1), now), line(false), "one for each source");
        for n in 2..=10 {
            assert_eq!(refusals.due(ip(n), now), line(true));
        }
        assert_eq!(refusals.due(ip(11), now), line(false), "ten altogether");
        assert_eq!(refusals.due(ip(1), now + TURN), Due { sum: Some(2), line: true });
        assert_eq!(refusals.due(ip(2), now + 2 * TURN), line(true), "nothing was left out");
    }
}
