//! Names: a port that answers questions, and an outbound that does.

pub(crate) mod inbound;
pub(crate) mod outbound;
