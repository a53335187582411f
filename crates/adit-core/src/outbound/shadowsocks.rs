//! The Shadowsocks client: one connection to the server for each request.

mod packets;

pub(crate) use packets::{ShadowsocksPackets, sends_by_plugin};

use std::io;
use std::sync::Arc;

use adit_config::model::{self, ClientCover, ObfsClient, Transports};
use adit_net::plugin::{PluginPort, Plugins, Role};
use adit_net::rt::{self, Stream};
use adit_proto::shadowsocks::{Client, Key, WallClock};
use adit_proto::wire::{Host, Target, WireError};

use super::Opened;
use crate::disguise::ClientDisguise;
use crate::layer::Stack;
use crate::metrics::OutboundMetrics;
use crate::notice::{self, Notice};
use crate::record::{EndReason, Side};
use crate::relay::{Endpoint, HalfClose, Outcome, Policy};
use crate::rng::OsRng;
use crate::salts::SaltFilter;

/// Salts that a client remembers at least, as many as shadowsocks-libev (3.3.5).
const SALTS: usize = 10_000;

/// What a Shadowsocks client shares over all cores.
#[derive(Debug)]
pub(crate) struct ShadowsocksShared {
    key: Key,
    server: Target,
    disguise: ClientDisguise,
    /// Where the plugin listens that takes the server's place, and for what.
    plugin: Option<(PluginPort, Transports)>,
    carries_streams: bool,
    /// Salts of answers and of our own requests.
    salts: Arc<SaltFilter>,
    skewed: Notice,
    rejected: Notice,
}

impl ShadowsocksShared {
    pub(super) fn start(
        name: &Arc<str>,
        config: &model::ShadowsocksClient,
        plugins: &mut Plugins,
    ) -> io::Result<Self> {
        let (disguise, plugin) = match &config.cover {
            ClientCover::Obfs(obfs) => (ClientDisguise::new(obfs)?, None),
            ClientCover::Plugin(plugin) => {
                let carries = plugin.transports.common(config.transports);
                let start = |transports| {
                    let plugin = model::Plugin { transports, ..plugin.clone() };
                    let role = Role::Client { server: config.server.clone() };
                    plugins.start(name, &plugin, role).map(|port| (port, transports))
                };
                (ClientDisguise::new(&ObfsClient::Off)?, carries.map(start).transpose()?)
            }
        };
        Ok(Self {
            key: config.key.derive(),
            server: config.server.clone(),
            disguise,
            plugin,
            carries_streams: config.transports.tcp(),
            salts: Arc::new(SaltFilter::with_generation(SALTS)),
            skewed: Notice::default(),
            rejected: Notice::default(),
        })
    }

    /// Whether streams are to be carried at all.
    pub(super) fn carries_streams(&self) -> bool {
        self.carries_streams
    }

    /// Where the plugin listens for streams at this moment, if there is one.
    pub(super) fn plugin(&self) -> Option<Target> {
        let (port, _) = self.plugin.as_ref().filter(|(_, carries)| carries.tcp())?;
        let addr = port.addr();
        Some(Target { host: Host::Ip(addr.ip()), port: addr.port() })
    }

    /// Where the plugin takes datagrams, if there is one that does.
    pub(super) fn datagram_plugin(&self) -> Option<&PluginPort> {
        self.plugin.as_ref().filter(|(_, carries)| carries.udp()).map(|(port, _)| port)
    }

    pub(super) fn server(&self) -> &Target {
        &self.server
    }

    /// Begins a connection to `target`.
    pub(super) fn start_stream(&self, stream: Stream, target: &Target) -> Opened {
        let clock = WallClock::new(rt::now(), rt::unix_time());
        let client = Client::new(&self.key, target, clock, &mut OsRng);
        let stack = Stack::shadowsocks_client(client, self.disguise.front(), &self.salts);
        let far = Endpoint { stream, stack: Some(Box::new(stack)), tail: Vec::new() };
        Opened::new(far, Policy { half_close: HalfClose::AtOnce, keep_for_replay: false })
    }

    /// Nothing on the wire says what the server does not like; what can be told from outside is said here.
    pub(super) fn note_end(&self, outbound: &str, outcome: &Outcome, metrics: &OutboundMetrics) {
        match &outcome.reason {
            EndReason::Wire(WireError::Clock { offset_s, window_s }) => {
                if let Some(times) = self.skewed.due(rt::now()) {
                    let text = notice::skew("the server's", *offset_s, *window_s);
                    tracing::warn!(outbound, times, "{text}");
                }
            }
            EndReason::Wire(WireError::Authentication { .. }) if outcome.down == 0 => {
                if let Some(times) = self.rejected.due(rt::now()) {
                    tracing::warn!(
                        outbound,
                        times,
                        "the server's first bytes do not open: key or method differ, or it is no Shadowsocks server"
                    );
                }
            }
            EndReason::Socket(Side::Far, _) if outcome.down == 0 => {
                metrics.early_closes.add(1);
                if let Some(times) = self.rejected.due(rt::now()) {
                    tracing::warn!(
                        outbound,
                        times,
                        "the server closed before any reply: key, method, disguise or clock differ, or the target reset the connection"
                    );
                }
            }
            EndReason::Finished
            | EndReason::Idle
            | EndReason::Stopped
            | EndReason::Limited(_)
            | EndReason::Socket(..)
            | EndReason::Wire(_) => {}
        }
    }
}
