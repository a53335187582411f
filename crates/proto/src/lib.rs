//! Protocol state machines without I/O.
//!
//! Every protocol lives in a folder of its own and stands on four shared modules: [`buf`] (who owns bytes),
//! [`wire`] (targets, errors and the traits that protocols implement), [`crypto`] (keys and ciphers) and [`tune`] (the rate and
//! the amount under way of protocols over datagrams).
//! Nothing here names a socket, a runtime, a clock, an environment variable or a global random source: time
//! and randomness are arguments, so that a recorded exchange can be reproduced byte for byte.

#![forbid(unsafe_code)]

pub mod buf;
pub mod crypto;
pub mod goquiet;
pub mod http;
pub mod ip;
pub mod kcp;
pub mod obfs;
pub mod rawtcp;
pub mod rtc;
pub mod shadowsocks;
pub mod sip003;
pub mod smux;
pub mod snappy;
pub mod snell;
pub mod sniff;
pub mod snowflake;
pub mod socks;
pub mod ssr;
pub mod tune;
pub mod wire;
