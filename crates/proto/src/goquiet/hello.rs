//! Client hellos of two browsers, 517 bytes each.
//!
//! ```text
//!    0  16 03 01 02 00                  record
//!    5  01 00 01 fc | 03 03             client hello
//!   11  random 32                       iv 16 | AES-256-CFB(SHA-256(key), iv) of SHA-256(period | key)[0..16]
//!   43  20 | session id 32
//!   76  suites | 01 00 | extensions
//! ```
//!
//! Source: `docs/protocols/goquiet.md`, 1 and 2.

use std::str::FromStr;

use thiserror::Error;

use crate::wire::Rng;

/// Offset of the random in a hello.
pub(super) const RANDOM_AT: usize = 11;
pub(super) const RANDOM_LEN: usize = 32;
pub(super) const SESSION_LEN: usize = 32;
const HELLO_LEN: usize = 517;
const HELLO_HEAD: [u8; RANDOM_AT] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
const TICKET_LEN: usize = 192;

/// Suites behind their length, and compression methods.
const CHROME_SUITES: [u8; 32] = [
    0x00, 0x1c, 0x2a, 0x2a, 0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, 0xcc, 0xa9, 0xcc, 0xa8, 0xc0,
    0x13, 0xc0, 0x14, 0x00, 0x9c, 0x00, 0x9d, 0x00, 0x2f, 0x00, 0x35, 0x00, 0x0a, 0x01, 0x00,
];
const FIREFOX_SUITES: [u8; 34] = [
    0x00, 0x1e, 0xc0, 0x2b, 0xc0, 0x2f, 0xcc, 0xa9, 0xcc, 0xa8, 0xc0, 0x2c, 0xc0, 0x30, 0xc0, 0x0a, 0xc0,
    0x09, 0xc0, 0x13, 0xc0, 0x14, 0x00, 0x33, 0x00, 0x39, 0x00, 0x2f, 0x00, 0x35, 0x00, 0x0a, 0x01, 0x00,
];
const CHROME_SIGNATURES: [u8; 20] = [
    0x00, 0x12, 0x04, 0x03, 0x08, 0x04, 0x04, 0x01, 0x05, 0x03, 0x08, 0x05, 0x05, 0x01, 0x08, 0x06, 0x06,
    0x01, 0x02, 0x01,
];
const FIREFOX_SIGNATURES: [u8; 24] = [
    0x00, 0x16, 0x04, 0x03, 0x05, 0x03, 0x06, 0x03, 0x08, 0x04, 0x08, 0x05, 0x08, 0x06, 0x04, 0x01, 0x05,
    0x01, 0x06, 0x01, 0x02, 0x03, 0x02, 0x01,
];
const FIREFOX_GROUPS: [u8; 10] = [0x00, 0x08, 0x00, 0x1d, 0x00, 0x17, 0x00, 0x18, 0x00, 0x19];
/// h2 and http/1.1.
const ALPN: [u8; 14] = *b"\x00\x0c\x02h2\x08http/1.1";
const STATUS: [u8; 5] = [1, 0, 0, 0, 0];
const POINTS: [u8; 2] = [1, 0];

/// The browser whose hello is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Browser {
    /// Chrome 64.
    #[default]
    Chrome,
    /// Firefox 58.
    Firefox,
}

/// A browser that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown browser: {0}; use chrome or firefox")]
pub struct UnknownBrowser(Box<str>);

/// A server name that cannot stand in the hello.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("server name of {len} bytes does not fit into the hello, at most {max} do")]
pub struct BadServerName {
    len: usize,
    max: usize,
}

impl FromStr for Browser {
    type Err = UnknownBrowser;

    fn from_str(text: &str) -> Result<Self, UnknownBrowser> {
        match text {
            "chrome" => Ok(Self::Chrome),
            "firefox" => Ok(Self::Firefox),
            _ => Err(UnknownBrowser(text.into())),
        }
    }
}

impl Browser {
    /// Longest server name, in bytes: the padding of the hello makes up for shorter ones.
    pub fn max_server_name(self) -> usize {
        match self {
            Self::Chrome => 101,
            Self::Firefox => 112,
        }
    }

    pub(super) fn check(self, name: &str) -> Result<(), BadServerName> {
        let (len, max) = (name.len(), self.max_server_name());
        if len <= max { Ok(()) } else { Err(BadServerName { len, max }) }
    }

    /// A hello with `random` in it. The name has been checked.
    pub(super) fn hello(
        self,
        random: &[u8; RANDOM_LEN],
        name: &str,
        ticket_rng: &mut dyn Rng,
        rng: &mut dyn Rng,
    ) -> Vec<u8> {
        let (mut session, mut ticket) = ([0; SESSION_LEN], [0; TICKET_LEN]);
        rng.fill(&mut session);
        ticket_rng.fill(&mut ticket);
        let extensions = match self {
            Self::Chrome => chrome(name, &ticket, rng),
            Self::Firefox => firefox(name, &ticket),
        };
        let mut hello = Vec::with_capacity(HELLO_LEN);
        hello.extend(HELLO_HEAD);
        hello.extend(random);
        hello.push(0x20);
        hello.extend(session);
        hello.extend(match self {
            Self::Chrome => &CHROME_SUITES[..],
            Self::Firefox => &FIREFOX_SUITES,
        });
        put_sized(&mut hello, &extensions);
        hello
    }
}

/// Appends `bytes` behind their length in two bytes.
fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).expect("parts of a hello have at most 512 bytes");
    out.extend(len.to_be_bytes());
    out.extend(bytes);
}

fn put(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    out.extend(kind.to_be_bytes());
    put_sized(out, data);
}

fn server_name(name: &str) -> Vec<u8> {
    let mut entry = vec![0];
    put_sized(&mut entry, name.as_bytes());
    let mut list = Vec::new();
    put_sized(&mut list, &entry);
    list
}

/// A value that servers must ignore: `xA xA`.
fn grease(rng: &mut dyn Rng) -> u16 {
    0x0a0a + 0x1010 * u16::try_from(rng.below(16)).expect("below 16")
}

fn chrome(name: &str, ticket: &[u8], rng: &mut dyn Rng) -> Vec<u8> {
    let mut out = Vec::new();
    let [first, group, last] = std::array::from_fn(|_| grease(rng));
    let mut groups = vec![0, 8];
    groups.extend(group.to_be_bytes());
    groups.extend([0x00, 0x1d, 0x00, 0x17, 0x00, 0x18]);
    put(&mut out, first, &[]);
    put(&mut out, 0xff01, &[0]);
    put(&mut out, 0, &server_name(name));
    put(&mut out, 0x17, &[]);
    put(&mut out, 0x23, ticket);
    put(&mut out, 0x0d, &CHROME_SIGNATURES);
    put(&mut out, 5, &STATUS);
    put(&mut out, 0x12, &[]);
    put(&mut out, 0x10, &ALPN);
    put(&mut out, 0x7550, &[]);
    put(&mut out, 0x0b, &POINTS);
    put(&mut out, 0x0a, &groups);
    put(&mut out, last, &[0]);
    put(&mut out, 0x15, &vec![0; Browser::Chrome.max_server_name() - name.len()]);
    out
}

fn firefox(name: &str, ticket: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, 0, &server_name(name));
    put(&mut out, 0x17, &[]);
    put(&mut out, 0xff01, &[0]);
    put(&mut out, 0x0a, &FIREFOX_GROUPS);
    put(&mut out, 0x0b, &POINTS);
    put(&mut out, 0x23, ticket);
    put(&mut out, 0x10, &ALPN);
    put(&mut out, 5, &STATUS);
    put(&mut out, 0x0d, &FIREFOX_SIGNATURES);
    put(&mut out, 0x15, &vec![0; Browser::Firefox.max_server_name() - name.len()]);
    out
}

/// Whether `message` (without its record's head) is a client hello with a session id of 32 bytes, whole to its last
/// extension.
pub(super) fn is_well_formed(message: &[u8]) -> bool {
    let u16_at =
        |at: usize| message.get(at..at + 2).map(|two| usize::from(u16::from_be_bytes([two[0], two[1]])));
    let parse = || {
        if message.first() != Some(&1) || message.get(1) != Some(&0) || u16_at(2)? + 4 != message.len() {
            return None;
        }
        let session_at = 4 + 2 + RANDOM_LEN;
        if usize::from(*message.get(session_at)?) != SESSION_LEN {
            return None;
        }
        let suites_at = session_at + 1 + SESSION_LEN;
        let methods_at = suites_at + 2 + u16_at(suites_at)?;
        let mut at = methods_at + 1 + usize::from(*message.get(methods_at)?);
        if u16_at(at)? + at + 2 != message.len() {
            return None;
        }
        at += 2;
        while at < message.len() {
            at += 4 + u16_at(at + 2)?;
        }
        (at == message.len()).then_some(())
    };
    parse().is_some()
}
