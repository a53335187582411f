//! Obfuscation alone, around the bytes of another program.

pub(crate) mod inbound;
pub(crate) mod layer;
pub(crate) mod outbound;
