//! The trait by which functions of this crate take sockets, named alike on every system.

/// A socket of this system: `AsFd` on Unix, `AsSocket` on Windows.
#[cfg(unix)]
pub use std::os::fd::AsFd;
/// A socket of this system: `AsFd` on Unix, `AsSocket` on Windows.
#[cfg(windows)]
pub use std::os::windows::io::AsSocket as AsFd;
