//! `auth_aes128_md5`, `auth_aes128_sha1`, `auth_aes128_fast`.
//!
//! ```text
//! header   0  random 1
//!          1  mac(IV | K, byte 0) 6
//!          7  user id u32le                        random where there are no users
//!         11  AES-128 block 16                     time, client, connection (u32le each), length, padding (u16le each)
//!         27  mac(IV | K, bytes 7 to 26) 4
//!         31  padding | payload
//!   len - 4   mac(U, all before) 4
//! packet   0  len u16le                            all of the packet; 8191 at most
//!          2  mac(U | id, bytes 0 and 1) 2         id: u32le, counts the packets of a direction from 1
//!          4  padding field | payload
//!   len - 4   mac(U | id, all before) 4
//! ```
//!
//! K is the server's key, U the user's. The mac is HMAC-MD5, HMAC-SHA1, or SipHash-1-3 under a key of 16 bytes: one of
//! another length is folded first. Source: `docs/protocols/ssr.md`, 2.6 and 2.7.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::Start;
use super::lanes::{Lanes, VerifiedLengths};
use super::packets::{
    BAD_TAG, Codec, MAX_PADDING, Order, Step, bad_len, draw_padding, padding_len, pieces, put_padding, short,
};
use super::server::{Claim, ClientHeader, Knock};
use crate::crypto::{AesBlock, HmacMd5, HmacSha1, LANES, Noise, siphash13};
use crate::ssr::Refusal;
use crate::ssr::key::{UserKey, first_16};
use crate::ssr::refusal::low_32;
use crate::wire::{Rng, WireError};

const HEAD_LEN: usize = 31;
pub(super) const TAG_LEN: usize = 4;
/// In front of a packet's padding.
pub(super) const PACKET_HEAD: usize = 4;
/// A packet is shorter than this (observed from SSRR 3.2.2).
pub(super) const MAX_PACKET: usize = 8192;
/// Longest header that is accepted; the C client's have up to 2258 bytes.
const MAX_HEADER: usize = 8191;
/// Longest padding of a header that is sent.
const MAX_HEADER_PADDING: u16 = 1024;
/// Most payload that rides in the header (as the fork's C client).
const MAX_FIRST: usize = 1200;
const WINDOW_S: u32 = 86_400;

/// The authentication code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssr) enum Mac {
    Md5,
    Sha1,
    Fast,
}

/// A key of a [`Mac`], made ready.
pub(in crate::ssr) enum MacKey {
    Md5(HmacMd5),
    Sha1(HmacSha1),
    Fast([u8; 16]),
}

impl Mac {
    /// Makes the concatenation of `parts` (64 bytes at most for [`Mac::Fast`]) ready.
    pub(in crate::ssr) fn key(self, parts: &[&[u8]]) -> MacKey {
        match self {
            Self::Md5 => MacKey::Md5(HmacMd5::new(parts)),
            Self::Sha1 => MacKey::Sha1(HmacSha1::new(parts)),
            Self::Fast => MacKey::Fast(fold(parts)),
        }
    }
}

/// A key of exactly 16 bytes is taken as it is, any other hashed to 8 bytes, which are written twice.
pub(super) fn fold(parts: &[&[u8]]) -> [u8; 16] {
    let mut whole = [0; 64];
    let mut len = 0;
    for part in parts {
        whole[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    let start = first_16(&whole[..len]);
    if len == 16 {
        return start;
    }
    let half = siphash13(&start, &whole[..len]);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&half);
    key[8..].copy_from_slice(&half);
    key
}

impl MacKey {
    /// The first 8 bytes of the code.
    pub(in crate::ssr) fn tag(&self, message: &[u8]) -> [u8; 8] {
        let mut tag = [0; 8];
        match self {
            Self::Md5(key) => tag.copy_from_slice(&key.tag(message)[..8]),
            Self::Sha1(key) => tag.copy_from_slice(&key.tag(message)[..8]),
            Self::Fast(key) => tag = siphash13(key, message),
        }
        tag
    }
}

/// One connection.
pub(super) struct Aes128 {
    mac: Mac,
    noise: Noise,
    user: Arc<UserKey>,
    start: Option<Box<Start>>,
    /// Id of the next packet.
    send_id: u32,
    receive_id: u32,
    /// Whole packets at the front of the unread bytes whose tags fit.
    ahead: VerifiedLengths,
}

impl fmt::Debug for Aes128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aes128").field("mac", &self.mac).finish_non_exhaustive()
    }
}

impl Aes128 {
    pub(super) fn client(mac: Mac, start: Start, noise: Noise) -> Self {
        let user = Arc::clone(&start.user_key);
        Self {
            mac,
            noise,
            user,
            start: Some(Box::new(start)),
            send_id: 1,
            receive_id: 1,
            ahead: VerifiedLengths::default(),
        }
    }

    fn packet_key(&self, id: u32) -> MacKey {
        self.mac.key(&[self.user.secret(), &id.to_le_bytes()])
    }

    /// The keys of `count` packets from `id` on, where several codes at a time are faster.
    fn lanes(&self, id: u32, count: usize) -> Option<Lanes> {
        Lanes::new(self.mac, self.user.secret(), id, count)
    }

    /// Writes a packet without its codes, and returns where it lies.
    fn lay(&mut self, block: &mut [u8], at: usize, data: Range<usize>, write_len: usize) -> Range<usize> {
        let padding = draw_padding(write_len, &mut self.noise);
        let data_at = at + PACKET_HEAD + padding;
        let end = data_at + data.len() + TAG_LEN;
        block.copy_within(data, data_at);
        Order::Little.put(&mut block[at..], end - at);
        put_padding(&mut block[at + PACKET_HEAD..data_at], Order::Little, &mut self.noise);
        at..end
    }

    /// Writes the codes of the next packets.
    fn sign(&mut self, block: &mut [u8], packets: &[Range<usize>]) {
        if let Some(lanes) = self.lanes(self.send_id, packets.len()) {
            lanes.sign(block, packets);
            self.send_id = self.send_id.wrapping_add(u32::try_from(packets.len()).expect("some lanes"));
            return;
        }
        for packet in packets {
            let key = self.packet_key(self.send_id);
            let (at, tail_at) = (packet.start, packet.end - TAG_LEN);
            let check = key.tag(&block[at..at + 2]);
            block[at + 2..at + PACKET_HEAD].copy_from_slice(&check[..2]);
            let tag = key.tag(&block[at..tail_at]);
            block[tail_at..packet.end].copy_from_slice(&tag[..TAG_LEN]);
            self.send_id = self.send_id.wrapping_add(1);
        }
    }

    /// A packet of `len` bytes whose tags fit.
    fn opened(&mut self, unread: &[u8], len: usize) -> Result<Step, WireError> {
        self.receive_id = self.receive_id.wrapping_add(1);
        let tail_at = len - TAG_LEN;
        let padding =
            padding_len(&unread[PACKET_HEAD..tail_at], Order::Little).ok_or_else(|| bad_len(len))?;
        Ok(Step::Packet { len, data: PACKET_HEAD + padding..tail_at })
    }
}

impl Codec for Aes128 {
    fn unit(&self) -> usize {
        8100
    }

    fn full_overhead(&self) -> usize {
        PACKET_HEAD + 1 + TAG_LEN
    }

    fn max_overhead(&self) -> usize {
        PACKET_HEAD + MAX_PADDING + TAG_LEN
    }

    fn header_overhead(&self) -> usize {
        if self.start.is_some() { HEAD_LEN + usize::from(MAX_HEADER_PADDING) + TAG_LEN } else { 0 }
    }

    fn seal_header(
        &mut self,
        block: &mut [u8],
        at: usize,
        data: Range<usize>,
        _address_len: usize,
        unix_s: u64,
    ) -> (usize, usize) {
        let Some(start) = self.start.take() else { return (at, 0) };
        let taken = data.len().min(MAX_FIRST);
        let bound = if taken > 400 { MAX_HEADER_PADDING / 2 } else { MAX_HEADER_PADDING };
        let padding = self.noise.below(bound.into()) as usize;
        let data_at = at + HEAD_LEN + padding;
        let tail_at = data_at + taken;
        block.copy_within(data.start..data.start + taken, data_at);
        let keyed = self.mac.key(&[&start.keyed]);
        self.noise.fill(&mut block[at..at + 1]);
        let proof = keyed.tag(&block[at..at + 1]);
        block[at + 1..at + 7].copy_from_slice(&proof[..6]);
        block[at + 7..at + 11].copy_from_slice(&start.user.to_le_bytes());
        let mut ids = ids_block(&start, low_32(unix_s), tail_at + TAG_LEN - at, padding);
        AesBlock::new(self.user.header()).encrypt(&mut ids);
        block[at + 11..at + 27].copy_from_slice(&ids);
        let tag = keyed.tag(&block[at + 7..at + 27]);
        block[at + 27..at + HEAD_LEN].copy_from_slice(&tag[..TAG_LEN]);
        self.noise.fill(&mut block[at + HEAD_LEN..data_at]);
        let tag = self.mac.key(&[self.user.secret()]).tag(&block[at..tail_at]);
        block[tail_at..tail_at + TAG_LEN].copy_from_slice(&tag[..TAG_LEN]);
        (tail_at + TAG_LEN, taken)
    }

    fn seal(&mut self, block: &mut [u8], at: usize, data: Range<usize>, write_len: usize) -> usize {
        let packet = self.lay(block, at, data, write_len);
        let end = packet.end;
        self.sign(block, &[packet]);
        end
    }

    fn seal_all(&mut self, block: &mut [u8], mut at: usize, data: Range<usize>) -> usize {
        let (len, mut group, mut count) = (data.len(), [const { 0..0 }; LANES], 0);
        for piece in pieces(data, self.unit()) {
            if count == LANES {
                self.sign(block, &group);
                count = 0;
            }
            group[count] = self.lay(block, at, piece, len);
            at = group[count].end;
            count += 1;
        }
        self.sign(block, &group[..count]);
        at
    }

    fn open(&mut self, unread: &mut [u8]) -> Result<Step, WireError> {
        if let Some(step) = short(unread, PACKET_HEAD) {
            return Ok(step);
        }
        if self.ahead.is_empty() {
            self.ahead = VerifiedLengths::look(unread, |ids| self.lanes(self.receive_id, ids));
        }
        if let Some(len) = self.ahead.next() {
            return self.opened(unread, len);
        }
        let key = self.packet_key(self.receive_id);
        if key.tag(&unread[..2])[..2] != unread[2..PACKET_HEAD] {
            return Err(BAD_TAG);
        }
        let len = Order::Little.get(unread);
        if !(PACKET_HEAD + 1 + TAG_LEN..MAX_PACKET).contains(&len) {
            return Err(bad_len(len));
        }
        if let Some(step) = short(unread, len) {
            return Ok(step);
        }
        let tail_at = len - TAG_LEN;
        if key.tag(&unread[..tail_at])[..TAG_LEN] != unread[tail_at..len] {
            return Err(BAD_TAG);
        }
        self.opened(unread, len)
    }
}

/// The block of ids in a header, in clear.
pub(super) fn ids_block(start: &Start, utc: u32, len: usize, padding: usize) -> [u8; 16] {
    let mut ids = [0; 16];
    ids[..4].copy_from_slice(&utc.to_le_bytes());
    ids[4..8].copy_from_slice(&start.ids.client[..4]);
    ids[8..12].copy_from_slice(&start.ids.connection.to_le_bytes());
    Order::Little.put(&mut ids[12..], len);
    Order::Little.put(&mut ids[14..], padding);
    ids
}

/// The block of ids in a header, opened.
pub(super) struct HeaderIds {
    pub(super) utc: u32,
    pub(super) client: u32,
    pub(super) connection: u32,
    /// Length of the header; `auth_chain_*`: overhead.
    pub(super) len: usize,
    pub(super) padding: usize,
}

impl HeaderIds {
    /// `sealed` has 16 bytes.
    pub(super) fn open(key: &AesBlock, sealed: &[u8]) -> Self {
        let mut ids: [u8; 16] = sealed.try_into().expect("a block of 16 bytes");
        key.decrypt(&mut ids);
        let (words, _) = ids.as_chunks::<4>();
        let [utc, client, connection] = [0, 1, 2].map(|i: usize| u32::from_le_bytes(words[i]));
        Self {
            utc,
            client,
            connection,
            len: Order::Little.get(&ids[12..]),
            padding: Order::Little.get(&ids[14..]),
        }
    }
}

/// Reads a client's header.
pub(super) fn accept(mac: Mac, knock: &Knock<'_>, unread: &[u8]) -> Result<ClientHeader, Refusal> {
    if unread.len() < 7 {
        return Ok(ClientHeader::NeedMore(7 - unread.len()));
    }
    let keyed = mac.key(&[knock.keyed]);
    if keyed.tag(&unread[..1])[..6] != unread[1..7] {
        return Err(Refusal::WrongKey);
    }
    if unread.len() < HEAD_LEN {
        return Ok(ClientHeader::NeedMore(HEAD_LEN - unread.len()));
    }
    if keyed.tag(&unread[7..27])[..TAG_LEN] != unread[27..HEAD_LEN] {
        return Err(Refusal::Malformed { what: "tag of the user id" });
    }
    let id = u32::from_le_bytes([unread[7], unread[8], unread[9], unread[10]]);
    let (user, user_key) = knock.user(id)?;
    let ids = HeaderIds::open(&AesBlock::new(user_key.header()), &unread[11..27]);
    if !(HEAD_LEN + ids.padding + TAG_LEN..=MAX_HEADER).contains(&ids.len) {
        // Under another secret the block opens to anything.
        return Err(user.map_or(Refusal::WrongKey, |id| Refusal::WrongSecret { id }));
    }
    if unread.len() < ids.len {
        return Ok(ClientHeader::NeedMore(ids.len - unread.len()));
    }
    let tail_at = ids.len - TAG_LEN;
    if mac.key(&[user_key.secret()]).tag(&unread[..tail_at])[..TAG_LEN] != unread[tail_at..ids.len] {
        return Err(
            user.map_or(Refusal::Malformed { what: "tag of the header" }, |id| Refusal::WrongSecret { id })
        );
    }
    knock.check_clock(ids.utc, WINDOW_S)?;
    let claim =
        Claim { user: user.unwrap_or_default(), client: ids.client.into(), connection: ids.connection };
    knock.admit(&claim)?;
    let codec = Aes128 {
        mac,
        noise: knock.noise(),
        user: user_key,
        start: None,
        send_id: 1,
        receive_id: 1,
        ahead: VerifiedLengths::default(),
    };
    Ok(ClientHeader::Whole {
        len: ids.len,
        data: HEAD_LEN + ids.padding..tail_at,
        user,
        codec: Box::new(codec),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssr::ssr_fuzz::testing::{hex, vectors};

    #[test]
    fn recorded_codes() {
        for row in vectors("siphash13_mac.json") {
            let part = |name: &str| hex(row[name].as_str().unwrap());
            let (key, message) = (part("key"), part("msg"));
            let (left, right) = key.split_at(key.len() / 3);
            assert_eq!(Mac::Fast.key(&[left, right]).tag(&message)[..], part("mac8"));
        }
    }
}
