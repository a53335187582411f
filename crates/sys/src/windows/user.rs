//! The user of the process: on this system adit does not change it.

use std::convert::Infallible;
use std::io;
use std::process::Command;

/// A user of this machine; none can be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User(Infallible);

impl User {
    /// As on Unix.
    ///
    /// # Errors
    /// Always.
    pub fn find(_name: &str) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As on Unix.
    pub fn uid(&self) -> u32 {
        match self.0 {}
    }

    /// As on Unix.
    pub fn is_current(&self) -> bool {
        match self.0 {}
    }

    /// As on Unix.
    pub fn run_child(&self, _command: &mut Command) {
        match self.0 {}
    }

    /// As on Unix.
    ///
    /// # Errors
    /// Never: there is no user to become.
    pub fn assume(&self) -> io::Result<()> {
        match self.0 {}
    }
}

/// As on Unix.
///
/// # Errors
/// Always.
pub fn find_group(_name: &str) -> io::Result<u32> {
    Err(io::ErrorKind::Unsupported.into())
}
