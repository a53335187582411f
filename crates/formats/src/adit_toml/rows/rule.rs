//! The rows of `[[rule]]`, and of the tables in its `and`, `or` and `not`.

use adit_model::Tag;
use adit_model::rule::{
    Cidr, Country, ENTRIES, Network, PortRange, RejectMethod, UidRange, normal_name, regex_problem,
};
use adit_proto::sniff::SniffedProtocol;

use super::{ALL, Row, Tables, all_quoted, chosen, flag, one_or_list, quoted, row, rows, tables};
use crate::adit_toml::fields::{Spanned, TomlField, TomlReport};
use crate::adit_toml::keys::{Head, TomlTable, key};
use crate::adit_toml::rows;
use crate::read::value::{Problem, excerpt, quote, text_of};

/// Most values of one key.
const MAX_VALUES: usize = 1 << 17;

/// Longest path of a program, in bytes.
const MAX_PATH: usize = 4096;

/// Longest name, word or regular expression, in bytes.
const MAX_TEXT: usize = 1024;

/// A key with one value or a list of them.
pub(in crate::adit_toml) type OneOrMany<T> = Row<Vec<Spanned<T>>, [T]>;

rows! { RULE;
    OUTBOUND: Row<Spanned<Box<str>>, str> = row(key("outbound", "name of an outbound", "\"home\"")
        .at(TomlTable::Rule, ALL, "required without reject", "outbound of requests that match; all keys of a rule must match, one value of each"),
        |field, report| field.spanned(report, rows::name), quote);
    REJECT: Row<RejectMethod> = row(key("reject", "reset, drop or protocol", "\"drop\"")
        .at(TomlTable::Rule, ALL, "none", "refuses them: by a reset, by silence, or by an answer of the inbound's protocol"),
        |field, report| field.choice(report, RejectMethod::ALL), |manner| chosen(RejectMethod::ALL, manner));
    DOMAIN: OneOrMany<Box<str>> = list(both(key("domain", "name, or a list", "\"example.com\""), "none", "the target's name is one of these"),
        |field, report| field.list(report, MAX_VALUES, domain));
    DOMAIN_SUFFIX: OneOrMany<Box<str>> = list(both(key("domain-suffix", "name, or a list", "[\"example.com\", \"example.org\"]"), "none", "the target's name is one of these or below one of them"),
        |field, report| field.list(report, MAX_VALUES, domain));
    DOMAIN_KEYWORD: OneOrMany<Box<str>> = list(both(key("domain-keyword", "text, or a list", "\"track\""), "none", "the target's name holds one of these"),
        |field, report| field.list(report, MAX_VALUES, keyword));
    DOMAIN_REGEX: OneOrMany<Box<str>> = list(both(key("domain-regex", "regular expression, or a list", "\"^ad[0-9]+\\\\.\""), "none", "one of these is found in the target's name, in any case"),
        |field, report| field.list(report, MAX_VALUES, regex));
    IP_CIDR: OneOrMany<Cidr> = list(both(key("ip-cidr", "address or network, or a list", "\"192.0.2.0/24\""), "none", "an address of the target is in one of these"),
        |field, report| field.list(report, MAX_VALUES, cidr));
    GEOIP: OneOrMany<Country> = list(both(key("geoip", "country of two letters, or a list", "\"de\""), "none", "an address of the target belongs to one of these"),
        |field, report| field.list(report, MAX_VALUES, country));
    SET: OneOrMany<Tag> = list(both(key("set", "name of a set, or a list", "\"office\""), "none", "the name or an address of the target is in one of these"),
        |field, report| field.list(report, MAX_VALUES, tag));
    SOURCE: OneOrMany<Cidr> = list(both(key("source", "address or network, or a list", "\"192.168.0.0/16\""), "none", "the client's address is in one of these"),
        |field, report| field.list(report, MAX_VALUES, cidr));
    SOURCE_PORT: OneOrMany<PortRange> = row(both(key("source-port", "port or range as \"1000-2000\", or a list", "\"1024-65535\""), "none", "the client's port is one of these"),
        ports, ranges_text);
    PORT: OneOrMany<PortRange> = row(both(key("port", "port or range as \"1000-2000\", or a list", "[80, 443, \"8000-8999\"]"), "none", "the target's port is one of these"),
        ports, ranges_text);
    NETWORK: Row<Network> = row(both(key("network", "tcp or udp", "\"udp\""), "both", "kind of traffic"),
        |field, report| field.choice(report, Network::ALL), |network| chosen(Network::ALL, network));
    INBOUND: OneOrMany<Tag> = list(both(key("inbound", "name of an inbound, or a list", "\"local\""), "all", "inbound of the request"),
        |field, report| field.list(report, MAX_VALUES, tag));
    USER: OneOrMany<Box<str>> = list(both(key("user", "user name, or a list", "\"ann\""), "all", "user of the client"),
        |field, report| field.list(report, MAX_VALUES, |text| text_of(text, 255)));
    PROTOCOL: OneOrMany<Box<str>> = list(both(key("protocol", "tls, http, quic, bittorrent, ssh or dns, or a list", "\"tls\""), "any", "protocol that the client speaks to the target. Its first bytes tell: a stream whose way depends on them waits for them for 300 ms at most, and a socks or http inbound answers before it waits. The first datagram tells for the flow"),
        |field, report| field.list(report, MAX_VALUES, protocol));
    PROCESS: OneOrMany<Box<str>> = list(both(key("process", "file name, or a list", "\"curl\""), "any", "file name of the client's program, in any case. A program is sought where a rule asks for it, and known on this machine alone; programs of other users are known to root"),
        |field, report| field.list(report, MAX_VALUES, |text| text_of(text, MAX_PATH)));
    PROCESS_PATH: OneOrMany<Box<str>> = list(both(key("process-path", "path, or a list", "\"/usr/bin/curl\""), "any", "path of the client's program, in any case"),
        |field, report| field.list(report, MAX_VALUES, |text| text_of(text, MAX_PATH)));
    PROCESS_REGEX: Row<Box<str>, str> = row(both(key("process-regex", "regular expression", "\"^chrom\""), "none", "is found in the file name of the client's program, in any case"),
        |field, report| field.parsed(report, regex), quote);
    PROCESS_PATH_REGEX: Row<Box<str>, str> = row(both(key("process-path-regex", "regular expression", "\"^/opt/\""), "none", "is found in the path of the client's program, in any case"),
        |field, report| field.parsed(report, regex), quote);
    UID: OneOrMany<UidRange> = row(both(key("uid", "number or range as \"1000-1999\", or a list", "1000"), "any", "number of the user whose program it is, on this machine"),
        |field, report| field.numbers_or_texts(report, MAX_VALUES, uid), ranges_text);
    INBOUND_PORT: OneOrMany<PortRange> = row(both(key("inbound-port", "port or range, or a list", "1080"), "any", "port of this machine that the client came to"),
        ports, ranges_text);
    INBOUND_TYPE: OneOrMany<Box<str>> = list(both(key("inbound-type", "http, https, socks4, socks5, snell, shadowsocks, shadowsocksr, redir, tproxy, tunnel, tun or inner, or a list", "\"socks5\""), "any", "way by which the client asks; https is CONNECT, inner a download of adit itself"),
        |field, report| field.list(report, MAX_VALUES, entry));
    RESOLVE: Row<bool> = flag(both(key("resolve", "true or false", "false"), "true", "looks names up for ip-cidr, geoip and set; false: a name whose addresses no earlier rule asked for does not match"));
    AND: Tables = tables(both(key("and", "list of tables", "[{ not = { port = 80 } }, { not = { port = 443 } }]"), "none", "all of them match; each has the keys above"), TomlTable::RulePart, MAX_VALUES);
    OR: Tables = tables(both(key("or", "list of tables", "[{ port = 443 }, { port = 80 }]"), "none", "one of them matches"), TomlTable::RulePart, MAX_VALUES);
    NOT: Tables = tables(both(key("not", "table", "{ port = 443 }"), "none", "it does not match"), TomlTable::RulePart, 1);
}

/// A key of rules and of the tables within them.
const fn both(head: Head, default: &'static str, meaning: &'static str) -> Head {
    head.at(TomlTable::Rule, ALL, default, meaning).at(TomlTable::RulePart, ALL, default, meaning)
}

pub(super) const fn list<T: std::fmt::Display>(
    head: Head,
    read: fn(&TomlField<'_>, &mut TomlReport<'_>) -> Option<Vec<Spanned<T>>>,
) -> OneOrMany<T> {
    row(head, read, all_quoted)
}

pub(super) fn ports(field: &TomlField<'_>, report: &mut TomlReport<'_>) -> Option<Vec<Spanned<PortRange>>> {
    field.numbers_or_texts(report, MAX_VALUES, port)
}

/// Numbers as they are, ranges in quotes.
pub(super) fn ranges_text<T: std::fmt::Display>(ranges: &[T]) -> String {
    let text = |range: &T| Some(range.to_string()).filter(|text| !text.contains('-'));
    one_or_list(ranges.iter().map(|range| text(range).unwrap_or_else(|| quoted(range))))
}

fn uid(text: &str) -> Result<UidRange, Problem> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
    range.map(|(first, last)| UidRange { first, last }).ok_or_else(|| {
        let hint = "write the number of a user or a range such as \"1000-1999\"";
        Problem::new(format!("bad user number: {}", excerpt(text))).hint(hint)
    })
}

fn entry(text: &str) -> Result<Box<str>, Problem> {
    let name = text_of(text, 64)?.to_ascii_lowercase();
    if ENTRIES.contains(&&*name) {
        return Ok(name.into());
    }
    let hint = format!("write one of {}", ENTRIES.join(", "));
    Err(Problem::new(format!("no way by which clients ask: {}", excerpt(text))).hint(hint))
}

fn tag(text: &str) -> Result<Tag, Problem> {
    rows::name(text).map(|name| Tag::from(&*name))
}

fn keyword(text: &str) -> Result<Box<str>, Problem> {
    text_of(text, MAX_TEXT).map(|text| text.to_ascii_lowercase().into())
}

fn port(text: &str) -> Result<PortRange, Problem> {
    let bad = || {
        let hint = "write a port from 0 to 65535 or a range such as \"8000-8999\"";
        Problem::new(format!("bad port: {}", excerpt(text))).hint(hint)
    };
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| bad());
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last {
        return Err(
            Problem::new(format!("the range is empty: {first}-{last}")).hint("write the lower port first")
        );
    }
    Ok(PortRange { first, last })
}

pub(crate) fn domain(text: &str) -> Result<Box<str>, Problem> {
    let name = normal_name(text.trim());
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | ':' | '*' | '?' | '[' | ']');
    if name.split('.').any(str::is_empty) || name.contains(bad) || name.len() > adit_model::entries::MAX_NAME
    {
        let hint = "write a name such as example.com; domain-suffix holds all names below it as well";
        return Err(Problem::new(format!("no name: {}", excerpt(text))).hint(hint));
    }
    text_of(&name, adit_model::entries::MAX_NAME)
}

fn regex(text: &str) -> Result<Box<str>, Problem> {
    let regex = text_of(text, MAX_TEXT)?;
    let hint =
        "it is looked for anywhere in the name, in any case; look-around and back references are not known";
    regex_problem(&regex).map_or(Ok(regex), |problem| Err(Problem::new(problem).hint(hint)))
}

pub(in crate::adit_toml) fn cidr(text: &str) -> Result<Cidr, Problem> {
    Cidr::parse(text.trim()).ok_or_else(|| {
        let hint = "write an address or a network, for instance 192.0.2.0/24 or 2001:db8::/32";
        Problem::new(format!("bad network: {}", excerpt(text))).hint(hint)
    })
}

fn country(text: &str) -> Result<Country, Problem> {
    Country::parse(text.trim()).ok_or_else(|| {
        Problem::new(format!("bad country: {}", excerpt(text))).hint("write two letters, for instance \"de\"")
    })
}

fn protocol(text: &str) -> Result<Box<str>, Problem> {
    let name = text_of(text, 64)?.to_ascii_lowercase();
    if SniffedProtocol::ALL.iter().any(|protocol| protocol.name() == name) {
        return Ok(name.into());
    }
    let names = SniffedProtocol::ALL.map(SniffedProtocol::name).join(", ");
    Err(Problem::new(format!("no such protocol: {}", excerpt(text))).hint(format!("write one of {names}")))
}
