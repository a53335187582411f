//! The carrier beneath an outbound, on one core.

use std::sync::Arc;

use adit_config::model;

use crate::carrier::{CarrierShared, Context, KcpSessions};
use crate::snowflake;

/// The sessions of `outbound` on core `index` of `cores`, if it has a carrier.
pub(crate) fn carrier_client(
    outbound: &model::Outbound,
    shared: Arc<CarrierShared>,
    (index, cores): (usize, usize),
    context: Context,
) -> Option<KcpSessions> {
    let client = outbound.dial.carrier.as_deref()?;
    let egress = outbound.dial.egress.clone();
    let ways = client.snowflake.as_ref().map(|settings| snowflake::ways(&outbound.name, settings, &egress));
    Some(KcpSessions::new(shared, client, egress, (index, cores), context, ways))
}
