//! The machine as its files describe it, under a root directory that tests choose.

use std::fs;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// The directory that stands for `/`.
#[derive(Debug, Clone)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// `/`, unless another directory is given.
    pub(crate) fn new(path: Option<&Path>) -> Self {
        Self(path.unwrap_or_else(|| Path::new("/")).to_owned())
    }

    /// Whether it is the machine itself, so that its services may be started.
    pub(crate) fn is_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The place of an absolute path.
    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether a path exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// A text of at most 1 MiB; none for a file that is not there, longer, or not to be read.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let mut text = String::new();
        let len = fs::File::open(self.at(path)).ok()?.take(MAX_LEN + 1).read_to_string(&mut text).ok()?;
        (len as u64 <= MAX_LEN).then_some(text)
    }

    /// The number that a file holds, as those of `/proc/sys` do.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.split_whitespace().next()?.parse().ok()
    }

    /// The sorted names in a folder; none if it is not there.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The machine's own addresses, loopback and link-local ones left out.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let v4 = self.read("/proc/net/fib_trie").unwrap_or_default();
        let v6 = self.read("/proc/net/if_inet6").unwrap_or_default();
        let mut found: Vec<IpAddr> = Vec::new();
        for ip in local_v4(&v4).chain(v6.lines().filter_map(local_v6)) {
            let is_own = !ip.is_loopback() && !is_link_local(ip);
            if is_own && !found.contains(&ip) {
                found.push(ip);
            }
        }
        found
    }

    /// The address by which clients most likely reach this machine: a public one, IPv4 first, else a private one.
    pub(crate) fn best_address(&self) -> Option<IpAddr> {
        let rank = |ip: &IpAddr| (!is_public(*ip), ip.is_ipv6());
        self.addresses().into_iter().min_by_key(rank)
    }

    /// User and group id of a name in `/etc/passwd`.
    pub(crate) fn user(&self, name: &str) -> Option<(u32, u32)> {
        let passwd = self.read("/etc/passwd")?;
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    }

    /// Whether the machine's file of groups has one of this name.
    pub(crate) fn has_group(&self, name: &str) -> bool {
        self.read("/etc/group")
            .is_some_and(|text| text.lines().any(|line| line.split(':').next() == Some(name)))
    }

    /// Whether one of the usual folders of programs has one of this name.
    pub(crate) fn has_program(&self, name: &str) -> bool {
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|folder| self.has(&format!("{folder}/{name}")))
    }
}

fn local_v4(trie: &str) -> impl Iterator<Item = IpAddr> {
    let mut last = None;
    trie.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(ip) = line.strip_prefix("|-- ") {
            last = ip.parse::<IpAddr>().ok();
        }
        line.starts_with("/32 host LOCAL").then_some(last).flatten()
    })
}

fn local_v6(line: &str) -> Option<IpAddr> {
    let digits = line.split_whitespace().next().filter(|digits| digits.len() == 32)?;
    u128::from_str_radix(digits, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether an address can be reached from anywhere in the internet.
pub(crate) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            let is_shared = a == 100 && (64..128).contains(&b);
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || is_shared)
        }
        IpAddr::V6(ip) => ip.segments()[0] & 0xe000 == 0x2000,
    }
}

/// Writes a file as a whole, with this mode from its first byte on: a new one beside it takes its place.
///
/// # Errors
/// The system's error; the file is as before then.
pub(crate) fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    adit_net::files::replace(path, mode, text.as_bytes()).map(drop)
}

/// Makes a folder and those above it, if they are not there.
///
/// # Errors
/// The system's error.
pub(crate) fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\nLocal:\n     |-- 10.0.0.7\n        /32 host LOCAL\n     \
                        |-- 10.0.0.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
                        |-- 203.0.113.9\n        /32 host LOCAL\n";

    #[test]
    fn own_addresses() {
        let dir = std::env::temp_dir().join(format!("adit-machine-{}", std::process::id()));
        fs::create_dir_all(dir.join("proc/net")).unwrap();
        fs::write(dir.join("proc/net/fib_trie"), TRIE).unwrap();
        let v6 = "20010db8000000000000000000000001 02 40 00 80 eth0\nfe800000000000000000000000000001 02 40 20 80 eth0\n";
        fs::write(dir.join("proc/net/if_inet6"), v6).unwrap();
        let root = Root::new(Some(&dir));
        let texts: Vec<String> = root.addresses().iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.7", "203.0.113.9", "2001:db8::1"]);
        assert_eq!(root.best_address().unwrap().to_string(), "203.0.113.9");
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(root.best_address(), None);
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_with_its_mode() {
        use std::os::unix::fs::PermissionsExt as _;

        let path = std::env::temp_dir().join(format!("adit-machine-file-{}", std::process::id()));
        write(&path, 0o600, "one").unwrap();
        write(&path, 0o600, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        fs::remove_file(&path).unwrap();
        assert!(write(Path::new("/nonexistent-folder/x"), 0o600, "").is_err());
    }
}
