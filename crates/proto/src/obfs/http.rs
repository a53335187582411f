//! A stream behind the heads of a WebSocket upgrade.
//!
//! ```text
//! C->S  GET <path> HTTP/1.1 CRLF
//!       Host: <host> CRLF                                    in the order that Surge 6 uses, as sing-box's
//!       User-Agent: <user agent> CRLF                        Snell implementation records it; names and order
//!       Upgrade: websocket CRLF                              differ between clients, servers look at none but
//!       Connection: Upgrade CRLF                             Connection and Content-Length
//!       Content-Length: <n> CRLF                             only if n > 0
//!       Sec-WebSocket-Key: <base64 of 16 random bytes> CRLF CRLF
//!       <n bytes of stream>                                  the first frame; everything later follows raw
//!
//! S->C  HTTP/1.1 101 Switching Protocols CRLF
//!       Server: nginx/1.<0..10>.<0..11> CRLF
//!       Date: <RFC 9110 date> CRLF
//!       Upgrade: websocket CRLF
//!       Connection: Upgrade CRLF
//!       Sec-WebSocket-Accept: <base64 of 16 random bytes> CRLF CRLF      not computed from the key
//!       <stream>
//! ```
//!
//! A reader skips to the first blank line and ignores Content-Length: the body it announces is the beginning of
//! the stream anyway. OpenSnell's server does honour it, and wants GET and `Connection: Upgrade`. Heads are
//! bounded to [`MAX_HEAD_LEN`].

use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

use crate::buf::RecvBuf;
use crate::wire::{Layer, Opened, Plan, Rng, Room, WireError, http_date};

/// Longest head that is accepted, blank line included, in bytes. Real ones have about 200.
pub const MAX_HEAD_LEN: usize = 8192;

const CONTENT_LENGTH: &str = "Content-Length: ";

/// A text that cannot stand in a request head.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} holds a space or a control character, or is empty")]
pub struct BadText {
    what: &'static str,
}

/// State that all connections of one client share.
#[derive(Debug, Clone)]
pub struct HttpObfsConfig {
    host: Box<str>,
    path: Box<str>,
    user_agent: Box<str>,
}

impl HttpObfsConfig {
    /// `host` goes into the Host line as it is, `path` starts with a slash. The browser version that the user
    /// agent names is drawn once: make one configuration per process, as Surge does.
    ///
    /// # Errors
    /// [`BadText`] if `host` or `path` would break the head.
    pub fn new(host: &str, path: &str, rng: &mut dyn Rng) -> Result<Self, BadText> {
        for (what, text) in [("obfs host", host), ("obfs path", path)] {
            if text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return Err(BadText { what });
            }
        }
        // Releases of the two years around 2025; any plausible one does.
        let release = 128 + rng.below(18);
        let user_agent = format!(
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:{release}.0) Gecko/20100101 Firefox/{release}.0"
        );
        Ok(Self { host: host.into(), path: path.into(), user_agent: user_agent.into() })
    }
}

/// The client's end.
#[derive(Debug)]
pub struct HttpObfsClient {
    /// The head up to the Content-Length line, and from there on.
    head: Option<(Vec<u8>, Vec<u8>)>,
    reader: Reader,
}

impl HttpObfsClient {
    /// A connection that has sent nothing; draws the 16 bytes of its key.
    pub fn new(config: &HttpObfsConfig, rng: &mut dyn Rng) -> Self {
        let HttpObfsConfig { host, path, user_agent } = config;
        let front = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {user_agent}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\n"
        );
        let back = format!("Sec-WebSocket-Key: {}\r\n\r\n", random_base64(rng));
        Self { head: Some((front.into_bytes(), back.into_bytes())), reader: Reader::new(Kind::Response) }
    }
}

impl Layer for HttpObfsClient {
    fn plan(&self, _now: Instant) -> Plan {
        let head = self.head.as_ref().map_or(0, |(front, back)| {
            front.len() + CONTENT_LENGTH.len() + decimal_len(usize::MAX) + 2 + back.len()
        });
        plan_with_head(head)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let Some((mut head, back)) = self.head.take() else { return Ok(payload) };
        if !payload.is_empty() {
            write!(head, "{CONTENT_LENGTH}{}\r\n", payload.len()).expect("writing to a vector works");
        }
        head.extend_from_slice(&back);
        Ok(put_in_front(block, &head, payload))
    }

    fn has_pending(&self) -> bool {
        self.head.is_some()
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        self.reader.open(wire)
    }

    fn handle_transport_end(&mut self, _unread: usize) -> Result<(), WireError> {
        self.reader.handle_transport_end()
    }
}

/// The server's end.
#[derive(Debug)]
pub struct HttpObfsServer {
    head: Option<Vec<u8>>,
    reader: Reader,
}

impl HttpObfsServer {
    /// A connection that has received nothing, accepted `unix_time` seconds after 1970; draws the server version
    /// and the 16 bytes of its answer.
    pub fn new(unix_time: u64, rng: &mut dyn Rng) -> Self {
        let (minor, patch) = (rng.below(11), rng.below(12));
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nServer: nginx/1.{minor}.{patch}\r\nDate: {}\r\n\
             Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
            http_date(unix_time),
            random_base64(rng),
        );
        Self { head: Some(head.into_bytes()), reader: Reader::new(Kind::Request) }
    }
}

impl Layer for HttpObfsServer {
    fn plan(&self, _now: Instant) -> Plan {
        plan_with_head(self.head.as_ref().map_or(0, Vec::len))
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let Some(head) = self.head.take() else { return Ok(payload) };
        Ok(put_in_front(block, &head, payload))
    }

    fn has_pending(&self) -> bool {
        self.head.is_some()
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        self.reader.open(wire)
    }

    fn handle_transport_end(&mut self, _unread: usize) -> Result<(), WireError> {
        self.reader.handle_transport_end()
    }
}

fn plan_with_head(head: usize) -> Plan {
    let rest = Room { head: 0, tail: 0, max_payload: usize::MAX };
    Plan { first: Room { head, ..rest }, rest }
}

fn put_in_front(block: &mut [u8], head: &[u8], payload: Range<usize>) -> Range<usize> {
    let start = payload.start - head.len();
    block[start..payload.start].copy_from_slice(head);
    start..payload.end
}

fn random_base64(rng: &mut dyn Rng) -> String {
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    STANDARD.encode(bytes)
}

fn decimal_len(value: usize) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// The head that a [`Reader`] expects.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Request,
    Response,
}

/// Skips the peer's head, then hands out the rest.
#[derive(Debug)]
struct Reader {
    kind: Kind,
    /// Unread bytes known to hold no end of the head; `None` behind it.
    scanned: Option<usize>,
}

impl Reader {
    fn new(kind: Kind) -> Self {
        Self { kind, scanned: Some(0) }
    }

    fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        if let Some(scanned) = self.scanned {
            let unread = wire.unread();
            self.check_start(unread)?;
            let from = scanned.saturating_sub(3);
            let window = &unread[from..unread.len().min(MAX_HEAD_LEN)];
            let Some(at) = window.windows(4).position(|four| four == b"\r\n\r\n") else {
                if unread.len() >= MAX_HEAD_LEN {
                    return Err(WireError::Malformed {
                        what: "length of http obfs head",
                        got: MAX_HEAD_LEN as u64,
                    });
                }
                self.scanned = Some(unread.len());
                return Ok(Opened::NeedMore(missing(unread)));
            };
            wire.consume(from + at + 4);
            self.scanned = None;
        }
        let range = wire.position()..wire.position() + wire.unread().len();
        if range.is_empty() {
            return Ok(Opened::NeedMore(1));
        }
        wire.consume(range.len());
        Ok(Opened::Payload(range))
    }

    /// Bytes that begin no HTTP message fail at once, so that a prober waits for nothing.
    fn check_start(&self, unread: &[u8]) -> Result<(), WireError> {
        let bad =
            |at: usize| WireError::Malformed { what: "start of http obfs head", got: unread[at].into() };
        match self.kind {
            Kind::Response => match unread.iter().zip(b"HTTP/1.").position(|(got, want)| got != want) {
                Some(at) => Err(bad(at)),
                None => Ok(()),
            },
            Kind::Request => check_request_line(unread).map_err(bad),
        }
    }

    fn handle_transport_end(&self) -> Result<(), WireError> {
        match self.scanned {
            Some(_) => Err(WireError::Truncated { what: "http obfs head" }),
            None => Ok(()),
        }
    }
}

/// Checks as much of `METHOD SP path SP HTTP/1.x CR` as there is; the offset of the offending byte otherwise.
fn check_request_line(bytes: &[u8]) -> Result<(), usize> {
    let window = &bytes[..bytes.len().min(MAX_HEAD_LEN)];
    let mut spaces = [0; 2];
    let mut found = 0;
    for (at, &byte) in window.iter().enumerate() {
        match (found, byte) {
            (0, b'A'..=b'Z') if at < 16 => {}
            (0, b' ') if at > 0 => (spaces[0], found) = (at, 1),
            (1, b' ') if at > spaces[0] + 1 => (spaces[1], found) = (at, 2),
            (1, 0x21..=0x7e) => {}
            (2, _) => {
                let version = &window[spaces[1] + 1..];
                return match version.iter().zip(b"HTTP/1.").position(|(got, want)| got != want) {
                    Some(offset) => Err(spaces[1] + 1 + offset),
                    None => Ok(()),
                };
            }
            _ => return Err(at),
        }
    }
    Ok(())
}

/// Number of bytes that the blank line is short of, at least.
fn missing(unread: &[u8]) -> usize {
    let seen = (1..=3).rev().find(|&len| unread.ends_with(&b"\r\n\r"[..len]));
    4 - seen.unwrap_or(0)
}

/// Any bytes open to the same payload, or fail, whole as cut in two.
#[doc(hidden)]
pub fn fuzz_obfs_http(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let kind = || if choice & 1 == 0 { Kind::Request } else { Kind::Response };
    let (first, second) = data.split_at(usize::from(choice >> 1).min(data.len()));
    let whole = read_all(Reader::new(kind()), &[data]);
    assert_eq!(read_all(Reader::new(kind()), &[first, second]), whole, "cut at {}", first.len());
}

fn read_all(mut reader: Reader, pieces: &[&[u8]]) -> Result<Vec<u8>, ()> {
    let mut wire = RecvBuf::with_len(pieces.iter().map(|piece| piece.len()).sum());
    let mut payload = Vec::new();
    for piece in pieces {
        wire.extend(piece);
        while let Opened::Payload(range) = reader.open(&mut wire).map_err(|_| ())? {
            payload.extend_from_slice(&wire.block()[range]);
        }
    }
    Ok(payload)
}
