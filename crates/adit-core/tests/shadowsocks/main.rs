//! Shadowsocks over loopback: our own ends against each other, against unauthenticated peers, behind plugins, and against the
//! programs that are replaced (`--ignored`; missing ones are named and skipped).

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "these tests are the world outside")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![allow(clippy::print_stdout, reason = "tests say what they skip and how far they have come")]

mod answers;
mod bulk;
mod interop;
mod pairs;
mod plugins;
mod relay;
mod support;
mod unauthenticated;
