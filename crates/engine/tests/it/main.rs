//! Servers and clients over loopback, in one program; tests that own the allocator, the memory, the descriptors, the log or the
//! sockets of their process have programs of their own beside it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]
#![allow(clippy::disallowed_methods, reason = "clients and targets of these tests are plain ones")]
#![allow(clippy::print_stdout, reason = "measurements print their figures")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod apply;
mod choice;
mod common;
mod group;
mod hostile;
mod http_proxy;
mod interop_singbox;
mod interop_snell_udp;
mod kcp;
mod many_rules;
mod pacing;
mod proxies;
mod quic_exchange;
mod reach;
mod rules;
mod shadowsocks;
mod sing_box;
mod snell_pair;
mod snell_versions;
mod ssr;
mod users;
