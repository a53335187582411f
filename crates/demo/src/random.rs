//! Seeded random bytes that both ends can make, to send and to compare.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Bytes made and compared at once.
const PIECE: usize = 32 * 1024;

/// `SplitMix64`: fast, and good enough that no two places of a stream look alike.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that starts at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        let scaled = ((self.next_u64() >> 32) * u64::from(bound)) >> 32;
        u32::try_from(scaled).expect("a 32-bit number times a fraction fits 32 bits")
    }
}

/// The result of [`Stream::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes that came.
    pub bytes: u64,
    /// Whether they were the stream's.
    pub right: bool,
    /// Whether the peer ended its direction.
    pub ended: bool,
}

/// A byte stream that depends on its seed alone.
#[derive(Debug)]
pub struct Stream {
    random: Random,
    piece: Vec<u8>,
    /// Number of bytes of `piece` that were used.
    at: usize,
}

impl Stream {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), piece: vec![0; PIECE], at: PIECE }
    }

    /// The next bytes, at least one and at most `most`.
    fn next(&mut self, most: usize) -> &[u8] {
        if self.at == PIECE {
            for word in self.piece.chunks_exact_mut(8) {
                word.copy_from_slice(&self.random.next_u64().to_le_bytes());
            }
            self.at = 0;
        }
        let from = self.at;
        self.at = (from + most).min(PIECE);
        &self.piece[from..self.at]
    }

    /// Fills `out` with the next bytes.
    pub fn fill(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let bytes = self.next(out.len());
            let (now, later) = out.split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            out = later;
        }
    }

    /// Sends the next `len` bytes.
    ///
    /// # Errors
    /// The socket's error.
    pub fn send(&mut self, mut to: &TcpStream, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let bytes = self.next(usize::try_from(len).unwrap_or(usize::MAX).min(PIECE));
            to.write_all(bytes)?;
            len -= bytes.len() as u64;
        }
        Ok(())
    }

    /// Receives until `len` bytes came or the peer ended, and compares.
    ///
    /// # Errors
    /// The socket's error, unless the bytes before it were already wrong.
    pub fn receive(&mut self, mut from: &TcpStream, len: u64) -> io::Result<Received> {
        let mut buf = vec![0; PIECE];
        let mut received = Received { bytes: 0, right: true, ended: false };
        while received.bytes < len {
            let want = usize::try_from(len - received.bytes).unwrap_or(usize::MAX).min(PIECE);
            let n = match from.read(&mut buf[..want]) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) if !received.right => return Ok(received),
                Err(error) => return Err(error),
            };
            if n == 0 {
                received.ended = true;
                break;
            }
            received.bytes += n as u64;
            let mut rest = &buf[..n];
            while !rest.is_empty() {
                let expected = self.next(rest.len());
                received.right &= rest.starts_with(expected);
                rest = &rest[expected.len()..];
            }
        }
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_known_values() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn stream_does_not_depend_on_the_split() {
        let mut whole = Stream::new(5);
        let mut split = Stream::new(5);
        let mut a = Vec::new();
        while a.len() < 100_000 {
            a.extend_from_slice(whole.next(usize::MAX));
        }
        let mut b = Vec::new();
        let mut random = Random::new(1);
        while b.len() < a.len() {
            let most = random.below(5000) as usize + 1;
            b.extend_from_slice(split.next(most));
        }
        assert_eq!(a, b[..a.len()]);
    }

    #[test]
    fn below_stays_below() {
        let mut random = Random::new(2);
        assert!((0..10_000).all(|_| random.below(7) < 7));
    }
}
