//! The programs that adit stands for: from their flags and files to a configuration that runs.

pub(crate) mod clash;
pub(crate) mod kcptun;
pub(crate) mod plugin;
pub(crate) mod shadowsocks;
pub(crate) mod snell;
pub(crate) mod snowflake;
