//! Sockets that see every frame of an interface (packet(7)). They take `CAP_NET_RAW`.

#![expect(clippy::cast_possible_truncation, reason = "small constants and sizes of the kernel's interface")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The kernel's notes on one received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes on the wire.
    pub original: usize,
    /// When the kernel saw it, since 1970.
    pub time: Duration,
}

/// Opens a socket for all frames of `interface`. On loopback, which has every frame twice, those on their way out
/// are left out; elsewhere both directions are seen.
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_RAW`, `NotFound` if there is no such interface.
pub fn open(interface: &str) -> io::Result<OwnedFd> {
    let socket = bound(interface, 0)?;
    if interface == "lo" {
        set(&socket, PACKET_IGNORE_OUTGOING, 1)?;
    }
    Ok(socket)
}

/// Opens `interface` as one end of a wire: each read takes a frame that came, each write sends one. Neither waits.
///
/// # Errors
/// As [`open`].
pub fn open_end(interface: &str) -> io::Result<File> {
    let socket = bound(interface, libc::SOCK_NONBLOCK)?;
    set(&socket, PACKET_IGNORE_OUTGOING, 1)?;
    Ok(socket.into())
}

fn bound(interface: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
    let index = index_of(interface)?;
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, libc::c_int::from(protocol)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a `sockaddr_ll` consists of numbers, for all of which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer is to a local of the length given.
    if unsafe { libc::bind(fd, (&raw const address).cast(), len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Lets only TCP and UDP frames from or to `port` come, cut to `most` bytes. IPv6 and other frames that are not IPv4 come as well:
/// their ports have no fixed place.
///
/// # Errors
/// The error of `setsockopt`.
pub fn keep_port(socket: impl AsFd, port: u16, most: u16) -> io::Result<()> {
    let (port, most) = (u32::from(port), u32::from(most));
    // Loads go from the start of an Ethernet frame; jumps count instructions.
    let program = [
        op(BPF_LDH_ABS, 0, 0, 12),
        op(BPF_JEQ, 0, 10, 0x0800),
        op(BPF_LDB_ABS, 0, 0, 23),
        op(BPF_JEQ, 1, 0, 6),
        op(BPF_JEQ, 0, 8, 17),
        op(BPF_LDH_ABS, 0, 0, 20),
        op(BPF_JSET, 6, 0, 0x1fff),
        op(BPF_LDX_HEADER, 0, 0, 14),
        op(BPF_LDH_IND, 0, 0, 14),
        op(BPF_JEQ, 2, 0, port),
        op(BPF_LDH_IND, 0, 0, 16),
        op(BPF_JEQ, 0, 1, port),
        op(BPF_RET, 0, 0, most),
        op(BPF_RET, 0, 0, 0),
    ];
    attach(socket, &program)
}

/// Attaches a classic filter of at most 4,096 steps.
pub(crate) fn attach(socket: impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
    attach_as(&socket, libc::SO_ATTACH_FILTER, program)
}

/// The same as the program of the socket option `name`, which takes one.
pub(crate) fn attach_as(
    socket: &impl AsFd,
    name: libc::c_int,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<libc::sock_fprog>() as libc::socklen_t);
    let value = (&raw const filter).cast();
    // SAFETY: the pointer is to a local of the length given, which points to `program` with its length; the kernel
    // copies both before it returns and writes to neither.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, value, len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// Operations of the classic packet filter: `include/uapi/linux/bpf_common.h`.
const BPF_LDH_ABS: u16 = 0x28;
pub(crate) const BPF_LDB_ABS: u16 = 0x30;
pub(crate) const BPF_LDH_IND: u16 = 0x48;
pub(crate) const BPF_LDX_HEADER: u16 = 0xb1;
pub(crate) const BPF_JEQ: u16 = 0x15;
pub(crate) const BPF_JSET: u16 = 0x45;
pub(crate) const BPF_RET: u16 = 0x06;

pub(crate) const fn op(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Receives one frame into `buffer`; waits for it if the socket blocks.
///
/// # Errors
/// As recv(2): `WouldBlock` if none waits.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Frame> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the pointer and the length are those of a buffer that is borrowed exclusively.
    let len = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC) };
    let original = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: this request writes one `timespec` to the pointer, which is to a local of that type.
    if unsafe { libc::ioctl(fd, SIOCGSTAMPNS as _, &raw mut time) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999);
    let time = Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos);
    Ok(Frame { len: original.min(buffer.len()), original, time })
}

/// Frames that were lost for want of room since the last call.
///
/// # Errors
/// The error of `getsockopt`.
pub fn take_drops(socket: impl AsFd) -> io::Result<u32> {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    let value = (&raw mut stats).cast();
    // SAFETY: the pointers are to locals, and the length is that of the first.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, value, &raw mut len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(stats.tp_drops) }
}

/// `include/uapi/linux/if_packet.h`; Linux 4.20.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// `include/uapi/asm-generic/sockios.h`: the time of the last frame received, in nanoseconds.
const SIOCGSTAMPNS: libc::c_int = 0x8907;

fn index_of(interface: &str) -> io::Result<libc::c_int> {
    let name = CString::new(interface).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the pointer is to a string that ends with a zero and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    match libc::c_int::try_from(index) {
        Ok(index) if index > 0 => Ok(index),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, format!("no such interface: {interface}"))),
    }
}

fn set(socket: &OwnedFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let pointer = (&raw const value).cast();
    // SAFETY: the pointer is to a local of the length given.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, pointer, len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn unknown_interfaces_are_named() {
        let error = open("no-such-if").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("no-such-if"));
        assert!(open("with\0zero").is_err());
    }

    #[test]
    #[ignore = "needs CAP_NET_RAW"]
    #[expect(clippy::disallowed_methods, reason = "a packet socket needs traffic")]
    fn loopback_frames_come_once() {
        let socket = open("lo").unwrap();
        let [a, b] = [0; 2].map(|_| UdpSocket::bind(("127.0.0.1", 0)).unwrap());
        a.send_to(b"seen by a packet socket", b.local_addr().unwrap()).unwrap();
        b.send_to(b"the end", a.local_addr().unwrap()).unwrap();
        let (mut buffer, mut seen) = ([0; 2048], 0);
        loop {
            let frame = receive(&socket, &mut buffer).unwrap();
            let bytes = &buffer[..frame.len];
            seen += usize::from(bytes.ends_with(b"seen by a packet socket"));
            if bytes.ends_with(b"the end") {
                break;
            }
        }
        assert_eq!(seen, 1);
        assert_eq!(take_drops(&socket).unwrap(), 0);
    }

    #[test]
    #[ignore = "needs CAP_NET_RAW"]
    #[expect(clippy::disallowed_methods, reason = "a packet socket needs traffic")]
    fn only_one_port_comes_cut_short() {
        let [a, b, c] = [0; 3].map(|_| UdpSocket::bind(("127.0.0.1", 0)).unwrap());
        let to = b.local_addr().unwrap();
        let socket = open("lo").unwrap();
        keep_port(&socket, to.port(), 60).unwrap();
        a.send_to(&[7; 500], c.local_addr().unwrap()).unwrap();
        a.send_to(&[8; 500], to).unwrap();
        b.send_to(&[9; 500], a.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 2048];
        for payload in [8, 9] {
            let frame = receive(&socket, &mut buffer).unwrap();
            assert_eq!((frame.len, buffer[59]), (60, payload));
        }
    }
}
