//! The registry of ways out.

mod carried;
mod choice;
mod connector;
mod direct;
mod direct_packets;
mod group;
mod names;
mod obfs;
mod proxy;
mod refuse;
mod reject;
mod server;
mod shadowsocks;
mod snell;
mod ssr;
mod stream_flow;
mod through;

use std::fmt::Debug;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_config::model::{self, Config, Udp};
use adit_net::dial::Dialer;
use adit_net::pace::check_pace;
use adit_net::plugin::Plugins;
use adit_net::rt::{self, Pool};

use crate::dispatch::OutboundHandle;
use crate::dns::Dns;

pub(crate) use carried::carrier_client;
pub(crate) use choice::{
    Board, CheckRequest, Choice, ChoicePackets, ChoiceShared, Choices, Tester, check_group, check_list,
    test_group,
};
pub use choice::{ChoiceView, DelayError, DelayHistory, DelaySample, fuzz_choices};
pub(crate) use connector::Connector;
pub(crate) use direct_packets::DirectPackets;
pub(crate) use group::run as check_members;
pub(crate) use group::{
    Check, CheckFailure, Group, GroupPackets, GroupShared, MemberHealth, Report, Transport,
};
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

/// State that an outbound shares over all cores. A group is made of other outbounds on each core.
#[derive(Debug, Clone)]
pub(crate) enum OutboundShared {
    Outbound(Arc<dyn OutboundFactory>),
    Group(Arc<GroupShared>),
    /// A group whose member is chosen; the engine makes it.
    Choice(Arc<ChoiceShared>),
}

impl OutboundShared {
    /// The registry: what `outbound` needs once per process; the members of a group are among the outbounds of `config`.
    ///
    /// # Errors
    /// When a thread cannot be made, a plugin cannot be started, or a group cannot be checked.
    pub(crate) fn new(
        outbound: &model::Outbound,
        config: &Config,
        plugins: &mut Plugins,
    ) -> io::Result<Self> {
        Ok(Self::Outbound(match &outbound.protocol {
            model::OutboundProtocol::Direct => Arc::new(direct::DirectFactory),
            model::OutboundProtocol::Reject => Arc::new(reject::RejectFactory),
            model::OutboundProtocol::Snell(client) => Arc::new(snell::SnellShared::start(client)?),
            model::OutboundProtocol::Shadowsocks(client) => {
                let model::Outbound { name, dial, .. } = outbound;
                Arc::new(Arc::new(shadowsocks::ShadowsocksShared::start(name, dial, client, plugins)?))
            }
            model::OutboundProtocol::Ssr(client) => {
                let model::Outbound { name, dial, .. } = outbound;
                Arc::new(Arc::new(ssr::SsrShared::start(name, dial, client, plugins)?))
            }
            model::OutboundProtocol::Obfs(client) => {
                Arc::new(Arc::new(obfs::ObfsShared::start(&outbound.dial, client)?))
            }
            model::OutboundProtocol::Proxy(client) => {
                Arc::new(Arc::new(proxy::ProxyShared::start(&outbound.dial, client)?))
            }
            model::OutboundProtocol::Dns { ipv6 } => Arc::new(names::DnsOutboundFactory { ipv6: *ipv6 }),
            model::OutboundProtocol::Refuse(refusal) => Arc::new(refuse::RefuseFactory(refusal.clone())),
            // The engine makes those, since they are kept across changes; one that it has not made refuses.
            model::OutboundProtocol::Choice(_) => Arc::new(reject::RejectFactory),
            model::OutboundProtocol::Group(group) => {
                Check::new(&group.check)?;
                let shared = GroupShared::new(&outbound.name, group, config, rt::now());
                return Ok(Self::Group(Arc::new(shared)));
            }
        }))
    }

    /// State that a group shares.
    pub(crate) fn group(&self) -> Option<&Arc<GroupShared>> {
        match self {
            Self::Group(group) => Some(group),
            Self::Outbound(_) | Self::Choice(_) => None,
        }
    }

    /// State that a group shares whose member is chosen.
    pub(crate) fn choice(&self) -> Option<&Arc<ChoiceShared>> {
        match self {
            Self::Choice(choice) => Some(choice),
            Self::Outbound(_) | Self::Group(_) => None,
        }
    }
}

impl OutboundShared {
    /// The outbound on one core, which is no group.
    pub(crate) fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
        match self {
            Self::Outbound(factory) => factory.on_core(connector, around),
            Self::Group(_) | Self::Choice(_) => reject::leaf(connector.name),
        }
    }
}

/// The direct outbound on one core.
pub(crate) fn direct(connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
    direct::DirectFactory.on_core(connector, around)
}

/// An outbound that refuses all requests, in the place of one that is not there.
pub(crate) fn nowhere() -> OutboundHandle {
    reject::leaf("nowhere".into())
}

/// Warnings about `outbound`, printed once: missing features of the system, and settings that should not be used.
pub(crate) fn warnings(outbound: &model::Outbound) -> Vec<String> {
    let mut warnings: Vec<String> =
        Dialer::by_system(&outbound.dial).warnings().iter().map(ToString::to_string).collect();
    warnings.extend(outbound.dial.pace.as_ref().and_then(check_pace).map(|warning| warning.to_string()));
    warnings.iter().map(|warning| format!("outbound {}: {warning}", outbound.name)).collect()
}
