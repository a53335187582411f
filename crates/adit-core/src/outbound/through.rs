//! Streams through outbounds for this process itself: for name servers that are behind one.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use adit_net::rt::{self, Pool, Stream};
use adit_proto::wire::Target;

use super::{Leaf, Outbound};
use crate::conns::Conns;
use crate::dns::{Opening, Streams};
use crate::metrics::Traffic;
use crate::relay::{Early, Endpoint, Relay};

/// The outbounds of one core, by name.
pub(crate) struct Through {
    outbounds: Vec<(Arc<str>, Rc<Outbound>)>,
    pool: Pool,
    /// A table of its own: who uses these streams ends them, and no sweep does.
    conns: Rc<Conns>,
    /// Bytes are not those of a client.
    traffic: Rc<Traffic>,
}

impl Through {
    /// The outbounds of `leaves`.
    pub(crate) fn new(leaves: &[Leaf], pool: Pool) -> Self {
        let outbounds = leaves.iter().map(|leaf| (leaf.outbound.name.clone(), leaf.outbound.clone()));
        Self { outbounds: outbounds.collect(), pool, conns: Rc::default(), traffic: Rc::default() }
    }
}

impl Streams for Through {
    fn connect<'a>(&'a self, via: &'a str, to: &'a Target) -> Opening<'a> {
        Box::pin(async move {
            let found = self.outbounds.iter().find(|(name, _)| **name == *via);
            let (_, outbound) = found.ok_or_else(|| io::Error::other(format!("no such outbound: {via}")))?;
            let opened = Box::pin(outbound.open(to, true)).await;
            let mut opened = opened.map_err(|error| io::Error::other(error.chain()))?;
            if opened.far.stack.is_none() && opened.passage.is_none() {
                return Ok(opened.far.stream);
            }
            let (near, ours) = Stream::pair()?;
            let (outbound, pool) = (outbound.clone(), self.pool.clone());
            let (entry, traffic) = (self.conns.enter(), self.traffic.clone());
            rt::spawn_local(async move {
                let mut near = Endpoint::plain(near);
                let policy = opened.policy;
                let outcome = {
                    let relay = Relay::new(
                        &mut near,
                        &mut opened.far,
                        Early::default(),
                        &pool,
                        &entry,
                        &traffic,
                        policy,
                    );
                    Box::pin(relay).await
                };
                outbound.close(opened, &outcome, &pool);
            });
            Ok(ours)
        })
    }
}
