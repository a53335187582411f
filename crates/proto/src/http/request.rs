use std::borrow::Cow;
use std::io::Write;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

use super::body::BodyFramer;
use super::fields::{BodyFraming, Fields, emit_framing, emit_upgrade};
use super::{HeadError, MAX_FIELDS, Visit, VisitError};
use crate::wire::{Credentials, Host, Target, TargetError};

/// Some clients leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The version that a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl HttpVersion {
    /// From what httparse gives as the minor version, which is 0 or 1.
    pub(super) fn from_minor(minor: Option<u8>) -> Self {
        if minor == Some(0) { Self::Http10 } else { Self::Http11 }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

/// Destination of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination<'a> {
    /// CONNECT: a tunnel to the target. The port defaults to 443.
    Tunnel(Target),
    /// Absolute form: forward to the target, asking it for `path`.
    Forward {
        /// Host and port; the port defaults to 80.
        target: Target,
        /// Path and query, never empty.
        path: Cow<'a, str>,
    },
    /// Origin form, as a request to the proxy itself or one that a firewall has diverted.
    Origin {
        /// Target of the one Host field, if it can be read.
        host: Option<Target>,
        /// Path and query.
        path: Cow<'a, str>,
    },
}

/// The part of a request that is kept until its response has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The client's version.
    pub version: HttpVersion,
    /// The client wants to send another request afterwards.
    pub keep_alive: bool,
    /// The method is HEAD: the response has no body, even if its fields announce one.
    pub head_request: bool,
    /// The client asks for another protocol and may get 101.
    pub upgrade: bool,
}

/// A request head, borrowed from the receive buffer.
#[derive(Debug, Clone)]
pub struct RequestHead<'a> {
    method: &'a str,
    version: HttpVersion,
    destination: Destination<'a>,
    /// Host as it is to be written on forwarding: as in the URI or the Host field, without `:80`.
    authority: String,
    framing: BodyFraming,
    fields: Fields<'a>,
}

impl<'a> RequestHead<'a> {
    /// Reads a whole head, as long as [`super::HeadScanner::scan`] says.
    ///
    /// # Errors
    /// [`HeadError`], to be answered with [`HeadError::status`].
    pub fn parse(head: &'a [u8]) -> Result<Self, HeadError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(httparse::Status::Complete(len)) if len == head.len() => {}
            Ok(_) => return Err(HeadError::Incomplete),
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooManyFields),
            Err(error) => return Err(HeadError::Syntax(error)),
        }
        let method = request.method.unwrap_or_default();
        let uri = request.path.unwrap_or_default();
        let version = HttpVersion::from_minor(request.version);
        let fields = Fields::new(request.headers);
        if fields.values("host").nth(1).is_some() {
            return Err(HeadError::Hosts);
        }
        if method == "CONNECT" {
            let (target, authority) = parse_authority(uri, 443)?;
            let destination = Destination::Tunnel(target);
            // RFC 9110, section 9.3.6: a CONNECT has no body, and what it says about one means nothing.
            return Ok(Self {
                method,
                version,
                destination,
                authority,
                framing: BodyFraming::Unsaid,
                fields,
            });
        }
        let framing = fields.framing(version)?;
        let (destination, authority) = parse_uri(method, uri, &fields)?;
        Ok(Self { method, version, destination, authority, framing, fields })
    }

    /// The method, in the case that was sent.
    pub fn method(&self) -> &'a str {
        self.method
    }

    /// The client's version.
    pub fn version(&self) -> HttpVersion {
        self.version
    }

    /// Destination of the request.
    pub fn destination(&self) -> &Destination<'a> {
        &self.destination
    }

    /// The first Proxy-Authorization of scheme Basic that can be read (RFC 7617).
    pub fn credentials(&self) -> Option<Credentials> {
        self.fields.values("proxy-authorization").find_map(parse_basic)
    }

    /// The sender of a request to the proxy itself.
    ///
    /// # Errors
    /// [`VisitError`], to be answered with [`super::Status::BadRequest`].
    pub fn visit(&self) -> Result<Visit, VisitError> {
        Visit::read(self.version, None, |name| self.fields.values(name))
    }

    /// The framer for the request's body.
    pub fn body(&self) -> BodyFramer {
        match self.framing {
            BodyFraming::Unsaid => BodyFramer::none(),
            BodyFraming::Length(length) => BodyFramer::length(length),
            BodyFraming::Chunked => BodyFramer::chunked(),
        }
    }

    /// The client waits for an interim response before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.version == HttpVersion::Http11
            && self.fields.values("expect").any(|value| value.eq_ignore_ascii_case(b"100-continue"))
    }

    /// The part that the response needs.
    pub fn exchange(&self) -> Exchange {
        Exchange {
            version: self.version,
            keep_alive: self.fields.keep_alive(self.version),
            head_request: self.method == "HEAD",
            upgrade: self.upgrade(),
        }
    }

    /// Appends the head for the target: origin form, HTTP/1.1, without what concerns this connection only. The
    /// body follows byte for byte.
    ///
    /// A tunnel has no such head, nor has a request for no host; nothing is appended for them.
    pub fn emit_forward(&self, out: &mut Vec<u8>) {
        let (Destination::Forward { path, .. } | Destination::Origin { host: Some(_), path }) =
            &self.destination
        else {
            return;
        };
        let (method, authority) = (self.method, &self.authority);
        write!(out, "{method} {path} HTTP/1.1\r\nHost: {authority}\r\n").expect("writing to a vector works");
        // A client of HTTP/1.0 cannot wait for a feature that it does not know (RFC 9110, section 10.1.1).
        let old = self.version == HttpVersion::Http10;
        for field in self.fields.end_to_end().filter(|field| !(old && field.is("expect"))) {
            field.emit(out);
        }
        emit_framing(self.framing, out);
        if self.upgrade() {
            emit_upgrade(self.fields.values("upgrade"), out);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// HTTP/1.0 knows no Upgrade (RFC 9110, section 7.8).
    fn upgrade(&self) -> bool {
        self.version == HttpVersion::Http11
            && self.fields.connection_has("upgrade")
            && self.fields.values("upgrade").next().is_some()
            && !matches!(self.destination, Destination::Tunnel(_))
    }
}

/// Splits the target of a request that is no CONNECT.
fn parse_uri<'a>(
    method: &str,
    uri: &'a str,
    fields: &Fields<'a>,
) -> Result<(Destination<'a>, String), HeadError> {
    let uri = uri.split('#').next().unwrap_or_default();
    if uri.starts_with('/') || (uri == "*" && method == "OPTIONS") {
        let mut hosts = fields.values("host");
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => {
                std::str::from_utf8(host).ok().and_then(|host| parse_authority(host, 80).ok())
            }
            _ => None,
        };
        let (host, authority) = host.map_or((None, String::new()), |(host, text)| (Some(host), text));
        return Ok((Destination::Origin { host, path: uri.into() }, authority));
    }
    let (scheme, rest) = uri.split_once("://").ok_or(HeadError::TargetForm)?;
    if scheme.eq_ignore_ascii_case("https") {
        // The proxy would have to speak TLS in the client's place.
        return Err(HeadError::TargetForm);
    }
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HeadError::Scheme);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (target, authority) = parse_authority(authority, 80)?;
    let path = match path {
        // RFC 9112, section 3.2.4: the whole server is meant.
        "" if method == "OPTIONS" => "*".into(),
        "" => "/".into(),
        // RFC 9112, section 3.2.1: an empty path is sent as a slash.
        query if query.starts_with('?') => format!("/{query}").into(),
        path => path.into(),
    };
    Ok((Destination::Forward { target, path }, authority))
}

/// Reads `host[:port]`: the target, and the text as it is to be written in a Host field (without `:80`).
fn parse_authority(text: &str, default_port: u16) -> Result<(Target, String), HeadError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(HeadError::TargetForm)?;
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(HeadError::TargetForm);
            }
            let port = if port.is_empty() {
                None
            } else {
                Some(port.strip_prefix(':').ok_or(HeadError::TargetForm)?)
            };
            (&text[..address.len() + 2], port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    // User information among them: RFC 9110, section 4.2.4 says to take it for an attack.
    if !text.starts_with('[')
        && host.contains(|c: char| c.is_ascii_punctuation() && !"-._~!$&'()*+,;=".contains(c))
    {
        return Err(TargetError::BadCharacter.into());
    }
    let port = match port {
        None | Some("") => default_port,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map_err(|_| TargetError::BadPort(digits.into()))?
        }
        Some(other) => return Err(TargetError::BadPort(other.into()).into()),
    };
    let target = Target { host: Host::parse(host.as_bytes())?, port };
    let text = if port == 80 { host.to_owned() } else { format!("{host}:{port}") };
    Ok((target, text))
}

/// Reads `Basic <base64 of user:password>`.
fn parse_basic(value: &[u8]) -> Option<Credentials> {
    let (scheme, rest) = value.split_at_checked(5)?;
    if !scheme.eq_ignore_ascii_case(b"basic") || rest.first() != Some(&b' ') {
        return None;
    }
    let pair = Zeroizing::new(BASE64.decode(rest.trim_ascii()).ok()?);
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(Credentials::new(&pair[..colon], &pair[colon + 1..]))
}

/// Any head is refused, or forwarded as a head that parses to the same destination and body.
#[doc(hidden)]
pub fn fuzz_http_request(data: &[u8]) {
    let whole = super::HeadScanner::new().scan(data);
    let mut scanner = super::HeadScanner::new();
    let parts = (1..=data.len()).map(|len| scanner.scan(&data[..len])).find(|found| *found != Ok(None));
    if !data.is_empty() {
        assert_eq!(parts.unwrap_or(Ok(None)), whole, "byte by byte");
    }
    let Ok(Some(len)) = whole else { return };
    let Ok(request) = RequestHead::parse(&data[..len]) else { return };
    let (_, _) = (request.credentials(), request.expects_continue());
    let mut out = Vec::new();
    request.emit_forward(&mut out);
    let (host, path) = match request.destination() {
        Destination::Tunnel(_) => return,
        Destination::Forward { target, path } => (target.clone(), path.clone()),
        Destination::Origin { host: Some(host), path } => (host.clone(), path.clone()),
        Destination::Origin { host: None, .. } => return,
    };
    assert_eq!(super::HeadScanner::new().scan(&out), Ok(Some(out.len())), "one head comes out");
    let again = RequestHead::parse(&out).expect("what is emitted parses");
    assert_eq!(again.destination, Destination::Origin { host: Some(host), path });
    assert_eq!((again.method, again.framing), (request.method, request.framing));
    assert!(again.exchange().keep_alive, "nothing closes the connection to the target");
}
