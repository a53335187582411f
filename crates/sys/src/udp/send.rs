use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use super::MAX_SEGMENTS;
use super::control::Control;
use super::name::Name;

/// Everything about a message but its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Destination; `None` on a connected socket. Of the socket's family, mapped if need be.
    pub to: Option<SocketAddr>,
    /// The source address, where the socket has several; of the socket's family, mapped if need be.
    pub from: Option<IpAddr>,
    /// Traffic class; 0 for the socket's own.
    pub class: u8,
    /// Cuts the message into datagrams of this many bytes; the last one may be shorter.
    pub segment: Option<u16>,
}

/// Arrays for sending up to a fixed number of messages per call.
pub struct Sender {
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

impl Sender {
    /// Arrays for `capacity` messages of one part each, or fewer that are gathered from more.
    pub fn new(capacity: usize) -> Self {
        let header = libc::mmsghdr {
            // SAFETY: a `msghdr` consists of numbers and pointers, for all of which zero is valid.
            msg_hdr: unsafe { std::mem::zeroed() },
            msg_len: 0,
        };
        let parts = capacity.max(4 * MAX_SEGMENTS);
        Self {
            headers: vec![header; capacity].into(),
            parts: vec![libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; parts].into(),
            names: vec![Name::EMPTY; capacity].into(),
            controls: vec![Control::EMPTY; capacity].into(),
        }
    }

    /// Sends messages in order, each gathered from at most [`MAX_SEGMENTS`] parts, without blocking. Returns how many
    /// were sent, which may be fewer than were given.
    ///
    /// # Errors
    /// As sendmmsg(2), if the first one was not sent.
    ///
    /// # Panics
    /// If a message has more parts.
    pub fn send<'a, P: Iterator<Item = &'a [u8]>>(
        &mut self,
        socket: impl AsFd,
        messages: impl Iterator<Item = (Head, P)>,
    ) -> io::Result<usize> {
        let count = self.prepare(messages, self.headers.len());
        if count == 0 {
            return Ok(0);
        }
        let fd = socket.as_fd().as_raw_fd();
        let headers = self.headers.as_mut_ptr();
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _;
        let len = libc::c_uint::try_from(count).unwrap_or(libc::c_uint::MAX);
        // SAFETY: the descriptor is borrowed and thus open. The first `count` headers point to names, controls and
        // parts of this struct, with their lengths, and the parts to bytes that are borrowed for `'a`, which outlives
        // this call. The kernel writes to the headers alone.
        let sent = unsafe { libc::sendmmsg(fd, headers, len, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// As [`Sender::send`] with sendmsg(2) and the first message alone, for systems that refuse sendmmsg(2).
    ///
    /// # Errors
    /// As sendmsg(2).
    ///
    /// # Panics
    /// If the message has more than [`MAX_SEGMENTS`] parts.
    pub fn send_one<'a, P: Iterator<Item = &'a [u8]>>(
        &mut self,
        socket: impl AsFd,
        messages: impl Iterator<Item = (Head, P)>,
    ) -> io::Result<usize> {
        if self.prepare(messages, 1) == 0 {
            return Ok(0);
        }
        let fd = socket.as_fd().as_raw_fd();
        let header = &raw const self.headers[0].msg_hdr;
        // SAFETY: as in `send`, for the first header.
        let sent = unsafe { libc::sendmsg(fd, header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) }
    }

    /// Fills the arrays from `messages`, at most `limit` of them, and returns how many fitted.
    fn prepare<'a, P: Iterator<Item = &'a [u8]>>(
        &mut self,
        mut messages: impl Iterator<Item = (Head, P)>,
        limit: usize,
    ) -> usize {
        let (mut count, mut part) = (0, 0);
        while count < limit && self.parts.len() - part >= MAX_SEGMENTS {
            let Some((head, bytes)) = messages.next() else { break };
            let first = part;
            for bytes in bytes {
                assert!(part - first < MAX_SEGMENTS, "a message of too many parts");
                // The kernel only reads from it.
                self.parts[part] =
                    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                part += 1;
            }
            let control = &mut self.controls[count];
            control.clear();
            head.write(control);
            let (control, control_len) = control.filled();
            let header = &mut self.headers[count].msg_hdr;
            header.msg_iov = self.parts[first..].as_mut_ptr();
            header.msg_iovlen = (part - first) as _;
            header.msg_control = control;
            header.msg_controllen = control_len as _;
            (header.msg_name, header.msg_namelen) = (ptr::null_mut(), 0);
            if let Some(to) = head.to {
                (self.names[count], header.msg_namelen) = Name::new(to);
                header.msg_name = (&raw mut self.names[count]).cast();
            }
            count += 1;
        }
        count
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.headers.len()).finish_non_exhaustive()
    }
}

impl Head {
    fn write(&self, control: &mut Control) {
        if let Some(segment) = self.segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        if self.class != 0 {
            let class = libc::c_int::from(self.class).to_ne_bytes();
            match self.to {
                Some(SocketAddr::V6(to)) if to.ip().to_ipv4_mapped().is_none() => {
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
                }
                Some(_) | None => control.push(libc::IPPROTO_IP, libc::IP_TOS, &class),
            }
        }
        match self.from {
            // struct in_pktinfo: interface, source address, unused.
            Some(IpAddr::V4(from)) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&from.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: address, interface.
            Some(IpAddr::V6(from)) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&from.octets());
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            None => {}
        }
    }
}
