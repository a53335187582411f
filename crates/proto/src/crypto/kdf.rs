use std::num::NonZeroU32;

use aws_lc_rs::{digest, hmac, pbkdf2};
use blake2::Blake2b;
use blake2::digest::consts::U32;
use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use md5::{Digest, Md5};
use sha1::block_api::compress;
use zeroize::Zeroize;

/// MD5 over the concatenation of `parts`.
pub fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// SHA-1 of `data`.
pub fn sha1(data: &[u8]) -> [u8; 20] {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, data);
    hash.as_ref().try_into().expect("SHA-1 has 20 bytes")
}

/// SHA-256 over the concatenation of `parts`.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| hash.update(part));
    hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// BLAKE2b (RFC 7693) with 32 bytes of output and no key, over the concatenation of `parts`.
pub fn blake2b_256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Blake2b::<U32>::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// OpenSSL's `EVP_BytesToKey` with MD5, one round and no salt: `D1 = MD5(pw)`, `Di = MD5(D(i-1) || pw)`, and `key`
/// is filled from `D1 || D2 || ...`.
pub fn evp_bytes_to_key(password: &[u8], key: &mut [u8]) {
    let mut last: Option<[u8; 16]> = None;
    for piece in key.chunks_mut(16) {
        let mut digest = match &last {
            None => md5(&[password]),
            Some(last) => md5(&[last, password]),
        };
        piece.copy_from_slice(&digest[..piece.len()]);
        last.replace(digest).zeroize();
        digest.zeroize();
    }
    last.zeroize();
}

/// PBKDF2 (RFC 8018) with HMAC-SHA1: fills `key`.
///
/// # Panics
/// If `rounds` is 0.
pub fn pbkdf2_sha1(password: &[u8], salt: &[u8], rounds: u32, key: &mut [u8]) {
    let rounds = NonZeroU32::new(rounds).expect("at least one round");
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA1, rounds, salt, password, key);
}

/// HMAC-SHA256 (RFC 2104) of `message`.
pub fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// BLAKE3's `derive_key` with the context string hashed once, so that a derivation from up to 64 bytes is a
/// single compression.
#[derive(Debug, Clone, Copy)]
pub struct Blake3Context(ContextKey);

impl Blake3Context {
    /// Prepares `context`.
    pub fn new(context: &str) -> Self {
        Self(hash_derive_key_context(context))
    }

    /// The 32 bytes derived from the concatenation of `material`; shorter keys are a prefix.
    pub fn derive(&self, material: &[&[u8]]) -> [u8; 32] {
        let mut hasher = Hasher::new_from_context_key(&self.0);
        for part in material {
            hasher.update(part);
        }
        hasher.finalize().into()
    }
}

type State = [u32; 5];

pub(super) const SHA1_INIT: State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];

/// HMAC-SHA1 with both padded key blocks already absorbed: one message of up to 55 bytes costs two compressions.
struct HmacSha1 {
    inner: State,
    outer: State,
}

impl HmacSha1 {
    /// Prepares a key of at most 64 bytes.
    fn new(key: &[u8]) -> Self {
        let absorb = |pad: u8| {
            let mut block = [pad; 64];
            block.iter_mut().zip(key).for_each(|(b, k)| *b ^= k);
            let mut state = SHA1_INIT;
            compress(&mut state, &[block]);
            state
        };
        debug_assert!(key.len() <= 64, "longer keys would have to be hashed");
        Self { inner: absorb(0x36), outer: absorb(0x5c) }
    }

    /// The tag of the concatenation of `parts`, at most 55 bytes in total.
    fn tag(&self, parts: &[&[u8]]) -> [u8; 20] {
        finish(self.outer, &[&finish(self.inner, parts)])
    }
}

/// The last block behind one block of key: the concatenation of `parts`, at most 55 bytes in total, and its padding.
pub(super) fn padded(parts: &[&[u8]]) -> [u8; 64] {
    let mut block = [0; 64];
    let mut len = 0;
    for part in parts {
        block[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    assert!(len <= 55, "message fits the last block beside its padding");
    block[len] = 0x80;
    let bits = 8 * (64 + len as u64);
    block[56..].copy_from_slice(&bits.to_be_bytes());
    block
}

/// Absorbs the last block behind one block of key, and returns the digest.
fn finish(mut state: State, parts: &[&[u8]]) -> [u8; 20] {
    compress(&mut state, &[padded(parts)]);
    let mut digest = [0; 20];
    digest.as_chunks_mut::<4>().0.iter_mut().zip(state).for_each(|(d, s)| *d = s.to_be_bytes());
    digest
}

/// HKDF-SHA1 (RFC 5869) for the short inputs of a per-connection or per-datagram subkey: ten compressions for
/// 32 bytes of output, no allocation.
///
/// # Panics
/// If `salt` is longer than 64 bytes, `ikm` than 55, `info` than 34, or `out` than 255 * 20.
pub fn hkdf_sha1(ikm: &[u8], salt: &[u8], info: &[u8], out: &mut [u8]) {
    assert!(salt.len() <= 64, "salt of at most one block");
    let prk = HmacSha1::new(&HmacSha1::new(salt).tag(&[ikm]));
    let mut last = [0; 20];
    let mut last_len = 0;
    for (piece, counter) in out.chunks_mut(20).zip(1_u8..) {
        last = prk.tag(&[&last[..last_len], info, &[counter]]);
        last_len = last.len();
        piece.copy_from_slice(&last[..piece.len()]);
    }
    last.zeroize();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    #[test]
    fn evp() {
        let mut key = [0; 32];
        evp_bytes_to_key(b"foobar", &mut key);
        assert_eq!(key[..16], md5(&[b"foobar"]));
        assert_eq!(key[16..], md5(&[&key[..16], b"foobar"]));
        let mut short = [0; 24];
        evp_bytes_to_key(b"foobar", &mut short);
        assert_eq!(short, key[..24]);
    }

    #[test]
    fn hkdf_rfc5869() {
        // RFC 5869, A.4 (basic test case with SHA-1) and A.7 (no salt, no info).
        let mut out = [0; 42];
        hkdf_sha1(&[0x0b; 11], &hex("000102030405060708090a0b0c"), &hex("f0f1f2f3f4f5f6f7f8f9"), &mut out);
        assert_eq!(
            out[..],
            hex("085a01ea1b10f36933068b56efa5ad81a4f14b822f5b091568a9cdd4f155fda2c22e422478d305f3f896")
        );
        hkdf_sha1(&[0x0c; 22], &[], &[], &mut out);
        assert_eq!(
            out[..],
            hex("2c91117204d745f3500d636a62f64f0ab3bae548aa53d423b0d1f27ebba6f5e5673a081d70cce7acfc48")
        );
    }

    #[test]
    fn blake3_context() {
        let context = Blake3Context::new("shadowsocks 2022 session subkey");
        assert_eq!(
            context.derive(&[b"key", b"salt"]),
            blake3::derive_key("shadowsocks 2022 session subkey", b"keysalt")
        );
    }
}
