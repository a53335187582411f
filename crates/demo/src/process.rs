//! The kernel's figures on a subject's processes: processor time, memory, descriptors, threads.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::Serialize;

/// User space memory of one process in KiB, from `smaps_rollup`. Socket buffers are kernel memory and
/// not part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Resident pages, shared ones counted in full.
    pub rss: u64,
    /// Resident pages, shared ones divided by their users.
    pub pss: u64,
    /// Pages that this process alone holds and has written.
    pub private_dirty: u64,
    /// Pages without a file: heap and stacks. The program's own text is not among them.
    pub anonymous: u64,
}

/// Processor time, user and system, that the process `pid` has used since it began.
///
/// Read from the process's CPU clock: the scheduler's nanosecond sum over all threads, exited ones
/// included. `/proc/PID/stat` counts in ticks of 10 ms and `/proc/PID/schedstat` sees the first thread
/// alone. Children are processes of their own: see [`members`].
///
/// # Errors
/// If there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let clock =
        ClockId::pid_cpu_clock_id(raw(pid)?).with_context(|| format!("processor clock of process {pid}"))?;
    let time = clock_gettime(clock).with_context(|| format!("processor time of process {pid}"))?;
    Ok(Duration::from(time))
}

/// The living processes whose process group is `group`, the leader among them.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn members(group: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list /proc")? {
        let name = entry.context("list /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end between the listing and the look at it.
        if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat"))
            && parse_group(&stat) == Some(group)
        {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Field 5 of a `stat` line. The name in field 2 may hold blanks and brackets.
fn parse_group(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (state != "Z").then_some(group)
}

/// Memory of the process `pid`.
///
/// # Errors
/// If there is no such process, or the kernel has no `smaps_rollup`.
pub fn memory(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let memory = parse_memory(&text);
    if memory.rss == 0 {
        bail!("no memory figures: {path}");
    }
    Ok(memory)
}

fn parse_memory(text: &str) -> Memory {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    Memory {
        rss: field("Rss:"),
        pss: field("Pss:"),
        private_dirty: field("Private_Dirty:"),
        anonymous: field("Anonymous:"),
    }
}

/// Open descriptors of the process `pid`.
///
/// # Errors
/// If there is no such process.
pub fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))
        .with_context(|| format!("descriptors of process {pid}"))?
        .count())
}

/// Threads of the process `pid`.
///
/// # Errors
/// If there is no such process.
pub fn threads(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("threads of process {pid}"))?
        .count())
}

/// The threads of the process `pid`, as the kernel numbers them.
///
/// # Errors
/// If there is no such process.
pub fn thread_ids(pid: u32) -> Result<Vec<i32>> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).with_context(|| format!("list {path}"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Datagrams that the kernel dropped at the open sockets of the process `pid`.
///
/// # Errors
/// If there is no such process.
pub fn datagram_drops(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&path).with_context(|| format!("list {path}"))?;
    let inode = |link: std::path::PathBuf| -> Option<u64> {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    let sockets: BTreeSet<u64> =
        entries.filter_map(|entry| inode(fs::read_link(entry.ok()?.path()).ok()?)).collect();
    let mut sum = 0;
    for table in ["udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        sum += parse_drops(&text, &sockets);
    }
    Ok(sum)
}

/// Sum of the last column of a table of datagram sockets over those with an inode (column 10) among `sockets`.
fn parse_drops(table: &str, sockets: &BTreeSet<u64>) -> u64 {
    let drops = |line: &str| -> Option<u64> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        sockets.contains(&fields.get(9)?.parse().ok()?).then(|| fields.last()?.parse().ok())?
    };
    table.lines().skip(1).filter_map(drops).sum()
}

/// Whether the network of the process `pid` has a datagram socket at the local port `port`.
#[must_use]
pub fn has_datagram_port(pid: u32, port: u16) -> bool {
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    has_port(&table("udp"), port) || has_port(&table("udp6"), port)
}

/// Whether column 2 of a table of sockets, `ADDRESS:PORT` in hexadecimal digits, has `port`.
fn has_port(table: &str, port: u16) -> bool {
    let local =
        |line: &str| u16::from_str_radix(line.split_whitespace().nth(1)?.rsplit_once(':')?.1, 16).ok();
    table.lines().skip(1).any(|line| local(line) == Some(port))
}

fn raw(pid: u32) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(pid).context("process id out of range")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_figures_make_sense() {
        let me = std::process::id();
        let before = cpu_time(me).unwrap();
        let mut x = 1_u64;
        for i in 0..5_000_000_u64 {
            x = std::hint::black_box(x.wrapping_mul(i | 1));
        }
        assert!(cpu_time(me).unwrap() > before, "{x}");
        let memory = memory(me).unwrap();
        assert!(memory.rss >= memory.pss && memory.pss > 0);
        assert!(descriptors(me).unwrap() >= 3);
        assert!(threads(me).unwrap() >= 1);
    }

    #[test]
    fn group_is_found_behind_an_odd_name() {
        assert_eq!(parse_group("12 (a) b (c) S 1 345 345 0 -1"), Some(345));
        assert_eq!(parse_group("12 (gone) Z 1 345 345 0 -1"), None);
        assert_eq!(parse_group("nonsense"), None);
    }

    #[test]
    fn memory_lines() {
        let text = "55-7f ---p [rollup]\nRss:            1234 kB\nPss:             600 kB\nPrivate_Dirty:   500 kB\nAnonymous:       400 kB\n";
        let memory = Memory { rss: 1234, pss: 600, private_dirty: 500, anonymous: 400 };
        assert_eq!(parse_memory(text), memory);
    }

    #[test]
    fn drops_of_the_right_sockets() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
            100: 0100007F:4E20 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 777 2 0000000000000000 12\n\
            101: 0100007F:4E21 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 778 2 0000000000000000 5\n";
        assert_eq!(parse_drops(table, &BTreeSet::from([777])), 12);
        assert_eq!(parse_drops(table, &BTreeSet::from([777, 778])), 17);
        assert_eq!(parse_drops("", &BTreeSet::new()), 0);
        assert!(has_port(table, 20_000) && has_port(table, 20_001) && !has_port(table, 20_002));
        assert!(datagram_drops(std::process::id()).is_ok());
        assert!(!thread_ids(std::process::id()).unwrap().is_empty());
    }

    #[test]
    fn a_missing_process_is_an_error() {
        assert!(cpu_time(999_999).is_err());
        assert!(memory(999_999).is_err());
    }
}
