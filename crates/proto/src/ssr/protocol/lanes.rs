//! Codes of the packets of `auth_aes128_*`, several at a time.
//!
//! The packets of one write have keys of their own and do not depend on each other. HMAC-MD5 and SipHash-1-3 of eight of
//! them take little more time than one. HMAC-SHA1 has instructions of its own and gains nothing.

use std::array;
use std::ops::Range;

use super::aes128::{MAX_PACKET, Mac, PACKET_HEAD, TAG_LEN, fold};
use super::packets::Order;
use crate::crypto::{HmacMd5Lanes, LANES, Sip13Lanes};

/// Fewer packets are faster one by one: all lanes together take as long as two HMAC-MD5, or as three and a half SipHash
/// (measured on a processor with AVX2).
const FEWEST_MD5: usize = 3;
const FEWEST_FAST: usize = 4;
const LEN_LEN: usize = 2;

/// The keys of consecutive packets.
#[derive(Debug)]
pub(super) enum Lanes {
    Md5(HmacMd5Lanes),
    Fast(Sip13Lanes),
}

impl Lanes {
    /// The keys `secret | id` of `count` packets (at most [`LANES`]), ids from `id` on; `None` where one by one is as fast.
    pub(super) fn new(mac: Mac, secret: &[u8], id: u32, count: usize) -> Option<Self> {
        let fewest = match mac {
            Mac::Md5 => FEWEST_MD5,
            Mac::Fast => FEWEST_FAST,
            Mac::Sha1 => return None,
        };
        if count < fewest {
            return None;
        }
        let id = |lane: u32| id.wrapping_add(lane).to_le_bytes();
        let mut lane = 0_u32;
        let ids: [[u8; 4]; LANES] = array::from_fn(|_| {
            lane += 1;
            id(lane - 1)
        });
        match mac {
            Mac::Md5 => HmacMd5Lanes::new(secret, &ids[..count]).map(Self::Md5),
            Mac::Fast => Sip13Lanes::new(&ids.map(|id| fold(&[secret, &id]))[..count]).map(Self::Fast),
            Mac::Sha1 => None,
        }
    }

    /// The first four bytes of each message's code.
    fn tags(&self, messages: &[&[u8]]) -> [[u8; TAG_LEN]; LANES] {
        let short = |tag: &[u8]| *tag.first_chunk().expect("codes are longer");
        match self {
            Self::Md5(keys) => keys.tags(messages).map(|tag| short(&tag)),
            Self::Fast(keys) => keys.tags(messages).map(|tag| short(&tag)),
        }
    }

    /// Writes both codes of each of `packets`.
    pub(super) fn sign(&self, block: &mut [u8], packets: &[Range<usize>]) {
        let checks = self.tags_of(packets, |packet| &block[packet.start..packet.start + LEN_LEN]);
        for (packet, check) in packets.iter().zip(checks) {
            block[packet.start + LEN_LEN..packet.start + PACKET_HEAD].copy_from_slice(&check[..2]);
        }
        let tags = self.tags_of(packets, |packet| &block[packet.start..packet.end - TAG_LEN]);
        for (packet, tag) in packets.iter().zip(tags) {
            block[packet.end - TAG_LEN..packet.end].copy_from_slice(&tag);
        }
    }

    /// The number of `packets`, from the first on, that have the codes that they must have.
    fn count_right(&self, bytes: &[u8], packets: &[Range<usize>]) -> usize {
        let checks = self.tags_of(packets, |packet| &bytes[packet.start..packet.start + LEN_LEN]);
        let tags = self.tags_of(packets, |packet| &bytes[packet.start..packet.end - TAG_LEN]);
        let is_right = |(packet, (check, tag)): &(&Range<usize>, ([u8; TAG_LEN], [u8; TAG_LEN]))| {
            check[..2] == bytes[packet.start + LEN_LEN..packet.start + PACKET_HEAD]
                && tag[..] == bytes[packet.end - TAG_LEN..packet.end]
        };
        packets.iter().zip(checks.into_iter().zip(tags)).take_while(is_right).count()
    }

    fn tags_of<'b>(
        &self,
        packets: &[Range<usize>],
        message: impl Fn(&Range<usize>) -> &'b [u8],
    ) -> [[u8; TAG_LEN]; LANES] {
        let messages: [&[u8]; LANES] =
            array::from_fn(|lane| packets.get(lane).map(&message).unwrap_or_default());
        self.tags(&messages[..packets.len()])
    }
}

/// Lengths of packets at the front of the unread bytes whose codes have been found right. The bytes must not change
/// before they are consumed, packet by packet.
#[derive(Debug, Default)]
pub(super) struct VerifiedLengths {
    lens: [u16; LANES],
    next: u8,
    count: u8,
}

impl VerifiedLengths {
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// The length of the next one.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        self.next += 1;
        self.lens.get(usize::from(self.next) - 1).map(|len| usize::from(*len))
    }

    /// Checks the whole packets in `unread`, if `lanes` has keys for so many. Finds nothing where the first one is wrong.
    pub(super) fn look(unread: &[u8], lanes: impl FnOnce(usize) -> Option<Lanes>) -> Self {
        let (mut packets, mut count, mut at) = ([const { 0..0 }; LANES], 0, 0);
        while count < LANES
            && let Some(len) = unread.get(at..at + LEN_LEN).map(|len| Order::Little.get(len))
            && (PACKET_HEAD + 1 + TAG_LEN..MAX_PACKET).contains(&len)
            && at + len <= unread.len()
        {
            packets[count] = at..at + len;
            (at, count) = (at + len, count + 1);
        }
        let packets = &packets[..count];
        let count = lanes(count).map_or(0, |lanes| lanes.count_right(unread, packets));
        let mut ahead = Self { count: u8::try_from(count).expect("some lanes"), ..Self::default() };
        for (len, packet) in ahead.lens.iter_mut().zip(packets) {
            *len = u16::try_from(packet.len()).expect("packets are shorter than 8 KiB");
        }
        ahead
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::super::packets::Codec;
    use super::super::{SsrClientConfig, SsrClientStream};
    use super::*;
    use crate::buf::RecvBuf;
    use crate::ssr::protocol::{SsrServerConfig, SsrServerStream};
    use crate::ssr::ssr_fuzz::testing::Zeros;
    use crate::ssr::{Chain, CipherLayer, Clients, SsrKey, SsrProtocol};
    use crate::wire::{Layer, Opened, WallClock, WireError};

    /// Seals with a codec what lies in a range of a block, from its start on; returns the end.
    type Seal<'a> = &'a dyn Fn(&mut dyn Codec, &mut [u8], Range<usize>) -> usize;

    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn now() -> Instant {
        Instant::now()
    }

    const UNIX_S: u64 = 1_800_000_000;

    /// A client and a server of `protocol` without a cipher, and `len` bytes sealed in one call.
    fn sealed(protocol: SsrProtocol, len: usize) -> (SsrClientStream, SsrServerStream, Vec<u8>) {
        let now = now();
        let key = SsrKey::from_password("none".parse().unwrap(), b"password");
        let clock = WallClock::new(now, UNIX_S);
        let config = SsrClientConfig::new(protocol, &key, 0);
        let cipher = CipherLayer::client(&key, &mut Zeros);
        let target = "127.0.0.1:80".parse().unwrap();
        let mut client = SsrClientStream::new(&config, &cipher.client_iv(), &target, clock, &mut Zeros);
        let clients = Arc::new(Clients::new(64));
        let server = SsrServerConfig::new(protocol, &key, clients, 0);
        let cipher = CipherLayer::server(&key, &mut Zeros);
        let server = SsrServerStream::new(&server, &cipher.client_iv(), clock, &mut Zeros);
        let head = client.plan(now).first.head;
        let mut block = vec![0; head + len];
        block[head..].iter_mut().enumerate().for_each(|(n, byte)| *byte = n.to_le_bytes()[0]);
        let range = client.seal(&mut block, head..head + len, now).unwrap();
        (client, server, block[range].to_vec())
    }

    /// The payload that `server` reads before an error, and the error.
    fn opened(server: &mut SsrServerStream, wire: &[u8]) -> (usize, Option<WireError>) {
        let mut buf = RecvBuf::from_bytes(wire);
        let mut len = 0;
        loop {
            match server.open(&mut buf, now()) {
                Ok(Opened::Payload(range)) => len += range.len(),
                Ok(Opened::NeedMore(_) | Opened::End) => return (len, None),
                Err(error) => return (len, Some(error)),
            }
        }
    }

    const PROTOCOLS: [SsrProtocol; 3] =
        [SsrProtocol::AuthAes128Md5, SsrProtocol::AuthAes128Sha1, SsrProtocol::AuthAes128Fast];

    #[test]
    fn packets_before_a_changed_one_are_read() {
        const ADDRESS_LEN: usize = 7;
        for protocol in PROTOCOLS {
            let len = 64_000;
            let (_, mut server, wire) = sealed(protocol, len);
            assert_eq!(opened(&mut server, &wire), (ADDRESS_LEN + len, None), "{protocol}");
            for at in (0..wire.len()).step_by(777) {
                let (_, mut server, mut wire) = sealed(protocol, len);
                wire[at] ^= 1;
                let (read, error) = opened(&mut server, &wire);
                assert!(error.is_some(), "{protocol}: byte {at}");
                // Whole packets: what rides in the header, then 8100 bytes each.
                assert!(
                    read <= at && (read == 0 || (read - 1200) % 8100 == 0),
                    "{protocol}: {read} bytes of {at}"
                );
                assert!(read + 2 * 8192 + 3000 > at || read == 0, "{protocol}: {read} bytes of {at}");
            }
        }
    }

    /// The tags of a chain's packets are made on a guess of their lengths, which a changed length makes wrong.
    #[test]
    fn a_changed_packet_of_a_chain_ends_it() {
        const UNIT: usize = 2800;
        for letter in [Chain::A, Chain::D] {
            let (protocol, len) = (SsrProtocol::AuthChain(letter), 60_000);
            let (_, mut server, wire) = sealed(protocol, len);
            assert_eq!(opened(&mut server, &wire), (len + 7, None), "{protocol}");
            for at in (0..wire.len()).step_by(499) {
                let (_, mut server, mut wire) = sealed(protocol, len);
                wire[at] ^= 1;
                let (read, error) = opened(&mut server, &wire);
                let is_waiting = error.is_none() && read + 2 * 4096 > len;
                assert!(error.is_some() || is_waiting, "{protocol}: byte {at}");
                assert!(read <= at && read % UNIT == 0, "{protocol}: {read} bytes of {at}");
            }
        }
    }

    #[test]
    fn every_split_of_several_packets_opens_alike() {
        for protocol in PROTOCOLS {
            let (_, _, wire) = sealed(protocol, 30_000);
            for cut in (0..wire.len()).step_by(211) {
                let (_, mut server, wire) = sealed(protocol, 30_000);
                let mut buf = RecvBuf::with_len(wire.len());
                let mut len = 0;
                for part in [&wire[..cut], &wire[cut..]] {
                    buf.extend(part);
                    while let Opened::Payload(range) = server.open(&mut buf, now()).unwrap() {
                        len += range.len();
                    }
                }
                assert_eq!(len, 30_007, "{protocol}: {cut}");
            }
        }
    }

    /// In lanes, the packets are those that are made one by one.
    #[test]
    fn as_one_by_one() {
        for protocol in PROTOCOLS {
            for len in [1, 8100, 8101, 20_000, 64_800, 70_000] {
                let seal = |seal: Seal<'_>| {
                    let (mut client, ..) = sealed(protocol, 1);
                    let codec = client.codec.as_deref_mut().expect("the protocol has packets");
                    let room = super::super::reserve(codec, len);
                    let mut block: Vec<u8> = (0..room + len).map(|n| n.to_le_bytes()[0]).collect();
                    let end = seal(codec, &mut block, room..room + len);
                    block.truncate(end);
                    block
                };
                let together = seal(&|codec, block, data| codec.seal_all(block, 0, data));
                let single = seal(&|codec, block, data| {
                    super::super::packets::pieces(data.clone(), codec.unit())
                        .fold(0, |at, piece| codec.seal(block, at, piece, data.len()))
                });
                assert!(together == single, "{protocol}: {len}");
            }
        }
    }
}
