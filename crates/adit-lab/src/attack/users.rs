//! The users: requests for one byte, and the target that gives it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(6);
/// Between two requests of one user.
const PAUSE: Duration = Duration::from_millis(20);
/// Users that ask at the same time.
const AT_ONCE: usize = 4;
/// Asks the target for one byte.
const ONE: u8 = 1;
/// Asks it to send for ever.
pub(super) const FOR_EVER: u8 = 2;

/// The target to which requests lead.
pub(super) struct Target {
    pub(super) address: SocketAddr,
}

impl Target {
    /// Starts it; it ends with the process.
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
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
        let user = |number: usize| {
            let mut outcome = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let since = Instant::now();
                let served = request(self.entries[(number + outcome.len()) % 2], self.target).is_ok();
                outcome.push(served.then(|| since.elapsed().as_secs_f64() * 1000.0));
                thread::sleep(PAUSE);
            }
            outcome
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..AT_ONCE).map(|number| scope.spawn(move || user(number))).collect();
            all.into_iter().flat_map(|one| one.join().unwrap_or_default()).collect()
        })
    }
}

/// A tunnel to `target` by the SOCKS port `entry`.
pub(super) fn tunnel(entry: SocketAddr, target: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&entry, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
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
    let mut stream = tunnel(entry, target)?;
    stream.write_all(&[ONE])?;
    let mut answer = [0];
    stream.read_exact(&mut answer).context("no answer")?;
    Ok(())
}
