//! Finds out which process holds a port that we cannot have. Best effort, for a message: it needs `/proc`, and
//! sees processes of other users only with privileges.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use adit_model::Transports;

/// Most descriptors that are looked at, over all processes: a busy machine has tens of thousands, read at some
/// microseconds each.
const MAX_FDS: usize = 200_000;

/// The entry to find in one of the kernel's tables.
struct Table {
    paths: [&'static str; 2],
    /// State of a socket that anybody may talk to, as in Linux `include/net/tcp_states.h`.
    state: &'static str,
    /// Whether those in this state come first, before the connections: Linux, `tcp_get_idx` in `net/ipv4/tcp_ipv4.c`. A
    /// machine may have so many of these that reading them takes seconds.
    comes_first: bool,
}

/// Listeners: `TCP_LISTEN`.
const STREAMS: Table = Table { paths: ["/proc/net/tcp", "/proc/net/tcp6"], state: "0A", comes_first: true };

/// Sockets for datagrams that are bound and not connected: `TCP_CLOSE`.
const DATAGRAMS: Table =
    Table { paths: ["/proc/net/udp", "/proc/net/udp6"], state: "07", comes_first: false };

/// The process that listens on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortHolder {
    /// Its process id.
    pub pid: u32,
    /// Its short name.
    pub name: String,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// The process that listens on `addr`, or on a wildcard of the same port.
pub(crate) fn find_holder(addr: SocketAddr) -> Option<PortHolder> {
    let inodes = listening_inodes(&STREAMS, addr);
    if inodes.is_empty() { None } else { find_owner(&inodes) }
}

/// Whether somebody takes all of `transports` at `addr`, or at a wildcard of the same port; false where that cannot be
/// told.
pub(crate) fn is_held(addr: SocketAddr, transports: Transports) -> bool {
    let is_held = |table| !listening_inodes(table, addr).is_empty();
    (!transports.tcp() || is_held(&STREAMS)) && (!transports.udp() || is_held(&DATAGRAMS))
}

/// Whether sockets other than `own` take connections, or datagrams, at `addr` or at a wildcard of the same port; false
/// where that cannot be told.
pub(crate) fn is_held_by_others(addr: SocketAddr, is_stream: bool, own: &[u64]) -> bool {
    let table = if is_stream { &STREAMS } else { &DATAGRAMS };
    listening_inodes(table, addr).iter().any(|inode| !own.contains(inode))
}

fn listening_inodes(table: &Table, addr: SocketAddr) -> Vec<u64> {
    let mut inodes = Vec::new();
    for path in table.paths {
        let Ok(file) = fs::File::open(path) else { continue };
        inodes.extend(inodes_in(BufReader::new(file), table, addr));
    }
    inodes
}

/// The same of one of the table's files.
fn inodes_in(text: impl BufRead, table: &Table, addr: SocketAddr) -> Vec<u64> {
    let has_state = |line: &String| line.split_ascii_whitespace().nth(3) == Some(table.state);
    let lines = text.lines().map_while(Result::ok).skip(1);
    let lines = lines.take_while(|line| !table.comes_first || has_state(line));
    lines.filter_map(|line| listening_inode(&line, table.state, addr)).collect()
}

/// The inode of the socket of one line of `/proc/net/tcp{,6}`, if it listens on `addr` or overlaps it:
/// `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ..`.
fn listening_inode(line: &str, state: &str, addr: SocketAddr) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let local = parse_address(fields.nth(1)?)?;
    if fields.nth(1)? != state || local.port() != addr.port() {
        return None;
    }
    let (local, ours) = (local.ip(), addr.ip().to_canonical());
    if local != ours && !local.is_unspecified() && !ours.is_unspecified() {
        return None;
    }
    fields.nth(5)?.parse().ok()
}

/// `0100007F:1F90`: the address as 32-bit words in the machine's byte order, the port as a number.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let word = |at: usize| -> Option<[u8; 4]> {
        Some(u32::from_str_radix(host.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes())
    };
    let ip = match host.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (at, octets) in octets.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(at)?);
            }
            IpAddr::from(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn find_owner(inodes: &[u64]) -> Option<PortHolder> {
    let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let mut left = MAX_FDS;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(fds) = fs::read_dir(process.path().join("fd")) else { continue };
        for fd in fds.flatten() {
            left = left.checked_sub(1)?;
            let Ok(link) = fs::read_link(fd.path()) else { continue };
            if links.iter().any(|wanted| link == Path::new(wanted)) {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some(PortHolder { pid, name: name.trim_end().to_owned() });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that nobody is to read.
    struct Unread;

    impl std::io::Read for Unread {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            panic!("it is read");
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_of_the_socket_table() {
        let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100";
        let any6 = "   1: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A \
                    00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0";
        for (line, addr, inode) in [
            (v4, "127.0.0.1:8080", Some(4711)),
            (v4, "0.0.0.0:8080", Some(4711)),
            (v4, "[::]:8080", Some(4711)),
            (v4, "127.0.0.2:8080", None),
            (v4, "127.0.0.1:8081", None),
            (any6, "127.0.0.1:8080", Some(4712)),
            (any6, "[::1]:8080", Some(4712)),
        ] {
            assert_eq!(
                listening_inode(line, STREAMS.state, addr.parse().unwrap()),
                inode,
                "{line} for {addr}"
            );
        }
        // Nothing is read behind the first connection.
        let text = format!("head\n{v4}\n{}\n", v4.replace(" 0A ", " 06 "));
        let unread = std::io::Read::chain(text.as_bytes(), BufReader::new(Unread));
        assert_eq!(inodes_in(unread, &STREAMS, "127.0.0.1:8080".parse().unwrap()), [4711]);
        let other = v4.replace(" 0A ", " 01 ");
        assert_eq!(listening_inode(&other, STREAMS.state, "127.0.0.1:8080".parse().unwrap()), None);
        assert_eq!(listening_inode("garbage", STREAMS.state, "127.0.0.1:8080".parse().unwrap()), None);
        let mapped = parse_address("0000000000000000FFFF00000100007F:0050").unwrap();
        assert_eq!(mapped, "127.0.0.1:80".parse().unwrap());
    }
}
