//! Keys below the top, and rematches.

use std::path::Path;

use adit_model::rule::{Fact, FindProgram, Rule, UidRange, Verdict};
use adit_model::{OutboundProtocol, Refusal};

use super::*;

fn read(text: &str) -> ClashSetup {
    load("config.yaml", text, Path::new("/nonexistent")).unwrap()
}

/// Every key that is not read is named with its place, or stops the start.
#[test]
fn keys_below_the_top() {
    let text = "\
proxies:
- {name: a, type: ss, server: 192.0.2.1, port: 1, cipher: aes-128-gcm, password: x, skip-cert-verify: true, what: 1}
- {name: b, type: http, server: 192.0.2.1, port: 1, what: 2}
- {name: c, type: http, server: 192.0.2.1, port: 1, certificate: x}
- {name: d, type: ss, server: 192.0.2.1, port: 1, cipher: aes-128-gcm, password: x, udp-over-tcp: true}
proxy-groups:
- {name: G, type: select, proxies: [a], collectdata: true}
- {name: H, type: select, proxies: [a], routing-mark: 7}
rule-providers:
  r: {type: inline, behavior: domain, payload: [a.test], path-in-bundle: x}
proxy-providers:
  p: {type: inline, payload: [], age-secret-key: x, health-check: {enable: true, typo: 1}}
listeners:
- {name: l, type: socks, port: 1, udp: false}
- {name: m, type: socks, port: 2, udp: true}
profile: {store-selected: true, smart-collector-size: 5}
";
    let setup = read(text);
    let found = setup.diagnostics.to_string();
    for want in [
        "config.yaml:2:3: ",
        "proxies.skip-cert-verify: left out of 1 entry: type ss has no such key, in mihomo neither",
        "proxies.what: left out of 1 entry: type http",
        "config.yaml:7:41: warning: proxy-groups[0].collectdata: left out",
        "config.yaml:8:41: warning: proxy-groups[1].routing-mark: left out",
        "rule-providers.r.path-in-bundle: left out",
        "proxy-providers.p.age-secret-key: left out",
        "proxy-providers.p.health-check.typo: left out",
        "listeners[0].udp: left out",
        "profile.smart-collector-size: left out",
    ] {
        assert!(found.contains(want), "{want}\n{found}");
    }
    assert!(!found.contains("listeners[1]"), "{found}");
    assert!(setup.refused.is_empty(), "{}", setup.refused);
    let is_dead = |name: &str| {
        let outbound = setup.config.outbound(name).unwrap();
        matches!(outbound.protocol, OutboundProtocol::Refuse(Refusal::Dead { .. }))
    };
    // An entry with a key that nobody knows lives; one with a key that adit cannot obey does not.
    assert_eq!(["a", "b", "c", "d"].map(is_dead), [false, false, true, true]);
}

/// Tunnels, the listeners of firewalls, and those that are servers.
#[test]
fn tunnels_and_servers() {
    let text = "\
proxies: [{name: p, type: socks5, server: 192.0.2.1, port: 1}]
tunnels:
- tcp/udp,127.0.0.1:6553,192.0.2.53:53,p
- {network: [udp], address: ':6554', target: 'a.test:1'}
listeners:
- {name: r, type: redir, port: 1}
- {name: t, type: tproxy, port: 2, udp: false}
- {name: s, type: shadowsocks, port: 3, cipher: aes-128-gcm, password: x}
- {name: n, type: snell, port: 4, psk: 0123456789abcdef, obfs-opts: {mode: http}}
- {name: c, type: shadowsocks, port: 5, cipher: aes-128-gcm, password: x, shadow-tls: {enable: true}}
ss-config: 'ss://aes-128-gcm:pw@:8388'
";
    let setup = read(text);
    assert!(setup.refused.is_empty(), "{}", setup.refused);
    let found = setup.diagnostics.to_string();
    assert!(
        found.contains("config.yaml:10:87: ") && found.contains("does not listen with shadow-tls"),
        "{found}"
    );
    assert_eq!(found.lines().count(), 1, "{found}");
    let inbounds = &setup.config.inbounds;
    let kinds: Vec<(&str, &str)> =
        inbounds.iter().map(|inbound| (&*inbound.name, inbound.protocol.entry())).collect();
    let want = [
        ("r", "Redir"),
        ("t", "TProxy"),
        ("s", "ShadowSocks"),
        ("n", "Snell"),
        ("tunnel-0", "Tunnel"),
        ("tunnel-1", "Tunnel"),
        ("DEFAULT-SHADOWSOCKS", "ShadowSocks"),
    ];
    assert_eq!(kinds, want);
    assert_eq!((&*inbounds[4].outbound, inbounds[5].listen[0].to_string()), ("p", "[::]:6554".to_owned()));
    // A tunnel with a proxy asks no rules.
    let Matcher::Inbound(first) = &setup.config.rules[0].matcher else { panic!() };
    assert_eq!((&*first[0], &setup.config.rules[0].verdict), ("tunnel-0", &Verdict::Default));
    for (bad, want) in [
        ("tunnels: ['tcp,127.0.0.1:1,192.0.2.1:1,none']", "proxy [none] not found"),
        ("tunnels: ['sctp,127.0.0.1:1,192.0.2.1:1']", "network of a tunnel"),
        ("tunnels: ['tcp,127.0.0.1,192.0.2.1:1']", "no address with a port"),
        ("tunnels: ['tcp,127.0.0.1:1']", "a tunnel is"),
        ("listeners: [{name: a, type: shadowsocks, port: 1, cipher: x, password: y}]", "unknown cipher: x"),
        ("listeners: [{name: a, type: snell, port: 1, psk: 0123456789abcdef, version: 6}]", "from 1 to 5"),
        ("ss-config: 'ss://x'", "expected ss://"),
    ] {
        let found = load("config.yaml", bad, Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(found.contains(want) && found.contains("config.yaml:1:"), "{bad}: {found}");
    }
}

/// Rules about programs, and when these are sought.
#[test]
fn programs() {
    let rules = "rules: ['PROCESS-NAME,curl,DIRECT', 'UID,0/1000-1001,DIRECT', 'IN-PORT,1,DIRECT', 'IN-TYPE,SOCKS,DIRECT']";
    let setup = read(rules);
    assert!(setup.refused.is_empty() && setup.diagnostics.is_empty(), "{}", setup.refused);
    assert_eq!(setup.config.find_program, FindProgram::ByRules);
    let uid = Fact::Uid(vec![UidRange { first: 1000, last: 1001 }]);
    assert_eq!(setup.config.rules[1].matcher, Matcher::Fact(uid));
    assert_eq!(read("find-process-mode: 'OFF'").config.find_program, FindProgram::Never);
    let found = load("t.yaml", "find-process-mode: x", Path::new("/nonexistent")).unwrap_err().to_string();
    assert!(found.contains("t.yaml:1:"), "{found}");
}

/// Keys that do not change the way are named together.
#[test]
fn keys_without_effect() {
    let text = "tcp-concurrent: true\nkeep-alive-interval: 0\ngeodata-loader: standard\n\
                dns: {enable: true, nameserver: ['https://192.0.2.1/q#h3=true'], prefer-h3: true}\n";
    let found = read(text).diagnostics.to_string();
    let want = "t.yaml:1:1: warning: left out, since they do not change the way of traffic: tcp-concurrent (1:1), \
                geodata-loader (3:1), dns.prefer-h3 (4:66), h3=true of dns.nameserver (4:34)";
    assert!(found.contains(&want[6..]), "{found}");
    assert_eq!(found.lines().count(), 1, "{found}");
    assert!(read("mode: rule\nrules: ['MATCH,DIRECT']\n").diagnostics.is_empty());
}

/// Databases are fetched where the file says so, from where it says.
#[test]
fn databases_that_are_fetched() {
    let rules = "rules: ['GEOSITE,cn,DIRECT', 'GEOSITE,ads,DIRECT', 'IP-ASN,7,DIRECT', 'GEOIP,de,DIRECT']\n";
    let fetched = |keys: &str| {
        let setup = read(&format!("{keys}{rules}"));
        let fetched = setup.missing.iter().map(|missing| {
            let download = missing.provider.download().unwrap();
            let hours = download.interval.map(|interval| interval.as_secs() / 3600);
            (missing.provider.name.to_string(), download.url.expose().to_owned(), hours)
        });
        (fetched.collect::<Vec<_>>(), setup)
    };
    let (all, setup) = fetched("geox-url: {geosite: 'https://u:p@a.test/x', mmdb: 'http://b.test/'}\n");
    let default = "https://github.com/MetaCubeX/meta-rules-dat/releases/download/latest/GeoLite2-ASN.mmdb";
    let want =
        [("GeoSite.dat", "https://a.test/x"), ("geoip.metadb", "http://b.test/"), ("ASN.mmdb", default)];
    assert_eq!(all, want.map(|(name, url)| (name.to_owned(), url.to_owned(), None)));
    let headers = &setup.missing[0].provider.download().unwrap().headers;
    assert!(headers.iter().any(|(name, value)| &**name == "Authorization" && value.expose() == "Basic dTpw"));
    let found = setup.run().unwrap_err().to_string();
    assert!(
        found.contains("config.yaml:2:9: rules[0]: GEOSITE rules need GeoSite.dat in /nonexistent"),
        "{found}"
    );
    let (all, setup) = fetched("geo-auto-update: true\ngeo-update-interval: 6\ngeodata-mode: true\n");
    assert_eq!((all[1].0.as_str(), all[1].2), ("GeoIP.dat", Some(6)));
    assert!(setup.look().is_ok());
    for (keys, wants) in [
        ("", "t.yaml:1:9: rules[0]: GEOSITE rules need"),
        ("", "t.yaml:1:52: rules[2]: IP-ASN rules need"),
        ("geo-auto-update: false\n", "t.yaml:2:9: rules[0]: GEOSITE rules need"),
        ("geox-url: {}\n", "t.yaml:2:9: rules[0]: GEOSITE rules need"),
        ("geox-url: {geosite: 'ftp://a.test/x'}\n", "t.yaml:1:12: geox-url.geosite: url: "),
        (
            "geo-auto-update: true\ngeo-update-interval: 0\n",
            "geo-update-interval: expected a number of hours",
        ),
    ] {
        let found = load("t.yaml", &format!("{keys}{rules}"), Path::new("/nonexistent")).unwrap_err();
        assert!(found.to_string().contains(wants), "{wants}: {found}");
    }
    // Without a rule that needs one nothing is fetched.
    assert!(read("geo-auto-update: true\nrules: ['MATCH,DIRECT']\n").config.providers.is_empty());
}

const REMATCH: &str = "\
mixed-port: 7890
proxies:
- {name: back, type: rematch, target-rematch-name: seen}
- {name: aside, type: rematch, target-sub-rule: list}
sub-rules:
  list:
  - DOMAIN,a.aside.test,REJECT
  - DOMAIN,b.aside.test,PASS-RULE
  - DOMAIN-SUFFIX,aside.test,DIRECT
rules:
- REMATCH-NAME,seen,REJECT
- DOMAIN-SUFFIX,aside.test,aside
- DOMAIN-SUFFIX,back.test,back
- MATCH,DIRECT
";

#[test]
fn rematches_have_their_places() {
    let setup = read(REMATCH);
    assert!(setup.diagnostics.is_empty() && setup.refused.is_empty(), "{}", setup.diagnostics);
    let rules = &setup.config.rules;
    assert_eq!(rules[0].matcher, Matcher::Fact(Fact::Mark(vec!["seen".into()])));
    let again = |rule: &Rule| {
        if let Verdict::Again { at, mark } = &rule.verdict { Some((*at, mark.clone())) } else { None }
    };
    let again: Vec<(u32, Option<Box<str>>)> = rules.iter().filter_map(again).collect();
    // The list lies behind the main rules and the end of them.
    assert_eq!(again, [(5, None), (0, Some("seen".into()))]);
    assert_eq!(
        (rules.len(), &rules[4].verdict, &rules[8].verdict),
        (9, &Verdict::Default, &Verdict::Default)
    );
    assert_eq!(setup.origins.len(), rules.len());
    let text = REMATCH.replace("target-sub-rule: list", "target-sub-rule: none");
    let found = load("config.yaml", &text, Path::new("/nonexistent")).unwrap_err().to_string();
    assert!(found.contains("rules[1]: sub-rule [none] not found"), "{found}");
}

#[test]
fn a_rematch_in_a_group_is_dead() {
    let setup = read(&format!("{REMATCH}proxy-groups:\n- {{name: G, type: select, proxies: [back]}}\n"));
    let protocol = &setup.config.outbound("back").unwrap().protocol;
    let OutboundProtocol::Refuse(Refusal::Dead { why, .. }) = protocol else { panic!("{protocol:?}") };
    assert!(why.contains("the target of a rule"), "{why}");
}

/// `PASS` leaves a list of sub-rules; `PASS-RULE` goes on with the next rule of it.
#[test]
fn passing_within_a_list() {
    let text = "\
sub-rules:
  l:
  - DOMAIN,a.test,PASS
  - DOMAIN,a.test,PASS-RULE
  - DOMAIN,a.test,REJECT
rules:
- SUB-RULE,(NETWORK,tcp),l
- MATCH,DIRECT
";
    let rules = read(text).config.rules;
    let verdicts: Vec<&Verdict> = rules.iter().map(|rule| &rule.verdict).collect();
    assert_eq!(verdicts[1..3], [&Verdict::Pass(2), &Verdict::Pass(0)]);
}

/// A file and a document of mihomo may be longer than what a person writes.
#[test]
fn long_files() {
    let rules: String =
        (0..60_000).map(|n| format!("- DOMAIN-SUFFIX,name-{n}.example.test,DIRECT\n")).collect();
    let text = format!("rules:\n{rules}");
    assert!(text.len() > 2 << 20);
    assert_eq!(read(&text).config.rules.len(), 60_000);
}
