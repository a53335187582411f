//! Checks of members: a small page is fetched through each, or a name server is asked.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use adit_model::{self as model, HttpUrl};
use adit_net::rt::{self, Pool};
use adit_net::udp::{DatagramBatch, Outgoing};
use adit_proto::wire::{Rng, Target};

use super::state::{Due, Transport, wait};
use super::{CheckFailure, Group, Here};
use crate::connections::record::Side;
use crate::datagram::{FlowClass, FlowCodec, FlowLookup, FlowTransport, PacketOutbound};
use crate::relay::Endpoint;
use crate::relay::payload::{PendingPayload, poll_recv};
use crate::rng::OsRng;

/// First bytes of an answer.
const HTTP: &[u8] = b"HTTP/1.";
/// Bytes of a question for the address of the root, which has none: the answer is short, and there always is one.
const QUESTION_LEN: usize = 17;
/// The bit of an answer in the third byte (RFC 1035, section 4.1.1).
const IS_ANSWER: u8 = 0x80;

/// The check that is sent through the members of a group.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    page: Target,
    request: Box<[u8]>,
    dns: SocketAddr,
}

impl Check {
    /// As configured.
    ///
    /// # Errors
    /// When the address of the page is none.
    pub(crate) fn new(check: &model::Check) -> io::Result<Self> {
        let url =
            HttpUrl::parse(&check.url).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let HttpUrl { target, authority, path } = url;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\nConnection: close\r\n\r\n");
        Ok(Self { page: target, request: request.into_bytes().into(), dns: check.dns })
    }
}

/// Checks the members of a group for as long as it is polled.
pub(crate) async fn run(group: Rc<Group>, check: Check, pool: Pool) {
    let check = Rc::new(check);
    loop {
        while let Some(due) = group.shared.poll_check(rt::now()) {
            let (group, check, pool) = (group.clone(), check.clone(), pool.clone());
            rt::spawn_local(async move { run_one(&group, &check, &pool, &due).await });
        }
        wait(&group.shared, group.shared.next_at()).await;
    }
}

async fn run_one(group: &Group, check: &Check, pool: &Pool, due: &Due) {
    let begun = rt::now();
    let is_connected = Cell::new(false);
    let checking = async {
        let here = group.find(&due.member).ok_or(CheckFailure::NoConnection)?;
        match due.transport {
            Transport::Tcp => check_streams(&here, check, pool, &is_connected).await,
            Transport::Udp => check_datagrams(&here, check, &is_connected).await,
        }
    };
    let result = rt::timeout(due.timeout, Box::pin(checking)).await.unwrap_or_else(|rt::Elapsed| {
        Err(if is_connected.get() { CheckFailure::NoAnswer } else { CheckFailure::NoConnection })
    });
    let now = rt::now();
    let result = result.map(|()| now.saturating_duration_since(begun));
    group.shared.handle_check(due, result, now);
}

/// Fetches the page over a connection of its own.
async fn check_streams(
    here: &Here,
    check: &Check,
    pool: &Pool,
    is_connected: &Cell<bool>,
) -> Result<(), CheckFailure> {
    let outbound = &here.leaf.outbound;
    let refused = if outbound.is_tunnel() { CheckFailure::NoConnection } else { CheckFailure::NoAnswer };
    let opened = Box::pin(outbound.connect((&check.page).into(), true)).await.map_err(|_| refused)?;
    is_connected.set(true);
    let mut far = opened.far;
    let mut outbox = PendingPayload::default();
    outbox.text().extend(&check.request);
    let mut begin = Vec::new();
    let is_answered = poll_fn(|cx| poll_answer(&mut far, &mut outbox, &mut begin, pool, cx)).await;
    // The rest of the answer is of no use.
    far.stream.abort_on_close();
    if is_answered { Ok(()) } else { Err(CheckFailure::NoAnswer) }
}

/// True when an answer has begun, false when none will.
fn poll_answer(
    far: &mut Endpoint,
    outbox: &mut PendingPayload,
    begin: &mut Vec<u8>,
    pool: &Pool,
    cx: &mut Context<'_>,
) -> Poll<bool> {
    if !outbox.is_empty() && ready!(outbox.poll_flush(far, Side::Far, pool, cx)).is_err() {
        return Poll::Ready(false);
    }
    loop {
        let Ok(received) = ready!(poll_recv(far, Side::Far, pool, cx)) else { return Poll::Ready(false) };
        for part in &received.chunk.out {
            let bytes = &received.chunk.buf.block()[part.clone()];
            begin.extend(&bytes[..bytes.len().min(HTTP.len() - begin.len())]);
        }
        let is_whole = begin.len() == HTTP.len();
        if is_whole || received.ended {
            return Poll::Ready(is_whole && begin == HTTP);
        }
    }
}

/// Asks the name server from a port of its own.
async fn check_datagrams(here: &Here, check: &Check, is_connected: &Cell<bool>) -> Result<(), CheckFailure> {
    let outbound = here.leaf.packets.as_ref().ok_or(CheckFailure::NoConnection)?;
    let dns = Target::from(check.dns);
    let to = address(&**outbound, &dns).await.ok_or(CheckFailure::NoConnection)?;
    let flow = outbound.clone().begin(&dns, FlowClass::Common, 0).map_err(|_| CheckFailure::NoConnection)?;
    let FlowTransport::Socket(socket, mut codec) = flow.transport else {
        return Err(CheckFailure::NoConnection);
    };
    let mut batch = DatagramBatch::default();
    let mut id = [0; 2];
    OsRng.fill(&mut id);
    let range = place_question(&mut codec, &mut batch, &dns, id).ok_or(CheckFailure::NoConnection)?;
    let outgoing = Outgoing { key: 0, to, from: None, class: 0, start: range.start, len: range.len() };
    let sent = socket.send(&mut batch, &[outgoing]);
    if sent.sent == 0 {
        return Err(CheckFailure::NoConnection);
    }
    // Whether the server is there shows only in the answer.
    is_connected.set(true);
    poll_fn(|cx| {
        loop {
            ready!(socket.poll_receive(cx, &mut batch, &mut 0)).map_err(|_| CheckFailure::NoAnswer)?;
            for at in 0..batch.len() {
                let Some(datagram) = batch.get(at) else { break };
                let bytes = &mut batch.block[datagram.range()];
                let payload = match &mut codec {
                    None => Ok(0..bytes.len()),
                    Some(codec) => codec.open(bytes, rt::unix_time()).map(|(_, payload)| payload),
                };
                if payload.is_ok_and(|payload| is_answer(&bytes[payload], id)) {
                    return Poll::Ready(Ok(()));
                }
            }
        }
    })
    .await
}

/// Address to which a datagram for `target` has to be sent.
async fn address(outbound: &dyn PacketOutbound, target: &Target) -> Option<SocketAddr> {
    // The caller's clock is the clock of the names; an answer that seems old is asked for again.
    poll_fn(|cx| match outbound.find(target, None, Some(cx.waker()), 0) {
        FlowLookup::Addr(addr) => Poll::Ready(Some(addr)),
        FlowLookup::Nothing | FlowLookup::Private(_) => Poll::Ready(None),
        FlowLookup::Pending => Poll::Pending,
    })
    .await
}

/// Puts the sealed question into the block.
fn place_question(
    codec: &mut Option<Box<dyn FlowCodec>>,
    batch: &mut DatagramBatch,
    dns: &Target,
    id: [u8; 2],
) -> Option<std::ops::Range<usize>> {
    let question = question(id);
    let room = codec.as_mut().map(|codec| codec.room(dns, &question));
    let (head, tail) = room.map_or((0, 0), |room| (room.head, room.tail));
    let place = batch.take_spare(head + QUESTION_LEN + tail)?;
    let payload = place.start + head..place.start + head + QUESTION_LEN;
    batch.block[payload.clone()].copy_from_slice(&question);
    match codec {
        None => Some(payload),
        Some(codec) => codec.seal(&mut batch.block, payload, dns, rt::unix_time()).ok(),
    }
}

/// For the address (type A, class IN) of the root, recursion desired.
fn question(id: [u8; 2]) -> [u8; QUESTION_LEN] {
    [id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]
}

fn is_answer(bytes: &[u8], id: [u8; 2]) -> bool {
    bytes.len() >= QUESTION_LEN - 5 && bytes[..2] == id && bytes[2] & IS_ANSWER != 0
}
