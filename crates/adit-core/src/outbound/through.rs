//! Streams through outbounds for this process itself: for name servers that are behind one.

use std::io;
use std::rc::Rc;

use adit_net::rt::{self, Pool, Stream};
use adit_proto::wire::Target;

use crate::conns::Conns;
use crate::dispatch::{Destination, Outbounds};
use crate::dns::{Opening, Streams};
use crate::metrics::Traffic;
use crate::relay::{Early, Endpoint, Relay};

/// The outbounds of one core, by name.
pub(crate) struct Through {
    outbounds: Rc<Outbounds>,
    pool: Pool,
    /// A table of its own: who uses these streams ends them, and no sweep does.
    conns: Rc<Conns>,
    /// Bytes are not those of a client.
    traffic: Rc<Traffic>,
}

impl Through {
    /// Streams through `outbounds`, as they are when a stream is opened.
    pub(crate) fn new(outbounds: Rc<Outbounds>, pool: Pool) -> Self {
        Self { outbounds, pool, conns: Rc::default(), traffic: Rc::default() }
    }
}

impl Streams for Through {
    fn connect<'a>(&'a self, via: &'a str, to: &'a Target) -> Opening<'a> {
        Box::pin(async move {
            let outbound = self.outbounds.find(via).outbound;
            let opened = outbound.connect(Destination::from(to), true).await;
            let opened = opened.inspect_err(|error| self.outbounds.note_open_error(&*outbound, error));
            let mut opened = opened.map_err(|error| io::Error::other(error.chain()))?;
            if opened.far.stack.is_none() && opened.member.is_none() {
                return Ok(opened.far.stream);
            }
            let (near, ours) = Stream::pair()?;
            let pool = self.pool.clone();
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
                outbound.release(opened, &outcome, &pool);
            });
            Ok(ours)
        })
    }
}
