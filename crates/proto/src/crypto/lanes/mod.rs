//! Authentication codes of up to eight messages side by side, where the processor has AVX2.
//!
//! MD5 and SipHash are chains of short steps: one message leaves most of the processor idle. Each vector holds one word
//! of the state of every message. Messages may differ in length. They go in step as long as all have blocks, and a lane
//! whose message has ended repeats another's blocks, without effect on its own state.

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod md5;
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
mod single;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod sip;

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
use std::ops::Range;

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub use md5::HmacMd5Lanes;
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
pub use single::{HmacMd5Lanes, Sip13Lanes};
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub use sip::Sip13Lanes;

use super::LANES;

/// Words of a state, each of all lanes.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
type Words<T, const N: usize> = [[T; LANES]; N];

/// Lets `absorb` take the blocks `from..to` of all lanes, stretch by stretch, until lane `n` has had `counts[n]` of them.
/// For each lane `absorb` is told whose blocks it takes: its own, or another's once it has none. The state of a lane is
/// changed by its own alone.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn in_step<T: Copy, const N: usize>(
    state: &mut Words<T, N>,
    counts: &[usize; LANES],
    mut absorb: impl FnMut(&mut Words<T, N>, Range<usize>, &[usize; LANES]),
) {
    let mut done = 0;
    while let Some(next) = counts.iter().copied().filter(|count| *count > done).min() {
        let is_active = |lane: &usize| counts[*lane] > done;
        let other = (0..LANES).find(is_active).expect("a lane has blocks left");
        let sources = std::array::from_fn(|lane| if is_active(&lane) { lane } else { other });
        let before = *state;
        absorb(state, done..next, &sources);
        for lane in (0..LANES).filter(|lane| !is_active(lane)) {
            state.iter_mut().zip(&before).for_each(|(words, before)| words[lane] = before[lane]);
        }
        done = next;
    }
}
