//! A virtual interface, whose packets become streams and datagrams.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::DnsInbound;

/// A virtual interface. It is made at start, and gone with the process, together with its addresses and routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tun {
    /// Name of the interface, 1 to 15 bytes.
    pub name: Box<str>,
    /// Its largest packet in bytes, at least [`Tun::MIN_MTU`].
    pub mtu: u16,
    /// Its IPv4 address and the length of its prefix.
    pub v4: Option<TunAddress<Ipv4Addr>>,
    /// Its IPv6 address and the length of its prefix. One of the two is there.
    pub v6: Option<TunAddress<Ipv6Addr>>,
    /// Whether the kernel passes packets that stand for many.
    pub offload: bool,
    /// A flow of datagrams without one in either direction for this long is forgotten; `None` for that of
    /// [`Udp::idle`](crate::Udp::idle).
    pub udp_idle: Option<Duration>,
    /// Questions to port 53 of any server are answered here, as this port would; `None` leaves them to the outbound. A
    /// capture sets it.
    pub dns: Option<Box<DnsInbound>>,
}

impl Tun {
    /// Smallest largest packet: what IPv6 asks of every link (RFC 8200, 5).
    pub const MIN_MTU: u16 = 1280;
    /// The largest packet unless told otherwise, with offload: all that IP has, as sing-box's. The kernel then neither cuts
    /// nor merges on the way, acknowledges half as often, and no datagram comes in fragments. Paths behind it do not matter,
    /// for streams end here; applications that take their datagrams' size from it need a smaller one.
    pub const MTU: u16 = 65_535;
    /// The same without offload, as OpenSnell and mihomo have it: larger packets are slower where each is copied whole.
    pub const MTU_WITHOUT_OFFLOAD: u16 = 9000;

    /// The largest packet unless told otherwise.
    pub fn usual_mtu(offload: bool) -> u16 {
        if offload { Self::MTU } else { Self::MTU_WITHOUT_OFFLOAD }
    }
    /// Name of the interface unless told otherwise.
    pub const NAME: &str = "adit0";
}

impl Default for Tun {
    fn default() -> Self {
        let v4 = TunAddress::<Ipv4Addr>::new(Ipv4Addr::new(198, 18, 0, 1), 30)
            .expect("its neighbour is in the prefix");
        let v6 = Ipv6Addr::new(0xfdad, 0x17, 0xad17, 0, 0, 0, 0, 1);
        let v6 = TunAddress::<Ipv6Addr>::new(v6, 126).expect("its neighbour is in the prefix");
        let (v4, v6) = (Some(v4), Some(v6));
        Self { name: Self::NAME.into(), mtu: Self::MTU, v4, v6, offload: true, udp_idle: None, dns: None }
    }
}

/// An address of an interface whose next address is in its prefix as well: that one is the interface's neighbour, from
/// which the kernel gets the connections of applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunAddress<A> {
    address: A,
    prefix: u8,
}

impl<A: Copy> TunAddress<A> {
    /// The address of the interface.
    pub fn address(&self) -> A {
        self.address
    }

    /// Bits of its prefix.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

impl TunAddress<Ipv4Addr> {
    /// The address with its prefix.
    ///
    /// # Errors
    /// [`TunAddressError`].
    pub fn new(address: Ipv4Addr, prefix: u8) -> Result<Self, TunAddressError> {
        let bits = u32::from(address);
        check(bits.into(), 32, prefix)?;
        // The last address of a prefix with more than two is for all of its hosts.
        let is_for_all = prefix < 31 && u64::from(bits) + 1 == (u64::from(bits) | ((1 << (32 - prefix)) - 1));
        let is_no_host = address.is_unspecified() || address.is_loopback() || address.is_multicast();
        if is_no_host || address.is_broadcast() {
            return Err(TunAddressError::NoHost);
        }
        if is_for_all { Err(TunAddressError::NoNeighbour) } else { Ok(Self { address, prefix }) }
    }

    /// The neighbour's address, which is in the same prefix.
    pub fn neighbour(&self) -> Ipv4Addr {
        u32::from(self.address).saturating_add(1).into()
    }

    /// Whether an address is in the prefix.
    pub fn contains(&self, other: Ipv4Addr) -> bool {
        let differing = u32::from(self.address) ^ u32::from(other);
        differing.checked_shr(32 - u32::from(self.prefix)).unwrap_or(0) == 0
    }
}

impl TunAddress<Ipv6Addr> {
    /// The address with its prefix.
    ///
    /// # Errors
    /// [`TunAddressError`].
    pub fn new(address: Ipv6Addr, prefix: u8) -> Result<Self, TunAddressError> {
        check(address.into(), 128, prefix)?;
        let is_no_host = address.is_unspecified() || address.is_loopback() || address.is_multicast();
        if is_no_host || address.to_ipv4_mapped().is_some() {
            return Err(TunAddressError::NoHost);
        }
        Ok(Self { address, prefix })
    }

    /// The neighbour's address, which is in the same prefix.
    pub fn neighbour(&self) -> Ipv6Addr {
        u128::from(self.address).saturating_add(1).into()
    }

    /// Whether an address is in the prefix.
    pub fn contains(&self, other: Ipv6Addr) -> bool {
        let differing = u128::from(self.address) ^ u128::from(other);
        differing.checked_shr(128 - u32::from(self.prefix)).unwrap_or(0) == 0
    }
}

/// The prefix is at most as long as the address, and the next address is in it.
fn check(bits: u128, len: u32, prefix: u8) -> Result<(), TunAddressError> {
    if u32::from(prefix) > len || prefix == 0 {
        return Err(TunAddressError::Prefix);
    }
    let hosts = 1_u128.checked_shl(len - u32::from(prefix)).map_or(u128::MAX, |hosts| hosts - 1);
    if bits & hosts == hosts { Err(TunAddressError::NoNeighbour) } else { Ok(()) }
}

/// Why an address with its prefix is none for an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TunAddressError {
    /// There is no address with a prefix behind a slash.
    #[error("no address/prefix")]
    Form,
    /// The prefix has no bits, or more than the address.
    #[error("the prefix is not from 1 to the bits of the address")]
    Prefix,
    /// No single host can have the address.
    #[error("no host can have this address")]
    NoHost,
    /// The next address is outside the prefix, or for all of its hosts.
    #[error("the next address, which belongs to the interface too, is outside the prefix")]
    NoNeighbour,
}

/// The addresses of an interface as text, `198.18.0.1/30`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunPrefix {
    /// One of IPv4.
    V4(TunAddress<Ipv4Addr>),
    /// One of IPv6.
    V6(TunAddress<Ipv6Addr>),
}

impl FromStr for TunPrefix {
    type Err = TunAddressError;

    fn from_str(text: &str) -> Result<Self, TunAddressError> {
        let (address, prefix) = text.split_once('/').ok_or(TunAddressError::Form)?;
        let prefix = prefix.parse().map_err(|_| TunAddressError::Form)?;
        match address.parse().map_err(|_| TunAddressError::Form)? {
            IpAddr::V4(address) => TunAddress::<Ipv4Addr>::new(address, prefix).map(Self::V4),
            IpAddr::V6(address) => TunAddress::<Ipv6Addr>::new(address, prefix).map(Self::V6),
        }
    }
}

impl fmt::Display for TunPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(found) => write!(f, "{}/{}", found.address, found.prefix),
            Self::V6(found) => write!(f, "{}/{}", found.address, found.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_neighbour() {
        for (text, neighbour) in [
            ("198.18.0.1/30", "198.18.0.2"),
            ("198.18.128.1/17", "198.18.128.2"),
            ("10.0.0.0/31", "10.0.0.1"),
            ("255.255.255.252/30", "255.255.255.253"),
            ("fd00::1/126", "fd00::2"),
            ("fd00::/127", "fd00::1"),
        ] {
            let parsed: TunPrefix = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(parsed.to_string(), text);
            let (found, is_inside) = match parsed {
                TunPrefix::V4(v4) => (IpAddr::from(v4.neighbour()), v4.contains(v4.neighbour())),
                TunPrefix::V6(v6) => (IpAddr::from(v6.neighbour()), v6.contains(v6.neighbour())),
            };
            assert_eq!((found.to_string().as_str(), is_inside), (neighbour, true), "{text}");
        }
    }

    #[test]
    fn others_are_refused() {
        use TunAddressError::{Form, NoHost, NoNeighbour, Prefix};
        for (text, why) in [
            ("198.18.0.1", Form),
            ("198.18.0/24", Form),
            ("198.18.0.1/", Form),
            ("198.18.0.1/33", Prefix),
            ("198.18.0.1/0", Prefix),
            ("fd00::1/129", Prefix),
            ("198.18.0.1/32", NoNeighbour),
            ("198.18.0.3/30", NoNeighbour),
            ("198.18.0.2/30", NoNeighbour),
            ("10.0.0.1/31", NoNeighbour),
            ("fd00::1/128", NoNeighbour),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/1", NoNeighbour),
            ("127.0.0.1/8", NoHost),
            ("224.0.0.1/30", NoHost),
            ("0.0.0.0/8", NoHost),
            ("::1/64", NoHost),
            ("ff02::1/64", NoHost),
            ("::ffff:10.0.0.1/126", NoHost),
        ] {
            assert_eq!(text.parse::<TunPrefix>(), Err(why), "{text}");
        }
    }

    #[test]
    fn prefixes_end() {
        let v4 = TunAddress::<Ipv4Addr>::new(Ipv4Addr::new(198, 18, 0, 1), 30).unwrap();
        assert!(v4.contains(Ipv4Addr::new(198, 18, 0, 3)) && !v4.contains(Ipv4Addr::new(198, 18, 0, 4)));
        let v6 = Tun::default().v6.unwrap();
        assert!(
            v6.contains("fdad:17:ad17::3".parse().unwrap())
                && !v6.contains("fdad:17:ad17::4".parse().unwrap())
        );
    }
}
