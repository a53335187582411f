//! Datagram sockets of Linux: many datagrams per system call, segmentation offload, and the options that say what
//! became of a datagram.
//!
//! [`Receiver`] and [`Sender`] own the arrays that the kernel fills; a call allocates nothing.

mod control;
mod errors;
mod name;
mod receive;
mod send;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd};

pub use errors::{QueuedError, take_error};
pub use receive::{Meta, Receiver};
pub use send::{Head, Sender};

/// Most segments that one message is cut into. Kernels before 6.9 refuse more (`UDP_MAX_SEGMENTS`, then 1 << 6).
pub const MAX_SEGMENTS: usize = 64;

/// Most payload bytes of one datagram, and of one message that is to be cut into segments: what IPv4 leaves.
pub const MAX_PAYLOAD: usize = 65_507;

/// The kernel's treatment of a datagram that is larger than the path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragmentation {
    /// As the system is set up, which mostly is: fragment what is larger than the path is known to take.
    Allow,
    /// Refuse with `EMSGSIZE`, and set "don't fragment", so that the path's size is learned.
    Forbid,
}

/// Sets [`Fragmentation`] for both families that `socket` may serve.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_fragmentation(socket: impl AsFd, is_v6: bool, wanted: Fragmentation) -> io::Result<()> {
    let (v4, v6) = match wanted {
        Fragmentation::Allow => (libc::IP_PMTUDISC_WANT, libc::IPV6_PMTUDISC_WANT),
        Fragmentation::Forbid => (libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO),
    };
    if is_v6 {
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6)?;
    }
    set_int(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4)
}

/// Bytes that a datagram to the connected peer may have with its IP header, as far as is known.
///
/// # Errors
/// The error of `getsockopt`, `ENOTCONN` for a socket without a peer.
pub fn path_mtu(socket: impl AsFd, is_v6: bool) -> io::Result<usize> {
    let (level, name) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    get_int(&socket, level, name).map(|mtu| mtu.try_into().unwrap_or(0))
}

/// Makes room for `bytes` of waiting datagrams and returns how much there is. `SO_RCVBUFFORCE` goes beyond
/// `net.core.rmem_max` for those with `CAP_NET_ADMIN`. The kernel counts twice what is asked for, to pay for its own
/// book-keeping, and so does the result.
///
/// # Errors
/// The error of `setsockopt` or `getsockopt`.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<usize> {
    set_buffer(&socket, bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
}

/// As [`set_receive_buffer`], for datagrams on their way out.
///
/// # Errors
/// The error of `setsockopt` or `getsockopt`.
pub fn set_send_buffer(socket: impl AsFd, bytes: usize) -> io::Result<usize> {
    set_buffer(&socket, bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
}

/// Lets the kernel hand over several datagrams of one sender as one, with [`Meta::stride`]. Buffers then have to
/// hold 65,535 bytes.
///
/// # Errors
/// The error of `setsockopt`; kernels before 5.0 have no such option.
pub fn set_gro(socket: impl AsFd, on: bool) -> io::Result<()> {
    set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, on.into())
}

/// Whether datagrams of one sender are handed over as one.
pub fn has_gro(socket: impl AsFd) -> bool {
    get_int(&socket, libc::SOL_UDP, libc::UDP_GRO).is_ok_and(|on| on != 0)
}

/// Whether the kernel knows segmentation (4.18 and later). Nothing is changed.
pub fn knows_segments(socket: impl AsFd) -> bool {
    get_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Reports with each datagram how many were lost for want of room; [`Meta::dropped`]. A system without that count carries
/// datagrams as well, so its refusal is no error.
///
/// # Errors
/// Any other error of `setsockopt`.
pub fn report_drops(socket: impl AsFd) -> io::Result<()> {
    match set_int(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        done => done,
    }
}

/// Reports with each datagram the address it was sent to; [`Meta::to`].
///
/// # Errors
/// The error of `setsockopt`.
pub fn report_destination(socket: impl AsFd, is_v6: bool) -> io::Result<()> {
    if is_v6 {
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
    } else {
        set_int(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
    }
}

/// Reports with each datagram the address and port that its sender asked for, where the system's firewall has brought it
/// here (`TPROXY`); [`Meta::original`].
///
/// # Errors
/// The error of `setsockopt`.
pub fn report_original(socket: impl AsFd, is_v6: bool) -> io::Result<()> {
    if is_v6 {
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR, 1)?;
    }
    set_int(&socket, libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR, 1)
}

/// Reports with each datagram its traffic class, with the marks of congestion (RFC 3168); [`Meta::class`].
///
/// # Errors
/// The error of `setsockopt`.
pub fn report_class(socket: impl AsFd, is_v6: bool) -> io::Result<()> {
    if is_v6 {
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }
    set_int(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
}

/// Keeps what ICMP says about earlier datagrams for [`take_error`]. The next call on the socket then fails once with
/// the error, for any destination.
///
/// # Errors
/// The error of `setsockopt`.
pub fn queue_errors(socket: impl AsFd, is_v6: bool) -> io::Result<()> {
    if is_v6 {
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
    }
    set_int(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)
}

/// Sends without checksums, which makes the kernel refuse segments with `EINVAL`, as some devices and routes do with
/// `EIO`. For tests of the ways around it.
///
/// # Errors
/// The error of `setsockopt`.
#[doc(hidden)]
pub fn refuse_segments(socket: impl AsFd) -> io::Result<()> {
    set_int(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
}

/// Makes sendmmsg(2) and recvmmsg(2) fail with `ENOSYS` on this thread, for good, as a strict sandbox does. For tests
/// of the ways around them.
///
/// # Errors
/// The kernel's error where it has no filters.
#[doc(hidden)]
pub fn refuse_batches() -> io::Result<()> {
    /// Number of the system call in `struct seccomp_data`.
    const NUMBER_AT: u32 = 0;
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).expect("codes of steps are small"),
        jt,
        jf,
        k,
    };
    let is = |number: libc::c_long, jt, jf| {
        let number = u32::try_from(number).expect("numbers of system calls are small");
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, number)
    };
    let enosys = u32::try_from(libc::ENOSYS).expect("error numbers are positive");
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER_AT),
        is(libc::SYS_sendmmsg, 1, 0),
        is(libc::SYS_recvmmsg, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | enosys),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 5, filter: filter.as_mut_ptr() };
    let zero: libc::c_ulong = 0;
    let one: libc::c_ulong = 1;
    // SAFETY: PR_SET_NO_NEW_PRIVS takes numbers, passed in the width that the kernel reads.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) } == -1 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: PR_SET_SECCOMP reads the program, which has as many steps as it says and outlives the call.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_buffer(socket: &impl AsFd, bytes: usize, force: libc::c_int, plain: libc::c_int) -> io::Result<usize> {
    let wanted = bytes.try_into().unwrap_or(libc::c_int::MAX / 2);
    if set_int(socket, libc::SOL_SOCKET, force, wanted).is_err() {
        set_int(socket, libc::SOL_SOCKET, plain, wanted)?;
    }
    get_int(socket, libc::SOL_SOCKET, plain).map(|bytes| bytes.try_into().unwrap_or(0))
}

fn set_int(socket: &impl AsFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    const LEN: libc::socklen_t = 4;
    const { assert!(size_of::<libc::c_int>() == LEN as usize) };
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed and thus open; `value` is `LEN` bytes long and outlives the call, which
    // only reads it.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), LEN) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get_int(socket: &impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let fd = socket.as_fd().as_raw_fd();
    let mut value: libc::c_int = 0;
    let mut len: libc::socklen_t = 4;
    // SAFETY: the descriptor is borrowed and thus open; the kernel writes at most `len` bytes to `value`, which has
    // as many.
    let result = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
