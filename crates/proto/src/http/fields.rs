//! Fields of a head: looking them up, which of them end at the proxy, and what they say about the body.

use std::fmt;
use std::io::Write;

use super::{HeadError, HttpVersion};

/// One line of a head. Names compare without case.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) name: &'a str,
    pub(super) value: &'a [u8],
}

impl Field<'_> {
    pub(super) fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(self.value);
        out.extend_from_slice(b"\r\n");
    }
}

/// Without the value: it may be a password, a cookie or a token.
impl fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The fields of a head, in order.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a>(Vec<Field<'a>>);

/// The length of the body as the fields give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// Nothing.
    Unsaid,
    Length(u64),
    Chunked,
}

/// Fields that concern one connection only (RFC 9110, section 7.6.1), besides those that Connection names. Host and
/// Content-Length are here because they are written anew.
const NOT_FORWARDED: [&str; 11] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authorization",
    "proxy-authenticate",
    "host",
    "content-length",
];

impl<'a> Fields<'a> {
    pub(super) fn new(headers: &[httparse::Header<'a>]) -> Self {
        Self(headers.iter().map(|header| Field { name: header.name, value: header.value }).collect())
    }

    pub(super) fn values(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |field| field.is(name)).map(|field| field.value)
    }

    /// The elements of the comma-separated lists under `name`, without white space around them.
    fn elements(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.values(name).flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii)
    }

    /// Do Connection or Proxy-Connection hold `option`?
    pub(super) fn connection_has(&self, option: &str) -> bool {
        let mut options = self.elements("connection").chain(self.elements("proxy-connection"));
        options.any(|element| element.eq_ignore_ascii_case(option.as_bytes()))
    }

    /// Does the sender want to use the connection again (RFC 9112, section 9.3)?
    pub(super) fn keep_alive(&self, version: HttpVersion) -> bool {
        let default = version == HttpVersion::Http11 || self.connection_has("keep-alive");
        default && !self.connection_has("close")
    }

    /// The fields that travel on.
    pub(super) fn end_to_end(&self) -> impl Iterator<Item = &Field<'a>> {
        self.0.iter().filter(|field| {
            !NOT_FORWARDED.iter().any(|name| field.is(name)) && !self.connection_has(field.name)
        })
    }

    /// The framing of the message's body (RFC 9112, section 6.3). Fields that two readers might understand
    /// differently are an error.
    pub(super) fn framing(&self, version: HttpVersion) -> Result<BodyFraming, HeadError> {
        let length = self.content_length()?;
        let mut codings = self.elements("transfer-encoding");
        let Some(first) = codings.next() else {
            return Ok(length.map_or(BodyFraming::Unsaid, BodyFraming::Length));
        };
        if length.is_some() {
            return Err(HeadError::AmbiguousLength);
        }
        if version == HttpVersion::Http10 || first.is_empty() {
            return Err(HeadError::BadCoding);
        }
        if !first.eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError::Coding);
        }
        if codings.next().is_some() {
            return Err(HeadError::BadCoding);
        }
        Ok(BodyFraming::Chunked)
    }

    /// Equal values, as lines or as a list, count as one (RFC 9112, section 6.3, item 5).
    fn content_length(&self) -> Result<Option<u64>, HeadError> {
        let mut length = None;
        for element in self.elements("content-length") {
            let value = decimal(element).ok_or(HeadError::BadLength)?;
            if length.is_some_and(|length| length != value) {
                return Err(HeadError::DifferingLengths);
            }
            length = Some(value);
        }
        Ok(length)
    }
}

/// Digits and nothing else.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Appends the field that announces `framing`.
pub(super) fn emit_framing(framing: BodyFraming, out: &mut Vec<u8>) {
    match framing {
        BodyFraming::Unsaid => {}
        BodyFraming::Length(length) => {
            write!(out, "Content-Length: {length}\r\n").expect("writing to a vector works")
        }
        BodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

/// Appends the offer, demand or confirmation of another protocol.
pub(super) fn emit_upgrade<'a>(protocols: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Connection: Upgrade\r\n");
    for value in protocols {
        Field { name: "Upgrade", value }.emit(out);
    }
}
