use std::ops::Range;
use std::time::Instant;

use super::{MAX_CHUNK, direction_key};
use crate::buf::RecvBuf;
use crate::shadowsocks::chunk::{ChunkReader, DirectionKey, chunk_room, transport_end};
use crate::shadowsocks::{Accept, Accepted, AeadKey, Salt, SaltFilter};
use crate::wire::{
    Address, Layer, Opened, Plan, Rng, Room, Target, WireError, address_len, emit_address, parse_address,
};

/// The sending half: salt and address wait for the first payload.
#[derive(Debug)]
struct Sender {
    key: DirectionKey,
    salt: Option<Salt>,
    address: Box<[u8]>,
}

impl Sender {
    fn new(key: &AeadKey, address: Box<[u8]>, rng: &mut dyn Rng) -> Self {
        let salt = Salt::random(key.method.key_len(), rng);
        Self { key: direction_key(key, salt.as_slice()), salt: Some(salt), address }
    }

    fn plan(&self) -> Plan {
        let rest = chunk_room(MAX_CHUNK);
        let salt_len = self.salt.as_ref().map_or(0, Salt::len);
        let first = Room {
            head: salt_len + rest.head + self.address.len(),
            max_payload: MAX_CHUNK - self.address.len(),
            ..rest
        };
        Plan { first, rest }
    }

    fn seal(&mut self, block: &mut [u8], payload: Range<usize>) -> Result<Range<usize>, WireError> {
        if payload.is_empty() && self.address.is_empty() {
            return Ok(payload);
        }
        let plain = payload.start - self.address.len();
        block[plain..payload.start].copy_from_slice(&self.address);
        self.address = Box::default();
        let mut frame = self.key.seal_chunk(block, plain..payload.end)?;
        if let Some(salt) = self.salt.take() {
            block[frame.start - salt.len()..frame.start].copy_from_slice(salt.as_slice());
            frame.start -= salt.len();
        }
        Ok(frame)
    }
}

/// The receiving half: chunks behind a salt.
#[derive(Debug)]
struct Receiver {
    key: AeadKey,
    salt: Option<Salt>,
    chunks: Option<ChunkReader>,
}

impl Receiver {
    fn new(key: &AeadKey) -> Self {
        Self { key: key.clone(), salt: None, chunks: None }
    }

    fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        if let Some(chunks) = &mut self.chunks {
            return chunks.open(wire);
        }
        let salt_len = self.key.method.key_len();
        let Some(salt) = wire.unread().get(..salt_len) else {
            return Ok(Opened::NeedMore(salt_len - wire.unread().len()));
        };
        let mut chunks = ChunkReader::new(direction_key(&self.key, salt), MAX_CHUNK);
        self.salt = Some(Salt::from_slice(salt));
        wire.consume(salt_len);
        let opened = chunks.open(wire);
        self.chunks = Some(chunks);
        opened
    }
}

/// The client's end of a stream.
#[derive(Debug)]
pub struct AeadClientStream {
    sender: Sender,
    receiver: Receiver,
}

impl AeadClientStream {
    /// A stream to `target`; the salt comes from `rng`.
    pub fn new(key: &AeadKey, target: &Target, rng: &mut dyn Rng) -> Self {
        let mut address = vec![0; address_len(target)];
        emit_address(target, &mut address);
        Self { sender: Sender::new(key, address.into(), rng), receiver: Receiver::new(key) }
    }

    /// The salt of the request until it has left; a client that takes no request for an answer remembers it.
    pub fn own_salt(&self) -> Option<&[u8]> {
        self.sender.salt.as_ref().map(Salt::as_slice)
    }

    /// The server's salt, once it is there: to be checked for repetition when the first payload has been opened.
    pub fn peer_salt(&self) -> Option<&[u8]> {
        self.receiver.salt.as_ref().map(Salt::as_slice)
    }
}

impl Layer for AeadClientStream {
    fn plan(&self, _: Instant) -> Plan {
        self.sender.plan()
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _: Instant,
    ) -> Result<Range<usize>, WireError> {
        self.sender.seal(block, payload)
    }

    fn has_pending(&self) -> bool {
        !self.sender.address.is_empty()
    }

    fn open(&mut self, wire: &mut RecvBuf, _: Instant) -> Result<Opened, WireError> {
        self.receiver.open(wire)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        transport_end(self.receiver.chunks.as_ref(), unread)
    }
}

/// The server's end before the target is known.
#[derive(Debug)]
pub struct AeadAcceptor {
    receiver: Receiver,
    is_fresh: bool,
    /// The start of an address that did not end with its chunk.
    partial: Vec<u8>,
}

impl AeadAcceptor {
    /// Waits for a client under `key`.
    pub fn new(key: &AeadKey) -> Self {
        Self { receiver: Receiver::new(key), is_fresh: false, partial: Vec::new() }
    }

    /// True once a chunk has authenticated and its salt was new.
    pub fn is_authenticated(&self) -> bool {
        self.is_fresh
    }

    /// Opens chunks until the address is complete. `filter` sees the salt once, after the first chunk has
    /// authenticated and before anything is made of it.
    ///
    /// # Errors
    /// [`WireError::Authentication`], [`WireError::Malformed`], or [`WireError::Replayed`] if `filter` knows the salt.
    pub fn accept(&mut self, wire: &mut RecvBuf, filter: &mut dyn SaltFilter) -> Result<Accept, WireError> {
        loop {
            let chunk = match self.receiver.open(wire)? {
                Opened::Payload(chunk) => chunk,
                Opened::NeedMore(missing) => return Ok(Accept::NeedMore(missing)),
                Opened::End => unreachable!("chunks have no end of their own"),
            };
            if !self.is_fresh {
                let salt = self.receiver.salt.as_ref().expect("a chunk follows the salt");
                if !filter.insert(salt.as_slice()) {
                    return Err(WireError::Replayed { what: "salt" });
                }
                self.is_fresh = true;
            }
            if let Some((target, payload)) = self.take_address(wire.block(), chunk)? {
                return Ok(Accept::Accepted(Accepted { target, user: None, payload }));
            }
        }
    }

    /// Looks for the end of the address in `chunk`; returns the target and what follows it.
    fn take_address(
        &mut self,
        block: &[u8],
        chunk: Range<usize>,
    ) -> Result<Option<(Target, Range<usize>)>, WireError> {
        let before = self.partial.len();
        let bytes = if before == 0 {
            &block[chunk.clone()]
        } else {
            self.partial.extend_from_slice(&block[chunk.clone()]);
            &self.partial
        };
        match parse_address(bytes)? {
            Address::Whole(target, len) => {
                let payload = chunk.start + len - before..chunk.end;
                self.partial = Vec::new();
                Ok(Some((target, payload)))
            }
            Address::NeedMore(_) => {
                if before == 0 {
                    self.partial = bytes.to_vec();
                }
                Ok(None)
            }
        }
    }

    /// Goes on after [`Accept::Accepted`]; the salt of the answer comes from `rng`.
    pub fn into_server(self, rng: &mut dyn Rng) -> AeadServerStream {
        AeadServerStream {
            sender: Sender::new(&self.receiver.key, Box::default(), rng),
            receiver: self.receiver,
        }
    }
}

/// The server's end of a stream.
#[derive(Debug)]
pub struct AeadServerStream {
    sender: Sender,
    receiver: Receiver,
}

impl AeadServerStream {
    /// The salt of the answer until it has left; a server that never accepts its own salts inserts it in its filter.
    pub fn own_salt(&self) -> Option<&[u8]> {
        self.sender.salt.as_ref().map(Salt::as_slice)
    }
}

impl Layer for AeadServerStream {
    fn plan(&self, _: Instant) -> Plan {
        self.sender.plan()
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        _: Instant,
    ) -> Result<Range<usize>, WireError> {
        self.sender.seal(block, payload)
    }

    fn open(&mut self, wire: &mut RecvBuf, _: Instant) -> Result<Opened, WireError> {
        self.receiver.open(wire)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        transport_end(self.receiver.chunks.as_ref(), unread)
    }
}
