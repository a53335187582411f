//! The values of the words in a subject's arguments and files: ports, addresses, folders.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use super::{Programs, Subject, password};

/// The role of processes at the far end of a link.
pub(super) const SERVER: &str = "server";

/// Address of a port of a process at the far end, or at this one.
pub(super) fn address(is_far: bool, port: u16, programs: &Programs) -> SocketAddr {
    if is_far { SocketAddr::from((programs.host(), port)) } else { loopback(port) }
}

/// Values of the placeholders for one start.
pub(super) struct Words {
    pub(super) ports: BTreeMap<String, u16>,
    pub(super) dir: PathBuf,
    target: SocketAddr,
    host: Ipv4Addr,
    method: Option<String>,
}

impl Words {
    pub(super) fn new(subject: &Subject, target: SocketAddr, host: Ipv4Addr) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("adit-lab-{}-{count}", std::process::id()));
        let mut ports = BTreeMap::new();
        for process in &subject.process {
            let texts = process.args.iter().chain(process.files.values()).chain(process.env.values());
            for name in texts.flat_map(|text| port_names(text)) {
                if !ports.contains_key(name) {
                    ports.insert(name.to_owned(), free_port()?);
                }
            }
        }
        Ok(Self { ports, dir, target, host, method: subject.method.clone() })
    }

    pub(super) fn fill(&self, text: &str) -> Result<String> {
        let dir = self.dir.to_str().context("temporary directory is not UTF-8")?;
        let mut filled = text
            .replace("{dir}", dir)
            .replace("{host}", &self.host.to_string())
            .replace("{target}", &self.target.to_string())
            .replace("{target-port}", &self.target.port().to_string());
        if let Some(method) = &self.method {
            filled = filled.replace("{method}", method).replace("{password}", password(method));
            for (number, part) in method.split('/').enumerate() {
                filled = filled.replace(&format!("{{method.{number}}}"), part);
            }
        }
        for (name, port) in &self.ports {
            filled = filled.replace(&format!("{{port:{name}}}"), &port.to_string());
        }
        Ok(filled)
    }
}

fn port_names(text: &str) -> impl Iterator<Item = &str> {
    text.split("{port:").skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

/// A port of this machine, for TCP and UDP.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

/// A port that nobody listens on, below the range from which the kernel takes ports for outgoing
/// connections: one from that range could be taken before the program binds it.
pub(crate) fn free_port() -> Result<u16> {
    const FIRST: u32 = 18_000;
    const COUNT: u32 = 14_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = (std::process::id().wrapping_mul(97)).wrapping_add(step) % COUNT;
        let port = u16::try_from(FIRST + offset).context("port out of range")?;
        if TcpListener::bind(loopback(port)).is_ok() && UdpSocket::bind(loopback(port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port from {FIRST} to {}", FIRST + COUNT - 1)
}
