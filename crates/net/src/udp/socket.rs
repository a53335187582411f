use std::cell::Cell;
use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::task::{Context, Poll, ready};

use adit_model::Egress;
use adit_sys::udp::{self as sys, Fragmentation, Head, Meta, Sender};
use socket2::{Domain, Protocol, SockRef, Type};

use super::batch::{DatagramBatch, MERGED_MESSAGES, MESSAGES};
use super::gro::Gro;
use super::group::{Outgoing, group_len};
use super::trial;
use super::watch::Watch;
use crate::egress;
use crate::udp::detour::Detour;

/// Buffer of a socket that serves one flow: about 110 datagrams of 1,400 bytes.
const FLOW_BUFFER: usize = 256 * 1024;

/// Segments up to this size fit every path that IPv6 allows, on every device: if such a message is refused, then
/// not for its size.
const SAFE_SEGMENT: usize = 1200;

/// Errors in a row that one call takes from a socket before it lets others run.
const MAX_ERRORS: usize = 16;

/// Abilities of a socket; it starts at the best and only ever falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ability {
    /// One message per call.
    Single,
    /// Many messages per call.
    Batches,
    /// Many datagrams per message.
    Segments,
}

/// Result of one [`Socket::send`] for its datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Handed to the kernel.
    pub sent: usize,
    /// Dropped: the kernel had no room.
    pub full: usize,
    /// Dropped: larger than the path takes.
    pub too_big: usize,
    /// Dropped for another reason of the system's, such as a destination without a route.
    pub failed: usize,
    /// Destination of one of the [`Sent::too_big`], and its length.
    pub too_big_to: Option<(SocketAddr, usize)>,
    /// A destination that an earlier datagram did not reach, as ICMP says.
    pub unreachable: Option<SocketAddr>,
}

/// A datagram socket, on the event loop that made it.
#[derive(Debug)]
pub struct Socket {
    /// Before the socket, so that it ends before it.
    watch: Watch,
    fd: StdSocket,
    is_v6: bool,
    is_connected: bool,
    /// Source address of datagrams that give none, for each family.
    source: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    ability: Cell<Ability>,
    /// Largest segment of a message that is to be cut; 0 below [`Ability::Segments`].
    max_segment: Cell<usize>,
    gro: Cell<Gro>,
    lost: Lost,
    /// Clients of other processes.
    detour: Detour,
}

/// The kernel's count of what it had no room for, as last seen (`SO_RXQ_OVFL`).
#[derive(Debug, Default)]
pub(super) struct Lost(Cell<u32>);

impl Lost {
    /// Number by which it has grown with a message.
    pub(super) fn since(&self, meta: &Meta) -> u64 {
        meta.dropped.map_or(0, |dropped| dropped.wrapping_sub(self.0.replace(dropped)).into())
    }
}

impl Socket {
    /// Puts a bound socket on the current event loop.
    ///
    /// # Errors
    /// The system's error.
    pub fn from_std(socket: StdSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        let is_connected = socket.peer_addr().is_ok();
        sys::report_drops(&socket)?;
        let trial = trial::result();
        let known = if sys::knows_segments(&socket) { Ability::Segments } else { Ability::Batches };
        let ability = known.min(trial.ability);
        let mut gro = Gro::default();
        if !trial.merges {
            gro.refuse();
        }
        let max_segment = if ability == Ability::Segments { usize::MAX } else { 0 };
        Ok(Self {
            watch: Watch::new(&socket)?,
            fd: socket,
            is_v6,
            is_connected,
            source: (None, None),
            ability: Cell::new(ability),
            max_segment: Cell::new(max_segment),
            gro: Cell::new(gro),
            lost: Lost::default(),
            detour: Detour::default(),
        })
    }

    /// The same for a listening socket, which another process may have read before.
    ///
    /// # Errors
    /// The system's error.
    pub fn listening(socket: StdSocket) -> io::Result<Self> {
        let detour = Detour::of(socket.as_raw_fd())?;
        let is_merged = detour.is_later() && sys::has_gro(&socket);
        let mut socket = Self::from_std(socket)?;
        if is_merged {
            // The process that has read it before has had datagrams merged.
            socket.gro.get_mut().go_on();
        }
        socket.detour = detour;
        Ok(socket)
    }

    /// Reads the socket no more: from now on datagrams of `peers` come from another process by `pair`.
    ///
    /// # Errors
    /// The system's error; the socket is read as before then.
    pub fn pass_on(&self, pair: OwnedFd, peers: &[SocketAddr]) -> io::Result<()> {
        self.detour.pass_on(pair, peers)
    }

    /// The clients of processes before this one.
    pub fn earlier_peers(&self) -> HashSet<SocketAddr> {
        self.detour.earlier_peers()
    }

    /// Learns which clients of processes before this one are gone; call it once a second. Gives the number of those that
    /// are left.
    pub fn follow_earlier(&self) -> usize {
        self.detour.follow_earlier()
    }

    /// Tells the process that reads the socket which clients there still are; call it once a second.
    pub fn keep_peers(&self, current: HashSet<SocketAddr>) {
        self.detour.keep_peers(current);
    }

    /// A socket with a port of its own that may send to any address and receive from any.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(egress: &Egress) -> io::Result<Self> {
        Self::open_port(egress, 0)
    }

    /// As [`Socket::open`], with the port `port`; 0 for any.
    ///
    /// # Errors
    /// The system's error: `AddrInUse` if another socket has that port.
    pub fn open_port(egress: &Egress, port: u16) -> io::Result<Self> {
        let v6 = unbound(Domain::IPV6, egress).and_then(|socket| {
            socket.set_only_v6(false)?;
            socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
            Ok(socket)
        });
        let socket = v6.or_else(|_| {
            let socket = unbound(Domain::IPV4, egress)?;
            socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
            Ok::<_, io::Error>(socket)
        })?;
        let is_v6 = socket.domain()? == Domain::IPV6;
        // Errors name their destination, so that one of them ends no other flow.
        sys::queue_errors(&socket, is_v6)?;
        Ok(Self { source: (egress.v4, egress.v6), ..Self::from_std(socket.into())? })
    }

    /// A socket that sends to `peer` and receives from it alone.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect(peer: SocketAddr, egress: &Egress) -> io::Result<Self> {
        let socket = unbound(Domain::for_address(peer), egress)?;
        egress::bind(&socket, egress, peer.ip())?;
        socket.connect(&peer.into())?;
        Self::from_std(socket.into())
    }

    /// Whether it sends to one address alone, and receives from it.
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// A socket that sends from `source`, which need not be an address of this machine. Several may share one source.
    ///
    /// # Errors
    /// The system's error: `PermissionDenied` without `CAP_NET_ADMIN` or `CAP_NET_RAW`; `AddrInUse` where a program of
    /// this machine has that port and does not share it.
    pub fn open_from(source: SocketAddr) -> io::Result<Self> {
        let socket = unbound(Domain::for_address(source), &Egress::default())?;
        socket.set_reuse_address(true)?;
        crate::options::set_transparent(&socket, source.is_ipv6())?;
        socket.bind(&source.into())?;
        Self::from_std(socket.into())
    }

    /// Sets the treatment of datagrams that are larger than the path takes.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_fragmentation(&self, wanted: Fragmentation) -> io::Result<()> {
        sys::set_fragmentation(&self.fd, self.is_v6, wanted)
    }

    /// Notes for each datagram the address it was sent to, so that the answer can come from there.
    ///
    /// # Errors
    /// The system's error.
    pub fn report_destination(&self) -> io::Result<()> {
        sys::report_destination(&self.fd, self.is_v6)
    }

    /// Asks for buffers of `len` bytes in both directions; the system may give less.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_buffers(&self, len: usize) -> io::Result<()> {
        sys::set_send_buffer(&self.fd, len)?;
        sys::set_receive_buffer(&self.fd, len).map(drop)
    }

    /// The traffic class of everything that is sent (`IP_TOS`, `IPV6_TCLASS`).
    ///
    /// # Errors
    /// The system's error.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        set_traffic_class(&self.fd, self.is_v6, class)
    }

    /// Notes the traffic class of each datagram.
    ///
    /// # Errors
    /// The system's error.
    pub fn report_class(&self) -> io::Result<()> {
        sys::report_class(&self.fd, self.is_v6)
    }

    /// Address of this end.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.local_addr()
    }

    #[cfg(test)]
    pub(super) fn fd(&self) -> &impl AsFd {
        &self.fd
    }

    /// Abilities that the system gives this socket.
    pub fn ability(&self) -> Ability {
        self.ability.get()
    }

    /// Uses no more than `most` of what the system offers.
    pub fn limit_ability(&self, most: Ability) {
        if most < self.ability.get() {
            self.ability.set(most);
            self.max_segment.set(0);
        }
    }

    /// Whether the kernel is asked to merge what it receives.
    pub fn merges(&self) -> bool {
        self.gro.get().is_on()
    }

    /// Lets the event loop watch the socket, or takes it out for a while: [`Socket::poll_receive`] wakes nobody then, and its
    /// caller comes back by itself. True if that is a change: after a pause the caller polls once more, to be woken again.
    ///
    /// # Errors
    /// The runtime's error.
    pub fn set_watched(&self, is_watched: bool) -> io::Result<bool> {
        self.watch.set(is_watched)
    }

    /// Receives what waits, as one batch. Ready as soon as there is something; the batch is empty only if the time
    /// was spent on errors. `lost` grows by what the kernel had no room for.
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
        if ready!(self.detour.poll_passed(cx, batch))? {
            self.detour.divert(batch, lost);
            return Poll::Ready(Ok(()));
        }
        for _ in 0..MAX_ERRORS {
            let watched = self.watch.get();
            let mut guard = match &*watched {
                Some(fd) => Some(ready!(fd.poll_read_ready(cx))?),
                None => None,
            };
            let wanted = match self.ability.get() {
                Ability::Single => 1,
                _ if self.merges() => MERGED_MESSAGES,
                Ability::Batches | Ability::Segments => MESSAGES,
            };
            match self.receive(batch, wanted) {
                Ok(count) => {
                    if let Some(guard) = guard.as_mut().filter(|_| count < wanted) {
                        guard.clear_ready();
                    }
                    self.note(batch, count, lost);
                    batch.is_full = count == wanted;
                    self.detour.divert(batch, lost);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => match &mut guard {
                    Some(guard) => guard.clear_ready(),
                    None => return Poll::Pending,
                },
                Err(error) if is_missing_call(&error) && self.ability.get() > Ability::Single => {
                    self.fall("recvmmsg", &error, Ability::Single);
                }
                // An ICMP error about an earlier datagram of ours: the socket is as good as before.
                Err(error) => {
                    tracing::trace!(%error, "receive");
                    while let Ok(Some(_)) = sys::take_error(&self.fd) {}
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn receive(&self, batch: &mut DatagramBatch, wanted: usize) -> io::Result<usize> {
        let mut slots = DatagramBatch::slots(&mut batch.block, wanted);
        if self.ability.get() == Ability::Single {
            let slot = slots.next().expect("a batch has slots");
            batch.receiver.receive_one(&self.fd, slot)
        } else {
            batch.receiver.receive(&self.fd, slots)
        }
    }

    fn note(&self, batch: &mut DatagramBatch, count: usize, lost: &mut u64) {
        let mut in_a_row = (None, 0, 0);
        for at in 0..count {
            let Some(meta) = batch.receiver.meta(at) else { continue };
            *lost += self.lost.since(&meta);
            let (from, run, longest) = in_a_row;
            let run = if from == Some(meta.from) { run + 1 } else { 1 };
            in_a_row = (Some(meta.from), run, longest.max(run));
            batch.push(at, &meta);
        }
        let mut gro = self.gro.get();
        if gro.note(count, batch.len(), in_a_row.2)
            && let Err(error) = sys::set_gro(&self.fd, gro.is_on())
        {
            tracing::debug!(%error, "the system does not merge datagrams");
            gro.refuse();
        }
        self.gro.set(gro);
    }

    /// Sends `datagrams`, which lie in the block of `batch`, in order and without waiting: grouped as far as they
    /// may be, else many per call, else one by one.
    pub fn send(&self, batch: &mut DatagramBatch, datagrams: &[Outgoing]) -> Sent {
        self.send_parts(&mut batch.sender, &batch.block, datagrams)
    }

    /// As [`Socket::send`], for datagrams that lie in another block; `batch` lends what the call needs.
    pub fn send_from(&self, batch: &mut DatagramBatch, block: &[u8], datagrams: &[Outgoing]) -> Sent {
        self.send_parts(&mut batch.sender, block, datagrams)
    }

    fn send_parts(&self, sender: &mut Sender, block: &[u8], datagrams: &[Outgoing]) -> Sent {
        let mut report = Sent::default();
        let mut rest = datagrams;
        // Datagrams at the front that are to leave one by one, after a message of them was refused.
        let mut alone = 0;
        // Whether it was refused for being one.
        let mut blame = false;
        let mut errors = 0;
        while !rest.is_empty() {
            let max_segment = if alone > 0 { 0 } else { self.max_segment.get() };
            let part = if alone > 0 { &rest[..alone] } else { rest };
            match self.send_messages(sender, block, part, max_segment) {
                Ok(count) => {
                    errors = 0;
                    let mut taken = 0;
                    for _ in 0..count {
                        taken += group_len(&part[taken..], max_segment);
                    }
                    report.sent += taken;
                    if alone > 0 && std::mem::take(&mut blame) {
                        self.blame_segments(part[0].len);
                    }
                    alone = alone.saturating_sub(taken);
                    rest = &rest[taken..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => {
                    report.full += rest.len();
                    return report;
                }
                Err(error) if is_missing_call(&error) && self.ability.get() > Ability::Single => {
                    self.fall("sendmmsg", &error, Ability::Single);
                }
                Err(error) if errors == 0 && !is_refused_message(&error) => {
                    // It may be about an earlier datagram to somebody else: once more, now that it is taken.
                    errors += 1;
                    if self.is_connected && error.kind() == ErrorKind::ConnectionRefused {
                        report.unreachable = Some(part[0].to);
                    }
                    while let Ok(Some(queued)) = sys::take_error(&self.fd) {
                        report.note_queued(&queued);
                    }
                }
                Err(error) if group_len(part, max_segment) > 1 => {
                    blame = is_refused_message(&error) || is_too_big(&error);
                    alone = group_len(part, max_segment);
                }
                Err(error) => {
                    errors = 0;
                    if is_too_big(&error) {
                        report.too_big += 1;
                        report.too_big_to = Some((rest[0].to, rest[0].len));
                    } else {
                        tracing::trace!(%error, "send");
                        report.failed += 1;
                    }
                    alone = alone.saturating_sub(1);
                    rest = &rest[1..];
                }
            }
        }
        report
    }

    /// The address that a datagram is to come from, if it is not the system's choice.
    fn source(&self, datagram: &Outgoing) -> Option<IpAddr> {
        datagram.from.or_else(|| match datagram.to.ip().to_canonical() {
            IpAddr::V4(_) => self.source.0.map(IpAddr::V4),
            IpAddr::V6(_) => self.source.1.map(IpAddr::V6),
        })
    }

    fn send_messages(
        &self,
        sender: &mut Sender,
        block: &[u8],
        datagrams: &[Outgoing],
        max_segment: usize,
    ) -> io::Result<usize> {
        let mut rest = datagrams;
        let messages = std::iter::from_fn(|| {
            let first = rest.first()?;
            let (group, behind) = rest.split_at(group_len(rest, max_segment));
            rest = behind;
            let head = Head {
                to: if self.is_connected { None } else { Some(self.in_family(first.to)) },
                from: self.source(first).map(|ip| self.in_family(SocketAddr::new(ip, 0)).ip()),
                class: first.class,
                segment: if group.len() > 1 { u16::try_from(first.len).ok() } else { None },
            };
            Some((head, group.iter().map(|datagram| datagram.bytes(block))))
        });
        if self.ability.get() == Ability::Single {
            sender.send_one(&self.fd, messages)
        } else {
            sender.send(&self.fd, messages)
        }
    }

    /// Bytes of payload that the path to `peer` takes in one datagram, as far as the system knows.
    pub fn largest_payload(peer: SocketAddr) -> Option<usize> {
        let socket = unbound(Domain::for_address(peer), &Egress::default()).ok()?;
        socket.connect(&peer.into()).ok()?;
        let headers = if peer.is_ipv6() { 48 } else { 28 };
        sys::path_mtu(&socket, peer.is_ipv6()).ok()?.checked_sub(headers)
    }

    /// IPv4 addresses as a dual-stack socket wants them.
    fn in_family(&self, addr: SocketAddr) -> SocketAddr {
        match addr {
            SocketAddr::V4(v4) if self.is_v6 => {
                SocketAddr::new(IpAddr::V6(v4.ip().to_ipv6_mapped()), v4.port())
            }
            SocketAddr::V4(_) | SocketAddr::V6(_) => addr,
        }
    }

    /// A datagram left alone after a message of several of its size was refused.
    fn blame_segments(&self, len: usize) {
        if len > SAFE_SEGMENT {
            // Fragments are allowed, segments are not: the path is too narrow for this size.
            self.max_segment.set(self.max_segment.get().min(len - 1));
        } else {
            let error = io::Error::from(ErrorKind::Unsupported);
            self.fall("UDP_SEGMENT", &error, Ability::Batches);
        }
    }

    fn fall(&self, call: &str, error: &io::Error, to: Ability) {
        let local = self.local_addr().map(|addr| addr.port()).unwrap_or_default();
        tracing::info!(call, %error, port = local, "the system refuses a fast way to send or receive: using a slower one");
        self.limit_ability(to);
    }
}

impl Sent {
    /// Adds another report.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.full += other.full;
        self.too_big += other.too_big;
        self.failed += other.failed;
        self.too_big_to = other.too_big_to.or(self.too_big_to);
        self.unreachable = other.unreachable.or(self.unreachable);
    }

    fn note_queued(&mut self, queued: &sys::QueuedError) {
        let is_gone = matches!(
            queued.error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
        );
        if is_gone && let Some(to) = queued.to {
            self.unreachable = Some(SocketAddr::new(to.ip().to_canonical(), to.port()));
        }
    }
}

/// Raises both buffers of a socket, as far as the system allows, and returns what there is for receiving.
pub(crate) fn raise_buffers(socket: &impl AsFd, receive: usize) -> io::Result<usize> {
    sys::set_send_buffer(socket, receive.min(1 << 20))?;
    sys::set_receive_buffer(socket, receive)
}

pub(super) fn set_traffic_class(socket: &impl AsFd, is_v6: bool, class: u8) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if is_v6 { socket.set_tclass_v6(class.into()) } else { socket.set_tos_v4(class.into()) }
}

fn unbound(domain: Domain, egress: &Egress) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    raise_buffers(&SockRef::from(&socket).as_fd(), FLOW_BUFFER)?;
    egress::apply(&socket, egress)?;
    Ok(socket)
}

pub(super) fn is_full(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(ENOBUFS)
}

/// Whether the message itself is not wanted as it is: by the device or route (`EIO`, `EOPNOTSUPP`), or by a kernel
/// that does not know or like its parts (`EINVAL`).
fn is_refused_message(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EIO | EINVAL | EOPNOTSUPP))
}

pub(super) fn is_too_big(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EMSGSIZE)
}

fn is_missing_call(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ENOSYS)
}

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EMSGSIZE: i32 = 90;
const EOPNOTSUPP: i32 = 95;
const ENOBUFS: i32 = 105;
