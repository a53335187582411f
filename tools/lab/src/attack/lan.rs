//! Attacks of a neighbour on a gateway that captures what it forwards.
//!
//! ```text
//!   host 10.64.0.2 and neighbour ───── 10.64.0.1  gateway: adit  10.66.0.1 ───── target 10.78.0.1, name server 10.66.0.2
//!   (this thread's network)                 `[capture]`, fake addresses
//! ```
//!
//! The host asks the target for a byte, by its address and by its name in turn. The neighbour sends from addresses that are
//! not its own; the gateway's route to them leads back to the neighbour, so that no table of Ethernet addresses fills.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use super::peers::{BATCH, REST};
use super::users::{self, FOR_EVER, PATIENCE, Target};
use super::{AFTER, Figures, MEMORY, READERS, observe};
use crate::held::Held;
use crate::link::network::{self, Namespace, ip};
use crate::random::Random;

const HOST: &str = "10.64.0.2";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);
const NAMES: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// A name server that is nowhere: the gateway answers in its place.
const RESOLVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 53), 53);
/// The name of the target.
const NAME: &str = "target.example";
/// Packets of a flood.
const PACKETS: u32 = 30_000;
/// Bytes that the ends of a connection hold for it, beside the gateway: little, so that the row measures the gateway and not
/// the time in which thousands of senders fill their buffers.
const HELD: usize = 16 << 10;
/// Nobody answers datagrams to this port of the target.
const SILENT: u16 = 9;
/// The protocol number of sockets that take whole packets (`IPPROTO_RAW`).
const RAW: i32 = 255;
/// TCP, UDP.
const PROTOCOLS: [u8; 2] = [6, 17];

/// The way in which the gateway captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// TCP by redirect, UDP by an interface.
    Auto,
    Tun,
    Tproxy,
}

impl Mode {
    pub(super) const ALL: [Self; 3] = [Self::Auto, Self::Tun, Self::Tproxy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tun => "tun",
            Self::Tproxy => "tproxy",
        }
    }
}

/// The neighbour's attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flood {
    /// The first segments of connections that nobody goes on with.
    HalfOpen,
    /// Connections that ask for bytes without end and read none.
    Readers,
    /// Datagrams to a target that does not answer.
    Flows,
    /// First fragments of datagrams.
    Fragments,
    /// Questions for names, each another one, of types with and without fake addresses.
    Names,
}

impl Flood {
    pub(super) const ALL: [Self; 5] =
        [Self::HalfOpen, Self::Readers, Self::Flows, Self::Fragments, Self::Names];

    pub(super) fn name(self) -> String {
        match self {
            Self::HalfOpen => format!("{PACKETS} half-open"),
            Self::Readers => format!("{READERS} readers"),
            Self::Flows => format!("{PACKETS} flows"),
            Self::Fragments => format!("{PACKETS} fragments"),
            Self::Names => format!("{PACKETS} names"),
        }
    }
}

/// The figures of one attack. The networks go when it is over.
pub(super) fn measure(adit: &Path, name: String, mode: Mode, flood: Flood) -> Result<Figures> {
    let work = || {
        let (targets, held, _nets) = start(adit, mode)?;
        let [target, victim] = targets.map(|target| target.address);
        let ask = |number: usize| -> Result<()> {
            let host = if number.is_multiple_of(2) { TARGET } else { resolve(NAME)? };
            users::ask(users::straight((host, target.port()).into())?)
        };
        ask(0).and_then(|()| ask(1)).context("the first requests")?;
        let strike = || {
            let kept = strike(flood, victim)?;
            thread::sleep(AFTER);
            drop(kept);
            Ok(())
        };
        observe(name, &held, |over| users::run(over, ask), strike)
    };
    thread::scope(|scope| scope.spawn(work).join().map_err(|_| anyhow::anyhow!("the attack panicked"))?)
}

/// Makes the networks around the calling thread, with the target, the name server and the gateway.
fn start(adit: &Path, mode: Mode) -> Result<([Target; 2], Held, [Namespace; 3])> {
    let [lan, gateway, wan] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    network::enter(&lan.path())?;
    let path = |of: &Namespace| of.path().to_str().map(str::to_owned).context("path of a network");
    ip(&["link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", &path(&gateway)?])?;
    ip(&["addr", "add", &format!("{HOST}/24"), "dev", "lan0"])?;
    ip(&["link", "set", "lan0", "up"])?;
    ip(&["route", "add", "default", "via", &GATEWAY.to_string()])?;
    let far = path(&wan)?;
    gateway.within(|| {
        ip(&["link", "add", "wan0", "type", "veth", "peer", "name", "wan0", "netns", &far])?;
        ip(&["addr", "add", &format!("{GATEWAY}/24"), "dev", "lan0"])?;
        ip(&["addr", "add", "10.66.0.1/24", "dev", "wan0"])?;
        for interface in ["lo", "lan0", "wan0"] {
            ip(&["link", "set", interface, "up"])?;
        }
        ip(&["route", "add", "10.80.0.0/12", "via", HOST])?;
        ip(&["route", "add", "default", "via", &NAMES.to_string()])?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("let the gateway forward")
    })?;
    let targets = wan.within(|| {
        ip(&["link", "set", "lo", "up"])?;
        ip(&["addr", "add", &format!("{NAMES}/24"), "dev", "wan0"])?;
        ip(&["addr", "add", &format!("{TARGET}/32"), "dev", "lo"])?;
        ip(&["link", "set", "wan0", "up"])?;
        ip(&["route", "add", "default", "via", "10.66.0.1"])?;
        // Takes the neighbour's datagrams and says nothing.
        let silent = UdpSocket::bind((TARGET, SILENT))?;
        thread::spawn(move || while silent.recv(&mut [0; 64]).is_ok() {});
        serve_names()?;
        // The neighbour has one of its own, so that the host does not wait behind its connections there.
        Ok([Target::start(TARGET, Some(HELD))?, Target::start(TARGET, Some(HELD))?])
    })?;
    let config = format!(
        "[capture]\nmode = \"{}\"\nlan = \"lan0\"\n[dns.fake]\n[[dns.upstream]]\nserver = \"{NAMES}\"\n\
         [[inbound]]\nprotocol = \"dns\"\nlisten = \"0.0.0.0:0\"\nallow = [\"10.64.0.0/10\", \"10.80.0.0/12\"]\n\
         [[outbound]]\nprotocol = \"direct\"\n",
        mode.name()
    );
    let held = gateway.within(|| Held::start(adit, &config, None, Some(MEMORY)))?;
    held.wait_for_line("capturing, ")?;
    held.wait_for_line("listening")?;
    Ok((targets, held, [lan, gateway, wan]))
}

/// A name server that knows the target's name alone, and is silent about all others.
fn serve_names() -> Result<()> {
    let socket = UdpSocket::bind((NAMES, 53))?;
    let name = encoded(NAME);
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let question = &bytes[..len];
            if question.get(12..12 + name.len()) == Some(&name[..]) {
                socket.send_to(&answer(question, name.len()), from).ok();
            }
        }
    });
    Ok(())
}

/// The target's address for a question of type A, nothing for others.
fn answer(question: &[u8], name_len: usize) -> Vec<u8> {
    let end = (12 + name_len + 4).min(question.len());
    let is_a = question.get(12 + name_len..12 + name_len + 2) == Some(&[0, 1]);
    let mut out = question[..end].to_vec();
    out[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    if is_a {
        out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        out.extend(TARGET.octets());
    }
    out
}

/// A name as labels.
fn encoded(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap_or(63));
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

fn question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    out.extend(encoded(name));
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out
}

/// The address that the gateway gives for a name.
fn resolve(name: &str) -> Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(RESOLVER)?;
    socket.send(&question(7, name, 1))?;
    let mut bytes = [0; 512];
    let len = socket.recv(&mut bytes).context("no answer to a question for a name")?;
    let address = len.checked_sub(4).and_then(|at| bytes[at..len].first_chunk::<4>());
    ensure!(bytes[7] == 1, "one answer expected");
    Ok(address.copied().context("an address in an answer")?.into())
}

/// Attacks, and gives the connections that are to be held a while longer.
fn strike(flood: Flood, target: SocketAddr) -> Result<Vec<TcpStream>> {
    let mut random = Random::new(u64::from(std::process::id()));
    if flood == Flood::Readers {
        return readers(target);
    }
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW))).context("a raw socket")?;
    for number in 0..PACKETS {
        if usize::try_from(number)?.is_multiple_of(BATCH) {
            thread::sleep(REST);
        }
        let packet = packet(flood, number, &mut random, target.port());
        let to = SocketAddrV4::new(Ipv4Addr::from(<[u8; 4]>::try_from(&packet[16..20])?), 0);
        // A full queue of the gateway drops it.
        socket.send_to(&packet, &to.into()).ok();
    }
    Ok(Vec::new())
}

fn readers(target: SocketAddr) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for number in 0..READERS {
        if number.is_multiple_of(BATCH) {
            thread::sleep(REST);
        }
        // One that is refused has failed to do harm.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_recv_buffer_size(HELD)?;
        if socket.connect_timeout(&target.into(), PATIENCE).is_err() {
            continue;
        }
        let mut stream = TcpStream::from(socket);
        stream.write_all(&[FOR_EVER]).ok();
        streams.push(stream);
    }
    ensure!(!streams.is_empty(), "no reader came through");
    Ok(streams)
}

/// A packet of a flood, from an address and a port of its own.
fn packet(flood: Flood, number: u32, random: &mut Random, target_port: u16) -> Vec<u8> {
    let [tcp, udp] = PROTOCOLS;
    let [p, q, a, b, ..] = random.next_u64().to_be_bytes();
    // 10.80.0.0/12, without an address twice.
    let source = Ipv4Addr::from(0x0a50_0000 | (number << 4) & 0x000f_ffff | u32::from(a & 15));
    let port = u16::from_be_bytes([p, q]).max(1024);
    let of_port = |port: u16, to: u16| [port.to_be_bytes(), to.to_be_bytes()].concat();
    let datagram = |to: u16, payload: &[u8]| {
        let len = u16::try_from(8 + payload.len()).unwrap_or(u16::MAX);
        // Without a checksum.
        [&of_port(port, to)[..], &len.to_be_bytes(), &[0, 0], payload].concat()
    };
    match flood {
        Flood::HalfOpen | Flood::Readers => {
            let head = [0, 0, p, q, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
            let mut segment = [&of_port(port, target_port)[..], &head].concat();
            let sum = checksum(source, TARGET, tcp, &segment);
            segment[16..18].copy_from_slice(&sum.to_be_bytes());
            packet_of(source, TARGET, tcp, 0x4000, &segment)
        }
        Flood::Flows => packet_of(source, TARGET, udp, 0x4000, &datagram(SILENT, b"silent")),
        Flood::Fragments => {
            // More fragments follow, which never come.
            let mut first = datagram(SILENT, &[b; 120]);
            first[4..6].copy_from_slice(&1024_u16.to_be_bytes());
            packet_of(source, TARGET, udp, 0x2000, &first)
        }
        Flood::Names => {
            let kind = if number.is_multiple_of(2) { 1 } else { 16 };
            let asked = question(u16::from_be_bytes([p, q]), &format!("n{number}x{a}.example"), kind);
            packet_of(source, *RESOLVER.ip(), udp, 0x4000, &datagram(RESOLVER.port(), &asked))
        }
    }
}

/// A packet of IPv4; the kernel writes its length and its checksum.
fn packet_of(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = fragment.to_be_bytes();
    let id = from.octets();
    let mut out = vec![0x45, 0, 0, 0, id[2], id[3], high, low, 64, protocol, 0, 0];
    out.extend(from.octets());
    out.extend(to.octets());
    out.extend(payload);
    out
}

/// The checksum of a segment with its pseudo header (RFC 9293, 3.1).
fn checksum(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, segment: &[u8]) -> u16 {
    let len = u16::try_from(segment.len()).unwrap_or(u16::MAX).to_be_bytes();
    let pseudo = [&from.octets()[..], &to.octets(), &[0, protocol], &len].concat();
    let words = pseudo.chunks(2).chain(segment.chunks(2));
    let mut sum: u32 =
        words.map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_what_they_say() {
        let mut random = Random::new(1);
        let mut sources = std::collections::BTreeSet::new();
        for flood in [Flood::HalfOpen, Flood::Flows, Flood::Fragments, Flood::Names] {
            for number in 0..PACKETS {
                let packet = packet(flood, number, &mut random, 7);
                let source = <[u8; 4]>::try_from(&packet[12..16]).unwrap();
                assert!(source[0] == 10 && (80..96).contains(&source[1]));
                assert!(flood != Flood::Flows || sources.insert(source));
            }
        }
        let syn = packet(Flood::HalfOpen, 5, &mut random, 7);
        let source = Ipv4Addr::from(<[u8; 4]>::try_from(&syn[12..16]).unwrap());
        assert_eq!(checksum(source, TARGET, 6, &syn[20..]), 0, "the sum of a right segment");
        assert_eq!((syn[33], &syn[22..24]), (2, &[0, 7][..]), "a SYN for port 7");
    }

    #[test]
    fn questions_and_answers_fit() {
        let asked = question(0x0102, NAME, 1);
        let given = answer(&asked, encoded(NAME).len());
        assert_eq!(
            (&given[..2], given[7], &given[given.len() - 4..]),
            (&[1, 2][..], 1, &TARGET.octets()[..])
        );
        let other = answer(&question(1, NAME, 28), encoded(NAME).len());
        assert_eq!(other[7], 0);
    }
}
