use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use super::control::{Control, int};
use super::name::Name;

/// The kernel's notes on one received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Bytes in its buffer.
    pub len: usize,
    /// Its sender.
    pub from: SocketAddr,
    /// Its destination, if [`super::report_destination`] is on; IPv4 never in mapped form.
    pub to: Option<IpAddr>,
    /// Address and port that it was sent to, if [`super::report_original`] is on; IPv4 never in mapped form.
    pub original: Option<SocketAddr>,
    /// If set, the buffer holds several datagrams of so many bytes each, the last of which may be shorter.
    pub stride: Option<u16>,
    /// Traffic class, if [`super::report_class`] is on.
    pub class: u8,
    /// Datagrams lost for want of room since the socket was made, if [`super::report_drops`] is on and there were
    /// any.
    pub dropped: Option<u32>,
    /// The datagram was longer than its buffer.
    pub truncated: bool,
}

/// Arrays for receiving up to a fixed number of messages per call.
pub struct Receiver {
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

const EMPTY_HEADER: libc::mmsghdr = libc::mmsghdr {
    // SAFETY: a `msghdr` consists of numbers and pointers, for all of which zero is valid.
    msg_hdr: unsafe { std::mem::zeroed() },
    msg_len: 0,
};

impl Receiver {
    /// Arrays for `capacity` messages.
    pub fn new(capacity: usize) -> Self {
        Self {
            headers: vec![EMPTY_HEADER; capacity].into(),
            parts: vec![libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; capacity].into(),
            names: vec![Name::EMPTY; capacity].into(),
            controls: vec![Control::EMPTY; capacity].into(),
        }
    }

    /// Receives what waits, one message per buffer, without blocking; returns how many came. Fewer than there are
    /// buffers means that no more wait.
    ///
    /// # Errors
    /// As recvmmsg(2): `WouldBlock` if nothing waits, or an error that an earlier datagram brought upon the socket.
    pub fn receive<'b>(
        &mut self,
        socket: impl AsFd,
        buffers: impl Iterator<Item = &'b mut [u8]>,
    ) -> io::Result<usize> {
        let count = self.prepare(buffers);
        let fd = socket.as_fd().as_raw_fd();
        let headers = self.headers.as_mut_ptr();
        let flags = libc::MSG_DONTWAIT as _;
        let len = libc::c_uint::try_from(count).unwrap_or(libc::c_uint::MAX);
        // SAFETY: the descriptor is borrowed and thus open. The first `count` headers point to names, controls and
        // parts of this struct, with their lengths, and the parts to buffers that are borrowed exclusively for `'b`,
        // which outlives this call.
        let received = unsafe { libc::recvmmsg(fd, headers, len, flags, ptr::null_mut()) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// As [`Receiver::receive`] with recvmsg(2) and one buffer, for systems that refuse recvmmsg(2).
    ///
    /// # Errors
    /// As recvmsg(2).
    pub fn receive_one(&mut self, socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
        if self.prepare(std::iter::once(buffer)) == 0 {
            return Ok(0);
        }
        let fd = socket.as_fd().as_raw_fd();
        let header = &raw mut self.headers[0].msg_hdr;
        // SAFETY: as in `receive`, for the first header and `buffer`.
        let received = unsafe { libc::recvmsg(fd, header, libc::MSG_DONTWAIT) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        self.headers[0].msg_len = libc::c_uint::try_from(received).unwrap_or(libc::c_uint::MAX);
        Ok(1)
    }

    /// The notes on message `at` of the last call; `None` beyond those, and without a usable sender.
    pub fn meta(&self, at: usize) -> Option<Meta> {
        let header = self.headers.get(at)?;
        let from = self.names[at].read()?;
        let mut meta = Meta {
            len: header.msg_len as usize,
            from,
            to: None,
            original: None,
            stride: None,
            class: 0,
            dropped: None,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "narrower with musl")]
        let control_len = header.msg_hdr.msg_controllen as usize;
        for (level, kind, data) in self.controls[at].messages(control_len) {
            meta.note(level, kind, data);
        }
        Some(meta)
    }

    fn prepare<'b>(&mut self, buffers: impl Iterator<Item = &'b mut [u8]>) -> usize {
        let mut count = 0;
        for (at, buffer) in buffers.take(self.headers.len()).enumerate() {
            self.names[at] = Name::EMPTY;
            self.parts[at] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let (control, control_len) = self.controls[at].free();
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = Name::LEN;
            header.msg_iov = &raw mut self.parts[at];
            header.msg_iovlen = 1;
            header.msg_control = control;
            header.msg_controllen = control_len as _;
            header.msg_flags = 0;
            count = at + 1;
        }
        count
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("capacity", &self.headers.len()).finish_non_exhaustive()
    }
}

impl Meta {
    fn note(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.stride =
                    int(data).and_then(|stride| stride.try_into().ok()).filter(|stride| *stride > 0);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                self.dropped = data.first_chunk().map(|count| u32::from_ne_bytes(*count));
            }
            // One byte, although the option of the same name takes an int.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.class = int(data).and_then(|class| class.try_into().ok()).unwrap_or(0);
            }
            // struct in_pktinfo: interface, local address, destination of the header.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let ip = data.get(8..).and_then(|ip| ip.first_chunk());
                self.to = ip.map(|ip: &[u8; 4]| Ipv4Addr::from(*ip).into());
            }
            // struct in6_pktinfo: address, interface.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = data.first_chunk();
                self.to = ip.map(|ip: &[u8; 16]| IpAddr::from(Ipv6Addr::from(*ip)).to_canonical());
            }
            // struct sockaddr_in: family, port, address.
            (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) => {
                let ip = data.get(4..).and_then(|ip| ip.first_chunk());
                let ip = ip.map(|ip: &[u8; 4]| IpAddr::V4(Ipv4Addr::from(*ip)));
                self.original = ip.zip(port(data)).map(SocketAddr::from);
            }
            // struct sockaddr_in6: family, port, flow, address, scope.
            (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => {
                let ip = data.get(8..).and_then(|ip| ip.first_chunk());
                let ip = ip.map(|ip: &[u8; 16]| IpAddr::from(Ipv6Addr::from(*ip)).to_canonical());
                self.original = ip.zip(port(data)).map(SocketAddr::from);
            }
            _ => {}
        }
    }
}

/// The port of an address of either family.
fn port(data: &[u8]) -> Option<u16> {
    data.get(2..)?.first_chunk().map(|port| u16::from_be_bytes(*port))
}
