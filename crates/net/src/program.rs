//! The program behind a connection of this host, and its user: sock_diag(7) names the socket, `/proc` its process.
//!
//! A look takes about 10 us for the user. The program takes longer on a host with many processes, so that threads beside
//! the event loops do all of it, two at a time for the whole process; others wait for their turn. A process that had a
//! socket before is looked at first.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Looks at a time.
static TURNS: Semaphore = Semaphore::const_new(2);

/// The other side of a connection, on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The user that it runs as.
    pub uid: u32,
    /// Path of its file; `None` if it is gone, or if this process may not see it: that takes root, or the same user.
    pub path: Option<Arc<str>>,
}

/// A socket that a client has on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Datagrams, not a stream.
    pub is_udp: bool,
    /// Address of the client.
    pub from: SocketAddr,
    /// The addresses that it may be connected to, as it sees them.
    pub to: Vec<SocketAddr>,
}

/// The program that has the client's socket. `None` for a client on another host, and where the system has no means.
pub async fn find(client: Client) -> Option<Program> {
    if !is_here(client.from.ip()) {
        return None;
    }
    let _turn = TURNS.acquire().await.ok()?;
    tokio::task::spawn_blocking(move || look(&client)).await.ok().flatten()
}

/// Whether an address is one of this host: then a socket can be bound to it.
fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || std::net::UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn look(_: &Client) -> Option<Program> {
    None
}

#[cfg(target_os = "linux")]
fn look(client: &Client) -> Option<Program> {
    use adit_sys::diag::{Owner, tcp_owner, udp_owner};

    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let from = canonical(client.from);
    let find = |to: &SocketAddr| -> Option<Owner> {
        let to = canonical(*to);
        if to.is_ipv4() != from.is_ipv4() {
            return None;
        }
        let found = if client.is_udp { udp_owner(from, to) } else { tcp_owner(from, to) };
        found
            .inspect_err(|error| tracing::debug!(%error, "the kernel does not name a socket's owner"))
            .ok()?
    };
    let owner = client.to.iter().find_map(find)?;
    Some(Program { uid: owner.uid, path: linux::path_of(owner).map(Into::into) })
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::VecDeque;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, PoisonError};

    use adit_sys::diag::Owner;

    /// Processes that are looked at first.
    const RECENT: usize = 8;
    /// Most links that are read for one socket.
    const MOST_LINKS: usize = 1 << 20;

    static LATEST: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());

    /// The path of the program that has this socket.
    pub(super) fn path_of(owner: Owner) -> Option<String> {
        if owner.inode == 0 {
            return None;
        }
        let link = format!("socket:[{}]", owner.inode);
        let mut left = MOST_LINKS;
        let recent: Vec<u32> = latest(|latest| latest.iter().copied().collect());
        let mut holds = |pid: &u32| holds(*pid, &link, &mut left);
        let found = recent.into_iter().find(&mut holds).or_else(|| {
            let (own, others): (Vec<u32>, Vec<u32>) =
                pids().into_iter().partition(|pid| user_of(*pid) == Some(owner.uid));
            own.into_iter().chain(others).find(&mut holds)
        })?;
        latest(|latest| {
            latest.retain(|pid| *pid != found);
            latest.push_front(found);
            latest.truncate(RECENT);
        });
        let path = fs::read_link(process(found).join("exe")).ok()?.to_string_lossy().into_owned();
        Some(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
    }

    fn latest<T>(of: impl FnOnce(&mut VecDeque<u32>) -> T) -> T {
        of(&mut LATEST.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn process(pid: u32) -> PathBuf {
        Path::new("/proc").join(pid.to_string())
    }

    fn pids() -> Vec<u32> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    fn user_of(pid: u32) -> Option<u32> {
        Some(fs::metadata(process(pid)).ok()?.uid())
    }

    /// Whether a process has a descriptor with this link.
    fn holds(pid: u32, link: &str, left: &mut usize) -> bool {
        let all = fs::read_dir(process(pid).join("fd")).into_iter().flatten().flatten();
        all.take_while(|_| {
            *left = left.saturating_sub(1);
            *left > 0
        })
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|found| found.as_os_str() == link))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::rt::Cores;

    fn found(client: Client) -> Option<Program> {
        Cores::block_on(find(client)).expect("an event loop")
    }

    #[test]
    fn the_program_of_a_connection_is_this_one() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, from) = listener.accept().unwrap();
        let own = std::env::current_exe().unwrap();
        let to = vec!["192.0.2.1:5".parse().unwrap(), server.local_addr().unwrap()];
        let asked = Client { is_udp: false, from, to };
        // A process that another test starts may hold the socket until it is another program.
        let program = found(asked.clone()).unwrap();
        assert_eq!(program.path.as_deref(), own.to_str());
        assert_eq!(program.uid, adit_sys::process::effective_uid());
        assert_eq!(found(asked.clone()), Some(program), "again, by the process of the first time");
        let elsewhere = Client { from: "192.0.2.9:5".parse().unwrap(), ..asked.clone() };
        assert_eq!(found(elsewhere), None);
        let nobody = Client { to: vec!["127.0.0.1:1".parse().unwrap()], ..asked };
        assert_eq!(found(nobody), None);
        drop(client);
    }

    #[test]
    fn the_program_of_datagrams_is_this_one() {
        let (server, client) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("0.0.0.0:0").unwrap());
        let from = SocketAddr::from(([127, 0, 0, 1], client.local_addr().unwrap().port()));
        let asked = Client { is_udp: true, from, to: vec![server.local_addr().unwrap()] };
        let own = std::env::current_exe().unwrap();
        assert_eq!(found(asked.clone()).unwrap().path.as_deref(), own.to_str());
        // The port is one of this host, the address is not.
        let elsewhere = Client { from: SocketAddr::new([192, 0, 2, 9].into(), from.port()), ..asked };
        assert_eq!(found(elsewhere), None);
    }
}
