//! The runtime seam: the one place that decides how futures run and how bytes reach a socket.
//!
//! One event loop per core, each a thread with a tokio `LocalRuntime`; a connection lives and dies on the loop
//! that accepted it, so nothing here is `Send` and nothing is locked. The rest of adit sees readiness only as
//! [`Stream::poll_recv`] and its kin, which another back end could serve as well.

mod cores;
mod crossing;
pub mod fair;
#[cfg_attr(windows, path = "../windows/fine.rs")]
mod fine;
mod io;
pub(crate) mod orders;
mod pipe;
mod pool;
#[cfg_attr(windows, path = "../windows/signals.rs")]
mod signals;
mod stream;
mod time;

pub use cores::{Cores, Signal, Stop, Stopper, spawn_local, spawn_small, yield_now};
pub use crossing::Crossing;
pub use fine::FineTimer;
pub use orders::{OrderSender, Orders, orders};
pub use pipe::Pipe;
pub use pool::{Buffers, CHUNK_LEN, Chunk, Pool, poll_chunk};
pub use signals::{Signals, UserSignal};
pub use stream::{CarrierStream, IO_VECTORS, Stream, UnixListener, UnixStream};
pub use time::{Elapsed, now, race, shift_unix_time, sleep, sleep_until, timeout, unix_time};
