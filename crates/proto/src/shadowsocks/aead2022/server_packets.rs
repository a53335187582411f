use std::ops::Range;
use std::sync::Arc;

use super::IDENTITY_LEN;
use super::packets::{
    BodyHead, HEADER_LEN, SessionCipher, draw_session_id, header, ids, open_body, open_outer, room,
    seal_datagram,
};
use super::window::PacketIdWindow;
use crate::crypto::XNONCE_LEN;
use crate::shadowsocks::key::{DatagramCipher, IdentityKeys, Keys2022, Sip022Psk, UserId};
use crate::shadowsocks::packet::ShadowsocksPacket;
use crate::wire::{Rng, Room, Target, WireError};

/// A server's datagrams: finds the session of each, which the caller keeps in a table by
/// [`session_id`](SessionHeader::session_id).
///
/// 1. [`read_header`](Aead2022ServerPackets::read_header);
/// 2. the session of the table, or one from [`new_session`](Aead2022ServerPackets::new_session);
/// 3. [`Session::open`], and only if that succeeds: put a new session in the table, note the sender's address.
#[derive(Debug, Clone)]
pub struct Aead2022ServerPackets {
    keys: Arc<Keys2022>,
    users: Arc<IdentityKeys>,
}

/// The facts of a datagram before its session is known.
#[derive(Debug, Clone)]
pub struct SessionHeader {
    plain: [u8; HEADER_LEN],
    body: Range<usize>,
    user: Option<UserId>,
    /// Names the user's key, independent of its number in the table.
    identity: Option<[u8; IDENTITY_LEN]>,
}

impl SessionHeader {
    /// The client's session.
    pub fn session_id(&self) -> u64 {
        u64::from_be_bytes(ids(&self.plain).0)
    }

    /// The packet's number in its session.
    pub fn packet_id(&self) -> u64 {
        ids(&self.plain).1
    }

    /// The user of the server's table that it claims to be.
    pub fn user(&self) -> Option<UserId> {
        self.user
    }
}

impl Aead2022ServerPackets {
    /// Datagrams under `keys`; with `users`, from those that name themselves in an identity header.
    pub fn new(keys: &Arc<Keys2022>, users: &Arc<IdentityKeys>) -> Self {
        Self { keys: Arc::clone(keys), users: Arc::clone(users) }
    }

    /// Reads the header of `datagram`. For AES methods nothing is authenticated yet; the ChaCha methods open the
    /// whole datagram here.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Authentication`] for an unknown user or a wrong key.
    pub fn read_header(&self, datagram: &mut [u8]) -> Result<SessionHeader, WireError> {
        let identities = usize::from(!self.users.is_empty());
        let outer = open_outer(&self.keys.user, datagram, identities)?;
        let (mut user, mut identity) = (None, None);
        if identities > 0
            && let DatagramCipher::Header(aes) = self.keys.user.datagrams()
        {
            let sealed = datagram[HEADER_LEN..].first_chunk().expect("longer than header and identity");
            let mut hash: [u8; IDENTITY_LEN] = *sealed;
            aes.decrypt(&mut hash);
            hash.iter_mut().zip(outer.header).for_each(|(h, o)| *h ^= o);
            let found = self.users.find(&hash);
            user = Some(found.ok_or(WireError::Authentication { what: "identity header" })?);
            identity = Some(hash);
        }
        Ok(SessionHeader { plain: outer.header, body: outer.body, user, identity })
    }

    /// A session for the sender of `header`; its own id comes from `rng`.
    pub fn new_session(&self, header: &SessionHeader, rng: &mut dyn Rng) -> Session {
        let psk = header.user.map_or(&self.keys.user, |user| self.users.psk(user)).clone();
        let (client_id, _) = ids(&header.plain);
        let own_id = draw_session_id(rng);
        let method = self.keys.method;
        Session {
            client_id,
            user: header.user,
            identity: header.identity,
            opening: SessionCipher::new(method),
            window: PacketIdWindow::new(),
            own_id,
            next_packet_id: 0,
            sealing: SessionCipher::new(method),
            psk,
        }
    }
}

/// A client's session on a server, both directions.
#[derive(Debug)]
pub struct Session {
    client_id: [u8; 8],
    user: Option<UserId>,
    /// A server may get another table while the session lasts: numbers change, this does not.
    identity: Option<[u8; IDENTITY_LEN]>,
    opening: SessionCipher,
    window: PacketIdWindow,
    own_id: [u8; 8],
    next_packet_id: u64,
    sealing: SessionCipher,
    psk: Sip022Psk,
}

impl Session {
    /// The user of the session.
    pub fn user(&self) -> Option<UserId> {
        self.user
    }

    /// Opens `datagram`, whose header has been read and belongs to this session.
    ///
    /// # Errors
    /// An error in the datagram, which is to be dropped without an answer; the session is then unchanged.
    pub fn open(
        &mut self,
        header: &SessionHeader,
        datagram: &mut [u8],
        unix_s: u64,
    ) -> Result<ShadowsocksPacket, WireError> {
        let (id, packet_id) = ids(&header.plain);
        if id != self.client_id || header.identity != self.identity {
            return Err(WireError::Authentication { what: "session id" });
        }
        if !self.window.is_fresh(packet_id) {
            return Err(WireError::Replayed { what: "packet id" });
        }
        let cipher = self.opening.schedule(&self.psk, self.client_id);
        let body = open_body(cipher, datagram, &header.plain, header.body.clone())?;
        let head = BodyHead { client_session: None, unix_s };
        let packet = head.parse(&datagram[body.clone()], body.start)?;
        self.window.insert(packet_id);
        Ok(packet)
    }

    /// Gives up what can be derived again: for sessions that are silent.
    pub fn rest(&mut self) {
        self.opening.rest();
        self.sealing.rest();
    }

    /// Free bytes that [`Session::seal`] needs around the payload, at most.
    pub fn room(&self, source: &Target) -> Room {
        let head = BodyHead { client_session: Some(self.client_id), unix_s: 0 };
        let nonce_len = if self.sealing.is_used() { 0 } else { XNONCE_LEN };
        room(nonce_len + HEADER_LEN + head.len(), source)
    }

    /// Seals the payload at `payload` in `block`, which came from `source`, and returns the range of the datagram.
    ///
    /// # Errors
    /// [`WireError::Exhausted`] when all packet ids are used up.
    pub fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        unix_s: u64,
        rng: &mut dyn Rng,
    ) -> Result<Range<usize>, WireError> {
        if self.next_packet_id == u64::MAX {
            return Err(WireError::Exhausted { what: "packet ids" });
        }
        let header = header(self.own_id, self.next_packet_id);
        self.next_packet_id += 1;
        let head = BodyHead { client_session: Some(self.client_id), unix_s };
        let body = head.emit(block, &payload, source, rng);
        let end = payload.end;
        let cipher = self.sealing.schedule(&self.psk, self.own_id);
        let start = seal_datagram(block, body..end, &header, cipher, &self.psk, 0, rng)?;
        Ok(start..end + crate::crypto::TAG_LEN)
    }
}
