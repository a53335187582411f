//! Small documents: over plain HTTP by itself, over HTTPS by curl.

use std::io;
use std::time::Duration;

use adit_config::model::{HttpUrl, UrlError};
use adit_proto::http::{BodyError, BodyFramer, HeadError, HeadScanner, ResponseHead};
use thiserror::Error;

use crate::dial::{DialError, Dialer};
use crate::rt::{self, Stream};

mod curl;

pub use curl::{CurlFailure, fetch_https};

/// Answers that lead elsewhere are followed so often.
const MAX_REDIRECTS: usize = 4;
/// What is asked for.
const ACCEPT: &str = "application/json, */*;q=0.1";
/// One read.
const READ_LEN: usize = 16 * 1024;
/// Bytes of framing, heads included, that a document may have around it.
const OVERHEAD: usize = 128 * 1024;

/// Why there is no document. Nothing in it shows the address.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The server cannot be reached.
    #[error("no connection")]
    Dial(#[from] DialError),
    /// The connection broke.
    #[error("connection broke")]
    Socket(#[from] io::Error),
    /// The head of the answer is no good.
    #[error("bad answer")]
    Head(#[from] HeadError),
    /// The body of the answer is no good.
    #[error("bad answer")]
    Body(#[from] BodyError),
    /// The answer is an error.
    #[error("the server answers with status {0}")]
    Status(u16),
    /// The answer leads where nothing can be fetched from.
    #[error("the server leads elsewhere")]
    Redirect(#[source] Option<UrlError>),
    /// The server leads from one place to the next.
    #[error("the server leads elsewhere again and again")]
    Redirects,
    /// curl is not there, or cannot be run.
    #[error(
        "https takes curl, which cannot be run (hint: install it, or have the document fetched into a file)"
    )]
    NoCurl(#[source] io::Error),
    /// curl has failed.
    #[error("curl has failed")]
    Curl(#[from] CurlFailure),
    /// The document is longer than it may be.
    #[error("longer than {max} bytes")]
    TooLong {
        /// How long it may be.
        max: usize,
    },
    /// Time ran out.
    #[error("not there after {limit:?}")]
    Timeout {
        /// How long was waited.
        limit: Duration,
    },
}

/// Fetches `url`: at most `max` bytes, within `limit` for everything, redirects included.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(
    dialer: &Dialer,
    url: &HttpUrl,
    max: usize,
    limit: Duration,
) -> Result<Vec<u8>, FetchError> {
    let fetch = async {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            match Box::pin(fetch_once(dialer, &url, max)).await? {
                Answer::Document(document) => return Ok(document),
                Answer::Elsewhere(other) => url = other,
            }
        }
        Err(FetchError::Redirects)
    };
    rt::timeout(limit, fetch).await.unwrap_or(Err(FetchError::Timeout { limit }))
}

enum Answer {
    Document(Vec<u8>),
    Elsewhere(HttpUrl),
}

async fn fetch_once(dialer: &Dialer, url: &HttpUrl, max: usize) -> Result<Answer, FetchError> {
    let stream = Stream::from(dialer.dial(&url.target).await?);
    let HttpUrl { authority, path, .. } = url;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nAccept: {ACCEPT}\r\n\
         Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    );
    stream.send_all(request.as_bytes()).await?;
    let mut answer = Incoming { stream, bytes: Vec::new(), max: max.saturating_add(OVERHEAD) };
    let mut scanner = HeadScanner::new();
    loop {
        let Some(len) = scanner.scan(&answer.bytes)? else {
            if answer.read(max).await? == 0 {
                return Err(HeadError::Incomplete.into());
            }
            continue;
        };
        let head = ResponseHead::parse(trimmed(&answer.bytes[..len]))?;
        match head.status() {
            100..=199 => {}
            200 => {
                let mut body = head.body_for_get()?;
                answer.bytes.drain(..len);
                return Ok(Answer::Document(answer.body(&mut body, max).await?));
            }
            301 | 302 | 303 | 307 | 308 => {
                let to = head.location().ok_or(FetchError::Redirect(None))?;
                let to = url.join(to).map_err(|error| FetchError::Redirect(Some(error)))?;
                return Ok(Answer::Elsewhere(to));
            }
            status => return Err(FetchError::Status(status)),
        }
        answer.bytes.drain(..len);
    }
}

/// A head without the empty lines in front of it.
fn trimmed(head: &[u8]) -> &[u8] {
    let begin = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    &head[begin..]
}

/// What has come of an answer.
struct Incoming {
    stream: Stream,
    bytes: Vec<u8>,
    /// Bytes that may still come.
    max: usize,
}

impl Incoming {
    /// One read behind what is there; 0 bytes at the end.
    async fn read(&mut self, max: usize) -> Result<usize, FetchError> {
        let before = self.bytes.len();
        self.bytes.resize(before + READ_LEN, 0);
        let len = self.stream.recv(&mut self.bytes[before..]).await?;
        self.bytes.truncate(before + len);
        self.max = self.max.checked_sub(len).ok_or(FetchError::TooLong { max })?;
        Ok(len)
    }

    async fn body(&mut self, framer: &mut BodyFramer, max: usize) -> Result<Vec<u8>, FetchError> {
        let mut document = Vec::new();
        loop {
            let decoded = framer.decode(&mut self.bytes)?;
            if document.len() + decoded.len > max {
                return Err(FetchError::TooLong { max });
            }
            document.extend(&self.bytes[..decoded.len]);
            self.bytes.drain(..decoded.used);
            if decoded.complete {
                return Ok(document);
            }
            if self.read(max).await? == 0 {
                framer.handle_transport_end()?;
                return Ok(document);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    use adit_config::model::Dial;

    use super::*;
    use crate::rt::Cores;

    /// Answers the connections one after the other.
    fn server(answers: Vec<String>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (answer, stream) in answers.into_iter().zip(listener.incoming()) {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                assert!(request.starts_with(b"GET /"));
                stream.write_all(answer.replace("HERE", &at.to_string()).as_bytes()).ok();
            }
        });
        at
    }

    fn get(answers: &[&str]) -> Result<String, String> {
        let at = server(answers.iter().map(ToString::to_string).collect());
        let url = HttpUrl::parse(&format!("http://{at}/list?token=hunter2")).unwrap();
        let fetched = Cores::block_on(async {
            fetch(&Dialer::by_system(&Dial::default()), &url, 100, Duration::from_secs(20)).await
        });
        let fetched = fetched.unwrap().map(|bytes| String::from_utf8(bytes).unwrap());
        fetched.map_err(|error| {
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
            format!("{error}{cause}")
        })
    }

    #[test]
    fn answers() {
        let long = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(101));
        let endless =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", "1\r\nx\r\n".repeat(200));
        let again = "HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n";
        for (answers, want) in [
            (vec!["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokmore"], Ok("ok")),
            (vec!["\r\nHTTP/1.0 200 OK\r\n\r\nto the end"], Ok("to the end")),
            (vec!["HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], Ok("")),
            (
                vec!["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"],
                Ok("abc"),
            ),
            (
                vec![again, "HTTP/1.1 301 M\r\nLocation: http://HERE/y\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nx"],
                Ok("x"),
            ),
            (vec![again; 6], Err("the server leads elsewhere again and again")),
            (
                vec!["HTTP/1.1 302 Found\r\nLocation: https://HERE/y\r\n\r\n"],
                Err("the server leads elsewhere: https is not to be had here"),
            ),
            (vec!["HTTP/1.1 302 Found\r\n\r\n"], Err("the server leads elsewhere")),
            (vec!["HTTP/1.1 404 Not Found\r\n\r\n"], Err("the server answers with status 404")),
            (vec![&long], Err("longer than 100 bytes")),
            (vec![&endless], Err("longer than 100 bytes")),
            (vec!["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok"], Err("bad answer: ")),
            (vec![""], Err("bad answer: ")),
            (vec!["SSH-2.0-OpenSSH\r\n\r\n"], Err("bad answer: ")),
        ] {
            let got = get(&answers);
            match want {
                Ok(want) => assert_eq!(got.as_deref(), Ok(want), "{answers:?}"),
                Err(want) => {
                    let got = got.unwrap_err();
                    assert!(got.starts_with(want), "{answers:?}: {got}");
                    assert!(!got.contains("hunter2"), "{got}");
                }
            }
        }
    }

    #[test]
    fn time_runs_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = HttpUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let fetched = Cores::block_on(async {
            fetch(&Dialer::by_system(&Dial::default()), &url, 100, Duration::from_millis(50)).await
        });
        assert!(matches!(fetched.unwrap(), Err(FetchError::Timeout { .. })));
    }
}
