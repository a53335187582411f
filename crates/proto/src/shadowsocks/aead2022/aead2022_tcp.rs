use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{
    IDENTITY_LEN, MAX_CHUNK, MAX_PADDING, TYPE_REQUEST, TYPE_RESPONSE, direction_key, draw_padding,
    identity_cipher,
};
use crate::buf::RecvBuf;
use crate::crypto::TAG_LEN;
use crate::shadowsocks::chunk::{ChunkReader, DirectionKey, chunk_room, transport_end};
use crate::shadowsocks::key::{Keys2022, Sip022Psk};
use crate::shadowsocks::{Accept, Accepted, IdentityKeys, Salt, SaltFilter, UserId, WallClock, check_clock};
use crate::wire::{
    Address, Layer, Opened, Plan, Rng, Room, Target, WireError, address_len, emit_address, parse_address,
};

/// Type, timestamp, length.
const REQUEST_LEN: usize = 1 + 8 + 2;

/// Type, timestamp, request salt, length.
fn response_len(salt_len: usize) -> usize {
    REQUEST_LEN + salt_len
}

/// The client's end of a stream.
#[derive(Debug)]
pub struct Aead2022ClientStream {
    keys: Arc<Keys2022>,
    clock: WallClock,
    salt: Salt,
    key: DirectionKey,
    request: Option<Request>,
    peer_salt: Option<Salt>,
    chunks: Option<ChunkReader>,
}

/// State until the first payload.
#[derive(Debug)]
struct Request {
    address: Box<[u8]>,
    /// Used when the first payload is shorter than [`MAX_PADDING`] (as sing-box does it: always at least 1).
    padding_len: usize,
}

impl Aead2022ClientStream {
    /// A stream to `target`; salt and padding length come from `rng`.
    pub fn new(keys: &Arc<Keys2022>, target: &Target, clock: WallClock, rng: &mut dyn Rng) -> Self {
        let salt = Salt::random(keys.method.key_len(), rng);
        let mut address = vec![0; address_len(target)];
        emit_address(target, &mut address);
        Self {
            keys: Arc::clone(keys),
            clock,
            salt,
            key: direction_key(keys.method, &keys.user, salt.as_slice()),
            request: Some(Request { address: address.into(), padding_len: draw_padding(rng, MAX_PADDING) }),
            peer_salt: None,
            chunks: None,
        }
    }

    /// The server's salt, once the response header has been opened.
    pub fn peer_salt(&self) -> Option<&[u8]> {
        self.peer_salt.as_ref().map(Salt::as_slice)
    }

    /// Bytes in front of the variable header.
    fn head_len(&self) -> usize {
        self.salt.len() + IDENTITY_LEN * self.keys.identities.len() + REQUEST_LEN + TAG_LEN
    }

    fn seal_request(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        request: &Request,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let padding_len = if payload.len() < MAX_PADDING { request.padding_len } else { 0 };
        let address_len = request.address.len();
        let variable = payload.start - padding_len - 2 - address_len;
        block[variable..variable + address_len].copy_from_slice(&request.address);
        let padding = u16::try_from(padding_len).expect("at most 900");
        block[variable + address_len..][..2].copy_from_slice(&padding.to_be_bytes());
        block[payload.start - padding_len..payload.start].fill(0);

        let start = variable - self.head_len();
        let (salt, rest) = block[start..].split_at_mut(self.salt.len());
        salt.copy_from_slice(self.salt.as_slice());
        for ((psk, hash), header) in self.keys.identity_steps().zip(rest.as_chunks_mut().0) {
            *header = *hash;
            identity_cipher(self.keys.method, psk, self.salt.as_slice()).encrypt(header);
        }

        let fixed = variable - TAG_LEN - REQUEST_LEN;
        let len = u16::try_from(payload.end - variable).expect("payload within max_payload");
        block[fixed] = TYPE_REQUEST;
        block[fixed + 1..fixed + 9].copy_from_slice(&self.clock.unix_s(now).to_be_bytes());
        block[fixed + 9..fixed + 11].copy_from_slice(&len.to_be_bytes());
        self.key.seal(block, fixed..fixed + REQUEST_LEN)?;
        self.key.seal(block, variable..payload.end)?;
        Ok(start..payload.end + TAG_LEN)
    }

    /// Opens the response header, or says how many bytes are missing.
    fn open_response(
        &mut self,
        wire: &mut RecvBuf,
        now: Instant,
    ) -> Result<Result<ChunkReader, usize>, WireError> {
        let salt_len = self.salt.len();
        let sealed_len = response_len(salt_len) + TAG_LEN;
        let needed = salt_len + sealed_len;
        let unread = wire.unread_mut();
        if unread.len() < needed {
            return Ok(Err(needed - unread.len()));
        }
        let (salt, sealed) = unread.split_at_mut(salt_len);
        let mut key = direction_key(self.keys.method, &self.keys.user, salt);
        let header = &mut sealed[..sealed_len];
        key.open(header, "response header")?;
        check_type(header[0], TYPE_RESPONSE)?;
        check_clock(timestamp(header), self.clock.unix_s(now))?;
        if header[9..9 + salt_len] != *self.salt.as_slice() {
            return Err(WireError::Authentication { what: "request salt in the response" });
        }
        let len = u16::from_be_bytes([header[9 + salt_len], header[10 + salt_len]]);
        self.peer_salt = Some(Salt::from_slice(salt));
        wire.consume(needed);
        let mut chunks = ChunkReader::new(key, MAX_CHUNK);
        chunks.expect_payload(len.into());
        Ok(Ok(chunks))
    }
}

impl Layer for Aead2022ClientStream {
    fn plan(&self, _: Instant) -> Plan {
        let rest = chunk_room(MAX_CHUNK);
        let first = self.request.as_ref().map_or(rest, |request| {
            let variable = request.address.len() + 2 + request.padding_len;
            Room { head: self.head_len() + variable, tail: TAG_LEN, max_payload: MAX_CHUNK - variable }
        });
        Plan { first, rest }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        match self.request.take() {
            Some(request) => self.seal_request(block, payload, &request, now),
            None if payload.is_empty() => Ok(payload),
            None => self.key.seal_chunk(block, payload),
        }
    }

    fn has_pending(&self) -> bool {
        self.request.is_some()
    }

    fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        if let Some(chunks) = &mut self.chunks {
            return chunks.open(wire);
        }
        match self.open_response(wire, now)? {
            Ok(chunks) => self.chunks.insert(chunks).open(wire),
            Err(missing) => Ok(Opened::NeedMore(missing)),
        }
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        transport_end(self.chunks.as_ref(), unread)
    }
}

fn check_type(got: u8, expected: u8) -> Result<(), WireError> {
    if got == expected {
        return Ok(());
    }
    Err(WireError::Malformed { what: "header type", got: got.into() })
}

/// The timestamp behind the type.
fn timestamp(header: &[u8]) -> u64 {
    u64::from_be_bytes(*header[1..].first_chunk().expect("headers are longer"))
}

/// The server's end before the target is known.
#[derive(Debug)]
pub struct Aead2022Acceptor {
    keys: Arc<Keys2022>,
    users: Arc<IdentityKeys>,
    may_split: bool,
    salt: Option<Salt>,
    user: Option<UserId>,
    chunks: Option<ChunkReader>,
    /// Length of the variable header once it is known.
    variable_len: usize,
}

impl Aead2022Acceptor {
    /// Waits for a client under `keys`; with `users`, for one that names itself in an identity header.
    pub fn new(keys: &Arc<Keys2022>, users: &Arc<IdentityKeys>) -> Self {
        Self {
            keys: Arc::clone(keys),
            users: Arc::clone(users),
            may_split: false,
            salt: None,
            user: None,
            chunks: None,
            variable_len: 0,
        }
    }

    /// Lets the first pieces of the request arrive in several reads: behind transports that cut them (a plugin).
    #[must_use]
    pub fn with_split_header(mut self) -> Self {
        self.may_split = true;
        self
    }

    /// True once the fixed header has been opened. A peer that fails before is unauthenticated, a peer that
    /// fails after is a client.
    pub fn is_authenticated(&self) -> bool {
        self.chunks.is_some()
    }

    /// Opens the request. `filter` sees the salt after the fixed header, its type and its time have been found good.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if the first read holds less than salt, identity and fixed header; the rest as the
    /// field at fault says.
    pub fn accept(
        &mut self,
        wire: &mut RecvBuf,
        unix_s: u64,
        filter: &mut dyn SaltFilter,
    ) -> Result<Accept, WireError> {
        if self.chunks.is_none()
            && let Some(missing) = self.open_fixed(wire, unix_s, filter)?
        {
            return Ok(Accept::NeedMore(missing));
        }
        let sealed_len = self.variable_len + TAG_LEN;
        let unread = wire.unread_mut();
        if unread.len() < sealed_len {
            return Ok(Accept::NeedMore(sealed_len - unread.len()));
        }
        let key = self.chunks.as_mut().expect("the fixed header is open").key_mut();
        key.open(&mut unread[..sealed_len], "variable header")?;
        let (target, skipped) = parse_variable(&unread[..self.variable_len])?;
        let start = wire.position();
        wire.consume(sealed_len);
        let payload = start + skipped..start + self.variable_len;
        Ok(Accept::Accepted(Accepted { target, user: self.user, payload }))
    }

    /// Opens salt, identity and fixed header, or says how many bytes are missing.
    fn open_fixed(
        &mut self,
        wire: &mut RecvBuf,
        unix_s: u64,
        filter: &mut dyn SaltFilter,
    ) -> Result<Option<usize>, WireError> {
        let method = self.keys.method;
        let salt_len = method.key_len();
        let identity_len = if self.users.is_empty() { 0 } else { IDENTITY_LEN };
        let needed = salt_len + identity_len + REQUEST_LEN + TAG_LEN;
        let unread = wire.unread();
        if unread.len() < needed {
            if !self.may_split && !unread.is_empty() {
                return Err(WireError::Truncated { what: "the first read of a request" });
            }
            return Ok(Some(needed - unread.len()));
        }
        let (salt, rest) = unread.split_at(salt_len);
        let (identity, rest) = rest.split_at(identity_len);
        let psk = match identity.first_chunk() {
            None => &self.keys.user,
            Some(identity) => {
                let mut hash = *identity;
                identity_cipher(method, &self.keys.user, salt).decrypt(&mut hash);
                let user = self.users.find(&hash);
                self.user = Some(user.ok_or(WireError::Authentication { what: "identity header" })?);
                self.users.psk(user.expect("just found"))
            }
        };
        let mut key = direction_key(method, psk, salt);
        let mut header: [u8; REQUEST_LEN + TAG_LEN] = *rest.first_chunk().expect("as long as needed");
        key.open(&mut header, "request header")?;
        check_type(header[0], TYPE_REQUEST)?;
        check_clock(timestamp(&header), unix_s)?;
        if !filter.insert(salt) {
            return Err(WireError::Replayed { what: "salt" });
        }
        self.variable_len = u16::from_be_bytes([header[9], header[10]]).into();
        self.salt = Some(Salt::from_slice(salt));
        self.chunks = Some(ChunkReader::new(key, MAX_CHUNK));
        wire.consume(needed);
        Ok(None)
    }

    /// Goes on after [`Accept::Accepted`]; the salt of the response comes from `rng`.
    ///
    /// # Panics
    /// Before that.
    pub fn into_server(self, clock: WallClock, rng: &mut dyn Rng) -> Aead2022ServerStream {
        let psk: &Sip022Psk = self.user.map_or(&self.keys.user, |user| self.users.psk(user));
        let salt = Salt::random(self.keys.method.key_len(), rng);
        let request_salt = self.salt.expect("a server goes on from an accepted request");
        Aead2022ServerStream {
            key: direction_key(self.keys.method, psk, salt.as_slice()),
            response: Some(Box::new(Response { salt, request_salt })),
            chunks: self.chunks.expect("a server goes on from an accepted request"),
            clock,
        }
    }
}

/// The target, and the offset of the first payload.
fn parse_variable(header: &[u8]) -> Result<(Target, usize), WireError> {
    const CUT: WireError = WireError::Truncated { what: "the variable header" };
    let Address::Whole(target, len) = parse_address(header)? else { return Err(CUT) };
    let padding = header[len..].first_chunk().ok_or(CUT)?;
    let padding_len = usize::from(u16::from_be_bytes(*padding));
    let payload = len + 2 + padding_len;
    if payload > header.len() {
        return Err(CUT);
    }
    if padding_len == 0 && payload == header.len() {
        return Err(WireError::Malformed { what: "padding length without a payload", got: 0 });
    }
    Ok((target, payload))
}

/// The server's end of a stream.
#[derive(Debug)]
pub struct Aead2022ServerStream {
    clock: WallClock,
    key: DirectionKey,
    response: Option<Box<Response>>,
    chunks: ChunkReader,
}

/// State until the first payload.
#[derive(Debug)]
struct Response {
    salt: Salt,
    request_salt: Salt,
}

impl Aead2022ServerStream {
    fn seal_response(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        response: &Response,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let salt_len = response.salt.len();
        let header_len = response_len(salt_len);
        let len = u16::try_from(payload.len()).expect("payload within max_payload");
        let fixed = payload.start - TAG_LEN - header_len;
        let header = &mut block[fixed..fixed + header_len];
        header[0] = TYPE_RESPONSE;
        header[1..9].copy_from_slice(&self.clock.unix_s(now).to_be_bytes());
        header[9..9 + salt_len].copy_from_slice(response.request_salt.as_slice());
        header[9 + salt_len..].copy_from_slice(&len.to_be_bytes());
        self.key.seal(block, fixed..fixed + header_len)?;
        let end = payload.end + TAG_LEN;
        self.key.seal(block, payload)?;
        let start = fixed - salt_len;
        block[start..fixed].copy_from_slice(response.salt.as_slice());
        Ok(start..end)
    }
}

impl Layer for Aead2022ServerStream {
    fn plan(&self, _: Instant) -> Plan {
        let rest = chunk_room(MAX_CHUNK);
        let first = self.response.as_ref().map_or(rest, |response| {
            let salt_len = response.salt.len();
            Room { head: salt_len + response_len(salt_len) + TAG_LEN, ..rest }
        });
        Plan { first, rest }
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        if payload.is_empty() {
            return Ok(payload);
        }
        match self.response.take() {
            Some(response) => self.seal_response(block, payload, &response, now),
            None => self.key.seal_chunk(block, payload),
        }
    }

    fn open(&mut self, wire: &mut RecvBuf, _: Instant) -> Result<Opened, WireError> {
        self.chunks.open(wire)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        transport_end(Some(&self.chunks), unread)
    }
}
