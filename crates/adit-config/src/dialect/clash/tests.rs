use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash");
const FILE: &str = include_str!("../../../../../testdata/clash/config.yaml");

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

mod names {
    use super::*;
    use crate::model::{
        Dns, DnsInbound, FakeFilter, FakeMode, FakeStore, Family, Inbound, InboundProtocol, Upstream,
    };

    fn setup(text: &str) -> Setup {
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
        assert_eq!(real.family, Family::PreferV4);
        let inbound = inbound.unwrap();
        assert!(!inbound.ipv6 && !inbound.allow.is_empty());
        let (fake, inbound, _) = dns("  enhanced-mode: fake-ip\n");
        let fake = fake.fake.unwrap();
        assert_eq!((fake.v4.to_string(), fake.v6, fake.ttl.as_secs()), ("198.18.0.0/16".into(), None, 1));
        assert_eq!((fake.filter.len(), inbound), (3, None));
        assert!(!dns("  enhanced-mode: normal\n").0.reverse_map);
    }

    #[test]
    fn what_would_change_the_way_is_refused() {
        for (keys, want) in [
            ("  fallback: [192.0.2.1]\n", "dns.fallback: adit cannot obey it yet"),
            ("  respect-rules: true\n", "dns.respect-rules: adit cannot obey it yet"),
            ("  nameserver: ['quic://192.0.2.1']\n", "dns.nameserver: not read yet"),
            ("  nameserver: ['192.0.2.1#none']\n", "dns.nameserver: no proxy of this name"),
            ("  nameserver: ['https://a.test/q#h3=true']\n", "dns.nameserver: not read yet: h3"),
            ("  nameserver: ['rcode://success']\n", "dns.nameserver: not read yet"),
            ("  nameserver-policy: {'*.test': 192.0.2.1}\n", "patterns like this are not read yet"),
            ("  nameserver-policy: {'geosite:cn': 192.0.2.1}\n", "patterns like this are not read yet"),
            ("  default-nameserver: ['tls://192.0.2.1']\n", "dns.default-nameserver: not read yet"),
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
