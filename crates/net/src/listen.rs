//! Listening sockets.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener, UdpSocket as StdUdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_model::{SocketOptions, TcpOptions, Transports};
use adit_sys::handle::{AsFd, OwnedFd};
use adit_sys::rate::{unpace, unpace_local};
use adit_sys::tcp::steer;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;
use tracing::debug;

use crate::handover::{self, Kept, Kind, Label};
use crate::holder::{find_holder, is_held_by_others};
use crate::options::{
    Warning, bind_interface, check_fast_open_server, check_multipath, multipath_socket, set_shared,
    set_transparent, share_port, tune,
};
use crate::steer::Group;
#[cfg(target_os = "linux")]
use crate::udp::raise_buffers;
use crate::unix::{StdUnixListener, answers, identify};

pub use crate::holder::PortHolder;

/// Settings of listening sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenOptions {
    /// Shares the port with other sockets that ask for it too, of any process of the same user (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// Accepts TCP Fast Open.
    pub fast_open: bool,
    /// TCP options of connections; sockets for datagrams do not use them.
    pub tcp: TcpOptions,
    /// Interface that the socket is bound to.
    pub interface: Option<Box<str>>,
    /// Keeps an IPv6 wildcard from taking IPv4 connections as well; see [`needs_v6_only`].
    pub v6_only: bool,
    /// Its clients are on this machine or in its own network, so that connections need no pace.
    pub is_near: bool,
    /// Connections that wait to be accepted; the system caps it (`net.core.somaxconn`).
    pub backlog: u16,
    /// Listeners take connections to any address, which the firewall brings (`TPROXY`).
    pub transparent_streams: bool,
    /// The same for datagrams, each of which comes with the address that it was sent to.
    pub transparent_datagrams: bool,
    /// Its name, by which a socket on a port that the system chose is known to the next process.
    pub owner: Box<str>,
    /// The sockets of this process that may have the address still; see [`SharedPorts`].
    pub beside: Arc<[u64]>,
}

/// The congestion control of connections whose clients are near, where the kernel has it.
pub const NEAR_CONGESTION: &str = "cubic";

/// Connections that wait to be accepted unless told otherwise: what Linux allows without a setting
/// (`net.core.somaxconn`). With fewer, the system drops the SYN of a client in a burst, and it
/// tries again a second later.
pub const BACKLOG: u16 = 4096;

/// Fast Open connections that may wait for the end of their handshake. Beyond it the system falls back to the plain
/// handshake, so that a flood of spoofed addresses cannot hold more than this.
const FAST_OPEN_QUEUE: u32 = 256;

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            reuse_port: false,
            fast_open: false,
            tcp: TcpOptions::default(),
            interface: None,
            v6_only: false,
            is_near: false,
            backlog: BACKLOG,
            transparent_streams: false,
            transparent_datagrams: false,
            owner: Box::default(),
            beside: Arc::default(),
        }
    }
}

/// Sockets of this process that are about to close. Their successors may be bound beside them, on addresses that overlap
/// theirs, so that nobody meets a closed port meanwhile. Until this is dropped they share their ports (`SO_REUSEPORT`), and are open:
/// drop it once all is bound.
///
/// A specific address goes before a wildcard: the kernel gives each connection and datagram to exactly one of both.
#[derive(Debug, Default)]
pub struct SharedPorts {
    /// Those that did not share their ports before.
    changed: Vec<Kept>,
    inodes: Arc<[u64]>,
}

impl SharedPorts {
    /// Has `sockets` share their ports. One that cannot keeps its port for itself, which the successor's error tells.
    pub fn new<'a>(sockets: impl IntoIterator<Item = &'a Kept>) -> Self {
        let (mut changed, mut inodes) = (Vec::new(), Vec::new());
        for kept in sockets {
            if !matches!(kept.label().kind, Kind::Streams | Kind::Datagrams) {
                continue;
            }
            let Some(inode) = kept.inode() else { continue };
            inodes.push(inode);
            let socket = kept.socket();
            if !is_shared(&socket)
                && set_shared(&socket, true).is_ok()
                && let Ok(copy) = kept.copy()
            {
                changed.push(copy);
            }
        }
        Self { changed, inodes: inodes.into() }
    }

    /// Has `sockets` be as they were: they are about to close before anything is bound.
    pub fn release<'a>(&mut self, sockets: impl IntoIterator<Item = &'a Kept>) {
        for kept in sockets {
            self.changed.retain(|changed| {
                let is_other = changed.label() != kept.label();
                if !is_other {
                    unshare(changed);
                }
                is_other
            });
        }
    }

    /// The sockets, for [`ListenOptions::beside`].
    pub fn sockets(&self) -> Arc<[u64]> {
        self.inodes.clone()
    }
}

impl Drop for SharedPorts {
    fn drop(&mut self) {
        self.changed.iter().for_each(unshare);
    }
}

fn unshare(kept: &Kept) {
    if let Err(error) = set_shared(&kept.socket(), false) {
        debug!(%error, "a socket goes on sharing its port");
    }
}

fn is_shared(socket: &Socket) -> bool {
    #[cfg(unix)]
    return socket.reuse_port().unwrap_or(false);
    #[cfg(not(unix))]
    {
        let _ = socket;
        false
    }
}

impl ListenOptions {
    /// The fingerprint of the purpose of a socket on `addr`: all that cannot change while it is open.
    fn key(&self, addr: SocketAddr, is_stream: bool) -> u64 {
        let owner = if addr.port() == 0 { &self.owner } else { "" };
        let is_transparent = if is_stream { self.transparent_streams } else { self.transparent_datagrams };
        let is_v6_only = addr.is_ipv6() && !takes_v4_too(addr, self);
        let flags = [is_transparent, is_v6_only].map(|flag| if flag { "1" } else { "0" });
        let (interface, multipath) = (self.interface.as_deref().unwrap_or_default(), self.tcp.multipath);
        let multipath = if is_stream && multipath { "mptcp" } else { "" };
        handover::key(&[owner, &addr.to_string(), interface, flags[0], flags[1], multipath])
    }
}

impl From<&SocketOptions> for ListenOptions {
    fn from(options: &SocketOptions) -> Self {
        let SocketOptions { fast_open, tcp, interface, reuse_port, unix: _, carrier: _, pace: _ } = options;
        let (fast_open, tcp, reuse_port) = (*fast_open, *tcp, *reuse_port);
        Self { fast_open, tcp, reuse_port, interface: interface.clone(), ..Self::default() }
    }
}

/// Listening sockets, non-blocking, one per core that is to accept, and what was asked for and not to be had.
#[derive(Debug)]
pub struct Listeners {
    /// The sockets, all on one address.
    pub sockets: Vec<StdListener>,
    /// The address, with the port that the system chose if it was asked to.
    pub addr: SocketAddr,
    /// To be shown to a person, once.
    pub warnings: Vec<Warning>,
    /// The sockets as those that new connections can be steered to; `None` for a single one, and where others may share the
    /// port.
    pub group: Option<Arc<Group>>,
    /// The fingerprint of its purpose.
    key: u64,
}

impl Listeners {
    /// Copies for the next process.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn keep(&self) -> io::Result<Vec<Kept>> {
        keep_all(Kind::Streams, self.key, &self.sockets)
    }
}

/// Copies of sockets of one purpose.
fn keep_all(kind: Kind, key: u64, sockets: &[impl AsFd]) -> io::Result<Vec<Kept>> {
    let label = |index| Label { kind, key, index };
    (0..).zip(sockets).map(|(index, socket)| Kept::new(label(index), socket)).collect()
}

/// Why an address cannot be listened on.
#[derive(Debug)]
pub struct ListenError {
    /// The address.
    pub addr: SocketAddr,
    /// The process that listens there, if that is the reason and it could be found.
    pub holder: Option<PortHolder>,
    /// The system's error.
    pub source: io::Error,
}

/// Linux's number; elsewhere sockets cannot be bound to interfaces.
pub(crate) const ENODEV: i32 = 19;

impl ListenError {
    /// Whether another socket has the address.
    pub fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }

    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        let kind = self.source.kind();
        if kind == io::ErrorKind::PermissionDenied && self.addr.port() == 0 {
            Some(
                "capture needs CAP_NET_ADMIN: `sudo setcap cap_net_admin+ep $(command -v adit)`, or AmbientCapabilities=CAP_NET_ADMIN in the systemd unit",
            )
        } else if kind == io::ErrorKind::PermissionDenied {
            Some("ports below 1024 and interfaces need privileges (CAP_NET_BIND_SERVICE, CAP_NET_RAW)")
        } else if kind == io::ErrorKind::AddrNotAvailable {
            Some("no interface of this machine has that address")
        } else if self.source.raw_os_error() == Some(ENODEV) {
            Some("this machine has no interface of the name that `interface` gives")
        } else {
            None
        }
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}", self.addr)?;
        match &self.holder {
            Some(holder) => write!(f, ", taken by {holder}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Listens on `addr` with `count` sockets, at least one.
///
/// Several share the port by `SO_REUSEPORT`. So that this does not let two programs take one port unnoticed, the
/// address is first bound alone, unless [`ListenOptions::reuse_port`] asks for sharing.
///
/// # Errors
/// [`ListenError`], also for an unknown interface.
pub fn listen_many(
    addr: SocketAddr,
    options: &ListenOptions,
    count: usize,
) -> Result<Listeners, ListenError> {
    let result = match open_many(addr, options, count) {
        Err(error) if is_missing_family(&error) && takes_v4_too(addr, options) => {
            open_many(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port()), options, count).map(
                |mut made| {
                    made.warnings.push(Warning::NoIpv6);
                    made
                },
            )
        }
        result => result,
    };
    result.map_err(|source| {
        let taken = source.kind() == io::ErrorKind::AddrInUse;
        ListenError { addr, holder: if taken { find_holder(addr) } else { None }, source }
    })
}

/// Sockets for datagrams to one address, non-blocking, one per core.
#[derive(Debug)]
pub struct DatagramSockets {
    /// The sockets.
    pub sockets: Vec<StdUdpSocket>,
    /// The address, with the port that the system chose if it was asked to.
    pub addr: SocketAddr,
    /// To be shown to a person, once.
    pub warnings: Vec<Warning>,
    /// The fingerprint of its purpose.
    key: u64,
}

impl DatagramSockets {
    /// Copies for the next process.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn keep(&self) -> io::Result<Vec<Kept>> {
        keep_all(Kind::Datagrams, self.key, &self.sockets)
    }
}

/// Takes datagrams to `addr` with `count` sockets, at least one; as [`listen_many`] otherwise. Their buffers are
/// raised as far as the system allows.
///
/// # Errors
/// [`ListenError`], also for an unknown interface.
pub fn listen_datagrams(
    addr: SocketAddr,
    options: &ListenOptions,
    count: usize,
) -> Result<DatagramSockets, ListenError> {
    let result = match open_datagrams(addr, options, count) {
        Err(error) if is_missing_family(&error) && takes_v4_too(addr, options) => {
            let addr = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port());
            open_datagrams(addr, options, count).map(|mut made| {
                made.warnings.push(Warning::NoIpv6);
                made
            })
        }
        result => result,
    };
    result.map_err(|source| ListenError { addr, holder: None, source })
}

fn open_datagrams(addr: SocketAddr, options: &ListenOptions, count: usize) -> io::Result<DatagramSockets> {
    let key = options.key(addr, false);
    let handed = handover::take(Kind::Datagrams, key, Some(addr), None);
    if !handed.is_empty() {
        // One reader each: two would tear flows apart.
        let sockets: Vec<StdUdpSocket> = handed.into_iter().map(StdUdpSocket::from).collect();
        let addr = sockets[0].local_addr()?;
        return Ok(DatagramSockets { sockets, addr, warnings: Vec::new(), key });
    }
    let share = count > 1 || options.reuse_port || !options.beside.is_empty();
    if share && !options.reuse_port && addr.port() != 0 {
        check_free(addr, options, Type::DGRAM)?;
    }
    let mut warnings = Vec::new();
    let mut sockets: Vec<StdUdpSocket> = Vec::with_capacity(count.max(1));
    let mut actual = addr;
    for at in 0..count.max(1) {
        let socket = bind(actual, options, share, Type::DGRAM)?;
        actual = local_addr(&socket)?;
        let room = raise_buffers(&socket, LISTENER_BUFFER)?;
        if at == 0 && room < SMALL_BUFFER {
            warnings.push(Warning::ReceiveBuffer(room));
        }
        sockets.push(socket.into());
    }
    if share && count <= 1 && !options.reuse_port {
        set_shared(&SockRef::from(&sockets[0]), false)?;
    }
    Ok(DatagramSockets { sockets, addr: actual, warnings, key })
}

/// As in `crate::udp`, as far as this system tells.
#[cfg(not(target_os = "linux"))]
fn raise_buffers(socket: &Socket, receive: usize) -> io::Result<usize> {
    socket.set_recv_buffer_size(receive).ok();
    socket.recv_buffer_size()
}

/// Asked for on sockets that many clients send to: 3,640 datagrams of 1,400 bytes, some milliseconds of a fast link.
const LISTENER_BUFFER: usize = 4 << 20;

/// Below this much, as the kernel counts it, bursts of a fast link are lost: worth a warning.
const SMALL_BUFFER: usize = 1 << 20;

/// An address of `ip` with a port that nobody uses at this moment for streams or datagrams, for another program to
/// listen on: `wanted`, if that is such a port.
///
/// # Errors
/// As bind(2).
pub fn free_port(ip: IpAddr, wanted: u16) -> io::Result<SocketAddr> {
    let free = |port| {
        let addr = StdListener::bind((ip, port)).and_then(|listener| listener.local_addr())?;
        StdUdpSocket::bind(addr).map(|_| addr)
    };
    free(wanted).or_else(|_| retry(PORT_TRIES - 1, || free(0)))
}

/// Sockets on one port of loopback for what another program brings: listeners, sockets for datagrams, or both.
///
/// # Errors
/// [`ListenError`].
pub fn listen_behind(
    transports: Transports,
    count: usize,
) -> Result<(Option<Listeners>, Option<DatagramSockets>), ListenError> {
    let (at, options) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), ListenOptions::default());
    match transports {
        Transports::Tcp => Ok((Some(listen_many(at, &options, count)?), None)),
        Transports::Udp => Ok((None, Some(listen_datagrams(at, &options, count)?))),
        Transports::Both => {
            listen_both(at, &options, count).map(|(streams, datagrams)| (Some(streams), Some(datagrams)))
        }
    }
}

/// As [`listen_many`] and [`listen_datagrams`] on one port. If the system is to choose it, one that is free for
/// streams need not be so for datagrams: others are tried.
///
/// # Errors
/// [`ListenError`].
pub fn listen_both(
    addr: SocketAddr,
    options: &ListenOptions,
    count: usize,
) -> Result<(Listeners, DatagramSockets), ListenError> {
    let tries = if addr.port() == 0 { PORT_TRIES } else { 0 };
    retry(tries, || {
        let streams = listen_many(addr, options, count)?;
        let datagrams = listen_datagrams(streams.addr, options, count)?;
        Ok((streams, datagrams))
    })
}

/// Calls `attempt` until it succeeds, `more` times after the first.
fn retry<T, E>(more: usize, mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 0..more {
        if let Ok(made) = attempt() {
            return Ok(made);
        }
    }
    attempt()
}

/// Ports that are tried where one has to be free for streams and datagrams.
const PORT_TRIES: usize = 8;

/// Listens on `addr` with one socket, registered with the runtime that this is called on.
///
/// # Errors
/// As [`listen_many`].
pub fn listen(addr: SocketAddr, options: &ListenOptions) -> Result<(TcpListener, Vec<Warning>), ListenError> {
    let made = listen_many(addr, options, 1)?;
    let socket = made.sockets.into_iter().next().ok_or_else(|| io::ErrorKind::NotFound.into());
    match socket.and_then(TcpListener::from_std) {
        Ok(listener) => Ok((listener, made.warnings)),
        Err(source) => Err(ListenError { addr, holder: None, source }),
    }
}

/// A listening unix socket, non-blocking; several may share one. The last of them takes its file away.
#[derive(Debug)]
pub struct LocalListener {
    // Dropped first: as long as the socket is open nobody else takes the path.
    pub(crate) file: Arc<SocketFile>,
    pub(crate) socket: StdUnixListener,
}

/// The file of a unix socket.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number: a file that has replaced it since is not removed.
    id: (u64, u64),
}

impl LocalListener {
    /// A copy for the next process.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn keep(&self) -> io::Result<Kept> {
        Kept::new(unix_label(&self.file.path), &self.socket)
    }
}

/// The purpose of a unix socket.
pub(crate) fn unix_label(path: &Path) -> Label {
    Label { kind: Kind::Unix, key: handover::key(&[&path.to_string_lossy()]), index: 0 }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process listens there now.
        if handover::is_committed() {
            return;
        }
        if identify(&self.path).is_ok_and(|(id, _)| id == self.id) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Listens at `path` with one socket that `count` cores accept from. A socket file that nobody answers on is replaced,
/// any other file is left alone. The umask decides who may connect, which takes the right to write.
///
/// # Errors
/// As bind(2), and `AddrInUse` when another process answers there or the file is no socket.
pub fn listen_unix(path: &Path, count: usize) -> io::Result<Vec<LocalListener>> {
    let socket = bind_unix(path)?;
    let file = Arc::new(SocketFile { path: path.to_owned(), id: identify(path)?.0 });
    (0..count.max(1)).map(|_| Ok(LocalListener { file: file.clone(), socket: socket.try_clone()? })).collect()
}

/// One socket at `path`, as [`listen_unix`] has it.
pub(crate) fn bind_unix(path: &Path) -> io::Result<StdUnixListener> {
    #[cfg(target_os = "linux")]
    let label = unix_label(path);
    #[cfg(target_os = "linux")]
    if let Some(handed) = handover::take(label.kind, label.key, None, Some(path)).pop() {
        return Ok(handed.into());
    }
    let taken = |what: &str| io::Error::new(io::ErrorKind::AddrInUse, what);
    if let Ok((_, is_socket)) = identify(path) {
        if !is_socket {
            return Err(taken("the file is no socket"));
        }
        if answers(path) {
            return Err(taken("another process answers there"));
        }
        std::fs::remove_file(path)?;
    }
    let socket = StdUnixListener::bind(path)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Whether `addr` has to leave IPv4 alone because `all` (the addresses of one inbound) lists an IPv4 address of the
/// same port, which would otherwise collide with the IPv6 wildcard.
pub fn needs_v6_only(addr: SocketAddr, all: &[SocketAddr]) -> bool {
    addr.is_ipv6()
        && addr.ip().is_unspecified()
        && addr.port() != 0
        && all.iter().any(|other| other.is_ipv4() && other.port() == addr.port())
}

fn open_many(addr: SocketAddr, options: &ListenOptions, count: usize) -> io::Result<Listeners> {
    let key = options.key(addr, true);
    let handed = handover::take(Kind::Streams, key, Some(addr), None);
    if !handed.is_empty() {
        return take_over(handed, options, count, key);
    }
    let share = count > 1 || options.reuse_port || !options.beside.is_empty();
    if share && !options.reuse_port && addr.port() != 0 {
        check_free(addr, options, Type::STREAM)?;
    }
    let mut warnings = Vec::new();
    let mut sockets: Vec<StdListener> = Vec::with_capacity(count.max(1));
    let mut actual = addr;
    for at in 0..count.max(1) {
        let socket = bind(actual, options, share, Type::STREAM)?;
        // Known to the system only once the first socket is bound to port 0.
        actual = local_addr(&socket)?;
        if at == 0 {
            warnings.extend(check_multipath(&options.tcp));
        }
        if options.fast_open && at == 0 {
            warnings.extend(check_fast_open_server());
        }
        if options.fast_open
            && let Err(error) = adit_sys::tcp::set_fast_open(&socket, FAST_OPEN_QUEUE)
            && at == 0
        {
            warnings.push(Warning::FastOpenRefused(error.kind()));
        }
        socket.listen(options.backlog.into())?;
        sockets.push(socket.into());
    }
    if share && count <= 1 && !options.reuse_port {
        set_shared(&SockRef::from(&sockets[0]), false)?;
    }
    let group = (count > 1 && !options.reuse_port).then(Arc::default);
    Ok(Listeners { sockets, addr: actual, warnings, group, key })
}

/// Refuses an address that another socket has, which would share it: one that is not about to close.
fn check_free(addr: SocketAddr, options: &ListenOptions, kind: Type) -> io::Result<()> {
    if options.beside.is_empty() {
        return bind(addr, options, false, kind).map(drop);
    }
    if is_held_by_others(addr, kind == Type::STREAM, &options.beside) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}

/// Listeners that another process has opened. All of them are used, since connections wait in each; where they are too few,
/// several cores accept from one.
fn take_over(handed: Vec<OwnedFd>, options: &ListenOptions, count: usize, key: u64) -> io::Result<Listeners> {
    let mut sockets: Vec<StdListener> = handed.into_iter().map(StdListener::from).collect();
    for socket in &sockets {
        if let Err(error) = tune(socket, &options.tcp) {
            debug!(%error, "cannot set options for accepted connections");
        }
        SockRef::from(socket).listen(options.backlog.into())?;
    }
    let own = sockets.len();
    while sockets.len() < count {
        let copy = sockets[sockets.len() % own].try_clone()?;
        sockets.push(copy);
    }
    // The process before may have steered them.
    let is_group = own == count && own > 1 && !options.reuse_port && steer(&sockets[0], None).is_ok();
    let group = is_group.then(Arc::default);
    let addr = sockets[0].local_addr()?;
    Ok(Listeners { sockets, addr, warnings: Vec::new(), group, key })
}

fn bind(addr: SocketAddr, options: &ListenOptions, share: bool, kind: Type) -> io::Result<Socket> {
    let is_stream = kind == Type::STREAM;
    let protocol = if is_stream { Protocol::TCP } else { Protocol::UDP };
    let multipath = if is_stream && options.tcp.multipath { multipath_socket(addr).ok() } else { None };
    let socket = match multipath {
        Some(socket) => socket,
        None => Socket::new(Domain::for_address(addr), kind, Some(protocol))?,
    };
    socket.set_nonblocking(true)?;
    if is_stream {
        // Accepted connections inherit them.
        if let Err(error) = tune(&socket, &options.tcp) {
            debug!(%error, "cannot set options for accepted connections");
        }
        if options.is_near {
            // No bottleneck lies between, and a control that paces takes a fifth more processor time.
            adit_sys::rate::set_congestion(&socket, NEAR_CONGESTION).ok();
            unpace(&socket).ok()
        } else {
            unpace_local(&socket, addr.ip()).ok()
        };
        // Takes a port whose former connections are still in TIME_WAIT; never one with a listener. For datagrams it
        // would let two programs share a port.
        socket.set_reuse_address(true)?;
    }
    if share {
        share_port(&socket)?;
    }
    if addr.is_ipv6() {
        socket.set_only_v6(!takes_v4_too(addr, options))?;
    }
    if let Some(interface) = &options.interface {
        bind_interface(&socket, interface)?;
    }
    if if is_stream { options.transparent_streams } else { options.transparent_datagrams } {
        set_transparent(&socket, addr.is_ipv6())?;
        #[cfg(target_os = "linux")]
        if !is_stream {
            adit_sys::udp::report_original(&socket, addr.is_ipv6())?;
        }
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

fn local_addr(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

fn takes_v4_too(addr: SocketAddr, options: &ListenOptions) -> bool {
    matches!(addr.ip(), IpAddr::V6(ip) if ip.is_unspecified()) && !options.v6_only
}

/// A kernel without IPv6 has no such sockets; one where it is switched off has no such addresses.
fn is_missing_family(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, Unsupported};
    matches!(error.kind(), AddrNotAvailable | Unsupported) || error.raw_os_error() == Some(EAFNOSUPPORT)
}

#[cfg(target_os = "linux")]
const EAFNOSUPPORT: i32 = 97;
#[cfg(not(target_os = "linux"))]
const EAFNOSUPPORT: i32 = 47;

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::net::TcpStream;

    use super::*;
    use crate::unix::StdUnixStream;

    const LOOPBACK: &str = "127.0.0.1:0";

    fn open(addr: &str, options: &ListenOptions, count: usize) -> Result<Listeners, ListenError> {
        listen_many(addr.parse().unwrap(), options, count)
    }

    #[test]
    fn streams_and_datagrams_get_one_port() {
        let (streams, datagrams) =
            listen_both("127.0.0.1:0".parse().unwrap(), &ListenOptions::default(), 2).unwrap();
        assert_eq!(streams.addr, datagrams.addr);
        assert_eq!((streams.sockets.len(), datagrams.sockets.len()), (2, 2));
        // A port that is taken for datagrams alone is not given up for another.
        drop(streams);
        let error = listen_both(datagrams.addr, &ListenOptions::default(), 1).unwrap_err();
        assert_eq!((error.addr, error.source.kind()), (datagrams.addr, io::ErrorKind::AddrInUse));
    }

    #[test]
    fn another_port_is_tried_and_not_for_ever() {
        for (failures, outcome) in [(0, Ok(1)), (3, Ok(4)), (8, Ok(9)), (9, Err(9)), (100, Err(9))] {
            let mut attempts = 0;
            let attempt = || {
                attempts += 1;
                if attempts > failures { Ok(attempts) } else { Err(attempts) }
            };
            assert_eq!(retry(8, attempt), outcome, "{failures}");
        }
    }

    #[test]
    fn several_sockets_share_a_port_that_was_free() {
        let made = open(LOOPBACK, &ListenOptions::default(), 3).unwrap();
        assert_eq!(made.sockets.len(), 3);
        assert_ne!(made.addr.port(), 0);
        assert!(made.sockets.iter().all(|socket| socket.local_addr().unwrap() == made.addr));

        let error = listen_many(made.addr, &ListenOptions::default(), 3).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
        let shared = ListenOptions { reuse_port: true, ..ListenOptions::default() };
        assert_eq!(listen_many(made.addr, &shared, 1).unwrap().addr, made.addr);
    }

    #[test]
    fn an_error_names_address_and_holder() {
        let made = open(LOOPBACK, &ListenOptions::default(), 1).unwrap();
        let error = listen_many(made.addr, &ListenOptions::default(), 1).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot listen on {}", made.addr)), "{text}");
        assert!(error.source().is_some());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(error.holder.as_ref().unwrap().pid, std::process::id());
            assert!(text.ends_with(&format!("(pid {})", std::process::id())), "{text}");
        }
    }

    #[test]
    fn a_v6_wildcard_takes_v4_unless_told_not_to() {
        let Ok(made) = open("[::]:0", &ListenOptions::default(), 1) else { return };
        if made.addr.is_ipv6() {
            TcpStream::connect((Ipv4Addr::LOCALHOST, made.addr.port())).unwrap();
        }
        let only = ListenOptions { v6_only: true, ..ListenOptions::default() };
        let made = open("[::]:0", &only, 1).unwrap();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, made.addr.port())).is_err());
        let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), made.addr.port());
        listen_many(v4, &only, 1).unwrap();
    }

    /// Each move between an address and a wildcard, for one event loop and for several.
    #[test]
    fn a_successor_is_bound_beside_a_socket_that_is_about_to_close() {
        if open("[::1]:0", &ListenOptions::default(), 1).is_err() {
            return;
        }
        let all = ["127.0.0.1", "0.0.0.0", "::", "::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let moves = all.iter().flat_map(|from| all.iter().map(move |to| (from, to)));
        for ((from, to), count) in moves.flat_map(|pair| [(pair, 1), (pair, 3)]) {
            let what = format!("{from} to {to}, {count} loops");
            let plain = ListenOptions::default();
            let (old, old_datagrams) = listen_both(SocketAddr::new(*from, 0), &plain, count).unwrap();
            let at = SocketAddr::new(*to, old.addr.port());
            if from != to && (from.is_unspecified() && to.is_ipv4() == from.is_ipv4()) {
                assert!(listen_many(at, &plain, count).unwrap_err().is_taken(), "{what}");
            }
            let mut kept = old.keep().unwrap();
            kept.extend(old_datagrams.keep().unwrap());
            let beside = SharedPorts::new(&kept);
            let options = ListenOptions { beside: beside.sockets(), ..plain.clone() };
            let new = listen_many(at, &options, count).unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let new_datagrams = listen_datagrams(at, &options, count).unwrap();
            drop((beside, old, old_datagrams, kept));
            assert_eq!((new.addr, new_datagrams.addr), (at, at), "{what}");
            // One that is not about to close keeps others away as ever.
            assert!(listen_many(at, &plain, count).unwrap_err().is_taken(), "{what}");
            assert!(listen_datagrams(at, &plain, count).unwrap_err().is_taken(), "{what}");
            let shares = |socket: &StdListener| is_shared(&SockRef::from(socket));
            assert_eq!(new.sockets.iter().all(shares), count > 1, "{what}");
        }
    }

    #[test]
    fn a_socket_that_stays_keeps_its_port_from_successors_and_is_as_before() {
        let plain = ListenOptions::default();
        let old = open("0.0.0.0:0", &plain, 1).unwrap();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, old.addr.port()));
        let other = open(LOOPBACK, &ListenOptions { reuse_port: true, ..plain.clone() }, 1).unwrap();
        let beside = SharedPorts::new(&old.keep().unwrap());
        let options = ListenOptions { beside: beside.sockets(), ..plain };
        assert!(listen_many(other.addr, &options, 2).unwrap_err().is_taken());
        assert!(is_shared(&SockRef::from(&old.sockets[0])));
        drop(beside);
        assert!(!is_shared(&SockRef::from(&old.sockets[0])));
        assert!(listen_many(at, &options, 1).unwrap_err().is_taken());
    }

    #[test]
    fn v6_only_is_needed_beside_v4_of_the_same_port() {
        let all: Vec<SocketAddr> = ["[::]:80", "0.0.0.0:80", "[::1]:80", "[::]:81"]
            .iter()
            .map(|addr| addr.parse().unwrap())
            .collect();
        let needed: Vec<bool> = all.iter().map(|addr| needs_v6_only(*addr, &all)).collect();
        assert_eq!(needed, [true, false, false, false]);
    }

    #[test]
    fn unknown_interfaces_and_foreign_addresses_fail() {
        let options = ListenOptions { interface: Some("no-such-if0".into()), ..ListenOptions::default() };
        assert!(open(LOOPBACK, &options, 1).is_err());
        // TEST-NET-3 of RFC 5737: nobody's.
        let error = open("203.0.113.77:0", &ListenOptions::default(), 1).unwrap_err();
        assert!(error.hint().is_some(), "{error:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn options_reach_the_socket() {
        let options =
            ListenOptions { fast_open: true, interface: Some("lo".into()), ..ListenOptions::default() };
        let made = open(LOOPBACK, &options, 1).unwrap();
        let socket = &made.sockets[0];
        assert_eq!(adit_sys::tcp::fast_open(socket).unwrap(), FAST_OPEN_QUEUE);
        assert_eq!(SockRef::from(socket).device().unwrap().as_deref(), Some(&b"lo"[..]));
        assert!(SockRef::from(socket).nonblocking().unwrap());
        let allowed = adit_sys::tcp::fast_open_support().is_none_or(|support| support.server);
        assert_eq!(made.warnings.is_empty(), allowed);
    }

    #[test]
    fn a_unix_socket_lives_as_long_as_its_listeners() {
        let dir = std::env::temp_dir().join(format!("adit-listen-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("s");
        // Nobody listens on what a process has left behind.
        drop(StdUnixListener::bind(&path).unwrap());
        let mut listeners = listen_unix(&path, 2).unwrap();
        StdUnixStream::connect(&path).unwrap();
        assert_eq!(listen_unix(&path, 1).unwrap_err().to_string(), "another process answers there");
        listeners.pop();
        StdUnixStream::connect(&path).unwrap();
        listeners.pop();
        assert!(!path.exists());

        std::fs::write(&path, "precious").unwrap();
        assert_eq!(listen_unix(&path, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
        // Another one's file is not taken away.
        let listeners = listen_unix(&path, 1).unwrap();
        std::fs::rename(&path, dir.join("ours")).unwrap();
        std::fs::write(&path, "new").unwrap();
        drop(listeners);
        assert!(path.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test(flavor = "local")]
    async fn one_listener_on_the_runtime() {
        let (listener, warnings) = listen(LOOPBACK.parse().unwrap(), &ListenOptions::default()).unwrap();
        assert_eq!(warnings, []);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }
}
