//! The broker: it hands a client's offer to a proxy, and the proxy's answer back.
//!
//! ```text
//! proxy  POST /proxy ──▶ waits in a pool, 10 s ◀── takes one out ── POST /client  client
//!        ◀── offer                                                  waits, 5 s (old: 10 s)
//!        POST /answer ──────────────────────────────────────────▶   ◀── answer
//! ```
//!
//! It runs on one event loop, without locks. A proxy whose connection ends leaves its pool at once.

mod bridges;
mod country;
mod limit;
mod pools;
mod source;
mod stats;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_model::SnowflakeBroker;
use adit_net::files;
use adit_net::rt::{self, Cores};
use adit_net::service::{ServiceRequest, ServiceResponse};
use adit_proto::snowflake::description::SessionDescription;
use adit_proto::snowflake::json::Object;
use adit_proto::snowflake::messages::{
    AnswerReply, ClientPoll, ClientReply, NO_PROXIES, Nat, PollReply, PollStatus, ProxyAnswer, ProxyPoll,
    ProxyType, TIMED_OUT, UNKNOWN_BRIDGE,
};
use adit_proto::snowflake::pattern::RelayPattern;
use adit_proto::snowflake::{Scheme, amp};

use self::bridges::Bridges;
use self::country::Countries;
use self::limit::{PollLimit, Veil};
use self::pools::{Offer, PoolName, Pools, WaitingProxy};
use self::stats::{ClientEnd, PERIOD_S, RendezvousMethod, Stats};
use super::SnowflakeError;
use super::serving::{NextProcess, SnowflakeService};

/// Time that a proxy's poll is held.
const PROXY_TIME: Duration = Duration::from_secs(10);
/// The wait that a refused proxy is told, in milliseconds.
const LONGEST_WAIT_MS: i64 = 3_600_000;
/// Bytes from the end of the metrics log that `/metrics` shows, at most.
const MAX_LOG: u64 = 16 << 20;
/// Time that open polls have when the process is told to stop.
const DRAIN: Duration = Duration::from_secs(15);
/// Fields that let pages of any origin ask.
const CORS: [(&str, &str); 2] =
    [("access-control-allow-headers", "Origin, X-Session-ID"), ("access-control-allow-origin", "*")];

/// Fuzz target: `data` as each of the files that a broker reads.
#[doc(hidden)]
pub fn fuzz_snowflake_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(bridges) = Bridges::parse(&text) {
        assert!(bridges.len() <= text.lines().count());
    }
    country::fuzz(&text);
    drop(intervals_of(data));
}

/// A broker.
#[derive(Debug)]
pub struct Broker {
    settings: SnowflakeBroker,
    pattern: RelayPattern,
    bridges: RefCell<Bridges>,
    pools: RefCell<Pools>,
    limits: RefCell<[PollLimit; 3]>,
    veil: Veil,
    stats: RefCell<Stats>,
}

impl Broker {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// [`SnowflakeError::File`] for a list of bridges or a table of countries that cannot be used. Poll intervals that
    /// cannot be read leave the usual ones, with a log line.
    pub fn new(settings: &SnowflakeBroker) -> Result<Self, SnowflakeError> {
        let broker = Self {
            pattern: RelayPattern::parse(&settings.pattern),
            bridges: RefCell::default(),
            pools: RefCell::new(Pools::new(settings.scheme)),
            limits: RefCell::default(),
            veil: Veil::default(),
            stats: RefCell::default(),
            settings: settings.clone(),
        };
        broker.read_bridges()?;
        broker.read_countries()?;
        broker.read_intervals();
        Ok(broker)
    }

    fn read_bridges(&self) -> Result<(), SnowflakeError> {
        let Some(path) = &self.settings.bridges else { return Ok(()) };
        let text = files::read_text(path, MAX_FILE).map_err(|error| error.to_string());
        let bridges = text.and_then(|text| Bridges::parse(&text)).map_err(|problem| at(path, problem))?;
        tracing::info!(bridges = bridges.len(), "list of bridges loaded");
        *self.bridges.borrow_mut() = bridges;
        Ok(())
    }

    fn read_countries(&self) -> Result<(), SnowflakeError> {
        let Some((v4, v6)) = &self.settings.countries else { return Ok(()) };
        let countries =
            Countries::load(v4, v6).map_err(|(path, problem)| SnowflakeError::File { path, problem })?;
        self.stats.borrow_mut().countries = Some(countries);
        tracing::info!("Loading geoip databases");
        Ok(())
    }

    fn read_intervals(&self) {
        let Some(path) = &self.settings.poll_intervals else { return };
        match intervals(path) {
            Ok(all) => {
                for (limit, interval) in self.limits.borrow_mut().iter_mut().zip(all) {
                    limit.interval = interval;
                }
                let [open, moderate, strict] = all.map(|interval| interval.as_millis());
                tracing::info!(
                    open_ms = open,
                    moderate_ms = moderate,
                    strict_ms = strict,
                    "Loaded poll intervals"
                );
            }
            Err(problem) => tracing::warn!(%problem, "failed to load poll interval from file"),
        }
    }

    /// Reads the files again. Those that cannot be used leave things as they were, with a log line. Polls that wait stay
    /// where they are.
    pub fn reload(&self) {
        for result in [self.read_bridges(), self.read_countries()] {
            if let Err(error) = result {
                tracing::warn!(%error, "not reloaded: the content that was read before stays");
            }
        }
        self.read_intervals();
    }

    /// Answers a request.
    pub async fn answer(&self, asked: ServiceRequest) -> ServiceResponse {
        let is_api = matches!(asked.path.as_str(), "/proxy" | "/client" | "/answer" | "/debug" | "/metrics");
        if !is_api && !asked.path.starts_with("/amp/client/") {
            return match asked.path.as_str() {
                "/robots.txt" => ServiceResponse::text("User-agent: *\nDisallow: /\n"),
                "/prometheus" => ServiceResponse {
                    content_type: Some("text/plain; version=0.0.4; charset=utf-8; escaping=underscores"),
                    ..ServiceResponse::text(self.stats.borrow().prometheus())
                },
                _ => not_found(),
            };
        }
        let told = if asked.method == "OPTIONS" {
            ServiceResponse::status(200)
        } else {
            match asked.path.as_str() {
                "/proxy" => self.proxy(asked).await,
                "/client" => self.client(asked).await,
                "/answer" => self.proxy_answer(&asked),
                "/debug" => ServiceResponse::text(self.debug()),
                "/metrics" => self.metrics(),
                _ => self.amp(&asked).await,
            }
        };
        ServiceResponse { fields: [&CORS[..], &told.fields].concat(), ..told }
    }

    async fn proxy(&self, asked: ServiceRequest) -> ServiceResponse {
        let scheme = self.settings.scheme;
        let poll = asked.body.as_ref().and_then(|body| ProxyPoll::parse(body, scheme).ok());
        let Some(poll) = poll else { return ServiceResponse::status(400) };
        let ProxyPoll { sid, kind, nat, clients, pattern } = poll;
        let address = source::of_proxy(&asked, self.settings.trusted_hops);
        if !self.admits(kind, nat, pattern.as_deref(), address) {
            return ServiceResponse::text(
                PollReply::without_client(PollStatus::Pattern, LONGEST_WAIT_MS).emit(scheme),
            );
        }
        let (next, is_due) = self.limit(address, nat, rt::now());
        if !is_due {
            // As upstream, which counts such a poll among those that wait for the instant that it takes.
            self.stats.borrow_mut().proxy_waits(kind, nat, 0);
            return ServiceResponse::text(
                PollReply::without_client(PollStatus::TooSoon, until(next)).emit(scheme),
            );
        }
        let place = Place::enter(self, sid, kind, nat, clients);
        let offer = rt::timeout(PROXY_TIME, place.waiting.offer.take()).await;
        let offer = match offer {
            Ok(offer) => Some(offer),
            // A client that took it in this very instant has put its offer down already.
            Err(_) if !self.pools.borrow_mut().leave(&place.waiting) => {
                rt::timeout(Duration::ZERO, place.waiting.offer.take()).await.ok()
            }
            Err(_) => None,
        };
        self.stats.borrow_mut().proxy_done(kind, nat, offer.is_some());
        let Some(offer) = offer else {
            return ServiceResponse::text(
                PollReply::without_client(PollStatus::NoMatch, until(next)).emit(scheme),
            );
        };
        let relay = self.bridges.borrow().relay(&offer.bridge).unwrap_or_default().to_owned();
        let (nat, offer) = (Some(offer.nat), offer.sdp);
        let reply = PollReply { status: PollStatus::Match, offer, nat, next_poll_ms: until(next), relay };
        ServiceResponse::text(reply.emit(scheme))
    }

    /// Counts a poll, and says whether its pattern is taken.
    fn admits(&self, kind: ProxyType, nat: Nat, pattern: Option<&str>, address: IpAddr) -> bool {
        let mut stats = self.stats.borrow_mut();
        stats.proxy_polled(kind, nat, pattern.is_some());
        let is_taken = self.takes_pattern(pattern);
        if is_taken {
            stats.proxy_seen(address, kind, nat);
        } else {
            stats.pattern_refused(kind, nat);
        }
        is_taken
    }

    fn takes_pattern(&self, pattern: Option<&str>) -> bool {
        // The old broker judges patterns only when it has a list of bridges.
        if self.settings.scheme == Scheme::Old && self.settings.bridges.is_none() {
            return true;
        }
        let pattern = pattern.or(self.settings.default_pattern.as_deref());
        pattern.is_some_and(|pattern| RelayPattern::parse(pattern).covers(&self.pattern))
    }

    fn limit(&self, address: IpAddr, nat: Nat, now: Instant) -> (Instant, bool) {
        if self.settings.scheme == Scheme::Old {
            return (now, true);
        }
        let pool = PoolName::of(nat, Scheme::Current);
        self.limits.borrow_mut()[pool as usize].poll(self.veil.hide(Some(address)), now)
    }

    async fn client(&self, asked: ServiceRequest) -> ServiceResponse {
        let Some(body) = &asked.body else { return ServiceResponse::status(400) };
        let (scheme, address) = (self.settings.scheme, Some(source::of_client(&asked)));
        if body.first() != Some(&b'{') {
            let poll = ClientPoll::parse(body, scheme).map_err(|error| error.to_string());
            let found = match poll {
                Ok(poll) => self.matched(poll, address, RendezvousMethod::Http).await,
                Err(error) => Err(Refused::Words(error)),
            };
            return match found {
                Err(Refused::Bridge) if scheme == Scheme::Old => ServiceResponse::status(500),
                Err(refused) => ServiceResponse::text(ClientReply::Error(refused.into_words()).emit()),
                Ok(answer) => ServiceResponse::text(ClientReply::Answer(answer).emit()),
            };
        }
        let nat = asked.fields("snowflake-nat-type").next().unwrap_or_default();
        let Ok(poll) = ClientPoll::parse_legacy(body, nat, scheme) else {
            return ServiceResponse::status(400);
        };
        match self.matched(poll, address, RendezvousMethod::Http).await {
            Ok(answer) => ServiceResponse::text(answer),
            Err(Refused::NoProxies) => ServiceResponse::status(503),
            Err(Refused::Timeout) => ServiceResponse::status(504),
            Err(Refused::Words(_) | Refused::Bridge) => ServiceResponse::status(400),
        }
    }

    async fn amp(&self, asked: &ServiceRequest) -> ServiceResponse {
        let path = asked.path.strip_prefix("/amp/client/").unwrap_or_default();
        let reply = match amp::parse_path(path) {
            Err(_) => ClientReply::Error("cannot decode URL path".into()),
            Ok(body) => match ClientPoll::parse(&body, self.settings.scheme) {
                Err(error) => ClientReply::Error(error.to_string()),
                Ok(poll) => {
                    let address = best_candidate(&poll.offer);
                    match self.matched(poll, address, RendezvousMethod::Amp).await {
                        Ok(answer) => ClientReply::Answer(answer),
                        Err(refused) => ClientReply::Error(refused.into_words()),
                    }
                }
            },
        };
        let document = amp::emit_document(reply.emit().as_bytes());
        let fields = vec![("cache-control", "max-age=15")];
        ServiceResponse { content_type: Some("text/html"), fields, ..ServiceResponse::text(document) }
    }

    /// The answer of a proxy.
    async fn matched(
        &self,
        poll: ClientPoll,
        address: Option<IpAddr>,
        by: RendezvousMethod,
    ) -> Result<String, Refused> {
        let ClientPoll { offer: sdp, nat, fingerprint: bridge } = poll;
        if self.bridges.borrow().relay(&bridge).is_none() {
            return Err(Refused::Bridge);
        }
        let done = |end| self.stats.borrow_mut().client_done(address, by, nat, end);
        let Some(waiting) = self.pools.borrow_mut().take(nat) else {
            done(ClientEnd::Denied);
            return Err(Refused::NoProxies);
        };
        // Answers are of no use once this has ended.
        let waiting = Answerable { broker: self, waiting };
        waiting.waiting.offer.put(Offer { sdp, nat, bridge });
        let time = match self.settings.scheme {
            Scheme::Current => Duration::from_secs(5),
            Scheme::Old => Duration::from_secs(10),
        };
        let answer = rt::timeout(time, waiting.waiting.answer.take()).await;
        done(if answer.is_ok() { ClientEnd::Matched } else { ClientEnd::Timeout });
        answer.map_err(|_| Refused::Timeout)
    }

    fn proxy_answer(&self, asked: &ServiceRequest) -> ServiceResponse {
        let Some(body) = &asked.body else { return ServiceResponse::status(400) };
        let scheme = self.settings.scheme;
        if scheme == Scheme::Current && !contains(body, b"a=candidate") {
            return ServiceResponse::status(400);
        }
        let Ok(answer) = ProxyAnswer::parse(body, scheme) else { return ServiceResponse::status(400) };
        let waiting = self.pools.borrow().find(&answer.sid);
        self.stats.borrow_mut().answered(waiting.as_ref().map(|waiting| waiting.kind));
        let reply = match waiting {
            Some(waiting) => {
                waiting.answer.put(answer.answer);
                AnswerReply::Success
            }
            None => AnswerReply::ClientGone,
        };
        ServiceResponse::text(reply.emit())
    }

    fn debug(&self) -> String {
        let (mut kinds, mut nats, mut unknown) = (BTreeMap::new(), BTreeMap::new(), 0);
        let pools = self.pools.borrow();
        let mut count = 0;
        for waiting in pools.iter() {
            count += 1;
            *nats.entry(waiting.nat).or_insert(0) += 1;
            if waiting.kind == ProxyType::Unknown {
                unknown += 1;
            } else {
                *kinds.entry(waiting.kind).or_insert(0) += 1;
            }
        }
        let mut out = format!("current snowflakes available: {count}\n");
        // As in the recorded text: the extension before the program.
        let mut kinds: Vec<(ProxyType, usize)> = kinds.into_iter().collect();
        kinds.sort_by_key(|(kind, _)| std::cmp::Reverse(kind.as_str()));
        for (kind, count) in kinds {
            out += &format!("\t{} proxies: {count}\n", kind.as_str());
        }
        out += &format!("\tunknown proxies: {unknown}\nNAT Types available:");
        let words: &[Nat] = match self.settings.scheme {
            Scheme::Current => {
                &[Nat::Restricted, Nat::Unrestricted, Nat::Strict, Nat::Moderate, Nat::Open, Nat::Unknown]
            }
            Scheme::Old => &[Nat::Restricted, Nat::Unrestricted, Nat::Unknown],
        };
        for nat in words {
            out += &format!("\n\t{}: {}", nat.as_str(), nats.get(nat).unwrap_or(&0));
        }
        out
    }

    fn metrics(&self) -> ServiceResponse {
        let read = |path: &Path| -> std::io::Result<Vec<u8>> {
            let mut file = std::fs::File::open(path)?;
            let len = file.metadata()?.len();
            file.seek(SeekFrom::Start(len.saturating_sub(MAX_LOG)))?;
            let mut text = Vec::new();
            file.take(MAX_LOG).read_to_end(&mut text)?;
            Ok(text)
        };
        let text = self.settings.metrics_log.as_deref().and_then(|path| read(path).ok());
        text.map_or_else(not_found, ServiceResponse::text)
    }

    /// Writes the summary of the day that ends now.
    fn write_summary(&self) {
        let text = self.stats.borrow_mut().take_summary(rt::unix_time());
        let written = match &self.settings.metrics_log {
            None => std::io::stdout().write_all(text.as_bytes()),
            Some(path) => {
                let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
                file.and_then(|mut file| file.write_all(text.as_bytes()))
            }
        };
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write the metrics log");
        }
    }
}

/// Why a client has no answer.
enum Refused {
    NoProxies,
    Timeout,
    Bridge,
    Words(String),
}

impl Refused {
    fn into_words(self) -> String {
        match self {
            Self::NoProxies => NO_PROXIES.into(),
            Self::Timeout => TIMED_OUT.into(),
            Self::Bridge => UNKNOWN_BRIDGE.into(),
            Self::Words(words) => words,
        }
    }
}

/// A poll that waits; dropping it takes it out of its pool.
struct Place<'a> {
    broker: &'a Broker,
    waiting: Rc<WaitingProxy>,
    is_counted: Cell<bool>,
}

impl<'a> Place<'a> {
    fn enter(broker: &'a Broker, sid: String, kind: ProxyType, nat: Nat, clients: i64) -> Self {
        broker.stats.borrow_mut().proxy_waits(kind, nat, 1);
        let waiting = broker.pools.borrow_mut().enter(sid, kind, nat, clients);
        Self { broker, waiting, is_counted: Cell::new(true) }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.broker.pools.borrow_mut().leave(&self.waiting);
        if self.is_counted.replace(false) {
            self.broker.stats.borrow_mut().proxy_waits(self.waiting.kind, self.waiting.nat, -1);
        }
    }
}

/// A poll that may be answered until this is dropped.
struct Answerable<'a> {
    broker: &'a Broker,
    waiting: Rc<WaitingProxy>,
}

impl Drop for Answerable<'_> {
    fn drop(&mut self) {
        self.broker.pools.borrow_mut().forget(&self.waiting);
    }
}

fn at(path: &Path, problem: String) -> SnowflakeError {
    SnowflakeError::File { path: path.display().to_string(), problem }
}

/// Milliseconds until `next`, negative once it is over.
fn until(next: Instant) -> i64 {
    let now = rt::now();
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    if next >= now { ms(next - now) } else { -ms(now - next) }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The address of the candidate that is nearest to the client: host candidates are first in order.
fn best_candidate(offer: &str) -> Option<IpAddr> {
    SessionDescription::parse(offer).ok()?.candidates(1).first().copied()
}

/// Longest file of bridges, countries or intervals, in bytes.
const MAX_FILE: usize = 64 << 20;

fn not_found() -> ServiceResponse {
    let fields = vec![("x-content-type-options", "nosniff")];
    ServiceResponse { status: 404, fields, ..ServiceResponse::text("404 page not found\n") }
}

/// The intervals of a file, for open, moderate and strict; an absent one is 0.
fn intervals(path: &Path) -> Result<[Duration; 3], String> {
    intervals_of(&files::read(path, MAX_FILE).map_err(|error| error.to_string())?)
}

fn intervals_of(text: &[u8]) -> Result<[Duration; 3], String> {
    let object = Object::parse(text).map_err(|error| error.to_string())?;
    let mut all = [Duration::ZERO; 3];
    for (name, interval) in
        ["open_poll_interval", "moderate_poll_interval", "strict_poll_interval"].into_iter().zip(&mut all)
    {
        let ms = object.integer(name).map_err(|error| error.to_string())?.unwrap_or(0);
        *interval = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    }
    debug_assert_eq!(PoolName::ALL.map(|name| name as usize), [0, 1, 2]);
    Ok(all)
}

/// Runs a broker until SIGINT or SIGTERM, then lets open polls finish, at most 15 s. SIGHUP reads the files again, those
/// of the certificate too. SIGUSR2 starts the process `next`, and lets open polls of this one finish as well. `ready` is told
/// the address once it listens.
///
/// # Errors
/// See [`SnowflakeError`].
pub fn broker_service(
    settings: &SnowflakeBroker,
    next: NextProcess,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), SnowflakeError> {
    Cores::block_on(run(settings, next, ready)).map_err(SnowflakeError::Loop)?
}

async fn run(
    settings: &SnowflakeBroker,
    next: NextProcess,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), SnowflakeError> {
    let broker = Rc::new(Broker::new(settings)?);
    let (asked, summed) = (broker.clone(), broker.clone());
    rt::spawn_local(async move {
        loop {
            rt::sleep(Duration::from_secs(PERIOD_S)).await;
            summed.write_summary();
        }
    });
    let reload = || {
        tracing::info!("Received signal: hangup. Reloading geoip databases.");
        broker.reload();
    };
    let answer = move |request| {
        let broker = asked.clone();
        async move { broker.answer(request).await }
    };
    let serving =
        SnowflakeService { listen: settings.listen, tls: settings.tls.as_ref(), drain: DRAIN, next };
    serving.run(ready, reload, answer).await?;
    tracing::info!("stopped");
    Ok(())
}
