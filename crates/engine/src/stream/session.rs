//! One request whose connection is open, up to its record.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_model::Tag;
use adit_net::rt::{self, Pool};

use super::{OpenedConnection, Routed, StreamRequest, may_retry};
use crate::connections::listing::{ConnectionRoute, Describe, Description};
use crate::connections::record::{ConnectionRecord, EndReason, Side};
use crate::connections::table::ConnectionEntry;
use crate::relay::discard::discard_bytes;
use crate::relay::{Early, Endpoint, Relay, RelayOutcome};

/// A tunnel's request waits this long for the application's first bytes, to leave in one segment with them.
const FIRST_BYTES: Duration = Duration::from_millis(20);

/// An application that goes on sending to a target that has ended is read from for this long. The bytes are discarded.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_LEN: usize = 0x8_0000;

/// A request that is ready for the relay. It is boxed, so that a connection's future holds it once.
pub(crate) struct RelaySession {
    routed: Rc<Routed>,
    opened: OpenedConnection,
    early: Early,
}

impl RelaySession {
    /// The session of a request with its connection, and what the client has sent already.
    pub(crate) fn new(routed: Routed, opened: OpenedConnection, early: Early) -> Self {
        Self { routed: Rc::new(routed), opened, early }
    }

    /// Relays to the end and writes the record.
    ///
    /// This future is what an idle connection consists of. It is an `async` block, which holds what it captures once, and
    /// all that it needs only at times is boxed.
    pub(crate) fn run(
        mut self: Box<Self>,
        near: &mut Endpoint,
        entry: &ConnectionEntry,
    ) -> impl Future<Output = EndReason> {
        self.routed.show(entry, &self.opened);
        async move {
            let mut begun = Box::pin(self.first_segment(near, entry)).await;
            let outcome = loop {
                let outcome = match begun {
                    Ok(()) => self.relay(near, entry).await,
                    Err(reason) => RelayOutcome::unsent(reason),
                };
                if !(self.opened.policy.keep_for_replay && may_retry(&outcome)) {
                    break outcome;
                }
                match Box::pin(self.begin_again(near, entry, outcome)).await {
                    Ok(again) => begun = again,
                    Err(outcome) => break outcome,
                }
            };
            entry.set_watch(None);
            entry.end_request();
            let Self { routed, opened, .. } = *self;
            let reason = routed.finish(near, opened, outcome);
            if near.stack.is_none() && reason == EndReason::Socket(Side::Far, io::ErrorKind::BrokenPipe) {
                Box::pin(linger(near, &routed.request.source.origin.core.pool)).await;
            }
            reason
        }
    }

    /// Sends what the client has sent already, as far as it goes with the request.
    async fn first_segment(&mut self, near: &mut Endpoint, entry: &ConnectionEntry) -> Result<(), EndReason> {
        let Self { routed, opened, early } = self;
        let pool = &routed.request.source.origin.core.pool;
        let has_sent = first_segment(near, &mut opened.far, early, pool).await?;
        entry.touch();
        if has_sent {
            routed.watch(opened, entry);
        }
        Ok(())
    }

    /// The relay over the connection that there is.
    fn relay<'a>(&'a mut self, near: &'a mut Endpoint, entry: &'a ConnectionEntry) -> Relay<'a> {
        let Self { routed, opened, early } = self;
        let origin = &*routed.request.source.origin;
        let (far, policy) = (&mut opened.far, opened.policy);
        Relay::new(
            near,
            far,
            std::mem::take(early),
            &origin.core.pool,
            entry,
            &origin.metrics.traffic,
            policy,
        )
    }

    /// Begins on a second connection: the first was a kept one that the server had given up.
    ///
    /// # Errors
    /// The `outcome`, if there is no second one.
    async fn begin_again(
        &mut self,
        near: &mut Endpoint,
        entry: &ConnectionEntry,
        mut outcome: RelayOutcome,
    ) -> Result<Result<(), EndReason>, RelayOutcome> {
        match self.routed.open_again().await {
            Ok(fresh) => self.opened = fresh,
            Err(_) => return Err(outcome),
        }
        let bytes = outcome.replay.take().unwrap_or_default();
        self.early = Early { bytes, ended: outcome.near_ended };
        Ok(self.first_segment(near, entry).await)
    }
}

impl Routed {
    /// Has the list of connections show this request, which goes over `opened`, until it ends.
    pub(crate) fn show(self: &Rc<Self>, entry: &ConnectionEntry, opened: &OpenedConnection) {
        let request: Rc<dyn Describe> = match &opened.member {
            Some(member) => Rc::new(OverMember { routed: self.clone(), chain: member.chain() }),
            None => self.clone(),
        };
        self.log_opened(&*request);
        entry.begin_request(request);
    }

    /// One line about a connection that is open, in the words that people seek in the logs of programs of this kind.
    fn log_opened(&self, request: &dyn Describe) {
        if !tracing::enabled!(target: "adit::opened", tracing::Level::DEBUG) {
            return;
        }
        let Description { source, target, way, .. } = request.describe();
        let matched = match (&*way.rule, &*way.payload) {
            ("", _) => "without a rule".to_owned(),
            (rule, "") => format!("match {rule}"),
            (rule, payload) => format!("match {rule}({payload})"),
        };
        let using = match &*way.chain {
            [] => String::new(),
            [only] => only.clone(),
            [leaf, .., group] => format!("{group}[{leaf}]"),
        };
        tracing::debug!(target: "adit::opened", "[TCP] {source} --> {target} {matched} using {using}");
    }

    /// Hands the connection back to its outbound and writes the record. After a failure the client's connection is set
    /// to be reset when it closes, so that the application does not take a part of the answer for the whole.
    pub(crate) fn finish(
        &self,
        near: &Endpoint,
        mut opened: OpenedConnection,
        outcome: RelayOutcome,
    ) -> EndReason {
        let bytes = (outcome.up, outcome.down);
        let has_replied = self.outbound.has_replied(&mut opened, &outcome);
        self.note_end(&opened, bytes.0, has_replied, &outcome.reason);
        self.log_end(&opened, bytes, &outcome.reason);
        self.outbound.release(opened, &outcome, &self.request.source.origin.core.pool);
        match &outcome.reason {
            EndReason::Finished | EndReason::Idle | EndReason::Socket(Side::Near, _) => {}
            // The caller can still tell the client, or the answer is complete.
            EndReason::Socket(Side::Far, _) if near.has_pending() => {}
            EndReason::Socket(Side::Far, io::ErrorKind::BrokenPipe) => {}
            EndReason::Crowded
            | EndReason::Kicked
            | EndReason::Stopped
            | EndReason::Limited(_)
            | EndReason::Socket(Side::Far, _)
            | EndReason::Wire(_) => near.stream.abort_on_close(),
        }
        outcome.reason
    }

    /// Notes how a connection has ended after so many payload bytes up and down, and writes its record.
    pub(crate) fn write_record(&self, opened: &OpenedConnection, (up, down): (u64, u64), reason: &EndReason) {
        self.note_end(opened, up, down > 0, reason);
        self.log_end(opened, (up, down), reason);
    }

    fn log_end(&self, opened: &OpenedConnection, (up, down): (u64, u64), reason: &EndReason) {
        let StreamRequest { source, target, since, .. } = &self.request;
        let now = rt::now();
        source.origin.metrics.times.connection.note_time_alone(now.saturating_duration_since(*since));
        let record = ConnectionRecord {
            inbound: &source.origin.inbound,
            outbound: opened.name_of(&*self.outbound),
            peer: Some(source.peer),
            target,
            since: *since,
        };
        record.write(now, up, down, reason, source.origin.core.log_destinations.get());
    }
}

impl Describe for Routed {
    fn note_answer(&self, now: Instant) {
        let StreamRequest { source, since, .. } = &self.request;
        source.origin.metrics.times.first_byte.note_time_alone(now.saturating_duration_since(*since));
    }

    fn describe(&self) -> Description {
        let StreamRequest { source, target, since, .. } = &self.request;
        Description {
            network: "tcp",
            source: source.peer,
            target: target.to_string(),
            outbound: Some(self.outbound.name().clone()),
            since: *since,
            way: ConnectionRoute {
                rule: self.rule.as_ref().map(|rule| rule.kind.to_string()).unwrap_or_default(),
                payload: self.rule.as_ref().map(|rule| rule.payload.to_string()).unwrap_or_default(),
                chain: vec![self.outbound.name().to_string()],
                entry: self.request.entry.to_owned(),
                name: self.request.name().map(str::to_owned),
                sniffed: self.request.sniffed_name().map(str::to_owned),
                program: self
                    .request
                    .program()
                    .and_then(|program| program.path.as_deref())
                    .map(str::to_owned),
                uid: self.request.program().map(|program| program.uid),
            },
        }
    }
}

/// A request over a member of a group.
struct OverMember {
    routed: Rc<Routed>,
    /// From the outbound at the end to the member.
    chain: Vec<Tag>,
}

impl Describe for OverMember {
    fn note_answer(&self, now: Instant) {
        self.routed.note_answer(now);
    }

    fn describe(&self) -> Description {
        let mut about = self.routed.describe();
        about.outbound = self.chain.first().cloned();
        let inner = self.chain.iter().map(ToString::to_string);
        about.way.chain = inner.chain(about.way.chain).collect();
        about
    }
}

/// A tunnel's request waits a moment for the application's first bytes, and leaves without them if none come.
///
/// Whether there were any.
async fn first_segment(
    near: &Endpoint,
    far: &mut Endpoint,
    early: &Early,
    pool: &Pool,
) -> Result<bool, EndReason> {
    let waits = far.stack.as_ref().is_some_and(|stack| stack.has_pending());
    if !waits || !early.bytes.is_empty() || early.ended {
        return Ok(!early.bytes.is_empty());
    }
    match rt::timeout(FIRST_BYTES, near.stream.readable()).await {
        Ok(_) => Ok(true),
        Err(rt::Elapsed) => far.send_pending(pool).await.map(|()| false),
    }
}

/// The answer is complete, but the target did not take all of the request. Closing over unread bytes would reset the
/// connection and lose the rest of the answer. An inbound with a protocol of its own does this itself.
async fn linger(near: &Endpoint, pool: &Pool) {
    rt::timeout(LINGER, discard_bytes(&near.stream, pool, LINGER_LEN)).await.ok();
}
