//! Connections as others see them: who holds one, how long it may be quiet, why it ended, and the lines about it.

pub(crate) mod listing;
pub(crate) mod record;
pub(crate) mod refusal_log;
pub(crate) mod table;
