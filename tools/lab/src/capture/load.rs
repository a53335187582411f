//! Streams and datagrams to the target, which counts what it gets.
//!
//! ```text
//!   stream:    direction 1 ('u', 'd') | length 8, big-endian | bytes up, answered by one, or bytes down
//!   datagram:  'b': the count begins anew; 'q': asks for the count (8, big-endian); others are counted
//! ```

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

const BLOCK: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(60);
/// Datagrams between two rests, and the rest: 60,000 a second, which both programs carry.
const BURST: u64 = 60;
const REST: Duration = Duration::from_millis(1);

/// Direction of a stream, seen from the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// Processor time for some units: bytes, or datagrams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) time: Duration,
    pub(super) units: f64,
}

impl Cost {
    pub(super) fn micros(self) -> f64 {
        self.time.as_secs_f64() * 1e6
    }
}

/// The target's ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) streams: SocketAddr,
    pub(super) datagrams: SocketAddr,
}

/// Serves at `ip` for as long as the process lives.
pub(super) fn serve(ip: Ipv4Addr) -> Result<Target> {
    let listener = TcpListener::bind((ip, 0)).context("listen for streams")?;
    let socket = UdpSocket::bind((ip, 0)).context("listen for datagrams")?;
    let target = Target { streams: listener.local_addr()?, datagrams: socket.local_addr()? };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // One that fails is the load's to notice.
            thread::spawn(move || serve_stream(stream).ok());
        }
    });
    thread::spawn(move || count(&socket));
    Ok(target)
}

fn serve_stream(mut stream: TcpStream) -> Result<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let (direction, len) = head.split_at(1);
    let mut left = u64::from_be_bytes(len.try_into()?);
    let mut block = vec![7; BLOCK];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        let moved = if direction == b"d" {
            stream.write(&block[..most])?
        } else {
            stream.read(&mut block[..most])?
        };
        ensure!(moved > 0, "the other side has ended");
        left -= moved as u64;
    }
    stream.write_all(b"!")?;
    Ok(())
}

fn count(socket: &UdpSocket) {
    let (mut block, mut counted) = (vec![0; 65_536], 0_u64);
    while let Ok((len, from)) = socket.recv_from(&mut block) {
        match (len, block[0]) {
            (1, b'b') => counted = 0,
            (1, b'q') => drop(socket.send_to(&counted.to_be_bytes(), from)),
            _ => counted += 1,
        }
    }
}

/// Moves so many bytes, through the SOCKS port `proxy` if there is one. Gives their number.
///
/// # Errors
/// If the stream breaks.
pub(super) fn transfer(
    target: SocketAddr,
    proxy: Option<SocketAddr>,
    direction: Direction,
    len: u64,
) -> Result<f64> {
    let mut stream = match proxy {
        Some(proxy) => socks(proxy, target)?,
        None => TcpStream::connect_timeout(&target, PATIENCE).context("connect to the target")?,
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let word = if direction == Direction::Up { b"u" } else { b"d" };
    stream.write_all(&[&word[..], &len.to_be_bytes()].concat())?;
    let (mut left, mut block) = (len, vec![7; BLOCK]);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        let moved = match direction {
            Direction::Up => stream.write(&block[..most])?,
            Direction::Down => stream.read(&mut block[..most])?,
        };
        ensure!(moved > 0, "the stream ends early");
        left -= moved as u64;
    }
    let mut end = [0];
    stream.read_exact(&mut end).context("the end of the transfer")?;
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    Ok(len as f64)
}

fn socks(proxy: SocketAddr, target: SocketAddr) -> Result<TcpStream> {
    let SocketAddr::V4(to) = target else { bail!("an IPv4 target expected") };
    let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE).context("connect to the SOCKS port")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[5, 1, 0])?;
    let mut choice = [0; 2];
    stream.read_exact(&mut choice)?;
    stream.write_all(&[&[5, 1, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat())?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    ensure!(reply[1] == 0, "the SOCKS port refuses: {}", reply[1]);
    Ok(stream)
}

/// Sends so many datagrams of one length from one socket, and gives the number that arrived.
///
/// # Errors
/// If the target does not tell.
pub(super) fn datagrams(target: &Target, len: usize, number: u64) -> Result<f64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(target.datagrams)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.send(b"b")?;
    thread::sleep(Duration::from_millis(100));
    let datagram = vec![7; len];
    for sent in 0..number {
        // A queue that is full loses it, which the count shows.
        drop(socket.send(&datagram));
        if sent % BURST == BURST - 1 {
            thread::sleep(REST);
        }
    }
    thread::sleep(Duration::from_millis(300));
    let mut counted = [0; 8];
    for _ in 0..5 {
        socket.send(b"q")?;
        if socket.recv(&mut counted).is_ok_and(|len| len == counted.len()) {
            #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
            return Ok(u64::from_be_bytes(counted) as f64);
        }
    }
    bail!("the target does not tell its count")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_meets_its_target() {
        let target = serve(Ipv4Addr::LOCALHOST).unwrap();
        for direction in [Direction::Up, Direction::Down] {
            let moved = transfer(target.streams, None, direction, 3_000_001).unwrap();
            assert!((moved - 3_000_001.0).abs() < 0.5);
        }
        let arrived = datagrams(&target, 100, 600).unwrap();
        assert!((1.0..=600.0).contains(&arrived), "{arrived}");
    }
}
