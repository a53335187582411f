use std::convert::Infallible;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

/// A timer that cannot be made on this system.
#[derive(Debug)]
pub struct FineTimer(Infallible);

impl FineTimer {
    /// As on Linux.
    ///
    /// # Errors
    /// Always: there is no such timer.
    pub fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As on Linux.
    ///
    /// # Errors
    /// Never: there is no timer to set.
    pub fn set(&mut self, _duration: Duration) -> io::Result<()> {
        match self.0 {}
    }

    /// As on Linux.
    pub fn poll(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        match self.0 {}
    }
}
