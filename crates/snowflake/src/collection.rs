//! The proxies of one session: some are kept at hand, and lost ones are replaced.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use adit_engine::OsRng;
use adit_model::{Egress, SnowflakeClient};
use adit_net::rt;
use adit_net::rtc::{Connection, Gathering, Nat as Found, discover};
use adit_proto::rtc::sdp;
use adit_proto::rtc::{PeerRole, PeerSettings};
use adit_proto::snowflake::description::{DescriptionKind, SessionDescription};
use adit_proto::snowflake::messages::Nat;
use adit_proto::wire::Rng as _;

use super::Voice;
use super::rendezvous::Rendezvous;
use super::waiter::Waiter;

/// Pause between two attempts that failed, at most.
const TICK: Duration = Duration::from_secs(10);
/// Pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Pause between two looks for proxies at hand that have failed.
const LOOK: Duration = Duration::from_secs(1);
/// Time for a channel to open.
const OPEN: Duration = Duration::from_secs(10);
/// Bytes of a channel that are under way or wait.
const SEND_BUFFER: usize = 1 << 20;

/// The proxies of a session.
pub(super) struct Collection {
    settings: Rc<SnowflakeClient>,
    voice: Rc<dyn Voice>,
    rendezvous: Rendezvous,
    gathering: RefCell<Gathering>,
    ready: RefCell<VecDeque<Connection>>,
    /// Proxies that are kept, the one in use included.
    live: Cell<usize>,
    /// The session has lost one, or is over.
    changed: Waiter,
    taker: RefCell<Option<Waker>>,
    is_over: Cell<bool>,
}

impl Collection {
    /// Begins to collect.
    pub(super) fn begin(
        settings: Rc<SnowflakeClient>,
        voice: Rc<dyn Voice>,
        rendezvous: Rendezvous,
        egress: Egress,
    ) -> Rc<Self> {
        let gathering = Gathering { keep_local: settings.keep_local, egress, ..Gathering::default() };
        let collection = Rc::new(Self {
            settings,
            voice,
            rendezvous,
            gathering: RefCell::new(gathering),
            ready: RefCell::default(),
            live: Cell::new(0),
            changed: Waiter::default(),
            taker: RefCell::default(),
            is_over: Cell::new(false),
        });
        rt::spawn_local(collection.clone().run());
        collection
    }

    /// Ends it: no proxy is kept.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        let count = self.ready.borrow_mut().drain(..).count();
        self.changed.wake();
        self.voice.log(format_args!("WebRTC: melted all {count} snowflakes."));
        self.voice.log(format_args!("---- SnowflakeConn: end collecting snowflakes ---"));
    }

    /// A proxy that works, as soon as there is one.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Connection> {
        let mut ready = self.ready.borrow_mut();
        while let Some(connection) = ready.pop_front() {
            if connection.failure().is_none() {
                return Poll::Ready(connection);
            }
            self.live.set(self.live.get() - 1);
            self.changed.wake();
        }
        *self.taker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// One that was taken is lost.
    pub(super) fn note_loss(&self) {
        self.live.set(self.live.get() - 1);
        self.changed.wake();
    }

    async fn run(self: Rc<Self>) {
        self.voice.log(format_args!("---- SnowflakeConn: begin collecting snowflakes ---"));
        let servers = self.stun_servers().await;
        self.gathering.borrow_mut().stun.clone_from(&servers);
        let finder = self.clone();
        rt::spawn_local(async move { finder.find_nat(&servers).await });
        let mut failures = 0;
        while !self.is_over.get() {
            let (live, max) = (self.live.get(), self.settings.max);
            if live >= max {
                self.voice.log(format_args!("WebRTC: At capacity [{live}/{max}]  Retrying..."));
                self.lose_one().await;
                continue;
            }
            self.voice.log(format_args!("WebRTC: Collecting a new Snowflake. Currently at [{live}/{max}]"));
            match Box::pin(self.catch()).await {
                Ok(connection) => {
                    failures = 0;
                    self.keep(connection);
                }
                Err(why) => {
                    self.voice.log(format_args!("WebRTC: {why}  Retrying..."));
                    failures += 1;
                    self.rest(TICK.min(FIRST_PAUSE * (1 << (failures - 1).min(4)))).await;
                }
            }
        }
    }

    /// Returns once there is room for a proxy, or the session is over. Proxies at hand that have failed make room.
    async fn lose_one(&self) {
        while self.live.get() >= self.settings.max && !self.is_over.get() {
            let pause = if self.ready.borrow().is_empty() { Duration::from_secs(3600) } else { LOOK };
            rt::race(self.changed.wait(), rt::sleep(pause)).await;
            let mut ready = self.ready.borrow_mut();
            let before = ready.len();
            ready.retain(|connection| connection.failure().is_none());
            self.live.set(self.live.get() - (before - ready.len()));
        }
    }

    /// The pause behind a failure, which losses do not shorten; the end of the session does.
    async fn rest(&self, pause: Duration) {
        let over = async {
            while !self.is_over.get() {
                self.changed.wait().await;
            }
        };
        rt::race(over, rt::sleep(pause)).await;
    }

    fn keep(&self, connection: Connection) {
        if self.is_over.get() {
            return;
        }
        self.live.set(self.live.get() + 1);
        self.ready.borrow_mut().push_back(connection);
        if let Some(waker) = self.taker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The addresses of the STUN servers: half of them, drawn, if there are more than two.
    async fn stun_servers(&self) -> Vec<std::net::SocketAddr> {
        let mut servers = self.settings.ice.clone();
        for at in (1..servers.len()).rev() {
            let bound = u32::try_from(at + 1).expect("few servers");
            servers.swap(at, usize::try_from(OsRng.below(bound)).expect("below a usize"));
        }
        if servers.len() > 2 {
            servers.truncate(servers.len().div_ceil(2));
        }
        self.voice.log(format_args!("Using ICE servers:"));
        let mut found = Vec::new();
        for server in &servers {
            self.voice.log(format_args!("url: stun:{server}"));
            match self.rendezvous.dialer().resolve(server).await {
                Ok(addresses) => found.extend(addresses),
                Err(error) => self.voice.log(format_args!("stun:{server}: {error}")),
            }
        }
        found
    }

    async fn find_nat(&self, servers: &[std::net::SocketAddr]) {
        let egress = self.gathering.borrow().egress.clone();
        let found = discover(servers, &egress, &mut OsRng).await;
        let nat = match found {
            Found::Unknown => Nat::Unknown,
            Found::Open => Nat::Open,
            Found::Moderate => Nat::Moderate,
            Found::Strict => Nat::Strict,
        };
        self.voice.log(format_args!("NAT Type: {}", nat.as_str()));
        self.rendezvous.set_nat(nat);
    }

    /// Finds one proxy and connects to it.
    async fn catch(&self) -> Result<Connection, String> {
        let mut number = [0; 8];
        OsRng.fill(&mut number);
        let label = format!("snowflake-{:016x}", u64::from_be_bytes(number));
        let say = |line: &str| self.voice.log(format_args!("{line}"));
        self.voice.log(format_args!("{label}  connecting..."));
        let gathering = self.gathering.borrow().clone();
        let settings = PeerSettings { send_buffer: SEND_BUFFER, ..PeerSettings::default() };
        let made =
            Box::pin(Connection::new(PeerRole::Offerer, &gathering, settings, &label, &mut OsRng)).await;
        let connection = made.map_err(|error| {
            self.voice.tell("notice", &format!("offer creation failure {error}"));
            error.to_string()
        })?;
        say("WebRTC: DataChannel created.");
        say("WebRTC: Created offer");
        say("WebRTC: Set local description");
        self.voice.tell("notice", "offer created");
        say("WebRTC: PeerConnection created.");
        let offer = SessionDescription { kind: DescriptionKind::Offer, sdp: connection.describe() }.emit();
        let answer = self.rendezvous.exchange(&offer).await.map_err(|error| {
            self.voice.tell("notice", &format!("broker failure {error}"));
            error.to_string()
        })?;
        let bad = |error: String| {
            self.voice.tell("notice", &format!("broker failure {error}"));
            error
        };
        let answer = SessionDescription::parse(&answer).map_err(|error| bad(error.to_string()))?;
        if answer.kind != DescriptionKind::Answer {
            return Err(bad("the broker's answer is none".to_owned()));
        }
        let remote = sdp::SdpDescription::parse(&answer.sdp).map_err(|error| bad(error.to_string()))?;
        self.voice.tell("notice", "broker rendezvous peer received");
        say("Received Answer.");
        connection.start(&remote).map_err(|error| bad(error.to_string()))?;
        match connection.opened(OPEN).await {
            Ok(()) => {
                say("WebRTC: DataChannel.OnOpen");
                self.voice.tell("notice", "connected");
                Ok(connection)
            }
            Err(error) => {
                self.rendezvous.note_failure();
                self.voice.tell("notice", &format!("trying a new proxy: {error}"));
                Err(error.to_string())
            }
        }
    }
}
