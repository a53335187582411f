//! Traffic that rules of the system's firewall bring here: an application's connection to any target, and datagrams.
//!
//! ```text
//!   redirect:  target ──(firewall: another target, kept in its table)──→ listener     SO_ORIGINAL_DST
//!   tproxy:    target ──(firewall: as it is)──→ transparent listener                  getsockname(2), IP_ORIGDSTADDR
//! ```
//!
//! A connection whose target is the listener itself came without the firewall. It is reset: dialling its target would be a
//! loop.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::{Captured, CapturedBy};
use adit_net::reach::is_own;
use adit_net::rt::Stream;
use adit_proto::wire::Target;

use super::inbound_udp::CapturedPackets;
use crate::datagram::{PacketInbound, SessionOwners};
use crate::listener::connected::{ProxiedConnection, Served};
use crate::listener::{Inbound, InboundFactory, InboundServer};

/// The way in which traffic comes.
#[derive(Debug)]
pub(crate) struct CapturedFactory(pub(crate) Captured);

struct CapturedServer(Captured);

impl InboundFactory for CapturedFactory {
    fn on_core(&self) -> Rc<dyn InboundServer> {
        Rc::new(CapturedServer(self.0))
    }
}

impl InboundServer for CapturedServer {
    fn serve(self: Rc<Self>, inbound: Rc<Inbound>, stream: Stream, peer: SocketAddr) -> Served {
        Box::pin(async move { self.open(&inbound, stream, peer).await })
    }

    fn packets(&self, inbound: &Inbound, _: (Arc<SessionOwners>, usize)) -> Option<Box<dyn PacketInbound>> {
        self.0
            .transports
            .udp()
            .then(|| Box::new(CapturedPackets::new(inbound.name.clone())) as Box<dyn PacketInbound>)
    }
}

impl CapturedServer {
    async fn open(
        &self,
        inbound: &Inbound,
        stream: Stream,
        peer: SocketAddr,
    ) -> Option<Box<ProxiedConnection>> {
        let target = match self.target(&stream) {
            Ok(target) => target,
            Err(error) => {
                tracing::debug!(inbound = &*inbound.name, %peer, %error, "refused: not brought by the firewall");
                inbound.metrics.refused.rule.add(1);
                stream.abort_on_close();
                return None;
            }
        };
        ProxiedConnection::connect_plain(inbound, stream, peer, Target::from(target)).await
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
