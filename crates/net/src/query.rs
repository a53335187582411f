//! One question to a name server by UDP, from a port of its own.

use std::io;
use std::net::SocketAddr;

use adit_model::Egress;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use crate::egress;

/// A socket for one question. The system gives it a random port, which an attacker off the path has to guess, and
/// passes on datagrams of the server alone.
#[derive(Debug)]
pub struct QuerySocket(UdpSocket);

impl QuerySocket {
    /// A socket to `server`.
    ///
    /// # Errors
    /// As socket(2), bind(2) and connect(2).
    pub fn connect(server: SocketAddr, egress: &Egress) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(server), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        egress::apply(&socket, egress)?;
        egress::bind(&socket, egress, server.ip())?;
        socket.connect(&server.into())?;
        Ok(Self(UdpSocket::from_std(socket.into())?))
    }

    /// Sends one message.
    ///
    /// # Errors
    /// As send(2); `ConnectionRefused` when nobody listens there.
    pub async fn send(&self, message: &[u8]) -> io::Result<()> {
        self.0.send(message).await.map(drop)
    }

    /// Receives one message; what does not fit is cut off.
    ///
    /// # Errors
    /// As recv(2).
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buffer).await
    }
}
