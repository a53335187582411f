//! Key derivation: `Argon2id(version 0x13, PSK, salt, t = 3, m = 8 KiB, p = 1)`, 32 bytes of output of which all
//! versions but v1 use the first 16. The requested length enters the hash, so asking for 16 would give another key.

use std::fmt;
use std::sync::Arc;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use zeroize::{Zeroize, Zeroizing};

use crate::wire::Rng;

/// Length of a salt, in bytes.
pub const SALT_LEN: usize = 16;

/// The salt that opens a direction.
pub type Salt = [u8; SALT_LEN];

const MEMORY_KIB: u32 = 8;
const PASSES: u32 = 3;
const LANES: u32 = 1;
const OUTPUT_LEN: usize = 32;
/// Length of a [`SnellDirectionKey`]'s mark, in bytes.
pub(super) const MARK_LEN: usize = 8;

/// A pre-shared key: any text, never decoded or trimmed. Cloning shares it; it is wiped when dropped.
#[derive(Clone)]
pub struct SnellPsk(Arc<Zeroizing<Vec<u8>>>);

impl SnellPsk {
    /// Takes the key's bytes as they are.
    pub fn new(key: &[u8]) -> Self {
        Self(Arc::new(Zeroizing::new(key.to_vec())))
    }

    /// Derives the key of the direction that starts with `salt`. Costs 9 to 15 us on a current x86-64 core.
    pub fn derive(&self, salt: &Salt) -> SnellDirectionKey {
        // Builds for tests optimise the crate alone.
        #[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
        if let Some(out) = super::argon::derive(&self.0, salt) {
            return SnellDirectionKey::new(salt, &out);
        }
        SnellDirectionKey::new(salt, &self.derive_slowly(salt))
    }

    /// The same on every processor.
    fn derive_slowly(&self, salt: &Salt) -> Zeroizing<[u8; OUTPUT_LEN]> {
        let params =
            Params::new(MEMORY_KIB, PASSES, LANES, Some(OUTPUT_LEN)).expect("parameters within bounds");
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let mut memory = [Block::new(); MEMORY_KIB as usize];
        let mut out = Zeroizing::new([0; OUTPUT_LEN]);
        argon2
            .hash_password_into_with_memory(&self.0, salt, out.as_mut(), &mut memory)
            .expect("salt, output and memory have the lengths that Argon2 asks for, keys are below 4 GiB");
        out
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Draws a salt and derives its key: what an end needs before it can send. Nothing of the peer enters, so it
    /// can be done ahead of need.
    pub fn derive_own(&self, rng: &mut dyn Rng) -> SnellDirectionKey {
        let mut salt = [0; SALT_LEN];
        rng.fill(&mut salt);
        self.derive(&salt)
    }
}

impl fmt::Debug for SnellPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(..)")
    }
}

/// Salt and key of one direction; wiped when dropped.
#[derive(Clone)]
pub struct SnellDirectionKey {
    pub(super) salt: Salt,
    pub(super) key: [u8; 16],
    /// Output that only v1 has a use for.
    pub(super) rest: [u8; 16],
}

impl SnellDirectionKey {
    fn new(salt: &Salt, out: &[u8; OUTPUT_LEN]) -> Self {
        let (mut key, mut rest) = ([0; 16], [0; 16]);
        key.copy_from_slice(&out[..16]);
        rest.copy_from_slice(&out[16..]);
        Self { salt: *salt, key, rest }
    }

    /// The salt, as it goes over the wire.
    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    /// Bytes that only who knows the pre-shared key can tell from random ones.
    pub(super) fn mark(&self) -> [u8; MARK_LEN] {
        *self.rest.first_chunk().expect("8 of 16 bytes")
    }

    /// All of the output, which is the key of v1.
    pub(super) fn wide(&self) -> Zeroizing<[u8; OUTPUT_LEN]> {
        let mut wide = Zeroizing::new([0; OUTPUT_LEN]);
        wide[..16].copy_from_slice(&self.key);
        wide[16..].copy_from_slice(&self.rest);
        wide
    }
}

impl Drop for SnellDirectionKey {
    fn drop(&mut self) {
        self.key.zeroize();
        self.rest.zeroize();
    }
}

impl fmt::Debug for SnellDirectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirectionKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_gives_the_same_key() {
        let lengths = (0..140).chain([1 << 10, 1 << 16]);
        for (len, seed) in lengths.zip(0_u32..) {
            let byte = |n: usize| u8::try_from((n * 7 + len) % 256).unwrap();
            let psk = SnellPsk::new(&(0..len).map(byte).collect::<Vec<_>>());
            let numbers = seed.wrapping_mul(0x9e37_79b9).to_be_bytes();
            let salt: Salt = std::array::from_fn(|n| numbers[n % 4] ^ byte(n));
            let slow = psk.derive_slowly(&salt);
            assert_eq!(*psk.derive(&salt).wide(), *slow, "{len}");
            #[cfg(target_arch = "x86_64")]
            if let Some(fast) = super::super::argon::derive(&psk.0, &salt) {
                assert_eq!(*fast, *slow, "{len}");
            }
        }
    }
}
