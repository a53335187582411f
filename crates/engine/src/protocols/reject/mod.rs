//! Outbounds that refuse.

pub(crate) mod outbound;
pub(crate) mod refusal;
