//! Name servers for addresses that others are not believed for.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use adit_model::DnsFallback;
use adit_model::entries::Sets;
use adit_model::rule::Cidr;
use adit_net::resolve::ResolveError;

use super::message::{Body, DnsAnswer};
use super::shared::{List, lock};

/// The servers, and which addresses of others are believed.
#[derive(Debug)]
pub(super) struct FallbackNameServers {
    pub(super) list: Arc<List>,
    /// Networks outside of which no address is believed, if there are any.
    trusted: Option<Arc<Mutex<Trusted>>>,
    untrusted: Vec<Cidr>,
}

/// Ranges of addresses, in order.
#[derive(Debug, Default)]
pub(crate) struct Trusted {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl Trusted {
    /// The networks of the lists that a fallback trusts.
    pub(crate) fn new(fallback: &DnsFallback, sets: &Sets) -> Self {
        let mut trusted = Self::default();
        for entries in fallback.trusted.iter().filter_map(|name| sets.list(name)) {
            trusted.v4.extend_from_slice(&entries.v4);
            trusted.v6.extend_from_slice(&entries.v6);
        }
        merge(&mut trusted.v4);
        merge(&mut trusted.v6);
        trusted
    }

    fn holds(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => within(&self.v4, &ip.to_bits()),
            IpAddr::V6(ip) => within(&self.v6, &ip.to_bits()),
        }
    }
}

/// Sorts ranges, and puts those together that overlap.
fn merge<T: Ord + Copy>(ranges: &mut Vec<(T, T)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let overlaps = next.0 <= last.1;
        if overlaps {
            last.1 = last.1.max(next.1);
        }
        overlaps
    });
    ranges.shrink_to_fit();
}

fn within<T: Ord>(ranges: &[(T, T)], at: &T) -> bool {
    let behind = ranges.partition_point(|(first, _)| first <= at);
    behind.checked_sub(1).is_some_and(|last| *at <= ranges[last].1)
}

impl FallbackNameServers {
    /// The servers are those of `list`, the networks of `trusted` those of the lists that `config` names.
    pub(super) fn new(config: &DnsFallback, list: Arc<List>, trusted: Arc<Mutex<Trusted>>) -> Self {
        let trusted = (!config.trusted.is_empty()).then_some(trusted);
        Self { list, trusted, untrusted: config.untrusted.clone() }
    }

    /// Whether the answer of the usual servers to a question for addresses holds: it has some, and each is believed.
    pub(super) fn believes(&self, answer: &Result<DnsAnswer, ResolveError>) -> bool {
        let Ok(DnsAnswer { body: Body::Addresses(ips), .. }) = answer else { return false };
        let trusted = self.trusted.as_ref().map(|trusted| lock(trusted));
        ips.iter().all(|ip| {
            trusted.as_ref().is_none_or(|trusted| trusted.holds(*ip))
                && !self.untrusted.iter().any(|network| network.holds(*ip))
        })
    }
}

#[cfg(test)]
mod tests {
    use adit_model::rule::AddressRange;

    use super::*;

    fn answer(ips: &[&str]) -> Result<DnsAnswer, ResolveError> {
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Ok(DnsAnswer { body: Body::Addresses(ips.into()), ttl: 1 })
    }

    fn range(text: &str) -> (u32, u32) {
        let Some(AddressRange::V4(first, last)) = Cidr::parse(text).map(Cidr::range) else { panic!() };
        (first, last)
    }

    #[test]
    fn addresses_are_believed_within_lists() {
        let config = DnsFallback {
            upstreams: Vec::new(),
            trusted: vec!["own".into()],
            untrusted: vec![Cidr::parse("10.1.0.0/16").unwrap()],
        };
        let list = Arc::new(List { number: 1, servers: Arc::default(), is_doubted: false });
        let networks = Arc::new(Mutex::new(Trusted::default()));
        let fallback = FallbackNameServers::new(&config, list.clone(), networks.clone());
        assert!(!fallback.believes(&answer(&["10.0.0.1"])), "the lists have not been read");
        let mut trusted = Trusted {
            v4: ["10.0.0.0/8", "10.3.0.0/16", "192.0.2.0/24"].map(range).into(),
            ..Trusted::default()
        };
        merge(&mut trusted.v4);
        assert_eq!(trusted.v4, ["10.0.0.0/8", "192.0.2.0/24"].map(range));
        *networks.lock().unwrap() = trusted;
        for (ips, is_believed) in [
            (&["10.0.0.0"] as &[_], true),
            (&["10.255.255.255", "192.0.2.255"], true),
            (&["10.0.0.1", "11.0.0.0"], false),
            (&["192.0.3.0"], false),
            (&["10.1.0.1"], false),
            (&["2001:db8::1"], false),
        ] {
            assert_eq!(fallback.believes(&answer(ips)), is_believed, "{ips:?}");
        }
        assert!(!fallback.believes(&Err(ResolveError::Timeout)));
        assert!(!fallback.believes(&Ok(DnsAnswer { body: Body::NoName, ttl: 1 })));
        let all = FallbackNameServers::new(&DnsFallback { trusted: Vec::new(), ..config }, list, networks);
        assert!(all.believes(&answer(&["198.51.100.1"])) && !all.believes(&answer(&["10.1.2.3"])));
    }
}
