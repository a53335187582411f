//! The lab's own datagrams, so that a receiver can check each one.
//!
//! ```text
//! 0       4      5      8        16       24
//! +-------+------+------+--------+--------+-----------+   little endian; flow: 3 bytes; sequence from 0 per flow;
//! | magic | kind | flow | number | time   | filling   |   time: ns since the lab's epoch; filling: a word that
//! +-------+------+------+--------+--------+-----------+   depends on flow and number, repeated to the end
//! ```

/// Smallest datagram in bytes: the header and one word of filling.
pub const MIN_LEN: usize = HEADER + 8;
/// Largest flow number plus one.
pub const MAX_FLOWS: u32 = 1 << 24;
const HEADER: usize = 24;
const MAGIC: [u8; 4] = *b"aLB1";

/// The receiver's treatment of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Counts it.
    Bulk,
    /// Sends it back.
    Echo,
    /// Counts it and notes how long it took.
    Voice,
}

/// The head of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Its treatment.
    pub kind: Kind,
    /// The flow that it belongs to, below [`MAX_FLOWS`].
    pub flow: u32,
    /// Its place in the flow.
    pub number: u64,
    /// When it was sent, in nanoseconds since the lab's epoch.
    pub time: u64,
}

impl Datagram {
    /// Fills `bytes`, at least [`MIN_LEN`] of them.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.flow.to_be_bytes());
        bytes[4] = match self.kind {
            Kind::Bulk => b'b',
            Kind::Echo => b'e',
            Kind::Voice => b'v',
        };
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time.to_le_bytes());
        let word = self.filling();
        let (words, rest) = bytes[HEADER..].as_chunks_mut::<8>();
        words.fill(word);
        rest.copy_from_slice(&word[..rest.len()]);
    }

    /// Reads what [`Self::emit`] wrote and looks at every byte; `None` if one is wrong.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < MIN_LEN || bytes[..4] != MAGIC {
            return None;
        }
        let kind = match bytes[4] {
            b'b' => Kind::Bulk,
            b'e' => Kind::Echo,
            b'v' => Kind::Voice,
            _ => return None,
        };
        let flow = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
        let word = |at: usize| bytes[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
        let datagram = Self { kind, flow, number: word(8)?, time: word(16)? };
        let filling = datagram.filling();
        let (words, rest) = bytes[HEADER..].as_chunks::<8>();
        let right = words.iter().all(|word| *word == filling) && *rest == filling[..rest.len()];
        right.then_some(datagram)
    }

    fn filling(&self) -> [u8; 8] {
        let mixed = (self.number ^ u64::from(self.flow) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29 ^ 0xa5a5_a5a5_a5a5_a5a5).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_at_every_size() {
        for kind in [Kind::Bulk, Kind::Echo, Kind::Voice] {
            let datagram = Datagram { kind, flow: MAX_FLOWS - 1, number: 0x0102_0304_0506, time: 77 };
            for len in MIN_LEN..100 {
                let mut bytes = vec![0; len];
                datagram.emit(&mut bytes);
                assert_eq!(Datagram::parse(&bytes), Some(datagram));
            }
        }
    }

    #[test]
    fn any_wrong_byte_but_the_time_is_noticed() {
        let mut right = [0; 61];
        Datagram { kind: Kind::Bulk, flow: 5, number: 9, time: 0 }.emit(&mut right);
        for at in (0..right.len()).filter(|at| !(16..24).contains(at)) {
            let mut bytes = right;
            bytes[at] ^= 0x40;
            assert_eq!(Datagram::parse(&bytes), None, "byte {at}");
        }
        for len in 0..MIN_LEN {
            assert_eq!(Datagram::parse(&right[..len]), None);
        }
    }
}
