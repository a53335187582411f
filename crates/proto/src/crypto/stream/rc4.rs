/// Bytes of keystream that are made before they are laid over the data.
const WORD_LEN: usize = 8;

/// RC4 at rest: an idle connection keeps two of them.
pub(super) struct Rc4 {
    state: [u8; 256],
    i: u8,
    j: u8,
}

/// RC4 at work. Elements have 32 bits: stores of single bytes cost time where the next load may need them.
struct Wide {
    state: [u32; 256],
    i: u8,
    j: u8,
}

impl Rc4 {
    /// `key` has 1 to 256 bytes.
    pub(super) fn new(key: &[u8]) -> Box<Self> {
        let mut rc4 = Box::new(Self { state: [0; 256], i: 0, j: 0 });
        (0_u8..=255).zip(&mut rc4.state).for_each(|(value, element)| *element = value);
        let mut j = 0_u8;
        for (i, key) in (0..256).zip(key.iter().cycle()) {
            j = j.wrapping_add(rc4.state[i]).wrapping_add(*key);
            rc4.state.swap(i, usize::from(j));
        }
        rc4
    }

    pub(super) fn apply(&mut self, data: &mut [u8]) {
        let mut wide = Wide { state: self.state.map(u32::from), i: self.i, j: self.j };
        wide.apply(data);
        *self = Self { state: wide.state.map(low), i: wide.i, j: wide.j };
    }
}

impl Wide {
    fn apply(&mut self, data: &mut [u8]) {
        let (words, tail) = data.as_chunks_mut::<WORD_LEN>();
        for word in words {
            let keystream = u64::from_le_bytes(self.keystream());
            *word = (u64::from_le_bytes(*word) ^ keystream).to_le_bytes();
        }
        for byte in tail {
            let [keystream] = self.keystream();
            *byte ^= keystream;
        }
    }

    /// The next `N` bytes. The element of the next byte is read before this byte's two are swapped: it must not wait
    /// for stores that concern it once in 256 times.
    #[inline(always)]
    fn keystream<const N: usize>(&mut self) -> [u8; N] {
        let (state, mut i, mut j) = (&mut self.state, self.i.wrapping_add(1), self.j);
        let mut x = state[usize::from(i)];
        let mut keystream = [0; N];
        for (n, byte) in keystream.iter_mut().enumerate() {
            j = j.wrapping_add(low(x));
            let y = state[usize::from(j)];
            let next_i = i.wrapping_add(1);
            let next = state[usize::from(next_i)];
            state[usize::from(j)] = x;
            state[usize::from(i)] = y;
            *byte = low(state[usize::from(low(x.wrapping_add(y)))]);
            if n + 1 < N {
                x = if j == next_i { x } else { next };
                i = next_i;
            }
        }
        (self.i, self.j) = (i, j);
        keystream
    }
}

/// Elements are below 256.
#[inline(always)]
fn low(value: u32) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use cipher::{KeyInit, StreamCipher};

    use super::*;

    /// For calls of any length, the bytes are those of another implementation.
    #[test]
    fn agrees_with_another() {
        for key in [&b"Key"[..], &[0; 16], &[0xff; 256]] {
            let mut theirs = vec![0; 70_000];
            rc4::Rc4::new_from_slice(key).expect("a key").apply_keystream(&mut theirs);
            let mut own = vec![0; theirs.len()];
            let mut rc4 = Rc4::new(key);
            let (mut rest, mut len) = (&mut own[..], 0);
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at_mut(len.min(rest.len()));
                rc4.apply(piece);
                (rest, len) = (behind, (len + 1) % 61);
            }
            assert!(own == theirs, "key of {} bytes", key.len());
        }
    }
}
