//! The protocol that a client speaks to its target, from its first bytes, and the name of the host that they hold.
//!
//! Nothing is taken from the stream: the caller keeps the bytes and shows all of them again, with more behind them, as
//! long as the answer is [`Sniffed::More`]. It ends after [`MAX_STREAM`] bytes or [`MAX_DATAGRAMS`] datagrams.
//!
//! | protocol | first bytes | name |
//! |---|---|---|
//! | `tls` | a record with a ClientHello (RFC 8446 4.1.2), over any number of records | `server_name` (RFC 6066) |
//! | `http` | a request line of HTTP/1 | `Host` |
//! | `quic` | an Initial packet of version 1 or 2 (RFC 9001 5.2, RFC 9369) that opens with the keys of its connection id | `server_name` of its ClientHello |
//! | `bittorrent` | the 20 bytes of its handshake, or of a uTP SYN (BEP 29) | none |
//! | `ssh` | `SSH-` (RFC 4253 4.2) | none |
//! | `dns` | a query with one question (RFC 1035 4.1), after its length on a stream | none |

mod hello;
mod quic;

#[cfg(test)]
mod tests;

use self::hello::HelloKind;
pub use self::quic::Datagrams;
use crate::wire::Host;

/// Bytes of a stream that are looked at, at most.
pub const MAX_STREAM: usize = 16 * 1024;

/// Datagrams of a flow that are looked at, at most: a hello with large keys takes two or three.
pub const MAX_DATAGRAMS: usize = 4;

/// Longest name of a method of HTTP that is known: `CONNECT` and `OPTIONS` have 7 letters.
const METHODS: [&[u8]; 9] =
    [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE "];

const BITTORRENT: &[u8] = b"\x13BitTorrent protocol";

/// A protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SniffedProtocol {
    /// TLS, by its ClientHello.
    Tls,
    /// HTTP/1, by its request line.
    Http,
    /// QUIC version 1 or 2.
    Quic,
    /// BitTorrent between peers, by TCP or uTP.
    BitTorrent,
    /// SSH.
    Ssh,
    /// A question to a name server.
    Dns,
}

impl SniffedProtocol {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Tls, Self::Http, Self::Quic, Self::BitTorrent, Self::Ssh, Self::Dns];
    /// The one whose datagrams name their target.
    pub const NAMED_DATAGRAMS: Self = Self::Quic;

    /// The name that rules use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Quic => "quic",
            Self::BitTorrent => "bittorrent",
            Self::Ssh => "ssh",
            Self::Dns => "dns",
        }
    }
}

/// The first bytes, as far as they are understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniffed {
    /// More bytes are needed.
    More,
    /// The protocol, and the host that the client names. A host that is an address is no name, and is left out.
    Found(SniffedProtocol, Option<Box<str>>),
    /// None that is known here.
    Unknown,
}

/// Looks at the first bytes of a stream; `bytes` are all that have come. Of bytes behind [`MAX_STREAM`] none is looked
/// at, and the answer is then never [`Sniffed::More`].
pub fn stream(bytes: &[u8]) -> Sniffed {
    let is_full = bytes.len() >= MAX_STREAM;
    let bytes = &bytes[..bytes.len().min(MAX_STREAM)];
    let mut wants_more = false;
    for look in
        [tls, http, |bytes: &[u8]| fixed(bytes, BITTORRENT, SniffedProtocol::BitTorrent), ssh, dns_stream]
    {
        match look(bytes) {
            Sniffed::Unknown => {}
            Sniffed::More => wants_more = true,
            found @ Sniffed::Found(..) => return found,
        }
    }
    match wants_more {
        true if is_full && hello::is_hello(bytes) => Sniffed::Found(SniffedProtocol::Tls, None),
        true if is_full && is_request(bytes) => Sniffed::Found(SniffedProtocol::Http, None),
        true if !is_full => Sniffed::More,
        _ => Sniffed::Unknown,
    }
}

fn fixed(bytes: &[u8], wanted: &[u8], protocol: SniffedProtocol) -> Sniffed {
    if bytes.starts_with(wanted) {
        return Sniffed::Found(protocol, None);
    }
    if wanted.starts_with(bytes) { Sniffed::More } else { Sniffed::Unknown }
}

fn ssh(bytes: &[u8]) -> Sniffed {
    fixed(bytes, b"SSH-", SniffedProtocol::Ssh)
}

fn tls(bytes: &[u8]) -> Sniffed {
    match hello::of_records(bytes) {
        HelloKind::More => Sniffed::More,
        HelloKind::Not => Sniffed::Unknown,
        HelloKind::Name(name) => Sniffed::Found(SniffedProtocol::Tls, name),
    }
}

/// Whether a request line of HTTP/1 begins here, after the whole method.
fn is_request(bytes: &[u8]) -> bool {
    METHODS.iter().any(|method| bytes.starts_with(method))
}

fn http(bytes: &[u8]) -> Sniffed {
    if !is_request(bytes) {
        let may_be = METHODS.iter().any(|method| method.starts_with(bytes));
        return if may_be { Sniffed::More } else { Sniffed::Unknown };
    }
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let request = lines.next().unwrap_or_default();
    // A control character stands in no request line, whether its end has come or not.
    if !request.iter().all(|byte| *byte >= b' ' || matches!(byte, b'\r' | b'\n')) {
        return Sniffed::Unknown;
    }
    let Some(request) = line(request) else { return Sniffed::More };
    if !request.ends_with(b" HTTP/1.1") && !request.ends_with(b" HTTP/1.0") {
        return Sniffed::Unknown;
    }
    for field in lines {
        match line(field) {
            None => return Sniffed::More,
            Some([]) => return Sniffed::Found(SniffedProtocol::Http, None),
            Some(field) => {
                let Some(colon) = field.iter().position(|byte| *byte == b':') else { continue };
                if field[..colon].eq_ignore_ascii_case(b"host") {
                    let name = name(without_port(field[colon + 1..].trim_ascii()));
                    return Sniffed::Found(SniffedProtocol::Http, name);
                }
            }
        }
    }
    Sniffed::More
}

/// A line without its end; `None` if the end has not come.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    let line = bytes.strip_suffix(b"\n")?;
    Some(line.strip_suffix(b"\r").unwrap_or(line))
}

fn without_port(host: &[u8]) -> &[u8] {
    let colon = host.iter().rposition(|byte| *byte == b':');
    match colon {
        Some(colon) if host[colon + 1..].iter().all(u8::is_ascii_digit) => &host[..colon],
        _ => host,
    }
}

/// A name of a host in lower case; `None` if it is an address or none.
fn name(bytes: &[u8]) -> Option<Box<str>> {
    let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    if bytes.len() > 253 || !bytes.iter().all(is_name) {
        return None;
    }
    match Host::parse(bytes) {
        Ok(Host::Name(name)) => Some(name.to_ascii_lowercase().into()),
        Ok(Host::Ip(_)) | Err(_) => None,
    }
}

fn dns_stream(bytes: &[u8]) -> Sniffed {
    let Some((len, message)) = bytes.split_first_chunk() else { return Sniffed::More };
    let len = usize::from(u16::from_be_bytes(*len));
    if !(17..=512).contains(&len) {
        return Sniffed::Unknown;
    }
    match message.get(..len) {
        Some(message) => dns(message),
        None if is_query_head(message) => Sniffed::More,
        None => Sniffed::Unknown,
    }
}

/// Whether this is, or could become, the head of a query: no answer, an ordinary question, one of them.
fn is_query_head(bytes: &[u8]) -> bool {
    // The id is anything. Of the flags only RD, AD and CD may be set; then there are counts.
    const MASK: [u8; 10] = [0xfe, 0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe];
    const WANT: [u8; 10] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let rest = bytes.get(2..).unwrap_or_default();
    rest.iter().zip(MASK.iter().zip(WANT)).all(|(byte, (mask, want))| byte & mask == want)
}

fn dns(message: &[u8]) -> Sniffed {
    if message.len() < 17 || !is_query_head(message) {
        return Sniffed::Unknown;
    }
    let mut rest = &message[12..];
    while let Some((len, after)) = rest.split_first() {
        let len = usize::from(*len);
        if len == 0 {
            let has_class = matches!(after, [_, _, 0, 1 | 255, ..]);
            return if has_class { Sniffed::Found(SniffedProtocol::Dns, None) } else { Sniffed::Unknown };
        }
        if len > 63 {
            return Sniffed::Unknown;
        }
        rest = after.get(len..).unwrap_or_default();
    }
    Sniffed::Unknown
}

/// The protocol of a flow, by its first datagram alone. It names no host, so that no second datagram is needed.
pub fn first_datagram(bytes: &[u8]) -> Option<SniffedProtocol> {
    match Datagrams::default().push(bytes) {
        Sniffed::Found(protocol, _) => Some(protocol),
        // Only an Initial packet that has been opened asks for more: the rest of its hello.
        Sniffed::More => Some(SniffedProtocol::Quic),
        Sniffed::Unknown => None,
    }
}

/// Looks at one datagram that needs no other.
fn datagram(bytes: &[u8]) -> Sniffed {
    // BEP 29: version 1, type SYN (4), no extension but selective ack, and no reply yet.
    if let [0x41, 0..=2, ..] = bytes
        && bytes.len() == 20
        && bytes[16..18] == [0, 1]
        && bytes[18..] == [0, 0]
    {
        return Sniffed::Found(SniffedProtocol::BitTorrent, None);
    }
    dns(bytes)
}

/// Calls the sniffers as a fuzzer does: no answer depends on how bytes are cut, and none changes once it is given.
#[doc(hidden)]
pub fn fuzz_sniff(data: &[u8]) {
    let whole = stream(data);
    let cut = data.len() / 2;
    match stream(&data[..cut]) {
        Sniffed::More => {}
        found @ (Sniffed::Found(..) | Sniffed::Unknown) => assert_eq!(found, whole, "an answer stands"),
    }
    let mut datagrams = Datagrams::default();
    for piece in data.chunks(1200) {
        if datagrams.push(piece) != Sniffed::More {
            break;
        }
    }
    let cut = data.first().map_or(0, |byte| usize::from(*byte)).min(data.len());
    let (mut hello, (first, rest)) = (hello::Pieces::default(), data.split_at(cut));
    hello.put(cut as u64, rest);
    hello.put(0, first);
    assert_eq!(hello.hello(), hello::of_message(&data[..data.len().min(MAX_STREAM)]), "pieces in any order");
}
