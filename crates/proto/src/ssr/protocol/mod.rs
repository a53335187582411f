//! The protocol layer: framing and authentication inside the cipher.
//!
//! A client's first write carries its header; the target's address is its first payload. A server yields what the
//! client's packets hold: first the bytes of the address ([`parse_request`](super::parse_request)), then payload.
//! Protocols that authenticate want the server to answer at once with an empty packet: [`Layer::has_pending`] is true
//! then, and sealing an empty payload sends it.
//!
//! A refusal ([`State::Refused`]) consumes nothing here, but the cipher layer below has deciphered the bytes in place, and an
//! HTTP obfs has moved them: a caller that hands refused clients to a fallback server keeps a copy of what came.
//!
//! `verify_deflate` writes what it inflates, 32 KiB at most at a time, at the end of the buffer.

mod adler;
mod aes128;
mod chain;
mod lanes;
mod packets;
mod server;
mod sizes;
mod verify;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::clients::ConnectionIds;
use super::key::UserKey;
use super::request::UDP_OVER_TCP;
use super::{Chain, ClientIds, SharedIv, SsrKey, SsrProtocol};
use crate::buf::RecvBuf;
use crate::crypto::Noise;
use crate::wire::{Layer, Opened, Plan, Rng, Room, Target, WallClock, WireError, address_len, emit_address};

use self::packets::Codec;
pub use self::server::{SsrServerConfig, SsrServerStream, State};
pub use self::verify::MAX_INFLATED;
pub(super) use self::{aes128::Mac, chain::udp_padding_len};

/// Longest payload of one call of [`Layer::seal`], in bytes: it may become several packets, of most protocols as many as
/// there are lanes for codes.
const MAX_WRITE: usize = 8 * 8100;
/// Seconds between two lists of sizes of `auth_chain_f`, where `protocol_param` does not say otherwise.
pub const DEFAULT_INTERVAL_S: u64 = 86_400;

/// State that all connections of one client to one server share.
#[derive(Clone)]
pub struct SsrClientConfig {
    key: SsrKey,
    protocol: SsrProtocol,
    user: Option<(u32, Arc<UserKey>)>,
    server_key: Arc<UserKey>,
    ids: Arc<ClientIds>,
    overhead: u16,
    interval_s: u64,
}

impl SsrClientConfig {
    /// A client without a user id. `obfs_overhead` is [`Obfs::overhead`](super::Obfs::overhead): `auth_chain_*` needs it,
    /// and both ends have to count the same, those of a server behind a separate GoQuiet server 0.
    pub fn new(protocol: SsrProtocol, key: &SsrKey, obfs_overhead: u16) -> Self {
        Self {
            key: key.clone(),
            protocol,
            user: None,
            server_key: Arc::new(UserKey::of_server(protocol, key)),
            ids: Arc::new(ClientIds::new()),
            overhead: protocol.overhead() + obfs_overhead,
            interval_s: DEFAULT_INTERVAL_S,
        }
    }

    /// A user of a server that tells users apart; no effect where the protocol does not.
    #[must_use]
    pub fn with_user(mut self, id: u32, secret: &[u8]) -> Self {
        if self.protocol.has_users() {
            self.user = Some((id, Arc::new(UserKey::of_user(self.protocol, &self.key, secret))));
        }
        self
    }

    /// Seconds between two lists of sizes of `auth_chain_f` (never 0).
    #[must_use]
    pub fn with_interval(mut self, interval_s: u64) -> Self {
        self.interval_s = interval_s.max(1);
        self
    }

    /// The protocol.
    pub fn protocol(&self) -> SsrProtocol {
        self.protocol
    }

    /// The key of the server.
    pub fn key(&self) -> &SsrKey {
        &self.key
    }

    /// The id and the key of the client. Without a user the id is drawn.
    pub(super) fn identity(&self, rng: &mut dyn Rng) -> (u32, Arc<UserKey>) {
        self.user.clone().unwrap_or_else(|| {
            let mut id = [0; 4];
            rng.fill(&mut id);
            (u32::from_le_bytes(id), Arc::clone(&self.server_key))
        })
    }

    fn codec(&self, iv: &[u8], rng: &mut dyn Rng) -> Option<Box<dyn Codec>> {
        let start = |rng: &mut dyn Rng| {
            let (user, user_key) = self.identity(rng);
            Start {
                keyed: zeroize::Zeroizing::new([iv, self.key.bytes()].concat().into()),
                key: self.key.clone(),
                user,
                user_key,
                ids: self.ids.next(rng),
                overhead: self.overhead,
                interval_s: self.interval_s,
            }
        };
        let noise = Noise::draw(rng);
        Some(match self.protocol {
            SsrProtocol::Origin => return None,
            SsrProtocol::VerifyDeflate => Box::<verify::Deflate>::default(),
            SsrProtocol::VerifySimple => Box::new(verify::Simple::new(noise)),
            SsrProtocol::VerifySha1 => Box::new(verify::VerifySha1::client(iv, self.key.bytes())),
            SsrProtocol::AuthSha1 => {
                Box::new(adler::Adler::client(adler::AdlerVariant::Sha1, start(rng), noise))
            }
            SsrProtocol::AuthSha1V2 => {
                Box::new(adler::Adler::client(adler::AdlerVariant::Sha1V2, start(rng), noise))
            }
            SsrProtocol::AuthSha1V4 => {
                Box::new(adler::Adler::client(adler::AdlerVariant::Sha1V4, start(rng), noise))
            }
            SsrProtocol::AuthAes128 => {
                Box::new(adler::Adler::client(adler::AdlerVariant::Aes128, start(rng), noise))
            }
            SsrProtocol::AuthAes128Md5 => Box::new(aes128::Aes128::client(Mac::Md5, start(rng), noise)),
            SsrProtocol::AuthAes128Sha1 => Box::new(aes128::Aes128::client(Mac::Sha1, start(rng), noise)),
            SsrProtocol::AuthAes128Fast => Box::new(aes128::Aes128::client(Mac::Fast, start(rng), noise)),
            SsrProtocol::AuthChain(letter) => Box::new(chain::ChainCodec::client(letter, start(rng), noise)),
        })
    }
}

/// Shows no key material.
impl fmt::Debug for SsrClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// Parts of a client's header.
struct Start {
    /// IV of the client's direction, then the server's key.
    keyed: zeroize::Zeroizing<Box<[u8]>>,
    key: SsrKey,
    user: u32,
    user_key: Arc<UserKey>,
    ids: ConnectionIds,
    overhead: u16,
    interval_s: u64,
}

/// The client's end of a stream. Its header and the target's address leave with the first write; an empty payload
/// sends them alone.
#[derive(Debug)]
pub struct SsrClientStream {
    /// Waits for the first write.
    address: Option<Box<[u8]>>,
    codec: Option<Box<dyn Codec>>,
    clock: WallClock,
}

impl SsrClientStream {
    /// A stream to `target`, inside a cipher whose direction begins with `iv` ([`CipherLayer::client_iv`] of the client's
    /// cipher layer).
    ///
    /// [`CipherLayer::client_iv`]: super::CipherLayer::client_iv
    ///
    /// # Panics
    /// If `iv` is that of a server's cipher layer that has not received it.
    pub fn new(
        config: &SsrClientConfig,
        iv: &SharedIv,
        target: &Target,
        clock: WallClock,
        rng: &mut dyn Rng,
    ) -> Self {
        let mut address = vec![0; address_len(target)];
        emit_address(target, &mut address);
        let iv = iv.as_slice().expect("a client's cipher layer has drawn its IV");
        Self { address: Some(address.into()), codec: config.codec(iv, rng), clock }
    }

    /// The same for a stream that carries datagrams: see [`over_tcp`](super::over_tcp).
    #[must_use]
    pub fn for_datagrams(mut self) -> Self {
        if let Some(kind) = self.address.as_mut().and_then(|address| address.first_mut()) {
            *kind |= UDP_OVER_TCP;
        }
        self
    }
}

/// Most bytes around `len` bytes of payload, of which the header may take none.
fn reserve(codec: &dyn Codec, len: usize) -> usize {
    len / codec.unit() * codec.full_overhead() + codec.max_overhead() + codec.header_overhead()
}

fn plan(codec: Option<&dyn Codec>, address_len: usize) -> Plan {
    let rest = Room { head: 0, tail: 0, max_payload: usize::MAX };
    let Some(codec) = codec else {
        return Plan { first: Room { head: address_len, ..rest }, rest };
    };
    let head = reserve(codec, MAX_WRITE + address_len);
    let later = head - codec.header_overhead();
    let room = |head| Room { head, tail: 0, max_payload: MAX_WRITE };
    Plan { first: room(head + address_len), rest: room(later) }
}

impl Layer for SsrClientStream {
    fn plan(&self, _now: Instant) -> Plan {
        plan(self.codec.as_deref(), self.address.as_ref().map_or(0, |address| address.len()))
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let address = self.address.take().unwrap_or_default();
        let mut data = payload.start - address.len()..payload.end;
        block[data.start..payload.start].copy_from_slice(&address);
        let Some(codec) = self.codec.as_deref_mut() else { return Ok(data) };
        if data.is_empty() {
            return Ok(data);
        }
        let start = data.start - reserve(codec, data.len());
        let mut at = start;
        if !address.is_empty() {
            let unix_s = self.clock.unix_s(now);
            let taken;
            (at, taken) = codec.seal_header(block, at, data.clone(), address.len(), unix_s);
            data.start += taken;
        }
        Ok(start..codec.seal_all(block, at, data))
    }

    fn has_pending(&self) -> bool {
        self.address.is_some()
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        let Some(codec) = self.codec.as_deref_mut() else { return Ok(packets::pass(wire)) };
        loop {
            match codec.open_into(wire)? {
                Opened::Payload(range) if range.is_empty() => {}
                opened @ (Opened::Payload(_) | Opened::NeedMore(_) | Opened::End) => return Ok(opened),
            }
        }
    }

    fn has_backlog(&self) -> bool {
        self.codec.as_ref().is_some_and(|codec| codec.has_backlog())
    }

    fn most_received(&self) -> usize {
        self.codec.as_ref().map_or(usize::MAX, |codec| codec.most_received())
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        if unread == 0 { Ok(()) } else { Err(WireError::Truncated { what: "a packet" }) }
    }
}

/// The list of sizes of a direction of `auth_chain_*`, ready for each packet.
fn sizes_for(letter: Chain, key: &SsrKey, overhead: u16, utc: u32, interval_s: u64) -> sizes::Sizes {
    sizes::Sizes::new(letter, key.bytes(), overhead, u64::from(utc), interval_s)
}
