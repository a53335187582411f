//! The system's settings for names: its name servers, search domains and hosts file. Both files are read again when
//! they change. A server that is a port of this process is left out.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_model::Upstream;
use hickory_proto::rr::Name;

use super::files::{Hosts, ResolvConf, Stamp, stamp};
use super::message::{absolute, relative};
use super::shared::{lock, plain};

/// Interval at which the files are checked for changes; the resolver of Go does it at the same pace.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The two files, with what was last read.
pub(super) struct System {
    resolv_conf: PathBuf,
    hosts: PathBuf,
    last: Mutex<Option<(Instant, Arc<Snapshot>)>>,
    /// Ports at which this process answers questions.
    own: Mutex<Vec<SocketAddr>>,
}

/// The files at one time.
pub(super) struct Snapshot {
    pub(super) servers: Arc<[Arc<Upstream>]>,
    pub(super) hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
    stamps: [Stamp; 2],
}

impl Default for System {
    fn default() -> Self {
        Self::new(Path::new("/etc/resolv.conf"), Path::new("/etc/hosts"))
    }
}

impl System {
    pub(super) fn new(resolv_conf: &Path, hosts: &Path) -> Self {
        let (resolv_conf, hosts) = (resolv_conf.to_owned(), hosts.to_owned());
        Self { resolv_conf, hosts, last: Mutex::default(), own: Mutex::default() }
    }

    /// Ports of this process are not among the name servers from now on: it would ask itself without end.
    pub(super) fn set_own_ports(&self, ports: Vec<SocketAddr>) {
        let mut own = lock(&self.own);
        if *own != ports {
            *own = ports;
            drop(own);
            *lock(&self.last) = None;
        }
    }

    /// The present content of the files.
    pub(super) fn read(&self, now: Instant) -> Arc<Snapshot> {
        let mut last = lock(&self.last);
        let stamps = || [stamp(&self.resolv_conf), stamp(&self.hosts)];
        if let Some((checked, snapshot)) = &mut *last {
            if now.saturating_duration_since(*checked) < CHECK_EVERY {
                return snapshot.clone();
            }
            *checked = now;
            if snapshot.stamps == stamps() {
                return snapshot.clone();
            }
        }
        let stamps = stamps();
        let conf = ResolvConf::read(&self.resolv_conf);
        let snapshot = Arc::new(Snapshot {
            servers: self.others(&conf.servers).map(|server| plain(*server)).collect(),
            hosts: Hosts::read(&self.hosts),
            search: conf.search.iter().filter_map(|domain| absolute(domain).ok()).collect(),
            ndots: conf.ndots,
            stamps,
        });
        if snapshot.servers.is_empty() {
            tracing::warn!(
                file = %self.resolv_conf.display(),
                hint = "name other servers there, or in the configuration",
                "the system's only name server is adit itself: names that it would be asked for fail"
            );
        }
        *last = Some((now, snapshot.clone()));
        snapshot
    }

    /// The servers that are not this process.
    fn others<'a>(&self, servers: &'a [SocketAddr]) -> impl Iterator<Item = &'a SocketAddr> {
        let own = lock(&self.own).clone();
        let is_any = own.iter().any(|port| port.ip().is_unspecified());
        let machine = if is_any { adit_net::rtc::local_addresses().unwrap_or_default() } else { Vec::new() };
        servers.iter().filter(move |server| !own.iter().any(|port| takes(*port, **server, &machine)))
    }
}

/// Whether a port gets questions for a server; `machine` are the addresses of this machine.
fn takes(port: SocketAddr, server: SocketAddr, machine: &[IpAddr]) -> bool {
    let ip = server.ip().to_canonical();
    let is_here =
        || ip.is_loopback() || ip.is_unspecified() || machine.iter().any(|own| own.to_canonical() == ip);
    let is_wildcard = port.ip().is_unspecified() && (port.is_ipv6() || ip.is_ipv4());
    port.port() == server.port() && (port.ip().to_canonical() == ip || (is_wildcard && is_here()))
}

impl Snapshot {
    /// The names that `name` may stand for, in order. With fewer dots than `ndots` it is tried under the search domains
    /// first; others are tried as they are alone, so that no question for a missing name leaves for a search domain.
    pub(super) fn candidates(&self, name: &str, whole: Name) -> Vec<Name> {
        let is_short = !name.ends_with('.') && name.matches('.').count() < self.ndots;
        let own = relative(name).ok().filter(|_| is_short);
        let found = own.into_iter().flat_map(|own| {
            self.search.iter().filter_map(move |domain| own.clone().append_domain(domain).ok())
        });
        found.chain([whole]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_this_process_are_not_asked() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let machine = ["192.0.2.1".parse().unwrap()];
        for (port, server, want) in [
            ("127.0.0.1:53", "127.0.0.1:53", true),
            ("[::ffff:127.0.0.1]:53", "127.0.0.1:53", true),
            ("127.0.0.1:53", "127.0.0.53:53", false),
            ("127.0.0.1:1053", "127.0.0.1:53", false),
            ("0.0.0.0:53", "127.0.0.53:53", true),
            ("[::]:53", "192.0.2.1:53", true),
            ("0.0.0.0:53", "192.0.2.2:53", false),
            ("0.0.0.0:53", "[::1]:53", false),
            ("[::]:53", "[::1]:53", true),
        ] {
            assert_eq!(takes(at(port), at(server), &machine), want, "{port} {server}");
        }
        let folder = std::env::temp_dir().join(format!("adit-system-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("resolv.conf");
        std::fs::write(&file, "nameserver 127.0.0.1\nnameserver 192.0.2.53\n").unwrap();
        let system = System::new(&file, &folder.join("hosts"));
        let names = |system: &System| -> Vec<String> {
            system.read(adit_net::rt::now()).servers.iter().map(|server| server.name.to_string()).collect()
        };
        assert_eq!(names(&system), ["127.0.0.1:53", "192.0.2.53:53"]);
        // From this moment on, and not only once the file has changed.
        system.set_own_ports(vec![at("127.0.0.1:53")]);
        assert_eq!(names(&system), ["192.0.2.53:53"]);
        system.set_own_ports(Vec::new());
        assert_eq!(names(&system).len(), 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
