//! A service on an event loop of its own, whose settings may change while it runs.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_net::handover::{Kept, Kind, Label};
use adit_net::listen::SharedPorts;
use adit_net::rt::{self, Cores, OrderSender};

/// The sockets of a service, served for as long as they are there: they close when it is dropped, and the connections go on.
pub type ServingSockets = Pin<Box<dyn Future<Output = ()>>>;

/// A service that is open, with copies of its sockets for the next process.
pub type OpenedService = (ServingSockets, Vec<Kept>);

/// Copies of the sockets of the control interfaces, for the next process.
pub(crate) type KeptSockets = Arc<Mutex<Vec<Kept>>>;

/// A service whose settings may change, on its event loop.
pub trait Reconfigurable<S> {
    /// Opens its sockets, beside those that share their ports and are about to close.
    ///
    /// # Errors
    /// When one of them cannot be had.
    fn open(&mut self, settings: &S, beside: &Arc<[u64]>) -> io::Result<OpenedService>;

    /// Has all requests judged by these settings from now on, those of connections of before too.
    fn set(&mut self, settings: &S);
}

/// Other settings.
#[derive(Debug)]
struct Order<S> {
    settings: S,
    /// `None` if it listens where it did.
    moves: Option<Moves>,
    done: Sender<Done>,
}

/// Sockets that make way for others.
#[derive(Debug)]
struct Moves {
    /// Those that go.
    old: Vec<Kept>,
    /// Has the others bound beside them.
    beside: SharedPorts,
    /// Fewer clients are to reach the service: they go even if the others cannot be had.
    is_narrower: bool,
}

/// Copies of the sockets that are open now, where they may have changed, and why they are not those that were asked for.
type Done = (Option<Vec<Kept>>, io::Result<()>);

/// Changes the settings of a service, from any thread but its own.
#[derive(Debug)]
pub struct ServiceHandle<S> {
    orders: OrderSender<Order<S>>,
    kept: KeptSockets,
    listens: fn(&S) -> Option<SocketAddr>,
    now: Mutex<Now<S>>,
}

/// The settings that are served, none if the last ones could not be had, and the labels of the sockets that may move.
#[derive(Debug)]
struct Now<S> {
    settings: Option<S>,
    labels: Vec<Label>,
}

impl<S: Clone + PartialEq + Send + 'static> ServiceHandle<S> {
    /// Starts a service, which runs until `over` has returned; `listens` says where its settings have it listen.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn start<O, V>(
        cores: &mut Cores,
        name: &str,
        kept: &KeptSockets,
        settings: S,
        listens: fn(&S) -> Option<SocketAddr>,
        make: impl FnOnce() -> (O, V) + Send + 'static,
    ) -> io::Result<Self>
    where
        O: Reconfigurable<S> + 'static,
        V: Future<Output = ()> + 'static,
    {
        let (orders, mut waiting) = rt::orders::<Order<S>>();
        let (ready, opened) = channel();
        let first = settings.clone();
        cores.start(name.to_owned(), move || async move {
            let (mut service, over) = make();
            let mut serving = match service.open(&first, &Arc::default()) {
                Ok((serving, kept)) => {
                    service.set(&first);
                    drop(ready.send(Ok(kept)));
                    Some(serving)
                }
                Err(error) => return drop(ready.send(Err(error))),
            };
            let run = async {
                loop {
                    let serve = async {
                        if let Some(sockets) = &mut serving {
                            sockets.await;
                            // They are lost.
                            serving = None;
                        }
                        pending().await
                    };
                    let Some(Order { settings, moves, done }) = rt::race(serve, waiting.next()).await else {
                        return pending().await;
                    };
                    let told = follow(&mut service, &mut serving, &settings, moves);
                    drop(done.send(told));
                }
            };
            rt::race(over, run).await;
        })?;
        let copies = opened.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        let labels = labels(&copies);
        lock(kept).extend(copies);
        let now = Mutex::new(Now { settings: Some(settings), labels });
        Ok(Self { orders, kept: kept.clone(), listens, now })
    }

    /// Has the service follow `wanted`; whether it differs from what it had. It serves as before when it
    /// cannot listen as it should, but not if fewer clients were to reach it.
    ///
    /// # Errors
    /// The address where it cannot listen, and why, in words.
    pub fn follow(&self, wanted: &S) -> Result<bool, String> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.settings.as_ref() == Some(wanted) {
            return Ok(false);
        }
        let (from, to) = (now.settings.as_ref().and_then(self.listens), (self.listens)(wanted));
        let is_narrower = is_narrower(from, to);
        let moves = (now.settings.is_none() || from != to).then(|| {
            let mut kept = lock(&self.kept);
            let old: Vec<Kept> = kept.extract_if(.., |kept| now.labels.contains(&kept.label())).collect();
            let beside = SharedPorts::new(&old);
            Moves { old, beside, is_narrower }
        });
        let (done, told) = channel();
        self.orders.send(Order { settings: wanted.clone(), moves, done });
        let is_over = || (None, Err(io::ErrorKind::BrokenPipe.into()));
        let (copies, result) = told.recv().unwrap_or_else(|_| is_over());
        if let Some(copies) = copies {
            now.labels = labels(&copies);
            lock(&self.kept).extend(copies);
        }
        if result.is_ok() {
            now.settings = Some(wanted.clone());
        } else if is_narrower {
            now.settings = None;
        }
        result.map(|()| true).map_err(|error| {
            let at = to.map_or_else(String::new, |at| format!(" at {at}"));
            format!("cannot listen{at}: {error}")
        })
    }
}

/// Has a service follow `settings`, and closes the sockets that go.
fn follow<S>(
    service: &mut impl Reconfigurable<S>,
    serving: &mut Option<ServingSockets>,
    settings: &S,
    moves: Option<Moves>,
) -> Done {
    let Some(Moves { old, beside, is_narrower }) = moves else {
        service.set(settings);
        return (None, Ok(()));
    };
    let (kept, result) = match service.open(settings, &beside.sockets()) {
        Ok((opened, kept)) => {
            old.iter().for_each(Kept::hide);
            *serving = Some(opened);
            (kept, Ok(()))
        }
        Err(error) if is_narrower => {
            *serving = None;
            (Vec::new(), Err(error))
        }
        Err(error) => return (Some(old), Err(error)),
    };
    service.set(settings);
    (Some(kept), result)
}

/// The labels of sockets for streams: those of unix sockets stay where they are.
fn labels(kept: &[Kept]) -> Vec<Label> {
    kept.iter().map(Kept::label).filter(|label| label.kind == Kind::Streams).collect()
}

fn lock(kept: &KeptSockets) -> MutexGuard<'_, Vec<Kept>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of those who reach an address: this machine, the networks of the address, everybody.
pub(crate) fn reach(addr: SocketAddr) -> u8 {
    let ip = addr.ip().to_canonical();
    if ip.is_unspecified() { 2 } else { u8::from(!ip.is_loopback()) }
}

/// Whether fewer clients reach the second address.
fn is_narrower(from: Option<SocketAddr>, to: Option<SocketAddr>) -> bool {
    from.is_some_and(|from| to.is_none_or(|to| reach(to) < reach(from)))
}

#[cfg(test)]
mod tests {
    use adit_net::rt::Stopper;

    use super::*;

    /// Its sockets are lost at once.
    struct Lost;

    impl Reconfigurable<u8> for Lost {
        fn open(&mut self, _: &u8, _: &Arc<[u64]>) -> io::Result<OpenedService> {
            Ok((Box::pin(async {}), Vec::new()))
        }

        fn set(&mut self, _: &u8) {}
    }

    #[test]
    fn a_service_whose_sockets_are_lost_follows() {
        let (mut cores, kept, (stopper, mut stop)) =
            (Cores::default(), KeptSockets::default(), Stopper::new());
        let make = move || (Lost, async move { stop.ending().await });
        let handle = ServiceHandle::start(&mut cores, "lost", &kept, 1, |_| None, make).unwrap();
        for (settings, changes) in [(2, true), (2, false), (3, true)] {
            assert_eq!(handle.follow(&settings), Ok(changes));
        }
        stopper.end();
        cores.join();
        assert!(handle.follow(&4).unwrap_err().starts_with("cannot listen: "));
    }
}
