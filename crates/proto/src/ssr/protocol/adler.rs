//! Packets with an Adler-32: `auth_sha1`, `auth_sha1_v2`, `auth_sha1_v4` and the first `auth_aes128`.
//!
//! ```text
//! packet     len 2 | [check 2] | padding field | payload | Adler-32 of all before, u32le
//! header     auth_sha1, v2   CRC-32 of the key, u32le | len u16be | padding | ids 12 | payload | HMAC-SHA1, first 10
//!            auth_sha1_v4    len u16be | CRC-32 u32le | padding | ids 12 | payload | HMAC-SHA1, first 10
//!            auth_aes128     user id 4 | AES block 16 | HMAC-SHA1, first 10 | random | payload | Adler-32
//! ```
//!
//! `len` counts everything. `check` is the lower half of the CRC-32 of `len` (v4 and aes128). Byte order is big-endian
//! but for `auth_aes128` and the checksums. The ids are time, client and connection; those of v2 have no time, but a
//! client id of 8 bytes. Source: `docs/protocols/ssr.md`, 2.3 to 2.5.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Start;
use super::packets::{
    BAD_TAG, Codec, MAX_PADDING, Order, Step, bad_len, draw_padding, padding_len, put_padding, short,
};
use super::server::{Claim, ClientHeader, Knock};
use crate::crypto::{AesBlock, HmacSha1, Noise, adler32, crc32, md5};
use crate::ssr::Refusal;
use crate::ssr::refusal::low_32;
use crate::wire::{Rng, WireError};

/// Variant of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdlerVariant {
    Sha1,
    Sha1V2,
    Sha1V4,
    Aes128,
}

/// Bytes of the checksum behind a packet.
const TAIL_LEN: usize = 4;
/// Bytes of the tag of a header.
const TAG_LEN: usize = 10;
/// Time, client and connection.
const IDS_LEN: usize = 12;
/// A packet is shorter than this (observed from SSRR 3.2.2).
const MAX_PACKET: usize = 8192;
/// A header is no longer than this (observed from SSRR 3.1.2 for `auth_sha1`; later ones accept 8191).
const MAX_HEADER: usize = 8191;
/// Longest padding of a header that is sent.
const MAX_HEADER_PADDING: u16 = 512;
/// Most payload behind the address that rides in the header.
const MAX_EXTRA: u32 = 32;
/// `auth_aes128`: user id, block and tag in front of the random bytes.
const AES_HEAD: usize = 30;
/// Tolerance for a client's clock, in seconds.
const WINDOW_S: u32 = 86_400;
/// The same for `auth_sha1`.
const SHORT_WINDOW_S: u32 = 3600;

impl AdlerVariant {
    fn order(self) -> Order {
        if self == Self::Aes128 { Order::Little } else { Order::Big }
    }

    /// Bytes in front of the padding of a packet.
    fn head_len(self) -> usize {
        if matches!(self, Self::Sha1V4 | Self::Aes128) { 4 } else { 2 }
    }

    /// The first bytes of the key's checksum.
    fn salt(self) -> &'static [u8] {
        match self {
            Self::Sha1 => b"",
            Self::Sha1V2 => b"auth_sha1_v2",
            Self::Sha1V4 => b"auth_sha1_v4",
            Self::Aes128 => b"auth_aes128",
        }
    }

    fn padding_len(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Sha1 => {
                let len = usize::from(*bytes.first()?);
                (len > 0 && len <= bytes.len()).then_some(len)
            }
            Self::Sha1V2 | Self::Sha1V4 | Self::Aes128 => padding_len(bytes, self.order()),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Adler {
    kind: AdlerVariant,
    noise: Noise,
    /// Parts of the header, until it has left.
    start: Option<StartBox>,
    /// Packets so far, which `auth_aes128` mixes into the checksum.
    sent: u32,
    received: u32,
}

/// Shows nothing of it.
struct StartBox(Box<Start>);

impl std::fmt::Debug for StartBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Start")
    }
}

impl Adler {
    pub(super) fn client(kind: AdlerVariant, start: Start, noise: Noise) -> Self {
        Self { kind, noise, start: Some(StartBox(Box::new(start))), sent: 0, received: 0 }
    }

    pub(super) fn server(kind: AdlerVariant, noise: Noise) -> Self {
        Self { kind, noise, start: None, sent: 0, received: 0 }
    }

    fn tail(&self, packet: &[u8], count: u32) -> [u8; TAIL_LEN] {
        let count = if self.kind == AdlerVariant::Aes128 { count } else { 0 };
        (adler32(packet) ^ count).to_le_bytes()
    }

    /// The header of the three with SHA-1; returns its end.
    fn seal_sha1(
        &mut self,
        start: &Start,
        block: &mut [u8],
        at: usize,
        data: Range<usize>,
        utc: u32,
    ) -> usize {
        let bound = if self.kind == AdlerVariant::Sha1 { 128 } else { MAX_HEADER_PADDING.into() };
        let padding = 1 + self.noise.below(bound) as usize;
        let ids_at = at + 6 + padding;
        let data_at = ids_at + IDS_LEN;
        block.copy_within(data.clone(), data_at);
        let end = data_at + data.len() + TAG_LEN;
        put_padding(&mut block[at + 6..ids_at], Order::Big, &mut self.noise);
        if self.kind == AdlerVariant::Sha1V2 {
            block[ids_at..ids_at + 8].copy_from_slice(&start.ids.client);
        } else {
            block[ids_at..ids_at + 4].copy_from_slice(&utc.to_le_bytes());
            block[ids_at + 4..ids_at + 8].copy_from_slice(&start.ids.client[..4]);
        }
        block[ids_at + 8..data_at].copy_from_slice(&start.ids.connection.to_le_bytes());
        if self.kind == AdlerVariant::Sha1V4 {
            Order::Big.put(&mut block[at..], end - at);
            let check = key_check(self.kind, &block[at..at + 2], start.key.bytes());
            block[at + 2..at + 6].copy_from_slice(&check);
        } else {
            block[at..at + 4].copy_from_slice(&key_check(self.kind, &[], start.key.bytes()));
            Order::Big.put(&mut block[at + 4..], end - at);
        }
        let tag = HmacSha1::new(&[&start.keyed]).tag(&block[at..end - TAG_LEN]);
        block[end - TAG_LEN..end].copy_from_slice(&tag[..TAG_LEN]);
        end
    }

    /// The header of `auth_aes128`; returns its end.
    fn seal_aes(
        &mut self,
        start: &Start,
        block: &mut [u8],
        at: usize,
        data: Range<usize>,
        utc: u32,
    ) -> usize {
        let padding = self.noise.below(MAX_HEADER_PADDING.into()) as usize;
        let data_at = at + AES_HEAD + padding;
        block.copy_within(data.clone(), data_at);
        let end = data_at + data.len() + TAIL_LEN;
        block[at..at + 4].copy_from_slice(&start.user.to_le_bytes());
        let ids = super::aes128::ids_block(start, utc, end - at, padding);
        let mut ids = ids;
        AesBlock::new(&aes_key(start.user, start.key.bytes())).encrypt(&mut ids);
        block[at + 4..at + 20].copy_from_slice(&ids);
        let tag = HmacSha1::new(&[&start.keyed]).tag(&block[at..at + 20]);
        block[at + 20..at + AES_HEAD].copy_from_slice(&tag[..TAG_LEN]);
        self.noise.fill(&mut block[at + AES_HEAD..data_at]);
        let tail = adler32(&block[at..end - TAIL_LEN]).to_le_bytes();
        block[end - TAIL_LEN..end].copy_from_slice(&tail);
        end
    }
}

impl Codec for Adler {
    fn unit(&self) -> usize {
        // As the Python programs cut.
        if self.kind == AdlerVariant::Sha1 { 8000 } else { 8100 }
    }

    fn full_overhead(&self) -> usize {
        self.kind.head_len() + 1 + TAIL_LEN
    }

    fn max_overhead(&self) -> usize {
        self.kind.head_len() + MAX_PADDING + TAIL_LEN
    }

    fn header_overhead(&self) -> usize {
        if self.start.is_some() { AES_HEAD + usize::from(MAX_HEADER_PADDING) + IDS_LEN + TAG_LEN } else { 0 }
    }

    fn seal_header(
        &mut self,
        block: &mut [u8],
        at: usize,
        data: Range<usize>,
        address_len: usize,
        unix_s: u64,
    ) -> (usize, usize) {
        let Some(StartBox(start)) = self.start.take() else { return (at, 0) };
        let taken = data.len().min(address_len + self.noise.below(MAX_EXTRA) as usize);
        let data = data.start..data.start + taken;
        let utc = low_32(unix_s);
        let end = match self.kind {
            AdlerVariant::Aes128 => self.seal_aes(&start, block, at, data, utc),
            AdlerVariant::Sha1 | AdlerVariant::Sha1V2 | AdlerVariant::Sha1V4 => {
                self.seal_sha1(&start, block, at, data, utc)
            }
        };
        (end, taken)
    }

    fn seal(&mut self, block: &mut [u8], at: usize, data: Range<usize>, write_len: usize) -> usize {
        let order = self.kind.order();
        let padding = match self.kind {
            AdlerVariant::Sha1 => draw_padding(write_len, &mut self.noise).min(16),
            AdlerVariant::Sha1V2 | AdlerVariant::Sha1V4 | AdlerVariant::Aes128 => {
                draw_padding(write_len, &mut self.noise)
            }
        };
        let padding_at = at + self.kind.head_len();
        let data_at = padding_at + padding;
        let tail_at = data_at + data.len();
        block.copy_within(data, data_at);
        order.put(&mut block[at..], tail_at + TAIL_LEN - at);
        if self.kind.head_len() == 4 {
            let check = crc32(&block[at..at + 2]).to_le_bytes();
            block[at + 2..at + 4].copy_from_slice(&check[..2]);
        }
        put_padding(&mut block[padding_at..data_at], order, &mut self.noise);
        let tail = self.tail(&block[at..tail_at], self.sent);
        block[tail_at..tail_at + TAIL_LEN].copy_from_slice(&tail);
        self.sent = self.sent.wrapping_add(1);
        tail_at + TAIL_LEN
    }

    fn open(&mut self, unread: &mut [u8]) -> Result<Step, WireError> {
        let head_len = self.kind.head_len();
        if let Some(step) = short(unread, head_len) {
            return Ok(step);
        }
        let len = self.kind.order().get(unread);
        if head_len == 4 && crc32(&unread[..2]).to_le_bytes()[..2] != unread[2..4] {
            return Err(BAD_TAG);
        }
        if !(head_len + 1 + TAIL_LEN..MAX_PACKET).contains(&len) {
            return Err(bad_len(len));
        }
        if let Some(step) = short(unread, len) {
            return Ok(step);
        }
        let tail_at = len - TAIL_LEN;
        if self.tail(&unread[..tail_at], self.received) != unread[tail_at..len] {
            return Err(BAD_TAG);
        }
        self.received = self.received.wrapping_add(1);
        let padding = self.kind.padding_len(&unread[head_len..tail_at]).ok_or_else(|| bad_len(len))?;
        Ok(Step::Packet { len, data: head_len + padding..tail_at })
    }
}

/// The CRC-32 that shows the key at the front of a header.
fn key_check(kind: AdlerVariant, len: &[u8], key: &[u8]) -> [u8; 4] {
    crc32(&zeroize::Zeroizing::new([len, kind.salt(), key].concat())).to_le_bytes()
}

/// AES key of `auth_aes128`'s header.
fn aes_key(user: u32, key: &[u8]) -> [u8; 16] {
    let whole = zeroize::Zeroizing::new([&user.to_le_bytes(), key].concat());
    let base64 = zeroize::Zeroizing::new(STANDARD.encode(&whole[..]));
    md5(&[base64.as_bytes(), AdlerVariant::Aes128.salt()])
}

/// Reads a client's header.
pub(super) fn accept(kind: AdlerVariant, knock: &Knock<'_>, unread: &[u8]) -> Result<ClientHeader, Refusal> {
    match kind {
        AdlerVariant::Aes128 => accept_aes(knock, unread),
        AdlerVariant::Sha1 | AdlerVariant::Sha1V2 | AdlerVariant::Sha1V4 => accept_sha1(kind, knock, unread),
    }
}

fn accept_sha1(kind: AdlerVariant, knock: &Knock<'_>, unread: &[u8]) -> Result<ClientHeader, Refusal> {
    let key = knock.config.key.bytes();
    let (check, len_at) = if kind == AdlerVariant::Sha1V4 { (2..6, 0) } else { (0..4, 4) };
    if unread.len() < 6 {
        return Ok(ClientHeader::NeedMore(6 - unread.len()));
    }
    let len_bytes = if kind == AdlerVariant::Sha1V4 { &unread[..2] } else { &[] };
    if unread[check] != key_check(kind, len_bytes, key) {
        return Err(Refusal::WrongKey);
    }
    let len = Order::Big.get(&unread[len_at..]);
    if !(6 + 1 + IDS_LEN + TAG_LEN..=MAX_HEADER).contains(&len) {
        return Err(Refusal::Malformed { what: "length of the header" });
    }
    if unread.len() < len {
        return Ok(ClientHeader::NeedMore(len - unread.len()));
    }
    let (signed, tag) = unread[..len].split_at(len - TAG_LEN);
    if HmacSha1::new(&[knock.keyed]).tag(signed)[..TAG_LEN] != *tag {
        return Err(Refusal::Malformed { what: "tag of the header" });
    }
    let padding = kind.padding_len(&signed[6..]);
    let ids_at = 6 + padding.ok_or(Refusal::Malformed { what: "padding of the header" })?;
    let Some(ids) = signed.get(ids_at..ids_at + IDS_LEN) else {
        return Err(Refusal::Malformed { what: "padding of the header" });
    };
    let (ids, _) = ids.as_chunks::<4>();
    let (first, second) = (u32::from_le_bytes(ids[0]), u32::from_le_bytes(ids[1]));
    let client = match kind {
        AdlerVariant::Sha1V2 => u64::from(first) | u64::from(second) << 32,
        AdlerVariant::Sha1 => {
            knock.check_clock(first, SHORT_WINDOW_S)?;
            knock.check_start(first)?;
            second.into()
        }
        AdlerVariant::Sha1V4 | AdlerVariant::Aes128 => {
            knock.check_clock(first, WINDOW_S)?;
            second.into()
        }
    };
    knock.admit(&Claim { user: 0, client, connection: u32::from_le_bytes(ids[2]) })?;
    let codec = Box::new(Adler::server(kind, knock.noise()));
    Ok(ClientHeader::Whole { len, data: ids_at + IDS_LEN..len - TAG_LEN, user: None, codec })
}

fn accept_aes(knock: &Knock<'_>, unread: &[u8]) -> Result<ClientHeader, Refusal> {
    if unread.len() < AES_HEAD {
        return Ok(ClientHeader::NeedMore(AES_HEAD - unread.len()));
    }
    if HmacSha1::new(&[knock.keyed]).tag(&unread[..20])[..TAG_LEN] != unread[20..AES_HEAD] {
        return Err(Refusal::WrongKey);
    }
    let user = u32::from_le_bytes([unread[0], unread[1], unread[2], unread[3]]);
    let block = AesBlock::new(&aes_key(user, knock.config.key.bytes()));
    let ids = super::aes128::HeaderIds::open(&block, &unread[4..20]);
    if !(AES_HEAD + ids.padding + TAIL_LEN..=MAX_HEADER).contains(&ids.len) {
        return Err(Refusal::Malformed { what: "length of the header" });
    }
    if unread.len() < ids.len {
        return Ok(ClientHeader::NeedMore(ids.len - unread.len()));
    }
    let tail_at = ids.len - TAIL_LEN;
    if adler32(&unread[..tail_at]).to_le_bytes() != unread[tail_at..ids.len] {
        return Err(Refusal::Malformed { what: "checksum of the header" });
    }
    knock.check_clock(ids.utc, WINDOW_S)?;
    knock.admit(&Claim { user: 0, client: ids.client.into(), connection: ids.connection })?;
    let codec = Box::new(Adler::server(AdlerVariant::Aes128, knock.noise()));
    Ok(ClientHeader::Whole { len: ids.len, data: AES_HEAD + ids.padding..tail_at, user: None, codec })
}
