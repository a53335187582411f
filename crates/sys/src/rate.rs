//! The sending rate of a TCP socket: its congestion control, and a rate that the system does not exceed.

use std::io;
use std::net::IpAddr;
use std::sync::LazyLock;

use crate::handle::AsFd;

/// Chooses the congestion control of a socket by its name.
///
/// # Errors
/// The error of `setsockopt`: `NotFound` when the kernel has none of that name, `PermissionDenied` when it is kept for
/// the superuser; `Unsupported` on systems other than Linux.
pub fn set_congestion(socket: impl AsFd, name: &str) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_option(&socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes());
    #[cfg(not(target_os = "linux"))]
    unsupported((socket, name))
}

/// Whether the system's choice of congestion control sends by a timer, as all generations of BBR do.
static PACED: LazyLock<bool> = LazyLock::new(|| {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    name.is_ok_and(|name| name.starts_with("bbr"))
});

/// Congestion control that every Linux has and everybody may choose.
const UNPACED: &str = "reno";

/// Keeps the connections of a listener from being paced: for those whose path is this machine, or its own
/// network at most. A download through a virtual interface of this machine took 1,220 ns of processor time per KB with BBR,
/// and 780 with this and a larger MTU.
///
/// # Errors
/// The error of `setsockopt`; connections work, paced.
pub fn unpace(listener: impl AsFd) -> io::Result<()> {
    if !*PACED {
        return Ok(());
    }
    // The usual choice of Linux, which not everybody may choose.
    set_congestion(&listener, "cubic").or_else(|_| set_congestion(&listener, UNPACED))
}

/// Keeps connections with `peer` from being paced if they do not leave this machine; to be called before they begin, or
/// on their listener, whose connections inherit it.
///
/// If BBR is the system's choice it holds for loopback too, where there is no path to learn, and its timers cost
/// more than the bytes: a pair of relays took 1,300 ns of processor time per KB with it and 560 without.
///
/// # Errors
/// The error of `setsockopt`; the connection works, paced.
pub fn unpace_local(socket: impl AsFd, peer: IpAddr) -> io::Result<()> {
    if *PACED && peer.to_canonical().is_loopback() { set_congestion(socket, UNPACED) } else { Ok(()) }
}

/// Most bytes per second that a socket sends, under any congestion control; may be changed at any time.
///
/// # Errors
/// The error of `setsockopt`; `Unsupported` on systems other than Linux.
pub fn set_pacing_rate(socket: impl AsFd, rate: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // The kernel reads a machine word, which is all ones for no limit.
        let rate = usize::try_from(rate).unwrap_or(usize::MAX);
        set_option(&socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &rate.to_ne_bytes())
    }
    #[cfg(not(target_os = "linux"))]
    unsupported((socket, rate))
}

/// The rate that [`set_pacing_rate`] has set, in bytes per second; [`u64::MAX`] for no limit.
///
/// # Errors
/// The error of `getsockopt`; `Unsupported` on systems other than Linux.
pub fn pacing_rate(socket: impl AsFd) -> io::Result<u64> {
    #[cfg(target_os = "linux")]
    {
        let mut value = [0u8; size_of::<usize>()];
        get_option(&socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut value)?;
        let rate = usize::from_ne_bytes(value);
        Ok(if rate == usize::MAX { u64::MAX } else { u64::try_from(rate).unwrap_or(u64::MAX) })
    }
    #[cfg(not(target_os = "linux"))]
    unsupported(socket)
}

/// Bytes that a socket takes ahead of the sent bytes: beyond them it is not writable.
///
/// # Errors
/// The error of `setsockopt`; `Unsupported` on systems other than Linux.
pub fn set_unsent_limit(socket: impl AsFd, len: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &len.to_ne_bytes());
    #[cfg(not(target_os = "linux"))]
    unsupported((socket, len))
}

/// Rate of the congestion control `brutal` of the kernel module of that name (tcp-brutal 1.0.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brutal {
    /// Bytes per second that are sent, at any loss; at least [`Brutal::MIN_RATE`].
    pub rate: u64,
    /// Window in tenths of what the rate needs, 5 to 80.
    pub gain: u32,
}

impl Brutal {
    /// The name of the congestion control.
    pub const NAME: &str = "brutal";
    /// Least rate that the module takes.
    pub const MIN_RATE: u64 = 62_500;
    /// The module's option of `IPPROTO_TCP`.
    #[cfg(target_os = "linux")]
    const PARAMS: libc::c_int = 23301;

    /// The module's parameters: the rate at offset 0, 8 bytes; the gain at 8, 4 bytes; packed, in the host's byte order.
    pub fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.rate.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.gain.to_ne_bytes());
        bytes
    }

    /// Sets the rate of a socket whose congestion control is [`Brutal::NAME`]; may be changed at any time.
    ///
    /// # Errors
    /// The error of `setsockopt`: `ENOPROTOOPT` for a socket with another congestion control, `EINVAL` for values out
    /// of range; `Unsupported` on systems other than Linux.
    pub fn set(self, socket: impl AsFd) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return set_option(&socket, libc::IPPROTO_TCP, Self::PARAMS, &self.to_bytes());
        #[cfg(not(target_os = "linux"))]
        unsupported(socket)
    }
}

#[cfg(not(target_os = "linux"))]
use crate::tcp::unsupported;
#[cfg(target_os = "linux")]
use crate::tcp::{get_option, set_option};

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::tcp::congestion;

    fn socket() -> Socket {
        Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
    }

    #[test]
    fn rates_read_back() {
        let socket = socket();
        assert_eq!(pacing_rate(&socket).unwrap(), u64::MAX);
        for rate in [1, 1_250_000, u64::from(u32::MAX) - 1] {
            set_pacing_rate(&socket, rate).unwrap();
            assert_eq!(pacing_rate(&socket).unwrap(), rate);
        }
        set_pacing_rate(&socket, u64::MAX).unwrap();
        assert_eq!(pacing_rate(&socket).unwrap(), u64::MAX);
        set_unsent_limit(&socket, 1 << 17).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_what_leaves_the_machine_is_paced() {
        let default = congestion(socket()).unwrap();
        assert_eq!(*PACED, default.starts_with("bbr"));
        let name = |peer: &str| {
            let socket = socket();
            unpace_local(&socket, peer.parse().unwrap()).unwrap();
            congestion(&socket).unwrap()
        };
        assert_eq!(name("192.0.2.1"), default);
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(!name(local).starts_with("bbr"), "{local}");
        }
    }

    #[test]
    fn congestion_controls_are_chosen_by_name() {
        let socket = socket();
        // Part of every kernel.
        set_congestion(&socket, "reno").unwrap();
        assert_eq!(congestion(&socket).unwrap(), "reno");
        let error = set_congestion(&socket, "no-such-one").unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied), "{error}");
        assert_eq!(congestion(&socket).unwrap(), "reno");
    }

    /// The layout that the module reads: `struct { u64 rate; u32 cwnd_gain; } __packed`.
    #[test]
    fn parameters_of_the_module_are_twelve_bytes() {
        let bytes = Brutal { rate: 0x0102_0304_0506_0708, gain: 0x0a0b_0c0d }.to_bytes();
        let little = [8, 7, 6, 5, 4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a];
        let big = [1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0x0c, 0x0d];
        assert_eq!(bytes, if cfg!(target_endian = "little") { little } else { big });
    }

    /// The option is there only once the congestion control is.
    #[test]
    fn parameters_are_refused_under_another_congestion_control() {
        let socket = socket();
        set_congestion(&socket, "reno").unwrap();
        let error = Brutal { rate: Brutal::MIN_RATE, gain: 15 }.set(&socket).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
    }
}
