//! The two files of a Unix system that say how names are resolved: resolv.conf(5) and hosts(5).

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Port of name servers for which none can be given.
const PORT: u16 = 53;

/// The settings of resolv.conf that adit uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResolvConf {
    /// Name servers, the preferred one first.
    pub(super) servers: Vec<SocketAddr>,
    /// Domains that are tried after names with fewer than `ndots` dots.
    pub(super) search: Vec<String>,
    /// See `search`.
    pub(super) ndots: usize,
}

impl ResolvConf {
    /// Reads a file; a missing or empty one means a name server on this machine, as the manual says.
    pub(super) fn read(path: &Path) -> Self {
        Self::parse(&read(path))
    }

    fn parse(text: &str) -> Self {
        let mut conf = Self { servers: Vec::new(), search: Vec::new(), ndots: 1 };
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                // Link-local servers with a zone cannot be expressed and are left out.
                Some("nameserver") => {
                    let ip = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    conf.servers.extend(ip.map(|ip| SocketAddr::new(ip, PORT)));
                }
                // The last of the two wins.
                Some("search") => conf.search = words.map(str::to_owned).collect(),
                Some("domain") => conf.search = words.take(1).map(str::to_owned).collect(),
                Some("options") => {
                    let given =
                        words.filter_map(|word| word.strip_prefix("ndots:")?.parse().ok()).next_back();
                    // 15 is the manual's limit.
                    conf.ndots = given.map_or(conf.ndots, |dots: usize| dots.min(15));
                }
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            conf.servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
        }
        conf
    }
}

/// The table of a hosts file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(HashMap<Box<str>, Vec<IpAddr>>);

impl Hosts {
    /// Reads a file; a missing one is an empty one.
    pub(super) fn read(path: &Path) -> Self {
        Self::parse(&read(path))
    }

    /// The addresses of a name, in the file's order.
    pub(super) fn find(&self, name: &str) -> Option<&[IpAddr]> {
        self.0.get(name.to_ascii_lowercase().as_str()).map(Vec::as_slice)
    }

    /// All names with their addresses.
    pub(super) fn into_entries(self) -> Vec<(Box<str>, Vec<IpAddr>)> {
        self.0.into_iter().collect()
    }

    fn parse(text: &str) -> Self {
        let mut table: HashMap<Box<str>, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let Some(ip) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
            for name in words {
                let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
                let ips = table.entry(name.into()).or_default();
                if !ips.contains(&ip) {
                    ips.push(ip);
                }
            }
        }
        Self(table)
    }
}

/// Longest file of the system, in bytes.
const MAX_LEN: usize = 64 << 20;

/// Identity of a file's contents: seconds and nanoseconds of its last change, inode, length.
pub(super) type Stamp = Option<(i64, i64, u64, u64)>;

/// The stamp of a file; `None` if it cannot be had.
pub(super) fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.mtime(), meta.mtime_nsec(), meta.ino(), meta.len()))
}

fn read(path: &Path) -> String {
    adit_net::files::read(path, MAX_LEN)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

/// Fuzz target: any text gives at least one server, and names that are found again.
#[doc(hidden)]
pub fn fuzz_dns_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let conf = ResolvConf::parse(&text);
    assert!(!conf.servers.is_empty() && conf.ndots <= 15);
    assert!(conf.servers.len() <= text.lines().count().max(1));
    let hosts = Hosts::parse(&text);
    let mut names: Vec<&str> = hosts.0.keys().map(|name| &**name).collect();
    names.sort_unstable();
    for name in names {
        assert!(hosts.find(&name.to_ascii_uppercase()).is_some_and(|ips| !ips.is_empty()), "{name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf() {
        let conf = ResolvConf::parse(
            "# comment\ndomain first.test\nsearch a.test b.test ; both\nnameserver 192.0.2.1\n\
             nameserver 2001:db8::1 # v6\nnameserver fe80::1%eth0\nnameserver nonsense\n\
             options edns0 ndots:5 rotate\nsortlist 10.0.0.0\n",
        );
        assert_eq!(conf.servers, ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
        assert_eq!(conf.search, ["a.test", "b.test"]);
        assert_eq!(conf.ndots, 5);

        let none = ResolvConf::parse("options ndots:x\n");
        assert_eq!((none.servers, none.ndots), (vec!["127.0.0.1:53".parse().unwrap()], 1));
        assert_eq!(ResolvConf::parse("options ndots:99").ndots, 15);
        assert_eq!(ResolvConf::parse("search a b\ndomain c d").search, ["c"]);
    }

    #[test]
    fn hosts() {
        let hosts = Hosts::parse(
            "127.0.0.1 localhost\n::1 localhost ip6-localhost # both\n192.0.2.7\tWeb.Test. web\n\
             192.0.2.7 web\nbad line\nfe80::1%lo0 scoped\n",
        );
        let found = |name| hosts.find(name).map(|ips| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>());
        assert_eq!(found("localhost").unwrap(), ["127.0.0.1", "::1"]);
        assert_eq!(found("WEB.test").unwrap(), ["192.0.2.7"]);
        assert_eq!(found("web").unwrap(), ["192.0.2.7"]);
        assert_eq!((found("line"), found("scoped"), found("")), (None, None, None));
    }
}
