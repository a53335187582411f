//! Datagrams in a stream ("UDP over TCP").
//!
//! ```text
//!   stream        address with 0x08 in its type, then frames in both directions
//!   frame         size u16be (of all) | fragment 1 | address | payload
//! ```
//!
//! A frame whose fragment is not 0 is dropped. Client to server: the address of a frame is the datagram's target, and the
//! address in front of the stream has no further meaning. Server to client: the datagram's source.
//! Source: `docs/protocols/ssr.md`, 8.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use super::request::UDP_OVER_TCP;
use crate::buf::RecvBuf;
use crate::wire::{
    Address, EndOfStream, Host, Layer, MAX_ADDRESS_LEN, Opened, Plan, Room, Target, WireError, address_len,
    emit_address, parse_address,
};

/// Size and fragment.
const HEAD_LEN: usize = 3;
/// Longest address and payload of one frame that is sent, in bytes: the protocols seal no more at a time.
pub const MAX_FRAME: usize = 64_000;
/// With as much again that was left from before, a buffer has room for a frame that was cut.
const MOST_RECEIVED: usize = 64 * 1024;
const CUT: WireError = WireError::Truncated { what: "address of a datagram" };

/// The frames of a stream as a layer around its protocol: each payload that it opens or seals is one address with the
/// payload of one datagram.
#[derive(Debug)]
pub struct Frames<L> {
    inner: L,
    /// Opened bytes of the stream that lie in the buffer; not empty only between two calls of [`Layer::open`] of one read.
    opened: Range<usize>,
    /// The bytes that came with the request, the beginning of a frame that was cut, or the rest of a read whose buffer had
    /// no room for one.
    kept: Vec<u8>,
    /// Number of bytes of `kept` that have been taken.
    taken: usize,
    /// A frame of `kept` waits for room in the buffer.
    is_short: bool,
}

impl<L: Layer> Frames<L> {
    /// Frames inside `inner`, whose stream has already yielded `received` behind the address.
    pub fn new(inner: L, received: Vec<u8>) -> Self {
        Self { inner, opened: 0..0, kept: received, taken: 0, is_short: false }
    }

    /// The protocol that carries the stream.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// The next frame, or what is to be said in its place; `None` if more of the stream is needed.
    fn next(&mut self, wire: &mut RecvBuf) -> Result<Option<Opened>, WireError> {
        while self.taken < self.kept.len() {
            let Some(frame) = self.complete(wire)? else { return Ok(None) };
            if self.kept[frame.start - 1] == 0 {
                let Some(range) = wire.take_top(frame.len()) else {
                    // The buffer is another one next time.
                    self.kept.extend_from_slice(&wire.block()[self.opened.clone()]);
                    (self.opened, self.is_short) = (0..0, true);
                    return Ok(Some(Opened::NeedMore(0)));
                };
                wire.block_mut()[range.clone()].copy_from_slice(&self.kept[frame.clone()]);
                self.taken = frame.end;
                return Ok(Some(Opened::Payload(range)));
            }
            self.taken = frame.end;
        }
        (self.kept, self.taken) = (Vec::new(), 0);
        self.next_in_place(wire)
    }

    /// The first kept frame without its head, as a range of `kept`, once it is whole.
    fn complete(&mut self, wire: &RecvBuf) -> Result<Option<Range<usize>>, WireError> {
        self.is_short = false;
        loop {
            let have = &self.kept[self.taken..];
            let wanted = match frame_len(have)? {
                None => HEAD_LEN,
                Some(len) if len <= have.len() => {
                    return Ok(Some(self.taken + HEAD_LEN..self.taken + len));
                }
                Some(len) => len,
            };
            let more = self.opened.len().min(wanted - have.len());
            if more == 0 {
                self.kept.drain(..std::mem::take(&mut self.taken));
                return Ok(None);
            }
            let end = self.opened.start + more;
            self.kept.extend_from_slice(&wire.block()[self.opened.start..end]);
            self.opened.start = end;
        }
    }

    /// The next frame that lies in the buffer as a whole; the rest of a read is kept.
    fn next_in_place(&mut self, wire: &RecvBuf) -> Result<Option<Opened>, WireError> {
        loop {
            let bytes = &wire.block()[self.opened.clone()];
            let Some(len) = frame_len(bytes)?.filter(|len| *len <= bytes.len()) else {
                self.kept.extend_from_slice(bytes);
                self.opened = 0..0;
                return Ok(None);
            };
            let frame = self.opened.start + HEAD_LEN..self.opened.start + len;
            self.opened.start += len;
            if wire.block()[frame.start - 1] == 0 {
                return Ok(Some(Opened::Payload(frame)));
            }
        }
    }
}

/// Length of the frame at the start of `bytes`, as soon as its size is there.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(size) = bytes.first_chunk::<2>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes(*size));
    if len < HEAD_LEN {
        return Err(WireError::Malformed { what: "size of a datagram", got: len as u64 });
    }
    Ok(Some(len))
}

impl<L: Layer> Layer for Frames<L> {
    fn plan(&self, now: Instant) -> Plan {
        let Plan { first, rest } = self.inner.plan(now);
        let inside = |room: Room| Room {
            head: room.head + HEAD_LEN,
            max_payload: room.max_payload.saturating_sub(HEAD_LEN).min(MAX_FRAME),
            ..room
        };
        Plan { first: inside(first), rest: inside(rest) }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        if payload.is_empty() {
            return self.inner.seal(block, payload, now);
        }
        let start = payload.start - HEAD_LEN;
        let size = u16::try_from(payload.end - start).expect("no longer than MAX_FRAME");
        block[start..start + 2].copy_from_slice(&size.to_be_bytes());
        block[start + 2] = 0;
        self.inner.seal(block, start..payload.end, now)
    }

    fn finish_write(&mut self, now: Instant) {
        self.inner.finish_write(now);
    }

    fn has_pending(&self) -> bool {
        self.inner.has_pending()
    }

    fn end_of_stream(&self) -> EndOfStream {
        self.inner.end_of_stream()
    }

    fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        loop {
            if let Some(opened) = self.next(wire)? {
                return Ok(opened);
            }
            match self.inner.open(wire, now)? {
                Opened::Payload(range) => self.opened = range,
                other @ (Opened::NeedMore(_) | Opened::End) => return Ok(other),
            }
        }
    }

    fn has_backlog(&self) -> bool {
        self.is_short || self.inner.has_backlog()
    }

    fn most_received(&self) -> usize {
        self.inner.most_received().min(MOST_RECEIVED)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        if !self.kept.is_empty() {
            return Err(WireError::Truncated { what: "a datagram" });
        }
        self.inner.handle_transport_end(unread)
    }
}

/// Splits a frame of a client into the datagram's target and the offset of the payload.
///
/// # Errors
/// [`WireError`] for an address that is none, or is cut.
pub fn parse_request(frame: &[u8]) -> Result<(Target, usize), WireError> {
    let mut address = [0; MAX_ADDRESS_LEN];
    let len = frame.len().min(MAX_ADDRESS_LEN);
    address[..len].copy_from_slice(&frame[..len]);
    // The Python server takes the flag here too.
    address[0] &= !UDP_OVER_TCP;
    match parse_address(&address[..len])? {
        Address::Whole(target, at) => Ok((target, at)),
        Address::NeedMore(_) => Err(CUT),
    }
}

/// Splits a frame of a server into the source of the datagram and the offset of the payload.
///
/// # Errors
/// As [`parse_request`]; a name as the source is [`WireError::Unsupported`].
pub fn parse_answer(frame: &[u8]) -> Result<(SocketAddr, usize), WireError> {
    let (source, at) = parse_request(frame)?;
    match source.host {
        Host::Ip(ip) => Ok((SocketAddr::new(ip, source.port), at)),
        Host::Name(_) => Err(WireError::Unsupported { what: "name as the source of an answer", got: 0 }),
    }
}

/// Length of the address in front of an answer from `source`, in bytes.
pub fn answer_len(source: SocketAddr) -> usize {
    address_len(&Target::from(source))
}

/// Writes the address in front of an answer from `source`; returns its length, [`answer_len`].
///
/// # Panics
/// If `out` is shorter than that.
pub fn emit_answer(source: SocketAddr, out: &mut [u8]) -> usize {
    emit_address(&Target::from(source), out)
}
