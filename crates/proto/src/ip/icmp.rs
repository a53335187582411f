//! Messages of ICMP: echoes that are answered, and refusals.

use super::{ICMP, ICMP_V6, IpHeader, Meta, V6_LEN, checksum, emit};

/// Bytes in front of a quoted packet.
const HEADER_LEN: usize = 8;
/// Most bytes of a quoted packet: enough for its headers and the start of its data, so that the answer is never larger than
/// 576 bytes (RFC 1812, 4.3.2.3).
const MAX_QUOTE: usize = 528;
/// Most bytes of an answer.
pub const MAX_LEN: usize = V6_LEN + HEADER_LEN + MAX_QUOTE;

/// Why a packet goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nobody takes it at this port.
    Port,
    /// There is no way to its destination.
    Host,
}

/// Whether the packet is a question for an echo.
pub fn is_echo(packet: &[u8], header: &IpHeader) -> bool {
    let kind = packet.get(header.payload.clone()).and_then(<[u8]>::first_chunk::<HEADER_LEN>);
    let wanted = match header.protocol {
        ICMP if !header.is_v6() => 8,
        ICMP_V6 if header.is_v6() => 128,
        _ => return false,
    };
    !header.is_fragment && kind.is_some_and(|head| head[0] == wanted && head[1] == 0)
}

/// Makes the answer to a question for an echo out of it, in place; false if it is none. The checksum is summed anew.
pub fn answer_echo(packet: &mut [u8], header: &IpHeader) -> bool {
    if !is_echo(packet, header) {
        return false;
    }
    let start = header.payload.start;
    let to = std::net::SocketAddr::new(header.source, 0);
    let from = std::net::SocketAddr::new(header.destination, 0);
    if super::readdress(packet, header, from, to).is_err() {
        return false;
    }
    let Some(message) = packet.get_mut(header.payload.clone()) else { return false };
    message[0] = if header.is_v6() { 129 } else { 0 };
    message[2..4].copy_from_slice(&[0, 0]);
    let sum = checksum::finish(pseudo(header, header.payload.len()) + checksum::sum(message));
    packet[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
    true
}

/// The number of a question for an echo, by which its asker knows the answer; `None` for other messages.
pub fn echo_number(packet: &[u8], header: &IpHeader) -> Option<u16> {
    let head = packet.get(header.payload.clone())?.first_chunk::<HEADER_LEN>()?;
    is_echo(packet, header).then_some(u16::from_be_bytes([head[4], head[5]]))
}

/// Writes a packet of `from` for `to` into `out`: the answer to a question for an echo that was asked with `number`. Of
/// `answer`, an ICMP message, all is taken but its number and its checksum. Returns the packet's length; `None` if it is no
/// such answer, the families differ or `out` is too short.
pub fn emit_echo_answer(
    out: &mut [u8],
    (from, to): (std::net::IpAddr, std::net::IpAddr),
    number: u16,
    answer: &[u8],
) -> Option<usize> {
    let (protocol, kind) = if from.is_ipv6() { (ICMP_V6, 129) } else { (ICMP, 0) };
    let head = answer.first_chunk::<HEADER_LEN>()?;
    if head[0] != kind || head[1] != 0 {
        return None;
    }
    let ip_len = emit(out, from, to, Meta { protocol, class: 0, id: 0 }, answer.len())?;
    let message = out.get_mut(ip_len..ip_len + answer.len())?;
    message.copy_from_slice(answer);
    message[2..4].copy_from_slice(&[0, 0]);
    message[4..6].copy_from_slice(&number.to_be_bytes());
    let pseudo = if from.is_ipv6() { checksum::pseudo(from, to, ICMP_V6, message.len()) } else { 0 };
    let sum = checksum::finish(pseudo + checksum::sum(message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(ip_len + answer.len())
}

/// The part of the sum that ICMPv6 has of its pseudo header. It is the same in both directions.
fn pseudo(header: &IpHeader, len: usize) -> u32 {
    if header.is_v6() { checksum::pseudo(header.source, header.destination, ICMP_V6, len) } else { 0 }
}

/// Whether the checksum of the message in `packet` is right.
pub fn is_intact(packet: &[u8], header: &IpHeader) -> bool {
    let bytes = packet.get(header.payload.clone()).unwrap_or_default();
    checksum::finish(pseudo(header, bytes.len()) + checksum::sum(bytes)) == 0
}

/// Writes the packet that tells the sender of `packet` that it went no further, in the name of its receiver, and returns its
/// length. `None` where RFC 1122 (3.2.2) forbids an answer: to messages of ICMP that are no questions, to later fragments,
/// and if one of the ends is no single host; and if `out` is shorter than [`MAX_LEN`].
pub fn unreachable(out: &mut [u8], packet: &[u8], header: &IpHeader, reason: Reason) -> Option<usize> {
    let is_icmp = matches!(header.protocol, ICMP | ICMP_V6);
    if is_icmp && !is_echo(packet, header) || header.is_fragment {
        return None;
    }
    if !header.is_to_a_host() || !header.is_from_a_host() {
        return None;
    }
    let quote = packet.get(..header.payload.end)?;
    let quote = &quote[..quote.len().min(MAX_QUOTE)];
    let len = HEADER_LEN + quote.len();
    let protocol = if header.is_v6() { ICMP_V6 } else { ICMP };
    let meta = Meta { protocol, class: 0, id: 0 };
    let ip_len = emit(out, header.destination, header.source, meta, len)?;
    let message = out.get_mut(ip_len..ip_len + len)?;
    // RFC 792 and RFC 4443, 3.1.
    let (kind, code) = match (header.is_v6(), reason) {
        (false, Reason::Port) => (3, 3),
        (false, Reason::Host) => (3, 1),
        (true, Reason::Port) => (1, 4),
        (true, Reason::Host) => (1, 3),
    };
    message[..HEADER_LEN].copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    message[HEADER_LEN..].copy_from_slice(quote);
    let sum = checksum::finish(pseudo(header, len) + checksum::sum(message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(ip_len + len)
}
