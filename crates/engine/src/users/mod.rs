//! Users of inbounds of every protocol: their counters and their limits.
//!
//! ```text
//!   Ledger ── Account (one per user, all cores) ── Lease (one per connection) ── the relay asks before it reads
//!      └─ once a second, on a thread: periods, expiry, and what has changed goes to the state file
//! ```
//!
//! Counters belong to a user of one configuration: an inbound's name, a user's name and a fingerprint of the credential.
//! A new port keeps them, a new key begins anew. Each configuration has a state file of its own (`state`, `image`); the
//! store of earlier versions, one for all, is read once (`lmdb`).
//!
//! Counters are added to as bytes move, on every path. A limit is asked before bytes are read, so that a
//! flow stops at its limit, and not behind it: a [`Grant`] is reserved, the read brings at most that much, and what it
//! did not bring is given back.

mod account;
mod activity;
mod addresses;
mod image;
mod key_search;
mod known_sources;
mod last_limit;
mod lease;
mod ledger;
mod lmdb;
mod search_counters;
mod sources_file;
mod state;

#[cfg(test)]
mod fleet_tests;
#[cfg(test)]
mod tests;

pub use self::addresses::{Presence, Present};
pub(crate) use self::key_search::{KeySearch, KeySearchResult};
pub(crate) use self::known_sources::KnownSources;
pub use self::search_counters::{EndedSearches, SearchStatus};
pub(crate) use self::search_counters::{Search, Searches};
pub use self::sources_file::fuzz_sources;
pub(crate) use account::{Account, UserDirection, UserLimit};
pub(crate) use activity::{Activity, KeyOrder};
pub use image::fuzz_state_image;
pub(crate) use lease::Lease;
pub(crate) use ledger::{AccountLedger, AwayChange, Charged, Credit, Unusable};
pub use ledger::{QuotaUse, StateFileStatus};
pub use lmdb::fuzz_lmdb;
pub use state::StateError;

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use adit_proto::crypto::Blake3Context;

/// The users of one inbound, in the order of the configuration.
pub(crate) type Accounts = Arc<[Arc<Account>]>;

/// Context of the hash in the name of a state file.
const FILE_NAME: &str = "adit 2026-11 state file name";
/// Longest readable part of the name of a state file, in bytes.
const STEM_LEN: usize = 40;

/// The name of the state file of the configuration that is read from `files`, in that order: `adit-0123456789abcdef.state`.
/// The paths are taken as they are, so they should be absolute.
pub fn state_file_name(files: &[&Path]) -> String {
    let lens: Vec<[u8; 8]> = files.iter().map(|path| (path.as_os_str().len() as u64).to_le_bytes()).collect();
    let parts = files.iter().zip(&lens).flat_map(|(path, len)| [&len[..], path.as_os_str().as_bytes()]);
    let hash = Blake3Context::new(FILE_NAME).derive(&parts.collect::<Vec<_>>());
    let hash = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
    let stem = files.first().and_then(|path| path.file_stem()).unwrap_or_default().to_string_lossy();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let stem: String =
        stem.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).take(STEM_LEN).collect();
    format!("{stem}-{hash}.state")
}
