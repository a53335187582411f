//! Sockets that came from another process and wait to be taken.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_sys::pass;
use socket2::{Domain, SockRef, Type};

use super::{Kind, Label};

/// The first descriptor of a service manager (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// Most descriptors that are taken from a service manager.
const MOST: usize = 4096;

/// A socket that has been adopted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Its purpose; none for one that a service manager has opened.
    pub label: Option<Label>,
    /// Its number, as the giver counts.
    pub number: usize,
}

struct Waiting {
    adopted: Adopted,
    kind: Kind,
    addr: Option<SocketAddr>,
    path: Option<std::path::PathBuf>,
    fd: OwnedFd,
}

#[derive(Default)]
struct Pool {
    waiting: Vec<Waiting>,
    taken: Vec<(usize, RawFd)>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { waiting: Vec::new(), taken: Vec::new() });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a socket until it is taken for its purpose.
///
/// # Errors
/// When it is none of the kind that its label says, or no listening socket at all.
pub fn adopt(fd: OwnedFd, adopted: Adopted) -> io::Result<()> {
    if adopted.label.is_some_and(|label| label.kind == Kind::Interface) {
        crate::tun::check(&fd)?;
        pool().waiting.push(Waiting { adopted, kind: Kind::Interface, addr: None, path: None, fd });
        return Ok(());
    }
    let kind = kind_of(&fd)?;
    if adopted.label.is_some_and(|label| label.kind != kind) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a socket is of another kind than its label says",
        ));
    }
    let socket = SockRef::from(&fd);
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    let (addr, path) = (local.as_socket(), local.as_pathname().map(Into::into));
    pool().waiting.push(Waiting { adopted, kind, addr, path, fd });
    Ok(())
}

fn kind_of(fd: &impl AsFd) -> io::Result<Kind> {
    let socket = SockRef::from(fd);
    let is_inet = |domain| domain == Domain::IPV4 || domain == Domain::IPV6;
    let (domain, kind) = (socket.local_addr()?.domain(), socket.r#type()?);
    let is_listener = || socket.is_listener();
    match kind {
        Type::STREAM if is_inet(domain) && is_listener()? => Ok(Kind::Streams),
        Type::DGRAM if is_inet(domain) => Ok(Kind::Datagrams),
        Type::STREAM if domain == Domain::UNIX && is_listener()? => Ok(Kind::Unix),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a descriptor is no listening socket")),
    }
}

/// The sockets for a purpose, in their order: those with this key, else those of a service manager at this address or path.
pub(crate) fn take(
    kind: Kind,
    key: u64,
    addr: Option<SocketAddr>,
    path: Option<&std::path::Path>,
) -> Vec<OwnedFd> {
    let mut pool = pool();
    let is_meant = |waiting: &Waiting| {
        let is_at = |exactly: bool| {
            addr.is_none_or(|addr| !exactly && addr.port() == 0 || waiting.addr == Some(addr))
                && path.is_none_or(|path| waiting.path.as_deref() == Some(path))
        };
        waiting.kind == kind
            && match waiting.adopted.label {
                Some(label) => label.key == key && is_at(false),
                None => is_at(true),
            }
    };
    let mut found: Vec<Waiting> = pool.waiting.extract_if(.., |waiting| is_meant(waiting)).collect();
    found.sort_by_key(|waiting| waiting.adopted.label.map(|label| label.index));
    pool.taken.extend(found.iter().map(|waiting| (waiting.adopted.number, waiting.fd.as_raw_fd())));
    found.into_iter().map(|waiting| waiting.fd).collect()
}

/// The numbers of the sockets that have been taken.
pub fn taken() -> Vec<usize> {
    pool().taken.iter().map(|(number, _)| *number).collect()
}

/// The descriptor of a socket that was taken.
pub(crate) fn taken_as(number: usize) -> Option<RawFd> {
    pool().taken.iter().find(|(taken, _)| *taken == number).map(|(_, raw)| *raw)
}

/// Closes what nobody has taken. Gives the labels of that, and the number of sockets without one.
pub fn leave_rest() -> (Vec<Label>, usize) {
    let left = std::mem::take(&mut pool().waiting);
    let labels: Vec<Label> = left.iter().filter_map(|waiting| waiting.adopted.label).collect();
    let others = left.len() - labels.len();
    (labels, others)
}

/// Adopts the sockets that the service manager has passed (`LISTEN_FDS`), as `sd_listen_fds(3)` describes them. Gives the
/// number of sockets, and a warning for each that cannot be used.
pub fn from_manager() -> (usize, Vec<String>) {
    let read = |name| std::env::var(name).ok();
    let own = std::process::id().to_string();
    if read("LISTEN_PID").is_none_or(|pid| pid != own) {
        return (0, Vec::new());
    }
    let count = read("LISTEN_FDS").and_then(|text| text.parse::<usize>().ok()).unwrap_or(0).min(MOST);
    let names = read("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let (mut adopted, mut warnings) = (0, Vec::new());
    for (number, raw) in (FIRST..).take(count).enumerate() {
        let name = names.next().unwrap_or_default();
        let taken = pass::take_inherited(raw);
        match taken.and_then(|fd| adopt(fd, Adopted { label: Label::parse(name), number })) {
            Ok(()) => adopted += 1,
            Err(error) => {
                warnings.push(format!("descriptor {raw} of the service manager is not used: {error}"));
            }
        }
    }
    (adopted, warnings)
}
