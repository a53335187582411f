//! Straight to the target.

use std::net::IpAddr;
use std::rc::Rc;

use adit_model::Tag;
use adit_net::rt::Pool;

use super::outbound_udp::DirectPackets;
use crate::outbound::connector::end_of_cut;
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::relay::{Endpoint, Policy, RelayOutcome};
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// The direct outbound on one core.
pub(crate) struct Direct {
    connector: Connector,
}

impl Direct {
    pub(crate) fn new(connector: Connector) -> Self {
        Self { connector }
    }
}

impl Outbound for Direct {
    fn name(&self) -> &Tag {
        &self.connector.name
    }

    fn is_tunnel(&self) -> bool {
        self.connector.is_carried()
    }

    fn connect<'a>(
        &'a self,
        to: ConnectTarget<'a>,
        _fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(async move {
            let stream = self.connector.dial_direct(to).await?;
            Ok(self.connector.settle(OpenedConnection::new(Endpoint::plain(stream), Policy::default())))
        })
    }

    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, _pool: &Pool) {
        end_of_cut(&opened, outcome);
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(self.connector.lookup(name))
    }
}

/// The direct outbound, for every core.
#[derive(Debug)]
pub(crate) struct DirectFactory;

impl OutboundFactory for DirectFactory {
    fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
        let packets = Rc::new(DirectPackets::new(around.model, around.udp, around.dns));
        OutboundHandle { outbound: Rc::new(Direct::new(connector)), packets: Some(packets) }
    }
}
