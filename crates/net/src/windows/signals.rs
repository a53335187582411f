use std::io;

use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

use super::cores::Signal;

/// A signal that never comes on this system.
#[derive(Debug)]
pub struct UserSignal(());

impl UserSignal {
    /// As on Unix.
    ///
    /// # Errors
    /// Never.
    pub fn new() -> io::Result<Self> {
        Ok(Self(()))
    }

    /// Never returns.
    pub async fn next(&mut self) {
        std::future::pending().await
    }
}

/// Ctrl-C and Ctrl-Break, from the moment of [`Signals::new`] on.
#[derive(Debug)]
pub struct Signals {
    interrupt: CtrlC,
    terminate: CtrlBreak,
}

impl Signals {
    /// Takes them over. Call it on an event loop.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: ctrl_c()?, terminate: ctrl_break()? })
    }

    /// Does nothing: no other signal ends a process here.
    ///
    /// # Errors
    /// Never.
    pub fn keep() -> io::Result<()> {
        Ok(())
    }

    /// Does nothing.
    ///
    /// # Errors
    /// Never.
    pub fn keep_stops() -> io::Result<()> {
        Ok(())
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
        }
    }
}
