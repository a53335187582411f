//! The side that makes sessions.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_model::{Egress, KcpClient};
use adit_net::dial::{DialError, Dialer};
use adit_net::rt::{self, CarrierStream, Stream};
use adit_net::udp::{Fragmentation, RawSocket, Socket};
use adit_proto::wire::{Rng, Target};

use super::driver::{Driver, Handle};
use super::session::SessionFailure;
use super::stream::CarriedStream;
use super::{CarrierShared, CarrierSocket, Context};
use crate::carrier::{MakeStreamPath, StreamPath};
use crate::rng::OsRng;

/// A session that goes by streams is ended after this time without a stream of its own: others need its proxy.
const REST: Duration = Duration::from_secs(60);
/// Time for the first sign of a server behind proxies: finding one of those takes several seconds.
const DETOUR: Duration = Duration::from_secs(60);

/// The sessions of one outbound on one core.
pub(crate) struct KcpSessions {
    shared: Arc<CarrierShared>,
    config: KcpClient,
    egress: Egress,
    context: Context,
    /// Packets go by streams, in the place of datagrams.
    paths: Option<MakeStreamPath>,
    /// The event loop's number: the first one has the sessions of those.
    index: usize,
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

impl KcpSessions {
    /// No session is made before it is needed.
    pub(crate) fn new(
        shared: Arc<CarrierShared>,
        config: &KcpClient,
        egress: Egress,
        (index, cores): (usize, usize),
        context: Context,
        paths: Option<MakeStreamPath>,
    ) -> Self {
        // Sessions by streams are all on one event loop.
        let share = if paths.is_some() { 1 } else { cores.max(1) };
        let slots = vec![Slot::default(); config.sessions.div_ceil(share).max(1)];
        let config = config.clone();
        Self {
            shared,
            config,
            egress,
            context,
            paths,
            index,
            slots: RefCell::new(slots),
            count: Cell::new(0),
        }
    }

    pub(super) fn shared(&self) -> &CarrierShared {
        &self.shared
    }

    /// Whether sessions are made here for all event loops.
    pub(super) fn is_home(&self) -> bool {
        self.paths.is_some() && self.index == 0
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
        if self.paths.is_some() && !self.is_home() {
            return self.cross();
        }
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
        let stream: Box<dyn CarrierStream> = Box::new(CarriedStream::new(handle, id));
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
        if let Some(make) = &self.paths {
            return self.begin_by_streams(at, make, dialer);
        }
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
        let (driver, handle) = self.begin_with(at, link, peer)?;
        handle.session.borrow_mut().set_patience(dialer.timeout());
        rt::spawn_local(driver.run());
        Ok(handle)
    }

    fn begin_by_streams(
        &self,
        at: usize,
        make: &MakeStreamPath,
        dialer: &Dialer,
    ) -> Result<Rc<Handle>, DialError> {
        let made = make(dialer).map_err(|source| DialError::Socket { addr: ([0; 4], 0).into(), source });
        let StreamPath { peer, hub, feed } = made?;
        let (driver, handle) = self.begin_with(at, CarrierSocket::Streams(hub), peer)?;
        handle.session.borrow_mut().expect_detours(DETOUR);
        let watched = handle.clone();
        rt::spawn_local(async move {
            let beside = rt::race(feed, rest(&watched));
            rt::race(driver.run(), beside).await;
        });
        Ok(handle)
    }

    /// A driver with a session in this slot.
    fn begin_with(
        &self,
        at: usize,
        link: CarrierSocket,
        peer: SocketAddr,
    ) -> Result<(Driver, Rc<Handle>), DialError> {
        let failed = |source| DialError::Socket { addr: peer, source };
        let mut driver =
            Driver::new(self.shared.clone(), self.context.clone(), link, None).map_err(failed)?;
        let now = rt::now();
        let mut conv = [0; 4];
        OsRng.fill(&mut conv);
        let handle = driver.begin(peer, u32::from_le_bytes(conv), now);
        let expires_at = self.config.expire.map(|expire| now + expire);
        self.slots.borrow_mut()[at] = Slot { handle: Some(handle.clone()), expires_at };
        tracing::debug!(carrier = &*self.shared.name, %peer, "session begun");
        Ok((driver, handle))
    }

    /// A socket for the first address that the system has a way to.
    fn connect(&self, addrs: &[SocketAddr]) -> Result<(CarrierSocket, SocketAddr), DialError> {
        let mut failure = None;
        for &addr in addrs {
            let made = Socket::connect(addr, &self.egress).and_then(|socket| {
                socket.set_fragmentation(Fragmentation::Allow)?;
                Ok(socket)
            });
            match made {
                Ok(socket) => return Ok((CarrierSocket::Udp(socket), addr)),
                Err(source) => failure = Some(DialError::Socket { addr, source }),
            }
        }
        Err(failure.unwrap_or(DialError::Port))
    }

    /// The same for the first address that answers.
    async fn connect_raw(&self, addrs: &[SocketAddr]) -> Result<(CarrierSocket, SocketAddr), DialError> {
        let mut failure = None;
        for &addr in addrs {
            match RawSocket::connect(addr, &self.egress).await {
                Ok(socket) => return Ok((CarrierSocket::Tcp(socket), addr)),
                Err(source) => failure = Some(DialError::Connect { addr, source }),
            }
        }
        Err(failure.unwrap_or(DialError::Port))
    }
}

/// Ends a session that has had no stream for [`REST`].
async fn rest(handle: &Handle) {
    let mut idle_since = None;
    loop {
        rt::sleep(REST / 6).await;
        let now = rt::now();
        if handle.session.borrow().stream_count() > 0 {
            idle_since = None;
        } else if now.saturating_duration_since(*idle_since.get_or_insert(now)) >= REST {
            handle.session.borrow_mut().fail(SessionFailure::Replaced);
            handle.touch();
        }
    }
}

/// One of the ports from `first` to `last`.
fn draw_port(first: u16, last: u16) -> u16 {
    let mut bytes = [0; 4];
    OsRng.fill(&mut bytes);
    let count = u32::from(last.saturating_sub(first)) + 1;
    first + u16::try_from(u32::from_le_bytes(bytes) % count).expect("less than the range")
}
