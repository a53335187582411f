//! One request and its response, both under way at the same time.
//!
//! ```text
//!   client ── wire, reads ──▶ body framer ──▶ outbox ──▶ far end      the server may answer at any time,
//!   client ◀── outbox ◀── head, body framer ◀── reads ── far end      and what it says decides when it is over
//! ```
//!
//! Both directions are polled from one place, one read each per turn, and nothing is read for a direction whose
//! destination is full.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use adit_net::rt::fair::Place;
use adit_net::rt::{self, Chunk, Pool};
use adit_proto::buf::RecvBuf;
use adit_proto::http::{
    self, BodyError, BodyFramer, Disposition, HeadError, HeadScanner, ResponseHead, Status,
};
use adit_proto::wire::{ConnectFailure, WireError};

use crate::connections::record::{EndReason, Side};
use crate::connections::table::ConnectionEntry;
use crate::counters::Traffic;
use crate::relay::payload::{PendingPayload, Received, poll_recv_most};
use crate::relay::{Endpoint, REPLAY_LEN};
use crate::users::{Lease, UserDirection};

/// One read of a request's body, in bytes. Bytes behind the body's end are kept for the next request, so this
/// bounds it.
const UPLOAD_READ: usize = 64 * 1024;
/// Interim responses to one request; real servers send one or two.
const MAX_INTERIM: u32 = 32;
/// A head is looked for in steps of so many bytes, so that the body behind it is not copied.
const HEAD_STEP: usize = 1024;

/// The state that an exchange works with.
pub(super) struct HttpContext<'a> {
    pub(super) near: &'a mut Endpoint,
    pub(super) far: &'a mut Endpoint,
    /// Bytes of the client that are not used yet.
    pub(super) wire: &'a mut RecvBuf,
    /// Position in the request's body.
    pub(super) body: &'a mut BodyFramer,
    /// Collects what is sent, as long as it may have to be sent again.
    pub(super) replay: &'a mut Option<Vec<u8>>,
    pub(super) pool: &'a Pool,
    pub(super) entry: &'a ConnectionEntry,
    pub(super) traffic: &'a Traffic,
}

/// Result of an exchange.
pub(super) struct Passed {
    pub(super) end: Result<End, Broken>,
    /// Bytes from the client to the target, heads included.
    pub(super) up: u64,
    /// Bytes from the target to the client.
    pub(super) down: u64,
    /// Nothing of the final response has been given out, and what was is whole: an answer of our own can follow.
    pub(super) may_answer: bool,
    /// The client's connection is ready for another request.
    pub(super) client_keeps: bool,
    /// The target's connection is ready for another request.
    pub(super) target_keeps: bool,
    /// The far end has ended its direction.
    pub(super) far_ended: bool,
    /// Everything that was sealed for the far end has been sent.
    pub(super) is_clean: bool,
}

/// Orderly ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The response has been passed on.
    Done,
    /// The response was 101: both ends speak another protocol now.
    Switched,
}

/// The other ends.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) reason: EndReason,
    /// The status for the client, if it can still be sent.
    pub(super) status: Status,
}

impl From<EndReason> for Broken {
    fn from(reason: EndReason) -> Self {
        Self { status: failure(&reason).into(), reason }
    }
}

impl Broken {
    fn bad_head(error: &HeadError) -> Self {
        tracing::debug!(%error, "bad response");
        EndReason::Wire(WireError::Malformed { what: "response head", got: 0 }).into()
    }

    fn bad_body(what: &'static str, error: BodyError, status: Status) -> Self {
        tracing::debug!(%error, what, "bad body");
        let reason = match error {
            BodyError::Truncated => WireError::Truncated { what },
            BodyError::BadByte { byte, .. } => WireError::Malformed { what, got: byte.into() },
            BodyError::ChunkTooLong | BodyError::TooLong(_) => WireError::Malformed { what, got: 0 },
        };
        Self { reason: EndReason::Wire(reason), status }
    }

    /// Whether the far end has gone without a word, as kept connections do.
    pub(super) fn is_silent_end(&self) -> bool {
        matches!(self.reason, EndReason::Socket(Side::Far, _) | EndReason::Wire(WireError::Truncated { .. }))
    }
}

/// The failure that a client is told for a reason.
fn failure(reason: &EndReason) -> ConnectFailure {
    /// Linux's numbers: servers send theirs, and they are this system's.
    const EPERM: u8 = 1;
    const EACCES: u8 = 13;
    const ENETUNREACH: u8 = 101;
    const ETIMEDOUT: u8 = 110;
    const ECONNREFUSED: u8 = 111;
    const EHOSTUNREACH: u8 = 113;
    match reason {
        EndReason::Wire(WireError::Remote { code, .. }) => match *code {
            EPERM | EACCES => ConnectFailure::NotAllowed,
            ENETUNREACH => ConnectFailure::NetworkUnreachable,
            ETIMEDOUT => ConnectFailure::TimedOut,
            ECONNREFUSED => ConnectFailure::ConnectionRefused,
            EHOSTUNREACH => ConnectFailure::HostUnreachable,
            _ => ConnectFailure::General,
        },
        EndReason::Idle | EndReason::Socket(_, io::ErrorKind::TimedOut) => ConnectFailure::TimedOut,
        EndReason::Finished
        | EndReason::Crowded
        | EndReason::Kicked
        | EndReason::Stopped
        | EndReason::Limited(_)
        | EndReason::Socket(..)
        | EndReason::Wire(_) => ConnectFailure::General,
    }
}

enum Response {
    /// A head is to come; so much of it is there.
    Head { scanner: HeadScanner, head: Vec<u8> },
    /// The body of the final response; `decode` if the client knows no chunks.
    Body { body: BodyFramer, decode: bool },
    /// All has been read.
    Done,
    /// So has the head of a 101.
    Switched,
}

impl Response {
    fn head() -> Self {
        Self::Head { scanner: HeadScanner::new(), head: Vec::new() }
    }
}

#[derive(Default)]
struct Flow {
    outbox: PendingPayload,
    bytes: u64,
    has_read: bool,
    /// The source has bytes for another turn.
    has_more: bool,
}

/// An exchange under way.
pub(super) struct HttpExchange<'a> {
    parts: HttpContext<'a>,
    /// The user whose bytes these are, where there are users.
    user: Option<Rc<Lease>>,
    request: http::Exchange,
    up: Flow,
    down: Flow,
    response: Response,
    interim: u32,
    client_keeps: bool,
    target_keeps: bool,
    near_ended: bool,
    far_ended: bool,
    /// The far end takes nothing more; it may have answered all the same.
    far_is_deaf: bool,
    place: Place,
}

impl<'a> HttpExchange<'a> {
    /// Begins by sending `head`.
    pub(super) fn new(parts: HttpContext<'a>, request: http::Exchange, head: Vec<u8>) -> Self {
        let mut exchange = Self {
            user: parts.entry.lease(),
            parts,
            request,
            up: Flow::default(),
            down: Flow::default(),
            response: Response::head(),
            interim: 0,
            client_keeps: false,
            target_keeps: false,
            near_ended: false,
            far_ended: false,
            far_is_deaf: false,
            place: Place::default(),
        };
        exchange.settle(UserDirection::Up, 0, head.len());
        exchange.note_up(&head);
        *exchange.up.outbox.text() = head;
        exchange
    }

    /// Runs until the response has been passed on or something breaks.
    pub(super) async fn run(mut self) -> Passed {
        let end = poll_fn(|cx| self.poll(cx)).await;
        self.parts.entry.set_wants_tick(false);
        let is_clean = self.up.outbox.is_empty();
        let is_sent = is_clean && self.parts.body.is_complete() && !self.far_is_deaf;
        Passed {
            end,
            up: self.up.bytes,
            down: self.down.bytes,
            may_answer: matches!(self.response, Response::Head { .. }) && self.down.outbox.is_empty(),
            client_keeps: self.client_keeps,
            target_keeps: self.target_keeps && is_sent && !self.far_ended,
            far_ended: self.far_ended,
            is_clean,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<End, Broken>> {
        self.parts.entry.set_waker(cx.waker());
        if let Some(reason) = self.parts.entry.over() {
            return Poll::Ready(Err(reason.into()));
        }
        let now = rt::now();
        ready!(self.place.poll_turn(cx, now));
        let moved = self.up.bytes + self.down.bytes;
        for flow in [&mut self.up, &mut self.down] {
            (flow.has_read, flow.has_more) = (false, false);
        }
        if let Poll::Ready(Err(broken)) = self.poll_up(cx) {
            return Poll::Ready(Err(broken));
        }
        let end = self.poll_down(cx, now);
        if end.is_pending() {
            let tails = self.parts.near.tail.capacity() + self.parts.far.tail.capacity();
            self.parts.entry.set_kept(tails + self.up.outbox.kept() + self.down.outbox.kept());
            let has_more = self.up.has_more || self.down.has_more;
            self.place.end_turn(cx, now, self.up.bytes + self.down.bytes - moved, has_more);
        }
        end
    }

    /// Passes the request on; never ready but for errors.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        while !self.far_is_deaf {
            let is_over = matches!(self.response, Response::Switched);
            if !is_over {
                self.take_wire()?;
            }
            let HttpContext { near, far, pool, body, wire, .. } = &mut self.parts;
            match ready!(self.up.outbox.poll_flush(far, Side::Far, pool, cx)) {
                Ok(()) => {}
                Err(EndReason::Socket(..)) => {
                    // Its answer may be there already: reading says more than writing.
                    self.far_is_deaf = true;
                    break;
                }
                Err(reason) => return Poll::Ready(Err(reason.into())),
            }
            if is_over || body.is_complete() {
                break;
            }
            ready!(near.stream.poll_readable(cx)).map_err(|error| near_failed(&error))?;
            if std::mem::replace(&mut self.up.has_read, true) {
                // A turn is one read: the others on this core come first.
                self.up.has_more = true;
                return Poll::Pending;
            }
            let mut chunk = ready!(rt::poll_chunk(pool, cx));
            let granted = match &self.user {
                Some(user) => ready!(user.poll_grant(UserDirection::Up, UPLOAD_READ, rt::now(), cx))
                    .map_err(EndReason::Limited)?,
                None => UPLOAD_READ,
            };
            let received = near.stream.poll_recv(cx, &mut chunk.buf.free_mut()[..granted]);
            let Poll::Ready(Ok(received @ 1..)) = received else {
                self.settle(UserDirection::Up, granted, 0);
                let received = ready!(received).map_err(|error| near_failed(&error))?;
                debug_assert_eq!(received, 0, "the others have been dealt with");
                return Poll::Ready(Err(near_failed(&io::ErrorKind::UnexpectedEof.into())));
            };
            let bytes = &chunk.buf.block()[..received];
            let framed = body.pass(bytes);
            // Bytes after the body belong to another request.
            let used = framed.as_ref().map_or(0, |framed| framed.used);
            if let Some(user) = &self.user {
                user.settle(UserDirection::Up, granted, used);
            }
            let framed = framed.map_err(bad_request)?;
            keep_for_next(wire, &bytes[framed.used..]);
            self.note_up(&chunk.buf.block()[..framed.used]);
            chunk.push_out(0..framed.used);
            self.up.outbox.push(chunk);
        }
        self.poll_near(cx)
    }

    /// Takes what has come with the head, so that it leaves with it.
    fn take_wire(&mut self) -> Result<(), Broken> {
        let framed = self.parts.body.pass(self.parts.wire.unread()).map_err(bad_request)?;
        if framed.used > 0 {
            let bytes = self.parts.wire.unread()[..framed.used].to_vec();
            self.settle(UserDirection::Up, 0, bytes.len());
            self.note_up(&bytes);
            self.up.outbox.text().extend(bytes);
            self.parts.wire.consume(framed.used);
        }
        Ok(())
    }

    /// Of what was granted to the user, so many bytes have moved.
    fn settle(&self, way: UserDirection, granted: usize, moved: usize) {
        if let Some(user) = &self.user {
            user.settle(way, granted, moved);
        }
    }

    fn note_up(&mut self, bytes: &[u8]) {
        self.up.bytes += bytes.len() as u64;
        self.parts.traffic.up.add(bytes.len() as u64);
        self.parts.entry.add_moved(bytes.len() as u64, 0);
        match &mut *self.parts.replay {
            Some(kept) if kept.len() + bytes.len() <= REPLAY_LEN => kept.extend(bytes),
            replay => *replay = None,
        }
    }

    /// The request has been read: watches for a client that goes away, and reads ahead a little.
    fn poll_near(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let HttpContext { near, wire, entry, .. } = &mut self.parts;
        let gone = || Poll::Ready(Err(near_failed(&io::ErrorKind::ConnectionAborted.into())));
        if self.near_ended {
            // It may have gone on from closing one direction to closing both.
            let is_gone = entry.quiet_for() > 0 && near.stream.peer_is_closed() == Some(true);
            return if is_gone { gone() } else { Poll::Pending };
        }
        loop {
            if wire.free_mut().is_empty() {
                wire.compact();
            }
            if wire.free_mut().is_empty() {
                return Poll::Pending;
            }
            let received = ready!(near.stream.poll_recv(cx, wire.free_mut()));
            let received = received.map_err(|error| near_failed(&error))?;
            if received == 0 {
                self.near_ended = true;
                entry.set_wants_tick(true);
                // As other proxies do: who ends is gone, unless it is known to wait for the rest.
                return if near.stream.peer_is_closed() == Some(false) { Poll::Pending } else { gone() };
            }
            wire.filled(received);
        }
    }

    fn poll_down(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<End, Broken>> {
        loop {
            let HttpContext { near, far, pool, .. } = &mut self.parts;
            ready!(self.down.outbox.poll_flush(near, Side::Near, pool, cx))?;
            match self.response {
                Response::Head { .. } | Response::Body { .. } => {}
                Response::Done => return Poll::Ready(Ok(End::Done)),
                Response::Switched if self.up.outbox.is_empty() => return Poll::Ready(Ok(End::Switched)),
                Response::Switched => return Poll::Pending,
            }
            ready!(far.stream.poll_readable(cx)).map_err(|e| EndReason::Socket(Side::Far, e.kind()))?;
            if std::mem::replace(&mut self.down.has_read, true) {
                self.down.has_more = true;
                return Poll::Pending;
            }
            let wanted = pool.read_len();
            let granted = match &self.user {
                Some(user) => ready!(user.poll_grant(UserDirection::Down, wanted, rt::now(), cx))
                    .map_err(EndReason::Limited)?,
                None => wanted,
            };
            let received = poll_recv_most(far, Side::Far, pool, granted, cx);
            let Poll::Ready(Ok(received)) = received else {
                self.settle(UserDirection::Down, granted, 0);
                return received.map(|received| received.map(|_| End::Done).map_err(Broken::from));
            };
            self.settle(UserDirection::Down, granted, received.len());
            self.handle_received(received, now)?;
        }
    }

    fn handle_received(&mut self, received: Received, now: Instant) -> Result<(), Broken> {
        let len = received.len() as u64;
        let Received { mut chunk, ended } = received;
        if len > 0 {
            self.down.bytes += len;
            self.parts.traffic.down.add(len);
            self.parts.entry.note_answer(now);
            self.parts.entry.add_moved(0, len);
            // It lives: the bytes that it has been sent count.
            *self.parts.replay = None;
        }
        while matches!(self.response, Response::Head { .. }) && self.take_head(&mut chunk)? {}
        match &mut self.response {
            Response::Body { body, decode } => {
                let is_surplus = trim(&mut chunk, body, *decode)
                    .map_err(|error| Broken::bad_body("response body", error, Status::BadGateway))?;
                self.target_keeps &= !is_surplus;
                if body.is_complete() {
                    self.response = Response::Done;
                }
                self.down.outbox.push(chunk);
            }
            Response::Switched => self.down.outbox.push(chunk),
            Response::Head { .. } | Response::Done => {}
        }
        if ended {
            self.far_ended = true;
            self.handle_far_end()?;
        }
        Ok(())
    }

    fn handle_far_end(&mut self) -> Result<(), Broken> {
        match &mut self.response {
            Response::Head { .. } => Err(EndReason::Wire(WireError::Truncated { what: "response" }).into()),
            Response::Body { body, .. } => {
                body.handle_transport_end()
                    .map_err(|error| Broken::bad_body("response body", error, Status::BadGateway))?;
                self.response = Response::Done;
                Ok(())
            }
            Response::Done | Response::Switched => Ok(()),
        }
    }

    /// Takes bytes from the front of `chunk` until a head is whole. True if one was, and has been dealt with.
    fn take_head(&mut self, chunk: &mut Chunk) -> Result<bool, Broken> {
        let Response::Head { scanner, head } = &mut self.response else { return Ok(false) };
        while let Some(part) = chunk.out.first_mut() {
            let step = part.start..part.end.min(part.start + HEAD_STEP);
            let before = head.len();
            head.extend(&chunk.buf.block()[step.clone()]);
            let found = scanner.scan(head).map_err(|error| Broken::bad_head(&error))?;
            // The end of a head lies behind all that was looked at before.
            part.start = found.map_or(step.end, |len| step.start + len.saturating_sub(before));
            if part.start >= part.end {
                chunk.out.remove(0);
            }
            if let Some(len) = found {
                head.truncate(len);
                let head = std::mem::take(head);
                self.forward_head(&head).map_err(|error| Broken::bad_head(&error))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn forward_head(&mut self, head: &[u8]) -> Result<(), HeadError> {
        let head = ResponseHead::parse(head)?;
        // A client that is answered before it has said all is told that the connection will not last.
        let keep_alive = self.request.keep_alive && self.parts.body.is_complete();
        let exchange = http::Exchange { keep_alive, ..self.request };
        match head.emit_forward(&exchange, self.down.outbox.text())? {
            Disposition::Interim => {
                self.interim += 1;
                if self.interim > MAX_INTERIM {
                    return Err(HeadError::TooLong);
                }
                self.response = Response::head();
            }
            Disposition::Switch => self.response = Response::Switched,
            Disposition::Final { body, decode, client_keeps, target_keeps } => {
                (self.client_keeps, self.target_keeps) = (client_keeps, target_keeps);
                // Also when there is no body: what comes in spite of that is noticed and dropped.
                self.response = Response::Body { body, decode };
            }
        }
        Ok(())
    }
}

fn near_failed(error: &io::Error) -> Broken {
    EndReason::Socket(Side::Near, error.kind()).into()
}

fn bad_request(error: BodyError) -> Broken {
    Broken::bad_body("request body", error, Status::BadRequest)
}

/// Puts the beginning of the next request back; `wire` grows by one read at most, since it is empty or a head.
fn keep_for_next(wire: &mut RecvBuf, bytes: &[u8]) {
    wire.compact();
    let taken = wire.extend(bytes);
    if taken < bytes.len() {
        let mut larger = RecvBuf::with_len(wire.unread().len() + bytes.len() - taken);
        larger.extend(wire.unread());
        larger.extend(&bytes[taken..]);
        *wire = larger;
    }
}

/// Leaves in `chunk` what belongs to the body. True if something else was there, too.
fn trim(chunk: &mut Chunk, body: &mut BodyFramer, decode: bool) -> Result<bool, BodyError> {
    let mut is_surplus = false;
    for index in 0..chunk.out.len() {
        let part = chunk.out[index].clone();
        let bytes = &mut chunk.buf.block_mut()[part.clone()];
        let (used, len) = if decode {
            let decoded = body.decode(bytes)?;
            (decoded.used, decoded.len)
        } else {
            let used = body.pass(bytes)?.used;
            (used, used)
        };
        chunk.out[index].end = part.start + len;
        is_surplus |= used < part.len();
    }
    chunk.out.retain(|part| !part.is_empty());
    Ok(is_surplus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_are_told() {
        let remote = |code| EndReason::Wire(WireError::Remote { code, message: "x".into() });
        for (reason, code) in [
            (remote(111), 502),
            (remote(110), 504),
            (remote(113), 502),
            (remote(13), 403),
            (remote(0), 502),
            (EndReason::Idle, 504),
            (EndReason::Socket(Side::Far, io::ErrorKind::TimedOut), 504),
            (EndReason::Socket(Side::Far, io::ErrorKind::ConnectionReset), 502),
            (EndReason::Wire(WireError::Truncated { what: "frame" }), 502),
        ] {
            assert_eq!(Broken::from(reason.clone()).status.code(), code, "{reason}");
        }
    }

    #[test]
    fn what_follows_a_body_is_kept() {
        let mut wire = RecvBuf::with_len(8);
        wire.extend(b"12345678");
        wire.consume(6);
        keep_for_next(&mut wire, b"9");
        assert_eq!((wire.unread(), wire.capacity()), (&b"789"[..], 8));
        keep_for_next(&mut wire, &[b'x'; 20]);
        assert_eq!(wire.unread(), [b"789", &[b'x'; 20][..]].concat());
    }
}
