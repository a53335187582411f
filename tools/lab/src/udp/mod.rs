//! Datagrams through a subject: what they cost, how many pass, how long they take, what is lost.
//!
//! Generator and sink are threads of the lab. Unless a measure says otherwise they send and read datagrams one by
//! one as far as the kernel's paths are concerned (no `UDP_SEGMENT`, no `UDP_GRO`), so that nothing is measured but
//! the relays. Every byte of every datagram is looked at: a subject that alters, repeats or misplaces one gets no
//! figures.

pub mod datagram;
pub mod floor;
pub mod flow;
pub mod generator;
pub(crate) mod kernel;
pub mod sink;
pub mod wrap;

mod exchange;
mod measure;
mod rates;

pub(crate) use exchange::Echo;
pub use measure::{Measure, Sizes};
