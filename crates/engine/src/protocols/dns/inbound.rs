//! A name server for applications, over UDP and TCP.
//!
//! ```text
//!   datagrams:  batch ─ at once ─→ answers of the batch, one call
//!                  └── others ─→ cache ─→ a task each, at most MAX_WAITING ─→ one call each
//!   TCP:        [ length 2 | question ] .. ─→ [ length 2 | answer ] ..       RFC 1035, section 4.2.2
//! ```
//!
//! From some thousands of questions a second on they gather: the port is looked at by a timer then, and nothing wakes the
//! event loop in between.
//!
//! It answers this machine and the networks that are allowed, and is silent to all others: answers to forged sources
//! would flood third parties.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adit_model::DnsInbound;
use adit_model::rule::Cidr;
use adit_net::reach::{Private, private_kind};
use adit_net::rt::{self, Stop, Stream};
use adit_net::udp::{Datagram, Outgoing, Socket};

use crate::admission::{Crowd, CrowdPlace, EvictionRank};
use crate::connections::table::ConnectionEntry;
use crate::counters::InboundMetrics;
use crate::datagram::rebind::{LAST_BATCHES, Rebind};
use crate::datagram::{BATCHES, Gather, PacketInbound, Scratch, SessionOwners};
use crate::dns::{Answerer, DirectNames, FastAnswer, MAX_SHORT};
use crate::listener::connected::{Served, enter_unknown};
use crate::listener::{Inbound, InboundFactory, InboundServer};
use crate::stream::Future;

/// Questions of one port and core that wait for other name servers; one more has the oldest fail, of a client with far more
/// than its part. Each takes some 2 KB.
pub(crate) const MAX_WAITING: usize = 1024;
/// Connections of one port and core; one more has the oldest closed, one without a whole question first.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// A connection without a whole question for this long is closed (RFC 7766 section 6.2.3 asks for a few seconds).
const IDLE: Duration = Duration::from_secs(10);
/// Longest message over TCP.
const MAX_MESSAGE: usize = u16::MAX as usize;

/// The configuration of a port, for every core.
#[derive(Debug)]
pub(crate) struct DnsFactory {
    config: DnsInbound,
    is_local: bool,
}

impl DnsFactory {
    /// A port of this configuration that listens on `listen`.
    pub(crate) fn new(config: &DnsInbound, listen: &[SocketAddr]) -> Self {
        Self { config: config.clone(), is_local: config.allow.is_empty() && listen.iter().all(is_local) }
    }
}

/// Whether an address is one of a private network, whose machines can be told from others.
fn is_local(addr: &SocketAddr) -> bool {
    matches!(private_kind(addr.ip()), Some(Private::Network | Private::LinkLocal))
}

/// A warning about a port that nobody but this machine can use.
pub(crate) fn warning(config: &DnsInbound, listen: &[SocketAddr]) -> Option<String> {
    let is_open = |addr: &SocketAddr| !addr.ip().to_canonical().is_loopback() && !is_local(addr);
    let open = listen.iter().find(|addr| is_open(addr)).filter(|_| config.allow.is_empty())?;
    Some(format!("{open} answers this machine alone: name the networks of its clients with `allow`"))
}

/// A port on one core.
struct DnsPort {
    config: DnsInbound,
    /// Private networks may ask: it listens on addresses of these, and nothing else is said.
    is_local: bool,
    waiting: Rc<Crowd>,
    connections: Rc<Crowd>,
}

impl InboundFactory for DnsFactory {
    fn on_core(&self) -> Rc<dyn InboundServer> {
        let (config, is_local) = (self.config.clone(), self.is_local);
        let (waiting, connections) = (Crowd::new(MAX_WAITING), Crowd::new(MAX_CONNECTIONS));
        Rc::new(DnsPort { config, is_local, waiting, connections })
    }
}

impl InboundServer for DnsPort {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move {
            let local = stream.local_addr().ok().map(|addr| addr.ip());
            if !self.accepts(local, peer.ip()) {
                inbound.metrics.refused.rule.add(1);
                stream.abort_on_close();
                return None;
            }
            let answerer = self.answerer(&inbound);
            let place = self.connections.enter(EvictionRank::Unauthenticated, peer.ip());
            if let Err(error) = serve_stream(&inbound, &answerer, &stream, peer.ip(), &place).await {
                tracing::trace!(inbound = &*inbound.name, %peer, %error, "connection with questions ended");
            }
            None
        })
    }

    fn packets(
        &self,
        _: &Inbound,
        _: (std::sync::Arc<SessionOwners>, usize),
    ) -> Option<Box<dyn PacketInbound>> {
        None
    }

    fn answer(
        self: Rc<Self>,
        inbound: Rc<Inbound>,
        socket: std::net::UdpSocket,
        (mut stop, rebind): (Stop, Rc<Rebind>),
    ) -> Result<Future<'static, ()>, std::net::UdpSocket> {
        Ok(Box::pin(async move {
            let serve = async {
                if let Err(error) = self.serve_datagrams(&inbound, socket, &rebind).await {
                    tracing::error!(inbound = &*inbound.name, %error, "listener for questions failed");
                }
            };
            rt::race(stop.draining(), serve).await;
        }))
    }
}

impl DnsPort {
    fn answerer(&self, inbound: &Inbound) -> Rc<Answerer> {
        let ways: Rc<dyn DirectNames> = inbound.origin.live.clone();
        Rc::new(Answerer::new(inbound.origin.live.dns(), &self.config, ways))
    }

    /// Whether a question from `peer` to this address of ours is answered.
    fn accepts(&self, local: Option<IpAddr>, peer: IpAddr) -> bool {
        accepts(&self.config.allow, self.is_local, local, peer)
    }

    async fn serve_datagrams(
        self: &Rc<Self>,
        inbound: &Rc<Inbound>,
        socket: std::net::UdpSocket,
        rebind: &Rebind,
    ) -> io::Result<()> {
        let socket = Socket::listening(socket)?;
        let bound = socket.local_addr()?.ip();
        let bound = (!bound.is_unspecified()).then_some(bound);
        if bound.is_none() {
            socket.report_destination()?;
        }
        let listener = Rc::new(Listener {
            answerer: self.answerer(inbound),
            port: self.clone(),
            inbound: inbound.clone(),
            socket: RefCell::new(socket),
            bound,
        });
        // The answers of a batch, reused for the next one.
        let mut out = Vec::new();
        let mut gather = Gather::unwatched();
        loop {
            let next = poll_fn(|cx| match rebind.take(cx) {
                Some((socket, _)) => Poll::Ready(listener.leave(socket, cx, &mut out).map(Some)),
                None => listener.poll_turn(cx, &mut out, &mut gather).map_ok(|()| None),
            });
            // Another task reads the successor.
            if next.await?.is_some() {
                return Ok(());
            }
            rt::yield_now().await;
        }
    }
}

/// Whether a question from `peer` to the address `local` of ours is answered.
fn accepts(allow: &[Cidr], is_local: bool, local: Option<IpAddr>, peer: IpAddr) -> bool {
    let peer = peer.to_canonical();
    let local = local.map(|ip| ip.to_canonical());
    // To a loopback address, or from the address that it goes to: it was sent on this machine.
    if peer.is_loopback() || local.is_some_and(|local| local.is_loopback() || local == peer) {
        return true;
    }
    is_local && self::is_local(&SocketAddr::new(peer, 0)) || allow.iter().any(|network| network.holds(peer))
}

/// A socket for questions, on one core.
struct Listener {
    port: Rc<DnsPort>,
    inbound: Rc<Inbound>,
    answerer: Rc<Answerer>,
    socket: RefCell<Socket>,
    /// Its address, if that is one.
    bound: Option<IpAddr>,
}

impl Listener {
    /// Answers what has come at the socket, and leaves it. Answers that wait go by the successor.
    ///
    /// # Errors
    /// The system's error.
    fn leave(
        self: &Rc<Self>,
        successor: std::net::UdpSocket,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        for _ in 0..LAST_BATCHES {
            if !self.answer_waiting(cx, out, false)?.1 {
                break;
            }
        }
        self.socket.replace(Socket::listening(successor)?);
        Ok(())
    }

    /// Answers what has come; ready when others should have a turn.
    fn poll_turn(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        gather: &mut Gather,
    ) -> Poll<io::Result<()>> {
        ready!(gather.poll_wait(cx));
        let (passed, has_more) = self.answer_waiting(cx, out, gather.is_on())?;
        gather.note(passed, rt::now());
        let is_changed = self.socket.borrow().set_watched(!gather.is_on())?;
        let wakes =
            if gather.is_on() { !has_more && gather.begin_wait(cx) } else { !has_more && !is_changed };
        if wakes { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Answers what waits: the number of questions, and whether there may be more. The loop wakes for those that come later,
    /// unless they gather.
    fn answer_waiting(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        gathers: bool,
    ) -> io::Result<(u64, bool)> {
        let scratch = self.inbound.scratch.clone();
        let scratch = &mut *scratch.borrow_mut();
        let mut passed = 0;
        for _ in 0..BATCHES {
            let mut lost = 0;
            match self.socket.borrow().poll_receive(cx, &mut scratch.batch, &mut lost) {
                Poll::Pending => return Ok((passed, false)),
                Poll::Ready(result) => result?,
            }
            let metrics = &self.inbound.metrics.datagrams;
            metrics.dropped.kernel.add(lost);
            out.clear();
            passed += scratch.batch.len() as u64;
            let is_drained = !scratch.batch.is_full();
            for at in 0..scratch.batch.len() {
                let Some(datagram) = scratch.batch.get(at) else { break };
                self.take(&datagram, scratch, out);
            }
            self.flush(scratch, out);
            if gathers && is_drained {
                return Ok((passed, false));
            }
        }
        Ok((passed, true))
    }

    /// Answers one question, or begins to ask for it.
    fn take(self: &Rc<Self>, datagram: &Datagram, scratch: &mut Scratch, out: &mut Vec<u8>) {
        let metrics = &self.inbound.metrics;
        if !self.port.accepts(datagram.to.or(self.bound), datagram.from.ip()) {
            metrics.datagrams.dropped.rule.add(1);
            return;
        }
        metrics.datagrams.up.add(1);
        let message = &scratch.batch.block[datagram.range()];
        let start = out.len();
        match self.answerer.answer(message, rt::now(), out) {
            FastAnswer::Nothing => {
                metrics.datagrams.dropped.malformed.add(1);
                return;
            }
            FastAnswer::Written => {}
            FastAnswer::Ask(max) => match self.answerer.begin(datagram.from.ip(), message, max) {
                Ok(Some(answer)) => out.extend_from_slice(&answer),
                Ok(None) => return,
                Err(asking) => {
                    let (listener, datagram, message) = (self.clone(), *datagram, message.to_vec());
                    let place = enter(&self.port.waiting, &self.inbound.metrics, datagram.from.ip());
                    rt::spawn_local(async move {
                        if let Some(answer) = Answerer::wait(place, asking, &message).await {
                            listener.send_late(&datagram, &answer);
                        }
                    });
                    return;
                }
            },
        }
        scratch.outgoing.push(outgoing(datagram, start, out.len() - start));
    }

    fn flush(&self, scratch: &mut Scratch, out: &[u8]) {
        let Scratch { batch, outgoing } = scratch;
        if outgoing.is_empty() {
            return;
        }
        let sent = self.socket.borrow().send_from(batch, out, outgoing);
        let metrics = &self.inbound.metrics.datagrams;
        metrics.down.add(sent.sent as u64);
        metrics.dropped.note(&sent);
        outgoing.clear();
    }

    fn send_late(&self, datagram: &Datagram, answer: &[u8]) {
        let scratch = &mut *self.inbound.scratch.borrow_mut();
        scratch.outgoing.push(outgoing(datagram, 0, answer.len()));
        self.flush(scratch, answer);
    }
}

/// The answer to a question, from the address that was asked.
fn outgoing(question: &Datagram, start: usize, len: usize) -> Outgoing {
    Outgoing { key: 0, to: question.from, from: question.to, class: 0, start, len }
}

/// A place for a question of `client`; one that makes room is counted.
pub(crate) fn enter(waiting: &Rc<Crowd>, metrics: &InboundMetrics, client: IpAddr) -> CrowdPlace {
    metrics.datagrams.dropped.full.add(u64::from(waiting.is_full()));
    waiting.enter(EvictionRank::Unanswered, client)
}

/// Answers the questions of a connection of `peer` until its end, or until it has to make room. Until its first question is
/// whole it gives way first.
///
/// # Errors
/// The connection's error.
pub(crate) async fn serve_stream(
    inbound: &Inbound,
    answerer: &Answerer,
    stream: &Stream,
    peer: IpAddr,
    place: &CrowdPlace,
) -> io::Result<()> {
    let entry = enter_unknown(inbound, peer, false);
    let served = place.unless_out(Box::pin(serve_questions(inbound, answerer, stream, peer, place, &entry)));
    let Some(Some(served)) = entry.unless_over(served).await else {
        inbound.metrics.refused.overload.add(1);
        return Ok(());
    };
    served
}

async fn serve_questions(
    inbound: &Inbound,
    answerer: &Answerer,
    stream: &Stream,
    peer: IpAddr,
    place: &CrowdPlace,
    entry: &ConnectionEntry,
) -> io::Result<()> {
    let (mut incoming, mut out) = (Vec::new(), Vec::with_capacity(MAX_SHORT));
    loop {
        let message = rt::timeout(IDLE, next_message(stream, &mut incoming)).await;
        let Some(message) = message.unwrap_or(Ok(None))? else { return Ok(()) };
        inbound.metrics.take_request();
        place.set_rank(EvictionRank::Unanswered);
        entry.set_rank(EvictionRank::Unanswered);
        entry.touch();
        out.clear();
        out.extend_from_slice(&[0; 2]);
        match answerer.answer(&message, rt::now(), &mut out) {
            FastAnswer::Nothing => return Ok(()),
            FastAnswer::Written => {}
            FastAnswer::Ask(_) => {
                let answer = Box::pin(answerer.query_from(peer, &message, MAX_MESSAGE)).await;
                let Some(answer) = answer else { return Ok(()) };
                out.extend_from_slice(&answer);
            }
        }
        let len = u16::try_from(out.len() - 2).map_err(|_| io::ErrorKind::InvalidData)?;
        out[..2].copy_from_slice(&len.to_be_bytes());
        let sent = rt::timeout(IDLE, stream.send_all(&out)).await;
        sent.unwrap_or_else(|rt::Elapsed| Err(io::ErrorKind::TimedOut.into()))?;
    }
}

/// The next message of a stream; `None` at its end. `incoming` keeps what has come behind it.
async fn next_message(stream: &Stream, incoming: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    const READ_LEN: usize = 1024;
    loop {
        if let Some(len) = incoming.first_chunk::<2>() {
            let end = 2 + usize::from(u16::from_be_bytes(*len));
            if incoming.len() >= end {
                let rest = incoming.split_off(end);
                let mut message = std::mem::replace(incoming, rest);
                message.drain(..2);
                return Ok(Some(message));
            }
        }
        let at = incoming.len();
        incoming.resize(at + READ_LEN, 0);
        let received = stream.recv(&mut incoming[at..]).await;
        incoming.truncate(at + *received.as_ref().unwrap_or(&0));
        if received? == 0 {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_get_no_answer() {
        let of = |allow: &[&str], listen: &str, local: &str, peer: &str| {
            let allow = allow.iter().map(|text| Cidr::parse(text).unwrap()).collect();
            let config = DnsInbound { allow, ..DnsInbound::default() };
            let factory = DnsFactory::new(&config, &[listen.parse().unwrap()]);
            accepts(&config.allow, factory.is_local, Some(local.parse().unwrap()), peer.parse().unwrap())
        };
        let (all, lan, public) = ("0.0.0.0:53", "192.168.1.1:53", "203.0.113.1:53");
        for (allow, listen, local, peer, want) in [
            // This machine: by loopback, redirected to loopback, and by an address of its own.
            (&[][..], all, "127.0.0.1", "127.0.0.1", true),
            (&[], all, "127.0.0.1", "203.0.113.1", true),
            (&[], all, "203.0.113.1", "203.0.113.1", true),
            (&[], "[::]:53", "::1", "::1", true),
            (&[], "[::]:53", "::ffff:127.0.0.1", "::ffff:203.0.113.1", true),
            // Others.
            (&[], all, "192.168.1.1", "192.168.1.2", false),
            (&[], all, "203.0.113.1", "198.51.100.1", false),
            (&[], lan, "192.168.1.1", "192.168.1.2", true),
            (&[], lan, "192.168.1.1", "198.51.100.1", false),
            (&[], public, "203.0.113.1", "198.51.100.1", false),
            (&[], public, "203.0.113.1", "192.168.1.2", false),
            (&["192.168.1.0/24"], all, "192.168.1.1", "192.168.1.2", true),
            (&["192.168.1.0/24"], all, "192.168.1.1", "::ffff:192.168.1.2", true),
            (&["192.168.1.0/24"], lan, "192.168.1.1", "192.168.2.2", false),
            (&["2001:db8::/32"], all, "2001:db8::1", "2001:db8::2", true),
        ] {
            assert_eq!(of(allow, listen, local, peer), want, "{allow:?} {listen} {local} {peer}");
        }
        let warned = |listen: &str| warning(&DnsInbound::default(), &[listen.parse().unwrap()]).is_some();
        assert!(warned(all) && warned(public) && !warned(lan) && !warned("127.0.0.1:53"));
    }
}
