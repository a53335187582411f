//! Packets and chunks (RFC 9260, section 3).

/// Header of a packet: ports, verification tag, checksum.
pub(super) const HEADER_LEN: usize = 12;
/// Header of a chunk: kind, flags, length.
pub(super) const CHUNK_HEADER_LEN: usize = 4;
/// The same of a chunk of data, with its numbers.
pub(super) const DATA_HEADER_LEN: usize = 16;
/// Longest packet that is sent: what DTLS adds, and the headers below, fit a path of 1,300 bytes then.
pub(super) const MTU: usize = 1228;
/// Longest payload of a chunk of data.
pub(super) const MAX_PAYLOAD: usize = MTU - HEADER_LEN - DATA_HEADER_LEN;
/// WebRTC's port at both ends (RFC 8841).
const PORT: [u8; 2] = 5000_u16.to_be_bytes();

pub(super) const DATA: u8 = 0;
pub(super) const INIT: u8 = 1;
pub(super) const INIT_ACK: u8 = 2;
pub(super) const SACK: u8 = 3;
pub(super) const HEARTBEAT: u8 = 4;
pub(super) const HEARTBEAT_ACK: u8 = 5;
pub(super) const ABORT: u8 = 6;
pub(super) const SHUTDOWN: u8 = 7;
pub(super) const SHUTDOWN_ACK: u8 = 8;
pub(super) const COOKIE_ECHO: u8 = 10;
pub(super) const COOKIE_ACK: u8 = 11;
pub(super) const SHUTDOWN_COMPLETE: u8 = 14;
pub(super) const RECONFIG: u8 = 130;

/// Flags of data: the end and the beginning of a message, and a wish for an acknowledgement at once (RFC 7053).
pub(super) const END: u8 = 1;
pub(super) const BEGIN: u8 = 2;
pub(super) const IMMEDIATE: u8 = 8;

/// The chunks of a packet whose checksum is right.
pub(super) struct SctpPacket<'a> {
    /// Verification tag.
    pub(super) tag: u32,
    rest: &'a [u8],
}

/// One chunk.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) body: &'a [u8],
}

impl<'a> SctpPacket<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEADER_LEN)?;
        let sum = u32::from_le_bytes(head[8..].try_into().ok()?);
        (checksum(bytes) == sum).then_some(Self { tag: u32_at(head, 4)?, rest })
    }
}

impl<'a> Iterator for SctpPacket<'a> {
    type Item = Chunk<'a>;

    /// A chunk whose length cannot be ends the packet, and so does an unknown one that says so.
    fn next(&mut self) -> Option<Chunk<'a>> {
        let [kind, flags, high, low, ..] = *self.rest else { return None };
        let len = usize::from(u16::from_be_bytes([high, low]));
        let body = self.rest.get(CHUNK_HEADER_LEN..len)?;
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Chunk { kind, flags, body })
    }
}

/// The parameters of a chunk: kind and value.
pub(super) fn params(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let kind = u16_at(rest, 0)?;
        let len = usize::from(u16_at(rest, 2)?);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|found| u16::from_be_bytes(*found))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|found| u32::from_be_bytes(*found))
}

/// CRC32c of a packet, with zeros in the place of the checksum.
fn checksum(packet: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&packet[..8]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &packet[HEADER_LEN..])
}

/// Begins a packet in `out`, which is emptied.
pub(super) fn begin(out: &mut Vec<u8>, tag: u32) {
    out.clear();
    out.extend(PORT);
    out.extend(PORT);
    out.extend(tag.to_be_bytes());
    out.extend([0; 4]);
}

/// Adds a chunk of a head and a payload.
pub(super) fn push_chunk(out: &mut Vec<u8>, kind: u8, flags: u8, head: &[u8], payload: &[u8]) {
    let len = u16::try_from(CHUNK_HEADER_LEN + head.len() + payload.len()).expect("chunks are short");
    out.extend([kind, flags]);
    out.extend(len.to_be_bytes());
    out.extend(head);
    out.extend(payload);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Adds a parameter.
pub(super) fn push_param(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).expect("parameters are short");
    out.extend(kind.to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Completes the packet.
pub(super) fn finish(out: &mut [u8]) {
    let sum = checksum(out);
    out[8..HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
}
