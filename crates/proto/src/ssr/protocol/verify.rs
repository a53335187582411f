//! `verify_simple`, `verify_deflate` and `verify_sha1`: framing without authentication of the peer's identity.
//!
//! ```text
//! verify_simple   len u16be (all) | padding length 1 | padding | payload | CRC-32 so that the whole has 0xffffffff
//! verify_deflate  len u16be (all) | zlib stream without its first two bytes
//! verify_sha1     client: address with 0x10 in its type | HMAC-SHA1(IV | K, address), first 10
//!                 then chunks: len u16be (payload) | HMAC-SHA1(IV | u32be number, payload), first 10 | payload
//!                 server: payload as it is
//! ```
//!
//! Source: `docs/protocols/ssr.md`, 2.2.

use std::fmt;
use std::ops::Range;

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use zeroize::Zeroizing;

use super::packets::{BAD_TAG, Codec, Order, Step, bad_len, pass, short};
use super::server::{ClientHeader, Knock};
use crate::buf::RecvBuf;
use crate::crypto::{HmacSha1, Noise, crc32};
use crate::ssr::Refusal;
use crate::ssr::request::UDP_OVER_TCP;
use crate::wire::{Address, Opened, Rng, WireError, parse_address};

const LEN_LEN: usize = 2;

/// `verify_simple`.
#[derive(Debug)]
pub(super) struct Simple(Noise);

const MAX_SIMPLE_PADDING: u8 = 16;
const CRC_LEN: usize = 4;
const MAX_SIMPLE: usize = 8192;

impl Simple {
    pub(super) fn new(noise: Noise) -> Self {
        Self(noise)
    }
}

impl Codec for Simple {
    fn unit(&self) -> usize {
        8100
    }

    fn full_overhead(&self) -> usize {
        LEN_LEN + usize::from(MAX_SIMPLE_PADDING) + CRC_LEN
    }

    fn max_overhead(&self) -> usize {
        self.full_overhead()
    }

    fn seal(&mut self, block: &mut [u8], at: usize, data: Range<usize>, _write_len: usize) -> usize {
        let padding = 1 + self.0.below(MAX_SIMPLE_PADDING.into()) as usize;
        let data_at = at + LEN_LEN + padding;
        let tail_at = data_at + data.len();
        block.copy_within(data, data_at);
        Order::Big.put(&mut block[at..], tail_at + CRC_LEN - at);
        super::packets::put_padding(&mut block[at + LEN_LEN..data_at], Order::Big, &mut self.0);
        let tail = (!crc32(&block[at..tail_at])).to_le_bytes();
        block[tail_at..tail_at + CRC_LEN].copy_from_slice(&tail);
        tail_at + CRC_LEN
    }

    fn open(&mut self, unread: &mut [u8]) -> Result<Step, WireError> {
        if let Some(step) = short(unread, LEN_LEN) {
            return Ok(step);
        }
        let len = Order::Big.get(unread);
        if !(LEN_LEN + 1 + CRC_LEN..MAX_SIMPLE).contains(&len) {
            return Err(bad_len(len));
        }
        if let Some(step) = short(unread, len) {
            return Ok(step);
        }
        if crc32(&unread[..len]) != u32::MAX {
            return Err(BAD_TAG);
        }
        let (data_at, tail_at) = (LEN_LEN + usize::from(unread[LEN_LEN]), len - CRC_LEN);
        if data_at == LEN_LEN || data_at > tail_at {
            return Err(bad_len(len));
        }
        Ok(Step::Packet { len, data: data_at..tail_at })
    }
}

/// `verify_deflate`. The contents of a packet are longer than the packet: they are written at the end of the buffer.
#[derive(Debug, Default)]
pub(super) struct Deflate {
    /// Contents of a packet that found no room.
    waiting: Option<Vec<u8>>,
}

/// Payload of a packet (as the Python programs cut).
const DEFLATE_UNIT: usize = 32_700;
/// More payload in a packet is an error: no program sends it.
pub const MAX_INFLATED: usize = 32_768;
const MAX_DEFLATED: usize = 32_768;
/// With as much again that was left from before, a buffer has room for the contents of a packet.
const MOST_RECEIVED: usize = 64 * 1024;
const MIN_DEFLATED: usize = 6;
/// The bytes that peers put in front of the stream before they inflate it.
const ZLIB_HEAD: [u8; 2] = [0x78, 0x9c];
/// Compression level: the default of zlib.
const LEVEL: u8 = 6;

impl Codec for Deflate {
    fn unit(&self) -> usize {
        DEFLATE_UNIT
    }

    fn full_overhead(&self) -> usize {
        64
    }

    fn max_overhead(&self) -> usize {
        64
    }

    fn seal(&mut self, block: &mut [u8], at: usize, data: Range<usize>, _write_len: usize) -> usize {
        let room = at..data.end;
        let mut packed = compress_to_vec_zlib(&block[data.clone()], LEVEL);
        if packed.len() > room.len() || packed.len() >= MAX_DEFLATED {
            packed = compress_to_vec_zlib(&block[data], 0);
        }
        // The length takes the place of the two bytes of zlib's head.
        let packed_len = packed.len();
        Order::Big.put(&mut packed, packed_len);
        block[at..at + packed_len].copy_from_slice(&packed);
        at + packed_len
    }

    fn open(&mut self, _unread: &mut [u8]) -> Result<Step, WireError> {
        unreachable!("opens into the buffer")
    }

    fn open_into(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        if let Some(plain) = self.waiting.take() {
            return Ok(self.place(wire, plain));
        }
        let unread = wire.unread();
        if let Some(Step::NeedMore(missing)) = short(unread, LEN_LEN) {
            return Ok(Opened::NeedMore(missing));
        }
        let len = Order::Big.get(unread);
        if !(MIN_DEFLATED..MAX_DEFLATED).contains(&len) {
            return Err(bad_len(len));
        }
        if let Some(Step::NeedMore(missing)) = short(unread, len) {
            return Ok(Opened::NeedMore(missing));
        }
        let packed = [&ZLIB_HEAD, &unread[LEN_LEN..len]].concat();
        let plain = decompress_to_vec_zlib_with_limit(&packed, MAX_INFLATED).map_err(|_| BAD_TAG)?;
        wire.consume(len);
        Ok(self.place(wire, plain))
    }

    fn has_backlog(&self) -> bool {
        self.waiting.is_some()
    }

    fn most_received(&self) -> usize {
        MOST_RECEIVED
    }
}

impl Deflate {
    /// Writes `plain` into the buffer, or keeps it until there is room.
    fn place(&mut self, wire: &mut RecvBuf, plain: Vec<u8>) -> Opened {
        let Some(range) = wire.take_top(plain.len()) else {
            self.waiting = Some(plain);
            return Opened::NeedMore(0);
        };
        wire.block_mut()[range.clone()].copy_from_slice(&plain);
        Opened::Payload(range)
    }
}

/// `verify_sha1`: chunks in the client's direction, the bare stream in the other.
pub(super) struct VerifySha1 {
    iv: Box<[u8]>,
    /// IV and key, until the client's header has left.
    keyed: Option<Zeroizing<Box<[u8]>>>,
    is_client: bool,
    number: u32,
}

const TAG_LEN: usize = 10;
const CHUNK_HEAD: usize = LEN_LEN + TAG_LEN;
/// In the type of an address: an HMAC follows.
const AUTH_FLAG: u8 = 0x10;

impl fmt::Debug for VerifySha1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sha1").field("number", &self.number).finish_non_exhaustive()
    }
}

impl VerifySha1 {
    pub(super) fn client(iv: &[u8], key: &[u8]) -> Self {
        let keyed = Some(Zeroizing::new([iv, key].concat().into()));
        Self { iv: iv.into(), keyed, is_client: true, number: 0 }
    }

    fn chunk_tag(&mut self, payload: &[u8]) -> [u8; 20] {
        let tag = HmacSha1::new(&[&self.iv, &self.number.to_be_bytes()]).tag(payload);
        self.number = self.number.wrapping_add(1);
        tag
    }
}

impl Codec for VerifySha1 {
    fn unit(&self) -> usize {
        if self.is_client { 8100 } else { usize::MAX }
    }

    fn full_overhead(&self) -> usize {
        if self.is_client { CHUNK_HEAD } else { 0 }
    }

    fn max_overhead(&self) -> usize {
        self.full_overhead()
    }

    fn header_overhead(&self) -> usize {
        if self.keyed.is_some() { TAG_LEN } else { 0 }
    }

    fn seal_header(
        &mut self,
        block: &mut [u8],
        at: usize,
        data: Range<usize>,
        address_len: usize,
        _unix_s: u64,
    ) -> (usize, usize) {
        let Some(keyed) = self.keyed.take() else { return (at, 0) };
        block.copy_within(data.start..data.start + address_len, at);
        block[at] |= AUTH_FLAG;
        let tag = HmacSha1::new(&[&keyed]).tag(&block[at..at + address_len]);
        let end = at + address_len + TAG_LEN;
        block[at + address_len..end].copy_from_slice(&tag[..TAG_LEN]);
        (end, address_len)
    }

    fn seal(&mut self, block: &mut [u8], at: usize, data: Range<usize>, _write_len: usize) -> usize {
        let head_len = self.full_overhead();
        let (len, end) = (data.len(), at + head_len + data.len());
        block.copy_within(data, at + head_len);
        if self.is_client {
            let tag = self.chunk_tag(&block[at + CHUNK_HEAD..end]);
            Order::Big.put(&mut block[at..], len);
            block[at + LEN_LEN..at + CHUNK_HEAD].copy_from_slice(&tag[..TAG_LEN]);
        }
        end
    }

    fn open(&mut self, unread: &mut [u8]) -> Result<Step, WireError> {
        if let Some(step) = short(unread, CHUNK_HEAD) {
            return Ok(step);
        }
        let len = CHUNK_HEAD + Order::Big.get(unread);
        if let Some(step) = short(unread, len) {
            return Ok(step);
        }
        if self.chunk_tag(&unread[CHUNK_HEAD..len])[..TAG_LEN] != unread[LEN_LEN..CHUNK_HEAD] {
            return Err(BAD_TAG);
        }
        Ok(Step::Packet { len, data: CHUNK_HEAD..len })
    }

    fn open_into(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        if self.is_client {
            return Ok(pass(wire));
        }
        let position = wire.position();
        match self.open(wire.unread_mut())? {
            Step::NeedMore(missing) => Ok(Opened::NeedMore(missing)),
            Step::Packet { len, data } => {
                wire.consume(len);
                Ok(Opened::Payload(position + data.start..position + data.end))
            }
        }
    }
}

/// Reads the address of a client of `verify_sha1` and takes its flag away.
pub(super) fn accept_sha1(knock: &Knock<'_>, iv: &[u8], unread: &mut [u8]) -> Result<ClientHeader, Refusal> {
    let Some(kind) = unread.first_mut() else { return Ok(ClientHeader::NeedMore(1)) };
    if *kind & AUTH_FLAG == 0 {
        return Err(Refusal::WrongKey);
    }
    let mut head = [0; crate::wire::MAX_ADDRESS_LEN];
    let head_len = unread.len().min(head.len());
    head[..head_len].copy_from_slice(&unread[..head_len]);
    head[0] &= !(AUTH_FLAG | UDP_OVER_TCP);
    let len = match parse_address(&head[..head_len]) {
        Ok(Address::Whole(_, len)) => len,
        Ok(Address::NeedMore(missing)) => return Ok(ClientHeader::NeedMore(missing)),
        Err(_) => return Err(Refusal::WrongKey),
    };
    let Some(tag) = unread.get(len..len + TAG_LEN) else {
        return Ok(ClientHeader::NeedMore(len + TAG_LEN - unread.len()));
    };
    if HmacSha1::new(&[knock.keyed]).tag(&unread[..len])[..TAG_LEN] != *tag {
        return Err(Refusal::WrongKey);
    }
    unread[0] &= !AUTH_FLAG;
    let codec = Box::new(VerifySha1 { iv: iv.into(), keyed: None, is_client: false, number: 0 });
    Ok(ClientHeader::Whole { len: len + TAG_LEN, data: 0..len, user: None, codec })
}
