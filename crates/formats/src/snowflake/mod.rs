//! The flags of Snowflake's programs, the arguments that Tor gives a client with each connection, and the environment that
//! it gives a server.

pub mod broker;
pub mod client;
pub(crate) mod listen;
pub mod probetest;
pub mod proxy;
pub mod server;
mod snowflake_flags;
pub(crate) mod values;

#[cfg(test)]
mod tests;

pub use self::snowflake_flags::SnowflakeExit;
