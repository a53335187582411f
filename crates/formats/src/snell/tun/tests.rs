//! The section beside the specification of OpenSnell's alpha branch.

use adit_model::CaptureMode;
use adit_model::rule::RejectMethod;

use super::super::{SnellProgram, parse, parse_with};
use super::*;
use crate::adit_toml;

const CLIENT_SECTION: &str = "[snell-client]\nserver = s.example:6160\npsk = 0123456789abcdef\n";

fn load(client: &str, tun: &str) -> Result<Config, String> {
    let text = format!("{CLIENT_SECTION}{client}[snell-tun]\n{tun}");
    let loaded = parse(SnellProgram::Client, None, "t.conf", &text).map_err(|found| found.to_string())?;
    let mut found = loaded.diagnostics.iter();
    assert!(found.all(|finding| finding.problem.starts_with("empty")), "{}", loaded.diagnostics);
    Ok(loaded.config)
}

fn interface(config: &Config) -> &Tun {
    let mut tuns = config.inbounds.iter().filter_map(|inbound| {
        let InboundProtocol::Tun(tun) = &inbound.protocol else { return None };
        Some(tun)
    });
    tuns.next().expect("there is an interface")
}

#[test]
fn defaults_are_those_of_the_program() {
    assert_eq!(load("", "mtu = 1400\nenable = false\n").unwrap().capture, None);
    let config = load("", "enable = true\n").unwrap();
    let capture = config.capture.clone().unwrap();
    assert_eq!(capture, Capture::new("snell".into()));
    assert_eq!(capture.mode, CaptureMode::Auto);
    let tun = interface(&config);
    let v4 = tun.v4.unwrap();
    assert_eq!(
        (&*tun.name, tun.mtu, v4.address(), v4.prefix()),
        ("snell0", 9000, [198, 18, 128, 1].into(), 17)
    );
    let fake = config.dns.fake.as_ref().unwrap();
    assert_eq!((fake.v4.to_string().as_str(), fake.v6, fake.ttl.as_secs()), ("198.18.128.0/17", None, 60));
    let group = config.outbound("ipv6").unwrap();
    let OutboundProtocol::Choice(choice) = &group.protocol else { panic!("{group:?}") };
    assert_eq!(&*choice.test.url, "http://[2606:4700:4700::1111]:443/");
    assert_eq!(choice.test.interval, Some(Duration::from_secs(300)));
    assert_eq!(config.rules.len(), 1);
    assert_eq!(config.rules[0].verdict, Verdict::Outbound("ipv6".into()));
    // The local port is there, and may be switched off.
    assert!(config.inbounds.iter().any(|inbound| &*inbound.name == "local"));
    for off in ["listen =\n", "listen = OFF\n", "listen = none\n", "listen = disabled \n"] {
        let config = load(off, "enable = 1\n").unwrap();
        assert!(!config.inbounds.iter().any(|inbound| &*inbound.name == "local"), "{off}");
        let error = load(off, "enable = 0\n");
        assert_eq!(error.is_err(), off != "listen =\n", "{off}: {error:?}");
    }
    // The file of this program says the same in adit's own words.
    let again = adit_toml::parse("again.toml", &adit_toml::to_toml(&config));
    assert_eq!(again.map(|again| again.config).as_ref(), Ok(&config));
}

#[test]
fn every_key_has_its_effect() {
    let config = load(
        "",
        "enable = true\ninterface = tun7\nmtu = 1400\nfake-ip-range = 10.9.0.0/24\nexclude-uid = 1000, 65534,nobody\n\
         ipv6 = false\ndirect-ip = 192.0.2.0/24, 203.0.113.7,2001:db8::/32\n\
         direct-domain = .Example.COM., corp.example,example.com\nupstream-dns = 192.0.2.53\nlan = br0, br1\n",
    );
    let config = config.unwrap();
    let tun = interface(&config);
    assert_eq!((&*tun.name, tun.mtu, tun.v4.unwrap().address()), ("tun7", 1400, [10, 9, 0, 1].into()));
    let capture = config.capture.as_ref().unwrap();
    assert_eq!(
        capture.exclude.users,
        [Owner::Numbers(1000, 1000), Owner::Numbers(65534, 65534), Owner::Name("nobody".into())]
    );
    let addresses: Vec<String> = capture.exclude.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.0/24", "203.0.113.7", "2001:db8::/32"]);
    assert_eq!(capture.lan, ["br0".into(), "br1".into()]);
    let domains: Vec<(&str, bool)> =
        config.dns.policy.iter().map(|policy| (&*policy.domain, policy.direct)).collect();
    assert_eq!(domains, [("corp.example", true), ("example.com", true), ("=s.example", false)]);
    assert!(config.dns.is_direct("a.example.com") && !config.dns.is_direct("notexample.com"));
    assert_eq!(config.dns.find_loop(&config.outbounds), None, "the server's name needs no server");
    assert_eq!(config.rules[0].verdict, Verdict::Reject(RejectMethod::Reset));
    let again = adit_toml::parse("again.toml", &adit_toml::to_toml(&config));
    assert_eq!(again.map(|again| again.config).as_ref(), Ok(&config));
    let tested =
        load("", "enable = true\nipv6-probe-target = [2001:db8::1]:80\nipv6-probe-interval = 1m30s\n");
    let tested = tested.unwrap();
    let OutboundProtocol::Choice(choice) = &tested.outbound("ipv6").unwrap().protocol else { panic!() };
    assert_eq!(&*choice.test.url, "http://[2001:db8::1]:80/");
    assert_eq!(choice.test.interval, Some(Duration::from_secs(90)));
}

#[test]
fn bad_values_are_named() {
    for (tun, want) in [
        ("mtu = 900\n", "t.conf:6:1: mtu: no size from 1280 to 65535: 900"),
        ("fake-ip-range = fd00::/64\n", "t.conf:6:1: fake-ip-range: a range of IPv6"),
        ("fake-ip-range = 10.0.0.0/28\n", "t.conf:6:1: fake-ip-range: no prefix"),
        ("exclude-uid = 1-5\n", "t.conf:6:1: exclude-uid: neither a number nor a user: 1-5"),
        ("direct-ip = 192.0.2.0/33\n", "t.conf:6:1: direct-ip: neither an address nor a network"),
        ("direct-domain = a.b\n", "t.conf:6:1: direct-domain: it takes upstream-dns"),
        ("upstream-dns = 1.1.1.1, 1.0.0.1\n", "t.conf:6:1: upstream-dns: more than one"),
        ("ipv6-probe-interval = 5 min\n", "t.conf:6:1: ipv6-probe-interval: bad duration"),
        ("ipv6-probe-target = x\n", "t.conf:6:1: ipv6-probe-target:"),
        ("interface = a/b\n", "t.conf:6:1: interface: no name of an interface"),
    ] {
        let text = format!("{CLIENT_SECTION}[snell-tun]\nenable = yes\n{tun}");
        let found = parse(SnellProgram::Client, None, "t.conf", &text).unwrap_err().to_string();
        assert!(found.starts_with(want), "{want}\n{found}");
        // A section that is off is no error.
        assert!(parse(SnellProgram::Client, None, "t.conf", &text.replace("= yes", "= no")).is_ok(), "{tun}");
    }
    let text = format!("{CLIENT_SECTION}[snell-tun]\nenable = yes\nmut = 5\n");
    let found = parse(SnellProgram::Client, None, "t.conf", &text).unwrap().diagnostics.to_string();
    assert!(
        found.contains("6:1: warning: mut: unknown key, so it has no effect\n  hint: did you mean `mtu`?"),
        "{found}"
    );
}

#[test]
fn the_flag_needs_no_section() {
    let flagged = parse_with(SnellProgram::Client, None, true, "t.conf", CLIENT_SECTION).unwrap();
    assert_eq!(&*interface(&flagged.config).name, "snell0");
    let text = format!("{CLIENT_SECTION}[snell-tun]\nenable = false\ninterface = x\n");
    let flagged = parse_with(SnellProgram::Client, None, true, "t.conf", &text).unwrap();
    assert_eq!(&*interface(&flagged.config).name, "x");
}

#[test]
fn durations_are_those_of_go() {
    for (text, want) in [
        ("30s", Some(30)),
        ("5m", Some(300)),
        ("1h30m", Some(5400)),
        ("1.5m", Some(90)),
        ("300ms", Some(1)),
        ("0", Some(0)),
        ("-5m", Some(0)),
        ("0s", Some(0)),
        ("5", None),
        ("m", None),
        ("5x", None),
        ("", None),
        ("99999999h", None),
        ("1..5s", None),
    ] {
        assert_eq!(go_duration(text).ok().map(|found| found.as_secs()), want, "{text}");
    }
}
