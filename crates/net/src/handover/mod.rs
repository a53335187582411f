//! Listening sockets that outlive the process: they go to the next binary (`adit upgrade`), or wait with the service manager
//! (systemd's descriptor store) until the service is back.
//!
//! ```text
//!   process that serves: Kept ── a copy of each listening socket, with its Label
//!                         │ Link (SCM_RIGHTS) or the descriptor store
//!   next process: adopt ──→ pool ──→ listen::* takes the socket in the place of bind(2)
//! ```
//!
//! A [`Label`] says what a socket was opened for. A socket is taken again only for the same purpose: same kind, address and
//! interface. Everything that is not taken is closed.
//!
//! Streams: both processes share one queue of connections, so nobody is refused meanwhile. The gate keeps a process from
//! accepting while the other one does.
//!
//! Datagrams: both processes share one queue of datagrams, and one of them reads it: the new one, from the moment at which
//! the old one has stopped. The old one names the addresses of its clients then. The new one passes datagrams from these
//! addresses on, over a socket pair per listening socket, until the old one says that a client is gone (`Outlet`,
//! `Inlet`). This way round, new clients have the full speed at once, the detour ends with the last old client, and the
//! death of the old process costs its own clients alone. Each process answers over the shared socket itself. The queue
//! between the two holds 4 MiB; datagrams beyond are lost and counted, as in the kernel's own queue.
//!
//! A virtual interface goes as a socket for datagrams does. The streams behind it are the kernel's; their packets bear a port
//! in the place of both ends, so the new process gets the table of these ports ([`Led`](crate::udp::divert::Led)). It rewrites the packets of all
//! streams from then on, and keeps the ports of the old one's until that says that they are over.

pub(crate) mod earlier;
pub(crate) mod gate;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
pub(crate) mod pool;

use std::io;
#[cfg(unix)]
use std::os::fd::BorrowedFd;

use adit_sys::handle::{self, AsFd, OwnedFd};
use socket2::SockRef;

#[cfg(unix)]
use crate::listen::unix_label;
#[cfg(unix)]
use crate::rt::UnixListener;

pub use self::earlier::{Earlier, earlier};
pub use self::gate::{Admission, commit, committed, hold, is_committed, opened, release};
#[cfg(target_os = "linux")]
pub use self::link::{HandoverLink, from_parent, replace_self, spawn};
#[cfg(target_os = "linux")]
pub use self::pool::{Adopted, adopt, from_manager, leave_rest, taken};

#[cfg(target_os = "linux")]
pub(crate) use self::pool::take;

/// Nothing: sockets are not handed over on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) fn take(
    _kind: Kind,
    _key: u64,
    _addr: Option<std::net::SocketAddr>,
    _path: Option<&std::path::Path>,
) -> Vec<OwnedFd> {
    Vec::new()
}

/// The kind of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// TCP connections.
    Streams,
    /// UDP datagrams.
    Datagrams,
    /// Connections to a unix socket.
    Unix,
    /// The packets of a virtual interface: no socket, but the file of the driver.
    Interface,
}

impl Kind {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Streams, "tcp"), (Self::Datagrams, "udp"), (Self::Unix, "unix"), (Self::Interface, "tun")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// The purpose of a listening socket. Its text, `adit.KIND.INDEX.KEY`, is also its name in the descriptor store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label {
    /// The kind.
    pub kind: Kind,
    /// Fingerprint of owner, address and options; see [`key`].
    pub key: u64,
    /// Its number among the sockets of one address.
    pub index: u16,
}

impl Label {
    /// Reads a label; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("adit.")?.split('.');
        let name = parts.next()?;
        let (kind, _) = Kind::ALL.into_iter().find(|(_, known)| *known == name)?;
        let (index, key) = (parts.next()?, parts.next()?);
        let label = Self { kind, index: index.parse().ok()?, key: u64::from_str_radix(key, 16).ok()? };
        // One text for one label.
        (parts.next().is_none() && label.to_string() == text).then_some(label)
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "adit.{}.{}.{:016x}", self.kind.name(), self.index, self.key)
    }
}

/// The fingerprint of a socket's purpose (FNV-1a, 64 bits). It is the same in every version of adit.
pub fn key(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A copy of a listening socket, which keeps it open: drop it with the socket.
#[derive(Debug)]
pub struct Kept {
    label: Label,
    fd: OwnedFd,
}

impl Kept {
    /// A copy of `socket`.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new(label: Label, socket: &impl AsFd) -> io::Result<Self> {
        Ok(Self { label, fd: handle::duplicate(socket)? })
    }

    /// Its purpose.
    pub fn label(&self) -> Label {
        self.label
    }

    /// The socket, for its options.
    pub(crate) fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.fd)
    }

    /// The number by which the system's table of sockets knows it; `None` where that cannot be told.
    #[cfg(target_os = "linux")]
    pub(crate) fn inode(&self) -> Option<u64> {
        use std::os::fd::AsRawFd as _;
        let link = std::fs::read_link(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }

    /// Nothing: there is no such table.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn inode(&self) -> Option<u64> {
        None
    }

    /// Has a listener for streams meet no connection that begins from now on, so that nobody comes between the last one
    /// that is accepted and its end. Others share the socket: they have to be about to close it.
    pub fn hide(&self) {
        if self.label.kind == Kind::Streams
            && let Err(error) = adit_sys::tcp::hide(&self.fd)
        {
            tracing::debug!(%error, "a connection that comes while its port moves may be reset");
        }
    }

    /// Another copy.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn copy(&self) -> io::Result<Self> {
        Self::new(self.label, &self.fd)
    }
}

#[cfg(unix)]
impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(unix)]
impl UnixListener {
    /// A copy of the listener at `path` for the next process.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn keep(&self, path: &std::path::Path) -> io::Result<Kept> {
        Kept::new(unix_label(path), &self.0)
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;
