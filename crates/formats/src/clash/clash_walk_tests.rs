//! Every key with a value of every wrong type: it is obeyed, or reported at its place.
//!
//! The keys are those of the tables, so that a new one is walked as well. Text goes in, a configuration and findings come
//! out.

use std::path::Path;

use adit_model::diagnostic::Diagnostics;

use super::{ClashSetup, load, tables};
use crate::read::kinds::{KeyKinds, ValueKind};
use crate::walk_marks::{names, with};

const GEO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash/geo");

/// A file in which every mapping with known keys begins with a mark.
const FILE: &str = "\
#@ROOT
mixed-port: 7890
allow-lan: true
external-controller: 127.0.0.1:9090
external-ui: ui
mode: rule
plugins-allowed:
- v2ray-plugin
profile:
  #@PROFILE
  store-selected: true
external-controller-cors:
  #@CORS
  allow-private-network: true
dns:
  #@DNS
  enable: true
  listen: 127.0.0.1:1053
  enhanced-mode: fake-ip
  default-nameserver:
  - 192.0.2.1
  nameserver:
  - https://dns.example/q
  fallback:
  - 192.0.2.2
  proxy-server-nameserver:
  - 192.0.2.3
  fallback-filter:
    #@FALLBACK_FILTER
    geoip-code: cn
sniffer:
  #@SNIFFER
  enable: true
  sniff:
    TLS:
      #@SNIFF
      ports:
      - 443
tun:
  #@TUN
  enable: true
  auto-route: true
  auto-redirect: true
iptables:
  #@SWITCH
  enable: false
proxies:
-
  #@ss
  name: ss
  type: ss
  server: ss.example
  port: 1
  cipher: aes-128-gcm
  password: p
  plugin: v2ray-plugin
  plugin-opts:
    #@PLUGIN
    mode: websocket
  smux:
    #@SMUX
    enabled: false
-
  #@ssr
  name: ssr
  type: ssr
  server: ssr.example
  port: 1
  cipher: aes-128-ctr
  password: p
  protocol: auth_aes128_md5
  protocol-param: 1:k
  obfs: http_simple
-
  #@snell
  name: snell
  type: snell
  server: snell.example
  port: 1
  psk: 0123456789abcdef
  version: 4
  obfs-opts:
    #@OBFS
    mode: http
-
  #@socks5
  name: socks5
  type: socks5
  server: socks.example
  port: 1
  tls: true
-
  #@http
  name: http
  type: http
  server: http.example
  port: 1
  tls: true
-
  #@direct
  name: direct
  type: direct
-
  #@rematch
  name: rematch
  type: rematch
  target-sub-rule: sub
proxy-providers:
  followed:
    #@FOLLOWED
    type: http
    url: http://a.example/
    path: ./none.yaml
  own:
    #@PROXY_PROVIDER
    type: inline
    payload:
    -
      name: in-text-7-true-false
      type: socks5
      server: in.example
      port: 1
    -
      name: in-2
      type: http
      server: in.example
      port: 1
      tls: true
    health-check:
      #@HEALTH_CHECK
      enable: true
    override:
      #@OVERRIDE
      additional-prefix: p-
      proxy-name:
      -
        #@RENAME
        pattern: in-(.*)
        target: out-$1
proxy-groups:
-
  #@GROUP
  name: G
  type: select
  proxies:
  - DIRECT
  - ss
  - http
  use:
  - own
-
  #@URL_TEST
  name: U
  type: url-test
  proxies:
  - ss
-
  #@LOAD_BALANCE
  name: L
  type: load-balance
  proxies:
  - ss
-
  #@EMPTY
  name: E
  type: select
  use:
  - followed
rule-providers:
  names:
    #@RULE_PROVIDER
    type: inline
    behavior: domain
    payload:
    - a.example
  fetched:
    #@FETCHED
    type: http
    behavior: domain
    format: text
    url: http://a.example/
    path: ./none.txt
sub-rules:
  sub:
  - MATCH,DIRECT
listeners:
-
  #@MIXED
  name: l-mixed
  type: mixed
  port: 7001
  users:
  -
    #@USER
    username: u
    password: p
-
  #@TUNNEL_LISTENER
  name: l-tunnel
  type: tunnel
  port: 7002
  target: t.example:1
-
  #@SHADOWSOCKS
  name: l-ss
  type: shadowsocks
  port: 7003
  cipher: aes-128-gcm
  password: p
  shadow-tls:
    #@COVER
    enable: false
-
  #@SNELL
  name: l-snell
  type: snell
  port: 7004
  psk: 0123456789abcdef
  obfs-opts:
    #@OBFS_LISTENER
    mode: http
tunnels:
-
  #@TUNNEL
  network:
  - tcp
  address: 127.0.0.1:7005
  target: t.example:1
rules:
- DOMAIN,a.example,G
- DOMAIN,b.example,http
- RULE-SET,names,U
- MATCH,rematch
";

/// Values of each type, in the words of YAML.
const VALUES: [&str; 12] =
    ["text", "7", "true", "false", "[text]", "{text: text}", "~", "''", "[]", "{}", "[[]]", "[~]"];

/// The keys within a key.
fn within(table: &'static KeyKinds, key: &str) -> &'static KeyKinds {
    fn inner(kind: &'static ValueKind) -> &'static KeyKinds {
        match kind {
            ValueKind::Map(table) | ValueKind::Maps(table) => table,
            ValueKind::Named(kind) => inner(kind),
            ValueKind::Either(kinds) => {
                kinds.iter().map(inner).find(|table| !table.is_empty()).unwrap_or(&[])
            }
            ValueKind::Flag
            | ValueKind::Number
            | ValueKind::Text
            | ValueKind::Texts
            | ValueKind::Numbers
            | ValueKind::Items
            | ValueKind::Members
            | ValueKind::Any => &[],
        }
    }
    let kind = super::kinds::find(table, key).unwrap_or_else(|| panic!("no key {key}"));
    let found = inner(kind);
    assert!(!found.is_empty(), "{key} has no keys");
    found
}

/// All mappings of the file with the tables of their keys.
fn sites() -> Vec<(&'static str, Vec<&'static KeyKinds>, Vec<&'static str>)> {
    use tables::{BASIC, GROUP, PROXY_PROVIDER, ROOT, RULE_PROVIDER, SERVER, TUNNEL, TYPES};
    let of = |name: &str| TYPES.iter().find(|(known, _)| *known == name).expect("a type").1;
    let own = within(ROOT, "proxy-providers");
    let over = within(own, "override");
    let listener: Vec<&'static str> = SERVER.iter().map(|(key, _)| *key).collect();
    // Those of a kind of listener are these, and some of its own; all others are of other kinds.
    let every = ["name", "type", "listen", "port", "rule", "proxy"];
    let only = |keys: &[&str]| -> Vec<&'static str> {
        listener.iter().copied().filter(|key| !every.contains(key) && !keys.contains(key)).collect()
    };
    let fetched = ["url", "interval", "proxy", "size-limit", "header", "path", "format"];
    let chosen = ["use", "filter", "exclude-filter", "exclude-type", "empty-fallback"];
    let no_way = ["server", "port"];
    let mut all: Vec<(&'static str, Vec<&'static KeyKinds>, Vec<&'static str>)> = vec![
        ("ROOT", vec![ROOT], vec![]),
        ("PROFILE", vec![within(ROOT, "profile")], vec![]),
        ("CORS", vec![within(ROOT, "external-controller-cors")], vec![]),
        ("DNS", vec![within(ROOT, "dns")], vec![]),
        ("FALLBACK_FILTER", vec![within(within(ROOT, "dns"), "fallback-filter")], vec![]),
        ("SNIFFER", vec![within(ROOT, "sniffer")], vec!["sniffing", "port-whitelist"]),
        ("SNIFF", vec![within(within(ROOT, "sniffer"), "sniff")], vec![]),
        ("TUN", vec![within(ROOT, "tun")], vec![]),
        ("SWITCH", vec![within(ROOT, "iptables")], vec!["enabled"]),
        ("PLUGIN", vec![within(of("ss"), "plugin-opts")], vec![]),
        ("SMUX", vec![within(BASIC, "smux")], vec![]),
        ("OBFS", vec![within(of("snell"), "obfs-opts")], vec![]),
        (
            "FOLLOWED",
            vec![PROXY_PROVIDER],
            vec!["payload", "exclude-type", "dialer-proxy", "override", "filter", "exclude-filter"],
        ),
        ("PROXY_PROVIDER", vec![PROXY_PROVIDER], fetched.to_vec()),
        ("HEALTH_CHECK", vec![within(own, "health-check")], vec![]),
        ("OVERRIDE", vec![over], vec![]),
        ("RENAME", vec![within(over, "proxy-name")], vec![]),
        ("GROUP", vec![GROUP], vec!["strategy", "tolerance", "empty-fallback"]),
        ("URL_TEST", vec![GROUP], [&["strategy", "default-selected"][..], &chosen].concat()),
        ("LOAD_BALANCE", vec![GROUP], [&["tolerance", "default-selected"][..], &chosen].concat()),
        ("RULE_PROVIDER", vec![RULE_PROVIDER], fetched.to_vec()),
        ("FETCHED", vec![RULE_PROVIDER], vec!["payload"]),
        ("MIXED", vec![SERVER], only(&["users", "certificate", "private-key", "routing-mark"])),
        ("USER", vec![within(SERVER, "users")], vec![]),
        ("TUNNEL_LISTENER", vec![SERVER], only(&["network", "target", "certificate", "private-key"])),
        (
            "SHADOWSOCKS",
            vec![SERVER],
            only(&[
                "udp",
                "cipher",
                "password",
                "shadow-tls",
                "simple-obfs",
                "res-tls",
                "jls-config",
                "kcp-tun",
                "mux-option",
                "routing-mark",
            ]),
        ),
        ("COVER", vec![within(SERVER, "shadow-tls")], vec![]),
        ("SNELL", vec![SERVER], only(&["udp", "psk", "version", "obfs-opts"])),
        ("OBFS_LISTENER", vec![within(SERVER, "obfs-opts")], vec!["host"]),
        ("TUNNEL", vec![TUNNEL], vec![]),
    ];
    for kind in ["ss", "ssr", "snell", "socks5", "http"] {
        all.push((kind, vec![BASIC, of(kind)], vec!["dialer-proxy"]));
    }
    all.push((
        "direct",
        vec![BASIC],
        no_way.iter().copied().chain(["dialer-proxy", "smux", "udp"]).collect(),
    ));
    all.push(("rematch", vec![of("rematch")], vec![]));
    all
}

/// The findings about a text, and what it means if it can be read.
fn read(text: &str) -> (Diagnostics, Option<ClashSetup>) {
    match load("config.yaml", text, Path::new(GEO)) {
        Ok(setup) => {
            let mut found = setup.diagnostics.clone();
            found.append(setup.refused.clone());
            (found, Some(setup))
        }
        Err(found) => (found, None),
    }
}

/// Whether mihomo takes a value for one that is not there.
fn is_nothing(kind: &ValueKind, value: &str) -> bool {
    if value == "~" {
        return true;
    }
    match kind {
        ValueKind::Text => value == "''",
        ValueKind::Texts | ValueKind::Items | ValueKind::Maps(_) | ValueKind::Numbers => value == "[]",
        ValueKind::Map(_) | ValueKind::Named(_) | ValueKind::Members => value == "{}",
        ValueKind::Either(kinds) => kinds.iter().any(|kind| is_nothing(kind, value)),
        ValueKind::Any => value == "''",
        ValueKind::Flag | ValueKind::Number => false,
    }
}

/// Keys with words that are right and change nothing in this file: no entry is of such a type, no plugin has such a name,
/// and what mihomo passes over as well.
const SILENT: [&str; 17] = [
    "TUN.gso",
    "TUN.gso-max-size",
    "TUN.auto-detect-interface",
    "TUN.endpoint-independent-nat",
    "TUN.recvmsgx",
    "TUN.sendmsgx",
    "GROUP.include-all-providers",
    "ROOT.plugins-allowed",
    "PROXY_PROVIDER.exclude-type",
    "GROUP.exclude-type",
    "TUN.stack",
    "TUN.auto-redirect-input-mark",
    "TUN.auto-redirect-output-mark",
    "ss.client-fingerprint",
    "snell.client-fingerprint",
    "ssr.protocol-param",
    "SNIFFER.skip-domain",
];

/// Keys without effect on the way of traffic, which many entries have.
const QUIET: [&str; 6] =
    ["direct.mptcp", "ss.mptcp", "ssr.mptcp", "snell.mptcp", "socks5.mptcp", "http.mptcp"];

/// Keys by which others refer to a mapping: a finding stands where they do.
const NAMES: [&str; 6] =
    ["ss.name", "http.name", "GROUP.name", "URL_TEST.name", "rematch.name", "rematch.target-sub-rule"];

/// Whether a value has the type of a key, and no finding is needed where it changes nothing.
fn is_allowed(path: &str, kind: &ValueKind, value: &str, after: Option<&ClashSetup>) -> bool {
    let is_scalar = ["text", "7", "true", "false"].contains(&value);
    let is_right = match kind {
        ValueKind::Text => is_scalar,
        ValueKind::Texts => is_scalar || value == "[text]",
        ValueKind::Flag => matches!(value, "true" | "false"),
        // The key within is unknown, and no matter of types.
        ValueKind::Map(_) => return value == "{text: text}",
        ValueKind::Either(_) => return matches!(value, "{text: text}" | "false"),
        ValueKind::Number => value == "7",
        ValueKind::Numbers
        | ValueKind::Maps(_)
        | ValueKind::Named(_)
        | ValueKind::Items
        | ValueKind::Members
        | ValueKind::Any => false,
    };
    // A text that says no switches nothing on.
    let is_off = path.starts_with("ROOT.") && value == "false";
    is_right
        && (is_off
            || SILENT.contains(&path)
            || QUIET.contains(&path)
            || (NAMES.contains(&path) && after.is_none()))
}

#[test]
fn every_key_is_obeyed_or_reported() {
    let (found, setup) = read(FILE);
    assert!(setup.is_some(), "{found}");
    let mut silent = Vec::new();
    let mut walked = 0;
    for (mark, tables, others) in sites() {
        for (key, kind) in
            tables.iter().flat_map(|table| table.iter()).filter(|(key, _)| !others.contains(key))
        {
            let (without, _) = with(FILE, mark, key, "#");
            let before = read(&without).1.map(|setup| setup.config);
            let mut flags = 0;
            for value in VALUES {
                walked += 1;
                let (text, line) = with(FILE, mark, key, &format!("{key}: {value}"));
                let (found, after) = read(&text);
                let is_reported = names(&found, key, line);
                let is_obeyed = match (&before, &after) {
                    (Some(before), Some(after)) => *before != after.config,
                    // It is needed, and there.
                    (None, Some(_)) => true,
                    (_, None) => false,
                };
                let is_flag = matches!(kind, ValueKind::Flag) && matches!(value, "true" | "false");
                if is_reported || is_obeyed || is_nothing(kind, value) {
                    continue;
                }
                let is_default = is_allowed(&format!("{mark}.{key}"), kind, value, after.as_ref());
                // One of both is what holds without the key.
                flags += usize::from(is_flag);
                let is_first = is_flag && flags == 1;
                if !is_first && !is_default {
                    silent.push(format!("{mark}.{key}: {value}"));
                }
            }
        }
    }
    assert!(walked > 3000, "{walked}");
    assert!(silent.is_empty(), "{} of {walked} are silent:\n{}", silent.len(), silent.join("\n"));
}
