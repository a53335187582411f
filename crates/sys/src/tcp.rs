//! Options of TCP sockets that `socket2` does not cover.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::handle::AsFd;

/// Accepts TCP Fast Open on a socket that listens or will, with at most `queue` connections that have sent data but
/// not finished their handshake; 0 switches it off.
///
/// # Errors
/// The error of `setsockopt`; `Unsupported` on systems other than Linux.
pub fn set_fast_open(socket: impl AsFd, queue: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_int(&socket, libc::TCP_FASTOPEN, queue.try_into().unwrap_or(libc::c_int::MAX));
    #[cfg(not(target_os = "linux"))]
    unsupported((socket, queue))
}

/// The queue length that [`set_fast_open`] has set; 0 for none.
///
/// # Errors
/// The error of `getsockopt`; `Unsupported` on systems other than Linux.
pub fn fast_open(socket: impl AsFd) -> io::Result<u32> {
    #[cfg(target_os = "linux")]
    return get_int(&socket, libc::TCP_FASTOPEN).map(|queue| queue.try_into().unwrap_or(0));
    #[cfg(not(target_os = "linux"))]
    unsupported(socket)
}

/// Lets the next `connect` on this socket defer its SYN to the first write when a Fast Open cookie of the peer is
/// known. `connect` then reports success before anything was sent; the first write reports what went wrong.
///
/// # Errors
/// The error of `setsockopt`; `Unsupported` on systems other than Linux.
pub fn set_fast_open_connect(socket: impl AsFd, on: bool) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_int(&socket, libc::TCP_FASTOPEN_CONNECT, on.into());
    #[cfg(not(target_os = "linux"))]
    unsupported((socket, on))
}

/// Whether [`set_fast_open_connect`] is on.
///
/// # Errors
/// The error of `getsockopt`; `Unsupported` on systems other than Linux.
pub fn fast_open_connect(socket: impl AsFd) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    return get_int(&socket, libc::TCP_FASTOPEN_CONNECT).map(|on| on != 0);
    #[cfg(not(target_os = "linux"))]
    unsupported(socket)
}

/// Leaves the choice of a port to `connect` when this socket is bound to an address and port 0: connections to different
/// peers may then share one.
///
/// # Errors
/// The error of `setsockopt`; `Unsupported` on systems other than Linux.
pub fn set_bind_address_no_port(socket: impl AsFd) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1_i32.to_ne_bytes());
    #[cfg(not(target_os = "linux"))]
    unsupported(socket)
}

/// Has the listener that was the `nth` to listen on a port which several share (`SO_REUSEPORT`) take all connections that
/// begin from now on; `None` leaves the choice to the kernel, which spreads them by a hash. Any of the listeners may ask.
/// The kernel chooses if there is no `nth` listener.
///
/// # Errors
/// The error of `setsockopt`: `InvalidInput` for a listener that does not share its port; `Unsupported` on systems other
/// than Linux.
pub fn steer(listener: impl AsFd, nth: Option<u32>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use crate::packet::{BPF_RET, attach_as};

        // A number that no listener has makes the kernel choose.
        let program = [libc::sock_filter { code: BPF_RET, jt: 0, jf: 0, k: nth.unwrap_or(u32::MAX) }];
        attach_as(&listener, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
    }
    #[cfg(not(target_os = "linux"))]
    unsupported((listener, nth))
}

/// Has a listener meet no connection that begins from now on; those that wait to be accepted stay. It is bound to an
/// interface that does not exist.
///
/// # Errors
/// The error of `setsockopt`: `PermissionDenied` for a listener that is bound to an interface already, without
/// `CAP_NET_RAW`; `Unsupported` on systems other than Linux.
pub fn hide(listener: impl AsFd) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_option(&listener, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &i32::MAX.to_ne_bytes());
    #[cfg(not(target_os = "linux"))]
    unsupported(listener)
}

/// The traffic class (TOS of IPv4) of the packet that completed the handshake of an accepted connection; 0 if it has none.
///
/// # Errors
/// The error of `setsockopt` or `getsockopt`; `Unsupported` on systems other than Linux.
#[cfg(target_os = "linux")]
pub fn accepted_class(socket: impl AsFd, is_ipv6: bool) -> io::Result<u8> {
    /// `IPV6_2292PKTOPTIONS` of `include/uapi/linux/in6.h`; of IPv4 it is `IP_PKTOPTIONS`.
    const IPV6_OPTIONS: libc::c_int = 6;
    const IP_OPTIONS: libc::c_int = 9;
    /// Room for a header of a control message and an int, and for what else was asked for.
    const ROOM: usize = 256;
    let (level, receive, options, kind) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, IPV6_OPTIONS, libc::IPV6_TCLASS)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, IP_OPTIONS, libc::IP_TOS)
    };
    set_option(&socket, level, receive, &1_i32.to_ne_bytes())?;
    let mut control = [0; ROOM];
    let len = get_option(&socket, level, options, &mut control)?;
    Ok(class_in(control.get(..len).unwrap_or(&control), level, kind))
}

#[cfg(not(target_os = "linux"))]
#[expect(missing_docs, clippy::missing_errors_doc, reason = "as above")]
pub fn accepted_class(socket: impl AsFd, _is_ipv6: bool) -> io::Result<u8> {
    unsupported(socket)
}

/// The class in control messages: length (a word), level, kind and data, each message on a boundary of words.
#[cfg(target_os = "linux")]
fn class_in(mut control: &[u8], level: libc::c_int, kind: libc::c_int) -> u8 {
    const WORD: usize = size_of::<usize>();
    const HEAD: usize = WORD + 8;
    while let Some((head, _)) = control.split_at_checked(HEAD) {
        let word =
            |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map(libc::c_int::from_ne_bytes);
        let len = head.get(..WORD).and_then(|b| b.try_into().ok()).map_or(0, usize::from_ne_bytes);
        if len < HEAD {
            return 0;
        }
        if (word(WORD), word(WORD + 4)) == (Some(level), Some(kind)) {
            let data = control.get(HEAD..HEAD + 4).and_then(|b| b.try_into().ok());
            return data.map_or(0, |data| u8::try_from(libc::c_int::from_ne_bytes(data) & 0xff).unwrap_or(0));
        }
        let Some(next) = len.checked_next_multiple_of(WORD) else { return 0 };
        control = control.get(next..).unwrap_or_default();
    }
    0
}

/// The system's setting of TCP Fast Open, which limits every socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastOpenSupport {
    /// Outgoing connections may use it.
    pub client: bool,
    /// Listeners may accept it.
    pub server: bool,
}

/// Reads `net.ipv4.tcp_fastopen`, which holds for IPv6 too; `None` where it cannot be read.
pub fn fast_open_support() -> Option<FastOpenSupport> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").ok()?;
    parse_fast_open_support(&text)
}

/// Bits 0 and 1 of the setting; Linux `Documentation/networking/ip-sysctl.rst`, `tcp_fastopen`.
fn parse_fast_open_support(text: &str) -> Option<FastOpenSupport> {
    let bits: u32 = text.trim().parse().ok()?;
    Some(FastOpenSupport { client: bits & 1 != 0, server: bits & 2 != 0 })
}

/// Name of the congestion control that this socket uses.
///
/// # Errors
/// The error of `getsockopt`; `Unsupported` on systems other than Linux.
pub fn congestion(socket: impl AsFd) -> io::Result<String> {
    #[cfg(target_os = "linux")]
    {
        // TCP_CA_NAME_MAX of Linux.
        let mut name = [0u8; 16];
        let len = get_option(&socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name)?;
        let name = name[..len].split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }
    #[cfg(not(target_os = "linux"))]
    unsupported(socket)
}

/// A few numbers about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments sent that the peer has not acknowledged.
    pub unacked: u32,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Congestion window in segments.
    pub window: u32,
    /// Segments sent again since the connection began.
    pub retransmits: u32,
}

/// Reads [`TcpInfo`].
///
/// # Errors
/// The error of `getsockopt`; `Unsupported` on systems other than Linux.
pub fn info(socket: impl AsFd) -> io::Result<TcpInfo> {
    #[cfg(target_os = "linux")]
    {
        // The kernel copies as much of `struct tcp_info` as there is room for; these fields have not moved since
        // Linux 2.6.
        let mut raw = [0u8; size_of::<libc::tcp_info>()];
        get_option(&socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut raw)?;
        let field = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        Ok(TcpInfo {
            unacked: field(std::mem::offset_of!(libc::tcp_info, tcpi_unacked)),
            rtt: Duration::from_micros(field(std::mem::offset_of!(libc::tcp_info, tcpi_rtt)).into()),
            window: field(std::mem::offset_of!(libc::tcp_info, tcpi_snd_cwnd)),
            retransmits: field(std::mem::offset_of!(libc::tcp_info, tcpi_total_retrans)),
        })
    }
    #[cfg(not(target_os = "linux"))]
    unsupported(socket)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unsupported<T, A>(_arguments: A) -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn set_int(socket: &impl AsFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, name, &value.to_ne_bytes())
}

/// Sets an option to the bytes of a value.
#[cfg(target_os = "linux")]
pub(crate) fn set_option(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let len = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the descriptor is borrowed and thus open; `value` is `len` bytes long, or longer, and outlives the call,
    // which only reads it.
    let result = unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(target_os = "linux")]
fn get_int(socket: &impl AsFd, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value = [0u8; size_of::<libc::c_int>()];
    get_option(socket, libc::IPPROTO_TCP, name, &mut value)?;
    Ok(libc::c_int::from_ne_bytes(value))
}

/// Reads an option into `value` and returns how many bytes the kernel wrote, at most `value.len()`.
#[cfg(target_os = "linux")]
pub(crate) fn get_option(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut [u8],
) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let mut len = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the descriptor is borrowed and thus open; the kernel writes at most `len` bytes to `value`, which is at
    // least that long, and any bytes are valid there.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(value.len().min(len as usize)) }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn socket() -> Socket {
        Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
    }

    fn pair() -> (Socket, Socket) {
        let listener = socket();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        listener.listen(1).unwrap();
        let client = socket();
        client.connect(&listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (client, server)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_hidden_listener_keeps_those_who_wait_and_meets_nobody_else() {
        let listening = |ip: Ipv4Addr, port: u16| {
            let listener = socket();
            listener.set_reuse_port(true).unwrap();
            listener.bind(&SocketAddr::from((ip, port)).into()).unwrap();
            listener.listen(8).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        let narrow = listening(Ipv4Addr::LOCALHOST, 0);
        let at = narrow.local_addr().unwrap();
        let connect = || {
            let client = socket();
            client.connect(&at).map(|()| client)
        };
        let _waits = connect().unwrap();
        hide(&narrow).unwrap();
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let wide = listening(Ipv4Addr::UNSPECIFIED, at.as_socket().unwrap().port());
        let _later = connect().unwrap();
        assert!(narrow.accept().is_ok() && wide.accept().is_ok());
        assert!(narrow.accept().is_err() && wide.accept().is_err());
    }

    #[test]
    fn fast_open_options_read_back() {
        let listener = socket();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        set_fast_open(&listener, 64).unwrap();
        listener.listen(128).unwrap();
        assert_eq!(fast_open(&listener).unwrap(), 64);

        // Refused where net.ipv4.tcp_fastopen lacks the client bit.
        let client = socket();
        let allowed = fast_open_support().is_none_or(|support| support.client);
        assert_eq!(set_fast_open_connect(&client, true).is_ok(), allowed);
        assert_eq!(fast_open_connect(&client).unwrap(), allowed);
    }

    #[test]
    fn fast_open_setting_has_a_bit_per_side() {
        for (text, client, server) in [
            ("0\n", false, false),
            ("1\n", true, false),
            ("2\n", false, true),
            ("3", true, true),
            ("1027\n", true, true),
        ] {
            assert_eq!(parse_fast_open_support(text), Some(FastOpenSupport { client, server }), "{text:?}");
        }
        assert_eq!(parse_fast_open_support("on"), None);
    }

    #[test]
    fn congestion_control_has_a_name() {
        let name = congestion(socket()).unwrap();
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
    }

    #[test]
    fn info_of_a_fresh_connection() {
        let (client, _server) = pair();
        let info = info(&client).unwrap();
        assert_eq!((info.unacked, info.retransmits), (0, 0));
        assert!(
            info.window > 0 && info.rtt > Duration::ZERO && info.rtt < Duration::from_secs(1),
            "{info:?}"
        );
    }

    #[test]
    fn errors_carry_the_number() {
        let (not_tcp, _other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        let error = set_fast_open(&not_tcp, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn the_class_of_an_accepted_connection() {
        use std::net::Ipv6Addr;

        for (at, is_ipv6) in [
            (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), false),
            (SocketAddr::from((Ipv6Addr::LOCALHOST, 0)), true),
        ] {
            let domain = if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
            let listener = Socket::new(domain, Type::STREAM, None).unwrap();
            // A machine may have no IPv6.
            if listener.bind(&at.into()).is_err() {
                continue;
            }
            listener.listen(4).unwrap();
            for class in [0, 0xb8] {
                let client = Socket::new(domain, Type::STREAM, None).unwrap();
                let (level, name) = if is_ipv6 {
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                } else {
                    (libc::IPPROTO_IP, libc::IP_TOS)
                };
                set_option(&client, level, name, &libc::c_int::from(class).to_ne_bytes()).unwrap();
                client.connect(&listener.local_addr().unwrap()).unwrap();
                let (stream, _) = listener.accept().unwrap();
                assert_eq!(accepted_class(&stream, is_ipv6).unwrap(), class, "{at}");
            }
        }
    }

    #[test]
    fn control_messages_are_bounded() {
        let message = |len: usize, kind: libc::c_int, value: i32| {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend(libc::IPPROTO_IP.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
            bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
            bytes
        };
        let head = size_of::<usize>() + 8;
        let class = |bytes: &[u8]| class_in(bytes, libc::IPPROTO_IP, libc::IP_TOS);
        let both = [message(head + 4, libc::IP_TTL, 64), message(head + 4, libc::IP_TOS, 0x28)].concat();
        assert_eq!(class(&both), 0x28);
        for len in 0..both.len() - size_of::<usize>() / 2 {
            assert_eq!(class(&both[..len]), 0, "{len}");
        }
        assert_eq!(class(&message(0, libc::IP_TTL, 1)), 0);
        assert_eq!(class(&message(usize::MAX, libc::IP_TTL, 1)), 0);
    }
}
