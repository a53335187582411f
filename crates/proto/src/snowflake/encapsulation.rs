//! Packets and padding in a byte stream.
//!
//! ```text
//! chunk   = prefix | that many bytes
//! byte 0: d c x x x x x x     d 1 data, 0 padding; c 1: another byte of the length follows
//! byte 1: c y y y y y y y     if c of byte 0
//! byte 2: 0 z z z z z z z     if c of byte 1
//! length  = x y z, most significant first: 6, 13 or 20 bits
//! ```
//!
//! A longer prefix than needed is legal. Padding of any length and content may stand between any two chunks. A reader
//! keeps the first bytes of a packet that is longer than its buffer: 1500 at a client, 2048 at a server.

use crate::wire::WireError;

/// Longest payload of a chunk.
pub const MAX_CHUNK_LEN: usize = (1 << 20) - 1;
/// Longest prefix.
pub const MAX_PREFIX_LEN: usize = 3;
/// Bytes of a packet that a server keeps.
pub const SERVER_PACKET_LEN: usize = 2048;
/// Bytes of a packet that a client keeps.
pub const CLIENT_PACKET_LEN: usize = 1500;
/// Longest chunk of padding that is written, with its prefix.
const MAX_PADDING: usize = 1024;

/// Appends the prefix of `len` bytes of data.
///
/// # Panics
/// If `len` is above [`MAX_CHUNK_LEN`].
pub fn push_prefix(out: &mut Vec<u8>, len: usize) {
    assert!(len <= MAX_CHUNK_LEN, "chunk of {len} bytes");
    prefix(out, 0x80, len);
}

/// Appends a packet as a chunk.
///
/// # Panics
/// If it is longer than [`MAX_CHUNK_LEN`].
pub fn push_packet(out: &mut Vec<u8>, packet: &[u8]) {
    push_prefix(out, packet.len());
    out.extend_from_slice(packet);
}

/// Appends padding of `len` bytes in all, prefixes included.
pub fn push_padding(out: &mut Vec<u8>, mut len: usize) {
    while len > 0 {
        let chunk = len.min(MAX_PADDING);
        let content = if chunk <= 64 { chunk - 1 } else { chunk - 2 };
        if chunk <= 64 {
            prefix(out, 0, content);
        } else {
            out.extend([0x40 | low(content >> 7), low(content) & 0x7f]);
        }
        out.resize(out.len() + content, 0);
        len -= chunk;
    }
}

/// Length of a payload whose chunk takes at most `len` bytes, as upstream reckons it: at two borders a byte more would
/// fit.
pub fn max_payload(len: usize) -> usize {
    let len = len.min(MAX_CHUNK_LEN);
    let prefix_len = match len {
        0..=0x3f => 1,
        0x40..=0x1fff => 2,
        _ => MAX_PREFIX_LEN,
    };
    len.saturating_sub(prefix_len)
}

fn prefix(out: &mut Vec<u8>, kind: u8, len: usize) {
    match len {
        0..=0x3f => out.push(kind | low(len)),
        0x40..=0x1fff => out.extend([kind | 0x40 | low(len >> 7), low(len) & 0x7f]),
        _ => out.extend([kind | 0x40 | low(len >> 14), 0x80 | low(len >> 7), low(len) & 0x7f]),
    }
}

fn low(len: usize) -> u8 {
    u8::try_from(len & 0xff).expect("eight bits")
}

/// Finds the packets in a byte stream.
#[derive(Debug)]
pub struct Reader {
    state: State,
    max_packet: usize,
    /// The packet so far, when its bytes come in pieces.
    packet: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// `read` bytes of a prefix, and the length that they hold.
    Prefix { read: usize, is_data: bool, len: usize },
    /// So many bytes of data are missing.
    Data { left: usize },
    /// So many bytes of padding are missing.
    Padding { left: usize },
}

impl State {
    const START: Self = Self::Prefix { read: 0, is_data: false, len: 0 };
}

impl Reader {
    /// A reader that keeps the first `max_packet` bytes of a packet.
    pub fn new(max_packet: usize) -> Self {
        Self { state: State::START, max_packet, packet: Vec::new() }
    }

    /// Takes bytes from the front of `input` and yields the next packet; `None` once `input` is used up.
    ///
    /// # Errors
    /// [`WireError::Malformed`] when a prefix has more than three bytes. The stream is of no use then.
    pub fn next<'r, 'i: 'r>(&'r mut self, input: &mut &'i [u8]) -> Result<Option<&'r [u8]>, WireError> {
        loop {
            match self.state {
                State::Prefix { .. } => {
                    let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    self.take_prefix(byte)?;
                }
                State::Padding { left } => {
                    let skipped = left.min(input.len());
                    *input = &input[skipped..];
                    self.state = match left - skipped {
                        0 => State::START,
                        left => State::Padding { left },
                    };
                    if self.state != State::START {
                        return Ok(None);
                    }
                }
                State::Data { left } if self.packet.is_empty() && input.len() >= left => {
                    let (packet, rest) = input.split_at(left);
                    *input = rest;
                    self.state = State::START;
                    return Ok(Some(&packet[..left.min(self.max_packet)]));
                }
                State::Data { left } => {
                    let taken = left.min(input.len());
                    let kept = taken.min(self.max_packet - self.packet.len());
                    self.packet.extend_from_slice(&input[..kept]);
                    *input = &input[taken..];
                    if taken < left {
                        self.state = State::Data { left: left - taken };
                        return Ok(None);
                    }
                    self.state = State::START;
                    return Ok(Some(&self.packet));
                }
            }
        }
    }

    fn take_prefix(&mut self, byte: u8) -> Result<(), WireError> {
        let State::Prefix { read, is_data, len } = self.state else { return Ok(()) };
        let (is_data, bits, mask) = if read == 0 { (byte & 0x80 != 0, 6, 0x40) } else { (is_data, 7, 0x80) };
        let len = len << bits | usize::from(byte) & ((1 << bits) - 1);
        let more = byte & mask != 0;
        if more && read + 1 == MAX_PREFIX_LEN {
            return Err(WireError::Malformed { what: "encapsulation prefix", got: byte.into() });
        }
        self.packet.clear();
        self.state = match (more, is_data) {
            (true, _) => State::Prefix { read: read + 1, is_data, len },
            (false, true) => State::Data { left: len },
            (false, false) => State::Padding { left: len },
        };
        Ok(())
    }

    /// Whether the stream may end here: between two chunks.
    pub fn is_at_border(&self) -> bool {
        self.state == State::START
    }
}

#[cfg(test)]
mod tests {
    use adit_testkit::{hex, load, pattern, text};
    use serde_json::Value;

    use super::*;

    fn number(row: &Value, key: &str) -> usize {
        usize::try_from(row[key].as_u64().unwrap()).unwrap()
    }

    #[test]
    fn writes_as_upstream_does() {
        let vectors = load("snowflake/encapsulation.json");
        for row in vectors["write"].as_array().unwrap() {
            let n = number(row, "n");
            if n > MAX_CHUNK_LEN {
                assert!(row["error"].is_string(), "{row}");
                continue;
            }
            let total = number(row, "total_bytes");
            let mut out = Vec::new();
            if text(row, "kind") == "data" {
                push_packet(&mut out, &vec![0; n]);
                assert!(out.starts_with(&hex(text(row, "first_bytes_hex"))), "{row}");
            } else {
                push_padding(&mut out, n);
                assert_eq!(padding_chunks(&out), text(row, "first_bytes_hex"), "{row}");
            }
            assert_eq!(out.len(), total, "{row}");
        }
        for row in vectors["max_data_for_size"].as_array().unwrap() {
            assert_eq!(max_payload(number(row, "size")), number(row, "max_data"), "{row}");
        }
    }

    /// The chunks as the vectors print them.
    fn padding_chunks(mut bytes: &[u8]) -> String {
        let mut out = Vec::new();
        while let Some(&first) = bytes.first() {
            let (prefix_len, len) = match first & 0x40 {
                0 => (1, usize::from(first)),
                _ => (2, usize::from(first & 0x3f) << 7 | usize::from(bytes[1])),
            };
            let prefix: String = bytes[..prefix_len].iter().map(|byte| format!("{byte:02x}")).collect();
            out.push(format!("{prefix}+{len}"));
            bytes = &bytes[prefix_len + len..];
        }
        format!("[{}]", out.join(" "))
    }

    #[test]
    fn reads_as_upstream_does_at_every_split() {
        for row in load("snowflake/encapsulation.json")["read"].as_array().unwrap() {
            let (input, want) = (hex(text(row, "input_hex")), hex(text(row, "out_hex")));
            let error = row["error"].as_str().unwrap_or("");
            for split in 0..=input.len() {
                let mut reader = Reader::new(number(row, "buffer"));
                let (mut result, mut packet) = (Ok(()), None);
                for mut piece in [&input[..split], &input[split..]] {
                    loop {
                        match reader.next(&mut piece) {
                            Ok(Some(found)) => packet = Some(found.to_vec()),
                            Ok(None) => break,
                            Err(error) => {
                                result = Err(error);
                                break;
                            }
                        }
                    }
                    if result.is_err() {
                        break;
                    }
                }
                match error {
                    "" | "short buffer" => assert_eq!(packet.as_deref(), Some(&want[..]), "{row} {split}"),
                    "length prefix is too long" => assert!(result.is_err(), "{row} {split}"),
                    "EOF" => assert!(reader.is_at_border() && packet.is_none(), "{row} {split}"),
                    "unexpected EOF" => assert!(!reader.is_at_border() && packet.is_none(), "{row} {split}"),
                    other => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn packets_are_the_same_at_every_split() {
        let mut stream = Vec::new();
        for len in [0, 1, 63, 64, 1400, 3000] {
            push_padding(&mut stream, len / 3);
            push_packet(&mut stream, &pattern(len));
        }
        let whole = packets(&[&stream]);
        assert_eq!(whole.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 63, 64, 1400, 2048]);
        for split in 0..=stream.len() {
            assert_eq!(packets(&[&stream[..split], &stream[split..]]), whole, "{split}");
        }
    }

    fn packets(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut reader, mut out) = (Reader::new(SERVER_PACKET_LEN), Vec::new());
        for mut piece in pieces.iter().copied() {
            while let Some(packet) = reader.next(&mut piece).unwrap() {
                out.push(packet.to_vec());
            }
        }
        assert!(reader.is_at_border());
        out
    }
}
