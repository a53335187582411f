//! Packets that are answered here, and go to no outbound: questions for names and for echoes.
//!
//! ```text
//!   UDP to port 53 ─→ Answerer ─ known ─→ answer from the address that was asked
//!                        └───── others ─→ a task each, at most MAX_WAITING
//!   echo to a fake address ─→ answered      to another host ─→ a socket for its question, marked as adit's own
//! ```
//!
//! An echo goes straight to its target, unless a rule refuses that: no outbound carries it, and an answer of our own would
//! say that a host is there that is not.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use adit_model::Tag;
use adit_model::rule::RejectMethod;
use adit_net::ping::PingSocket;
use adit_net::rt;
use adit_net::tun::TunSocket;
use adit_proto::ip::icmp;
use adit_proto::ip::offload::LEN as OFFLOAD_LEN;

use super::port::write_datagram;
use crate::admission::Crowd;
use crate::counters::InboundMetrics;
use crate::datagram::DatagramRouter as _;
use crate::dns::{Answerer, Fake, FastAnswer, MAX_SHORT};
use crate::log_throttle::LogThrottle;
use crate::protocols::dns::inbound::{MAX_WAITING, enter};
use crate::stream::RouteContext;

/// Hosts that are asked for echoes at the same time.
const MAX_ECHOES: usize = 256;
/// Silence after which a socket for echoes is closed.
const ECHO_IDLE: Duration = Duration::from_secs(10);
/// Longest answer to a question for an echo.
const ECHO_LEN: usize = 9216;

/// The parts of the process that answer in the place of others.
pub(super) struct Own {
    /// Fake addresses.
    pub(super) fake: Option<Arc<Fake>>,
    /// Answers to questions for names.
    pub(super) names: Option<Rc<Answerer>>,
    /// The rules.
    live: Option<Rc<RouteContext>>,
    waiting: Rc<Crowd>,
    out: Vec<u8>,
    echoes: HashMap<(IpAddr, IpAddr, u16), Weak<PingSocket>>,
    refused: LogThrottle,
}

/// The fate of a question for an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Echo {
    /// It is answered at once.
    Here,
    /// It is on its way.
    Asked,
    /// Nobody answers it, and its sender is told.
    Refused,
    /// Nobody answers it.
    Dropped,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            fake: None,
            names: None,
            live: None,
            waiting: Crowd::new(MAX_WAITING),
            out: Vec::new(),
            echoes: HashMap::new(),
            refused: LogThrottle::default(),
        }
    }
}

impl Own {
    /// Answers fake addresses and questions for names as told, and hosts by the rules of `live`.
    pub(super) fn new(live: Rc<RouteContext>, names: Option<Rc<Answerer>>) -> Self {
        let fake = live.fake().cloned();
        Self { fake, names, live: Some(live), out: Vec::with_capacity(MAX_SHORT), ..Self::default() }
    }

    /// Questions for names that wait for their answers.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.taken()
    }

    /// Answers a question for a name from `client` to `server`, or begins to ask for it.
    pub(super) fn answer_name(
        &mut self,
        socket: &Rc<TunSocket>,
        (client, server): (SocketAddr, SocketAddr),
        message: &[u8],
        metrics: &Arc<InboundMetrics>,
    ) {
        let Some(names) = &self.names else { return };
        metrics.datagrams.up.add(1);
        self.out.clear();
        match names.answer(message, rt::now(), &mut self.out) {
            FastAnswer::Nothing => return metrics.datagrams.dropped.malformed.add(1),
            FastAnswer::Written => {}
            FastAnswer::Ask(max) => match names.begin(client.ip(), message, max) {
                Ok(Some(answer)) => self.out = answer,
                Ok(None) => return,
                Err(asking) => {
                    let (metrics, message) = (metrics.clone(), message.to_vec());
                    let place = enter(&self.waiting, &metrics, client.ip());
                    // The interface ends without waiting for answers.
                    let socket = Rc::downgrade(socket);
                    rt::spawn_local(async move {
                        let answer = Answerer::wait(place, asking, &message).await;
                        if let (Some(answer), Some(socket)) = (answer, socket.upgrade()) {
                            send(&socket, server, client, &answer, &metrics);
                        }
                    });
                    return;
                }
            },
        }
        send(socket, server, client, &self.out, metrics);
    }

    /// Takes a question for an echo: an ICMP message from `client` to `host` with this number.
    pub(super) fn echo(
        &mut self,
        socket: &Rc<TunSocket>,
        (client, host): (IpAddr, IpAddr),
        number: u16,
        message: &[u8],
        name: &Tag,
    ) -> Echo {
        if let Some(fake) = self.fake.as_ref().filter(|fake| fake.holds(host)) {
            return if fake.name_of(host).is_some() { Echo::Here } else { Echo::Refused };
        }
        // Without a mark the question would come back by the interface.
        if adit_net::common_mark().is_none() {
            return Echo::Refused;
        }
        let peer = SocketAddr::new(client, number.max(1));
        let manner = self.live.as_ref().and_then(|live| live.refuses(peer, host));
        match manner {
            Some(RejectMethod::Drop) => return Echo::Dropped,
            Some(RejectMethod::Reset | RejectMethod::Protocol) => return Echo::Refused,
            None => {}
        }
        let key = (client, host, number);
        let known = self.echoes.get(&key).and_then(Weak::upgrade);
        let asked =
            known.map_or_else(|| self.begin_echo(socket, key), Ok).and_then(|ping| ping.send(message));
        match asked {
            Ok(()) => Echo::Asked,
            Err(error) => {
                if let Some(times) = self.refused.due(rt::now()) {
                    let is_right = error.kind() == io::ErrorKind::PermissionDenied;
                    let hint =
                        if is_right { "sysctl -w net.ipv4.ping_group_range=\"0 2147483647\"" } else { "" };
                    tracing::info!(inbound = &**name, %error, times, hint, "echoes cannot be asked for");
                }
                Echo::Refused
            }
        }
    }

    /// Opens a socket whose answers go to the client.
    fn begin_echo(
        &mut self,
        socket: &Rc<TunSocket>,
        key: (IpAddr, IpAddr, u16),
    ) -> io::Result<Rc<PingSocket>> {
        self.sweep();
        if self.echoes.len() >= MAX_ECHOES {
            return Err(io::Error::other("too many hosts are asked for echoes"));
        }
        let (client, host, number) = key;
        let ping = Rc::new(PingSocket::connect(host)?);
        self.echoes.insert(key, Rc::downgrade(&ping));
        let (asking, socket) = (ping.clone(), Rc::downgrade(socket));
        rt::spawn_local(async move {
            let (mut answer, mut out) = (vec![0; ECHO_LEN], vec![0; ECHO_LEN + 128]);
            while let Ok(Ok(len)) = rt::timeout(ECHO_IDLE, asking.recv(&mut answer)).await {
                let Some(socket) = socket.upgrade() else { return };
                let front = if socket.has_header() { OFFLOAD_LEN } else { 0 };
                out[..front].fill(0);
                let made = icmp::emit_echo_answer(&mut out[front..], (host, client), number, &answer[..len]);
                if let Some(len) = made.filter(|_| len < ECHO_LEN) {
                    // A packet that the interface does not take is lost, as any may be.
                    drop(socket.write(&out[..front + len]));
                }
            }
        });
        Ok(ping)
    }

    /// Forgets sockets that are closed.
    pub(super) fn sweep(&mut self) {
        self.echoes.retain(|_, ping| ping.strong_count() > 0);
    }
}

fn send(socket: &TunSocket, from: SocketAddr, to: SocketAddr, answer: &[u8], metrics: &InboundMetrics) {
    match write_datagram(socket, from, to, answer) {
        Ok(()) => metrics.datagrams.down.add(1),
        Err(error) => {
            tracing::trace!(%error, "answer to a question dropped");
            metrics.datagrams.dropped.system.add(1);
        }
    }
}
