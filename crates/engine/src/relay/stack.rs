//! The protocols of one end of a connection: one innermost protocol, and the layers around it.
//!
//! The stack names none of them. The module that put the innermost protocol in place gets it back by its type.

use std::any::Any;
use std::ops::Range;
use std::time::Instant;

use adit_proto::buf::RecvBuf;
use adit_proto::wire::{EndOfStream, Layer, Opened, Plan, Room, WireError};

/// A layer that its owner can recognise by its type.
trait Protocol: Layer + Any {}

impl<T: Layer + Any> Protocol for T {}

/// A layer around others, with the bytes that it has not opened yet.
struct Around {
    layer: Box<dyn Layer>,
    raw_len: usize,
}

/// The layers around a protocol, innermost first: obfuscation, or ciphers beneath the protocol.
///
/// The receive buffer holds the stages of all of them, one behind the other:
///
/// ```text
///   unread:  [ opened by all layers | raw bytes of layer 0 | raw bytes of layer 1 | ... ]
/// ```
#[derive(Default)]
pub(crate) struct Outer {
    layers: Vec<Around>,
}

impl Outer {
    /// The same with one more layer, outside of those that are there.
    #[must_use]
    pub(crate) fn with(mut self, layer: Option<Box<dyn Layer>>) -> Self {
        self.layers.extend(layer.map(|layer| Around { layer, raw_len: 0 }));
        self
    }

    /// The last `len` unread bytes of `wire` have just been received: opens them, layer by layer.
    pub(crate) fn handle_received(
        &mut self,
        wire: &mut RecvBuf,
        len: usize,
        now: Instant,
    ) -> Result<(), WireError> {
        let Some(outermost) = self.layers.last_mut() else { return Ok(()) };
        outermost.raw_len += len;
        let start = wire.position();
        let mut end = start + wire.unread().len();
        // Raw bytes of the layers further out, which lie behind those of the layer at hand.
        let mut behind = 0;
        for at in (0..self.layers.len()).rev() {
            let Around { layer, raw_len } = &mut self.layers[at];
            let region = end - behind - *raw_len..end - behind;
            wire.set_unread(region.clone());
            let mut opened_end = region.start;
            while let Opened::Payload(range) = layer.open(wire, now)? {
                if range.start != opened_end {
                    wire.block_mut().copy_within(range.clone(), opened_end);
                }
                opened_end += range.len();
            }
            let rest = wire.position()..end;
            *raw_len = region.end - rest.start;
            behind += *raw_len;
            end -= rest.start - opened_end;
            wire.block_mut().copy_within(rest, opened_end);
            if let Some(inner) = at.checked_sub(1) {
                self.layers[inner].raw_len += opened_end - region.start;
            }
        }
        wire.set_unread(start..end);
        Ok(())
    }

    /// The last `len` bytes were put aside as they came: they are opened together with the next ones.
    pub(crate) fn defer_received(&mut self, len: usize) {
        if let Some(outermost) = self.layers.last_mut() {
            outermost.raw_len += len;
        }
    }

    /// Lets `open` see only the bytes that all layers have opened.
    pub(crate) fn with_opened<T>(&self, wire: &mut RecvBuf, open: impl FnOnce(&mut RecvBuf) -> T) -> T {
        let raw_len = self.raw_len();
        if raw_len == 0 {
            return open(wire);
        }
        let end = wire.position() + wire.unread().len();
        wire.set_unread(wire.position()..end - raw_len);
        wire.set_hidden(raw_len);
        let result = open(wire);
        wire.set_hidden(0);
        // The raw bytes lie behind the opened ones, and opened bytes are only consumed: there is no gap.
        wire.set_unread(wire.position()..end);
        result
    }

    fn raw_len(&self) -> usize {
        self.layers.iter().map(|around| around.raw_len).sum()
    }

    /// The room that `inner` and all layers around it need together, by the room of each layer.
    fn nest(&self, inner: Room, room_of: impl Fn(&dyn Layer) -> Room) -> Room {
        self.layers.iter().fold(inner, |inner, around| nest(inner, room_of(&*around.layer)))
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        mut sealed: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        for Around { layer, .. } in &mut self.layers {
            if sealed.is_empty() {
                break;
            }
            sealed = layer.seal(block, sealed, now)?;
        }
        Ok(sealed)
    }
}

/// The protocols of one end of a connection, as the relay sees them.
pub(crate) struct Stack {
    protocol: Box<dyn Protocol>,
    outer: Outer,
}

impl Stack {
    /// `protocol` with the layers around it.
    pub(crate) fn new(protocol: impl Layer + 'static, outer: Outer) -> Self {
        Self { protocol: Box::new(protocol), outer }
    }

    /// The innermost protocol, if it is a `T`.
    pub(crate) fn protocol<T: 'static>(&mut self) -> Option<&mut T> {
        (&mut *self.protocol as &mut dyn Any).downcast_mut()
    }

    /// The same with a layer around the innermost protocol, which becomes the innermost one.
    pub(crate) fn wrapped<L: Layer + 'static>(self, wrap: impl FnOnce(Box<dyn Layer>) -> L) -> Self {
        Self { protocol: Box::new(wrap(self.protocol)), outer: self.outer }
    }

    /// Lets the innermost protocol, a `T`, read `wire` without the bytes that outer layers have not opened.
    ///
    /// # Panics
    /// When the protocol is no `T`.
    pub(crate) fn read<T: 'static, R>(
        &mut self,
        wire: &mut RecvBuf,
        read: impl FnOnce(&mut T, &mut RecvBuf) -> R,
    ) -> R {
        let protocol = (&mut *self.protocol as &mut dyn Any).downcast_mut::<T>();
        let protocol = protocol.expect("the caller made this stack");
        self.outer.with_opened(wire, |wire| read(protocol, wire))
    }

    /// As [`Layer::carries_half_close`].
    pub(crate) fn carries_half_close(&self) -> bool {
        self.protocol.carries_half_close()
    }

    /// As [`Outer::handle_received`].
    pub(crate) fn handle_received(
        &mut self,
        wire: &mut RecvBuf,
        len: usize,
        now: Instant,
    ) -> Result<(), WireError> {
        self.outer.handle_received(wire, len, now)
    }

    /// As [`Outer::defer_received`].
    pub(crate) fn defer_received(&mut self, len: usize) {
        self.outer.defer_received(len);
    }

    /// As [`Layer::open`]: the next payload.
    pub(crate) fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        let protocol = &mut self.protocol;
        self.outer.with_opened(wire, |wire| protocol.open(wire, now))
    }

    /// As [`Layer::has_backlog`].
    pub(crate) fn has_backlog(&self) -> bool {
        self.protocol.has_backlog()
    }

    /// As [`Layer::most_received`].
    pub(crate) fn most_received(&self) -> usize {
        self.protocol.most_received()
    }

    /// As [`Layer::plan`], for all layers together.
    pub(crate) fn plan(&self, now: Instant) -> Plan {
        let inner = self.protocol.plan(now);
        if self.outer.layers.is_empty() {
            return inner;
        }
        Plan {
            first: self.outer.nest(inner.first, |layer| layer.plan(now).first),
            rest: self.outer.nest(inner.rest, |layer| layer.plan(now).rest),
        }
    }

    /// Room around a datagram of up to `max_payload` bytes, which is one frame even if the plan asks for other sizes.
    /// Nothing may be pending.
    pub(crate) fn datagram_room(&self, max_payload: usize, now: Instant) -> Room {
        let inner = Room { max_payload, ..self.protocol.plan(now).first };
        self.outer.nest(inner, |layer| layer.plan(now).first)
    }

    /// As [`Layer::seal`].
    pub(crate) fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        let sealed = self.protocol.seal(block, payload, now)?;
        self.outer.seal(block, sealed, now)
    }

    /// As [`Layer::finish_write`].
    pub(crate) fn finish_write(&mut self, now: Instant) {
        self.protocol.finish_write(now);
        self.outer.layers.iter_mut().for_each(|around| around.layer.finish_write(now));
    }

    /// As [`Layer::has_pending`].
    pub(crate) fn has_pending(&self) -> bool {
        self.protocol.has_pending()
    }

    /// As [`Layer::has_ended`].
    pub(crate) fn has_ended(&self) -> bool {
        self.protocol.has_ended()
    }

    /// As [`Layer::end_of_stream`].
    pub(crate) fn end_of_stream(&self) -> EndOfStream {
        self.protocol.end_of_stream()
    }

    /// As [`Layer::seal_end`], at the front of `block`. Pending bytes are sealed even where there is no end in band.
    pub(crate) fn seal_end(&mut self, block: &mut [u8], now: Instant) -> Result<Range<usize>, WireError> {
        if self.end_of_stream() == EndOfStream::Transport && self.has_pending() {
            let at = self.plan(now).first.head;
            return self.seal(block, at..at, now);
        }
        let head = self.outer.layers.iter().map(|around| around.layer.plan(now).first.head).sum();
        let sealed = self.protocol.seal_end(block, head, now)?;
        self.outer.seal(block, sealed, now)
    }

    /// As [`Layer::handle_transport_end`], with `unread` bytes of all stages left.
    pub(crate) fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        for Around { layer, raw_len } in self.outer.layers.iter_mut().rev() {
            layer.handle_transport_end(*raw_len)?;
        }
        self.protocol.handle_transport_end(unread)
    }
}

/// The room that two layers need together.
fn nest(inner: Room, outer: Room) -> Room {
    Room {
        head: inner.head + outer.head,
        tail: inner.tail + outer.tail,
        max_payload: inner.max_payload.min(outer.max_payload.saturating_sub(inner.head + inner.tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of one length byte and a payload that is exclusive-ored with a key.
    struct Framed {
        key: u8,
    }

    impl Layer for Framed {
        fn plan(&self, _now: Instant) -> Plan {
            let room = Room { head: 1, tail: 0, max_payload: 200 };
            Plan { first: room, rest: room }
        }

        fn seal(
            &mut self,
            block: &mut [u8],
            payload: Range<usize>,
            _now: Instant,
        ) -> Result<Range<usize>, WireError> {
            block[payload.clone()].iter_mut().for_each(|byte| *byte ^= self.key);
            block[payload.start - 1] = u8::try_from(payload.len()).expect("short");
            Ok(payload.start - 1..payload.end)
        }

        fn open(&mut self, wire: &mut RecvBuf, _now: Instant) -> Result<Opened, WireError> {
            let unread = wire.unread();
            let Some(&len) = unread.first() else { return Ok(Opened::NeedMore(1)) };
            let len = usize::from(len);
            if unread.len() <= len {
                return Ok(Opened::NeedMore(len + 1 - unread.len()));
            }
            let range = wire.position() + 1..wire.position() + 1 + len;
            wire.block_mut()[range.clone()].iter_mut().for_each(|byte| *byte ^= self.key);
            wire.consume(1 + len);
            Ok(Opened::Payload(range))
        }

        fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
            if unread == 0 { Ok(()) } else { Err(WireError::Truncated { what: "frame" }) }
        }
    }

    fn four_layers() -> Stack {
        let outer = [2, 4, 8].into_iter().fold(Outer::default(), |outer, key| {
            outer.with(Some(Box::new(Framed { key }) as Box<dyn Layer>))
        });
        Stack::new(Framed { key: 1 }, outer)
    }

    fn sealed(texts: &[&[u8]]) -> Vec<u8> {
        let (mut stack, mut out, now) = (four_layers(), Vec::<u8>::new(), adit_net::rt::now());
        for text in texts {
            let mut block = vec![0; 300];
            let head = stack.plan(now).first.head;
            assert_eq!(head, 4);
            block[head..head + text.len()].copy_from_slice(text);
            let sealed = stack.seal(&mut block, head..head + text.len(), now).expect("it has room");
            out.extend(&block[sealed]);
        }
        out
    }

    #[test]
    fn every_split_of_four_layers_opens_alike() {
        let wire = sealed(&[b"first", b"", b"second one"]);
        for first in 0..=wire.len() {
            for second in first..=wire.len() {
                let (mut stack, mut buf, mut text) = (four_layers(), RecvBuf::with_len(64), Vec::<u8>::new());
                for part in [&wire[..first], &wire[first..second], &wire[second..]] {
                    buf.extend(part);
                    stack.handle_received(&mut buf, part.len(), adit_net::rt::now()).expect("legal");
                    while let Opened::Payload(range) =
                        stack.open(&mut buf, adit_net::rt::now()).expect("legal")
                    {
                        text.extend(&buf.block()[range]);
                    }
                }
                assert_eq!(text, b"firstsecond one", "{first} {second}");
                assert_eq!(stack.handle_transport_end(buf.unread().len()), Ok(()));
            }
        }
    }

    #[test]
    fn an_end_within_any_layer_is_a_truncation() {
        let wire = sealed(&[b"text"]);
        for len in 1..wire.len() {
            let (mut stack, mut buf) = (four_layers(), RecvBuf::with_len(64));
            buf.extend(&wire[..len]);
            stack.handle_received(&mut buf, len, adit_net::rt::now()).expect("legal");
            assert!(stack.handle_transport_end(buf.unread().len()).is_err(), "{len}");
        }
    }
}
