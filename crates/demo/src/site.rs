//! A small site: a page, as many bytes as asked for, and a place to send bytes to. One request per connection, which names the
//! site by its address: pages of other sites neither load its bytes nor send it any.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::CHUNK;
use crate::random::Random;

/// Longest head of a request or an answer.
const MAX_HEAD: usize = 8192;
/// Most connections at once.
const MAX_CONNECTIONS: usize = 256;
/// Longest wait for bytes, and for room to send some.
const PATIENCE: Duration = Duration::from_secs(20);
/// Largest answer of `/bytes/`.
const MAX_BYTES: u64 = 1 << 40;

const PAGE: &str = "\
<!doctype html>
<html lang=\"en\">
<head><meta charset=\"utf-8\"><title>adit demo</title>
<style>body { font: 1rem/1.6 system-ui, sans-serif; max-width: 34rem; margin: 4rem auto; padding: 0 1rem }</style></head>
<body>
<h1>It works</h1>
<p>If your browser uses the demo's proxy, this page went from a small site through the demo's servers and its client to
you. All of it happens on this machine.</p>
<ul>
<li><a href=\"/bytes/1000000\">1 MB</a>, <a href=\"/bytes/100000000\">100 MB</a>, <a href=\"/bytes/1000000000\">1 GB</a>
to download</li>
<li>to send something: <code>curl -x socks5h://PROXY -T FILE SITE/upload</code></li>
</ul>
</body>
</html>
";

/// The running site. It ends with the process; dropped, it accepts nothing more.
pub(super) struct Site {
    /// Address that it listens on.
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    pattern: Pattern,
    uploaded: AtomicU64,
    wrong: AtomicBool,
    open: AtomicUsize,
    over: AtomicBool,
}

impl Site {
    pub(super) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            pattern: Pattern::new(),
            uploaded: AtomicU64::new(0),
            wrong: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let serving = shared.clone();
        thread::Builder::new().name("site".into()).spawn(move || accept(&listener, &serving))?;
        Ok(Self { address, shared })
    }

    /// Bytes that came to `/upload`.
    pub(super) fn uploaded(&self) -> u64 {
        self.shared.uploaded.load(Ordering::Relaxed)
    }

    /// Whether one of them was not what the demo sends.
    pub(super) fn saw_wrong_bytes(&self) -> bool {
        self.shared.wrong.load(Ordering::Relaxed)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        TcpStream::connect(self.address).ok();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if shared.open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            shared.open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let serving = shared.clone();
        let serve = move || {
            // A client that goes away is none of the site's business.
            serve(stream, &serving).ok();
            serving.open.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().stack_size(256 * 1024).spawn(serve).is_err() {
            shared.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    if let Some(status) = refusal(&head, stream.local_addr()?) {
        return answer(
            &mut stream,
            status,
            "text/plain",
            "name the site by its address, once; pages of others are refused\n",
        );
    }
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let bytes = path.strip_prefix("/bytes/").and_then(|len| len.parse().ok()).filter(|len| *len <= MAX_BYTES);
    match (method, path, bytes) {
        ("GET", "/", _) => answer(&mut stream, "200 OK", "text/html", PAGE),
        ("GET", _, Some(len)) => {
            send_head(&mut stream, "200 OK", "application/octet-stream", len)?;
            send(&mut stream, &shared.pattern, len)
        }
        ("POST" | "PUT", "/upload", _) => {
            if expects_continue(&head) {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            let right = receive(&mut stream, content_len(&head), shared)?;
            answer(&mut stream, "200 OK", "text/plain", if right { "got it\n" } else { "got other bytes\n" })
        }
        _ => answer(&mut stream, "404 Not Found", "text/plain", "there is / and /bytes/N and /upload\n"),
    }
}

/// The status for a request that names another host than the site at `own`, or several, or that comes from a page of another
/// site.
fn refusal(head: &str, own: SocketAddr) -> Option<&'static str> {
    const BAD: Option<&str> = Some("400 Bad Request");
    const FORBIDDEN: Option<&str> = Some("403 Forbidden");
    let (address, name) = (own.to_string(), format!("localhost:{}", own.port()));
    let is_own = |host: &str| host == address || host.eq_ignore_ascii_case(&name);
    let all = |name: &'static str| {
        fields(head).filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let (mut hosts, mut origins) = (all("host"), all("origin"));
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_own(host) => {}
        (Some(_), None) => return FORBIDDEN,
        _ => return BAD,
    }
    match (origins.next(), origins.next()) {
        (None, _) => {}
        (Some(origin), None) if origin.strip_prefix("http://").is_some_and(is_own) => {}
        (Some(_), None) => return FORBIDDEN,
        (Some(_), Some(_)) => return BAD,
    }
    let is_page = head.starts_with("GET / ");
    let is_here = all("sec-fetch-site").all(|site| matches!(site, "same-origin" | "none"));
    (!is_here && !is_page).then_some("403 Forbidden")
}

/// A request's or an answer's head, byte by byte so that nothing behind it is taken.
pub(super) fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > MAX_HEAD {
            return Err(io::Error::other("head is too long"));
        }
    }
    String::from_utf8(head).map_err(io::Error::other)
}

/// Names and values of the fields of a head.
fn fields(head: &str) -> impl Iterator<Item = (&str, &str)> {
    head.lines().skip(1).filter_map(|line| line.split_once(':')).map(|(key, value)| (key, value.trim()))
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    fields(head).find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn content_len(head: &str) -> u64 {
    field(head, "content-length").and_then(|len| len.parse().ok()).unwrap_or(0)
}

fn expects_continue(head: &str) -> bool {
    field(head, "expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
}

fn send_head(stream: &mut TcpStream, status: &str, kind: &str, len: u64) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())
}

fn answer(stream: &mut TcpStream, status: &str, kind: &str, text: &str) -> io::Result<()> {
    send_head(stream, status, kind, text.len() as u64)?;
    stream.write_all(text.as_bytes())
}

fn send(stream: &mut TcpStream, pattern: &Pattern, len: u64) -> io::Result<()> {
    let mut sent = 0;
    while sent < len {
        let most = usize::try_from(len - sent).unwrap_or(usize::MAX).min(CHUNK);
        let piece = pattern.piece(sent, most);
        stream.write_all(piece)?;
        sent += piece.len() as u64;
    }
    Ok(())
}

/// Counts and compares; other bytes than the demo's are counted all the same.
fn receive(stream: &mut TcpStream, len: u64, shared: &Shared) -> io::Result<bool> {
    let (mut chunk, mut received, mut right) = (vec![0; CHUNK], 0, true);
    while received < len {
        let most = usize::try_from(len - received).unwrap_or(usize::MAX).min(CHUNK);
        let count = stream.read(&mut chunk[..most])?;
        if count == 0 {
            break;
        }
        right &= shared.pattern.matches(received, &chunk[..count]);
        shared.wrong.fetch_or(!right, Ordering::Relaxed);
        shared.uploaded.fetch_add(count as u64, Ordering::Relaxed);
        received += count as u64;
    }
    Ok(right)
}

/// An endless stream: one random block, repeated. Its length shares no factor with the sizes of reads, writes and
/// frames, so that a piece that is lost, doubled or swapped shows.
pub(super) struct Pattern(Vec<u8>);

impl Pattern {
    /// A prime number of bytes.
    const LEN: usize = 1_048_573;

    pub(super) fn new() -> Self {
        let mut random = Random::new(0x0ad1_7de0);
        let mut block = Vec::with_capacity(Self::LEN + 8);
        while block.len() < Self::LEN {
            block.extend(random.next_u64().to_le_bytes());
        }
        block.truncate(Self::LEN);
        Self(block)
    }

    /// Bytes from `at` on, at least one and at most `most`, which must not be 0.
    pub(super) fn piece(&self, at: u64, most: usize) -> &[u8] {
        let at = usize::try_from(at % Self::LEN as u64).expect("below a length");
        &self.0[at..(at + most).min(Self::LEN)]
    }

    /// Whether `bytes` are those from `at` on.
    pub(super) fn matches(&self, mut at: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let piece = self.piece(at, bytes.len());
            if !bytes.starts_with(piece) {
                return false;
            }
            at += piece.len() as u64;
            bytes = &bytes[piece.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_site_serves_and_counts() {
        let site = Site::start().unwrap();
        let head = |line: &str| format!("{line} HTTP/1.1\r\nHost: {}\r\n\r\n", site.address).into_bytes();
        let page = exchange(site.address, &head("GET /"));
        assert!(page.starts_with(b"HTTP/1.1 200 OK\r\n") && page.ends_with(b"</html>\n"));
        let answer = exchange(site.address, &head("GET /bytes/3000000"));
        let body = &answer[answer.len() - 3_000_000..];
        assert!(site.shared.pattern.matches(0, body));
        let mut request =
            format!("POST /upload HTTP/1.1\r\nhost: {}\r\ncontent-length: 5\r\n\r\n", site.address)
                .into_bytes();
        request.extend(site.shared.pattern.piece(0, 5));
        assert!(exchange(site.address, &request).ends_with(b"got it\n"));
        assert_eq!((site.uploaded(), site.saw_wrong_bytes()), (5, false));
        assert!(exchange(site.address, &head("GET /x")).starts_with(b"HTTP/1.1 404"));
    }

    #[test]
    fn requests_name_the_site_and_come_from_no_other() {
        let site = Site::start().unwrap();
        let (own, port) = (site.address, site.address.port());
        for (line, fields, status) in [
            ("GET /", format!("Host: {own}\r\n"), 200),
            ("GET /", format!("Host: localhost:{port}\r\n"), 200),
            ("GET /", format!("Host: {own}\r\nSec-Fetch-Site: cross-site\r\n"), 200),
            ("GET /", format!("Host: {own}\r\nOrigin: http://{own}\r\n"), 200),
            ("GET /", String::new(), 400),
            ("GET /", format!("Host: {own}\r\nHost: {own}\r\n"), 400),
            ("GET /", format!("Host: evil.example:{port}\r\n"), 403),
            ("GET /", "Host: [::1].evil.com\r\n".to_owned(), 403),
            ("GET /", format!("Host: user@{own}\r\n"), 403),
            ("GET /", format!("Host: {own}\r\nOrigin: null\r\n"), 403),
            ("GET /", format!("Host: {own}\r\nOrigin: http://{own}@evil.com\r\n"), 403),
            ("GET /bytes/9", format!("Host: {own}\r\nSec-Fetch-Site: cross-site\r\n"), 403),
            ("POST /upload", format!("Host: {own}\r\nSec-Fetch-Site: same-site\r\n"), 403),
            ("POST /upload", format!("Host: {own}\r\nOrigin: http://evil.example\r\n"), 403),
        ] {
            let answer = exchange(own, format!("{line} HTTP/1.1\r\n{fields}\r\n").as_bytes());
            assert!(answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{line} {fields}");
        }
    }

    #[test]
    fn other_bytes_are_seen() {
        let pattern = Pattern::new();
        let at = Pattern::LEN as u64 - 3;
        let mut bytes = [pattern.piece(at, 9), pattern.piece(0, 6)].concat();
        assert_eq!(bytes.len(), 9);
        assert!(pattern.matches(at, &bytes));
        bytes[8] ^= 1;
        assert!(!pattern.matches(at, &bytes) && !pattern.matches(at + 1, &bytes[..1]));
    }
}
