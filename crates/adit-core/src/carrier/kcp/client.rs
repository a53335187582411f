//! The side that makes sessions.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use adit_config::model::{Egress, KcpClient};
use adit_net::dial::{DialError, Dialer};
use adit_net::rt::{self, Carried, Stream};
use adit_net::udp::{Fragmentation, RawSocket, Socket};
use adit_proto::wire::{Rng, Target};

use super::driver::{Driver, Handle};
use super::stream::CarriedStream;
use super::{Context, Link, Shared};
use crate::rng::OsRng;

/// The sessions of one outbound on one core.
pub(crate) struct Client {
    shared: Arc<Shared>,
    config: KcpClient,
    egress: Egress,
    context: Context,
    slots: RefCell<Vec<Slot>>,
    /// Streams opened so far: they take the slots in turns.
    count: Cell<usize>,
}

/// A place for a session.
#[derive(Default, Clone)]
struct Slot {
    handle: Option<Rc<Handle>>,
    expires_at: Option<Instant>,
}

impl Client {
    /// No session is made before it is needed.
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: &KcpClient,
        egress: Egress,
        cores: usize,
        context: Context,
    ) -> Self {
        let slots = vec![Slot::default(); config.sessions.div_ceil(cores.max(1)).max(1)];
        let config = config.clone();
        Self { shared, config, egress, context, slots: RefCell::new(slots), count: Cell::new(0) }
    }

    /// Whether the end of the local side's data is passed on at once.
    pub(crate) fn passes_half_close(&self) -> bool {
        self.config.half_close
    }

    /// A stream to the server, over a session that is there or is made now. That says nothing of the server: what is
    /// sent waits until it answers.
    ///
    /// # Errors
    /// When the server's name has no address, or a socket cannot be made.
    pub(crate) async fn open(&self, dialer: &Dialer) -> Result<Stream, DialError> {
        let count = self.count.get();
        self.count.set(count.wrapping_add(1));
        let at = count % self.slots.borrow().len();
        let handle = match self.live(at) {
            Some(handle) => handle,
            None => self.begin(at, dialer).await?,
        };
        let opened = handle.session.borrow_mut().open();
        let (handle, id) = match opened {
            Ok(id) => (handle, id),
            Err(error) => {
                // Its numbers have run out, or its streams: the next one is fresh.
                tracing::debug!(carrier = &*self.shared.name, %error, "session replaced");
                self.retire(at);
                let fresh = self.begin(at, dialer).await?;
                let id = fresh.session.borrow_mut().open();
                let refused =
                    |_| DialError::Connect { addr: fresh.peer, source: io::ErrorKind::Other.into() };
                (fresh.clone(), id.map_err(refused)?)
            }
        };
        handle.touch();
        let stream: Box<dyn Carried> = Box::new(CarriedStream::new(handle, id));
        Ok(stream.into())
    }

    /// The session of a slot, if it still takes streams.
    fn live(&self, at: usize) -> Option<Rc<Handle>> {
        let slot = self.slots.borrow()[at].clone();
        let handle = slot.handle.filter(|handle| !handle.session.borrow().is_over())?;
        // Data under way in a session that has fallen silent may still arrive; new streams do not wait for it.
        let is_doubtful = handle.session.borrow().is_doubtful(rt::now());
        if is_doubtful || slot.expires_at.is_some_and(|expires_at| rt::now() >= expires_at) {
            self.retire(at);
            return None;
        }
        Some(handle)
    }

    /// The session of a slot takes no further streams, and ends in time.
    fn retire(&self, at: usize) {
        let slot = std::mem::take(&mut self.slots.borrow_mut()[at]);
        if let Some(handle) = slot.handle {
            handle.retires_at.set(Some(rt::now() + self.config.linger));
            handle.touch();
        }
    }

    async fn begin(&self, at: usize, dialer: &Dialer) -> Result<Rc<Handle>, DialError> {
        let port = draw_port(self.config.server.port, self.config.last_port);
        let target = Target { host: self.config.server.host.clone(), port };
        let addrs = dialer.resolve(&target).await?;
        // Somebody else may have been faster.
        if let Some(handle) = self.live(at) {
            return Ok(handle);
        }
        let (link, peer) = match self.config.kcp.raw_tcp {
            false => self.connect(&addrs)?,
            true => Box::pin(self.connect_raw(&addrs)).await?,
        };
        if let Some(handle) = self.live(at) {
            return Ok(handle);
        }
        let failed = |source| DialError::Socket { addr: peer, source };
        let mut driver =
            Driver::new(self.shared.clone(), self.context.clone(), link, None).map_err(failed)?;
        let now = rt::now();
        let mut conv = [0; 4];
        OsRng.fill(&mut conv);
        let handle = driver.begin(peer, u32::from_le_bytes(conv), now);
        handle.session.borrow_mut().set_patience(dialer.timeout());
        let expires_at = self.config.expire.map(|expire| now + expire);
        self.slots.borrow_mut()[at] = Slot { handle: Some(handle.clone()), expires_at };
        tracing::debug!(carrier = &*self.shared.name, %peer, "session begun");
        rt::spawn_local(driver.run());
        Ok(handle)
    }

    /// A socket for the first address that the system has a way to.
    fn connect(&self, addrs: &[SocketAddr]) -> Result<(Link, SocketAddr), DialError> {
        let mut failure = None;
        for &addr in addrs {
            let made = Socket::connect(addr, &self.egress).and_then(|socket| {
                socket.set_fragmentation(Fragmentation::Allow)?;
                Ok(socket)
            });
            match made {
                Ok(socket) => return Ok((Link::Udp(socket), addr)),
                Err(source) => failure = Some(DialError::Socket { addr, source }),
            }
        }
        Err(failure.unwrap_or(DialError::Port))
    }

    /// The same for the first address that answers.
    async fn connect_raw(&self, addrs: &[SocketAddr]) -> Result<(Link, SocketAddr), DialError> {
        let mut failure = None;
        for &addr in addrs {
            match RawSocket::connect(addr, &self.egress).await {
                Ok(socket) => return Ok((Link::Tcp(socket), addr)),
                Err(source) => failure = Some(DialError::Connect { addr, source }),
            }
        }
        Err(failure.unwrap_or(DialError::Port))
    }
}

/// One of the ports from `first` to `last`.
fn draw_port(first: u16, last: u16) -> u16 {
    let mut bytes = [0; 4];
    OsRng.fill(&mut bytes);
    let count = u32::from(last.saturating_sub(first)) + 1;
    first + u16::try_from(u32::from_le_bytes(bytes) % count).expect("less than the range")
}
