//! The carrier beneath an outbound, on one core.

use std::sync::Arc;

use adit_model as model;

use crate::carrier::{CarrierShared, Context, KcpSessions, PacketStreams};

/// The sessions of `outbound` on core `index` of `cores`, if it has a carrier.
pub(crate) fn carrier_client(
    outbound: &model::Outbound,
    shared: Arc<CarrierShared>,
    (index, cores): (usize, usize),
    context: Context,
    streams: Option<&dyn PacketStreams>,
) -> Option<KcpSessions> {
    let client = outbound.dial.carrier.as_deref()?;
    let egress = outbound.dial.egress.clone();
    let paths = client.snowflake.as_deref().zip(streams);
    let paths = paths.map(|(settings, streams)| streams.paths(&outbound.name, settings, &egress));
    Some(KcpSessions::new(shared, client, egress, (index, cores), context, paths))
}
