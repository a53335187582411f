//! Messages to the kernel: tables of nftables ([`nft`]), and links, addresses, routes and rules ([`route`]).
//!
//! ```text
//!   message:    length 4 | kind 2 | flags 2 | sequence 4 | port 4 | header of the family | attributes
//!   attribute:  length 2 (with these 4 bytes) | kind 2 | data, padded to a multiple of 4
//! ```
//!
//! Headers are in the machine's byte order; the data of nftables is in network order. Source: netlink(7),
//! `include/uapi/linux/netlink.h`.

pub mod nft;
pub mod notice;
pub mod route;

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

pub use adit_sys::netlink::Family;
use adit_sys::netlink::NetlinkSocket;
use thiserror::Error;

const HEADER_LEN: usize = 16;
const ALIGN: usize = 4;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NLM_F_DUMP: u16 = 0x300;
/// Of an answer: attributes behind the number of the error.
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE: u16 = 0x3fff;
/// The kernel's words about an error.
const ERROR_TEXT: u16 = 1;
/// Room for one datagram of answers.
const ANSWER_LEN: usize = 256 << 10;
/// Most messages of one listing that are kept.
const MAX_LISTED: usize = 100_000;

/// The kernel's refusal of a request.
#[derive(Debug, Error)]
pub struct NetlinkError {
    /// The part that was refused.
    pub part: String,
    /// The kernel's words, if it gave any.
    pub text: Option<Box<str>>,
    /// The system's error.
    pub source: io::Error,
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel refuses {}", self.part)?;
        self.text.as_ref().map_or(Ok(()), |text| write!(f, " ({text})"))
    }
}

impl NetlinkError {
    /// The system's error number.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// Requests in one buffer.
#[derive(Debug, Clone, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// A description of each message, by its sequence number less one.
    parts: Vec<String>,
    /// Start of the message that is being written.
    start: usize,
}

impl Messages {
    /// Number of messages.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Writes one message: `head` is the header of its family, `body` puts the attributes.
    fn message(
        &mut self,
        (kind, flags): (u16, u16),
        part: impl Into<String>,
        head: &[u8],
        body: impl FnOnce(&mut Self),
    ) {
        self.start = self.bytes.len();
        self.parts.push(part.into());
        let sequence = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(head);
        self.pad();
        body(self);
        let len = u32::try_from(self.bytes.len() - self.start).unwrap_or(u32::MAX);
        self.bytes[self.start..self.start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Asks for a confirmation of the message that was written last.
    fn confirm_last(&mut self) {
        let flags = self.start + 6;
        if let Some(byte) = self.bytes.get_mut(flags..flags + 2) {
            let old = u16::from_ne_bytes([byte[0], byte[1]]);
            byte.copy_from_slice(&(old | NLM_F_ACK).to_ne_bytes());
        }
    }

    fn attribute(&mut self, kind: u16, data: &[u8]) {
        let len = u16::try_from(data.len() + ALIGN).expect("attributes are short");
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(data);
        self.pad();
    }

    /// A text with a zero behind it.
    fn text(&mut self, kind: u16, text: &str) {
        let mut data = Vec::with_capacity(text.len() + 1);
        data.extend(text.as_bytes());
        data.push(0);
        self.attribute(kind, &data);
    }

    /// A number in network order.
    fn number(&mut self, kind: u16, number: u32) {
        self.attribute(kind, &number.to_be_bytes());
    }

    fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((kind | NLA_F_NESTED).to_ne_bytes());
        body(self);
        let len = u16::try_from(self.bytes.len() - start).expect("nested attributes are split before");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }

    fn part(&self, sequence: u32) -> String {
        let at = usize::try_from(sequence).unwrap_or_default().wrapping_sub(1);
        self.parts.get(at).cloned().unwrap_or_else(|| "the request".to_owned())
    }
}

/// A socket to the kernel.
#[derive(Debug)]
pub struct Netlink {
    socket: NetlinkSocket,
    /// Added to the sequence numbers of the next request, so that old answers are told from new ones.
    next: u32,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open(family: Family) -> io::Result<Self> {
        Ok(Self { socket: NetlinkSocket::open(family)?, next: 0 })
    }

    /// A socket that another process has opened: what the kernel keeps for it goes on.
    ///
    /// # Errors
    /// When it is no socket of netlink.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: NetlinkSocket::adopt(socket)?, next: 0 })
    }

    /// The same socket for another process.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// The number by which the kernel knows this socket.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Sends `messages` and waits until the last of them is confirmed, or one is refused.
    ///
    /// # Errors
    /// The first refusal.
    pub fn transact(&mut self, messages: &Messages) -> Result<(), NetlinkError> {
        let (base, last) = self.send(messages)?;
        let first = base + 1;
        let mut refused: Option<NetlinkError> = None;
        let mut buffer = vec![0; ANSWER_LEN];
        loop {
            let len = match self.socket.receive(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(refused.unwrap_or_else(|| without_part(source))),
            };
            for answer in Answers::new(&buffer[..len]) {
                if answer.kind != NLMSG_ERROR || !(first..=last).contains(&answer.sequence) {
                    continue;
                }
                let number = answer.error();
                if number != 0 {
                    refused.get_or_insert_with(|| NetlinkError {
                        part: messages.part(answer.sequence - base),
                        text: answer.text(),
                        source: io::Error::from_raw_os_error(number),
                    });
                }
                // A request that is refused as a whole is answered by its first message.
                let is_over = answer.sequence == last || (number != 0 && answer.sequence == first);
                if is_over {
                    return refused.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Asks for a listing and returns its messages: the kind of each, and the bytes behind the common header.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn list(&mut self, question: &Messages) -> Result<Vec<(u16, Vec<u8>)>, NetlinkError> {
        let (base, last) = self.send(question)?;
        let first = base + 1;
        let mut listed = Vec::new();
        let mut buffer = vec![0; ANSWER_LEN];
        loop {
            let len = match self.socket.receive(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(without_part(source)),
            };
            for answer in Answers::new(&buffer[..len]) {
                if !(first..=last).contains(&answer.sequence) {
                    continue;
                }
                match answer.kind {
                    NLMSG_DONE => return Ok(listed),
                    NLMSG_ERROR if answer.error() == 0 => return Ok(listed),
                    NLMSG_ERROR => {
                        return Err(NetlinkError {
                            part: question.part(answer.sequence - base),
                            text: answer.text(),
                            source: io::Error::from_raw_os_error(answer.error()),
                        });
                    }
                    kind if listed.len() < MAX_LISTED => listed.push((kind, answer.body.to_vec())),
                    _ => {}
                }
            }
        }
    }

    /// Sends `messages` with fresh sequence numbers: the number before the first, and the last that is answered.
    fn send(&mut self, messages: &Messages) -> Result<(u32, u32), NetlinkError> {
        let mut bytes = messages.bytes.clone();
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX / 4);
        let base = if self.next > u32::MAX / 2 { 0 } else { self.next };
        self.next = base + count + 1;
        let mut at = 0;
        while let Some(header) = bytes.get_mut(at..at + HEADER_LEN) {
            let sequence = u32_at(header, 8).wrapping_add(base);
            header[8..12].copy_from_slice(&sequence.to_ne_bytes());
            at += usize::try_from(u32_at(header, 0)).unwrap_or(usize::MAX).max(HEADER_LEN);
        }
        self.socket.send(&bytes).map_err(without_part)?;
        Ok((base, base + count))
    }
}

fn without_part(source: io::Error) -> NetlinkError {
    NetlinkError { part: "the request".to_owned(), text: None, source }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// The messages of one datagram.
struct Answers<'a> {
    rest: &'a [u8],
}

struct Answer<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

impl<'a> Answers<'a> {
    fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Answers<'a> {
    type Item = Answer<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.rest.get(..HEADER_LEN)?;
        let len = usize::try_from(u32_at(header, 0)).ok()?;
        let body = self.rest.get(HEADER_LEN..len)?;
        let (kind, flags, sequence) = (u16_at(header, 4), u16_at(header, 6), u32_at(header, 8));
        self.rest = self.rest.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Answer { kind, flags, sequence, body })
    }
}

impl Answer<'_> {
    /// The error's number; 0 confirms.
    fn error(&self) -> i32 {
        i32::from_ne_bytes(u32_at(self.body, 0).to_ne_bytes()).wrapping_neg()
    }

    /// The kernel's words.
    fn text(&self) -> Option<Box<str>> {
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        let found = Attributes::new(self.body.get(4 + HEADER_LEN..)?).find(|(kind, _)| *kind == ERROR_TEXT);
        let text = String::from_utf8_lossy(found?.1).trim_end_matches('\0').to_owned();
        (!text.is_empty()).then(|| text.into())
    }
}

/// The attributes in a piece of a message: kinds without flags, and data.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.rest.get(..ALIGN)?, 0));
        let data = self.rest.get(ALIGN..len)?;
        let kind = u16_at(self.rest, 2) & NLA_TYPE;
        self.rest = self.rest.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, data))
    }
}

/// Decoder of answers for the fuzzer: attributes lie inside their message.
#[doc(hidden)]
pub fn fuzz_netlink(data: &[u8]) {
    for answer in Answers::new(data) {
        let _seen = (answer.error(), answer.text());
        let len: usize = Attributes::new(answer.body).map(|(_, data)| data.len()).sum();
        assert!(len <= answer.body.len());
        nft::fuzz_tables(answer.kind, answer.body);
        route::fuzz_route(answer.kind, answer.body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Messages {
        let mut messages = Messages::default();
        messages.message((18, NLM_F_ACK), "a link", &[0; 16], |m| {
            m.text(3, "lo");
            m.nest(7, |m| m.number(1, 0x0102_0304));
        });
        messages
    }

    #[test]
    fn a_message_has_its_lengths() {
        let bytes = sample().bytes;
        let own = [
            52, 0, 0, 0, 18, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, // header
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // of the family
            7, 0, 3, 0, b'l', b'o', 0, 0, // text
            12, 0, 7, 0x80, 8, 0, 1, 0, 1, 2, 3, 4,
        ];
        assert_eq!(bytes, own);
        let answer = Answers::new(&bytes).next().unwrap();
        let all: Vec<_> = Attributes::new(&answer.body[16..]).collect();
        assert_eq!(all, [(3, &b"lo\0"[..]), (7, &[8, 0, 1, 0, 1, 2, 3, 4][..])]);
    }

    #[test]
    fn broken_answers_end_early() {
        let bytes = sample().bytes;
        for len in 0..bytes.len() {
            assert_eq!(Answers::new(&bytes[..len]).count(), 0, "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0xff;
            fuzz_netlink(&bytes);
        }
    }

    #[test]
    fn an_error_has_its_words() {
        let mut bytes = vec![44, 0, 0, 0, 2, 0, 0, 3, 9, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend((-1_i32).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend([8, 0, 1, 0, b'n', b'o', b'!', 0]);
        let answer = Answers::new(&bytes).next().unwrap();
        assert_eq!((answer.error(), answer.text().as_deref(), answer.sequence), (1, Some("no!"), 9));
    }
}
