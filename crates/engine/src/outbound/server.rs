//! The server of an outbound, or the plugin that takes its place.

use std::io;
use std::sync::Arc;

use adit_model::{Dial, Plugin, Tag, Transports};
use adit_net::dial::Dialer;
use adit_net::plugin::{PluginPort, Plugins, Role};
use adit_net::rt::Stream;
use adit_proto::wire::{Host, Target};

use super::Connector;
use crate::stream::OpenError;

/// A server that all cores share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) target: Target,
    /// Transports that the outbound is used for.
    transports: Transports,
    /// Port of the plugin that takes the server's place, and the transports that it carries.
    plugin: Option<(PluginPort, Transports)>,
    /// Dials a plugin on this machine, independent of the outbound's way to the server.
    loopback: Dial,
}

impl Server {
    /// Starts the plugin for the `transports` that it carries, if there is one.
    ///
    /// # Errors
    /// Those of the plugin's start.
    pub(crate) fn start(
        name: &Tag,
        dial: &Dial,
        target: &Target,
        transports: Transports,
        plugin: Option<&Plugin>,
        plugins: &mut Plugins,
    ) -> io::Result<Self> {
        let carried = plugin.and_then(|plugin| Some((plugin, plugin.transports.common(transports)?)));
        let plugin = carried.map(|(plugin, transports)| {
            let plugin = Plugin { transports, ..plugin.clone() };
            let port = plugins.start(name, &plugin, Role::Client { server: target.clone() })?;
            Ok::<_, io::Error>((port, transports))
        });
        Ok(Self {
            target: target.clone(),
            transports,
            plugin: plugin.transpose()?,
            loopback: Dial { timeout: dial.timeout, ..Dial::default() },
        })
    }

    /// Port where the plugin takes datagrams, if it carries them.
    pub(crate) fn datagram_plugin(&self) -> Option<&PluginPort> {
        self.plugin.as_ref().filter(|(_, carries)| carries.udp()).map(|(port, _)| port)
    }

    /// Whether the outbound carries datagrams.
    pub(crate) fn carries_datagrams(&self) -> bool {
        self.transports.udp()
    }

    /// Address where the plugin listens for streams at this moment, if it carries them.
    fn stream_plugin(&self) -> Option<Target> {
        let (port, _) = self.plugin.as_ref().filter(|(_, carries)| carries.tcp())?;
        let addr = port.addr();
        Some(Target { host: Host::Ip(addr.ip()), port: addr.port() })
    }
}

/// Makes connections to a server on one core.
pub(crate) struct ServerDialer<S> {
    /// The way of the outbound.
    pub(crate) connector: Connector,
    /// State of the outbound that all cores share.
    pub(crate) shared: Arc<S>,
    loopback: Dialer,
}

impl<S: AsRef<Server>> ServerDialer<S> {
    /// Connections by `connector`.
    pub(crate) fn new(connector: Connector, shared: &Arc<S>) -> Self {
        let loopback = Dialer::by_system(&(**shared).as_ref().loopback);
        Self { connector, shared: shared.clone(), loopback }
    }

    /// A connection to the server or to its plugin.
    ///
    /// # Errors
    /// [`OpenError::Rejected`] where the outbound carries no streams, and those of the dialer.
    pub(crate) async fn dial(&self) -> Result<Stream, OpenError> {
        let server = (*self.shared).as_ref();
        if !server.transports.tcp() {
            return Err(OpenError::Rejected);
        }
        match server.stream_plugin() {
            Some(plugin) => self.connector.dial_with(&self.loopback, &plugin).await,
            None => self.connector.dial(&server.target).await,
        }
    }
}
