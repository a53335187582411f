//! Users as the store has them (fleet notes, 3.2).
//!
//! ```text
//!   adit:F:meta     hash    format 1, buckets 64, made-at seconds
//!   adit:F:u:{b}    hash    name of a user -> record; b is its bucket
//!   adit:F:log      stream  user, version, op (put, remove); about 100,000 entries
//!
//!   record      JSON: name, credential, quota, reset-day, expires, rate, connections, addresses, version; numbers, seconds
//!               since 1970, bytes and bytes a second; unknown members are ignored
//!   credential  base64: nonce 24 | sealed | tag 16    XChaCha20-Poly1305 with the fleet's key of 32 bytes
//!               associated data: "adit store user 1", zero, fleet, zero, name
//! ```

use adit_proto::crypto::{TAG_LEN, XAead, XAlgorithm, XNONCE_LEN};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::script::bucket;
use crate::panel::Listed;

/// Format of the users in the store.
pub(super) const FORMAT: u64 = 1;
/// Longest name of a user and longest record that are read, in bytes.
pub(super) const MAX_NAME: usize = 255;
const MAX_RECORD: usize = 8 << 10;
/// Text in front of the associated data.
const CONTEXT: &[u8] = b"adit store user 1\0";

/// The key of a fleet. It is never shown.
pub(super) struct FleetKey {
    aead: XAead,
    fleet: Box<str>,
}

/// A user in the store.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Record {
    name: Box<str>,
    credential: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_day: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    addresses: Option<u32>,
    version: u64,
}

impl FleetKey {
    /// The key that stands in a configuration; `None` if it is not of 32 bytes.
    pub(super) fn new(fleet: &str, key: &str) -> Option<Self> {
        let key = STANDARD.decode(key).ok().filter(|key| key.len() == 32)?;
        Some(Self { aead: XAead::new(XAlgorithm::Xchacha20Poly1305, &key), fleet: fleet.into() })
    }

    fn associated(&self, user: &str) -> Vec<u8> {
        [CONTEXT, self.fleet.as_bytes(), b"\0", user.as_bytes()].concat()
    }

    fn seal(&self, user: &str, secret: &str) -> Option<String> {
        let mut nonce = [0; XNONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let (mut sealed, mut tag) = (secret.as_bytes().to_vec(), [0; TAG_LEN]);
        self.aead.seal(nonce, &self.associated(user), &mut sealed, &mut tag).ok()?;
        Some(STANDARD.encode([&nonce[..], &sealed, &tag].concat()))
    }

    fn open(&self, user: &str, credential: &str) -> Option<Box<str>> {
        let mut bytes = STANDARD.decode(credential).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk_mut::<XNONCE_LEN>()?;
        let len = sealed.len().checked_sub(TAG_LEN)?;
        self.aead.open(*nonce, &self.associated(user), sealed).ok()?;
        std::str::from_utf8(&sealed[..len]).ok().filter(|secret| !secret.is_empty()).map(Into::into)
    }

    /// The record of a user; `None` when there is no randomness.
    pub(super) fn emit(&self, name: &str, user: &Listed, version: u64) -> Option<String> {
        let record = Record {
            name: name.into(),
            credential: self.seal(name, &user.secret)?,
            quota: user.quota,
            reset_day: user.reset_day,
            expires: user.expires,
            rate: user.rate,
            connections: user.connections,
            addresses: user.addresses,
            version,
        };
        serde_json::to_string(&record).ok()
    }

    /// The user that a record of `name` holds, and the record's version; `None` for one that does not fit, or was sealed
    /// with another key, for another user or for another fleet.
    pub(super) fn parse(&self, name: &str, record: &[u8]) -> Option<(Listed, u64)> {
        if !is_name(name) || record.len() > MAX_RECORD {
            return None;
        }
        let record: Record = serde_json::from_slice(record).ok()?;
        let secret = self.open(name, &record.credential).filter(|_| *record.name == *name)?;
        let is_key = STANDARD.decode(&*secret).is_ok_and(|key| [16, 32].contains(&key.len()));
        let user = Listed {
            key: is_key.then(|| secret.clone()),
            secret,
            quota: record.quota,
            reset_day: record.reset_day,
            expires: record.expires,
            rate: record.rate,
            connections: record.connections,
            addresses: record.addresses,
        };
        Some((user, record.version))
    }
}

/// The version of a record.
pub(super) fn version(record: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Record>(record).ok().map(|record| record.version)
}

/// Whether a name can stand in accounts.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains(char::is_control)
}

/// The key of the users of a bucket.
pub(super) fn bucket_key(fleet: &str, bucket: u16) -> String {
    format!("adit:{fleet}:u:{{{bucket}}}")
}

/// The key of a user.
pub(super) fn user_key(fleet: &str, user: &str) -> String {
    bucket_key(fleet, bucket(user))
}

/// Parses any record, with a key that is known.
#[doc(hidden)]
pub fn fuzz_store_record(input: &[u8]) {
    const KEY: &str = "bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=";
    let key = FleetKey::new("f", KEY).expect("a key of 32 bytes");
    assert!(key.parse("ann", input).is_none(), "nobody else has sealed for ann");
    let _: Option<u64> = version(input);
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=";
    const OTHER: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

    #[test]
    fn records_come_back_and_open_for_their_user_alone() {
        let key = FleetKey::new("f", KEY).unwrap();
        let ann = Listed {
            secret: "a secret".into(),
            quota: Some(5),
            reset_day: Some(3),
            expires: Some(2_000_000_000),
            rate: Some(7),
            connections: Some(8),
            addresses: Some(2),
            ..Listed::default()
        };
        let record = key.emit("ann", &ann, 9).unwrap();
        assert!(!record.contains("a secret"));
        assert!(key.parse("ann", record.as_bytes()).unwrap() == (ann.clone(), 9));
        assert_eq!(version(record.as_bytes()), Some(9));
        assert_ne!(key.emit("ann", &ann, 9).unwrap(), record, "a nonce of its own");
        // A record that was moved to another user, fleet or key does not open.
        assert!(key.parse("bob", record.as_bytes()).is_none());
        assert!(key.parse("bob", record.replace("\"ann\"", "\"bob\"").as_bytes()).is_none());
        for (fleet, other) in [("g", KEY), ("f", OTHER)] {
            assert!(FleetKey::new(fleet, other).unwrap().parse("ann", record.as_bytes()).is_none());
        }
        // No byte of the credential may differ, and none may be missing.
        let sealed: Record = serde_json::from_str(&record).unwrap();
        let bytes = STANDARD.decode(&sealed.credential).unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(key.open("ann", &STANDARD.encode(other)), None, "{at}");
            assert_eq!(key.open("ann", &STANDARD.encode(&bytes[..at])), None, "{at}");
        }
        for cut in 0..record.len() {
            assert!(key.parse("ann", &record.as_bytes()[..cut]).is_none(), "{cut}");
        }
        assert!(FleetKey::new("f", "c2hvcnQ=").is_none());
    }

    #[test]
    fn keys_of_2022_methods_are_told_from_passwords() {
        let key = FleetKey::new("f", KEY).unwrap();
        for (secret, is_key) in [(KEY, true), ("0123456789abcdef0123456789abcdef", false), ("pass", false)] {
            let user = Listed { secret: secret.into(), ..Listed::default() };
            let record = key.emit("7", &user, 1).unwrap();
            let (found, _) = key.parse("7", record.as_bytes()).unwrap();
            assert_eq!(found.key.as_deref(), is_key.then_some(secret));
        }
        let long = "x".repeat(MAX_NAME + 1);
        for name in ["", "a\nb", &long] {
            let record = key.emit(name, &Listed { secret: "s".into(), ..Listed::default() }, 1).unwrap();
            assert!(key.parse(name, record.as_bytes()).is_none(), "{name:?}");
        }
    }
}
