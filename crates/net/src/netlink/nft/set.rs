//! Sets: their elements, as text and as messages.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::{HEAD, NEW_ELEMENT, NEW_SET};
use crate::netlink::{Messages, NLM_F_CREATE};

const FLAG_INTERVAL: u32 = 4;
const FLAG_TIMEOUT: u32 = 0x10;
const ELEMENT_ENDS: u32 = 1;
/// Elements of one message: the longest take 84 bytes, and a list of them has 65,535 at most.
const CHUNK: usize = 500;
/// Longest name of an interface with the zero behind it.
const NAME_LEN: usize = 16;

/// A set that rules look things up in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// The kind of its elements.
    pub kind: SetKind,
    /// Elements are ranges; they must not overlap.
    pub has_ranges: bool,
    /// Elements may have an end.
    pub has_timeout: bool,
    /// The elements that are there from the start.
    pub elements: Vec<Element>,
}

/// Kind of the elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKind {
    /// IPv4 addresses.
    V4,
    /// IPv6 addresses.
    V6,
    /// Numbers of users.
    Uid,
    /// Numbers of groups.
    Gid,
    /// Names of interfaces.
    Interface,
}

/// One element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// IPv4 addresses, both ends included.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6 addresses, both ends included.
    V6(Ipv6Addr, Ipv6Addr),
    /// A user or a group.
    Number(u32),
    /// An interface.
    Name(Box<str>),
}

impl SetKind {
    /// The name and number of nft(8), and the length in bytes.
    fn of(self) -> (&'static str, u32, u32) {
        match self {
            Self::V4 => ("ipv4_addr", 7, 4),
            Self::V6 => ("ipv6_addr", 8, 16),
            Self::Uid => ("uid", 24, 4),
            Self::Gid => ("gid", 25, 4),
            Self::Interface => ("ifname", 41, 16),
        }
    }
}

/// Sorts ranges of IPv4 addresses and joins those that touch.
pub fn merge_v4(ranges: impl IntoIterator<Item = (Ipv4Addr, Ipv4Addr)>) -> Vec<Element> {
    let numbers = ranges.into_iter().map(|(a, b)| (u128::from(a.to_bits()), u128::from(b.to_bits())));
    let ip = |number: u128| Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX));
    merge(numbers.collect()).into_iter().map(|(a, b)| Element::V4(ip(a), ip(b))).collect()
}

/// Sorts ranges of IPv6 addresses and joins those that touch.
pub fn merge_v6(ranges: impl IntoIterator<Item = (Ipv6Addr, Ipv6Addr)>) -> Vec<Element> {
    let numbers = ranges.into_iter().map(|(a, b)| (a.to_bits(), b.to_bits()));
    merge(numbers.collect()).into_iter().map(|(a, b)| Element::V6(a.into(), b.into())).collect()
}

fn merge(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.retain(|(first, last)| first <= last);
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, has_ranges, has_timeout, elements } = self;
        write!(f, "set {name} {{ type {};", kind.of().0)?;
        match (has_ranges, has_timeout) {
            (true, true) => write!(f, " flags interval, timeout;")?,
            (true, false) => write!(f, " flags interval;")?,
            (false, true) => write!(f, " flags timeout;")?,
            (false, false) => {}
        }
        if !elements.is_empty() {
            let all: Vec<String> = elements.iter().map(ToString::to_string).collect();
            write!(f, " elements = {{ {} }};", all.join(", "))?;
        }
        write!(f, " }}")
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(first, last) if first == last => write!(f, "{first}"),
            Self::V4(first, last) => write!(f, "{first}-{last}"),
            Self::V6(first, last) if first == last => write!(f, "{first}"),
            Self::V6(first, last) => write!(f, "{first}-{last}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "\"{name}\""),
        }
    }
}

impl Set {
    pub(super) fn emit(&self, table: &str, id: u32, out: &mut Messages) {
        let (_, kind, len) = self.kind.of();
        let ranges = if self.has_ranges { FLAG_INTERVAL } else { 0 };
        let timeout = if self.has_timeout { FLAG_TIMEOUT } else { 0 };
        out.message((NEW_SET, NLM_F_CREATE), format!("set {}", self.name), &HEAD, |m| {
            m.text(1, table);
            m.text(2, self.name);
            m.number(3, ranges | timeout);
            m.number(4, kind);
            m.number(5, len);
            m.number(10, id);
            // A note for nft(8), without which it misreads numbers: the byte order of keys, 1 for the machine's.
            let order = if matches!(self.kind, SetKind::V4 | SetKind::V6) { 2_u32 } else { 1 };
            m.attribute(13, &[&[0, 4], &order.to_ne_bytes()[..]].concat());
        });
        for elements in self.elements.chunks(CHUNK) {
            let part = format!("elements of set {}", self.name);
            out.message((NEW_ELEMENT, NLM_F_CREATE), part, &HEAD, |m| {
                m.text(1, table);
                m.text(2, self.name);
                m.number(4, id);
                m.nest(3, |m| {
                    let keys = elements.iter().flat_map(|element| element.keys(self.has_ranges));
                    for ((key, ends), at) in keys.zip(1..) {
                        m.nest(at, |m| emit_key(m, &key, ends));
                    }
                });
            });
        }
    }
}

impl Element {
    /// The kernel's form: a key; a range is its first key, and the first one behind it.
    pub(super) fn keys(&self, has_ranges: bool) -> Vec<(Vec<u8>, bool)> {
        let mut keys = Vec::with_capacity(2);
        let mut range = |first: Vec<u8>, behind: Option<Vec<u8>>| {
            keys.push((first, false));
            if has_ranges {
                keys.extend(behind.map(|key| (key, true)));
            }
        };
        match self {
            Self::V4(first, last) => {
                let behind = last.to_bits().checked_add(1);
                range(first.octets().into(), behind.map(|key| key.to_be_bytes().into()));
            }
            Self::V6(first, last) => {
                let behind = last.to_bits().checked_add(1);
                range(first.octets().into(), behind.map(|key| key.to_be_bytes().into()));
            }
            Self::Number(number) => range(number.to_ne_bytes().into(), None),
            Self::Name(name) => range(interface_key(name).into(), None),
        }
        keys
    }
}

/// The name of an interface as the kernel compares it; a longer one is cut.
pub(super) fn interface_key(name: &str) -> [u8; NAME_LEN] {
    let mut key = [0; NAME_LEN];
    for (to, byte) in key.iter_mut().zip(name.bytes().take(NAME_LEN - 1)) {
        *to = byte;
    }
    key
}

fn emit_key(m: &mut Messages, key: &[u8], ends: bool) {
    if ends {
        m.number(3, ELEMENT_ENDS);
    }
    m.nest(1, |m| m.attribute(1, key));
}

/// One message about one address of a set.
pub(super) fn emit_address(
    kind: (u16, u16),
    table: &str,
    set: &str,
    ip: IpAddr,
    lives: Option<Duration>,
    out: &mut Messages,
) {
    let key = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    out.message(kind, format!("an element of set {set}"), &HEAD, |m| {
        m.text(1, table);
        m.text(2, set);
        m.nest(3, |m| {
            m.nest(1, |m| {
                emit_key(m, &key, false);
                if let Some(lives) = lives {
                    let ms = u64::try_from(lives.as_millis()).unwrap_or(u64::MAX);
                    m.attribute(4, &ms.to_be_bytes());
                }
            });
        });
    });
}
