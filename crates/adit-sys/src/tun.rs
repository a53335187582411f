//! Network interfaces whose other end is this process (`Documentation/networking/tuntap.rst`), and what the kernel does
//! for an interface (ethtool). They take `CAP_NET_ADMIN`.

#![expect(clippy::cast_possible_truncation, reason = "small constants of the kernel's interface")]

use std::fs::{File, OpenOptions};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Opens the interface `name` in the network of the calling thread and makes it unless it exists. Each read takes one
/// IP packet that the kernel sends, each write hands it one; nothing goes before the packet, and the kernel cuts
/// segments itself. Neither waits. The interface ends with the file.
///
/// # Errors
/// `NotFound` without `/dev/net/tun`, `PermissionDenied` without the right, `InvalidInput` for a name that is too long.
pub fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let mut request = Request::new(name)?;
    request.value.flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    request.make(file.as_raw_fd(), libc::TUNSETIFF as _)?;
    Ok(file)
}

/// Turns segmentation, merging and checksums for the interface `name` off, so that the packets that are seen on it are
/// those of the wire.
///
/// # Errors
/// `NotFound` if the calling thread's network has no such interface, `PermissionDenied` without the right.
pub fn turn_offload_off(name: &str) -> io::Result<()> {
    // Any socket will do to ask by.
    #[expect(clippy::disallowed_methods, reason = "the socket carries nothing")]
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
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
    fn an_interface_that_is_not_there_is_an_error() {
        assert!(turn_offload_off("no-such-if").is_err());
    }
}
