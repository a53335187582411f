use std::ops::Range;
use std::sync::Arc;

use super::window::PacketIdWindow;
use super::{IDENTITY_LEN, MAX_PADDING, TYPE_REQUEST, TYPE_RESPONSE, draw_padding};
use crate::crypto::{Aead, NONCE_LEN, TAG_LEN, XNONCE_LEN};
use crate::shadowsocks::key::{DatagramCipher, Keys2022, Sip022Psk, session_key};
use crate::shadowsocks::method::Method2022;
use crate::shadowsocks::packet::{PacketCodec, ShadowsocksPacket, parse_packet};
use crate::shadowsocks::{SaltFilter, check_clock};
use crate::wire::{Rng, Room, Target, WireError, address_len, emit_address};

/// Session id and packet id.
pub(super) const HEADER_LEN: usize = 16;
/// Time that a server session that has been silent is still held against a third one, in seconds (as in sing-box).
const SESSION_LIFE_S: u64 = 60;

pub(super) const SHORT: WireError = WireError::Truncated { what: "a datagram" };

/// Nonce of an AES datagram.
pub(super) fn nonce(header: &[u8; HEADER_LEN]) -> [u8; NONCE_LEN] {
    *header.last_chunk().expect("16 bytes")
}

pub(super) fn header(session_id: [u8; 8], packet_id: u64) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&session_id);
    header[8..].copy_from_slice(&packet_id.to_be_bytes());
    header
}

/// Session id and packet id of a plain header.
pub(super) fn ids(header: &[u8; HEADER_LEN]) -> ([u8; 8], u64) {
    let (session, packet) = header.split_at(8);
    let packet = u64::from_be_bytes(packet.try_into().expect("8 bytes"));
    (session.try_into().expect("8 bytes"), packet)
}

/// A random id other than 0.
pub(super) fn draw_session_id(rng: &mut dyn Rng) -> [u8; 8] {
    loop {
        let mut id = [0; 8];
        rng.fill(&mut id);
        if id != [0; 8] {
            return id;
        }
    }
}

/// The cipher of one session in one direction. Its schedule (600 bytes) is derived when it is wanted, and given up
/// by [`SessionCipher::rest`].
#[derive(Debug)]
pub(super) struct SessionCipher {
    method: Method2022,
    schedule: Option<Box<Aead>>,
}

impl SessionCipher {
    pub(super) fn new(method: Method2022) -> Self {
        Self { method, schedule: None }
    }

    /// Whether there is one: other methods than those with AES seal under the PSK itself.
    pub(super) fn is_used(&self) -> bool {
        self.method.has_identities()
    }

    /// The cipher of session `id` under `psk`, which are the same at each call.
    pub(super) fn schedule(&mut self, psk: &Sip022Psk, id: [u8; 8]) -> Option<&Aead> {
        if !self.is_used() {
            return None;
        }
        let method = self.method;
        Some(self.schedule.get_or_insert_with(|| {
            let key = session_key(psk, &id);
            Box::new(Aead::new(method.algorithm(), &key[..method.key_len()]))
        }))
    }

    pub(super) fn rest(&mut self) {
        self.schedule = None;
    }
}

/// Room around a payload; `fixed` is what lies in front of the padding.
pub(super) fn room(fixed: usize, peer: &Target) -> Room {
    let head = fixed + address_len(peer);
    let max_payload = usize::from(u16::MAX) - head - TAG_LEN;
    let padding = if peer.port == PADDED_PORT { MAX_PADDING } else { 0 };
    Room { head: head + padding, tail: TAG_LEN, max_payload }
}

/// Name lookups are short and of telling lengths, so they are padded (as sing-box does it).
const PADDED_PORT: u16 = 53;

/// The fields of a body in front of the padding.
pub(super) struct BodyHead {
    /// Of the request; responses carry it back.
    pub client_session: Option<[u8; 8]>,
    pub unix_s: u64,
}

impl BodyHead {
    pub(super) fn len(&self) -> usize {
        1 + 8 + self.client_session.map_or(0, |id| id.len()) + 2
    }

    /// Writes the body's head, padding and address in front of `payload`; returns where the body starts.
    pub(super) fn emit(
        &self,
        block: &mut [u8],
        payload: &Range<usize>,
        peer: &Target,
        rng: &mut dyn Rng,
    ) -> usize {
        let padding_len = if peer.port == PADDED_PORT && payload.len() < MAX_PADDING {
            draw_padding(rng, MAX_PADDING - payload.len())
        } else {
            0
        };
        let address = payload.start - address_len(peer);
        emit_address(peer, &mut block[address..payload.start]);
        let padding = address - padding_len;
        block[padding..address].fill(0);
        let len = u16::try_from(padding_len).expect("paddings are short");
        block[padding - 2..padding].copy_from_slice(&len.to_be_bytes());
        let start = padding - self.len();
        block[start] = if self.client_session.is_some() { TYPE_RESPONSE } else { TYPE_REQUEST };
        block[start + 1..start + 9].copy_from_slice(&self.unix_s.to_be_bytes());
        if let Some(id) = self.client_session {
            block[start + 9..start + 17].copy_from_slice(&id);
        }
        start
    }

    /// Checks the plain body at `at` of a datagram against what is expected, and finds target and payload.
    pub(super) fn parse(&self, body: &[u8], at: usize) -> Result<ShadowsocksPacket, WireError> {
        let len = self.len();
        let head = body.get(..len).ok_or(SHORT)?;
        let kind = if self.client_session.is_some() { TYPE_RESPONSE } else { TYPE_REQUEST };
        if head[0] != kind {
            return Err(WireError::Malformed { what: "header type", got: head[0].into() });
        }
        check_clock(u64::from_be_bytes(*head[1..].first_chunk().expect("long enough")), self.unix_s)?;
        if let Some(id) = self.client_session
            && head[9..17] != id
        {
            return Err(WireError::Authentication { what: "client session id in the response" });
        }
        let padding = usize::from(u16::from_be_bytes([head[len - 2], head[len - 1]]));
        let rest = body.get(len + padding..).ok_or(SHORT)?;
        parse_packet(rest, at + len + padding)
    }
}

/// Seals the body at `body..end` in front of which `header` belongs, and returns where the datagram starts. Space for
/// identity headers is left free by the caller, between header and body.
pub(super) fn seal_datagram(
    block: &mut [u8],
    body: Range<usize>,
    header: &[u8; HEADER_LEN],
    session: Option<&Aead>,
    psk: &Sip022Psk,
    identities: usize,
    rng: &mut dyn Rng,
) -> Result<usize, WireError> {
    let gap = IDENTITY_LEN * identities + HEADER_LEN;
    match (session, psk.datagrams()) {
        (Some(session), DatagramCipher::Header(aes)) => {
            let (data, tag) = block[body.start..body.end + TAG_LEN].split_at_mut(body.len());
            session.seal(nonce(header), &[], data, tag.try_into().expect("16 bytes of tag"))?;
            let start = body.start - gap;
            let mut sealed = *header;
            aes.encrypt(&mut sealed);
            block[start..start + HEADER_LEN].copy_from_slice(&sealed);
            Ok(start)
        }
        (_, DatagramCipher::Whole(aead)) => {
            let plain = body.start - HEADER_LEN;
            block[plain..body.start].copy_from_slice(header);
            let mut nonce = [0; XNONCE_LEN];
            rng.fill(&mut nonce);
            let (data, tag) = block[plain..body.end + TAG_LEN].split_at_mut(body.end - plain);
            aead.seal(nonce, &[], data, tag.try_into().expect("16 bytes of tag"))?;
            let start = plain - XNONCE_LEN;
            block[start..plain].copy_from_slice(&nonce);
            Ok(start)
        }
        (None, DatagramCipher::Header(_)) => unreachable!("AES methods have a session cipher"),
    }
}

/// The header of a datagram and where its body lies.
pub(super) struct Outer {
    pub header: [u8; HEADER_LEN],
    pub body: Range<usize>,
}

/// Reads the header: AES methods leave the body sealed (with its tag), the others have opened it (without).
pub(super) fn open_outer(
    psk: &Sip022Psk,
    datagram: &mut [u8],
    identities: usize,
) -> Result<Outer, WireError> {
    match psk.datagrams() {
        DatagramCipher::Header(aes) => {
            let body = HEADER_LEN + IDENTITY_LEN * identities;
            if datagram.len() < body + TAG_LEN {
                return Err(SHORT);
            }
            let mut header = *datagram.first_chunk().ok_or(SHORT)?;
            aes.decrypt(&mut header);
            Ok(Outer { header, body: body..datagram.len() })
        }
        DatagramCipher::Whole(aead) => {
            let (nonce, sealed) = datagram.split_first_chunk_mut().ok_or(SHORT)?;
            if sealed.len() < HEADER_LEN + TAG_LEN {
                return Err(SHORT);
            }
            aead.open(*nonce, &[], sealed).map_err(|()| WireError::Authentication { what: "datagram" })?;
            let header = *sealed.first_chunk().ok_or(SHORT)?;
            Ok(Outer { header, body: XNONCE_LEN + HEADER_LEN..datagram.len() - TAG_LEN })
        }
    }
}

/// Opens a body that [`open_outer`] has left sealed, and returns where it lies without its tag.
pub(super) fn open_body(
    session: Option<&Aead>,
    datagram: &mut [u8],
    header: &[u8; HEADER_LEN],
    body: Range<usize>,
) -> Result<Range<usize>, WireError> {
    let Some(session) = session else { return Ok(body) };
    let opened = session.open(nonce(header), &[], &mut datagram[body.clone()]);
    opened.map_err(|()| WireError::Authentication { what: "datagram" })?;
    Ok(body.start..body.end - TAG_LEN)
}

/// A client's datagrams to and from one server: one session of its own, and those that the server answers in.
#[derive(Debug)]
pub struct Aead2022ClientPackets {
    keys: Arc<Keys2022>,
    session_id: [u8; 8],
    next_packet_id: u64,
    cipher: SessionCipher,
    current: Option<Box<PeerSession>>,
    previous: Option<Box<PeerSession>>,
}

/// A session that a server answers in; it begins a new one when it has forgotten us.
#[derive(Debug)]
struct PeerSession {
    id: [u8; 8],
    cipher: SessionCipher,
    window: PacketIdWindow,
    seen_s: u64,
}

impl Aead2022ClientPackets {
    /// A session whose id comes from `rng`.
    pub fn new(keys: &Arc<Keys2022>, rng: &mut dyn Rng) -> Self {
        let session_id = draw_session_id(rng);
        Self {
            keys: Arc::clone(keys),
            session_id,
            next_packet_id: 0,
            cipher: SessionCipher::new(keys.method),
            current: None,
            previous: None,
        }
    }

    /// The id of this session.
    pub fn session_id(&self) -> u64 {
        u64::from_be_bytes(self.session_id)
    }

    /// Writes the identity headers behind the separate header at `start`.
    fn emit_identities(&self, block: &mut [u8], start: usize, header: &[u8; HEADER_LEN]) {
        let headers = block[start + HEADER_LEN..].as_chunks_mut().0;
        for ((psk, hash), out) in self.keys.identity_steps().zip(headers) {
            *out = std::array::from_fn(|i| hash[i] ^ header[i]);
            if let DatagramCipher::Header(aes) = psk.datagrams() {
                aes.encrypt(out);
            }
        }
    }

    /// The session `id`, if it is one of the two that are known.
    fn known(&mut self, id: [u8; 8]) -> Option<&mut PeerSession> {
        let sessions = [&mut self.current, &mut self.previous];
        sessions.into_iter().flatten().map(|session| &mut **session).find(|session| session.id == id)
    }

    /// Makes room for a new session: the current one becomes the previous one.
    fn admit(&mut self, session: Box<PeerSession>) -> Result<(), WireError> {
        if let Some(previous) = &self.previous
            && session.seen_s.saturating_sub(previous.seen_s) < SESSION_LIFE_S
        {
            return Err(WireError::Unsupported { what: "third server session within a minute", got: 3 });
        }
        self.previous = self.current.replace(session);
        Ok(())
    }
}

impl PacketCodec for Aead2022ClientPackets {
    fn room(&self, peer: &Target) -> Room {
        let head = BodyHead { client_session: None, unix_s: 0 };
        let nonce_len = if self.cipher.is_used() { 0 } else { XNONCE_LEN };
        room(nonce_len + HEADER_LEN + IDENTITY_LEN * self.keys.identities.len() + head.len(), peer)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        peer: &Target,
        unix_s: u64,
        rng: &mut dyn Rng,
    ) -> Result<Range<usize>, WireError> {
        if self.next_packet_id == u64::MAX {
            let fresh = Self::new(&self.keys, rng);
            (self.session_id, self.next_packet_id) = (fresh.session_id, fresh.next_packet_id);
            self.cipher = fresh.cipher;
        }
        let header = header(self.session_id, self.next_packet_id);
        self.next_packet_id += 1;
        let body = BodyHead { client_session: None, unix_s }.emit(block, &payload, peer, rng);
        let identities = self.keys.identities.len();
        let session = self.cipher.schedule(&self.keys.user, self.session_id);
        // The separate header goes out under the key of the first hop.
        let psk = self.keys.identities.first().unwrap_or(&self.keys.user);
        let start = seal_datagram(block, body..payload.end, &header, session, psk, identities, rng)?;
        self.emit_identities(block, start, &header);
        Ok(start..payload.end + TAG_LEN)
    }

    fn open(
        &mut self,
        datagram: &mut [u8],
        unix_s: u64,
        _: &mut dyn SaltFilter,
    ) -> Result<ShadowsocksPacket, WireError> {
        let keys = Arc::clone(&self.keys);
        let outer = open_outer(&keys.user, datagram, 0)?;
        let (id, packet_id) = ids(&outer.header);
        let head = BodyHead { client_session: Some(self.session_id), unix_s };
        let open = |cipher: Option<&Aead>, datagram: &mut [u8]| {
            let body = open_body(cipher, datagram, &outer.header, outer.body.clone())?;
            head.parse(&datagram[body.clone()], body.start)
        };
        if let Some(session) = self.known(id) {
            if !session.window.is_fresh(packet_id) {
                return Err(WireError::Replayed { what: "packet id" });
            }
            let packet = open(session.cipher.schedule(&keys.user, id), datagram)?;
            session.window.insert(packet_id);
            session.seen_s = unix_s;
            return Ok(packet);
        }
        let mut cipher = SessionCipher::new(keys.method);
        let packet = open(cipher.schedule(&keys.user, id), datagram)?;
        let mut window = PacketIdWindow::new();
        window.insert(packet_id);
        self.admit(Box::new(PeerSession { id, cipher, window, seen_s: unix_s }))?;
        Ok(packet)
    }

    fn rest(&mut self) {
        self.cipher.rest();
        for session in [&mut self.current, &mut self.previous].into_iter().flatten() {
            session.cipher.rest();
        }
    }
}
