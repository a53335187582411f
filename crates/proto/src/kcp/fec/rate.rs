//! The amount of parity that is worth sending.
//!
//! If the path is what limits a sender, parity takes the place of data, and it is cheaper to send lost data again.
//! If something else does (the peer's window, or the source), the path has room, and each loss stands in the way of
//! all that follows until it has been made good a round trip later: a window of kcptun's stands still for as long.
//! So parity follows the loss where there is room, and there is none where there is not.
//!
//! With parity the sender sees only the losses that parity could not repair. So the level that was needed once
//! is kept for a while, and then one less is tried: the longer, the more often that was wrong.

use super::Shards;

/// Groups that may remain beyond repair: one in so many.
const BEYOND_REPAIR: f64 = 1e-3;
/// Segments after which what was lost of them is judged, at the least.
const JUDGED: u64 = 512;
/// The same after this time, in microseconds, if they are [`FEW`] at least.
const JUDGED_US: u64 = 2_000_000;
const FEW: u64 = 128;
/// Repetitions that say something.
const NEWS: u64 = 2;
/// Share of segments that may be sent again in spite of parity before there is more of it.
const TOO_MANY: f64 = 5e-4;
/// Time that a level is kept before one less is tried, in microseconds.
const HOLD_US: u64 = 2_000_000;
const MAX_HOLD_US: u64 = 256_000_000;

/// Counters of a session until now.
#[derive(Debug, Clone, Copy, Default)]
pub struct FecCounters {
    /// Segments sent, repetitions included.
    pub sent: u64,
    /// Repetitions among them.
    pub sent_again: u64,
    /// The round trip in microseconds, 0 while unknown.
    pub round_trip_us: u64,
    /// Whether the path could carry more, or would if it were not for what is lost.
    pub has_room: bool,
}

/// The number of parity packets per group that the losses of a session ask for.
#[derive(Debug)]
pub(super) struct Rate {
    shards: Shards,
    /// The level that the losses ask for, and the level of the present stretch.
    wanted: usize,
    level: usize,
    /// The present stretch: when it began, and what had been seen by then.
    since_us: u64,
    before: FecCounters,
    /// When the level last rose or fell, and how long it stays.
    changed_us: u64,
    hold_us: u64,
    /// One less is being tried.
    is_trial: bool,
}

impl Rate {
    /// No parity, until losses are seen.
    pub(super) fn new(shards: Shards) -> Self {
        Self {
            shards,
            wanted: 0,
            level: 0,
            since_us: 0,
            before: FecCounters::default(),
            changed_us: 0,
            hold_us: HOLD_US,
            is_trial: false,
        }
    }

    /// Starts a stretch at `now_us` with the counters `seen`; earlier segments are not judged.
    pub(super) fn begin(&mut self, now_us: u64, seen: FecCounters) {
        (self.since_us, self.before) = (now_us, seen);
    }

    /// Takes what has been seen until `now_us`; returns how many parity packets groups should get from now on.
    pub(super) fn update(&mut self, now_us: u64, seen: FecCounters) -> usize {
        if seen.round_trip_us == 0 {
            // The times of earlier timeouts are unknown, so they are not judged.
            self.begin(now_us, seen);
        }
        let (sent, again) = (seen.sent - self.before.sent, seen.sent_again - self.before.sent_again);
        let elapsed_us = now_us.saturating_sub(self.since_us);
        let is_over = sent >= JUDGED || elapsed_us >= JUDGED_US;
        if is_over && sent >= FEW {
            self.judge(now_us, sent, again);
        }
        // Groups that take longer than a round trip are repaired no sooner than by sending again.
        let in_time = u128::from(sent) * u128::from(seen.round_trip_us)
            >= u128::from(elapsed_us) * u128::try_from(self.shards.data()).unwrap_or(u128::MAX);
        if is_over || self.level > 0 && !seen.has_room {
            self.level = if seen.has_room && in_time { self.wanted } else { 0 };
            self.since_us = now_us;
            self.before = seen;
        }
        self.level
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn judge(&mut self, now_us: u64, sent: u64, again: u64) {
        let share = again as f64 / sent as f64;
        let held_us = now_us.saturating_sub(self.changed_us);
        let needed = match self.level {
            0 => self.needed(share),
            level if again >= NEWS && share > TOO_MANY => level + 1,
            level => level,
        };
        let needed = if again < NEWS { needed.min(self.wanted) } else { needed.min(self.shards.parity()) };
        if needed > self.wanted {
            if self.is_trial && held_us < self.hold_us {
                self.hold_us = (self.hold_us * 2).min(MAX_HOLD_US);
            }
            self.change(now_us, needed, false);
        } else if self.wanted > 0 && held_us >= self.hold_us {
            if self.is_trial {
                self.hold_us = (self.hold_us / 2).max(HOLD_US);
            }
            self.change(now_us, self.wanted - 1, true);
        }
    }

    fn change(&mut self, now_us: u64, wanted: usize, is_trial: bool) {
        (self.wanted, self.changed_us, self.is_trial) = (wanted, now_us, is_trial);
    }

    /// Parity packets with which no more than [`BEYOND_REPAIR`] of the groups lose more, if `share` of all packets is
    /// lost, each by itself: the first term of the binomial tail, which is nearly all of it.
    fn needed(&self, share: f64) -> usize {
        let (data, most) = (self.shards.data(), self.shards.parity());
        (0..most).find(|parity| tail(data + parity, parity + 1, share) < BEYOND_REPAIR).unwrap_or(most)
    }
}

/// The probability that `lost` of `packets` are lost, but for a factor near 1.
#[expect(clippy::cast_precision_loss, reason = "at most 256")]
fn tail(packets: usize, lost: usize, share: f64) -> f64 {
    (0..lost).map(|i| (packets - i) as f64 / (i + 1) as f64 * share).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP_US: u64 = 100_000;

    /// A session of 5,000 segments a second, of which one in `lose[level]` (0: none) has to be sent again at that level.
    struct Session {
        rate: Rate,
        now_us: u64,
        seen: FecCounters,
        lose: [u64; 4],
    }

    impl Session {
        fn new(lose: [u64; 4]) -> Self {
            let seen = FecCounters { round_trip_us: ROUND_TRIP_US, has_room: true, ..FecCounters::default() };
            Self { rate: Rate::new(Shards::USUAL), now_us: 0, seen, lose }
        }

        /// The level after `seconds`, and the thousandths of the time at each.
        fn run(&mut self, seconds: u64) -> (usize, [u64; 4]) {
            let mut times = [0; 4];
            let mut level = self.rate.update(self.now_us, self.seen);
            for _ in 0..seconds * 250 {
                self.now_us += 4000;
                let before = self.seen.sent;
                self.seen.sent += 20;
                let lost = |sent: u64| sent.checked_div(self.lose[level]).unwrap_or_default();
                self.seen.sent_again += lost(self.seen.sent) - lost(before);
                level = self.rate.update(self.now_us, self.seen);
                times[level] += 1;
            }
            (level, times.map(|n| n * 4 / seconds))
        }
    }

    #[test]
    fn as_much_as_losses_ask_for() {
        assert_eq!(
            [0.0, 1e-4, 3e-3, 1e-2, 5e-2].map(|loss| Rate::new(Shards::USUAL).needed(loss)),
            [0, 1, 1, 2, 3]
        );
        assert_eq!(Session::new([0; 4]).run(60).0, 0);
        assert!(Session::new([100, 1000, 0, 0]).run(1).0 >= 2);
        assert_eq!(Session::new([20, 60, 200, 1000]).run(1).0, 3);
    }

    #[test]
    fn one_less_is_tried_ever_more_seldom() {
        let mut session = Session::new([20, 60, 200, 0]);
        session.run(10);
        let first = session.run(30).1[3];
        let later = session.run(300).1[3];
        assert!(later > first && later > 990, "{first} thousandths with all of it, later {later}");
        // The path has become a good one.
        session.lose = [0; 4];
        session.run(600);
        assert_eq!(session.run(30), (0, [1000, 0, 0, 0]));
    }

    #[test]
    fn nothing_where_it_is_of_no_use() {
        let mut session = Session::new([20, 60, 200, 0]);
        session.run(2);
        session.seen.has_room = false;
        assert_eq!(session.run(10).1, [1000, 0, 0, 0]);
        // It knows what it needs when there is room again.
        session.seen.has_room = true;
        assert_eq!(session.run(1).0, 3);
        // Groups that are longer under way than what is sent again.
        session.seen.round_trip_us = 1000;
        session.run(1);
        assert_eq!(session.run(10).1, [1000, 0, 0, 0]);
    }
}
