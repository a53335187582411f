//! Two streams that are joined as they are.

use std::rc::Rc;

use adit_net::rt::{Pool, Stream};

use super::{Early, Endpoint, Policy, Relay};
use crate::connections::table::Conns;
use crate::counters::Traffic;

/// Joins streams on one event loop, for programs without inbounds and outbounds.
#[derive(Debug, Clone)]
pub struct StreamJoiner {
    pool: Pool,
    conns: Rc<Conns>,
}

impl Default for StreamJoiner {
    fn default() -> Self {
        Self { pool: Pool::new(), conns: Rc::default() }
    }
}

impl StreamJoiner {
    /// Copies both ways between two streams until both have ended.
    pub async fn join(&self, near: Stream, far: Stream) {
        let (mut near, mut far) = (Endpoint::plain(near), Endpoint::plain(far));
        let (entry, traffic) = (self.conns.enter(), Traffic::default());
        let (early, policy) = (Early::default(), Policy::default());
        let outcome = Relay::new(&mut near, &mut far, early, &self.pool, &entry, &traffic, policy).await;
        tracing::debug!(up = outcome.up, down = outcome.down, reason = ?outcome.reason, "stream ended");
    }
}
