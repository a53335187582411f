//! Fake addresses: every name gets an address out of a private range, and a connection to that address is one to the
//! name.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::Tag;
use super::rule::{AddressRange, Cidr};

/// Names that have a fake address at the same time, at most; the least recently used one makes room.
pub const MAX_FAKES: u32 = 1 << 16;
/// Addresses at the front of a range that no name gets: the TUN and its peer have theirs there.
pub const FAKE_HEAD: u32 = 16;
/// Longest prefix of a range of IPv4.
const MAX_PREFIX4: u32 = 27;
/// Most entries of a filter.
pub const MAX_FAKE_FILTER: usize = 4096;

/// Names that need real addresses, for the entry `default` of a filter: local networks, STUN, time, checks of
/// connectivity, voice chat of consoles.
pub const USUAL_FILTER: &[&str] = &[
    "*.lan",
    "+.local",
    "+.home.arpa",
    "+.in-addr.arpa",
    "+.ip6.arpa",
    "localhost.ptlogin2.qq.com",
    "stun.*.*",
    "stun.*.*.*",
    "+.stun.*.*",
    "+.stun.*.*.*",
    "time.*.*",
    "time.*.*.*",
    "ntp.*.*",
    "ntp.*.*.*",
    "+.pool.ntp.org",
    "dns.msftncsi.com",
    "www.msftncsi.com",
    "www.msftconnecttest.com",
    "connectivitycheck.gstatic.com",
    "captive.apple.com",
    "+.srv.nintendo.net",
    "+.stun.playstation.net",
    "xbox.*.microsoft.com",
];

/// The service of fake addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fake {
    /// The addresses of IPv4, at least 32.
    pub v4: FakeRange,
    /// The addresses of IPv6; `None` for none, and AAAA records are missing then.
    pub v6: Option<FakeRange>,
    /// Names that are told from the others.
    pub filter: Vec<FakeFilter>,
    /// The names that get fake addresses.
    pub mode: FakeMode,
    /// Lifetime of an answer, in whole seconds.
    pub ttl: Duration,
    /// The file that keeps the names across restarts.
    pub store: FakeStore,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            v4: "198.18.128.0/17".parse().expect("a range of IPv4"),
            v6: None,
            filter: vec![FakeFilter::Usual],
            mode: FakeMode::Blacklist,
            ttl: Duration::from_secs(1),
            store: FakeStore::Usual,
        }
    }
}

impl Fake {
    /// Names that can have an address at the same time.
    pub fn places(&self) -> u32 {
        let v6 = self.v6.map_or(u32::MAX, FakeRange::places);
        self.v4.places().min(v6).min(MAX_FAKES)
    }
}

/// A range of addresses with room for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FakeRange(Cidr);

/// Why a range cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FakeRangeError {
    /// It is no network.
    #[error("not a network")]
    Syntax,
    /// It is too small, or so large that it would take nearly all addresses.
    #[error("no prefix from /8 to /27, or for IPv6 to /120")]
    Size,
}

impl std::str::FromStr for FakeRange {
    type Err = FakeRangeError;

    fn from_str(text: &str) -> Result<Self, FakeRangeError> {
        let network = Cidr::parse(text.trim()).ok_or(FakeRangeError::Syntax)?;
        let host_bits = match network.range() {
            AddressRange::V4(first, last) => (last - first).count_ones(),
            AddressRange::V6(first, last) => (last - first).count_ones(),
        };
        let is_good = match network.range() {
            AddressRange::V4(..) => (32 - MAX_PREFIX4..=24).contains(&host_bits),
            AddressRange::V6(..) => (8..=121).contains(&host_bits),
        };
        if is_good { Ok(Self(network)) } else { Err(FakeRangeError::Size) }
    }
}

impl std::fmt::Display for FakeRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl FakeRange {
    /// The network.
    pub fn network(self) -> Cidr {
        self.0
    }

    /// Whether it is one of IPv6.
    pub fn is_ipv6(self) -> bool {
        matches!(self.0.range(), AddressRange::V6(..))
    }

    /// Addresses that names can have: those behind [`FAKE_HEAD`], without the last one, which is broadcast in IPv4.
    fn places(self) -> u32 {
        let span = match self.0.range() {
            AddressRange::V4(first, last) => last - first,
            AddressRange::V6(first, last) => u32::try_from(last - first).unwrap_or(u32::MAX),
        };
        span - FAKE_HEAD
    }
}

/// An entry of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FakeFilter {
    /// [`USUAL_FILTER`].
    Usual,
    /// A pattern as mihomo writes it, in lower case: `x` is that name, `+.x` the name and all below it, `.x` all below
    /// it, and a label `*` is any label.
    Pattern(Box<str>),
    /// The list of names of this name, of [`super::Config::sets`] or [`super::Config::lists`].
    Set(Tag),
}

/// The names that get fake addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FakeMode {
    /// All but those of the filter.
    #[default]
    Blacklist,
    /// Those of the filter alone.
    Whitelist,
}

/// The file that keeps names and their fake addresses across restarts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FakeStore {
    /// One beside the state file, if there is a place for that.
    #[default]
    Usual,
    /// None: names begin anew with the process.
    Off,
    /// This one.
    At(PathBuf),
}

/// Reads a pattern of a filter; `None` for a text that is none.
pub fn fake_pattern(text: &str) -> Option<Box<str>> {
    let text = text.trim().to_lowercase();
    let text = text.strip_suffix('.').unwrap_or(&text);
    let name = text.strip_prefix("+.").or_else(|| text.strip_prefix('.')).unwrap_or(text);
    let is_label = |label: &str| {
        label == "*"
            || !label.is_empty()
                && label.len() <= 63
                && label.chars().all(|c| !c.is_whitespace() && !c.is_control() && !"*+/".contains(c))
    };
    (name.len() <= 253 && name.split('.').all(is_label)).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_room() {
        let places = |text: &str| text.parse().map(FakeRange::places);
        assert_eq!(places("198.18.128.0/17"), Ok((1 << 15) - 17));
        assert_eq!(places("198.18.0.1/16"), Ok((1 << 16) - 17), "bits of the host do not matter");
        assert_eq!(places("198.18.0.0/27"), Ok(15));
        assert_eq!(places("fc00::/7"), Ok(u32::MAX - 16));
        assert_eq!(places("fd00::/120"), Ok(239));
        for text in ["198.18.0.0/28", "10.0.0.0/7", "::/0", "fd00::/121"] {
            assert_eq!(places(text), Err(FakeRangeError::Size), "{text}");
        }
        assert_eq!(places("198.18.0.0/33"), Err(FakeRangeError::Syntax));
        let fake = Fake { v6: "fd00::/120".parse().ok(), ..Fake::default() };
        assert_eq!((Fake::default().places(), fake.places()), ((1 << 15) - 17, 239));
    }

    #[test]
    fn patterns_are_those_of_mihomo() {
        for (text, want) in [
            ("Example.COM.", Some("example.com")),
            ("+.lan", Some("+.lan")),
            (".lan", Some(".lan")),
            ("xbox.*.microsoft.com", Some("xbox.*.microsoft.com")),
            ("*", Some("*")),
            ("", None),
            ("+.", None),
            ("a..b", None),
            ("st*n.a", None),
            ("a/b", None),
        ] {
            assert_eq!(fake_pattern(text).as_deref(), want, "{text}");
        }
        assert!(USUAL_FILTER.iter().all(|text| fake_pattern(text).as_deref() == Some(*text)));
    }
}
