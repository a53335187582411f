//! Many streams over KCP, over datagrams.
//!
//! ```text
//!   relay ─ Stream ─┐
//!   relay ─ Stream ─┼─ smux ─ [snappy] ─ KCP ─ [FEC] ─ cipher ─ batch ─ socket
//!   relay ─ Stream ─┘   └───────────── one Session ────────┘     └─── one Driver ──┘
//! ```
//!
//! - A [`KcpSession`](session::KcpSession) puts the state machines together; it has no socket, no task and no timer.
//! - A [`CarrierSocket`] is a socket for UDP, or a raw one whose datagrams look like TCP.
//! - A [`Driver`](driver::Driver) is one link on one core with its sessions: a client's has one, a server's one for
//!   each client. It is one future. A turn receives one batch, lets each session that has something to do do it, and
//!   sends, so much per session, before the others on the core run.
//! - A stream calls its session directly, which puts itself on the driver's list of those that have something to do.
//!   There is no channel and no copy between them.
//!
//! Bounds on memory: the windows of KCP, the receive buffer of smux, its send buffers (a stream that has no room there
//! does not read from its source), the number of streams and sessions, and the budget of all sessions of the process
//! ([`Memory`]).

mod client;
mod driver;
mod home;
mod hub;
mod memory;
mod metrics;
mod outbox;
mod server;
mod session;
mod shared;
mod socket;
mod stream;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use adit_net::udp::DatagramBatch;

use self::outbox::DatagramOutbox;

pub(crate) use self::client::KcpSessions;
pub use self::hub::{Attachment, Hub};
pub(crate) use self::memory::Memory;
pub use self::memory::MemoryStatus;
pub(crate) use self::metrics::KcpMetrics;
pub use self::metrics::{KcpStatus, KcpTotals, SessionStatus};
pub(crate) use self::server::serve;
pub use self::session::fuzz_kcp_session;
pub(crate) use self::shared::CarrierShared;
pub(crate) use self::socket::CarrierSocket;

/// Buffers that the drivers of one core share; each uses them during its turn.
#[derive(Debug, Default)]
struct Scratch {
    batch: DatagramBatch,
    outbox: DatagramOutbox,
}

/// State that the carriers of one core share.
#[derive(Clone)]
pub(crate) struct Context {
    scratch: Rc<RefCell<Option<Box<Scratch>>>>,
    /// Connections on this core, which a drain waits for; a session that has not sent everything counts too.
    active: Rc<Cell<usize>>,
    memory: Arc<Memory>,
}

impl Context {
    /// Nothing is made before the first driver runs.
    pub(crate) fn new(active: Rc<Cell<usize>>, memory: Arc<Memory>) -> Self {
        Self { scratch: Rc::default(), active, memory }
    }
}
