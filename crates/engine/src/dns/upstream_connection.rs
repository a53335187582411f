//! Connections to name servers that are kept: for any number of questions at a time, until they are idle.
//!
//! ```text
//!   message on TCP and TLS:  [ length, 2 bytes, big-endian | message ]        RFC 1035, section 4.2.2
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use adit_net::https::{HttpsClient, HttpsError};
use adit_net::resolve::ResolveError;
use adit_net::rt;
use adit_net::tls::TlsOrPlain;

use super::exchange::MAX_MESSAGE;

/// A connection without a question is closed after this time; servers keep theirs for some 10 to 30 s (RFC 7766
/// section 6.2.3 asks for a few seconds at least).
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// Time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Questions on one connection at the same time.
const MAX_PENDING: usize = 512;
/// Bytes of one read.
const READ_LEN: usize = 4096;
/// The media type of a message (RFC 8484 section 6).
const MEDIA_TYPE: &str = "application/dns-message";

/// A TCP or TLS connection, driven by a task of its own.
pub(super) struct UpstreamConnection {
    outgoing: RefCell<Vec<u8>>,
    pending: RefCell<HashMap<u16, Slot>>,
    driver: RefCell<Option<Waker>>,
    /// No further question is put on it.
    is_closed: Cell<bool>,
    /// The driver has not ended.
    is_running: Cell<bool>,
}

enum Slot {
    Waiting(Option<Waker>),
    Over(io::Result<Vec<u8>>),
}

impl UpstreamConnection {
    /// A connection that `connect` makes; questions may be put on it at once.
    pub(super) fn start(connect: impl Future<Output = io::Result<TlsOrPlain>> + 'static) -> Rc<Self> {
        let link = Rc::new(Self {
            outgoing: RefCell::default(),
            pending: RefCell::default(),
            driver: RefCell::default(),
            is_closed: Cell::new(false),
            is_running: Cell::new(true),
        });
        let driven = link.clone();
        rt::spawn_local(async move {
            let connected = rt::timeout(CONNECT_TIMEOUT, Box::pin(connect)).await;
            let connected = connected.unwrap_or_else(|rt::Elapsed| Err(io::ErrorKind::TimedOut.into()));
            let ended = match connected {
                Ok(duplex) => driven.drive(duplex).await,
                Err(error) => Err(error),
            };
            driven.close(&ended.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        });
        link
    }

    /// Whether it takes further questions.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.get()
    }

    /// An id that no question on this connection has, `wish` or one after it.
    pub(super) fn free_id(&self, wish: u16) -> Option<u16> {
        let pending = self.pending.borrow();
        if pending.len() >= MAX_PENDING {
            return None;
        }
        (0..=u16::MAX).map(|step| wish.wrapping_add(step)).find(|id| !pending.contains_key(id))
    }

    /// Asks, and waits for the message with this `id`. Once this is dropped before its time, the connection, which may
    /// be dead, takes no further question.
    pub(super) async fn exchange(&self, id: u16, message: &[u8]) -> io::Result<Vec<u8>> {
        let len = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.outgoing.borrow_mut().extend([&len.to_be_bytes(), message].concat());
        self.pending.borrow_mut().insert(id, Slot::Waiting(None));
        self.wake_driver();
        let mut asked = Asked { link: self, id, is_done: false };
        poll_fn(|cx| asked.poll(cx)).await
    }

    fn wake_driver(&self) {
        if let Some(waker) = self.driver.borrow_mut().take() {
            waker.wake();
        }
    }

    async fn drive(&self, mut duplex: TlsOrPlain) -> io::Result<()> {
        let mut incoming = Incoming::default();
        loop {
            let turn = poll_fn(|cx| {
                *self.driver.borrow_mut() = Some(cx.waker().clone());
                self.poll_turn(&mut duplex, &mut incoming, cx)
            });
            match rt::timeout(IDLE, turn).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(rt::Elapsed) if self.pending.borrow().is_empty() => return Ok(()),
                Err(rt::Elapsed) => {}
            }
            if self.is_closed.get() && self.pending.borrow().is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends what there is to send, and hands out what comes; ready after something has come, and when it is over.
    fn poll_turn(
        &self,
        duplex: &mut TlsOrPlain,
        incoming: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut outgoing = self.outgoing.borrow_mut();
        while !outgoing.is_empty() {
            match duplex.poll_send(cx, &outgoing) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(len)) => drop(outgoing.drain(..len)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        drop(outgoing);
        if let Poll::Ready(Err(error)) = duplex.poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        if self.is_closed.get() && self.pending.borrow().is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut buffer = [0; READ_LEN];
        let len = ready!(duplex.poll_recv(cx, &mut buffer))?;
        if len == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        incoming.0.extend_from_slice(&buffer[..len]);
        while let Some(message) = incoming.next() {
            self.deliver(message);
        }
        Poll::Ready(Ok(()))
    }

    /// Hands a message to the question that waits for its id; a message with another id is dropped.
    fn deliver(&self, message: Vec<u8>) {
        let Some(id) = message.first_chunk::<2>() else { return };
        let id = u16::from_be_bytes(*id);
        let mut pending = self.pending.borrow_mut();
        let Some(slot) = pending.get_mut(&id) else { return };
        if let Slot::Waiting(waker) = std::mem::replace(slot, Slot::Over(Ok(message))) {
            waker.into_iter().for_each(Waker::wake);
        }
    }

    fn close(&self, error: &io::Error) {
        self.is_closed.set(true);
        self.is_running.set(false);
        let copy = || match error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        #[allow(clippy::iter_over_hash_type, reason = "all are told the same, and the order does not matter")]
        for slot in self.pending.borrow_mut().values_mut() {
            if let Slot::Waiting(waker) = slot {
                let waker = waker.take();
                *slot = Slot::Over(Err(copy()));
                waker.into_iter().for_each(Waker::wake);
            }
        }
    }
}

/// One question on a connection.
struct Asked<'a> {
    link: &'a UpstreamConnection,
    id: u16,
    is_done: bool,
}

impl Asked<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let mut pending = self.link.pending.borrow_mut();
        if let Some(Slot::Waiting(waker)) = pending.get_mut(&self.id)
            && self.link.is_running.get()
        {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.is_done = true;
        Poll::Ready(match pending.remove(&self.id) {
            Some(Slot::Over(outcome)) => outcome,
            Some(Slot::Waiting(_)) | None => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.link.pending.borrow_mut().remove(&self.id);
        if !self.is_done {
            self.link.is_closed.set(true);
            self.link.wake_driver();
        }
    }
}

/// The bytes of messages that have come in part; at most one message and one read.
#[derive(Default)]
struct Incoming(Vec<u8>);

impl Incoming {
    /// The next whole message.
    fn next(&mut self) -> Option<Vec<u8>> {
        let len = usize::from(u16::from_be_bytes(*self.0.first_chunk::<2>()?));
        if self.0.len() < 2 + len {
            return None;
        }
        let rest = self.0.split_off(2 + len);
        let mut message = std::mem::replace(&mut self.0, rest);
        message.drain(..2);
        Some(message)
    }
}

/// A connection, and when it was used last.
type Kept = (Rc<HttpsClient>, Rc<Cell<Instant>>);

/// An HTTPS connection to one server; made when it is needed, and again when it is gone.
#[derive(Default)]
pub(super) struct HttpsLink {
    client: RefCell<Option<Kept>>,
    /// Somebody connects; the others wait.
    is_connecting: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl HttpsLink {
    /// Posts a message and returns the one that answers it. A connection that the server has closed in the meantime is
    /// replaced, once.
    pub(super) async fn post<F: Future<Output = Result<HttpsClient, ResolveError>>>(
        self: &Rc<Self>,
        connect: impl Fn() -> F,
        to: (&str, &str),
        message: &[u8],
    ) -> Result<Vec<u8>, ResolveError> {
        loop {
            let (client, is_old) = match self.kept().await {
                Some(client) => (client, true),
                None => (self.connect(connect()).await?, false),
            };
            let mut posting = Posting { link: self, client: &client, is_done: false };
            let posted = client.post(to, MEDIA_TYPE, message.to_vec(), MAX_MESSAGE).await;
            posting.is_done = true;
            drop(posting);
            match posted {
                Ok(reply) => return Ok(reply),
                Err(HttpsError::Http(error)) if is_old => {
                    tracing::debug!(%error, "kept connection to a name server");
                    self.forget(&client);
                }
                Err(error) => {
                    self.forget(&client);
                    return Err(ResolveError::Other(Arc::new(error)));
                }
            }
        }
    }

    /// The connection that is there, once nobody connects; `None` if the caller is to connect.
    async fn kept(&self) -> Option<Rc<HttpsClient>> {
        poll_fn(|cx| {
            let client = self.client.borrow();
            if let Some((client, used_at)) = client.as_ref().filter(|(client, _)| !client.is_closed()) {
                used_at.set(rt::now());
                return Poll::Ready(Some(client.clone()));
            }
            if self.is_connecting.get() {
                self.waiting.borrow_mut().push(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(None)
        })
        .await
    }

    async fn connect(
        self: &Rc<Self>,
        connect: impl Future<Output = Result<HttpsClient, ResolveError>>,
    ) -> Result<Rc<HttpsClient>, ResolveError> {
        self.is_connecting.set(true);
        let connecting = Connecting(self);
        let client = rt::timeout(CONNECT_TIMEOUT, Box::pin(connect)).await;
        let client = Rc::new(client.unwrap_or(Err(ResolveError::Timeout))?);
        let used_at = Rc::new(Cell::new(rt::now()));
        *self.client.borrow_mut() = Some((client.clone(), used_at.clone()));
        drop(connecting);
        let (link, kept) = (Rc::downgrade(self), Rc::downgrade(&client));
        rt::spawn_local(async move {
            while rt::now().saturating_duration_since(used_at.get()) < IDLE {
                rt::sleep_until(used_at.get() + IDLE).await;
            }
            if let (Some(link), Some(client)) = (link.upgrade(), kept.upgrade()) {
                link.forget(&client);
            }
        });
        Ok(client)
    }

    /// No further question goes over `client`.
    fn forget(&self, client: &Rc<HttpsClient>) {
        let is_kept = self.client.borrow().as_ref().is_some_and(|(kept, _)| Rc::ptr_eq(kept, client));
        if is_kept {
            let client = self.client.borrow_mut().take();
            drop(client);
        }
    }
}

/// A request under way. Once it is given up, the connection, which may be dead, takes no further one.
struct Posting<'a> {
    link: &'a HttpsLink,
    client: &'a Rc<HttpsClient>,
    is_done: bool,
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.link.forget(self.client);
        }
    }
}

/// Lets the next task connect when this attempt has ended, with success or without.
struct Connecting<'a>(&'a HttpsLink);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        let waiting = self.0.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}
