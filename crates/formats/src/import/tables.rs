//! The keys of a file of sing-box (1.14) that are read, with their types; see [`kinds`](crate::read::kinds).
//!
//! A key that turns the meaning of a rule round is here even where adit cannot obey it: such a rule stops the import.

use crate::read::kinds::ValueKind::{
    Any, Either, Flag, Items, Map, Maps, Members, Named, Number, Numbers, Text, Texts,
};
use crate::read::kinds::{KeyKinds, ValueKind};

pub(super) const ROOT: &KeyKinds = &[
    ("dns", Map(DNS)),
    ("inbounds", Maps(INBOUND)),
    ("outbounds", Items),
    ("route", Map(ROUTE)),
    ("log", Members),
];

pub(super) const ROUTE: &KeyKinds = &[
    ("rules", Maps(&RULE)),
    ("rule_set", Maps(RULE_SET)),
    ("final", Text),
    ("default_domain_resolver", RESOLVER),
    ("default_interface", Text),
    ("default_mark", Either(&[Text, Number])),
    ("auto_detect_interface", Flag),
    ("find_process", Flag),
];

/// One of `route.rules`, of which there may be some within another.
pub(super) static RULE: [(&str, ValueKind); 28] = [
    ("type", Text),
    ("mode", Text),
    ("rules", Maps(&RULE)),
    ("invert", Flag),
    ("action", Text),
    ("outbound", Text),
    ("method", Text),
    ("no_drop", Flag),
    ("domain", Texts),
    ("domain_suffix", Texts),
    ("domain_keyword", Texts),
    ("domain_regex", Texts),
    ("ip_cidr", Texts),
    ("ip_is_private", Flag),
    ("rule_set", Texts),
    ("rule_set_ip_cidr_match_source", Flag),
    ("rule_set_ipcidr_match_source", Flag),
    ("port", Numbers),
    ("port_range", Texts),
    ("source_ip_cidr", Texts),
    ("source_ip_is_private", Flag),
    ("source_port", Numbers),
    ("source_port_range", Texts),
    ("network", Texts),
    ("protocol", Texts),
    ("auth_user", Texts),
    ("process_name", Texts),
    ("process_path", Texts),
];

pub(super) const RULE_SET: &KeyKinds = &[
    ("tag", Text),
    ("type", Text),
    ("format", Text),
    ("path", Text),
    ("url", Text),
    ("download_detour", Text),
    ("update_interval", Text),
    ("rules", Items),
];

pub(super) const DNS: &KeyKinds = &[
    ("servers", Maps(DNS_SERVER)),
    ("rules", Maps(&DNS_RULE)),
    ("final", Text),
    ("strategy", Text),
    ("reverse_mapping", Flag),
    ("disable_cache", Flag),
    ("disable_expire", Flag),
    ("independent_cache", Flag),
    ("cache_capacity", Number),
];

pub(super) const DNS_SERVER: &KeyKinds = &[
    ("tag", Text),
    ("type", Text),
    ("address", Text),
    ("server", Text),
    ("server_port", Number),
    ("path", Text),
    ("tls", Map(TLS)),
    ("detour", Text),
    ("domain_resolver", RESOLVER),
    ("address_resolver", Text),
    ("strategy", Text),
    ("predefined", Named(&Texts)),
    ("prefer_go", Flag),
];

const TLS: &KeyKinds = &[("enabled", Flag), ("server_name", Text), ("insecure", Flag)];

const RESOLVER: ValueKind = Either(&[Text, Map(RESOLVER_KEYS)]);

const RESOLVER_KEYS: &KeyKinds = &[("server", Text), ("strategy", Text)];

/// One of `dns.rules`.
pub(super) static DNS_RULE: [(&str, ValueKind); 11] = [
    ("type", Text),
    ("mode", Text),
    ("rules", Maps(&DNS_RULE)),
    ("invert", Flag),
    ("action", Text),
    ("server", Text),
    ("disable_cache", Flag),
    ("domain", Texts),
    ("domain_suffix", Texts),
    ("rule_set", Texts),
    ("outbound", Texts),
];

pub(super) const INBOUND: &KeyKinds =
    &[("type", Text), ("tag", Text), ("listen", Text), ("listen_port", Number), ("users", Items)];

/// Outbounds that are groups.
pub(super) const GROUP: &KeyKinds = &[
    ("type", Text),
    ("tag", Text),
    ("outbounds", Texts),
    ("default", Text),
    ("url", Text),
    ("interval", Text),
    ("tolerance", Number),
    ("idle_timeout", Text),
    ("interrupt_exist_connections", Flag),
];

/// Outbounds that are servers.
pub(super) const SERVER: &KeyKinds = &[
    ("type", Text),
    ("tag", Text),
    ("server", Text),
    ("server_port", Number),
    ("method", Text),
    ("password", Text),
    ("plugin", Text),
    ("plugin_opts", Text),
    ("network", Any),
    ("psk", Text),
    ("userkey", Text),
    ("version", Number),
    ("mode", Text),
    ("obfs_mode", Text),
    ("obfs_host", Text),
    ("reuse", Flag),
    ("tcp_fast_open", Flag),
    ("bind_interface", Text),
    ("routing_mark", Either(&[Text, Number])),
    ("inet4_bind_address", Text),
    ("inet6_bind_address", Text),
];
