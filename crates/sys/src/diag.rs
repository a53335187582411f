//! The kernel's state of another socket on this host: sock_diag(7).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
/// Offset of `idiag_inode` in an `inet_diag_msg` behind its header.
const INODE_AT: usize = HEADER_LEN + 68;

/// Offset of `idiag_uid` likewise.
const UID_AT: usize = HEADER_LEN + 64;

/// A socket of this host as its kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user whose program made it.
    pub uid: u32,
    /// Its inode, which links below `/proc/PID/fd` name; 0 for a socket that belongs to no process any more.
    pub inode: u32,
}

/// Whether the TCP socket with address `local` that is connected to `remote` belongs to no process any more: its
/// application has closed it altogether. `None` when this host has no such socket, or cannot tell.
///
/// One netlink round trip, about 10 us.
///
/// # Errors
/// As socket(2), sendto(2) and recv(2) on a netlink socket.
pub fn is_orphan(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<bool>> {
    Ok(tcp_owner(local, remote)?.map(|owner| owner.inode == 0))
}

/// The owner of the TCP socket with address `local` that is connected to `remote`; `None` when this host has none.
///
/// One netlink round trip, about 10 us.
///
/// # Errors
/// As socket(2), sendto(2) and recv(2) on a netlink socket.
pub fn tcp_owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Owner>> {
    ask(&request(libc::IPPROTO_TCP, local, remote))
}

/// The owner of the UDP socket that takes datagrams from `remote` to `local`, where `local` is an address of this host: a
/// socket of all addresses is found by its port alone. `None` when there is none.
///
/// One netlink round trip, about 10 us.
///
/// # Errors
/// As socket(2), sendto(2) and recv(2) on a netlink socket.
pub fn udp_owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Owner>> {
    // The kernel looks for the receiver of a datagram from the first address to the second.
    ask(&request(libc::IPPROTO_UDP, remote, local))
}

fn ask(request: &[u8; REQUEST_LEN]) -> io::Result<Option<Owner>> {
    let mut socket = Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::RAW,
        Some(Protocol::from(libc::NETLINK_SOCK_DIAG)),
    )?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let sent = socket.write(request)?;
    if sent != REQUEST_LEN {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut answer = [0; 1024];
    let len = socket.read(&mut answer)?;
    let answer = &answer[..len];
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    if kind != Some(SOCK_DIAG_BY_FAMILY) {
        // NLMSG_ERROR with ENOENT: the socket is not on this host.
        return if kind == Some(NLMSG_ERROR) { Ok(None) } else { Err(io::ErrorKind::InvalidData.into()) };
    }
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or(io::ErrorKind::UnexpectedEof)
    };
    Ok(Some(Owner { uid: word(UID_AT)?, inode: word(INODE_AT)? }))
}

/// An `inet_diag_req_v2` that names one socket exactly.
fn request(protocol: i32, local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_LEN] {
    let mut out = [0; REQUEST_LEN];
    out[0..4].copy_from_slice(&u32::try_from(REQUEST_LEN).expect("72").to_ne_bytes());
    out[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    out[16] = family.to_ne_bytes()[0];
    out[17] = protocol.to_ne_bytes()[0];
    // All states: one bit each.
    out[20..24].fill(0xff);
    out[24..26].copy_from_slice(&local.port().to_be_bytes());
    out[26..28].copy_from_slice(&remote.port().to_be_bytes());
    put_ip(&mut out[28..44], local.ip());
    put_ip(&mut out[44..60], remote.ip());
    // Interface 0 (any), then INET_DIAG_NOCOOKIE twice.
    out[64..72].fill(0xff);
    out
}

fn put_ip(out: &mut [u8], ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => out[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.copy_from_slice(&ip.octets()),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test has its own sockets")]
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_closed_application_is_told_from_a_half_closed_one() {
        let addresses: &[&str] =
            if adit_testkit::has_ipv6() { &["127.0.0.1:0", "[::1]:0"] } else { &["127.0.0.1:0"] };
        for address in addresses {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, from) = listener.accept().unwrap();
            let to = server.local_addr().unwrap();
            assert_eq!(is_orphan(from, to).unwrap(), Some(false));
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(is_orphan(from, to).unwrap(), Some(false));
            drop(client);
            // A child that another test is about to start may hold the socket until it is another program.
            let is_seen = || {
                std::thread::sleep(Duration::from_millis(10));
                is_orphan(from, to).unwrap() == Some(true)
            };
            assert!((0..2000).any(|_| is_seen()));
            drop(server);
        }
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(udp_owner(nobody, nobody).unwrap(), None);
        assert_eq!(is_orphan(nobody, nobody).unwrap(), None);
    }

    #[test]
    fn the_owner_of_a_udp_socket_is_found_by_its_receiver() {
        use std::net::UdpSocket;
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        for is_connected in [false, true] {
            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            if is_connected {
                client.connect(to).unwrap();
            }
            let from = SocketAddr::from(([127, 0, 0, 1], client.local_addr().unwrap().port()));
            let owner = udp_owner(from, to).unwrap().unwrap();
            assert_eq!(owner.uid, crate::process::effective_uid());
            assert!(owner.inode > 0);
            drop(client);
        }
    }
}
