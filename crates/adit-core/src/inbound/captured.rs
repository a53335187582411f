//! Traffic that rules of the system's firewall bring here: an application's connection to any target, and datagrams.
//!
//! ```text
//!   redirect:  target ──(firewall: another target, kept in its table)──→ listener     SO_ORIGINAL_DST
//!   tproxy:    target ──(firewall: as it is)──→ transparent listener                  getsockname(2), IP_ORIGDSTADDR
//! ```
//!
//! A connection whose target is the listener itself came without the firewall. It is reset: dialling its target would be a
//! loop.

mod packets;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_config::model::{Captured, CapturedBy};
use adit_net::reach::is_own;
use adit_net::rt::{self, Stream};
use adit_proto::wire::Target;

use self::packets::CapturedPackets;
use super::{Factory, Inbound, Serve};
use crate::dispatch::{Future, Session};
use crate::packet::{Exchange, PacketInbound};
use crate::relay::{Early, Endpoint};

/// Longest wait for an application's first bytes, where the outbound wants them before it connects.
const PATIENCE: Duration = Duration::from_secs(300);
/// Most bytes that are taken then.
const FIRST_LEN: usize = 16 * 1024;

/// The way in which traffic comes.
#[derive(Debug)]
pub(super) struct CapturedFactory(pub(super) Captured);

struct CapturedServer(Captured);

impl Factory for CapturedFactory {
    fn on_core(&self) -> Rc<dyn Serve> {
        Rc::new(CapturedServer(self.0))
    }
}

impl Serve for CapturedServer {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Future<'static, ()> {
        Box::pin(async move {
            let mut near = Endpoint::plain(stream);
            let Some(session) = Box::pin(self.open(&inbound, &mut near, peer)).await else { return };
            let entry = inbound.core.conns.enter_from(peer.ip());
            session.run(&mut near, &entry).await;
        })
    }

    fn packets(&self, inbound: &Inbound, _: (Arc<Exchange>, usize)) -> Option<Box<dyn PacketInbound>> {
        self.0
            .transports
            .udp()
            .then(|| Box::new(CapturedPackets::new(inbound.name.clone())) as Box<dyn PacketInbound>)
    }
}

impl CapturedServer {
    async fn open(&self, inbound: &Inbound, near: &mut Endpoint, peer: SocketAddr) -> Option<Box<Session>> {
        let target = match self.target(&near.stream) {
            Ok(target) => target,
            Err(error) => {
                tracing::debug!(inbound = &*inbound.name, %peer, %error, "refused: not brought by the firewall");
                inbound.metrics.refused.rule.add(1);
                near.stream.abort_on_close();
                return None;
            }
        };
        let mut early = Early::default();
        let request = inbound.origin.request(peer, None, Target::from(target));
        let routed = request.route_after(near, &mut early).await?;
        if early.bytes.is_empty() && routed.outbound.wants_first_bytes() {
            early = first_bytes(near).await?;
        }
        let session = routed.connect(early).await;
        session.inspect_err(|_| near.stream.abort_on_close()).ok()
    }

    /// The address that the application has asked for.
    fn target(&self, stream: &Stream) -> io::Result<SocketAddr> {
        let local = stream.local_addr()?;
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let (target, is_direct) = match self.0.by {
            CapturedBy::Redirect => {
                let target = stream.original_addr()?;
                (target, target == local)
            }
            CapturedBy::Tproxy => (local, is_own(local.ip())),
        };
        if is_direct {
            return Err(io::Error::other("its target is this machine"));
        }
        Ok(target)
    }
}

/// The first bytes from the application; `None` if it ends without a byte.
async fn first_bytes(near: &Endpoint) -> Option<Early> {
    rt::timeout(PATIENCE, near.stream.readable()).await.ok()?.ok()?;
    let mut bytes = vec![0; FIRST_LEN];
    let received = near.stream.recv(&mut bytes).await.ok()?;
    bytes.truncate(received);
    (received > 0).then_some(Early { bytes, ended: false })
}
