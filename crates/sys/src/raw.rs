//! Kernel calls for a process that writes TCP segments itself (raw(7), socket(7)): filters, so that the
//! kernel's own TCP keeps out of it.
//!
//! A filter on a socket of the kernel's TCP decides which segments its state machine ever sees. One that sees none
//! acknowledges nothing, resets nothing and holds nothing, while the port stays taken; so no firewall is needed, and
//! nothing is left behind when the process ends. Raw sockets have a copy of everything that comes, even if others drop it.

use std::io;
use std::os::fd::AsFd;

use crate::packet::{self, op};

/// The flags byte of TCP.
const FLAGS_AT: u32 = 13;
const SYN: u32 = 0x02;
const RST: u32 = 0x04;
/// Whole.
const ALL: u32 = 0xffff;

/// Lets a listener of the kernel's TCP see nothing but requests for connections. It answers them, and hears nothing
/// more of the peer that asked; with a single repetition of the answer (`TCP_SYNCNT`) it forgets that after three
/// seconds.
///
/// # Errors
/// The error of `setsockopt`.
pub fn answer_only(listener: impl AsFd) -> io::Result<()> {
    crate::tcp::set_option(&listener, libc::IPPROTO_TCP, libc::TCP_SYNCNT, &1_i32.to_ne_bytes())?;
    keep_flags(listener, SYN)
}

/// Lets a socket that is about to connect see nothing but the answer to that.
///
/// # Errors
/// The error of `setsockopt`.
pub fn connect_only(socket: impl AsFd) -> io::Result<()> {
    keep_flags(socket, SYN | RST)
}

/// Lets a connection of the kernel's TCP see nothing any more.
///
/// # Errors
/// The error of `setsockopt`.
pub fn silence(socket: impl AsFd) -> io::Result<()> {
    packet::attach(socket, &[op(packet::BPF_RET, 0, 0, 0)])
}

fn keep_flags(socket: impl AsFd, flags: u32) -> io::Result<()> {
    let program = [
        op(packet::BPF_LDB_ABS, 0, 0, FLAGS_AT),
        op(packet::BPF_JSET, 0, 1, flags),
        op(packet::BPF_RET, 0, 0, ALL),
        op(packet::BPF_RET, 0, 0, 0),
    ];
    packet::attach(socket, &program)
}

/// Lets only segments to `port` come to a raw socket for TCP, and of those the ones whose sender's port leaves `index`
/// when it is divided by `count`, which is not 0: so that several sockets share the work.
///
/// # Errors
/// The error of `setsockopt`.
pub fn keep_port(socket: impl AsFd, is_v6: bool, port: u16, (index, count): (u32, u32)) -> io::Result<()> {
    // IPv4 comes with its header, IPv6 without.
    let header = if is_v6 { op(BPF_LDX_NUMBER, 0, 0, 0) } else { op(packet::BPF_LDX_HEADER, 0, 0, 0) };
    let program = [
        header,
        op(packet::BPF_LDH_IND, 0, 0, 2),
        op(packet::BPF_JEQ, 0, 4, port.into()),
        op(packet::BPF_LDH_IND, 0, 0, 0),
        op(BPF_MOD, 0, 0, count),
        op(packet::BPF_JEQ, 0, 1, index),
        op(packet::BPF_RET, 0, 0, ALL),
        op(packet::BPF_RET, 0, 0, 0),
    ];
    packet::attach(socket, &program)
}

/// `include/uapi/linux/bpf_common.h`: X becomes a number; A is divided and the rest is kept.
const BPF_LDX_NUMBER: u16 = 0x01;
const BPF_MOD: u16 = 0x94;

/// Whether this process may open raw sockets, and put filters on sockets of the kernel's TCP.
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_RAW`, and on kernels that take `CAP_NET_ADMIN` for a filter on a socket of TCP
/// (seen on Linux 6.18) without that.
pub fn check() -> io::Result<()> {
    let socket = |kind| socket2::Socket::new(socket2::Domain::IPV4, kind, Some(socket2::Protocol::TCP));
    socket(socket2::Type::RAW)?;
    silence(socket(socket2::Type::STREAM)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn is_allowed() -> bool {
        let allowed = check();
        if let Err(error) = &allowed {
            adit_testkit::skipped(format_args!(
                "no right to raw sockets and to filters on sockets of TCP: {error}"
            ));
        }
        allowed.is_ok()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "filters need sockets")]
    fn a_silenced_connection_hears_nothing() {
        if !is_allowed() {
            return;
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"heard").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        silence(&server).unwrap();
        client.write_all(b"not heard").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(server.read(&mut [0]).is_err());
        assert!(crate::tcp::info(&client).unwrap().unacked > 0, "nor acknowledged");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "filters need sockets")]
    fn a_listener_answers_and_no_more() {
        if !is_allowed() {
            return;
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        answer_only(&listener).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"not heard").unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
