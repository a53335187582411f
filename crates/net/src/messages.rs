//! Sockets for control protocols of one datagram a message, over UDP or a unix socket.
//!
//! Nothing here waits for a slow reader: a message that the system does not take at once is lost, as datagrams are.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use adit_model::AddressFamilies;
use adit_proto::wire::{Host, Target};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;

use crate::resolve::{SystemResolver, lookup};

/// Only the owner may send to a socket file, since its messages are orders.
const MODE: u32 = 0o600;

/// A socket that takes messages and answers them.
#[derive(Debug)]
pub struct MessageSocket {
    kind: Kind,
    _file: Option<SocketFile>,
}

#[derive(Debug)]
enum Kind {
    Udp(tokio::net::UdpSocket),
    /// The runtime's form of the socket, and the one that knows every kind of address.
    Unix(tokio::net::UnixDatagram, UnixDatagram),
}

/// The sender of a message.
#[derive(Debug)]
pub enum Sender {
    /// A port.
    Udp(SocketAddr),
    /// A unix socket, which may have no name to answer to.
    Unix(UnixAddr),
}

/// The file of a unix socket, removed when dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        drop(fs::remove_file(&self.0));
    }
}

impl MessageSocket {
    /// Takes messages on a port. Call it on an event loop.
    ///
    /// # Errors
    /// As bind(2).
    pub fn bind_udp(addr: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(addr)?;
        socket.set_nonblocking(true)?;
        Ok(Self { kind: Kind::Udp(tokio::net::UdpSocket::from_std(socket)?), _file: None })
    }

    /// Takes messages at `path`, from the same user alone. A socket file that nobody listens on is replaced, any
    /// other file is left alone. Call it on an event loop.
    ///
    /// # Errors
    /// As bind(2), and `AddrInUse` when another process listens there.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        make_way(path)?;
        // Linux gives the file the mode of the socket: there is no moment in which others may send.
        let file = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::DGRAM, None)?));
        file.set_permissions(Permissions::from_mode(MODE)).ok();
        let socket = Socket::from(OwnedFd::from(file));
        socket.bind(&SockAddr::unix(path)?)?;
        let file = SocketFile(std::path::absolute(path)?);
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        let socket = UnixDatagram::from(OwnedFd::from(socket));
        socket.set_nonblocking(true)?;
        let events = tokio::net::UnixDatagram::from_std(socket.try_clone()?)?;
        Ok(Self { kind: Kind::Unix(events, socket), _file: Some(file) })
    }

    /// The port that messages come to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Udp(socket) => socket.local_addr().ok(),
            Kind::Unix(..) => None,
        }
    }

    /// The next message; of one longer than `buffer` the rest is lost.
    ///
    /// # Errors
    /// As recvfrom(2).
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Sender)> {
        match &self.kind {
            Kind::Udp(socket) => {
                let (len, from) = socket.recv_from(buffer).await?;
                Ok((len, Sender::Udp(from)))
            }
            Kind::Unix(events, socket) => {
                let receive = || socket.recv_from(buffer);
                let (len, from) = events.async_io(Interest::READABLE, receive).await?;
                Ok((len, Sender::Unix(from)))
            }
        }
    }

    /// Answers a message.
    ///
    /// # Errors
    /// As sendto(2), `WouldBlock` included; `NotFound` for a sender without a name.
    pub fn answer(&self, message: &[u8], to: &Sender) -> io::Result<()> {
        let sent = match (&self.kind, to) {
            (Kind::Udp(socket), Sender::Udp(to)) => socket.try_send_to(message, *to)?,
            (Kind::Unix(_, socket), Sender::Unix(to)) if !to.is_unnamed() => {
                socket.send_to_addr(message, to)?
            }
            (Kind::Udp(_) | Kind::Unix(..), _) => return Err(io::ErrorKind::NotFound.into()),
        };
        if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Sends messages to one place, from a socket without a name.
#[derive(Debug)]
pub enum MessageSender {
    /// To a port; the name is looked up each time.
    Udp(Target),
    /// To a unix socket.
    Unix(PathBuf),
}

impl MessageSender {
    /// Sends one message.
    ///
    /// # Errors
    /// When nobody listens there, the name has no address, or there is no room at the other end.
    pub async fn send(&self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.send_to(message, path)?;
            }
            Self::Udp(target) => {
                let to = SocketAddr::new(address(target).await?, target.port);
                let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket.send_to(message, to)?;
            }
        }
        Ok(())
    }
}

/// The first address of a target's host.
async fn address(target: &Target) -> io::Result<std::net::IpAddr> {
    match &target.host {
        Host::Ip(ip) => Ok(*ip),
        Host::Name(name) => {
            let found = lookup(&SystemResolver, name, AddressFamilies::PreferV4).await;
            found.map_err(io::Error::other)?.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }
}

/// The address that `target` names on this machine, to take messages on.
///
/// # Errors
/// When the name has none.
pub async fn resolve(target: &Target) -> io::Result<SocketAddr> {
    Ok(SocketAddr::new(address(target).await?, target.port))
}

fn make_way(path: &Path) -> io::Result<()> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_heard = || UnixDatagram::unbound().and_then(|socket| socket.connect(path)).is_ok();
    if !meta.file_type().is_socket() || is_heard() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use crate::rt::Cores;

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("adit-messages-{}-{name}", std::process::id()))
    }

    #[test]
    fn unix_messages_and_answers() {
        let (at, own) = (path("a"), path("b"));
        Cores::block_on(async {
            let socket = MessageSocket::bind_unix(&at).unwrap();
            assert_eq!(fs::metadata(&at).unwrap().permissions().mode() & 0o777, MODE);
            let again = MessageSocket::bind_unix(&at).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
            let client = UnixDatagram::bind(&own).unwrap();
            client.send_to(b"ping", &at).unwrap();
            let mut buffer = [0; 16];
            let (len, from) = socket.receive(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..len], b"ping");
            socket.answer(b"pong", &from).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 4);
            MessageSender::Unix(at.clone()).send(b"stat").await.unwrap();
            let (len, from) = socket.receive(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..len], b"stat");
            assert_eq!(socket.answer(b"x", &from).unwrap_err().kind(), io::ErrorKind::NotFound);
        })
        .unwrap();
        assert!(!at.exists(), "removed when dropped");
        fs::remove_file(&own).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let at = path("c");
        fs::write(&at, "precious").unwrap();
        Cores::block_on(async { assert!(MessageSocket::bind_unix(&at).is_err()) }).unwrap();
        assert_eq!(fs::read_to_string(&at).unwrap(), "precious");
        fs::remove_file(&at).unwrap();
        drop(UnixDatagram::bind(&at).unwrap());
        Cores::block_on(async { MessageSocket::bind_unix(&at).unwrap() }).map(drop).unwrap();
        assert!(!at.exists(), "a socket that nobody listens on is replaced");
    }

    #[test]
    fn udp_messages_and_answers() {
        Cores::block_on(async {
            let socket = MessageSocket::bind_udp("127.0.0.1:0".parse().unwrap()).unwrap();
            let at = socket.local_addr().unwrap();
            let host = Host::Ip(at.ip());
            MessageSender::Udp(Target { host, port: at.port() }).send(b"stat").await.unwrap();
            let mut buffer = [0; 16];
            let (len, from) = socket.receive(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..len], b"stat");
            socket.answer(b"x", &from).unwrap();
        })
        .unwrap();
    }
}
