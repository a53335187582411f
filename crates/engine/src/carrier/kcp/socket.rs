//! The sockets that carry datagrams, or streams that carry packets in their place.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use adit_net::udp::divert::Led;
use adit_net::udp::{DatagramBatch, Outgoing, RawSocket, Sent, Socket};

use super::hub::Hub;

/// A socket whose datagrams go by UDP, or look like segments of TCP.
#[derive(Debug)]
pub(crate) enum CarrierSocket {
    Udp(Socket),
    Tcp(RawSocket),
    /// No socket: packets come and go by streams.
    Streams(Arc<Hub>),
}

impl CarrierSocket {
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Udp(udp) => udp.local_addr(),
            Self::Tcp(tcp) => Ok(tcp.local_addr()),
            Self::Streams(_) => Ok((Ipv4Addr::LOCALHOST, 0).into()),
        }
    }

    /// Answers are to come from where questions went to.
    pub(super) fn report_destination(&self) -> io::Result<()> {
        match self {
            Self::Udp(udp) => udp.report_destination(),
            // It does so by itself.
            Self::Tcp(_) | Self::Streams(_) => Ok(()),
        }
    }

    /// Reads the socket no more: datagrams of `peers` come by `pair`.
    pub(super) fn pass_on(&self, pair: OwnedFd, peers: &[SocketAddr]) -> io::Result<Vec<Led>> {
        match self {
            Self::Udp(udp) => udp.pass_on(pair, peers).map(|()| Vec::new()),
            Self::Tcp(_) | Self::Streams(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Learns which clients of processes before this one are gone; those that are left.
    pub(super) fn earlier_peers(&self) -> HashSet<SocketAddr> {
        match self {
            Self::Udp(udp) => {
                udp.follow_earlier();
                udp.earlier_peers()
            }
            Self::Tcp(_) | Self::Streams(_) => HashSet::new(),
        }
    }

    /// Tells the process that reads the socket which clients there are.
    pub(super) fn keep_peers(&self, current: HashSet<SocketAddr>) {
        if let Self::Udp(udp) = self {
            udp.keep_peers(current);
        }
    }

    pub(super) fn set_buffers(&self, len: usize) -> io::Result<()> {
        match self {
            Self::Udp(udp) => udp.set_buffers(len),
            Self::Tcp(tcp) => tcp.set_buffers(len),
            Self::Streams(_) => Ok(()),
        }
    }

    pub(super) fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        match self {
            Self::Udp(udp) => udp.set_traffic_class(class),
            Self::Tcp(tcp) => tcp.set_traffic_class(class),
            Self::Streams(_) => Ok(()),
        }
    }

    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: &mut DatagramBatch,
        lost: &mut u64,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Udp(udp) => udp.poll_receive(cx, batch, lost),
            Self::Tcp(tcp) => tcp.poll_receive(cx, batch, lost),
            // It has a way of its own, without a batch.
            Self::Streams(_) => Poll::Pending,
        }
    }

    pub(super) fn send_from(&self, batch: &mut DatagramBatch, block: &[u8], datagrams: &[Outgoing]) -> Sent {
        match self {
            Self::Udp(udp) => udp.send_from(batch, block, datagrams),
            Self::Tcp(tcp) => tcp.send_from(batch, block, datagrams),
            Self::Streams(hub) => hub.send(block, datagrams),
        }
    }
}
