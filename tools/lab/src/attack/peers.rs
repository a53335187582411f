//! The attackers. None of them has a key, but for the readers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use super::site::Client;
use super::users::tunnel;
use crate::random::Random;

/// Longest wait for a connection or a datagram.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections, and datagrams, between two short rests: others on the machine want to work too.
pub(super) const BATCH: usize = 50;
pub(super) const REST: Duration = Duration::from_millis(10);

/// An address of this machine that nobody else uses.
fn source(random: &mut Random) -> SocketAddr {
    let [a, b, c, ..] = random.next_u64().to_le_bytes();
    (Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254)), 0).into()
}

/// Random bytes.
pub(crate) fn garbage(random: &mut Random, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| random.next_u64().to_le_bytes()).flatten().take(len).collect()
}

/// A connection to `server` from an address of its own.
pub(crate) fn connect(random: &mut Random, server: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&source(random).into())?;
    socket.connect_timeout(&server.into(), PATIENCE).context("connect to the server")?;
    Ok(socket.into())
}

/// Connects `count` times to `servers` in turn, sends `len` random bytes, and holds the last `held` connections.
pub(super) fn crowd(
    servers: &[SocketAddr],
    count: usize,
    len: usize,
    held: usize,
) -> Result<VecDeque<TcpStream>> {
    let mut random = Random::new(u64::from(std::process::id()));
    let mut streams = VecDeque::new();
    for number in 0..count {
        if number % BATCH == 0 {
            thread::sleep(REST);
        }
        let mut stream = connect(&mut random, servers[number % servers.len()])?;
        // It may have had to make room already.
        stream.write_all(&garbage(&mut random, len)).ok();
        streams.push_back(stream);
        if streams.len() > held {
            streams.pop_front();
        }
    }
    Ok(streams)
}

/// Connects `count` times to two HTTP servers in turn: every other connection begins a request that it does not end. Holds
/// the last `held`.
pub(super) fn halves(servers: [SocketAddr; 2], count: usize, held: usize) -> Result<VecDeque<TcpStream>> {
    let mut random = Random::new(u64::from(std::process::id()));
    let mut streams = VecDeque::new();
    for number in 0..count {
        if number % BATCH == 0 {
            thread::sleep(REST);
        }
        let mut stream = connect(&mut random, servers[number % 2])?;
        if number % 4 < 2 {
            // It may have had to make room already.
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n").ok();
        }
        streams.push_back(stream);
        if streams.len() > held {
            streams.pop_front();
        }
    }
    Ok(streams)
}

/// Asks an HTTP server for a short answer.
pub(super) fn ask(server: SocketAddr, path: &str) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the HTTP port")?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "the HTTP port says: {answer:?}");
    Ok(())
}

/// Connections to `target` by the SOCKS port `entry`, with a wish that the target gets. Nobody reads the answers.
pub(super) fn users(
    entry: SocketAddr,
    target: SocketAddr,
    count: usize,
    wish: Option<u8>,
) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for number in 0..count {
        if number % BATCH == 0 {
            thread::sleep(REST);
        }
        // One that is refused has failed to do harm.
        let Ok(mut stream) = tunnel(entry, target) else { continue };
        stream.write_all(wish.as_slice()).ok();
        streams.push(stream);
    }
    Ok(streams)
}

/// The first datagram that a Shadowsocks client sends.
pub(super) fn record_shadowsocks(client: &Client, recorder: &UdpSocket) -> Result<Vec<u8>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.send_to(b"x", client.tunnel)?;
    receive(recorder)
}

/// The first datagram that a KCP client sends.
pub(super) fn record_kcp(client: &Client, target: SocketAddr, recorder: &UdpSocket) -> Result<Vec<u8>> {
    let entry = client.kcp;
    // Its request is never answered.
    thread::spawn(move || tunnel(entry, target).and_then(|mut stream| Ok(stream.write_all(b"x")?)).ok());
    receive(recorder)
}

fn receive(recorder: &UdpSocket) -> Result<Vec<u8>> {
    recorder.set_read_timeout(Some(PATIENCE))?;
    let mut datagram = vec![0; 2048];
    let (len, _) = recorder.recv_from(&mut datagram).context("record a datagram")?;
    datagram.truncate(len);
    Ok(datagram)
}

/// Sends a recorded datagram again, each time from an address and a port of its own.
pub(super) fn replay(datagram: &[u8], server: SocketAddr, count: usize) -> Result<()> {
    let mut random = Random::new(u64::from(std::process::id()));
    for number in 0..count {
        if number % BATCH == 0 {
            thread::sleep(REST);
        }
        let socket = UdpSocket::bind(source(&mut random))?;
        // A full queue of the server drops it.
        socket.send_to(datagram, server).ok();
    }
    Ok(())
}
