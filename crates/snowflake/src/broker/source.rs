//! The address of a request behind reverse proxies, from `Forwarded` and `X-Forwarded-For`.

use std::net::{IpAddr, SocketAddr};

use adit_net::service::ServiceRequest;

/// The address of a client: the leftmost public one that a field names, else that of the connection.
pub(super) fn of_client(asked: &ServiceRequest) -> IpAddr {
    let first_public = |entries: Vec<Option<IpAddr>>| entries.into_iter().flatten().find(is_public);
    first_public(forwarded(asked))
        .or_else(|| first_public(forwarded_for(asked)))
        .unwrap_or_else(|| asked.peer.ip().to_canonical())
}

/// The address of a proxy: the entry that the outermost of `hops` reverse proxies wrote, else that of the connection.
pub(super) fn of_proxy(asked: &ServiceRequest, hops: usize) -> IpAddr {
    let entry = |entries: Vec<Option<IpAddr>>| {
        let at = entries.len().checked_sub(hops)?;
        entries.get(at).copied().flatten()
    };
    let named = (hops > 0).then(|| entry(forwarded(asked)).or_else(|| entry(forwarded_for(asked)))).flatten();
    named.unwrap_or_else(|| asked.peer.ip().to_canonical())
}

fn forwarded_for(asked: &ServiceRequest) -> Vec<Option<IpAddr>> {
    asked.fields("x-forwarded-for").flat_map(|line| line.split(',')).map(address).collect()
}

/// The `for` of each element (RFC 7239).
fn forwarded(asked: &ServiceRequest) -> Vec<Option<IpAddr>> {
    let elements = asked.fields("forwarded").flat_map(|line| line.split(','));
    let found = elements.map(|element| {
        let named = element.split(';').find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            name.trim().eq_ignore_ascii_case("for").then_some(value)
        });
        named.and_then(|value| address(value.trim().trim_matches('"')))
    });
    found.collect()
}

/// An address with or without brackets and port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let found = bare.parse::<IpAddr>().ok();
    found
        .or_else(|| text.parse::<SocketAddr>().ok().map(|found| found.ip()))
        .map(|found| found.to_canonical())
}

fn is_public(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let is_shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            !(v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || is_shared)
        }
        IpAddr::V6(v6) => {
            !(v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(fields: &[(&'static str, &'static str)]) -> ServiceRequest {
        ServiceRequest::for_tests("192.0.2.9:5".parse().unwrap(), fields)
    }

    #[test]
    fn addresses_behind_reverse_proxies() {
        let both = [("x-forwarded-for", "10.0.0.1, 203.0.113.5:80"), ("x-forwarded-for", "198.51.100.7")];
        for (fields, client, hops, proxy) in [
            (&[][..], "192.0.2.9", 1, "192.0.2.9"),
            (&both[..], "203.0.113.5", 1, "198.51.100.7"),
            (&both[..], "203.0.113.5", 2, "203.0.113.5"),
            (&both[..], "203.0.113.5", 9, "192.0.2.9"),
            (&both[..], "203.0.113.5", 0, "192.0.2.9"),
            (
                &[("forwarded", "for=\"[2001:db8::1]:7\";proto=https, For=198.51.100.1")][..],
                "2001:db8::1",
                1,
                "198.51.100.1",
            ),
            (&[("x-forwarded-for", "nonsense")][..], "192.0.2.9", 1, "192.0.2.9"),
        ] {
            let asked = asked(fields);
            assert_eq!(of_client(&asked), client.parse::<IpAddr>().unwrap(), "{fields:?}");
            assert_eq!(of_proxy(&asked, hops), proxy.parse::<IpAddr>().unwrap(), "{fields:?} {hops}");
        }
    }
}
