use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use crate::listen::bind_unix;
use crate::pace::{Pacer, Share};
use crate::rt::Pipe;
use crate::unix;

/// Most buffers of one vectored call.
pub const IO_VECTORS: usize = 64;

/// A connection, driven by readiness: TCP, a unix socket, or one of many streams that a carrier multiplexes.
///
/// One call is at most one system call. A short read means that the queue is empty, a short write that it is full
/// (epoll(7), "edge-triggered"), so readiness is cleared without a further call that could only fail.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(unix::UnixStream),
    Carried(Box<dyn CarrierStream>),
    /// Boxed, so that other streams are no larger for it.
    Paced(Box<(TcpStream, Share)>),
}

/// A stream that is not a socket of its own. Dropping it closes it.
///
/// The calls are those of [`Stream`]; a caller that gets [`Poll::Pending`] is woken.
pub trait CarrierStream: fmt::Debug {
    /// As [`Stream::poll_readable`].
    ///
    /// # Errors
    /// When the carrier is gone.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// As [`Stream::poll_recv`].
    ///
    /// # Errors
    /// When the carrier is gone.
    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Takes the first bytes of `bytes`; returns how many.
    ///
    /// # Errors
    /// When the carrier is gone, or the direction has ended.
    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Our direction is over, the other stays open.
    fn shutdown_write(&self);

    /// Allows that sent data is dropped at the coming close.
    fn abort_on_close(&self);

    /// As [`Stream::carries_half_close`].
    fn carries_half_close(&self) -> bool {
        false
    }

    /// As [`Stream::peer_is_closed`].
    fn peer_is_closed(&self) -> Option<bool>;

    /// Ready once the stream can carry nothing more: the carrier is gone, or the peer has reset the stream.
    fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// The far end of the carrier.
    fn peer_addr(&self) -> SocketAddr;

    /// The near end of the carrier.
    fn local_addr(&self) -> SocketAddr;
}

impl From<TcpStream> for Stream {
    fn from(tcp: TcpStream) -> Self {
        Self { kind: Kind::Tcp(tcp) }
    }
}

impl From<unix::UnixStream> for Stream {
    fn from(unix: unix::UnixStream) -> Self {
        Self { kind: Kind::Unix(unix) }
    }
}

impl From<Box<dyn CarrierStream>> for Stream {
    fn from(carried: Box<dyn CarrierStream>) -> Self {
        Self { kind: Kind::Carried(carried) }
    }
}

impl Stream {
    /// Two ends of one connection within this process.
    ///
    /// # Errors
    /// As socketpair(2).
    pub fn pair() -> io::Result<(Self, Self)> {
        unix::UnixStream::pair().map(|(left, right)| (left.into(), right.into()))
    }

    /// Whether it is one of many streams of a carrier, without a descriptor of its own.
    pub fn is_carried(&self) -> bool {
        matches!(self.kind, Kind::Carried(_))
    }

    /// Makes a TCP connection share `pacer`'s rate with the others of its peer.
    #[must_use]
    pub fn paced(self, pacer: &Arc<Pacer>) -> Self {
        let Kind::Tcp(tcp) = self.kind else { return self };
        let kind = match tcp.peer_addr() {
            Ok(peer) => {
                let share = pacer.join(&tcp, peer.ip());
                Kind::Paced(Box::new((tcp, share)))
            }
            // Gone already: nothing will be sent.
            Err(_) => Kind::Tcp(tcp),
        };
        Self { kind }
    }

    /// Ready once a read would not block, at the end of the stream too.
    ///
    /// # Errors
    /// The runtime's error, for instance at shutdown.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.kind {
            Kind::Tcp(tcp) => tcp.poll_read_ready(cx),
            Kind::Paced(paced) => paced.0.poll_read_ready(cx),
            Kind::Unix(unix) => unix.poll_read_ready(cx),
            Kind::Carried(carried) => carried.poll_readable(cx),
        }
    }

    /// One read into `buffer`; 0 bytes mean the end of the stream.
    ///
    /// # Errors
    /// As recv(2).
    pub fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Kind::Carried(carried) = &self.kind {
            return carried.poll_recv(cx, buffer);
        }
        let wanted = buffer.len();
        self.poll_io(cx, Interest::READABLE, wanted, |mut socket| socket.read(buffer))
    }

    /// One read into `buffers` (at most [`IO_VECTORS`]), filling them in order.
    ///
    /// # Errors
    /// As readv(2).
    pub fn poll_recv_vectored(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Kind::Carried(carried) = &self.kind {
            let buffers = buffers.iter_mut().map(|buffer| &mut **buffer);
            return poll_each(buffers, |buffer| carried.poll_recv(cx, buffer));
        }
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        self.poll_io(cx, Interest::READABLE, wanted, |mut socket| socket.read_vectored(buffers))
    }

    /// One write of `buffers` (at most [`IO_VECTORS`]); returns how many bytes were taken.
    ///
    /// # Errors
    /// As writev(2).
    pub fn poll_send(&self, cx: &mut Context<'_>, buffers: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Kind::Carried(carried) = &self.kind {
            let buffers = buffers.iter().map(|buffer| &**buffer);
            return poll_each(buffers, |buffer| carried.poll_send(cx, buffer));
        }
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        let paced = if let Kind::Paced(paced) = &self.kind { Some(&**paced) } else { None };
        if let Some((tcp, share)) = paced {
            share.before_write(tcp);
        }
        let sent = self.poll_io(cx, Interest::WRITABLE, wanted, |mut socket| match buffers {
            [buffer] => socket.write(buffer),
            _ => socket.write_vectored(buffers),
        });
        if let Some((_, share)) = paced {
            share.after_write(!matches!(sent, Poll::Ready(Ok(len)) if len == wanted));
        }
        sent
    }

    /// Whether bytes can go through a pipe from here, or to here.
    pub fn takes_pipe(&self) -> bool {
        cfg!(target_os = "linux") && matches!(self.kind, Kind::Tcp(_))
    }

    /// Moves up to `most` bytes of the queue into `pipe`, which is empty; 0 mean the end of the stream.
    ///
    /// # Errors
    /// As splice(2); `Unsupported` unless [`Stream::takes_pipe`].
    pub fn poll_fill(&self, cx: &mut Context<'_>, pipe: &mut Pipe, most: usize) -> Poll<io::Result<usize>> {
        #[cfg(target_os = "linux")]
        if let (Kind::Tcp(tcp), Some(ends)) = (&self.kind, &pipe.ends) {
            let filled = poll_whole(cx, tcp, Interest::READABLE, || ends.fill(tcp, most));
            if let Poll::Ready(Ok(len)) = filled {
                pipe.held += len;
            }
            return filled;
        }
        let _ = (cx, pipe, most);
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Queues what is in `pipe`, as far as there is room; returns how many bytes were taken.
    ///
    /// # Errors
    /// As splice(2); `Unsupported` unless [`Stream::takes_pipe`].
    pub fn poll_drain(&self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        #[cfg(target_os = "linux")]
        if let (Kind::Tcp(tcp), Some(ends)) = (&self.kind, &pipe.ends) {
            let drained = poll_whole(cx, tcp, Interest::WRITABLE, || ends.drain(tcp, pipe.held));
            if let Poll::Ready(Ok(len)) = drained {
                pipe.held -= len;
            }
            return drained;
        }
        let _ = (cx, pipe);
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn poll_io(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        wanted: usize,
        mut call: impl FnMut(&socket2::Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(match &self.kind {
                Kind::Tcp(tcp) if interest.is_readable() => tcp.poll_read_ready(cx),
                Kind::Tcp(tcp) => tcp.poll_write_ready(cx),
                Kind::Paced(paced) if interest.is_readable() => paced.0.poll_read_ready(cx),
                Kind::Paced(paced) => paced.0.poll_write_ready(cx),
                Kind::Unix(unix) if interest.is_readable() => unix.poll_read_ready(cx),
                Kind::Unix(unix) => unix.poll_write_ready(cx),
                Kind::Carried(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
            })?;
            let mut short = None;
            let mut once = |socket: SockRef<'_>| match call(&socket) {
                Ok(len) if len > 0 && len < wanted => {
                    short = Some(len);
                    Err(io::ErrorKind::WouldBlock.into())
                }
                other => other,
            };
            let result = match &self.kind {
                Kind::Tcp(tcp) => tcp.try_io(interest, || once(SockRef::from(tcp))),
                Kind::Paced(paced) => paced.0.try_io(interest, || once(SockRef::from(&paced.0))),
                Kind::Unix(unix) => unix.try_io(interest, || once(SockRef::from(unix))),
                Kind::Carried(_) => Err(io::ErrorKind::Unsupported.into()),
            };
            match (short, result) {
                (Some(len), _) => return Poll::Ready(Ok(len)),
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (None, Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                (None, result) => return Poll::Ready(result),
            }
        }
    }

    /// Waits until there is a byte to read, or the end. Unlike [`Stream::poll_readable`], which may be wrong about a
    /// connection that has just been accepted, this asks the system.
    ///
    /// # Errors
    /// As recv(2).
    pub async fn readable(&self) -> io::Result<()> {
        if let Kind::Carried(_) = &self.kind {
            return poll_fn(|cx| self.poll_readable(cx)).await;
        }
        let peek = |cx: &mut Context<'_>| {
            let mut byte = [MaybeUninit::uninit()];
            self.poll_io(cx, Interest::READABLE, 1, |socket| socket.peek(&mut byte))
        };
        poll_fn(peek).await.map(drop)
    }

    /// Ends once a carrier's stream can carry nothing more: the carrier is gone, or the peer has reset the stream. Never
    /// ends for a socket, which only a read or a write tells about.
    pub async fn lost(&self) {
        let Kind::Carried(carried) = &self.kind else { return std::future::pending().await };
        poll_fn(|cx| carried.poll_lost(cx)).await;
    }

    /// One read, as [`Stream::poll_recv`].
    ///
    /// # Errors
    /// As recv(2).
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_recv(cx, buffer)).await
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As send(2); how much was sent is unknown then.
    pub async fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| self.poll_send(cx, &[IoSlice::new(bytes)])).await?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends FIN: our direction is over, the other stays open.
    ///
    /// # Errors
    /// As shutdown(2); a peer that has already gone is none.
    pub fn shutdown_write(&self) -> io::Result<()> {
        let result = match &self.kind {
            Kind::Tcp(tcp) => SockRef::from(tcp).shutdown(Shutdown::Write),
            Kind::Paced(paced) => SockRef::from(&paced.0).shutdown(Shutdown::Write),
            Kind::Unix(unix) => SockRef::from(unix).shutdown(Shutdown::Write),
            Kind::Carried(carried) => {
                carried.shutdown_write();
                Ok(())
            }
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Makes the coming close a reset, so that the other end does not mistake it for an orderly end; where there is
    /// no such thing, what waits to be sent is dropped.
    pub fn abort_on_close(&self) {
        match &self.kind {
            // Best effort: a socket that refuses the option is closed with FIN instead.
            Kind::Tcp(tcp) => drop(SockRef::from(tcp).set_linger(Some(Duration::ZERO))),
            Kind::Paced(paced) => drop(SockRef::from(&paced.0).set_linger(Some(Duration::ZERO))),
            Kind::Unix(_) => {}
            Kind::Carried(carried) => carried.abort_on_close(),
        }
    }

    /// While set, the system resets the connection if this process ends without closing it: a kill then does not look
    /// like an orderly end. Once cleared, the coming close is orderly again.
    ///
    /// TCP alone has such an end; others are left as they are.
    pub fn reset_if_killed(&self, is_set: bool) {
        let linger = is_set.then_some(Duration::ZERO);
        match &self.kind {
            // Best effort: a connection that is gone already refuses the option.
            Kind::Tcp(tcp) => drop(SockRef::from(tcp).set_linger(linger)),
            Kind::Paced(paced) => drop(SockRef::from(&paced.0).set_linger(linger)),
            Kind::Unix(_) | Kind::Carried(_) => {}
        }
    }

    /// Whether the peer is known to keep the other direction open after [`Stream::shutdown_write`]. Asked of carriers;
    /// false for sockets, whose protocol knows.
    pub fn carries_half_close(&self) -> bool {
        matches!(&self.kind, Kind::Carried(carried) if carried.carries_half_close())
    }

    /// Whether the application at the other end, on this host, has closed its socket altogether rather than only
    /// its sending direction; `None` when it is on another host or cannot be told. A carrier may know it of others.
    pub fn peer_is_closed(&self) -> Option<bool> {
        let tcp = match &self.kind {
            Kind::Tcp(tcp) => tcp,
            Kind::Paced(paced) => &paced.0,
            // Nothing can be sent to it any more, which a write of nothing tells.
            Kind::Unix(unix) => {
                return match SockRef::from(unix).send(&[]) {
                    Ok(_) => Some(false),
                    Err(error) => Some(error.kind() == io::ErrorKind::BrokenPipe),
                };
            }
            Kind::Carried(carried) => return carried.peer_is_closed(),
        };
        let (local, peer) = (tcp.local_addr().ok()?, tcp.peer_addr().ok()?);
        if local.ip() != peer.ip() && !peer.ip().to_canonical().is_loopback() {
            return None;
        }
        #[cfg(target_os = "linux")]
        return adit_sys::diag::is_orphan(canonical(peer), canonical(local)).ok().flatten();
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Address of the other end; that of the carrier where this is one of its streams, none for a unix socket.
    ///
    /// # Errors
    /// As getpeername(2), for instance when the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.kind {
            Kind::Tcp(tcp) => tcp.peer_addr(),
            Kind::Paced(paced) => paced.0.peer_addr(),
            Kind::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
            Kind::Carried(carried) => Ok(carried.peer_addr()),
        }
    }

    /// The address that the client has asked for, where the firewall has sent the connection to another one
    /// (`SO_ORIGINAL_DST`); the address of this end where it has not.
    ///
    /// # Errors
    /// As getsockopt(2): `NotFound` when the kernel does not track the connection.
    pub fn original_addr(&self) -> io::Result<SocketAddr> {
        let tcp = match &self.kind {
            Kind::Tcp(tcp) => tcp,
            Kind::Paced(paced) => &paced.0,
            Kind::Unix(_) | Kind::Carried(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        #[cfg(target_os = "linux")]
        {
            let socket = SockRef::from(tcp);
            let is_v4 = tcp.local_addr()?.is_ipv4();
            let found = if is_v4 { socket.original_dst_v4() } else { socket.original_dst_v6() }?;
            let found = found.as_socket().ok_or(io::ErrorKind::NotFound)?;
            Ok(SocketAddr::new(found.ip().to_canonical(), found.port()))
        }
        #[cfg(not(target_os = "linux"))]
        tcp.local_addr()
    }

    /// The traffic class of the packet that completed the handshake of an accepted connection: the TOS of IPv4. 0 where it
    /// is not known, as on systems other than Linux.
    pub fn accepted_class(&self) -> u8 {
        let tcp = match &self.kind {
            Kind::Tcp(tcp) => tcp,
            Kind::Paced(paced) => &paced.0,
            Kind::Unix(_) | Kind::Carried(_) => return 0,
        };
        let is_ipv6 = tcp.local_addr().is_ok_and(|addr| addr.ip().to_canonical().is_ipv6());
        adit_sys::tcp::accepted_class(tcp, is_ipv6).unwrap_or(0)
    }

    /// Address of this end, likewise.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.kind {
            Kind::Tcp(tcp) => tcp.local_addr(),
            Kind::Paced(paced) => paced.0.local_addr(),
            Kind::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
            Kind::Carried(carried) => Ok(carried.local_addr()),
        }
    }
}

/// Moves the buffers one after the other by `step`, as far as it goes. An error after the first bytes is met again
/// by the next call.
fn poll_each<B: Deref<Target = [u8]>>(
    buffers: impl Iterator<Item = B>,
    mut step: impl FnMut(B) -> Poll<io::Result<usize>>,
) -> Poll<io::Result<usize>> {
    let mut total = 0;
    for buffer in buffers.filter(|buffer| !buffer.is_empty()) {
        let len = buffer.len();
        match step(buffer) {
            Poll::Ready(Ok(moved)) => {
                total += moved;
                if moved < len {
                    break;
                }
            }
            Poll::Ready(Err(_)) | Poll::Pending if total > 0 => break,
            other @ (Poll::Ready(Err(_)) | Poll::Pending) => return other,
        }
    }
    Poll::Ready(Ok(total))
}

/// IPv4 connections to a dual-stack listener look mapped from this end and plain from the other.
#[cfg(target_os = "linux")]
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// A listening unix socket, for the control interface.
#[derive(Debug)]
pub struct UnixListener(pub(crate) unix::UnixListener);

impl UnixListener {
    /// Listens at `path`. A socket file that nobody answers on is replaced, any other file is left alone.
    ///
    /// # Errors
    /// As bind(2), and `AddrInUse` when another process answers there.
    pub fn listen(path: &Path) -> io::Result<Self> {
        let listener = unix::UnixListener::from_std(bind_unix(path)?)?;
        unix::keep_private(path)?;
        Ok(Self(listener))
    }

    /// The next connection.
    ///
    /// # Errors
    /// As accept(2).
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixStream(self.0.accept().await?.0))
    }
}

/// Calls until the socket would block. Unlike reads and writes of memory, a call that moved less than it might have says
/// nothing about the socket's queue.
#[cfg(target_os = "linux")]
fn poll_whole(
    cx: &mut Context<'_>,
    tcp: &TcpStream,
    interest: Interest,
    mut call: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(if interest.is_readable() { tcp.poll_read_ready(cx) } else { tcp.poll_write_ready(cx) })?;
        match tcp.try_io(interest, &mut call) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            result => return Poll::Ready(result),
        }
    }
}

/// A connection to the control interface.
#[derive(Debug)]
pub struct UnixStream(unix::UnixStream);

impl UnixStream {
    /// Connects to a listener's `path`.
    ///
    /// # Errors
    /// As connect(2).
    pub async fn dial(path: &Path) -> io::Result<Self> {
        Ok(Self(unix::UnixStream::connect(path).await?))
    }

    /// One read; 0 bytes mean the end.
    ///
    /// # Errors
    /// As recv(2).
    pub async fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).await
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As send(2).
    pub async fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }
}
