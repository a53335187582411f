//! Small documents over HTTP and HTTPS.

use std::io;
use std::time::Duration;

use adit_model::{Secret, UrlError, WebUrl};
use adit_proto::wire::Target;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONNECTION, HOST, LOCATION};
use hyper::{Request, Response};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::dial::{DialError, Dialer};
use crate::https::{field, once, read_body};
use crate::rt::{self, Stream};
use crate::tls::{Roots, TlsConnector, TlsError};
use crate::wire::BoxStream;

/// Redirects that are followed, at most.
const MAX_REDIRECTS: usize = 4;
/// The types of documents that are asked for.
const TYPES: &str = "application/json, */*;q=0.1";

/// Why there is no document. It never shows the address, which may hold a token.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The server cannot be reached.
    #[error("no connection")]
    Dial(#[from] DialError),
    /// The connection broke.
    #[error("connection broke")]
    Socket(#[from] io::Error),
    /// There is no TLS connection.
    #[error("no TLS connection")]
    Tls(#[from] TlsError),
    /// The answer is not HTTP, or is cut short.
    #[error("bad answer")]
    Http(#[from] hyper::Error),
    /// The address holds what cannot stand in a request.
    #[error("the address cannot be asked for")]
    Address,
    /// The answer is an error.
    #[error("the server answered with status {0}")]
    Status(u16),
    /// The answer is a redirect to where nothing can be fetched from.
    #[error("the server redirects to a bad address")]
    Redirect(#[source] Option<UrlError>),
    /// The answer is a redirect from https to http.
    #[error("the server redirects from https to http, which is not followed")]
    Downgrade,
    /// The server redirects from one place to the next.
    #[error("more than {MAX_REDIRECTS} redirects")]
    Redirects,
    /// The document is longer than it may be.
    #[error("longer than {max} bytes")]
    TooLong {
        /// Longest allowed length in bytes.
        max: usize,
    },
    /// Time ran out.
    #[error("not there after {limit:?}")]
    Timeout {
        /// Time that has been waited.
        limit: Duration,
    },
}

/// Fetches `url`: at most `max` bytes, within `limit` for everything, redirects included.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(
    dialer: &Dialer,
    roots: &Roots,
    url: &WebUrl,
    max: usize,
    limit: Duration,
) -> Result<Vec<u8>, FetchError> {
    let connect = async |target: &Target| Ok(Stream::from(dialer.dial(target).await?));
    Box::pin(fetch_through(connect, roots, url, max, limit)).await
}

/// As [`fetch`], with fields of the request and of its response; `None` if the document is still the version that a field
/// `If-None-Match` names.
///
/// # Errors
/// [`FetchError`].
pub async fn download(
    dialer: &Dialer,
    roots: &Roots,
    wanted: &Wanted,
) -> Result<Option<Document>, FetchError> {
    let connect = async |target: &Target| Ok(Stream::from(dialer.dial(target).await?));
    Box::pin(download_through(connect, roots, wanted)).await
}

/// As [`fetch`], over the streams that `connect` opens to a target. They need not be `Send`.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch_through<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl AsyncFn(&Target) -> Result<S, FetchError>,
    roots: &Roots,
    url: &WebUrl,
    max: usize,
    limit: Duration,
) -> Result<Vec<u8>, FetchError> {
    let wanted = Wanted { url: url.clone(), headers: Vec::new(), max, limit };
    let document = Box::pin(download_through(connect, roots, &wanted)).await?;
    document.map(|document| document.bytes).ok_or(FetchError::Status(304))
}

/// A document that is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its address.
    pub url: WebUrl,
    /// Fields of the request. They go to the server of `url` alone, and to no other one that it redirects to. A name that
    /// is sent anyway is sent as it is here.
    pub headers: Vec<(Box<str>, Secret)>,
    /// Its longest length in bytes.
    pub max: usize,
    /// Time for everything, redirects included.
    pub limit: Duration,
}

/// A document with the fields of its response that somebody asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// The document.
    pub bytes: Vec<u8>,
    /// `ETag`: the version of the document.
    pub version: Option<String>,
    /// `Subscription-Userinfo`: traffic of the subscriber.
    pub usage: Option<String>,
}

/// Fetches a document over the streams that `connect` opens to a target; `None` if it is still the version that a field
/// `If-None-Match` names.
///
/// # Errors
/// [`FetchError`].
pub async fn download_through<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl AsyncFn(&Target) -> Result<S, FetchError>,
    roots: &Roots,
    wanted: &Wanted,
) -> Result<Option<Document>, FetchError> {
    let fetch = async {
        let mut url = wanted.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let is_own = url.tls >= wanted.url.tls && url.authority == wanted.url.authority;
            let headers = if is_own { &*wanted.headers } else { &[] };
            let stream = connect(&url.target).await?;
            let stream: BoxStream<'_> = if url.tls {
                let connector = TlsConnector::new(roots, &[b"http/1.1"])?;
                Box::new(Box::pin(connector.connect(&url.target.host, stream)).await?)
            } else {
                Box::new(stream)
            };
            let answer = Box::pin(exchange(stream, &url, headers, wanted.max)).await?;
            match answer {
                Answer::Document(document) => return Ok(Some(document)),
                Answer::Unchanged => return Ok(None),
                Answer::Elsewhere(other) if url.tls && !other.tls => return Err(FetchError::Downgrade),
                Answer::Elsewhere(other) => url = other,
            }
        }
        Err(FetchError::Redirects)
    };
    rt::timeout(wanted.limit, fetch).await.unwrap_or(Err(FetchError::Timeout { limit: wanted.limit }))
}

enum Answer {
    Document(Document),
    Unchanged,
    Elsewhere(WebUrl),
}

/// One request and its answer. The connection ends with it.
async fn exchange(
    stream: BoxStream<'_>,
    url: &WebUrl,
    headers: &[(Box<str>, Secret)],
    max: usize,
) -> Result<Answer, FetchError> {
    let is_given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    let own = [(ACCEPT, TYPES), (ACCEPT_ENCODING, "identity"), (CONNECTION, "close")];
    let mut request = Request::get(&*url.path).header(HOST, &*url.authority);
    for (name, value) in own.into_iter().filter(|(name, _)| !is_given(name.as_str())) {
        request = request.header(name, value);
    }
    for (name, value) in headers {
        request = request.header(&**name, value.expose());
    }
    let request = request.body(Full::<Bytes>::default()).map_err(|_| FetchError::Address)?;
    Box::pin(once(stream, request, async |response| read(response, url, max).await)).await
}

async fn read(response: Response<Incoming>, url: &WebUrl, max: usize) -> Result<Answer, FetchError> {
    match response.status().as_u16() {
        200 => {}
        304 => return Ok(Answer::Unchanged),
        301 | 302 | 303 | 307 | 308 => {
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = url.join(to.ok_or(FetchError::Redirect(None))?);
            return Ok(Answer::Elsewhere(to.map_err(|error| FetchError::Redirect(Some(error)))?));
        }
        status => return Err(FetchError::Status(status)),
    }
    let (version, usage) = (field(&response, "etag"), field(&response, "subscription-userinfo"));
    let bytes = read_body(response.into_body(), max).await?.ok_or(FetchError::TooLong { max })?;
    Ok(Answer::Document(Document { bytes, version, usage }))
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Arc;
    use std::thread;

    use adit_model::Dial;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;
    use crate::rt::Cores;
    use crate::tls::tests::{Authority, NOW};

    /// Answers the connections one after the other, over TLS if there is a configuration for it.
    fn server(answers: Vec<String>, tls: Option<Arc<ServerConfig>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (answer, stream) in answers.into_iter().zip(listener.incoming()) {
                let stream = stream.unwrap();
                let answer = answer.replace("HERE", &at.to_string());
                match &tls {
                    None => serve(stream, &answer),
                    Some(tls) => {
                        let session = ServerConnection::new(Arc::clone(tls)).unwrap();
                        serve(StreamOwned::new(session, stream), &answer);
                    }
                }
            }
        });
        at
    }

    /// Answers a request, or the first byte of something else. A client that refuses the certificate asks for nothing.
    fn serve(mut stream: impl Read + Write, answer: &str) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return;
            }
            request.push(byte[0]);
            if !request.starts_with(b"G") {
                break;
            }
        }
        stream.write_all(answer.as_bytes()).ok();
    }

    fn get_url(url: &str, roots: &Roots) -> Result<String, String> {
        let url = WebUrl::parse(url).unwrap();
        let fetched = Cores::block_on(async {
            let dialer = Dialer::by_system(&Dial::default());
            fetch(&dialer, roots, &url, 100, Duration::from_secs(20)).await
        });
        let fetched = fetched.unwrap().map(|bytes| String::from_utf8(bytes).unwrap());
        fetched.map_err(|error| {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            assert!(!text.contains("hunter2"), "{text}");
            text
        })
    }

    fn check(answers: &[&str], got: Result<String, String>, want: Result<&str, &str>) {
        match want {
            Ok(want) => assert_eq!(got.as_deref(), Ok(want), "{answers:?}"),
            Err(want) => {
                assert!(got.as_ref().is_err_and(|got| got.starts_with(want)), "{answers:?}: {got:?}");
            }
        }
    }

    fn strings(answers: &[&str]) -> Vec<String> {
        answers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn answers() {
        let long = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(101));
        let endless =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", "1\r\nx\r\n".repeat(200));
        let head = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(crate::https::MAX_HEAD_LEN));
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
            (vec![again; 6], Err("more than 4 redirects")),
            (
                vec!["HTTP/1.1 302 Found\r\nLocation: ftp://HERE/y\r\n\r\n"],
                Err("the server redirects to a bad address: the address must begin with"),
            ),
            (vec!["HTTP/1.1 302 Found\r\n\r\n"], Err("the server redirects to a bad address")),
            (vec!["HTTP/1.1 404 Not Found\r\n\r\n"], Err("the server answered with status 404")),
            (vec!["HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n"], Err("longer than 100 bytes")),
            (vec![&long], Err("longer than 100 bytes")),
            (vec![&endless], Err("longer than 100 bytes")),
            (vec![&head], Err("bad answer: ")),
            (vec!["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok"], Err("bad answer: ")),
            (
                vec!["HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok"],
                Err("bad answer: "),
            ),
            (vec![""], Err("bad answer: ")),
            (vec!["SSH-2.0-OpenSSH\r\n\r\n"], Err("bad answer: ")),
        ] {
            let at = server(strings(&answers), None);
            check(&answers, get_url(&format!("http://{at}/list?token=hunter2"), &Roots::System), want);
        }
    }

    #[test]
    fn answers_over_tls() {
        let (ours, other) = (Authority::new("ours"), Authority::new("other"));
        let good = ours.server("127.0.0.1", NOW);
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for (answers, tls, want) in [
            (vec![ok], Some(&good), Ok("ok")),
            (vec!["HTTP/1.1 302 Found\r\nLocation: /y\r\n\r\n", ok], Some(&good), Ok("ok")),
            (
                vec!["HTTP/1.1 302 Found\r\nLocation: http://HERE/y\r\n\r\n", ok],
                Some(&good),
                Err("the server redirects from https to http"),
            ),
            // Without the alert at the end somebody else may have cut the document.
            (vec!["HTTP/1.1 200 OK\r\n\r\nok"], Some(&good), Err("bad answer: ")),
            (
                vec![ok],
                Some(&other.server("127.0.0.1", NOW)),
                Err("no TLS connection: the server's certificate has an"),
            ),
            (
                vec![ok],
                Some(&ours.server("a.example", NOW)),
                Err("no TLS connection: the server's certificate is for"),
            ),
            (vec![ok], None, Err("no TLS connection: the server does not speak TLS")),
        ] {
            let at = server(strings(&answers), tls.cloned());
            check(&answers, get_url(&format!("https://{at}/list?token=hunter2"), &ours.roots()), want);
        }
        // From http to https is followed.
        let at = server(strings(&[ok]), Some(good));
        let to = format!("HTTP/1.1 302 Found\r\nLocation: https://{at}/y\r\n\r\n");
        let first = server(vec![to], None);
        assert_eq!(get_url(&format!("http://{first}/"), &ours.roots()).as_deref(), Ok("ok"));
    }

    #[test]
    fn servers_that_cannot_be_reached() {
        let at = adit_testkit::unused_addr();
        let error = get_url(&format!("https://{at}/"), &Roots::System).unwrap_err();
        assert!(error.starts_with("no connection: ") && error.contains("refused"), "{error}");
        let error = get_url("https://no-such-name.invalid/", &Roots::System).unwrap_err();
        assert!(error.starts_with("no connection: cannot resolve the name"), "{error}");
    }

    #[test]
    fn time_runs_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for scheme in ["http", "https"] {
            let url = WebUrl::parse(&format!("{scheme}://{}", listener.local_addr().unwrap())).unwrap();
            let fetched = Cores::block_on(async {
                let dialer = Dialer::by_system(&Dial::default());
                fetch(&dialer, &Roots::System, &url, 100, Duration::from_millis(50)).await
            });
            assert!(matches!(fetched.unwrap(), Err(FetchError::Timeout { .. })));
        }
    }
}
