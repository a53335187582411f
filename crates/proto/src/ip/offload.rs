//! The header that stands in front of each packet of a virtual interface with offload (`struct virtio_net_hdr` of
//! `include/uapi/linux/virtio_net.h`), in the byte order of the machine:
//!
//! ```text
//!  0  flags           bit 0: the checksum is to be completed; bit 1: it has been checked
//!  1  kind            0 one packet, 1 segments of TCP over IPv4, 4 over IPv6, 5 datagrams of UDP; bit 7: ECN
//!  2  header length   u16, of IP and what is in it; a hint, which forwarded packets have wrong
//!  4  segment length  u16, payload bytes of each segment but the last
//!  6  checksum start  u16, where the sum begins
//!  8  checksum offset u16, where it is stored, from there
//! ```

/// Bytes of the header.
pub const LEN: usize = 10;

const NEEDS_CHECKSUM: u8 = 0x01;
const CHECKED: u8 = 0x02;
const ECN: u8 = 0x80;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;

/// The packets that one packet stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadKind {
    /// Itself.
    One,
    /// Segments of TCP.
    Tcp,
    /// Datagrams of UDP.
    Udp,
    /// Something that was not asked for.
    Other(u8),
}

/// The header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    flags: u8,
    kind: u8,
    header_len: u16,
    /// Payload bytes of each segment but the last; 0 for a packet that stands for itself.
    pub segment_len: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Offload {
    /// Reads the header.
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        let [flags, kind, words @ ..] = *bytes;
        let word = |at: usize| u16::from_ne_bytes([words[at], words[at + 1]]);
        Self {
            flags,
            kind,
            header_len: word(0),
            segment_len: word(2),
            checksum_start: word(4),
            checksum_offset: word(6),
        }
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let [a, b] = self.header_len.to_ne_bytes();
        let [c, d] = self.segment_len.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.kind, a, b, c, d, e, f, g, h]
    }

    /// The header of datagrams of UDP that are sent as one packet, or of one if `segment_len` is 0; the header of IP is
    /// `ip_len` bytes long. The kernel completes the checksum.
    pub fn datagrams(ip_len: usize, segment_len: u16) -> Self {
        let word = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let kind = if segment_len == 0 { 0 } else { UDP };
        Self {
            flags: NEEDS_CHECKSUM,
            kind,
            header_len: word(ip_len + super::udp::HEADER_LEN),
            segment_len,
            checksum_start: word(ip_len),
            checksum_offset: 6,
        }
    }

    /// The packets that this one stands for.
    pub fn kind(&self) -> OffloadKind {
        match self.kind & !ECN {
            0 => OffloadKind::One,
            TCP_V4 | TCP_V6 => OffloadKind::Tcp,
            UDP => OffloadKind::Udp,
            other => OffloadKind::Other(other),
        }
    }

    /// Whether the checksum field holds the sum of the pseudo header alone.
    pub fn is_partial(&self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }

    /// Whether the checksum is known to be right, or is still to be completed.
    pub fn is_trusted(&self) -> bool {
        self.flags & (NEEDS_CHECKSUM | CHECKED) != 0
    }

    /// Whether the checksum that is to be completed is the one of a payload that begins at `start` and has it at `offset`;
    /// true if there is none.
    pub fn fits(&self, start: usize, offset: usize) -> bool {
        !self.is_partial()
            || usize::from(self.checksum_start) == start && usize::from(self.checksum_offset) == offset
    }

    /// The same with the true length of all headers, of which the kernel's may be wrong.
    #[must_use]
    pub fn with_header_len(self, len: usize) -> Self {
        if self.kind == 0 {
            return self;
        }
        Self { header_len: u16::try_from(len).unwrap_or(u16::MAX), ..self }
    }
}
