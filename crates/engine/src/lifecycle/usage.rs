//! The accounts of users, for those who tell others about them.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use adit_model::map::Map;

use super::Engine;
use crate::observe::fleet::FleetStatus;
use crate::replay::{GroupCounts, GroupSalts, ReplaySharing};
use crate::users::{AccountLedger, Presence, QuotaUse};

/// Bytes up and down, by name of the user.
pub type UserTotals = Map<Box<str>, [u64; 2]>;

/// Reads the accounts of users from any thread.
#[derive(Debug, Clone)]
pub struct Usage(pub(super) Arc<Engine>);

impl Usage {
    /// Totals of all users whose name begins with `prefix`, without it: over all inbounds and keys, those of users included
    /// who were removed in the last 92 days. They are on disk when this returns.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn totals(&self, prefix: &str) -> io::Result<UserTotals> {
        self.ledger().saved_totals(prefix)
    }

    /// The names of all users.
    pub fn names(&self) -> BTreeSet<Arc<str>> {
        self.ledger().names()
    }

    /// The sources of open connections and flows of users whose name begins with `prefix`, without it: IPv4 addresses, and
    /// the first address of an IPv6 /64. Users whose sources are not limited are not among them.
    pub fn sources(&self, prefix: &str) -> Map<Box<str>, Vec<IpAddr>> {
        self.ledger().online(prefix)
    }

    /// Bytes of the period of users with a quota, by name, over all inbounds: of all of them, or of those alone that have
    /// used half of what [`Usage::allow`] gave them.
    pub fn quotas(&self, is_hurried: bool) -> Map<Arc<str>, QuotaUse> {
        self.ledger().quotas(is_hurried)
    }

    /// Holds users to what others leave them of their quota: by name, bytes that they may still use from here, or `None` for
    /// all of it.
    pub fn allow(&self, allowances: &Map<Arc<str>, Option<u64>>) {
        self.ledger().allow(allowances);
    }

    /// The sources in use of users whose sources are limited, by name, over all inbounds.
    pub fn presences(&self) -> Map<Arc<str>, Presence> {
        self.ledger().presences()
    }

    /// Follows the sources of users on all nodes: by name, in order of their arrival, with the seconds for which they have
    /// been silent; those that have been so for `silent_s` give way. Connections of sources beyond a user's limit end.
    pub fn follow_sources(&self, all: &Map<Arc<str>, Vec<(IpAddr, u64)>>, silent_s: u64) {
        self.ledger().follow_sources(all, silent_s);
    }

    /// The sources on other nodes are not known any more: limits of addresses hold on this node alone.
    pub fn forget_elsewhere(&self) {
        self.ledger().forget_elsewhere();
    }

    /// Keeps periods of quotas from beginning as long as `is_held` says so, once a second: a clock that is wrong would begin
    /// one too early.
    pub fn hold_periods_while(&self, is_held: impl Fn() -> bool + Send + Sync + 'static) {
        self.ledger().hold_periods_while(Arc::new(is_held));
    }

    /// Has `teller` tell about the fleet in the snapshot; the first one stays.
    pub fn tell_fleet(&self, teller: impl Fn() -> FleetStatus + Send + Sync + 'static) {
        self.0.directory.fleet().set(Box::new(teller));
    }

    /// Joins the replay group whose fingerprints are made with this key, or leaves it.
    pub fn join_replay_group(&self, key: Option<[u8; 16]>) {
        self.siblings().join(key);
    }

    /// Takes up to `most` salts that have opened streams here and that the replay group has not been told.
    pub fn take_group_salts(&self, most: usize) -> GroupSalts {
        self.siblings().take(most)
    }

    /// Refuses these salts of other nodes of the replay group from now on.
    pub fn learn_group_salts(&self, salts: &GroupSalts) {
        self.siblings().learn(salts);
    }

    /// Counters of the replay group.
    pub fn group_counts(&self) -> GroupCounts {
        self.siblings().counts()
    }

    fn siblings(&self) -> Arc<ReplaySharing> {
        self.0.state().siblings.clone()
    }

    fn ledger(&self) -> Arc<AccountLedger> {
        self.0.state().ledger()
    }
}
