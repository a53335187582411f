//! The one list of protocols: what the parts of a configuration are made of.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::{self as model, Config};
use adit_net::pace::check_pace;
use adit_net::plugin::Plugins;
use adit_net::rt;

use super::{direct, dns, obfs, redirect, reject, shadowsocks, snell, socks_http, ssr, tun, tunnel};
use crate::groups::best::{Check, GroupShared};
use crate::groups::choice::ChoiceShared;
use crate::listener::{InboundFactory, InboundServer};
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::replay::ReplayFilter;
use crate::stream::OutboundHandle;
use crate::users::{AccountLedger, Accounts, KnownSources};

/// State that an inbound shares over all cores.
#[derive(Debug, Clone)]
pub(crate) struct InboundShared(Arc<dyn InboundFactory>);

impl InboundShared {
    /// The registry: what `inbound` needs once per process.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub(crate) fn new(
        inbound: &model::Inbound,
        ledger: &Arc<AccountLedger>,
        salts: &Arc<ReplayFilter>,
    ) -> io::Result<Self> {
        let accounts = ledger.accounts(inbound.accounts(), inbound.protocol.users())?;
        let sources = || ledger.sources(inbound.accounts());
        Ok(Self(match &inbound.protocol {
            model::InboundProtocol::Local(local) => {
                Arc::new(socks_http::inbound::LocalFactory { config: local.clone(), accounts })
            }
            model::InboundProtocol::Captured(captured) => {
                Arc::new(redirect::inbound::CapturedFactory(*captured))
            }
            model::InboundProtocol::Tun(tun) => Arc::new(tun::TunFactory::new(tun.clone())),
            model::InboundProtocol::Dns(server) => {
                Arc::new(dns::inbound::DnsFactory::new(server, &inbound.listen))
            }
            model::InboundProtocol::Tunnel { target, .. } => {
                Arc::new(tunnel::inbound::TunnelFactory(target.clone()))
            }
            model::InboundProtocol::Snell(server) => Arc::new(snell::inbound::SnellServerShared::start(
                server,
                accounts,
                salts.clone(),
                sources(),
            )?),
            model::InboundProtocol::Shadowsocks(server) => {
                let salts = salts.clone();
                Arc::new(Arc::new(shadowsocks::inbound::ShadowsocksServerShared::start(
                    server,
                    accounts,
                    salts,
                    sources(),
                )))
            }
            model::InboundProtocol::Ssr(server) => {
                Arc::new(Arc::new(ssr::inbound::SsrServerShared::start(server, accounts, salts.clone())?))
            }
            model::InboundProtocol::Obfs(server) => {
                Arc::new(Arc::new(obfs::inbound::ObfsServerShared::start(server)?))
            }
        }))
    }

    /// The same for `inbound` with other users.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub(crate) fn renewed(
        &self,
        inbound: &model::Inbound,
        ledger: &Arc<AccountLedger>,
        salts: &Arc<ReplayFilter>,
    ) -> io::Result<Self> {
        let accounts = ledger.accounts(inbound.accounts(), inbound.protocol.users())?;
        match self.0.renewed(inbound, &accounts)? {
            Some(factory) => Ok(Self(factory)),
            None => Self::new(inbound, ledger, salts),
        }
    }

    /// The inbound's protocol on one core.
    pub(crate) fn on_core(&self) -> Rc<dyn InboundServer> {
        self.0.on_core()
    }

    /// The users that are counted.
    pub(crate) fn users(&self) -> Accounts {
        self.0.accounts()
    }

    /// The sources of users that are found by trial.
    pub(crate) fn sources(&self) -> Option<Arc<KnownSources>> {
        self.0.sources()
    }
}

/// Warnings about `inbound`, printed once.
pub(crate) fn inbound_warnings(inbound: &model::Inbound) -> Vec<String> {
    let pace = inbound.socket.pace.as_ref().and_then(check_pace);
    let mut warnings: Vec<String> = pace.iter().map(ToString::to_string).collect();
    if let model::InboundProtocol::Dns(server) = &inbound.protocol {
        warnings.extend(dns::inbound::warning(server, &inbound.listen));
    }
    warnings.iter().map(|warning| format!("inbound {}: {warning}", inbound.name)).collect()
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
    /// The parts of `outbound` that all cores share; the members of a group are among the outbounds of `config`.
    ///
    /// # Errors
    /// When a thread cannot be made, a plugin cannot be started, or a group cannot be checked.
    pub(crate) fn new(
        outbound: &model::Outbound,
        config: &Config,
        plugins: &mut Plugins,
    ) -> io::Result<Self> {
        if let model::OutboundProtocol::Group(group) = &outbound.protocol {
            Check::new(&group.check)?;
            let shared = GroupShared::new(&outbound.name, group, config, rt::now());
            return Ok(Self::Group(Arc::new(shared)));
        }
        outbound_factory(outbound, plugins).map(Self::Outbound)
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

/// The registry of outbounds: what one needs once per process. A group has no protocol, and refuses here.
///
/// # Errors
/// When a thread cannot be made or a plugin cannot be started.
pub(crate) fn outbound_factory(
    outbound: &model::Outbound,
    plugins: &mut Plugins,
) -> io::Result<Arc<dyn OutboundFactory>> {
    Ok(match &outbound.protocol {
        model::OutboundProtocol::Direct => Arc::new(direct::outbound::DirectFactory),
        model::OutboundProtocol::Reject => Arc::new(reject::outbound::RejectFactory),
        model::OutboundProtocol::Snell(client) => Arc::new(snell::outbound::SnellShared::start(client)?),
        model::OutboundProtocol::Shadowsocks(client) => {
            let model::Outbound { name, dial, .. } = outbound;
            Arc::new(Arc::new(shadowsocks::outbound::ShadowsocksShared::start(name, dial, client, plugins)?))
        }
        model::OutboundProtocol::Ssr(client) => {
            let model::Outbound { name, dial, .. } = outbound;
            Arc::new(Arc::new(ssr::outbound::SsrShared::start(name, dial, client, plugins)?))
        }
        model::OutboundProtocol::Obfs(client) => {
            Arc::new(Arc::new(obfs::outbound::ObfsShared::start(&outbound.dial, client)?))
        }
        model::OutboundProtocol::Proxy(client) => {
            Arc::new(Arc::new(socks_http::outbound::ProxyShared::start(&outbound.dial, client)?))
        }
        model::OutboundProtocol::Dns { ipv6 } => Arc::new(dns::outbound::DnsOutboundFactory { ipv6: *ipv6 }),
        model::OutboundProtocol::Refuse(refusal) => Arc::new(reject::refusal::RefuseFactory(refusal.clone())),
        // The engine makes groups, since they are kept across changes.
        model::OutboundProtocol::Choice(_) | model::OutboundProtocol::Group(_) => {
            Arc::new(reject::outbound::RejectFactory)
        }
    })
}

/// The direct outbound on one core.
pub(crate) fn direct(connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
    direct::outbound::DirectFactory.on_core(connector, around)
}

/// An outbound that refuses all requests, in the place of one that is not there.
pub(crate) fn nowhere() -> OutboundHandle {
    reject::outbound::leaf("nowhere".into())
}
