//! Whether this process accepts: a process that has been started to take over waits, and so does the one that hands over
//! until the other one serves.

use std::fmt;
use std::pin::Pin;
use std::sync::OnceLock;

use tokio::sync::watch;

use crate::rt;

/// The connections that may be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Everything.
    Open,
    /// Nothing yet, or nothing for a moment.
    Held,
    /// Nothing any more: another process has taken over for good.
    Committed,
}

fn gate() -> &'static watch::Sender<State> {
    static GATE: OnceLock<watch::Sender<State>> = OnceLock::new();
    GATE.get_or_init(|| watch::channel(State::Open).0)
}

/// From now on nothing is accepted.
pub fn hold() {
    gate().send_replace(State::Held);
}

/// From now on connections are accepted.
pub fn release() {
    gate().send_replace(State::Open);
}

/// Another process serves in the place of this one, for good.
pub fn commit() {
    gate().send_replace(State::Committed);
}

/// Whether another process serves in the place of this one.
pub fn is_committed() -> bool {
    *gate().borrow() == State::Committed
}

/// Returns when connections may be accepted.
pub async fn opened() {
    if *gate().borrow() != State::Open {
        wait(|state| state == State::Open).await;
    }
}

/// Returns when nothing may be accepted any more.
async fn closed() {
    wait(|state| state != State::Open).await;
}

/// The part of one listener in this: it accepts while the process may. Waiting for the end of that is set up once, not for
/// each connection.
pub struct Admission(Pin<Box<dyn Future<Output = ()>>>);

impl Default for Admission {
    fn default() -> Self {
        Self(Box::pin(closed()))
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admission(..)")
    }
}

impl Admission {
    /// Awaits `accepting` once connections may be accepted; `None` if they may no more before it is ready.
    pub async fn admit<T>(&mut self, accepting: impl Future<Output = T>) -> Option<T> {
        opened().await;
        let closed = async {
            self.0.as_mut().await;
            None
        };
        let admitted = rt::race(async { Some(accepting.await) }, closed).await;
        if admitted.is_none() {
            *self = Self::default();
        }
        admitted
    }
}

/// Returns when another process has taken over for good.
pub async fn committed() {
    wait(|state| state == State::Committed).await;
}

async fn wait(is_wanted: impl Fn(State) -> bool) {
    // The sender is never dropped.
    gate().subscribe().wait_for(|state| is_wanted(*state)).await.ok();
}
