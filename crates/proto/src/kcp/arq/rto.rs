/// Longest time before a segment is sent again, in milliseconds.
const MAX_MS: u32 = 60_000;

/// The part of the round trip that is waited more at least, by those who are patient.
const PATIENCE: u32 = 4;

/// The least that one after which nothing is sent is waited for beyond the round trip, in milliseconds.
const LEAST_MARGIN_MS: u32 = 10;

/// Before the first sample, in milliseconds.
const INITIAL_MS: u32 = 200;

/// The least timeout where a stream carries the segments, in milliseconds: SCTP and TCP stand still for a second or two
/// after some losses, and a segment that is sent again then waits behind itself.
const STEADY_MS: u32 = 5_000;

/// The retransmission timeout of kcp-go, in whole milliseconds.
#[derive(Debug)]
pub(super) struct Rto {
    floor_ms: u32,
    interval_ms: u32,
    nodelay: bool,
    smoothed_ms: u32,
    variation_ms: u32,
    rto_ms: u32,
    /// The margin is at least a quarter of the round trip: where quick repetition finds losses, a timeout that was
    /// wrong costs more than a late one.
    is_patient: bool,
    /// Time that acknowledgements have lately waited for others at the peer, in 64ths of a millisecond.
    delay: u32,
}

impl Rto {
    pub(super) fn new(nodelay: bool, interval_ms: u32, is_patient: bool) -> Self {
        let floor_ms = if nodelay { 30 } else { 100 };
        let (smoothed_ms, variation_ms, rto_ms) = (0, 0, INITIAL_MS);
        Self { floor_ms, interval_ms, nodelay, smoothed_ms, variation_ms, rto_ms, is_patient, delay: 0 }
    }

    /// Timeouts where a stream carries the segments.
    pub(super) fn steady(interval_ms: u32) -> Self {
        Self { floor_ms: STEADY_MS, rto_ms: STEADY_MS, ..Self::new(false, interval_ms, true) }
    }

    /// Peers acknowledge several segments at once, up to 50 ms late: round trips are measured by the last of them, and
    /// the first has waited so much longer.
    pub(super) fn note_delay(&mut self, delay_ms: u32) {
        self.delay = (self.delay - self.delay / 64).max(delay_ms.min(MAX_MS) * 64);
    }

    pub(super) fn sample(&mut self, rtt_ms: u32) {
        let rtt_ms = rtt_ms.min(MAX_MS);
        if self.smoothed_ms == 0 {
            self.smoothed_ms = rtt_ms;
            self.variation_ms = rtt_ms / 2;
        } else {
            let delta = rtt_ms.cast_signed() - self.smoothed_ms.cast_signed();
            self.smoothed_ms = self.smoothed_ms.saturating_add_signed(delta >> 3);
            // Samples that are unusually short say little about how long others may take.
            let unusual = rtt_ms < self.smoothed_ms.saturating_sub(self.variation_ms);
            let change = delta.abs() - self.variation_ms.cast_signed();
            self.variation_ms =
                self.variation_ms.saturating_add_signed(if unusual { change >> 5 } else { change >> 2 });
        }
        let patience_ms = if self.is_patient { self.smoothed_ms / PATIENCE + self.delay / 64 } else { 0 };
        let rto = self.smoothed_ms + self.interval_ms.max(4 * self.variation_ms).max(patience_ms);
        self.rto_ms = rto.clamp(self.floor_ms, MAX_MS);
    }

    /// The smoothed round trip, 0 before the first sample.
    pub(super) fn smoothed_ms(&self) -> u32 {
        self.smoothed_ms
    }

    pub(super) fn current_ms(&self) -> u32 {
        self.rto_ms
    }

    /// The same for one after which nothing is sent: no later one will tell that it is lost, and sending it once too often
    /// costs little.
    pub(super) fn lone_ms(&self) -> u32 {
        if !self.is_patient || self.smoothed_ms == 0 {
            return self.rto_ms;
        }
        let margin_ms = (2 * self.variation_ms).max(self.smoothed_ms / PATIENCE).max(LEAST_MARGIN_MS);
        let rto_ms = (self.smoothed_ms + margin_ms + self.delay / 64).min(self.rto_ms);
        if self.floor_ms == STEADY_MS { rto_ms.max(STEADY_MS) } else { rto_ms }
    }

    /// The timeout that follows a timeout of `rto_ms` of a segment, in milliseconds.
    pub(super) fn after_timeout_ms(&self, rto_ms: u32) -> u32 {
        let growth = if self.nodelay { self.rto_ms / 2 } else { self.rto_ms };
        rto_ms.saturating_add(growth).min(MAX_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_waited_for() {
        let mut rto = Rto::steady(10);
        assert_eq!((rto.current_ms(), rto.lone_ms()), (5000, 5000));
        rto.sample(100);
        assert_eq!((rto.current_ms(), rto.lone_ms()), (5000, 5000));
        (0..100).for_each(|_| rto.sample(8000));
        assert!(rto.current_ms() > 8000 && rto.lone_ms() > 8000);
    }

    #[test]
    fn late_acknowledgements_are_waited_for() {
        let mut rto = Rto::new(false, 10, true);
        (0..100).for_each(|_| rto.sample(100));
        assert_eq!(rto.current_ms(), 125);
        rto.note_delay(30);
        rto.sample(100);
        assert_eq!(rto.current_ms(), 155);
        // Once they come sooner, that is forgotten.
        (0..1000).for_each(|_| rto.note_delay(0));
        rto.sample(100);
        assert!(rto.current_ms() <= 126, "{}", rto.current_ms());
        rto.note_delay(u32::MAX);
        rto.sample(100);
        assert!(rto.current_ms() <= MAX_MS);
    }

    #[test]
    fn a_lone_one_is_not_waited_for_long() {
        let [mut patient, mut other] = [true, false].map(|is_patient| Rto::new(false, 30, is_patient));
        assert_eq!(patient.lone_ms(), patient.current_ms());
        for rto in [&mut patient, &mut other] {
            (0..100).for_each(|_| rto.sample(20));
        }
        assert_eq!((patient.current_ms(), patient.lone_ms()), (100, 30));
        assert_eq!(other.lone_ms(), other.current_ms());
        patient.note_delay(30);
        assert_eq!(patient.lone_ms(), 60);
        patient.note_delay(u32::MAX);
        assert_eq!(patient.lone_ms(), 100);
    }

    #[test]
    fn by_hand() {
        let mut rto = Rto::new(false, 30, false);
        assert_eq!((rto.current_ms(), rto.after_timeout_ms(200)), (200, 400));
        rto.sample(100);
        assert_eq!((rto.smoothed_ms(), rto.current_ms()), (100, 300));
        rto.sample(108);
        // 50 + ((8 - 50) >> 2) = 39
        assert_eq!((rto.smoothed_ms(), rto.current_ms()), (101, 101 + 4 * 39));
        rto.sample(10);
        // smoothed 101 + (-91 >> 3) = 89; 10 < 89 - 39, so 39 + ((91 - 39) >> 5) = 40
        assert_eq!((rto.smoothed_ms(), rto.current_ms()), (89, 89 + 160));
        let mut quick = Rto::new(true, 10, false);
        quick.sample(1);
        assert_eq!((quick.current_ms(), quick.after_timeout_ms(30)), (30, 45));
        rto.sample(u32::MAX);
        assert!(rto.current_ms() <= MAX_MS);
    }
}
