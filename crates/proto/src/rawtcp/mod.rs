//! Datagrams that look like the segments of one TCP connection, as `tcpraw` has them (versions 1.0 to 1.2.32, under
//! kcptun 20210922 to the last). Everything is big-endian, as in RFC 9293:
//!
//! ```text
//!  0         2         4              8              12  13    14       16         18       20
//!  | from    | to      | sequence     | acknowledged | L | flags| window | checksum | urgent | options | datagram
//!    port      port      of the first   next byte      4   PSH    65535    over the   0        L - 20
//!                        byte           expected       bits ACK            addresses          bytes
//!
//!  options, of newer senders and where the other end has them: 01 01 08 0a | time u32 | time of the peer u32
//! ```
//!
//! - A connection of the system's TCP comes first, so that everybody on the way has seen its handshake; then each datagram
//!   is one segment with PSH and ACK. Nothing is sent again, and there is no window: the numbers only go forward, by the
//!   length of what was sent, and for what was received.
//! - Only segments with PSH carry datagrams. Checksums of received segments are not looked at: where both ends are on one
//!   machine the system does not fill them in, and every cipher above has a check of its own.
//! - Old receivers take over what they are told to have received as their own next number, so that theirs go back at times.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Instant;

use crate::wire::WireError;

/// Bytes of a header without options.
const PLAIN_LEN: usize = 20;

/// Bytes in front of a datagram, at most.
pub const HEADER_LEN: usize = 32;

/// The window that every segment announces.
const WINDOW: u16 = u16::MAX;

const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// One segment that has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSegment {
    /// The sender's port.
    pub from_port: u16,
    /// The receiver's.
    pub to_port: u16,
    /// Number of its first byte.
    seq: u32,
    /// The number that its sender expects.
    ack: u32,
    flags: u8,
    /// The sender's clock, and ours as it was told last.
    times: Option<(u32, u32)>,
    /// Range of its bytes.
    data: Range<usize>,
}

impl RawSegment {
    /// Reads a segment, which is everything behind the header of IP.
    ///
    /// # Errors
    /// [`WireError::Truncated`], and [`WireError::Malformed`] for a header that is shorter than it must be.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Some(head) = bytes.first_chunk::<PLAIN_LEN>() else {
            return Err(WireError::Truncated { what: "tcp header" });
        };
        let [p0, p1, p2, p3, s0, s1, s2, s3, a0, a1, a2, a3, len, flags, ..] = *head;
        let head_len = usize::from(len >> 4) * 4;
        if head_len < PLAIN_LEN {
            return Err(WireError::Malformed { what: "tcp header length", got: u64::from(len >> 4) });
        }
        let Some(options) = bytes.get(PLAIN_LEN..head_len) else {
            return Err(WireError::Truncated { what: "tcp options" });
        };
        Ok(Self {
            from_port: u16::from_be_bytes([p0, p1]),
            to_port: u16::from_be_bytes([p2, p3]),
            seq: u32::from_be_bytes([s0, s1, s2, s3]),
            ack: u32::from_be_bytes([a0, a1, a2, a3]),
            flags,
            times: times(options),
            data: head_len..bytes.len(),
        })
    }

    /// Range of the datagram that it carries, if it carries one.
    pub fn datagram(&self) -> Option<Range<usize>> {
        (self.flags & (PSH | SYN) == PSH && !self.data.is_empty()).then(|| self.data.clone())
    }

    /// Whether it begins a connection.
    pub fn is_request(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    /// Whether it is the server's part of the handshake.
    pub fn is_handshake(&self) -> bool {
        self.flags & (SYN | ACK) == SYN | ACK
    }
}

/// The timestamps among options; what cannot be read ends the search.
fn times(mut options: &[u8]) -> Option<(u32, u32)> {
    loop {
        match *options {
            [1, ref rest @ ..] => options = rest,
            [8, 10, a, b, c, d, e, f, g, h, ..] => {
                return Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
            }
            [2..=u8::MAX, len, ..] if len >= 2 => options = options.get(len.into()..)?,
            _ => return None,
        }
    }
}

/// The addresses of an IPv4 packet, from and to, and where what it carries lies.
///
/// # Errors
/// [`WireError::Truncated`], and [`WireError::Malformed`] where lengths do not agree or it is another version.
pub fn parse_v4(packet: &[u8]) -> Result<(Ipv4Addr, Ipv4Addr, Range<usize>), WireError> {
    let Some(head) = packet.first_chunk::<20>() else {
        return Err(WireError::Truncated { what: "ip header" });
    };
    let [first, _, l0, l1, _, _, _, _, _, _, _, _, f0, f1, f2, f3, t0, t1, t2, t3] = *head;
    let head_len = usize::from(first & 15) * 4;
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    if first >> 4 != 4 || head_len < head.len() || len < head_len {
        return Err(WireError::Malformed { what: "ip header", got: first.into() });
    }
    if packet.len() < len {
        return Err(WireError::Truncated { what: "ip packet" });
    }
    Ok((Ipv4Addr::new(f0, f1, f2, f3), Ipv4Addr::new(t0, t1, t2, t3), head_len..len))
}

/// The numbers of one connection at one end.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Of the next byte that is sent, and of the next that is expected.
    seq: u32,
    ack: u32,
    /// The clock that the other end has been told, as it was at `since`, and its own as told last.
    times: Option<(u32, u32)>,
    since: Instant,
}

impl Flow {
    /// The numbers as the first segment tells them: of the handshake at the end that has begun it, of data at the other.
    pub fn new(first: &RawSegment, now: Instant) -> Self {
        let times = first.times.map(|(theirs, ours)| (ours, theirs));
        let mut flow = Self { seq: first.ack, ack: first.seq, times, since: now };
        flow.handle(first);
        flow
    }

    /// Takes note of a segment of the other end.
    pub fn handle(&mut self, segment: &RawSegment) {
        let virtual_byte = usize::from(segment.flags & SYN != 0);
        let len = u32::try_from(segment.data.len() + virtual_byte).unwrap_or(u32::MAX);
        let end = segment.seq.wrapping_add(len);
        // Something older that has been overtaken, or lost on the way, does not count back.
        if end.wrapping_sub(self.ack).cast_signed() > 0 {
            self.ack = end;
        }
        if let (Some((_, echo)), Some((theirs, _))) = (&mut self.times, segment.times) {
            *echo = theirs;
        }
    }

    /// Writes the header in front of `datagram`, which is at most 65,000 bytes long, and counts it as sent. Returns how
    /// many bytes of `head` it takes.
    ///
    /// `ips` and `ports` are from and to.
    pub fn emit(
        &mut self,
        ips: (IpAddr, IpAddr),
        ports: (u16, u16),
        datagram: &[u8],
        now: Instant,
        head: &mut [u8; HEADER_LEN],
    ) -> usize {
        let len = if self.times.is_some() { HEADER_LEN } else { PLAIN_LEN };
        head[..2].copy_from_slice(&ports.0.to_be_bytes());
        head[2..4].copy_from_slice(&ports.1.to_be_bytes());
        head[4..8].copy_from_slice(&self.seq.to_be_bytes());
        head[8..12].copy_from_slice(&self.ack.to_be_bytes());
        head[12] = u8::try_from(len / 4).expect("a header is short") << 4;
        head[13] = PSH | ACK;
        head[14..16].copy_from_slice(&WINDOW.to_be_bytes());
        head[16..20].fill(0);
        if let Some((ours, theirs)) = self.times {
            let passed = now.saturating_duration_since(self.since).as_millis() & u128::from(u32::MAX);
            let clock = ours.wrapping_add(u32::try_from(passed).expect("masked"));
            head[20..24].copy_from_slice(&[1, 1, 8, 10]);
            head[24..28].copy_from_slice(&clock.to_be_bytes());
            head[28..].copy_from_slice(&theirs.to_be_bytes());
        }
        let sum = checksum(ips, &head[..len], datagram);
        head[16..18].copy_from_slice(&sum.to_be_bytes());
        self.seq = self.seq.wrapping_add(u32::try_from(datagram.len()).unwrap_or(u32::MAX));
        len
    }
}

/// The checksum over addresses, header and data (RFC 9293, 3.1), where the header's own field is 0.
fn checksum(ips: (IpAddr, IpAddr), head: &[u8], data: &[u8]) -> u16 {
    let addresses = match ips {
        (IpAddr::V4(from), IpAddr::V4(to)) => sum(&from.octets()) + sum(&to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => sum(&from.octets()) + sum(&to.octets()),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => 0,
    };
    let len = u64::try_from(head.len() + data.len()).expect("a segment is short");
    let mut total = addresses + 6 + len + sum(head) + sum(data);
    while total > u64::from(u16::MAX) {
        total = (total & u64::from(u16::MAX)) + (total >> 16);
    }
    !u16::try_from(total).expect("folded")
}

/// Sum of the 16-bit numbers in `bytes`, not folded; an odd byte is the upper half of one.
fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

/// Any IPv4 packet: all ranges lie within it, and a flow that has seen it goes on.
#[doc(hidden)]
pub fn fuzz_rawtcp(data: &[u8], now: Instant) {
    let whole = parse_v4(data).map_or(0..data.len(), |(_, _, range)| range);
    let bytes = &data[whole];
    let Ok(segment) = RawSegment::parse(bytes) else { return };
    if let Some(range) = segment.datagram() {
        assert!(!bytes[range].is_empty());
    }
    let mut flow = Flow::new(&segment, now);
    flow.handle(&segment);
    let ips = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into());
    let mut head = [0; HEADER_LEN];
    let len = flow.emit(ips, (1, 2), b"datagram", now, &mut head);
    let mut sent = head[..len].to_vec();
    sent.extend(b"datagram");
    let back = RawSegment::parse(&sent).expect("what is written can be read");
    assert_eq!(&sent[back.datagram().expect("it carries one")], b"datagram");
    assert_eq!(
        (back.seq, back.times.map(|times| times.1)),
        (segment.ack, segment.times.map(|times| times.0))
    );
    assert_eq!(checksum(ips, &sent[..len], b"datagram"), 0, "a right checksum sums up to nothing");
}

#[cfg(test)]
mod tests;
