//! Whether an address belongs to this machine: rtnetlink(7).

use std::io::{self, Read, Write};
use std::net::IpAddr;

use socket2::{Domain, Protocol, Socket, Type};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTA_DST: u16 = 1;
/// Bytes of an `nlmsghdr`, of an `rtmsg` behind it, and of the header of an attribute.
const HEADER_LEN: usize = 16;
const RTMSG_LEN: usize = 12;
const ATTRIBUTE_LEN: usize = 4;
/// Offset of `rtm_type` in an answer, and of the number in an error.
const TYPE_AT: usize = HEADER_LEN + 7;
const ERROR_AT: usize = HEADER_LEN;
/// The kind of a route to another host, at a link or behind a gateway.
const RTN_UNICAST: u8 = 1;
/// Old answers that are read past at most.
const MAX_STALE: usize = 8;

/// Asks the kernel how it would route a packet. One question is two system calls, and never waits.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
    sequence: u32,
}

impl Routes {
    /// A socket for questions, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// As socket(2) for a netlink socket.
    pub fn new() -> io::Result<Self> {
        let socket = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::RAW,
            Some(Protocol::from(libc::NETLINK_ROUTE)),
        )?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Whether packets to `ip` stay on this machine or go to several hosts: an address of an interface, of a local
    /// route, a broadcast, anycast or multicast address. False for an address that cannot be reached.
    ///
    /// # Errors
    /// When the kernel does not take the question or gives no answer.
    pub fn is_own(&mut self, ip: IpAddr) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(ip, self.sequence);
        if self.socket.write(&request)? != request.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let mut answer = [0; 1024];
        for _ in 0..MAX_STALE {
            let len = self.socket.read(&mut answer)?;
            let answer = answer.get(..len).unwrap_or_default();
            if answer.get(8..12) == Some(&self.sequence.to_ne_bytes()) {
                return read_answer(answer);
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The kind of route in an answer; an error number says that there is no route, or that the question is not allowed.
fn read_answer(answer: &[u8]) -> io::Result<bool> {
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    match kind {
        Some(RTM_NEWROUTE) => {
            let route = *answer.get(TYPE_AT).ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(route > RTN_UNICAST && route <= libc::RTN_MULTICAST)
        }
        Some(NLMSG_ERROR) => {
            let number = answer.get(ERROR_AT..ERROR_AT + 4).ok_or(io::ErrorKind::UnexpectedEof)?;
            let number = i32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
            match -number {
                libc::EPERM => Err(io::Error::from_raw_os_error(libc::EPERM)),
                _ => Ok(false),
            }
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// An `RTM_GETROUTE` for one destination.
fn request(ip: IpAddr, sequence: u32) -> Vec<u8> {
    let (family, address) = match ip {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    let attribute = ATTRIBUTE_LEN + address.len();
    let len = HEADER_LEN + RTMSG_LEN + attribute;
    let mut out = Vec::with_capacity(len);
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    out.extend(RTM_GETROUTE.to_ne_bytes());
    out.extend(NLM_F_REQUEST.to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend([0; 4]);
    // Family, and the length of the destination in bits; nothing else is asked for.
    out.push(family.to_ne_bytes()[0]);
    out.push(u8::try_from(address.len() * 8).unwrap_or(u8::MAX));
    out.extend([0; RTMSG_LEN - 2]);
    out.extend(u16::try_from(attribute).unwrap_or(u16::MAX).to_ne_bytes());
    out.extend(RTA_DST.to_ne_bytes());
    out.extend(address);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_told_from_others() {
        let mut routes = Routes::new().unwrap();
        for own in ["127.0.0.1", "127.9.9.9"] {
            assert!(routes.is_own(own.parse().unwrap()).unwrap(), "{own}");
        }
        // These take a route, which a machine may not have.
        let table = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
        if table.lines().any(|line| line.split_whitespace().nth(1) == Some("00000000")) {
            for many in ["255.255.255.255", "224.0.0.1"] {
                assert!(routes.is_own(many.parse().unwrap()).unwrap(), "{many}");
            }
        } else {
            adit_testkit::skipped("no default route: broadcast and multicast addresses");
        }
        for other in ["192.0.2.1", "8.8.8.8", "2001:db8::1"] {
            assert!(!routes.is_own(other.parse().unwrap()).unwrap(), "{other}");
        }
    }

    #[test]
    fn answers_are_read_with_care() {
        let message = |kind: u16, body: &[u8]| {
            let mut out = vec![0; 4];
            out.extend(kind.to_ne_bytes());
            out.extend([0; 10]);
            out.extend(body);
            out
        };
        let route = |kind: u8| message(RTM_NEWROUTE, &[2, 32, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0]);
        let told: Vec<bool> = (0..=11).map(|kind| read_answer(&route(kind)).unwrap()).collect();
        let want: Vec<bool> = (0..=11).map(|kind| (2..=5).contains(&kind)).collect();
        assert_eq!(told, want);
        assert!(!read_answer(&message(NLMSG_ERROR, &(-libc::ENETUNREACH).to_ne_bytes())).unwrap());
        assert!(read_answer(&message(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes())).is_err());
        for len in 0..TYPE_AT {
            assert!(read_answer(&route(2)[..len]).is_err(), "{len} bytes");
        }
        assert!(read_answer(&message(NLMSG_ERROR, &[])).is_err());
        assert!(read_answer(&message(3, &[])).is_err());
    }
}
