use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash");
const FILE: &str = include_str!("../../../../testdata/clash/config.yaml");

#[test]
fn the_recorded_file() {
    let setup = load("config.yaml", FILE, &Path::new(FOLDER).join("geo")).unwrap();
    assert_eq!(setup.config.inbounds.len(), 9);
    let want: Vec<serde_json::Value> = {
        let text = std::fs::read_to_string(format!("{FOLDER}/decisions.json")).unwrap();
        let all: serde_json::Value = serde_json::from_str(&text).unwrap();
        all["rules"].as_array().unwrap().clone()
    };
    // Each rule of the main list is shown as mihomo shows it; lists of sub-rules by the rules within.
    for rule in &want {
        let index = usize::try_from(rule["index"].as_u64().unwrap()).unwrap();
        let found = setup.origins.iter().flatten().find(|o| o.index == index && o.list.is_none()).unwrap();
        assert_eq!(
            (found.kind, &*found.payload),
            (rule["type"].as_str().unwrap(), rule["payload"].as_str().unwrap(),)
        );
        let target = found.sub_rule.as_deref().unwrap_or(&found.target);
        assert_eq!(target, rule["proxy"].as_str().unwrap());
    }
}

/// A file in a folder of its own, with the lists that it names.
fn setup(config: &str, files: &[(&str, &str)]) -> Result<ClashSetup, Diagnostics> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("adit-clash-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let found = load("config.yaml", config, &folder);
    std::fs::remove_dir_all(folder).unwrap();
    found
}

fn names(setup: &ClashSetup, group: &str) -> Vec<String> {
    let outbound = setup.config.outbound(group).unwrap();
    let model::OutboundProtocol::Choice(choice) = &outbound.protocol else {
        panic!("no group: {outbound:?}")
    };
    choice.members.iter().map(ToString::to_string).collect()
}

fn why_dead(setup: &ClashSetup, name: &str) -> String {
    let protocol = &setup.config.outbound(name).unwrap().protocol;
    let model::OutboundProtocol::Refuse(model::Refusal::Dead { why, .. }) = protocol else {
        panic!("{name} lives: {protocol:?}")
    };
    why.to_string()
}

const PROVIDER: &str = "proxy-providers:\n  p: {type: file, path: list}\n\
    proxy-groups:\n- {name: G, type: select, use: [p]}\n";

/// The same servers in each form of a document, with entries that adit does not speak among them.
#[test]
fn documents_of_providers() {
    use base64::Engine as _;
    let yaml = "proxies:\n- {name: one, type: ss, server: a.test, port: 1, cipher: aes-128-gcm, password: p, udp: true}\n\
        - {name: two, type: socks5, server: a.test, port: 2}\n\
        - {name: far, type: vmess, server: a.test, port: 3}\n- {type: ss}\n- {name: one, type: direct}\n";
    let links = "# comment\nss://YWVzLTEyOC1nY206cA@a.test:1#one\n\nss://YWVzLTEyOC1nY206cA@b.test:1#one\n\
        trojan://secret@a.test:443?x=y#far\nss://bad\nvmess://eyJwcyI6ICLoioLngrkifQ==\n";
    let standard = base64::engine::general_purpose::STANDARD.encode(links);
    let url_safe = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(links);
    let cut: String =
        standard.as_bytes().chunks(76).map(|line| format!("{}\r\n", str::from_utf8(line).unwrap())).collect();
    for (text, wants, foreign) in [
        (yaml, vec!["one", "two", "far"], "adit does not speak vmess"),
        (links, vec!["one", "one-01", "far", "節点"], "adit does not read links of trojan"),
        (&standard, vec!["one", "one-01", "far", "節点"], "adit does not read links of trojan"),
        (&url_safe, vec!["one", "one-01", "far", "節点"], "adit does not read links of trojan"),
        (&cut, vec!["one", "one-01", "far", "節点"], "adit does not read links of trojan"),
    ] {
        let found = setup(PROVIDER, &[("list", text)]).unwrap();
        let wants: Vec<String> = wants.iter().map(|name| name.replace("節点", "节点")).collect();
        assert_eq!(names(&found, "G"), wants, "{text}\n{}", found.diagnostics);
        assert_eq!(why_dead(&found, "far"), foreign);
        let said = found.diagnostics.to_string();
        assert!(said.contains("left out; the first: "), "{said}");
        assert!(found.config.outbound("one").unwrap().sends_datagrams());
        let provider = &found.config.providers[0];
        assert!(provider.has_outbounds() && provider.problem.is_some());
    }
    // Neither a document with nothing in it nor one that is cut keeps the file from starting.
    for text in ["", "proxies:\n", "proxies:\n- {name: one, type: ss, ser", "x: y\n", "<html>", "\u{feff}"] {
        let found = setup(PROVIDER, &[("list", text)]).unwrap();
        assert!(names(&found, "G").is_empty(), "{text}");
        assert!(found.config.providers[0].problem.is_some(), "{text}");
    }
}

/// Every cut and every flipped bit of a document gives an answer.
#[test]
fn damaged_documents() {
    let whole =
        "proxies:\n- {name: one, type: ss, server: a.test, port: 1, cipher: aes-128-gcm, password: p}\n";
    for text in
        [whole, "ss://YWVzLTEyOC1nY206cA@a.test:1#one\n", "c3M6Ly9ZV1Z6TFRFeU9DMW5ZMjA2Y0FAYS50ZXN0OjEjb25l"]
    {
        for end in 0..=text.len() {
            subscription::document("cut", &text[..end], &[]).ok();
        }
        for bit in 0..text.len() * 8 {
            let mut bytes = text.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            subscription::document("flipped", &String::from_utf8_lossy(&bytes), &[]).ok();
        }
        assert_eq!(subscription::document("whole", text, &[]).unwrap().0.len(), 1);
    }
}

/// Many entries of one name cost no more than others.
#[test]
fn a_list_of_one_name() {
    let text = "ss://YWVzLTEyOC1nY206cA@a.test:1#one\n".repeat(25_000);
    let (entries, bad) = subscription::document("many", &text, &[]).unwrap();
    assert_eq!(entries.len(), 20_000);
    assert!(bad.unwrap().contains("more than 20000"));
}

/// A plugin of a list runs only if the file allows its name, and never by a path.
#[test]
fn plugins_of_lists() {
    let link = |plugin: &str| format!("ss://YWVzLTEyOC1nY206cA@a.test:1?plugin={plugin}#one\n");
    let config = |allowed: &str| format!("plugins-allowed: [{allowed}]\n{PROVIDER}");
    let found = |allowed: &str, plugin: &str| setup(&config(allowed), &[("list", &link(plugin))]).unwrap();
    assert!(why_dead(&found("", "v2ray-plugin%3Btls"), "one").contains("plugin v2ray-plugin"));
    assert!(why_dead(&found("x", "v2ray-plugin"), "one").contains("plugins-allowed"));
    assert!(why_dead(&found("'/bin/sh'", "%2Fbin%2Fsh"), "one").contains("plugin"));
    let allowed = found("v2ray-plugin", "v2ray-plugin%3Btls");
    assert!(allowed.config.outbound("one").unwrap().carries_streams());
    let built_in = found("", "obfs-local%3Bobfs%3Dhttp");
    assert!(built_in.config.outbound("one").unwrap().carries_streams());
}

#[test]
fn filters_and_overrides() {
    let list = "proxies:\n- {name: HK 1, type: ss, server: a.test, port: 1, cipher: aes-128-gcm, password: p}\n\
        - {name: JP 1, type: socks5, server: a.test, port: 2, tls: true}\n- {name: HK 2, type: http, server: a.test, port: 3}\n\
        - {name: info, type: direct}\n";
    let file = |keys: &str, group: &str| {
        format!(
            "proxy-providers:\n  p: {{type: file, path: list, {keys}}}\n\
             proxies:\n- {{name: own, type: direct}}\n- {{name: another, type: reject}}\n\
             proxy-groups:\n- {{name: G, type: select, {group}}}\n"
        )
    };
    let members =
        |keys: &str, group: &str| names(&setup(&file(keys, group), &[("list", list)]).unwrap(), "G");
    for (keys, group, want) in [
        ("filter: HK", "use: [p]", vec!["HK 1", "HK 2"]),
        ("exclude-filter: 'info|JP', exclude-type: http", "use: [p]", vec!["HK 1"]),
        ("", "use: [p], filter: 'JP`2$'", vec!["JP 1", "HK 2"]),
        ("", "proxies: [own], use: [p], exclude-filter: HK", vec!["own", "JP 1", "info"]),
        ("", "use: [p], exclude-type: 'Socks5|direct|HTTP'", vec!["HK 1"]),
        ("", "include-all-proxies: true", vec!["another", "own"]),
        ("", "include-all: true, filter: 'o|1'", vec!["another", "own", "HK 1", "JP 1", "info"]),
        (
            "filter: '^HK', override: {additional-prefix: '[p] ', additional-suffix: '!'}",
            "use: [p]",
            vec!["[p] HK 1!", "[p] HK 2!"],
        ),
        (
            "filter: JP, override: {proxy-name: [{pattern: 'JP (.)', target: 'Japan-$1'}]}",
            "use: [p]",
            vec!["Japan-1"],
        ),
        ("filter: nothing", "use: [p]", vec![]),
    ] {
        assert_eq!(members(keys, group), want, "{keys} {group}");
    }
    let over = "filter: '[12]', override: {udp: true, skip-cert-verify: true, dialer-proxy: own, interface-name: lo, routing-mark: 7}";
    let found = setup(&file(over, "use: [p]"), &[("list", list)]).unwrap();
    for name in ["HK 1", "JP 1", "HK 2"] {
        let dial = &found.config.outbound(name).unwrap().dial;
        assert_eq!((dial.through.as_deref(), dial.egress.mark), (Some("own"), Some(7)));
    }
    assert!(found.config.outbound("JP 1").unwrap().says_datagrams());
    assert!(!found.config.outbound("HK 2").unwrap().says_datagrams());
    // A name that is taken is told apart.
    let twice = "proxies:\n- {name: one, type: direct}\nproxy-providers:\n  a: {type: file, path: list}\n  b: {type: file, path: list}\n\
        proxy-groups:\n- {name: G, type: select, use: [a, b]}\n";
    let found = setup(twice, &[("list", "proxies:\n- {name: one, type: direct}\n")]).unwrap();
    assert_eq!(names(&found, "G"), ["one (a)", "one (b)"]);
}

#[test]
fn keys_of_groups() {
    let text = "proxy-groups:\n- {name: S, type: select, proxies: [DIRECT, REJECT], default-selected: REJECT, hidden: true, icon: i}\n\
        - {name: U, type: url-test, proxies: [S, DIRECT], url: 'http://t.test/', interval: 60, tolerance: 50, lazy: false, \
           timeout: 2000, max-failed-times: 2, expected-status: 200/204-206, disable-udp: true}\n\
        - {name: F, type: fallback, proxies: [U]}\n- {name: L, type: load-balance, proxies: [F], strategy: sticky-sessions}\n\
        - {name: E, type: url-test, include-all-providers: true}\n- {name: R, type: relay, proxies: [DIRECT]}\n\
        unified-delay: true\nrules: ['DOMAIN,a.test,S', 'MATCH,U']\n"
        .replace("        unified", "unified").replace("        - ", "- ");
    let found = setup(&text, &[]).unwrap();
    let group = |name: &str| {
        let protocol = &found.config.outbound(name).unwrap().protocol;
        let model::OutboundProtocol::Choice(choice) = protocol else { panic!("{protocol:?}") };
        choice.clone()
    };
    let select = group("S");
    assert_eq!((select.hidden, &*select.icon, select.first().map(|tag| &**tag)), (true, "i", Some("REJECT")));
    assert_eq!(select.test.interval, None);
    let test = group("U");
    assert_eq!(test.policy, model::Policy::UrlTest(std::time::Duration::from_millis(50)));
    assert_eq!(
        (&*test.test.url, test.udp, test.test.lazy, test.test.unified),
        ("http://t.test/", false, false, true)
    );
    assert_eq!((test.test.max_failed, test.test.expected_text()), (2, "200/204-206".to_owned()));
    assert_eq!(test.test.interval, Some(std::time::Duration::from_secs(60)));
    assert_eq!(group("F").test.interval, Some(std::time::Duration::from_secs(300)));
    assert_eq!(group("L").policy, model::Policy::LoadBalance(model::Balance::Sticky));
    assert!(group("E").members.is_empty());
    assert!(why_dead(&found, "R").contains("relay"));
    assert_eq!(names(&found, "GLOBAL"), ["DIRECT", "REJECT", "S", "U", "F", "L", "E", "R"]);
    // Datagrams go on where the group carries none; all goes on where PASS is chosen; an empty group keeps them.
    use adit_model::rule::Network;
    assert!(found.config.passes("U", Network::Udp) && !found.config.passes("U", Network::Tcp));
    assert!(!found.config.passes("S", Network::Udp) && !found.config.passes("E", Network::Udp));
    for (bad, wants) in [
        ("- {name: A, type: smart, proxies: [DIRECT]}", "unsupported group type"),
        ("- {name: A, type: select}", "`use` or `proxies` missing"),
        ("- {name: A, type: select, proxies: [none]}", "'none' not found"),
        ("- {name: A, type: select, use: [none]}", "'none' not found"),
        ("- {name: A, type: load-balance, proxies: [DIRECT], strategy: x}", "unsupported strategy: x"),
        ("- {name: A, type: select, proxies: [DIRECT], filter: '('}", "filter"),
        ("- {name: A, type: url-test, proxies: [DIRECT], expected-status: 70000}", "expected-status"),
        (
            "- {name: A, type: select, proxies: [DIRECT]}\n- {name: A, type: select, proxies: [DIRECT]}",
            "the duplicate name",
        ),
        (
            "- {name: A, type: select, proxies: [B]}\n- {name: B, type: select, proxies: [A]}",
            "loop is detected",
        ),
    ] {
        let found = setup(&format!("proxy-groups:\n{bad}\n"), &[]).unwrap_err().to_string();
        assert!(found.contains(wants), "{bad}: {found}");
    }
}

mod names {
    use super::*;
    use adit_model::{
        AddressFamilies, Dns, DnsInbound, FakeFilter, FakeMode, FakeStore, Inbound, InboundProtocol, Upstream,
    };

    fn setup(text: &str) -> ClashSetup {
        load("config.yaml", text, Path::new("/of/mihomo")).unwrap_or_else(|found| panic!("{found}"))
    }

    /// The service, the port and the refusals of a file with one proxy and these keys in `dns`.
    fn dns(keys: &str) -> (Dns, Option<DnsInbound>, String) {
        let text = format!(
            "proxies:\n- {{name: p, type: ss, server: p.example, port: 1, cipher: aes-128-gcm, password: x}}\n\
             rules: [\"MATCH,DIRECT\"]\nprofile: {{store-fake-ip: true}}\ndns:\n  enable: true\n{keys}"
        );
        let setup = setup(&text);
        let server = |inbound: &Inbound| {
            let InboundProtocol::Dns(server) = &inbound.protocol else { return None };
            Some(server.clone())
        };
        let inbound = setup.config.inbounds.iter().find_map(server);
        (setup.config.dns, inbound, setup.refused.to_string())
    }

    fn shown(servers: &[Arc<Upstream>]) -> Vec<String> {
        servers.iter().map(|server| format!("{} {:?}", server.name, server.through.as_deref())).collect()
    }

    #[test]
    fn every_key_is_read() {
        let (dns, inbound, refused) = dns(
            "  listen: 127.0.0.1:1053\n  enhanced-mode: fake-ip\n  fake-ip-range: 198.18.0.1/15\n\
             \x20 fake-ip-range6: fd00::/64\n  fake-ip-ttl: 5\n  fake-ip-filter-mode: whitelist\n\
             \x20 fake-ip-filter: ['*.lan', +.Example.com]\n  ipv6: true\n  use-hosts: true\n  prefer-h3: false\n\
             \x20 default-nameserver: [192.0.2.1, '192.0.2.2:54']\n\
             \x20 nameserver: [192.0.2.3, 'https://dns.example/dns-query#p', 'tls://192.0.2.4#h3=false']\n\
             \x20 nameserver-policy: {'+.office.test,one.test': [192.0.2.5], 'two.test': 'tcp://192.0.2.6'}\n\
             \x20 proxy-server-nameserver: ['192.0.2.7']\n  direct-nameserver: ['192.0.2.8']\n",
        );
        assert_eq!(refused, "");
        assert_eq!(
            shown(&dns.upstreams),
            ["192.0.2.3 None", "https://dns.example#p Some(\"p\")", "tls://192.0.2.4 None"]
        );
        let bootstrap: Vec<String> = dns.upstreams[1].bootstrap.iter().map(ToString::to_string).collect();
        assert_eq!(bootstrap, ["192.0.2.1:53", "192.0.2.2:54"]);
        let policy: Vec<_> =
            dns.policy.iter().map(|policy| (&*policy.domain, &*policy.upstreams[0].name)).collect();
        assert_eq!(
            policy,
            [
                ("office.test", "192.0.2.5"),
                ("=one.test", "192.0.2.5"),
                ("=two.test", "tcp://192.0.2.6"),
                ("=p.example", "192.0.2.7")
            ]
        );
        let fake = dns.fake.unwrap();
        assert_eq!(
            (fake.v4.to_string(), fake.v6.unwrap().to_string()),
            ("198.18.0.0/15".into(), "fd00::/64".into())
        );
        assert_eq!((fake.ttl.as_secs(), fake.mode), (5, FakeMode::Whitelist));
        assert_eq!(fake.filter, ["*.lan", "+.example.com"].map(|text| FakeFilter::Pattern(text.into())));
        assert_eq!(fake.store, FakeStore::At("/of/mihomo/adit-fake-ip".into()));
        assert!(!dns.reverse_map);
        assert_eq!(inbound, Some(DnsInbound::default()));
    }

    #[test]
    fn defaults_are_those_of_mihomo() {
        let (real, inbound, _) = dns("  listen: 0.0.0.0:1053\n  nameserver: [system]\n");
        assert!(real.reverse_map && real.fake.is_none() && real.upstreams.is_empty(), "redir-host");
        assert_eq!(real.family, AddressFamilies::PreferV4);
        let inbound = inbound.unwrap();
        assert!(!inbound.ipv6 && !inbound.allow.is_empty());
        let (fake, inbound, _) = dns("  enhanced-mode: fake-ip\n");
        let fake = fake.fake.unwrap();
        assert_eq!((fake.v4.to_string(), fake.v6, fake.ttl.as_secs()), ("198.18.0.0/16".into(), None, 1));
        assert_eq!((fake.filter.len(), inbound), (3, None));
        assert!(!dns("  enhanced-mode: normal\n").0.reverse_map);
    }

    /// The service, and what is said about it.
    fn said(keys: &str) -> (Dns, String) {
        let text = format!(
            "proxies:\n- {{name: p, type: ss, server: p.example, port: 1, cipher: aes-128-gcm, password: x}}\n\
             rules: [\"MATCH,DIRECT\"]\ndns:\n  enable: true\n{keys}"
        );
        let setup = setup(&text);
        assert!(setup.refused.is_empty(), "{keys}{}", setup.refused);
        (setup.config.dns, setup.diagnostics.to_string())
    }

    #[test]
    fn servers_of_the_system_stand_in_every_list() {
        let system = "system None";
        for word in ["system", "system://", "System"] {
            let (dns, found) = said(&format!(
                "  nameserver: [192.0.2.1, {word}]\n  fallback: [{word}]\n  fallback-filter: {{geoip: false}}\n\
                 \x20 nameserver-policy: {{+.lan: '{word}', +.far: ['{word}#p', 192.0.2.2]}}\n\
                 \x20 proxy-server-nameserver: ['{word}']\n"
            ));
            assert_eq!(found, "", "{word}");
            assert_eq!(shown(&dns.upstreams), ["192.0.2.1 None", system]);
            assert_eq!(shown(&dns.fallback.unwrap().upstreams), [system]);
            let policy: Vec<_> =
                dns.policy.iter().map(|policy| (&*policy.domain, shown(&policy.upstreams))).collect();
            let far = vec!["system#p Some(\"p\")".to_owned(), "192.0.2.2 None".to_owned()];
            let system = || vec![system.to_owned()];
            assert_eq!(policy, [("lan", system()), ("far", far), ("=p.example", system())]);
            assert!(dns.policy[0].upstreams[0].is_system());
        }
        // Alone it is the list that is not written.
        assert!(said("  nameserver: [system]\n").0.upstreams.is_empty());
        // With respect-rules the rules say how they are reached.
        let (dns, _) =
            said("  respect-rules: true\n  nameserver: [system]\n  proxy-server-nameserver: [system]\n");
        assert_eq!(dns.upstreams[0].by_rules.as_deref(), Some("DIRECT"));
        assert_eq!(
            (shown(&dns.policy[0].upstreams), &dns.policy[0].upstreams[0].by_rules),
            (vec![system.to_owned()], &None)
        );
        let text = "mixed-port: 1\ndns:\n  enable: true\n  nameserver: ['https://dns.example/q']\n  \
                    default-nameserver: [192.0.2.1, system]\n  direct-nameserver: [system]\n";
        let config = setup(text).config;
        let at = |server: &str| model::NameServer::At(server.parse().unwrap());
        assert_eq!(config.dns.upstreams[0].bootstrap, [at("192.0.2.1:53"), model::NameServer::System]);
        assert_eq!(config.outbound("DIRECT").unwrap().dial.dns, [model::NameServer::System]);
        // adit.toml says all of it.
        let loaded = convert_file("c.yaml", text, Path::new("/h")).unwrap();
        assert_eq!(loaded.config.outbound("DIRECT").unwrap().dial.dns, [model::NameServer::System]);
        assert_eq!(loaded.config.dns.upstreams[0].bootstrap.len(), 2);
    }

    #[test]
    fn a_server_that_cannot_be_asked_costs_its_entry() {
        for (keys, want) in [
            ("  nameserver: [192.0.2.9, 'quic://192.0.2.1']\n", "dns.nameserver: left out: not read yet"),
            (
                "  nameserver: [192.0.2.9, '192.0.2.1#none']\n",
                "dns.nameserver: left out: no proxy of this name",
            ),
            (
                "  nameserver: [192.0.2.9, 'https://a.test/q#ecs=192.0.2.0/24']\n",
                "dns.nameserver: left out: not read yet: ecs",
            ),
            ("  nameserver: [192.0.2.9, 'rcode://success']\n", "dns.nameserver: left out: not read yet"),
        ] {
            let (dns, found) = said(keys);
            assert!(found.contains(want) && found.starts_with("config.yaml:6:27: warning"), "{keys}{found}");
            assert_eq!(shown(&dns.upstreams), ["192.0.2.9 None"], "{keys}");
        }
        // Names of an empty list fail: they do not go to other servers.
        for keys in ["nameserver: ['quic://192.0.2.1']", "fallback: ['quic://192.0.2.1']"] {
            let (dns, found) = said(&format!("  fallback-filter: {{geoip: false}}\n  {keys}\n"));
            assert!(found.contains("no server of this list can be asked"), "{keys}: {found}");
            let fallback = dns.fallback.iter().flat_map(|fallback| &fallback.upstreams);
            let all: Vec<_> = dns.upstreams.iter().chain(fallback).cloned().collect();
            assert_eq!(shown(&all), ["refused None"], "{keys}");
        }
        for servers in ["'quic://192.0.2.1'", "[]", "['192.0.2.1#none', 'dhcp://eth0']"] {
            let (dns, found) =
                said(&format!("  nameserver: [192.0.2.9]\n  nameserver-policy:\n    +.lan: {servers}\n"));
            assert!(
                found.contains("config.yaml:8:") && found.contains("names that it is for fail"),
                "{found}"
            );
            assert_eq!(
                (&*dns.policy[0].domain, shown(&dns.policy[0].upstreams)),
                ("lan", vec!["refused None".to_owned()])
            );
        }
        let text = "mixed-port: 1\ndns: {enable: true, direct-nameserver: ['tls://192.0.2.1'], default-nameserver: ['tls://192.0.2.1']}\n";
        let found = setup(text);
        assert_eq!(found.config.outbound("DIRECT").unwrap().dial.dns, [model::NameServer::Refused]);
        for key in ["direct-nameserver", "default-nameserver"] {
            assert!(found.diagnostics.to_string().contains(&format!("dns.{key}: left out: not read yet")));
        }
    }

    #[test]
    fn what_would_change_the_way_is_refused() {
        for (keys, want) in [
            ("  nameserver-policy: {'*.test': 192.0.2.1}\n", "patterns like this are not read yet"),
            ("  nameserver-policy: {'geosite:!cn': 192.0.2.1}\n", "patterns like this are not read yet"),
            ("  nameserver-policy: {'rule-set:none': 192.0.2.1}\n", "rule set [none] not found"),
            (
                "  enhanced-mode: fake-ip\n  fake-ip-filter-mode: rule\n",
                "dns.fake-ip-filter-mode: not read yet",
            ),
            ("  enhanced-mode: fake-ip\n  fake-ip-filter: ['rule-set:none']\n", "rule set [none] not found"),
            (
                "  enhanced-mode: fake-ip\n  fake-ip-filter: ['a*b']\n",
                "dns.fake-ip-filter: no pattern of names",
            ),
        ] {
            let refused = dns(keys).2;
            assert!(refused.contains(want), "{keys}{refused}");
        }
        let text = "rules: []\ndns: {enable: true, enhanced-mode: fake-ip, fake-ip-range: 198.18.0.0/30}\n";
        let found = load("config.yaml", text, Path::new("/")).unwrap_err().to_string();
        assert!(found.contains("dns.fake-ip-range: no network that can be used"), "{found}");
    }
}
