//! Panels: programs of operators that list the users of nodes and take their counters.

mod answer;
mod events;
mod live;
mod loose;
mod pushing;
mod users;
mod wire;
#[cfg(test)]
mod wire_tests;
mod worker;

pub use self::answer::{PanelError, verdict};
pub use self::users::{Desk, Listed, Offer, UserList, Users};
pub use self::wire::{Online, Stamp, Wire, fuzz_panel_users};
pub use self::worker::{Host, PanelReport, Shared, probe, start};
