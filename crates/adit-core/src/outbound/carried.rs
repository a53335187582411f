//! The carrier beneath an outbound, on one core.

use std::sync::Arc;

use adit_config::model;

use crate::carrier::{Client, Context, Shared};
use crate::snowflake;

/// The sessions of `outbound` on core `index` of `cores`, if it has a carrier.
pub(crate) fn carrier_client(
    outbound: &model::Outbound,
    shared: Arc<Shared>,
    (index, cores): (usize, usize),
    context: Context,
) -> Option<Client> {
    let client = outbound.dial.carrier.as_deref()?;
    let egress = outbound.dial.egress.clone();
    let ways = client.snowflake.as_ref().map(|settings| snowflake::ways(&outbound.name, settings, &egress));
    Some(Client::new(shared, client, egress, (index, cores), context, ways))
}
