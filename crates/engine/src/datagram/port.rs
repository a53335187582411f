//! The clients' side of an engine: a listening socket, or something else that gives and takes datagrams.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use adit_model::Udp;
use adit_net::udp::divert::Led;
use adit_net::udp::{DatagramBatch, Outgoing, Sent, Socket};
use adit_proto::wire::Target;

use super::drops::DropReason;
use super::inbound::Peer;
use super::outbound::set_options;
use super::table::FlowTick;

/// A listener's way to its clients.
pub(crate) enum ClientSide {
    /// A socket that is not on the event loop yet.
    Socket(std::net::UdpSocket),
    /// Something else.
    Port(Box<dyn DatagramPort>),
}

impl From<std::net::UdpSocket> for ClientSide {
    fn from(socket: std::net::UdpSocket) -> Self {
        Self::Socket(socket)
    }
}

impl ClientSide {
    /// Prepares it for the current event loop.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn open(self, udp: &Udp, is_sealed: bool) -> io::Result<Box<dyn DatagramPort>> {
        let socket = match self {
            Self::Port(port) => return Ok(port),
            Self::Socket(socket) => Socket::listening(socket)?,
        };
        if socket.local_addr()?.ip().is_unspecified() {
            socket.report_destination()?;
        }
        set_options(&socket, udp, is_sealed)?;
        Ok(Box::new(socket))
    }
}

/// Gives and takes the datagrams of clients, a batch at a time.
pub(crate) trait DatagramPort {
    /// Receives what waits, as one batch, as [`Socket::poll_receive`] does.
    ///
    /// # Errors
    /// When nothing will come any more.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut DatagramBatch,
        lost: &mut u64,
    ) -> Poll<io::Result<()>>;

    /// Sends datagrams from the block of `batch`, in order and without waiting.
    fn send(&mut self, batch: &mut DatagramBatch, datagrams: &[Outgoing]) -> Sent;

    /// Reads the clients' socket no more: from now on datagrams of `peers` come by `pair`. Gives the streams behind it.
    ///
    /// # Errors
    /// The system's error, and `Unsupported` where there is no socket.
    fn pass_on(&mut self, pair: OwnedFd, peers: &[SocketAddr]) -> io::Result<Vec<Led>> {
        let _ = (pair, peers);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The clients of processes before this one, and those that the engine does not know of.
    fn earlier_peers(&self) -> HashSet<SocketAddr> {
        HashSet::new()
    }

    /// Learns which of them are gone; the number of those that are left.
    fn follow_earlier(&mut self) -> usize {
        0
    }

    /// Tells the process that reads the socket which clients there are.
    fn keep_peers(&mut self, current: HashSet<SocketAddr>) {
        drop(current);
    }

    /// Notes the traffic class of each datagram from now on, where it does not anyway.
    ///
    /// # Errors
    /// The system's error.
    fn report_class(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The address that clients send to, where it is one.
    fn bound(&self) -> Option<SocketAddr> {
        None
    }

    /// A second has passed.
    fn tick(&mut self, now: FlowTick) {
        let _ = now;
    }

    /// A datagram of `peer` for `target` goes nowhere.
    fn refuse(&mut self, peer: Peer, target: &Target, reason: &DropReason) {
        let _ = (peer, target, reason);
    }
}

impl DatagramPort for Socket {
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut DatagramBatch,
        lost: &mut u64,
    ) -> Poll<io::Result<()>> {
        Self::poll_receive(self, cx, batch, lost)
    }

    fn send(&mut self, batch: &mut DatagramBatch, datagrams: &[Outgoing]) -> Sent {
        Self::send(self, batch, datagrams)
    }

    fn pass_on(&mut self, pair: OwnedFd, peers: &[SocketAddr]) -> io::Result<Vec<Led>> {
        Self::pass_on(self, pair, peers).map(|()| Vec::new())
    }

    fn earlier_peers(&self) -> HashSet<SocketAddr> {
        Self::earlier_peers(self)
    }

    fn follow_earlier(&mut self) -> usize {
        Self::follow_earlier(self)
    }

    fn keep_peers(&mut self, current: HashSet<SocketAddr>) {
        Self::keep_peers(self, current);
    }

    fn report_class(&mut self) -> io::Result<()> {
        Self::report_class(self)
    }

    fn bound(&self) -> Option<SocketAddr> {
        self.local_addr().ok()
    }
}
