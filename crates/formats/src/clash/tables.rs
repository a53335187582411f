//! The keys of each mapping of a file, with their types; a key that is not here is unknown.
//!
//! Types are those of mihomo (Alpha, February 2025): its structures of YAML at the top, `dns`, `tun` and `sniffer`, and those of
//! proxies, groups, providers and listeners, which it decodes weakly typed.

use crate::read::kinds::KeyKinds;
use crate::read::kinds::ValueKind::{
    self, Any, Either, Flag, Items, Map, Maps, Members, Named, Number, Text, Texts,
};

pub(crate) const ROOT: &KeyKinds = &[
    ("port", Number),
    ("socks-port", Number),
    ("mixed-port", Number),
    ("redir-port", Number),
    ("tproxy-port", Number),
    ("allow-lan", Flag),
    ("bind-address", Text),
    ("authentication", Texts),
    ("mode", Text),
    ("log-level", Text),
    ("hosts", Named(&Texts)),
    ("dns", Map(DNS)),
    ("proxies", Items),
    ("proxy-groups", Maps(GROUP)),
    ("proxy-providers", Named(&Map(PROXY_PROVIDER))),
    ("rule-providers", Named(&Map(RULE_PROVIDER))),
    ("sub-rules", Named(&Texts)),
    ("rules", Texts),
    ("listeners", Maps(SERVER)),
    ("tunnels", TUNNELS),
    ("ss-config", Text),
    ("geodata-mode", Flag),
    ("geo-auto-update", Flag),
    ("geo-update-interval", Number),
    ("geox-url", Named(&Text)),
    ("ipv6", Flag),
    ("unified-delay", Flag),
    ("global-ua", Text),
    ("profile", Map(PROFILE)),
    ("plugins-allowed", Texts),
    ("find-process-mode", Text),
    ("tun", Map(TUN)),
    ("external-controller", Text),
    ("external-controller-unix", Text),
    ("external-controller-cors", Map(CORS)),
    ("external-ui", Text),
    ("external-ui-name", Text),
    ("external-ui-url", Text),
    ("secret", Text),
    ("sniffer", Map(SNIFFER)),
    ("interface-name", Text),
    ("routing-mark", Number),
    ("lan-allowed-ips", Texts),
    ("lan-disallowed-ips", Texts),
    ("skip-auth-prefixes", Texts),
    ("sniffing", Flag),
    // Without effect on the way of traffic.
    ("tcp-concurrent", Flag),
    ("keep-alive-idle", Number),
    ("keep-alive-interval", Number),
    ("disable-keep-alive", Flag),
    ("global-client-fingerprint", Text),
    ("etag-support", Flag),
    ("geodata-loader", Text),
    ("geosite-matcher", Text),
    ("experimental", Members),
    ("inbound-tfo", Flag),
    ("inbound-mptcp", Flag),
    ("clash-for-android", Members),
    // Of services that are not there.
    ("external-controller-tls", Text),
    ("external-controller-pipe", Text),
    ("external-doh-server", Text),
    ("tls", Members),
    ("ntp", Members),
    ("vmess-config", Text),
    ("tuic-server", Members),
    ("iptables", Map(SWITCH)),
];

pub(super) const DNS: &KeyKinds = &[
    ("enable", Flag),
    ("ipv6", Flag),
    ("listen", Text),
    ("enhanced-mode", Text),
    ("default-nameserver", Texts),
    ("nameserver", Texts),
    ("nameserver-policy", Named(&Texts)),
    ("proxy-server-nameserver", Texts),
    ("direct-nameserver", Texts),
    ("use-hosts", Flag),
    ("use-system-hosts", Flag),
    ("cache-algorithm", Text),
    ("cache-max-size", Number),
    ("prefer-h3", Flag),
    ("fake-ip-range", Text),
    ("fake-ip-range6", Text),
    ("fake-ip-filter", Texts),
    ("fake-ip-filter-mode", Text),
    ("fake-ip-ttl", Number),
    ("ipv6-timeout", Number),
    ("respect-rules", Flag),
    ("fallback", Texts),
    ("fallback-filter", Map(FALLBACK_FILTER)),
];

pub(super) const FALLBACK_FILTER: &KeyKinds =
    &[("geoip", Flag), ("geoip-code", Text), ("ipcidr", Texts), ("domain", Texts), ("geosite", Texts)];

pub(super) const PROFILE: &KeyKinds = &[("store-selected", Flag), ("store-fake-ip", Flag)];

const CORS: &KeyKinds = &[("allow-origins", Texts), ("allow-private-network", Flag)];

pub(super) const TUN: &KeyKinds = &[
    ("enable", Flag),
    ("device", Text),
    ("mtu", Number),
    ("auto-route", Flag),
    ("auto-redirect", Flag),
    ("strict-route", Flag),
    ("dns-hijack", Texts),
    ("inet6-address", Texts),
    ("exclude-uid", Texts),
    ("exclude-uid-range", Texts),
    ("include-uid", Texts),
    ("include-uid-range", Texts),
    ("exclude-interface", Texts),
    ("include-interface", Texts),
    ("route-exclude-address", Texts),
    ("inet4-route-exclude-address", Texts),
    ("inet6-route-exclude-address", Texts),
    ("route-address", Texts),
    ("inet4-route-address", Texts),
    ("inet6-route-address", Texts),
    ("udp-timeout", Number),
    ("iproute2-table-index", Number),
    ("iproute2-rule-index", Number),
    // Without effect on the way of traffic.
    ("stack", Text),
    ("gso", Flag),
    ("gso-max-size", Number),
    ("auto-detect-interface", Flag),
    ("endpoint-independent-nat", Flag),
    ("auto-redirect-input-mark", Text),
    ("auto-redirect-output-mark", Text),
    ("recvmsgx", Flag),
    ("sendmsgx", Flag),
];

pub(super) const SNIFFER: &KeyKinds = &[
    ("enable", Flag),
    ("sniff", Named(&Map(SNIFF))),
    ("override-destination", Flag),
    ("force-dns-mapping", Flag),
    ("parse-pure-ip", Flag),
    ("force-domain", Texts),
    ("skip-domain", Texts),
    ("skip-src-address", Texts),
    ("skip-dst-address", Texts),
    ("sniffing", Texts),
    ("port-whitelist", Texts),
];

const SNIFF: &KeyKinds = &[("ports", Texts), ("override-destination", Flag)];

pub(super) const GROUP: &KeyKinds = &[
    ("name", Text),
    ("type", Text),
    ("proxies", Texts),
    ("use", Texts),
    ("include-all", Flag),
    ("include-all-proxies", Flag),
    ("include-all-providers", Flag),
    ("filter", Text),
    ("exclude-filter", Text),
    ("exclude-type", Text),
    ("url", Text),
    ("interval", Number),
    ("lazy", Flag),
    ("timeout", Number),
    ("max-failed-times", Number),
    ("expected-status", Text),
    ("tolerance", Number),
    ("strategy", Text),
    ("disable-udp", Flag),
    ("hidden", Flag),
    ("icon", Text),
    ("default-selected", Text),
    ("empty-fallback", Text),
];

pub(super) const PROXY_PROVIDER: &KeyKinds = &[
    ("type", Text),
    ("url", Text),
    ("path", Text),
    ("interval", Number),
    ("proxy", Text),
    ("size-limit", Number),
    ("header", Named(&Texts)),
    ("health-check", Map(HEALTH_CHECK)),
    ("filter", Text),
    ("exclude-filter", Text),
    ("exclude-type", Text),
    ("dialer-proxy", Text),
    ("override", Map(OVERRIDE)),
    ("payload", Items),
];

pub(super) const HEALTH_CHECK: &KeyKinds = &[
    ("enable", Flag),
    ("url", Text),
    ("interval", Number),
    ("timeout", Number),
    ("lazy", Flag),
    ("expected-status", Text),
];

const OVERRIDE: &KeyKinds = &[
    ("additional-prefix", Text),
    ("additional-suffix", Text),
    ("proxy-name", Maps(RENAME)),
    ("udp", Flag),
    ("tfo", Flag),
    ("skip-cert-verify", Flag),
    ("interface-name", Text),
    ("routing-mark", Number),
    ("ip-version", Text),
    ("dialer-proxy", Text),
    ("udp-over-tcp", Flag),
    ("smux", Either(&[Map(SMUX), Flag])),
    ("mptcp", Flag),
    ("up", Text),
    ("down", Text),
];

const RENAME: &KeyKinds = &[("pattern", Text), ("target", Text)];

pub(super) const RULE_PROVIDER: &KeyKinds = &[
    ("type", Text),
    ("behavior", Text),
    ("format", Text),
    ("url", Text),
    ("path", Text),
    ("interval", Number),
    ("proxy", Text),
    ("size-limit", Number),
    ("header", Named(&Texts)),
    ("payload", Texts),
];

/// Listeners for applications.
pub(super) const LISTENER: &KeyKinds = &[
    ("name", Text),
    ("type", Text),
    ("listen", Text),
    ("port", Text),
    ("rule", Text),
    ("proxy", Text),
    ("users", Maps(USER)),
    ("network", Texts),
    ("target", Text),
    ("certificate", Text),
    ("private-key", Text),
];

/// Listeners of all types.
pub(super) const SERVER: &KeyKinds = &[
    ("name", Text),
    ("type", Text),
    ("listen", Text),
    ("port", Text),
    ("rule", Text),
    ("proxy", Text),
    ("udp", Flag),
    ("users", Maps(USER)),
    ("network", Texts),
    ("target", Text),
    ("certificate", Text),
    ("private-key", Text),
    ("cipher", Text),
    ("password", Text),
    ("psk", Text),
    ("version", Number),
    ("obfs-opts", Map(OBFS)),
    ("simple-obfs", Map(SWITCH)),
    ("shadow-tls", Map(SWITCH)),
    ("res-tls", Map(SWITCH)),
    ("jls-config", Map(SWITCH)),
    ("kcp-tun", Map(SWITCH)),
    ("mux-option", Map(SWITCH)),
    ("routing-mark", Number),
];

const USER: &KeyKinds = &[("username", Text), ("password", Text)];

/// A block that can be switched on.
const SWITCH: &KeyKinds = &[("enable", Flag), ("enabled", Flag)];

/// Lines, or mappings.
const TUNNELS: ValueKind = Items;

/// One of `tunnels`.
pub(super) const TUNNEL: &KeyKinds =
    &[("network", Texts), ("address", Text), ("target", Text), ("proxy", Text)];

/// Keys of all types of proxies.
pub(crate) const BASIC: &KeyKinds = &[
    ("name", Text),
    ("type", Text),
    ("server", Text),
    ("port", Number),
    ("udp", Flag),
    ("tfo", Flag),
    ("mptcp", Flag),
    ("interface-name", Text),
    ("routing-mark", Number),
    ("ip-version", Text),
    ("dialer-proxy", Text),
    ("smux", Map(SMUX)),
];

const SMUX: &KeyKinds = &[("enabled", Flag)];

pub(crate) const OBFS: &KeyKinds = &[("mode", Text), ("host", Text)];

/// Options of plugins, of all of those that adit has.
const PLUGIN: &KeyKinds = &[
    ("mode", Text),
    ("host", Text),
    ("path", Text),
    ("tls", Flag),
    ("mux", Flag),
    ("skip-cert-verify", Flag),
];

/// Keys that types of proxies have of their own, beside [`BASIC`].
pub(crate) const TYPES: &[(&str, &KeyKinds)] = &[
    (
        "ss",
        &[
            ("password", Text),
            ("cipher", Text),
            ("plugin", Text),
            ("plugin-opts", Map(PLUGIN)),
            ("udp-over-tcp", Flag),
            ("udp-over-tcp-version", Number),
            ("client-fingerprint", Text),
        ],
    ),
    (
        "ssr",
        &[
            ("password", Text),
            ("cipher", Text),
            ("obfs", Text),
            ("obfs-param", Text),
            ("protocol", Text),
            ("protocol-param", Text),
        ],
    ),
    (
        "snell",
        &[
            ("psk", Text),
            ("version", Number),
            ("obfs-opts", Map(OBFS)),
            ("reuse", Flag),
            ("client-fingerprint", Text),
        ],
    ),
    (
        "socks5",
        &[
            ("username", Text),
            ("password", Text),
            ("tls", Flag),
            ("skip-cert-verify", Flag),
            ("fingerprint", Text),
            ("certificate", Text),
            ("private-key", Text),
            ("name-cert-verify", Any),
        ],
    ),
    (
        "http",
        &[
            ("username", Text),
            ("password", Text),
            ("tls", Flag),
            ("sni", Text),
            ("skip-cert-verify", Flag),
            ("fingerprint", Text),
            ("certificate", Text),
            ("private-key", Text),
            ("name-cert-verify", Any),
            ("headers", Named(&Texts)),
        ],
    ),
    ("direct", &[]),
    ("dns", &[]),
    ("reject", &[]),
    (super::proxy::REMATCH, &[("target-rematch-name", Text), ("target-sub-rule", Text)]),
];
