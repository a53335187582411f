//! The engine: inbounds and outbounds, the one relay between them, bounds, counters and the control interface.
//!
//! [`start`] turns a [`Config`](adit_model::Config) into event loops; everything below is private to the
//! loop it lives on.

#![forbid(unsafe_code)]

mod acme;
mod admission;
mod carrier;
mod connections;
mod counters;
mod datagram;
mod dns;
mod errors;
mod groups;
mod lifecycle;
mod listener;
mod log_throttle;
mod observe;
mod outbound;
mod protocols;
mod relay;
mod replay;
mod rng;
pub mod routing;
mod stream;
pub mod transparent;
mod users;

#[cfg(test)]
mod testing;

pub use crate::admission::{BudgetStatus, MemorySource, Shares};
pub use crate::connections::listing::{ConnectionRoute, ConnectionStatus, Kicked};
pub use crate::counters::Distribution;
pub use crate::errors::LastError;
pub use crate::groups::choice::{ChoiceView, DelayError, DelayHistory, DelaySample, fuzz_choices};
pub use crate::lifecycle::{
    Applier, ApplyError, Changes, Extensions, FetchRoute, Giver, GroupHandle, HandedOver, HandoverError,
    ListReply, ListState, ListUpdater, ListUsage, Meter, Observer, OpenPort, PortOpener, Proxies, ProxyView,
    Running, SelectError, SetLoader, StartError, Taking, Usage, UserTotals, fuzz_handover, start, start_with,
};
pub use crate::log_throttle::LogThrottle;
pub use crate::observe::control::{
    ChangedParts, Control, ControlAnswer, ControlReply, ControlRequest, Cut, Differences, Files, GivenFile,
    UserDifferences, fuzz_control,
};
pub use crate::observe::fleet::{
    DoubtStatus, FleetStatus, PanelRequest, PanelStatus, ReplayStatus, StoreStatus,
};
pub use crate::observe::metrics::{Exposition, Form, MOST_SERIES};
pub use crate::observe::service::{OpenedService, Reconfigurable, ServiceHandle, ServingSockets};
pub use crate::observe::status::{
    ChoiceStatus, DatagramStatus, GroupStatus, HealthStatus, InboundStatus, LagStatus, MemberStatus,
    OutboundStatus, ProcessHealth, ProcessStatus, Status, UserStatus,
};
pub use crate::observe::unix::{Access, ask, ask_snapshot, ask_status};
pub use crate::relay::StreamJoiner;
pub use crate::replay::{GroupCounts, GroupSalts, fuzz_salts};
pub use crate::users::{
    EndedSearches, Presence, Present, QuotaUse, SearchStatus, StateError, StateFileStatus, fuzz_lmdb,
    fuzz_sources, fuzz_state_image, state_file_name,
};
pub use acme::keep_certificate;
pub use adit_net::websocket::fuzz_websocket;
pub use carrier::kcp::{KcpStatus, KcpTotals, MemoryStatus, SessionStatus, fuzz_kcp_session};
pub use carrier::{
    Attachment, Hold, Hub, MakeStreamPath, PacketPort, PacketStreams, PortFuture, SessionServer, StreamPath,
};
pub use dns::{
    DnsRecord, DnsReply, fake_names, fuzz_dns_asked, fuzz_dns_files, fuzz_dns_reply, fuzz_fake_store, lookup,
    resolver,
};
pub use rng::OsRng;
