//! Options that every relayed connection gets, and what is said when an asked-for option is not to be had.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_model::TcpOptions;
use adit_sys::handle::AsFd;
use adit_sys::tcp::{FastOpenSupport, fast_open_support};
#[cfg(target_os = "linux")]
use socket2::{Domain, Protocol, Type};
use socket2::{SockRef, Socket, TcpKeepalive};
use thiserror::Error;

/// Unanswered probes after which a connection is given up; Go's default as well.
const KEEP_ALIVE_PROBES: u32 = 9;

/// Something that was asked for and is not to be had; the socket works without it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Warning {
    /// Listeners may not accept TCP Fast Open.
    #[error("TCP Fast Open is off for listeners (hint: sysctl -w net.ipv4.tcp_fastopen=3)")]
    FastOpenServer,
    /// Outgoing connections may not use TCP Fast Open.
    #[error("TCP Fast Open is off for outgoing connections (hint: sysctl -w net.ipv4.tcp_fastopen=3)")]
    FastOpenClient,
    /// The kernel has no such option, or refused it.
    #[error("TCP Fast Open is refused by the system: {0}")]
    FastOpenRefused(io::ErrorKind),
    /// The socket holds so few bytes of datagrams that bursts are lost.
    #[error(
        "the receive buffer for datagrams is small: {0} bytes (hint: raise the sysctl net.core.rmem_max to 8388608)"
    )]
    ReceiveBuffer(usize),
    /// The interface to send through does not exist, or may not be used. It may come later.
    #[error("nothing can be reached for now, interface {0}: {1} (hint: `ip link` shows what there is)")]
    Interface(Box<str>, io::ErrorKind),
    /// The address to send from is not one of this machine's. It may become one.
    #[error("nothing can be reached for now, bind-address {0}: {1} (hint: `ip address` shows what there is)")]
    Source(IpAddr, io::ErrorKind),
    /// Marks are kept for those with the right to administer the network.
    #[error("nothing can be reached for now, fwmark {0}: {1} (hint: it takes the capability CAP_NET_ADMIN)")]
    Mark(u32, io::ErrorKind),
    /// The kernel has no congestion control of that name, or keeps it for the superuser.
    #[error(
        "brutal is not to be had ({0}), so connections are paced at its rate and give way to loss (hint: load the kernel module tcp-brutal)"
    )]
    Brutal(io::ErrorKind),
    /// The system has no Multipath TCP.
    #[error(
        "Multipath TCP is not to be had ({0}), so connections have one path (hint: set the sysctl net.mptcp.enabled)"
    )]
    Multipath(io::ErrorKind),
    /// The system has no IPv6.
    #[error("IPv6 is not available: listening on IPv4 alone")]
    NoIpv6,
}

/// Sets what every relayed connection has: no delay of small segments, keep-alive probes, and buffers where their
/// size is given. A listener hands it on to the connections that it accepts.
///
/// # Errors
/// The system's error; a connection that the peer has already reset may give one on some systems.
pub fn tune(stream: &impl AsFd, options: &TcpOptions) -> io::Result<()> {
    let TcpOptions { keep_alive, send_buffer, receive_buffer, multipath: _ } = *options;
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let keep_alive = TcpKeepalive::new().with_time(keep_alive).with_interval(keep_alive);
    socket.set_tcp_keepalive(&keep_alive.with_retries(KEEP_ALIVE_PROBES))?;
    if let Some(len) = send_buffer {
        socket.set_send_buffer_size(len as usize)?;
    }
    if let Some(len) = receive_buffer {
        socket.set_recv_buffer_size(len as usize)?;
    }
    Ok(())
}

/// A non-blocking socket for Multipath TCP with addresses like `addr`.
///
/// # Errors
/// The system's error if it has no such protocol, or has switched it off.
pub(crate) fn multipath_socket(addr: SocketAddr) -> io::Result<Socket> {
    #[cfg(target_os = "linux")]
    {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::MPTCP))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _unused = addr;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The reason why connections cannot have several paths, if `options` ask for them.
pub(crate) fn check_multipath(options: &TcpOptions) -> Option<Warning> {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let error = options.multipath.then(|| multipath_socket(any).err())??;
    Some(Warning::Multipath(error.kind()))
}

/// Makes closing the connection reset it and drop what is still unsent.
///
/// # Errors
/// The system's error.
pub fn reset_on_close(stream: &impl AsFd) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Shares the port with other sockets that ask for it too.
///
/// # Errors
/// The system's error; `Unsupported` where ports are not shared so.
pub(crate) fn share_port(socket: &Socket) -> io::Result<()> {
    set_shared(socket, true)
}

/// Whether the port of a socket is shared with others that ask for it, also once it is bound.
///
/// # Errors
/// As [`share_port`].
pub(crate) fn set_shared(socket: &Socket, is_shared: bool) -> io::Result<()> {
    #[cfg(unix)]
    return socket.set_reuse_port(is_shared);
    #[cfg(not(unix))]
    {
        let _ = (socket, is_shared);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this system does not share ports"))
    }
}

/// Binds a socket to an interface by name.
///
/// # Errors
/// The system's error (`ENODEV`: no such interface); `Unsupported` if the system has no such option.
pub(crate) fn bind_interface(socket: &impl AsFd, interface: &str) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return SockRef::from(socket).bind_device(Some(interface.as_bytes()));
    #[cfg(not(target_os = "linux"))]
    {
        let _unused = (socket, interface);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Lets a socket that is not bound yet have addresses that are not this machine's, for what the firewall brings to it.
///
/// # Errors
/// The system's error: `PermissionDenied` without `CAP_NET_ADMIN` or `CAP_NET_RAW`; `Unsupported` if the system has no
/// such option.
pub(crate) fn set_transparent(socket: &impl AsFd, is_v6: bool) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let socket = SockRef::from(socket);
        if is_v6 { socket.set_ip_transparent_v6(true) } else { socket.set_ip_transparent_v4(true) }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _unused = (socket, is_v6);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The reason why listeners cannot accept TCP Fast Open, if there is one.
pub fn check_fast_open_server() -> Option<Warning> {
    server_warning(fast_open_support())
}

/// The reason why outgoing connections cannot use TCP Fast Open, if there is one.
pub fn check_fast_open_client() -> Option<Warning> {
    client_warning(fast_open_support())
}

fn server_warning(support: Option<FastOpenSupport>) -> Option<Warning> {
    support.is_some_and(|support| !support.server).then_some(Warning::FastOpenServer)
}

fn client_warning(support: Option<FastOpenSupport>) -> Option<Warning> {
    support.is_some_and(|support| !support.client).then_some(Warning::FastOpenClient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_open_warnings_follow_the_setting() {
        let only_client = Some(FastOpenSupport { client: true, server: false });
        let only_server = Some(FastOpenSupport { client: false, server: true });
        assert_eq!(server_warning(only_client), Some(Warning::FastOpenServer));
        assert_eq!(server_warning(only_server), None);
        assert_eq!(client_warning(only_server), Some(Warning::FastOpenClient));
        assert_eq!(client_warning(only_client), None);
        assert_eq!((server_warning(None), client_warning(None)), (None, None));
    }

    #[test]
    fn a_tuned_socket_has_its_options() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let keep_alive = Duration::from_secs(7);
        let buffers =
            TcpOptions { send_buffer: Some(50_000), receive_buffer: Some(60_000), ..TcpOptions::default() };
        tune(&socket, &TcpOptions { keep_alive, ..buffers }).unwrap();
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), keep_alive);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), keep_alive);
        // Linux doubles them for what it keeps beside the bytes.
        let factor = if cfg!(target_os = "linux") { 2 } else { 1 };
        assert_eq!(socket.send_buffer_size().unwrap(), 50_000 * factor);
        assert_eq!(socket.recv_buffer_size().unwrap(), 60_000 * factor);
        reset_on_close(&socket).unwrap();
        assert_eq!(socket.linger().unwrap(), Some(Duration::ZERO));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_unknown_interface_is_an_error() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(bind_interface(&socket, "no-such-if0").is_err());
    }
}
