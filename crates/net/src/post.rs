//! One request of HTTP or HTTPS with a body, as the parties of a rendezvous make it: the server that is connected to, and
//! that TLS names, may be another one than the request names (domain fronting).

use std::time::Duration;

use adit_model::WebUrl;
use adit_proto::wire::{Host, Target};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT_ENCODING, CONTENT_TYPE, HOST, LOCATION, USER_AGENT};
use hyper::{Method, Request};

use crate::dial::Dialer;
use crate::fetch::FetchError;
use crate::https::{field, once, read_body};
use crate::rt::{self, Stream};
use crate::tls::TlsConnector;
use crate::wire::BoxStream;

/// The name that Go's clients give.
const AGENT: &str = "Go-http-client/1.1";
/// The name of requests whose body has a kind.
const OWN_AGENT: &str = concat!("adit/", env!("CARGO_PKG_VERSION"));

/// A request.
#[derive(Debug, Clone)]
pub struct FrontedCall<'a> {
    /// The address that the request names.
    pub url: &'a WebUrl,
    /// The host that is connected to instead, with the port of the address's scheme.
    pub front: Option<&'a Host>,
    /// The body of a POST; nothing for a GET.
    pub body: Option<Vec<u8>>,
    /// The kind of the body, which makes the request one in adit's own name.
    pub kind: Option<&'static str>,
    /// The longest body of a response, in bytes.
    pub max: usize,
    /// Time for everything.
    pub limit: Duration,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontedReply {
    /// Its status and the words behind it.
    pub status: u16,
    /// Whether it names another address.
    pub has_location: bool,
    /// That address.
    pub location: Option<String>,
    /// The word that the next signed request needs (`Replay-Nonce`, RFC 8555).
    pub nonce: Option<String>,
    /// Its body.
    pub body: Vec<u8>,
}

impl FrontedCall<'_> {
    /// Makes the request over a connection of its own. Redirects are not followed, and no status is an error.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn make(self, dialer: &Dialer, connector: &TlsConnector) -> Result<FrontedReply, FetchError> {
        let (limit, target) = (self.limit, self.target());
        let make = async {
            let stream = Stream::from(dialer.dial(&target).await?);
            let stream: BoxStream<'_> = match self.url.tls {
                true => Box::new(Box::pin(connector.connect(&target.host, stream)).await?),
                false => Box::new(stream),
            };
            Box::pin(self.exchange(stream)).await
        };
        rt::timeout(limit, Box::pin(make)).await.unwrap_or(Err(FetchError::Timeout { limit }))
    }

    fn target(&self) -> Target {
        match self.front {
            None => self.url.target.clone(),
            Some(front) => Target { host: front.clone(), port: if self.url.tls { 443 } else { 80 } },
        }
    }

    async fn exchange(&self, stream: BoxStream<'_>) -> Result<FrontedReply, FetchError> {
        let method = if self.body.is_some() { Method::POST } else { Method::GET };
        let request = Request::builder()
            .method(method)
            .uri(&*self.url.path)
            .header(HOST, &*self.url.authority)
            .header(USER_AGENT, if self.kind.is_some() { OWN_AGENT } else { AGENT })
            .header(ACCEPT_ENCODING, "identity");
        let request = match self.kind {
            Some(kind) => request.header(CONTENT_TYPE, kind),
            None => request,
        };
        let request = request
            .body(Full::new(Bytes::from(self.body.clone().unwrap_or_default())))
            .map_err(|_| FetchError::Address)?;
        let max = self.max;
        once(stream, request, async |response| {
            let status = response.status().as_u16();
            let has_location = response.headers().contains_key(LOCATION);
            let [location, nonce] = ["location", "replay-nonce"].map(|name| field(&response, name));
            let body = read_body(response.into_body(), max).await?.ok_or(FetchError::TooLong { max })?;
            Ok(FrontedReply { status, has_location, location, nonce, body })
        })
        .await
    }
}
