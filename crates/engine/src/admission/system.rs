//! Memory and descriptors that this process may use, as the system says.
//!
//! ```text
//!   /proc/meminfo                      MemTotal of the machine
//!   /proc/self/mountinfo               where control groups are mounted, and which group a mount shows as its root
//!   /proc/self/cgroup                  "0::/a/b" (version 2), "4:memory:/a/b" (version 1)
//!   MOUNT/a/b/memory.max, memory.high  version 2; a number of bytes or "max"
//!   MOUNT/a/b/memory.limit_in_bytes    version 1; a number near 2^63 stands for no limit
//! ```
//!
//! A limit of an outer group holds for all inner ones, so every group up to the mount is read and the least counts.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Limits from this size on are none: version 1 writes the largest multiple of a page below 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// The source of a memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemorySource {
    /// The machine's memory.
    Machine,
    /// A control group of version 1.
    CgroupV1,
    /// A control group of version 2.
    CgroupV2,
    /// The system does not say; a small machine is assumed.
    Assumed,
}

impl MemorySource {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::CgroupV1 => "cgroup v1",
            Self::CgroupV2 => "cgroup v2",
            Self::Assumed => "assumed",
        }
    }
}

/// Memory in bytes that this process may use, read below `root` (`/` for the running system).
pub(super) fn memory(root: &Path) -> Option<(u64, MemorySource)> {
    let machine = total(&read(&root.join("proc/meminfo")));
    let machine = machine.map(|bytes| (bytes, MemorySource::Machine));
    machine.into_iter().chain(group_limits(root)).min_by_key(|(bytes, _)| *bytes)
}

/// The first line of `/proc/meminfo`: `MemTotal:        8145396 kB`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The limits of all control groups that this process is in.
fn group_limits(root: &Path) -> Vec<(u64, MemorySource)> {
    let mounts = read(&root.join("proc/self/mountinfo"));
    let groups = read(&root.join("proc/self/cgroup"));
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (source, files): (_, &[&str]) = if controllers.is_empty() {
            (MemorySource::CgroupV2, &["memory.max", "memory.high"])
        } else if controllers.split(',').any(|name| name == "memory") {
            (MemorySource::CgroupV1, &["memory.limit_in_bytes"])
        } else {
            continue;
        };
        let mount = Mount::find(&mounts, source).unwrap_or_else(|| Mount::usual(source));
        for folder in mount.folders(group) {
            let folder = root.join(folder.strip_prefix("/").unwrap_or(&folder));
            let found = files.iter().filter_map(|file| limit(&read(&folder.join(file))));
            limits.extend(found.map(|bytes| (bytes, source)));
        }
    }
    limits
}

/// A number of bytes; `None` for `max`, for no limit, and for anything else.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

/// A mount of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The folder at which it is mounted.
    at: PathBuf,
    /// The group that it shows as its root.
    shows: PathBuf,
}

impl Mount {
    /// The mount at the folder that nearly everybody uses.
    fn usual(source: MemorySource) -> Self {
        let at = if source == MemorySource::CgroupV1 { "/sys/fs/cgroup/memory" } else { "/sys/fs/cgroup" };
        Self { at: at.into(), shows: "/".into() }
    }

    /// `36 35 98:0 /shown /mounted/at rw,noatime master:1 - cgroup cgroup rw,memory`.
    fn find(mounts: &str, source: MemorySource) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let (mount, system) = line.split_once(" - ")?;
            let mut system = system.split(' ');
            let kind = system.next()?;
            let is_wanted = match source {
                MemorySource::CgroupV2 => kind == "cgroup2",
                MemorySource::CgroupV1 | MemorySource::Machine | MemorySource::Assumed => {
                    kind == "cgroup" && system.nth(1)?.split(',').any(|option| option == "memory")
                }
            };
            let mut fields = mount.split(' ').skip(3);
            let (shows, at) = (fields.next()?, fields.next()?);
            is_wanted.then(|| Self { at: unescape(at).into(), shows: unescape(shows).into() })
        })
    }

    /// The folders of `group` and of all groups around it. In a container the mount may show the group itself.
    fn folders(&self, group: &str) -> Vec<PathBuf> {
        let inner = Path::new(group).strip_prefix(&self.shows).unwrap_or_else(|_| Path::new(""));
        let inner = inner.strip_prefix("/").unwrap_or(inner);
        // A path with `..` leads out of a namespace of groups.
        let is_plain = inner.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let inner = if is_plain { inner } else { Path::new("") };
        inner.ancestors().map(|part| self.at.join(part)).collect()
    }
}

/// Blanks and the like are `\040` in `mountinfo`.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                out.push(byte);
                rest = &behind[3..];
            }
            None => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The text of a file, empty without one.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a recorded system in a folder of their own.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("adit-budget-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:        8145396 kB\nMemFree:  1 kB\n");
    const MACHINE_BYTES: u64 = 8_145_396 * 1024;
    /// A machine with both versions, memory by the first (recorded).
    const HYBRID: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const HYBRID_GROUPS: &str = "8:pids:/\n4:memory:/outer/inner\n1:cpu:/\n0::/\n";
    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn a_machine_without_groups() {
        let tree = Tree::new("plain", &[MACHINE]);
        assert_eq!(memory(&tree.0), Some((MACHINE_BYTES, MemorySource::Machine)));
        assert_eq!(memory(Path::new("/nonexistent")), None);
        let broken = Tree::new("broken", &[("proc/meminfo", "MemTotal: many kB\n")]);
        assert_eq!(memory(&broken.0), None);
    }

    #[test]
    fn version_1_with_nested_groups() {
        let base = [MACHINE, ("proc/self/mountinfo", HYBRID), ("proc/self/cgroup", HYBRID_GROUPS)];
        let none = "9223372036854771712\n";
        for (name, inner, outer, top, expected) in [
            ("v1-inner", "134217728\n", none, none, (134_217_728, MemorySource::CgroupV1)),
            ("v1-outer", none, "100000000\n", none, (100_000_000, MemorySource::CgroupV1)),
            ("v1-least", "300\n", "200\n", "250\n", (200, MemorySource::CgroupV1)),
            ("v1-none", none, none, none, (MACHINE_BYTES, MemorySource::Machine)),
        ] {
            let mut files = base.to_vec();
            files.push(("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", inner));
            files.push(("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", outer));
            files.push(("sys/fs/cgroup/memory/memory.limit_in_bytes", top));
            let tree = Tree::new(name, &files);
            assert_eq!(memory(&tree.0), Some(expected), "{name}");
        }
    }

    #[test]
    fn version_2_with_nested_groups() {
        let base =
            [MACHINE, ("proc/self/mountinfo", V2), ("proc/self/cgroup", "0::/system.slice/adit.service\n")];
        for (name, max, high, outer, expected) in [
            ("v2-max", "134217728\n", "max\n", "max\n", (134_217_728, MemorySource::CgroupV2)),
            ("v2-high", "134217728\n", "120000000\n", "max\n", (120_000_000, MemorySource::CgroupV2)),
            ("v2-outer", "max\n", "max\n", "90000000\n", (90_000_000, MemorySource::CgroupV2)),
            ("v2-none", "max\n", "max\n", "max\n", (MACHINE_BYTES, MemorySource::Machine)),
        ] {
            let mut files = base.to_vec();
            files.push(("sys/fs/cgroup/system.slice/adit.service/memory.max", max));
            files.push(("sys/fs/cgroup/system.slice/adit.service/memory.high", high));
            files.push(("sys/fs/cgroup/system.slice/memory.max", outer));
            let tree = Tree::new(name, &files);
            assert_eq!(memory(&tree.0), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let mounts = "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let limit = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728");
        for (name, group) in [("shown", "4:memory:/docker/4f\n"), ("hidden", "4:memory:/../other\n")] {
            let files = [MACHINE, ("proc/self/mountinfo", mounts), ("proc/self/cgroup", group), limit];
            let tree = Tree::new(name, &files);
            assert_eq!(memory(&tree.0), Some((134_217_728, MemorySource::CgroupV1)), "{name}");
        }
        // Without the table of mounts the usual place is looked at.
        let usual = ("sys/fs/cgroup/memory.max", "5000");
        let tree = Tree::new("usual", &[MACHINE, ("proc/self/cgroup", "0::/\n"), usual]);
        assert_eq!(memory(&tree.0), Some((5000, MemorySource::CgroupV2)));
    }

    #[test]
    fn mounts_with_blanks_are_read() {
        assert_eq!(unescape(r"/a\040b\134c\9"), r"/a b\c\9");
        let line = r"1 2 0:3 / /odd\040place rw - cgroup2 none rw";
        let expected = Mount { at: "/odd place".into(), shows: "/".into() };
        assert_eq!(Mount::find(line, MemorySource::CgroupV2), Some(expected));
        assert_eq!(Mount::find("nonsense - cgroup2", MemorySource::CgroupV2), None);
    }
}
