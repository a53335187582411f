//! What takes TCP's place beneath a stream.
//!
//! A carrier's streams are [`Stream`](adit_net::rt::Stream)s like any other: the relay, every protocol and every local
//! port run over them without knowing. There is one carrier, and those above name it by what it does.

pub(crate) mod kcp;

pub(crate) use kcp::{
    Client, Context, KcpMetrics as Metrics, KcpStatus as Status, Link, Memory, MemoryStatus, Shared, serve,
};
