//! The first bytes of a client, where rules ask for the protocol that it speaks to its target, or where the name of the
//! target is read from them.

use std::time::Duration;

use adit_model::rule::Network;
use adit_net::rt;
use adit_proto::buf::RecvBuf;
use adit_proto::sniff::{self, SniffedProtocol};
use adit_proto::wire::{Host, Target};

use super::{Alias, Routed, Sniffed, StreamRequest, route_context};
use crate::relay::{Early, Endpoint, take_early};
use crate::routing::Glimpse;

/// Longest wait for a client's first bytes. The client of a target that speaks first waits as long.
const WAIT: Duration = Duration::from_millis(300);
/// Bytes of one read.
const READ_LEN: usize = 4096;

/// A protocol that was found, with the name of a host if it has one.
type Seen = Option<(SniffedProtocol, Option<Box<str>>)>;

impl StreamRequest {
    /// Whether the way depends on the client's first bytes: an inbound whose client waits for an answer gives it before
    /// it calls [`StreamRequest::route_after`].
    pub(crate) fn waits_for_bytes(&self) -> bool {
        let live = &self.source.origin.live;
        let by_rules = self.protocol.is_none()
            && live.needs_protocol()
            && live.router().depends_on_protocol(&self.query());
        by_rules || self.looks()
    }

    /// Whether a name is sought in the client's first bytes.
    fn looks(&self) -> bool {
        let live = &self.source.origin.live;
        if !live.sniffs() || matches!(self.alias, Alias::Unmapped) {
            return false;
        }
        let at = Glimpse {
            network: Network::Tcp,
            source: route_context::source(self.source.peer),
            target: &self.target,
            mapped: matches!(self.alias, Alias::Known(_)),
        };
        let router = live.router();
        let Some(sniffing) = router.sniffing().filter(|sniffing| sniffing.looks(&at)) else { return false };
        sniffing.is_forced(&at) || !live.in_vain().is_known(&self.target, rt::now())
    }

    /// The client's first bytes are known: rules may ask for the protocol that they show.
    pub(crate) fn show(&mut self, bytes: &[u8]) {
        if self.source.origin.live.needs_protocol()
            && let sniff::Sniffed::Found(protocol, _) = sniff::stream(bytes)
        {
            self.protocol = Some(protocol.name());
        }
    }

    /// As [`StreamRequest::route`], by the first bytes of the client on `near` where they matter: `early` has those that have
    /// come, and takes all that come. `None` if the client is gone, or if it breaks its protocol; its connection is
    /// reset when it closes.
    pub(crate) async fn route_after(mut self, near: &mut Endpoint, early: &mut Early) -> Option<Routed> {
        if self.waits_for_bytes() {
            match Box::pin(watch(near, early)).await {
                Ok(seen) => self.note_seen(seen),
                Err(error) => {
                    let (inbound, peer) = (&*self.source.origin.inbound, self.source.peer);
                    tracing::debug!(inbound, %peer, error, "no first bytes");
                    near.stream.abort_on_close();
                    return None;
                }
            }
        }
        Some(self.route().await)
    }

    /// The first bytes have shown this.
    fn note_seen(&mut self, seen: Seen) {
        let looks = self.looks();
        self.protocol = seen.as_ref().map(|(protocol, _)| protocol.name());
        if !looks {
            return;
        }
        let live = self.source.origin.live.clone();
        let Some((protocol, Some(name))) = seen else {
            return live.in_vain().note(&self.target, rt::now());
        };
        live.in_vain().forget(&self.target);
        let router = live.router();
        let takes = router.sniffing().and_then(|sniffing| sniffing.takes(protocol, &name, self.target.port));
        if let Some(overrides) = takes {
            self.take_name(name, overrides);
        }
    }

    /// Rules judge this name; the stream goes to it if `overrides` is set.
    fn take_name(&mut self, name: Box<str>, overrides: bool) {
        let judged = Target { host: Host::Name(name), port: self.target.port };
        let asked_for = match self.target.host {
            Host::Ip(ip) if !overrides => Some(ip),
            Host::Ip(_) | Host::Name(_) => None,
        };
        if overrides {
            self.target = judged.clone();
        }
        self.sniffed = Some(Box::new(Sniffed { judged, asked_for }));
    }
}

/// Receives until the bytes show a protocol, or none that is known, or the time is over.
async fn watch(near: &mut Endpoint, early: &mut Early) -> Result<Seen, String> {
    let until = rt::now() + WAIT;
    loop {
        match sniff::stream(&early.bytes) {
            sniff::Sniffed::Found(protocol, name) => return Ok(Some((protocol, name))),
            sniff::Sniffed::Unknown => return Ok(None),
            sniff::Sniffed::More if early.ended => return Ok(None),
            sniff::Sniffed::More => {}
        }
        match rt::timeout(until.saturating_duration_since(rt::now()), receive(near, early)).await {
            Ok(Ok(true)) => {}
            // The relay sees the end once more.
            Ok(Ok(false)) | Err(rt::Elapsed) => return Ok(None),
            Ok(Err(error)) => return Err(error),
        }
    }
}

/// One read, and what it completes; false at the end.
async fn receive(near: &mut Endpoint, early: &mut Early) -> Result<bool, String> {
    let mut wire = RecvBuf::with_len(near.tail.len() + READ_LEN);
    wire.extend(&near.tail);
    let received = near.stream.recv(wire.free_mut()).await.map_err(|error| error.to_string())?;
    wire.filled(received);
    match &mut near.stack {
        None => early.bytes.extend(wire.unread()),
        Some(_) if received == 0 => {}
        Some(stack) => {
            let opened = stack.handle_received(&mut wire, received, rt::now());
            let tail = opened.and_then(|()| take_early(stack, &mut wire, early));
            near.tail = tail.map_err(|error| error.to_string())?;
        }
    }
    Ok(received > 0)
}
