//! Nowhere: every request is refused.

use std::net::IpAddr;
use std::rc::Rc;

use adit_model::Tag;
use adit_net::rt::Pool;

use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::relay::RelayOutcome;
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// The outbound that refuses.
pub(crate) struct Reject {
    pub(crate) name: Tag,
}

impl Outbound for Reject {
    fn name(&self) -> &Tag {
        &self.name
    }

    fn is_tunnel(&self) -> bool {
        false
    }

    fn connect<'a>(
        &'a self,
        _to: ConnectTarget<'a>,
        _fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(std::future::ready(Err(OpenError::Rejected)))
    }

    fn release(&self, _opened: OpenedConnection, _outcome: &RelayOutcome, _pool: &Pool) {}

    fn lookup<'a>(&'a self, _name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(std::future::ready(None))
    }
}

/// The outbound that refuses, for every core.
#[derive(Debug)]
pub(crate) struct RejectFactory;

impl OutboundFactory for RejectFactory {
    fn on_core(&self, connector: Connector, _around: &OutboundDeps<'_>) -> OutboundHandle {
        leaf(connector.name)
    }
}

/// The outbound that refuses, under this name.
pub(crate) fn leaf(name: Tag) -> OutboundHandle {
    OutboundHandle { outbound: Rc::new(Reject { name }), packets: None }
}
