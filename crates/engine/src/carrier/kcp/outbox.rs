use std::net::{IpAddr, SocketAddr};

use adit_net::udp::Outgoing;

/// Datagrams of one turn that wait to be sent, one behind the other.
#[derive(Debug, Default)]
pub(super) struct DatagramOutbox {
    pub(super) block: Vec<u8>,
    pub(super) datagrams: Vec<Outgoing>,
}

impl DatagramOutbox {
    /// The bytes from `start` on are a datagram to an address, from one of ours.
    pub(super) fn push(&mut self, start: usize, to: SocketAddr, from: Option<IpAddr>) {
        let len = self.block.len() - start;
        self.datagrams.push(Outgoing { key: 0, to, from, class: 0, start, len });
    }

    pub(super) fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub(super) fn clear(&mut self) {
        self.block.clear();
        self.datagrams.clear();
    }
}
