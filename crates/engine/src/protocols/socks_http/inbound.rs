//! The port for applications: SOCKS4, 4a, 5 and HTTP, told apart by the first byte.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use adit_model::{Local, LocalProtocols, Reply};
use adit_net::listen::{ListenOptions, listen_datagrams};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::socks::{self, Auth, SocksCommand, SocksError, SocksEvent, SocksServer};
use adit_proto::wire::{ConnectFailure, Credentials, Target};

use super::inbound_udp::AssociationPackets;
use crate::admission::EvictionRank;
use crate::connections::table::ConnectionEntry;
use crate::datagram::{Engine, PacketInbound, SessionOwners};
use crate::listener::connected::{ProxiedConnection, Served, enter_unknown, lease, make_room};
use crate::listener::{DatagramDeps, Inbound, InboundFactory, InboundServer, LAST_LOOK};
use crate::relay::{Early, Endpoint};
use crate::stream::RelaySession;
use crate::users::{Account, Accounts, Lease};

/// Time for everything before a request is whole.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// First size of the buffer in bytes: any SOCKS unit fits, and most HTTP heads do.
pub(super) const FIRST_READ: usize = 4096;

/// One application's connection.
pub(super) struct Client<'a> {
    pub(super) inbound: &'a Inbound,
    pub(super) config: &'a Local,
    /// Those of the users, in their order.
    accounts: &'a Accounts,
    pub(super) peer: SocketAddr,
}

/// A request for a tunnel, with what its client has sent behind it.
pub(super) struct TunnelRequest {
    pub(super) stream: Stream,
    pub(super) target: Target,
    pub(super) answer: Box<dyn Answer>,
    pub(super) early: Vec<u8>,
    /// The user whose it is, where there are users.
    pub(super) account: Option<Arc<Account>>,
    /// Its place in the table of connections.
    pub(super) entry: ConnectionEntry,
}

/// The settings of a local port, for every core.
#[derive(Debug)]
pub(crate) struct LocalFactory {
    pub(crate) config: Local,
    pub(crate) accounts: Accounts,
}

struct LocalPort {
    config: Local,
    accounts: Accounts,
}

impl InboundFactory for LocalFactory {
    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(LocalPort { config: self.config.clone(), accounts: self.accounts.clone() })
    }

    fn accounts(&self) -> Accounts {
        self.accounts.clone()
    }
}

impl InboundServer for LocalPort {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move {
            let Self { config, accounts } = &*self;
            Client { inbound: &inbound, config, accounts, peer }.prepare(stream).await
        })
    }

    /// Associations have ports of their own.
    fn packets(&self, _: &Inbound, _: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        None
    }
}

/// One read behind what is there; makes room where there is none.
pub(super) async fn fill(stream: &Stream, wire: &mut RecvBuf) -> io::Result<usize> {
    if wire.free_mut().is_empty() {
        wire.compact();
    }
    if wire.free_mut().is_empty() {
        let mut larger = RecvBuf::with_len(wire.capacity() * 2);
        larger.extend(wire.unread());
        *wire = larger;
    }
    let received = stream.recv(wire.free_mut()).await?;
    wire.filled(received);
    Ok(received)
}

/// The first read, if there is something to read.
async fn fill_at_once(stream: &Stream, wire: &mut RecvBuf) -> Option<io::Result<usize>> {
    let received = poll_fn(|cx| match stream.poll_recv(cx, wire.free_mut()) {
        Poll::Ready(received) => Poll::Ready(Some(received)),
        Poll::Pending => Poll::Ready(None),
    });
    let received = received.await?;
    if let Ok(received) = received {
        wire.filled(received);
    }
    Some(received)
}

/// Tells a kind of client the result of its request.
pub(super) trait Answer {
    /// The bytes to send it.
    fn bytes(&self, outcome: Result<SocketAddr, ConnectFailure>) -> Vec<u8>;

    /// The name of its protocol in the list of connections.
    fn protocol(&self) -> &'static str;
}

impl Answer for socks::SocksRequest {
    fn bytes(&self, outcome: Result<SocketAddr, ConnectFailure>) -> Vec<u8> {
        let mut out = Vec::new();
        self.emit_reply(outcome, &mut out);
        out
    }

    fn protocol(&self) -> &'static str {
        match self.version {
            socks::SocksVersion::V4 => "Socks4",
            socks::SocksVersion::V5 => "Socks5",
        }
    }
}

impl Client<'_> {
    /// Everything up to the relay.
    async fn prepare(&self, stream: Stream) -> Option<Box<ProxiedConnection>> {
        let request = Box::pin(self.handshake(stream)).await?;
        match self.lease(request.account.as_ref()) {
            Ok(Some(lease)) => request.entry.set_lease(lease),
            Ok(None) => {}
            Err(failure) => {
                self.refuse(&request.stream, &request.entry, &*request.answer, failure).await;
                return None;
            }
        }
        let (near, entry, session) = Box::pin(self.open(request)).await?;
        Some(ProxiedConnection::new(near, entry, session))
    }

    /// The place of a client that has to send more before it is known what it wants.
    fn enter(&self) -> ConnectionEntry {
        enter_unknown(self.inbound, self.peer.ip(), !self.is_open())
    }

    /// The bytes that were read, unless the client has had to make room meanwhile.
    fn read(&self, entry: &ConnectionEntry, read: Option<io::Result<usize>>) -> Option<usize> {
        let refused = &self.inbound.metrics.refused;
        match read {
            Some(Ok(received @ 1..)) => Some(received),
            None if entry.is_crowded() => {
                refused.overload.add(1);
                None
            }
            Some(Ok(0) | Err(_)) | None => {
                refused.aborted.add(1);
                None
            }
        }
    }

    /// The place of a user's connection, where there are users.
    fn lease(&self, account: Option<&Arc<Account>>) -> Result<Option<Lease>, ConnectFailure> {
        let Some(account) = account else { return Ok(None) };
        lease(self.inbound, account, self.peer).map(Some).map_err(|_| ConnectFailure::NotAllowed)
    }

    /// Everything up to a request for a tunnel; `None` when the connection needs no tunnel, or none any more.
    async fn handshake(&self, stream: Stream) -> Option<TunnelRequest> {
        let refused = &self.inbound.metrics.refused;
        let mut wire = RecvBuf::with_len(FIRST_READ);
        // Most applications have sent something by now, and need no place among those that wait.
        let entry = match fill_at_once(&stream, &mut wire).await {
            Some(Ok(1..)) => None,
            Some(_) => {
                refused.aborted.add(1);
                return None;
            }
            None => {
                let entry = self.enter();
                let first = Box::pin(self.first_bytes(&stream, &mut wire, &entry));
                match rt::timeout(DEADLINE, first).await {
                    Ok(received) => self.read(&entry, received)?,
                    Err(rt::Elapsed) => {
                        refused.deadline.add(1);
                        return None;
                    }
                };
                Some(entry)
            }
        };
        match (wire.unread()[0], self.config.accepts) {
            (4 | 5, LocalProtocols::Socks | LocalProtocols::Mixed) => {
                self.serve_socks(stream, wire, entry).await
            }
            (b'A'..=b'Z' | b'a'..=b'z', LocalProtocols::Http | LocalProtocols::Mixed) => {
                Box::pin(self.serve_http(stream, wire, entry)).await
            }
            (byte, _) => {
                tracing::debug!(inbound = &*self.inbound.name, peer = %self.peer, byte, "neither SOCKS nor HTTP");
                refused.malformed.add(1);
                None
            }
        }
    }

    /// One read; `None` when the process is to end before anything has come. Browsers keep connections ready that they may
    /// never use, and nothing is lost with them.
    async fn first_bytes(
        &self,
        stream: &Stream,
        wire: &mut RecvBuf,
        entry: &ConnectionEntry,
    ) -> Option<io::Result<usize>> {
        entry.set_resting(true);
        let first = entry.unless_over(fill(stream, wire)).await;
        entry.set_resting(false);
        if first.is_some() || entry.is_crowded() {
            return first;
        }
        // The process is to end. Bytes may have come that the event loop has not seen: it looks at the socket once more.
        rt::sleep(LAST_LOOK).await;
        let first = fill_at_once(stream, wire).await?;
        entry.go_on();
        Some(first)
    }

    async fn serve_socks(
        &self,
        stream: Stream,
        mut wire: RecvBuf,
        mut entry: Option<ConnectionEntry>,
    ) -> Option<TunnelRequest> {
        let handshake = Box::pin(self.socks_handshake(&stream, &mut wire, &mut entry));
        let (request, account) = match rt::timeout(DEADLINE, handshake).await {
            Ok(Some(request)) => request,
            Ok(None) => return None,
            Err(rt::Elapsed) => {
                self.inbound.metrics.refused.deadline.add(1);
                return None;
            }
        };
        let entry = match entry {
            Some(entry) => {
                entry.set_rank(EvictionRank::Unanswered);
                entry
            }
            None => self.inbound.core.conns.enter_from(self.peer.ip()),
        };
        if request.command == SocksCommand::UdpAssociate
            && let Some(datagrams) = self.inbound.datagrams()
        {
            Box::pin(self.associate(stream, entry, &request, &datagrams, account)).await;
            return None;
        }
        if request.command != SocksCommand::Connect {
            // BIND is never served, and datagrams only if the outbound carries them.
            self.inbound.metrics.refused.unsupported.add(1);
            tracing::debug!(inbound = &*self.inbound.name, peer = %self.peer, "only CONNECT is served");
            self.refuse(&stream, &entry, &request, ConnectFailure::CommandNotSupported).await;
            return None;
        }
        let (target, early) = (request.target.clone(), wire.unread().to_vec());
        Some(TunnelRequest { stream, target, answer: Box::new(request), early, account, entry })
    }

    /// Serves datagrams on a port of their own for as long as the connection lasts (RFC 1928, section 7).
    async fn associate(
        &self,
        stream: Stream,
        entry: ConnectionEntry,
        request: &socks::SocksRequest,
        datagrams: &DatagramDeps,
        account: Option<Arc<Account>>,
    ) {
        // Held as long as the association lasts.
        let _lease = match self.lease(account.as_ref()) {
            Ok(lease) => lease,
            Err(failure) => return self.refuse(&stream, &entry, request, failure).await,
        };
        // The socket of its datagrams.
        let _slot = self.inbound.core.places.stream();
        let made = stream.local_addr().map_err(|_| ConnectFailure::General).and_then(|addr| {
            let at = SocketAddr::new(addr.ip(), 0);
            let made =
                listen_datagrams(at, &ListenOptions::default(), 1).map_err(|_| ConnectFailure::General)?;
            let socket = made.sockets.into_iter().next().ok_or(ConnectFailure::General)?;
            let packets = Box::new(AssociationPackets::new(self.peer.ip().to_canonical(), account));
            let renewal = Rc::default();
            self.inbound.core.associations.add(&renewal);
            let listener = self.inbound.packet_listener(packets, socket.into(), renewal);
            let engine = Engine::new(listener, &datagrams.udp, datagrams.scratch.clone());
            engine.map(|engine| (engine, made.addr)).map_err(|_| ConnectFailure::General)
        });
        let (engine, bound) = match made {
            Ok(made) => made,
            Err(failure) => return self.refuse(&stream, &entry, request, failure).await,
        };
        self.inbound.metrics.take_request();
        if stream.send_all(&request.bytes(Ok(bound))).await.is_err() {
            return;
        }
        entry.set_answered();
        entry.set_resting(true);
        entry.set_wants_tick(true);
        let mut bytes = [0; 64];
        let over = poll_fn(|cx| {
            // Its age does not count, only whether the process is to end.
            entry.set_waker(cx.waker());
            entry.touch();
            while !entry.is_expired() {
                match stream.poll_recv(cx, &mut bytes) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(())
        });
        Box::pin(engine.run(over)).await;
    }

    /// A request, with the user whose it is. It has a place in `entry` once more than one read is needed.
    async fn socks_handshake(
        &self,
        stream: &Stream,
        wire: &mut RecvBuf,
        entry: &mut Option<ConnectionEntry>,
    ) -> Option<(socks::SocksRequest, Option<Arc<Account>>)> {
        let auth = if self.is_open() { Auth::Open } else { Auth::Required };
        let mut server = SocksServer::new(auth);
        let mut account = None;
        let mut out = Vec::new();
        loop {
            let event = match server.advance(wire, &mut out) {
                Ok(SocksEvent::Credentials(credentials)) => {
                    account = self.find(&credentials).cloned();
                    server.authenticate(account.is_some(), &mut out).map(|()| None)
                }
                Ok(SocksEvent::NeedMore) => Ok(Some(None)),
                Ok(SocksEvent::Request(request)) => Ok(Some(Some(request))),
                Err(error) => Err(error),
            };
            if !out.is_empty() {
                stream.send_all(&out).await.ok()?;
                out.clear();
            }
            match event {
                Ok(None) => {}
                Ok(Some(Some(request))) => return Some((request, account)),
                Ok(Some(None)) => {
                    let entry = entry.get_or_insert_with(|| self.enter());
                    let received = entry.unless_over(fill(stream, wire)).await;
                    self.read(entry, received)?;
                }
                Err(error) => {
                    self.count_socks_error(&error);
                    let entry = entry.get_or_insert_with(|| self.enter());
                    entry.unless_over(Box::pin(linger(stream))).await;
                    return None;
                }
            }
        }
    }

    /// Whether this client needs no password.
    pub(super) fn is_open(&self) -> bool {
        let open_to = || self.config.open_to.iter().any(|network| network.holds(self.peer.ip()));
        self.config.users.is_empty() || open_to()
    }

    fn count_socks_error(&self, error: &SocksError) {
        tracing::debug!(inbound = &*self.inbound.name, peer = %self.peer, %error, "SOCKS handshake failed");
        let refused = &self.inbound.metrics.refused;
        let counter = match error {
            SocksError::NoMethod | SocksError::AuthenticationFailed => &refused.authentication,
            SocksError::Command(_) | SocksError::AddressType(_) => &refused.unsupported,
            SocksError::Version(_)
            | SocksError::PasswordVersion(_)
            | SocksError::Host(_)
            | SocksError::TooLong(_)
            | SocksError::Refused(_)
            | SocksError::Over => &refused.malformed,
        };
        counter.add(1);
    }

    /// The user who shows these credentials. All are compared, so that the time tells nothing.
    pub(super) fn find(&self, credentials: &Credentials) -> Option<&Arc<Account>> {
        let users = self.config.users.iter().zip(&**self.accounts);
        users.fold(None, |found, (user, account)| {
            let is_this = credentials.matches(user.name.as_bytes(), user.key.expose().as_bytes());
            if is_this { Some(account) } else { found }
        })
    }

    /// Opens the way to the target and answers as configured; `None` too if the client has to make room for others meanwhile.
    async fn open(&self, request: TunnelRequest) -> Option<(Endpoint, ConnectionEntry, Box<RelaySession>)> {
        let TunnelRequest { stream, target, answer, early, account, entry } = request;
        let mut near = Endpoint::plain(stream);
        let opening = self.open_on(&mut near, target, &*answer, early, account);
        let opened = match entry.unless_over(Box::pin(opening)).await {
            Some(opened) => opened?,
            None => return make_room(self.inbound, &entry, &near.stream),
        };
        match opened {
            Ok(session) => Some((near, entry, session)),
            Err(failure) => {
                self.refuse(&near.stream, &entry, &*answer, failure).await;
                None
            }
        }
    }

    /// The session of a request, or why there is none, if the client is told.
    async fn open_on(
        &self,
        near: &mut Endpoint,
        target: Target,
        answer: &dyn Answer,
        early: Vec<u8>,
        account: Option<Arc<Account>>,
    ) -> Option<Result<Box<RelaySession>, ConnectFailure>> {
        let bound = near.stream.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        let mut early = Early { bytes: early, ended: false };
        let mut request = self.inbound.origin.request(self.peer, account, target).on(&near.stream);
        request.entry = answer.protocol();
        // An application sends nothing before it has its answer.
        let mut is_answered = request.waits_for_bytes();
        if is_answered {
            near.stream.send_all(&answer.bytes(Ok(bound))).await.ok()?;
        }
        let routed = request.route_after(near, &mut early).await?;
        if !is_answered && self.config.reply == Reply::Early && routed.outbound.is_tunnel() {
            near.stream.send_all(&answer.bytes(Ok(bound))).await.ok()?;
            is_answered = true;
        }
        match routed.connect(&near.stream, early).await {
            Ok(session) => {
                if !is_answered {
                    near.stream.send_all(&answer.bytes(Ok(bound))).await.ok()?;
                }
                Some(Ok(session))
            }
            Err(error) if is_answered || error.wants_reset() => {
                // The application was told that all is well: only a reset says otherwise now.
                near.stream.abort_on_close();
                None
            }
            Err(error) => Some(Err(error.failure())),
        }
    }

    async fn refuse(
        &self,
        stream: &Stream,
        entry: &ConnectionEntry,
        answer: &dyn Answer,
        failure: ConnectFailure,
    ) {
        let refuse = async {
            if stream.send_all(&answer.bytes(Err(failure))).await.is_ok() {
                linger(stream).await;
            }
        };
        entry.unless_over(Box::pin(refuse)).await;
    }
}

/// Closes so that what was sent last arrives: over unread bytes the kernel would reset the connection.
async fn linger(stream: &Stream) {
    drop(stream.shutdown_write());
    let discard = async {
        let mut bytes = [0; 512];
        let mut left: usize = 64;
        while let Ok(1..) = stream.recv(&mut bytes).await
            && left > 0
        {
            left -= 1;
        }
    };
    rt::timeout(Duration::from_secs(2), discard).await.ok();
}
