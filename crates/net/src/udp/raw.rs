//! Datagrams as segments of TCP ([`adit_proto::rawtcp`]), which this process writes and reads by raw sockets.
//!
//! The system's TCP makes the handshake and holds the port, and sees nothing else: filters on its sockets keep every
//! later segment from it ([`adit_sys::raw`]), so that it neither answers nor resets. That takes `CAP_NET_RAW`, on some
//! kernels `CAP_NET_ADMIN` as well, and no firewall, and leaves nothing behind when the process ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use adit_model::Egress;
use adit_proto::rawtcp::{Flow, HEADER_LEN, RawSegment, parse_v4};
use adit_sys::udp::{self as sys, Head};
use adit_sys::{raw, udp::Meta};
use socket2::{Domain, Protocol, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpSocket, TcpStream};

use super::batch::{DatagramBatch, MESSAGES};
use super::group::Outgoing;
use super::socket::{Lost, Sent, is_full, is_too_big, set_traffic_class};
use crate::egress::apply;
use crate::listen::{ListenError, ListenOptions, listen_many};

/// Connections that one socket knows the numbers of, at most.
const MAX_FLOWS: usize = 8192;
/// One that nothing has been sent to is forgotten after this time, others after the second (as tcpraw).
const FORGET: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Pause between two looks at which those are.
const SWEEP: Duration = Duration::from_secs(5);
/// Time for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Room for segments that wait, as for datagrams of a listener.
const BUFFER: usize = 4 << 20;
/// Errors in a row that one call takes before it lets others run.
const MAX_ERRORS: usize = 16;

/// Says what is missing if this process may not open raw sockets.
///
/// # Errors
/// `PermissionDenied`.
pub fn check_raw() -> io::Result<()> {
    raw::check().map_err(explain)
}

fn explain(error: io::Error) -> io::Error {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    let text = "segments of TCP go by raw sockets, which take the right CAP_NET_RAW and on some kernels CAP_NET_ADMIN: \
                run it as root, or `setcap cap_net_raw,cap_net_admin+ep` the program";
    io::Error::new(ErrorKind::PermissionDenied, text)
}

/// The sockets that one core needs to take segments to an address.
#[derive(Debug)]
pub struct RawListener {
    socket: socket2::Socket,
    local: SocketAddr,
    kernel: Arc<StdListener>,
}

/// A raw socket for the segments of one port, on the event loop that made it.
#[derive(Debug)]
pub struct RawSocket {
    fd: AsyncFd<socket2::Socket>,
    local: SocketAddr,
    flows: RefCell<Flows>,
    lost: Lost,
    _kernel: Kernel,
}

/// The socket that holds the port.
#[derive(Debug)]
enum Kernel {
    Listener { _listener: Arc<StdListener> },
    Connection { _stream: TcpStream },
}

#[derive(Debug)]
struct Flows {
    by_peer: HashMap<SocketAddr, Entry>,
    takes_new: bool,
    sweep_at: Instant,
}

#[derive(Debug)]
struct Entry {
    flow: Flow,
    /// The address of ours that the peer knows.
    ours: IpAddr,
    heard_at: Instant,
    is_answered: bool,
}

/// Takes segments to `addr` with `count` sets of sockets, at least one, that share the work; each has one for every
/// family.
///
/// # Errors
/// [`ListenError`]; without the right to do so its source names it.
pub fn listen_raw(
    addr: SocketAddr,
    options: &ListenOptions,
    count: usize,
) -> Result<Vec<Vec<RawListener>>, ListenError> {
    let failed = |source| ListenError { addr, holder: None, source: explain(source) };
    check_raw().map_err(failed)?;
    let made = listen_many(addr, options, 1)?;
    let kernel = made.sockets.into_iter().next().ok_or_else(|| failed(ErrorKind::NotFound.into()))?;
    raw::answer_only(&kernel).map_err(failed)?;
    let kernel = Arc::new(kernel);
    let mut locals = vec![made.addr];
    if made.addr.is_ipv6() && made.addr.ip().is_unspecified() && !options.v6_only {
        locals.push(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), made.addr.port()));
    }
    let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    let egress = Egress { interface: options.interface.clone(), ..Egress::default() };
    let open = |index, local: SocketAddr| {
        let socket = open(local, &egress, (index, count))?;
        Ok(RawListener { socket, local, kernel: kernel.clone() })
    };
    let all = (0..count).map(|index| locals.iter().map(|local| open(index, *local)).collect());
    all.collect::<io::Result<_>>().map_err(failed)
}

/// A raw socket that sees what comes to `local`, or the part of it that is this core's.
fn open(local: SocketAddr, egress: &Egress, part: (u32, u32)) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(local), Type::RAW, Some(Protocol::TCP))?;
    raw::keep_port(&socket, local.is_ipv6(), local.port(), part)?;
    socket.set_nonblocking(true)?;
    super::raise_buffers(&socket, BUFFER)?;
    sys::report_drops(&socket)?;
    if local.is_ipv6() {
        // IPv4 comes with its header.
        sys::report_destination(&socket, true)?;
    }
    apply(&socket, egress)?;
    if !local.ip().is_unspecified() {
        socket.bind(&SocketAddr::new(local.ip(), 0).into())?;
    }
    Ok(socket)
}

impl RawSocket {
    /// Puts a listener on the current event loop.
    ///
    /// # Errors
    /// The runtime's error.
    pub fn from_listener(listener: RawListener) -> io::Result<Self> {
        let RawListener { socket, local, kernel } = listener;
        Self::new(socket, local, true, Kernel::Listener { _listener: kernel })
    }

    /// Has the system connect to `peer`, and goes on where that ends.
    ///
    /// # Errors
    /// As connect(2), and what keeps raw sockets from being used.
    pub async fn connect(peer: SocketAddr, egress: &Egress) -> io::Result<Self> {
        let kernel = socket2::Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        kernel.set_nonblocking(true)?;
        // Closing it is to be one reset, and not an end that is repeated because nobody acknowledges it.
        kernel.set_linger(Some(Duration::ZERO))?;
        raw::connect_only(&kernel)?;
        apply(&kernel, egress)?;
        let any =
            if peer.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        kernel.bind(&SocketAddr::new(egress.source(peer.ip()).unwrap_or(any), 0).into())?;
        let bound = kernel.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
        let socket = open(bound, egress, (0, 1)).map_err(explain)?;
        let connect = TcpSocket::from_std_stream(kernel.into()).connect(peer);
        let stream = tokio::time::timeout(HANDSHAKE, connect).await.map_err(|_| ErrorKind::TimedOut)??;
        raw::silence(&stream)?;
        let local = stream.local_addr()?;
        let made = Self::new(socket, local, false, Kernel::Connection { _stream: stream })?;
        made.find_handshake(peer)?;
        Ok(made)
    }

    fn new(socket: socket2::Socket, local: SocketAddr, takes_new: bool, kernel: Kernel) -> io::Result<Self> {
        // As for other sockets of datagrams, readiness to send is never waited for.
        #[expect(deprecated, reason = "sound for a socket that owns its descriptor; the successor is unsafe")]
        let fd = AsyncFd::try_with_interest(socket, Interest::READABLE)?;
        let flows = Flows { by_peer: HashMap::new(), takes_new, sweep_at: Instant::now() + SWEEP };
        Ok(Self { fd, local, flows: RefCell::new(flows), lost: Lost::default(), _kernel: kernel })
    }

    /// The peer's part of the handshake lies in the queue: the system's TCP has had it only after this socket.
    fn find_handshake(&self, peer: SocketAddr) -> io::Result<()> {
        let mut batch = DatagramBatch::new();
        loop {
            let slots = DatagramBatch::slots(&mut batch.block, MESSAGES);
            let count = match batch.receiver.receive(&self.fd, slots) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(io::Error::other("the handshake did not come by the raw socket"));
                }
                received => received?,
            };
            for at in 0..count {
                let Some(meta) = batch.receiver.meta(at) else { continue };
                let Some(found) = self.read(&batch.block[DatagramBatch::message(at, meta.len)], &meta) else {
                    continue;
                };
                if found.from == peer && found.segment.is_handshake() {
                    let now = Instant::now();
                    let flow = Flow::new(&found.segment, now);
                    let entry = Entry { flow, ours: self.local.ip(), heard_at: now, is_answered: true };
                    self.flows.borrow_mut().by_peer.insert(peer, entry);
                    return Ok(());
                }
            }
        }
    }

    /// Address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// As [`super::Socket::set_buffers`].
    ///
    /// # Errors
    /// The system's error.
    pub fn set_buffers(&self, len: usize) -> io::Result<()> {
        sys::set_send_buffer(&self.fd, len)?;
        sys::set_receive_buffer(&self.fd, len).map(drop)
    }

    /// As [`super::Socket::set_traffic_class`].
    ///
    /// # Errors
    /// The system's error.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        set_traffic_class(self.fd.get_ref(), self.local.is_ipv6(), class)
    }

    /// As [`super::Socket::poll_receive`]; the batch is also empty if what came carried no datagrams.
    ///
    /// # Errors
    /// The runtime's error, for instance at shutdown.
    pub fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: &mut DatagramBatch,
        lost: &mut u64,
    ) -> Poll<io::Result<()>> {
        batch.clear();
        for _ in 0..MAX_ERRORS {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let slots = DatagramBatch::slots(&mut batch.block, MESSAGES);
            match batch.receiver.receive(&self.fd, slots) {
                Ok(count) => {
                    if count < MESSAGES {
                        guard.clear_ready();
                    }
                    self.note(batch, count, lost);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) => tracing::trace!(%error, "receive"),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn note(&self, batch: &mut DatagramBatch, count: usize, lost: &mut u64) {
        let now = Instant::now();
        let mut flows = self.flows.borrow_mut();
        for at in 0..count {
            let Some(meta) = batch.receiver.meta(at) else { continue };
            *lost += self.lost.since(&meta);
            let message = DatagramBatch::message(at, meta.len);
            let Some(found) = self.read(&batch.block[message.clone()], &meta) else { continue };
            if found.segment.is_request() {
                // The numbers of a peer that begins anew have nothing to do with those before.
                flows.by_peer.remove(&found.from);
            }
            let Some(range) = found.segment.datagram() else { continue };
            if flows.note(&found, now) {
                let start = message.start + found.start;
                batch.push_range(found.from, Some(found.to), start + range.start..start + range.end);
            }
        }
    }

    /// A message that is a segment to this port.
    fn read(&self, message: &[u8], meta: &Meta) -> Option<Found> {
        let (mut from, to, range) = if self.local.is_ipv6() {
            (meta.from, meta.to?, 0..message.len())
        } else {
            let (from, to, range) = parse_v4(message).ok()?;
            (SocketAddr::new(from.into(), 0), to.into(), range)
        };
        let start = range.start;
        let segment = RawSegment::parse(&message[range]).ok()?;
        from.set_port(segment.from_port);
        (segment.to_port == self.local.port()).then_some(Found { from, to, start, segment })
    }

    /// As [`super::Socket::send_from`]: each datagram behind a header of its own. Those to peers that have not been heard
    /// of fail.
    pub fn send_from(&self, batch: &mut DatagramBatch, block: &[u8], datagrams: &[Outgoing]) -> Sent {
        let mut report = Sent::default();
        let mut flows = self.flows.borrow_mut();
        let now = Instant::now();
        for datagrams in datagrams.chunks(MESSAGES) {
            let mut heads = [([0; HEADER_LEN], 0, IpAddr::V4(Ipv4Addr::UNSPECIFIED)); MESSAGES];
            for (datagram, (head, len, ours)) in datagrams.iter().zip(&mut heads) {
                let Some(entry) = flows.by_peer.get_mut(&datagram.to) else { continue };
                let ends = ((entry.ours, datagram.to.ip()), (self.local.port(), datagram.to.port()));
                *len = entry.flow.emit(ends.0, ends.1, datagram.bytes(block), now, head);
                *ours = entry.ours;
                entry.is_answered = true;
            }
            let known = datagrams.iter().zip(&heads).filter(|(_, (_, len, _))| *len > 0);
            report.failed += datagrams.len() - known.clone().count();
            let messages = known.map(|(datagram, (head, len, ours))| {
                let mut to = datagram.to;
                // A raw socket of IPv6 takes it for the number of a protocol.
                to.set_port(0);
                let head_of = Head { to: Some(to), from: Some(*ours), class: 0, segment: None };
                (head_of, [&head[..*len], datagram.bytes(block)].into_iter())
            });
            self.send(batch, messages, &mut report);
        }
        report
    }

    fn send<'a>(
        &self,
        batch: &mut DatagramBatch,
        mut messages: impl Iterator<Item = (Head, std::array::IntoIter<&'a [u8], 2>)> + Clone,
        report: &mut Sent,
    ) {
        while messages.clone().next().is_some() {
            match batch.sender.send(&self.fd, messages.clone()) {
                Ok(count) if count > 0 => {
                    report.sent += count;
                    messages.by_ref().take(count).for_each(drop);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => {
                    report.full += messages.count();
                    return;
                }
                Ok(_) => return,
                Err(error) => {
                    if is_too_big(&error) {
                        report.too_big += 1;
                    } else {
                        tracing::trace!(%error, "send");
                        report.failed += 1;
                    }
                    messages.next();
                }
            }
        }
    }
}

/// A segment that has come.
struct Found {
    from: SocketAddr,
    to: IpAddr,
    /// Its start in its message.
    start: usize,
    segment: RawSegment,
}

impl Flows {
    /// Takes note of a datagram; false if its sender is not known and there is no room for one more.
    fn note(&mut self, found: &Found, now: Instant) -> bool {
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP;
            let [fresh, others] = FORGET;
            let takes_new = self.takes_new;
            self.by_peer.retain(|_, entry| {
                let limit = if entry.is_answered { others } else { fresh };
                !takes_new || now.saturating_duration_since(entry.heard_at) < limit
            });
        }
        if let Some(entry) = self.by_peer.get_mut(&found.from) {
            entry.flow.handle(&found.segment);
            entry.heard_at = now;
            return true;
        }
        if self.takes_new && self.by_peer.len() >= MAX_FLOWS {
            // A peer whose datagrams open has been answered by now.
            self.by_peer.retain(|_, entry| entry.is_answered);
        }
        if !self.takes_new || self.by_peer.len() >= MAX_FLOWS {
            return false;
        }
        let flow = Flow::new(&found.segment, now);
        let entry = Entry { flow, ours: found.to, heard_at: now, is_answered: false };
        self.by_peer.insert(found.from, entry);
        true
    }
}

impl DatagramBatch {
    /// Range of message `at` of `len` bytes in the block.
    fn message(at: usize, len: usize) -> Range<usize> {
        let start = Self::slot_start(at);
        start..start + len.min(Self::SLOT)
    }
}
