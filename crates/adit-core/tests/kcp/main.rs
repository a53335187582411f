//! Streams over KCP on loopback: adit with itself, and with kcptun where it is installed.

mod interop;
mod pairs;
mod support;
