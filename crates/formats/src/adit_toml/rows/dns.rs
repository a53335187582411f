//! The rows of `[dns]`.

use std::net::IpAddr;

use adit_model::rule::Cidr;
use adit_model::{
    AddressFamilies, FakeFilter, FakeMode, FakeRange, MAX_FAKE_FILTER, NameServer, Tag, Transports,
};

use super::rule::{OneOrMany, cidr, list};
use super::{ALL, FAMILIES, Row, Tables, all_quoted, chosen, flag, named, quoted, row, rows, span, tables};
use crate::adit_toml::fields::Spanned;
use crate::adit_toml::keys::{TomlTable, key};
use crate::adit_toml::rows;
use crate::read::name_servers::{
    NameServerAddress, address, domain, fake_filter, fake_filter_text, fake_range, host_name, policy_domain,
    server_or_word,
};
use crate::read::value::{MAX_DNS, interface, plain_server, quote, text_of};

/// Entries of one list.
const MAX_ENTRIES: usize = 4096;
/// Answers that can be remembered.
const MAX_CACHE: usize = 1 << 20;
/// Longest path of a file, in bytes.
const MAX_PATH: usize = 4000;
/// Networks of one inbound.
const MAX_ALLOW: usize = 1024;

const MODES: &[(&str, FakeMode)] = &[("blacklist", FakeMode::Blacklist), ("whitelist", FakeMode::Whitelist)];
/// The inbounds that answer questions.
const SERVED: &[&str] = &["dns"];

rows! { DNS;
    UPSTREAM: Tables = tables(key("upstream", "tables", "")
        .at(TomlTable::Dns, ALL, "those of /etc/resolv.conf", "name servers; the next one is asked when one fails, or has no answer after a second"), TomlTable::DnsUpstream, MAX_DNS);
    POLICY: Tables = tables(key("policy", "tables", "")
        .at(TomlTable::Dns, ALL, "none", "names that other servers are asked for; the most specific domain counts"), TomlTable::DnsPolicy, MAX_ENTRIES);
    HOSTS: Tables = tables(key("hosts", "tables", "")
        .at(TomlTable::Dns, ALL, "none", "names with fixed addresses; /etc/hosts comes next"), TomlTable::DnsHost, MAX_ENTRIES);
    CACHE: Row<usize> = row(key("cache", "1 to 1048576", "16384")
        .at(TomlTable::Dns, ALL, "4096", "answers that are remembered; an answer is about one name and record type"),
        |field, report| field.number(report, 1..=MAX_CACHE), ToString::to_string);
    MIN_TTL: Row<std::time::Duration> = span(key("min-ttl", "duration, up to 7d", "\"1m\"")
        .at(TomlTable::Dns, ALL, "0s", "shortest time for which an answer is remembered"));
    MAX_TTL: Row<std::time::Duration> = span(key("max-ttl", "duration, up to 7d", "\"1h\"")
        .at(TomlTable::Dns, ALL, "1d", "longest time for which an answer is remembered"));
    STALE: Row<bool> = flag(key("stale", "true or false", "false")
        .at(TomlTable::Dns, ALL, "true", "uses an answer for 5m after its time while a new one is fetched, and for 1d when none can be had"));
    FAMILY: Row<AddressFamilies> = row(key("family", "any, prefer-ipv4, ipv4-only or ipv6-only", "\"prefer-ipv4\"")
        .at(TomlTable::Dns, ALL, "any", "address families of outbounds that do not say it"),
        |field, report| field.choice(report, FAMILIES), |family| chosen(FAMILIES, family));
    DISABLE_BROWSER_DOH: Row<bool> = flag(key("disable-browser-doh", "true or false", "true")
        .at(TomlTable::Dns, ALL, "false", "answers that use-application-dns.net does not exist, so that browsers keep to the system's name servers"));
    REVERSE_MAP: Row<bool> = flag(key("reverse-map", "true or false", "true")
        .at(TomlTable::Dns, ALL, "false", "remembers the names of addresses that inbounds of protocol dns have answered, so that rules see them for requests that name the address"));
    DNS_INTERFACE: Row<Box<str>, str> = row(key("interface", "name of an interface", "\"eth0\"")
        .at(TomlTable::Dns, ALL, "by routing", "asks name servers through this interface, where they are not behind an outbound"),
        |field, report| field.parsed(report, interface), quote);
    DNS_FWMARK: Row<u32> = row(key("fwmark", "1 to 4294967295", "255")
        .at(TomlTable::Dns, ALL, "none", "marks what is sent to them (Linux, CAP_NET_ADMIN)"),
        |field, report| field.number(report, 1..=u32::MAX as usize), ToString::to_string);
    FALLBACK: Tables = tables(key("fallback", "table", "")
        .at(TomlTable::Dns, ALL, "none", "name servers for addresses that others are not believed for"), TomlTable::DnsFallback, 1);
    FALLBACK_UPSTREAM: Row<Vec<Spanned<Box<str>>>, [Tag]> = row(key("upstream", "name of an upstream, or a list", "\"secure\"")
        .at(TomlTable::DnsFallback, ALL, "required", "servers that are asked where the others fail, have no address, or have one that is not believed; policies come first"),
        |field, report| field.list(report, MAX_DNS, rows::name), all_quoted);
    FALLBACK_TRUSTED: Row<Vec<Spanned<Box<str>>>, [Tag]> = row(key("trusted", "name of a set, or a list", "\"office\"")
        .at(TomlTable::DnsFallback, ALL, "none: all", "networks whose addresses are believed; those outside are not"),
        |field, report| field.list(report, MAX_DNS, rows::name), all_quoted);
    FALLBACK_UNTRUSTED: OneOrMany<Cidr> = list(key("untrusted", "address or network, or a list", "\"240.0.0.0/4\"")
        .at(TomlTable::DnsFallback, ALL, "none", "networks whose addresses are not believed"),
        |field, report| field.list(report, MAX_ALLOW, cidr));
    FAKE: Tables = tables(key("fake", "table", "")
        .at(TomlTable::Dns, ALL, "none: names have their real addresses", "fake addresses for names; an empty table will do"), TomlTable::DnsFake, 1);

    FAKE_RANGE: Row<FakeRange> = row(key("range", "network of IPv4, /8 to /27", "\"198.18.0.0/16\"")
        .at(TomlTable::DnsFake, ALL, "198.18.128.0/17", "addresses for A records; at most 65536 names have one at a time"),
        |field, report| field.parsed(report, |text| fake_range(text, false)), quoted);
    FAKE_RANGE6: Row<FakeRange> = row(key("range6", "network of IPv6, up to /120", "\"fd00:adf::/64\"")
        .at(TomlTable::DnsFake, ALL, "none: names have no AAAA record", "addresses for AAAA records"),
        |field, report| field.parsed(report, |text| fake_range(text, true)), quoted);
    FAKE_FILTER: Row<Vec<Spanned<FakeFilter>>, [FakeFilter]> = row(key("filter", "pattern, rule-set:name, default, or a list", "[\"default\", \"+.office.example\", \"rule-set:office\"]")
        .at(TomlTable::DnsFake, ALL, "default", "names that keep their real addresses; x is a name, +.x with all below it, .x all below it, * a label, default the usual list"),
        |field, report| field.list(report, MAX_FAKE_FILTER, fake_filter), |all| super::one_or_list(all.iter().map(|entry| quote(&fake_filter_text(entry)))));
    FAKE_MODE: Row<FakeMode> = row(key("filter-mode", "blacklist or whitelist", "\"whitelist\"")
        .at(TomlTable::DnsFake, ALL, "blacklist", "whitelist: the names of the filter alone get fake addresses"),
        |field, report| field.choice(report, MODES), |mode| chosen(MODES, mode));
    FAKE_TTL: Row<std::time::Duration> = span(key("ttl", "duration in whole seconds, up to 1h", "\"60s\"")
        .at(TomlTable::DnsFake, ALL, "1s", "lifetime of an answer"));
    FAKE_STORE: Row<Box<str>, str> = row(key("store", "path of a file, or off", "\"/var/lib/adit/fake\"")
        .at(TomlTable::DnsFake, ALL, "a file beside the one of `state`", "keeps the names of fake addresses across restarts"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PATH)), quote);

    NETWORK: Row<Transports> = row(key("network", "tcp, udp or tcp-and-udp", "\"udp\"")
        .at(TomlTable::Inbound, SERVED, "tcp-and-udp", "traffic that is served: streams, datagrams or both"),
        |field, report| field.choice(report, super::TRANSPORTS), |both| chosen(super::TRANSPORTS, both));
    ALLOW: Row<Vec<Spanned<Cidr>>, [Cidr]> = row(key("allow", "address or network, or a list", "\"192.168.0.0/16\"")
        .at(TomlTable::Inbound, SERVED, "this machine; private networks too where listen is a private address", "whose questions are answered"),
        |field, report| field.list(report, MAX_ALLOW, cidr), all_quoted);
    ANSWER_FAKE: Row<bool> = flag(key("fake", "true or false", "false")
        .at(TomlTable::Inbound, SERVED, "true", "answers with fake addresses, where [dns.fake] is there"));
    ANSWER_IPV6: Row<bool> = flag(key("answer-ipv6", "true or false", "false")
        .at(TomlTable::Inbound, SERVED, "true", "false: names have no AAAA record"));
    ASKED: Row<Vec<Spanned<Box<str>>>, [Tag]> = row(key("upstream", "name of an upstream, or a list", "\"secure\"")
        .at(TomlTable::Inbound, SERVED, "those of [dns], by its policies", "servers that are asked, in this order"),
        |field, report| field.list(report, MAX_DNS, rows::name), all_quoted);
    ASKED_DIRECT: Row<Vec<Spanned<Box<str>>>, [Tag]> = row(key("direct-upstream", "name of an upstream, or a list", "\"office\"")
        .at(TomlTable::Inbound, SERVED, "none: no difference", "servers that are asked for names which the rules send over the direct route"),
        |field, report| field.list(report, MAX_DNS, rows::name), all_quoted);

    UPSTREAM_NAME: Row<Box<str>, str> = named(key("name", "text of 1 to 64 characters", "\"secure\"")
        .at(TomlTable::DnsUpstream, ALL, "the text of server, without a path", "name in messages and policies"));
    SERVER: Row<Spanned<NameServerAddress>, str> = row(key("server", "address, or udp://, tcp://, tls:// or https:// with host, port and path; system; refused", "\"https://dns.example/dns-query\"")
        .at(TomlTable::DnsUpstream, ALL, "required", "address of the server, with its transport; `system` for those of /etc/resolv.conf, `refused` for none, so that names fail"),
        |field, report| field.spanned(report, server_or_word), quote);
    ADDRESS: Row<IpAddr> = row(key("address", "address", "\"192.0.2.53\"")
        .at(TomlTable::DnsUpstream, ALL, "looked up", "address of the host that server names"),
        |field, report| field.parsed(report, address), quoted);
    BOOTSTRAP: Row<Vec<Spanned<NameServer>>, [NameServer]> = row(key("bootstrap", "address, address:port, system, or a list", "\"192.0.2.1\"")
        .at(TomlTable::DnsUpstream, ALL, "those of /etc/resolv.conf", "servers that are asked by UDP for the address of the host"),
        |field, report| field.list(report, MAX_DNS, plain_server), all_quoted);
    THROUGH: Row<Spanned<Box<str>>, str> = row(key("through", "name of an outbound", "\"home\"")
        .at(TomlTable::DnsUpstream, ALL, "none: straight", "reaches the server through this outbound; one of udp:// is then asked by TCP"),
        |field, report| field.spanned(report, rows::name), quote);
    BY_RULES: Row<Spanned<Box<str>>, str> = row(key("by-rules", "name of an outbound", "\"home\"")
        .at(TomlTable::DnsUpstream, ALL, "none: rules are not asked", "reaches the server through the outbound that the rules say; straight where they say this one, or nothing"),
        |field, report| field.spanned(report, rows::name), quote);
    DEFAULT: Row<bool> = flag(key("default", "true or false", "false")
        .at(TomlTable::DnsUpstream, ALL, "true", "false: asked for the names of policies alone"));

    POLICY_DOMAIN: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("domain", "domain, or a list", "\"office.example\"")
        .at(TomlTable::DnsPolicy, ALL, "required", "the names: a domain and all below it; `=example.com` is one name alone; `rule-set:name` the names of a [[set]] that no domain is about"),
        |field, report| field.list(report, MAX_ENTRIES, policy_domain), all_quoted);
    POLICY_UPSTREAM: Row<Vec<Spanned<Box<str>>>, [Tag]> = row(key("upstream", "name of an upstream, or a list", "\"office\"")
        .at(TomlTable::DnsPolicy, ALL, "required", "the servers that are asked, in this order"),
        |field, report| field.list(report, MAX_DNS, rows::name), all_quoted);
    POLICY_DIRECT: Row<bool> = flag(key("direct", "true or false", "true")
        .at(TomlTable::DnsPolicy, ALL, "false", "the names never get fake addresses, and the capture leaves their addresses alone"));

    HOST_NAME: Row<Box<str>, str> = row(key("name", "domain or pattern", "\"router.example\"")
        .at(TomlTable::DnsHost, ALL, "required", "the name; +.x with all below it, .x all below it, * a label"),
        |field, report| field.parsed(report, host_name), quote);
    HOST_ALIAS: Row<Box<str>, str> = row(key("alias", "domain", "\"gateway.example\"")
        .at(TomlTable::DnsHost, ALL, "none", "the name that it stands for, in the place of addresses: rules and outbounds see that one"),
        |field, report| field.parsed(report, domain), quote);
    HOST_ADDRESS: Row<Vec<Spanned<IpAddr>>, [IpAddr]> = row(key("address", "address, or a list", "[\"192.0.2.254\", \"2001:db8::1\"]")
        .at(TomlTable::DnsHost, ALL, "required without alias", "its addresses"),
        |field, report| field.list(report, MAX_DNS, address), all_quoted);
}
