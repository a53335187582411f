//! The steps of a test, and the conclusion from them.

#![expect(clippy::large_futures, reason = "one of them runs at a time")]

use std::time::{Duration, Instant};

use adit_formats::advice::server_of;
use adit_formats::share::{Rng as _, Target};
use adit_model::{Outbound, OutboundProtocol};
use adit_net::dial::{DialError, Dialer};
use adit_net::rt;

use super::local::{Engine, Fetched, fetch};
use super::{Plan, Report, State, Step, Verdict};
use crate::random::SystemRng;

/// A clock that differs by less is good enough for every protocol: the window of Shadowsocks 2022 is 30 s either way.
const CLOCK_STEP: i64 = 50;
/// Differences that are tried: up to ten minutes, then whole hours, which are wrong time zones.
const CLOCK_STEPS: i64 = 12;
const CLOCK_HOURS: [i64; 6] = [1, 2, 3, 5, 8, 12];
/// Shortest and longest wait for an answer while clocks are tried.
const CLOCK_WAIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// A question for the address (type A, class IN) of the root, recursion desired, behind its id.
const QUESTION: [u8; 15] = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1];

/// A test in progress.
struct Probe<'p> {
    plan: &'p Plan,
    outbound: &'p Outbound,
    steps: Vec<Step>,
    /// Time that a connection to the server took.
    connect: Duration,
}

pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Report> {
    let outbound = &plan.config.outbounds[plan.outbound];
    let mut probe = Probe { plan, outbound, steps: Vec::new(), connect: Duration::from_millis(200) };
    let (verdict, message) = match probe.server().await {
        Err(failure) => failure,
        Ok(()) => {
            let engine = Engine::start(&plan.config, &outbound.name)?;
            let verdict = probe.through(&engine).await;
            engine.end();
            verdict
        }
    };
    Ok(Report { outbound: outbound.name.to_string(), verdict, message, steps: probe.steps })
}

impl Probe<'_> {
    fn push(&mut self, step: &'static str, state: State, since: Option<Instant>, detail: impl Into<String>) {
        let ms = since.map(|since| rt::now().saturating_duration_since(since).as_secs_f64() * 1000.0);
        self.steps.push(Step { step, state, ms, detail: detail.into() });
    }

    /// Name and port of the server itself.
    async fn server(&mut self) -> Result<(), (Verdict, String)> {
        let dial = &self.outbound.dial;
        let Some(server) = server_of(self.outbound).filter(|_| dial.through.is_none() && dial.unix.is_none())
        else {
            self.push("resolve", State::Skip, None, "the outbound has no server of its own");
            return Ok(());
        };
        let dialer = Dialer::new(dial, adit_engine::resolver(&dial.dns));
        let begun = rt::now();
        let addrs = match within(self.plan.limit, dialer.resolve(server)).await {
            Ok(addrs) => addrs,
            Err(error) => {
                let message = format!("name does not resolve: {}: {error}", server.host);
                self.push("resolve", State::Fail, Some(begun), message.clone());
                return Err((Verdict::NameNotFound, format!("{message}\n  hint: `adit doctor` checks DNS")));
            }
        };
        let list: Vec<String> = addrs.iter().take(3).map(ToString::to_string).collect();
        self.push("resolve", State::Ok, Some(begun), list.join(", "));
        if let Some(carrier) = &dial.carrier {
            let why = if carrier.has_streams() { "the broker finds proxies" } else { "the carrier uses UDP" };
            self.push("connect", State::Skip, None, why);
            return Ok(());
        }
        let begun = rt::now();
        match within(self.plan.limit, dialer.dial_addrs(&addrs)).await {
            Ok(_) => {
                self.connect = rt::now().saturating_duration_since(begun);
                self.push("connect", State::Ok, Some(begun), "TCP");
                Ok(())
            }
            Err(text) => {
                self.push("connect", State::Fail, Some(begun), text.clone());
                let message = format!(
                    "server down: cannot connect to {server}: {text}\n  hint: is it running, is the port right, does a \
                     firewall let TCP port {} in?",
                    server.port
                );
                Err((Verdict::ServerDown, message))
            }
        }
    }

    /// The page and the name server through the outbound.
    async fn through(&mut self, engine: &Engine) -> (Verdict, String) {
        let limit = self.plan.limit;
        let begun = rt::now();
        let opened = rt::timeout(limit, engine.connect(&self.plan.url.target)).await;
        let stream = match opened.unwrap_or_else(|rt::Elapsed| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(stream) => stream,
            Err(error) => {
                self.push("handshake", State::Fail, Some(begun), error.to_string());
                return self.not_opened(&error);
            }
        };
        self.push("handshake", State::Ok, Some(begun), "the outbound is open");
        let begun = rt::now();
        let fetched = fetch(&stream, &self.request(), limit).await;
        match fetched {
            Fetched::Answered => self.push("first byte", State::Ok, Some(begun), "the page answers"),
            Fetched::Closed | Fetched::Silent => {
                let detail =
                    if fetched == Fetched::Closed { "closed without a byte" } else { "no byte in time" };
                self.push("first byte", State::Fail, Some(begun), detail);
                return self.no_answer(engine, fetched).await;
            }
        }
        self.datagrams(engine).await
    }

    fn request(&self) -> Vec<u8> {
        let url = &self.plan.url;
        let (path, host) = (&url.path, &url.authority);
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nConnection: close\r\n\r\n")
            .into_bytes()
    }

    fn not_opened(&self, error: &std::io::Error) -> (Verdict, String) {
        if server_of(self.outbound).is_none() {
            let message = format!("cannot reach {}: {error}", self.plan.url.target);
            return (Verdict::TargetUnreachable, message);
        }
        let hint = if self.outbound.dial.carrier.as_ref().is_some_and(|carrier| carrier.has_streams()) {
            "no proxy was found, or no server of this carrier stands behind the bridge: the log says more"
        } else if self.outbound.dial.carrier.is_some() {
            "the carrier's session does not come up: UDP port blocked, or carrier-key and carrier-crypt differ"
        } else {
            "obfs, plugin and version must be the server's"
        };
        (Verdict::WrongKey, format!("handshake failed: {error}\n  hint: {hint}"))
    }

    /// Finds out why the server took a connection and gave no answer.
    async fn no_answer(&mut self, engine: &Engine, fetched: Fetched) -> (Verdict, String) {
        if server_of(self.outbound).is_none() {
            let message = format!("no answer from {}", self.plan.url.target);
            return (Verdict::TargetUnreachable, message);
        }
        if self.name_server_answers(engine).await {
            let target = &self.plan.url.target;
            let message = format!(
                "key and server are right, but the server cannot reach {target}\n  hint: name another page with --url"
            );
            return (Verdict::TargetUnreachable, message);
        }
        if self.has_timestamps()
            && let Some(seconds) = self.clock_difference(engine).await
        {
            let (side, by) = if seconds > 0 { ("behind", seconds) } else { ("ahead of", -seconds) };
            let detail = format!("the server answers if this clock is moved by {seconds:+} s");
            self.push("clock", State::Fail, None, detail);
            let message = format!(
                "clock differs: this machine is about {by} s {side} the server; at most 30 s are allowed\n  hint: set both \
                 clocks: timedatectl set-ntp true"
            );
            return (Verdict::Clock, message);
        }
        let clock = if self.has_timestamps() { " (the clock is not the cause)" } else { "" };
        let message = match fetched {
            Fetched::Closed => format!(
                "wrong key: the server is there and closes without an answer{clock}\n  hint: compare key, method, version \
                 and obfs with the server's; if they are right, the server reaches neither {} nor {}",
                self.plan.url.target, self.plan.dns
            ),
            Fetched::Silent | Fetched::Answered => format!(
                "wrong key: the server is there and stays silent{clock}\n  hint: compare key, method, version and obfs with \
                 the server's"
            ),
        };
        (Verdict::WrongKey, message)
    }

    /// Whether the name server answers over TCP: then the key is right.
    async fn name_server_answers(&self, engine: &Engine) -> bool {
        let limit = self.plan.limit.min(Duration::from_secs(2));
        let ask = async {
            let stream = engine.connect(&Target::from(self.plan.dns)).await.ok()?;
            // Over TCP a message stands behind its length (RFC 1035 section 4.2.2).
            let question = [&[0, 17][..], &question()].concat();
            Some(fetch(&stream, &question, limit).await == Fetched::Answered)
        };
        rt::timeout(limit * 2, ask).await.ok().flatten().unwrap_or(false)
    }

    fn has_timestamps(&self) -> bool {
        self.outbound.protocol.has_timestamps()
    }

    /// The seconds by which this clock has to be moved for the server to answer.
    async fn clock_difference(&self, engine: &Engine) -> Option<i64> {
        let limit = (self.connect * 6).clamp(CLOCK_WAIT.0, CLOCK_WAIT.1);
        let near = (1..=CLOCK_STEPS).map(|step| step * CLOCK_STEP);
        let all = near.chain(CLOCK_HOURS.map(|hours| hours * 3600)).flat_map(|by| [by, -by]);
        let mut found = None;
        for seconds in all {
            rt::shift_unix_time(seconds);
            let request = self.request();
            let ask = async {
                let stream = engine.connect(&self.plan.url.target).await.ok()?;
                Some(fetch(&stream, &request, limit).await)
            };
            if rt::timeout(limit * 2, ask).await.ok().flatten() == Some(Fetched::Answered) {
                found = Some(seconds);
                break;
            }
        }
        rt::shift_unix_time(0);
        found
    }

    async fn datagrams(&mut self, engine: &Engine) -> (Verdict, String) {
        let good = (Verdict::Ok, "ok: the server works".to_owned());
        if !self.carries_datagrams() {
            self.push("udp", State::Skip, None, "this outbound carries no UDP");
            return good;
        }
        let begun = rt::now();
        let asked = engine.exchange(&Target::from(self.plan.dns), &question(), self.plan.limit).await;
        match asked {
            Ok(true) => {
                self.push("udp", State::Ok, Some(begun), format!("{} answers", self.plan.dns));
                good
            }
            Ok(false) => {
                self.push("udp", State::Fail, Some(begun), "no answer");
                let port =
                    server_of(self.outbound).map_or_else(|| self.plan.dns.port(), |server| server.port);
                let message = format!(
                    "UDP blocked: TCP works, but no datagram comes back\n  hint: let UDP port {port} in at the server's \
                     firewall and provider, and switch UDP on there"
                );
                (Verdict::UdpBlocked, message)
            }
            Err(error) => {
                self.push("udp", State::Fail, Some(begun), error.to_string());
                (Verdict::UdpBlocked, format!("UDP blocked: TCP works, but UDP fails: {error}"))
            }
        }
    }

    fn carries_datagrams(&self) -> bool {
        if self.outbound.dial.carrier.is_some() || self.outbound.dial.through.is_some() {
            return false;
        }
        match &self.outbound.protocol {
            OutboundProtocol::Snell(client) => client.udp,
            OutboundProtocol::Shadowsocks(client) => client.transports.udp(),
            OutboundProtocol::Proxy(client) => client.udp(),
            OutboundProtocol::Choice(choice) => choice.udp,
            OutboundProtocol::Obfs(_)
            | OutboundProtocol::Reject
            | OutboundProtocol::Dns { .. }
            | OutboundProtocol::Refuse(_) => false,
            OutboundProtocol::Ssr(_) | OutboundProtocol::Direct | OutboundProtocol::Group(_) => true,
        }
    }
}

/// A result that comes in time, or the reason in words.
async fn within<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, DialError>>,
) -> Result<T, String> {
    match rt::timeout(limit, attempt).await {
        Ok(result) => result.map_err(|error| chain(&error)),
        Err(rt::Elapsed) => Err(format!("no answer within {} s", limit.as_secs())),
    }
}

/// A question with a random id.
fn question() -> Vec<u8> {
    let mut question = vec![0; 2];
    SystemRng.fill(&mut question);
    question.extend(QUESTION);
    question
}

/// An error with its causes, in one line.
fn chain(error: &DialError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
