//! The proxy: it takes clients from the broker and connects each to a relay.

mod nat;
mod pipe;
mod relay_url;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::OsRng;
use adit_model::{Dial, SnowflakeProxy, WebUrl};
use adit_net::dial::Dialer;
use adit_net::post::FrontedCall;
use adit_net::reach::Reach;
use adit_net::rt;
use adit_net::rtc::{Connection, Gathering, Relay, is_hidden};
use adit_net::tls::{Roots, TlsConnector, TlsError};
use adit_proto::rtc::{PeerRole, PeerSettings, sdp};
use adit_proto::snowflake::MAX_MESSAGE_LEN;
use adit_proto::snowflake::description::{DescriptionKind, SessionDescription};
use adit_proto::snowflake::messages::{
    AnswerReply, Nat, PollReply, PollStatus, ProxyAnswer, ProxyPoll, ProxyType,
};
use adit_proto::wire::Rng as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use self::relay_url::{relay_url, with_client};
use super::waiter::Waiter;
use super::{ProxyMetrics, Voice};

/// Time for one request to the broker, which holds a poll for 10 s.
const REQUEST: Duration = Duration::from_secs(30);
/// An answer leaves after this, even if gathering is not finished.
const GATHER: Duration = Duration::from_millis(3_750);
/// Time for a client's channel to open.
const OPEN: Duration = Duration::from_secs(20);
/// Time for a relay to be connected to.
const RELAY: Duration = Duration::from_secs(15);
/// The shortest pause between polls.
const FLOOR: Duration = Duration::from_secs(1);
/// Polls that wait at the broker at one time.
const MAX_POLLS: usize = 4;
/// Clients whose channel is not open yet.
const MAX_HALF_OPEN: usize = 256;
/// First and last pause between two attempts to reach the relay at the start.
const RETRY: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(86_400));

/// Descriptors that a client may take: a WebSocket, and a socket for each address of the machine.
const DESCRIPTORS: u64 = 8;

/// The number of clients that there are descriptors for: anybody may be one.
fn most_clients() -> usize {
    let limit = adit_net::fd_limit().map_or(1024, |(soft, _)| soft);
    usize::try_from(limit / DESCRIPTORS).unwrap_or(usize::MAX).max(1)
}

/// A running proxy.
struct Proxy {
    settings: SnowflakeProxy,
    voice: Rc<dyn Voice>,
    metrics: Rc<ProxyMetrics>,
    dialer: Dialer,
    connector: TlsConnector,
    stun: RefCell<Vec<SocketAddr>>,
    nat: Cell<Nat>,
    /// The broker knows the older words for NATs alone.
    is_old: Cell<bool>,
    interval: Cell<Duration>,
    clients: Cell<usize>,
    half_open: Cell<usize>,
    polls: Cell<usize>,
    /// A place has become free.
    freed: Waiter,
}

/// Runs a proxy, for ever.
///
/// # Errors
/// When the system's list of authorities cannot be read.
pub async fn run_snowflake_proxy(
    settings: SnowflakeProxy,
    metrics: Rc<ProxyMetrics>,
    voice: Rc<dyn Voice>,
) -> Result<(), TlsError> {
    let proxy = Rc::new(Proxy {
        dialer: Dialer::by_system(&Dial::default()),
        connector: TlsConnector::new(&Roots::System, &[b"http/1.1"])?,
        nat: Cell::new(settings.nat.unwrap_or_default()),
        interval: Cell::new(settings.poll_interval),
        settings,
        voice,
        metrics,
        stun: RefCell::default(),
        is_old: Cell::new(false),
        clients: Cell::new(0),
        half_open: Cell::new(0),
        polls: Cell::new(0),
        freed: Waiter::default(),
    });
    proxy.say(format_args!("Proxy starting"));
    if proxy.settings.mimics_dtls {
        proxy.voice.event(format_args!("covertdtls-config is not obeyed: the DTLS hello is adit's own"));
    }
    proxy.find_stun().await;
    proxy.find_nat().await;
    rt::spawn_local(proxy.clone().retest());
    rt::spawn_local(proxy.clone().summarise());
    proxy.reach_relay().await;
    proxy.poll().await;
    Ok(())
}

impl Proxy {
    fn say(&self, line: std::fmt::Arguments<'_>) {
        self.voice.log(line);
    }

    async fn find_stun(&self) {
        let mut found = Vec::new();
        for server in &self.settings.stun {
            match self.dialer.resolve(server).await {
                Ok(addresses) => found.extend(addresses),
                Err(error) => self.say(format_args!("stun:{server}: {error}")),
            }
        }
        *self.stun.borrow_mut() = found;
    }

    /// Waits until the relay can be reached: clients of a proxy that cannot reach it would wait in vain.
    async fn reach_relay(&self) {
        let mut pause = RETRY.0;
        loop {
            let why = match self.open_own_relay().await {
                Ok(relay) => {
                    self.say(format_args!("connected to relay: {}", self.settings.relay));
                    return relay.close().await;
                }
                Err(why) => why,
            };
            let (relay, text) = (&self.settings.relay, super::go_duration(pause));
            self.voice.event(format_args!("cannot reach the relay {relay}: {why}; trying again in {text}"));
            rt::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    async fn open_own_relay(&self) -> Result<Relay, String> {
        let url = relay_url(&self.settings.relay).map_err(|error| error.to_string())?;
        let opened = Relay::open(&self.dialer, &self.connector, &url, Reach::Anywhere, RELAY).await;
        opened.map_err(|error| error.to_string())
    }

    async fn summarise(self: Rc<Self>) {
        let Some(period) = self.settings.summary else { return };
        loop {
            rt::sleep(period).await;
            self.voice.event(format_args!("{}", self.metrics.summarise(period)));
        }
    }

    /// Polls by the clock: a poll may wait at the broker while the next one begins.
    async fn poll(self: Rc<Self>) {
        loop {
            let began_at = rt::now();
            while self.is_full() {
                self.freed.wait().await;
            }
            self.polls.set(self.polls.get() + 1);
            let proxy = self.clone();
            rt::spawn_local(async move {
                Box::pin(proxy.clone().serve_one()).await;
            });
            // The interval may change while the poll waits.
            while rt::now() < began_at + self.interval.get().max(FLOOR) {
                let end = began_at + self.interval.get().max(FLOOR);
                rt::sleep_until(end.min(rt::now() + FLOOR)).await;
            }
        }
    }

    fn is_full(&self) -> bool {
        let taken = self.clients.get() + self.polls.get();
        let is_at_capacity = taken >= self.settings.capacity.unwrap_or(usize::MAX).min(most_clients());
        is_at_capacity || self.polls.get() >= MAX_POLLS || self.half_open.get() >= MAX_HALF_OPEN
    }

    /// One poll, and the client that it brings.
    async fn serve_one(self: Rc<Self>) {
        let offer = Box::pin(self.ask_for_client()).await;
        self.polls.set(self.polls.get() - 1);
        // The poll has ended, although its client may stay for hours.
        self.freed.wake();
        if let Some((sid, reply)) = offer {
            self.clients.set(self.clients.get() + 1);
            self.half_open.set(self.half_open.get() + 1);
            let place = Place(self.clone(), true);
            if let Err(why) = Box::pin(self.serve_client(&sid, reply, place)).await {
                self.say(format_args!("{why}"));
            }
        }
        self.freed.wake();
    }

    /// The kind of NAT in words that every broker knows; but `moderate`, which old ones refuse.
    fn claim(&self) -> Nat {
        match self.nat.get() {
            Nat::Open => Nat::Unrestricted,
            Nat::Strict => Nat::Restricted,
            Nat::Moderate if self.is_old.get() => Nat::Restricted,
            nat @ (Nat::Unknown | Nat::Restricted | Nat::Unrestricted | Nat::Moderate) => nat,
        }
    }

    async fn post(&self, path: &str, body: String) -> Result<(u16, Vec<u8>), String> {
        let url = self.settings.broker.join(path).map_err(|error| error.to_string())?;
        self.post_to(&url, body, REQUEST).await
    }

    async fn post_to(&self, url: &WebUrl, body: String, limit: Duration) -> Result<(u16, Vec<u8>), String> {
        let call = FrontedCall {
            url,
            front: None,
            body: Some(body.into_bytes()),
            kind: None,
            max: MAX_MESSAGE_LEN,
            limit,
        };
        let reply = Box::pin(call.make(&self.dialer, &self.connector)).await;
        let reply = reply.map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        })?;
        Ok((reply.status, reply.body))
    }

    async fn ask_for_client(&self) -> Option<(String, PollReply)> {
        let mut name = [0; 16];
        OsRng.fill(&mut name);
        let sid = STANDARD_NO_PAD.encode(name);
        let clients = i64::try_from(self.clients.get() / 8 * 8).unwrap_or(i64::MAX);
        let poll = ProxyPoll {
            sid: sid.clone(),
            kind: ProxyType::Standalone,
            nat: self.claim(),
            clients,
            pattern: Some(self.settings.pattern_text.to_string()),
        };
        let body = match self.post("proxy", poll.emit()).await {
            Ok((200, body)) => body,
            Ok((400, _)) if poll.nat == Nat::Moderate => {
                self.is_old.set(true);
                return None;
            }
            Ok((status, _)) => {
                self.say(format_args!("Error polling broker: remote returned status code {status}"));
                return None;
            }
            Err(why) => {
                self.say(format_args!("Error polling broker: {why}"));
                return None;
            }
        };
        let reply = match PollReply::parse(&body) {
            Ok(reply) => reply,
            Err(error) => {
                self.say(format_args!("Error reading broker response: {error}"));
                return None;
            }
        };
        let next = u64::try_from(reply.next_poll_ms).ok().filter(|next| *next > 0);
        let next = next.map_or(self.settings.poll_interval, Duration::from_millis);
        if self.interval.replace(next.min(RETRY.1)) != next {
            self.say(format_args!("Poll interval set to {}", super::go_duration(next)));
        }
        (reply.status == PollStatus::Match).then_some((sid, reply))
    }

    /// The relay that the broker wants, if it is allowed.
    fn check_relay(&self, relay: &str) -> Result<(WebUrl, Reach), String> {
        if relay.is_empty() {
            return Ok((
                relay_url(&self.settings.relay).map_err(|error| error.to_string())?,
                Reach::Anywhere,
            ));
        }
        relay_url::check(relay, &self.settings)
    }

    /// Serves one client until it leaves.
    async fn serve_client(&self, sid: &str, reply: PollReply, mut place: Place) -> Result<(), String> {
        self.say(format_args!("Received Offer From Broker: "));
        let (url, reach) = self
            .check_relay(&reply.relay)
            .map_err(|why| format!("bad offer from broker: the relay is refused: {why}"))?;
        let bad = |error: &dyn std::fmt::Display| format!("bad offer from broker: {error}");
        let offer = SessionDescription::parse(&reply.offer).map_err(|error| bad(&error))?;
        if offer.kind != DescriptionKind::Offer {
            return Err(bad(&"the offer is none"));
        }
        let remote = sdp::SdpDescription::parse(&offer.sdp).map_err(|error| bad(&error))?;
        self.say(format_args!("Generating answer..."));
        let connection = Box::pin(self.connect(PeerRole::Answerer, "", GATHER)).await?;
        connection.start(&remote).map_err(|error| bad(&error))?;
        let answer = SessionDescription { kind: DescriptionKind::Answer, sdp: connection.describe() }.emit();
        let answer = ProxyAnswer { sid: sid.to_owned(), answer };
        let (status, body) = self.post("answer", answer.emit()).await?;
        match (status, AnswerReply::parse(&body)) {
            (200, Ok(AnswerReply::Success)) => {}
            (200, Ok(AnswerReply::ClientGone)) => {
                return Err("error sending answer to client through broker: client gone".to_owned());
            }
            (status, _) => {
                return Err(format!("error sending answer to client through broker: status {status}"));
            }
        }
        if let Err(error) = connection.opened(OPEN).await {
            self.metrics.add_timeout();
            return Err(format!("Timed out waiting for client to open data channel: {error}"));
        }
        place.opened();
        self.say(format_args!("Connection successful"));
        self.metrics.add_connection();
        let client = connection.remote_addr().map(|addr| addr.ip()).filter(|ip| !is_hidden(*ip));
        let client =
            client.or_else(|| remote.candidates.iter().map(|c| c.addr.ip()).find(|ip| !is_hidden(*ip)));
        if client.is_none() {
            self.say(format_args!("no remote address given in websocket"));
        }
        let url = with_client(&url, client);
        let relay = Relay::open(&self.dialer, &self.connector, &url, reach, RELAY).await;
        let relay = relay.map_err(|error| format!("error dialing relay: {error}"))?;
        self.say(format_args!("Connected to relay: {}", url.authority));
        pipe::run(connection, relay, &self.metrics, &*self.voice).await;
        self.say(format_args!("datachannelHandler ends"));
        Ok(())
    }

    async fn connect(&self, role: PeerRole, label: &str, limit: Duration) -> Result<Connection, String> {
        let gathering = Gathering {
            stun: self.stun.borrow().clone(),
            keep_local: self.settings.keep_local,
            ports: self.settings.ports.clone(),
            outbound: self.settings.outbound,
            limit,
            ..Gathering::default()
        };
        let allows_private = self.settings.keep_local || self.settings.allows_private;
        let settings = PeerSettings { allows_private, ..PeerSettings::default() };
        let made = Box::pin(Connection::new(role, &gathering, settings, label, &mut OsRng)).await;
        made.map_err(|error| error.to_string())
    }

    async fn retest(self: Rc<Self>) {
        let Some(pause) = self.settings.retest else { return };
        loop {
            rt::sleep(pause).await;
            self.find_stun().await;
            self.find_nat().await;
        }
    }
}

/// The place of a client: its second part is whether its channel is not open yet.
struct Place(Rc<Proxy>, bool);

impl Place {
    fn opened(&mut self) {
        if std::mem::take(&mut self.1) {
            self.0.half_open.set(self.0.half_open.get() - 1);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.opened();
        self.0.clients.set(self.0.clients.get() - 1);
        self.0.freed.wake();
    }
}
