//! The HTTP proxy: CONNECT, and requests that are passed on, each to a host of its own.

mod exchange;
mod page;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::http::{
    self, BodyFramer, Destination, HeadError, HeadScanner, HttpVersion, RequestHead, Status, emit_error,
    emit_established, emit_page,
};
use adit_proto::wire::{ConnectFailure, EndOfStream, Host, Target};

use self::exchange::{Broken, End, HttpContext, HttpExchange, Passed};
use super::inbound::{Answer, Client, DEADLINE, FIRST_READ, TunnelRequest, fill};
use crate::admission::EvictionRank;
use crate::connections::record::{EndReason, Side};
use crate::connections::table::ConnectionEntry;
use crate::listener::connected;
use crate::relay::payload::send_end;
use crate::relay::{Early, Endpoint, Policy, Relay, RelayOutcome};
use crate::stream::{OpenedConnection, Outbound, Routed};
use crate::users::Account;

/// A client's connection may rest this long between two requests.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// So much of the body of a refused request is read, in bytes, so that the connection can go on.
const DRAIN_LEN: usize = 256 * 1024;
/// And for so long.
const DRAIN: Duration = Duration::from_secs(5);
/// Before a connection closes, so much is read and thrown away, in bytes: a reset would take the answer with it.
const LINGER_LEN: usize = 1 << 20;
/// And for so long.
const LINGER: Duration = Duration::from_secs(2);
/// Time for the message that ends an exchange on a reusable connection.
const SEND_END: Duration = Duration::from_secs(1);

/// One connection of a client.
struct Connection<'c> {
    client: &'c Client<'c>,
    near: Endpoint,
    /// Bytes that have arrived and are not used yet.
    wire: RecvBuf,
    entry: ConnectionEntry,
    /// Its place is one of those from whom more has to come before it is known what they want.
    is_unknown: bool,
    /// A request of a client that may use this port has come.
    was_known: bool,
    /// Address that the client has connected to.
    local: SocketAddr,
    kept: Option<Kept>,
}

/// The connection of the last request, for the next one to the same target.
struct Kept {
    target: Target,
    outbound: Rc<dyn Outbound>,
    opened: OpenedConnection,
    /// Bytes that have come over it.
    down: u64,
}

/// The next step after a request on its connection.
enum Next {
    Request,
    Tunnel(Target, HttpVersion, Option<Arc<Account>>),
    Close,
}

/// The part of a request's head that is kept.
struct Request {
    exchange: http::Exchange,
    destination: Way,
    /// Its credentials are good, or none are needed.
    is_known: bool,
    /// The user whose it is, where there are users.
    account: Option<Arc<Account>>,
    /// Position in its body.
    body: BodyFramer,
    /// The client sends the body only when it is told to.
    waits: bool,
    /// The head for the target.
    head: Vec<u8>,
    /// It does the same when it is sent twice, and has no body.
    is_repeatable: bool,
}

enum Way {
    Tunnel(Target),
    Forward(Target),
    /// The page of the proxy itself.
    Page,
    /// To the proxy itself, or nowhere.
    None(Status),
}

/// Why no request has come.
enum NoRequest {
    Gone,
    /// The client has had to make room, or the process ends.
    Over,
    Bad(HeadError),
}

/// The answer to CONNECT.
struct Connect(HttpVersion);

impl Answer for Connect {
    fn bytes(&self, outcome: Result<SocketAddr, ConnectFailure>) -> Vec<u8> {
        let mut out = Vec::new();
        match outcome {
            Ok(_) => emit_established(self.0, &mut out),
            Err(failure) => emit_error(failure.into(), self.0, false, false, &mut out),
        }
        out
    }

    fn protocol(&self) -> &'static str {
        "HTTPS"
    }
}

impl Client<'_> {
    /// Serves request after request, until one asks for a tunnel or the connection ends. It has a place in `entry` if its
    /// first bytes were waited for.
    pub(super) async fn serve_http(
        &self,
        stream: Stream,
        wire: RecvBuf,
        entry: Option<ConnectionEntry>,
    ) -> Option<TunnelRequest> {
        let local = stream.local_addr().ok()?;
        let (is_unknown, enter) = (entry.is_some(), || self.inbound.core.conns.enter_from(self.peer.ip()));
        let mut connection = Connection {
            client: self,
            near: Endpoint::plain(stream),
            wire,
            entry: entry.unwrap_or_else(enter),
            is_unknown,
            was_known: false,
            local,
            kept: None,
        };
        let (target, version, account) = loop {
            match Box::pin(connection.serve_request()).await {
                Next::Request => {}
                Next::Tunnel(target, version, account) => break (target, version, account),
                Next::Close => {
                    connection.drop_kept();
                    return None;
                }
            }
        };
        connection.drop_kept();
        let Connection { near, wire, entry, .. } = connection;
        let early = wire.unread().to_vec();
        Some(TunnelRequest {
            stream: near.stream,
            target,
            answer: Box::new(Connect(version)),
            early,
            account,
            entry,
        })
    }
}

impl Connection<'_> {
    async fn serve_request(&mut self) -> Next {
        if self.wire.unread().is_empty() && !self.rest().await {
            return Next::Close;
        }
        let refused = &self.client.inbound.metrics.refused;
        let mut scanner = HeadScanner::new();
        let mut request = match rt::timeout(DEADLINE, self.read_request(&mut scanner)).await {
            Ok(Ok(request)) => request,
            Ok(Err(NoRequest::Gone)) => {
                refused.aborted.add(u64::from(!scanner.is_idle()));
                return Next::Close;
            }
            Ok(Err(NoRequest::Over)) => {
                refused.overload.add(u64::from(self.entry.is_crowded()));
                return Next::Close;
            }
            Ok(Err(NoRequest::Bad(error))) => {
                refused.malformed.add(1);
                let (inbound, peer) = (&*self.client.inbound.name, self.client.peer);
                tracing::debug!(inbound, %peer, %error, "bad HTTP request");
                return self.refuse_unread(error.status()).await;
            }
            // Nothing but empty lines: the connection rests.
            Err(rt::Elapsed) if scanner.is_idle() => return Next::Close,
            Err(rt::Elapsed) => {
                refused.deadline.add(1);
                return self.refuse_unread(Status::RequestTimeout).await;
            }
        };
        self.entry.touch();
        self.note_known(request.is_known);
        if !request.is_known {
            refused.authentication.add(1);
            return self.refuse(Status::ProxyAuthenticationRequired, &mut request).await;
        }
        match std::mem::replace(&mut request.destination, Way::None(Status::LoopDetected)) {
            Way::Tunnel(target) | Way::Forward(target) if self.is_own(&target) => {
                self.refuse(Status::LoopDetected, &mut request).await
            }
            Way::Tunnel(target) => Next::Tunnel(target, request.exchange.version, request.account),
            Way::Forward(target) => {
                let next = Box::pin(self.forward(target, request)).await;
                self.entry.end_request();
                next
            }
            Way::Page => {
                let page = page::text(self.local, self.client.config.accepts);
                let emit = |version, keep_alive, is_head, out: &mut Vec<u8>| {
                    emit_page(&page, version, keep_alive, is_head, out);
                };
                self.answer(&mut request, emit).await
            }
            Way::None(status) => self.refuse(status, &mut request).await,
        }
    }

    /// Waits for the next request. False if none is to come.
    async fn rest(&mut self) -> bool {
        if self.wire.capacity() > FIRST_READ {
            self.wire = RecvBuf::with_len(FIRST_READ);
        }
        self.wire.reset();
        self.entry.touch();
        self.entry.set_resting(true);
        let mut lost = None;
        let wait = poll_fn(|cx| {
            self.entry.set_waker(cx.waker());
            if self.entry.is_expired() {
                return Poll::Ready(0);
            }
            if self.kept.as_mut().is_some_and(|kept| !is_quiet(&kept.opened.far, cx)) {
                lost = self.kept.take();
            }
            self.near.stream.poll_recv(cx, self.wire.free_mut()).map(|result| result.unwrap_or(0))
        });
        let received = rt::timeout(KEEP_ALIVE, wait).await.unwrap_or(0);
        self.entry.set_resting(false);
        self.wire.filled(received);
        if let Some(Kept { outbound, opened, down, .. }) = lost {
            self.close_far(&*outbound, opened, local_end(), true, down);
        }
        received > 0
    }

    async fn read_request(&mut self, scanner: &mut HeadScanner) -> Result<Request, NoRequest> {
        let len = loop {
            if let Some(len) = scanner.scan(self.wire.unread()).map_err(NoRequest::Bad)? {
                break len;
            }
            self.wait_for_more();
            match self.entry.unless_over(fill(&self.near.stream, &mut self.wire)).await {
                Some(Ok(1..)) => {}
                Some(_) => return Err(NoRequest::Gone),
                None => return Err(NoRequest::Over),
            }
        };
        let head = RequestHead::parse(&self.wire.unread()[..len]).map_err(NoRequest::Bad)?;
        let request = self.note(&head);
        self.wire.consume(len);
        Ok(request)
    }

    /// The request is not whole: until a client has shown that it may use this port, its connection is one of those that
    /// give way first.
    fn wait_for_more(&mut self) {
        if !self.is_unknown && !self.was_known {
            let client = self.client;
            client.inbound.guard.make_room((!client.is_open()).then(|| client.peer.ip()));
            self.entry.set_rank(EvictionRank::Unauthenticated);
            self.is_unknown = true;
        }
    }

    /// A request is whole. Without the credentials that it needs it is worth no more than a part of one.
    fn note_known(&mut self, is_known: bool) {
        if !is_known {
            return self.wait_for_more();
        }
        self.was_known = true;
        if std::mem::take(&mut self.is_unknown) {
            self.entry.set_rank(EvictionRank::Unanswered);
        }
    }

    fn note(&self, head: &RequestHead<'_>) -> Request {
        let is_open = self.client.is_open();
        let account = head.credentials().and_then(|credentials| self.client.find(&credentials).cloned());
        let body = head.body();
        let is_idempotent = matches!(head.method(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
        let mut out = Vec::new();
        head.emit_forward(&mut out);
        let destination = match head.destination() {
            Destination::Tunnel(target) => Way::Tunnel(target.clone()),
            Destination::Forward { target, .. } => Way::Forward(target.clone()),
            Destination::Origin { host: Some(host), path } if self.is_here(host) => {
                let asks = &**path == "/" && matches!(head.method(), "GET" | "HEAD");
                match head.visit() {
                    Err(_) => Way::None(Status::BadRequest),
                    Ok(visit) if !visit.caller.may_read() => Way::None(Status::Forbidden),
                    Ok(_) if asks => Way::Page,
                    Ok(_) => Way::None(Status::NotFound),
                }
            }
            Destination::Origin { .. } => Way::None(Status::BadRequest),
        };
        Request {
            exchange: head.exchange(),
            destination,
            is_known: is_open || account.is_some(),
            account,
            is_repeatable: is_idempotent && body.is_complete(),
            waits: head.expects_continue() && !body.is_complete(),
            body,
            head: out,
        }
    }

    /// Whether `target` is the port that the client is connected to. Behind a tunnel, loopback is another machine.
    fn is_own(&self, target: &Target) -> bool {
        let is_elsewhere = self.client.inbound.origin.live.leaf().outbound.is_tunnel();
        self.is_here(target) && !(is_elsewhere && self.local.ip().to_canonical().is_loopback())
    }

    /// Whether a client on this machine means that port by `target`.
    fn is_here(&self, target: &Target) -> bool {
        let local = self.local.ip().to_canonical();
        let is_local = match &target.host {
            Host::Ip(ip) => {
                *ip == local || (local.is_loopback() && (ip.is_loopback() || ip.is_unspecified()))
            }
            Host::Name(name) => local.is_loopback() && name.eq_ignore_ascii_case("localhost"),
        };
        target.port == self.local.port() && is_local
    }

    async fn forward(&mut self, target: Target, mut request: Request) -> Next {
        let client = self.client;
        if let Some(account) = &request.account
            && connected::admit(client.inbound, &self.entry, account, client.peer).is_err()
        {
            return self.refuse(ConnectFailure::NotAllowed.into(), &mut request).await;
        }
        let account = request.account.clone();
        let mut outgoing = client.inbound.origin.request(client.peer, account, target).on(&self.near.stream);
        outgoing.entry = "HTTP";
        outgoing.show(&request.head);
        let Some(routed) = self.entry.unless_over(outgoing.route()).await else { return self.make_room() };
        let routed = Rc::new(routed);
        let (mut opened, mut replay) = match self.take_kept(&request, &routed).await {
            Some(opened) => {
                client.inbound.metrics.take_request();
                (opened, Some(Vec::new()))
            }
            None => match self.entry.unless_over(Box::pin(routed.open())).await {
                None => return self.make_room(),
                Some(Ok(opened)) => {
                    let replay = opened.policy.keep_for_replay.then(Vec::new);
                    (opened, replay)
                }
                Some(Err(error)) if error.wants_reset() => {
                    self.near.stream.abort_on_close();
                    return Next::Close;
                }
                Some(Err(error)) => return self.refuse(error.failure().into(), &mut request).await,
            },
        };
        routed.show(&self.entry, &opened);
        let mut passed = self.pass(&mut opened.far, &mut request, &mut replay).await;
        if passed.end.as_ref().is_err_and(Broken::is_silent_end)
            && let Some(sent) = replay.take()
        {
            // The other side had given up a kept connection before it saw the request: once more on a fresh one.
            request.head = sent;
            match self.entry.unless_over(Box::pin(routed.open_again())).await {
                None => return self.make_room(),
                Some(Ok(fresh)) => {
                    opened = fresh;
                    passed = self.pass(&mut opened.far, &mut request, &mut None).await;
                }
                Some(Err(error)) => {
                    return self.refuse(error.failure().into(), &mut request).await;
                }
            }
        }
        Box::pin(self.finish(&routed, opened, passed, request)).await
    }

    /// The connection makes room for others, or the process ends.
    fn make_room(&self) -> Next {
        let _: Option<()> = connected::make_room(self.client.inbound, &self.entry, &self.near.stream);
        Next::Close
    }

    async fn pass(
        &mut self,
        far: &mut Endpoint,
        request: &mut Request,
        replay: &mut Option<Vec<u8>>,
    ) -> Passed {
        let inbound = self.client.inbound;
        let parts = HttpContext {
            near: &mut self.near,
            far,
            wire: &mut self.wire,
            body: &mut request.body,
            replay,
            pool: &inbound.core.pool,
            entry: &self.entry,
            traffic: &inbound.metrics.traffic,
        };
        parts.near.stream.reset_if_killed(true);
        parts.far.stream.reset_if_killed(true);
        let exchange = HttpExchange::new(parts, request.exchange, std::mem::take(&mut request.head));
        let passed = Box::pin(exchange.run()).await;
        self.near.stream.reset_if_killed(false);
        far.stream.reset_if_killed(false);
        passed
    }

    /// Decides what becomes of both connections, and writes the record.
    async fn finish(
        &mut self,
        routed: &Routed,
        mut opened: OpenedConnection,
        passed: Passed,
        mut request: Request,
    ) -> Next {
        match passed.end {
            Ok(End::Switched) if !passed.far_ended => {
                self.switch(routed, opened, &passed).await;
                Next::Close
            }
            Ok(_) => {
                routed.write_record(&opened, (passed.up, passed.down), &EndReason::Finished);
                if passed.target_keeps {
                    let policy = Policy { keep_for_replay: false, ..opened.policy };
                    let opened = OpenedConnection { policy, ..opened };
                    self.drop_kept();
                    let (target, outbound) = (routed.request.target.clone(), routed.outbound.clone());
                    self.kept = Some(Kept { target, outbound, opened, down: passed.down });
                } else if passed.far_ended && passed.is_clean && self.end_exchange(&mut opened.far).await {
                    self.close_far(&*routed.outbound, opened, EndReason::Finished, true, passed.down);
                } else {
                    self.close_far(&*routed.outbound, opened, local_end(), passed.is_clean, passed.down);
                }
                if passed.client_keeps { Next::Request } else { self.hang_up().await }
            }
            Err(Broken { reason, status }) => {
                routed.write_record(&opened, (passed.up, passed.down), &reason);
                let is_local = matches!(reason, EndReason::Socket(Side::Near, _));
                self.close_far(&*routed.outbound, opened, reason, passed.is_clean, passed.down);
                if is_local {
                    return Next::Close;
                }
                if passed.may_answer {
                    // After a bad body the start of the next request is unknown.
                    request.exchange.keep_alive &= status != Status::BadRequest;
                    return self.refuse(status, &mut request).await;
                }
                // Part of the answer is out: it must not be taken for all of it.
                self.near.stream.abort_on_close();
                Next::Close
            }
        }
    }

    /// Both ends have agreed on another protocol: their bytes are none of ours any more.
    async fn switch(&mut self, routed: &Routed, mut opened: OpenedConnection, passed: &Passed) {
        let inbound = self.client.inbound;
        let early = Early { bytes: self.wire.unread().to_vec(), ended: false };
        self.wire = RecvBuf::default();
        let policy = Policy { keep_for_replay: false, ..opened.policy };
        let (pool, traffic) = (&inbound.core.pool, &inbound.metrics.traffic);
        let far = &mut opened.far;
        let relay = Relay::new(&mut self.near, far, early, pool, &self.entry, traffic, policy);
        let mut outcome = Box::pin(relay).await;
        outcome.up += passed.up;
        outcome.down += passed.down;
        routed.finish(&self.near, opened, outcome);
    }

    /// The kept connection, if it leads to the target of `routed` and still does. A request that could not be sent again, should
    /// the connection turn out to be closed, gets a fresh one.
    async fn take_kept(&mut self, request: &Request, routed: &Routed) -> Option<OpenedConnection> {
        let kept = self.kept.as_ref()?;
        let is_same = kept.target == routed.request.target && Rc::ptr_eq(&kept.outbound, &routed.outbound);
        if !request.is_repeatable || !is_same {
            return None;
        }
        let Kept { outbound, opened, down, .. } = self.kept.take()?;
        if poll_fn(|cx| Poll::Ready(is_quiet(&opened.far, cx))).await {
            return Some(opened);
        }
        self.close_far(&*outbound, opened, local_end(), true, down);
        None
    }

    fn drop_kept(&mut self) {
        if let Some(Kept { outbound, opened, down, .. }) = self.kept.take() {
            self.close_far(&*outbound, opened, local_end(), true, down);
        }
    }

    /// Answers the far end's in-band end with ours, so that its stream is free for another exchange.
    async fn end_exchange(&self, far: &mut Endpoint) -> bool {
        let is_in_band = far.stack.as_ref().is_some_and(|stack| stack.end_of_stream() == EndOfStream::InBand);
        is_in_band
            && matches!(
                rt::timeout(SEND_END, send_end(far, &self.client.inbound.core.pool)).await,
                Ok(Ok(()))
            )
    }

    fn close_far(
        &self,
        outbound: &dyn Outbound,
        opened: OpenedConnection,
        reason: EndReason,
        is_clean: bool,
        down: u64,
    ) {
        let inbound = self.client.inbound;
        let outcome = RelayOutcome { reason, up: 0, down, replay: None, is_clean, near_ended: false };
        outbound.release(opened, &outcome, &inbound.core.pool);
    }

    /// Answers a request with an error of our own.
    async fn refuse(&mut self, status: Status, request: &mut Request) -> Next {
        let emit = |version, keep_alive, is_head, out: &mut Vec<u8>| {
            emit_error(status, version, keep_alive, is_head, out);
        };
        self.answer(request, emit).await
    }

    /// Answers a request ourselves. `emit` is given the version, whether the connection stays, and whether the request was a
    /// HEAD.
    async fn answer(
        &mut self,
        request: &mut Request,
        emit: impl FnOnce(HttpVersion, bool, bool, &mut Vec<u8>),
    ) -> Next {
        let http::Exchange { version, keep_alive, head_request, .. } = request.exchange;
        // Whether a body comes that is waiting for permission cannot be known.
        let keep_alive = keep_alive && !request.waits && self.drain(&mut request.body).await;
        let mut out = Vec::new();
        emit(version, keep_alive, head_request, &mut out);
        let is_sent = self.send(&out).await;
        match (is_sent, keep_alive) {
            (true, true) => Next::Request,
            (true, false) => self.hang_up().await,
            (false, _) => Next::Close,
        }
    }

    /// The same for one that could not be read.
    async fn refuse_unread(&mut self, status: Status) -> Next {
        let mut out = Vec::new();
        emit_error(status, HttpVersion::Http11, false, false, &mut out);
        if self.send(&out).await { self.hang_up().await } else { Next::Close }
    }

    /// Sends an answer of our own; false if it has not left in time.
    async fn send(&self, answer: &[u8]) -> bool {
        let sending = rt::timeout(DEADLINE, self.near.stream.send_all(answer));
        matches!(self.entry.unless_over(sending).await, Some(Ok(Ok(()))))
    }

    /// Reads on to the end of `body`, within bounds. True if it was reached.
    async fn drain(&mut self, body: &mut BodyFramer) -> bool {
        let drain = async {
            let mut drained = 0;
            loop {
                let Ok(framed) = body.pass(self.wire.unread()) else { return false };
                self.wire.consume(framed.used);
                drained += framed.used;
                if framed.complete || drained > DRAIN_LEN {
                    return framed.complete;
                }
                let Ok(1..) = fill(&self.near.stream, &mut self.wire).await else { return false };
            }
        };
        self.entry.unless_over(rt::timeout(DRAIN, drain)).await == Some(Ok(true))
    }

    /// Closes so that what was sent last arrives.
    async fn hang_up(&mut self) -> Next {
        drop(self.near.stream.shutdown_write());
        let discard = async {
            let mut left = LINGER_LEN;
            self.wire.reset();
            while let Ok(received @ 1..) = self.near.stream.recv(self.wire.free_mut()).await
                && received < left
            {
                left -= received;
            }
        };
        self.entry.unless_over(rt::timeout(LINGER, discard)).await;
        Next::Close
    }
}

/// As outbounds know it: the local side wants nothing more.
fn local_end() -> EndReason {
    EndReason::Socket(Side::Near, std::io::ErrorKind::ConnectionAborted)
}

/// Whether a connection that owes nothing says nothing.
fn is_quiet(far: &Endpoint, cx: &mut Context<'_>) -> bool {
    if far.stack.is_some() {
        far.stream.poll_readable(cx).is_pending()
    } else {
        far.stream.poll_recv(cx, &mut [0]).is_pending()
    }
}
