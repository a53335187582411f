//! One TCP flow with CUBIC (RFC 9438) and an exit from slow start by delay (RFC 9406), as far as it takes to see what
//! another sender leaves to it: it never runs dry, what is lost is sent again as something new, and only what arrives
//! counts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const SCALE: f64 = 0.4;
const BETA: f64 = 0.7;
/// Bytes of a packet, headers included.
pub(crate) const PACKET_LEN: usize = 1500;

pub(crate) struct Cubic {
    window: f64,
    threshold: f64,
    highest: f64,
    /// When growth began after the last loss, and from which window.
    epoch: Option<(Instant, f64)>,
    next: u64,
    /// Numbers and times of what is under way, in order.
    out: VecDeque<(u64, Instant)>,
    /// No further reduction before this number has been acknowledged.
    recovered_at: u64,
    least: Duration,
    heard_at: Instant,
}

impl Cubic {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            window: 10.0,
            threshold: f64::MAX,
            highest: 0.0,
            epoch: None,
            next: 0,
            out: VecDeque::new(),
            recovered_at: 0,
            least: Duration::MAX,
            heard_at: now,
        }
    }

    /// The number of the next packet, if the window allows one.
    #[expect(clippy::cast_precision_loss, reason = "windows are small")]
    pub(crate) fn poll_send(&mut self, now: Instant) -> Option<u64> {
        if self.out.len() as f64 >= self.window {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.out.push_back((number, now));
        Some(number)
    }

    /// When nothing has been heard for so long that everything is lost.
    pub(crate) fn timeout(&self) -> Instant {
        self.heard_at + Duration::from_secs(1)
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now >= self.timeout() {
            self.heard_at = now;
            self.out.clear();
            self.reduce();
            self.window = 1.0;
        }
    }

    pub(crate) fn handle_ack(&mut self, number: u64, now: Instant) {
        self.heard_at = now;
        let Ok(at) = self.out.binary_search_by_key(&number, |entry| entry.0) else { return };
        let round_trip = now - self.out[at].1;
        self.out.remove(at);
        self.least = self.least.min(round_trip);
        self.grow(round_trip, now);
        let mut is_lost = false;
        while self.out.front().is_some_and(|(oldest, _)| oldest + 3 < number) {
            is_lost |= self.out.pop_front().is_some_and(|(lost, _)| lost >= self.recovered_at);
        }
        if is_lost {
            self.recovered_at = self.next;
            self.reduce();
        }
    }

    fn grow(&mut self, round_trip: Duration, now: Instant) {
        if self.window < self.threshold {
            self.window += 1.0;
            let margin = (self.least / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
            if round_trip > self.least + margin {
                self.threshold = self.window;
            }
            return;
        }
        // Without a loss before (section 4.10 of RFC 9438) growth begins where the window is.
        let (epoch, start) = *self.epoch.get_or_insert((now, self.window));
        let origin = self.highest.max(start);
        let k = ((origin - start) / SCALE).cbrt();
        let passed = (now - epoch).as_secs_f64();
        let rtt = self.least.as_secs_f64();
        let target = (SCALE * (passed + rtt - k).powi(3) + origin).min(self.window * 1.5);
        let friendly = start + 3.0 * (1.0 - BETA) / (1.0 + BETA) * passed / rtt;
        if target > self.window {
            self.window += (target - self.window) / self.window;
        }
        self.window = self.window.max(friendly.min(self.window + 1.0));
    }

    fn reduce(&mut self) {
        self.epoch = None;
        self.highest =
            if self.window < self.highest { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
    }
}
