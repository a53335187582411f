//! Capture: the whole host's or a network's traffic, taken over by rules that adit makes itself.

use std::fmt;

use super::Tag;
use super::rule::Cidr;

/// Settings of the capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// The way in which traffic is taken.
    pub mode: CaptureMode,
    /// The outbound of captured traffic; one of the configuration.
    pub outbound: Tag,
    /// Interfaces whose forwarded traffic is captured too; [`Capture::ANY_LAN`] stands for all of them.
    pub lan: Vec<Box<str>>,
    /// Interfaces whose forwarded traffic is not captured, where `lan` is all of them.
    pub lan_exclude: Vec<Box<str>>,
    /// Whether traffic of this machine's own programs is captured.
    pub local: bool,
    /// Traffic that would be captured is refused once the process is gone without having stopped.
    pub strict: bool,
    /// Whether IPv6 is captured.
    pub ipv6: bool,
    /// Whether questions to any name server go to the inbound of protocol dns, if there is one.
    pub dns_hijack: bool,
    /// Traffic that is not captured.
    pub exclude: Selection,
    /// If one of its lists has entries, nothing else is captured.
    pub include: Selection,
    /// The mark of adit's own sockets.
    pub own_mark: u32,
    /// The mark of packets that are captured; another one than that of own sockets.
    pub mark: u32,
    /// The first of three tables of routes.
    pub table: u32,
    /// The priority in whose neighbourhood rules of routing stand, from 2 below to 2 above.
    pub priority: u32,
}

/// The way in which traffic is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CaptureMode {
    /// The best that the system offers.
    #[default]
    Auto,
    /// TCP by another target. Datagrams are left alone.
    Redirect,
    /// Everything by an interface of its own.
    Tun,
    /// TCP and UDP as they are, by transparent sockets.
    Tproxy,
}

impl CaptureMode {
    /// The modes and their names.
    pub const ALL: &[(&str, Self)] =
        &[("auto", Self::Auto), ("redirect", Self::Redirect), ("tun", Self::Tun), ("tproxy", Self::Tproxy)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// Traffic by its properties; a list without entries says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Targets.
    pub addresses: Vec<Cidr>,
    /// Users of this machine.
    pub users: Vec<Owner>,
    /// Groups of this machine.
    pub groups: Vec<Owner>,
    /// Interfaces by which traffic of this machine would leave.
    pub interfaces: Vec<Box<str>>,
}

/// Users or groups of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// By number, from the first to the last.
    Numbers(u32, u32),
    /// By name.
    Name(Box<str>),
}

/// Most numbers of all ranges of one list.
pub const MAX_OWNERS: u32 = 1 << 17;

impl Owner {
    /// Reads a number, a range such as `1000-1999`, or a name.
    pub fn parse(text: &str) -> Option<Self> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        if is_number(first) && is_number(last) {
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            let is_fine = first <= last && last - first < MAX_OWNERS;
            return is_fine.then_some(Self::Numbers(first, last));
        }
        let is_name = !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
            && text.len() <= 255
            && !text.contains([':', '/', ','])
            && !text.contains(char::is_whitespace);
        is_name.then(|| Self::Name(text.into()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers(first, last) if first == last => write!(f, "{first}"),
            Self::Numbers(first, last) => write!(f, "{first}-{last}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Capture {
    /// The mark that sing-box, mihomo and OpenSnell give their own sockets too.
    pub const OWN_MARK: u32 = 0x2024;
    /// The mark that sing-box and mihomo give captured packets too.
    pub const MARK: u32 = 0x2023;
    /// The first table of routes, and the priority of rules; both as in sing-box.
    pub const TABLE: u32 = 2022;
    /// As above.
    pub const PRIORITY: u32 = 9000;

    /// The name that stands for every interface in [`Capture::lan`]. Traffic to networks that this machine has a route for
    /// beyond its default one is not captured then: it stays between them.
    pub const ANY_LAN: &str = "*";

    /// Whether forwarded traffic is captured from all interfaces.
    pub fn has_any_lan(&self) -> bool {
        self.lan.iter().any(|name| **name == *Self::ANY_LAN)
    }

    /// The interfaces that the settings name, each with the key that names it.
    pub fn interfaces(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let keys = [
            ("lan", &self.lan),
            ("exclude-lan", &self.lan_exclude),
            ("exclude-interface", &self.exclude.interfaces),
            ("include-interface", &self.include.interfaces),
        ];
        let named = keys.into_iter().flat_map(|(key, names)| names.iter().map(move |name| (key, &**name)));
        named.filter(|(_, name)| *name != Self::ANY_LAN)
    }

    /// A capture of all local traffic for `outbound`.
    pub fn new(outbound: Tag) -> Self {
        Self {
            mode: CaptureMode::default(),
            outbound,
            lan: Vec::new(),
            lan_exclude: Vec::new(),
            local: true,
            strict: false,
            ipv6: true,
            dns_hijack: true,
            exclude: Selection::default(),
            include: Selection::default(),
            own_mark: Self::OWN_MARK,
            mark: Self::MARK,
            table: Self::TABLE,
            priority: Self::PRIORITY,
        }
    }

    /// The table by which transparent sockets get packets.
    pub fn tproxy_table(&self) -> u32 {
        self.table + 1
    }

    /// The table for sockets that are bound to an interface.
    pub fn bound_table(&self) -> u32 {
        self.table + 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        for (text, want) in [
            ("0", Some(Owner::Numbers(0, 0))),
            ("1000-1999", Some(Owner::Numbers(1000, 1999))),
            ("ann", Some(Owner::Name("ann".into()))),
            ("systemd-resolve", Some(Owner::Name("systemd-resolve".into()))),
            ("1000-", None),
            ("-1", None),
            ("2000-1000", None),
            ("0-131071", Some(Owner::Numbers(0, 131_071))),
            ("0-131072", None),
            ("4294967296", None),
            ("", None),
            ("a b", None),
            ("a:b", None),
        ] {
            let owner = Owner::parse(text);
            assert_eq!(owner, want, "{text}");
            if let Some(owner) = owner {
                assert_eq!(owner.to_string(), text);
            }
        }
    }
}
