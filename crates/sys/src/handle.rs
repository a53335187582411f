//! The names of sockets by which functions take them, alike on every system.

use std::io;

/// A socket of this system: `AsFd` on Unix, `AsSocket` on Windows.
#[cfg(unix)]
pub use std::os::fd::AsFd;
/// A socket of this system: `AsFd` on Unix, `AsSocket` on Windows.
#[cfg(windows)]
pub use std::os::windows::io::AsSocket as AsFd;

/// A socket that closes when it is dropped.
#[cfg(unix)]
pub use std::os::fd::OwnedFd;
/// A socket that closes when it is dropped.
#[cfg(windows)]
pub use std::os::windows::io::OwnedSocket as OwnedFd;

/// A copy of a socket.
///
/// # Errors
/// When there is no descriptor left.
pub fn duplicate(socket: &impl AsFd) -> io::Result<OwnedFd> {
    #[cfg(unix)]
    return socket.as_fd().try_clone_to_owned();
    #[cfg(windows)]
    return socket.as_socket().try_clone_to_owned();
}
