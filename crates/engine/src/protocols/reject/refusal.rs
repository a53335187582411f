//! Outbounds that open nothing: requests that get no answer, that are not theirs, or that nothing here speaks for.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use adit_model::rule::{Network, RejectMethod};
use adit_model::{Refusal, Tag};
use adit_net::rt::{self, Pool};

use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::relay::RelayOutcome;
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// A request that is dropped is held this long, as long as mihomo holds it.
const SILENCE: Duration = Duration::from_secs(60);

/// An outbound that refuses in its own manner, for every core.
#[derive(Debug)]
pub(crate) struct RefuseFactory(pub(crate) Refusal);

impl OutboundFactory for RefuseFactory {
    fn on_core(&self, connector: Connector, _: &OutboundDeps<'_>) -> OutboundHandle {
        let outbound = Refusing { name: connector.name, refusal: self.0.clone() };
        OutboundHandle { outbound: Rc::new(outbound), packets: None }
    }
}

struct Refusing {
    name: Tag,
    refusal: Refusal,
}

impl Outbound for Refusing {
    fn name(&self) -> &Tag {
        &self.name
    }

    fn is_tunnel(&self) -> bool {
        false
    }

    fn passes(&self, network: Network) -> bool {
        match &self.refusal {
            Refusal::Pass => true,
            Refusal::Drop => false,
            Refusal::Dead { udp, .. } => network == Network::Udp && !udp,
        }
    }

    fn connect<'a>(
        &'a self,
        _: ConnectTarget<'a>,
        _fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(async move {
            Err(match &self.refusal {
                Refusal::Drop => {
                    rt::sleep(SILENCE).await;
                    OpenError::Blocked(RejectMethod::Drop)
                }
                Refusal::Pass => OpenError::Rejected,
                Refusal::Dead { why, .. } => OpenError::Dead { name: self.name.clone(), why: why.clone() },
            })
        })
    }

    fn release(&self, _opened: OpenedConnection, _outcome: &RelayOutcome, _pool: &Pool) {}

    fn lookup<'a>(&'a self, _name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(std::future::ready(None))
    }
}
