//! The layout of a state file: the counters of all users of one configuration, at one moment.
//!
//! ```text
//!    0  16  "adit users 1" and zeros: magic and version
//!   16   8  generation, grows by 1 with each image
//!   24   8  when it was saved, in seconds since 1970 (UTC)
//!   32  16  salt of the fingerprints, drawn when the file is made
//!   48   4  number of records, N
//!   52      N records
//!      32  BLAKE3 of everything before, with a key derived from `SUM`
//!
//!   record:  inbound length u16 | user length u16 | inbound | user | fingerprint 16 | day u32
//!            | up | down | requests | base | period       u64 each; `account::Record` says what they are
//! ```
//!
//! Numbers are little-endian. The fingerprint is that of the user's credential: it is one-way and salted, so that the
//! file holds no key. The day, in days since 1970, is the last on which the configuration had the user.

use std::sync::Arc;

use adit_model::map::Map;
use adit_proto::crypto::Blake3Context;

use super::account::AccountRecord;

const MAGIC: &[u8; 16] = b"adit users 1\0\0\0\0";
#[cfg(test)]
const HEAD_LEN: usize = 52;
const SUM_LEN: usize = 32;
/// Context of the checksum.
const SUM: &str = "adit 2026-11 state file checksum";
/// Context of fingerprints.
const FINGERPRINT: &str = "adit 2026-11 state file credential";
/// Longest file, in bytes: some 400,000 users.
pub(super) const MAX_LEN: usize = 64 << 20;

/// Identity of one user of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UserKey {
    /// Name of the inbound.
    pub(super) inbound: Arc<str>,
    /// Name of the user.
    pub(super) user: Arc<str>,
    /// Fingerprint of the credential: another key is another user.
    pub(super) fingerprint: [u8; 16],
}

/// The salt of the fingerprints of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Salt(pub(super) [u8; 16]);

impl Salt {
    /// The fingerprint of a credential.
    pub(super) fn fingerprint(&self, credential: &str) -> [u8; 16] {
        let hash = Blake3Context::new(FINGERPRINT).derive(&[&self.0, credential.as_bytes()]);
        *hash.first_chunk().expect("16 of 32 bytes")
    }
}

/// A user's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) record: AccountRecord,
    /// The last day on which the configuration had the user, in days since 1970.
    pub(super) day: u32,
}

/// Contents of a state file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) generation: u64,
    pub(super) saved_at: u64,
    pub(super) salt: Salt,
    pub(super) users: Map<UserKey, Saved>,
}

impl Image {
    /// Writes the image into `out`, which is emptied before. Names beyond 65,535 bytes are left out.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let fits = |key: &UserKey| key.inbound.len().max(key.user.len()) <= usize::from(u16::MAX);
        let users = || self.users.iter().filter(|(key, _)| fits(key));
        let count = u32::try_from(users().count()).unwrap_or(u32::MAX);
        out.clear();
        out.extend(MAGIC);
        out.extend(self.generation.to_le_bytes());
        out.extend(self.saved_at.to_le_bytes());
        out.extend(self.salt.0);
        out.extend(count.to_le_bytes());
        for (key, saved) in users() {
            for name in [&key.inbound, &key.user] {
                out.extend(u16::try_from(name.len()).unwrap_or(0).to_le_bytes());
            }
            out.extend(key.inbound.as_bytes());
            out.extend(key.user.as_bytes());
            out.extend(key.fingerprint);
            out.extend(saved.day.to_le_bytes());
            out.extend(saved.record.emit());
        }
        let sum = Blake3Context::new(SUM).derive(&[out]);
        out.extend(sum);
    }

    /// Reads an image; `None` if a byte of it is missing, added or changed.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<SUM_LEN>()?;
        if !body.starts_with(MAGIC) || Blake3Context::new(SUM).derive(&[body]) != *sum {
            return None;
        }
        let mut reader = Reader(body.get(MAGIC.len()..)?);
        let generation = u64::from_le_bytes(reader.take()?);
        let saved_at = u64::from_le_bytes(reader.take()?);
        let salt = Salt(reader.take()?);
        let count = u32::from_le_bytes(reader.take()?);
        let mut users = Map::new();
        let mut last = Arc::<str>::from("");
        for _ in 0..count {
            let lens = [reader.take()?, reader.take()?].map(|len| usize::from(u16::from_le_bytes(len)));
            let (inbound, user) = (reader.text(lens[0])?, reader.text(lens[1])?);
            // Records of an inbound follow each other.
            if *last != *inbound {
                last = inbound.into();
            }
            let key = UserKey { inbound: last.clone(), user: user.into(), fingerprint: reader.take()? };
            let day = u32::from_le_bytes(reader.take()?);
            users.insert(
                key,
                Saved { record: AccountRecord::parse(&reader.take::<{ AccountRecord::LEN }>()?)?, day },
            );
        }
        reader.0.is_empty().then_some(Self { generation, saved_at, salt, users })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn text(&mut self, len: usize) -> Option<&'a str> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        std::str::from_utf8(taken).ok()
    }
}

impl AccountRecord {
    /// Length of a record in bytes.
    pub(super) const LEN: usize = 40;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let Self { up, down, requests, base, period } = self;
        let mut out = [0; Self::LEN];
        for (out, number) in out.chunks_exact_mut(8).zip([up, down, requests, base, period]) {
            out.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// Reads a record; `None` if it has another length.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let value: &[u8; Self::LEN] = value.try_into().ok()?;
        let mut numbers = value.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next();
        Some(Self { up: next()?, down: next()?, requests: next()?, base: next()?, period: next()? })
    }
}

/// Fuzz target: bytes that carry a good checksum are read to the end or not at all, and come out as they went in unless
/// they name a user twice.
#[doc(hidden)]
pub fn fuzz_state_image(data: &[u8]) {
    assert!(Image::parse(data).is_none() || data.len() >= MAGIC.len() + SUM_LEN);
    let mut bytes = [MAGIC, data].concat();
    let sum = Blake3Context::new(SUM).derive(&[&bytes]);
    bytes.extend(sum);
    let Some(image) = Image::parse(&bytes) else { return };
    let mut out = Vec::new();
    image.emit(&mut out);
    assert!(out.len() <= bytes.len());
    assert_eq!(Image::parse(&out).as_ref(), Some(&image));
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An image of `count` users.
    pub(in crate::users) fn image(count: u64, generation: u64) -> Image {
        let salt = Salt([7; 16]);
        let users = (0..count).map(|n| {
            let fingerprint = salt.fingerprint(&format!("key {n}"));
            let key = UserKey { inbound: "in".into(), user: format!("user{n}").into(), fingerprint };
            let record = AccountRecord { up: n, down: generation, requests: 3, base: 4, period: 5 };
            (key, Saved { record, day: 20_000 })
        });
        Image { generation, saved_at: 1_000_000 + generation, salt, users: users.collect() }
    }

    #[test]
    fn an_image_is_read_as_it_was_written_or_not_at_all() {
        let mut bytes = Vec::new();
        Image::default().emit(&mut bytes);
        assert_eq!(bytes.len(), HEAD_LEN + SUM_LEN);
        assert_eq!(Image::parse(&bytes), Some(Image::default()));
        let image = image(5, 9);
        image.emit(&mut bytes);
        assert_eq!(Image::parse(&bytes).as_ref(), Some(&image));
        for len in 0..bytes.len() {
            assert_eq!(Image::parse(&bytes[..len]), None, "the first {len} bytes");
        }
        for at in 0..bytes.len() * 8 {
            bytes[at / 8] ^= 1 << (at % 8);
            assert_eq!(Image::parse(&bytes), None, "bit {at}");
            bytes[at / 8] ^= 1 << (at % 8);
        }
        bytes.push(0);
        assert_eq!(Image::parse(&bytes), None, "a byte more");
    }

    #[test]
    fn a_count_that_lies_ends_the_reading() {
        let mut bytes = Vec::new();
        image(2, 1).emit(&mut bytes);
        for count in [0_u32, 1, 3, u32::MAX] {
            let mut body = bytes[..bytes.len() - SUM_LEN].to_vec();
            body[48..52].copy_from_slice(&count.to_le_bytes());
            let sum = Blake3Context::new(SUM).derive(&[&body]);
            body.extend(sum);
            assert_eq!(Image::parse(&body), None, "{count} records");
        }
    }

    #[test]
    fn fingerprints_tell_keys_and_files_apart() {
        let print = |salt: u8, key: &str| Salt([salt; 16]).fingerprint(key);
        assert_eq!(print(1, "key"), print(1, "key"));
        assert_ne!(print(1, "key"), print(1, "kez"));
        assert_ne!(print(1, "key"), print(2, "key"));
    }
}
