use adit_model::{AddressFamilies, Config, Dns, DnsTransport};

use crate::adit_toml::{parse, to_toml};

const HEAD: &str = "[[inbound]]\nprotocol = \"socks\"\nlisten = \"127.0.0.1:0\"\n";
const HOME: &str = "[[outbound]]\nname = \"home\"\nprotocol = \"snell\"\nserver = \"home.example:6160\"\n\
                    psk = \"0123456789abcdef\"\n";

fn load(text: &str) -> Config {
    parse("adit.toml", text).unwrap_or_else(|found| panic!("{found}")).config
}

/// The findings for a file that ends with this table.
fn found(dns: &str) -> String {
    parse("adit.toml", &format!("{dns}\n{HEAD}{HOME}")).unwrap_err().to_string()
}

#[test]
fn servers_of_every_kind_are_read_and_written() {
    let servers = [
        ("192.0.2.1", "192.0.2.1:53", DnsTransport::Udp),
        ("udp://[2001:db8::1]:54", "[2001:db8::1]:54", DnsTransport::Udp),
        ("2001:db8::2", "[2001:db8::2]:53", DnsTransport::Udp),
        ("tcp://dns.example", "dns.example:53", DnsTransport::Tcp),
        ("tls://dns.example", "dns.example:853", DnsTransport::Tls { name: "dns.example".into() }),
        ("tls://192.0.2.2:8853", "192.0.2.2:8853", DnsTransport::Tls { name: "192.0.2.2".into() }),
        (
            "https://dns.example/q?x=1",
            "dns.example:443",
            DnsTransport::Https {
                authority: "dns.example".into(),
                path: "/q?x=1".into(),
                name: "dns.example".into(),
            },
        ),
        (
            "https://dns.example:8443",
            "dns.example:8443",
            DnsTransport::Https {
                authority: "dns.example:8443".into(),
                path: "/dns-query".into(),
                name: "dns.example".into(),
            },
        ),
    ];
    let tables: String =
        servers.iter().map(|(text, ..)| format!("[[dns.upstream]]\nserver = \"{text}\"\n")).collect();
    let config = load(&format!("{tables}{HEAD}"));
    for ((text, server, transport), read) in servers.iter().zip(&config.dns.upstreams) {
        let name = text.split("/q?").next().unwrap();
        assert_eq!((&*read.name, &*read.server.to_string(), &read.transport), (name, *server, transport));
    }
    assert_eq!(load(&to_toml(&config)).dns, config.dns);
    assert_eq!(load(HEAD).dns, Dns::default());
    assert!(!to_toml(&load(HEAD)).contains("dns"));
}

#[test]
fn everything_is_read_and_written() {
    let text = format!(
        "[dns]\ncache = 9\nmin-ttl = \"5s\"\nmax-ttl = \"1h\"\nstale = false\nfamily = \"prefer-ipv4\"\n\
         [[dns.upstream]]\nname = \"a\"\nserver = \"tls://dns.example\"\naddress = \"192.0.2.53\"\nthrough = \"home\"\n\
         [[dns.upstream]]\nname = \"b\"\nserver = \"tls://office.example\"\nbootstrap = [\"192.0.2.1\"]\ndefault = false\n\
         [[dns.policy]]\ndomain = [\"*.Office.example\", \"=one.example.\", \"home.example\"]\nupstream = [\"b\", \"a\"]\n\
         [[dns.policy]]\ndomain = \"home.example\"\nupstream = \"b\"\n\
         [[dns.hosts]]\nname = \"router.example\"\naddress = [\"192.0.2.9\", \"2001:db8::9\"]\n\
         [[dns.hosts]]\nname = \"home.example\"\naddress = \"192.0.2.8\"\n{HEAD}{HOME}"
    );
    let config = load(&text);
    let dns = &config.dns;
    assert_eq!((dns.cache, dns.stale, dns.family), (9, false, AddressFamilies::PreferV4));
    assert_eq!((dns.min_ttl.as_secs(), dns.max_ttl.as_secs()), (5, 3600));
    assert_eq!((dns.upstreams.len(), dns.policy.len(), dns.hosts.len()), (1, 4, 2));
    assert_eq!(dns.upstreams[0].server.to_string(), "192.0.2.53:853");
    assert_eq!(dns.upstreams[0].transport, DnsTransport::Tls { name: "dns.example".into() });
    assert_eq!((&*dns.policy[0].domain, &*dns.policy[1].domain), ("office.example", "=one.example"));
    let names: Vec<&str> = dns.policy[0].upstreams.iter().map(|upstream| &*upstream.name).collect();
    assert_eq!(names, ["b", "a"]);
    assert_eq!(load(&to_toml(&config)), config);
}

#[test]
fn errors_have_a_place_and_a_hint() {
    for (table, want) in [
        ("[dns]\ncache = 0", "adit.toml:2:9: dns.cache: not from 1 to"),
        ("[dns]\nmin-ttl = \"2h\"\nmax-ttl = \"1h\"", "adit.toml:2:11: dns.min-ttl: longer than max-ttl"),
        ("[dns]\nmax-ttl = \"8d\"", "adit.toml:2:11: dns.max-ttl: longer than 7d"),
        ("[dns]\nserver = \"1.1.1.1\"", "adit.toml:2:1: dns.server: unknown key"),
        ("[[dns.upstream]]\nname = \"a\"", "dns.upstream[0].server: missing"),
        (
            "[[dns.upstream]]\nserver = \"quic://1.1.1.1\"",
            "adit.toml:2:10: dns.upstream[0].server: DNS over QUIC and HTTP/3 are not supported yet",
        ),
        ("[[dns.upstream]]\nserver = \"h3://1.1.1.1\"", "are not supported yet"),
        ("[[dns.upstream]]\nserver = \"ftp://1.1.1.1\"", "unknown transport: ftp"),
        ("[[dns.upstream]]\nserver = \"tls://\"", "bad name server"),
        ("[[dns.upstream]]\nserver = \"https://a b/\"", "bad name server"),
        ("[[dns.upstream]]\nserver = \"udp://1.1.1.1:0\"", "bad name server"),
        ("[[dns.upstream]]\nserver = \"1.1.1.1\"\naddress = \"1.1.1.2\"", "server is an address already"),
        (
            "[[dns.upstream]]\nserver = \"1.1.1.1\"\nbootstrap = \"1.1.1.2\"",
            "the address of the server is known",
        ),
        (
            "[[dns.upstream]]\nserver = \"1.1.1.1\"\n[[dns.upstream]]\nserver = \"1.1.1.1\"",
            "the name is taken",
        ),
        (
            "[[dns.upstream]]\nserver = \"1.1.1.1\"\nthrough = \"hom\"",
            "adit.toml:3:11: dns.upstream[0].through: no such outbound: hom\n  hint: did you mean `home`?",
        ),
        (
            "[[dns.upstream]]\nserver = \"1.1.1.1\"\nthrough = \"home\"",
            "adit.toml:3:11: dns.upstream[0].through: outbound home needs the address of home.example, \
             which this server 1.1.1.1 is asked for through it",
        ),
        ("[[dns.policy]]\ndomain = \"a.b\"\nupstream = \"x\"", "dns.policy[0].upstream: no such upstream"),
        ("[[dns.policy]]\ndomain = \"a..b\"\nupstream = \"x\"", "bad domain"),
        ("[[dns.policy]]\nupstream = \"x\"", "dns.policy[0].domain: missing"),
        ("[[dns.hosts]]\nname = \"a.b\"", "dns.hosts[0].address: missing"),
        ("[[dns.hosts]]\nname = \"a.b\"\naddress = \"x\"", "not an IP address"),
    ] {
        let found = found(table);
        assert!(found.contains(want), "{table}\n{found}");
    }
    let direct = "[[outbound]]\nname = \"d\"\nprotocol = \"direct\"\n";
    let text = format!("[[dns.upstream]]\nserver = \"tls://a.b\"\nthrough = \"d\"\n{HEAD}{direct}");
    let found = parse("adit.toml", &text).unwrap_err().to_string();
    assert!(found.contains("adit.toml:3:11: dns.upstream[0].through: outbound d would look"), "{found}");
}
