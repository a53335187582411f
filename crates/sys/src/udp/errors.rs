use std::io;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::control::{Control, int};
use super::name::Name;

/// The fate of a datagram that was sent earlier (ip(7), `IP_RECVERR`).
#[derive(Debug)]
pub struct QueuedError {
    /// The error, for instance `ECONNREFUSED` or `EMSGSIZE`.
    pub error: io::Error,
    /// Destination of the datagram.
    pub to: Option<SocketAddr>,
    /// With `EMSGSIZE`: bytes that the path takes, IP header included.
    pub mtu: Option<u32>,
}

/// Takes the oldest error from the socket's queue, `None` if there is none. Needs [`super::queue_errors`].
///
/// # Errors
/// As recvmsg(2).
pub fn take_error(socket: impl AsFd) -> io::Result<Option<QueuedError>> {
    let fd = socket.as_fd().as_raw_fd();
    let (mut name, mut control) = (Name::EMPTY, Control::EMPTY);
    let (control_at, control_len) = control.free();
    // SAFETY: a `msghdr` consists of numbers and pointers, for all of which zero is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = Name::LEN;
    header.msg_control = control_at;
    header.msg_controllen = control_len as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is borrowed and thus open; name and control outlive the call and are as long as the
    // header says, and there is no buffer for data.
    let received = unsafe { libc::recvmsg(fd, &raw mut header, flags) };
    if received == -1 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "narrower with musl")]
    let control_len = header.msg_controllen as usize;
    let mut found = QueuedError { error: io::ErrorKind::Other.into(), to: name.read(), mtu: None };
    for (level, kind, data) in control.messages(control_len) {
        let is_error = matches!(
            (level, kind),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        if is_error && let Some(errno) = int(data) {
            found.error = io::Error::from_raw_os_error(errno);
            let info = data.get(offset_of!(libc::sock_extended_err, ee_info)..).and_then(int);
            found.mtu = info.filter(|_| errno == libc::EMSGSIZE).and_then(|mtu| mtu.try_into().ok());
        }
    }
    Ok(Some(found))
}
