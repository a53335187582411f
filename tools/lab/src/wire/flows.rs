//! Flows, and what was counted of each: segment sizes, empty acknowledgements, retransmissions, round trips.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::frame::{Packet, Tcp, Transport};
use crate::stats::percentile;

/// Most flows that are kept; packets of further ones are counted together.
pub const MAX_FLOWS: usize = 65_536;
/// Payload lengths that are kept from the start of each direction.
const FIRST: usize = 8;
/// Bytes of the first payload that are kept: a segment of the usual size.
const OPENING: usize = 1460;
/// Round trips that are kept per direction.
const MAX_TRIPS: usize = 1024;
/// Upper ends of the size classes below a full segment, in payload bytes.
pub const CLASSES: [usize; 4] = [127, 511, 1023, usize::MAX];

/// The packets that one side of a flow sent.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Direction {
    /// Packets of all kinds.
    pub packets: u64,
    /// Packets with payload.
    pub data: u64,
    /// Payload bytes, repeated ones included.
    pub bytes: u64,
    /// Segments that carry nothing but an acknowledgement.
    pub empty_acks: u64,
    /// Packets with payload by size: up to 127, 511, 1023 bytes, and more, without the next two.
    pub classes: [u64; 4],
    /// Segments as large as the connection allows.
    pub full: u64,
    /// Captured pieces larger than that: the network card, or the kernel behind it, cuts them or has merged them.
    pub merged: u64,
    /// Segments with bytes that had been seen before.
    pub retransmitted: u64,
    /// Packets that were cut into fragments.
    pub fragments: u64,
    /// Payload lengths of the first packets with payload.
    pub first: Vec<usize>,
    /// Microseconds until the other side acknowledged, as seen here.
    #[serde(skip)]
    pub trips: Vec<f64>,
    /// The first payload, cut to a segment.
    #[serde(skip)]
    pub opening: Vec<u8>,
    /// Sizes of payload by count, for the classes once the size of a full segment is known.
    #[serde(skip)]
    sizes: BTreeMap<usize, u64>,
    #[serde(skip)]
    sent: Option<Sent>,
    #[serde(skip)]
    mss: Option<usize>,
}

/// Progress of a side of a TCP connection in sending.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// One past the highest byte.
    end: u32,
    /// A byte whose acknowledgement is awaited, and when it was sent.
    timed: Option<(u32, Duration)>,
}

/// `a` lies after `b` on the circle of sequence numbers (RFC 9293, section 3.4).
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

impl Direction {
    fn note(&mut self, packet: &Packet<'_>, time: Duration) {
        self.packets += 1;
        self.fragments += u64::from(packet.fragment);
        if packet.len > 0 {
            self.data += 1;
            self.bytes += packet.len as u64;
            *self.sizes.entry(packet.len).or_default() += 1;
            if self.first.len() < FIRST {
                self.first.push(packet.len);
            }
            if self.opening.is_empty() {
                self.opening.extend(&packet.payload[..packet.payload.len().min(OPENING)]);
            }
        }
        if let Transport::Tcp(tcp) = packet.transport {
            self.note_tcp(&tcp, packet.len, time);
        }
    }

    fn note_tcp(&mut self, tcp: &Tcp, len: usize, time: Duration) {
        if tcp.syn {
            self.mss = tcp.mss.map(usize::from);
        } else if tcp.ack && len == 0 && !tcp.fin && !tcp.rst {
            self.empty_acks += 1;
        }
        let length =
            u32::try_from(len).unwrap_or(u32::MAX).wrapping_add(u32::from(tcp.syn) + u32::from(tcp.fin));
        let end = tcp.sequence.wrapping_add(length);
        match &mut self.sent {
            _ if length == 0 => {}
            None => self.sent = Some(Sent { end, timed: Some((end, time)) }),
            Some(sent) if after(end, sent.end) => {
                // A new byte; if an old one comes with it, no time can be told (Karn's rule).
                let repeats = after(sent.end, tcp.sequence);
                self.retransmitted += u64::from(repeats);
                sent.end = end;
                sent.timed = if repeats { None } else { sent.timed.or(Some((end, time))) };
            }
            Some(sent) => {
                self.retransmitted += 1;
                sent.timed = None;
            }
        }
    }

    /// The other side has acknowledged everything before `number`.
    fn acknowledged(&mut self, number: u32, time: Duration) {
        let Some(sent) = &mut self.sent else { return };
        if let Some((end, begin)) = sent.timed
            && !after(end, number)
        {
            sent.timed = None;
            if self.trips.len() < MAX_TRIPS {
                self.trips.push(time.saturating_sub(begin).as_secs_f64() * 1e6);
            }
        }
    }

    /// Fills the classes, once it is known what a full segment is.
    fn classify(&mut self, full: usize) {
        for (&len, &count) in &self.sizes {
            if len == full {
                self.full += count;
            } else if len > full {
                self.merged += count;
            } else if let Some(class) = CLASSES.iter().position(|most| len <= *most) {
                self.classes[class] += count;
            }
        }
    }

    /// Mean payload of the packets that have any.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.data == 0 { 0.0 } else { self.bytes as f64 / self.data as f64 }
    }

    /// A percentile of the round trips in microseconds.
    #[must_use]
    pub fn trip(&self, percent: usize) -> Option<f64> {
        percentile(&self.trips, percent)
    }
}

/// A flow, seen from the side that opened it.
#[derive(Debug, Clone, Serialize)]
pub struct Flow {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// The side that sent the SYN, or was seen first.
    pub client: SocketAddr,
    /// The other one.
    pub server: SocketAddr,
    /// Payload bytes of a full segment: what the two agreed on, less options; for UDP the largest seen.
    pub full_size: usize,
    /// The client's packets.
    pub up: Direction,
    /// The server's packets.
    pub down: Direction,
}

impl Flow {
    fn bytes(&self) -> u64 {
        self.up.bytes + self.down.bytes
    }

    /// Finds the size of a full segment, and by it the class of each packet.
    fn classify(&mut self) {
        self.full_size = full_size(self);
        self.up.classify(self.full_size);
        self.down.classify(self.full_size);
    }
}

/// The size of a full segment: the largest that was seen often enough to be no accident and is no more than what the
/// two ends announced. Options, such as times of 12 bytes, take their part of it.
fn full_size(flow: &Flow) -> usize {
    let announced = flow.up.mss.into_iter().chain(flow.down.mss).min().unwrap_or(usize::MAX);
    let sizes = flow.up.sizes.keys().chain(flow.down.sizes.keys());
    sizes.copied().filter(|len| *len <= announced).max().unwrap_or(0)
}

type Key = (bool, SocketAddr, SocketAddr);

/// All flows of a capture.
#[derive(Debug, Default)]
pub struct Flows {
    flows: BTreeMap<Key, Flow>,
    /// Packets of flows beyond [`MAX_FLOWS`].
    pub beyond: u64,
}

impl Flows {
    /// Counts one packet that was seen at `time`.
    pub fn note(&mut self, packet: &Packet<'_>, time: Duration) {
        let tcp = match packet.transport {
            Transport::Tcp(tcp) => Some(tcp),
            Transport::Udp => None,
        };
        let (low, high) = (packet.from.min(packet.to), packet.from.max(packet.to));
        let key = (tcp.is_some(), low, high);
        if !self.flows.contains_key(&key) && self.flows.len() >= MAX_FLOWS {
            self.beyond += 1;
            return;
        }
        let answers = tcp.is_some_and(|tcp| tcp.syn && tcp.ack);
        let (client, server) = if answers { (packet.to, packet.from) } else { (packet.from, packet.to) };
        let protocol = if tcp.is_some() { "tcp" } else { "udp" };
        let (up, down) = (Direction::default(), Direction::default());
        let flow = self.flows.entry(key).or_insert(Flow { protocol, client, server, full_size: 0, up, down });
        let (own, other) = if packet.from == flow.client {
            (&mut flow.up, &mut flow.down)
        } else {
            (&mut flow.down, &mut flow.up)
        };
        if let Some(tcp) = tcp.filter(|tcp| tcp.ack) {
            other.acknowledged(tcp.acknowledged, time);
        }
        own.note(packet, time);
    }

    /// Flows that were seen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether none was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The finished flows, those with most bytes first.
    #[must_use]
    pub fn finish(self) -> Vec<Flow> {
        let mut flows: Vec<Flow> = self.flows.into_values().collect();
        flows.iter_mut().for_each(Flow::classify);
        flows.sort_by_key(|flow| Reverse(flow.bytes()));
        flows
    }

    /// The `count` flows with most bytes as they are now.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<Flow> {
        let mut all: Vec<&Flow> = self.flows.values().collect();
        all.sort_by_key(|flow| Reverse(flow.bytes()));
        let mut top: Vec<Flow> = all.into_iter().take(count).cloned().collect();
        top.iter_mut().for_each(Flow::classify);
        top
    }

    /// Payload bytes of all flows, repeated ones included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.flows.values().map(Flow::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::segment;
    use crate::frame::{Link, parse};

    const SYN: u8 = 2;
    const ACK: u8 = 16;

    struct Wire {
        flows: Flows,
        time: Duration,
    }

    impl Wire {
        fn see(&mut self, from: u16, to: u16, sequence: u32, acknowledged: u32, flags: u8, len: usize) {
            self.time += Duration::from_millis(1);
            let frame = segment(from, to, sequence, acknowledged, flags, &vec![7; len]);
            self.flows.note(&parse(Link::Ethernet, &frame).unwrap(), self.time);
        }
    }

    #[test]
    fn a_short_connection_is_counted() {
        let mut wire = Wire { flows: Flows::default(), time: Duration::ZERO };
        // Around the end of the sequence numbers.
        let base = u32::MAX - 1000;
        wire.see(443, 40000, 5000, 99, SYN | ACK, 0);
        wire.see(40000, 443, 100, 5001, ACK, 0);
        wire.see(40000, 443, 100, 5001, ACK, 300);
        wire.see(443, 40000, 5001, 400, ACK, 1460);
        wire.see(443, 40000, 6461, 400, ACK, 1460);
        wire.see(40000, 443, 400, 7921, ACK, 0);
        wire.see(443, 40000, 6461, 400, ACK, 1460);
        wire.see(443, 40000, 7921, 400, ACK, 90);
        wire.see(40000, 443, 400, 8011, ACK, 0);
        wire.see(7, 9, base, 0, ACK, 1400);
        wire.see(7, 9, base.wrapping_add(1400), 0, ACK, 1400);
        let flows = wire.flows.finish();
        let flow = &flows[0];
        assert_eq!((flow.client.port(), flow.server.port(), flow.full_size), (40000, 443, 1460));
        assert_eq!((flow.up.data, flow.up.empty_acks, flow.up.bytes), (1, 3, 300));
        assert_eq!((flow.down.data, flow.down.full, flow.down.classes), (4, 3, [1, 0, 0, 0]));
        assert_eq!(flow.down.retransmitted, 1);
        assert_eq!(flow.down.first, [1460, 1460, 1460, 90]);
        // SYN to its answer, and the first of the two full segments; the one sent after a repeat counts again.
        assert_eq!(flow.down.trips, [1000.0, 2000.0, 1000.0]);
        assert_eq!(flow.up.trips, [1000.0]);
        assert_eq!(flows[1].up.retransmitted, 0);
    }

    #[test]
    fn the_busiest_are_shown_while_others_go_on() {
        let mut wire = Wire { flows: Flows::default(), time: Duration::ZERO };
        for (port, len) in [(1001, 100), (1002, 300), (1003, 200)] {
            wire.see(port, 443, 1, 0, ACK, len);
        }
        let ports = |flows: &[Flow]| flows.iter().map(|flow| flow.client.port()).collect::<Vec<_>>();
        assert_eq!(ports(&wire.flows.top(2)), [1002, 1003]);
        wire.see(1001, 443, 101, 0, ACK, 1000);
        let top = wire.flows.top(9);
        assert_eq!(ports(&top), [1001, 1002, 1003]);
        assert_eq!((top[0].full_size, top[0].up.full, top[0].up.classes), (1000, 1, [1, 0, 0, 0]));
        assert_eq!(wire.flows.bytes(), 1600);
        // Looking has changed nothing.
        assert_eq!(wire.flows.finish()[0].up.classes, [1, 0, 0, 0]);
    }

    #[test]
    fn flows_are_bounded() {
        let mut flows = Flows::default();
        for number in 0..=u32::try_from(MAX_FLOWS).unwrap() {
            let (from, to) = (1 + number / 1000, 2000 + number % 1000);
            let frame = segment(u16::try_from(from).unwrap(), u16::try_from(to).unwrap(), 0, 0, SYN, &[]);
            flows.note(&parse(Link::Ethernet, &frame).unwrap(), Duration::ZERO);
        }
        assert_eq!((flows.len(), flows.beyond), (MAX_FLOWS, 1));
    }

    #[test]
    fn pieces_above_a_full_segment_are_named() {
        let sizes = BTreeMap::from([(1460, 3), (2920, 2), (100, 1), (1459, 1)]);
        let mut direction = Direction { sizes, ..Direction::default() };
        direction.classify(1460);
        assert_eq!((direction.full, direction.merged, direction.classes), (3, 2, [1, 0, 0, 1]));
    }
}
