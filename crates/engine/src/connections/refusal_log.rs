//! Lines about clients that are refused: one for each source and minute, ten a minute altogether, and the number of the
//! others at the minute's end.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_net::rt;

use crate::admission::prefix;

/// Length of a turn, in which each source gets one line.
const TURN: Duration = Duration::from_secs(60);
/// Lines in a turn.
const LINES: usize = 10;
/// The sum is written so long after the end of its turn.
const GRACE: Duration = Duration::from_secs(1);

/// Decides which refusals are written, for all inbounds on all cores. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalLog(Arc<Mutex<State>>);

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
    /// Refusals of the turn before without a line, if nobody has said so.
    sum: Option<u64>,
    /// Whether this one gets a line.
    line: bool,
    /// Time to the sum, of the first refusal of a turn without a line.
    sum_in: Option<Duration>,
}

impl RefusalLog {
    /// Writes the line about a refusal, if it is due; called on a core.
    pub(crate) fn report(&self, inbound: &str, peer: SocketAddr, cause: &dyn Display, now: Instant) {
        let Due { sum, line, sum_in } = self.due(peer.ip(), now);
        write_sum(sum);
        if line {
            tracing::warn!(inbound, %peer, "client refused: {cause}");
        }
        if let Some(pause) = sum_in {
            let log = self.clone();
            rt::spawn_local(async move {
                rt::sleep(pause).await;
                write_sum(log.end_turn(rt::now()));
            });
        }
    }

    fn due(&self, source: IpAddr, now: Instant) -> Due {
        let mut state = self.lock();
        let sum = state.end(now);
        let since = *state.since.get_or_insert(now);
        let line = state.named.len() < LINES && state.named.insert(prefix(source));
        state.silent += u64::from(!line);
        let is_first = !line && state.silent == 1;
        let left = TURN.saturating_sub(now.saturating_duration_since(since)) + GRACE;
        Due { sum, line, sum_in: is_first.then_some(left) }
    }

    /// Refusals without a line of the turn that is over, once.
    fn end_turn(&self, now: Instant) -> Option<u64> {
        self.lock().end(now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) < TURN) {
            return None;
        }
        let Self { silent, .. } = std::mem::take(self);
        (silent > 0).then_some(silent)
    }
}

fn write_sum(sum: Option<u64>) {
    if let Some(count) = sum {
        tracing::warn!(count, "further clients were refused in the minute before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_few() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let now = Instant::now();
        let (log, ip) = (RefusalLog::default(), |n: u8| IpAddr::from([192, 0, 2, n]));
        let due = |line| Due { sum: None, line, sum_in: None };
        assert_eq!(log.due(ip(1), now), due(true));
        let second = now + Duration::from_secs(20);
        let first_silent = Due { sum_in: Some(Duration::from_secs(41)), ..due(false) };
        assert_eq!(log.due(ip(1), second), first_silent, "one for each source");
        for n in 2..=10 {
            assert_eq!(log.due(ip(n), second), due(true));
        }
        assert_eq!(log.due(ip(11), second), due(false), "ten altogether");
        assert_eq!(log.due(ip(1), now + TURN), Due { sum: Some(2), ..due(true) });
        assert_eq!(log.end_turn(now + TURN + GRACE), None, "it was said");
        assert_eq!(log.due(ip(2), now + 2 * TURN), due(true), "nothing was left out");
    }

    #[test]
    fn the_sum_comes_though_nobody_else_does() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let now = Instant::now();
        let log = RefusalLog::default();
        for _ in 0..4 {
            log.due(IpAddr::from([192, 0, 2, 1]), now);
        }
        assert_eq!(log.end_turn(now + TURN - GRACE), None, "the turn is not over");
        assert_eq!(log.clone().end_turn(now + TURN + GRACE), Some(3));
        assert_eq!(log.end_turn(now + TURN + GRACE), None, "once");
    }
}
