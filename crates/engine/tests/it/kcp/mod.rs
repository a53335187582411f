//! Streams over KCP on loopback: adit with itself, with kcptun where it is installed, and through Snowflake's proxies.

mod cuts;
mod interop;
mod layers;
mod lossy;
mod pairs;
#[cfg(target_os = "linux")]
mod snowflake;
mod support;
