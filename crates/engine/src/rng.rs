//! Randomness from the system, a kilobyte at a time.

use std::cell::RefCell;

use adit_proto::wire::Rng;

/// The system's random source, buffered per thread. Bytes are wiped from the buffer as they are handed out.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRng;

struct Buffer {
    bytes: [u8; 1024],
    used: usize,
}

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer { bytes: [0; 1024], used: 1024 }) };
}

impl Rng for OsRng {
    fn fill(&mut self, out: &mut [u8]) {
        BUFFER.with_borrow_mut(|buffer| {
            for byte in out {
                if buffer.used == buffer.bytes.len() {
                    getrandom::fill(&mut buffer.bytes).expect("the system has a random source");
                    buffer.used = 0;
                }
                *byte = std::mem::take(&mut buffer.bytes[buffer.used]);
                buffer.used += 1;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_drawn_once() {
        let mut out = vec![0; 5000];
        OsRng.fill(&mut out);
        let zeros = out.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 100, "{zeros} of 5000 bytes are zero");
        let mut again = vec![0; 5000];
        OsRng.fill(&mut again);
        assert_ne!(out, again);
    }
}
