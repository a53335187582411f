//! One request: from a known target to a finished connection.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_net::rt::{self, Pool};
use adit_proto::wire::Target;

use crate::access::Route;
use crate::conns::{Conns, Entry};
use crate::inbound::Inbound;
use crate::outbound::{OpenError, Opened, Outbound};
use crate::record::{EndReason, Record, Side};
use crate::relay::discard::discard_bytes;
use crate::relay::{Early, Endpoint, Outcome, Relay};

/// A tunnel's request waits this long for the application's first bytes, to leave in one segment with them.
const FIRST_BYTES: Duration = Duration::from_millis(20);

/// An application that goes on sending to a target that has ended is listened to for this long, in vain.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_LEN: usize = 0x8_0000;

/// What the connections of one core share.
pub(crate) struct CoreContext {
    /// Chunks.
    pub(crate) pool: Pool,
    /// The table of connections.
    pub(crate) conns: Rc<Conns>,
    /// Whether destinations may appear at level info.
    pub(crate) log_destinations: bool,
}

/// A request that is ready for the relay. It is boxed, so that a connection's future holds it once.
pub(crate) struct Prepared {
    /// Where to.
    pub(crate) target: Target,
    /// When the request was whole.
    pub(crate) since: Instant,
    /// The way out that was taken.
    pub(crate) outbound: Rc<Outbound>,
    /// The way there.
    pub(crate) opened: Opened,
    /// What the client has sent already.
    pub(crate) early: Early,
}

impl Prepared {
    /// Relays to the end.
    pub(crate) async fn run(
        mut self: Box<Self>,
        inbound: &Inbound,
        peer: SocketAddr,
        near: &mut Endpoint,
        entry: &Entry,
    ) -> EndReason {
        let outbound = &*self.outbound;
        let session = Session { inbound, outbound, peer, target: &self.target, since: self.since };
        let outcome = session.relay(near, &mut self.opened, &mut self.early, entry).await;
        let reason = session.finish(near, self.opened, outcome);
        if near.stack.is_none() && reason == EndReason::Socket(Side::Far, io::ErrorKind::BrokenPipe) {
            Box::pin(linger(near, &inbound.core.pool)).await;
        }
        reason
    }
}

/// One request of one client.
pub(crate) struct Session<'a> {
    /// Where it came in.
    pub(crate) inbound: &'a Inbound,
    /// Where it goes out.
    pub(crate) outbound: &'a Outbound,
    /// The client.
    pub(crate) peer: SocketAddr,
    /// Where to.
    pub(crate) target: &'a Target,
    /// When the request was whole.
    pub(crate) since: Instant,
}

impl Session<'_> {
    /// The connection to the target or the tunnel's server.
    pub(crate) async fn open(&self, way: &Route) -> Result<Opened, OpenError> {
        self.inbound.metrics.requests.add(1);
        let opened = Box::pin(way.open(self.target)).await;
        opened.inspect_err(|error| {
            self.inbound.metrics.refused.rule.add(u64::from(matches!(error, OpenError::Blocked)));
            self.log_open_error(error);
        })
    }

    /// One line about a connection that could not be opened.
    pub(crate) fn log_open_error(&self, error: &OpenError) {
        let (inbound, outbound) = (&*self.inbound.name, &*self.outbound.name);
        let error = error.chain();
        if self.inbound.core.log_destinations {
            tracing::info!(inbound, outbound, target = %self.target, error, "connection could not be opened");
        } else {
            tracing::debug!(inbound, outbound, target = %self.target, error, "connection could not be opened");
        }
    }

    /// Relays until the end; [`Session::finish`] comes next.
    ///
    /// This future is what an idle connection consists of: whatever is needed only at times is boxed.
    pub(crate) async fn relay(
        &self,
        near: &mut Endpoint,
        opened: &mut Opened,
        early: &mut Early,
        entry: &Entry,
    ) -> Outcome {
        let (core, outbound) = (&*self.inbound.core, self.outbound);
        let traffic = &self.inbound.metrics.traffic;
        loop {
            let mut outcome = match Box::pin(self.first_segment(near, &mut opened.far, early)).await {
                Ok(()) => {
                    entry.touch();
                    let early = std::mem::take(early);
                    let (far, policy) = (&mut opened.far, opened.policy);
                    let mut relay = Relay::new(near, far, early, &core.pool, entry, traffic, policy);
                    (&mut relay).await
                }
                Err(reason) => Outcome {
                    reason,
                    up: 0,
                    down: 0,
                    replay: Some(Vec::new()),
                    is_clean: false,
                    near_ended: false,
                },
            };
            if !(opened.policy.keep_for_replay && Outbound::may_retry(&outcome)) {
                return outcome;
            }
            // The server had given up a kept connection before it saw the request: once more on a fresh one.
            match Box::pin(outbound.open(self.target, true)).await {
                Ok(fresh) => *opened = fresh,
                Err(error) => {
                    self.log_open_error(&error);
                    return outcome;
                }
            }
            *early = Early { bytes: outcome.replay.take().unwrap_or_default(), ended: outcome.near_ended };
        }
    }

    /// Hands the far end back and writes the record. After a failure the near end is set to be reset when it closes,
    /// so that the application does not take what it has for a whole answer.
    pub(crate) fn finish(&self, near: &Endpoint, opened: Opened, outcome: Outcome) -> EndReason {
        let (core, outbound) = (&*self.inbound.core, self.outbound);
        let through = outbound.name_of(&opened).clone();
        outbound.close(opened, &outcome, &core.pool);
        let record = Record {
            inbound: &self.inbound.name,
            outbound: &through,
            peer: Some(self.peer),
            target: self.target,
            since: self.since,
        };
        record.write(rt::now(), outcome.up, outcome.down, &outcome.reason, core.log_destinations);
        match &outcome.reason {
            EndReason::Finished | EndReason::Idle | EndReason::Socket(Side::Near, _) => {}
            // The caller can still say it in words, or the answer is whole.
            EndReason::Socket(Side::Far, _) if near.has_pending() => {}
            EndReason::Socket(Side::Far, io::ErrorKind::BrokenPipe) => {}
            EndReason::Stopped
            | EndReason::Limited(_)
            | EndReason::Socket(Side::Far, _)
            | EndReason::Wire(_) => near.stream.abort_on_close(),
        }
        outcome.reason
    }

    /// A tunnel's request waits a moment for the application's first bytes, and leaves without them if none come.
    async fn first_segment(
        &self,
        near: &Endpoint,
        far: &mut Endpoint,
        early: &Early,
    ) -> Result<(), EndReason> {
        let waits = far.stack.as_ref().is_some_and(|stack| stack.has_pending());
        if !waits || !early.bytes.is_empty() || early.ended {
            return Ok(());
        }
        match rt::timeout(FIRST_BYTES, near.stream.readable()).await {
            Ok(_) => Ok(()),
            Err(rt::Elapsed) => far.send_pending(&self.inbound.core.pool).await,
        }
    }
}

/// The answer is whole, the target just did not want to hear more: closing over unread bytes would reset the
/// connection and take the rest of the answer with it. Whoever speaks a protocol does that himself.
async fn linger(near: &Endpoint, pool: &Pool) {
    rt::timeout(LINGER, discard_bytes(&near.stream, pool, LINGER_LEN)).await.ok();
}
