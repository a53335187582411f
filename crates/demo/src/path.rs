//! The way of the load to its target through a proxy.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use adit_sys::rate::unpace_local;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

/// The protocol by which the load generator enters a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// A SOCKS5 server without authentication.
    Socks5,
    /// A plain port that leads to the fixed target.
    Tunnel,
    /// A Shadowsocks server, to which the lab itself sends datagrams.
    Shadowsocks,
}

/// The way to the target through a subject.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Address to connect to.
    pub address: SocketAddr,
    /// The protocol that listens there.
    pub entry: Entry,
    /// Target that it must lead to.
    pub target: SocketAddr,
}

impl Path {
    /// Connects through the subject. Every wait on the connection is bounded by `patience`.
    ///
    /// # Errors
    /// If the connection or the SOCKS5 request is refused.
    pub fn dial(&self, patience: Duration) -> io::Result<TcpStream> {
        let connect = || -> io::Result<TcpStream> {
            let socket = stream_socket(self.address)?;
            socket.connect_timeout(&self.address.into(), patience)?;
            Ok(socket.into())
        };
        self.enter(connect().map_err(|error| during("connect to the subject", &error))?, patience)
    }

    /// Takes a connection to the address through the subject. Every wait on it is bounded by `patience`.
    ///
    /// # Errors
    /// If the SOCKS5 request is refused.
    pub fn enter(&self, mut stream: TcpStream, patience: Duration) -> io::Result<TcpStream> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        match self.entry {
            Entry::Socks5 => {
                socks5(&mut stream, CONNECT, self.target).map_err(|error| during("SOCKS5", &error))?;
            }
            Entry::Tunnel => {}
            Entry::Shadowsocks => return Err(io::Error::other("streams do not enter a server")),
        }
        Ok(stream)
    }
}

/// Says at which step `error` came. Its kind stays; a wait that took too long calls itself "temporarily unavailable".
#[must_use]
pub fn during(step: &str, error: &io::Error) -> io::Error {
    let kind = error.kind();
    if matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        io::Error::new(kind, format!("{step}: no answer in time"))
    } else {
        io::Error::new(kind, format!("{step}: {error}"))
    }
}

/// A socket for connections to or at `address`. On loopback it is not paced: neither the lab nor a floor is to be what
/// limits a subject.
///
/// # Errors
/// As socket(2).
pub fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    unpace_local(&socket, address.ip()).ok();
    Ok(socket)
}

/// The command of SOCKS5 for a stream.
pub const CONNECT: u8 = 1;
/// The command for datagrams.
pub const UDP_ASSOCIATE: u8 = 3;

/// A request without authentication (RFC 1928, sections 3, 4 and 6); gives the address in the answer.
///
/// # Errors
/// If the server refuses, or the target is of IPv6.
pub fn socks5(stream: &mut TcpStream, command: u8, target: SocketAddr) -> io::Result<SocketAddr> {
    stream.write_all(&[5, 1, 0])?;
    let mut choice = [0; 2];
    stream.read_exact(&mut choice)?;
    if choice != [5, 0] {
        return Err(io::Error::other(format!("unexpected SOCKS5 method: {choice:?}")));
    }
    let SocketAddr::V4(target) = target else {
        return Err(io::Error::other("target is not IPv4"));
    };
    let mut request = [5, command, 0, 1, 0, 0, 0, 0, 0, 0];
    request[4..8].copy_from_slice(&target.ip().octets());
    request[8..].copy_from_slice(&target.port().to_be_bytes());
    stream.write_all(&request)?;
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    if head[..2] != [5, 0] {
        return Err(io::Error::other(format!("SOCKS5 request refused: code {}", head[1])));
    }
    let mut port = [0; 2];
    let ip = match head[3] {
        1 => {
            let mut ip = [0; 4];
            stream.read_exact(&mut ip)?;
            IpAddr::from(ip)
        }
        4 => {
            let mut ip = [0; 16];
            stream.read_exact(&mut ip)?;
            IpAddr::from(ip).to_canonical()
        }
        other => return Err(io::Error::other(format!("unexpected SOCKS5 address type: {other}"))),
    };
    stream.read_exact(&mut port)?;
    Ok(SocketAddr::new(ip, u16::from_be_bytes(port)))
}
