//! The registry of ways out.

mod carried;
pub(crate) mod connector;
pub(crate) mod server;
pub(crate) mod stream_flow;
mod through;

use std::fmt::Debug;
use std::rc::Rc;

use adit_model::{self as model, Udp};
use adit_net::dial::Dialer;
use adit_net::pace::check_pace;
use adit_net::rt::Pool;

use crate::dns::Dns;
use crate::stream::OutboundHandle;

pub(crate) use carried::carrier_client;
pub(crate) use connector::Connector;
pub(crate) use through::{Through, way};

/// State that an outbound shares over all cores.
pub(crate) trait OutboundFactory: Debug + Send + Sync {
    /// The outbound on one core.
    fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle;
}

/// The surroundings of an outbound on one core.
pub(crate) struct OutboundDeps<'a> {
    pub(crate) model: &'a model::Outbound,
    pub(crate) udp: &'a Udp,
    pub(crate) pool: &'a Pool,
    pub(crate) dns: &'a Rc<Dns>,
}

/// Warnings about `outbound`, printed once: missing features of the system, and settings that should not be used.
pub(crate) fn warnings(outbound: &model::Outbound) -> Vec<String> {
    let mut warnings: Vec<String> =
        Dialer::by_system(&outbound.dial).warnings().iter().map(ToString::to_string).collect();
    warnings.extend(outbound.dial.pace.as_ref().and_then(check_pace).map(|warning| warning.to_string()));
    warnings.iter().map(|warning| format!("outbound {}: {warning}", outbound.name)).collect()
}
