use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use tokio::signal::unix::{SignalKind, signal};

use super::cores::Signal;

/// SIGUSR1, from the moment of [`UserSignal::new`] on.
#[derive(Debug)]
pub struct UserSignal(tokio::signal::unix::Signal);

impl UserSignal {
    /// Takes the signal over. Call it on an event loop.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        signal(SignalKind::user_defined1()).map(Self)
    }

    /// Returns when it has come.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// A signal that is kept for [`Signals::new`].
struct Kept {
    signal: Signal,
    has_come: Arc<AtomicBool>,
    action: SigId,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Takes signals over; those that come are heard by the [`Signals`] that is made next.
fn keep(signals: &[(i32, Signal)]) -> io::Result<()> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    for (number, signal) in signals {
        let has_come = Arc::new(AtomicBool::new(false));
        let action = signal_hook::flag::register(*number, has_come.clone())?;
        kept.push(Kept { signal: *signal, has_come, action });
    }
    Ok(())
}

/// Ends the keeping, and gives the signals that have come. A handler stays when its action goes: from now on these
/// signals do nothing where nobody listens.
fn take_kept() -> Vec<Signal> {
    let kept = mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    let mut came: Vec<Signal> = Vec::new();
    for kept in kept {
        signal_hook::low_level::unregister(kept.action);
        if kept.has_come.load(Ordering::Relaxed) && !came.contains(&kept.signal) {
            came.push(kept.signal);
        }
    }
    came
}

/// The process's signals, from the moment of [`Signals::new`] on.
#[derive(Debug)]
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    user: tokio::signal::unix::Signal,
    upgrade: tokio::signal::unix::Signal,
    /// Those that came before.
    kept: Vec<Signal>,
}

impl Signals {
    /// Takes the signals over. Call it on an event loop.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
            upgrade: signal(SignalKind::user_defined2())?,
            // Behind the others, so that none falls between.
            kept: take_kept(),
        })
    }

    /// Keeps SIGHUP, SIGUSR1 and SIGUSR2 from ending this process, from now on until it ends. The next
    /// [`Signals::new`] hears of those that come before it.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn keep() -> io::Result<()> {
        keep(&[(SIGHUP, Signal::Reload), (SIGUSR1, Signal::User), (SIGUSR2, Signal::Upgrade)])
    }

    /// The same for SIGINT and SIGTERM: what has begun to serve ends in order.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn keep_stops() -> io::Result<()> {
        keep(&[(SIGINT, Signal::Stop), (SIGTERM, Signal::Stop)])
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        if let Some(signal) = self.kept.pop() {
            return signal;
        }
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.user.recv() => Signal::User,
            _ = self.upgrade.recv() => Signal::Upgrade,
        }
    }
}

#[cfg(test)]
mod tests {
    use signal_hook::low_level::raise;

    use super::*;
    use crate::rt::{self, Cores};

    #[test]
    fn signals_that_come_before_anybody_listens_are_heard_once() {
        Signals::keep().unwrap();
        Signals::keep_stops().unwrap();
        for number in [SIGHUP, SIGHUP, SIGTERM] {
            raise(number).unwrap();
        }
        Cores::block_on(async {
            let mut signals = Signals::new().unwrap();
            let mut heard = [signals.next().await, signals.next().await];
            heard.sort_by_key(|signal| *signal == Signal::Stop);
            assert_eq!(heard, [Signal::Reload, Signal::Stop]);
            // Another one of now, and nothing twice.
            raise(SIGUSR1).unwrap();
            assert_eq!(signals.next().await, Signal::User);
            let none = rt::race(async { Some(signals.next().await) }, async { None }).await;
            assert_eq!(none, None);
        })
        .unwrap();
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(kept.is_empty());
    }
}
