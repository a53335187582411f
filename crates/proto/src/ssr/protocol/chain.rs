//! `auth_chain_a` to `auth_chain_f`: each packet's tag keys the next one's length and padding.
//!
//! ```text
//! header   0  random 4
//!          4  H0 8                     H0 = HMAC-MD5(IV | K, bytes 0 to 3)
//!         12  user id u32le, XOR H0[8..12]
//!         16  AES-128 block 16         time, client, connection (u32le each), overhead, 0 (u16le each)
//!         32  S0 4                     S0 = HMAC-MD5(U, bytes 12 to 31)
//! packet   0  length of the payload u16le, XOR last[14..16]
//!          2  padding in front | payload under RC4 | padding behind
//!          .  tag 2                    last = HMAC-MD5(U | id, all before); id: u32le, counts from 1
//! ```
//!
//! `last` begins as H0 (client's direction) and S0 (server's). Both directions have the RC4 key MD5(base64(U) |
//! base64(H0)). The server's first packet begins with the size of its TCP segments (u16le), which says how long the
//! client's packets may be. Lengths of paddings: [`Sizes`]. Source: `docs/protocols/ssr.md`, 2.8.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::packets::{BAD_TAG, Codec, Order, Step, bad_len, short};
use super::server::{Claim, ClientHeader, Knock};
use super::sizes::{self, MAX_PADDING, Sizes};
use super::{Start, aes128, sizes_for};
use crate::crypto::stream::{Cipher, Direction, StreamAlgorithm, StreamCipherKey};
use crate::crypto::{AesBlock, HmacMd5, HmacMd5Lanes, LANES, Noise, md5};
use crate::ssr::key::UserKey;
use crate::ssr::refusal::low_32;
use crate::ssr::{Chain, Refusal};
use crate::wire::{Rng, WireError};

const HEAD_LEN: usize = 36;
const LEN_LEN: usize = 2;
const TAG_LEN: usize = 2;
/// Payload and padding of a packet are shorter than this together.
const MAX_BODY: usize = 4096;
/// Payload of the client's packets (as SSRR 3.2.2 and mihomo cut).
const CLIENT_UNIT: usize = 2800;
/// Size of a TCP segment that the server announces and cuts by.
const SEGMENT: u16 = 1460;
/// Fewer packets are hashed faster one by one.
const FEWEST: usize = 3;
/// Shorter packets come alone: nothing is guessed from them.
const LONG_PACKET: usize = 1000;
/// Shortest unit: payloads longer than this have no padding in any variant.
const MIN_UNIT: usize = MAX_PADDING + 1;
const SEGMENT_LEN: usize = 2;
const WINDOW_S: u32 = 86_400;

/// Length of the padding of a datagram, 0 to 126 bytes.
pub(in crate::ssr) fn udp_padding_len(hash: &[u8; 16]) -> usize {
    sizes::udp_padding(hash)
}

/// One direction.
struct Way {
    cipher: Cipher,
    last: [u8; 16],
    id: u32,
}

impl Way {
    fn new(key: &StreamCipherKey, last: [u8; 16]) -> Self {
        Self { cipher: key.cipher(&[], Direction::Encrypt), last, id: 1 }
    }

    fn mask(&self) -> usize {
        Order::Little.get(&self.last[14..])
    }

    fn tag(&self, user: &UserKey, packet: &[u8]) -> [u8; 16] {
        HmacMd5::new(&[user.secret(), &self.id.to_le_bytes()]).tag(packet)
    }

    /// The tags of the packets at the front of `unread` if all are as long as the first one, whose tag stands at `tag_at`.
    ///
    /// The length of a packet is under the tag of the one before, so that a receiver cannot know where the next one ends.
    /// In the middle of a long write all are alike. That is the guess, made once two have been. A tag counts only for a packet that turns
    /// out to be of this length.
    fn guess(&self, user: &UserKey, unread: &[u8], tag_at: usize) -> Guessed {
        let mut messages = [&unread[..0]; LANES];
        let packets = unread.chunks_exact(tag_at + TAG_LEN).take(LANES);
        let count =
            messages.iter_mut().zip(packets).map(|(message, packet)| *message = &packet[..tag_at]).count();
        let nothing = Guessed { tag_at, ..Guessed::default() };
        if count < FEWEST {
            return nothing;
        }
        let mut id = self.id;
        let ids: [[u8; 4]; LANES] = std::array::from_fn(|_| {
            id = id.wrapping_add(1);
            id.wrapping_sub(1).to_le_bytes()
        });
        let Some(keys) = HmacMd5Lanes::new(user.secret(), &ids[..count]) else { return nothing };
        Guessed { tags: keys.tags(&messages[..count]), tag_at, next: 0, count }
    }

    fn apply(&mut self, payload: &mut [u8]) {
        self.cipher.apply(payload).expect("RC4 does not end");
    }

    fn advance(&mut self, tag: [u8; 16]) {
        self.last = tag;
        self.id = self.id.wrapping_add(1);
    }
}

/// Tags of the next packets, for the case that they are of the same length. The bytes must not change before the packets
/// are consumed.
#[derive(Default)]
struct Guessed {
    tags: [[u8; 16]; LANES],
    /// Bytes in front of the tag of each packet, and of the last one where nothing is guessed.
    tag_at: usize,
    next: usize,
    count: usize,
}

impl Guessed {
    /// The tag of the next packet, if it is `tag_at` bytes long without it. A packet of another length ends the guess.
    fn next(&mut self, tag_at: usize) -> Option<[u8; 16]> {
        if self.next == self.count || self.tag_at != tag_at {
            *self = Self { tag_at, ..Self::default() };
            return None;
        }
        self.next += 1;
        Some(self.tags[self.next - 1])
    }
}

/// One connection.
pub(super) struct ChainCodec {
    letter: Chain,
    user: Arc<UserKey>,
    noise: Noise,
    start: Option<Box<Start>>,
    /// `None` until the client's header has left.
    ways: Option<[Way; 2]>,
    sizes: Option<Sizes>,
    unit: usize,
    /// The size of segments stands in front of the next payload that leaves, or that comes.
    announces: bool,
    expects_segment: bool,
    guessed: Box<Guessed>,
}

const STARTED: &str = "the header comes before packets";

impl fmt::Debug for ChainCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainCodec").field("letter", &self.letter).finish_non_exhaustive()
    }
}

/// The ways of sending and receiving of a client; a server's are the other way round.
fn ways(user: &UserKey, first: [u8; 16], second: [u8; 16]) -> [Way; 2] {
    let base64 = STANDARD.encode(first);
    let key =
        StreamCipherKey::new(StreamAlgorithm::Rc4, &md5(&[user.base64().as_bytes(), base64.as_bytes()]));
    [Way::new(&key, first), Way::new(&key, second)]
}

impl ChainCodec {
    pub(super) fn client(letter: Chain, start: Start, noise: Noise) -> Self {
        Self {
            letter,
            user: Arc::clone(&start.user_key),
            noise,
            start: Some(Box::new(start)),
            ways: None,
            sizes: None,
            unit: CLIENT_UNIT,
            announces: false,
            expects_segment: true,
            guessed: Box::default(),
        }
    }
}

impl Codec for ChainCodec {
    fn unit(&self) -> usize {
        self.unit
    }

    fn full_overhead(&self) -> usize {
        LEN_LEN + TAG_LEN
    }

    fn max_overhead(&self) -> usize {
        LEN_LEN + SEGMENT_LEN + MAX_PADDING + TAG_LEN
    }

    fn header_overhead(&self) -> usize {
        if self.start.is_some() { HEAD_LEN } else { 0 }
    }

    fn seal_header(
        &mut self,
        block: &mut [u8],
        at: usize,
        _data: Range<usize>,
        _address_len: usize,
        unix_s: u64,
    ) -> (usize, usize) {
        let Some(start) = self.start.take() else { return (at, 0) };
        let utc = low_32(unix_s);
        let head = &mut block[at..at + HEAD_LEN];
        self.noise.fill(&mut head[..4]);
        let first = HmacMd5::new(&[&start.keyed]).tag(&head[..4]);
        head[4..12].copy_from_slice(&first[..8]);
        head[12..16].copy_from_slice(&start.user.to_le_bytes());
        head[12..16].iter_mut().zip(&first[8..]).for_each(|(byte, mask)| *byte ^= mask);
        let mut ids = aes128::ids_block(&start, utc, start.overhead.into(), 0);
        AesBlock::new(self.user.header()).encrypt(&mut ids);
        head[16..32].copy_from_slice(&ids);
        let second = HmacMd5::new(&[self.user.secret()]).tag(&head[12..32]);
        head[32..].copy_from_slice(&second[..4]);
        self.ways = Some(ways(&self.user, first, second));
        self.sizes = Some(sizes_for(self.letter, &start.key, start.overhead, utc, start.interval_s));
        (at + HEAD_LEN, 0)
    }

    fn seal(&mut self, block: &mut [u8], at: usize, data: Range<usize>, _write_len: usize) -> usize {
        let [way, _] = self.ways.as_mut().expect(STARTED);
        let announced = if std::mem::take(&mut self.announces) { SEGMENT_LEN } else { 0 };
        let len = announced + data.len();
        let (padding, front) = self.sizes.as_ref().expect(STARTED).padding(len, &way.last);
        let payload_at = at + LEN_LEN + front;
        let (payload_end, tag_at) = (payload_at + len, payload_at + len + padding - front);
        block.copy_within(data, payload_at + announced);
        block[payload_at..payload_at + announced].copy_from_slice(&SEGMENT.to_le_bytes()[..announced]);
        Order::Little.put(&mut block[at..], len ^ way.mask());
        self.noise.fill(&mut block[at + LEN_LEN..payload_at]);
        way.apply(&mut block[payload_at..payload_end]);
        self.noise.fill(&mut block[payload_end..tag_at]);
        let tag = way.tag(&self.user, &block[at..tag_at]);
        block[tag_at..tag_at + TAG_LEN].copy_from_slice(&tag[..TAG_LEN]);
        way.advance(tag);
        tag_at + TAG_LEN
    }

    fn open(&mut self, unread: &mut [u8]) -> Result<Step, WireError> {
        let Some([_, way]) = self.ways.as_mut() else { return Err(BAD_TAG) };
        if let Some(step) = short(unread, LEN_LEN) {
            return Ok(step);
        }
        let payload_len = Order::Little.get(unread) ^ way.mask();
        if payload_len >= MAX_BODY {
            return Err(bad_len(payload_len));
        }
        let (padding, front) = self.sizes.as_ref().expect(STARTED).padding(payload_len, &way.last);
        if payload_len + padding >= MAX_BODY {
            return Err(bad_len(payload_len + padding));
        }
        let tag_at = LEN_LEN + payload_len + padding;
        let len = tag_at + TAG_LEN;
        if let Some(step) = short(unread, len) {
            return Ok(step);
        }
        let is_alike = self.guessed.tag_at == tag_at;
        let mut tag = self.guessed.next(tag_at);
        if tag.is_none() && is_alike && tag_at >= LONG_PACKET {
            *self.guessed = way.guess(&self.user, unread, tag_at);
            tag = self.guessed.next(tag_at);
        }
        let tag = tag.unwrap_or_else(|| way.tag(&self.user, &unread[..tag_at]));
        if tag[..TAG_LEN] != unread[tag_at..len] {
            return Err(BAD_TAG);
        }
        way.advance(tag);
        let mut data = LEN_LEN + front..LEN_LEN + front + payload_len;
        way.apply(&mut unread[data.clone()]);
        if std::mem::take(&mut self.expects_segment) {
            if payload_len < SEGMENT_LEN {
                return Err(bad_len(payload_len));
            }
            data.start += SEGMENT_LEN;
        }
        Ok(Step::Packet { len, data })
    }
}

/// Reads a client's header.
pub(super) fn accept(letter: Chain, knock: &Knock<'_>, unread: &[u8]) -> Result<ClientHeader, Refusal> {
    if unread.len() < 12 {
        return Ok(ClientHeader::NeedMore(12 - unread.len()));
    }
    let first = HmacMd5::new(&[knock.keyed]).tag(&unread[..4]);
    if first[..8] != unread[4..12] {
        return Err(Refusal::WrongKey);
    }
    if unread.len() < HEAD_LEN {
        return Ok(ClientHeader::NeedMore(HEAD_LEN - unread.len()));
    }
    let id = u32::from_le_bytes(std::array::from_fn(|i| unread[12 + i] ^ first[8 + i]));
    let (user, user_key) = knock.user(id)?;
    let second = HmacMd5::new(&[user_key.secret()]).tag(&unread[12..32]);
    if second[..4] != unread[32..HEAD_LEN] {
        return Err(
            user.map_or(Refusal::Malformed { what: "tag of the header" }, |id| Refusal::WrongSecret { id })
        );
    }
    let ids = aes128::HeaderIds::open(&AesBlock::new(user_key.header()), &unread[16..32]);
    knock.check_clock(ids.utc, WINDOW_S)?;
    let claim =
        Claim { user: user.unwrap_or_default(), client: ids.client.into(), connection: ids.connection };
    knock.admit(&claim)?;
    let config = knock.config;
    let [receive, send] = ways(&user_key, first, second);
    let codec = ChainCodec {
        letter,
        user: user_key,
        noise: knock.noise(),
        start: None,
        ways: Some([send, receive]),
        sizes: Some(sizes_for(letter, &config.key, config.overhead, ids.utc, config.interval_s)),
        unit: usize::from(SEGMENT).saturating_sub(ids.len).max(MIN_UNIT),
        announces: true,
        expects_segment: false,
        guessed: Box::default(),
    };
    Ok(ClientHeader::Whole { len: HEAD_LEN, data: HEAD_LEN..HEAD_LEN, user, codec: Box::new(codec) })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::server::SsrServerConfig;
    use super::*;
    use crate::ssr::ssr_fuzz::testing::{Zeros, hex, vectors};
    use crate::ssr::{SsrKey, SsrProtocol};

    fn chunks(row: &Value, way: &str) -> Vec<u8> {
        let chunks = row["chunks"].as_array().unwrap().iter().filter(|chunk| chunk[0] == way);
        chunks.flat_map(|chunk| hex(chunk[1].as_str().unwrap())).collect()
    }

    /// A client that had sent a recorded header reads the recorded answer, packet by packet as they were counted.
    #[test]
    fn recorded_answers() {
        let payload: Value =
            serde_json::from_slice(include_bytes!("../../../../../testdata/ssr/payload.json")).unwrap();
        for row in vectors("tcp_chain_b_to_f.json").iter().filter(|row| row["method"] == "none") {
            let protocol: SsrProtocol = row["protocol"].as_str().unwrap().parse().unwrap();
            let SsrProtocol::AuthChain(letter) = protocol else { panic!("{protocol}") };
            let key =
                SsrKey::from_password("none".parse().unwrap(), row["password"].as_str().unwrap().as_bytes());
            let interval = row["key_change_interval"].as_u64().unwrap_or(86_400);
            let config = SsrServerConfig::new(protocol, &key, Arc::default(), 0);
            let (_, user) = config.user(0).unwrap();
            let header = chunks(row, "c2s");
            let first = HmacMd5::new(&[key.bytes()]).tag(&header[..4]);
            let second = HmacMd5::new(&[user.secret()]).tag(&header[12..32]);
            let utc = row["decoded"]["utc"].as_u64().unwrap().try_into().unwrap();
            let mut codec = ChainCodec {
                letter,
                ways: Some(ways(&user, first, second)),
                user,
                noise: Noise::draw(&mut Zeros),
                start: None,
                sizes: Some(sizes_for(letter, &key, 4, utc, interval)),
                unit: CLIENT_UNIT,
                announces: false,
                expects_segment: true,
                guessed: Box::default(),
            };
            let (mut rest, mut plain) = (chunks(row, "s2c"), Vec::new());
            while !rest.is_empty() {
                let Step::Packet { len, data } = codec.open(&mut rest).unwrap() else {
                    panic!("{protocol}: cut")
                };
                plain.extend_from_slice(&rest[data]);
                rest.drain(..len);
            }
            assert!(plain == hex(payload["s2c"].as_str().unwrap()), "{protocol}");
        }
    }
}
