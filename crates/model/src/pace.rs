//! The sending rate of connections.

use std::ops::RangeInclusive;

/// A rate that all connections of one client share: those from one IPv4 address or IPv6 /64, or to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Millions of bits per second, in [`Pace::MBPS`].
    pub mbps: u32,
    /// Keeps the rate in spite of losses, by the congestion control of the kernel module tcp-brutal, with this window
    /// in tenths of the window that the rate needs, in [`Pace::GAINS`]; `None` for the pacing that every kernel has.
    pub brutal: Option<u32>,
}

impl Pace {
    /// Rates that can be asked for.
    pub const MBPS: RangeInclusive<u32> = 1..=1_000_000;
    /// Windows that the module takes.
    pub const GAINS: RangeInclusive<u32> = 5..=80;
    /// The window unless told otherwise.
    pub const GAIN: u32 = 15;

    /// The rate in bytes per second.
    pub fn bytes_per_second(&self) -> u64 {
        u64::from(self.mbps) * 125_000
    }
}
