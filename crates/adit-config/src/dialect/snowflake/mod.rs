//! The flags of Snowflake's servers, and the environment that Tor gives one.

pub mod broker;
mod flags;
mod listen;
pub mod probetest;
pub mod server;

pub use flags::Ends;
