use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::rt::{self, Cores};

const SMALL: Limits = Limits { message: 4096, write: 1000, buffer: 512, head: 4096 };

/// Both ends over a pipe that holds `len` bytes.
async fn pair(len: usize) -> (WebSocket<DuplexStream>, WebSocket<DuplexStream>, Opening) {
    let (near, far) = duplex(len);
    let serve = async move { accept(far, Vec::new(), SMALL).await.unwrap() };
    let ask = async move { connect(near, "a.test:1", "/x?y=z", &[("X-One", "1")], SMALL).await.unwrap() };
    let ((server, opening), client) = tokio::join!(serve, ask);
    (client, server, opening)
}

#[test]
fn key_of_the_standard() {
    // RFC 6455, 1.3.
    assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

#[test]
fn messages_go_both_ways_and_end_with_a_close() {
    Cores::block_on(async {
        // A pipe of one byte splits everything at every place.
        for len in [1, 7, 65_536] {
            let (mut client, mut server, opening) = pair(len).await;
            assert_eq!((opening.target.as_str(), opening.field("x-one")), ("/x?y=z", Some(&b"1"[..])));
            let serve = async {
                while let Some(message) = server.receive().await.unwrap() {
                    server.send(message).await.unwrap();
                }
            };
            let ask = async {
                for size in [0, 1, 125, 126, 127, 4096] {
                    let bytes = Bytes::from(vec![7; size]);
                    for message in [Message::Binary(bytes), Message::Text("é".repeat(size / 2))] {
                        client.send(message.clone()).await.unwrap();
                        assert_eq!(client.receive().await.unwrap(), Some(message));
                    }
                }
                client.close().await.unwrap();
                assert_eq!(client.receive().await.unwrap(), None);
                assert_eq!(
                    client.send(Message::Text("late".into())).await.unwrap_err().kind(),
                    io::ErrorKind::BrokenPipe
                );
            };
            tokio::join!(serve, ask);
        }
    })
    .unwrap();
}

#[test]
fn the_view_as_bytes_cuts_and_joins() {
    Cores::block_on(async {
        let (client, server, _) = pair(300).await;
        let (mut client, mut server) = (client.into_bytes(), server.into_bytes());
        let sent: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let ask = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            client.read_to_end(&mut Vec::new()).await.unwrap();
        };
        let serve = async {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            server.shutdown().await.unwrap();
            got
        };
        let ((), got) = tokio::join!(ask, serve);
        assert_eq!(got, sent);
    })
    .unwrap();
}

#[test]
fn both_directions_of_the_view_move_at_once() {
    Cores::block_on(async {
        let (client, server, _) = pair(64).await;
        let sent = vec![1; 50_000];
        let both = |end: Bytestream<DuplexStream>| {
            let sent = sent.clone();
            async move {
                let (mut read, mut write) = tokio::io::split(end);
                let mut got = vec![0; sent.len()];
                let writes = async {
                    write.write_all(&sent).await.unwrap();
                    write.flush().await.unwrap();
                };
                let (read, ()) = tokio::join!(read.read_exact(&mut got), writes);
                read.unwrap();
                assert_eq!(got, sent);
            }
        };
        let moved = async { tokio::join!(both(client.into_bytes()), both(server.into_bytes())) };
        rt::timeout(Duration::from_secs(60), moved).await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_reader_that_does_not_read_holds_one_message_back() {
    Cores::block_on(async {
        let (client, mut server, _) = pair(256).await;
        let mut client = client.into_bytes();
        let mut taken = 0;
        let flood = async {
            loop {
                taken += client.write(&[0; 1000]).await.unwrap();
            }
        };
        assert!(rt::timeout(Duration::from_millis(50), flood).await.is_err());
        assert_eq!(taken, 1000);
        // Sending and receiving are tasks of their own: the first message arrives whole.
        let Some(Message::Binary(bytes)) =
            tokio::join!(server.receive(), async { client.flush().await.unwrap() }).0.unwrap()
        else {
            panic!("no message")
        };
        assert_eq!(bytes.len(), 1000);
    })
    .unwrap();
}

#[test]
fn a_ping_is_answered_and_a_message_too_long_refused() {
    Cores::block_on(async {
        let (near, far) = duplex(65_536);
        let mut server = WebSocket::server(far, Vec::new(), SMALL);
        let mut near = near;
        // Masked with zeros: a ping "hi", then text "ok" in two frames with a ping between.
        near.write_all(b"\x89\x82\0\0\0\0hi\x01\x81\0\0\0\0o\x89\x80\0\0\0\0\x80\x81\0\0\0\0k")
            .await
            .unwrap();
        assert_eq!(server.receive().await.unwrap(), Some(Message::Text("ok".into())));
        let mut pong = [0; 4];
        near.read_exact(&mut pong).await.unwrap();
        assert_eq!(&pong, b"\x8a\x02hi");
        // 4,097 bytes.
        near.write_all(b"\x82\xfe\x10\x01\0\0\0\0").await.unwrap();
        assert_eq!(server.receive().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    })
    .unwrap();
}

#[test]
fn peers_that_break_the_protocol() {
    Cores::block_on(async {
        for (frame, kind) in [
            (&b"\x82\x01x"[..], io::ErrorKind::InvalidData), // not masked
            (b"\xc2\x81\0\0\0\0x", io::ErrorKind::InvalidData), // a reserved bit
            (b"\x83\x81\0\0\0\0x", io::ErrorKind::InvalidData), // a reserved kind
            (b"\x81\x81\0\0\0\0\xff", io::ErrorKind::InvalidData), // no UTF-8
            (b"\x80\x81\0\0\0\0x", io::ErrorKind::InvalidData), // goes on with nothing
            (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", io::ErrorKind::InvalidData), // 2^64 - 1
            (b"\x82\x82\0\0\0\0x", io::ErrorKind::UnexpectedEof), // cut
            (b"", io::ErrorKind::UnexpectedEof),
        ] {
            let (mut near, far) = duplex(65_536);
            near.write_all(frame).await.unwrap();
            near.shutdown().await.unwrap();
            let mut server = WebSocket::server(far, Vec::new(), SMALL);
            assert_eq!(server.receive().await.unwrap_err().kind(), kind, "{frame:?}");
        }
    })
    .unwrap();
}

/// The answer to a request, and the error.
async fn ask(request: &[u8]) -> (String, Option<io::ErrorKind>) {
    let (mut near, far) = duplex(65_536);
    near.write_all(request).await.unwrap();
    near.shutdown().await.unwrap();
    let result = accept(far, Vec::new(), SMALL).await.map(drop);
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.unwrap();
    (answer, result.err().map(|error| error.kind()))
}

#[test]
fn requests_that_open_and_those_that_do_not() {
    const GOOD: &str = "GET /a HTTP/1.1\r\nHost: b\r\nupgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    Cores::block_on(async {
        let (answer, error) = ask(GOOD.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 101 ") && answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(error, None);
        for (from, to) in [
            ("GET", "POST"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("upgrade: WebSocket", "upgrade: h2c"),
            ("keep-alive, Upgrade", "keep-alive"),
            ("Version: 13", "Version: 8"),
            ("dGhlIHNhbXBsZSBub25jZQ==", "short"),
            ("Host: b", "Ho\u{0}st"),
        ] {
            let (answer, error) = ask(GOOD.replace(from, to).as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{to}: {answer}");
            assert_eq!(error, Some(io::ErrorKind::InvalidData), "{to}");
        }
        for len in 0..GOOD.len() {
            let (answer, error) = ask(&GOOD.as_bytes()[..len]).await;
            assert_eq!((answer.as_str(), error), ("", Some(io::ErrorKind::UnexpectedEof)), "{len}");
        }
        let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(5000));
        assert_eq!(ask(long.as_bytes()).await.1, Some(io::ErrorKind::InvalidData));
    })
    .unwrap();
}

#[test]
fn servers_that_do_not_open() {
    Cores::block_on(async {
        for answer in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong\r\n\r\n",
            "nonsense\r\n\r\n",
        ] {
            let (near, mut far) = duplex(65_536);
            far.write_all(answer.as_bytes()).await.unwrap();
            let error = connect(near, "a", "/", &[], SMALL).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{answer}");
        }
        for (host, target, field) in
            [("", "/", "a"), ("a\r\nb", "/", "a"), ("a", "x", "a"), ("a", "/ x", "a"), ("a", "/", "a\nb")]
        {
            let (near, _far) = duplex(65_536);
            let error = connect(near, host, target, &[("x", field)], SMALL).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    })
    .unwrap();
}
