//! Keys and ciphers behind one interface.
//!
//! `aws-lc-rs` does the AEAD work wherever it has the algorithm: its AES-GCM seals 16 KiB records about three
//! times as fast as ring on processors with VAES. Other algorithms come from the RustCrypto crates.

/// Each word of vector `$v` rotated left by `$n` bits, with AVX2.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
macro_rules! rotate {
    ($v:expr, $n:literal) => {{
        let v = $v;
        _mm256_or_si256(_mm256_slli_epi32::<$n>(v), _mm256_srli_epi32::<{ 32 - $n }>(v))
    }};
}

mod aead;
mod block;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod hkdf_wide;
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
#[path = "hkdf_single.rs"]
mod hkdf_wide;
mod kdf;
mod lanes;
pub mod mac;
mod noise;
mod portable;
pub mod stream;
mod xaead;

pub use aead::{Aead, AeadAlgorithm, CounterNonce, NONCE_LEN, TAG_LEN};
pub use block::AesBlock;
pub use hkdf_wide::HkdfSha1Wide;
pub use kdf::{
    Blake3Context, blake2b_256, evp_bytes_to_key, hkdf_sha1, hmac_sha256, md5, pbkdf2_sha1, sha1, sha256,
};
pub use lanes::{HmacMd5Lanes, Sip13Lanes};
pub use mac::{HmacMd5, HmacSha1, adler32, crc32, siphash13};
pub use noise::Noise;
pub use xaead::{XAead, XAlgorithm, XNONCE_LEN};

/// Number of keys that [`HkdfSha1Wide`] derives at a time, and of messages that [`HmacMd5Lanes`] and [`Sip13Lanes`] take.
pub const LANES: usize = 8;
