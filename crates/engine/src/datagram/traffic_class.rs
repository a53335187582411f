//! The traffic class and length of outgoing datagrams.

use std::net::SocketAddr;

use adit_model::Udp;

/// The bits of congestion in a traffic class (RFC 3168, section 5).
const ECN: u8 = 0b11;
/// Headers of IP, without options, and UDP.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;

/// The marks of outgoing datagrams, and their greatest length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks {
    /// Bits of a datagram's class that are carried on.
    carried: u8,
    /// The class of sealed datagrams, without the marks of congestion.
    sealed: u8,
    mtu: Option<u16>,
}

impl Marks {
    /// As the configuration says.
    pub(crate) fn new(udp: &Udp) -> Self {
        Self { carried: if udp.ecn { ECN } else { 0 }, sealed: udp.dscp << 2, mtu: udp.mtu }
    }

    /// The class for what came in a datagram of `class`; 0 for the socket's own.
    ///
    /// A relay ends one IP path and begins another. Marks of congestion go on as they came, so that one set on either
    /// path reaches the receiver, which is what RFC 6040 asks of a tunnel.
    pub(crate) fn class(&self, class: u8, is_sealed: bool) -> u8 {
        let service = if is_sealed { self.sealed } else { 0 };
        service | class & self.carried
    }

    /// Whether a sealed datagram of `len` bytes is longer than the configured path takes.
    pub(crate) fn is_too_long(&self, len: usize, to: SocketAddr) -> bool {
        self.largest(to).is_some_and(|most| len > most)
    }

    /// The longest sealed datagram, where that is configured.
    pub(crate) fn largest(&self, to: SocketAddr) -> Option<usize> {
        let headers = if to.is_ipv6() { HEADERS_V6 } else { HEADERS_V4 };
        self.mtu.map(|mtu| usize::from(mtu).saturating_sub(headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_lengths() {
        let plain = Marks::new(&Udp::default());
        assert_eq!((plain.class(0xff, true), plain.class(0xff, false)), (0, 0));
        let to: SocketAddr = "192.0.2.1:1".parse().unwrap();
        assert!(!plain.is_too_long(65_535, to));
        let udp = Udp { ecn: true, dscp: 46, mtu: Some(1400), ..Udp::default() };
        let marks = Marks::new(&udp);
        assert_eq!((marks.class(0b1010_1011, true), marks.class(0b1010_1010, false)), (0b1011_1011, 0b10));
        assert!(!marks.is_too_long(1372, to) && marks.is_too_long(1373, to));
        let to: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
        assert!(!marks.is_too_long(1352, to) && marks.is_too_long(1353, to));
    }
}
