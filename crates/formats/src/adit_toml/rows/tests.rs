//! Each row, by its own example.

#![expect(clippy::wildcard_enum_match_arm, reason = "the other tables need nothing")]

use std::collections::BTreeSet;

use adit_model::Config;

use crate::adit_toml::keys::{self, TableKey, TomlTable};
use crate::adit_toml::{parse, to_toml};

/// Keys of a file's table, each with its value as it stands there.
type Lines = Vec<(&'static str, String)>;

const PROTOCOLS: [&str; 12] = [
    "mixed",
    "socks",
    "http",
    "snell",
    "shadowsocks",
    "ssr",
    "obfs",
    "tunnel",
    "redirect",
    "tproxy",
    "tun",
    "dns",
];

/// Rows that are other ways to write a key: what is written in their place.
const SAME_AS: [(&str, &str); 3] =
    [("udp-relay", "udp"), ("egress-interface", "interface"), ("ipv6", "family")];

fn lines(all: &[(&'static str, &str)]) -> Lines {
    all.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

/// The keys that a table of this protocol needs.
fn least(table: TomlTable, protocol: &str) -> Lines {
    let mut out = match table {
        TomlTable::Inbound if protocol == "tun" => lines(&[("protocol", "\"tun\"")]),
        TomlTable::Inbound => {
            lines(&[("protocol", &format!("\"{protocol}\"")), ("listen", "\"127.0.0.1:1\"")])
        }
        TomlTable::Outbound => lines(&[("name", "\"tested\""), ("protocol", &format!("\"{protocol}\""))]),
        TomlTable::User if protocol == "ssr" => {
            lines(&[("name", "\"bob\""), ("password", "\"0123456789ab\""), ("id", "1001")])
        }
        TomlTable::User => lines(&[("name", "\"bob\""), ("password", "\"MTIzNDU2Nzg5MGFiY2RlZg==\"")]),
        TomlTable::Member => lines(&[("name", "\"second\"")]),
        TomlTable::Set => lines(&[("name", "\"own\""), ("path", "\"own.txt\"")]),
        TomlTable::Provider => lines(&[("name", "\"own\""), ("path", "\"own.yaml\"")]),
        TomlTable::Panel => lines(&[
            ("name", "\"own\""),
            ("kind", "\"xboard\""),
            ("url", "\"https://own.example\""),
            ("token", "\"0123\""),
            ("node", "\"1\""),
        ]),
        TomlTable::Store => lines(&[("url", "\"redis://127.0.0.1:1\"")]),
        TomlTable::Rule => lines(&[("outbound", "\"second\"")]),
        TomlTable::DnsUpstream => lines(&[("server", "\"tls://dns.example\"")]),
        TomlTable::DnsPolicy => lines(&[("domain", "\"a.example\""), ("upstream", "\"base\"")]),
        TomlTable::DnsHost => lines(&[("name", "\"a.example\""), ("address", "\"192.0.2.1\"")]),
        TomlTable::DnsFallback => lines(&[("upstream", "\"office\"")]),
        TomlTable::Sniff => lines(&[("tls", "443")]),
        _ => Lines::new(),
    };
    out.extend(match (table, protocol) {
        (TomlTable::Inbound, "snell") => lines(&[("psk", "\"0123456789ab\"")]),
        (TomlTable::Inbound, "tunnel") => lines(&[("target", "\"a.example:1\"")]),
        (TomlTable::Inbound, "shadowsocks" | "ssr") => {
            lines(&[("method", "\"aes-256-ctr\""), ("password", "\"outer\"")])
        }
        (TomlTable::Outbound, "snell") => {
            lines(&[("server", "\"a.example:1\""), ("psk", "\"0123456789ab\"")])
        }
        (TomlTable::Outbound, "shadowsocks" | "ssr") => {
            lines(&[("server", "\"a.example:1\""), ("method", "\"aes-256-ctr\""), ("password", "\"outer\"")])
        }
        (TomlTable::Inbound, "obfs") => lines(&[("target", "\"a.example:1\""), ("obfs", "\"http\"")]),
        (TomlTable::Outbound, "obfs") => lines(&[("server", "\"a.example:1\""), ("obfs", "\"http\"")]),
        (TomlTable::Outbound, "select" | "url-test" | "fallback" | "load-balance") => {
            lines(&[("members", "[\"second\"]")])
        }
        (TomlTable::Outbound, "socks5" | "http") => lines(&[("server", "\"a.example:1\"")]),
        (TomlTable::Outbound, "group") => lines(&[("members", "[{ name = \"second\" }]")]),
        _ => Lines::new(),
    });
    out
}

/// The keys without which `key` means nothing.
fn company(key: &TableKey, protocol: &str) -> Lines {
    match key.name {
        "plugin-options" | "plugin-arguments" | "plugin-network" => lines(&[("plugin", "\"x\"")]),
        "interval" | "through" if matches!(key.table, TomlTable::Set | TomlTable::Provider) => {
            lines(&[("url", "\"http://example.com/\"")])
        }
        name if key.table == TomlTable::Provider && name.starts_with("test-") => {
            lines(&[("test-interval", "\"60s\"")])
        }
        "filter" | "exclude" if key.table == TomlTable::Outbound => lines(&[("use", "\"subscription\"")]),
        "selected" => lines(&[("members", "[\"home\", \"second\"]")]),
        "username" => lines(&[("password", "\"p\"")]),
        "password" if matches!(protocol, "socks5" | "http") => lines(&[("username", "\"u\"")]),
        "sni" | "skip-cert-verify" | "fingerprint" => lines(&[("tls", "true")]),
        "brutal-cwnd-gain" => lines(&[("brutal-mbps", "10")]),
        "password" if protocol == "obfs" => lines(&[("obfs", "\"go_quiet\"")]),
        "browser" | "ticket-interval" => lines(&[("obfs", "\"go_quiet\""), ("password", "\"outer\"")]),
        "obfs-host" => lines(&[("obfs", "\"tls\"")]),
        "mode" if key.table != TomlTable::Capture => lines(&[("version", "6")]),
        "panel" if protocol == "ssr" => lines(&[("ssr-protocol", "\"auth_chain_a\"")]),
        "panel" if protocol == "shadowsocks" => {
            lines(&[("method", "\"2022-blake3-aes-128-gcm\""), ("password", "\"MDEyMzQ1Njc4OWFiY2RlZg==\"")])
        }
        "reset-day" => lines(&[("quota", "\"1GB\"")]),
        "user-id" => lines(&[("user-key", "\"k\""), ("ssr-protocol", "\"auth_chain_a\"")]),
        "user-key" if protocol == "ssr" => lines(&[("user-id", "7"), ("ssr-protocol", "\"auth_chain_a\"")]),
        "users" if protocol == "ssr" => lines(&[("ssr-protocol", "\"auth_chain_a\"")]),
        "users" if protocol == "shadowsocks" => {
            lines(&[("method", "\"2022-blake3-aes-128-gcm\""), ("password", "\"MDEyMzQ1Njc4OWFiY2RlZg==\"")])
        }
        "token" | "per-user" if key.table == TomlTable::Admin => lines(&[("http", "\"127.0.0.1:1\"")]),
        "outline" if key.table == TomlTable::Admin => {
            lines(&[("http", "\"127.0.0.1:1\""), ("per-user", "true")])
        }
        "manage" => lines(&[("manage-secret", "\"0123456789abcdef\"")]),
        "manage-secret" => lines(&[("manage", "\"127.0.0.1:1\"")]),
        "manage-inbound" => {
            lines(&[("manage", "\"127.0.0.1:1\""), ("manage-secret", "\"0123456789abcdef\"")])
        }
        "http-override" => lines(&[("http", "80")]),
        "alias" => lines(&[("address", "")]),
        "clash-secret" | "clash-ui" => lines(&[("clash", "\"127.0.0.1:1\"")]),
        "allow-lan" => lines(&[("listen", "\":1\"")]),
        "through" if key.table == TomlTable::DnsUpstream => lines(&[("address", "\"192.0.2.1\"")]),
        "bootstrap" | "address" if key.table == TomlTable::DnsUpstream => {
            lines(&[("server", "\"tls://dns.example\"")])
        }
        "carrier-memory" => Lines::new(),
        name if name.starts_with("snowflake-acme-") => lines(&[
            ("carrier", "\"snowflake\""),
            ("snowflake-tls", "\"acme\""),
            ("snowflake-acme-names", "\"a.example\""),
            ("snowflake-acme-folder", "\"/a\""),
            ("network", if protocol == "dns" { "\"tcp\"" } else { "" }),
        ]),
        name if name.starts_with("snowflake-") && key.table == TomlTable::Inbound => {
            let files = if name == "snowflake-tls" { ["", ""] } else { ["\"/a\"", "\"/b\""] };
            lines(&[
                ("carrier", "\"snowflake\""),
                ("snowflake-certificate", files[0]),
                ("snowflake-certificate-key", files[1]),
                // Datagrams do not go over it.
                ("network", if protocol == "dns" { "\"tcp\"" } else { "" }),
            ])
        }
        name if name.starts_with("snowflake-") => {
            lines(&[("carrier", "\"snowflake\""), ("snowflake-broker", "\"http://a.example/\"")])
        }
        "filter-mode" => lines(&[("filter", "\"a.example\"")]),
        "carrier" => lines(&[("carrier-key", "\"k\""), ("carrier-server", "\"a.example:2\"")]),
        name if name.starts_with("carrier-") => {
            lines(&[("carrier", "\"kcp\""), ("carrier-key", "\"k\""), ("carrier-server", "\"a.example:2\"")])
        }
        "key" => lines(&[("method", "\"2022-blake3-aes-128-gcm\"")]),
        "replay-group" => lines(&[("replay-key", "\"bm90IGEga2V5LCBidXQgYW4gZXhhbXBsZSBvZiBvbmU=\"")]),
        "default" => lines(&[("name", "\"own\"")]),
        "resolve" => lines(&[("ip-cidr", "\"10.0.0.0/8\"")]),
        "outbound" | "reject" if key.table == TomlTable::Rule => lines(&[("port", "1")]),
        _ => Lines::new(),
    }
}

/// The example of `key` in a table that has the rest as well; later values of a key take the place of earlier ones.
fn table(key: &TableKey, protocol: &str) -> Lines {
    let mut out = Lines::new();
    let mut company = company(key, protocol);
    if key.table == TomlTable::Inbound {
        company.retain(|(name, _)| *name != "carrier-server");
    }
    for (name, value) in least(key.table, protocol).into_iter().chain(company) {
        out.retain(|(other, _)| *other != name);
        out.push((name, value));
    }
    let (gone, example): (&[&str], _) = match (key.name, protocol) {
        ("entries", _) => (&["path"], key.example.to_owned()),
        ("links", _) => (&["path"], key.example.to_owned()),
        ("key", _) => (&["password"], key.example.to_owned()),
        ("token-file", _) => (&["token"], key.example.to_owned()),
        ("reject", _) => (&["outbound"], key.example.to_owned()),
        ("protocol", _) if key.default == "required" => (&[], format!("\"{protocol}\"")),
        ("users", "shadowsocks") => {
            (&[], "[{ name = \"ann\", password = \"MTIzNDU2Nzg5MGFiY2RlZg==\" }]".to_owned())
        }
        ("users", "ssr") => (&[], key.example.replace("password", "id = 1, password")),
        ("password", "shadowsocks") if key.table == TomlTable::User => {
            (&[], "\"QUJDREVGR0hJSktMTU5PUA==\"".to_owned())
        }
        _ => (&[], key.example.to_owned()),
    };
    if (key.name, protocol) == ("allow-lan", "snell") {
        out.push(("version", "6".into()));
        out.push(("mode", "\"unsafe-raw\"".into()));
    }
    out.retain(|(name, _)| *name != key.name && !gone.contains(name));
    out.push((key.name, example));
    out
}

fn inline(lines: &Lines) -> String {
    let keys: Vec<String> = lines.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", keys.join(", "))
}

fn section(header: &str, lines: &Lines) -> String {
    lines.iter().fold(format!("{header}\n"), |text, (key, value)| text + &format!("{key} = {value}\n"))
}

/// A file in which everything that examples name is there.
const FRAME: &str = r#"
[[inbound]]
name = "local"
protocol = "mixed"
listen = "127.0.0.1:65000"
outbound = "second"
[[outbound]]
name = "second"
protocol = "direct"
[[outbound]]
name = "home"
protocol = "direct"
[[provider]]
name = "subscription"
path = "x.yaml"
[[set]]
name = "office"
path = "x.txt"
"#;

/// Name servers for the examples of policies.
const SERVERS: &str = r#"
[[dns.upstream]]
name = "base"
server = "192.0.2.9"
[[dns.upstream]]
name = "office"
server = "192.0.2.8"
"#;

/// A panel for the examples of inbounds.
const PANEL: &str = r#"
[[panel]]
name = "home"
url = "https://panel.example"
token = "0123"
node = "1"
"#;

/// A file with the example of `key`.
fn file(key: &TableKey, protocol: &str) -> String {
    file_of(key, protocol, table(key, protocol))
}

/// A file with these keys in the table of `key`; those without a value are left out.
fn file_of(key: &TableKey, protocol: &str, mut lines: Lines) -> String {
    lines.retain(|(_, value)| !value.is_empty());
    let frame = match key.table {
        // A second inbound or outbound would take the name of the example.
        TomlTable::Outbound if key.name == "name" => FRAME.replace("\"home\"", "\"far\""),
        TomlTable::DnsPolicy => FRAME.to_owned() + SERVERS,
        TomlTable::DnsFallback => FRAME.to_owned() + &SERVERS.replace("base", "secure"),
        TomlTable::Inbound if protocol == "dns" => FRAME.to_owned() + &SERVERS.replace("base", "secure"),
        // One that no policy names and nobody else asks is not kept.
        TomlTable::DnsUpstream if key.name == "default" => {
            format!("{FRAME}[[dns.policy]]\ndomain = \"a.example\"\nupstream = \"own\"\n")
        }
        TomlTable::Set if key.name == "name" => FRAME.replace("\"office\"", "\"other\""),
        TomlTable::Inbound if key.name == "panel" => FRAME.to_owned() + PANEL,
        _ => FRAME.to_owned(),
    };
    match key.table {
        TomlTable::Root => section("", &lines) + &frame,
        TomlTable::User => {
            let mut inbound = least(TomlTable::Inbound, protocol);
            let users = TableKey { name: "users", table: TomlTable::Inbound, ..*key };
            for (name, value) in company(&users, protocol) {
                inbound.retain(|(other, _)| *other != name);
                inbound.push((name, value));
            }
            inbound.push(("users", format!("[{}]", inline(&lines))));
            frame + &section("[[inbound]]", &inbound)
        }
        TomlTable::Member => {
            let group = lines_of_group(&lines);
            frame + &section("[[outbound]]", &group)
        }
        TomlTable::RulePart => {
            let rule = vec![("outbound", "\"home\"".to_owned()), ("not", inline(&lines))];
            frame + &section("[[rule]]", &rule)
        }
        table => frame + &section(table.header(), &lines),
    }
}

fn lines_of_group(member: &Lines) -> Lines {
    let members = format!("[{}]", inline(member));
    lines(&[("name", "\"group\""), ("protocol", "\"group\""), ("members", &members)])
}

/// The protocols under which a key is tried: all that have it.
fn protocols(key: &TableKey) -> Vec<&'static str> {
    let all: &[&'static str] = match key.table {
        TomlTable::Inbound => &PROTOCOLS,
        TomlTable::User => &["mixed", "snell", "shadowsocks", "ssr"],
        TomlTable::Outbound => &[
            "direct",
            "reject",
            "snell",
            "shadowsocks",
            "ssr",
            "obfs",
            "group",
            "select",
            "url-test",
            "fallback",
            "load-balance",
            "socks5",
            "http",
            "dns",
        ],
        _ => &["all"],
    };
    all.iter().copied().filter(|protocol| key.protocols.is_empty() || key.applies_to(protocol)).collect()
}

fn load(text: &str, key: &TableKey) -> Config {
    match parse("t.toml", text) {
        Ok(loaded) => {
            assert!(loaded.diagnostics.is_empty(), "{}: {}\n{text}", key.name, loaded.diagnostics);
            loaded.config
        }
        Err(found) => panic!("{:?} {}: {found}\n{text}", key.table, key.name),
    }
}

#[test]
fn each_example_is_read_and_written_and_read_again() {
    for key in keys::all() {
        let protocols = protocols(key);
        assert!(!protocols.is_empty(), "{}: no protocol has it", key.name);
        for protocol in protocols {
            let text = file(key, protocol);
            let config = load(&text, key);
            let written = to_toml(&config);
            assert_eq!(load(&written, key), config, "{protocol} {}\n{text}\n{written}", key.name);
            let mut others = SAME_AS.iter().filter(|_| key.table != TomlTable::Capture);
            let name = others.find(|(name, _)| *name == key.name).map_or(key.name, |(_, same)| same);
            if !key.example.is_empty() {
                let found = written.lines().any(|line| line.contains(&format!("{name} = ")));
                assert!(found, "{protocol} {name}\n{text}\n{written}");
            }
        }
    }
}

#[test]
fn an_example_changes_something() {
    for key in keys::all().filter(|key| !key.example.is_empty() && key.default != "required") {
        for protocol in protocols(key) {
            let text = file(key, protocol);
            let mut rest = table(key, protocol);
            rest.pop();
            let without = file_of(key, protocol, rest);
            assert_ne!(text, without, "{}", key.name);
            // A table that is nothing without the key may be refused.
            if let Ok(loaded) = parse("t.toml", &without) {
                assert_ne!(
                    loaded.config,
                    load(&text, key),
                    "{protocol} {}: as if it were not there",
                    key.name
                );
            }
        }
    }
}

/// Values of all types, empty ones among them.
const VALUES: [&str; 9] = ["\"zz\"", "\"\"", "7", "1.5", "true", "false", "[]", "{}", "2026-01-01"];

#[test]
fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
    let mut lost = String::new();
    for key in keys::all() {
        // A row reads its key alike for all protocols; two of them differ in the keys beside it.
        let (first, last) = (protocols(key)[0], *protocols(key).last().expect("a protocol has it"));
        for protocol in BTreeSet::from([first, last]) {
            let mut rest = table(key, protocol);
            let example = rest.pop().map(|(_, value)| value).unwrap_or_default();
            let nothing =
                parse("t.toml", &file_of(key, protocol, rest.clone())).ok().map(|loaded| loaded.config);
            for value in VALUES.into_iter().filter(|value| *value != example) {
                let mut lines = rest.clone();
                lines.push((key.name, value.to_owned()));
                let text = file_of(key, protocol, lines);
                let (config, found) = match parse("t.toml", &text) {
                    Ok(loaded) => (Some(loaded.config), loaded.diagnostics),
                    Err(found) => (None, found),
                };
                let line = |n: usize| text.lines().nth(n.wrapping_sub(1)).unwrap_or_default();
                let is_reported = found.iter().any(|finding| {
                    finding.key.contains(key.name)
                        && line(finding.line).contains(&format!("{} = {value}", key.name))
                });
                let is_default = value == key.default || value.trim_matches('"') == key.default;
                // Nothing in a list or table is what holds without it, where nothing is protected by it.
                let is_nothing = ["[]", "{}"].contains(&value) && !["users", "pin"].contains(&key.name);
                // One that another key is wrong with, and a version that decides.
                let is_other = [("password", "\"zz\""), ("reuse", "false")].contains(&(key.name, value));
                let is_default = is_default || is_nothing || is_other;
                if !is_reported && config == nothing && !is_default {
                    lost.push_str(&format!("{:?} {protocol} {} = {value}\n", key.table, key.name));
                }
            }
        }
    }
    assert!(lost.is_empty(), "neither obeyed nor reported:\n{lost}");
}

#[test]
fn each_key_and_example_is_in_the_reference() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md"));
    let page = page.unwrap();
    for key in keys::all() {
        assert!(page.contains(&format!("\n| `{}` | ", key.name)), "{}", key.name);
        assert!(key.example.is_empty() || page.contains(&format!("| `{}` |", key.example)), "{}", key.name);
    }
}

#[test]
fn an_unknown_key_suggests_the_nearest() {
    for key in keys::all() {
        let protocol = protocols(key)[0];
        let wrong: &'static str = format!("{}x", key.name).leak();
        let mut lines = table(key, protocol);
        let value = lines.pop().map(|(_, value)| value).filter(|value| !value.is_empty());
        lines.push((wrong, value.unwrap_or_else(|| "1".into())));
        let text = file_of(key, protocol, lines);
        let found = parse("t.toml", &text).unwrap_err().to_string();
        let hint = format!("did you mean `{}`?", key.name);
        assert!(found.contains(&hint), "{protocol} {wrong}: {found}\n{text}");
    }
}

#[test]
fn choices_are_those_of_the_documentation() {
    // A value in the documentation that no reader takes, of the keys whose values are words alone.
    for key in keys::all().filter(|key| key.example.starts_with('"')) {
        let words: BTreeSet<&str> = key.value.split([',', ' ']).filter(|word| !word.is_empty()).collect();
        let is_choice = words.contains("or") && words.contains(key.example.trim_matches('"'));
        if !is_choice || key.name == "protocol" {
            continue;
        }
        for word in words.iter().filter(|word| **word != "or") {
            for protocol in protocols(key) {
                let text = file(key, protocol);
                let example = format!("{} = {}", key.name, key.example);
                let text = text.replace(&example, &format!("{} = \"{word}\"", key.name));
                if let Err(found) = parse("t.toml", &text) {
                    assert!(!found.to_string().contains("unknown value"), "{}: {found}", key.name);
                }
            }
        }
    }
}
