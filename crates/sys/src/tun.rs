//! Network interfaces whose other end is this process (`Documentation/networking/tuntap.rst`), and what the kernel does
//! for an interface (ethtool). They take `CAP_NET_ADMIN`.

#![expect(clippy::cast_possible_truncation, reason = "small constants of the kernel's interface")]

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Opens the interface `name` in the network of the calling thread and makes it unless it exists. Each read takes one
/// IP packet that the kernel sends, each write hands it one; nothing goes before the packet, and the kernel cuts
/// segments itself. Neither waits. The interface ends with the file.
///
/// # Errors
/// `NotFound` without `/dev/net/tun`, `PermissionDenied` without the right, `InvalidInput` for a name that is too long.
pub fn open(name: &str) -> io::Result<File> {
    open_with(name, false).map(|(file, _)| file)
}

/// The packets that the kernel leaves to the far end of an interface to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// None, and there is no header in front of packets.
    Off,
    /// Segments of TCP. In front of each packet stands a header of 10 bytes (`struct virtio_net_hdr`).
    Tcp,
    /// Datagrams of UDP too; Linux 6.2 and later.
    TcpAndUdp,
}

/// An interface that [`open_offload`] has opened.
#[derive(Debug)]
pub struct Interface {
    /// Its packets. Reads and writes do not wait; each is one packet.
    pub file: File,
    /// Its name, where the kernel chose the number (`tun%d`).
    pub name: Box<str>,
    /// The best offload that the kernel gives, up to what was wanted.
    pub offload: Offload,
}

/// As [`open`], with as much offload as the kernel gives, `wanted` at most. Packets are up to 65,535 bytes long then, header
/// of offload not included.
///
/// # Errors
/// As [`open`].
pub fn open_offload(name: &str, wanted: Offload) -> io::Result<Interface> {
    if wanted > Offload::Off {
        let (file, name) = open_with(name, true)?;
        if let Some(offload) = set_offload(&file, wanted)? {
            return Ok(Interface { file, name, offload });
        }
        // Without it there would be a header that says nothing. The interface ends here, and begins again.
    }
    let (file, name) = open_with(name, false)?;
    Ok(Interface { file, name, offload: Offload::Off })
}

fn open_with(name: &str, has_header: bool) -> io::Result<(File, Box<str>)> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let mut request = Request::new(name)?;
    let header = if has_header { libc::IFF_VNET_HDR } else { 0 };
    request.value.flags = (libc::IFF_TUN | libc::IFF_NO_PI | header) as libc::c_short;
    request.make(file.as_raw_fd(), libc::TUNSETIFF as _)?;
    let name = request.name();
    Ok((file, name))
}

/// Whether the interface behind a file that [`open`] or [`open_offload`] gave is still there: somebody may have removed it.
///
/// # Errors
/// The error of reads and writes from then on (`EBADFD`); another one for a descriptor of something else.
pub fn check(file: &impl AsFd) -> io::Result<()> {
    ask(file).map(drop)
}

/// The interface behind a file that another process has opened, with the offload that the kernel gives it, up to `wanted`.
/// Whether there is a header in front of packets stays as it is.
///
/// # Errors
/// When the file is none of an interface, or the interface is gone.
pub fn adopt(file: File, wanted: Offload) -> io::Result<Interface> {
    let request = ask(&file)?;
    // SAFETY: the kernel has just written the flags.
    let flags = unsafe { request.value.flags };
    let name = request.name();
    let offload = if libc::c_int::from(flags) & libc::IFF_VNET_HDR == 0 {
        Offload::Off
    } else {
        set_offload(&file, wanted.max(Offload::Tcp))?.ok_or(io::ErrorKind::InvalidData)?
    };
    Ok(Interface { file, name, offload })
}

/// The name and flags of the interface behind a file.
fn ask(file: &impl AsFd) -> io::Result<Request> {
    let mut request = Request { name: [0; libc::IFNAMSIZ], value: Value { room: [0; 3] } };
    request.make(file.as_fd().as_raw_fd(), libc::TUNGETIFF as _)?;
    Ok(request)
}

/// `include/uapi/linux/if_tun.h`.
const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;
const TUN_F_TSO_ECN: libc::c_ulong = 0x08;
const TUN_F_USO4: libc::c_ulong = 0x20;
const TUN_F_USO6: libc::c_ulong = 0x40;

/// Bytes of the header in front of packets; the kernel's usual length, which somebody may have changed on an interface that
/// outlives its users.
const HEADER_LEN: libc::c_int = 10;

/// Asks for offload, the best first; `None` if the kernel gives none.
fn set_offload(file: &File, wanted: Offload) -> io::Result<Option<Offload>> {
    let len = HEADER_LEN;
    // SAFETY: the descriptor is borrowed and thus open; the kernel reads one number behind the pointer.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    let all = [
        (Offload::TcpAndUdp, tcp | TUN_F_TSO_ECN | TUN_F_USO4 | TUN_F_USO6),
        (Offload::Tcp, tcp | TUN_F_TSO_ECN),
        (Offload::Tcp, tcp),
    ];
    let offered = all.into_iter().filter(|(offload, _)| *offload <= wanted);
    let mut taken = offered.filter(|(_, flags)| {
        // SAFETY: the descriptor is borrowed and thus open; the request takes a number in the place of a pointer.
        unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD as _, *flags) >= 0 }
    });
    Ok(taken.next().map(|(offload, _)| offload))
}

/// Gives the interface `name` this address with the network of `prefix` bits around it, to which a route appears. An
/// IPv4 address takes the place of the one before.
///
/// # Errors
/// `NotFound` if the calling thread's network has no such interface, `PermissionDenied` without the right.
pub fn set_address_v4(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    for (what, address) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask))] {
        let [a, b, c, d] = address.octets();
        let [low, high] = (libc::AF_INET as u16).to_ne_bytes();
        let mut request = Request::new(name)?;
        request.value.socket_address = [low, high, 0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
        request.make(control_socket()?.as_raw_fd(), what as _)?;
    }
    Ok(())
}

/// The same for an IPv6 address, beside those that are there. It can be used at once: such interfaces have no neighbours
/// that could hold it, so nobody is asked (`IFA_F_NODAD`, which no ioctl takes).
///
/// # Errors
/// As [`set_address_v4`]; `PermissionDenied` also where IPv6 is switched off for the interface.
pub fn set_address_v6(name: &str, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
    let mut request = Request::new(name)?;
    request.make(control_socket()?.as_raw_fd(), libc::SIOCGIFINDEX as _)?;
    // SAFETY: the kernel has just written the number.
    let interface = unsafe { request.value.number };
    let message = new_address(interface, address, prefix);
    let kind = socket2::Type::RAW.cloexec();
    let socket = socket2::Socket::new(socket2::Domain::from(libc::AF_NETLINK), kind, None)?;
    socket.send(&message)?;
    let mut answer = [0; 512];
    let len = (&socket).read(&mut answer)?;
    match answer[..len].get(NETLINK_HEADER..).and_then(<[u8]>::first_chunk) {
        Some(&error) => match i32::from_ne_bytes(error) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        },
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Bytes of `struct nlmsghdr`.
const NETLINK_HEADER: usize = 16;

/// `RTM_NEWADDR` of rtnetlink(7): header, `struct ifaddrmsg`, and the address as its own and as the one of the prefix.
fn new_address(interface: libc::c_int, address: Ipv6Addr, prefix: u8) -> Vec<u8> {
    const LEN: u32 = 16 + 8 + 2 * 20;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut out = Vec::with_capacity(LEN as usize);
    out.extend(LEN.to_ne_bytes());
    out.extend(libc::RTM_NEWADDR.to_ne_bytes());
    out.extend((flags as u16).to_ne_bytes());
    // Number, and the kernel as receiver.
    out.extend([1_u32.to_ne_bytes(), 0_u32.to_ne_bytes()].concat());
    out.extend([libc::AF_INET6 as u8, prefix, libc::IFA_F_NODAD as u8, 0]);
    out.extend(interface.to_ne_bytes());
    for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        out.extend([20_u16.to_ne_bytes(), kind.to_ne_bytes()].concat());
        out.extend(address.octets());
    }
    out
}

/// Sets the largest packet of the interface `name` in bytes, 68 at least and 1,280 for IPv6, and how many wait at most for
/// the far end to read them; then starts the interface.
///
/// # Errors
/// As [`set_address_v4`]; `InvalidInput` for an MTU that the kernel does not take.
pub fn start(name: &str, mtu: u16, queue_len: u16) -> io::Result<()> {
    let socket = control_socket()?;
    for (what, number) in [(libc::SIOCSIFMTU, mtu), (libc::SIOCSIFTXQLEN, queue_len)] {
        let mut request = Request::new(name)?;
        request.value.number = number.into();
        request.make(socket.as_raw_fd(), what as _)?;
    }
    let mut request = Request::new(name)?;
    request.make(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _)?;
    // SAFETY: the kernel has just written the flags.
    let flags = unsafe { request.value.flags };
    request.value.flags = flags | libc::IFF_UP as libc::c_short;
    request.make(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _)
}

/// Any socket will do to ask about interfaces.
fn control_socket() -> io::Result<UdpSocket> {
    #[expect(clippy::disallowed_methods, reason = "the socket carries nothing")]
    UdpSocket::bind(("0.0.0.0", 0))
}

/// Turns segmentation, merging and checksums for the interface `name` off, so that the packets that are seen on it are
/// those of the wire.
///
/// # Errors
/// `NotFound` if the calling thread's network has no such interface, `PermissionDenied` without the right.
pub fn turn_offload_off(name: &str) -> io::Result<()> {
    let socket = control_socket()?;
    for what in [ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM, ETHTOOL_SSG] {
        let value = [what, 0_u32];
        let mut request = Request::new(name)?;
        request.value.pointer = value.as_ptr();
        match request.make(socket.as_raw_fd(), SIOCETHTOOL) {
            // An interface that lacks the feature refuses; there is nothing to turn off.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            done => done?,
        }
    }
    Ok(())
}

// `include/uapi/linux/sockios.h` and `ethtool.h`.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SSG: u32 = 0x19;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_SGRO: u32 = 0x2c;

/// `struct ifreq` of `include/uapi/linux/if.h`: a name and 24 bytes that depend on the request.
#[repr(C)]
struct Request {
    name: [libc::c_char; libc::IFNAMSIZ],
    value: Value,
}

#[repr(C)]
union Value {
    flags: libc::c_short,
    number: libc::c_int,
    socket_address: [u8; 16],
    pointer: *const u32,
    room: [u64; 3],
}

impl Request {
    fn new(name: &str) -> io::Result<Self> {
        let mut request = Self { name: [0; libc::IFNAMSIZ], value: Value { room: [0; 3] } };
        // The kernel wants a zero behind the name.
        if name.is_empty() || name.len() >= request.name.len() || name.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, byte) in request.name.iter_mut().zip(name.bytes()) {
            *to = byte as libc::c_char;
        }
        Ok(request)
    }

    /// The name, as the kernel left it.
    fn name(&self) -> Box<str> {
        let bytes: Vec<u8> = self.name.iter().map(|byte| *byte as u8).collect();
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        name.to_string_lossy().into()
    }

    /// Asks with one of the requests above.
    fn make(&mut self, fd: RawFd, what: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the pointer is to an `ifreq` that is borrowed exclusively; a pointer in it is to a local of the caller
        // that holds the two numbers of an `ethtool_value`.
        let done = unsafe { libc::ioctl(fd, what as _, std::ptr::from_mut(self)) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_bounds() {
        assert_eq!(size_of::<Request>(), 40);
        assert!(Request::new("fifteen-letters").is_ok());
        for wrong in ["", "sixteen-letters-", "with\0zero"] {
            assert!(Request::new(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_message_is_as_long_as_it_says() {
        let message = new_address(3, Ipv6Addr::LOCALHOST, 126);
        assert_eq!(message.len(), 64);
        assert_eq!(message[..4], 64_u32.to_ne_bytes());
        // Family, prefix and flags, as `ip -6 addr add ::1/126 dev x nodad` sends them.
        assert_eq!(message[16..20], [10, 126, 2, 0]);
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        assert!(turn_offload_off("no-such-if").is_err());
        assert!(set_address_v4("no-such-if", Ipv4Addr::LOCALHOST, 30).is_err());
        assert!(set_address_v6("no-such-if", Ipv6Addr::LOCALHOST, 126).is_err());
        assert!(start("no-such-if", 1500, 100).is_err());
    }

    #[test]
    fn only_the_file_of_an_interface_is_adopted() {
        let other = File::open("/dev/null").unwrap();
        assert!(check(&other).is_err());
        assert!(adopt(other, Offload::TcpAndUdp).is_err());
    }

    #[test]
    fn the_kernel_is_asked_for_the_best_offload_first() {
        for wanted in [Offload::Off, Offload::Tcp, Offload::TcpAndUdp] {
            match open_offload("adtest%d", wanted) {
                Ok(opened) => {
                    assert!(opened.offload <= wanted, "{opened:?}");
                    assert!(opened.name.starts_with("adtest") && !opened.name.contains('%'), "{opened:?}");
                    assert_eq!(opened.offload == Offload::Off, wanted == Offload::Off, "{opened:?}");
                    check(&opened.file).unwrap();
                    let adopted = adopt(opened.file.try_clone().unwrap(), wanted).unwrap();
                    assert_eq!((adopted.name, adopted.offload), (opened.name, opened.offload));
                }
                Err(error) => {
                    adit_testkit::skipped(format_args!("an interface takes CAP_NET_ADMIN: {error}"))
                }
            }
        }
    }
}
