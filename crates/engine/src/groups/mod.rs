//! Groups of outbounds: `best` compares its members, `choice` has one chosen.

pub(crate) mod best;
pub(crate) mod choice;
