//! The flags of Snowflake's client and proxy, and the arguments that Tor gives a client with each connection.

pub mod client;
mod flags;
pub mod proxy;
mod values;

#[cfg(test)]
mod tests;

pub use flags::Ends;
