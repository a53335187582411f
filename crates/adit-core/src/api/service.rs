//! A service on an event loop of its own, whose settings may change while it runs.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_net::handover::{Kept, Label};
use adit_net::rt::{self, Cores, OrderSender};

/// The sockets of a service, served: they close when it is dropped, and the connections go on.
pub type Serving = Pin<Box<dyn Future<Output = ()>>>;

/// A service that is open, with copies of its sockets for the next process.
pub type Opened = (Serving, Vec<Kept>);

/// Copies of the sockets of the control interfaces, for the next process.
pub(crate) type KeptSockets = Arc<Mutex<Vec<Kept>>>;

/// Other settings, and those to go back to if they cannot be had.
#[derive(Debug)]
struct Order<S> {
    settings: S,
    fallback: Option<S>,
    done: Sender<Done>,
}

/// Copies of the sockets that are open now, and why they are not the ones that were asked for.
type Done = (Vec<Kept>, io::Result<()>);

/// Changes the settings of a service, from any thread but its own.
#[derive(Debug)]
pub struct ServiceHandle<S> {
    orders: OrderSender<Order<S>>,
    kept: KeptSockets,
    listens: fn(&S) -> Option<SocketAddr>,
    now: Mutex<Now<S>>,
}

/// The settings that are served, none if the last ones could not be had, and the labels of the sockets.
#[derive(Debug)]
struct Now<S> {
    settings: Option<S>,
    labels: Vec<Label>,
}

impl<S: Clone + PartialEq + Send + 'static> ServiceHandle<S> {
    /// Starts a service, which runs until `over` has returned: `open` opens it with its settings, and `listens` says
    /// where they have it listen.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn start<O, V>(
        (cores, name, kept): (&mut Cores, &str, &KeptSockets),
        settings: S,
        listens: fn(&S) -> Option<SocketAddr>,
        make: impl FnOnce() -> (O, V) + Send + 'static,
    ) -> io::Result<Self>
    where
        O: FnMut(&S) -> io::Result<Opened> + 'static,
        V: Future<Output = ()> + 'static,
    {
        let (orders, mut waiting) = rt::orders::<Order<S>>();
        let (ready, opened) = channel();
        let first = settings.clone();
        cores.start(name.to_owned(), move || async move {
            let (mut open, over) = make();
            let mut serving = match open(&first) {
                Ok((serving, kept)) => {
                    drop(ready.send(Ok(kept)));
                    serving
                }
                Err(error) => return drop(ready.send(Err(error))),
            };
            let run = async {
                loop {
                    let serve = async {
                        serving.await;
                        pending().await
                    };
                    let Some(order) = rt::race(serve, waiting.next()).await else { return pending().await };
                    let Order { settings, fallback, done } = order;
                    let told;
                    (serving, told) = reopen(&mut open, &settings, fallback.as_ref());
                    drop(done.send(told));
                }
            };
            rt::race(over, run).await;
        })?;
        let copies = opened.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        let labels = copies.iter().map(Kept::label).collect();
        lock(kept).extend(copies);
        let now = Mutex::new(Now { settings: Some(settings), labels });
        Ok(Self { orders, kept: kept.clone(), listens, now })
    }

    /// Has the service follow `wanted`; whether it differs from what it had. Sockets close before others open. When
    /// those cannot be had, it serves as before, but never where it has been told to leave the wildcard.
    ///
    /// # Errors
    /// When sockets cannot be had.
    pub fn follow(&self, wanted: &S) -> io::Result<bool> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.settings.as_ref() == Some(wanted) {
            return Ok(false);
        }
        let before = now.settings.take();
        let fallback = before.filter(|before| !is_narrower((self.listens)(before), (self.listens)(wanted)));
        // A copy keeps a socket open.
        let labels = std::mem::take(&mut now.labels);
        lock(&self.kept).retain(|kept| !labels.contains(&kept.label()));
        let (done, told) = channel();
        let is_sent = self.orders.send(Order { settings: wanted.clone(), fallback: fallback.clone(), done });
        let told = told.recv().ok().filter(|_| is_sent);
        let (copies, result) = told.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        now.settings =
            if result.is_ok() { Some(wanted.clone()) } else { fallback.filter(|_| !copies.is_empty()) };
        now.labels = copies.iter().map(Kept::label).collect();
        lock(&self.kept).extend(copies);
        result.map(|()| true)
    }
}

fn lock(kept: &KeptSockets) -> MutexGuard<'_, Vec<Kept>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a service whose sockets are closed.
fn reopen<S>(
    open: &mut impl FnMut(&S) -> io::Result<Opened>,
    settings: &S,
    fallback: Option<&S>,
) -> (Serving, Done) {
    let error = match open(settings) {
        Ok((serving, kept)) => return (serving, (kept, Ok(()))),
        Err(error) => error,
    };
    match fallback.map(open) {
        Some(Ok((serving, kept))) => (serving, (kept, Err(error))),
        Some(Err(_)) | None => (Box::pin(pending()), (Vec::new(), Err(error))),
    }
}

/// Whether the way from one address to the other leaves the wildcard.
fn is_narrower(from: Option<SocketAddr>, to: Option<SocketAddr>) -> bool {
    from.is_some_and(|from| from.ip().is_unspecified() && !to.is_some_and(|to| to.ip().is_unspecified()))
}
