use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

/// Most buffers of one vectored call.
pub const IO_VECTORS: usize = 64;

/// A TCP connection, driven by readiness.
///
/// One call is at most one system call. A short read means that the queue is empty, a short write that it is full
/// (epoll(7), "edge-triggered"), so readiness is cleared without a further call that could only fail.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
}

impl From<TcpStream> for Stream {
    fn from(tcp: TcpStream) -> Self {
        Self { tcp }
    }
}

impl Stream {
    /// Ready once a read would not block, at the end of the stream too.
    ///
    /// # Errors
    /// What the runtime reports, for instance at shutdown.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_read_ready(cx)
    }

    /// One read into `buffer`; 0 bytes mean the end of the stream.
    ///
    /// # Errors
    /// As recv(2).
    pub fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
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
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        self.poll_io(cx, Interest::READABLE, wanted, |mut socket| socket.read_vectored(buffers))
    }

    /// One write of `buffers` (at most [`IO_VECTORS`]); returns how many bytes were taken.
    ///
    /// # Errors
    /// As writev(2).
    pub fn poll_send(&self, cx: &mut Context<'_>, buffers: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        self.poll_io(cx, Interest::WRITABLE, wanted, |mut socket| match buffers {
            [buffer] => socket.write(buffer),
            _ => socket.write_vectored(buffers),
        })
    }

    fn poll_io(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        wanted: usize,
        mut call: impl FnMut(&socket2::Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(if interest.is_readable() {
                self.tcp.poll_read_ready(cx)
            } else {
                self.tcp.poll_write_ready(cx)
            })?;
            let mut short = None;
            let result = self.tcp.try_io(interest, || match call(&SockRef::from(&self.tcp)) {
                Ok(len) if len > 0 && len < wanted => {
                    short = Some(len);
                    Err(io::ErrorKind::WouldBlock.into())
                }
                other => other,
            });
            match (short, result) {
                (Some(len), _) => return Poll::Ready(Ok(len)),
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (None, Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                (None, result) => return Poll::Ready(result),
            }
        }
    }

    /// Waits until a read would not block.
    ///
    /// # Errors
    /// As [`Stream::poll_readable`].
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
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

    /// Copies waiting bytes into `buffer` without taking them; 0 at the end of the stream.
    ///
    /// # Errors
    /// As recv(2).
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp.peek(buffer).await
    }

    /// Sends FIN: our direction is over, the other stays open.
    ///
    /// # Errors
    /// As shutdown(2); a peer that has already gone is none.
    pub fn shutdown_write(&self) -> io::Result<()> {
        match SockRef::from(&self.tcp).shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Makes the coming close a reset, so that the other end does not mistake it for an orderly end.
    pub fn abort_on_close(&self) {
        // Best effort: a socket that refuses the option is closed with FIN instead.
        drop(SockRef::from(&self.tcp).set_linger(Some(Duration::ZERO)));
    }

    /// Whether the application at the other end, on this host, has closed its socket altogether rather than only
    /// its sending direction; `None` when it is on another host or cannot be told.
    pub fn peer_is_closed(&self) -> Option<bool> {
        let (local, peer) = (self.tcp.local_addr().ok()?, self.tcp.peer_addr().ok()?);
        if local.ip() != peer.ip() && !peer.ip().to_canonical().is_loopback() {
            return None;
        }
        #[cfg(target_os = "linux")]
        return adit_sys::diag::is_orphan(canonical(peer), canonical(local)).ok().flatten();
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Address of the other end.
    ///
    /// # Errors
    /// As getpeername(2), for instance when the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.peer_addr()
    }

    /// Address of this end.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// IPv4 connections to a dual-stack listener look mapped from this end and plain from the other.
#[cfg(target_os = "linux")]
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// A listening unix socket, for the control interface.
#[derive(Debug)]
pub struct UnixListener(tokio::net::UnixListener);

impl UnixListener {
    /// Listens at `path`. A socket file that nobody answers on is replaced, any other file is left alone.
    ///
    /// # Errors
    /// As bind(2), and `AddrInUse` when another process answers there.
    pub fn listen(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt};
        if let Ok(meta) = std::fs::symlink_metadata(path) {
            let answered = std::os::unix::net::UnixStream::connect(path).is_ok();
            if !meta.file_type().is_socket() || answered {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        let listener = tokio::net::UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
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

/// A connection to the control interface.
#[derive(Debug)]
pub struct UnixStream(tokio::net::UnixStream);

impl UnixStream {
    /// Connects to a listener's `path`.
    ///
    /// # Errors
    /// As connect(2).
    pub async fn dial(path: &Path) -> io::Result<Self> {
        Ok(Self(tokio::net::UnixStream::connect(path).await?))
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
