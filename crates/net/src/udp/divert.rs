//! Datagrams of the clients of an earlier process, from the process that reads the socket to the one that knows the clients.
//!
//! A message of the socket pair is a datagram with its circumstances; the other way go the addresses of clients that are
//! gone:
//!
//! ```text
//!    0  22  sender: address 16 (IPv4 in mapped form) | scope u32 | port u16
//!   22   1  flags: 1 the address it was sent to is known, 2 so is its original destination
//!   23   1  traffic class
//!   24  16  the address it was sent to
//!   40  22  its original destination, as the sender
//!   62   2  zeros
//!   64      payload                                                            numbers little-endian
//! ```
//!
//! Both ends run on this machine, and each version reads what the one before it writes.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use socket2::{Domain, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::handover::gate::is_committed;
use crate::handover::pool;
use crate::udp::{Datagram, DatagramBatch};

/// Bytes of the socket pair's queue that are asked for; the system may give less.
const QUEUE: usize = 4 << 20;
/// Bytes in front of the payload.
const HEADER: usize = 64;
/// Bytes of an address.
const ADDRESS: usize = 22;
/// Addresses of one message.
const PER_MESSAGE: usize = 512;

type Peers = HashSet<SocketAddr>;

fn write_address(to: &mut [u8], addr: SocketAddr) {
    let (ip, scope) = match addr {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    to[..16].copy_from_slice(&ip.octets());
    to[16..20].copy_from_slice(&scope.to_le_bytes());
    to[20..22].copy_from_slice(&addr.port().to_le_bytes());
}

fn read_address(from: &[u8]) -> Option<SocketAddr> {
    let ip = Ipv6Addr::from(*from.first_chunk::<16>()?);
    let scope = u32::from_le_bytes(*from.get(16..)?.first_chunk()?);
    let port = u16::from_le_bytes(*from.get(20..)?.first_chunk()?);
    match ip.to_canonical() {
        IpAddr::V4(ip) => Some((ip, port).into()),
        IpAddr::V6(ip) => Some(SocketAddrV6::new(ip, port, 0, scope).into()),
    }
}

fn write_header(datagram: &Datagram) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    write_address(&mut header, datagram.from);
    header[23] = datagram.class;
    if let Some(to) = datagram.to {
        header[22] |= 1;
        let ip = match to {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        header[24..40].copy_from_slice(&ip.octets());
    }
    if let Some(original) = datagram.original {
        header[22] |= 2;
        write_address(&mut header[40..], original);
    }
    header
}

/// The datagram of a message that lies in the block from `start` to `end`.
fn read_header(header: &[u8], start: usize, end: usize) -> Option<Datagram> {
    let header = header.first_chunk::<HEADER>()?;
    let to = Ipv6Addr::from(*header[24..].first_chunk::<16>()?).to_canonical();
    Some(Datagram {
        from: read_address(header)?,
        to: (header[22] & 1 != 0).then_some(to),
        original: if header[22] & 2 == 0 { None } else { read_address(&header[40..]) },
        class: header[23],
        start,
        end,
        head: 0,
        tail: 0,
    })
}

/// A socket pair for the datagrams of one listening socket.
fn pair() -> io::Result<(Socket, Socket)> {
    let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
    for socket in [&one, &other] {
        socket.set_nonblocking(true)?;
        adit_sys::udp::set_send_buffer(socket, QUEUE)?;
        socket.set_cloexec(true)?;
    }
    Ok((one, other))
}

/// The addresses whose datagrams go to an earlier process.
#[derive(Debug)]
pub(crate) struct Outlet {
    socket: Socket,
    peers: RefCell<Peers>,
    led: RefCell<Vec<Led>>,
}

impl Outlet {
    fn new(diversion: Diversion) -> io::Result<Self> {
        let Diversion { pair, peers, led } = diversion;
        let socket = Socket::from(pair);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, peers: RefCell::new(peers.into_iter().collect()), led: RefCell::new(led) })
    }

    /// The streams behind the interface, once.
    pub(crate) fn take_led(&self) -> Vec<Led> {
        self.led.take()
    }

    /// The number of clients that the earlier process has.
    pub(crate) fn len(&self) -> usize {
        self.peers.borrow().len()
    }

    pub(crate) fn peers(&self) -> Peers {
        self.peers.borrow().clone()
    }

    /// Passes on the datagrams of `batch` that belong to the other process; `lost` grows by those that it did not take.
    pub(crate) fn divert(&self, batch: &mut DatagramBatch, lost: &mut u64) {
        if self.peers.borrow().is_empty() {
            return;
        }
        let mut is_over = false;
        let mut passed = 0_usize;
        batch.retain(|datagram, bytes| {
            if is_over || !self.peers.borrow().contains(&datagram.from) {
                return true;
            }
            let header = write_header(datagram);
            match (&self.socket).write_vectored(&[IoSlice::new(&header), IoSlice::new(bytes)]) {
                Ok(_) => passed += 1,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    *lost += 1
                }
                Err(_) => {
                    is_over = true;
                    return true;
                }
            }
            false
        });
        if is_over {
            self.peers.borrow_mut().clear();
        } else if passed > 0 {
            self.follow();
        }
    }

    /// Learns which clients are gone, and whether the process is.
    pub(crate) fn follow(&self) {
        let mut bytes = [0; PER_MESSAGE * ADDRESS];
        while self.len() > 0 {
            match (&self.socket).read(&mut bytes) {
                Ok(0) => self.peers.borrow_mut().clear(),
                Ok(len) => {
                    let gone = bytes[..len].chunks_exact(ADDRESS).filter_map(read_address);
                    let mut peers = self.peers.borrow_mut();
                    for peer in gone {
                        peers.remove(&peer);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.peers.borrow_mut().clear(),
            }
        }
    }
}

/// The source of the datagrams of this process's clients once another process reads the socket.
#[derive(Debug)]
pub(crate) struct Inlet {
    fd: AsyncFd<Socket>,
    /// Clients that the other process knows of.
    peers: RefCell<Peers>,
    /// The process that reads the socket has ended.
    is_over: Cell<bool>,
}

impl Inlet {
    pub(crate) fn new(socket: OwnedFd, peers: &[SocketAddr]) -> io::Result<Self> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        #[expect(deprecated, reason = "sound for a socket that owns its descriptor; the successor is unsafe")]
        let fd = AsyncFd::try_with_interest(socket, Interest::READABLE)?;
        Ok(Self { fd, peers: RefCell::new(peers.iter().copied().collect()), is_over: Cell::new(false) })
    }

    /// As [`Socket::poll_receive`](crate::udp::Socket::poll_receive). Ready with false when the other process has died
    /// before it served: this one reads again.
    pub(crate) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: &mut DatagramBatch,
    ) -> Poll<io::Result<bool>> {
        loop {
            batch.begin_packets();
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let mut count = 0;
            while let Some(place) = batch.packet_slot(count, HEADER) {
                match self.fd.get_ref().read(&mut batch.block[place.clone()]) {
                    Ok(0) if is_committed() => {
                        // Nothing comes any more; flows end by themselves.
                        guard.retain_ready();
                        self.is_over.set(true);
                        return if count > 0 { Poll::Ready(Ok(true)) } else { Poll::Pending };
                    }
                    Ok(0) => return Poll::Ready(Ok(false)),
                    Ok(len) => {
                        let (start, end) = (place.start + HEADER, place.start + len);
                        let header = &batch.block[place.start..];
                        let Some(datagram) = read_header(header, start, end).filter(|_| len >= HEADER) else {
                            continue;
                        };
                        batch.push_whole(count, datagram);
                        count += 1;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        guard.clear_ready();
                        break;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            if count > 0 {
                batch.set_full(batch.packet_slot(count, HEADER).is_none());
                return Poll::Ready(Ok(true));
            }
        }
    }

    /// Whether the process that reads the socket has served and ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Tells the other process of all clients that are not among `current`.
    pub(crate) fn keep(&self, current: &Peers) {
        let mut peers = self.peers.borrow_mut();
        let gone: Vec<SocketAddr> = peers.difference(current).copied().collect();
        for part in gone.chunks(PER_MESSAGE) {
            let mut bytes = vec![0; part.len() * ADDRESS];
            for (place, peer) in bytes.chunks_exact_mut(ADDRESS).zip(part) {
                write_address(place, *peer);
            }
            // The rest is told in a second.
            if self.fd.get_ref().write(&bytes).is_ok() {
                for peer in part {
                    peers.remove(peer);
                }
            }
        }
    }
}

/// The sockets of which an earlier process has clients, by descriptor.
static DIVERSIONS: Mutex<Option<HashMap<RawFd, Diversion>>> = Mutex::new(None);

/// A stream behind an interface: the port in the place of its ends, the client and the target.
pub type Led = (u16, SocketAddr, SocketAddr);

/// The way to an earlier process, with what that process has.
#[derive(Debug)]
pub struct Diversion {
    /// This process's end of the socket pair.
    pub pair: OwnedFd,
    /// The addresses of its clients. A stream behind an interface stands there as the address that its packets come from.
    pub peers: Vec<SocketAddr>,
    /// All streams behind an interface, those included that are over.
    pub led: Vec<Led>,
}

/// Datagrams from the clients of a `diversion` to the socket with this number, which was taken, go to the process behind it.
/// Call it before the gate opens.
///
/// # Errors
/// `NotFound` if nobody has taken that socket.
pub fn set_diversion(number: usize, diversion: Diversion) -> io::Result<()> {
    let raw = pool::taken_as(number).ok_or(ErrorKind::NotFound)?;
    let mut diversions = DIVERSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    diversions.get_or_insert_default().insert(raw, diversion);
    Ok(())
}

/// The other process's part in the datagrams of a socket, once.
pub(crate) fn outlet_of(raw: RawFd) -> io::Result<Option<Outlet>> {
    let mut diversions = DIVERSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = diversions.as_mut().and_then(|diversions| diversions.remove(&raw));
    drop(diversions);
    found.map(Outlet::new).transpose()
}

/// A socket's way to another process, and the one who is told which clients this process has.
#[derive(Debug)]
pub struct Passing {
    number: usize,
    ours: OwnedFd,
    theirs: OwnedFd,
    reply: Sender<Passed>,
}

/// A socket that this process reads no more: its number, and the other process's part of it.
pub type Passed = (usize, Diversion);

impl Passing {
    /// Has the socket with this number passed on, and `reply` told.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(number: usize, reply: Sender<Passed>) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        Ok(Self { number, ours: ours.into(), theirs: theirs.into(), reply })
    }

    /// The socket is read no more, from where `receive` makes its clients' datagrams come from now on. It gives the streams
    /// behind an interface.
    ///
    /// # Errors
    /// Those of `receive`; nobody is told then.
    pub fn follow(
        self,
        peers: Vec<SocketAddr>,
        receive: impl FnOnce(OwnedFd, &[SocketAddr]) -> io::Result<Vec<Led>>,
    ) -> io::Result<()> {
        let led = receive(self.ours, &peers)?;
        let passed = (self.number, Diversion { pair: self.theirs, peers, led });
        self.reply.send(passed).map_err(|_| ErrorKind::BrokenPipe.into())
    }
}

/// Tells the one who reads a socket for datagrams to pass it on.
#[derive(Debug, Default)]
pub struct Switch {
    passing: RefCell<Option<Passing>>,
    waker: RefCell<Option<Waker>>,
    is_passed: Cell<bool>,
    left: Cell<usize>,
}

impl Switch {
    /// Has the socket passed on. Until its reader says otherwise, something is left.
    pub fn pass(&self, passing: Passing) {
        self.passing.replace(Some(passing));
        self.is_passed.set(true);
        self.left.set(1);
        self.wake();
    }

    /// The socket is read here again.
    pub fn undo(&self) {
        self.is_passed.set(false);
        self.passing.take();
        self.left.set(0);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The request to pass the socket on, once; its reader is woken when there is one.
    pub fn take(&self, cx: &Context<'_>) -> Option<Passing> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.passing.borrow_mut().take()
    }

    /// Whether another process reads the socket.
    pub fn is_passed(&self) -> bool {
        self.is_passed.get()
    }

    /// The reader has so many clients left.
    pub fn note_left(&self, left: usize) {
        self.left.set(left);
    }

    /// Clients that are left once it is passed on.
    pub fn left(&self) -> usize {
        if self.is_passed.get() { self.left.get() } else { 0 }
    }
}
