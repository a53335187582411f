//! `http_simple`, `http_post`, `http_mix`: the first bytes of the stream in the path of a request, the rest behind its
//! head.
//!
//! ```text
//! C->S  GET /%xx%xx.. HTTP/1.1 CRLF              or POST; each byte of the beginning of the stream as two hex digits
//!       Host: <host>[:<port>] CRLF               without the port if it is 80
//!       <lines of the configuration, or those of a browser> CRLF CRLF
//!       <rest of the stream>
//! S->C  HTTP/1.1 200 OK CRLF ... CRLF CRLF <stream>
//! ```
//!
//! Source: `docs/protocols/ssr.md`, 3.2.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use super::{Shake, SsrObfsClientConfig, SsrObfsServerConfig, headed_plan, pass, refuse};
use crate::buf::RecvBuf;
use crate::ssr::{Obfs, Refusal};
use crate::wire::{Opened, Plan, Rng, WireError, http_date};

/// Longest head of a request, and of an answer, in bytes (observed from SSRR 3.2.2).
const MAX_HEAD: usize = 65_536;
/// Most bytes of the stream in a path that is sent.
const MAX_IN_PATH: usize = 512;
/// Fewest bytes of the stream, in the path and behind the head, that are accepted. SSRR demands four of them in the path;
/// shadowsocksr-native's client puts none to three there in one request of 16.
const MIN_STREAM: usize = 13;
const END: &[u8; 4] = b"\r\n\r\n";

const USER_AGENTS: [&str; 4] = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/138.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15",
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
];
const BOUNDARY: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// A parameter of an obfs that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadParameter {
    /// It would break the head of a request or hello.
    #[error("obfs-param has a host with a space or control character in it, or longer than 255 bytes: {0}")]
    Host(Box<str>),
    /// `go_quiet` is made of the layers of GoQuiet.
    #[error("go_quiet takes its parameters from GoQuiet's configuration")]
    GoQuiet,
}

pub(super) fn is_http(kind: Obfs) -> bool {
    matches!(kind, Obfs::HttpSimple | Obfs::HttpPost | Obfs::HttpMix)
}

pub(super) fn check(kind: Obfs, hosts: &[Box<str>]) -> Result<(), BadParameter> {
    if kind == Obfs::GoQuiet {
        return Err(BadParameter::GoQuiet);
    }
    let breaks = |host: &str| host.len() > 255 || host.chars().any(|c| c.is_control() || c.is_whitespace());
    match hosts.iter().find(|host| breaks(host)) {
        Some(host) => Err(BadParameter::Host(host.clone())),
        None => Ok(()),
    }
}

/// The lines behind the host, as a configuration gives them: both a newline and `\n` in letters end a line.
pub(super) fn custom_lines(text: &str) -> Arc<str> {
    text.replace("\r\n", "\n").replace("\\n", "\n").replace('\n', "\r\n").into()
}

/// The client's end.
#[derive(Debug)]
pub(super) struct SsrHttpClient {
    /// Method, and what follows the path; how many bytes go into it.
    head: Option<(&'static str, Box<str>, usize)>,
    reader: AnswerReader,
}

impl SsrHttpClient {
    pub(super) fn new(config: &SsrObfsClientConfig, head_len: usize, rng: &mut dyn Rng) -> Self {
        let is_post = match config.kind {
            Obfs::HttpPost => true,
            Obfs::HttpMix => {
                let rate = 3 + rng.below(4);
                rng.below(rate) == 0
            }
            Obfs::HttpSimple | Obfs::Plain | Obfs::RandomHead => false,
            Obfs::TlsTicketAuth | Obfs::TlsTicketFastauth | Obfs::GoQuiet => false,
        };
        let host = config.host(rng);
        let port = if config.port == 80 { String::new() } else { format!(":{}", config.port) };
        let lines = match &config.custom {
            Some(custom) => custom.to_string(),
            None => browser_lines(is_post, rng),
        };
        let rest = format!(" HTTP/1.1\r\nHost: {host}{port}\r\n{lines}\r\n\r\n");
        let in_path = (head_len + rng.below(65) as usize).min(MAX_IN_PATH);
        let method = if is_post { "POST /" } else { "GET /" };
        Self { head: Some((method, rest.into(), in_path)), reader: AnswerReader { scanned: Some(0) } }
    }

    pub(super) fn plan(&self) -> Plan {
        headed_plan(
            self.head.as_ref().map_or(0, |(method, rest, in_path)| method.len() + rest.len() + 2 * in_path),
        )
    }

    pub(super) fn seal(&mut self, block: &mut [u8], payload: Range<usize>) -> Range<usize> {
        if payload.is_empty() {
            return payload;
        }
        let Some((method, rest, in_path)) = self.head.take() else { return payload };
        let in_path = in_path.min(payload.len());
        let body_at = payload.start + in_path;
        let head = [method.as_bytes(), &hex(&block[payload.start..body_at]), rest.as_bytes()].concat();
        let start = body_at - head.len();
        block[start..body_at].copy_from_slice(&head);
        start..payload.end
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        self.reader.open(wire)
    }

    /// A server whose target says nothing sends no head either.
    pub(super) fn handle_transport_end(&self, unread: usize) -> Result<(), WireError> {
        match self.reader.scanned {
            None => Ok(()),
            Some(_) if unread == 0 => Ok(()),
            Some(_) => Err(WireError::Truncated { what: "http obfs head" }),
        }
    }
}

fn browser_lines(is_post: bool, rng: &mut dyn Rng) -> String {
    let agent = USER_AGENTS[rng.below(4) as usize];
    let mut lines = format!(
        "User-Agent: {agent}\r\nAccept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
         Accept-Language: en-US,en;q=0.8\r\nAccept-Encoding: gzip, deflate\r\n"
    );
    if is_post {
        let letter = |_| char::from(BOUNDARY[rng.below(62) as usize]);
        let boundary: String = (0..32).map(letter).collect();
        lines += &format!("Content-Type: multipart/form-data; boundary={boundary}\r\n");
    }
    lines + "DNT: 1\r\nConnection: keep-alive"
}

/// `%xx` for each byte.
fn hex(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| DIGITS[usize::from(nibble & 15)];
    bytes.iter().flat_map(|byte| [b'%', digit(byte >> 4), digit(*byte)]).collect()
}

/// Skips the head of an answer.
#[derive(Debug)]
struct AnswerReader {
    /// Unread bytes known to hold no end of the head; `None` behind it.
    scanned: Option<usize>,
}

impl AnswerReader {
    fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        if let Some(scanned) = self.scanned {
            let unread = wire.unread();
            let Some(at) = find_end(unread, scanned) else {
                if unread.len() >= MAX_HEAD {
                    return Err(WireError::Malformed {
                        what: "length of http obfs head",
                        got: MAX_HEAD as u64,
                    });
                }
                self.scanned = Some(unread.len());
                return Ok(Opened::NeedMore(1));
            };
            wire.consume(at);
            self.scanned = None;
        }
        Ok(pass(wire))
    }
}

/// Offset of the stream behind a head, of whose end the first `scanned` bytes hold none.
fn find_end(bytes: &[u8], scanned: usize) -> Option<usize> {
    let from = scanned.saturating_sub(END.len() - 1);
    let window = bytes.get(from..bytes.len().min(MAX_HEAD))?;
    Some(from + window.windows(END.len()).position(|four| four == END)? + END.len())
}

/// The server's end.
#[derive(Debug)]
pub(super) struct SsrHttpServer {
    hosts: Arc<[Box<str>]>,
    is_compatible: bool,
    answer: Option<Box<str>>,
    scanned: usize,
    is_done: bool,
}

impl SsrHttpServer {
    pub(super) fn new(config: &SsrObfsServerConfig, unix_s: u64) -> Self {
        let answer = format!(
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Encoding: gzip\r\nContent-Type: text/html\r\n\
             Date: {}\r\nServer: nginx\r\nVary: Accept-Encoding\r\n\r\n",
            http_date(unix_s)
        );
        Self {
            hosts: Arc::clone(&config.hosts),
            is_compatible: config.is_compatible,
            answer: Some(answer.into()),
            scanned: 0,
            is_done: false,
        }
    }

    /// Puts the bytes of the path in front of those behind the head.
    pub(super) fn handshake(&mut self, wire: &mut RecvBuf) -> Result<Shake, Refusal> {
        if self.is_done {
            return Ok(Shake::Done);
        }
        let unread = wire.unread();
        let refuse = |what| refuse(self.is_compatible, Refusal::Obfs { what });
        let starts = |method: &[u8]| unread.iter().zip(method).all(|(got, want)| got == want);
        if !starts(b"GET ") && !starts(b"POST ") {
            return refuse("method of the request");
        }
        let Some(end) = find_end(unread, self.scanned) else {
            if unread.len() >= MAX_HEAD {
                return refuse("length of the request's head");
            }
            self.scanned = unread.len();
            return Ok(Shake::NeedMore(1));
        };
        let Some(path) = path_bytes(&unread[..end]) else { return refuse("path of the request") };
        if !self.hosts.is_empty() && !host_of(&unread[..end]).is_some_and(|host| self.knows(host)) {
            return refuse("host of the request");
        }
        let len = path.len() + unread.len() - end;
        if len < MIN_STREAM {
            // Peers send an address and more at once; a request that does not is somebody else's.
            return refuse("length of the request");
        }
        let range = wire.position() + end - path.len()..wire.position() + unread.len();
        wire.block_mut()[range.start..range.start + path.len()].copy_from_slice(&path);
        wire.set_unread(range);
        self.is_done = true;
        Ok(Shake::Done)
    }

    fn knows(&self, host: &str) -> bool {
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    }

    pub(super) fn plan(&self) -> Plan {
        headed_plan(self.answer.as_ref().map_or(0, |answer| answer.len()))
    }

    pub(super) fn seal(&mut self, block: &mut [u8], payload: Range<usize>) -> Range<usize> {
        if payload.is_empty() {
            return payload;
        }
        let Some(answer) = self.answer.take() else { return payload };
        let start = payload.start - answer.len();
        block[start..payload.start].copy_from_slice(answer.as_bytes());
        start..payload.end
    }

    pub(super) fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        Ok(pass(wire))
    }

    pub(super) fn handle_transport_end(&self, _unread: usize) -> Result<(), WireError> {
        Ok(())
    }
}

/// The bytes in the path of the first line: items between `%`, up to the first that has more than two digits. There may be
/// none.
fn path_bytes(head: &[u8]) -> Option<Vec<u8>> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut bytes = Vec::new();
    for item in line.split(|byte| *byte == b'%').skip(1) {
        // The last item has the version behind it.
        let (digits, is_last) = if item.len() > 2 { (&item[..2], true) } else { (item, false) };
        let text = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(text, 16).ok()?);
        if is_last {
            break;
        }
    }
    Some(bytes)
}

/// The host of a request without its port.
fn host_of(head: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(head).ok()?;
    let line = text.split("\r\n").find_map(|line| line.strip_prefix("Host: "))?;
    Some(line.split_once(':').map_or(line, |(host, _)| host))
}
