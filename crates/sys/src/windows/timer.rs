//! A timer that is a descriptor, which this system does not have.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

/// A timer that cannot be made.
#[derive(Debug)]
pub struct Timer(Infallible);

impl Timer {
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
    pub fn set(&self, _duration: Duration) -> io::Result<()> {
        match self.0 {}
    }
}
