//! The fate of one target, by the settings alone.

use std::net::{IpAddr, Ipv4Addr};

use adit_model::rule::{AddressRange, Cidr, Network};
use adit_model::{Capture, Config};
use adit_net::reach::is_own;
use adit_proto::wire::{Host, Target};

use super::{TcpKind, UdpKind, kinds};

/// The fate of a local application's traffic for one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureVerdict {
    /// It is captured, in this way.
    Captured(String),
    /// It goes its way without adit, for this reason.
    Passed(String),
    /// It is refused, for this reason.
    Refused(String),
}

/// The fate of traffic to `target`, one of whose addresses may be given for a name; `None` without a capture. Exemptions by
/// user, group and interface are not looked at.
pub fn explain(
    config: &Config,
    target: &Target,
    network: Network,
    address: Option<IpAddr>,
) -> Option<CaptureVerdict> {
    let capture = config.capture.as_ref()?;
    let ip = match &target.host {
        Host::Ip(ip) => Some(*ip),
        Host::Name(_) => address,
    };
    let kinds = kinds(capture, config);
    if let Some(why) = ip.and_then(|ip| exempt(capture, ip.to_canonical())) {
        return Some(CaptureVerdict::Passed(why));
    }
    let tcp = match kinds.tcp {
        TcpKind::Tproxy => "tproxy",
        TcpKind::Redirect => "redirect",
        TcpKind::Tun => "tun",
    };
    let captured = |by: &str| {
        CaptureVerdict::Captured(format!(
            "by {by}, for outbound {} unless a rule says otherwise",
            capture.outbound
        ))
    };
    Some(match (network, kinds.udp) {
        (Network::Tcp, _) => captured(tcp),
        (Network::Udp, UdpKind::Tproxy) => captured("tproxy"),
        (Network::Udp, UdpKind::Tun) if config.carries_datagrams(&capture.outbound) => captured("tun"),
        (Network::Udp, UdpKind::Tun | UdpKind::Refuse) => {
            CaptureVerdict::Refused(format!("outbound {} carries no datagrams", capture.outbound))
        }
        (Network::Udp, UdpKind::Leave) => CaptureVerdict::Passed("mode redirect leaves UDP alone".to_owned()),
    })
}

/// Why traffic to an address is not captured, if that is so.
fn exempt(capture: &Capture, ip: IpAddr) -> Option<String> {
    let link_local = ["169.254.0.0/16", "fe80::/10"];
    let within = |cidrs: &[Cidr]| cidrs.iter().find(|cidr| holds(**cidr, ip)).map(ToString::to_string);
    // By their bits: a machine without a default route has none for them.
    if ip.is_multicast() {
        return Some("it is a multicast address".to_owned());
    }
    if ip.is_loopback() || ip == Ipv4Addr::BROADCAST || is_own(ip) {
        return Some("it is an address of this machine".to_owned());
    }
    if link_local.into_iter().filter_map(Cidr::parse).any(|cidr| holds(cidr, ip)) {
        return Some("it is a link-local address".to_owned());
    }
    if ip.is_ipv6() && !capture.ipv6 {
        return Some("capture.ipv6 is off".to_owned());
    }
    if let Some(cidr) = within(&capture.exclude.addresses) {
        return Some(format!("capture.exclude-address has {cidr}"));
    }
    let include = &capture.include.addresses;
    (!include.is_empty() && within(include).is_none())
        .then(|| "capture.include-address does not have it".to_owned())
}

fn holds(cidr: Cidr, ip: IpAddr) -> bool {
    match (cidr.range(), ip) {
        (AddressRange::V4(first, last), IpAddr::V4(ip)) => (first..=last).contains(&ip.to_bits()),
        (AddressRange::V6(first, last), IpAddr::V6(ip)) => (first..=last).contains(&ip.to_bits()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use adit_formats::adit_toml::parse;

    use super::*;

    fn fate(text: &str, target: &str, network: Network) -> CaptureVerdict {
        let text = format!("{text}\n[[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n");
        let config = parse("t.toml", &text).unwrap().config;
        explain(&config, &target.parse().unwrap(), network, None).unwrap()
    }

    #[test]
    fn targets_have_their_fates() {
        let capture = "[capture]\nexclude-address = \"192.0.2.0/24\"";
        for (target, want) in [
            (
                "198.51.100.1:443",
                CaptureVerdict::Captured(
                    "by redirect, for outbound home unless a rule says otherwise".into(),
                ),
            ),
            (
                "example.com:443",
                CaptureVerdict::Captured(
                    "by redirect, for outbound home unless a rule says otherwise".into(),
                ),
            ),
            ("192.0.2.9:443", CaptureVerdict::Passed("capture.exclude-address has 192.0.2.0/24".into())),
            ("127.0.0.1:443", CaptureVerdict::Passed("it is an address of this machine".into())),
            ("169.254.1.1:443", CaptureVerdict::Passed("it is a link-local address".into())),
            ("224.0.0.1:443", CaptureVerdict::Passed("it is a multicast address".into())),
        ] {
            assert_eq!(fate(capture, target, Network::Tcp), want, "{target}");
        }
        let only = "[capture]\ninclude-address = \"192.0.2.0/24\"\nmode = \"redirect\"\nipv6 = false";
        assert!(matches!(fate(only, "192.0.2.9:443", Network::Tcp), CaptureVerdict::Captured(_)));
        let passed = |why: &str| CaptureVerdict::Passed(why.to_owned());
        assert_eq!(
            fate(only, "198.51.100.1:1", Network::Tcp),
            passed("capture.include-address does not have it")
        );
        assert_eq!(fate(only, "192.0.2.9:443", Network::Udp), passed("mode redirect leaves UDP alone"));
        let tun = "[capture]\nmode = \"tun\"";
        let captured =
            CaptureVerdict::Captured("by tun, for outbound home unless a rule says otherwise".into());
        assert_eq!(fate(tun, "192.0.2.9:443", Network::Tcp), captured);
        assert_eq!(fate(tun, "192.0.2.9:443", Network::Udp), captured);
        assert_eq!(fate(only, "[2001:db8::1]:443", Network::Tcp), passed("capture.ipv6 is off"));
    }
}
