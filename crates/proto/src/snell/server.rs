//! The server's side of a connection: one exchange after the other.

use std::ops::Range;
use std::time::Instant;

use super::client::{seal_end, seal_with_prefix};
use super::codec::{Accepts, Format, Opening, SnellOpener, SnellSealer};
use super::frame::Frame;
use super::kdf::{Salt, SnellDirectionKey, SnellPsk};
use super::request::{ErrorReply, MAX_REQUEST_LEN, REPLY_PONG, REPLY_TUNNEL, SnellCommand, SnellRequest};
use crate::buf::RecvBuf;
use crate::wire::{EndOfStream, Layer, Opened, Plan, Rng, WireError};

/// The server's state machine of one connection.
///
/// ```text
///   WaitRequest --poll_request--> Decide --accept--> Active { receiving, sending } --both ended--> WaitRequest
///                                        --refuse--> error reply, then the client's end --> WaitRequest
/// ```
#[derive(Debug)]
pub struct SnellServerStream {
    /// `None` until a request is worth a key.
    sealer: Option<SnellSealer>,
    opener: SnellOpener,
    /// Reply bytes that wait for the first write of the exchange.
    pending: Vec<u8>,
    /// Bytes of a request that is not complete yet.
    request: Vec<u8>,
    /// Payload behind the request in the same frame, as a range into the receive buffer's block.
    early: Range<usize>,
    receiving: Receiving,
    sending: Sending,
    reusable: bool,
}

/// Progress of [`SnellServerStream::poll_request`].
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least this many further bytes are needed.
    NeedMore(usize),
    /// A whole request. Data that came with it is what [`Layer::open`] returns first: call that before bytes in
    /// the receive buffer are moved.
    Request(SnellRequest),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Request,
    Open,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Idle,
    Open,
    Ended,
}

impl SnellServerStream {
    /// A connection of v4 or v5 that opens what comes under keys derived from `psk`. It can answer once it has a key of its
    /// own: [`SnellServerStream::set_own_key`].
    pub fn new(psk: SnellPsk) -> Self {
        Self::accepting(Accepts::Only(Format::V4), psk)
    }

    /// As [`SnellServerStream::new`], of the versions that `accepts` names.
    pub fn accepting(accepts: Accepts, psk: SnellPsk) -> Self {
        Self::with_opener(SnellOpener::accepting(accepts, psk))
    }

    /// A connection whose first header has opened as `opening`.
    pub fn opened(opening: &Opening) -> Self {
        Self::with_opener(SnellOpener::opened(opening))
    }

    fn with_opener(opener: SnellOpener) -> Self {
        Self {
            sealer: None,
            opener,
            pending: Vec::new(),
            request: Vec::new(),
            early: 0..0,
            receiving: Receiving::Request,
            sending: Sending::Idle,
            reusable: false,
        }
    }

    /// Sets the key to answer under, once per connection, behind the first request and before anything is sealed.
    /// Unauthenticated connections cost no such key, and the answer has the client's version.
    pub fn set_own_key(&mut self, own: &SnellDirectionKey, rng: &mut dyn Rng) {
        self.sealer = Some(SnellSealer::new(self.opener.answer(), own, true, rng));
    }

    /// The client's salt, once its first header has opened: what a replay filter wants to see.
    pub fn peer_salt(&self) -> Option<&Salt> {
        self.opener.salt()
    }

    /// True if the next call with `unread_len` bytes in the receive buffer costs a key derivation.
    pub fn would_derive(&self, unread_len: usize) -> bool {
        self.opener.derives_at().is_some_and(|len| unread_len >= len)
    }

    /// True if a key has been derived for this client in vain and nothing is decided yet.
    pub fn has_tried(&self) -> bool {
        self.opener.has_tried()
    }

    /// True if recorded connections cannot be told from new ones: unsafe-raw has no salt.
    pub fn is_unsealed(&self) -> bool {
        matches!(self.opener.answer(), Format::UnsafeRaw)
    }

    /// Opens frames until they make a whole request. Nothing has any effect before the caller reacts to it.
    ///
    /// # Errors
    /// An error in the client's bytes.
    pub fn poll_request(&mut self, wire: &mut RecvBuf) -> Result<Progress, WireError> {
        loop {
            let range = match self.opener.open(wire)? {
                Frame::NeedMore(len) => return Ok(Progress::NeedMore(len)),
                Frame::ZeroChunk => {
                    return Err(WireError::Malformed { what: "zero chunk in place of a request", got: 0 });
                }
                Frame::Payload(range) => range,
            };
            let before = self.request.len();
            let taken = range.len().min(MAX_REQUEST_LEN - before);
            self.request.extend(&wire.block()[range.start..range.start + taken]);
            if let Some((request, used)) = SnellRequest::parse(&self.request)? {
                self.early = range.start + (used - before).min(range.len())..range.end;
                self.begin(&request);
                return Ok(Progress::Request(request));
            }
        }
    }

    fn begin(&mut self, request: &SnellRequest) {
        self.request = Vec::new();
        self.receiving = Receiving::Open;
        self.sending = Sending::Open;
        self.reusable = match request.command {
            SnellCommand::Connect { reusable, .. } | SnellCommand::Invalid { reusable, .. } => reusable,
            SnellCommand::Ping => false,
            SnellCommand::Udp => {
                // Datagrams start in a frame of their own; peers drop what shares one with the request.
                self.early = 0..0;
                false
            }
        };
    }

    /// The request is served: the tunnel byte goes out with the first data.
    pub fn accept(&mut self) {
        self.pending = vec![REPLY_TUNNEL];
    }

    /// The request cannot be served: the error goes out with the next (empty) write.
    pub fn refuse(&mut self, error: &ErrorReply) {
        self.pending = Vec::new();
        error.emit(&mut self.pending);
        self.sending = Sending::Ended;
    }

    /// Answers a ping with the next (empty) write.
    pub fn pong(&mut self) {
        self.pending = vec![REPLY_PONG];
        self.sending = Sending::Ended;
    }

    /// Whether the exchange leaves the connection open for another one.
    pub fn is_reusable(&self) -> bool {
        self.reusable
    }

    /// After both directions have ended: ready for [`SnellServerStream::poll_request`] again?
    pub fn next_exchange(&mut self) -> bool {
        if !self.reusable || self.receiving != Receiving::Ended || self.sending != Sending::Ended {
            return false;
        }
        self.receiving = Receiving::Request;
        self.sending = Sending::Idle;
        true
    }
}

/// Callers set the key when they react to the first request.
const HAS_KEY: &str = "an own key before anything is sealed";

impl Layer for SnellServerStream {
    fn has_ended(&self) -> bool {
        self.sending == Sending::Ended
    }

    fn plan(&self, now: Instant) -> Plan {
        self.sealer.as_ref().expect(HAS_KEY).plan(self.pending.len(), now)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        seal_with_prefix(self.sealer.as_mut().expect(HAS_KEY), &mut self.pending, block, payload, now)
    }

    fn finish_write(&mut self, now: Instant) {
        self.sealer.as_mut().expect(HAS_KEY).finish_write(now);
    }

    fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn end_of_stream(&self) -> EndOfStream {
        if self.reusable { EndOfStream::InBand } else { EndOfStream::Transport }
    }

    /// An exchange without any data still gets its tunnel byte, and then a zero chunk even after command 1, so
    /// that an empty answer can be told from a broken connection.
    fn seal_end(&mut self, block: &mut [u8], at: usize, now: Instant) -> Result<Range<usize>, WireError> {
        self.sending = Sending::Ended;
        let zero_chunk = self.reusable || self.has_pending();
        seal_end(self.sealer.as_mut().expect(HAS_KEY), &mut self.pending, zero_chunk, block, at, now)
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        if !self.early.is_empty() {
            return Ok(Opened::Payload(std::mem::take(&mut self.early)));
        }
        match self.receiving {
            Receiving::Open => {
                let frame = self.opener.open(wire)?;
                if frame == Frame::ZeroChunk {
                    self.receiving = Receiving::Ended;
                }
                Ok(frame.into())
            }
            Receiving::Request | Receiving::Ended => Ok(Opened::End),
        }
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        if unread > 0 || !self.opener.is_at_boundary() || !self.request.is_empty() {
            return Err(WireError::Truncated { what: "frame" });
        }
        if self.receiving == Receiving::Open {
            if self.reusable {
                // A connection that stays open ends an exchange by its zero chunk: anything else is a cut.
                return Err(WireError::Truncated { what: "exchange without its end" });
            }
            self.receiving = Receiving::Ended;
        }
        Ok(())
    }
}
