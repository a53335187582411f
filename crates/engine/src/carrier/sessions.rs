//! Sessions of a program that has no inbounds.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::{Kcp, Tag};
use adit_net::rt::Stream;

use super::{CarrierShared, CarrierSocket, Context, Hub, Memory, MemoryStatus, serve};

/// The sessions of a server on its own, over all event loops.
#[derive(Debug)]
pub struct SessionServer {
    carrier: Arc<CarrierShared>,
    memory: Arc<Memory>,
}

impl SessionServer {
    /// No sessions yet. In logs they are `name`; together they hold at most `memory` bytes.
    pub fn new(name: &Tag, settings: &Kcp, memory: usize) -> Self {
        Self { carrier: Arc::new(CarrierShared::new(name, settings)), memory: Arc::new(Memory::new(memory)) }
    }

    /// Serves the sessions whose packets come by `hub` on this event loop, for ever; each of their streams is given to
    /// `take`, with the address that stands for its client.
    ///
    /// # Errors
    /// When a session cannot be served at all.
    pub async fn serve(&self, hub: Arc<Hub>, take: impl Fn(Stream, SocketAddr) + 'static) -> io::Result<()> {
        let context = Context::new(Rc::new(Cell::new(0)), self.memory.clone());
        let link = CarrierSocket::Streams(hub);
        Box::pin(serve(self.carrier.clone(), context, link, Rc::default(), Rc::default(), take)).await
    }

    /// Memory of all sessions.
    pub fn memory(&self) -> MemoryStatus {
        self.memory.status()
    }

    /// The number of sessions, and the bytes that the largest of them holds.
    pub fn largest(&self) -> (i64, usize) {
        self.carrier.metrics.largest()
    }
}
