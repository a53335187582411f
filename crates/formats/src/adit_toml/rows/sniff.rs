//! The rows of `[sniff]`.

use adit_model::rule::PortRange;

use super::rule::{OneOrMany, list, ports, ranges_text};
use super::{ALL, Row, flag, row, rows};
use crate::adit_toml::keys::{TomlTable, key};
use crate::adit_toml::sniff::{SniffName, SniffNetwork};

/// Entries of one list.
const MAX_ENTRIES: usize = 4096;

rows! { SNIFF;
    TLS: OneOrMany<PortRange> = row(key("tls", "port, range as \"8440-8443\", or a list", "[443, 8443]")
        .at(TomlTable::Sniff, ALL, "443, if no protocol is written", "ports of targets whose streams may begin with a ClientHello of TLS"),
        ports, ranges_text);
    HTTP: OneOrMany<PortRange> = row(key("http", "port, range, or a list", "[80, \"8080-8880\"]")
        .at(TomlTable::Sniff, ALL, "80, if no protocol is written", "ports of targets whose streams may begin with a request of HTTP"),
        ports, ranges_text);
    QUIC: OneOrMany<PortRange> = row(key("quic", "port, range, or a list", "443")
        .at(TomlTable::Sniff, ALL, "443, if no protocol is written", "ports of targets whose datagrams may begin with a ClientHello of QUIC"),
        ports, ranges_text);
    TLS_OVERRIDE: Row<bool> = flag(key("tls-override", "true or false", "false")
        .at(TomlTable::Sniff, ALL, "true", "sends a stream to the name; false: to the address, and rules see both"));
    HTTP_OVERRIDE: Row<bool> = flag(key("http-override", "true or false", "false")
        .at(TomlTable::Sniff, ALL, "true", "the same for HTTP"));
    ADDRESSES: Row<bool> = flag(key("addresses", "true or false", "false")
        .at(TomlTable::Sniff, ALL, "true", "seeks a name where the target is an address and nothing more is known"));
    MAPPED: Row<bool> = flag(key("mapped", "true or false", "false")
        .at(TomlTable::Sniff, ALL, "true", "seeks a name where an inbound of protocol dns gave the address for another name (reverse-map)"));
    FORCE_DOMAIN: OneOrMany<SniffName> = list(key("force-domain", "name, +.name, rule-set:name, or a list", "[\"example.com\", \"+.example.org\"]")
        .at(TomlTable::Sniff, ALL, "none", "seeks a name in the place of these, which clients name themselves"),
        |field, report| field.list(report, MAX_ENTRIES, SniffName::read));
    SKIP_DOMAIN: OneOrMany<SniffName> = list(key("skip-domain", "name, +.name, rule-set:name, or a list", "\"+.push.example\"")
        .at(TomlTable::Sniff, ALL, "none", "names that are found and not used"),
        |field, report| field.list(report, MAX_ENTRIES, SniffName::read));
    SKIP_SOURCE: OneOrMany<SniffNetwork> = list(key("skip-source", "address, network, rule-set:name, or a list", "\"192.168.0.3\"")
        .at(TomlTable::Sniff, ALL, "none", "clients that are left alone"),
        |field, report| field.list(report, MAX_ENTRIES, SniffNetwork::read));
    SKIP_TARGET: OneOrMany<SniffNetwork> = list(key("skip-target", "address, network, rule-set:name, or a list", "[\"192.168.0.0/16\", \"10.0.0.0/8\"]")
        .at(TomlTable::Sniff, ALL, "none", "targets that are left alone"),
        |field, report| field.list(report, MAX_ENTRIES, SniffNetwork::read));
}
