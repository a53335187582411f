//! The first bytes of a client, where rules ask for the protocol that it speaks to its target.

use std::time::Duration;

use adit_net::rt;
use adit_proto::buf::RecvBuf;
use adit_proto::sniff::{self, Sniffed};

use super::{Request, Routed};
use crate::relay::{Early, Endpoint, take_early};

/// Longest wait for a client's first bytes. The client of a target that speaks first waits as long.
const WAIT: Duration = Duration::from_millis(300);
/// Bytes of one read.
const READ_LEN: usize = 4096;

impl Request {
    /// Whether the way depends on the client's first bytes: an inbound whose client waits for an answer gives it before
    /// it calls [`Request::route_after`].
    pub(crate) fn waits_for_bytes(&self) -> bool {
        let live = &self.source.origin.live;
        self.protocol.is_none() && live.needs_protocol() && live.router().depends_on_protocol(&self.query())
    }

    /// The client's first bytes are known: rules may ask for the protocol that they show.
    pub(crate) fn show(&mut self, bytes: &[u8]) {
        if self.source.origin.live.needs_protocol()
            && let Sniffed::Found(protocol, _) = sniff::stream(bytes)
        {
            self.protocol = Some(protocol.name());
        }
    }

    /// As [`Request::route`], by the first bytes of the client on `near` where rules ask for them: `early` has those that
    /// have come, and takes all that come. `None` if the client is gone, or if it breaks its protocol; its connection is
    /// reset when it closes.
    pub(crate) async fn route_after(mut self, near: &mut Endpoint, early: &mut Early) -> Option<Routed> {
        if self.waits_for_bytes() {
            match Box::pin(watch(near, early)).await {
                Ok(protocol) => self.protocol = protocol,
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
}

/// Receives until the bytes show a protocol, or none that is known, or the time is over.
async fn watch(near: &mut Endpoint, early: &mut Early) -> Result<Option<&'static str>, String> {
    let until = rt::now() + WAIT;
    loop {
        match sniff::stream(&early.bytes) {
            Sniffed::Found(protocol, _) => return Ok(Some(protocol.name())),
            Sniffed::Unknown => return Ok(None),
            Sniffed::More if early.ended => return Ok(None),
            Sniffed::More => {}
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
