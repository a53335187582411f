//! The client's side of a connection: one exchange after the other.

use std::ops::Range;
use std::time::Instant;

use super::codec::{Format, SnellOpener, SnellSealer};
use super::frame::Frame;
use super::kdf::{Salt, SnellDirectionKey, SnellPsk};
use super::request::{ErrorReply, REPLY_ERROR, REPLY_TUNNEL, SnellCommand, SnellRequest};
use crate::buf::RecvBuf;
use crate::wire::{EndOfStream, Layer, Opened, Plan, Rng, WireError};

/// Longest error reply: reply byte, code, length and 255 bytes of text.
const MAX_REPLY_LEN: usize = 3 + 255;

/// The client's state machine of one connection.
///
/// ```text
///   Idle --start--> Active { sending: open | ended, receiving: reply | open | ended }
///   both ended, command 5 --> Idle
/// ```
#[derive(Debug)]
pub struct SnellClientStream {
    sealer: SnellSealer,
    opener: SnellOpener,
    own_salt: Salt,
    /// Request bytes that wait for the first write of the exchange.
    pending: Vec<u8>,
    /// Bytes of a reply that is not complete yet.
    reply: Vec<u8>,
    sending: Sending,
    receiving: Receiving,
    reusable: bool,
    exchanges: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Idle,
    Open,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Idle,
    /// The reply byte is next. Some servers end an exchange without data twice; the second zero chunk then turns
    /// up here, once, in front of the next exchange's reply (`docs/protocols/snell.md` 2.6).
    Reply {
        may_skip_zero_chunk: bool,
    },
    Open,
    Ended,
}

impl SnellClientStream {
    /// A connection of v4 or v5 that sends under `own` and opens what comes under keys derived from `psk`.
    pub fn new(psk: SnellPsk, own: &SnellDirectionKey, rng: &mut dyn Rng) -> Self {
        Self::speaking(Format::V4, psk, own, rng)
    }

    /// As [`SnellClientStream::new`], of any version.
    pub fn speaking(format: Format, psk: SnellPsk, own: &SnellDirectionKey, rng: &mut dyn Rng) -> Self {
        Self {
            sealer: SnellSealer::new(format.clone(), own, false, rng),
            opener: SnellOpener::new(format, psk),
            own_salt: *own.salt(),
            pending: Vec::new(),
            reply: Vec::new(),
            sending: Sending::Idle,
            receiving: Receiving::Idle,
            reusable: false,
            exchanges: 0,
        }
    }

    /// Begins an exchange: its request goes out with the next write.
    ///
    /// # Panics
    /// If an exchange is under way.
    pub fn start(&mut self, request: &SnellRequest) {
        assert!(self.is_idle(), "an exchange is under way");
        request.emit(&mut self.pending);
        self.reusable = match request.command {
            SnellCommand::Connect { reusable, .. } | SnellCommand::Invalid { reusable, .. } => reusable,
            SnellCommand::Ping | SnellCommand::Udp => false,
        };
        self.sending = Sending::Open;
        self.receiving = Receiving::Reply { may_skip_zero_chunk: self.exchanges > 0 };
        self.exchanges += 1;
    }

    /// True before the first exchange, and between two on a reusable connection.
    pub fn is_idle(&self) -> bool {
        match (self.sending, self.receiving) {
            (Sending::Idle, Receiving::Idle) => true,
            (Sending::Ended, Receiving::Ended) => self.reusable,
            _ => false,
        }
    }

    /// True once the reply byte of the current exchange has come.
    pub fn is_answered(&self) -> bool {
        matches!(self.receiving, Receiving::Open | Receiving::Ended)
    }

    /// Exchanges begun on this connection.
    pub fn exchanges(&self) -> u32 {
        self.exchanges
    }

    /// True once the server's first frame header has opened: the key is right.
    pub fn is_authenticated(&self) -> bool {
        self.opener.has_opened()
    }

    /// True if the server has shown that it is adit, which carries half-closes from end to end.
    pub fn server_is_adit(&self) -> bool {
        self.opener.is_marked()
    }

    fn open_reply(&mut self, wire: &mut RecvBuf, may_skip_zero_chunk: bool) -> Result<Opened, WireError> {
        loop {
            let payload = match self.opener.open(wire)? {
                Frame::NeedMore(len) => return Ok(Opened::NeedMore(len)),
                Frame::ZeroChunk if may_skip_zero_chunk && self.reply.is_empty() => {
                    self.receiving = Receiving::Reply { may_skip_zero_chunk: false };
                    continue;
                }
                Frame::ZeroChunk => return Err(WireError::Truncated { what: "reply" }),
                Frame::Payload(range) => range,
            };
            if self.opener.salt() == Some(&self.own_salt) {
                return Err(WireError::Replayed { what: "own salt" });
            }
            if let Some(opened) = self.take_reply(&wire.block()[payload.clone()], payload.start)? {
                return Ok(opened);
            }
        }
    }

    /// Interprets reply bytes that stand at offset `at` of the block.
    fn take_reply(&mut self, bytes: &[u8], at: usize) -> Result<Option<Opened>, WireError> {
        match (self.reply.first(), bytes.first()) {
            (None, Some(&REPLY_TUNNEL)) => {
                self.receiving = Receiving::Open;
                return Ok(Some(Opened::Payload(at + 1..at + bytes.len())));
            }
            (None, Some(&REPLY_ERROR)) | (Some(_), _) => {}
            (None, Some(&other)) => return Err(WireError::Malformed { what: "reply", got: other.into() }),
            (None, None) => return Ok(None),
        }
        self.reply.extend(&bytes[..bytes.len().min(MAX_REPLY_LEN - self.reply.len())]);
        match ErrorReply::parse(&self.reply[1..]) {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }
}

impl Layer for SnellClientStream {
    fn has_ended(&self) -> bool {
        self.sending == Sending::Ended
    }

    /// An adit server goes on answering; most others drop what their target has yet to say.
    fn carries_half_close(&self) -> bool {
        self.server_is_adit()
    }

    fn plan(&self, now: Instant) -> Plan {
        self.sealer.plan(self.pending.len(), now)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        seal_with_prefix(&mut self.sealer, &mut self.pending, block, payload, now)
    }

    fn finish_write(&mut self, now: Instant) {
        self.sealer.finish_write(now);
    }

    fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn end_of_stream(&self) -> EndOfStream {
        if self.reusable { EndOfStream::InBand } else { EndOfStream::Transport }
    }

    fn seal_end(&mut self, block: &mut [u8], at: usize, now: Instant) -> Result<Range<usize>, WireError> {
        self.sending = Sending::Ended;
        let zero_chunk = self.end_of_stream() == EndOfStream::InBand;
        seal_end(&mut self.sealer, &mut self.pending, zero_chunk, block, at, now)
    }

    fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
        match self.receiving {
            Receiving::Reply { may_skip_zero_chunk } => self.open_reply(wire, may_skip_zero_chunk),
            Receiving::Open => {
                let frame = self.opener.open(wire)?;
                if frame == Frame::ZeroChunk {
                    self.receiving = Receiving::Ended;
                }
                Ok(frame.into())
            }
            Receiving::Idle | Receiving::Ended => Ok(Opened::End),
        }
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        match self.receiving {
            Receiving::Reply { .. } => Err(WireError::Truncated { what: "connection before any reply" }),
            Receiving::Open if unread > 0 || !self.opener.is_at_boundary() => {
                Err(WireError::Truncated { what: "frame" })
            }
            Receiving::Open if self.reusable => {
                Err(WireError::Truncated { what: "exchange without its end" })
            }
            Receiving::Open => {
                self.receiving = Receiving::Ended;
                Ok(())
            }
            Receiving::Idle | Receiving::Ended => Ok(()),
        }
    }
}

/// Seals `payload` with the pending bytes in front of it, as one frame.
pub(super) fn seal_with_prefix(
    sealer: &mut SnellSealer,
    pending: &mut Vec<u8>,
    block: &mut [u8],
    payload: Range<usize>,
    now: Instant,
) -> Result<Range<usize>, WireError> {
    let start = payload.start - pending.len();
    if start == payload.end {
        return Ok(start..start);
    }
    block[start..payload.start].copy_from_slice(pending);
    *pending = Vec::new();
    sealer.seal(block, start..payload.end, now)
}

/// Seals what is pending and, for an in-band end, the zero chunk behind it.
pub(super) fn seal_end(
    sealer: &mut SnellSealer,
    pending: &mut Vec<u8>,
    zero_chunk: bool,
    block: &mut [u8],
    at: usize,
    now: Instant,
) -> Result<Range<usize>, WireError> {
    let mut sealed = at..at;
    if !pending.is_empty() {
        let payload_at = at + sealer.plan(pending.len(), now).first.head;
        sealed = seal_with_prefix(sealer, pending, block, payload_at..payload_at, now)?;
        sealer.finish_write(now);
    }
    if zero_chunk {
        sealed.end = sealer.seal_zero_chunk(block, sealed.end, now)?.end;
    }
    Ok(sealed)
}
