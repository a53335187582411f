//! The load generator: blocking threads and bytes that are not copied, so that it costs little beside the subject.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use adit_demo::path::Path;
use adit_demo::path::{UDP_ASSOCIATE, during, socks5, stream_socket};
use anyhow::{Context, Result, bail, ensure};

use crate::bulk::{CHUNK, Sink, Source};
use crate::target::{Command, REQUEST_LEN, Request, Target};

/// Longest wait for a single answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections per source address: the kernel has some 28,000 ports for one pair of addresses.
const PER_SOURCE: usize = 20_000;

/// Connects as [`Path::dial`] does, but from the source address `127.0.0.2`, `127.0.0.3`, ... if `number` is past one address's ports.
fn dial_numbered(path: &Path, number: usize) -> io::Result<TcpStream> {
    let Some(source) = u8::try_from(number / PER_SOURCE).ok().filter(|&source| source > 0) else {
        return path.dial(PATIENCE);
    };
    let socket = stream_socket(path.address)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, 1 + source), 0)).into())?;
    socket.connect_timeout(&path.address.into(), PATIENCE)?;
    path.enter(socket.into(), PATIENCE)
}

/// Asks the SOCKS5 server at `address` to relay datagrams: the connection that keeps the association, and where the
/// datagrams go.
///
/// # Errors
/// If the server refuses.
pub(crate) fn associate(address: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut bound = socks5(&mut stream, UDP_ASSOCIATE, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    if bound.ip().is_unspecified() {
        bound.set_ip(address.ip());
    }
    Ok((stream, bound))
}

/// Direction of bulk data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the target to the load generator.
    Down,
    /// From the load generator to the target.
    Up,
}

/// Running bulk streams; they stop when dropped.
#[derive(Debug)]
pub struct Streams {
    way: Way,
    received: Arc<AtomicU64>,
    failed: Arc<AtomicUsize>,
    sockets: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Streams {
    /// Opens `count` streams and waits until bytes arrive.
    ///
    /// # Errors
    /// If a stream cannot be opened or nothing arrives.
    pub fn start(path: &Path, way: Way, count: usize, target: &Target) -> Result<Self> {
        let command = if way == Way::Down { Command::Download } else { Command::Upload };
        Self::start_with(&Request::new(command), path, way, count, target)
    }

    /// One download whose sender obeys CUBIC.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_cubic(path: &Path, target: &Target) -> Result<Self> {
        let request = Request { cubic: true, ..Request::new(Command::Download) };
        Self::start_with(&request, path, Way::Down, 1, target)
    }

    fn start_with(request: &Request, path: &Path, way: Way, count: usize, target: &Target) -> Result<Self> {
        let mut streams = Self {
            way,
            received: Arc::default(),
            failed: Arc::default(),
            sockets: Vec::new(),
            threads: Vec::new(),
        };
        let source = Source::get()?;
        for number in 0..count {
            let mut stream = path.dial(PATIENCE).with_context(|| format!("open stream {number}"))?;
            stream.write_all(&request.emit())?;
            streams.sockets.push(stream.try_clone()?);
            let (received, failed) = (Arc::clone(&streams.received), Arc::clone(&streams.failed));
            let work = move || {
                let mut sink = Sink::new();
                loop {
                    let moved = match way {
                        Way::Down => sink.take(&stream, CHUNK),
                        Way::Up => source.send(&stream, CHUNK),
                    };
                    match moved {
                        Ok(0) | Err(_) => break,
                        Ok(n) => received.fetch_add(n as u64, Ordering::Relaxed),
                    };
                }
                failed.fetch_add(1, Ordering::Relaxed);
            };
            streams.threads.push(thread::Builder::new().stack_size(128 * 1024).spawn(work)?);
        }
        let begin = streams.bytes(target);
        let deadline = Instant::now() + PATIENCE;
        while streams.bytes(target) == begin {
            ensure!(Instant::now() < deadline, "no bytes after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(streams)
    }

    /// Bytes that arrived at the receiving end: the load generator's or the target's.
    #[must_use]
    pub fn bytes(&self, target: &Target) -> u64 {
        match self.way {
            Way::Down => self.received.load(Ordering::Relaxed),
            Way::Up => target.counters().uploaded.load(Ordering::Relaxed),
        }
    }

    /// Checks that no stream has ended.
    ///
    /// # Errors
    /// If one has.
    pub fn alive(&self) -> Result<()> {
        let failed = self.failed.load(Ordering::Relaxed);
        ensure!(failed == 0, "{failed} of {} streams ended early", self.sockets.len());
        Ok(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for socket in &self.sockets {
            socket.shutdown(Shutdown::Both).ok();
        }
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// Opens `count` connections, `concurrency` at a time; each sends 200 bytes, gets 200 bytes back and closes.
/// Gives for each the microseconds from the start of connecting to the first byte of the answer.
///
/// # Errors
/// If one connection fails.
pub fn fresh(path: &Path, count: usize, concurrency: usize, pause: Duration) -> Result<Vec<f64>> {
    let next = AtomicUsize::new(0);
    let run = || -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(count / concurrency + 1);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(times);
            }
            times.push(one(path).with_context(|| format!("connection {number}"))?);
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
    };
    if concurrency <= 1 {
        return run();
    }
    thread::scope(|scope| {
        let threads: Vec<_> = (0..concurrency).map(|_| scope.spawn(run)).collect();
        let mut all = Vec::with_capacity(count);
        for thread in threads {
            match thread.join() {
                Ok(times) => all.extend(times?),
                Err(_) => bail!("load thread panicked"),
            }
        }
        Ok(all)
    })
}

fn one(path: &Path) -> Result<f64> {
    let request = Request::new(Command::Request).emit();
    let begin = Instant::now();
    let mut stream = path.dial(PATIENCE)?;
    stream.write_all(&request)?;
    let mut answer = [0; REQUEST_LEN];
    let first = stream.read(&mut answer).map_err(|error| during("answer", &error))?;
    let time = begin.elapsed();
    ensure!(first > 0, "closed before the answer");
    stream.read_exact(&mut answer[first..])?;
    ensure!(answer == request, "wrong answer");
    Ok(time.as_secs_f64() * 1e6)
}

/// Opens `count` connections, echoes 200 bytes over each, and hands them over to be held.
///
/// # Errors
/// If one fails.
pub fn hold(path: &Path, count: usize) -> Result<Vec<TcpStream>> {
    const OPENERS: usize = 8;
    let next = AtomicUsize::new(0);
    let run = || -> Result<Vec<TcpStream>> {
        let request = Request::new(Command::Hold).emit();
        let mut held = Vec::with_capacity(count / OPENERS + 1);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(held);
            }
            let open = || -> Result<TcpStream> {
                let mut stream = dial_numbered(path, number)?;
                stream.write_all(&request)?;
                let mut answer = [0; REQUEST_LEN];
                stream.read_exact(&mut answer).map_err(|error| during("echo", &error))?;
                ensure!(answer == request, "wrong echo");
                Ok(stream)
            };
            held.push(open().with_context(|| format!("idle connection {number}"))?);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..OPENERS).map(|_| scope.spawn(run)).collect();
        let mut all = Vec::with_capacity(count);
        for thread in threads {
            match thread.join() {
                Ok(held) => all.extend(held?),
                Err(_) => bail!("load thread panicked"),
            }
        }
        Ok(all)
    })
}
