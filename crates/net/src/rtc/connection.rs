use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use adit_proto::rtc::sdp::SdpDescription;
use adit_proto::rtc::{Outbox, Peer, PeerFailure, PeerRole, PeerSettings};
use adit_proto::wire::{Rng, WireError};
use thiserror::Error;

use super::gather::Gathering;
use super::{Scratch, with_scratch};
use crate::rt;
use crate::udp::{Outgoing, Socket};

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum RtcError {
    /// The system refuses.
    #[error("no socket, or no addresses")]
    Socket(#[from] io::Error),
    /// The crypto library refuses, or the other end's description makes no sense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The connection is over.
    #[error(transparent)]
    Over(#[from] PeerFailure),
    /// Time ran out.
    #[error("no open channel after {0:?}")]
    Timeout(Duration),
}

/// One end of a connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct Connection(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    peer: RefCell<Peer>,
    socket: Socket,
    port: u16,
    driver: RefCell<Option<Waker>>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
    /// Something was asked of the state machine since its last turn.
    is_touched: Cell<bool>,
}

impl Connection {
    /// Gathers addresses; nothing is sent to another end yet. `label` is the name of the channel that an offerer opens.
    ///
    /// # Errors
    /// [`RtcError::Socket`] and [`RtcError::Wire`].
    pub async fn new(
        role: PeerRole,
        gathering: &Gathering,
        settings: PeerSettings,
        label: &str,
        rng: &mut dyn Rng,
    ) -> Result<Self, RtcError> {
        let socket = gathering.open(rng)?;
        let port = socket.local_addr()?.port();
        let mut peer = Peer::new(role, settings, label, rng, rt::now(), rt::unix_time())?;
        let found = gathering.run(&socket, rng).await?;
        for host in &found.hosts {
            let is_shown = gathering.keep_local || !super::is_hidden(host.ip());
            peer.add_host(*host, is_shown);
        }
        for (addr, base) in found.reflexive {
            peer.add_reflexive(addr, base);
        }
        Ok(Self(Rc::new(Shared {
            peer: RefCell::new(peer),
            socket,
            port,
            driver: RefCell::default(),
            reader: RefCell::default(),
            writer: RefCell::default(),
            is_touched: Cell::new(false),
        })))
    }

    /// The description of this end; of an answerer after [`Connection::start`].
    pub fn describe(&self) -> String {
        self.0.peer.borrow().describe()
    }

    /// Whether the description names an address.
    pub fn has_candidates(&self) -> bool {
        self.0.peer.borrow().has_candidates()
    }

    /// Begins with the other end as it describes itself. To be called once.
    ///
    /// # Errors
    /// [`RtcError::Wire`].
    pub fn start(&self, remote: &SdpDescription) -> Result<(), RtcError> {
        self.0.peer.borrow_mut().set_remote(remote, rt::now())?;
        rt::spawn_local(self.0.clone().run());
        Ok(())
    }

    /// Returns once the channel is open.
    ///
    /// # Errors
    /// [`RtcError::Over`] and [`RtcError::Timeout`].
    pub async fn opened(&self, limit: Duration) -> Result<(), RtcError> {
        let open = poll_fn(|cx| {
            let peer = self.0.peer.borrow();
            match (peer.failure(), peer.is_open()) {
                (Some(failure), _) => Poll::Ready(Err(failure.clone().into())),
                (None, true) => Poll::Ready(Ok(())),
                (None, false) => {
                    *self.0.writer.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        });
        rt::timeout(limit, open).await.unwrap_or(Err(RtcError::Timeout(limit)))
    }

    /// The other end's address on the path in use.
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.0.peer.borrow().remote_addr()
    }

    /// Why the connection is over, if it is.
    pub fn failure(&self) -> Option<PeerFailure> {
        self.0.peer.borrow().failure().cloned()
    }

    /// Appends what has come to `out`, about `most` bytes; boundaries of messages are lost.
    ///
    /// # Errors
    /// [`PeerFailure`], once everything has been read.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        most: usize,
    ) -> Poll<Result<(), PeerFailure>> {
        let mut peer = self.0.peer.borrow_mut();
        if peer.recv(out, most) {
            drop(peer);
            // The window has become wider.
            self.0.touch();
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = peer.failure() {
            return Poll::Ready(Err(failure.clone()));
        }
        *self.0.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sends 1 to 16384 bytes; messages may be joined and cut.
    ///
    /// # Errors
    /// [`PeerFailure`].
    pub fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<(), PeerFailure>> {
        let mut peer = self.0.peer.borrow_mut();
        if let Some(failure) = peer.failure() {
            return Poll::Ready(Err(failure.clone()));
        }
        if peer.send(bytes) {
            drop(peer);
            self.0.touch();
            return Poll::Ready(Ok(()));
        }
        *self.0.writer.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Bytes of the channel that have not been acknowledged by the other end.
    pub fn buffered(&self) -> usize {
        self.0.peer.borrow().buffered()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.peer.borrow_mut().close(rt::now());
        self.0.touch();
    }
}

impl Shared {
    /// The driver takes a turn soon.
    fn touch(&self) {
        self.is_touched.set(true);
        if let Some(waker) = self.driver.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Runs until the connection is over.
    async fn run(self: Rc<Self>) {
        loop {
            let timer = self.peer.borrow_mut().poll_timeout();
            let turn = poll_fn(|cx| self.poll_turn(cx));
            let outcome = match timer {
                Some(at) => {
                    let sleep = async {
                        rt::sleep_until(at).await;
                        Ok(())
                    };
                    rt::race(turn, sleep).await
                }
                None => turn.await,
            };
            let is_full = self.work();
            if let Err(error) = outcome {
                tracing::debug!(%error, "socket of a peer connection");
                self.peer.borrow_mut().close(rt::now());
            }
            self.wake();
            if self.peer.borrow().failure().is_some() {
                return;
            }
            if is_full {
                rt::yield_now().await;
            }
        }
    }

    /// Ready once there is something to do: what has come is with the state machine then.
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let received = with_scratch(|scratch| self.poll_receive(cx, scratch))?;
        if received.is_ready() || self.is_touched.replace(false) {
            return Poll::Ready(Ok(()));
        }
        *self.driver.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_receive(&self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<io::Result<()>> {
        let batch = &mut scratch.batch;
        std::task::ready!(self.socket.poll_receive(cx, batch, &mut 0))?;
        let now = rt::now();
        let mut peer = self.peer.borrow_mut();
        for at in 0..batch.len() {
            let Some(datagram) = batch.get(at) else { continue };
            let Some(to) = datagram.to else { continue };
            let to = SocketAddr::new(to.to_canonical(), self.port);
            peer.handle_datagram(&batch.block[datagram.range()], datagram.from, to, now);
        }
        Poll::Ready(Ok(()))
    }

    /// Lets the state machine do what is due, and sends; true if there was much.
    fn work(&self) -> bool {
        let now = rt::now();
        let mut peer = self.peer.borrow_mut();
        self.is_touched.set(false);
        peer.handle_timeout(now);
        with_scratch(|scratch| {
            let Scratch { batch, out, outgoing } = scratch;
            peer.poll_transmit(now, out);
            describe(out, outgoing);
            let report = self.socket.send_from(batch, &out.block, outgoing);
            let lost = report.full + report.failed + report.too_big;
            if lost > 0 {
                tracing::trace!(lost, "datagrams of a peer connection were not taken by the system");
            }
            let is_full = outgoing.len() >= 64;
            out.clear();
            if out.block.capacity() > 1 << 20 {
                *out = Outbox::default();
            }
            is_full
        })
    }

    fn wake(&self) {
        let peer = self.peer.borrow();
        let (is_over, has_room) = (peer.failure().is_some(), peer.is_open() && peer.room() > 0);
        drop(peer);
        self.reader.borrow_mut().take().into_iter().for_each(Waker::wake);
        if is_over || has_room {
            self.writer.borrow_mut().take().into_iter().for_each(Waker::wake);
        }
    }
}

/// The datagrams as the socket wants them.
fn describe(out: &Outbox, outgoing: &mut Vec<Outgoing>) {
    outgoing.clear();
    outgoing.extend(out.datagrams.iter().map(|datagram| Outgoing {
        key: 0,
        to: datagram.to,
        from: Some(datagram.from.ip()),
        class: 0,
        start: datagram.start,
        len: datagram.len,
    }));
}
