//! First flights recorded from real connections, to be sent again.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::frame::{Packet, Transport};

/// Most bytes that are kept of each direction.
pub const MOST: usize = 16 * 1024;
/// Most connections of which something is kept.
const CONNECTIONS: usize = 256;

/// The start of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flight {
    /// Bytes that the client sent before the server answered.
    pub up: Vec<u8>,
    /// The server's first answer.
    pub down: Vec<u8>,
}

/// Gathers the first flights of the connections of one server from the packets of a capture.
#[derive(Debug)]
pub struct Gathering {
    server: SocketAddr,
    flights: BTreeMap<SocketAddr, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    flight: Flight,
    /// The sequence numbers that come next; none before a direction's first segment.
    up: Option<u32>,
    down: Option<u32>,
}

impl Gathering {
    /// For connections to `server`.
    #[must_use]
    pub fn new(server: SocketAddr) -> Self {
        Self { server, flights: BTreeMap::new() }
    }

    /// Looks at one packet. A packet that repeats bytes or follows a gap is left out.
    pub fn note(&mut self, packet: &Packet<'_>) {
        let Transport::Tcp(tcp) = packet.transport else { return };
        let is_up = packet.to == self.server;
        if !is_up && packet.from != self.server {
            return;
        }
        let client = if is_up { packet.from } else { packet.to };
        if !self.flights.contains_key(&client) && self.flights.len() >= CONNECTIONS {
            return;
        }
        let Seen { flight, up, down } = self.flights.entry(client).or_default();
        let answered = !flight.down.is_empty();
        let (next, kept) = if is_up { (up, &mut flight.up) } else { (down, &mut flight.down) };
        if tcp.syn {
            *next = Some(tcp.sequence.wrapping_add(1));
        }
        let expected = *next.get_or_insert(tcp.sequence);
        let is_whole = packet.payload.len() == packet.len;
        if tcp.syn || packet.len == 0 || expected != tcp.sequence || !is_whole || (is_up && answered) {
            return;
        }
        *next = Some(expected.wrapping_add(u32::try_from(packet.len).unwrap_or(0)));
        let room = MOST - kept.len();
        kept.extend(&packet.payload[..packet.payload.len().min(room)]);
    }

    /// The flights in which the client sent something.
    #[must_use]
    pub fn finish(self) -> Vec<Flight> {
        self.flights.into_values().map(|seen| seen.flight).filter(|flight| !flight.up.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::segment;
    use crate::frame::{Link, parse};

    #[test]
    fn first_flights_are_put_together() {
        let mut gathering = Gathering::new("10.0.0.2:443".parse().unwrap());
        let segments: [(u16, u16, u32, u8, &[u8]); 9] = [
            (40000, 443, u32::MAX - 1, 2, b""),
            (443, 40000, 500, 0x12, b""),
            (40000, 443, u32::MAX, 16, b"sal"),
            (40000, 443, u32::MAX, 16, b"sal"),
            (40000, 443, 2, 16, b"t, request"),
            (443, 40000, 501, 16, b"answer"),
            (40000, 443, 12, 16, b"later"),
            (443, 40000, 507, 16, b", more"),
            // After a gap.
            (443, 40000, 600, 16, b"lost"),
        ];
        for (from, to, sequence, flags, payload) in segments {
            let frame = segment(from, to, sequence, 0, flags, payload);
            gathering.note(&parse(Link::Ethernet, &frame).unwrap());
        }
        let other = segment(40000, 80, 1, 0, 16, b"not this server");
        gathering.note(&parse(Link::Ethernet, &other).unwrap());
        let expected = Flight { up: b"salt, request".to_vec(), down: b"answer, more".to_vec() };
        assert_eq!(gathering.finish(), [expected]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut gathering = Gathering::new("10.0.0.2:443".parse().unwrap());
        let mut sequence = 0;
        for _ in 0..20 {
            let frame = segment(40000, 443, sequence, 0, 16, &[7; 1000]);
            gathering.note(&parse(Link::Ethernet, &frame).unwrap());
            sequence += 1000;
        }
        for client in 1000..2000 {
            let frame = segment(client, 443, 0, 0, 16, b"x");
            gathering.note(&parse(Link::Ethernet, &frame).unwrap());
        }
        let flights = gathering.finish();
        assert_eq!(flights.len(), CONNECTIONS);
        assert_eq!(flights.iter().map(|flight| flight.up.len()).max(), Some(MOST));
    }
}
