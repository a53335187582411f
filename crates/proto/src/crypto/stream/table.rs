use super::Direction;
use crate::crypto::md5;

/// The substitution of the `table` method and its inverse.
pub(super) struct Tables {
    encrypt: [u8; 256],
    decrypt: [u8; 256],
}

impl Tables {
    /// Sorts 0..=255 stably by `a mod (value + i)` for i = 1..=1023, where `a` is the little-endian start of the
    /// password's MD5 (observed from shadowsocks-rust 1.25.0).
    pub(super) fn new(password: &[u8]) -> Self {
        let digest = md5(&[password]);
        let a = u64::from_le_bytes(*digest.first_chunk().expect("8 of 16 bytes"));
        let mut encrypt: [u8; 256] = std::array::from_fn(|i| i.to_le_bytes()[0]);
        for i in 1..1024 {
            encrypt.sort_by_cached_key(|value| a % (u64::from(*value) + i));
        }
        let mut decrypt = [0; 256];
        for (plain, sealed) in (0_u8..=255).zip(encrypt) {
            decrypt[usize::from(sealed)] = plain;
        }
        Self { encrypt, decrypt }
    }

    pub(super) fn apply(&self, direction: Direction, data: &mut [u8]) {
        let table = match direction {
            Direction::Encrypt => &self.encrypt,
            Direction::Decrypt => &self.decrypt,
        };
        data.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_start_and_inverse() {
        let tables = Tables::new(b"password");
        assert_eq!(tables.encrypt[..4], [157, 219, 245, 15]);
        let mut data: Vec<u8> = (0..=255).collect();
        tables.apply(Direction::Encrypt, &mut data);
        tables.apply(Direction::Decrypt, &mut data);
        assert!(data.iter().copied().eq(0..=255));
    }
}
