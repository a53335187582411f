//! The fields by which a server knows from where a request comes: Host, Origin, and what browsers add.
//!
//! ```text
//! Host: host[:port]                                     host = address / "[" IPv6 "]" / name; port = 1 to 65535
//! Origin: null | scheme "://" host[:port]
//! Sec-Fetch-Site: same-origin | same-site | cross-site | none
//! ```
//!
//! Sources: RFC 9110, section 7.2 and RFC 9112, section 3.2 (Host); RFC 6454, section 7 (Origin); the W3C's Fetch Metadata
//! Request Headers. Two readers must not find two hosts in one field, so there is one spelling of each: no user information,
//! no zone, no number that is not the whole address, nothing behind a bracket but a port. Browsers send Sec-Fetch fields to
//! loopback and over TLS only; a page cannot set them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use super::HttpVersion;
use crate::wire::Host;

/// Longest name of a host in bytes (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;

/// The host that a client names, with the port if it is not the scheme's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// An address, or a name as it was written.
    pub host: Host,
    /// 1 to 65535.
    pub port: Option<u16>,
}

impl Authority {
    /// Reads `host[:port]`; `None` for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                let address: Ipv6Addr = address.parse().ok()?;
                let port = if port.is_empty() { None } else { Some(port.strip_prefix(':')?) };
                (Host::Ip(IpAddr::V6(address).to_canonical()), port)
            }
            None => {
                let (host, port) =
                    text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
                (name(host)?, port)
            }
        };
        Some(Self { host, port: port.map_or(Some(None), self::port)? })
    }

    /// Whether no site can have led its own name to this host: it is an address or `localhost`.
    pub fn is_literal(&self) -> bool {
        match &self.host {
            Host::Ip(_) => true,
            Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Whether it is this machine by an address of loopback or by `localhost`.
    pub fn is_loopback(&self) -> bool {
        self.is_literal() && !matches!(&self.host, Host::Ip(ip) if !ip.is_loopback())
    }

    /// Whether both are one place where `port` is the scheme's.
    fn is_same(&self, other: &Self, port: u16) -> bool {
        let is_same_host = match (&self.host, &other.host) {
            (Host::Name(one), Host::Name(other)) => one.eq_ignore_ascii_case(other),
            (Host::Ip(one), Host::Ip(other)) => one == other,
            (Host::Ip(_), Host::Name(_)) | (Host::Name(_), Host::Ip(_)) => false,
        };
        is_same_host && self.port.unwrap_or(port) == other.port.unwrap_or(port)
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]")?,
            host @ (Host::Ip(IpAddr::V4(_)) | Host::Name(_)) => host.fmt(f)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// A name, or an address of IPv4. A name that ends in a number would be an address for others (WHATWG URL, section 3.5).
fn name(text: &str) -> Option<Host> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(Host::Ip(address.into()));
    }
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let last = text.rsplit('.').next()?;
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let is_name = text.len() <= MAX_NAME && text.split('.').all(is_label) && !is_number;
    is_name.then(|| Host::Name(text.into()))
}

/// The digits behind the colon, of which there may be none.
fn port(digits: &str) -> Option<Option<u16>> {
    if digits.is_empty() {
        return Some(None);
    }
    let is_number = digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten().filter(|port| *port != 0).map(Some)
}

/// The page that sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `null`: a page that hides where it is from.
    Opaque,
    /// A page of `http` or `https`.
    Site {
        /// Whether it is `https`.
        is_https: bool,
        /// Its host.
        at: Authority,
    },
    /// A page of an application or of a file.
    Other,
}

impl Origin {
    /// Reads the value of a field `Origin`; `None` for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text == b"null" {
            return Some(Self::Opaque);
        }
        let (scheme, site) = std::str::from_utf8(text).ok()?.split_once("://")?;
        let at = Authority::parse(site.as_bytes());
        match scheme {
            "http" | "https" => Some(Self::Site { is_https: scheme == "https", at: at? }),
            _ => {
                let is_more = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
                let is_scheme =
                    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(is_more);
                (is_scheme && (site.is_empty() || at.is_some())).then_some(Self::Other)
            }
        }
    }

    /// Whether it is a page of this machine, or of the server that the client names by `host`.
    fn is_near(&self, host: Option<&Authority>) -> bool {
        matches!(self, Self::Site { at, .. } if at.is_loopback()) || self.is_same(host)
    }

    /// The same, and of nothing else on this machine.
    fn is_same(&self, host: Option<&Authority>) -> bool {
        let Self::Site { is_https, at } = self else { return false };
        host.is_some_and(|host| at.is_same(host, if *is_https { 443 } else { 80 }))
    }
}

/// Why the fields of a request cannot be trusted to name one host and one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VisitError {
    /// HTTP/1.1 without Host.
    #[error("the request has no Host")]
    NoHost,
    /// More than one Host.
    #[error("the request has more than one Host")]
    Hosts,
    /// A Host of the wrong form.
    #[error("the Host is not host or host:port")]
    BadHost,
    /// A request line that names another host.
    #[error("the request line names another host than Host")]
    OtherHost,
    /// More than one Origin, or one of the wrong form.
    #[error("the Origin is not scheme://host or scheme://host:port")]
    BadOrigin,
}

/// The sender of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Caller {
    /// A program, or a browser that says nothing of a page.
    #[default]
    Program,
    /// A page of this server or of this machine, or a person who typed the address.
    Own,
    /// A page elsewhere leads a person here: a tab shows the answer.
    Link,
    /// A page elsewhere has something loaded: an image, a script, a frame.
    Embedded,
    /// A page elsewhere, by its Origin.
    Foreign,
}

impl Caller {
    /// Whether it may have something done without a secret.
    pub fn may_act(self) -> bool {
        matches!(self, Self::Program | Self::Own)
    }

    /// Whether it may be shown what is not for everybody without a secret.
    pub fn may_read(self) -> bool {
        self.may_act() || self == Self::Link
    }
}

/// A request's sender as far as its fields tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visit {
    /// The host that the client names; `None` for HTTP/1.0 without one.
    pub host: Option<Authority>,
    /// The page that the client names.
    pub origin: Option<Origin>,
    /// Judged with the two above.
    pub caller: Caller,
}

impl Visit {
    /// Reads the fields. `values` gives all values of a name in small letters; `asked` is the authority of a request line in
    /// absolute form.
    ///
    /// # Errors
    /// [`VisitError`], to be answered with status 400.
    pub fn read<'a, V: Iterator<Item = &'a [u8]>>(
        version: HttpVersion,
        asked: Option<&[u8]>,
        values: impl Fn(&'static str) -> V,
    ) -> Result<Self, VisitError> {
        let only = |name| {
            let mut all = values(name);
            (all.next(), all.next().is_some())
        };
        let host = match only("host") {
            (None, _) if version == HttpVersion::Http10 => None,
            (None, _) => return Err(VisitError::NoHost),
            (Some(_), true) => return Err(VisitError::Hosts),
            (Some(host), false) => Some(Authority::parse(host).ok_or(VisitError::BadHost)?),
        };
        let host = match asked.map(Authority::parse) {
            None => host,
            Some(None) => return Err(VisitError::BadHost),
            Some(Some(asked)) if host.as_ref().is_none_or(|host| host.is_same(&asked, 80)) => Some(asked),
            Some(Some(_)) => return Err(VisitError::OtherHost),
        };
        let origin = match only("origin") {
            (None, _) => None,
            (Some(_), true) => return Err(VisitError::BadOrigin),
            (Some(origin), false) => Some(Origin::parse(origin).ok_or(VisitError::BadOrigin)?),
        };
        // Two values of one field are no value that a browser sends.
        let word = |name| match only(name) {
            (word, false) => word,
            (Some(_) | None, true) => Some(&b""[..]),
        };
        let site = word("sec-fetch-site");
        let caller = match (&origin, site) {
            // A browser that calls its page's own server cross-site was sent there by another.
            (Some(origin), Some(site)) if origin.is_same(host.as_ref()) && site != b"same-origin" => {
                Caller::Foreign
            }
            (Some(origin), _) if origin.is_near(host.as_ref()) => Caller::Own,
            (Some(_), _) => Caller::Foreign,
            (None, Some(b"same-origin" | b"none")) => Caller::Own,
            (None, Some(_))
                if word("sec-fetch-mode") == Some(b"navigate")
                    && word("sec-fetch-dest") == Some(b"document") =>
            {
                Caller::Link
            }
            (None, Some(_)) => Caller::Embedded,
            (None, None) => word("referer").map_or(Caller::Program, |page| referred(page, host.as_ref())),
        };
        Ok(Self { host, origin, caller })
    }
}

/// The sender of a request from this page, by a browser that says no more.
fn referred(page: &[u8], host: Option<&Authority>) -> Caller {
    let start = page.windows(3).position(|part| part == b"://").map_or(page.len(), |at| at + 3);
    let len = page[start..].iter().position(|byte| b"/?#".contains(byte)).unwrap_or(page.len() - start);
    match Origin::parse(&page[..start + len]) {
        Some(origin) if origin.is_near(host) => Caller::Own,
        Some(_) | None => Caller::Embedded,
    }
}

/// Fuzz target: `data` as each of the fields. A host that is read is written and read as the same one, and holds none of the
/// characters by which another reader could find another.
#[doc(hidden)]
pub fn fuzz_http_visit(data: &[u8]) {
    if let Some(found) = Authority::parse(data) {
        let text = found.to_string();
        assert_eq!(Authority::parse(text.as_bytes()).as_ref(), Some(&found), "{text}");
        assert!(!data.iter().any(|byte| b"@/?#\\% ,".contains(byte) || !byte.is_ascii_graphic()), "{text}");
        let origin = [&b"http://"[..], data].concat();
        let of_it = Some(Origin::Site { is_https: false, at: found });
        assert_eq!(Origin::parse(&origin), of_it);
        assert_eq!(referred(&[&origin[..], b"/path@x"].concat(), None), referred(&origin, None));
    }
    if let Some(Origin::Site { at, .. }) = Origin::parse(data) {
        assert!(
            data.ends_with(b":")
                || data.ends_with(b".")
                || Authority::parse(at.to_string().as_bytes()).is_some()
        );
    }
    let mut lines = data.split(|byte| *byte == b'\n');
    let [host, origin, site, asked] = [(); 4].map(|()| lines.next());
    let values = |name| {
        let value = match name {
            "host" => host,
            "origin" => origin,
            "sec-fetch-site" => site,
            _ => None,
        };
        value.into_iter()
    };
    if let Ok(visit) = Visit::read(HttpVersion::Http11, asked, values) {
        assert!(visit.host.is_some(), "HTTP/1.1 names a host");
        assert!(visit.origin.is_some() || visit.caller != Caller::Foreign);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_one_spelling() {
        for (text, shown) in [
            ("127.0.0.1:9090", "127.0.0.1:9090"),
            ("localhost", "localhost"),
            ("localhost:", "localhost"),
            ("localhost.:1", "localhost:1"),
            ("[::1]:65535", "[::1]:65535"),
            ("[::1]", "[::1]"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ("a_b.example-1.com:00080", "a_b.example-1.com:80"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("1.example", "1.example"),
        ] {
            assert_eq!(
                Authority::parse(text.as_bytes()).map(|found| found.to_string()).as_deref(),
                Some(shown),
                "{text}"
            );
        }
        for text in [
            "",
            ":80",
            ".",
            "..",
            "a..b",
            "a.b..",
            "[::1].evil.com",
            "[::1].evil.com:80",
            "[::1]x",
            "[::1",
            "[::1]]",
            "[127.0.0.1]",
            "[fe80::1%25eth0]",
            "[fe80::1%eth0]",
            "::1",
            "::1:80",
            "[localhost]",
            "[]",
            "[]:1",
            "user@127.0.0.1",
            "127.0.0.1@evil.com",
            "127.0.0.1:80@evil.com",
            "a:b@c",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            "127.0.0.1:+80",
            "127.0.0.1:-1",
            "127.0.0.1: 80",
            "127.0.0.1:80 ",
            " 127.0.0.1",
            "127.0.0.1:8a",
            "a:80:80",
            "127.0.0.1:000080",
            "127.0.0.1, evil.com",
            "127.0.0.1,127.0.0.1",
            "127.0.0.1/x",
            "127.0.0.1#x",
            "a?b",
            "a\\b",
            "a%2eb",
            "999.1.1.1",
            "127.1",
            "1",
            "0x7f000001",
            "0x7F.0x1",
            "evil.0x1",
            "evil.1",
            "127.0.0.1.1",
            "a\u{0}b",
            "a\tb",
            "a\u{e4}b",
            "*",
            "a'b",
            "a\"b",
            "http://a",
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Authority::parse(b"\xff"), None);
        assert!(Authority::parse(format!("{}a", "a.".repeat(126)).as_bytes()).is_some());
        assert_eq!(Authority::parse(format!("{}aa", "a.".repeat(126)).as_bytes()), None);
    }

    #[test]
    fn origins_have_one_spelling() {
        for (text, is_site) in [
            ("http://localhost:80", true),
            ("https://[::1]", true),
            ("null", false),
            ("tauri://localhost", false),
            ("chrome-extension://abcdefgh", false),
            ("file://", false),
        ] {
            let found = Origin::parse(text.as_bytes());
            assert_eq!(found.map(|found| matches!(found, Origin::Site { .. })), Some(is_site), "{text}");
        }
        for text in [
            "",
            "http://",
            "http:///",
            "http://localhost:80@evil.com",
            "http://localhost@evil.com",
            "http://localhost:80/",
            "http://localhost/x",
            "http://[::1].evil.com",
            "http://127.0.0.1:99999",
            "http://127.0.0.1:0",
            "http://999.1.1.1",
            "http://a http://b",
            "http://a, http://b",
            "localhost",
            "//localhost",
            "http:localhost",
            "NULL",
            "null ",
            "1x://a",
            "://a",
            "x y://a",
            "tauri://a@b",
        ] {
            assert_eq!(Origin::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    fn read(version: HttpVersion, fields: &[(&str, &str)]) -> Result<Visit, VisitError> {
        Visit::read(version, None, |name| {
            let of = fields.iter().filter(move |(known, _)| *known == name);
            of.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>().into_iter()
        })
    }

    #[test]
    fn requests_name_one_host() {
        let error = |fields: &[(&str, &str)]| read(HttpVersion::Http11, fields).unwrap_err();
        assert_eq!(error(&[]), VisitError::NoHost);
        assert_eq!(error(&[("host", "a"), ("host", "a")]), VisitError::Hosts);
        assert_eq!(error(&[("host", "[::1].evil.com")]), VisitError::BadHost);
        assert_eq!(
            error(&[("host", "a"), ("origin", "http://a"), ("origin", "http://a")]),
            VisitError::BadOrigin
        );
        assert_eq!(
            error(&[("host", "a"), ("origin", "http://localhost:80@evil.com")]),
            VisitError::BadOrigin
        );
        assert_eq!(read(HttpVersion::Http10, &[]).map(|visit| visit.host), Ok(None));
        assert_eq!(read(HttpVersion::Http10, &[("host", "a"), ("host", "b")]), Err(VisitError::Hosts));
        for (host, asked, holds) in [
            (Some("a:80"), "A", Ok("A")),
            (None, "b:1", Ok("b:1")),
            (Some("127.0.0.1"), "evil.example", Err(VisitError::OtherHost)),
            (Some("127.0.0.1"), "user@127.0.0.1", Err(VisitError::BadHost)),
        ] {
            let values = |name| host.filter(|_| name == "host").map(str::as_bytes).into_iter();
            let found = Visit::read(HttpVersion::Http10, Some(asked.as_bytes()), values);
            assert_eq!(
                found.map(|found| found.host.unwrap().to_string()),
                holds.map(str::to_owned),
                "{host:?} {asked}"
            );
        }
    }

    #[test]
    fn callers() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:9090");
        let site = |value| ("sec-fetch-site", value);
        let origin = |value| ("origin", value);
        let referer = |value| ("referer", value);
        let (navigate, document) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"));
        for (fields, caller) in [
            (&[HOST][..], Caller::Program),
            (&[HOST, site("none")], Caller::Own),
            (&[HOST, site("same-origin")], Caller::Own),
            (&[HOST, site("same-site")], Caller::Embedded),
            (&[HOST, site("cross-site")], Caller::Embedded),
            (&[HOST, site("")], Caller::Embedded),
            (&[HOST, site("Same-Origin")], Caller::Embedded),
            (&[HOST, site("same-origin"), site("same-origin")], Caller::Embedded),
            (&[HOST, site("cross-site"), navigate, document], Caller::Link),
            (&[HOST, site("cross-site"), navigate, ("sec-fetch-dest", "iframe")], Caller::Embedded),
            (&[HOST, origin("http://127.0.0.1:9090")], Caller::Own),
            (&[HOST, origin("http://127.0.0.1:9090"), site("same-origin")], Caller::Own),
            (&[HOST, origin("http://127.0.0.1:9090"), site("cross-site")], Caller::Foreign),
            (&[HOST, origin("http://localhost:5173"), site("cross-site")], Caller::Own),
            (&[HOST, origin("http://evil.example"), site("same-origin")], Caller::Foreign),
            (&[HOST, origin("http://127.0.0.1.evil.example")], Caller::Foreign),
            (&[HOST, origin("null")], Caller::Foreign),
            (&[HOST, origin("file://")], Caller::Foreign),
            (&[HOST, origin("tauri://localhost")], Caller::Foreign),
            (&[HOST, referer("http://127.0.0.1:9090/ui/?a=b#c")], Caller::Own),
            (&[HOST, referer("http://evil.example/x://127.0.0.1:9090/")], Caller::Embedded),
            (&[HOST, referer("http://127.0.0.1:9090@evil.example/")], Caller::Embedded),
            (&[HOST, referer("about:blank")], Caller::Embedded),
            (&[HOST, site("same-origin"), referer("http://evil.example/")], Caller::Own),
        ] {
            let found = read(HttpVersion::Http11, fields).map(|visit| visit.caller);
            assert_eq!(found, Ok(caller), "{fields:?}");
        }
        assert!(Caller::Program.may_act() && Caller::Own.may_act() && Caller::Link.may_read());
        assert!(!Caller::Link.may_act() && !Caller::Embedded.may_read() && !Caller::Foreign.may_read());
    }

    #[test]
    fn any_input_keeps_the_promises() {
        for data in [
            "a.:1\nhttp://a.\nnone\n[::1]",
            "[::ffff:1.2.3.4]",
            "http://a:",
            "x://",
            "\n\n\n",
            "a\nnull\ncross-site",
        ] {
            fuzz_http_visit(data.as_bytes());
        }
    }
}
