use std::io;

use tokio::signal::unix::{SignalKind, signal};

use super::cores::{Cores, Signal};

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

/// The process's signals, from the moment of [`Signals::new`] on.
#[derive(Debug)]
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    user: tokio::signal::unix::Signal,
    upgrade: tokio::signal::unix::Signal,
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
        })
    }

    /// Keeps SIGHUP, SIGUSR1 and SIGUSR2 from ending this process, from now on until it ends. Nobody hears them before
    /// [`Signals::new`].
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn outlive() -> io::Result<()> {
        // A handler stays when its listener goes.
        Cores::block_on(async {
            for kind in [SignalKind::hangup(), SignalKind::user_defined1(), SignalKind::user_defined2()] {
                drop(signal(kind)?);
            }
            Ok(())
        })?
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.user.recv() => Signal::User,
            _ = self.upgrade.recv() => Signal::Upgrade,
        }
    }
}
