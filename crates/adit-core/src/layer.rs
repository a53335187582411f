//! The registry of stream protocols: what can stand between a socket and the relay.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use adit_proto::buf::RecvBuf;
use adit_proto::wire::{EndOfStream, Layer, Opened, Plan, Room, WireError};
use adit_proto::{shadowsocks, snell};

use crate::salts::SaltFilter;

/// The innermost protocol of a connection.
#[derive(Debug)]
pub(crate) enum Protocol {
    SnellClient(snell::Client),
    SnellServer(snell::Server),
    ShadowsocksClient(shadowsocks::Client),
    ShadowsocksServer(shadowsocks::Server),
}

impl Protocol {
    fn layer(&self) -> &dyn Layer {
        match self {
            Self::SnellClient(layer) => layer,
            Self::SnellServer(layer) => layer,
            Self::ShadowsocksClient(layer) => layer,
            Self::ShadowsocksServer(layer) => layer,
        }
    }

    fn layer_mut(&mut self) -> &mut dyn Layer {
        match self {
            Self::SnellClient(layer) => layer,
            Self::SnellServer(layer) => layer,
            Self::ShadowsocksClient(layer) => layer,
            Self::ShadowsocksServer(layer) => layer,
        }
    }
}

/// A disguise, or none, in front of a protocol.
///
/// The receive buffer holds both stages, one behind the other:
///
/// ```text
///   unread:  [ out of the disguise, not opened yet | raw_len bytes as they came ]
/// ```
#[derive(Default)]
pub(crate) struct Front {
    disguise: Option<Box<dyn Layer>>,
    raw_len: usize,
}

impl Front {
    pub(crate) fn new(disguise: Option<Box<dyn Layer>>) -> Self {
        Self { disguise, raw_len: 0 }
    }

    /// The last `len` unread bytes of `wire` have just come: takes them out of the disguise.
    pub(crate) fn handle_received(
        &mut self,
        wire: &mut RecvBuf,
        len: usize,
        now: Instant,
    ) -> Result<(), WireError> {
        let Some(disguise) = &mut self.disguise else { return Ok(()) };
        self.raw_len += len;
        let start = wire.position();
        let end = start + wire.unread().len();
        let mut inner_end = end - self.raw_len;
        wire.set_unread(inner_end..end);
        while let Opened::Payload(range) = disguise.open(wire, now)? {
            if range.start != inner_end {
                wire.block_mut().copy_within(range.clone(), inner_end);
            }
            inner_end += range.len();
        }
        let rest = wire.position()..end;
        self.raw_len = rest.len();
        wire.block_mut().copy_within(rest, inner_end);
        wire.set_unread(start..inner_end + self.raw_len);
        Ok(())
    }

    /// The last `len` bytes have been put aside as they came: they are taken out of the disguise with the next ones.
    pub(crate) fn defer_received(&mut self, len: usize) {
        if self.disguise.is_some() {
            self.raw_len += len;
        }
    }

    /// Lets `open` see what has come out of the disguise only.
    pub(crate) fn with_inner<T>(&self, wire: &mut RecvBuf, open: impl FnOnce(&mut RecvBuf) -> T) -> T {
        let end = wire.position() + wire.unread().len();
        wire.set_unread(wire.position()..end - self.raw_len);
        let result = open(wire);
        // The raw bytes stand behind the inner ones; a gap cannot arise, since what is opened is only consumed.
        wire.set_unread(wire.position()..end);
        result
    }
}

/// A protocol, perhaps in a disguise, as the relay sees it.
pub(crate) struct Stack {
    protocol: Protocol,
    front: Front,
    /// Until the first payload of a client's answer: the salts that were there before.
    answers: Option<Arc<SaltFilter>>,
}

impl Stack {
    pub(crate) fn new(protocol: Protocol, front: Front) -> Self {
        Self { protocol, front, answers: None }
    }

    /// The stack of a Shadowsocks client that takes no answer twice, where nothing else ties it to the request.
    pub(crate) fn shadowsocks_client(
        client: shadowsocks::Client,
        front: Front,
        answers: &Arc<SaltFilter>,
    ) -> Self {
        let answers = client.own_salt().map(|own| {
            // Neither is a request an answer.
            answers.insert(own);
            answers.clone()
        });
        Self { protocol: Protocol::ShadowsocksClient(client), front, answers }
    }

    /// The Snell client at the heart, if that is what it is.
    pub(crate) fn snell_client(&mut self) -> Option<&mut snell::Client> {
        match &mut self.protocol {
            Protocol::SnellClient(client) => Some(client),
            Protocol::SnellServer(_) | Protocol::ShadowsocksClient(_) | Protocol::ShadowsocksServer(_) => {
                None
            }
        }
    }

    /// Whether the other end is known to go on answering after our end of the stream.
    pub(crate) fn carries_half_close(&self) -> bool {
        match &self.protocol {
            Protocol::SnellClient(client) => client.server_is_adit(),
            Protocol::SnellServer(_) | Protocol::ShadowsocksClient(_) | Protocol::ShadowsocksServer(_) => {
                true
            }
        }
    }

    /// The Snell server at the heart, if that is what it is.
    pub(crate) fn snell_server(&mut self) -> Option<&mut snell::Server> {
        match &mut self.protocol {
            Protocol::SnellServer(server) => Some(server),
            Protocol::SnellClient(_) | Protocol::ShadowsocksClient(_) | Protocol::ShadowsocksServer(_) => {
                None
            }
        }
    }

    /// As [`Front::handle_received`].
    pub(crate) fn handle_received(
        &mut self,
        wire: &mut RecvBuf,
        len: usize,
        now: Instant,
    ) -> Result<(), WireError> {
        self.front.handle_received(wire, len, now)
    }

    /// As [`Front::defer_received`].
    pub(crate) fn defer_received(&mut self, len: usize) {
        self.front.defer_received(len);
    }

    /// As [`Layer::open`]: the next payload.
    pub(crate) fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        let layer = self.protocol.layer_mut();
        let opened = if self.front.raw_len == 0 {
            layer.open(wire, now)?
        } else {
            self.front.with_inner(wire, |wire| layer.open(wire, now))?
        };
        if self.answers.is_some() && matches!(opened, Opened::Payload(_)) {
            self.check_answer()?;
        }
        Ok(opened)
    }

    /// The salt has opened a payload, so it is the server's: whether it comes for the first time.
    fn check_answer(&mut self) -> Result<(), WireError> {
        let (Some(answers), Protocol::ShadowsocksClient(client)) = (self.answers.take(), &self.protocol)
        else {
            return Ok(());
        };
        let is_fresh = client.peer_salt().is_none_or(|salt| answers.insert(salt));
        if is_fresh { Ok(()) } else { Err(WireError::Replayed { what: "salt of an answer" }) }
    }

    /// As [`snell::Server::poll_request`].
    pub(crate) fn poll_request(&mut self, wire: &mut RecvBuf) -> Result<snell::Progress, WireError> {
        let Protocol::SnellServer(server) = &mut self.protocol else { unreachable!("not a Snell server") };
        self.front.with_inner(wire, |wire| server.poll_request(wire))
    }

    /// As [`Layer::plan`], for both stages together.
    pub(crate) fn plan(&self, now: Instant) -> Plan {
        let inner = self.protocol.layer().plan(now);
        let Some(disguise) = &self.front.disguise else { return inner };
        let outer = disguise.plan(now);
        let nest = |inner: Room, outer: Room| Room {
            head: inner.head + outer.head,
            tail: inner.tail + outer.tail,
            max_payload: inner.max_payload.min(outer.max_payload.saturating_sub(inner.head + inner.tail)),
        };
        Plan { first: nest(inner.first, outer.first), rest: nest(inner.rest, outer.rest) }
    }

    /// As [`Layer::seal`].
    pub(crate) fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let sealed = self.protocol.layer_mut().seal(block, payload, now)?;
        match &mut self.front.disguise {
            Some(disguise) if !sealed.is_empty() => disguise.seal(block, sealed, now),
            _ => Ok(sealed),
        }
    }

    /// As [`Layer::finish_write`].
    pub(crate) fn finish_write(&mut self, now: Instant) {
        self.protocol.layer_mut().finish_write(now);
        if let Some(disguise) = &mut self.front.disguise {
            disguise.finish_write(now);
        }
    }

    /// As [`Layer::has_pending`].
    pub(crate) fn has_pending(&self) -> bool {
        self.protocol.layer().has_pending()
    }

    /// Whether the sending direction of the exchange has ended, as far as the protocol knows of exchanges.
    pub(crate) fn has_ended(&self) -> bool {
        match &self.protocol {
            Protocol::SnellClient(client) => client.has_ended(),
            Protocol::SnellServer(server) => server.has_ended(),
            Protocol::ShadowsocksClient(_) | Protocol::ShadowsocksServer(_) => false,
        }
    }

    /// As [`Layer::end_of_stream`].
    pub(crate) fn end_of_stream(&self) -> EndOfStream {
        self.protocol.layer().end_of_stream()
    }

    /// As [`Layer::seal_end`], at the front of `block`. What is pending leaves even where there is no end in band.
    pub(crate) fn seal_end(&mut self, block: &mut [u8], now: Instant) -> Result<Range<usize>, WireError> {
        if self.end_of_stream() == EndOfStream::Transport && self.has_pending() {
            let at = self.plan(now).first.head;
            return self.seal(block, at..at, now);
        }
        let head = self.front.disguise.as_ref().map_or(0, |disguise| disguise.plan(now).first.head);
        let sealed = self.protocol.layer_mut().seal_end(block, head, now)?;
        match &mut self.front.disguise {
            Some(disguise) if !sealed.is_empty() => disguise.seal(block, sealed, now),
            _ => Ok(sealed),
        }
    }

    /// As [`Layer::handle_transport_end`], with `unread` bytes of both stages left.
    pub(crate) fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        if let Some(disguise) = &mut self.front.disguise {
            disguise.handle_transport_end(self.front.raw_len)?;
        }
        self.protocol.layer_mut().handle_transport_end(unread)
    }
}
