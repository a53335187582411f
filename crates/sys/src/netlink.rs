//! Sockets to the kernel's own protocols: netlink(7). A request is one buffer that is sent whole; answers come as
//! datagrams of messages.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::tcp::set_option;
use crate::udp::{set_receive_buffer, set_send_buffer};

/// Longest wait for an answer: the kernel answers within the call that asks.
const PATIENCE: Duration = Duration::from_secs(5);
/// Room for a request: a rule set with a hundred thousand addresses. Answers are short.
const SEND_LEN: usize = 16 << 20;
const RECEIVE_LEN: usize = 1 << 20;
/// `RTMGRP_LINK`.
const NEWS: u32 = 0x1 | 0x40 | 0x400;
/// `include/uapi/linux/netlink.h`.
const NETLINK_CAP_ACK: libc::c_int = 10;
const NETLINK_EXT_ACK: libc::c_int = 11;

/// The part of the kernel that a socket talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Links, addresses, routes and rules: rtnetlink(7).
    Route,
    /// Tables of nftables.
    Netfilter,
}

/// A socket to the kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NetlinkSocket {
    socket: Socket,
    port: u32,
}

impl NetlinkSocket {
    /// Opens a socket. Errors come with the kernel's text and without the request.
    ///
    /// # Errors
    /// As socket(2): `EPROTONOSUPPORT` where the kernel lacks the protocol.
    pub fn open(family: Family) -> io::Result<Self> {
        let protocol = match family {
            Family::Route => libc::NETLINK_ROUTE,
            Family::Netfilter => libc::NETLINK_NETFILTER,
        };
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(protocol)))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let one = 1_i32.to_ne_bytes();
        // Older kernels lack them: answers are longer then, and errors have no text.
        set_option(&socket, libc::SOL_NETLINK, NETLINK_CAP_ACK, &one).ok();
        set_option(&socket, libc::SOL_NETLINK, NETLINK_EXT_ACK, &one).ok();
        set_send_buffer(&socket, SEND_LEN)?;
        set_receive_buffer(&socket, RECEIVE_LEN)?;
        let port = bind(&socket, 0)?;
        Ok(Self { socket, port })
    }

    /// Opens a socket that gets the kernel's notices about interfaces and routes.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open_for_links() -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let port = bind(&socket, NEWS)?;
        Ok(Self { socket, port })
    }

    /// Sets the longest wait of [`NetlinkSocket::receive`].
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(patience))
    }

    /// A socket that another process has opened, with all that the kernel knows of it.
    ///
    /// # Errors
    /// When it is no socket of netlink.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(socket);
        if socket.domain()? != Domain::from(libc::AF_NETLINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no socket of netlink"));
        }
        let port = own_port(&socket)?;
        Ok(Self { socket, port })
    }

    /// The number by which the kernel knows this socket, for instance as the owner of a table.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Sends one buffer of messages.
    ///
    /// # Errors
    /// As send(2): `EMSGSIZE` for more than the system's send buffer takes.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        let sent = (&self.socket).write(request)?;
        if sent == request.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives one datagram of messages and returns its length in bytes.
    ///
    /// # Errors
    /// As recv(2); `WouldBlock` when no answer comes within five seconds, or [`NetlinkSocket::set_patience`].
    pub fn receive(&self, answer: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(answer)
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Has the kernel choose a port, and returns it; with notices to these groups.
fn bind(socket: &Socket, groups: u32) -> io::Result<u32> {
    // SAFETY: the structure consists of numbers, for all of which zero is valid.
    let mut own: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    own.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or_default();
    own.nl_groups = groups;
    // SAFETY: the descriptor is open; the address is as long as it says and outlives the call, which only reads it.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const own).cast(), NL_LEN) };
    if bound == -1 {
        return Err(io::Error::last_os_error());
    }
    own_port(socket)
}

/// The port of a bound socket.
fn own_port(socket: &Socket) -> io::Result<u32> {
    let fd = socket.as_raw_fd();
    // SAFETY: the structure consists of numbers, for all of which zero is valid.
    let mut own: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut len = NL_LEN;
    // SAFETY: the kernel writes at most `len` bytes to the address, which has as many.
    let named = unsafe { libc::getsockname(fd, (&raw mut own).cast(), &raw mut len) };
    if named == -1 { Err(io::Error::last_os_error()) } else { Ok(own.nl_pid) }
}

#[expect(clippy::cast_possible_truncation, reason = "12 bytes")]
const NL_LEN: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered() {
        let socket = NetlinkSocket::open(Family::Route).unwrap();
        assert_ne!(socket.port(), 0);
        // RTM_GETLINK of the interface with index 1, which is the loopback.
        let mut request = vec![32, 0, 0, 0, 18, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        request.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        socket.send(&request).unwrap();
        let mut answer = [0; 8192];
        let len = socket.receive(&mut answer).unwrap();
        assert!(len > 32);
        assert_eq!((&answer[4..6], &answer[8..12]), (&16_u16.to_ne_bytes()[..], &[7, 0, 0, 0][..]));
    }
}
