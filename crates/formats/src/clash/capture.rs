//! `tun`: the traffic of the whole machine.
//!
//! | key of `tun` | default | becomes |
//! |---|---|---|
//! | `enable` | `false` | an inbound of protocol tun, and with `auto-route` `[capture]` |
//! | `device` | `Meta` | name of the interface |
//! | `mtu` | 9000 | its largest packet |
//! | `auto-route` | `true` | `[capture]`; without it the routes are yours |
//! | `auto-redirect` | `false` | `mode = "auto"` in the place of `"tun"`: TCP by redirect |
//! | `strict-route` | `false` | `strict` |
//! | `dns-hijack` | `0.0.0.0:53` | questions to port 53 of any server; an empty list hijacks none |
//! | `inet6-address` | | IPv6 of the interface |
//! | `exclude-uid`, `exclude-uid-range`, `include-uid`, `include-uid-range` | none | users |
//! | `exclude-interface`, `include-interface` | none | interfaces that traffic comes in by; `lo` is this machine's own |
//! | `route-exclude-address`, `route-address`, `inet4-route-address` and so on | none | targets |
//! | `udp-timeout` | 300 | seconds until a quiet flow is forgotten |
//! | `stack`, `gso`, `gso-max-size`, `auto-detect-interface`, `endpoint-independent-nat`, `iproute2-table-index`, `iproute2-rule-index` | | numbers of tables and rules; the others change nothing here |
//!
//! Traffic that the machine forwards is captured from all interfaces, as there, but for what stays between networks that it has
//! routes for.
//!
//! The interface's IPv4 address is the first of the range of fake addresses, as there.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_model::rule::{AddressRange, Cidr};
use adit_model::{
    Capture, CaptureMode, DnsInbound, Inbound, InboundProtocol, Owner, SocketOptions, Tun, TunAddress,
    TunPrefix,
};

use super::{ClashSetup, Context, proxy, tables};
use crate::read::json::JsonValue;
use crate::read::kinds;
use crate::read::value;
use crate::read::yaml_access;

const DEVICE: &str = "Meta";
const MTU: u16 = 9000;
/// Bits of the prefix of the interface's IPv4 address.
const PREFIX: u8 = 30;

/// Reads the section, if it is switched on.
pub(crate) fn read(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let Some(value) = yaml_access::get(root, "tun").filter(|value| yaml_access::is_on(value, "enable"))
    else {
        return;
    };
    let tun = interface(context, value, setup);
    let inbound = |name: &str, listen, protocol| Inbound {
        name: name.into(),
        listen,
        socket: SocketOptions::default(),
        outbound: proxy::DIRECT.into(),
        allow_private: true,
        protocol,
    };
    setup.config.inbounds.push(inbound("DEFAULT-TUN", Vec::new(), InboundProtocol::Tun(tun)));
    let is_captured = !yaml_access::is_off(value, "auto-route");
    let capture = capture(context, value);
    if is_captured {
        // mihomo answers what it hijacks by itself, without a port.
        let has_port =
            setup.config.inbounds.iter().any(|inbound| matches!(inbound.protocol, InboundProtocol::Dns(_)));
        let has_dns = yaml_access::get(root, "dns").is_some_and(|dns| yaml_access::is_on(dns, "enable"));
        if capture.dns_hijack && has_dns && !has_port {
            let ipv6 = setup.config.dns.fake.as_ref().is_none_or(|fake| fake.v6.is_some());
            // By the interface, questions come of those alone whose traffic is captured.
            let every = || ["0.0.0.0/0", "::/0"].into_iter().filter_map(Cidr::parse).collect();
            let allow = match (capture.lan.is_empty(), capture.mode) {
                (true, _) => Vec::new(),
                (false, CaptureMode::Tun) => every(),
                (false, _) => DnsInbound::private_networks(),
            };
            let server = DnsInbound { ipv6, allow, ..DnsInbound::default() };
            let listen = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))];
            setup.config.inbounds.push(inbound("DEFAULT-DNS", listen, InboundProtocol::Dns(server)));
        }
        setup.config.capture = Some(capture);
    }
    for member in yaml_access::members(value) {
        let is_said = yaml_access::text(&member.value)
            .is_some_and(|text| !text.is_empty() && text != "false")
            || !yaml_access::items(&member.value).is_empty()
            || !yaml_access::members(&member.value).is_empty();
        if is_said && kinds::find(tables::TUN, &member.key).is_none() {
            let problem = "adit cannot obey it yet, and traffic would take another way without it";
            context.refuse(member.at, format!("tun.{}", member.key), problem);
        }
    }
}

fn interface(context: &mut Context<'_>, value: &JsonValue, setup: &ClashSetup) -> Tun {
    let name = yaml_access::text_of(value, "device").filter(|name| !name.is_empty()).unwrap_or(DEVICE);
    let name = value::interface(name).unwrap_or_else(|problem| {
        context.error(yaml_access::at(value, "device"), "tun.device", problem.text);
        DEVICE.into()
    });
    let number = |key| yaml_access::text_of(value, key).map(|text| text.parse::<u16>().ok());
    let mtu = match number("mtu") {
        None | Some(Some(0)) => MTU,
        Some(Some(mtu)) if mtu >= Tun::MIN_MTU => mtu,
        Some(_) => {
            let problem = format!("no size from {} to 65535", Tun::MIN_MTU);
            context.error(yaml_access::at(value, "mtu"), "tun.mtu", problem);
            MTU
        }
    };
    let udp_idle = number("udp-timeout");
    if udp_idle == Some(None) {
        context.error(
            yaml_access::at(value, "udp-timeout"),
            "tun.udp-timeout",
            "no number of seconds up to 65535",
        );
    }
    let udp_idle = udp_idle.flatten().filter(|seconds| *seconds > 0);
    let mut tun = Tun {
        name,
        mtu,
        udp_idle: udp_idle.map(|seconds| Duration::from_secs(seconds.into())),
        ..Tun::default()
    };
    if let Some(AddressRange::V4(first, _)) =
        setup.config.dns.fake.as_ref().map(|fake| fake.v4.network().range())
    {
        tun.v4 = TunAddress::<Ipv4Addr>::new(Ipv4Addr::from_bits(first + 1), PREFIX).ok().or(tun.v4);
    }
    for (text, at) in yaml_access::texts_of(value, "inet6-address") {
        match text.parse::<TunPrefix>() {
            Ok(TunPrefix::V6(v6)) => tun.v6 = Some(v6),
            _ => context.error(at, "tun.inet6-address", "no address of IPv6 with a prefix"),
        }
    }
    tun
}

fn capture(context: &mut Context<'_>, value: &JsonValue) -> Capture {
    let mut capture = Capture::new(proxy::DIRECT.into());
    capture.mode =
        if yaml_access::is_on(value, "auto-redirect") { CaptureMode::Auto } else { CaptureMode::Tun };
    capture.strict = yaml_access::is_on(value, "strict-route");
    capture.dns_hijack = hijacks(context, value);
    let mut number = |key, range: std::ops::RangeInclusive<u32>, default| {
        // 0 is none there.
        let Some(text) = yaml_access::text_of(value, key).filter(|text| *text != "0") else { return default };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.unwrap_or_else(|| {
            let problem = format!("no number from {} to {}: {default} is used", range.start(), range.end());
            context.remark(yaml_access::at(value, key), format!("tun.{key}"), problem, "");
            default
        })
    };
    capture.table = number("iproute2-table-index", 256..=u32::MAX, Capture::TABLE);
    capture.priority = number("iproute2-rule-index", 10..=32_000, Capture::PRIORITY);
    for (keys, to) in [
        (["exclude-uid", "exclude-uid-range"], &mut capture.exclude.users),
        (["include-uid", "include-uid-range"], &mut capture.include.users),
    ] {
        for key in keys {
            for (text, at) in yaml_access::texts_of(value, key) {
                // A range has a colon there.
                match Owner::parse(&text.replace(':', "-")) {
                    Some(owner @ Owner::Numbers(..)) => to.push(owner),
                    _ => context.error(at, format!("tun.{key}"), "neither a number nor a range"),
                }
            }
        }
    }
    interfaces(context, value, &mut capture);
    for (keys, to) in [
        (
            ["route-exclude-address", "inet4-route-exclude-address", "inet6-route-exclude-address"],
            &mut capture.exclude.addresses,
        ),
        (["route-address", "inet4-route-address", "inet6-route-address"], &mut capture.include.addresses),
    ] {
        for key in keys {
            for (text, at) in yaml_access::texts_of(value, key) {
                match Cidr::parse(text) {
                    Some(cidr) => to.push(cidr),
                    None => context.error(at, format!("tun.{key}"), "neither an address nor a network"),
                }
            }
        }
    }
    capture
}

/// The interfaces by which captured traffic comes in; the loopback stands for this machine's own programs. Rules of routing
/// and chains of the firewall look at the same (sing-tun, February 2025).
fn interfaces(context: &mut Context<'_>, value: &JsonValue, capture: &mut Capture) {
    let mut read = |key: &'static str| -> Vec<Box<str>> {
        let mut names = Vec::new();
        for (text, at) in yaml_access::texts_of(value, key) {
            match value::interface(text) {
                Ok(name) => names.push(name),
                Err(problem) => context.error(at, format!("tun.{key}"), problem.text),
            }
        }
        names
    };
    let (mut included, mut excluded) = (read("include-interface"), read("exclude-interface"));
    let has_lo = |names: &mut Vec<Box<str>>| {
        let before = names.len();
        names.retain(|name| **name != *"lo");
        names.len() < before
    };
    if !included.is_empty() {
        if !excluded.is_empty() {
            let problem = "not obeyed beside include-interface, as in mihomo";
            let at = yaml_access::at(value, "exclude-interface");
            context.remark(at, "tun.exclude-interface", problem, "leave it out");
        }
        capture.local = has_lo(&mut included);
        capture.lan = included;
        return;
    }
    capture.local = !has_lo(&mut excluded);
    capture.lan = vec![Capture::ANY_LAN.into()];
    capture.lan_exclude = excluded;
}

/// Whether questions to any server are hijacked. Entries name an address and a port, of which port 53 is known here.
fn hijacks(context: &mut Context<'_>, value: &JsonValue) -> bool {
    if yaml_access::get(value, "dns-hijack").is_none() {
        return true;
    }
    let entries = yaml_access::texts_of(value, "dns-hijack");
    for (text, at) in &entries {
        let plain = text.split_once("://").map_or(*text, |(_, rest)| rest);
        let is_any = plain
            .rsplit_once(':')
            .is_some_and(|(host, port)| port == "53" && ["any", "0.0.0.0", "[::]"].contains(&host));
        if !is_any {
            let problem = "not obeyed as it is: questions to port 53 of any server are hijacked";
            context.remark(*at, "tun.dns-hijack", problem, "write any:53");
        }
    }

    !entries.is_empty()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{ClashSetup, load};
    use super::*;

    fn setup(tun: &str, dns: &str) -> ClashSetup {
        let text = format!("mixed-port: 7890\nrules: [\"MATCH,DIRECT\"]\ndns: {dns}\ntun: {tun}\n");
        load("config.yaml", &text, Path::new("/of/mihomo")).unwrap_or_else(|found| panic!("{found}"))
    }

    fn interface(setup: &ClashSetup) -> Tun {
        let mut tuns = setup.config.inbounds.iter().filter_map(|inbound| {
            let InboundProtocol::Tun(tun) = &inbound.protocol else { return None };
            Some(tun.clone())
        });
        tuns.next().unwrap()
    }

    #[test]
    fn the_usual_section_captures() {
        let dns = "{enable: true, enhanced-mode: fake-ip, fake-ip-range: 198.18.0.1/16}";
        let setup = setup(
            "{enable: true, stack: mixed, auto-route: true, auto-detect-interface: true, dns-hijack: ['any:53', 'tcp://any:53']}",
            dns,
        );
        assert!(
            setup.refused.is_empty() && setup.diagnostics.is_empty(),
            "{}{}",
            setup.refused,
            setup.diagnostics
        );
        let tun = interface(&setup);
        assert_eq!((&*tun.name, tun.mtu, tun.v4.unwrap().address()), ("Meta", 9000, [198, 18, 0, 1].into()));
        let capture = setup.config.capture.as_ref().unwrap();
        assert_eq!((capture.mode, capture.strict, capture.dns_hijack), (CaptureMode::Tun, false, true));
        let is_dns = |inbound: &&Inbound| matches!(inbound.protocol, InboundProtocol::Dns(_));
        assert_eq!(setup.config.inbounds.iter().filter(is_dns).count(), 1, "what is hijacked is answered");
    }

    #[test]
    fn keys_have_their_effects() {
        let found = setup(
            "{enable: true, device: utun9, mtu: 1500, auto-redirect: true, strict-route: true, dns-hijack: [], \
             exclude-uid: [1000], exclude-uid-range: ['2000:2999'], exclude-interface: wg0, udp-timeout: 60, \
             route-exclude-address: [192.0.2.0/24], inet4-route-address: [203.0.113.0/24], \
             iproute2-table-index: 3000, inet6-address: ['fd07::1/126']}",
            "{enable: false}",
        );
        assert!(found.refused.is_empty(), "{}", found.refused);
        let tun = interface(&found);
        assert_eq!((&*tun.name, tun.mtu, tun.udp_idle), ("utun9", 1500, Some(Duration::from_secs(60))));
        assert_eq!(tun.v6.unwrap().address(), "fd07::1".parse::<std::net::Ipv6Addr>().unwrap());
        let capture = found.config.capture.unwrap();
        assert_eq!((capture.mode, capture.strict, capture.dns_hijack), (CaptureMode::Auto, true, false));
        assert_eq!(capture.exclude.users, [Owner::Numbers(1000, 1000), Owner::Numbers(2000, 2999)]);
        assert_eq!((capture.exclude.addresses.len(), capture.include.addresses.len()), (1, 1));
        assert_eq!((capture.table, &*capture.lan_exclude[0]), (3000, "wg0"));
        let own = setup("{enable: true, auto-route: false}", "{}");
        assert!(own.config.capture.is_none(), "the routes are the user's");
        let off = setup("{enable: false, include-package: [x]}", "{}");
        assert!(off.config.inbounds.len() == 1 && off.refused.is_empty());
        let foreign = setup("{enable: true, include-package: [x]}", "{}");
        assert!(foreign.refused.to_string().contains("tun.include-package: adit cannot obey it"));
    }

    #[test]
    fn forwarded_traffic_is_captured_by_the_interface_that_it_comes_from() {
        let capture = |tun: &str| setup(&format!("{{enable: true{tun}}}"), "{}").config.capture.unwrap();
        for (tun, lan, except, local) in [
            ("", &["*"][..], &[][..], true),
            (", exclude-interface: [br9, wg0]", &["*"], &["br9", "wg0"], true),
            (", exclude-interface: lo", &["*"], &[], false),
            (", include-interface: [br0]", &["br0"], &[], false),
            (", include-interface: [br0, lo]", &["br0"], &[], true),
            (", include-interface: lo, exclude-interface: br0", &[], &[], true),
            (", auto-redirect: true, include-interface: [br0]", &["br0"], &[], false),
        ] {
            let capture = capture(tun);
            let names = |names: &[Box<str>]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
            assert_eq!(names(&capture.lan), lan, "{tun}");
            assert_eq!(
                (names(&capture.lan_exclude), capture.local),
                (except.iter().map(ToString::to_string).collect(), local),
                "{tun}"
            );
            assert!(capture.exclude.interfaces.is_empty() && capture.include.interfaces.is_empty());
        }
    }

    #[test]
    fn bad_values_are_named() {
        for (tun, want) in [
            ("mtu: 900", "tun.mtu: no size"),
            ("device: a/b", "tun.device"),
            ("exclude-uid: [x]", "tun.exclude-uid: neither"),
            ("route-address: [x]", "tun.route-address: neither"),
            ("inet6-address: ['10.0.0.1/30']", "tun.inet6-address: no address of IPv6"),
        ] {
            let text = format!("mixed-port: 1\ntun: {{enable: true, {tun}}}\n");
            let found = load("config.yaml", &text, Path::new("/of/mihomo")).unwrap_err().to_string();
            assert!(found.contains(want), "{tun}: {found}");
        }
    }
}
