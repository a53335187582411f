//! The addresses that a connection or datagram may go to: all addresses, or the public network alone.
//!
//! The check belongs where an address is used, after names have been resolved: [`crate::dial`] asks before each
//! connection, and direct datagrams before each new address.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use adit_model::Egress;
use adit_proto::wire::{Host, Target};
use socket2::{Domain, Socket, Type};

use crate::{egress, rt};

/// The addresses to which a client may be led.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reach {
    /// Any address.
    #[default]
    Anywhere,
    /// No [`Private`] address.
    Public,
}

impl Reach {
    /// Whether `ip` may be used. The bits of the address decide at once; a public one is asked for in the kernel besides, by
    /// two system calls, unless the same one was asked for within the last two seconds on this event loop.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(self, ip: IpAddr) -> Result<(), Private> {
        if self == Self::Anywhere {
            return Ok(());
        }
        let kind = private_kind(ip).or_else(|| is_own(ip.to_canonical()).then_some(Private::Own));
        kind.map_or(Ok(()), Err)
    }
}

/// Why an address is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Private {
    /// 0.0.0.0/8 and `::`, which lead to this machine.
    Unspecified,
    /// 127.0.0.0/8 and `::1`.
    Loopback,
    /// 169.254.0.0/16 and fe80::/10.
    LinkLocal,
    /// Several hosts at once: multicast and broadcast, with the reserved 240.0.0.0/4.
    Multicast,
    /// RFC 1918, 100.64.0.0/10, fc00::/7 and fec0::/10.
    Network,
    /// An address of this machine.
    Own,
}

impl fmt::Display for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "unspecified address",
            Self::Loopback => "loopback address",
            Self::LinkLocal => "link-local address",
            Self::Multicast => "multicast or broadcast address",
            Self::Network => "address of a private network",
            Self::Own => "address of this machine",
        })
    }
}

/// Why `ip` is not public, by its bits alone. Addresses that carry an IPv4 address are judged by that too: IPv4-mapped,
/// -compatible and -translated ones, 6to4, Teredo and NAT64.
pub fn private_kind(ip: IpAddr) -> Option<Private> {
    match ip.to_canonical() {
        IpAddr::V4(ip) => kind_v4(ip),
        IpAddr::V6(ip) => kind_v6(ip),
    }
}

fn kind_v4(ip: Ipv4Addr) -> Option<Private> {
    match ip.octets() {
        [0, ..] => Some(Private::Unspecified),
        [127, ..] => Some(Private::Loopback),
        [169, 254, ..] => Some(Private::LinkLocal),
        [224..=255, ..] => Some(Private::Multicast),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Some(Private::Network),
        _ => None,
    }
}

fn kind_v6(ip: Ipv6Addr) -> Option<Private> {
    if ip.is_unspecified() {
        return Some(Private::Unspecified);
    }
    if ip.is_loopback() {
        return Some(Private::Loopback);
    }
    match ip.segments()[0] {
        0xfe80..=0xfebf => Some(Private::LinkLocal),
        0xfc00..=0xfdff | 0xfec0..=0xfeff => Some(Private::Network),
        0xff00.. => Some(Private::Multicast),
        _ => embedded(ip).and_then(kind_v4),
    }
}

/// The IPv4 address that packets to `ip` end up at, by the ways that put one into the other.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let o = ip.octets();
    let at = |a: u8, b: u8, c: u8, d: u8| Some(Ipv4Addr::new(a, b, c, d));
    match ip.segments() {
        // IPv4-compatible (RFC 4291), translated (RFC 2765), and the well-known prefix of NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            at(o[12], o[13], o[14], o[15])
        }
        // A prefix of 48 bits for NAT64 in a network (RFC 8215), by itself or with a longer one under it.
        [0x64, 0xff9b, 1, ..] if o[8] == 0 && o[11..] == [0; 5] => at(o[6], o[7], o[9], o[10]),
        [0x64, 0xff9b, 1, ..] => at(o[12], o[13], o[14], o[15]),
        // 6to4 (RFC 3056).
        [0x2002, ..] => at(o[2], o[3], o[4], o[5]),
        // Teredo (RFC 4380): the client's address with all bits turned.
        [0x2001, 0, ..] => at(!o[12], !o[13], !o[14], !o[15]),
        _ => None,
    }
}

/// Time for which the kernel's answer holds.
const LIFE: Duration = Duration::from_secs(2);
/// Answers that each event loop remembers.
const REMEMBERED: usize = 64;

/// The kernel's latest answers, on one event loop.
#[derive(Default)]
struct Own {
    #[cfg(target_os = "linux")]
    routes: Option<adit_sys::route::Routes>,
    answers: Vec<Option<(IpAddr, Instant, bool)>>,
}

thread_local! {
    static OWN: RefCell<Own> = RefCell::default();
}

/// Connects to a server over TCP, with the mark of the process, and closes the connection. It waits for so long at most, the
/// look-up of the name by the system included.
///
/// # Errors
/// Why it cannot be reached; `TimedOut`.
pub fn try_server(server: &Target, patience: Duration) -> io::Result<()> {
    let (done, result) = mpsc::channel();
    let server = server.clone();
    let connect = move || {
        // Nobody waits any more if this fails.
        drop(done.send(connect_once(&server, patience)));
    };
    std::thread::Builder::new().name("adit-reach".to_owned()).spawn(connect)?;
    result.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn connect_once(server: &Target, patience: Duration) -> io::Result<()> {
    let addrs: Vec<SocketAddr> = match &server.host {
        Host::Ip(ip) => vec![SocketAddr::new(*ip, server.port)],
        Host::Name(name) => (&**name, server.port).to_socket_addrs()?.collect(),
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for addr in addrs.into_iter().take(4) {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
        egress::apply(&socket, &Egress::default())?;
        match socket.connect_timeout(&addr.into(), patience) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether `ip` is an address of this machine at this time, two seconds more or less.
pub fn is_own(ip: IpAddr) -> bool {
    OWN.with_borrow_mut(|own| own.is_own(ip, rt::now()))
}

impl Own {
    fn is_own(&mut self, ip: IpAddr, now: Instant) -> bool {
        self.answers.resize(REMEMBERED, None);
        let slot = slot(ip);
        if let Some((known, at, answer)) = self.answers[slot]
            && known == ip
            && now.saturating_duration_since(at) < LIFE
        {
            return answer;
        }
        let answer = self.ask(ip);
        self.answers[slot] = Some((ip, now, answer));
        answer
    }

    #[cfg(target_os = "linux")]
    fn ask(&mut self, ip: IpAddr) -> bool {
        if self.routes.is_none() {
            self.routes = adit_sys::route::Routes::new().ok();
        }
        let answer = self.routes.as_mut().and_then(|routes| routes.is_own(ip).ok());
        answer.unwrap_or_else(|| {
            // A socket that has missed an answer is not to take it for the next one's.
            self.routes = None;
            is_own_source(ip)
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn ask(&mut self, ip: IpAddr) -> bool {
        is_own_source(ip)
    }
}

/// The same where the routes cannot be asked for: packets to an own address come from that address. Nothing is sent.
fn is_own_source(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return false };
    socket.connect((ip, 9)).is_ok() && socket.local_addr().is_ok_and(|local| local.ip() == ip)
}

/// Neighbouring addresses have slots of their own.
fn slot(ip: IpAddr) -> usize {
    let mixed = match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => {
            let half = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            ip.octets().chunks(8).map(half).fold(0, |mixed, half| mixed ^ half)
        }
    };
    let spread = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    usize::try_from(spread).unwrap_or(0) % REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Option<Private> {
        private_kind(text.parse().unwrap())
    }

    #[test]
    fn every_class_of_private_addresses_is_told() {
        use Private::{LinkLocal, Loopback, Multicast, Network, Unspecified};
        #[rustfmt::skip]
        let table: &[(Private, &[&str])] = &[
            (Unspecified, &["0.0.0.0", "0.255.255.255", "::", "::ffff:0.0.0.0", "64:ff9b::"]),
            (Loopback, &["127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1", "::7f00:1", "64:ff9b::7f00:1",
                "2002:7f00:1::1", "::ffff:0:7f00:1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1::7f00:1",
                "2001:0:102:304::80ff:fffe"]),
            (LinkLocal, &["169.254.0.0", "169.254.169.254", "fe80::1", "febf::1", "64:ff9b::a9fe:a9fe"]),
            (Multicast, &["224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "ff02::1", "ffff::1"]),
            (Network, &["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "100.64.0.0",
                "100.127.255.255", "fc00::1", "fdff::1", "fec0::1", "::ffff:10.1.2.3", "2002:c0a8:101::1",
                "64:ff9b::a00:1", "64:ff9b:1:abcd::a00:1"]),
        ];
        for (want, ips) in table {
            for ip in *ips {
                assert_eq!(kind(ip), Some(*want), "{ip}");
            }
        }
    }

    #[test]
    fn neighbours_of_private_addresses_are_public() {
        for ip in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2001:db8::1",
            "2a00::1",
            "fbff::1",
            "64:ff9b:1:808:0:800::",
            "64:ff9b:1::808:808",
            "2001:1::1",
        ] {
            assert_eq!(kind(ip), None, "{ip}");
        }
    }

    #[test]
    fn anywhere_allows_all_and_public_asks_the_kernel() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(Reach::Anywhere.check(ip("127.0.0.1")), Ok(()));
        assert_eq!(Reach::Public.check(ip("127.0.0.1")), Err(Private::Loopback));
        assert_eq!(Reach::Public.check(ip("192.0.2.1")), Ok(()));
        assert_eq!(Reach::Public.check(ip("2001:db8::1")), Ok(()));
    }

    #[test]
    fn answers_are_remembered_for_two_seconds() {
        let (mut own, now) = (Own::default(), rt::now());
        let ip: IpAddr = "192.0.2.7".parse().unwrap();
        assert!(!own.is_own(ip, now));
        own.answers[slot(ip)] = Some((ip, now, true));
        assert!(own.is_own(ip, now + LIFE / 2));
        assert!(!own.is_own(ip, now + LIFE), "it is asked for again");
        assert!(own.is_own("127.0.0.1".parse().unwrap(), now));
        assert_eq!(own.answers.len(), REMEMBERED);
    }

    #[test]
    fn without_routes_the_source_tells() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(is_own_source(ip("127.0.0.1")));
        assert!(!is_own_source(ip("192.0.2.1")));
    }
}
