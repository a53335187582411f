//! Entry points for fuzzing: the first byte chooses the method, the rest is what a peer sends.
//!
//! Keys, wall time and randomness are fixed, so that an input means the same wherever it is replayed.

use std::time::Instant;

use super::{MethodKey, ServerKey, ShadowsocksClientStream, ShadowsocksMethod, WallClock};
use crate::wire::Rng;

/// Methods by the first byte, one per kind of codec. New ones go to the end: inputs are kept.
const METHODS: [&str; 10] = [
    "none",
    "rc4-md5",
    "aes-128-cfb",
    "chacha20-ietf",
    "aes-128-gcm",
    "chacha20-ietf-poly1305",
    "aes-128-ccm",
    "2022-blake3-aes-128-gcm",
    "2022-blake3-aes-256-gcm",
    "2022-blake3-chacha20-poly1305",
];
/// A password for the older methods, and for those of SIP022 keys of 16 bytes and of 32.
const PASSWORD: &str = "correct horse battery staple";
const KEY_16: &str = "jXWNLnzYRI0XRuBfcqLL8A==";
const KEY_32: &str = "Qb85DbET1ws8WrhvjVfoML3UKbgMK8lAVRVTCMax12U=";
/// Unix seconds at `now`.
const UNIX_S: u64 = 1_800_000_000;

struct Count(u8);

impl Rng for Count {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            self.0 = self.0.wrapping_add(1);
            *byte = self.0;
        }
    }
}

fn key(choice: u8) -> MethodKey {
    let method: ShadowsocksMethod =
        METHODS[usize::from(choice) % METHODS.len()].parse().expect("a known method");
    let password = match (method, method.key_len()) {
        (ShadowsocksMethod::Aead2022(_), 16) => KEY_16,
        (ShadowsocksMethod::Aead2022(_), _) => KEY_32,
        _ => PASSWORD,
    };
    MethodKey::from_password(method, password).expect("a key for the method")
}

/// Second byte: piece length; the rest: a stream that a server opens.
pub fn fuzz_accept(data: &[u8], now: Instant) {
    let [choice, piece, stream @ ..] = data else { return };
    let clock = WallClock::new(now, UNIX_S);
    super::fuzz_accept(&ServerKey::new(key(*choice)), clock, now, stream, usize::from(*piece));
}

/// Second byte: piece length; the rest: a stream that a client opens.
pub fn fuzz_response(data: &[u8], now: Instant) {
    let [choice, piece, stream @ ..] = data else { return };
    let target = "example.com:80".parse().expect("a target");
    let client =
        ShadowsocksClientStream::new(&key(*choice), &target, WallClock::new(now, UNIX_S), &mut Count(0));
    super::fuzz_response(client, now, stream, usize::from(*piece));
}

/// The rest: a datagram that a server opens, and a client.
pub fn fuzz_packets(data: &[u8]) {
    let Some((&choice, datagram)) = data.split_first() else { return };
    super::fuzz_packets(&ServerKey::new(key(choice)), UNIX_S, datagram, &mut Count(0));
}
