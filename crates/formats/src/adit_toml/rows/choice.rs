//! The rows of groups whose members are chosen, and of outbounds through SOCKS5 and HTTP proxies.

use std::time::Duration;

use adit_model::{Balance, Secret, WebUrl};
use adit_proto::wire::Target;

use super::root::MAX_OUTBOUNDS;
use super::{ALL, Row, all_quoted, any_text, chosen, exposed, flag, quoted, row, rows, span};
use crate::adit_toml::fields::Spanned;
use crate::adit_toml::keys::{TomlTable, key};
use crate::read::value::{MAX_CREDENTIAL, Problem, quote, secret, target, text_of};

const CHOICES: &[&str] = &["select", "url-test", "fallback", "load-balance"];
const SELECT: &[&str] = &["select"];
const URL_TEST: &[&str] = &["url-test"];
const LOAD_BALANCE: &[&str] = &["load-balance"];
const PROXIES: &[&str] = &["socks5", "http"];
const SOCKS5: &[&str] = &["socks5"];
const HTTP: &[&str] = &["http"];

/// Longest path of a file, in bytes.
const MAX_PATH: usize = 4000;
/// Longest address, in bytes.
const MAX_URL: usize = 1024;
/// Most fields of a request.
const MAX_HEADERS: usize = 32;
/// Most ranges of status codes; mihomo takes as many.
const MAX_STATUSES: usize = 28;

/// A key with one value or a list of them.
type List<T> = Row<Vec<Spanned<T>>, [T]>;
/// First and last of a range of status codes.
type Statuses = (u16, u16);
/// Name and value of a field.
type Header = (Box<str>, Secret);

const BALANCES: &[(&str, Balance)] = &[
    ("consistent-hashing", Balance::Consistent),
    ("round-robin", Balance::RoundRobin),
    ("sticky-sessions", Balance::Sticky),
];

rows! { CHOICE;
    CHOSEN_MEMBERS: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("members", "name of an outbound, or a list", "[\"home\", \"second\"]")
        .at(TomlTable::Outbound, CHOICES, "required without use", "outbounds and groups to choose from, in order"),
        |field, report| field.list(report, MAX_OUTBOUNDS, super::name), all_quoted);
    USE: Row<Vec<Spanned<Box<str>>>, [Box<str>]> = row(key("use", "name of a provider, or a list", "\"subscription\"")
        .at(TomlTable::Outbound, CHOICES, "none", "lists whose entries are members as well, behind those of members"),
        |field, report| field.list(report, MAX_OUTBOUNDS, super::name), all_quoted);
    FILTER: Row<Box<str>, str> = row(key("filter", "regular expressions with ` between them", "\"(?i)hk\"")
        .at(TomlTable::Outbound, CHOICES, "any name", "keeps entries of these lists in whose names one of them is found")
        .at(TomlTable::Provider, ALL, "any name", "keeps entries in whose names one of them is found"),
        |field, report| field.parsed(report, expressions), quote);
    EXCLUDE: Row<Box<str>, str> = row(key("exclude", "regular expressions with ` between them", "\"expire\"")
        .at(TomlTable::Outbound, CHOICES, "none", "leaves out entries of these lists in whose names one of them is found")
        .at(TomlTable::Provider, ALL, "none", "leaves out entries in whose names one of them is found"),
        |field, report| field.parsed(report, expressions), quote);
    SELECTED: Row<Spanned<Box<str>>, str> = row(key("selected", "name of a member", "\"second\"")
        .at(TomlTable::Outbound, SELECT, "the first member", "member that is used until a person chooses another one; that choice is kept across restarts"),
        |field, report| field.spanned(report, super::name), quote);
    STRATEGY: Row<Balance> = row(key("strategy", "consistent-hashing, round-robin or sticky-sessions", "\"round-robin\"")
        .at(TomlTable::Outbound, LOAD_BALANCE, "consistent-hashing", "the domain of a target keeps its member; or the next member each time; or a client and a domain keep theirs for ten minutes"),
        |field, report| field.choice(report, BALANCES), |balance| chosen(BALANCES, balance));
    TEST_TOLERANCE: Row<Duration> = span(key("tolerance", "duration, in whole milliseconds", "\"20ms\"")
        .at(TomlTable::Outbound, URL_TEST, "50ms", "delay by which another member must be better to take over"));
    TEST_URL: Row<Box<str>, str> = row(key("test-url", "address that begins with http:// or https://", "\"http://example.com/\"")
        .at(TomlTable::Outbound, CHOICES, "https://www.gstatic.com/generate_204", "page that is asked through each member: the time to the head of the response is its delay, and without one it is dead")
        .at(TomlTable::Provider, ALL, "https://www.gstatic.com/generate_204", "page that is asked through each entry; with it or with test-interval the entries are tested by time"),
        |field, report| field.parsed(report, url), quote);
    TEST_INTERVAL: Row<Duration> = span(key("test-interval", "duration, or 0s for no tests by time", "\"60s\"")
        .at(TomlTable::Outbound, CHOICES, "300s; 0s of select", "time between two tests of all members")
        .at(TomlTable::Provider, ALL, "300s", "time between two tests of all entries"));
    TEST_TIMEOUT: Row<Duration> = span(key("test-timeout", "duration", "\"2s\"")
        .at(TomlTable::Outbound, CHOICES, "5s", "a response that takes longer is none")
        .at(TomlTable::Provider, ALL, "5s", "a response that takes longer is none"));
    TEST_LAZY: Row<bool> = flag(key("test-lazy", "true or false", "false")
        .at(TomlTable::Outbound, CHOICES, "true", "rests the tests while nobody uses the group")
        .at(TomlTable::Provider, ALL, "true", "rests the tests while nobody uses a group with one of the entries"));
    TEST_FAILURES: Row<u32> = row(key("test-failures", "1 to 1000", "2")
        .at(TomlTable::Outbound, CHOICES, "5", "connections that fail within test-timeout until the members are tested before their time; one that is refused is enough"),
        |field, report| field.number(report, 1..=1000), ToString::to_string);
    TEST_STATUS: List<Statuses> = row(key("test-status", "status code or range as \"200-299\", or a list", "[204, \"200-202\"]")
        .at(TomlTable::Outbound, CHOICES, "any", "status codes of a good response")
        .at(TomlTable::Provider, ALL, "any", "status codes of a good response"),
        |field, report| field.numbers_or_texts(report, MAX_STATUSES, status), statuses);
    TEST_UNIFIED: Row<bool> = flag(key("test-unified", "true or false", "true")
        .at(TomlTable::Outbound, CHOICES, "false", "measures a second request on the same connection, without the handshakes")
        .at(TomlTable::Provider, ALL, "false", "measures a second request on the same connection, without the handshakes"));
    CHOSEN_UDP: Row<bool> = flag(key("udp", "true or false", "false")
        .at(TomlTable::Outbound, CHOICES, "true", "carries datagrams"));
    HIDDEN: Row<bool> = flag(key("hidden", "true or false", "true")
        .at(TomlTable::Outbound, CHOICES, "false", "asks control programs not to show the group"));
    ICON: Row<Box<str>, str> = row(key("icon", "address of a picture", "\"https://example.com/home.png\"")
        .at(TomlTable::Outbound, CHOICES, "none", "picture for control programs"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_URL)), quote);

    PROXY_SERVER: Row<Target> = row(key("server", "host:port", "\"proxy.example.com:1080\"")
        .at(TomlTable::Outbound, PROXIES, "required", "the proxy"),
        |field, report| field.parsed(report, target), quoted);
    PROXY_USER: Row<Box<str>, str> = any_text(key("username", "text", "\"ann\"")
        .at(TomlTable::Outbound, PROXIES, "none", "user name, with password"));
    PROXY_PASSWORD: Row<Secret> = row(key("password", "text of 1 to 255 bytes", "\"change me\"")
        .at(TomlTable::Outbound, PROXIES, "none", "password, with username"),
        |field, report| field.parsed(report, |text| secret(text, MAX_CREDENTIAL)), exposed);
    PROXY_UDP: Row<bool> = flag(key("udp", "true or false", "true")
        .at(TomlTable::Outbound, SOCKS5, "false", "carries datagrams, if the proxy does"));
    PROXY_TLS: Row<bool> = flag(key("tls", "true or false", "true")
        .at(TomlTable::Outbound, PROXIES, "false", "speaks TLS with the proxy"));
    PROXY_SNI: Row<Box<str>, str> = any_text(key("sni", "host name", "\"www.example.com\"")
        .at(TomlTable::Outbound, PROXIES, "host of server", "name that the proxy's certificate must have, with tls"));
    PROXY_INSECURE: Row<bool> = flag(key("skip-cert-verify", "true or false", "true")
        .at(TomlTable::Outbound, PROXIES, "false", "takes any certificate: anybody on the way can read and change everything"));
    PROXY_FINGERPRINT: Row<[u8; 32]> = row(key("fingerprint", "SHA-256 digest in hex", "\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"")
        .at(TomlTable::Outbound, PROXIES, "none", "takes the certificate with this digest alone, in the place of signatures and names"),
        |field, report| field.parsed(report, |text| digest(text).ok_or_else(|| Problem::new("not 64 digits of hex"))), |digest| quote(&digest_text(digest)));
    PROXY_HEADERS: List<Header> = row(key("headers", "\"Name: value\", or a list", "\"X-Token: change me\"")
        .at(TomlTable::Outbound, HTTP, "none", "fields that are sent to the proxy with each request"),
        |field, report| field.list(report, MAX_HEADERS, header), headers);
}

/// Expressions that entries are chosen by.
fn expressions(text: &str) -> Result<Box<str>, Problem> {
    let text = text_of(text, MAX_URL)?;
    for part in text.split('`') {
        fancy_regex::Regex::new(part).map_err(|error| Problem::new(error.to_string()))?;
    }
    Ok(text)
}

rows! { PROVIDER;
    LIST_PATH: Row<Box<str>, str> = row(key("path", "path of a file", "\"subscription.yaml\"")
        .at(TomlTable::Provider, ALL, "required without links", "mihomo's YAML with proxies, a link on each line, or base64 of such lines; relative to the folder of this file"),
        |field, report| field.parsed(report, |text| text_of(text, MAX_PATH)), quote);
    LINKS: Row<Vec<Spanned<Secret>>, [Secret]> = row(key("links", "link that begins with ss://, ssr:// or snell://, or a list", "[\"ss://YWVzLTEyOC1nY206c2VjcmV0@192.0.2.1:8388#one\"]")
        .at(TomlTable::Provider, ALL, "none", "the entries themselves, in the place of a file"),
        |field, report| field.list(report, MAX_OUTBOUNDS, link), |links| super::one_or_list(links.iter().map(exposed)));
    PREFIX: Row<Box<str>, str> = row(key("prefix", "text", "\"work \"")
        .at(TomlTable::Provider, ALL, "none", "text in front of the name of each entry"),
        |field, report| field.parsed(report, |text| text_of(text, 64)), quote);
    DIAL_THROUGH: Row<Spanned<Box<str>>, str> = row(key("dial-through", "name of an outbound", "\"home\"")
        .at(TomlTable::Provider, ALL, "none", "outbound that the entries dial through"),
        |field, report| field.spanned(report, super::name), quote);
}

/// A link of a server.
fn link(text: &str) -> Result<Secret, Problem> {
    crate::import::one_link(text).map(|_| Secret::new(text)).map_err(Problem::new)
}

/// An address that can be asked.
pub(super) fn url(text: &str) -> Result<Box<str>, Problem> {
    let url = text_of(text, MAX_URL)?;
    WebUrl::parse(&url).map(|_| url).map_err(|error| Problem::new(error.to_string()))
}

fn status(text: &str) -> Result<(u16, u16), Problem> {
    let bad = || {
        Problem::new("no status code").hint("write a number from 100 to 999 or a range such as \"200-299\"")
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse().ok().filter(|code| (100..=999).contains(code));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err(bad()),
    }
}

fn statuses(all: &[(u16, u16)]) -> String {
    let text = |(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { quote(&format!("{first}-{last}")) }
    };
    super::one_or_list(all.iter().map(text))
}

/// The bytes of a SHA-256 digest; colons between them are left out.
pub(crate) fn digest(text: &str) -> Option<[u8; 32]> {
    let text: String = text.chars().filter(|c| *c != ':').collect();
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

pub(super) fn digest_text(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A field of an HTTP request.
fn header(text: &str) -> Result<(Box<str>, Secret), Problem> {
    let bad = || Problem::new("no field of a request").hint("write \"Name: value\"");
    let (name, value) = text.split_once(':').ok_or_else(bad)?;
    field(name.trim(), value.trim()).ok_or_else(bad)
}

/// A name and a value that can stand in a request.
pub(crate) fn field(name: &str, value: &str) -> Option<(Box<str>, Secret)> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_fine = !name.is_empty()
        && name.len() <= 256
        && name.bytes().all(is_token)
        && value.len() <= 4096
        && value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    is_fine.then(|| (name.into(), Secret::new(value)))
}

fn headers(all: &[(Box<str>, Secret)]) -> String {
    super::one_or_list(all.iter().map(|(name, value)| quote(&format!("{name}: {}", value.expose()))))
}
