//! Access control: which targets go through a proxy, and which clients and targets a server takes.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use adit_proto::wire::Host;
use regex_lite::Regex;

/// Rules about the targets of a client, or about the clients and targets of a server.
#[derive(Debug, Clone, Default)]
pub struct Acl {
    /// `[bypass_all]`: what no rule names does not use the proxy.
    pub bypass_all: bool,
    /// Of names the bypass list is asked first too (shadowsocks-libev 3.3.5; shadowsocks-rust asks the proxy list).
    pub bypass_first: bool,
    /// Names without an address here are proxied, with either default (shadowsocks-libev 3.3.5).
    pub proxies_unknown: bool,
    /// Targets that do not use the proxy; clients that a server refuses.
    pub bypass: AclList,
    /// Targets that use it; clients that a server takes.
    pub proxy: AclList,
    /// `[outbound_block_all]`: what no rule names is no target.
    pub block_all: bool,
    /// Targets that a server does not reach.
    pub block: AclList,
    /// Targets that it reaches.
    pub allow: AclList,
}

/// Rules that are shared: a configuration is copied, a list of 100,000 names is not. Two are equal if they are one.
#[derive(Debug, Clone)]
pub struct AccessList(Arc<Acl>);

impl AccessList {
    /// Shares rules.
    pub fn new(acl: Acl) -> Self {
        Self(Arc::new(acl))
    }
}

impl Deref for AccessList {
    type Target = Acl;

    fn deref(&self) -> &Acl {
        &self.0
    }
}

impl PartialEq for AccessList {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The verdict of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclVerdict {
    /// Through the proxy; a server reaches this target.
    Yes,
    /// Directly; a server does not reach this target.
    No,
    /// It depends on the addresses of the name.
    Resolve,
}

impl From<bool> for AclVerdict {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl Acl {
    /// Whether a client sends a target through the proxy.
    pub fn proxies(&self, target: &Host) -> AclVerdict {
        match target {
            Host::Ip(ip) if self.bypass.holds_ip(*ip) => AclVerdict::No,
            Host::Ip(ip) => (self.proxy.holds_ip(*ip) || !self.bypass_all).into(),
            Host::Name(name) => {
                let name = normal(name);
                if self.bypass_first && self.bypass.holds_name(&name) {
                    AclVerdict::No
                } else if self.proxy.holds_name(&name) {
                    AclVerdict::Yes
                } else if self.bypass.holds_name(&name) {
                    AclVerdict::No
                } else if self.bypass_all && self.proxies_unknown {
                    AclVerdict::Resolve
                } else {
                    unnamed(!self.bypass_all, &self.bypass, &self.proxy)
                }
            }
        }
    }

    /// After [`AclVerdict::Resolve`] of [`Acl::proxies`]: the same for the addresses of the name.
    pub fn proxies_any(&self, addresses: impl IntoIterator<Item = IpAddr>) -> bool {
        of_addresses(!self.bypass_all, &self.bypass, &self.proxy, addresses)
    }

    /// After [`AclVerdict::Resolve`] of [`Acl::proxies`]: the same for a name that has no address here.
    pub fn proxies_unknown(&self) -> bool {
        self.proxies_unknown || !self.bypass_all
    }

    /// Whether a server takes connections from this address.
    pub fn accepts(&self, client: IpAddr) -> bool {
        if self.bypass_all { self.proxy.holds_ip(client) } else { !self.bypass.holds_ip(client) }
    }

    /// Whether a server reaches this target for its clients.
    pub fn reaches(&self, target: &Host) -> AclVerdict {
        match target {
            Host::Ip(ip) if self.block.holds_ip(*ip) => AclVerdict::No,
            Host::Ip(ip) => (self.allow.holds_ip(*ip) || !self.block_all).into(),
            Host::Name(name) => {
                let name = normal(name);
                if self.block.holds_name(&name) {
                    AclVerdict::No
                } else if self.allow.holds_name(&name) {
                    AclVerdict::Yes
                } else {
                    unnamed(!self.block_all, &self.block, &self.allow)
                }
            }
        }
    }

    /// After [`AclVerdict::Resolve`] of [`Acl::reaches`]: the same for the addresses of the name.
    pub fn reaches_any(&self, addresses: impl IntoIterator<Item = IpAddr>) -> bool {
        of_addresses(!self.block_all, &self.block, &self.allow, addresses)
    }
}

/// A name that no rule holds: only the list that departs from the default has a say about its addresses.
fn unnamed(default: bool, no: &AclList, yes: &AclList) -> AclVerdict {
    let exceptions = if default { no } else { yes };
    if exceptions.has_ips() { AclVerdict::Resolve } else { default.into() }
}

fn of_addresses(
    default: bool,
    no: &AclList,
    yes: &AclList,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> bool {
    let exceptions = if default { no } else { yes };
    addresses.into_iter().any(|ip| exceptions.holds_ip(ip)) != default
}

/// Names are compared in lower case and without the dot of the root.
pub fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// The rules of one list.
#[derive(Debug, Clone, Default)]
pub struct AclList {
    /// IPv4 addresses.
    pub v4: AclRanges<u32>,
    /// IPv6 addresses.
    pub v6: AclRanges<u128>,
    /// Names alone, sorted.
    pub exact: Vec<Box<str>>,
    /// Names with all below them, sorted; those that begin with a dot are for what is below alone.
    pub trees: Vec<Box<str>>,
    /// Regular expressions for names in lower case.
    pub regexes: Vec<Regex>,
}

impl AclList {
    /// Brings everything into the order that the questions rely on.
    pub fn finish(&mut self) {
        self.v4.finish();
        self.v6.finish();
        for names in [&mut self.exact, &mut self.trees] {
            names.sort_unstable();
            names.dedup();
            names.shrink_to_fit();
        }
    }

    fn has_ips(&self) -> bool {
        !self.v4.0.is_empty() || !self.v6.0.is_empty()
    }

    fn holds_ip(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => self.v4.holds(ip.to_bits()) || self.v6.holds(ip.to_ipv6_mapped().to_bits()),
            IpAddr::V6(ip) => self.v6.holds(ip.to_bits()),
        }
    }

    fn holds_name(&self, name: &str) -> bool {
        let has = |names: &[Box<str>], name: &str| names.binary_search_by(|n| (**n).cmp(name)).is_ok();
        let mut below = name.match_indices('.').flat_map(|(dot, _)| [&name[dot..], &name[dot + 1..]]);
        has(&self.exact, name)
            || has(&self.trees, name)
            || below.any(|name| has(&self.trees, name))
            || self.regexes.iter().any(|regex| regex.is_match(name))
    }
}

/// Inclusive ranges; sorted and disjoint once finished.
#[derive(Debug, Clone, Default)]
pub struct AclRanges<T>(pub Vec<(T, T)>);

impl<T: Ord + Copy> AclRanges<T> {
    fn finish(&mut self) {
        self.0.sort_unstable();
        let mut merged: Vec<(T, T)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match merged.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        merged.shrink_to_fit();
        self.0 = merged;
    }

    fn holds(&self, value: T) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= value);
        after > 0 && value <= self.0[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn ranges_are_sets(ranges in proptest::collection::vec((0u32..40, 0u32..10), 0..8)) {
            let ranges: Vec<_> = ranges.into_iter().map(|(first, len)| (first, first + len)).collect();
            let mut merged = AclRanges(ranges.clone());
            merged.finish();
            for value in 0..60 {
                let want = ranges.iter().any(|(first, last)| (*first..=*last).contains(&value));
                prop_assert_eq!(merged.holds(value), want);
            }
        }
    }
}
