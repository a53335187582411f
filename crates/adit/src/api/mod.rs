//! Interfaces of other programs: mihomo's, and those that manage users.

pub(crate) mod clash;
pub(crate) mod outline;
