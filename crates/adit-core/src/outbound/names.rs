//! The outbound whose every target is this process's own name service.
//!
//! ```text
//!   stream:    [ length 2 | question ] .. ─→ [ length 2 | answer ] ..        RFC 1035, section 4.2.2
//!   datagram:  question ─→ a task, at most MAX_WAITING ─→ queue of the flow ─→ [ source 18 | answer ] in a block
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use adit_config::model::{Dial, Tag};
use adit_net::rt::{self, Pool, Stream};
use adit_proto::wire::{Host, Target, WireError};

use super::{Around, Connector, Factory};
use crate::dispatch::{Destination, Future, Leaf, OpenError, Opened, Outbound};
use crate::dns::{Answerer, Scope};
use crate::packet::{DropReason, FlowStream, FlowTransport, Known, Lane, PacketFlow, PacketOutbound, Tick};
use crate::relay::payload::Received;
use crate::relay::{Endpoint, Outcome, Policy};

/// Questions in datagrams of one core that wait for other name servers, or whose answers wait for the client; further ones
/// are dropped. Each takes some 2 KB.
const MAX_WAITING: usize = 1024;
/// The source in front of an answer: an address of IPv6, or of IPv4 within it, and a port.
const SOURCE_LEN: usize = 18;

/// The name service as an outbound, for every core.
#[derive(Debug)]
pub(super) struct NamesFactory {
    /// Whether AAAA records are answered; otherwise names have none.
    pub(super) ipv6: bool,
}

impl Factory for NamesFactory {
    fn on_core(&self, connector: Connector, around: &Around<'_>) -> Leaf {
        let names = around.dns.scope(&Dial::default());
        let answerer = Rc::new(Answerer::own(names.clone(), self.ipv6));
        let packets = NamePackets {
            answerer: answerer.clone(),
            names: names.clone(),
            pool: around.pool.clone(),
            waiting: Rc::default(),
        };
        let outbound = NameService { name: connector.name, names, answerer };
        Leaf { outbound: Rc::new(outbound), packets: Some(Rc::new(packets)) }
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

    fn connect<'a>(&'a self, _: Destination<'a>, _fresh: bool) -> Future<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let (ours, theirs) = Stream::pair().map_err(OpenError::Handshake)?;
            let answerer = self.answerer.clone();
            rt::spawn_local(async move { answer(&theirs, &answerer).await });
            Ok(Opened::new(Endpoint::plain(ours), Policy::default()))
        })
    }

    fn release(&self, _opened: Opened, _outcome: &Outcome, _pool: &Pool) {}

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
        let Some(reply) = names.reply(&question, true).await else { return };
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
    /// Questions that wait, and answers.
    waiting: Rc<Cell<usize>>,
}

/// One of [`MAX_WAITING`], from the question until its answer has left.
struct Place(Rc<Cell<usize>>);

impl Place {
    fn take(waiting: &Rc<Cell<usize>>) -> Option<Self> {
        let count = waiting.get();
        waiting.set(count + usize::from(count < MAX_WAITING));
        (count < MAX_WAITING).then(|| Self(waiting.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl PacketOutbound for NamePackets {
    fn begin(self: Rc<Self>, _: &Target, _: Lane, _: Tick) -> Result<PacketFlow, DropReason> {
        let flow = NameFlow { names: self.clone(), answers: Rc::default() };
        Ok(PacketFlow {
            transport: FlowTransport::Stream(Box::new(flow)),
            outbound: self,
            witness: None,
            chain: Vec::new(),
        })
    }

    fn find(&self, target: &Target, at: Option<IpAddr>, waker: Option<&Waker>, _: Tick) -> Known {
        match at {
            Some(ip) => Known::Addr(SocketAddr::new(ip, target.port)),
            None => Known::find(&self.names, target, waker),
        }
    }
}

/// The questions of one client.
struct NameFlow {
    names: Rc<NamePackets>,
    answers: Rc<Answers>,
}

/// Answers that wait to be received, each with its source.
#[derive(Default)]
struct Answers {
    waiting: RefCell<VecDeque<(SocketAddr, Vec<u8>, Place)>>,
    waker: Cell<Option<Waker>>,
}

impl NamePackets {
    /// The answer to a question with the address that it is from.
    async fn reply(&self, target: &Target, question: &[u8]) -> Option<(SocketAddr, Vec<u8>)> {
        let ip = match &target.host {
            Host::Ip(ip) => *ip,
            Host::Name(name) => *self.names.lookup(name, self.names.family()).await.ok()?.first()?,
        };
        let answer = self.answerer.reply(question, false).await?;
        Some((SocketAddr::new(ip, target.port), answer))
    }
}

impl FlowStream for NameFlow {
    fn push(&mut self, target: &Target, payload: &[u8], _: Tick, _: Instant) -> Result<(), DropReason> {
        let (names, answers) = (self.names.clone(), Rc::downgrade(&self.answers));
        let place = Place::take(&names.waiting).ok_or(DropReason::Backlog)?;
        let (target, question) = (target.clone(), payload.to_vec());
        rt::spawn_local(async move {
            let reply = Box::pin(names.reply(&target, &question)).await;
            let (Some((source, answer)), Some(answers)) = (reply, answers.upgrade()) else { return };
            answers.waiting.borrow_mut().push_back((source, answer, place));
            if let Some(waker) = answers.waker.take() {
                waker.wake();
            }
        });
        Ok(())
    }

    fn poll_flush(&mut self, _: &mut Context<'_>, _: Tick) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn flush_if_long(&mut self, _: &mut Context<'_>, _: Tick) {}

    fn poll_receive(&mut self, cx: &mut Context<'_>, _: Tick) -> Poll<Result<Received, ()>> {
        let mut waiting = self.answers.waiting.borrow_mut();
        if waiting.is_empty() {
            self.answers.waker.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let mut chunk = ready!(rt::poll_chunk(&self.names.pool, cx));
        let (block, mut at) = (chunk.buf.block_mut(), 0);
        let mut frames = Vec::new();
        while let Some((source, answer, _)) = waiting.front() {
            let frame = at..at + SOURCE_LEN + answer.len();
            let Some(place) = block.get_mut(frame.clone()) else { break };
            write_frame(place, *source, answer);
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

    fn end(&mut self, _: Tick) {}
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
        let waiting = Rc::new(Cell::new(0));
        let answers = Answers::default();
        while let Some(place) = Place::take(&waiting) {
            answers.waiting.borrow_mut().push_back((([192, 0, 2, 1], 53).into(), Vec::new(), place));
        }
        assert_eq!(answers.waiting.borrow().len(), MAX_WAITING);
        answers.waiting.borrow_mut().pop_front();
        assert!(Place::take(&waiting).is_some());
        drop(answers);
        assert_eq!(waiting.get(), 0);
    }
}
