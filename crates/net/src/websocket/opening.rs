//! The request and the response that open a WebSocket (RFC 6455, 4).

use std::io;

use adit_proto::http::Authority;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{Limits, WebSocket};

/// RFC 6455, 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Most fields of a head.
const MAX_FIELDS: usize = 64;
/// Bytes of one read of a head.
const READ: usize = 2048;

/// A request that opens a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// Path and query.
    pub target: String,
    /// Fields, in order.
    pub fields: Vec<(String, Vec<u8>)>,
}

impl Opening {
    /// The value of the first field of this name, in any case.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..])
    }

    /// Whether a field is a list that holds `token`, in any case.
    fn lists(&self, name: &str, token: &str) -> bool {
        let fields = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let mut tokens = fields.flat_map(|(_, value)| value.split(|byte| *byte == b','));
        tokens.any(|found| found.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }

    /// The key of the client.
    fn key(&self) -> io::Result<&[u8]> {
        let mut hosts = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case("host"));
        let is_host = |(_, host): &(String, Vec<u8>)| Authority::parse(host).is_some();
        if !hosts.next().is_some_and(is_host) || hosts.next().is_some() {
            return Err(invalid("the request does not name one host"));
        }
        if !self.lists("upgrade", "websocket") || !self.lists("connection", "upgrade") {
            return Err(invalid("the request does not open a WebSocket"));
        }
        if self.field("sec-websocket-version") != Some(b"13") {
            return Err(invalid("the request asks for another version of WebSocket than 13"));
        }
        let key = self.field("sec-websocket-key").filter(|key| key.len() == 24);
        key.ok_or_else(|| invalid("the request has no valid Sec-WebSocket-Key"))
    }
}

/// The value of `Sec-WebSocket-Accept` for that of `Sec-WebSocket-Key`.
pub fn accept_key(key: &[u8]) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

/// Reads a request from `stream`, behind the bytes `early` that were read before, and answers it. A request that opens no
/// WebSocket gets status 400.
///
/// # Errors
/// `InvalidData` for such a request or a head that is too long, `UnexpectedEof`, and the errors of the stream.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    early: Vec<u8>,
    limits: Limits,
) -> io::Result<(WebSocket<S>, Opening)> {
    let opened = match Box::pin(read_head(&mut stream, early, limits.head, request)).await {
        Ok((opening, rest)) => opening.key().map(accept_key).map(|accepted| (opening, rest, accepted)),
        Err(error) => Err(error),
    };
    match opened {
        Ok((opening, rest, accepted)) => {
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accepted}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            stream.flush().await?;
            Ok((WebSocket::server(stream, rest, limits), opening))
        }
        Err(error) => {
            if error.kind() == io::ErrorKind::InvalidData {
                let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(refusal.as_bytes()).await?;
                stream.flush().await?;
            }
            Err(error)
        }
    }
}

/// Opens a WebSocket over `stream`, which leads to its server: asks for `target` (path and query) of `host` (the value of
/// `Host`), with further fields.
///
/// # Errors
/// `InvalidInput` for a field or target that would break the request, `InvalidData` for a response that does not open a
/// WebSocket, `UnexpectedEof`, and the errors of the stream.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    host: &str,
    target: &str,
    fields: &[(&str, &str)],
    limits: Limits,
) -> io::Result<WebSocket<S>> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    let key = STANDARD.encode(nonce);
    let head = asking(host, target, fields, &key)?;
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    let (response, rest) = Box::pin(read_head(&mut stream, Vec::new(), limits.head, response)).await?;
    let is_right = response.lists("upgrade", "websocket")
        && response.lists("connection", "upgrade")
        && response.field("sec-websocket-accept") == Some(accept_key(key.as_bytes()).as_bytes());
    if !is_right {
        return Err(invalid("the response does not open a WebSocket"));
    }
    // Neither is asked for, so that neither may be chosen (RFC 6455, 4.1).
    if response.field("sec-websocket-extensions").is_some() {
        return Err(invalid("the server has chosen an extension that was not offered"));
    }
    Ok(WebSocket::client(stream, rest, limits))
}

/// The head of the request.
fn asking(host: &str, target: &str, fields: &[(&str, &str)], key: &str) -> io::Result<String> {
    let breaks = |text: &str| text.bytes().any(|byte| byte < b' ' || byte == 0x7f);
    let is_odd = |(name, value): &(&str, &str)| name.is_empty() || breaks(name) || breaks(value);
    let is_target = target.starts_with('/') && !breaks(target) && !target.contains(' ');
    if !is_target || host.is_empty() || breaks(host) || host.contains(' ') || fields.iter().any(is_odd) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "control characters in a request"));
    }
    let mut head = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
    );
    for (name, value) in fields {
        head.extend([name, ": ", value, "\r\n"]);
    }
    Ok(head + "\r\n")
}

type Parse = fn(&[u8]) -> io::Result<Option<(Opening, usize)>>;

/// A head and the bytes behind it.
async fn read_head<S: AsyncRead + Unpin>(
    stream: &mut S,
    mut read: Vec<u8>,
    most: usize,
    parse: Parse,
) -> io::Result<(Opening, Vec<u8>)> {
    let mut bytes = [0; READ];
    loop {
        if let Some((opening, len)) = parse(&read)? {
            return Ok((opening, read.split_off(len)));
        }
        if read.len() >= most {
            return Err(invalid("the head of the request or response is too long"));
        }
        let room = bytes.len().min(most - read.len());
        let len = stream.read(&mut bytes[..room]).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read.extend_from_slice(&bytes[..len]);
    }
}

fn request(bytes: &[u8]) -> io::Result<Option<(Opening, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(len) = head.parse(bytes).map_err(malformed)? else { return Ok(None) };
    if head.method != Some("GET") || head.version != Some(1) {
        return Err(invalid("the request is not GET of HTTP/1.1"));
    }
    let target = head.path.unwrap_or_default().to_owned();
    Ok(Some((Opening { target, fields: owned(head.headers) }, len)))
}

fn response(bytes: &[u8]) -> io::Result<Option<(Opening, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(len) = head.parse(bytes).map_err(malformed)? else { return Ok(None) };
    match head.code {
        Some(101) => Ok(Some((Opening { target: String::new(), fields: owned(head.headers) }, len))),
        code => Err(invalid(&format!("the server answers with status {}", code.unwrap_or_default()))),
    }
}

/// The bytes of a response's head, for the fuzz target: `None` for a head that is not whole.
pub(super) fn response_len(bytes: &[u8]) -> io::Result<Option<usize>> {
    Ok(response(bytes)?.map(|(_, len)| len))
}

fn owned(fields: &[httparse::Header<'_>]) -> Vec<(String, Vec<u8>)> {
    fields.iter().map(|field| (field.name.to_owned(), field.value.to_vec())).collect()
}

fn malformed(error: httparse::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_one_host() {
        for (hosts, is_taken) in [
            (&["bridge.example:443"][..], true),
            (&["[2001:db8::1]"], true),
            (&[], false),
            (&["a", "a"], false),
            (&["[::1].evil.com"], false),
            (&["user@a"], false),
            (&["a:65536"], false),
        ] {
            let fields: String = hosts.iter().map(|host| format!("hOST: {host}\r\n")).collect();
            let head = format!(
                "GET / HTTP/1.1\r\n{fields}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            let (opening, _) = request(head.as_bytes()).unwrap().unwrap();
            assert_eq!(opening.key().is_ok(), is_taken, "{hosts:?}");
        }
    }
}
