//! Snowflake beneath a carrier: the streams of proxies take the packets of sessions.

use std::io;
use std::sync::Arc;

use adit_engine::{MakeStreamPath, PacketPort, PacketStreams};
use adit_model::{Egress, SnowflakeClient, SnowflakePort, Tag};

use super::server::Door;
use crate::carrier_paths::ways;

/// Packets through proxies of Snowflake, for the engine.
#[derive(Debug, Clone, Copy)]
pub struct SnowflakeStreams;

impl PacketStreams for SnowflakeStreams {
    fn paths(&self, name: &Tag, settings: &SnowflakeClient, egress: &Egress) -> MakeStreamPath {
        ways(name, settings, egress)
    }

    fn port(&self, settings: &SnowflakePort, cores: usize, memory: usize) -> io::Result<Arc<dyn PacketPort>> {
        Ok(Arc::new(Door::new(settings.tls.as_ref(), cores, memory)?))
    }
}
