//! Every key of a file of sing-box, and of a profile of Surge, with values of every wrong type: it is obeyed, or reported at
//! its place.

use adit_model::Config;
use adit_model::diagnostic::Diagnostics;

use super::{parse, tables};
use crate::read::kinds::{KeyKinds, ValueKind};
use crate::share::Form;
use crate::walk_marks::{names, with};

/// A file in which every mapping with known keys begins with a mark.
const FILE: &str = r#"{
 //@ROOT
 "dns": {
   //@DNS
   "servers": [
     {
       //@DNS_SERVER
       "type": "https",
       "tag": "far",
       "server": "dns.example",
       "tls": {
         //@TLS
         "server_name": "dns.example",
       },
       "domain_resolver": {
         //@RESOLVER
         "server": "near",
       },
     },
     {
       //@OLD
       "tag": "near",
       "address": "192.0.2.1",
     },
     {
       //@HOSTS
       "type": "hosts",
       "tag": "own",
       "predefined": {"router.example": ["192.0.2.9"]},
     },
   ],
   "rules": [
     {
       //@DNS_RULE
       "domain_suffix": "x.example",
       "server": "near",
     },
   ],
   "final": "far",
 },
 "inbounds": [
   {
     //@INBOUND
     "type": "mixed",
     "tag": "in",
     "listen": "127.0.0.1",
     "listen_port": 7000,
   },
 ],
 "outbounds": [
   {
     //@SHADOWSOCKS
     "type": "shadowsocks",
     "tag": "a",
     "server": "a.example",
     "server_port": 1,
     "method": "aes-128-gcm",
     "password": "p",
     "plugin": "v2ray-plugin",
   },
   {
     //@SNELL
     "type": "snell",
     "tag": "b",
     "server": "b.example",
     "server_port": 2,
     "version": 4,
     "psk": "0123456789abcdef",
     "obfs_mode": "http",
   },
   {
     //@SELECTOR
     "type": "selector",
     "tag": "sel",
     "outbounds": ["a", "b"],
   },
   {
     //@URLTEST
     "type": "urltest",
     "tag": "auto",
     "outbounds": ["a", "b"],
   },
   {
     "type": "direct",
     "tag": "d",
   },
 ],
 "route": {
   //@ROUTE
   "rules": [
     {
       //@RULE
       "domain": "x.example",
       "outbound": "a",
     },
     {
       //@REJECT
       "domain": "r.example",
       "action": "reject",
     },
     {
       //@LOGICAL
       "type": "logical",
       "mode": "or",
       "rules": [{"domain": "y.example"}, {"port": 1}],
       "outbound": "a",
     },
     {
       "rule_set": "list",
       "outbound": "auto",
     },
     {
       "domain": "z.example",
       "outbound": "d",
     },
   ],
   "rule_set": [
     {
       //@RULE_SET
       "type": "remote",
       "tag": "list",
       "url": "https://lists.example/l.srs",
     },
   ],
   "final": "sel",
 },
}
"#;

/// Values of each type.
const VALUES: [&str; 12] = [
    "\"text\"",
    "7",
    "true",
    "false",
    "[\"text\"]",
    "{\"text\":\"text\"}",
    "null",
    "\"\"",
    "[]",
    "{}",
    "[[]]",
    "[null]",
];

/// Mappings with their keys, and those that have no place in them.
fn sites() -> Vec<(&'static str, &'static KeyKinds, Vec<&'static str>)> {
    use tables::{DNS, DNS_RULE, DNS_SERVER, GROUP, INBOUND, ROOT, ROUTE, RULE, RULE_SET, SERVER};
    let only = |table: &'static KeyKinds, keys: &[&str]| {
        table.iter().map(|(key, _)| *key).filter(|key| !keys.contains(key)).collect::<Vec<_>>()
    };
    let kinds = ["type", "mode", "rules"];
    let snell = ["psk", "userkey", "version", "mode", "obfs_mode", "obfs_host", "reuse"];
    vec![
        // Its contents are not read at all.
        ("ROOT", ROOT, vec!["log"]),
        // Each server has answers of its own here.
        ("DNS", DNS, vec!["independent_cache"]),
        ("DNS_SERVER", DNS_SERVER, vec!["address", "predefined", "prefer_go", "address_resolver"]),
        ("OLD", DNS_SERVER, only(DNS_SERVER, &["tag", "address", "detour"])),
        ("HOSTS", DNS_SERVER, only(DNS_SERVER, &["type", "predefined"])),
        ("DNS_RULE", &DNS_RULE, vec!["type", "mode", "disable_cache"]),
        ("INBOUND", INBOUND, vec!["tag", "users"]),
        ("SHADOWSOCKS", SERVER, snell.to_vec()),
        ("SNELL", SERVER, vec!["method", "password", "plugin", "plugin_opts"]),
        (
            "SELECTOR",
            GROUP,
            vec!["url", "interval", "tolerance", "idle_timeout", "interrupt_exist_connections"],
        ),
        ("URLTEST", GROUP, vec!["default", "idle_timeout", "interrupt_exist_connections"]),
        ("ROUTE", ROUTE, vec!["auto_detect_interface", "find_process", "default_domain_resolver"]),
        ("RULE", &RULE, [&kinds[..], &["method", "no_drop"]].concat()),
        ("REJECT", &RULE, only(&RULE, &["method"])),
        ("LOGICAL", &RULE, only(&RULE, &["type", "mode", "rules", "invert"])),
        ("RULE_SET", RULE_SET, vec!["path"]),
    ]
}

fn read(text: &str, form: Form) -> (Diagnostics, Option<Config>) {
    match parse(Some(form), "t", text) {
        Ok(loaded) => (loaded.diagnostics, Some(loaded.config)),
        Err(found) => (found, None),
    }
}

/// Whether sing-box takes a value for one that is not there.
fn is_nothing(kind: &ValueKind, value: &str) -> bool {
    if value == "null" {
        return true;
    }
    match kind {
        ValueKind::Text => value == "\"\"",
        ValueKind::Flag => value == "false",
        ValueKind::Texts | ValueKind::Numbers | ValueKind::Items | ValueKind::Maps(_) => value == "[]",
        ValueKind::Map(_) | ValueKind::Named(_) | ValueKind::Members => value.starts_with('{'),
        ValueKind::Either(kinds) => kinds.iter().any(|kind| is_nothing(kind, value)),
        ValueKind::Any => matches!(value, "\"\"" | "false" | "[]" | "{}"),
        ValueKind::Number => false,
    }
}

/// Keys by which others refer to a mapping: what refers to them is reported where it stands.
const NAMES: [&str; 6] =
    ["DNS_SERVER.tag", "OLD.tag", "SHADOWSOCKS.tag", "SNELL.tag", "SELECTOR.tag", "RULE_SET.tag"];

#[test]
fn every_key_of_sing_box_is_obeyed_or_reported() {
    let (found, config) = read(FILE, Form::SingBox);
    assert!(config.is_some() && found.is_empty(), "{found}");
    let (mut silent, mut walked) = (Vec::new(), 0);
    for (mark, table, others) in sites() {
        for (key, kind) in table.iter().filter(|(key, _)| !others.contains(key)) {
            let (without, _) = with(FILE, mark, key, "");
            let (_, before) = read(&without, Form::SingBox);
            for value in VALUES {
                walked += 1;
                let (text, line) = with(FILE, mark, key, &format!("\"{key}\": {value},"));
                let (found, after) = read(&text, Form::SingBox);
                let is_obeyed = after.is_some() && before != after;
                let is_name = NAMES.contains(&&*format!("{mark}.{key}")) && value == "\"text\"";
                // A word of the right type may be missed elsewhere; nothing else is to be said about this file.
                let is_word = matches!(kind, ValueKind::Text | ValueKind::Texts)
                    && value.contains("\"text\"")
                    && !value.contains('{');
                let is_missed = is_word && !found.is_empty();
                let is_reported = names(&found, key, line) || is_missed;
                if !(is_reported || is_obeyed || is_nothing(kind, value) || is_name) {
                    silent.push(format!("{mark}.{key}: {value}   {found}"));
                }
            }
        }
    }
    assert!(walked > 1000, "{walked}");
    assert!(silent.is_empty(), "{} of {walked} are silent:\n{}", silent.len(), silent.join("\n"));
}

/// A profile with a line of each kind; `{}` is one more key of it.
const LINES: [(&str, &[&str]); 4] = [
    (
        "a = snell, a.example, 1, psk=0123456789abcdef, obfs=http",
        &[
            "version",
            "obfs-host",
            "reuse",
            "udp-relay",
            "tfo",
            "interface",
            "ip-version",
            "block-quic",
            "mode",
        ],
    ),
    (
        "b = ss, b.example, 2, encrypt-method=aes-128-gcm, password=p, obfs=tls",
        &["udp-relay", "tfo", "obfs-host"],
    ),
    (
        "Auto = url-test, a, b",
        &[
            "url",
            "interval",
            "tolerance",
            "policy-path",
            "include-all-proxies",
            "evaluate-before-use",
            "timeout",
        ],
    ),
    ("DOMAIN,x.example,a", &[]),
];

#[test]
fn every_key_of_surge_is_obeyed_or_reported() {
    let profile = |line: usize, more: &str| {
        let at = |n: usize| format!("{}{}", LINES[n].0, if n == line { more } else { "" });
        format!(
            "[General]\nhttp-listen = 127.0.0.1:1\n[Proxy]\n{}\n{}\n[Proxy Group]\n{}\n[Rule]\n{}\nFINAL,Auto\n",
            at(0),
            at(1),
            at(2),
            at(3)
        )
    };
    let (found, plain) = read(&profile(9, ""), Form::Surge);
    assert!(plain.is_some() && found.is_empty(), "{found}");
    // Values that hold without the key, and those that a client passes over.
    let is_default = |key: &str, value: &str| match value {
        "" => true,
        "false" => {
            !matches!(key, "version" | "interface" | "ip-version" | "block-quic" | "interval" | "tolerance")
        }
        // The version without a number has no reuse.
        "true" => matches!(key, "udp-relay" | "reuse"),
        _ => false,
    };
    let mut silent = Vec::new();
    for (n, line) in [(0, 4), (1, 5), (2, 7)] {
        for key in LINES[n].1 {
            for value in ["text", "7", "true", "false", "-1", "1.5", "\"\"", "[text]", ""] {
                let text = profile(n, &format!(", {key}={value}"));
                let (found, config) = read(&text, Form::Surge);
                let is_obeyed = config.is_some() && config != plain;
                let value = value.trim_matches('"');
                if !(names(&found, key, line) || is_obeyed || is_default(key, value)) {
                    silent.push(format!("{key}={value}   {found}"));
                }
            }
        }
    }
    for value in ["no-resolve", "No-Resolve", "text", "src"] {
        let (found, config) = read(&profile(3, &format!(",{value}")), Form::Surge);
        // A name needs no address, so that these words say nothing about it.
        let is_known = matches!(value, "no-resolve" | "src");
        assert!(is_known || found.iter().any(|one| one.line == 9), "{value}: {found}");
        assert_eq!(config.map(|config| config.rules.len()), Some(1));
    }
    for key in ["http-listen", "socks5-listen"] {
        for value in ["text", "7:x", "true", "[text]"] {
            let text = profile(9, "").replace("http-listen = 127.0.0.1:1", &format!("{key} = {value}"));
            let (found, _) = read(&text, Form::Surge);
            assert!(names(&found, key, 2), "{key} = {value}: {found}");
        }
    }
    assert!(silent.is_empty(), "{} are silent:\n{}", silent.len(), silent.join("\n"));
}

/// Single entries of mihomo, each of which begins with a mark.
const ENTRIES: [(&str, &str); 3] = [
    (
        "ss",
        "#@ss\nname: a\ntype: ss\nserver: a.example\nport: 1\ncipher: aes-128-gcm\npassword: p\nplugin: obfs\n\
         plugin-opts:\n  #@PLUGIN\n  mode: http\n  host: h\nudp: true\n",
    ),
    (
        "ssr",
        "#@ssr\nname: a\ntype: ssr\nserver: a.example\nport: 1\ncipher: aes-128-ctr\npassword: p\n\
         protocol: auth_aes128_md5\nprotocol-param: 1:k\nobfs: http_simple\nobfs-param: x.example\n",
    ),
    (
        "snell",
        "#@snell\nname: a\ntype: snell\nserver: a.example\nport: 1\npsk: 0123456789abcdef\nversion: 4\n\
         obfs-opts:\n  #@OBFS\n  mode: http\n  host: h\n",
    ),
];

#[test]
fn every_key_of_an_entry_of_mihomo_is_obeyed_or_reported() {
    use crate::clash::tables::{BASIC, OBFS, TYPES};
    const VALUES: [&str; 14] = [
        "text",
        "off",
        "7",
        "true",
        "false",
        "-1",
        "1.5",
        "[text]",
        "{text: text}",
        "~",
        "''",
        "[]",
        "{}",
        "[[]]",
    ];
    let (mut silent, mut walked) = (Vec::new(), 0);
    for (kind, text) in ENTRIES {
        let (found, config) = read(text, Form::Mihomo);
        assert!(config.is_some() && found.is_empty(), "{kind}: {found}");
        let (_, own) = TYPES.iter().find(|(name, _)| *name == kind).unwrap();
        let keys = BASIC.iter().chain(own.iter()).map(|row| (kind, row));
        let below = ["PLUGIN", "OBFS"].into_iter().filter(|mark| text.contains(mark));
        let below = below.flat_map(|mark| OBFS.iter().map(move |row| (mark, row)));
        for (mark, (key, of)) in keys.chain(below) {
            let (without, _) = with(text, mark, key, "#");
            let (_, before) = read(&without, Form::Mihomo);
            for value in VALUES {
                walked += 1;
                let (text, line) = with(text, mark, key, &format!("{key}: {value}"));
                let (found, after) = read(&text, Form::Mihomo);
                let is_obeyed = after.is_some() && before != after;
                // `uid:key`, or nothing that counts.
                let is_free = *key == "protocol-param"
                    && !matches!(value, "[text]" | "{text: text}" | "[]" | "{}" | "[[]]");
                let as_json = value.replace('~', "null").replace("''", "\"\"").replace("off", "false");
                // It holds without the key.
                let is_free = is_free || *key == "mode" && value == "off";
                if !(names(&found, key, line) || is_obeyed || is_free || is_nothing(of, &as_json)) {
                    silent.push(format!("{mark}.{key}: {value}   {found}"));
                }
            }
        }
    }
    assert!(walked > 500, "{walked}");
    assert!(silent.is_empty(), "{} of {walked} are silent:\n{}", silent.len(), silent.join("\n"));
}
