//! The delay of a way: a HEAD, and the time up to the head of its response.

use std::io;
use std::time::{Duration, Instant};

use adit_model::WebUrl;
use adit_proto::http::{HeadError, ResponseHead};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::rt;
use crate::tls::{TlsConnector, TlsError};
use crate::wire::BoxStream;

/// Longest head of a response, in bytes.
const MAX_HEAD_LEN: usize = 64 * 1024;
/// Bytes of one read.
const READ_LEN: usize = 2048;
/// Interim responses (1xx) in front of a response.
const MAX_INTERIM: usize = 8;

/// Why there is no response.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The connection broke.
    #[error("connection broke")]
    Socket(#[from] io::Error),
    /// There is no TLS connection.
    #[error("no TLS connection")]
    Tls(#[from] TlsError),
    /// The answer is not HTTP.
    #[error("bad answer")]
    Head(#[from] HeadError),
    /// The answer has no end.
    #[error("the head of the answer is longer than {MAX_HEAD_LEN} bytes, or has no end")]
    TooLong,
}

/// Sends a HEAD for `url` over `stream`, by `tls` if the address asks for it, and returns the status and the time since
/// `begun`. With `again` a second HEAD follows on the same connection, and that one alone is measured. Sets no limit of
/// time; the connection closes.
///
/// # Errors
/// [`ProbeError`].
pub async fn head<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    url: &WebUrl,
    tls: Option<&TlsConnector>,
    begun: Instant,
    again: bool,
) -> Result<(u16, Duration), ProbeError> {
    let stream: BoxStream<'_> = match tls {
        Some(tls) => Box::new(Box::pin(tls.connect(&url.target.host, stream)).await?),
        None => Box::new(stream),
    };
    exchange(stream, url, begun, again).await
}

async fn exchange(
    mut stream: BoxStream<'_>,
    url: &WebUrl,
    begun: Instant,
    again: bool,
) -> Result<(u16, Duration), ProbeError> {
    let request = format!(
        "HEAD {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: adit\r\nAccept: */*\r\n\r\n",
        url.path, url.authority
    );
    let mut wire = Vec::new();
    let status = once(&mut stream, &request, &mut wire).await?;
    let first = (status, rt::now().saturating_duration_since(begun));
    if !again {
        return Ok(first);
    }
    let begun = rt::now();
    match once(&mut stream, &request, &mut wire).await {
        Ok(status) => Ok((status, rt::now().saturating_duration_since(begun))),
        // A server that closes behind a response has given one.
        Err(_) => Ok(first),
    }
}

async fn once(stream: &mut BoxStream<'_>, request: &str, wire: &mut Vec<u8>) -> Result<u16, ProbeError> {
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    for _ in 0..MAX_INTERIM {
        let len = receive_head(stream, wire).await?;
        let status = ResponseHead::parse(&wire[..len])?.status();
        wire.drain(..len);
        if status >= 200 || status == 101 {
            return Ok(status);
        }
    }
    Err(ProbeError::TooLong)
}

/// Receives until `wire` begins with a whole head, whose length is returned.
async fn receive_head(stream: &mut BoxStream<'_>, wire: &mut Vec<u8>) -> Result<usize, ProbeError> {
    const END: &[u8] = b"\r\n\r\n";
    let mut seen = 0;
    loop {
        let from = seen.min(wire.len()).saturating_sub(END.len() - 1);
        if let Some(at) = wire[from..].windows(END.len()).position(|window| window == END) {
            return Ok(from + at + END.len());
        }
        if wire.len() >= MAX_HEAD_LEN {
            return Err(ProbeError::TooLong);
        }
        seen = wire.len();
        wire.resize(seen + READ_LEN, 0);
        let received = stream.read(&mut wire[seen..]).await;
        wire.truncate(seen + received.as_ref().copied().unwrap_or(0));
        if received? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::rt::Cores;

    /// The outcome for a server that sends these answers, a piece at a time, one answer to each request.
    fn asked(answers: &'static [&'static str], piece: usize, again: bool) -> Result<u16, String> {
        let run = async {
            let (near, mut far) = duplex(1 << 20);
            let url = WebUrl::parse("http://a.example/x?y").unwrap();
            let server = async {
                for answer in answers {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        match far.read_u8().await {
                            Ok(byte) => request.push(byte),
                            Err(_) => return,
                        }
                    }
                    assert!(request.starts_with(b"HEAD /x?y HTTP/1.1\r\nHost: a.example\r\n"));
                    for part in answer.as_bytes().chunks(piece) {
                        far.write_all(part).await.ok();
                        rt::yield_now().await;
                    }
                }
                drop(far);
            };
            let probe = head(near, &url, None, rt::now(), again);
            let (found, ()) = tokio::join!(probe, server);
            found.map(|(status, _)| status).map_err(|error| error.to_string())
        };
        Cores::block_on(Box::pin(run)).unwrap()
    }

    #[test]
    fn responses() {
        const OK: &str = "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n";
        for piece in [1, 3, 1000] {
            assert_eq!(asked(&[OK], piece, false), Ok(204));
            assert_eq!(asked(&["HTTP/1.1 103 Hints\r\n\r\nHTTP/1.0 500 No\r\n\r\n"], piece, false), Ok(500));
            assert_eq!(asked(&[OK, "HTTP/1.1 200 OK\r\n\r\n"], piece, true), Ok(200));
            // A server that closes behind its response.
            assert_eq!(asked(&[OK], piece, true), Ok(204));
            for end in 0..OK.len() {
                assert!(asked(&[], piece, false).is_err());
                let cut: &'static str = &OK[..end];
                let answers: &'static [&'static str] = Box::leak(Box::new([cut]));
                assert_eq!(asked(answers, piece, false), Err("connection broke".into()), "{end}");
            }
        }
        assert_eq!(asked(&["SSH-2.0-x\r\n\r\n"], 1000, false), Err("bad answer".into()));
    }

    #[test]
    fn heads_without_an_end() {
        let long: &'static str = Box::leak(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(100_000)).into());
        let answers: &'static [&'static str] = Box::leak(Box::new([long]));
        assert!(asked(answers, 100_000, false).unwrap_err().contains("longer than"));
        let interim: &'static str = Box::leak("HTTP/1.1 100 C\r\n\r\n".repeat(100).into());
        let answers: &'static [&'static str] = Box::leak(Box::new([interim]));
        assert!(asked(answers, 1000, false).is_err());
    }
}
