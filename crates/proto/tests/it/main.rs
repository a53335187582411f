//! Protocols against recordings of other programs, against each other, and on simulated time.

#![allow(clippy::unwrap_used, reason = "in a test this is the assertion")]

mod kcp;
mod obfs;
mod script;
mod shadowsocks;
mod ssr;
