use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::wire::{ConnectFailure, Credentials, Target};

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

/// A head from lines; the blank line is added.
fn head(lines: &[&str]) -> Vec<u8> {
    let mut text = lines.join("\r\n");
    text.push_str("\r\n\r\n");
    text.into_bytes()
}

fn forwarded(lines: &[&str]) -> String {
    let head = head(lines);
    let request = RequestHead::parse(&head).unwrap();
    let mut out = Vec::new();
    request.emit_forward(&mut out);
    String::from_utf8(out).unwrap()
}

fn refused(lines: &[&str]) -> (HeadError, u16) {
    let error = RequestHead::parse(&head(lines)).unwrap_err();
    let code = error.status().code();
    (error, code)
}

const GET: Exchange =
    Exchange { version: HttpVersion::Http11, keep_alive: true, head_request: false, upgrade: false };

fn answered(lines: &[&str], exchange: Exchange) -> Result<(String, Disposition), HeadError> {
    let head = head(lines);
    let mut out = Vec::new();
    let disposition = ResponseHead::parse(&head)?.emit_forward(&exchange, &mut out)?;
    Ok((String::from_utf8(out).unwrap(), disposition))
}

#[test]
fn scanner() {
    for (bytes, len) in [
        (&b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest"[..], 24),
        (b"GET / HTTP/1.1\nA: b\n\nrest", 21),
        (b"GET / HTTP/1.1\n\r\nrest", 17),
        (b"\r\n\r\n\nGET / HTTP/1.1\r\n\r\nrest", 23),
    ] {
        assert_eq!(HeadScanner::new().scan(bytes), Ok(Some(len)), "{}", bytes.escape_ascii());
        let mut scanner = HeadScanner::new();
        for cut in 0..len {
            assert_eq!(scanner.scan(&bytes[..cut]), Ok(None), "{} to {cut}", bytes.escape_ascii());
        }
        assert_eq!(scanner.scan(bytes), Ok(Some(len)));
        assert!(scanner.is_idle(), "ready for the next");
    }
    let mut scanner = HeadScanner::new();
    assert_eq!(scanner.scan(b"\r\n"), Ok(None));
    assert!(scanner.is_idle());
    assert_eq!(scanner.scan(b"\r\nG"), Ok(None));
    assert!(!scanner.is_idle());
}

#[test]
fn head_limits() {
    for (len, expected) in [
        (MAX_HEAD_LEN, Ok(Some(MAX_HEAD_LEN))),
        (MAX_HEAD_LEN + 1, Err(HeadError::TooLong)),
        (2 * MAX_HEAD_LEN, Err(HeadError::TooLong)),
    ] {
        let mut bytes = b"GET / HTTP/1.1\r\nA: ".to_vec();
        bytes.resize(len - 4, b'a');
        bytes.extend(b"\r\n\r\n");
        assert_eq!(HeadScanner::new().scan(&bytes), expected, "{len}");
        let mut scanner = HeadScanner::new();
        let by_byte = (1..=len).map(|cut| scanner.scan(&bytes[..cut])).find(|found| *found != Ok(None));
        assert_eq!(by_byte, Some(expected.clone()), "{len}, byte by byte");
        if let Ok(Some(len)) = expected {
            assert!(RequestHead::parse(&bytes[..len]).is_ok_and(|head| head.method() == "GET"));
        }
    }
    assert_eq!(HeadScanner::new().scan(&[b'\n'; MAX_HEAD_LEN]), Err(HeadError::TooLong));
    for count in [MAX_FIELDS, MAX_FIELDS + 1] {
        let mut lines = vec!["GET http://a/ HTTP/1.1"];
        lines.resize(count + 1, "A: b");
        let head = head(&lines);
        let parsed = RequestHead::parse(&head);
        assert_eq!(parsed.is_ok(), count == MAX_FIELDS, "{count}");
        assert_eq!(parsed.err(), (count > MAX_FIELDS).then_some(HeadError::TooManyFields));
    }
    assert_eq!(HeadError::TooManyFields.status().code(), 431);
    assert_eq!(HeadError::TooLong.status().code(), 431);
}

#[test]
fn connect() {
    for (authority, expected) in [
        ("example.com:8443", "example.com:8443"),
        ("example.com", "example.com:443"),
        ("example.com:", "example.com:443"),
        ("[2001:db8::1]:8443", "[2001:db8::1]:8443"),
        ("[2001:db8::1]", "[2001:db8::1]:443"),
        ("1.2.3.4:80", "1.2.3.4:80"),
        ("[::ffff:1.2.3.4]:80", "1.2.3.4:80"),
    ] {
        let line = format!("CONNECT {authority} HTTP/1.0");
        // The framing that such a request claims is ignored, as is its Host.
        let head = head(&[&line, "Host: other:1", "Content-Length: x", "Transfer-Encoding: y"]);
        let request = RequestHead::parse(&head).unwrap();
        assert_eq!(request.destination(), &Destination::Tunnel(target(expected)));
        assert!(request.body().is_complete());
        assert_eq!(request.version(), HttpVersion::Http10);
        let mut out = Vec::new();
        request.emit_forward(&mut out);
        assert!(out.is_empty());
        emit_established(request.version(), &mut out);
        assert_eq!(out, b"HTTP/1.0 200 Connection established\r\n\r\n");
    }
    for authority in [
        "",
        ":443",
        "/",
        "a:b",
        "a:65536",
        "a:-1",
        "a:+1",
        "a:1:2",
        "::1:443",
        "[::1",
        "[::1]443",
        "[a]:443",
        "[::1%25eth0]:443",
        "u@a:443",
        "http://a:443",
        "a/b:443",
        "a?b:443",
        "a\\b:443",
        "a%00:443",
    ] {
        let line = format!("CONNECT {authority} HTTP/1.1");
        assert_eq!(refused(&[&line]).1, 400, "{authority}");
    }
}

#[test]
fn forwards_in_origin_form() {
    for (uri, line, host) in [
        ("http://example.com/a/b?c=d", "GET /a/b?c=d", "example.com"),
        ("http://example.com", "GET /", "example.com"),
        ("http://example.com?q", "GET /?q", "example.com"),
        ("http://example.com/a#b", "GET /a", "example.com"),
        ("HTTP://Example.com:80/", "GET /", "Example.com"),
        ("http://example.com.:8080/", "GET /", "example.com.:8080"),
        ("http://[2001:db8::1]:80/", "GET /", "[2001:db8::1]"),
        ("http://[2001:db8::1]:81//x", "GET //x", "[2001:db8::1]:81"),
        ("http://a/?u=http://b/", "GET /?u=http://b/", "a"),
    ] {
        let first = format!("GET {uri} HTTP/1.1");
        let expected = format!("{line} HTTP/1.1\r\nHost: {host}\r\nA: b\r\n\r\n");
        assert_eq!(forwarded(&[&first, "Host: evil", "A: b"]), expected, "{uri}");
    }
    assert!(forwarded(&["OPTIONS http://a HTTP/1.1"]).starts_with("OPTIONS * HTTP/1.1\r\nHost: a\r\n"));
    let head = head(&["GET http://a:81/x HTTP/1.1"]);
    let request = RequestHead::parse(&head).unwrap();
    assert_eq!(request.destination(), &Destination::Forward { target: target("a:81"), path: "/x".into() });
}

#[test]
fn refuses_other_forms() {
    for (uri, code) in [
        ("https://a/", 400),
        ("ftp://a/", 501),
        ("a:80", 400),
        ("*", 400),
        ("http:a", 400),
        ("http:///a", 400),
        ("http://u:p@a/", 400),
        ("http://a:x/", 400),
        ("http://a b/", 400),
    ] {
        assert_eq!(refused(&[&format!("GET {uri} HTTP/1.1")]).1, code, "{uri}");
    }
    for line in
        ["GET http://a/", "GET http://a/ HTTP/2.0", "GET  http://a/ HTTP/1.1", "G(T http://a/ HTTP/1.1"]
    {
        assert_eq!(refused(&[line]).1, 400, "{line}");
    }
}

#[test]
fn origin_form() {
    for line in ["GET /x HTTP/1.1", "GET http://a/x HTTP/1.1", "CONNECT a:443 HTTP/1.1"] {
        let found = RequestHead::parse(&head(&[line, "Host: a", "hOST: a"])).map(drop);
        assert_eq!(found, Err(HeadError::Hosts), "{line}");
    }
    let head = head(&["GET /proxy.pac HTTP/1.1", "Host: proxy:8080"]);
    let request = RequestHead::parse(&head).unwrap();
    let (host, path) = (Some(target("proxy:8080")), "/proxy.pac".into());
    assert_eq!(request.destination(), &Destination::Origin { host, path });
    assert_eq!(
        forwarded(&["GET /x HTTP/1.1", "Host: a:80", "B: c"]),
        "GET /x HTTP/1.1\r\nHost: a\r\nB: c\r\n\r\n"
    );
    assert_eq!(forwarded(&["GET /x HTTP/1.1"]), "");
}

#[test]
fn drops_hop_by_hop_fields() {
    let sent = forwarded(&[
        "POST http://a/ HTTP/1.1",
        "Host: a",
        "Connection: keep-alive, X-Named ,Host",
        "Proxy-Connection: x-other",
        "X-NAMED: 1",
        "X-Other: 2",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Trailer: X",
        "Upgrade: websocket",
        "Proxy-Authorization: Basic YTpi",
        "Proxy-Authenticate: x",
        "Authorization: Basic YTpi",
        "Expect: 100-continue",
        "content-length: 5, 5",
        "Content-Length: 005",
        "Cookie: a=b",
    ]);
    assert_eq!(
        sent,
        "POST / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YTpi\r\nExpect: 100-continue\r\nCookie: a=b\r\n\
         Content-Length: 5\r\n\r\n"
    );
    let old = forwarded(&["POST http://a/ HTTP/1.0", "Expect: 100-continue", "Content-Length: 0"]);
    assert_eq!(old, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
}

#[test]
fn upgrades() {
    let lines =
        ["GET http://a/ws HTTP/1.1", "Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-X: y"];
    assert_eq!(
        forwarded(&lines),
        "GET /ws HTTP/1.1\r\nHost: a\r\nSec-X: y\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    let head = head(&lines);
    let exchange = RequestHead::parse(&head).unwrap().exchange();
    assert_eq!(exchange, Exchange { upgrade: true, ..GET });
    let switch =
        ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", "Sec-X: z"];
    let (out, disposition) = answered(&switch, exchange).unwrap();
    assert_eq!(disposition, Disposition::Switch);
    assert_eq!(
        out,
        "HTTP/1.1 101 Switching Protocols\r\nSec-X: z\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    assert_eq!(answered(&switch, GET), Err(HeadError::UnaskedSwitch));
    let (out, _) = answered(&["HTTP/1.1 426 X", "Upgrade: tls", "Content-Length: 0"], GET).unwrap();
    assert!(out.contains("\r\nConnection: Upgrade\r\nUpgrade: tls\r\n"), "{out}");
}

#[test]
fn keeps_client_connections() {
    for (version, field, keep) in [
        ("1.1", "A: b", true),
        ("1.1", "Connection: close", false),
        ("1.1", "Proxy-Connection: Close", false),
        ("1.1", "Connection: keep-alive, close", false),
        ("1.0", "A: b", false),
        ("1.0", "Connection: Keep-Alive", true),
        ("1.0", "Proxy-Connection: keep-alive", true),
    ] {
        let head = head(&[&format!("GET http://a/ HTTP/{version}"), field]);
        assert_eq!(RequestHead::parse(&head).unwrap().exchange().keep_alive, keep, "{version} {field}");
    }
}

#[test]
fn basic_credentials() {
    for (value, expected) in [
        ("Basic dXNlcjpwYXNz", Some(("user", "pass"))),
        ("bAsIc   dXNlcjpwYXNz ", Some(("user", "pass"))),
        ("Basic dXNlcjpwOmFzcw==", Some(("user", "p:ass"))),
        ("Basic dXNlcjpwOmFzcw", Some(("user", "p:ass"))),
        ("Basic Og==", Some(("", ""))),
        ("Basic dXNlcg==", None),
        ("Basic", None),
        ("Basic ", None),
        ("Basic !!!!", None),
        ("Bearer dXNlcjpwYXNz", None),
        ("BasicdXNlcjpwYXNz", None),
    ] {
        let field = format!("Proxy-Authorization: {value}");
        let head = head(&["CONNECT a:1 HTTP/1.1", &field]);
        let found = RequestHead::parse(&head).unwrap().credentials();
        let expected = expected.map(|(user, pass)| Credentials::new(user.as_bytes(), pass.as_bytes()));
        assert_eq!(found, expected, "{value}");
    }
}

#[test]
fn refuses_smuggling() {
    for (fields, error, code) in [
        (&["Content-Length: 1", "Transfer-Encoding: chunked"][..], HeadError::AmbiguousLength, 400),
        (&["Transfer-Encoding: chunked", "Content-Length: 0"], HeadError::AmbiguousLength, 400),
        (&["Content-Length: 1", "Transfer-Encoding: x"], HeadError::AmbiguousLength, 400),
        (&["Content-Length: 1", "Content-Length: 2"], HeadError::DifferingLengths, 400),
        (&["Content-Length: 1, 2"], HeadError::DifferingLengths, 400),
        (&["Content-Length: 1,"], HeadError::BadLength, 400),
        (&["Content-Length: +1"], HeadError::BadLength, 400),
        (&["Content-Length: 0x1"], HeadError::BadLength, 400),
        (&["Content-Length: 1 1"], HeadError::BadLength, 400),
        (&["Content-Length:"], HeadError::BadLength, 400),
        (&["Content-Length: 18446744073709551616"], HeadError::BadLength, 400),
        (&["Transfer-Encoding: gzip, chunked"], HeadError::Coding, 501),
        (&["Transfer-Encoding: identity"], HeadError::Coding, 501),
        (&["Transfer-Encoding: xchunked"], HeadError::Coding, 501),
        (&["Transfer-Encoding: \"chunked\""], HeadError::Coding, 501),
        (&["Transfer-Encoding: chunked, chunked"], HeadError::BadCoding, 400),
        (&["Transfer-Encoding: chunked, identity"], HeadError::BadCoding, 400),
        (&["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], HeadError::BadCoding, 400),
        (&["Transfer-Encoding:"], HeadError::BadCoding, 400),
    ] {
        let lines = [&["POST http://a/ HTTP/1.1"], fields].concat();
        assert_eq!(refused(&lines), (error, code), "{fields:?}");
    }
    let old = ["POST http://a/ HTTP/1.0", "Transfer-Encoding: chunked"];
    assert_eq!(refused(&old), (HeadError::BadCoding, 400));
    for line in [
        "A: b\r\n c",
        "A: b\r\n\tc",
        "A : b",
        " A: b",
        ": b",
        "A",
        "A: b\rc",
        "A: b\r\r",
        "A: b\0c",
        "Content-Length: 5\rX: y",
        "Transfer-Encoding\t: chunked",
        "Transfer-Encoding: \x0bchunked",
    ] {
        let lines = ["POST http://a/ HTTP/1.1", "X: y", line];
        assert!(matches!(refused(&lines), (HeadError::Syntax(_), 400)), "{}", line.escape_debug());
    }
}

#[test]
fn request_bodies() {
    let body = |fields: &[&str]| {
        let head = head(&[&["POST http://a/ HTTP/1.1"], fields].concat());
        RequestHead::parse(&head).unwrap().body()
    };
    assert_eq!(body(&[]), BodyFramer::none());
    assert_eq!(body(&["Content-Length: 0"]), BodyFramer::none());
    assert_eq!(body(&["Content-Length: 18446744073709551615"]), BodyFramer::length(u64::MAX));
    assert_eq!(body(&["Transfer-Encoding: Chunked"]), BodyFramer::chunked());
    let sent = forwarded(&["POST http://a/ HTTP/1.1", "Transfer-Encoding:  chunked ", "Connection: TE"]);
    assert_eq!(sent, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
}

fn keeps(disposition: &Disposition) -> (bool, bool) {
    match disposition {
        Disposition::Final { client_keeps, target_keeps, .. } => (*client_keeps, *target_keeps),
        other @ (Disposition::Interim | Disposition::Switch) => panic!("{other:?}"),
    }
}

fn body(disposition: Disposition) -> BodyFramer {
    match disposition {
        Disposition::Final { body, .. } => body,
        other @ (Disposition::Interim | Disposition::Switch) => panic!("{other:?}"),
    }
}

#[test]
fn responses() {
    let length = [
        "HTTP/1.1 200 OK",
        "Server: x",
        "Keep-Alive: timeout=4",
        "Connection: X",
        "X: y",
        "Content-Length: 5",
    ];
    let (out, disposition) = answered(&length, GET).unwrap();
    assert_eq!(out, "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(keeps(&disposition), (true, true));
    assert_eq!(body(disposition), BodyFramer::length(5));

    let (out, disposition) = answered(&length, Exchange { keep_alive: false, ..GET }).unwrap();
    assert!(out.ends_with("Content-Length: 5\r\nConnection: close\r\n\r\n"), "{out}");
    assert_eq!(keeps(&disposition), (false, true));

    let (out, disposition) = answered(&length, Exchange { version: HttpVersion::Http10, ..GET }).unwrap();
    assert!(out.ends_with("Content-Length: 5\r\nConnection: keep-alive\r\n\r\n"), "{out}");
    assert_eq!(keeps(&disposition), (true, true));

    let (out, disposition) = answered(&["HTTP/1.0 200", "Content-Length: 0"], GET).unwrap();
    assert_eq!(out, "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n");
    assert_eq!(keeps(&disposition), (true, false));

    let (out, disposition) = answered(&["HTTP/1.1 200 OK", "Connection: close"], GET).unwrap();
    assert_eq!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    assert_eq!(keeps(&disposition), (false, false));
    assert_eq!(body(disposition), BodyFramer::until_end());
}

#[test]
fn chunked_responses() {
    let lines = ["HTTP/1.1 200 OK", "Trailer: A", "Transfer-Encoding: chunked"];
    let (out, disposition) = answered(&lines, GET).unwrap();
    assert_eq!(out, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(keeps(&disposition), (true, true));
    assert_eq!(body(disposition), BodyFramer::chunked());

    let old = Exchange { version: HttpVersion::Http10, ..GET };
    let (out, disposition) = answered(&lines, old).unwrap();
    assert_eq!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    let (client_keeps, target_keeps) = (false, true);
    let body = BodyFramer::chunked();
    assert_eq!(disposition, Disposition::Final { body, decode: true, client_keeps, target_keeps });
}

#[test]
fn responses_without_body() {
    let head_request = Exchange { head_request: true, ..GET };
    for (status, exchange, fields, kept) in [
        ("200 OK", head_request, &["Content-Length: 5"][..], "Content-Length: 5\r\n"),
        ("200 OK", head_request, &["Transfer-Encoding: chunked"], ""),
        ("200 OK", head_request, &[], ""),
        ("304 Not Modified", GET, &["Content-Length: 5"], "Content-Length: 5\r\n"),
        ("204 No Content", GET, &["Content-Length: 5"], ""),
    ] {
        let line = format!("HTTP/1.1 {status}");
        let (out, disposition) = answered(&[&[&line[..]], fields].concat(), exchange).unwrap();
        assert_eq!(out, format!("{line}\r\n{kept}\r\n"));
        assert_eq!(keeps(&disposition), (true, true));
        assert!(body(disposition).is_complete());
    }
    let interim = ["HTTP/1.1 103 Early Hints", "Link: x", "Content-Length: 9", "Connection: close"];
    let (out, disposition) = answered(&interim, GET).unwrap();
    assert_eq!(out, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
    assert_eq!(disposition, Disposition::Interim);
    let old = Exchange { version: HttpVersion::Http10, ..GET };
    assert_eq!(answered(&interim, old).unwrap(), (String::new(), Disposition::Interim));
}

#[test]
fn bad_responses() {
    for (fields, error) in [
        (&["Content-Length: 1", "Transfer-Encoding: chunked"][..], HeadError::AmbiguousLength),
        (&["Content-Length: 1", "Content-Length: 2"], HeadError::DifferingLengths),
        (&["Content-Length: x"], HeadError::BadLength),
        (&["Transfer-Encoding: gzip"], HeadError::Coding),
    ] {
        assert_eq!(answered(&[&["HTTP/1.1 200 OK"], fields].concat(), GET).unwrap_err(), error, "{fields:?}");
    }
    let old = ["HTTP/1.0 200 OK", "Transfer-Encoding: chunked"];
    assert_eq!(answered(&old, GET), Err(HeadError::BadCoding));
    for lines in [
        ["HTTP/1.1 099 X", "A: b"],
        ["HTTP/2 200 OK", "A: b"],
        ["HTTP/1.1 200 OK", "A: b\r\n c"],
        ["SSH-2.0", ""],
    ] {
        assert!(matches!(answered(&lines, GET), Err(HeadError::Syntax(_))), "{lines:?}");
    }
}

const CHUNKS: &[u8] = b"5\r\nhello\r\n1;a=\"b\"\r\n \r\n00A \t;x\r\n0123456789\r\n0\r\nX-T: v\r\nY:\r\n\r\n";

#[test]
fn bodies_end_where_they_end() {
    let next = b"GET / HTTP/1.1\r\n\r\n";
    for (make, body, content) in [
        (BodyFramer::chunked as fn() -> BodyFramer, CHUNKS, &b"hello 0123456789"[..]),
        (BodyFramer::chunked, b"0\r\n\r\n", b""),
        (|| BodyFramer::length(5), b"hello", b"hello"),
        (BodyFramer::none, b"", b""),
    ] {
        let wire = [body, next].concat();
        for cut in 0..=wire.len() {
            let mut framer = make();
            let first = framer.pass(&wire[..cut]).unwrap();
            assert_eq!(
                first,
                Framed { used: cut.min(body.len()), complete: cut >= body.len() },
                "cut at {cut}"
            );
            assert_eq!(framer.clone().handle_transport_end().is_ok(), cut >= body.len());
            let second = framer.pass(&wire[cut..]).unwrap();
            assert_eq!((first.used + second.used, second.complete), (body.len(), true), "cut at {cut}");
        }
        let mut decoded = wire.clone();
        let found = make().decode(&mut decoded).unwrap();
        assert_eq!(found, Decoded { used: body.len(), len: content.len(), complete: true });
        assert_eq!(&decoded[..found.len], content);
    }
    let mut framer = BodyFramer::until_end();
    assert_eq!(framer.pass(next), Ok(Framed { used: next.len(), complete: false }));
    assert_eq!(framer.handle_transport_end(), Ok(()));
    assert!(framer.is_complete());
    let mut framer = BodyFramer::length(u64::MAX);
    assert_eq!(framer.pass(next), Ok(Framed { used: next.len(), complete: false }));
}

#[test]
fn bad_chunks() {
    for bytes in [
        &b"\r\n"[..],
        b";a\r\n",
        b" 5\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"0x5\r\n",
        b"5\nhello",
        b"5 5\r\n",
        b"5\rx",
        b"5;a\nb",
        b"5;a\rb",
        b"5;\0\r\n",
        b"5\r\nhellox",
        b"5\r\nhello\n",
        b"5\r\nhello\rx",
        b"0\r\n a: b\r\n",
        b"0\r\na: b\r\n c\r\n",
        b"0\r\na : b\r\n",
        b"0\r\n:b\r\n",
        b"0\r\na\r\n",
        b"0\r\na: b\n\r\n",
        b"0\r\na: b\rc",
        b"0\r\na: \0\r\n",
        b"0\r\n\rx",
        b"0\r\n\n",
    ] {
        let error = BodyFramer::chunked().pass(bytes);
        assert!(matches!(error, Err(BodyError::BadByte { .. })), "{}: {error:?}", bytes.escape_ascii());
    }
    let largest = BodyFramer::chunked().pass(b"ffffffffffffffff\r\nx");
    assert_eq!(largest, Ok(Framed { used: 19, complete: false }));
    assert_eq!(BodyFramer::chunked().pass(b"10000000000000000\r\n"), Err(BodyError::ChunkTooLong));
}

#[test]
fn chunk_limits() {
    let line = usize::try_from(MAX_CHUNK_LINE).unwrap();
    let trailers = usize::try_from(MAX_TRAILERS_LEN).unwrap();
    for (over, ok) in [(0, true), (1, false)] {
        let fill = |len: usize| "x".repeat(len + over);
        let extension = format!("0;{}\r\n\r\n", fill(line - 3));
        assert_eq!(BodyFramer::chunked().pass(extension.as_bytes()).is_ok(), ok, "extension");
        let zeros = format!("{}\r\n\r\n", "0".repeat(line - 1 + over));
        assert_eq!(BodyFramer::chunked().pass(zeros.as_bytes()).is_ok(), ok, "digits");
        let trailer = format!("0\r\na:{}\r\n\r\n", fill(trailers - 5));
        assert_eq!(BodyFramer::chunked().pass(trailer.as_bytes()).is_ok(), ok, "trailers");
    }
    let mut many = String::from("0\r\n");
    for _ in 0..20_000 {
        write!(many, "a:b\r\n").unwrap();
    }
    assert_eq!(BodyFramer::chunked().pass(many.as_bytes()), Err(BodyError::TooLong("trailer section")));
}

#[test]
fn own_answers() {
    let answer = |status, version, keep_alive, head_request| {
        let mut out = Vec::new();
        emit_error(status, version, keep_alive, head_request, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        answer(Status::ProxyAuthenticationRequired, HttpVersion::Http11, true, false),
        "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"adit\", charset=\"UTF-8\"\r\n\
         Content-Type: text/plain\r\nContent-Length: 34\r\n\r\n407 Proxy Authentication Required\n"
    );
    assert_eq!(
        answer(Status::BadGateway, HttpVersion::Http11, false, true),
        "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nContent-Length: 16\r\nConnection: close\r\n\r\n"
    );
    let mut page = Vec::new();
    emit_page("<p>x\n", HttpVersion::Http11, true, false, &mut page);
    assert_eq!(
        String::from_utf8(page).unwrap(),
        "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Security-Policy: default-src 'none'\r\n\
         Content-Type: text/html; charset=utf-8\r\nContent-Length: 5\r\n\r\n<p>x\n"
    );
    assert!(
        answer(Status::MethodNotAllowed, HttpVersion::Http10, true, false)
            .contains("\r\nConnection: keep-alive\r\n")
    );
    for (failure, code) in [
        (ConnectFailure::General, 502),
        (ConnectFailure::NotAllowed, 403),
        (ConnectFailure::NetworkUnreachable, 502),
        (ConnectFailure::HostUnreachable, 502),
        (ConnectFailure::ConnectionRefused, 502),
        (ConnectFailure::TimedOut, 504),
        (ConnectFailure::CommandNotSupported, 405),
        (ConnectFailure::AddressNotSupported, 400),
        (ConnectFailure::Overloaded, 503),
        (ConnectFailure::Unavailable, 503),
    ] {
        assert_eq!(Status::from(failure).code(), code, "{failure}");
    }
    for status in [Status::LoopDetected, Status::RequestTimeout, Status::HeadTooLarge, Status::NotImplemented]
    {
        let text = answer(status, HttpVersion::Http11, false, false);
        let (head, rest) = text.split_at(text.find("\r\n\r\n").unwrap() + 4);
        let head = ResponseHead::parse(head.as_bytes()).unwrap();
        let disposition = head.emit_forward(&GET, &mut Vec::new()).unwrap();
        assert_eq!(body(disposition), BodyFramer::length(rest.len() as u64));
    }
}

/// Two requests to different hosts in one segment, the first with a body, and their responses.
#[test]
fn one_connection_two_hosts() {
    let first = head(&["POST http://a/1 HTTP/1.1", "Content-Length: 4"]);
    let second = head(&["GET http://b:81/2 HTTP/1.1", "Proxy-Connection: close"]);
    let wire = [&first[..], b"body", &second].concat();
    let (mut at, mut scanner) = (0, HeadScanner::new());
    let mut seen = Vec::new();
    while at < wire.len() {
        let len = scanner.scan(&wire[at..]).unwrap().unwrap();
        let request = RequestHead::parse(&wire[at..at + len]).unwrap();
        at += len;
        let Destination::Forward { target, .. } = request.destination() else { panic!("{request:?}") };
        let mut sent = Vec::new();
        request.emit_forward(&mut sent);
        let mut framer = request.body();
        let framed = framer.pass(&wire[at..]).unwrap();
        assert!(framed.complete);
        sent.extend_from_slice(&wire[at..at + framed.used]);
        at += framed.used;
        let (_, disposition) =
            answered(&["HTTP/1.1 200 OK", "Content-Length: 0"], request.exchange()).unwrap();
        seen.push((target.to_string(), String::from_utf8(sent).unwrap(), keeps(&disposition).0));
    }
    let first = "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    let second = "GET /2 HTTP/1.1\r\nHost: b:81\r\n\r\n";
    assert_eq!(seen, [("a:80".into(), first.into(), true), ("b:81".into(), second.into(), false)]);
}

#[test]
fn debug_output_holds_no_secrets() {
    let head = head(&["GET http://a/ HTTP/1.1", "Proxy-Authorization: Basic YTpi", "Cookie: secret"]);
    let text = format!("{:?}", RequestHead::parse(&head).unwrap());
    assert!(text.contains("Cookie") && !text.contains("secret") && !text.contains("YTpi"), "{text}");
}

/// Lines of heads that the generator combines.
const REQUEST_LINES: [&str; 8] = [
    "GET http://a:80/b?c HTTP/1.1",
    "POST http://[::1]:8080 HTTP/1.0",
    "OPTIONS http://a. HTTP/1.1",
    "GET /x HTTP/1.1",
    "CONNECT a HTTP/1.1",
    "HTTP/1.1 200 OK",
    "HTTP/1.0 304 x",
    "HTTP/1.1 101 ",
];
const FIELDS: [&str; 14] = [
    "Host: a",
    "Content-Length: 5",
    "Content-Length: 6",
    "Transfer-Encoding: chunked",
    "Connection: close, x",
    "Connection: Upgrade, keep-alive",
    "Upgrade: websocket",
    "Proxy-Connection: keep-alive",
    "X: y",
    "Expect: 100-continue",
    "Trailer: a",
    "Proxy-Authorization: Basic YTpi",
    "Connection: content-length, host, transfer-encoding",
    "",
];

proptest! {
    #[test]
    fn fuzz_heads(
        choice: u8,
        first in 0..REQUEST_LINES.len(),
        fields in prop::collection::vec(0..FIELDS.len(), 0..6),
        change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut lines = vec![REQUEST_LINES[first]];
        lines.extend(fields.iter().map(|&at| FIELDS[at]));
        let mut bytes = head(&lines);
        if let Some((at, byte)) = change {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fuzz_http_request(&bytes);
        bytes.insert(0, choice);
        fuzz_http_response(&bytes);
    }

    #[test]
    fn fuzz_bodies(kind: u8, cut: u8, at: prop::sample::Index, byte: u8, noise: Vec<u8>) {
        let mut bytes = CHUNKS.to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        fuzz_http_body(&[&[kind, cut][..], &bytes].concat());
        fuzz_http_body(&[&[2, cut][..], &bytes].concat());
        fuzz_http_body(&noise);
        fuzz_http_request(&noise);
        fuzz_http_response(&noise);
    }
}
