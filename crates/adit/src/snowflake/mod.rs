//! `snowflake-client` and `snowflake-proxy`: environment and flags, standard output, log and exit status.

pub(crate) mod client;
pub(crate) mod proxy;
mod voice;
