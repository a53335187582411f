//! Name servers of this machine that adit asks: their own questions must not be taken, or both would ask each other without
//! end.
//!
//! ```text
//!   adit ─→ 127.0.0.53 (systemd-resolved, dnsmasq) ─→ name server out there        exempt by the user of the second one
//!    ↑──────────── taken by the capture ─────────────┘                              without the exemption
//! ```
//!
//! `/proc/net/udp`, `tcp`, `udp6`, `tcp6`: `local` is address and port in hexadecimal, the address in words of the machine's
//! byte order; `inode` is the number of the socket. Source: proc_net(5).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use adit_model::{Config, InboundProtocol, NameServer, Upstream};
use adit_proto::wire::Host;

use crate::dns::system_servers;

/// A socket that listens, of the kernel's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listening {
    at: SocketAddr,
    /// The user that made it.
    uid: u32,
    inode: u64,
}

/// Users whose name servers on this machine are asked by adit, without that of the superuser.
pub(super) fn find(config: &Config) -> Vec<u32> {
    let asked = asked(config);
    if asked.is_empty() {
        return Vec::new();
    }
    let mut uids = BTreeSet::new();
    for socket in listening().filter(|socket| asked.iter().any(|asked| takes(socket.at, *asked))) {
        let process = process_of(socket.inode);
        if process.as_ref().is_some_and(|process| process.pid == std::process::id()) {
            continue;
        }
        // A process may have given up the rights that it had when it made the socket.
        match process.as_ref().map_or(socket.uid, |process| process.uid) {
            0 => {
                let program = process.map_or_else(|| "unknown".to_owned(), |process| process.name);
                let hint = "give it a user of its own, or adit name servers by [[dns.upstream]]";
                tracing::warn!(
                    server = %socket.at,
                    program,
                    hint,
                    "a name server of this machine runs as the superuser: its own questions are captured"
                );
            }
            uid => {
                uids.insert(uid);
            }
        }
    }
    uids.into_iter().collect()
}

/// Name servers on loopback that adit asks itself.
fn asked(config: &Config) -> Vec<SocketAddr> {
    let addr = |upstream: &Upstream| match (&upstream.server.host, &upstream.through) {
        (Host::Ip(ip), None) => Some(SocketAddr::new(*ip, upstream.server.port)),
        _ => None,
    };
    let policies = config.dns.policy.iter().flat_map(|policy| &policy.upstreams);
    let fallback = config.dns.fallback.iter().flat_map(|fallback| &fallback.upstreams);
    let inbounds = config.inbounds.iter().filter_map(|inbound| {
        let InboundProtocol::Dns(dns) = &inbound.protocol else { return None };
        Some(dns.upstreams.iter().chain(&dns.direct))
    });
    let upstreams = config.dns.upstreams.iter().chain(policies).chain(fallback).chain(inbounds.flatten());
    let upstreams: Vec<&Arc<Upstream>> = upstreams.collect();
    let mut all: Vec<SocketAddr> = upstreams.iter().filter_map(|upstream| addr(upstream)).collect();
    let plain = config.outbounds.iter().flat_map(|outbound| &outbound.dial.dns);
    let plain = plain.chain(upstreams.iter().flat_map(|upstream| &upstream.bootstrap));
    let mut is_system = config.dns.upstreams.is_empty() || upstreams.iter().any(|server| server.is_system());
    for server in plain {
        match server {
            NameServer::System => is_system = true,
            NameServer::At(server) => all.push(*server),
            NameServer::Refused => {}
        }
    }
    if is_system {
        all.extend(system_servers());
    }
    all.retain(|addr| addr.ip().to_canonical().is_loopback());
    all
}

/// Whether a socket there gets questions for `asked`.
fn takes(at: SocketAddr, asked: SocketAddr) -> bool {
    let is_wildcard_of = at.ip().is_unspecified() && (at.is_ipv6() || asked.is_ipv4());
    at.port() == asked.port() && (is_wildcard_of || at.ip().to_canonical() == asked.ip().to_canonical())
}

/// The sockets that listen on this machine.
fn listening() -> impl Iterator<Item = Listening> {
    ["udp", "udp6", "tcp", "tcp6"].into_iter().flat_map(|name| {
        let text = std::fs::read_to_string(Path::new("/proc/self/net").join(name)).unwrap_or_default();
        let is_tcp = name.starts_with("tcp");
        text.lines().skip(1).filter_map(|line| read(line, is_tcp)).collect::<Vec<_>>()
    })
}

/// One line of the kernel's list; `None` for a socket that is connected.
fn read(line: &str, is_tcp: bool) -> Option<Listening> {
    /// `TCP_LISTEN` and `TCP_CLOSE`, which is the state of datagram sockets that are not connected.
    const STATES: [&str; 2] = ["0A", "07"];
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let state = STATES[usize::from(!is_tcp)];
    if *columns.get(3)? != state {
        return None;
    }
    let (ip, port) = columns[1].split_once(':')?;
    let at = SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?);
    Some(Listening { at, uid: columns.get(7)?.parse().ok()?, inode: columns.get(9)?.parse().ok()? })
}

fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let octets: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

struct Process {
    pid: u32,
    uid: u32,
    name: String,
}

/// The process that has a socket open, as far as this one may look.
fn process_of(inode: u64) -> Option<Process> {
    let wanted = format!("socket:[{inode}]");
    let numbered = |name: &std::ffi::OsStr| name.to_str()?.parse::<u32>().ok();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = numbered(&entry.file_name()) else { continue };
        let Ok(open) = std::fs::read_dir(entry.path().join("fd")) else { continue };
        let mut links = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        if links.any(|link| link.to_str() == Some(&wanted)) {
            let uid = entry.metadata().ok()?.uid();
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(Process { pid, uid, name: name.trim().to_owned() });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use adit_formats::adit_toml::parse;

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_of_the_kernel() {
        let udp = "  395: 3500007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000   101        0 20911 2 0000 0";
        let want = Listening { at: "127.0.0.53:53".parse().unwrap(), uid: 101, inode: 20911 };
        assert_eq!(read(udp, false), Some(want));
        assert_eq!(read(udp, true), None, "no listener of TCP");
        let tcp6 = "   0: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7 1 0000 100 0 0 10 0";
        assert_eq!(read(tcp6, true).unwrap().at, "[::1]:53".parse().unwrap());
        assert_eq!(read(&tcp6.replace(" 0A ", " 01 "), true), None, "a connection");
        for len in 0..udp.len() {
            if let Some(line) = udp.get(..len) {
                assert!(read(line, false).is_none_or(|socket| socket.at == want.at));
            }
        }
    }

    #[test]
    fn wildcards_take_what_is_for_them() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(takes(at("0.0.0.0:53"), at("127.0.0.1:53")) && takes(at("[::]:53"), at("127.0.0.1:53")));
        assert!(!takes(at("0.0.0.0:53"), at("[::1]:53")) && !takes(at("127.0.0.1:53"), at("127.0.0.53:53")));
        assert!(!takes(at("127.0.0.53:54"), at("127.0.0.53:53")));
    }

    #[test]
    fn name_servers_on_loopback_are_asked() {
        let text = "[capture]\n[[dns.upstream]]\nserver = \"127.0.0.53\"\n[[dns.upstream]]\nserver = \"192.0.2.1\"\n\
                    [[outbound]]\nprotocol = \"direct\"\ndns = [\"127.0.0.1:5353\"]\n";
        let config = parse("t.toml", text).unwrap().config;
        assert_eq!(asked(&config), ["127.0.0.53:53".parse().unwrap(), "127.0.0.1:5353".parse().unwrap()]);
    }
}
