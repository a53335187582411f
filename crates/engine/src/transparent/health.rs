//! Whether the server of a capture can be reached: traffic that would only be lost is left alone, unless `strict` is set.

use std::io;
use std::time::Duration;

use adit_model::{Capture, Config};
use adit_net::reach::try_server;
use adit_proto::wire::{Host, Target};

/// Longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(3);

/// The server that cannot be reached, and why; `None` if it can be, or nothing tells. A server behind a plugin, a carrier or
/// another outbound is not tried, and neither are those of groups. A name is asked of the system here: one that the
/// configuration's own name servers or hosts may know is not tried either.
pub(crate) fn unreachable(capture: &Capture, config: &Config) -> Option<(String, io::Error)> {
    if capture.strict {
        return None;
    }
    let server = server(capture, config).filter(|server| !has_own_names(server, config))?;
    let error = try_server(server, PATIENCE).err()?;
    Some((server.to_string(), error))
}

/// Whether the server has a name that the system need not know.
fn has_own_names(server: &Target, config: &Config) -> bool {
    let dns = &config.dns;
    let is_name = matches!(server.host, Host::Name(_));
    is_name && !(dns.upstreams.is_empty() && dns.policy.is_empty() && dns.hosts.is_empty())
}

fn server<'c>(capture: &Capture, config: &'c Config) -> Option<&'c Target> {
    let outbound = config.outbound(&capture.outbound)?;
    if outbound.dial.carrier.is_some()
        || outbound.dial.through.is_some()
        || outbound.plugin_server().is_some()
    {
        return None;
    }
    outbound.protocol.only_server()
}
