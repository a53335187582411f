//! Tells the path's own losses from those of a queue that overflows.
//!
//! A path loses a share at every rate. A full queue drops packets that are sent too fast, and it drops
//! here and there. So losses are counted by their circumstances; comparing tells one from the other.

/// Bytes that must have been judged before what was lost of them says something.
const LEAST_JUDGED: u64 = 256 * 1400;
/// Share of a round that is lost in a queue, beyond one and a half times what the path loses, at which it is congested.
const CONGESTED: f64 = 0.02;
/// Bytes that must have been lost so.
const LEAST_CONGESTED: u64 = 4 * 1400;
/// The same for a queue that overflows, of what came while it was full and beyond four times what the path loses:
/// much is given up for that.
const OVERFLOWING: f64 = 0.01;
const LEAST_OVERFLOWING: u64 = 16 * 1400;
/// Share of a round of startup that is lost where nothing but this sender's speed explains it, and bytes.
const MUCH_TOO_FAST: f64 = 0.2;
const LEAST_TOO_FAST: u64 = 64 * 1400;
/// Judgements until what the path loses changes slowly.
const LESSONS: u32 = 8;

/// Circumstances under which a packet was acknowledged, or found to be lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    /// It had waited in a queue.
    pub(super) waited: bool,
    /// The queue was about as long as it gets, or what is told of was sent above the rate.
    pub(super) is_full: bool,
    /// The packet was sent below the rate.
    pub(super) was_slow: bool,
}

/// Bytes that arrived and that did not.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    delivered: u64,
    lost: u64,
}

impl Tally {
    fn sum(self) -> u64 {
        self.delivered + self.lost
    }

    fn share(self) -> f64 {
        super::to_float(self.lost) / super::to_float(self.sum().max(1))
    }
}

#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Share that the path loses.
    base: f64,
    lessons: u32,
    /// Packets that did not wait, since that share was last looked at.
    clear: Tally,
    /// Packets that were sent below the rate: no queue overflows then.
    slow: Tally,
    /// Packets that met a full queue since the last fast round began; of losses in a row only the first few.
    full: Tally,
    /// Such a round has begun: before, what startup has lost would count.
    is_armed: bool,
    /// Of this round: all; what was lost, and what of it in a queue (of losses in a row the first few).
    round: Tally,
    queued: u64,
}

impl Losses {
    /// Share that the path loses.
    pub(super) fn base(&self) -> f64 {
        self.base
    }

    /// `bytes` have arrived.
    pub(super) fn handle_delivered(&mut self, bytes: u64, at: Circumstances) {
        self.round.delivered += bytes;
        if !at.waited {
            self.clear.delivered += bytes;
        }
        if at.was_slow {
            self.slow.delivered += bytes;
        }
        if at.is_full {
            self.full.delivered += bytes;
        }
    }

    /// `bytes` have not; `scattered` are those of them that were not just more of the same gap.
    pub(super) fn handle_lost(&mut self, bytes: u64, scattered: u64, at: Circumstances) {
        self.round.lost += bytes;
        if at.waited {
            self.queued += scattered;
        } else {
            self.clear.lost += bytes;
        }
        if at.was_slow {
            self.slow.lost += bytes;
        }
        if at.is_full {
            self.full.lost += scattered;
        }
    }

    /// A fast round begins, or would if there was need of one.
    pub(super) fn begin_cycle(&mut self) {
        self.full = Tally::default();
        self.is_armed = true;
    }

    /// Startup begins again: it overflows queues.
    pub(super) fn disarm(&mut self) {
        self.is_armed = false;
    }

    /// Whether startup has found a queue that is too short to show in round trips.
    pub(super) fn is_much_too_fast(&self) -> bool {
        self.round.lost > LEAST_TOO_FAST && self.round.share() > MUCH_TOO_FAST
    }

    /// Whether more was lost in a queue in this round than the path explains: what was delivered is all that it carries.
    pub(super) fn is_congested(&self) -> bool {
        let share = Tally { lost: self.queued, ..self.round }.share();
        share > CONGESTED + self.base * 1.5 && self.queued > LEAST_CONGESTED
    }

    /// Whether a queue has overflowed since the last fast round began; true once.
    pub(super) fn take_overflow(&mut self) -> bool {
        let found = self.is_armed
            && self.full.lost > LEAST_OVERFLOWING
            && self.full.share() > OVERFLOWING + self.base * 4.0;
        self.is_armed &= !found;
        found
    }

    /// A round has ended. The path's own loss is the loss without a queue while the rate is known, and at most the loss
    /// of a slow round. Otherwise a queue that is too short to be noticed would drop everything that is sent to make up
    /// for its own drops.
    pub(super) fn turn(&mut self, is_steady: bool) {
        self.round = Tally::default();
        self.queued = 0;
        if !is_steady {
            self.clear = Tally::default();
            return;
        }
        if self.slow.sum() > LEAST_JUDGED {
            self.base = self.base.min(std::mem::take(&mut self.slow).share() * 1.5 + 0.005);
        }
        if self.clear.sum() > LEAST_JUDGED {
            let change = std::mem::take(&mut self.clear).share() - self.base;
            self.lessons = (self.lessons + 1).min(LESSONS);
            self.base += if change < 0.0 { change / 2.0 } else { change / f64::from(self.lessons) };
        }
    }
}
