//! The way of a client to a proxy: the broker takes its offer and brings the answer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::OsRng;
use adit_model::{SnowflakeClient, WebUrl};
use adit_net::dial::Dialer;
use adit_net::fetch::FetchError;
use adit_net::post::{FrontedCall, FrontedReply};
use adit_net::tls::{Roots, TlsConnector, TlsError};
use adit_proto::snowflake::MAX_MESSAGE_LEN;
use adit_proto::snowflake::amp;
use adit_proto::snowflake::messages::{ClientPoll, ClientReply, Fingerprint, Nat};
use adit_proto::wire::{Host, Rng as _};
use thiserror::Error;

use super::Voice;

/// Time for one exchange: a broker waits for the proxy's answer up to 10 s.
const LIMIT: Duration = Duration::from_secs(30);

/// Why a broker brought no answer.
#[derive(Debug, Error)]
pub(super) enum RendezvousError {
    /// There is no way to a broker among the settings.
    #[error("no broker: set url, or url and ampcache")]
    NoBroker,
    /// The way is one that does not exist here.
    #[error("rendezvous by SQS is not part of adit: use url with fronts, or ampcache")]
    Queue,
    /// The cache's address is wrong.
    #[error("{0}")]
    Amp(String),
    /// The broker was not reached.
    #[error("{0}")]
    Fetch(String),
    /// Its response is of no use.
    #[error("Unexpected error, no answer.")]
    Status,
    /// The broker says why.
    #[error("{0}")]
    Refused(String),
}

impl From<FetchError> for RendezvousError {
    fn from(error: FetchError) -> Self {
        let mut text = error.to_string();
        let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Self::Fetch(text)
    }
}

/// A way to a broker.
pub(super) struct Rendezvous {
    settings: Rc<SnowflakeClient>,
    voice: Rc<dyn Voice>,
    dialer: Dialer,
    connector: TlsConnector,
    nat: Cell<Nat>,
    /// A claim to be reachable has not led to a connection.
    is_humble: Cell<bool>,
    /// The broker knows the older words for NATs alone.
    is_old: Cell<bool>,
}

impl Rendezvous {
    pub(super) fn new(
        settings: Rc<SnowflakeClient>,
        voice: Rc<dyn Voice>,
        dialer: Dialer,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            dialer,
            connector: TlsConnector::new(&Roots::System, &[b"http/1.1"])?.naming(!settings.hides_name),
            settings,
            voice,
            nat: Cell::new(Nat::Unknown),
            is_humble: Cell::new(false),
            is_old: Cell::new(false),
        })
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(super) fn set_nat(&self, nat: Nat) {
        self.nat.set(nat);
    }

    /// A connection that the broker has arranged did not come about.
    pub(super) fn note_failure(&self) {
        self.is_humble.set(true);
    }

    /// The kind of NAT that the broker is told. One that is not known is taken for an open one first, since brokers
    /// give unknown clients the scarcest proxies.
    fn claim(&self) -> Nat {
        match self.nat.get() {
            Nat::Unknown if !self.is_humble.get() => Nat::Unrestricted,
            Nat::Open => Nat::Unrestricted,
            Nat::Strict => Nat::Restricted,
            Nat::Moderate if self.is_old.get() => Nat::Restricted,
            nat @ (Nat::Unknown | Nat::Restricted | Nat::Unrestricted | Nat::Moderate) => nat,
        }
    }

    /// Sends an offer, as the text of a description, and returns the answer's.
    pub(super) async fn exchange(&self, offer: &str) -> Result<String, RendezvousError> {
        if self.settings.wants_queue {
            return Err(RendezvousError::Queue);
        }
        let broker = self.settings.broker.as_ref().ok_or(RendezvousError::NoBroker)?;
        loop {
            let nat = self.claim();
            let usual = || Fingerprint::parse(Fingerprint::DEFAULT).expect("forty digits");
            let fingerprint = self.settings.fingerprint.unwrap_or_else(usual);
            let poll = ClientPoll { offer: offer.to_owned(), nat, fingerprint }.emit();
            let reply = match &self.settings.amp_cache {
                None => self.ask(broker, poll).await?,
                Some(cache) => self.ask_cache(broker, cache, poll).await?,
            };
            let text = String::from_utf8_lossy(&reply);
            self.voice.log(format_args!("Received answer: {text}"));
            return match ClientReply::parse(&reply) {
                Ok(ClientReply::Answer(answer)) => Ok(answer),
                Ok(ClientReply::Error(why)) if why == "invalid NAT type" && !self.is_old.replace(true) => {
                    continue;
                }
                Ok(ClientReply::Error(why)) => Err(RendezvousError::Refused(why)),
                Err(error) => Err(RendezvousError::Refused(error.to_string())),
            };
        }
    }

    fn front(&self) -> Option<&Host> {
        let fronts = &self.settings.fronts;
        let count = u32::try_from(fronts.len()).ok().filter(|count| *count > 0)?;
        fronts.get(usize::try_from(OsRng.below(count)).ok()?)
    }

    async fn ask(&self, broker: &WebUrl, poll: String) -> Result<Vec<u8>, RendezvousError> {
        self.voice.log(format_args!("Negotiating via HTTP rendezvous..."));
        let url = broker.join("client").map_err(|error| RendezvousError::Fetch(error.to_string()))?;
        let reply = self.call(&url, Some(poll.into_bytes())).await?;
        self.voice.log(format_args!("HTTP rendezvous response: {}", words(reply.status)));
        if reply.status != 200 {
            return Err(RendezvousError::Status);
        }
        Ok(reply.body)
    }

    async fn ask_cache(
        &self,
        broker: &WebUrl,
        cache: &str,
        poll: String,
    ) -> Result<Vec<u8>, RendezvousError> {
        self.voice.log(format_args!("Negotiating via AMP cache rendezvous..."));
        let wrong = |error: &dyn std::fmt::Display| RendezvousError::Amp(error.to_string());
        let mut random = [0; 9];
        OsRng.fill(&mut random);
        let path = format!("amp/client/{}", amp::emit_path(&random, poll.as_bytes()));
        let url = broker.join(&path).map_err(|error| wrong(&error))?;
        let scheme = if url.tls { "https" } else { "http" };
        let plain = format!("{scheme}://{}{}", url.authority, url.path);
        let url = if cache.is_empty() {
            plain
        } else {
            amp::cache_url(&plain, cache).map_err(|error| wrong(&error))?
        };
        let url = WebUrl::parse(&url).map_err(|error| wrong(&error))?;
        let reply = self.call(&url, None).await?;
        self.voice.log(format_args!("AMP cache rendezvous response: {}", words(reply.status)));
        if reply.status != 200 || reply.has_location {
            return Err(RendezvousError::Status);
        }
        amp::parse_document(&String::from_utf8_lossy(&reply.body)).map_err(|error| wrong(&error))
    }

    async fn call(&self, url: &WebUrl, body: Option<Vec<u8>>) -> Result<FrontedReply, RendezvousError> {
        let front = self.front();
        self.voice.log(format_args!("Target URL:  {}", url.authority));
        let named = front.map(ToString::to_string).unwrap_or_default();
        self.voice.log(format_args!("Front URL:   {named}"));
        let call = FrontedCall { url, front, body, kind: None, max: MAX_MESSAGE_LEN, limit: LIMIT };
        Ok(Box::pin(call.make(&self.dialer, &self.connector)).await?)
    }
}

/// A status as Go prints it.
fn words(status: u16) -> String {
    let text = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    };
    format!("{status} {text}").trim_end().to_owned()
}
