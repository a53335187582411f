use adit_model::Config;
use adit_model::rule::{Matcher, Network, PortRange, RejectMethod, Resolve, SetFormat, Verdict};

use crate::adit_toml::{parse, to_toml};

const HEAD: &str = "[[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1080\"\n\
    [[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n[[set]]\nname = \"ads\"\npath = \"ads.txt\"\n";

fn load(text: &str) -> Config {
    match parse("t.toml", &format!("{HEAD}{text}")) {
        Ok(loaded) => loaded.config,
        Err(found) => panic!("{found}\n{text}"),
    }
}

fn rejected(text: &str) -> String {
    let text = format!("{HEAD}{text}");
    match parse("t.toml", &text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(found) => {
            crate::read::loaded::assert_inside(&text, &found);
            found.to_string()
        }
    }
}

/// One rule with every key.
const ALL: &str = r#"
[[rule]]
domain = ["A.example.", "b.example"]
domain-suffix = "c.example"
domain-keyword = "Track"
domain-regex = "^ad[0-9]+\\."
ip-cidr = ["192.0.2.1/24", "2001:db8::/32"]
geoip = ["DE", "at"]
set = "ads"
source = "10.0.0.0/8"
source-port = "1024-65535"
port = [80, 443, "8000-8999"]
network = "tcp"
inbound = "in"
user = ["ann", "bob"]
protocol = "TLS"
resolve = false
and = [{ port = 1 }, { or = [{ network = "udp" }, { not = { domain = "x.example", port = 2 } }] }]
outbound = "home"
"#;

#[test]
fn every_key() {
    let config = load(ALL);
    let rule = &config.rules[0];
    assert_eq!(
        (rule.at.to_string(), rule.verdict.clone()),
        ("t.toml:12".into(), Verdict::Outbound("home".into()))
    );
    let Matcher::And(keys) = &rule.matcher else { panic!("{rule:?}") };
    assert_eq!(keys.len(), 15);
    assert_eq!(keys[0], Matcher::Domain(vec!["a.example".into(), "b.example".into()]));
    assert_eq!(keys[2], Matcher::DomainKeyword(vec!["track".into()]));
    assert_eq!(keys[6], Matcher::Set(vec!["ads".into()], Resolve::No));
    let ports = [(80, 80), (443, 443), (8000, 8999)].map(|(first, last)| PortRange { first, last });
    assert_eq!(keys[9], Matcher::Port(ports.into()));
    assert_eq!(keys[10], Matcher::Network(Network::Tcp));
    let again = parse("again.toml", &to_toml(&config)).unwrap().config;
    assert_eq!(again, config);
}

#[test]
fn each_key_alone_can_be_written() {
    for (keys, want) in [
        ("port = 443", "port = 443"),
        ("port = [\"1-2\"]", "port = \"1-2\""),
        ("ip-cidr = [\"10.0.0.1/8\"]\nresolve = false", "ip-cidr = \"10.0.0.0/8\"\nresolve = false"),
        ("not = { set = \"ads\", resolve = false }", "not = { set = \"ads\", resolve = false }"),
        ("or = [{ port = 1 }]", "or = [{ port = 1 }]"),
    ] {
        let config = load(&format!("[[rule]]\n{keys}\nreject = \"drop\"\n"));
        assert_eq!(config.rules[0].verdict, Verdict::Reject(RejectMethod::Drop));
        let text = to_toml(&config);
        assert!(text.contains(&format!("[[rule]]\n{want}\nreject = \"drop\"\n")), "{text}");
        assert_eq!(parse("again.toml", &text).unwrap().config, config);
    }
}

#[test]
fn mistakes() {
    for (text, want) in [
        (
            "[[rule]]\noutbound = \"home\"\n",
            "t.toml:11:1: rule[0]: the rule has no key, so it would match everything\n  hint: ",
        ),
        ("[[rule]]\nport = 1\n", "t.toml:11:1: rule[0]: the rule has neither outbound nor reject\n  hint: "),
        (
            "[[rule]]\nport = 1\noutbound = \"hom\"\n",
            "13:12: rule[0].outbound: no such outbound: hom\n  hint: did you mean `home`?",
        ),
        ("[[rule]]\nport = 1\noutbound = \"home\"\nreject = \"drop\"\n", "rule[0].reject: not both"),
        ("[[rule]]\nport = 1\nreject = \"no\"\n", "13:10: rule[0].reject: unknown value: no"),
        (
            "[[rule]]\nprot = 1\nreject = \"drop\"\n",
            "12:1: rule[0].prot: unknown key\n  hint: did you mean `port`?",
        ),
        ("[[rule]]\nport = 70000\nreject = \"drop\"\n", "12:8: rule[0].port: bad port: 70000\n  hint: "),
        ("[[rule]]\nport = \"9-1\"\nreject = \"drop\"\n", "the range is empty: 9-1"),
        ("[[rule]]\nport = []\nreject = \"drop\"\n", "12:8: rule[0].port: an empty list matches nothing"),
        (
            "[[rule]]\nip-cidr = [\"10.0.0.0/8\", \"x/8\"]\nreject = \"drop\"\n",
            "12:26: rule[0].ip-cidr[1]: bad network: x/8",
        ),
        (
            "[[rule]]\ndomain-regex = \"(a\"\nreject = \"drop\"\n",
            "12:16: rule[0].domain-regex: bad regular expression: unclosed group",
        ),
        ("[[rule]]\ndomain = \"a..b\"\nreject = \"drop\"\n", "12:10: rule[0].domain: no name: a..b"),
        ("[[rule]]\ngeoip = \"deu\"\nreject = \"drop\"\n", "12:9: rule[0].geoip: bad country: deu"),
        (
            "[[rule]]\nset = \"ad\"\nreject = \"drop\"\n",
            "12:7: rule[0].set: no such set: ad\n  hint: did you mean `ads`?",
        ),
        (
            "[[rule]]\nor = [{ inbound = \"x\" }]\nreject = \"drop\"\n",
            "12:19: rule[0].or[0].inbound: no such inbound: x",
        ),
        ("[[rule]]\nand = [{ }]\nreject = \"drop\"\n", "rule[0].and[0]: there is no key in it"),
        ("[[rule]]\nor = []\nreject = \"drop\"\n", "rule[0].or: the list is empty"),
        ("[[set]]\nname = \"ads\"\npath = \"b\"\n", "12:8: set[1].name: the name is taken: ads"),
        ("[[set]]\nname = \"b\"\n", "11:1: set[1].path: missing"),
        ("[[set]]\nname = \"b\"\npath = \"b\"\nformat = \"x\"\n", "set[1].format: unknown value: x"),
    ] {
        let found = rejected(text);
        assert!(found.contains(want), "wanted {want}\nfound {found}");
    }
    let deep = format!(
        "[[rule]]\nnot = {}port = 1{}\nreject = \"drop\"\n",
        "{ not = ".repeat(39) + "{ ",
        " }".repeat(40)
    );
    assert!(parse("t.toml", &format!("{HEAD}{deep}")).is_err());
}

#[test]
fn sets() {
    let config = load("[[set]]\nname = \"nets\"\npath = \"/etc/nets\"\nformat = \"addresses\"\n");
    assert_eq!(config.sets[0].at.to_string(), "t.toml:10");
    assert_eq!((&*config.sets[1].name, config.sets[1].format), ("nets", SetFormat::Addresses));
    assert_eq!(parse("again.toml", &to_toml(&config)).unwrap().config, config);
}

#[test]
fn many_rules() {
    let mut text = String::from(HEAD);
    for n in 0..20_000 {
        text.push_str(&format!("[[rule]]\ndomain-suffix = \"n{n}.example\"\noutbound = \"home\"\n"));
    }
    assert!(text.len() > 1 << 20);
    assert_eq!(parse("t.toml", &text).unwrap().config.rules.len(), 20_000);
}

#[test]
fn protocols() {
    let text =
        |name: &str| format!("{HEAD}[[rule]]\nprotocol = [\"http\", \"{name}\"]\noutbound = \"home\"\n");
    assert!(parse("t.toml", &text("QUIC")).is_ok());
    let found = parse("t.toml", &text("htttp")).unwrap_err().to_string();
    assert!(found.contains("no such protocol: htttp"), "{found}");
    assert!(found.contains("write one of tls, http, quic, bittorrent, ssh, dns"), "{found}");
}
