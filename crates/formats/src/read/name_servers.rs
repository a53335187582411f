//! Values of `[dns]` and of ports that answer questions.

use std::net::{IpAddr, SocketAddr};

use adit_model::{
    DnsPolicy, DnsTransport, FakeFilter, FakeRange, NameServer, Tag, Upstream, fake_pattern, is_pattern,
};
use adit_proto::wire::{Host, Target};

use crate::read::value::{self, Problem, text_of};

/// Longest text of a server, in bytes.
const MAX_SERVER: usize = 1024;

/// The ports of the transports, without and with TLS.
const PORT: u16 = 53;
const TLS_PORT: u16 = 853;
const HTTPS_PORT: u16 = 443;

/// The text of a server as it is kept, how the server is spoken to, and where it is.
pub(crate) type NameServerAddress = (Box<str>, DnsTransport, Target);

pub(crate) fn address(text: &str) -> Result<IpAddr, Problem> {
    let address = text.trim().trim_start_matches('[').trim_end_matches(']').parse();
    address.map_err(|_| Problem::new(format!("not an IP address: {}", value::excerpt(text))))
}

/// A server as [`server`] reads it, or a word for those of the system or for none.
pub(crate) fn server_or_word(text: &str) -> Result<NameServerAddress, Problem> {
    let word = match text.trim() {
        NameServer::SYSTEM => Upstream::system(None, None),
        DnsTransport::REFUSED => Upstream::refused(),
        _ => return server(text),
    };
    Ok((word.name, word.transport, word.server))
}

/// A server: the text as it is kept, how the server is spoken to, and where it is.
pub(crate) fn server(text: &str) -> Result<NameServerAddress, Problem> {
    let text = text_of(text.trim(), MAX_SERVER)?;
    let (scheme, rest) = text.split_once("://").unwrap_or(("udp", &text));
    let target = |port| target(rest, port).ok_or_else(|| bad_server(&text));
    let (transport, target) = match scheme.to_ascii_lowercase().as_str() {
        "udp" => (DnsTransport::Udp, target(PORT)?),
        "tcp" => (DnsTransport::Tcp, target(PORT)?),
        "tls" => {
            let target = target(TLS_PORT)?;
            (DnsTransport::Tls { name: target.host.to_string().into() }, target)
        }
        "https" => https(rest).ok_or_else(|| bad_server(&text))?,
        "quic" | "doq" | "h3" | "http3" => {
            let problem = Problem::new("DNS over QUIC and HTTP/3 are not supported yet");
            return Err(problem.hint("write tls://.. or https://.."));
        }
        other => {
            let problem = Problem::new(format!("unknown transport: {}", value::excerpt(other)));
            return Err(problem.hint("write udp://, tcp://, tls:// or https:// in front of the server"));
        }
    };
    Ok((text, transport, target))
}

/// `host`, `host:port`, an address, or an IPv6 address in brackets with a port.
fn target(text: &str, port: u16) -> Option<Target> {
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port).into());
    }
    let has_port = text.rfind(':') > text.rfind(']');
    let target: Target = if has_port { text.parse().ok()? } else { format!("{text}:{port}").parse().ok()? };
    let is_name =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let is_good = match &target.host {
        Host::Name(name) => !name.is_empty() && is_name(name),
        Host::Ip(_) => true,
    };
    (target.port != 0 && is_good).then_some(target)
}

fn bad_server(text: &str) -> Problem {
    Problem::new(format!("bad name server: {}", value::excerpt(text))).hint(
        "write 1.1.1.1, udp://1.1.1.1:53, tcp://.., tls://dns.example:853 or https://dns.example/dns-query",
    )
}

fn https(rest: &str) -> Option<(DnsTransport, Target)> {
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/dns-query" } else { path };
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return None;
    }
    let target = target(authority, HTTPS_PORT)?;
    let name: Box<str> = target.host.to_string().into();
    let authority = authority.into();
    Some((DnsTransport::Https { authority, path: path.into(), name }, target))
}

pub(crate) fn fake_range(text: &str, is_ipv6: bool) -> Result<FakeRange, Problem> {
    let hint = if is_ipv6 { "write for instance fd00:adf::/64" } else { "write for instance 198.18.0.0/16" };
    let bad = |problem: String| Problem::new(format!("{problem}: {}", value::excerpt(text))).hint(hint);
    let range: FakeRange =
        text.parse().map_err(|error: adit_model::FakeRangeError| bad(error.to_string()))?;
    let family = if is_ipv6 { "IPv6" } else { "IPv4" };
    if range.is_ipv6() == is_ipv6 { Ok(range) } else { Err(bad(format!("not a network of {family}"))) }
}

pub(crate) fn fake_filter(text: &str) -> Result<FakeFilter, Problem> {
    let text = text.trim();
    if text == "default" {
        return Ok(FakeFilter::Usual);
    }
    if let Some(set) = text.strip_prefix("rule-set:") {
        return crate::adit_toml::name(set).map(|set| FakeFilter::Set(Tag::from(&*set)));
    }
    let bad = || Problem::new(format!("no pattern of names: {}", value::excerpt(text)));
    if text.starts_with("geosite:") {
        return Err(
            bad().hint("put the names in a file, name it in a [[set]], and write rule-set: and its name")
        );
    }
    let hint = "write x for a name, +.x with all below it, .x for all below it, * for a label, rule-set:name or default";
    fake_pattern(text).map(FakeFilter::Pattern).ok_or_else(|| bad().hint(hint))
}

pub(crate) fn fake_filter_text(entry: &FakeFilter) -> String {
    match entry {
        FakeFilter::Usual => "default".to_owned(),
        FakeFilter::Pattern(pattern) => pattern.to_string(),
        FakeFilter::Set(name) => format!("rule-set:{name}"),
    }
}

/// The names of a policy: a domain, or those of a list.
pub(crate) fn policy_domain(text: &str) -> Result<Box<str>, Problem> {
    match text.trim().strip_prefix(DnsPolicy::SET) {
        Some(set) => crate::adit_toml::name(set).map(|set| format!("{}{set}", DnsPolicy::SET).into()),
        None => domain(text),
    }
}

pub(crate) fn domain(text: &str) -> Result<Box<str>, Problem> {
    let text = text_of(text.trim(), 256)?.to_ascii_lowercase();
    let (lead, rest) = text.strip_prefix('=').map_or(("", text.as_str()), |rest| ("=", rest));
    let rest = rest.strip_prefix("*.").or_else(|| rest.strip_prefix('.')).unwrap_or(rest);
    let rest = rest.strip_suffix('.').unwrap_or(rest);
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if rest.is_empty() || rest.split('.').any(str::is_empty) || !rest.bytes().all(is_good) {
        return Err(Problem::new(format!("bad domain: {}", value::excerpt(&text)))
            .hint("write example.com for it and all below it, =example.com for it alone"));
    }
    Ok(format!("{lead}{rest}").into())
}

/// A name or a pattern of names.
pub(crate) fn host_name(text: &str) -> Result<Box<str>, Problem> {
    let text = text_of(text.trim(), 256)?;
    if is_pattern(&text) {
        let bad = || Problem::new(format!("no pattern of names: {}", value::excerpt(&text)));
        let hint = "write x for a name, +.x with all below it, .x for all below it, * for a label";
        return fake_pattern(&text).ok_or_else(|| bad().hint(hint));
    }
    domain(&text)
}
