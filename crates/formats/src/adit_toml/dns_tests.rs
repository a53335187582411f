//! Name servers that are found by way of outbounds, in configurations of `adit.toml`.

use std::sync::Arc;

use adit_model::{Dial, Dns, DnsPolicy, DnsTransport, Outbound, OutboundProtocol, Tag, Upstream};

use super::parse;

fn upstream(name: &str, through: Option<&str>) -> Arc<Upstream> {
    let server = "192.0.2.53:53".parse().unwrap();
    let through = through.map(Tag::from);
    let (transport, bootstrap) = (DnsTransport::Udp, Vec::new());
    Arc::new(Upstream { name: name.into(), transport, server, bootstrap, through, by_rules: None })
}
fn outbound(name: &str, carrier_server: &str, dns: bool) -> Outbound {
    let loaded = parse(
        "t",
        &format!(
            "[[inbound]]\nprotocol = \"socks\"\nlisten = \"127.0.0.1:0\"\n[[outbound]]\nname = \"{name}\"\n\
             protocol = \"snell\"\nserver = \"{carrier_server}\"\npsk = \"0123456789abcdef\"\n{}",
            if dns { "dns = \"192.0.2.1\"\n" } else { "" }
        ),
    );
    loaded.unwrap().config.outbounds.remove(0)
}

#[test]
fn loops_are_found() {
    let (a, b) = (outbound("a", "a.test:1", false), outbound("b", "b.test:1", false));
    let all = [a.clone(), b];
    let through = |list: Vec<Arc<Upstream>>| Dns { upstreams: list, ..Dns::default() };
    let dns = through(vec![upstream("u", Some("a"))]);
    let found = dns.find_loop(&all).unwrap();
    assert_eq!((&*found.outbound, &*found.upstream, &*found.host), ("a", "u", "a.test"));

    // Each needs the other.
    let policy = [("a.test", "b"), ("b.test", "a")].map(|(domain, through)| DnsPolicy {
        domain: domain.into(),
        upstreams: vec![upstream(through, Some(through))],
        direct: false,
    });
    let dns = Dns { policy: policy.into(), ..Dns::default() };
    assert!(dns.find_loop(&all).is_some());
    let dns = Dns { policy: vec![dns.policy[0].clone()], ..Dns::default() };
    assert_eq!(dns.find_loop(&all), None, "b is found by the system's name servers");

    let dns = through(vec![upstream("u", Some("a"))]);
    for ready in [outbound("a", "192.0.2.1:1", false), outbound("a", "a.test:1", true)] {
        assert_eq!(dns.find_loop(&[ready]), None);
    }
    let direct = Outbound { name: "a".into(), dial: Dial::default(), protocol: OutboundProtocol::Direct };
    assert_eq!(dns.find_loop(&[direct]), None);
    let hosts = vec![("a.test".into(), vec!["192.0.2.1".parse().unwrap()])];
    assert_eq!(Dns { hosts, ..dns }.find_loop(&[a]), None, "its address is given");
}
