//! Snowflake's formats: the byte stream between client and server, and the messages that go through the broker.
//!
//! ```text
//! client ── HTTPS: offer, answer ──▶ broker ◀── HTTPS: poll, answer ── proxy
//! client ── WebRTC data channel ──▶ proxy ── WebSocket ──▶ server      [`Prologue`], then [`encapsulation`]
//! ```
//!
//! | module | format |
//! |---|---|
//! | [`encapsulation`] | packets and padding in a byte stream |
//! | [`Prologue`] | the first 16 bytes of a client |
//! | [`messages`] | polls, offers and answers, as JSON |
//! | [`description`] | session descriptions inside of them |
//! | [`amp`] | the same over an AMP cache: paths, addresses and documents |
//! | [`extor`] | Tor's extended port, which a server tells the client's address |
//! | [`pattern`] | host names that a proxy accepts for its relay |
//! | [`json`] | JSON as Go's `encoding/json` reads and writes it |
//!
//! Sources: upstream Snowflake 2.14.1 (its `common` and `broker` folders) and 2.5.1, and recorded exchanges of both
//! (`testdata/snowflake`).

pub mod amp;
pub mod description;
pub mod encapsulation;
pub mod extor;
pub mod json;
pub mod messages;
pub mod pattern;

mod prologue;
mod puny;
mod snowflake_fuzz;

pub use self::prologue::{ClientId, PROLOGUE_LEN, Prologue, TOKEN};
pub use self::snowflake_fuzz::{
    fuzz_snowflake_amp, fuzz_snowflake_chunks, fuzz_snowflake_edges, fuzz_snowflake_messages,
};

/// Longest message that any program takes, in bytes (`readLimit` of client, proxy and broker).
pub const MAX_MESSAGE_LEN: usize = 100_000;

/// The generation of a broker and its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// 2.14.1: five kinds of NAT, three pools, polls limited in rate.
    #[default]
    Current,
    /// 2.5.1, which Debian 12 and 13 ship: two kinds of NAT, two pools.
    Old,
}
