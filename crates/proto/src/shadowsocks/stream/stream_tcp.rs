use std::fmt;
use std::ops::Range;
use std::time::Instant;

use crate::buf::RecvBuf;
use crate::crypto::stream::{Cipher, Direction};
use crate::shadowsocks::{Accept, Accepted, Salt, SaltFilter, StreamKey};
use crate::wire::{
    Address, Layer, Opened, Plan, Rng, Room, Target, WireError, address_len, emit_address, parse_address,
};

/// The sending half: IV and address wait for the first payload.
struct Sender {
    cipher: Option<Cipher>,
    iv: Option<Salt>,
    address: Box<[u8]>,
}

impl Sender {
    fn new(key: &StreamKey, address: Box<[u8]>, rng: &mut dyn Rng) -> Self {
        let iv = Salt::random(key.iv_len(), rng);
        Self { cipher: key.cipher(iv.as_slice(), Direction::Encrypt), iv: Some(iv), address }
    }

    fn plan(&self) -> Plan {
        let rest = Room { head: 0, tail: 0, max_payload: usize::MAX };
        let iv_len = self.iv.as_ref().map_or(0, Salt::len);
        Plan { first: Room { head: iv_len + self.address.len(), ..rest }, rest }
    }

    fn seal(&mut self, block: &mut [u8], payload: Range<usize>) -> Result<Range<usize>, WireError> {
        if payload.is_empty() && self.address.is_empty() {
            return Ok(payload);
        }
        let mut start = payload.start - self.address.len();
        block[start..payload.start].copy_from_slice(&self.address);
        self.address = Box::default();
        if let Some(cipher) = &mut self.cipher {
            cipher.apply(&mut block[start..payload.end])?;
        }
        if let Some(iv) = self.iv.take() {
            block[start - iv.len()..start].copy_from_slice(iv.as_slice());
            start -= iv.len();
        }
        Ok(start..payload.end)
    }
}

/// The receiving half.
struct Receiver {
    key: StreamKey,
    cipher: Option<Cipher>,
    iv: Option<Salt>,
}

impl Receiver {
    fn new(key: &StreamKey) -> Self {
        Self { key: key.clone(), cipher: None, iv: None }
    }

    /// Takes the IV off `wire`; `Some` says how many bytes of it are missing.
    fn take_iv(&mut self, wire: &mut RecvBuf) -> Option<usize> {
        if self.iv.is_some() {
            return None;
        }
        let iv_len = self.key.iv_len();
        let Some(iv) = wire.unread().get(..iv_len) else { return Some(iv_len - wire.unread().len()) };
        self.cipher = self.key.cipher(iv, Direction::Decrypt);
        self.iv = Some(Salt::from_slice(iv));
        wire.consume(iv_len);
        None
    }

    fn decrypt(&mut self, data: &mut [u8]) -> Result<(), WireError> {
        self.cipher.as_mut().map_or(Ok(()), |cipher| cipher.apply(data))
    }

    fn open(&mut self, wire: &mut RecvBuf) -> Result<Opened, WireError> {
        if let Some(missing) = self.take_iv(wire) {
            return Ok(Opened::NeedMore(missing));
        }
        let len = wire.unread().len();
        if len == 0 {
            return Ok(Opened::NeedMore(1));
        }
        self.decrypt(wire.unread_mut())?;
        let start = wire.position();
        wire.consume(len);
        Ok(Opened::Payload(start..start + len))
    }

    fn transport_end(&self, unread: usize) -> Result<(), WireError> {
        // No IV at all is a peer that had nothing to say.
        if unread == 0 { Ok(()) } else { Err(WireError::Truncated { what: "the IV" }) }
    }
}

/// The client's end of a stream.
pub struct StreamCipherClientStream {
    sender: Sender,
    receiver: Receiver,
}

impl StreamCipherClientStream {
    /// A stream to `target`; the IV comes from `rng`.
    pub fn new(key: &StreamKey, target: &Target, rng: &mut dyn Rng) -> Self {
        let mut address = vec![0; address_len(target)];
        emit_address(target, &mut address);
        Self { sender: Sender::new(key, address.into(), rng), receiver: Receiver::new(key) }
    }

    /// The server's IV, once it is there (and not empty).
    pub fn peer_salt(&self) -> Option<&[u8]> {
        self.receiver.iv.as_ref().map(Salt::as_slice).filter(|iv| !iv.is_empty())
    }
}

impl Layer for StreamCipherClientStream {
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
        self.receiver.transport_end(unread)
    }
}

/// The server's end before the target is known.
pub struct StreamCipherAcceptor {
    receiver: Receiver,
    /// Number of bytes at the front of the unread ones that are deciphered already.
    plain: usize,
}

impl StreamCipherAcceptor {
    /// Waits for a client under `key`.
    pub fn new(key: &StreamKey) -> Self {
        Self { receiver: Receiver::new(key), plain: 0 }
    }

    /// Reads the address. The IV is shown to `filter` once an address follows it: without authentication there is
    /// no better time.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for what is no address, [`WireError::Replayed`] if `filter` knows the IV.
    pub fn accept(&mut self, wire: &mut RecvBuf, filter: &mut dyn SaltFilter) -> Result<Accept, WireError> {
        if let Some(missing) = self.receiver.take_iv(wire) {
            return Ok(Accept::NeedMore(missing));
        }
        self.receiver.decrypt(&mut wire.unread_mut()[self.plain..])?;
        self.plain = wire.unread().len();
        let (target, len) = match parse_address(wire.unread())? {
            Address::NeedMore(missing) => return Ok(Accept::NeedMore(missing)),
            Address::Whole(target, len) => (target, len),
        };
        let iv = self.receiver.iv.as_ref().expect("the IV has been taken");
        if iv.len() > 0 && !filter.insert(iv.as_slice()) {
            return Err(WireError::Replayed { what: "IV" });
        }
        let payload = wire.position() + len..wire.position() + self.plain;
        wire.consume(self.plain);
        self.plain = 0;
        Ok(Accept::Accepted(Accepted { target, user: None, payload }))
    }

    /// Goes on after [`Accept::Accepted`]; the IV of the answer comes from `rng`.
    pub fn into_server(self, rng: &mut dyn Rng) -> StreamCipherServerStream {
        StreamCipherServerStream {
            sender: Sender::new(&self.receiver.key, Box::default(), rng),
            receiver: self.receiver,
        }
    }
}

/// The server's end of a stream.
pub struct StreamCipherServerStream {
    sender: Sender,
    receiver: Receiver,
}

impl StreamCipherServerStream {
    /// The IV of the answer until it has left, if there is one.
    pub fn own_salt(&self) -> Option<&[u8]> {
        self.sender.iv.as_ref().map(Salt::as_slice).filter(|iv| !iv.is_empty())
    }
}

impl Layer for StreamCipherServerStream {
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
        self.receiver.transport_end(unread)
    }
}

macro_rules! opaque {
    ($($name:ident),*) => {$(
        /// Shows no key material.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
opaque!(StreamCipherClientStream, StreamCipherAcceptor, StreamCipherServerStream);
