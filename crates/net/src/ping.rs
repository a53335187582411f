//! Questions for an echo (ICMP), asked by a socket of the system's: it takes no right but `net.ipv4.ping_group_range`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use adit_model::Egress;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;

use crate::egress;

/// A socket for questions to one host. The kernel gives them a number of its own.
#[derive(Debug)]
pub struct PingSocket(UdpSocket);

impl PingSocket {
    /// Opens one for questions to `to`, on the current event loop, with the mark of the process.
    ///
    /// # Errors
    /// `PermissionDenied` for a group outside `net.ipv4.ping_group_range`; as connect(2).
    pub fn connect(to: IpAddr) -> io::Result<Self> {
        let (domain, protocol) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
        socket.set_nonblocking(true)?;
        egress::apply(&socket, &Egress::default())?;
        socket.connect(&SocketAddr::new(to, 0).into())?;
        UdpSocket::from_std(socket.into()).map(Self)
    }

    /// Sends an ICMP message without waiting; number and checksum are the kernel's.
    ///
    /// # Errors
    /// The system's error: the message is lost.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        SockRef::from(&self.0).send(message).map(drop)
    }

    /// Receives the next ICMP message, without the header of IP.
    ///
    /// # Errors
    /// The system's error, among them what routers say of the host.
    pub async fn recv(&self, message: &mut [u8]) -> io::Result<usize> {
        self.0.recv(message).await
    }
}
