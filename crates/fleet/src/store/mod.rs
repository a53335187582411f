//! The store that servers of a fleet share, Redis or Valkey: totals of quotas, merged by maximum, so that a quota holds over
//! all nodes, and sources of users, so that limits of addresses do; and users, where no panel lists
//! them; and salts that the nodes of a replay group have seen. Nothing asks it on the way of a byte or a handshake.

mod allowance;
mod heart;
mod link;
mod links;
mod presence;
mod record;
mod replay;
mod resp;
mod script;
mod sync;
#[cfg(test)]
mod tests;
mod totals;
mod users;

pub use self::allowance::{allowance, first_allowance};
pub use self::record::fuzz_store_record;
pub use self::replay::{GroupCounts, GroupSalts, ReplayReport, replay_key};
pub use self::resp::fuzz_resp;
pub use self::sync::{Everywhere, StoreHost, StoreReport, StoreShared, Use, UserSources, start};
pub use self::users::{StoreChange, change, list};
