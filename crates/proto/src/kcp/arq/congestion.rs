/// The congestion window of kcp-go, in segments; in force without `nc` only.
#[derive(Debug)]
pub(super) struct Congestion {
    window: u32,
    threshold: u32,
    /// `window` in bytes, with a fraction.
    bytes: u32,
}

/// Least slow-start threshold, and the first, in segments.
const MIN_THRESHOLD: u32 = 2;

impl Congestion {
    pub(super) fn new() -> Self {
        Self { window: 1, threshold: MIN_THRESHOLD, bytes: 0 }
    }

    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// A datagram has moved `una`, while the peer's window is `remote` segments.
    pub(super) fn advance(&mut self, mss: u32, remote: u32) {
        if self.window >= remote {
            return;
        }
        if self.window < self.threshold {
            self.window += 1;
            self.bytes += mss;
        } else {
            self.bytes = self.bytes.max(mss);
            self.bytes += mss * mss / self.bytes + mss / 16;
            if (self.window + 1) * mss <= self.bytes {
                self.window = self.bytes.div_ceil(mss);
            }
        }
        if self.window > remote {
            self.window = remote;
            self.bytes = remote * mss;
        }
    }

    /// Segments have been overtaken `resend` times, with `span` of them under way.
    pub(super) fn overtaken(&mut self, span: u32, resend: u32, mss: u32) {
        self.threshold = (span / 2).max(MIN_THRESHOLD);
        self.window = self.threshold.saturating_add(resend).min(u32::from(u16::MAX));
        self.bytes = self.window * mss;
    }

    /// Segments have timed out.
    pub(super) fn timed_out(&mut self, mss: u32) {
        self.threshold = (self.window / 2).max(MIN_THRESHOLD);
        self.window = 1;
        self.bytes = mss;
    }
}
