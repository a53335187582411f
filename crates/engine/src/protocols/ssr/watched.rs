//! A client stream that knows whether its server has ever said anything.

use std::ops::Range;
use std::time::Instant;

use adit_proto::buf::RecvBuf;
use adit_proto::ssr::protocol::SsrClientStream;
use adit_proto::wire::{Layer, Opened, Plan, WireError};

/// A client's end of the protocol. A server that accepts a client says so with a packet without payload, which the
/// relay does not see.
#[derive(Debug)]
pub(super) struct Watched {
    client: SsrClientStream,
    is_answered: bool,
}

impl Watched {
    pub(super) fn new(client: SsrClientStream) -> Self {
        Self { client, is_answered: false }
    }

    /// Whether a byte of the server has come through obfs and cipher.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered
    }
}

impl Layer for Watched {
    fn plan(&self, now: Instant) -> Plan {
        self.client.plan(now)
    }

    fn seal(
        &mut self,
        block: &mut [u8],
        payload: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, WireError> {
        self.client.seal(block, payload, now)
    }

    fn has_pending(&self) -> bool {
        self.client.has_pending()
    }

    fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        self.is_answered |= !wire.unread().is_empty();
        self.client.open(wire, now)
    }

    fn has_backlog(&self) -> bool {
        self.client.has_backlog()
    }

    fn most_received(&self) -> usize {
        self.client.most_received()
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        self.client.handle_transport_end(unread)
    }
}
