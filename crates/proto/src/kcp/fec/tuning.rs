//! Learns the sender's groups from the order of data and parity packets.

use std::collections::VecDeque;

use super::Shards;

/// Samples that are kept: enough for one group of the largest size and its two ends.
const SAMPLES: usize = 258;

/// The latest packets: their number, and whether they were data.
#[derive(Debug, Default)]
pub(super) struct Tuning(VecDeque<(u32, bool)>);

impl Tuning {
    pub(super) fn sample(&mut self, seqid: u32, is_data: bool) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back((seqid, is_data));
    }

    /// The group size, if the samples show one complete run of data and one of parity.
    pub(super) fn find(&self) -> Option<Shards> {
        let &(newest, _) = self.0.back()?;
        let mut samples: Vec<(u32, bool)> = self.0.iter().copied().collect();
        samples.sort_unstable_by_key(|sample| sample.0.wrapping_sub(newest).cast_signed());
        samples.dedup();
        Shards::new(run(&samples, true)?, run(&samples, false)?)
    }
}

/// Length of the first run of `kind` that has the other kind at both ends and no gap.
fn run(samples: &[(u32, bool)], kind: bool) -> Option<usize> {
    let mut len = None;
    for pair in samples.windows(2) {
        let [(before, was), (after, is)] = [pair[0], pair[1]];
        len = match len {
            _ if after != before.wrapping_add(1) => None,
            _ if was != kind && is == kind => Some(1),
            Some(len) if is == kind => Some(len + 1),
            Some(len) => return Some(len),
            None => None,
        };
    }
    None
}
