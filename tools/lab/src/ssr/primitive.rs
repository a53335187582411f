//! The bare primitives of ShadowsocksR's protocols: one pass over data that lies in the cache, by the crates of
//! RustCrypto and their like, without any framing.

use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use md5::{Digest, Md5};
use nix::time::{ClockId, clock_gettime};
use rc4::{KeyInit, Rc4, StreamCipher};
use siphasher::sip::SipHasher13;

use crate::random::Stream;

/// The work that a protocol does on every byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Primitive {
    /// HMAC-MD5 over messages of 8100 bytes.
    HmacMd5,
    /// RC4, then HMAC-MD5, over messages of 1440 bytes.
    Rc4HmacMd5,
    /// SipHash-1-3 over messages of 8100 bytes.
    SipHash,
    /// Adler-32 over messages of 8100 bytes.
    Adler32,
}

/// Payload of a packet of most protocols.
const PACKET: usize = 8100;
/// Payload of a packet of `auth_chain_a` towards the client: a TCP segment of 1460 bytes less the overhead.
const SEGMENT: usize = 1440;
/// Bytes per call of the clock.
const PASS: usize = 64 * PACKET;
/// Processor time of one measurement.
const WINDOW: Duration = Duration::from_millis(100);
const BLOCK_LEN: usize = 64;

impl Primitive {
    pub(super) fn all() -> [Self; 4] {
        [Self::HmacMd5, Self::Rc4HmacMd5, Self::SipHash, Self::Adler32]
    }

    /// Nanoseconds of processor time per KB (1000 bytes).
    ///
    /// # Errors
    /// If the thread's clock cannot be read.
    pub(super) fn time(self) -> Result<f64> {
        let mut data = vec![0; PACKET];
        Stream::new(1).fill(&mut data);
        let mut rc4 = Rc4::new_from_slice(&[7; 16]).expect("a key of 16 bytes");
        let begin = cpu_time()?;
        let mut passes = 0_u32;
        loop {
            for _ in 0..PASS / data.len() {
                self.pass(&mut data, &mut rc4);
            }
            passes += 1;
            let time = cpu_time()?.saturating_sub(begin);
            if time >= WINDOW {
                return Ok(time.as_secs_f64() * 1e12 / (f64::from(passes) * PASS as f64));
            }
        }
    }

    fn pass(self, data: &mut [u8], rc4: &mut Rc4) {
        match self {
            Self::HmacMd5 => {
                black_box(hmac_md5(data));
            }
            Self::Rc4HmacMd5 => {
                for packet in data.chunks_mut(SEGMENT) {
                    rc4.apply_keystream(packet);
                    black_box(hmac_md5(packet));
                }
            }
            Self::SipHash => {
                black_box(SipHasher13::new_with_key(&[7; 16]).hash(data));
            }
            Self::Adler32 => {
                black_box(simd_adler32::adler32(&&*data));
            }
        }
    }
}

/// HMAC (RFC 2104) under a key of 20 bytes.
fn hmac_md5(message: &[u8]) -> [u8; 16] {
    let keyed = |pad: u8| {
        let mut key = [pad; BLOCK_LEN];
        key[..20].iter_mut().for_each(|byte| *byte ^= 7);
        Md5::new_with_prefix(key)
    };
    let inner = keyed(0x36).chain_update(message).finalize();
    keyed(0x5c).chain_update(inner).finalize().into()
}

fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HmacMd5 => "HMAC-MD5",
            Self::Rc4HmacMd5 => "RC4+HMAC-MD5",
            Self::SipHash => "SipHash-1-3",
            Self::Adler32 => "Adler-32",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 2202 has no key of 20 times 7; the same by hand.
    #[test]
    fn the_code_is_an_hmac() {
        let (mut inner, mut outer) = (vec![0x36; BLOCK_LEN], vec![0x5c; BLOCK_LEN]);
        for key in [&mut inner, &mut outer] {
            key[..20].iter_mut().for_each(|byte| *byte ^= 7);
        }
        inner.extend(b"message");
        outer.extend(Md5::digest(&inner));
        assert_eq!(hmac_md5(b"message"), <[u8; 16]>::from(Md5::digest(&outer)));
    }

    #[test]
    fn times_are_times() {
        for primitive in Primitive::all() {
            let time = primitive.time().unwrap();
            assert!(time > 0.0 && time.is_finite(), "{primitive}: {time}");
        }
    }
}
