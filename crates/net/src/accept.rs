//! Accepts connections, and gets through a shortage of descriptors or memory.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adit_model::codes::SYS_DESCRIPTORS;
use adit_sys::rate::unpace_local;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::handover::Kept;
use crate::listen::{ListenError, ListenOptions, LocalListener, SocketFile, listen_many};
use crate::rt::Stream;
use crate::steer::{AcceptBalancer, Group, Steered};
use crate::unix::{UnixListener, UnixStream};
use crate::wire::SendWire;

pub(crate) mod bounded;

/// First and longest pause after a failure that waiting may cure. Connections wait in the backlog meanwhile.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(100)];

/// The same when something has been ended to make room.
const ROOM_PAUSE: Duration = Duration::from_millis(2);

/// A shortage of descriptors that has lasted this long is not a blip: from then on those who wait are turned away,
/// so that they learn of it instead of hanging.
const SHED_AFTER: Duration = Duration::from_secs(1);

/// Connections that are turned away per pause, at most.
const SHED_BATCH: usize = 64;

/// Connections in a row that may fail by themselves before a pause is made: an error that turns out to concern the
/// listener must not keep the core busy.
const MAX_ABORTED: u32 = 64;

/// At most one warning in this time.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Counters of an [`Acceptor`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AcceptCounters {
    /// Connections handed out.
    pub accepted: u64,
    /// Connections that failed before they were accepted.
    pub aborted: u64,
    /// Attempts that failed for want of descriptors or memory.
    pub exhausted: u64,
    /// Connections closed at once for want of descriptors.
    pub shed: u64,
}

/// Accepts from one listener.
#[derive(Debug)]
pub struct Acceptor {
    listener: Listener,
    /// A descriptor to give up, so that a connection can be accepted and closed while there are no others.
    reserve: Option<File>,
    counters: AcceptCounters,
    /// Since when every attempt has failed for want of something.
    short_since: Option<Instant>,
    /// Its part in the choice of the loop that takes new connections.
    steered: Option<Steered>,
}

#[derive(Debug)]
enum Listener {
    Tcp {
        listener: TcpListener,
        /// Takes connections from this machine alone: they have all that is for such from it.
        is_local: bool,
    },
    /// The file goes first.
    Unix { _file: Arc<SocketFile>, listener: UnixListener },
}

/// A connection that an [`Acceptor`] has accepted; a [`Stream`] takes it.
#[derive(Debug)]
pub enum Accepted {
    /// A TCP connection.
    Tcp(TcpStream),
    /// One of a unix socket.
    Unix(UnixStream),
}

impl Accepted {
    /// The connection as a stream of any kind.
    pub(crate) fn into_wire(self) -> SendWire {
        match self {
            Self::Tcp(stream) => Box::new(stream),
            Self::Unix(stream) => Box::new(stream),
        }
    }
}

impl From<Accepted> for Stream {
    fn from(accepted: Accepted) -> Self {
        match accepted {
            Accepted::Tcp(tcp) => tcp.into(),
            Accepted::Unix(unix) => unix.into(),
        }
    }
}

impl Listener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Accepted, SocketAddr)>> {
        match self {
            Self::Tcp { listener, is_local } => {
                let (stream, peer) = ready!(listener.poll_accept(cx))?;
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                if !is_local {
                    unpace_local(&stream, peer.ip()).ok();
                }
                Poll::Ready(Ok((Accepted::Tcp(stream), peer)))
            }
            Self::Unix { listener, .. } => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                Poll::Ready(Ok((Accepted::Unix(stream), (Ipv4Addr::LOCALHOST, 0).into())))
            }
        }
    }
}

/// Descriptors are the whole process's: all listeners together warn once.
static WARNINGS: Mutex<RateLimit> = Mutex::new(RateLimit::new(WARN_EVERY));

impl Acceptor {
    /// Takes over a listener.
    pub fn new(listener: TcpListener) -> Self {
        let is_local = listener.local_addr().is_ok_and(|local| local.ip().to_canonical().is_loopback());
        Self::of(Listener::Tcp { listener, is_local })
    }

    fn of(listener: Listener) -> Self {
        let counters = AcceptCounters::default();
        Self { listener, reserve: reserve(), counters, short_since: None, steered: None }
    }

    /// Listens at `addr` with one socket on the current event loop, and gives a copy of it for the next process.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(addr: SocketAddr, options: &ListenOptions) -> Result<(Self, Vec<Kept>), ListenError> {
        let made = listen_many(addr, options, 1)?;
        let open = || {
            let kept = made.keep()?;
            let socket = made.sockets.into_iter().next().ok_or(io::ErrorKind::NotFound)?;
            Ok((Self::from_std(socket)?, kept))
        };
        open().map_err(|source| ListenError { addr, holder: None, source })
    }

    /// Takes over a unix socket, on the current event loop.
    ///
    /// # Errors
    /// When the event loop does not take it.
    pub fn from_local(listener: LocalListener) -> io::Result<Self> {
        let LocalListener { file, socket } = listener;
        Ok(Self::of(Listener::Unix { _file: file, listener: UnixListener::from_std(socket)? }))
    }

    /// Takes over a listener that was opened elsewhere and is non-blocking, on the current event loop.
    ///
    /// # Errors
    /// When the event loop does not take it.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self::new(TcpListener::from_std(listener)?))
    }

    /// Takes turns with the listeners of other loops on the same port, which `group` stands for.
    #[must_use]
    pub fn steered(mut self, helm: &Rc<AcceptBalancer>, group: Option<Arc<Group>>) -> Self {
        self.steered = group.map(|group| Steered { helm: helm.clone(), group });
        self
    }

    /// The next connection with its peer's address (never an IPv4-mapped one; loopback, port 0, for a unix socket's).
    /// It has the options of the listener, which [`crate::listen`] has tuned.
    ///
    /// Connections that failed while they waited are skipped; when descriptors or memory run out this waits, warns
    /// at most once a minute, and after a second closes what keeps coming in. It may be cancelled at any time.
    ///
    /// # Errors
    /// Only what means that this listener will never accept again.
    pub async fn accept(&mut self) -> io::Result<(Accepted, SocketAddr)> {
        self.accept_making_room(&mut || false).await
    }

    /// The same; where descriptors have run out, `make_room` is asked to end something, and nothing is turned away as
    /// long as it says that it does.
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    pub async fn accept_making_room(
        &mut self,
        make_room: &mut dyn FnMut() -> bool,
    ) -> io::Result<(Accepted, SocketAddr)> {
        let mut aborted = 0;
        loop {
            let error = match poll_fn(|cx| self.listener.poll_accept(cx)).await {
                Ok((stream, peer)) => {
                    self.short_since = None;
                    self.counters.accepted += 1;
                    if let (Some(steered), Listener::Tcp { listener, .. }) = (&self.steered, &self.listener) {
                        steered.accepted(listener);
                    }
                    return Ok((stream, peer));
                }
                Err(error) => error,
            };
            match Failure::of(&error) {
                Failure::Connection => {
                    self.counters.aborted += 1;
                    aborted += 1;
                    if aborted % MAX_ABORTED == 0 {
                        sleep(PAUSE[0]).await;
                    }
                }
                Failure::Descriptors if make_room() => {
                    self.counters.exhausted += 1;
                    // It ends when its task has its turn.
                    sleep(ROOM_PAUSE).await;
                }
                Failure::Descriptors => self.wait(&error, true).await,
                Failure::Memory => self.wait(&error, false).await,
                Failure::Listener => return Err(error),
            }
        }
    }

    /// Closes the listener. Connections that wait are given to `take` first, at most so many, for the system resets the
    /// rest. Nothing lies between the last look and the end, if this is the only copy.
    pub async fn finish(self, most: usize, mut take: impl FnMut((Accepted, SocketAddr))) {
        let copy = match &self.listener {
            Listener::Tcp { listener, .. } => SockRef::from(listener).try_clone().ok(),
            Listener::Unix { .. } => None,
        };
        let Some(socket) = copy else {
            for _ in 0..most {
                let next = poll_fn(|cx| Poll::Ready(self.listener.poll_accept(cx))).await;
                let Poll::Ready(Ok(accepted)) = next else { return };
                take(accepted);
            }
            return;
        };
        drop(self);
        let mut waiting = Vec::new();
        while waiting.len() < most
            && let Ok(accepted) = socket.accept()
        {
            waiting.push(accepted);
        }
        drop(socket);
        for (stream, peer) in waiting {
            let Some(peer) = peer.as_socket() else { continue };
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            unpace_local(&stream, peer.ip()).ok();
            if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream.into()))
            {
                take((Accepted::Tcp(stream), peer));
            }
        }
    }

    /// Counters until now.
    pub fn counters(&self) -> AcceptCounters {
        self.counters
    }

    /// The address that is listened on.
    ///
    /// # Errors
    /// The system's error; a unix socket has none.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.listener {
            Listener::Tcp { listener, .. } => listener.local_addr(),
            Listener::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    async fn wait(&mut self, error: &io::Error, may_shed: bool) {
        let now = Instant::now();
        let short_for = now - *self.short_since.get_or_insert(now);
        self.counters.exhausted += 1;
        if may_shed && short_for >= SHED_AFTER {
            self.shed().await;
        }
        let times = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).permit(now);
        if let Some(times) = times {
            let shed = self.counters.shed;
            warn!(code = SYS_DESCRIPTORS.id, %error, times, shed, "cannot accept connections, trying again");
        }
        sleep(if short_for < PAUSE[1] { PAUSE[0] } else { PAUSE[1] }).await;
    }

    /// Closes connections that wait, as long as there are any and the reserve can be had back.
    async fn shed(&mut self) {
        for _ in 0..SHED_BATCH {
            if self.reserve.take().is_none() {
                break;
            }
            let next = poll_fn(|context| Poll::Ready(self.listener.poll_accept(context))).await;
            let shed = matches!(next, Poll::Ready(Ok(_)));
            drop(next);
            self.reserve = reserve();
            if !shed {
                return;
            }
            self.counters.shed += 1;
        }
        self.reserve = self.reserve.take().or_else(reserve);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let (Some(steered), Listener::Tcp { listener, .. }) = (&self.steered, &self.listener) {
            steered.leave(listener);
        }
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

/// The scope of an error of `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// The connection alone.
    Connection,
    /// The process or the system has no descriptor left.
    Descriptors,
    /// The system has no memory or buffers left.
    Memory,
    /// The listener itself.
    Listener,
}

impl Failure {
    /// accept(2), "Error handling": Linux also passes on errors that the new connection already has.
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno::EMFILE | errno::ENFILE) => Self::Descriptors,
            Some(errno::ENOBUFS | errno::ENOMEM) => Self::Memory,
            Some(errno::EBADF | errno::EINVAL | errno::ENOTSOCK | errno::EFAULT) => Self::Listener,
            Some(_) => Self::Connection,
            // Not from the system: the runtime is gone.
            None => Self::Listener,
        }
    }
}

/// The numbers that [`Failure::of`] tells apart; the same on all systems but for the two that are above 34.
mod errno {
    pub(super) const EBADF: i32 = 9;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EFAULT: i32 = 14;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENFILE: i32 = 23;
    pub(super) const EMFILE: i32 = 24;
    pub(super) const ENOTSOCK: i32 = if cfg!(target_os = "linux") { 88 } else { 38 };
    pub(super) const ENOBUFS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };
}

/// Lets one event through per period and counts the others.
#[derive(Debug)]
struct RateLimit {
    period: Duration,
    last: Option<Instant>,
    held_back: u64,
}

impl RateLimit {
    const fn new(period: Duration) -> Self {
        Self { period, last: None, held_back: 0 }
    }

    /// Number of events that the permitted one stands for, itself included; `None` if this one is suppressed.
    fn permit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now - last < self.period) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back) + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream as StdStream;

    use socket2::SockRef;

    use super::*;
    use crate::listen::{ListenOptions, listen};
    use adit_model::TcpOptions;

    #[tokio::test(flavor = "local")]
    async fn accepted_connections_are_tuned_and_not_inherited() {
        let keep_alive = Duration::from_secs(7);
        let tcp = TcpOptions { keep_alive, receive_buffer: Some(60_000), ..TcpOptions::default() };
        let options = ListenOptions { tcp, ..ListenOptions::default() };
        let (listener, _) = listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let mut acceptor = Acceptor::new(listener);
        let client = StdStream::connect(acceptor.local_addr().unwrap()).unwrap();
        let (Accepted::Tcp(stream), peer) = acceptor.accept().await.unwrap() else { panic!("not TCP") };
        assert_eq!(peer, client.local_addr().unwrap());
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), keep_alive);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), keep_alive);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.recv_buffer_size().unwrap(), 120_000);
        assert_eq!(acceptor.counters(), AcceptCounters { accepted: 1, ..AcceptCounters::default() });
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", stream.as_raw_fd())).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let close_on_exec = 0o2_000_000;
            assert_ne!(u32::from_str_radix(flags, 8).unwrap() & close_on_exec, 0, "{flags}");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test(flavor = "local")]
    async fn connections_on_this_machine_are_not_paced() {
        for listen_at in ["127.0.0.1:0", "0.0.0.0:0"] {
            let (listener, _) = listen(listen_at.parse().unwrap(), &ListenOptions::default()).unwrap();
            let mut acceptor = Acceptor::new(listener);
            let port = acceptor.local_addr().unwrap().port();
            let _client = StdStream::connect(("127.0.0.1", port)).unwrap();
            let (Accepted::Tcp(stream), _) = acceptor.accept().await.unwrap() else { panic!("not TCP") };
            let name = adit_sys::tcp::congestion(&stream).unwrap();
            assert!(!name.starts_with("bbr"), "{listen_at}: {name}");
        }
    }

    #[tokio::test(flavor = "local")]
    async fn mapped_addresses_come_out_plain() {
        let Ok((listener, _)) = listen("[::]:0".parse().unwrap(), &ListenOptions::default()) else { return };
        let mut acceptor = Acceptor::new(listener);
        let port = acceptor.local_addr().unwrap().port();
        let client = StdStream::connect(("127.0.0.1", port)).unwrap();
        let (_, peer) = acceptor.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }

    #[tokio::test(flavor = "local")]
    async fn who_has_closed_a_unix_socket_is_told_from_who_has_ended_one_direction() {
        let dir = std::env::temp_dir().join(format!("adit-accept-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("s");
        let listener = crate::listen::listen_unix(&path, 1).unwrap().remove(0);
        let mut acceptor = Acceptor::from_local(listener).unwrap();
        let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (accepted, peer) = acceptor.accept().await.unwrap();
        let stream = Stream::from(accepted);
        assert_eq!((peer, stream.peer_is_closed()), (([127, 0, 0, 1], 0).into(), Some(false)));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!((stream.recv(&mut [0]).await.unwrap(), stream.peer_is_closed()), (0, Some(false)));
        drop(client);
        assert_eq!(stream.peer_is_closed(), Some(true));
        drop(acceptor);
        assert!(!path.exists());
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn errors_are_told_apart() {
        for (kind, failure) in [
            (io::ErrorKind::ConnectionAborted, Failure::Connection),
            (io::ErrorKind::NetworkUnreachable, Failure::Connection),
            (io::ErrorKind::PermissionDenied, Failure::Connection),
            (io::ErrorKind::OutOfMemory, Failure::Memory),
            (io::ErrorKind::InvalidInput, Failure::Listener),
        ] {
            // By number, since `accept` only ever yields numbers.
            let error =
                (1..134).map(io::Error::from_raw_os_error).find(|error| error.kind() == kind).unwrap();
            assert_eq!(Failure::of(&error), failure, "{error}");
        }
        assert_eq!(Failure::of(&io::Error::from_raw_os_error(errno::EMFILE)), Failure::Descriptors);
    }

    #[test]
    fn one_warning_per_period_with_a_count() {
        let (mut limit, start) = (RateLimit::new(WARN_EVERY), Instant::now());
        assert_eq!(limit.permit(start), Some(1));
        assert_eq!(limit.permit(start + Duration::from_secs(1)), None);
        assert_eq!(limit.permit(start + Duration::from_secs(59)), None);
        assert_eq!(limit.permit(start + Duration::from_secs(60)), Some(3));
        assert_eq!(limit.permit(start + Duration::from_secs(61)), None);
    }
}
