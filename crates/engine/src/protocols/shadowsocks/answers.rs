//! A client that takes no answer twice.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::ShadowsocksClientStream;
use adit_proto::wire::{EndOfStream, Layer, Opened, Plan, WireError};

use crate::replay::SaltFilter;

/// A client stream whose answer must come with a salt that is new, where nothing else ties the answer to the request.
#[derive(Debug)]
pub(super) struct FreshAnswer {
    client: ShadowsocksClientStream,
    /// The salts that were there before, until the first payload of the answer.
    salts: Option<Arc<SaltFilter>>,
}

impl FreshAnswer {
    pub(super) fn new(client: ShadowsocksClientStream, salts: &Arc<SaltFilter>) -> Self {
        let salts = client.own_salt().map(|own| {
            // A reflected request is no answer either.
            salts.insert(own);
            salts.clone()
        });
        Self { client, salts }
    }

    /// The salt has opened a payload, so it is the server's: checks that it comes for the first time.
    fn check(&mut self) -> Result<(), WireError> {
        let Some(salts) = self.salts.take() else { return Ok(()) };
        let is_fresh = self.client.peer_salt().is_none_or(|salt| salts.insert(salt));
        if is_fresh { Ok(()) } else { Err(WireError::Replayed { what: "salt of an answer" }) }
    }
}

impl Layer for FreshAnswer {
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

    fn finish_write(&mut self, now: Instant) {
        self.client.finish_write(now);
    }

    fn has_pending(&self) -> bool {
        self.client.has_pending()
    }

    fn end_of_stream(&self) -> EndOfStream {
        self.client.end_of_stream()
    }

    fn seal_end(&mut self, block: &mut [u8], at: usize, now: Instant) -> Result<Range<usize>, WireError> {
        self.client.seal_end(block, at, now)
    }

    fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
        let opened = self.client.open(wire, now)?;
        if self.salts.is_some() && matches!(opened, Opened::Payload(_)) {
            self.check()?;
        }
        Ok(opened)
    }

    fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
        self.client.handle_transport_end(unread)
    }
}
