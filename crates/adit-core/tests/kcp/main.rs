//! Streams over KCP on loopback: adit with itself, with kcptun where it is installed, and through Snowflake's proxies.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::disallowed_methods, reason = "the test's clients and targets own their sockets and clocks")]
#![expect(clippy::print_stdout, reason = "says which peer and shape is tried, and what is skipped")]

mod cuts;
mod interop;
mod layers;
mod lossy;
mod pairs;
#[cfg(target_os = "linux")]
mod snowflake;
mod support;
