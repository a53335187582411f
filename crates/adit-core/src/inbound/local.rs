//! The port for applications: SOCKS4, 4a, 5 and HTTP, told apart by the first byte.

mod http;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use adit_config::model::{Local, LocalProtocols, Reply};
use adit_net::listen::{ListenOptions, listen_datagrams};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::socks::{self, Auth, Command, Event, SocksError, SocksServer};
use adit_proto::wire::{Credentials, Failure, Target};

use super::{Datagrams, Inbound};
use crate::datagram::{Ends, Near, Relay};
use crate::relay::{Early, Endpoint};
use crate::session::{Prepared, Session};

/// Time for everything before a request is whole.
const DEADLINE: Duration = Duration::from_secs(10);
/// First size of the buffer in bytes: any SOCKS unit fits, and most HTTP heads do.
const FIRST_READ: usize = 4096;

/// One application's connection.
struct Client<'a> {
    inbound: &'a Inbound,
    config: &'a Local,
    peer: SocketAddr,
}

/// A request for a tunnel, with what its client has sent behind it.
struct TunnelRequest {
    stream: Stream,
    target: Target,
    answer: Box<dyn Answer>,
    early: Vec<u8>,
}

/// Serves one connection.
pub(super) async fn serve(inbound: &Inbound, config: &Local, stream: Stream, peer: SocketAddr) {
    let client = Client { inbound, config, peer };
    // All that the handshake needs is gone by the time the connection is idle.
    let Some((mut near, prepared)) = Box::pin(client.prepare(stream)).await else { return };
    let entry = inbound.core.conns.enter();
    prepared.run(inbound, peer, &mut near, &entry).await;
}

/// One read behind what is there; makes room where there is none.
async fn fill(stream: &Stream, wire: &mut RecvBuf) -> io::Result<usize> {
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

/// How a kind of client is told what became of its request.
trait Answer {
    /// The bytes to send it.
    fn bytes(&self, outcome: Result<SocketAddr, Failure>) -> Vec<u8>;
}

impl Answer for socks::Request {
    fn bytes(&self, outcome: Result<SocketAddr, Failure>) -> Vec<u8> {
        let mut out = Vec::new();
        self.emit_reply(outcome, &mut out);
        out
    }
}

impl Client<'_> {
    /// Everything up to the relay.
    async fn prepare(&self, stream: Stream) -> Option<(Endpoint, Box<Prepared>)> {
        let request = Box::pin(self.handshake(stream)).await?;
        Box::pin(self.open(request)).await
    }

    /// Everything up to a request for a tunnel; `None` when the connection needs no tunnel, or none any more.
    async fn handshake(&self, stream: Stream) -> Option<TunnelRequest> {
        let refused = &self.inbound.metrics.refused;
        let mut wire = RecvBuf::with_len(FIRST_READ);
        match rt::timeout(DEADLINE, self.first_bytes(&stream, &mut wire)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => {
                refused.aborted.add(1);
                return None;
            }
            Err(rt::Elapsed) => {
                refused.deadline.add(1);
                return None;
            }
        }
        match (wire.unread()[0], self.config.accepts) {
            (4 | 5, LocalProtocols::Socks | LocalProtocols::Mixed) => self.serve_socks(stream, wire).await,
            (b'A'..=b'Z' | b'a'..=b'z', LocalProtocols::Http | LocalProtocols::Mixed) => {
                Box::pin(self.serve_http(stream, wire)).await
            }
            (byte, _) => {
                tracing::debug!(inbound = &*self.inbound.name, peer = %self.peer, byte, "neither SOCKS nor HTTP");
                refused.malformed.add(1);
                None
            }
        }
    }

    /// One read; 0 when the process is to end before anything has come. Browsers keep connections ready that they may
    /// never use, and nothing is lost with them.
    async fn first_bytes(&self, stream: &Stream, wire: &mut RecvBuf) -> io::Result<usize> {
        let entry = self.inbound.core.conns.enter();
        entry.set_resting(true);
        let over = poll_fn(|cx| {
            entry.set_waker(cx.waker());
            if entry.is_expired() { Poll::Ready(Ok(0)) } else { Poll::Pending }
        });
        rt::race(over, fill(stream, wire)).await
    }

    async fn serve_socks(&self, stream: Stream, mut wire: RecvBuf) -> Option<TunnelRequest> {
        let handshake = Box::pin(self.socks_handshake(&stream, &mut wire));
        let request = match rt::timeout(DEADLINE, handshake).await {
            Ok(Some(request)) => request,
            Ok(None) => return None,
            Err(rt::Elapsed) => {
                self.inbound.metrics.refused.deadline.add(1);
                return None;
            }
        };
        if request.command == Command::UdpAssociate
            && let Some(datagrams) = self.inbound.datagrams()
        {
            Box::pin(self.associate(stream, &request, &datagrams)).await;
            return None;
        }
        if request.command != Command::Connect {
            // BIND is never served, and datagrams only if the outbound carries them.
            self.inbound.metrics.refused.unsupported.add(1);
            tracing::debug!(inbound = &*self.inbound.name, peer = %self.peer, "only CONNECT is served");
            self.refuse(&stream, &request, Failure::CommandNotSupported).await;
            return None;
        }
        let (target, early) = (request.target.clone(), wire.unread().to_vec());
        Some(TunnelRequest { stream, target, answer: Box::new(request), early })
    }

    /// Serves datagrams on a port of their own for as long as the connection lasts (RFC 1928, section 7).
    async fn associate(&self, stream: Stream, request: &socks::Request, datagrams: &Datagrams) {
        let made = stream.local_addr().map_err(|_| Failure::General).and_then(|addr| {
            let at = SocketAddr::new(addr.ip(), 0);
            let made = listen_datagrams(at, &ListenOptions::default(), 1).map_err(|_| Failure::General)?;
            let socket = made.sockets.into_iter().next().ok_or(Failure::General)?;
            let near = Near::Socks { client: self.peer.ip().to_canonical() };
            let ends = Ends { near, far: datagrams.far.clone(), access: self.inbound.access() };
            let Inbound { name, metrics, .. } = self.inbound;
            let relay =
                Relay::new(name.clone(), metrics.clone(), socket, ends, datagrams.scratch.clone(), None);
            relay.map(|relay| (relay, made.addr)).map_err(|_| Failure::General)
        });
        let (relay, bound) = match made {
            Ok(made) => made,
            Err(failure) => return self.refuse(&stream, request, failure).await,
        };
        self.inbound.metrics.requests.add(1);
        if stream.send_all(&request.bytes(Ok(bound))).await.is_err() {
            return;
        }
        let entry = self.inbound.core.conns.enter();
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
        Box::pin(relay.run(over)).await;
    }

    async fn socks_handshake(&self, stream: &Stream, wire: &mut RecvBuf) -> Option<socks::Request> {
        let auth = if self.config.users.is_empty() { Auth::Open } else { Auth::Required };
        let mut server = SocksServer::new(auth);
        let mut out = Vec::new();
        loop {
            let event = match server.advance(wire, &mut out) {
                Ok(Event::Credentials(credentials)) => {
                    let accepted = self.knows(&credentials);
                    server.authenticate(accepted, &mut out).map(|()| None)
                }
                Ok(Event::NeedMore) => Ok(Some(None)),
                Ok(Event::Request(request)) => Ok(Some(Some(request))),
                Err(error) => Err(error),
            };
            if !out.is_empty() {
                stream.send_all(&out).await.ok()?;
                out.clear();
            }
            match event {
                Ok(None) => {}
                Ok(Some(Some(request))) => return Some(request),
                Ok(Some(None)) => match fill(stream, wire).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => {
                        self.inbound.metrics.refused.aborted.add(1);
                        return None;
                    }
                },
                Err(error) => {
                    self.count_socks_error(&error);
                    linger(stream).await;
                    return None;
                }
            }
        }
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

    /// Whether one of the users shows these credentials. All are compared, so that the time tells nothing.
    fn knows(&self, credentials: &Credentials) -> bool {
        let users = self.config.users.iter();
        users.fold(false, |found, (name, password)| {
            found | credentials.matches(name.as_bytes(), password.expose().as_bytes())
        })
    }

    /// Opens the way to the target and answers as configured.
    async fn open(&self, request: TunnelRequest) -> Option<(Endpoint, Box<Prepared>)> {
        let TunnelRequest { stream, target, answer, early } = request;
        let since = rt::now();
        let way = self.inbound.way(&target).await;
        let (outbound, peer) = (&*way.outbound, self.peer);
        let session = Session { inbound: self.inbound, outbound, peer, target: &target, since };
        let bound = stream.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        let is_early = self.config.reply == Reply::Early && outbound.is_tunnel();
        if is_early {
            stream.send_all(&answer.bytes(Ok(bound))).await.ok()?;
        }
        match session.open(&way).await {
            Ok(opened) => {
                if !is_early {
                    stream.send_all(&answer.bytes(Ok(bound))).await.ok()?;
                }
                let early = Early { bytes: early, ended: false };
                let outbound = way.outbound;
                let prepared = Prepared { target, since, outbound, opened, early };
                Some((Endpoint::plain(stream), Box::new(prepared)))
            }
            Err(_) if is_early => {
                // The application was told that all is well: only a reset says otherwise now.
                stream.abort_on_close();
                None
            }
            Err(error) => {
                self.refuse(&stream, &*answer, error.failure()).await;
                None
            }
        }
    }

    async fn refuse(&self, stream: &Stream, answer: &dyn Answer, failure: Failure) {
        if stream.send_all(&answer.bytes(Err(failure))).await.is_ok() {
            linger(stream).await;
        }
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
