use std::io::Write;

use super::body::BodyFramer;
use super::fields::{BodyFraming, Fields, emit_framing, emit_upgrade};
use super::reply::connection_field;
use super::request::{Exchange, HttpVersion};
use super::{HeadError, MAX_FIELDS};

/// The next step after a response head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// An interim response (1xx): another head follows.
    Interim,
    /// 101: both directions are raw from here on.
    Switch,
    /// The final response.
    Final {
        /// Follows its body.
        body: BodyFramer,
        /// The client's version knows no chunks: send what [`BodyFramer::decode`] leaves.
        decode: bool,
        /// The client's connection stays open behind the body (if the request's body has been read, too).
        client_keeps: bool,
        /// The target's connection can be used again (if the request's body has been sent).
        target_keeps: bool,
    },
}

/// A response head, borrowed from the receive buffer.
#[derive(Debug, Clone)]
pub struct ResponseHead<'a> {
    version: HttpVersion,
    status: u16,
    reason: &'a str,
    fields: Fields<'a>,
}

impl<'a> ResponseHead<'a> {
    /// Reads a whole head, as long as [`super::HeadScanner::scan`] says.
    ///
    /// # Errors
    /// [`HeadError`]: the client gets 502.
    pub fn parse(head: &'a [u8]) -> Result<Self, HeadError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(head) {
            Ok(httparse::Status::Complete(len)) if len == head.len() => {}
            Ok(_) => return Err(HeadError::Incomplete),
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooManyFields),
            Err(error) => return Err(HeadError::Syntax(error)),
        }
        let status = response.code.unwrap_or_default();
        if status < 100 {
            return Err(HeadError::Syntax(httparse::Error::Status));
        }
        Ok(Self {
            version: HttpVersion::from_minor(response.version),
            status,
            reason: response.reason.unwrap_or_default(),
            fields: Fields::new(response.headers),
        })
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Follows the body, for a caller that has asked with GET.
    ///
    /// # Errors
    /// [`HeadError`] if it cannot be told where the body ends.
    pub fn body_for_get(&self) -> Result<BodyFramer, HeadError> {
        let exchange =
            Exchange { version: HttpVersion::Http11, keep_alive: false, head_request: false, upgrade: false };
        Ok(self.body(self.fields.framing(self.version)?, &exchange))
    }

    /// The address that the answer leads to, as the server wrote it.
    pub fn location(&self) -> Option<&'a str> {
        self.fields.values("location").next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Appends the head for the client and says what follows. Interim responses are swallowed for clients of
    /// HTTP/1.0, which do not know them.
    ///
    /// # Errors
    /// [`HeadError`] if the head makes no sense for this exchange; nothing has been appended, the client gets 502.
    pub fn emit_forward(&self, exchange: &Exchange, out: &mut Vec<u8>) -> Result<Disposition, HeadError> {
        if self.status == 101 {
            if !exchange.upgrade {
                return Err(HeadError::UnaskedSwitch);
            }
            self.emit_head(out, true, "");
            return Ok(Disposition::Switch);
        }
        if self.status < 200 {
            if exchange.version == HttpVersion::Http11 {
                self.emit_head(out, false, "");
            }
            return Ok(Disposition::Interim);
        }
        let framing = self.fields.framing(self.version)?;
        let body = self.body(framing, exchange);
        let decode =
            framing == BodyFraming::Chunked && exchange.version == HttpVersion::Http10 && !body.is_complete();
        let client_keeps = exchange.keep_alive && !body.is_until_end() && !decode;
        let target_keeps = self.fields.keep_alive(self.version) && !body.is_until_end();
        let mut tail = Vec::new();
        // The length fields of a response without body are about the body that a GET would get; 204 has none.
        if !(decode || self.status == 204 || (framing == BodyFraming::Chunked && body.is_complete())) {
            emit_framing(framing, &mut tail);
        }
        tail.extend_from_slice(connection_field(exchange.version, client_keeps).as_bytes());
        let tail = String::from_utf8(tail).expect("framing and connection fields are ASCII");
        self.emit_head(out, self.status == 426 && client_keeps, &tail);
        Ok(Disposition::Final { body, decode, client_keeps, target_keeps })
    }

    /// RFC 9112, section 6.3.
    fn body(&self, framing: BodyFraming, exchange: &Exchange) -> BodyFramer {
        if exchange.head_request || matches!(self.status, 204 | 304) {
            return BodyFramer::none();
        }
        match framing {
            BodyFraming::Unsaid => BodyFramer::until_end(),
            BodyFraming::Length(length) => BodyFramer::length(length),
            BodyFraming::Chunked => BodyFramer::chunked(),
        }
    }

    fn emit_head(&self, out: &mut Vec<u8>, upgrade: bool, tail: &str) {
        write!(out, "HTTP/1.1 {} {}\r\n", self.status, self.reason).expect("writing to a vector works");
        for field in self.fields.end_to_end() {
            field.emit(out);
        }
        if upgrade && self.fields.values("upgrade").next().is_some() {
            emit_upgrade(self.fields.values("upgrade"), out);
        }
        out.extend_from_slice(tail.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Any head is refused, or forwarded as a head that promises the same body; the first byte chooses the exchange.
#[doc(hidden)]
pub fn fuzz_http_response(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let exchange = Exchange {
        version: if choice & 1 == 0 { HttpVersion::Http11 } else { HttpVersion::Http10 },
        keep_alive: choice & 2 == 0,
        head_request: choice & 4 != 0,
        upgrade: choice & 9 == 8,
    };
    let Ok(Some(len)) = super::HeadScanner::new().scan(data) else { return };
    let Ok(response) = ResponseHead::parse(&data[..len]) else { return };
    let mut out = Vec::new();
    let Ok(disposition) = response.emit_forward(&exchange, &mut out) else {
        assert!(out.is_empty(), "errors append nothing");
        return;
    };
    if out.is_empty() {
        assert_eq!(disposition, Disposition::Interim);
        return;
    }
    assert_eq!(super::HeadScanner::new().scan(&out), Ok(Some(out.len())), "one head comes out");
    let again = ResponseHead::parse(&out).expect("what is emitted parses");
    let second = again.emit_forward(&exchange, &mut Vec::new()).expect("and makes sense");
    match (disposition, second) {
        (Disposition::Final { body, decode, client_keeps, .. }, Disposition::Final { body: seen, .. }) => {
            assert_eq!(seen, if decode { BodyFramer::until_end() } else { body }, "same body");
            let keeps = again.fields.keep_alive(HttpVersion::Http11);
            assert_eq!(keeps, client_keeps, "the client is told what happens");
        }
        (first, second) => assert_eq!(first, second),
    }
}
