//! The target behind every subject: source, sink, answerer, holder of idle connections, and the far end
//! of the integrity check.
//!
//! Each connection opens with one request:
//!
//! ```text
//! 0     1         9       13        17      18        200
//! +-----+---------+-------+---------+-------+---------+   command: see `Command`
//! | cmd | seed    | up    | down    | flags | zeroes  |   seed: u64, up, down: u32 byte counts, little endian
//! +-----+---------+-------+---------+-------+---------+   flags: bit 0 half-close, bit 1 abort by the client,
//!                                                         bit 2 abort by the target, bit 3 CUBIC
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

pub(crate) use adit_demo::path::stream_socket;
use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::bulk::{CHUNK, Sink, Source};
use crate::link::Network;
use crate::random::Stream;
use crate::subject::free_port;

/// Bytes of a request, and of the answer to [`Command::Request`] and [`Command::Hold`].
pub const REQUEST_LEN: usize = 200;
/// The target's last byte in the integrity check if all that it received was right.
pub const GOOD: u8 = b'K';
/// The same if something was wrong.
pub const BAD: u8 = b'X';

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The target sends for ever.
    Download,
    /// The target reads for ever and counts.
    Upload,
    /// The target answers with [`REQUEST_LEN`] bytes and waits for the end.
    Request,
    /// The target echoes the request and keeps the connection without a thread.
    Hold,
    /// Verified bytes both ways.
    Check,
    /// The target sends back what comes, at once.
    Echo,
    /// The target sends so many bytes and waits for the end.
    Get,
    /// The target reads so many bytes, answers [`GOOD`] and waits for the end.
    Put,
}

/// The first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The connection's purpose.
    pub command: Command,
    /// Seed of the random bytes; the target's own use its complement.
    pub seed: u64,
    /// Bytes that the client sends.
    pub up: u32,
    /// Bytes that the target sends.
    pub down: u32,
    /// The client shuts down its direction; the target answers after that.
    pub half_close: bool,
    /// The client resets the connection half-way.
    pub client_aborts: bool,
    /// The target resets the connection half-way.
    pub target_aborts: bool,
    /// The target's direction obeys CUBIC, not the system's congestion control.
    pub cubic: bool,
}

impl Request {
    /// A request for `command` without further parameters.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self {
            command,
            seed: 0,
            up: 0,
            down: 0,
            half_close: false,
            client_aborts: false,
            target_aborts: false,
            cubic: false,
        }
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn emit(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0] = match self.command {
            Command::Download => b'D',
            Command::Upload => b'U',
            Command::Request => b'R',
            Command::Hold => b'H',
            Command::Check => b'C',
            Command::Echo => b'E',
            Command::Get => b'G',
            Command::Put => b'P',
        };
        bytes[1..9].copy_from_slice(&self.seed.to_le_bytes());
        bytes[9..13].copy_from_slice(&self.up.to_le_bytes());
        bytes[13..17].copy_from_slice(&self.down.to_le_bytes());
        bytes[17] = u8::from(self.half_close)
            | u8::from(self.client_aborts) << 1
            | u8::from(self.target_aborts) << 2
            | u8::from(self.cubic) << 3;
        bytes
    }

    /// Reads what [`Self::emit`] wrote; `None` if no such command exists.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let command = match bytes[0] {
            b'D' => Command::Download,
            b'U' => Command::Upload,
            b'R' => Command::Request,
            b'H' => Command::Hold,
            b'C' => Command::Check,
            b'E' => Command::Echo,
            b'G' => Command::Get,
            b'P' => Command::Put,
            _ => return None,
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Self {
            command,
            seed: u64::from(word(1)) | u64::from(word(5)) << 32,
            up: word(9),
            down: word(13),
            half_close: bytes[17] & 1 != 0,
            client_aborts: bytes[17] & 2 != 0,
            target_aborts: bytes[17] & 4 != 0,
            cubic: bytes[17] & 8 != 0,
        })
    }
}

/// Sends datagrams back until the process ends; the address to send them to. They have up to 2,048 bytes.
///
/// # Errors
/// If no port or thread is to be had.
pub(crate) fn datagram_echo() -> Result<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = socket.local_addr()?;
    thread::Builder::new().spawn(move || {
        let mut packet = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut packet) {
            // The sender is the one that notices a datagram that is lost.
            socket.send_to(&packet[..len], from).ok();
        }
    })?;
    Ok(address)
}

/// The target's counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes received by [`Command::Upload`].
    pub uploaded: AtomicU64,
    /// Connections that were accepted.
    pub accepted: AtomicU64,
    /// Idle connections that are held.
    pub held: AtomicUsize,
    /// Connections with a thread at work.
    pub busy: AtomicUsize,
    /// Connections of the integrity check that brought wrong bytes.
    pub wrong: AtomicU64,
    /// Connections of the integrity check that ended before all bytes came.
    pub cut: AtomicU64,
    /// Connections of the integrity check on which nothing came, not even the end, for too long.
    pub stuck: AtomicU64,
    /// Connections whose request was not one.
    pub bad_requests: AtomicU64,
}

/// A listening target; dropping it stops it. Connections at work end when their peers close them.
#[derive(Debug)]
pub struct Target {
    address: SocketAddr,
    shared: Arc<Shared>,
    network: Option<Arc<Network>>,
}

#[derive(Debug)]
struct Shared {
    counters: Counters,
    stopped: AtomicBool,
    patience: Duration,
    epoll: Epoll,
    idle: Mutex<BTreeMap<u64, TcpStream>>,
}

impl Target {
    /// Listens on a free loopback port. `patience` bounds every wait of the integrity check.
    ///
    /// # Errors
    /// If no port or thread is to be had.
    pub fn start(patience: Duration) -> Result<Self> {
        Self::listen(Ipv4Addr::LOCALHOST, patience)
    }

    /// The same at every address of the far network.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_far(network: &Arc<Network>, patience: Duration) -> Result<Self> {
        let mut target = network.far.within(|| Self::listen(Ipv4Addr::UNSPECIFIED, patience))?;
        target.network = Some(Arc::clone(network));
        Ok(target)
    }

    fn listen(ip: Ipv4Addr, patience: Duration) -> Result<Self> {
        let port = free_port()?;
        let listener = listen(SocketAddr::from((ip, port)))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            stopped: AtomicBool::new(false),
            patience,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create epoll")?,
            idle: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::Builder::new().name("target".into()).spawn(move || accept(&listener, &accepting))?;
        let holding = Arc::clone(&shared);
        thread::Builder::new().name("holder".into()).spawn(move || hold(&holding))?;
        Ok(Self { address, shared, network: None })
    }

    /// Address that it listens on, on the loopback of its network.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its counters so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let wake = || Ok(TcpStream::connect_timeout(&self.address, Duration::from_secs(1))?);
        self.network.as_ref().map_or_else(wake, |network| network.far.within(wake)).ok();
    }
}

/// Listens with a queue that a burst of connections does not overflow: the standard library's holds 128, and what
/// does not fit looks to its peer like a connection that never answers.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let open = || -> io::Result<TcpListener> {
        let socket = stream_socket(address)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    };
    open().with_context(|| format!("listen on {address}"))
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stopped.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let number = shared.counters.accepted.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        let work = move || {
            shared.counters.busy.fetch_add(1, Ordering::Relaxed);
            // Resets and early ends are expected; the sender of the request notices.
            connection(stream, number, &shared).ok();
            shared.counters.busy.fetch_sub(1, Ordering::Relaxed);
        };
        thread::Builder::new().stack_size(128 * 1024).spawn(work).ok();
    }
}

fn connection(mut stream: TcpStream, number: u64, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; REQUEST_LEN];
    stream.read_exact(&mut bytes)?;
    let Some(request) = Request::parse(&bytes) else {
        shared.counters.bad_requests.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    };
    if request.cubic {
        socket2::SockRef::from(&stream).set_tcp_congestion(b"cubic")?;
    }
    match request.command {
        Command::Download => {
            let source = Source::get()?;
            loop {
                source.send(&stream, CHUNK)?;
            }
        }
        Command::Upload => {
            let mut sink = Sink::new();
            loop {
                let n = sink.take(&stream, CHUNK)?;
                if n == 0 {
                    return Ok(());
                }
                shared.counters.uploaded.fetch_add(n as u64, Ordering::Relaxed);
            }
        }
        Command::Request => {
            stream.write_all(&bytes)?;
            while stream.read(&mut bytes)? > 0 {}
            Ok(())
        }
        Command::Echo => loop {
            let n = stream.read(&mut bytes)?;
            if n == 0 {
                return Ok(());
            }
            stream.write_all(&bytes[..n])?;
        },
        Command::Get | Command::Put => transfer(stream, &request),
        Command::Hold => {
            stream.write_all(&bytes)?;
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
            let mut idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
            shared.epoll.add(&stream, EpollEvent::new(flags, number))?;
            idle.insert(number, stream);
            shared.counters.held.store(idle.len(), Ordering::Relaxed);
            Ok(())
        }
        Command::Check => {
            stream.set_read_timeout(Some(shared.patience))?;
            stream.set_write_timeout(Some(shared.patience))?;
            check(&stream, &request, &shared.counters)
        }
    }
}

/// As many bytes as were asked for, and then the end.
fn transfer(mut stream: TcpStream, request: &Request) -> io::Result<()> {
    if request.command == Command::Get {
        send_bulk(&stream, request.down)?;
    } else {
        let (mut sink, mut left) = (Sink::new(), request.up as usize);
        while left > 0 {
            let n = sink.take(&stream, left)?;
            if n == 0 {
                return Ok(());
            }
            left -= n;
        }
        stream.write_all(&[GOOD])?;
    }
    while stream.read(&mut [0; 256])? > 0 {}
    Ok(())
}

/// Sends `len` bytes of bulk data.
pub(crate) fn send_bulk(to: &TcpStream, len: u32) -> io::Result<()> {
    let (source, mut left) = (Source::get()?, len as usize);
    while left > 0 {
        left -= source.send(to, left)?;
    }
    Ok(())
}

/// Closes held connections whose peers closed them.
fn hold(shared: &Shared) {
    let mut events = vec![EpollEvent::empty(); 256];
    while !shared.stopped.load(Ordering::Relaxed) {
        let Ok(count) = shared.epoll.wait(&mut events, EpollTimeout::from(200_u8)) else { continue };
        let mut idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        for event in &events[..count] {
            idle.remove(&event.data());
        }
        shared.counters.held.store(idle.len(), Ordering::Relaxed);
    }
}

fn check(stream: &TcpStream, request: &Request, counters: &Counters) -> io::Result<()> {
    let mut expected = Stream::new(request.seed);
    let mut sent = Stream::new(!request.seed);
    if request.client_aborts {
        // The end is a reset at any point: what arrives before must still be right.
        let received = expected.receive(stream, u64::MAX);
        return note(received, request, counters).map(drop);
    }
    if request.target_aborts {
        let half = u64::from(request.down / 2);
        sent.send(stream, half)?;
        socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
        return Ok(());
    }
    let right = if request.half_close {
        let right = note(expected.receive(stream, u64::MAX), request, counters)?;
        sent.send(stream, u64::from(request.down))?;
        right
    } else {
        // Both directions at once.
        thread::scope(|scope| {
            let sender = thread::Builder::new()
                .stack_size(128 * 1024)
                .spawn_scoped(scope, || sent.send(stream, u64::from(request.down)))?;
            let right = note(expected.receive(stream, u64::from(request.up)), request, counters);
            sender.join().map_err(|_| io::Error::other("sender panicked"))??;
            right
        })?
    };
    let mut stream = stream;
    stream.write_all(&[if right { GOOD } else { BAD }])
}

/// Whether all that came was right; counts it if not.
fn note(
    received: io::Result<crate::random::Received>,
    request: &Request,
    counters: &Counters,
) -> io::Result<bool> {
    let received = received.inspect_err(|error| {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            counters.stuck.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    let full = request.client_aborts || received.bytes == u64::from(request.up);
    if !received.right {
        counters.wrong.fetch_add(1, Ordering::Relaxed);
    } else if !full {
        counters.cut.fetch_add(1, Ordering::Relaxed);
    }
    Ok(received.right && full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_round_trip() {
        let request = Request {
            command: Command::Check,
            seed: 0x0123_4567_89ab_cdef,
            up: 0xdead_beef,
            down: 7,
            half_close: true,
            client_aborts: false,
            target_aborts: true,
            cubic: true,
        };
        assert_eq!(Request::parse(&request.emit()), Some(request));
        assert_eq!(Request::parse(&[0; REQUEST_LEN]), None);
    }
}
