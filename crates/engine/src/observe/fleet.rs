//! Panels and the store in the snapshot, and what people ask about them: plain data, filled in by the program.

use std::fmt;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::counters::Distribution;
use crate::replay::GroupCounts;

/// The node as a part of its fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetStatus {
    /// Identity of this node.
    pub node: String,
    /// Number of its starts.
    pub boot: u64,
    /// Its panels.
    pub panels: Vec<PanelStatus>,
    /// The store that it shares with others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreStatus>,
    /// Seconds by which the clocks of witnesses are ahead of this machine's, by witness.
    pub skews: Vec<(String, i64)>,
    /// Whether no new period begins because the clocks differ too much.
    pub periods_held: bool,
}

/// One panel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PanelStatus {
    /// Its name.
    pub name: String,
    /// Users that it lists.
    pub users: u64,
    /// When it confirmed its list, in seconds since 1970; 0 for never.
    pub confirmed_unix_s: u64,
    /// Age of the list in seconds; `None` without a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u64>,
    /// Since when a list that lost too many users waits for a second one, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<u64>,
    /// Bytes that wait to be told.
    pub unsent_bytes: u64,
    /// Age of the oldest of them, in seconds.
    pub oldest_unsent_s: u64,
    /// Bytes that the panel may or may not have.
    pub in_doubt_bytes: u64,
    /// Batches of such bytes.
    pub doubts: u64,
    /// The last error, until something succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Requests by operation and result.
    pub requests: Vec<(String, String, u64)>,
    /// Requests by the time that they took, by operation and result.
    pub request_times: Vec<(String, String, Distribution)>,
}

/// The store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// Seconds since the last synchronisation; `None` for none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_age_s: Option<u64>,
    /// `global`, `local since T`, or `local`, for each limit.
    pub scopes: Vec<(String, String)>,
    /// Calls by operation and result.
    pub calls: Vec<(String, String, u64)>,
    /// Calls by the time that they took, by operation and result.
    pub call_times: Vec<(String, String, Distribution)>,
    /// Times that all users of a bucket were sent again because the store had lost something.
    pub resyncs: u64,
    /// The replay group, if this node is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayStatus>,
    /// Users that it lists; `None` if it lists none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<u64>,
    /// Age of that list in seconds; `None` for one that was never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_age_s: Option<u64>,
    /// Since when a list that lost too many users waits for a second one, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_wait_since: Option<u64>,
    /// The last error, until something succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The replay group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplayStatus {
    /// Its name.
    pub group: String,
    /// Salts that it was told from here.
    pub told: u64,
    /// Salts of others that this node has learned, some more than once.
    pub learned: u64,
    /// Other nodes that have told of salts since the start, at most 32.
    pub nodes: u64,
    /// Counters of the memory.
    #[serde(flatten)]
    pub counts: GroupCounts,
}

/// A question or an order about panels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PanelRequest {
    /// The batches in doubt.
    Doubts,
    /// Settle batches in doubt.
    Settle {
        /// The panel.
        panel: String,
        /// The batch; none stands for all.
        seq: Option<u64>,
        /// Send again; else give up.
        resend: bool,
    },
    /// Send the bytes of done batches again that began at `since`, in seconds since 1970.
    Replay {
        /// The panel.
        panel: String,
        /// The time.
        since: u64,
    },
}

/// A batch in doubt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubtStatus {
    /// The panel.
    pub panel: String,
    /// Number of the batch.
    pub seq: u64,
    /// When it was sealed, in seconds since 1970.
    pub unix_s: u64,
    /// Users in it.
    pub users: u64,
    /// Bytes up.
    pub up_bytes: u64,
    /// Bytes down.
    pub down_bytes: u64,
}

/// Tells what the program knows of the fleet.
type Teller = Box<dyn Fn() -> FleetStatus + Send + Sync>;

/// The one who tells, once somebody does.
#[derive(Default)]
pub(crate) struct FleetView(OnceLock<Teller>);

impl FleetView {
    /// Has `teller` tell from now on; the first one stays.
    pub(crate) fn set(&self, teller: Teller) {
        drop(self.0.set(teller));
    }

    pub(crate) fn status(&self) -> Option<FleetStatus> {
        self.0.get().map(|teller| teller())
    }
}

impl fmt::Debug for FleetView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FleetView").field(&self.0.get().is_some()).finish()
    }
}
