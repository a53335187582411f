//! The outbound whose every target is this process's own name service.
//!
//! ```text
//!   stream:    [ length 2 | question ] .. ─→ [ length 2 | answer ] ..        RFC 1035, section 4.2.2
//!   datagram:  question ─→ a task, at most MAX_WAITING ─→ queue of the flow ─→ [ source 18 | answer ] in a block
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use adit_model::{Dial, Tag};
use adit_net::rt::{self, Pool, Stream};
use adit_proto::wire::{Host, Target, WireError};

use crate::admission::{Crowd, CrowdPlace, EvictionRank};
use crate::datagram::{
    DropReason, FlowClass, FlowLookup, FlowStream, FlowTick, FlowTransport, PacketFlow, PacketOutbound,
};
use crate::dns::{Answerer, Scope};
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::relay::payload::Received;
use crate::relay::{Endpoint, Policy, RelayOutcome};
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// Questions in datagrams of one core that wait for other name servers, or whose answers wait for the client; one more has
/// the oldest dropped, of a client with far more than its part. Each takes some 2 KB.
const MAX_WAITING: usize = 1024;
/// The source in front of an answer: an address of IPv6, or of IPv4 within it, and a port.
const SOURCE_LEN: usize = 18;

/// The name service as an outbound, for every core.
#[derive(Debug)]
pub(crate) struct DnsOutboundFactory {
    /// Whether AAAA records are answered; otherwise names have none.
    pub(crate) ipv6: bool,
}

impl OutboundFactory for DnsOutboundFactory {
    fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
        let names = around.dns.scope(&Dial::default());
        let answerer = Rc::new(Answerer::own(names.clone(), self.ipv6));
        let packets = NamePackets {
            answerer: answerer.clone(),
            names: names.clone(),
            pool: around.pool.clone(),
            waiting: Crowd::new(MAX_WAITING),
            flows: Cell::new(0),
        };
        let outbound = NameService { name: connector.name, names, answerer };
        OutboundHandle { outbound: Rc::new(outbound), packets: Some(Rc::new(packets)) }
    }
}

struct NameService {
    name: Tag,
    names: Scope,
    answerer: Rc<Answerer>,
}

impl Outbound for NameService {
    fn name(&self) -> &Tag {
        &self.name
    }

    fn is_tunnel(&self) -> bool {
        false
    }

    fn connect<'a>(
        &'a self,
        _: ConnectTarget<'a>,
        _fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(async move {
            let (ours, theirs) = Stream::pair().map_err(OpenError::Handshake)?;
            let answerer = self.answerer.clone();
            rt::spawn_local(async move { answer(&theirs, &answerer).await });
            Ok(OpenedConnection::new(Endpoint::plain(ours), Policy::default()))
        })
    }

    fn release(&self, _opened: OpenedConnection, _outcome: &RelayOutcome, _pool: &Pool) {}

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(async move { self.names.lookup(name, self.names.family()).await.ok() })
    }
}

/// Answers the questions of one stream, one after the other, until it ends or sends what is no question.
async fn answer(stream: &Stream, names: &Answerer) {
    let mut question = Vec::new();
    loop {
        let mut len = [0; 2];
        if !fill(stream, &mut len).await {
            return;
        }
        question.resize(usize::from(u16::from_be_bytes(len)), 0);
        if !fill(stream, &mut question).await {
            return;
        }
        let Some(reply) = names.reply(Ipv4Addr::UNSPECIFIED.into(), &question, true).await else { return };
        let Ok(len) = u16::try_from(reply.len()) else { return };
        let message = [&len.to_be_bytes()[..], &reply].concat();
        if stream.send_all(&message).await.is_err() {
            return;
        }
    }
}

/// Receives until `bytes` is full; false if the stream ends before.
async fn fill(stream: &Stream, bytes: &mut [u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match stream.recv(&mut bytes[at..]).await {
            Ok(received) if received > 0 => at += received,
            Ok(_) | Err(_) => return false,
        }
    }
    true
}

/// The name service for datagrams, on one core.
struct NamePackets {
    answerer: Rc<Answerer>,
    names: Scope,
    pool: Pool,
    /// Questions that wait, and answers: each has its place until its answer has left.
    waiting: Rc<Crowd>,
    /// Flows that have begun, which number the clients.
    flows: Cell<u64>,
}

impl PacketOutbound for NamePackets {
    fn begin(self: Rc<Self>, _: &Target, _: FlowClass, _: FlowTick) -> Result<PacketFlow, DropReason> {
        let number = self.flows.get();
        self.flows.set(number + 1);
        // In the upper half, which tells one source from another.
        let client = Ipv6Addr::from_bits(u128::from(number) << 64).into();
        let flow = NameFlow { names: self.clone(), client, answers: Rc::default() };
        Ok(PacketFlow {
            transport: FlowTransport::Stream(Box::new(flow)),
            outbound: self,
            witness: None,
            chain: Vec::new(),
        })
    }

    fn find(&self, target: &Target, at: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        match at {
            Some(ip) => FlowLookup::Addr(SocketAddr::new(ip, target.port)),
            None => FlowLookup::find(&self.names, target, waker),
        }
    }
}

/// The questions of one client.
struct NameFlow {
    names: Rc<NamePackets>,
    /// Stands for the client, whose address the flow does not know.
    client: IpAddr,
    answers: Rc<Answers>,
}

/// Answers that wait to be received, each with its source.
#[derive(Default)]
struct Answers {
    waiting: RefCell<VecDeque<(SocketAddr, CrowdPlace)>>,
    waker: Cell<Option<Waker>>,
}

impl Answers {
    /// Keeps an answer, whose place holds it.
    fn push(&self, source: SocketAddr, place: CrowdPlace) {
        self.forget();
        self.waiting.borrow_mut().push_back((source, place));
    }

    /// Drops those in front that have made room.
    fn forget(&self) {
        let mut waiting = self.waiting.borrow_mut();
        while waiting.front().is_some_and(|(_, place)| place.kept_len().is_none()) {
            waiting.pop_front();
        }
    }
}

impl NamePackets {
    /// The answer to a question with the address that it is from.
    async fn reply(&self, client: IpAddr, target: &Target, question: &[u8]) -> Option<(SocketAddr, Vec<u8>)> {
        let ip = match &target.host {
            Host::Ip(ip) => *ip,
            Host::Name(name) => *self.names.lookup(name, self.names.family()).await.ok()?.first()?,
        };
        let answer = self.answerer.reply(client, question, false).await?;
        Some((SocketAddr::new(ip, target.port), answer))
    }
}

impl FlowStream for NameFlow {
    fn push(&mut self, target: &Target, payload: &[u8], _: FlowTick, _: Instant) -> Result<(), DropReason> {
        let (names, answers) = (self.names.clone(), Rc::downgrade(&self.answers));
        let client = self.client;
        let place = names.waiting.enter(EvictionRank::Unanswered, client);
        let (target, question) = (target.clone(), payload.to_vec());
        rt::spawn_local(async move {
            let reply = Box::pin(names.reply(client, &target, &question));
            let reply = place.unless_out(reply).await.flatten();
            let (Some((source, answer)), Some(answers)) = (reply, answers.upgrade()) else { return };
            place.keep(answer);
            answers.push(source, place);
            if let Some(waker) = answers.waker.take() {
                waker.wake();
            }
        });
        Ok(())
    }

    fn poll_flush(&mut self, _: &mut Context<'_>, _: FlowTick) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn flush_if_long(&mut self, _: &mut Context<'_>, _: FlowTick) {}

    fn poll_receive(&mut self, cx: &mut Context<'_>, _: FlowTick) -> Poll<Result<Received, ()>> {
        self.answers.forget();
        let mut waiting = self.answers.waiting.borrow_mut();
        if waiting.is_empty() {
            self.answers.waker.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let mut chunk = ready!(rt::poll_chunk(&self.names.pool, cx));
        let (block, mut at) = (chunk.buf.block_mut(), 0);
        let mut frames = Vec::new();
        while let Some((source, answer)) = waiting.front() {
            let Some(len) = answer.kept_len() else {
                waiting.pop_front();
                continue;
            };
            let frame = at..at + SOURCE_LEN + len;
            let Some(place) = block.get_mut(frame.clone()) else { break };
            answer.with_kept(|answer| write_frame(place, *source, answer));
            waiting.pop_front();
            at = frame.end;
            frames.push(frame);
        }
        // Frames touch, and stay apart.
        chunk.out.extend(frames);
        Poll::Ready(Ok(Received { chunk, ended: false }))
    }

    fn parse(&self, frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
        let (ip, rest) = frame.split_first_chunk::<16>().ok_or(WireError::Truncated { what: "answer" })?;
        let port = rest.first_chunk::<2>().ok_or(WireError::Truncated { what: "answer" })?;
        let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
        Ok((SocketAddr::new(ip, u16::from_be_bytes(*port)), SOURCE_LEN))
    }

    fn end(&mut self, _: FlowTick) {}
}

/// Writes an answer behind its source.
fn write_frame(place: &mut [u8], source: SocketAddr, answer: &[u8]) {
    let ip = match source.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    place[..16].copy_from_slice(&ip.octets());
    place[16..SOURCE_LEN].copy_from_slice(&source.port().to_be_bytes());
    place[SOURCE_LEN..].copy_from_slice(answer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_wait_count_like_questions() {
        let waiting = Crowd::new(MAX_WAITING);
        let (unread, read) = (Answers::default(), Answers::default());
        let client = |number: u128| IpAddr::V6(Ipv6Addr::from_bits(number << 64));
        let answer = |of: &Answers, number| {
            let place = waiting.enter(EvictionRank::Unanswered, client(number));
            place.keep(vec![7; 100]);
            of.push(([192, 0, 2, 1], 53).into(), place);
        };
        answer(&read, 2);
        // A client that takes no answers loses its own, the first of them.
        (0..3 * MAX_WAITING).for_each(|_| answer(&unread, 1));
        assert_eq!(waiting.taken(), MAX_WAITING);
        assert_eq!(unread.waiting.borrow().len(), MAX_WAITING - 1);
        assert_eq!(read.waiting.borrow()[0].1.kept_len(), Some(100));
        drop((unread, read));
        assert_eq!(waiting.taken(), 0);
    }
}
