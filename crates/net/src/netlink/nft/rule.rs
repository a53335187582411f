//! Rules: what they match and what they do, as text and as the kernel's expressions.
//!
//! A match loads a value into register 1 and compares it. An action ends with a verdict, or is one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::set::{Set, interface_key};
use crate::netlink::Messages;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const V4: u8 = 2;
const V6: u8 = 10;

const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_SKUID: u32 = 10;
const META_SKGID: u32 = 11;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const CT_DIRECTION: u32 = 1;
const CT_STATUS: u32 = 2;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 0x20;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const FIB_DADDR: u32 = 2;
const FIB_ADDRESS_TYPE: u32 = 3;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
/// `NF_NAT_RANGE_PROTO_SPECIFIED`.
const PORT_IS_GIVEN: u32 = 2;
const REJECT_RESET: (u32, u8) = (1, 0);
const REJECT_UNREACHABLE: (u32, u8) = (2, 1);
const REJECT_PROHIBITED: (u32, u8) = (2, 3);
const VERDICT_ACCEPT: u32 = 1;
const VERDICT_RETURN: u32 = (-5_i32).cast_unsigned();

/// One rule: all matches hold, then the actions follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its conditions.
    pub matches: Vec<Match>,
    /// Its effects, in order.
    pub actions: Vec<Action>,
}

/// A condition on a packet. Names are those of sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// The packet has this mark.
    Mark(u32),
    /// It is TCP.
    Tcp,
    /// It is UDP.
    Udp,
    /// It is ICMP.
    Icmp,
    /// It is ICMP of IPv6.
    Icmp6,
    /// It is IPv4.
    V4,
    /// It is IPv6.
    V6,
    /// It asks for an echo; behind [`Match::Icmp`].
    Echo,
    /// It asks for an echo; behind [`Match::Icmp6`].
    Echo6,
    /// It goes to this port; behind [`Match::Tcp`] or [`Match::Udp`].
    Port(u16),
    /// It answers: it goes against the direction in which its connection began.
    Reply,
    /// The target of its connection has not been changed.
    NotRedirected,
    /// It comes in by this interface.
    In(Box<str>),
    /// It comes in by an interface of the set.
    InOf(&'static str),
    /// It comes in by another interface.
    NotInOf(&'static str),
    /// It leaves by another interface than this.
    NotOut(Box<str>),
    /// It leaves by an interface of the set.
    OutOf(&'static str),
    /// It leaves by another interface.
    NotOutOf(&'static str),
    /// Its socket belongs to a user of the set.
    UidOf(&'static str),
    /// Its socket belongs to another user.
    NotUidOf(&'static str),
    /// Its socket belongs to a group of the set.
    GidOf(&'static str),
    /// Its socket belongs to another group.
    NotGidOf(&'static str),
    /// It is IPv4, from an address of the set.
    FromV4(&'static str),
    /// It is IPv4, from another address.
    NotFromV4(&'static str),
    /// It is IPv4, for an address of the set.
    ToV4(&'static str),
    /// It is IPv4, for another address.
    NotToV4(&'static str),
    /// It is IPv6, for an address of the set.
    ToV6(&'static str),
    /// It is IPv6, for another address.
    NotToV6(&'static str),
    /// Its target is an address of this machine.
    ToLocal,
    /// Its target is a broadcast address.
    ToBroadcast,
    /// Its target is a multicast address.
    ToMulticast,
    /// A transparent socket of this machine takes it.
    HasTransparentSocket,
}

/// An effect of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The chain does not look at the packet any more; the next one does.
    Return,
    /// The same, for chains that are called by nothing but the kernel.
    Accept,
    /// Marks the packet.
    SetMark(u32),
    /// Gives a connection another target: a port of this machine; behind [`Match::Tcp`] or [`Match::Udp`].
    Redirect(u16),
    /// Gives the packet to the socket at this address, and leaves it as it is.
    Tproxy(IpAddr, u16),
    /// Answers with a reset.
    Reset,
    /// Answers that it is prohibited.
    Prohibit,
    /// Answers that nobody listens there.
    Unreachable,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        let mut previous: Option<&Match> = None;
        for (at, matched) in self.matches.iter().enumerate() {
            let next = self.matches.get(at + 1);
            // nft names the transport with the port.
            if matches!(matched, Match::Tcp | Match::Udp) && matches!(next, Some(Match::Port(_))) {
                previous = Some(matched);
                continue;
            }
            if !std::mem::take(&mut first) {
                f.write_str(" ")?;
            }
            match (matched, previous) {
                (Match::Port(port), Some(Match::Udp)) => write!(f, "udp dport {port}")?,
                (Match::Port(port), _) => write!(f, "tcp dport {port}")?,
                (other, _) => write!(f, "{other}")?,
            }
        }
        for action in &self.actions {
            if !std::mem::take(&mut first) {
                f.write_str(" ")?;
            }
            write!(f, "{action}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark(mark) => write!(f, "meta mark 0x{mark:08x}"),
            Self::Tcp => f.write_str("meta l4proto tcp"),
            Self::Udp => f.write_str("meta l4proto udp"),
            Self::Icmp => f.write_str("meta l4proto icmp"),
            Self::Icmp6 => f.write_str("meta l4proto ipv6-icmp"),
            Self::V4 => f.write_str("meta nfproto ipv4"),
            Self::V6 => f.write_str("meta nfproto ipv6"),
            Self::Echo => f.write_str("icmp type echo-request"),
            Self::Echo6 => f.write_str("icmpv6 type echo-request"),
            Self::Port(port) => write!(f, "th dport {port}"),
            Self::Reply => f.write_str("ct direction reply"),
            Self::NotRedirected => f.write_str("ct status ! dnat"),
            Self::In(name) => write!(f, "iifname \"{name}\""),
            Self::InOf(set) => write!(f, "iifname @{set}"),
            Self::NotInOf(set) => write!(f, "iifname != @{set}"),
            Self::NotOut(name) => write!(f, "oifname != \"{name}\""),
            Self::OutOf(set) => write!(f, "oifname @{set}"),
            Self::NotOutOf(set) => write!(f, "oifname != @{set}"),
            Self::UidOf(set) => write!(f, "meta skuid @{set}"),
            Self::NotUidOf(set) => write!(f, "meta skuid != @{set}"),
            Self::GidOf(set) => write!(f, "meta skgid @{set}"),
            Self::NotGidOf(set) => write!(f, "meta skgid != @{set}"),
            Self::FromV4(set) => write!(f, "ip saddr @{set}"),
            Self::NotFromV4(set) => write!(f, "ip saddr != @{set}"),
            Self::ToV4(set) => write!(f, "ip daddr @{set}"),
            Self::NotToV4(set) => write!(f, "ip daddr != @{set}"),
            Self::ToV6(set) => write!(f, "ip6 daddr @{set}"),
            Self::NotToV6(set) => write!(f, "ip6 daddr != @{set}"),
            Self::ToLocal => f.write_str("fib daddr type local"),
            Self::ToBroadcast => f.write_str("fib daddr type broadcast"),
            Self::ToMulticast => f.write_str("fib daddr type multicast"),
            Self::HasTransparentSocket => f.write_str("socket transparent 1"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Return => f.write_str("return"),
            Self::Accept => f.write_str("accept"),
            Self::SetMark(mark) => write!(f, "meta mark set 0x{mark:08x}"),
            Self::Redirect(port) => write!(f, "redirect to :{port}"),
            Self::Tproxy(IpAddr::V4(ip), port) => write!(f, "tproxy ip to {ip}:{port}"),
            Self::Tproxy(IpAddr::V6(ip), port) => write!(f, "tproxy ip6 to [{ip}]:{port}"),
            Self::Reset => f.write_str("reject with tcp reset"),
            Self::Prohibit => f.write_str("reject with icmpx admin-prohibited"),
            Self::Unreachable => f.write_str("reject with icmpx port-unreachable"),
        }
    }
}

impl Rule {
    /// Writes the expressions; lookups refer to `sets` by number.
    pub(super) fn emit(&self, sets: &[Set], m: &mut Messages) {
        let mut out = Expressions { m, sets };
        self.matches.iter().for_each(|matched| matched.emit(&mut out));
        self.actions.iter().for_each(|action| action.emit(&mut out));
    }
}

impl Match {
    fn emit(&self, out: &mut Expressions<'_>) {
        match self {
            Self::Mark(mark) => out.meta_is(META_MARK, &mark.to_ne_bytes()),
            Self::Tcp => out.meta_is(META_L4PROTO, &[TCP]),
            Self::Udp => out.meta_is(META_L4PROTO, &[UDP]),
            Self::Icmp => out.meta_is(META_L4PROTO, &[ICMP]),
            Self::Icmp6 => out.meta_is(META_L4PROTO, &[ICMP6]),
            Self::V4 => out.meta_is(META_NFPROTO, &[V4]),
            Self::V6 => out.meta_is(META_NFPROTO, &[V6]),
            Self::Echo => out.transport_starts_with(8),
            Self::Echo6 => out.transport_starts_with(128),
            Self::Port(port) => {
                out.payload(TRANSPORT, 2, 2);
                out.compare(EQUAL, &port.to_be_bytes());
            }
            Self::Reply => {
                out.connection(CT_DIRECTION);
                out.compare(EQUAL, &[1]);
            }
            Self::NotRedirected => {
                out.connection(CT_STATUS);
                out.keep_bits(STATUS_DNAT);
                out.compare(EQUAL, &[0; 4]);
            }
            Self::In(name) => out.meta_is(META_IIFNAME, &interface_key(name)),
            Self::NotOut(name) => {
                out.meta(META_OIFNAME);
                out.compare(UNEQUAL, &interface_key(name));
            }
            Self::InOf(set) => out.meta_in(META_IIFNAME, set, true),
            Self::NotInOf(set) => out.meta_in(META_IIFNAME, set, false),
            Self::OutOf(set) => out.meta_in(META_OIFNAME, set, true),
            Self::NotOutOf(set) => out.meta_in(META_OIFNAME, set, false),
            Self::UidOf(set) => out.meta_in(META_SKUID, set, true),
            Self::NotUidOf(set) => out.meta_in(META_SKUID, set, false),
            Self::GidOf(set) => out.meta_in(META_SKGID, set, true),
            Self::NotGidOf(set) => out.meta_in(META_SKGID, set, false),
            Self::FromV4(set) => out.address_in(V4, 12, 4, set, true),
            Self::NotFromV4(set) => out.address_in(V4, 12, 4, set, false),
            Self::ToV4(set) => out.address_in(V4, 16, 4, set, true),
            Self::NotToV4(set) => out.address_in(V4, 16, 4, set, false),
            Self::ToV6(set) => out.address_in(V6, 24, 16, set, true),
            Self::NotToV6(set) => out.address_in(V6, 24, 16, set, false),
            Self::ToLocal => out.target_is(2),
            Self::ToBroadcast => out.target_is(3),
            Self::ToMulticast => out.target_is(5),
            Self::HasTransparentSocket => {
                out.expression("socket", |m| {
                    m.number(1, 0);
                    m.number(2, 1);
                    m.number(3, 0);
                });
                out.compare(EQUAL, &[1]);
            }
        }
    }
}

impl Action {
    fn emit(&self, out: &mut Expressions<'_>) {
        match self {
            Self::Return => out.verdict(VERDICT_RETURN),
            Self::Accept => out.verdict(VERDICT_ACCEPT),
            Self::SetMark(mark) => {
                out.load(1, &mark.to_ne_bytes());
                out.expression("meta", |m| {
                    m.number(2, META_MARK);
                    m.number(3, 1);
                });
            }
            Self::Redirect(port) => {
                out.load(1, &port.to_be_bytes());
                out.expression("redir", |m| {
                    m.number(1, 1);
                    m.number(3, PORT_IS_GIVEN);
                });
            }
            Self::Tproxy(ip, port) => out.tproxy(*ip, *port),
            Self::Reset => out.reject(REJECT_RESET),
            Self::Prohibit => out.reject(REJECT_PROHIBITED),
            Self::Unreachable => out.reject(REJECT_UNREACHABLE),
        }
    }
}

/// Writes expressions, one behind the other.
struct Expressions<'a> {
    m: &'a mut Messages,
    sets: &'a [Set],
}

impl Expressions<'_> {
    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Messages)) {
        self.m.nest(1, |m| {
            m.text(1, name);
            m.nest(2, data);
        });
    }

    fn meta(&mut self, key: u32) {
        self.expression("meta", |m| {
            m.number(2, key);
            m.number(1, 1);
        });
    }

    fn meta_is(&mut self, key: u32, value: &[u8]) {
        self.meta(key);
        self.compare(EQUAL, value);
    }

    fn meta_in(&mut self, key: u32, set: &str, is_in: bool) {
        self.meta(key);
        self.look_up(set, is_in);
    }

    fn compare(&mut self, how: u32, value: &[u8]) {
        self.expression("cmp", |m| {
            m.number(1, 1);
            m.number(2, how);
            m.nest(3, |m| m.attribute(1, value));
        });
    }

    fn look_up(&mut self, set: &str, is_in: bool) {
        let id = self.sets.iter().zip(1..).find(|(known, _)| known.name == set).map(|(_, id)| id);
        self.expression("lookup", |m| {
            m.number(2, 1);
            m.text(1, set);
            if let Some(id) = id {
                m.number(4, id);
            }
            if !is_in {
                m.number(5, 1);
            }
        });
    }

    fn payload(&mut self, base: u32, offset: u32, len: u32) {
        self.expression("payload", |m| {
            m.number(1, 1);
            m.number(2, base);
            m.number(3, offset);
            m.number(4, len);
        });
    }

    fn transport_starts_with(&mut self, byte: u8) {
        self.payload(TRANSPORT, 0, 1);
        self.compare(EQUAL, &[byte]);
    }

    /// Looks up an address of a family, which lies at an offset of the header.
    fn address_in(&mut self, family: u8, offset: u32, len: u32, set: &str, is_in: bool) {
        self.meta_is(META_NFPROTO, &[family]);
        self.payload(NETWORK, offset, len);
        self.look_up(set, is_in);
    }

    fn target_is(&mut self, kind: u32) {
        self.expression("fib", |m| {
            m.number(3, FIB_DADDR);
            m.number(2, FIB_ADDRESS_TYPE);
            m.number(1, 1);
        });
        self.compare(EQUAL, &kind.to_ne_bytes());
    }

    fn connection(&mut self, key: u32) {
        self.expression("ct", |m| {
            m.number(2, key);
            m.number(1, 1);
        });
    }

    fn keep_bits(&mut self, mask: u32) {
        self.expression("bitwise", |m| {
            m.number(1, 1);
            m.number(2, 1);
            m.number(3, 4);
            m.nest(4, |m| m.attribute(1, &mask.to_ne_bytes()));
            m.nest(5, |m| m.attribute(1, &[0; 4]));
        });
    }

    fn load(&mut self, register: u32, value: &[u8]) {
        self.expression("immediate", |m| {
            m.number(1, register);
            m.nest(2, |m| m.attribute(1, value));
        });
    }

    fn verdict(&mut self, verdict: u32) {
        self.expression("immediate", |m| {
            m.number(1, 0);
            m.nest(2, |m| m.nest(2, |m| m.number(1, verdict)));
        });
    }

    fn tproxy(&mut self, ip: IpAddr, port: u16) {
        let family = match ip {
            IpAddr::V4(ip) => {
                self.load(1, &Ipv4Addr::octets(&ip));
                V4
            }
            IpAddr::V6(ip) => {
                self.load(1, &Ipv6Addr::octets(&ip));
                V6
            }
        };
        self.load(2, &port.to_be_bytes());
        self.expression("tproxy", |m| {
            m.number(1, family.into());
            m.number(2, 1);
            m.number(3, 2);
        });
    }

    fn reject(&mut self, (kind, code): (u32, u8)) {
        self.expression("reject", |m| {
            m.number(1, kind);
            m.attribute(2, &[code]);
        });
    }
}
