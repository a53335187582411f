//! Peer connections of WebRTC with one data channel: sockets, timers and tasks around [`adit_proto::rtc`].
//!
//! Each connection has one UDP socket for all addresses of the machine, and one task. Calls of the channel go to the
//! state machine directly; there is no queue between. The buffers for receiving and sending are the event loop's.

mod connection;
mod gather;
mod nat;
mod relay;

use std::cell::RefCell;

use adit_proto::rtc::Outbox;

use crate::udp::{DatagramBatch, Outgoing};

pub use connection::{Connection, RtcError};
pub use gather::{Gathering, is_hidden, local_addresses};
pub use nat::{Nat, discover};
pub use relay::{Relay, RelayError};

/// Buffers that the connections of one event loop share; each uses them during its turn.
#[derive(Default)]
struct Scratch {
    batch: DatagramBatch,
    out: Outbox,
    outgoing: Vec<Outgoing>,
}

thread_local! {
    static SCRATCH: RefCell<Option<Box<Scratch>>> = const { RefCell::new(None) };
}

/// Lends the buffers of this event loop. `act` must not ask for them again.
fn with_scratch<T>(act: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| act(scratch.get_or_insert_default()))
}
