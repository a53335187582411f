//! The fallback server of an inbound: it gets the connections of clients that do not authenticate.
//!
//! ```text
//!   client ── bytes so far, unchanged ──▶ fallback server      as soon as the client is refused
//!          ◀───────── plain relay ─────▶
//! ```
//!
//! Such a client still counts as unauthenticated: it holds its ticket, makes room for others, and is cut when nothing has
//! moved for the inbound's deadline. It goes nowhere once it has been answered: the fallback server could not go on there.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use adit_model::{ObfsServer, Redirect, RedirectWhen};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::wire::Target;
use regex::bytes::{Regex, RegexBuilder};

use super::Inbound;
use super::unauthenticated::{Refusal, count, evicted, hold, note, receive};
use crate::admission::guard::Ticket;
use crate::connections::table::{ConnectionEntry, TICK};
use crate::relay::{Early, Endpoint};
use crate::stream::RelaySession;

/// A client whose first bytes do not become a whole request by then goes to the fallback server with what there is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a client that are kept; one that sends more without being refused goes nowhere.
const MAX_KEPT: usize = 128 * 1024;

/// The fallback servers of an inbound.
#[derive(Debug)]
pub(crate) struct Servers(Box<[Server]>);

#[derive(Debug)]
struct Server {
    when: Option<When>,
    target: Target,
}

/// The properties that a client must share with a server.
#[derive(Debug)]
struct When {
    /// For the client's first bytes.
    pattern: Option<Regex>,
    /// Of the listener.
    port: Option<u16>,
}

impl Servers {
    /// The servers of a list.
    ///
    /// # Errors
    /// `InvalidInput` for a pattern that is too large.
    pub(crate) fn new(list: &[Redirect]) -> io::Result<Self> {
        let servers = list.iter().map(|Redirect { when, target }| {
            let when = when.as_ref().map(When::new).transpose()?;
            Ok(Server { when, target: target.clone() })
        });
        servers.collect::<io::Result<_>>().map(Self)
    }

    /// The server for a client that came to `port` and began with `first`, by the rules of [`Redirect`].
    fn choose(&self, first: &[u8], peer: SocketAddr, port: u16) -> Option<&Target> {
        let chosen = if self.0.first()?.when.is_some() {
            let holds = |server: &&Server| server.when.as_ref().is_some_and(|when| when.holds(first, port));
            self.0.iter().find(holds)
        } else {
            let all = || self.0.iter().filter(|server| server.when.is_none());
            let same_port: Vec<&Server> = all().filter(|server| server.target.port == port).collect();
            let candidates = if same_port.is_empty() { all().collect() } else { same_port };
            let mut hasher = DefaultHasher::new();
            (first, peer.ip()).hash(&mut hasher);
            let count = u64::try_from(candidates.len()).unwrap_or(u64::MAX);
            let at = usize::try_from(hasher.finish() % count).unwrap_or_default();
            candidates.get(at).copied()
        };
        // Port 0 says that there is none.
        chosen.map(|server| &server.target).filter(|target| target.port != 0)
    }
}

impl When {
    fn new(when: &RedirectWhen) -> io::Result<Self> {
        let compile = |pattern: &str| {
            let regex = RegexBuilder::new(&format!("^(?:{pattern})")).unicode(false).build();
            regex.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
        };
        Ok(Self { pattern: when.pattern.as_deref().map(compile).transpose()?, port: when.port })
    }

    fn holds(&self, first: &[u8], port: u16) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(first))
            && self.port.is_none_or(|wanted| wanted == port)
    }
}

/// The fallback servers, and what one client has sent so far.
pub(crate) struct FallbackClient<'a> {
    servers: &'a Servers,
    received: RefCell<Vec<u8>>,
    /// When the first byte came.
    since: Cell<Option<Instant>>,
    is_closed: Cell<bool>,
}

/// A client that is refused.
pub(crate) struct RefusedClient {
    pub(crate) ticket: Ticket,
    pub(crate) refusal: Refusal,
    /// When unauthenticated clients are cut, and how long they have in all.
    pub(crate) until: Instant,
    pub(crate) deadline: Duration,
}

impl<'a> FallbackClient<'a> {
    /// For a client that has sent nothing.
    pub(crate) fn new(servers: &'a Servers) -> Self {
        Self { servers, received: RefCell::default(), since: Cell::new(None), is_closed: Cell::new(false) }
    }

    /// As [`receive`]. The bytes are kept if there is a fallback server.
    pub(crate) async fn receive(
        &self,
        stream: &Stream,
        wire: &mut RecvBuf,
        longest: usize,
    ) -> Result<usize, Refusal> {
        if self.servers.0.is_empty() || self.is_closed.get() {
            return receive(stream, wire, longest).await;
        }
        let received = match self.since.get() {
            None => receive(stream, wire, longest).await?,
            Some(since) => {
                let late = async {
                    rt::sleep_until(since + PATIENCE).await;
                    Err(Refusal::Late)
                };
                rt::race(late, receive(stream, wire, longest)).await?
            }
        };
        self.since.set(self.since.get().or_else(|| Some(rt::now())));
        let unread = wire.unread();
        let mut kept = self.received.borrow_mut();
        kept.extend(&unread[unread.len() - received..]);
        if kept.len() > MAX_KEPT {
            self.is_closed.set(true);
            *kept = Vec::new();
        }
        Ok(received)
    }

    /// The client has been answered, or has authenticated.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        self.received.take();
    }

    /// Whether the client goes to the fallback server.
    fn takes(&self, refusal: &Refusal) -> bool {
        let has_begun = !self.received.borrow().is_empty();
        let may_go = match refusal {
            Refusal::Wire(_)
            | Refusal::Obfs(_)
            | Refusal::Throttled
            | Refusal::Gone
            | Refusal::GoneAtTick
            | Refusal::Late => true,
            Refusal::Evicted | Refusal::Request(_) => false,
        };
        may_go && has_begun && !self.is_closed.get()
    }

    /// Deals with a client that is refused: relays it to the fallback server, or does as every server.
    pub(crate) async fn refuse(
        self,
        inbound: &Inbound,
        stream: Stream,
        peer: SocketAddr,
        refused: RefusedClient,
        obfs: ObfsServer,
    ) {
        let RefusedClient { ticket, refusal, until, deadline } = refused;
        let port = stream.local_addr().map_or(0, |addr| addr.port());
        let chosen = self.servers.choose(&self.received.borrow(), peer, port);
        // The protocol names each source in a line of its own.
        note(inbound, &ticket, &refusal, false);
        let Some(server) = chosen.filter(|_| self.takes(&refusal)) else {
            hold(inbound, &stream, &ticket, &refusal, obfs, until).await;
            return;
        };
        count(&inbound.metrics.refused, &refusal);
        let early = Early { bytes: self.received.into_inner(), ended: matches!(refusal, Refusal::Gone) };
        let relay = Box::pin(relay(inbound, server, stream, peer, early, deadline));
        rt::race(evicted(&ticket), relay).await;
    }
}

/// Relays a client to `server` until one of them ends, or nothing has moved for `silence`.
async fn relay(
    inbound: &Inbound,
    server: &Target,
    stream: Stream,
    peer: SocketAddr,
    early: Early,
    silence: Duration,
) {
    let routed = inbound.origin.request(peer, None, server.clone()).direct();
    let opened = match routed.open_again().await {
        Ok(opened) => opened,
        Err(error) => {
            let error = error.chain();
            tracing::warn!(inbound = &*inbound.name, error, "fallback server cannot be reached");
            return;
        }
    };
    let mut near = Endpoint::plain(stream);
    // The ticket of the client is its place in the budget.
    let entry = inbound.core.conns.enter();
    let session = Box::new(RelaySession::new(routed, opened, early));
    let run = async {
        session.run(&mut near, &entry).await;
    };
    rt::race(quiet(&entry, silence), run).await;
}

/// Returns when nothing has moved for `silence`.
async fn quiet(entry: &ConnectionEntry, silence: Duration) {
    loop {
        let quiet_for = TICK * entry.quiet_for();
        let Some(left) = silence.checked_sub(quiet_for).filter(|left| !left.is_zero()) else { return };
        rt::sleep(left.max(TICK)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::connections::table::Conns;

    fn servers(list: &[&str]) -> Servers {
        let list: Vec<Redirect> = list.iter().map(|text| text.parse().expect("an entry")).collect();
        Servers::new(&list).expect("the patterns are small")
    }

    #[test]
    fn a_server_is_chosen_by_conditions_or_by_lot() {
        let peer = |n: u8| SocketAddr::from(([192, 0, 2, n], 5));
        let choose = |list: &[&str], first: &[u8], n: u8, port: u16| {
            servers(list).choose(first, peer(n), port).map(ToString::to_string)
        };
        assert_eq!(choose(&[], b"x", 1, 443), None);
        assert_eq!(choose(&["*#0.0.0.0:0"], b"x", 1, 443), None);
        let lists = ["GET /a[0-9]+#a.example", "*:8443#b.example:1", "*#c.example:2", "d.example"];
        for (first, port, want) in [
            (&b"GET /a1 HTTP"[..], 443, "a.example:80"),
            (b"xGET /a1", 443, "c.example:2"),
            (b"get /a1", 8443, "b.example:1"),
            (b"\x16\x03\xff", 1, "c.example:2"),
        ] {
            assert_eq!(choose(&lists, first, 1, port).as_deref(), Some(want));
        }
        let lot = ["a.example", "b.example:443", "*#c.example"];
        assert_eq!(choose(&lot, b"x", 1, 443).as_deref(), Some("b.example:443"), "the port of the listener");
        let drawn: std::collections::BTreeSet<_> = (0..50).map(|n| choose(&lot, b"x", n, 1)).collect();
        assert_eq!(drawn.len(), 2, "both without a condition: {drawn:?}");
        assert_eq!(choose(&lot, b"x", 7, 1), choose(&lot, b"x", 7, 1));
    }

    fn ends_at_once(silence: Duration, touch: bool) -> bool {
        let ends = async {
            let conns = Rc::new(Conns::default());
            let entry = conns.enter();
            (0..60).for_each(|_| conns.sweep(None));
            if touch {
                entry.touch();
            }
            rt::timeout(Duration::from_millis(50), quiet(&entry, silence)).await.is_ok()
        };
        rt::Cores::block_on(ends).expect("an event loop")
    }

    #[test]
    fn a_relay_ends_when_nothing_moves() {
        assert!(ends_at_once(Duration::from_secs(60), false));
        assert!(!ends_at_once(Duration::from_secs(61), false));
        assert!(!ends_at_once(Duration::from_secs(60), true));
    }

    #[test]
    fn clients_that_were_answered_go_nowhere() {
        let servers = servers(&["web.example"]);
        let begun = || {
            let fallback = FallbackClient::new(&servers);
            fallback.received.borrow_mut().push(1);
            fallback
        };
        assert!(begun().takes(&Refusal::Late) && !begun().takes(&Refusal::Evicted));
        assert!(!FallbackClient::new(&servers).takes(&Refusal::Late), "a client without a byte");
        let answered = begun();
        answered.close();
        assert!(!answered.takes(&Refusal::Gone));
    }
}
