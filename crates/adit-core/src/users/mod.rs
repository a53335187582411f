//! Users of servers: who they are, what they have used, and what they may use.
//!
//! ```text
//!   Ledger ── Account (one per user, all cores) ── Lease (one per connection) ── the relay asks before it reads
//!      └─ once a second, on a thread: periods, expiry, and what has changed goes to the state file
//! ```
//!
//! Counters are added to as bytes move, by whatever path they take. A limit is asked before bytes are read, so that a
//! flow stops at its limit, and not behind it: a [`Grant`] is reserved, the read brings at most that much, and what it
//! did not bring is given back.

mod account;
mod cache;
mod lease;
mod ledger;
mod trial;

#[cfg(test)]
mod tests;

pub(crate) use account::{Account, Limit, Way};
pub(crate) use lease::Lease;
pub(crate) use ledger::Ledger;
pub(crate) use trial::{Seen, Trial};

use std::sync::Arc;

/// The users of one inbound, in the order of the configuration.
pub(crate) type Accounts = Arc<[Arc<Account>]>;
