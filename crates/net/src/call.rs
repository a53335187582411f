//! One HTTP request whose caller must know whether the server may have seen it.
//!
//! Every call has a connection of its own: a kept one that the server closes meanwhile would leave a request in doubt.
//! Nothing is repeated, and no redirect is followed.

mod socket;

use std::io;
use std::time::Duration;

use adit_model::{Secret, WebUrl};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, DATE, ETAG, HOST};
use hyper::{Method, Request, Response};

use crate::dial::Dialer;
use crate::fetch::FetchError;
use crate::https::{field, once, read_body};
use crate::rt;
use crate::tls::{Accepts, Roots, TlsConnector};
use crate::wire::BoxStream;

pub use self::socket::CallSocket;

/// A request.
#[derive(Debug, Clone)]
pub struct HttpCall {
    /// Its address.
    pub url: WebUrl,
    /// Fields of the request.
    pub headers: Vec<(Box<str>, Secret)>,
    /// The body of a POST and its type; `None` for a GET.
    pub body: Option<(&'static str, Vec<u8>)>,
    /// Longest body of the answer in bytes, as it is sent.
    pub max: usize,
    /// Time for everything.
    pub limit: Duration,
}

/// The certificates that a call takes.
#[derive(Debug, Clone)]
pub enum CallTrust {
    /// Those that these authorities have signed, for the name of the server.
    Roots(Roots),
    /// Those with one of two digests.
    Pins([[u8; 32]; 2]),
}

/// The answer to a [`HttpCall`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallAnswer {
    /// Its status.
    pub status: u16,
    /// `ETag`.
    pub version: Option<String>,
    /// `Content-Type`.
    pub kind: Option<String>,
    /// `Content-Encoding`.
    pub coding: Option<String>,
    /// `Date`.
    pub date: Option<String>,
    /// The body, as it was sent.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No byte of the request has left.
    #[error("not sent")]
    Unsent(#[source] FetchError),
    /// Some of it may have.
    #[error("sent without an answer")]
    Unclear(#[source] FetchError),
}

/// Makes a call. `before` is asked once the server is reached, before the first byte of the request.
///
/// # Errors
/// [`CallError`]; an error of `before` is one of a request that was not sent.
pub async fn call(
    dialer: &Dialer,
    trust: &CallTrust,
    call: &HttpCall,
    before: impl FnOnce() -> io::Result<()>,
) -> Result<CallAnswer, CallError> {
    let until = rt::now() + call.limit;
    let late = || FetchError::Timeout { limit: call.limit };
    let reached = rt::timeout(call.limit, Box::pin(reach(dialer, trust, &call.url))).await;
    let stream = reached.unwrap_or_else(|_| Err(late())).map_err(CallError::Unsent)?;
    let request = request(call).map_err(CallError::Unsent)?;
    before().map_err(|error| CallError::Unsent(error.into()))?;
    let rest = until.saturating_duration_since(rt::now());
    let answer = rt::timeout(rest, Box::pin(exchange(stream, request, call.max))).await;
    answer.unwrap_or_else(|_| Err(late())).map_err(CallError::Unclear)
}

async fn reach(dialer: &Dialer, trust: &CallTrust, url: &WebUrl) -> Result<BoxStream<'static>, FetchError> {
    let stream = rt::Stream::from(dialer.dial(&url.target).await?);
    if !url.tls {
        return Ok(Box::new(stream));
    }
    let connector = match trust {
        CallTrust::Roots(roots) => TlsConnector::new(roots, &[b"http/1.1"])?,
        CallTrust::Pins([first, second]) => {
            TlsConnector::accepting(Accepts::Either(*first, *second), &[b"http/1.1"])?
        }
    };
    Ok(Box::new(Box::pin(connector.connect(&url.target.host, stream)).await?))
}

fn request(call: &HttpCall) -> Result<Request<Full<Bytes>>, FetchError> {
    let (method, body) = match &call.body {
        Some((_, body)) => (Method::POST, body.clone()),
        None => (Method::GET, Vec::new()),
    };
    let mut request = Request::builder().method(method).uri(&*call.url.path);
    request = request.header(HOST, &*call.url.authority).header(CONNECTION, "close");
    if let Some((kind, _)) = &call.body {
        request = request.header(CONTENT_TYPE, *kind);
    }
    for (name, value) in &call.headers {
        request = request.header(&**name, value.expose());
    }
    request.body(Full::new(Bytes::from(body))).map_err(|_| FetchError::Address)
}

async fn exchange(
    stream: BoxStream<'_>,
    request: Request<Full<Bytes>>,
    max: usize,
) -> Result<CallAnswer, FetchError> {
    let read = async |response: Response<Incoming>| {
        let answer = CallAnswer {
            status: response.status().as_u16(),
            version: field(&response, ETAG),
            kind: field(&response, CONTENT_TYPE),
            coding: field(&response, CONTENT_ENCODING),
            date: field(&response, DATE),
            body: Vec::new(),
        };
        let body = read_body(response.into_body(), max).await?.ok_or(FetchError::TooLong { max })?;
        Ok(CallAnswer { body, ..answer })
    };
    Box::pin(once(stream, request, read)).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};

    use adit_model::Dial;

    use super::*;
    use crate::rt::Cores;

    /// Takes one connection: what it has read goes out, then `answer`, then the end.
    fn server(answer: &'static str) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let heard = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{}") && !request.ends_with(b"\r\n\r\n{}") {
                let mut byte = [0];
                if !matches!(stream.read(&mut byte), Ok(1)) {
                    break;
                }
                request.push(byte[0]);
                // The hello of TLS ends otherwise.
                if request.len() == 5 && request[0] == 22 {
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).ok();
            String::from_utf8_lossy(&request).into_owned()
        });
        (at, heard)
    }

    fn ask(url: &str, before: impl Fn() -> io::Result<()>) -> Result<CallAnswer, CallError> {
        let call_of = HttpCall {
            url: WebUrl::parse(url).unwrap(),
            headers: vec![("X-Token".into(), Secret::new("t"))],
            body: Some(("application/json", b"{}".to_vec())),
            max: 100,
            limit: Duration::from_secs(1),
        };
        Cores::block_on(async {
            let dialer = Dialer::by_system(&Dial::default());
            call(&dialer, &CallTrust::Roots(Roots::System), &call_of, before).await
        })
        .unwrap()
    }

    #[test]
    fn an_answer_of_any_status_is_one() {
        let (at, heard) =
            server("HTTP/1.1 503 Busy\r\nETag: \"x\"\r\nDate: now\r\nContent-Length: 2\r\n\r\nno");
        let asked = Cell::new(0);
        let answer = ask(&format!("http://{at}/a?b=c"), || {
            asked.set(asked.get() + 1);
            Ok(())
        });
        let answer = answer.unwrap();
        assert_eq!(
            (answer.status, &*answer.body, answer.version.as_deref()),
            (503, &b"no"[..], Some("\"x\""))
        );
        let heard = heard.join().unwrap();
        assert!(heard.starts_with("POST /a?b=c HTTP/1.1\r\n") && heard.contains("X-Token: t\r\n"), "{heard}");
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn failures_are_told_apart_by_the_first_byte() {
        // Nobody listens: nothing was sent, and `before` was not asked.
        let at = adit_testkit::unused_addr();
        let error = ask(&format!("http://{at}/"), || panic!("it was asked")).unwrap_err();
        assert!(matches!(error, CallError::Unsent(_)), "{error:?}");
        // The server hangs up, answers half, or not at all.
        for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"] {
            let (at, heard) = server(answer);
            let error = ask(&format!("http://{at}/"), || Ok(())).unwrap_err();
            assert!(matches!(error, CallError::Unclear(_)), "{error:?}");
            heard.join().unwrap();
        }
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = ask(&format!("http://{}/", silent.local_addr().unwrap()), || Ok(())).unwrap_err();
        assert!(matches!(error, CallError::Unclear(FetchError::Timeout { .. })), "{error:?}");
        // The caller cannot write down that it is about to send.
        let error = ask(&format!("http://{}/", silent.local_addr().unwrap()), || {
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(matches!(error, Err(CallError::Unsent(_))));
        // No TLS: nothing of the request has left.
        let (at, _heard) = server("HTTP/1.1 400 Bad\r\n\r\n");
        let error = ask(&format!("https://{at}/"), || panic!("it was asked")).unwrap_err();
        assert!(matches!(error, CallError::Unsent(_)), "{error:?}");
    }
}
