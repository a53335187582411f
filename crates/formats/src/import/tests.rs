use adit_model::rule::{Matcher, SetFormat};
use adit_model::{
    AddressFamilies, ClientCover, Dial, Dns, DnsTransport, NameServer, ObfsClient, OutboundProtocol, Quic,
    SNELL_MODES, Secret, ShadowsocksClient, SnellClient, SnellMode, SnellVersion, Transports,
};
use proptest::prelude::*;

use super::*;
use crate::adit_toml;
use crate::share::{Deployment, share};

fn read(text: &str) -> Vec<Outbound> {
    let loaded = parse(None, "t", text).unwrap_or_else(|found| panic!("{text}\n{found}"));
    assert!(loaded.diagnostics.is_empty(), "{text}\n{}", loaded.diagnostics);
    loaded.config.outbounds
}

fn one(text: &str) -> (String, Dial, SnellClient) {
    let outbound = read(text).remove(0);
    let OutboundProtocol::Snell(client) = outbound.protocol else { panic!("not snell: {text}") };
    (outbound.name.to_string(), outbound.dial, client)
}

fn shadowsocks(text: &str) -> (String, ShadowsocksClient) {
    let outbound = read(text).remove(0);
    let OutboundProtocol::Shadowsocks(client) = outbound.protocol else { panic!("not shadowsocks: {text}") };
    (outbound.name.to_string(), client)
}

fn refused(text: &str) -> String {
    parse(None, "t", text).expect_err(text).to_string()
}

#[test]
fn one_server_in_every_form() {
    for text in [
        "home = snell, 192.0.2.1, 6160, psk=k, version=4, reuse=true, obfs=http, obfs-host=a.b, tfo=true",
        "[General]\n[Proxy]\n# c\nDIRECT = direct\nhome=snell,192.0.2.1,6160,psk=\"k\",version = 4,reuse=true, obfs=http, obfs-host=a.b,tfo=true\n[Rule]\nFINAL,home\n",
        "- name: home\n  type: snell\n  server: 192.0.2.1\n  port: 6160\n  psk: k\n  version: 4\n  udp: true\n  reuse: true\n  obfs-opts: {mode: http, host: a.b}\n  tfo: true\n",
        "mixed-port: 1\nproxies:\n  - {name: home, type: snell, server: 192.0.2.1, port: 6160, psk: k, version: 4, udp: true, reuse: true, obfs-opts: {mode: http, host: a.b}, tfo: true, smux: {enabled: false}}\nrules: &x\n",
        "x: &x {type: snell, port: 6160, psk: k, udp: true}\nproxies:\n- <<: *x\n  name: home\n  server: 192.0.2.1\n  version: 4\n  reuse: true\n  obfs-opts: {mode: http, host: a.b}\n  tfo: true\n",
        "{\"type\":\"snell\",\"tag\":\"home\",\"server\":\"192.0.2.1\",\"server_port\":6160,\"version\":4,\"psk\":\"k\",\"reuse\":true,\"obfs_mode\":\"http\",\"obfs_host\":\"a.b\",\"tcp_fast_open\":true}",
        "{\"log\":{},\"outbounds\":[{\"type\":\"direct\",\"tag\":\"d\"},{\"type\":\"snell\",\"tag\":\"home\",\"server\":\"192.0.2.1\",\"server_port\":6160,\"version\":4,\"psk\":\"k\",\"reuse\":true,\"obfs_mode\":\"http\",\"obfs_host\":\"a.b\",\"tcp_fast_open\":true,\"multiplex\":{}}]}",
        "snell://k@192.0.2.1:6160?version=4&obfs=http&obfs-host=a.b&reuse=1&tfo=1#home",
    ] {
        let (name, dial, client) = one(text);
        assert_eq!(
            (name.as_str(), dial.fast_open, dial.family),
            ("home", true, AddressFamilies::Any),
            "{text}"
        );
        assert_eq!(
            (client.server.to_string().as_str(), client.psk.expose()),
            ("192.0.2.1:6160", "k"),
            "{text}"
        );
        assert_eq!((client.version, client.reuse, client.udp), (SnellVersion::V4, true, true), "{text}");
        assert_eq!(client.obfs, ObfsClient::Http("a.b".into()), "{text}");
    }
}

#[test]
fn odd_names_do_not_hide_what_it_is() {
    for name in ["{", "%{", "HK: 01", "a \"b", "- x", "proxies:"] {
        let text = format!("{name} = snell, a.example, 1, psk=k");
        assert_eq!(one(&text).0, name, "{text}");
    }
    assert_eq!(
        one("- { name: 'x = snell, y', type: snell, server: a, port: 1, psk: 'k=ss,z' }").0,
        "x = snell, y"
    );
}

#[test]
fn what_is_left_out_means_what_it_means_there() {
    let (_, _, surge) = one("n = snell, a, 1, psk=k");
    assert_eq!(
        (surge.version, surge.reuse, surge.udp, surge.quic),
        (SnellVersion::V1, false, true, Quic::Auto)
    );
    let (_, _, mihomo) = one("- {name: n, type: snell, server: a, port: 1, psk: k, obfs-opts: {mode: tls}}");
    assert_eq!((mihomo.version, mihomo.udp, mihomo.quic), (SnellVersion::V1, false, Quic::Off));
    assert_eq!(mihomo.obfs, ObfsClient::Tls("bing.com".into()));
    let (name, _, link) = one("snell://k%2F@[2001:db8::1]:1?version=5");
    assert_eq!((name.as_str(), link.psk.expose()), ("[2001:db8::1]:1", "k/"));
    let (_, _, sing_box) = one(
        "{\"type\":\"snell\",\"tag\":\"n\",\"server\":\"a\",\"server_port\":1,\"version\":4,\"psk\":\"k\",\"userkey\":\"ann\"}",
    );
    assert_eq!(sing_box.client_id.map(|id| id.expose().to_owned()).as_deref(), Some("ann"));
    let (_, dial, _) = one(
        "{\"type\":\"snell\",\"tag\":\"n\",\"server\":\"a\",\"server_port\":1,\"version\":4,\"psk\":\"k\",\"routing_mark\":\"0x20\",\"inet6_bind_address\":\"2001:db8::1\"}",
    );
    let sources: Vec<_> = dial.egress.sources().map(|ip| ip.to_string()).collect();
    assert_eq!((dial.egress.mark, sources), (Some(32), vec!["2001:db8::1".to_owned()]));
    let (_, dial, _) =
        one("- {name: n, type: snell, server: a, port: 1, psk: k, version: 4, routing-mark: 6666}");
    assert_eq!(dial.egress.mark, Some(6666));
    let (_, dial, two) =
        one("n = snell, a, 1, psk=k, version=2, ip-version=prefer-v4, interface=eth1, test-url=http://x/");
    assert_eq!(
        (two.reuse, dial.family, dial.egress.interface.as_deref()),
        (true, AddressFamilies::PreferV4, Some("eth1"))
    );
    for (word, quic) in [("auto", Quic::Auto), ("on", Quic::Block), ("off", Quic::On)] {
        assert_eq!(one(&format!("n = snell, a, 1, psk=k, version=5, block-quic={word}")).2.quic, quic);
    }
    let (_, _, raw) = one("n = snell, a, 1, psk=twelve bytes, version=6, mode=unsafe-raw, udp-relay=false");
    assert_eq!((raw.version, raw.udp), (SnellVersion::V6(SnellMode::UnsafeRaw), false));
}

#[test]
fn shadowsocks_too() {
    for text in [
        "n = ss, a, 1, encrypt-method=aes-128-gcm, password=p, udp-relay=true, obfs=http, obfs-host=h",
        "- {name: n, type: ss, server: a, port: 1, cipher: aes-128-gcm, password: p, udp: true, plugin: obfs, plugin-opts: {mode: http, host: h}}",
        "{\"type\":\"shadowsocks\",\"tag\":\"n\",\"server\":\"a\",\"server_port\":1,\"method\":\"aes-128-gcm\",\"password\":\"p\",\"plugin\":\"obfs-local\",\"plugin_opts\":\"obfs=http;obfs-host=h\"}",
        "ss://YWVzLTEyOC1nY206cA@a:1/?plugin=obfs-local%3Bobfs%3Dhttp%3Bobfs-host%3Dh#n",
    ] {
        let (name, client) = shadowsocks(text);
        assert_eq!((name.as_str(), client.server.to_string().as_str()), ("n", "a:1"), "{text}");
        assert_eq!((client.key.method().name(), client.key.text().expose()), ("aes-128-gcm", "p"), "{text}");
        assert_eq!(
            (client.transports, client.cover),
            (Transports::Both, ClientCover::Obfs(ObfsClient::Http("h".into())))
        );
    }
}

#[test]
fn what_cannot_be_said_is_named_with_its_place() {
    for (text, want) in [
        (
            "n = snell, a, 1, psk=k, shadow-tls-password=x",
            "t:1:25: n.shadow-tls-password: adit has no such setting\n",
        ),
        (
            "n = snell, a, 1, psk=k, underlying-proxy=m",
            "t:1:25: n.underlying-proxy: adit has no such setting",
        ),
        (
            "n = snell, a, 1, psk=k, versoin=4",
            "t:1:25: n.versoin: adit has no such setting\n  hint: did you mean `version`?",
        ),
        ("n = snell, a, x, psk=k", "t:1:15: n.port: no whole number from 1 to 65535"),
        ("n = snell, a, 1, version=4", "t:1:1: n.psk: missing"),
        ("n = snell, a, 1, psk=k, version=7", "t:1:33: n.version: no whole number from 1 to 6"),
        ("n = snell, a, 1, psk=k, version=6", "t:1:22: n.psk: version 6 wants 12 to 255 bytes"),
        ("n = snell, a, 1, psk=k, version=4, mode=default", "t:1:41: n.mode: only version 6 has modes"),
        ("n = snell, a, 1, psk=k, obfs=ws", "t:1:30: n.obfs: unknown value: ws"),
        ("[Proxy]\nn = snell, a, 1, psk=k, k\n", "t:2:25: n: a value without a key"),
        (
            "proxies:\n- name: n\n  type: snell\n  server: a\n  port: 1\n  psk: k\n  dialer-proxy: x\n",
            "t:7:3: proxies[0].dialer-proxy: adit has no such setting",
        ),
        (
            "- name: n\n  type: snell\n  server: a\n  port: 1\n  psk: k\n  obfs-opts:\n    mode: http\n    path: /\n",
            "t:8:5: [0].obfs-opts.path: adit has no such setting",
        ),
        ("- name: n\n  type: snell\n  server: a\n  psk: *k\n", "t:4:8: no anchor of this name stands"),
        (
            "x: &x {psk: k, dialer-proxy: y}\nproxies:\n- {<<: *x, name: n, type: snell, server: a, port: 1}\n",
            "t:1:16: proxies[0].dialer-proxy: adit has no such setting",
        ),
        (
            "{\"type\":\"snell\",\"tag\":\"n\",\"server\":\"a\",\"server_port\":1,\"psk\":\"k\",\n\"version\":4,\n\"detour\":\"u\"}",
            "t:3:1: detour: adit has no such setting",
        ),
        (
            "{\"type\":\"snell\",\"tag\":\"n\",\"server\":\"a\",\"server_port\":1,\"psk\":\"k\"}",
            "t:1:1: version: missing",
        ),
        (
            "{\"outbounds\":[{\"type\":\"shadowsocks\",\"tag\":\"n\",\"server\":\"a\",\"server_port\":1,\"method\":\"aes-128-gcm\",\"password\":\"p\",\"multiplex\":{\"enabled\":true}}]}",
            "outbounds[0].multiplex: adit has no such setting",
        ),
        ("snell://k@a:1?version=4&shadow-tls=1#n", "t:1:25: link[0].shadow-tls: adit has no such setting"),
        ("snell://!!#n", "t:1:9: link[0]: neither base64"),
        ("ss://x\n", "t:1:1: link[0]: method and password are neither"),
        (
            "vmess://x\n",
            "t:1:1: warning: link[0]: left out: adit speaks Snell, Shadowsocks and ShadowsocksR, not vmess",
        ),
        ("port: 1\n", "t:1:1: type: missing"),
        ("proxies: []\n", "t:1:1: there is no server of Snell, Shadowsocks or ShadowsocksR in it"),
        ("[Proxy]\nx = http, a, 1\n", "t:2:5: warning: x.type: left out, adit does not speak it: http"),
    ] {
        let found = refused(text);
        assert!(found.contains(want), "{text}\n{found}");
        assert!(!found.contains("psk=k"), "{found}");
    }
    assert!(parse(Some(Form::Adit), "t", "").is_err());
    let loaded =
        parse(None, "t", "a = vmess, b, 1\nn = snell, a, 1, psk=k\nn = snell, a, 2, psk=k\n").unwrap();
    assert_eq!(
        loaded.diagnostics.to_string(),
        "t:1:5: warning: a.type: left out, adit does not speak it: vmess\n"
    );
    let names: Vec<&str> = loaded.config.outbounds.iter().map(|outbound| &*outbound.name).collect();
    assert_eq!(names, ["n", "n-2"]);
}

fn deployment() -> impl Strategy<Value = Deployment> {
    let mode = proptest::sample::select(SNELL_MODES).prop_map(|(_, mode)| mode);
    let version = (1_u8..=6, mode).prop_map(|(number, mode)| SnellVersion::new(number, mode).unwrap());
    let obfs = prop_oneof![
        Just(ObfsClient::Off),
        Just(ObfsClient::Http("h.example".into())),
        Just(ObfsClient::Tls("h.example".into()))
    ];
    let psk = "[a-z \"'`#;,=\\\\%()s@:{}&é中😀\u{7f}\u{85}\u{2028}\u{feff}]{12,20}";
    let name = "[a-zA-Z0-9é中 .#&*!|>{}%@-]{1,20}";
    ((name, psk), version, obfs, any::<(bool, bool, bool, bool)>()).prop_map(
        |((name, psk), version, obfs, (reuse, fast_open, udp, quic))| Deployment {
            name: name.into(),
            server: "[2001:db8::1]:6160".parse().unwrap(),
            psk: Secret::new(psk),
            client_id: None,
            obfs: if version.has_obfs() { obfs } else { ObfsClient::Off },
            reuse: version.fixed_reuse().unwrap_or(reuse),
            version,
            fast_open,
            udp,
            quic,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_shared_is_read_back(deployment in deployment()) {
        for form in [Form::Surge, Form::Mihomo, Form::SingBox, Form::Shadowrocket] {
            let Ok(shared) = share(form, &deployment) else { continue };
            let loaded = parse(Some(form), "t", &shared.text);
            let loaded = loaded.unwrap_or_else(|found| panic!("{form}\n{}\n{found}", shared.text));
            let outbound = &loaded.config.outbounds[0];
            let OutboundProtocol::Snell(client) = &outbound.protocol else { panic!("not snell") };
            prop_assert_eq!(&*outbound.name, &*deployment.name, "{}", form);
            prop_assert_eq!(client.psk.expose(), deployment.psk.expose(), "{}", form);
            prop_assert_eq!(&client.server, &deployment.server);
            prop_assert_eq!(&client.obfs, &deployment.obfs);
            prop_assert_eq!(outbound.dial.fast_open, deployment.fast_open);
            // sing-box has one version for both, and links have no place for reuse.
            let version = match (form, deployment.version) {
                (Form::SingBox, SnellVersion::V5) => SnellVersion::V4,
                (_, version) => version,
            };
            prop_assert_eq!(client.version, version);
            if form != Form::Shadowrocket {
                prop_assert_eq!(client.reuse, deployment.reuse);
            }
            // The form can be told from the text alone.
            prop_assert!(parse(None, "t", &shared.text).is_ok(), "{}\n{}", form, shared.text);
        }
    }
}

#[test]
fn subscriptions_mix_links() {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    let of_ssr = |inside: &str| format!("ssr://{}", URL_SAFE_NO_PAD.encode(inside));
    let lines = format!(
        "MAX=2\r\n{}\r\n\n{}\r\n",
        of_ssr("2001:db8::1:443:auth_chain_a:none:plain:cA/?remarks=b25l"),
        "ss://YWVzLTEyOC1nY206dGVzdA==@h:1#two",
    );
    let wrap = |text: &str| -> String {
        // As mail programs break it.
        let text = STANDARD.encode(text);
        text.as_bytes().chunks(20).map(|part| format!("{}\r\n", str::from_utf8(part).unwrap())).collect()
    };
    let loaded = parse(None, "subscription", &wrap(&lines)).unwrap();
    let shown: Vec<&str> = loaded.config.outbounds.iter().map(|outbound| &*outbound.name).collect();
    assert_eq!(shown, ["one", "two"]);
    assert!(matches!(loaded.config.outbounds[0].protocol, OutboundProtocol::Ssr(_)));
    let plain = parse(None, "links", &lines["MAX=2\r\n".len()..]).unwrap();
    assert_eq!(plain.config, loaded.config);
    let broken = format!("{lines}{}", of_ssr("h:0:origin:none:plain:aHVudGVyMg"));
    let found = parse(None, "subscription", &wrap(&broken)).unwrap().diagnostics.to_string();
    assert!(found.contains("warning: link[4]: this server is left out: "), "{found}");
    assert!(found.contains("no port from 1 to 65535"), "{found}");
    assert!(!found.contains("hunter2") && !found.contains("aHVudGVyMg"), "{found}");
    fuzz_import(wrap(&broken).as_bytes());
}

#[test]
fn entries_of_type_ssr() {
    const ENTRY: &str = "proxies:\n- {name: n, type: ssr, server: h.example, port: 443, cipher: chacha20-ietf, password: p,\n  \
        obfs: tls1.2_ticket_auth, obfs-param: domain.tld, protocol: auth_aes128_sha1, protocol-param: \"1002:key\", udp: true}\n";
    let loaded = parse(None, "clash.yaml", ENTRY).unwrap();
    let OutboundProtocol::Ssr(client) = &loaded.config.outbounds[0].protocol else { panic!("a client") };
    assert_eq!(client.user.as_ref().map(|(id, key)| (*id, key.expose())), Some((1002, "key")));
    assert_eq!((client.obfs.name(), &*client.obfs_param), ("tls1.2_ticket_auth", "domain.tld"));
    assert_eq!(client.transports, Transports::Both);
    for (right, wrong, problem) in [
        ("chacha20-ietf", "aes-256-gcm", "unknown method: aes-256-gcm"),
        ("auth_aes128_sha1", "auth_simple", "every program has removed it"),
        ("obfs: tls1.2_ticket_auth, ", "", "missing"),
        ("port: 443", "port: 0", "no whole number from 1 to 65535"),
        ("udp: true", "colour: red", "adit has no such setting"),
    ] {
        let found = parse(None, "clash.yaml", &ENTRY.replace(right, wrong)).unwrap_err().to_string();
        assert!(found.contains(problem) && found.contains("clash.yaml:"), "{wrong}: {found}");
    }
}

/// Of mihomo: two servers, one that cannot be expressed, groups, rules, DNS, a port and a controller.
const CLASH: &str = "\
mixed-port: 7890
external-controller: 127.0.0.1:9090
log-level: info
ipv6: false
dns: {enable: true, nameserver: [1.1.1.1]}
tun: {enable: false}
x: &x {udp: true}
proxies:
- {<<: *x, name: hk, type: ss, server: a, port: 1, cipher: aes-128-gcm, password: p}
- {name: sg, type: snell, server: b, port: 2, psk: k, version: 4}
- {name: smux, type: ss, server: a, port: 1, cipher: aes-128-gcm, password: p, smux: {enabled: true}}
- {name: v, type: vmess, server: a, port: 1}
proxy-groups:
- {name: Proxy, type: select, proxies: [Auto, hk, DIRECT]}
- {name: Auto, type: url-test, proxies: [hk, smux, sg], url: 'http://x.example/204', interval: 300}
- {name: Back, type: fallback, proxies: [Auto, sg]}
- {name: Chain, type: relay, proxies: [hk, sg]}
- {name: None, type: url-test, proxies: [v, DIRECT]}
rules:
- GEOIP,CN,DIRECT
- DOMAIN-SUFFIX,example.com,Proxy
- MATCH,Proxy
";

#[test]
fn a_whole_file_of_mihomo() {
    let loaded = parse(None, "c.yaml", CLASH).unwrap();
    let names: Vec<&str> = loaded.config.outbounds.iter().map(|outbound| &*outbound.name).collect();
    assert_eq!(names, ["hk", "sg", "Auto", "Proxy", "Back"]);
    let OutboundProtocol::Group(auto) = &loaded.config.outbounds[2].protocol else { panic!("a group") };
    let members: Vec<&str> = auto.members.iter().map(|member| &*member.outbound).collect();
    assert_eq!((members, &*auto.check.url), (vec!["hk", "sg"], "http://x.example/204"));
    assert_eq!(auto.check.interval.as_secs(), 300);
    let local = &loaded.config.inbounds[0];
    assert_eq!((&*local.outbound, local.listen[0].to_string().as_str()), ("Proxy", "127.0.0.1:7890"));
    let want = "\
c.yaml:2:1: warning: external-controller: left out
c.yaml:5:1: warning: dns: left out
c.yaml:11:80: warning: proxies[2].smux: this server is left out: adit has no such setting
c.yaml:12:19: warning: proxies[3].type: left out, adit does not speak it: vmess
c.yaml:16:3: warning: proxy-groups[2]: Back: adit takes the member that answers best, as url-test does
c.yaml:17:3: warning: proxy-groups[3]: left out: no group of type relay
c.yaml:18:3: warning: proxy-groups[4]: None: left out, none of its members is here
c.yaml:19:1: warning: rules: left out: 3 rules; everything goes through Proxy
  hint: `adit run` with this file obeys its rules and groups as they stand
";
    assert_eq!(loaded.diagnostics.to_string(), want);
    assert!(loaded.strict().is_err());
    fuzz_import(CLASH.as_bytes());
    // Groups in a circle, and a part that YAML has no sense of.
    let circle = CLASH.replace("[Auto, sg]", "[Back, Proxy]").replace("[Auto, hk, DIRECT]", "[Back, hk]");
    assert!(parse(None, "t", &circle).is_ok());
    let broken = CLASH.replace("- MATCH,Proxy", "- 'MATCH");
    let found = parse(None, "t", &broken).unwrap().diagnostics.to_string();
    assert!(found.contains("left out: all but the servers"), "{found}");
}

#[test]
fn whole_files_of_surge_and_sing_box() {
    let text = "[General]\nhttp-listen = 127.0.0.1:6152\nsocks5-listen = 0.0.0.0:6153\nipv6 = true\n\
        [Proxy]\na = snell, a, 1, psk=k\nb = ss, b, 2, encrypt-method=aes-128-gcm, password=p\n\
        t = trojan, c, 3, password=p, bare\n\
        [Proxy Group]\nAuto = url-test, a, b, url=http://x/, interval=600, tolerance=100\n\
        [Rule]\nGEOIP,CN,DIRECT\n\
        RULE-SET,https://example.com/a/Apple.list,Auto,no-resolve // c\nDEST-PORT,25,REJECT-TINYGIF\n\
        DOMAIN-SUFFIX,bank.example,t\nUSER-AGENT,x,DIRECT\nFINAL,Auto,dns-failed\n[MITM]\nh = x\n[Host]\n";
    let loaded = parse(None, "s.conf", text).unwrap();
    let listen: Vec<String> = loaded.config.inbounds.iter().map(|i| i.listen[0].to_string()).collect();
    assert_eq!(listen, ["127.0.0.1:6152", "127.0.0.1:6153"]);
    let used: Vec<&str> = loaded.config.inbounds.iter().map(|i| &*i.outbound).collect();
    assert_eq!(used, ["Auto", "Auto"]);
    let found = loaded.diagnostics.to_string();
    for want in [
        "s.conf:1:1: warning: General: left out: ipv6\n",
        "s.conf:3:1: warning: socks5-listen: left out: the port listens on 127.0.0.1",
        "s.conf:8:5: warning: t.type: left out, adit does not speak it: trojan\n",
        "s.conf:12:1: warning: Rule[0]: lists of geoip (cn and others) need Country.mmdb\n",
        "s.conf:16:1: warning: Rule[4]: left out: [USER-AGENT,x,DIRECT] error: unsupported rule type",
        "s.conf:18:1: warning: MITM: left out: 1 line\n",
    ] {
        assert!(found.contains(want), "{want}\n{found}");
    }
    assert_eq!(loaded.diagnostics.len(), 6, "{found}");
    let outbounds: Vec<&str> = loaded.config.outbounds.iter().map(|outbound| &*outbound.name).collect();
    assert_eq!(outbounds, ["a", "b", "DIRECT", "Auto", "refused"]);
    let verdicts: Vec<String> =
        loaded.config.rules.iter().map(|rule| format!("{}:{:?}", rule.matcher.key(), rule.verdict)).collect();
    let want = [
        r#"set:Outbound("DIRECT")"#,
        r#"set:Outbound("Auto")"#,
        "port:Reject(Protocol)",
        r#"domain-suffix:Outbound("refused")"#,
    ];
    assert_eq!(
        verdicts,
        want.map(|text| text.replace('"', "")),
        "what goes to a server that is left out is refused"
    );
    let apple = &loaded.config.sets[1];
    assert_eq!(
        (&*apple.name, apple.path.to_str(), apple.format),
        ("Apple.list", Some("Apple.list"), SetFormat::Rules)
    );
    fuzz_import(text.as_bytes());
    let text = r#"{"log":{},"dns":{"servers":[{}]},
"inbounds":[{"type":"tun"},{"type":"mixed","listen":"127.0.0.1","listen_port":31600}],
"outbounds":[{"type":"selector","tag":"sel","outbounds":["auto","b"],"default":"b"},
{"type":"snell","tag":"a","server":"a","server_port":1,"version":4,"psk":"k"},
{"type":"shadowsocks","tag":"b","server":"b","server_port":2,"method":"aes-128-gcm","password":"p","plugin":"v2ray-plugin","plugin_opts":"tls"},
{"type":"urltest","tag":"auto","outbounds":["a","b"],"interval":"3m","tolerance":50},{"type":"direct","tag":"d"}],
"route":{"rules":[{"action":"sniff"},{"ip_is_private":true,"outbound":"d"},
{"domain_suffix":[".x.example"],"domain":"y.example","port":[443,"8443"],"outbound":"a"},
{"type":"logical","mode":"or","rules":[{"network":"udp","port":443},{"protocol":"quic","invert":true}],"action":"reject"},
{"rule_set":"r","outbound":"a"},{"port":1,"outbound":"nowhere"}],"final":"sel"}}"#;
    let loaded = parse(None, "s.json", text).unwrap();
    let names: Vec<&str> = loaded.config.outbounds.iter().map(|outbound| &*outbound.name).collect();
    assert_eq!(names, ["a", "b", "d", "auto", "sel"]);
    let local = &loaded.config.inbounds[0];
    assert_eq!((&*local.outbound, local.listen[0].port()), ("sel", 31600));
    let matchers: Vec<String> =
        loaded.config.rules.iter().map(|rule| format!("{:?}", rule.matcher)).collect();
    assert_eq!(matchers.len(), 3);
    let turned = r#"Not(Protocol(["quic"]))"#;
    assert!(matchers[2].starts_with("Or([And([") && matchers[2].contains(turned), "{}", matchers[2]);
    assert_eq!(loaded.config.rules[1].at.line, 8);
    fuzz_import(text.as_bytes());
    let OutboundProtocol::Shadowsocks(client) = &loaded.config.outbounds[1].protocol else { panic!() };
    let ClientCover::Plugin(plugin) = &client.cover else { panic!("a plugin") };
    assert_eq!((&*plugin.program, &*plugin.options), ("v2ray-plugin", "tls"));
    let found = loaded.diagnostics.to_string();
    for want in [
        "dns.servers[0]: left out: type ",
        "inbounds[0]: left out: tun",
        "s.json:7:19: warning: route.rules[0]: left out: action sniff",
        "route.rules[4]: left out: no such list here: r",
        "route.rules[5]: left out: no such outbound: nowhere",
    ] {
        assert!(found.contains(want), "{want}\n{found}");
    }
}

/// A file of sing-box with this `dns` and a server by name.
fn with_dns(dns: &str, route: &str) -> Loaded {
    let text = format!(
        r#"{{"dns":{dns},
"outbounds":[{{"type":"shadowsocks","tag":"b","server":"b.example","server_port":2,"method":"aes-128-gcm","password":"p"}},
{{"type":"direct","tag":"d"}},{{"type":"block","tag":"no"}}],"route":{{{route}}}}}"#
    );
    fuzz_import(text.as_bytes());
    parse(None, "s.json", &text).unwrap_or_else(|found| panic!("{found}"))
}

#[test]
fn name_servers_of_sing_box_stay() {
    let dns = r#"{"servers":[
{"type":"https","tag":"far","server":"dns.example","path":"/q","detour":"b","domain_resolver":"near"},
{"type":"udp","tag":"near","server":"192.0.2.1","detour":"d"},
{"type":"tls","tag":"six","server":"2001:db8::1","server_port":8853,"tls":{"server_name":"six.example"}},
{"type":"hosts","tag":"own","predefined":{"Router.example":["192.0.2.9","2001:db8::9"]}},
{"tag":"old","address":"tcp://192.0.2.2:5353"},
{"type":"fakeip","tag":"fake"},{"type":"udp","tag":"lost","server":"192.0.2.3","detour":"nowhere"}],
"rules":[{"domain_suffix":[".cn","Lan.example"],"domain":"one.example","server":"near"},
{"domain":"six.example","server":"six"},{"ip_accept_any":true,"server":"own"},
{"rule_set":"r","server":"near"},{"query_type":"AAAA","action":"reject"},{"domain":"x.example","server":"fake"}],
"final":"far","strategy":"prefer_ipv4","independent_cache":true,"fakeip":{"enabled":true}}"#;
    let loaded = with_dns(dns, r#""default_domain_resolver":{"server":"old"}"#);
    let found = loaded.diagnostics.to_string();
    let dns = &loaded.config.dns;
    let [far] = &*dns.upstreams else { panic!("{found}") };
    assert_eq!((&*far.name, far.through.as_deref()), ("https://dns.example#b", Some("b")));
    assert_eq!(far.bootstrap, [NameServer::At("192.0.2.1:53".parse().unwrap())]);
    let policy: Vec<(&str, &str)> =
        dns.policy.iter().map(|policy| (&*policy.domain, &*policy.upstreams[0].name)).collect();
    let near = "udp://192.0.2.1";
    let want = [
        ("cn", near),
        ("lan.example", near),
        ("=one.example", near),
        ("=six.example", "tls://[2001:db8::1]:8853"),
        ("=b.example", "tcp://192.0.2.2:5353"),
    ];
    assert_eq!(policy, want);
    assert_eq!(dns.policy[3].upstreams[0].transport, DnsTransport::Tls { name: "six.example".into() });
    assert_eq!(dns.policy[0].upstreams[0].through, None, "direct is no outbound here");
    assert_eq!((&*dns.hosts[0].0, dns.hosts[0].1.len()), ("router.example", 2));
    assert_eq!(dns.family, AddressFamilies::PreferV4);
    let again = adit_toml::parse("adit.toml", &adit_toml::to_toml(&loaded.config)).unwrap();
    assert_eq!(again.config.dns, *dns);
    for want in [
        "dns.servers[5]: left out: type fakeip",
        "dns.servers[6]: left out: no such outbound: nowhere",
        "dns.rules[2]: left out: adit.toml has no key for ip-accept-any",
        "dns.rules[3]: left out: no such list here: r",
        "dns.rules[4]: left out: action reject",
        "dns.rules[5]: left out: no such server here: fake",
        "dns.fakeip: left out",
    ] {
        assert!(found.contains(want), "{want}\n{found}");
    }
}

/// A whole file of sing-box with this rule, and what is said about it.
fn with_rule(rule: &str) -> Result<Loaded, String> {
    let text = format!(
        r#"{{"outbounds":[
{{"type":"shadowsocks","tag":"b","server":"b.example","server_port":2,"method":"aes-128-gcm","password":"p"}},
{{"type":"direct","tag":"d"}}],
"route":{{"rules":[
{rule}
],"final":"d"}}}}"#
    );
    fuzz_import(text.as_bytes());
    parse(None, "s.json", &text).map_err(|found| found.to_string())
}

#[test]
fn rules_that_are_turned_round_stay_so() {
    let suffix = || Matcher::DomainSuffix(vec!["x.example".into()]);
    let not = |matcher| Matcher::Not(Box::new(matcher));
    let udp = || Matcher::Network(adit_model::rule::Network::Udp);
    for (rule, want) in [
        (r#"{"domain_suffix":"x.example","outbound":"b"}"#, suffix()),
        (r#"{"domain_suffix":"x.example","invert":false,"outbound":"b"}"#, suffix()),
        (r#"{"domain_suffix":"x.example","invert":true,"outbound":"b"}"#, not(suffix())),
        (
            r#"{"type":"logical","mode":"and","rules":[{"domain_suffix":"x.example","invert":true},{"network":"udp"}],"invert":true,"outbound":"b"}"#,
            not(Matcher::And(vec![udp(), not(suffix())])),
        ),
        (
            r#"{"type":"logical","mode":"or","rules":[{"domain_suffix":"x.example"},{"network":"udp","invert":true}],"outbound":"b"}"#,
            Matcher::Or(vec![suffix(), not(udp())]),
        ),
    ] {
        let loaded = with_rule(rule).unwrap_or_else(|found| panic!("{rule}: {found}"));
        assert_eq!(loaded.config.rules[0].matcher, want, "{rule}");
        assert!(loaded.diagnostics.is_empty(), "{rule}: {}", loaded.diagnostics);
    }
    for (rule, want) in [
        (
            r#"{"domain_suffix":"x.example","invert":"true","outbound":"b"}"#,
            "rules[0].invert: expected true or false",
        ),
        (
            r#"{"domain_suffix":"x.example","invert":1,"outbound":"b"}"#,
            "rules[0].invert: expected true or false",
        ),
        (r#"{"domain_suffix":{},"outbound":"b"}"#, "rules[0].domain_suffix: expected a list of texts"),
        (r#"{"ip_is_private":"yes","outbound":"b"}"#, "rules[0].ip_is_private: expected true or false"),
        (
            r#"{"domain":true,"outbound":"b"}"#,
            "rules[0].domain: expected a list of texts, found a truth value",
        ),
        (
            r#"{"type":"logical","mode":"xor","rules":[{"domain":"a"},{"domain":"b"}],"outbound":"b"}"#,
            "rules[0].mode: unknown mode",
        ),
        (
            r#"{"type":"logical","mode":"or","rules":[{"domain":"a","invert":[]}],"outbound":"b"}"#,
            "rules[0].rules[0].invert: expected true or false, found a list",
        ),
        (r#"{"domain":"a","type":"simple","outbound":"b"}"#, "rules[0].type: unknown type"),
        (
            r#"{"rule_set":"r","rule_set_ip_cidr_match_source":true,"outbound":"b"}"#,
            "rules[0].rule_set_ip_cidr_match_source: adit.toml has no key for it",
        ),
    ] {
        let found = with_rule(rule).map(|loaded| loaded.config.rules).unwrap_err();
        assert!(found.contains(want) && found.contains("s.json:5:"), "{rule}: {found}");
    }
    for (rule, want) in [
        (r#"{"domain":"a","action":"reject","method":"reply"}"#, "left out: method reply"),
        (r#"{"domain":"a","wifi_ssid":"w","outbound":"b"}"#, "left out: adit.toml has no key for wifi-ssid"),
    ] {
        let loaded = with_rule(rule).unwrap();
        assert!(loaded.config.rules.is_empty());
        assert!(loaded.diagnostics.to_string().contains(want), "{}", loaded.diagnostics);
    }
}

#[test]
fn switches_of_dns_are_obeyed_or_stop_the_import() {
    let dns =
        |keys: &str| format!(r#"{{"servers":[{{"type":"udp","tag":"near","server":"192.0.2.1"}}],{keys}}}"#);
    assert!(with_dns(&dns(r#""reverse_mapping":true"#), "").config.dns.reverse_map);
    assert!(!with_dns(&dns(r#""reverse_mapping":false"#), "").config.dns.reverse_map);
    for (keys, want) in [
        (r#""reverse_mapping":"true""#, "dns.reverse_mapping: expected true or false"),
        (r#""reverse_mapping":1"#, "dns.reverse_mapping: expected true or false"),
        (r#""final":["near"]"#, "dns.final: expected a text, found a list"),
        (
            r#""rules":[{"domain_suffix":"x.example","invert":true,"server":"near"}]"#,
            "dns.rules[0].invert: adit.toml has no rule of name servers that is turned round",
        ),
        (
            r#""rules":[{"type":"logical","mode":"or","rules":[{"domain":"a","invert":true}],"server":"near"}]"#,
            "dns.rules[0].rules[0].invert: adit.toml has no rule",
        ),
    ] {
        let text = format!(
            r#"{{"dns":{},"outbounds":[{{"type":"shadowsocks","tag":"b","server":"b.example","server_port":2,"method":"aes-128-gcm","password":"p"}}]}}"#,
            dns(keys)
        );
        let found = parse(None, "s.json", &text).map(|loaded| loaded.config.dns).unwrap_err().to_string();
        assert!(found.contains(want), "{keys}: {found}");
    }
    // The system's servers stand beside others.
    let dns = dns(r#""rules":[{"domain_suffix":"lan","server":"sys"}]"#)
        .replace(r#"],"rules"#, r#",{"type":"local","tag":"sys"}],"rules"#);
    let policy = with_dns(&dns, "").config.dns.policy;
    assert_eq!((&*policy[0].domain, policy[0].upstreams[0].is_system()), ("lan", true));
}

#[test]
fn lists_of_sing_box_become_sets() {
    let dns = r#"{"servers":[{"type":"udp","tag":"near","server":"192.0.2.1"}],
"rules":[{"rule_set":["geosite-cn"],"server":"near"}]}"#;
    let route = r#""rule_set":[
{"type":"remote","tag":"geosite-cn","format":"binary","url":"https://lists.example/cn.srs?token=t","download_detour":"b","update_interval":"1d"},
{"type":"local","tag":"own list","path":"lists/own.srs"},
{"type":"remote","tag":"unused","url":"https://lists.example/unused.srs"},
{"type":"remote","tag":"text","format":"source","url":"https://lists.example/text.json"},
{"type":"inline","tag":"in","rules":[{"domain":"a.example"}]},
{"type":"remote","tag":"lost","url":"https://lists.example/lost.srs","download_detour":"nowhere"}],
"rules":[{"rule_set":["own list","geosite-cn"],"domain_suffix":"x.example","port":443,"outbound":"d"},
{"rule_set":"text","outbound":"b"}],"final":"b""#;
    let loaded = with_dns(dns, route);
    let (config, found) = (&loaded.config, loaded.diagnostics.to_string());
    let [cn, own] = &*config.sets else { panic!("{:?}\n{found}", config.sets) };
    assert_eq!((&*cn.name, cn.path.to_str(), cn.format), ("geosite-cn", Some("geosite-cn"), SetFormat::Any));
    let download = cn.download.as_ref().unwrap();
    assert_eq!((download.through.as_deref(), download.interval.unwrap().as_secs()), (Some("b"), 86_400));
    assert_eq!((&*own.name, own.path.to_str(), &own.download), ("ownlist", Some("lists/own.srs"), &None));
    assert_eq!(&*config.dns.policy[0].domain, "rule-set:geosite-cn");
    assert_eq!(config.rules.len(), 1, "{found}");
    let text = adit_toml::to_toml(config);
    assert!(text.contains(r#"set = ["ownlist", "geosite-cn"]"#), "{text}");
    let again = adit_toml::parse("adit.toml", &text).unwrap().config;
    assert_eq!((&again.sets, &again.dns), (&config.sets, &config.dns));
    for want in [
        "route.rule_set[3]: left out: format source is not read",
        "route.rule_set[4]: left out: adit.toml has no key for rules",
        "route.rule_set[5]: left out: no such outbound: nowhere",
        "route.rules[1]: left out: no such list here: text",
    ] {
        assert!(found.contains(want), "{want}\n{found}");
    }
    assert!(!found.contains("token"), "{found}");
}

#[test]
fn name_servers_that_need_themselves_cost_dns_alone() {
    let far = r#"{"servers":[{"tag":"far","address":"tls://192.0.2.1","detour":"b"},{"tag":"sys","address":"local"}],
"rules":[{"outbound":"any","server":"sys"}]}"#;
    let loaded = with_dns(&far.replace("any", "none"), "");
    assert_eq!(loaded.config.dns, Dns::default());
    let found = loaded.diagnostics.to_string();
    assert!(found.contains("tls://192.0.2.1#b is asked through b, and would be asked for"), "{found}");
    for (server, name) in [(r#""address":"local""#, "system"), (r#""address":"192.0.2.7""#, "192.0.2.7")] {
        let near = far.replace(r#""address":"local""#, server);
        let dns = with_dns(&near, "").config.dns;
        assert_eq!((&*dns.policy[0].domain, &*dns.policy[0].upstreams[0].name), ("=b.example", name));
        assert_eq!(&*dns.upstreams[0].name, "tls://192.0.2.1#b");
    }
    let system = with_dns(r#"{"servers":[{"type":"local","tag":"sys"}]}"#, "");
    assert_eq!((system.config.dns, system.diagnostics.iter().count()), (Dns::default(), 0));
}

#[test]
fn a_plugin_of_mihomo_becomes_a_program() {
    let text = "- {name: n, type: ss, server: a, port: 1, cipher: aes-128-gcm, password: p, plugin: v2ray-plugin, \
                plugin-opts: {mode: websocket, tls: true, host: h.example, path: '/a;b=c', mux: false}}";
    let (_, client) = shadowsocks(text);
    let ClientCover::Plugin(plugin) = client.cover else { panic!("a plugin") };
    assert_eq!(
        (&*plugin.program, &*plugin.options),
        ("v2ray-plugin", "tls;host=h.example;path=/a\\;b\\=c;mux=0")
    );
    let found = refused(&text.replace("mux: false", "skip-cert-verify: true"));
    assert!(found.contains("plugin-opts.skip-cert-verify: adit has no such setting"), "{found}");
    assert!(refused(&text.replace("v2ray-plugin", "restls")).contains("write one of obfs, v2ray-plugin"));
}
