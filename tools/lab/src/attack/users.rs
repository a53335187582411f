//! The users: requests for one byte, and the target that gives it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use socket2::SockRef;

/// Longest wait for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(6);
/// Between two requests of one user.
const PAUSE: Duration = Duration::from_millis(20);
/// Users that ask at the same time.
const AT_ONCE: usize = 4;
/// Connections that the target has not taken yet, at most.
const BACKLOG: i32 = 4096;
/// Asks the target for one byte.
const ONE: u8 = 1;
/// Asks it to send for ever.
pub(super) const FOR_EVER: u8 = 2;

/// The target to which requests lead.
pub(super) struct Target {
    pub(super) address: SocketAddr,
}

impl Target {
    /// Starts it in the calling thread's network; it ends with the process. Its sockets hold at most so many bytes that are
    /// on their way, if that is given.
    pub(super) fn start(host: Ipv4Addr, held: Option<usize>) -> Result<Self> {
        let listener = TcpListener::bind((host, 0))?;
        // The usual queue holds 128 connections. One that does not fit is tried again after a second, which its user would
        // take for the server's.
        SockRef::from(&listener).listen(BACKLOG)?;
        if let Some(held) = held {
            SockRef::from(&listener).set_send_buffer_size(held)?;
        }
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Without a thread the connection ends, which its user sees.
                thread::Builder::new().stack_size(64 << 10).spawn(move || answer(stream)).ok();
            }
        });
        Ok(Self { address })
    }
}

/// Serves one connection; its errors are its peer's to see.
fn answer(mut stream: TcpStream) {
    let mut wish = [0];
    if stream.read_exact(&mut wish).is_err() {
        return;
    }
    match wish {
        [FOR_EVER] => {
            static BLOCK: [u8; 16 << 10] = [7; 16 << 10];
            while stream.write_all(&BLOCK).is_ok() {}
        }
        _ => drop(stream.write_all(&[9])),
    }
}

/// Those who have a key.
pub(super) struct Users {
    /// SOCKS ports, used in turn.
    pub(super) entries: [SocketAddr; 2],
    pub(super) target: SocketAddr,
}

impl Users {
    /// One request by each entry.
    pub(super) fn once(&self) -> Result<()> {
        self.entries.iter().try_for_each(|entry| request(*entry, self.target).map(drop))
    }

    /// Requests until `over`: the milliseconds of each, `None` for one that failed.
    pub(super) fn run(&self, over: &AtomicBool) -> Vec<Option<f64>> {
        run(over, |number| request(self.entries[number % 2], self.target))
    }
}

/// Several at a time ask until `over`, each with the numbers of its requests: the milliseconds of each, `None` for one that
/// failed.
pub(super) fn run(over: &AtomicBool, request: impl Fn(usize) -> Result<()> + Sync) -> Vec<Option<f64>> {
    let user = |number: usize| {
        let mut outcome = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let since = Instant::now();
            let served = request(number + outcome.len()).is_ok();
            outcome.push(served.then(|| since.elapsed().as_secs_f64() * 1000.0));
            thread::sleep(PAUSE);
        }
        outcome
    };
    thread::scope(|scope| {
        let user = &user;
        let all: Vec<_> = (0..AT_ONCE).map(|number| scope.spawn(move || user(number))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap_or_default()).collect()
    })
}

/// A tunnel to `target` by the SOCKS port `entry`.
pub(super) fn tunnel(entry: SocketAddr, target: SocketAddr) -> Result<TcpStream> {
    let mut stream = straight(entry)?;
    let SocketAddr::V4(target) = target else { bail!("the target has an IPv4 address") };
    let mut hello = vec![5, 1, 0];
    stream.write_all(&hello)?;
    stream.read_exact(&mut [0; 2])?;
    hello.extend([1]);
    hello.extend(target.ip().octets());
    hello.extend(target.port().to_be_bytes());
    stream.write_all(&hello)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    if reply[1] != 0 {
        bail!("SOCKS reply {}", reply[1]);
    }
    Ok(stream)
}

/// Fetches one byte.
fn request(entry: SocketAddr, target: SocketAddr) -> Result<()> {
    ask(tunnel(entry, target)?)
}

/// Asks the target at the other end for one byte.
pub(super) fn ask(mut stream: TcpStream) -> Result<()> {
    stream.write_all(&[ONE])?;
    stream.read_exact(&mut [0]).context("no answer")
}

/// Connects to the target itself.
pub(super) fn straight(target: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
