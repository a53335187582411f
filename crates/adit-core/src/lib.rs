//! What runs: ways in and out, the one relay between them, bounds, counters and the control interface.
//!
//! [`start`] turns a [`Config`](adit_config::model::Config) into event loops; everything below is private to the
//! loop it lives on.

#![forbid(unsafe_code)]

mod access;
mod admin;
mod carrier;
mod conns;
mod datagram;
mod discard;
mod disguise;
mod dns;
mod flow;
mod guard;
mod inbound;
mod io;
mod keys;
mod layer;
mod metrics;
mod notice;
mod outbound;
mod ports;
mod record;
mod relay;
mod rng;
mod run;
mod salts;
mod session;
mod snell;
mod status;
mod users;

pub use admin::ask_status;
pub use carrier::kcp::{KcpStatus, KcpTotals, MemoryStatus, SessionStatus};
pub use dns::{fuzz_dns_reply, resolver};
pub use ports::{Meter, Port, Ports};
pub use run::{GroupHandle, Observer, Running, StartError, start};
pub use status::{
    ChoiceStatus, DatagramStatus, GroupStatus, HealthStatus, InboundStatus, MemberStatus, OutboundStatus,
    Status, UserStatus,
};
