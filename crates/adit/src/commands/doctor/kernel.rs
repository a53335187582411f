//! Limits and settings of the kernel.

use adit_model::Config;

use super::{Finding, Level, judge};
use crate::machine::Root;

/// The buffer that adit asks for on sockets that many clients send to.
const SOCKET_BUFFER: u64 = 4 << 20;
/// A stream of 1 Gbit/s over a round trip of 130 ms has this much in flight.
const TCP_BUFFER: u64 = 16 << 20;
/// Packets that wait for a busy core; the kernel's default, 1,000, is 1 ms of a fast link.
const BACKLOG: u64 = 4096;
/// Memory for the buffers of all UDP sockets, in bytes: sixteen full socket buffers.
const UDP_MEMORY: u64 = 64 << 20;
/// A connection needs two descriptors.
const DESCRIPTORS: u64 = 65_536;
/// Entries of the connection table: a client with many tabs needs hundreds.
const CONNTRACK: u64 = 65_536;
/// Part of the table in use from which on it is nearly full, in percent.
const CONNTRACK_FULL: u64 = 80;
/// Seconds of silence: QUIC keeps connections alive with a packet each 15 to 30 s.
const UDP_TIMEOUT: u64 = 30;
const UDP_STREAM_TIMEOUT: u64 = 120;
/// Ports for connections to targets.
const LOCAL_PORTS: u64 = 20_000;
const PAGE: u64 = 4096;

pub(super) fn checks(root: &Root, config: Option<&Config>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(descriptors(root));
    for (check, path, wanted) in [
        ("rmem_max", "net.core.rmem_max", SOCKET_BUFFER),
        ("wmem_max", "net.core.wmem_max", SOCKET_BUFFER),
        ("netdev_max_backlog", "net.core.netdev_max_backlog", BACKLOG),
    ] {
        found.extend(at_least(root, check, path, wanted));
    }
    for (check, key) in [("tcp_rmem", "net.ipv4.tcp_rmem"), ("tcp_wmem", "net.ipv4.tcp_wmem")] {
        found.extend(triple(root, check, key, 1, TCP_BUFFER));
    }
    found.extend(triple(root, "udp_mem", "net.ipv4.udp_mem", PAGE, UDP_MEMORY));
    found.extend(congestion(root));
    found.extend(local_ports(root));
    found.extend(fast_open(root, config));
    found.extend(conntrack(root));
    found
}

fn path(key: &str) -> String {
    format!("/proc/sys/{}", key.replace('.', "/"))
}

fn numbers(root: &Root, key: &str) -> Option<Vec<u64>> {
    root.read(path(key))?.split_whitespace().map(|word| word.parse().ok()).collect()
}

fn at_least(root: &Root, check: &'static str, key: &str, wanted: u64) -> Option<Finding> {
    let value = root.number(&path(key))?;
    let level = judge(value >= wanted, Level::Warn);
    let finding = Finding::new(check, level, value.to_string(), format!("at least {wanted}"));
    Some(finding.fix(format!("sysctl -w {key}={wanted}")))
}

/// The last of three numbers, which is the largest size; `unit` is its bytes.
fn triple(root: &Root, check: &'static str, key: &str, unit: u64, wanted: u64) -> Option<Finding> {
    let values = numbers(root, key)?;
    let [low, middle, high] = values[..] else { return None };
    let (found, wanted) = (high.saturating_mul(unit), wanted);
    let level = judge(found >= wanted, Level::Warn);
    let unit_name = if unit == 1 { "bytes" } else { "pages" };
    let text = format!("{low} {middle} {high} {unit_name}");
    let finding = Finding::new(check, level, text, format!("{} or more at the end", wanted / unit));
    Some(finding.fix(format!("sysctl -w {key}=\"{low} {middle} {}\"", wanted / unit)))
}

fn descriptors(root: &Root) -> Option<Finding> {
    let limits = root.read("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    // The soft limit is raised to the hard one at start.
    let hard = line.split_whitespace().nth(1)?;
    let value = if hard == "unlimited" { u64::MAX } else { hard.parse().ok()? };
    let level = judge(value >= DESCRIPTORS, if value < 4096 { Level::Fail } else { Level::Warn });
    let finding = Finding::new("descriptor limit", level, hard, format!("at least {DESCRIPTORS}"));
    Some(finding.fix("ulimit -Hn 1048576  # or LimitNOFILE=1048576: adit service install"))
}

fn congestion(root: &Root) -> Option<Finding> {
    let now = root.read(path("net.ipv4.tcp_congestion_control"))?;
    let now = now.trim();
    let wanted = "bbr: faster where packets are lost";
    let command = "modprobe tcp_bbr; sysctl -w net.ipv4.tcp_congestion_control=bbr";
    Some(Finding::new("congestion control", judge(now == "bbr", Level::Warn), now, wanted).fix(command))
}

fn local_ports(root: &Root) -> Option<Finding> {
    let values = numbers(root, "net.ipv4.ip_local_port_range")?;
    let [first, last] = values[..] else { return None };
    let count = last.saturating_sub(first);
    let finding = Finding::new(
        "local ports",
        judge(count >= LOCAL_PORTS, Level::Warn),
        format!("{first} to {last}"),
        format!("at least {LOCAL_PORTS} ports"),
    );
    Some(finding.fix("sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\""))
}

/// TCP Fast Open, where the configuration asks for it.
fn fast_open(root: &Root, config: Option<&Config>) -> Option<Finding> {
    let config = config?;
    let server = config.inbounds.iter().any(|inbound| inbound.socket.fast_open);
    let client = config.outbounds.iter().any(|outbound| outbound.dial.fast_open);
    let bits = u64::from(client) | (u64::from(server) << 1);
    if bits == 0 {
        return None;
    }
    let value = root.number(&path("net.ipv4.tcp_fastopen"))?;
    let level = judge(value & bits == bits, Level::Warn);
    Some(
        Finding::new("tcp_fastopen", level, value.to_string(), "3, since tcp-fast-open is on")
            .fix("sysctl -w net.ipv4.tcp_fastopen=3"),
    )
}

/// Size, growth and timeouts of the table of connections, if the kernel keeps one.
fn conntrack(root: &Root) -> Vec<Finding> {
    let key = |name: &str| format!("net.netfilter.nf_conntrack_{name}");
    let number = |name: &str| root.number(&path(&key(name)));
    let mut found = Vec::new();
    let (Some(max), Some(count)) = (number("max"), number("count")) else {
        found.push(Finding::new("conntrack", Level::Pass, "not in use", "not full"));
        return found;
    };
    let used = count.saturating_mul(100) / max.max(1);
    let level = if used >= CONNTRACK_FULL { Level::Fail } else { judge(max >= CONNTRACK, Level::Warn) };
    let wanted = max.max(CONNTRACK / 2).saturating_mul(2);
    let size = Finding::new(
        "conntrack size",
        level,
        format!("{count} of {max} ({used} %)"),
        format!("{CONNTRACK} or more, below {CONNTRACK_FULL} %"),
    );
    found.push(size.fix(format!("sysctl -w net.netfilter.nf_conntrack_max={wanted}")));
    if let Some(lost) = root.read("/proc/net/stat/nf_conntrack").as_deref().and_then(lost) {
        let growth = Finding::new(
            "conntrack growth",
            judge(lost == 0, Level::Warn),
            format!("{lost} packets without a place"),
            "0",
        );
        found.push(growth.fix(format!("sysctl -w net.netfilter.nf_conntrack_max={wanted}")));
    }
    for (check, name, wanted) in [
        ("conntrack UDP timeout", "udp_timeout", UDP_TIMEOUT),
        ("conntrack UDP stream timeout", "udp_timeout_stream", UDP_STREAM_TIMEOUT),
    ] {
        found.extend(at_least(root, check, &key(name), wanted));
    }
    found
}

/// Entries that found no place, over all cores: the columns `drop`, `early_drop` and `insert_failed`, hexadecimal.
fn lost(table: &str) -> Option<u64> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next()?.split_whitespace().collect();
    let is_lost = |index: usize| matches!(names.get(index), Some(&("drop" | "early_drop" | "insert_failed")));
    let mut sum = 0_u64;
    for line in lines {
        for (_, word) in line.split_whitespace().enumerate().filter(|(index, _)| is_lost(*index)) {
            sum = sum.saturating_add(u64::from_str_radix(word, 16).ok()?);
        }
    }
    Some(sum)
}
