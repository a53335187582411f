//! The engine: inbounds and outbounds, the one relay between them, bounds, counters and the control interface.
//!
//! [`start`] turns a [`Config`](adit_config::model::Config) into event loops; everything below is private to the
//! loop it lives on.

#![forbid(unsafe_code)]

mod acme;
mod api;
mod budget;
pub mod capture;
mod carrier;
mod conns;
mod dispatch;
mod dns;
mod engine;
mod fault;
mod guard;
mod inbound;
mod keys;
mod listing;
mod metrics;
mod notice;
mod obfs;
mod outbound;
mod packet;
mod pulse;
mod rebind;
mod record;
mod refusal_log;
mod registry;
mod relay;
mod rng;
pub mod route;
mod salts;
mod snell;
pub mod snowflake;
mod user;

#[cfg(test)]
mod testing;

pub use acme::keep_certificate;
pub use adit_net::websocket::fuzz_websocket;
pub use api::control::{
    ChangedParts, Control, ControlAnswer, ControlReply, ControlRequest, Cut, Differences, Files, GivenFile,
    UserDifferences, fuzz_control,
};
pub use api::fleet::{DoubtStatus, FleetStatus, PanelRequest, PanelStatus, ReplayStatus, StoreStatus};
pub use api::metrics::{Exposition, Form, MOST_SERIES};
pub use api::service::{OpenedService, Reconfigurable, ServiceHandle, ServingSockets};
pub use api::status::{
    ChoiceStatus, DatagramStatus, GroupStatus, HealthStatus, InboundStatus, LagStatus, MemberStatus,
    OutboundStatus, ProcessHealth, ProcessStatus, Status, UserStatus,
};
pub use api::unix::{Access, ask, ask_snapshot, ask_status};
pub use budget::{BudgetStatus, MemorySource, Shares};
pub use carrier::kcp::{KcpStatus, KcpTotals, MemoryStatus, SessionStatus, fuzz_kcp_session};
pub use carrier::{
    Attachment, Hold, Hub, MakeStreamPath, PacketPort, PacketStreams, PortFuture, SessionServer, StreamPath,
};
pub use dns::{
    DnsRecord, DnsReply, fake_names, fuzz_dns_asked, fuzz_dns_files, fuzz_dns_reply, fuzz_fake_store, lookup,
    resolver,
};
pub use engine::{
    Applier, ApplyError, Changes, Extensions, FetchRoute, Giver, GroupHandle, HandedOver, HandoverError,
    ListReply, ListState, ListUpdater, ListUsage, Meter, Observer, OpenPort, PortOpener, Proxies, ProxyView,
    Running, SelectError, SetLoader, StartError, Taking, Usage, UserTotals, fuzz_handover, start, start_with,
};
pub use fault::LastError;
pub use listing::{ConnectionRoute, ConnectionStatus, Kicked};
pub use metrics::Distribution;
pub use notice::LogThrottle;
pub use outbound::{ChoiceView, DelayError, DelayHistory, DelaySample, fuzz_choices};
pub use relay::{JoinedBytes, StreamJoiner};
pub use rng::OsRng;
pub use salts::{GroupCounts, GroupSalts, fuzz_salts};
pub use snowflake::{
    Broker, NextProcess, ProbeFailure, Prober, SnowflakeError, SnowflakeStreams, broker_service,
    fuzz_snowflake_files, probe_service, snowflake_server,
};
pub use user::{
    EndedSearches, Presence, Present, QuotaUse, SearchStatus, StateError, StateFileStatus, fuzz_lmdb,
    fuzz_sources, fuzz_state_image, state_file_name,
};
