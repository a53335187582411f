//! Socket addresses as the kernel writes them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for an address of either family. All zeros is a valid value of each field.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

#[expect(clippy::cast_possible_truncation, reason = "the numbers of the families are small")]
const V4: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[expect(clippy::cast_possible_truncation, reason = "the numbers of the families are small")]
const V6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;

impl Name {
    #[expect(clippy::cast_possible_truncation, reason = "28 bytes")]
    pub(super) const LEN: libc::socklen_t = size_of::<Self>() as libc::socklen_t;

    pub(super) const EMPTY: Self = Self {
        v6: libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
    };

    /// The address and its length.
    #[expect(clippy::cast_possible_truncation, reason = "28 bytes at most")]
    pub(super) fn new(addr: SocketAddr) -> (Self, libc::socklen_t) {
        let mut name = Self::EMPTY;
        match addr {
            SocketAddr::V4(addr) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: V4,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (name, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(addr) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: V6,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
                (name, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// The address that the kernel has written; `None` for no address or one of another family.
    pub(super) fn read(&self) -> Option<SocketAddr> {
        // SAFETY: the union was made from a whole value and the kernel overwrote whole fields: every byte is
        // initialised, and any bytes are a valid number.
        let family = unsafe { self.family };
        match family {
            V4 => {
                // SAFETY: as above; any bytes are a valid `sockaddr_in`.
                let addr = unsafe { self.v4 };
                let ip = Ipv4Addr::from(addr.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(addr.sin_port)).into())
            }
            V6 => {
                // SAFETY: as above; any bytes are a valid `sockaddr_in6`.
                let addr = unsafe { self.v6 };
                let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
                let port = u16::from_be(addr.sin6_port);
                Some(SocketAddrV6::new(ip, port, addr.sin6_flowinfo, addr.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}
