//! The rows of `[dns]`.

use std::net::{IpAddr, SocketAddr};

use super::{ALL, FAMILIES, Row, Tables, all_quoted, chosen, flag, named, quoted, row, rows, span, tables};
use crate::dialect::native::dns::{Server, address, domain, server};
use crate::dialect::native::fields::Spanned;
use crate::dialect::native::keys::{Table, key};
use crate::dialect::native::rows;
use crate::dialect::value::{MAX_DNS, name_server, quote};
use crate::model::{Family, Tag};

/// Entries of one list.
const MAX_ENTRIES: usize = 4096;
/// Answers that can be remembered.
const MAX_CACHE: usize = 1 << 20;

rows! { DNS;
    UPSTREAM: Tables = tables(key("upstream", "tables", "")
        .at(Table::Dns, ALL, "those of /etc/resolv.conf", "name servers; the next one is asked when one fails, or has no answer after a second"), Table::DnsUpstream, MAX_DNS);
    POLICY: Tables = tables(key("policy", "tables", "")
        .at(Table::Dns, ALL, "none", "names that other servers are asked for; the most specific domain counts"), Table::DnsPolicy, MAX_ENTRIES);
    HOSTS: Tables = tables(key("hosts", "tables", "")
        .at(Table::Dns, ALL, "none", "names with fixed addresses; /etc/hosts comes next"), Table::DnsHost, MAX_ENTRIES);
    CACHE: Row<usize> = row(key("cache", "1 to 1048576", "16384")
        .at(Table::Dns, ALL, "4096", "answers that are remembered; an answer is about one name and record type"),
        |field, report| field.number(report, 1..=MAX_CACHE), ToString::to_string);
    MIN_TTL: Row<std::time::Duration> = span(key("min-ttl", "duration, up to 7d", "\"1m\"")
        .at(Table::Dns, ALL, "0s", "shortest time for which an answer is remembered"));
    MAX_TTL: Row<std::time::Duration> = span(key("max-ttl", "duration, up to 7d", "\"1h\"")
        .at(Table::Dns, ALL, "1d", "longest time for which an answer is remembered"));
    STALE: Row<bool> = flag(key("stale", "true or false", "false")
        .at(Table::Dns, ALL, "true", "uses an answer for 5m after its time while a new one is fetched, and for 1d when none can be had"));
    FAMILY: Row<Family> = row(key("family", "any, prefer-ipv4, ipv4-only or ipv6-only", "\"prefer-ipv4\"")
        .at(Table::Dns, ALL, "any", "address families of outbounds that do not say it"),
        |field, report| field.choice(report, FAMILIES), |family| chosen(FAMILIES, family));

    UPSTREAM_NAME: Row<Box<str>, str> = named(key("name", "text of 1 to 64 characters", "\"secure\"")
        .at(Table::DnsUpstream, ALL, "the text of server, without a path", "name in messages and policies"));
    SERVER: Row<Spanned<Server>, str> = row(key("server", "address, or udp://, tcp://, tls:// or https:// with host, port and path", "\"https://dns.example/dns-query\"")
        .at(Table::DnsUpstream, ALL, "required", "address of the server, with its transport"),
        |field, report| field.spanned(report, server), quote);
    ADDRESS: Row<IpAddr> = row(key("address", "address", "\"192.0.2.53\"")
        .at(Table::DnsUpstream, ALL, "looked up", "address of the host that server names"),
        |field, report| field.parsed(report, address), quoted);
    BOOTSTRAP: Row<Vec<Spanned<SocketAddr>>, [SocketAddr]> = row(key("bootstrap", "address, address:port, or a list", "\"192.0.2.1\"")
        .at(Table::DnsUpstream, ALL, "those of /etc/resolv.conf", "servers that are asked by UDP for the address of the host"),
        |field, report| field.list(report, MAX_DNS, name_server), all_quoted);
    THROUGH: Row<Spanned<Box<str>>, str> = row(key("through", "name of an outbound", "\"home\"")
        .at(Table::DnsUpstream, ALL, "none: straight", "reaches the server through this outbound; one of udp:// is then asked by TCP"),
        |field, report| field.spanned(report, rows::name), quote);
    DEFAULT: Row<bool> = flag(key("default", "true or false", "false")
        .at(Table::DnsUpstream, ALL, "true", "false: asked for the names of policies alone"));

    POLICY_DOMAIN: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("domain", "domain, or a list", "\"office.example\"")
        .at(Table::DnsPolicy, ALL, "required", "the names: a domain and all below it; `=example.com` is one name alone"),
        |field, report| field.list(report, MAX_ENTRIES, domain), all_quoted);
    POLICY_UPSTREAM: Row<Vec<Spanned<Box<str>>>, [Tag]> = row(key("upstream", "name of an upstream, or a list", "\"office\"")
        .at(Table::DnsPolicy, ALL, "required", "the servers that are asked, in this order"),
        |field, report| field.list(report, MAX_DNS, rows::name), all_quoted);

    HOST_NAME: Row<Box<str>, str> = row(key("name", "domain", "\"router.example\"")
        .at(Table::DnsHost, ALL, "required", "the name"),
        |field, report| field.parsed(report, domain), quote);
    HOST_ADDRESS: Row<Vec<Spanned<IpAddr>>, [IpAddr]> = row(key("address", "address, or a list", "[\"192.0.2.254\", \"2001:db8::1\"]")
        .at(Table::DnsHost, ALL, "required", "its addresses"),
        |field, report| field.list(report, MAX_DNS, address), all_quoted);
}
