//! Interfaces, cores that serve them, IPv6, MTU, firewall.

use std::net::{IpAddr, SocketAddr};

use adit_model::{Config, Inbound};
use adit_net::tool;

use super::{Finding, Level, judge};
use crate::commands::up::{firewall, ports};
use crate::machine::Root;

/// The first kernels that send and receive groups of datagrams.
const UDP_GSO: (u32, u32) = (4, 18);
const UDP_GRO: (u32, u32) = (5, 0);
/// Part of the packets that one core may take, in percent.
const BUSY: u64 = 80;
/// Packets below this number say nothing.
const ENOUGH_PACKETS: u64 = 1_000_000;
/// The smallest MTU of IPv6, and the usual one.
const MTU: (u64, u64) = (1280, 1500);

pub(super) fn checks(root: &Root, config: Option<&Config>) -> Vec<Finding> {
    let mut found = Vec::new();
    let interface = default_interface(root);
    found.extend(kernel_offload(root));
    if let Some(interface) = &interface {
        if root.is_machine() {
            found.extend(nic_offload(interface));
        }
        found.extend(queues(root, interface));
        found.extend(mtu(root, interface));
    }
    found.extend(busy_core(root));
    found.push(ipv6(root, config));
    found.push(name_servers(root));
    found.extend(config.map(|config| firewall(root, config)));
    found
}

/// The interface of the default route.
fn default_interface(root: &Root) -> Option<String> {
    let routes = root.read("/proc/net/route")?;
    let is_default = |line: &&str| line.split_whitespace().nth(1) == Some("00000000");
    let line = routes.lines().skip(1).find(is_default)?;
    line.split_whitespace().next().map(str::to_owned)
}

fn cores(root: &Root) -> usize {
    let stat = root.read("/proc/stat").unwrap_or_default();
    let is_core = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    };
    stat.lines().filter(is_core).count().max(1)
}

fn kernel_offload(root: &Root) -> Option<Finding> {
    let release = root.read("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let word = |since| if version >= since { "on" } else { "off" };
    let found = format!("kernel {}: GSO {}, GRO {}", release.trim(), word(UDP_GSO), word(UDP_GRO));
    let level = judge(version >= UDP_GRO, Level::Warn);
    Some(
        Finding::new("UDP offload", level, found, "kernel 5.0 or newer")
            .fix("uname -r  # and a newer kernel"),
    )
}

fn nic_offload(interface: &str) -> Option<Finding> {
    let ran = tool::run("ethtool", &["-k", interface]).ok().filter(|ran| ran.ok)?;
    Some(offload_of(interface, &ran.text))
}

/// The judgement about the output of `ethtool -k`.
pub(super) fn offload_of(interface: &str, text: &str) -> Finding {
    let is_off = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
        line.is_some_and(|state| state.trim().starts_with("off"))
    };
    let wanted = [("generic-segmentation-offload", "gso"), ("generic-receive-offload", "gro")];
    let off: Vec<&str> = wanted.iter().filter(|(name, _)| is_off(name)).map(|(_, short)| *short).collect();
    let found = if off.is_empty() { "gso, gro on".to_owned() } else { format!("off: {}", off.join(", ")) };
    let switches: String = off.iter().map(|short| format!(" {short} on")).collect();
    Finding::new("NIC offload", judge(off.is_empty(), Level::Warn), found, "gso on, gro on")
        .fix(format!("ethtool -K {interface}{switches}"))
}

/// Receive queues of the interface: with one, and without RPS, one core takes all packets.
fn queues(root: &Root, interface: &str) -> Option<Finding> {
    let folder = format!("/sys/class/net/{interface}/queues");
    let names = root.names(&folder);
    let receive: Vec<&String> = names.iter().filter(|name| name.starts_with("rx-")).collect();
    let cores = cores(root);
    let has_rps = receive.iter().any(|queue| {
        let mask = root.read(format!("{folder}/{queue}/rps_cpus")).unwrap_or_default();
        mask.chars().any(|digit| matches!(digit, '1'..='9' | 'a'..='f'))
    });
    let found = format!("{} for {cores} cores{}", receive.len(), if has_rps { ", with RPS" } else { "" });
    let is_good = receive.len() > 1 || cores == 1 || has_rps;
    let mask = if cores >= 32 { u64::from(u32::MAX) } else { (1_u64 << cores) - 1 };
    let finding = Finding::new("NIC queues", judge(is_good, Level::Warn), found, "several, or RPS");
    (!receive.is_empty())
        .then(|| finding.fix(format!("echo {mask:x} > /sys/class/net/{interface}/queues/rx-0/rps_cpus")))
}

/// A single core that takes nearly all packets, by the counts since the boot.
fn busy_core(root: &Root) -> Option<Finding> {
    let text = root.read("/proc/softirqs")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("NET_RX:"))?;
    let counts: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let sum = counts.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let (core, most) = counts.iter().copied().enumerate().max_by_key(|(_, count)| *count)?;
    if counts.len() < 2 || sum < ENOUGH_PACKETS {
        return Some(Finding::new("interrupt cores", Level::Pass, "too few packets, or one core", "spread"));
    }
    let share = u64::try_from(u128::from(most) * 100 / u128::from(sum)).unwrap_or(100);
    let finding = Finding::new(
        "interrupt cores",
        judge(share <= BUSY, Level::Warn),
        format!("core {core} takes {share} % of the packets"),
        format!("at most {BUSY} %"),
    );
    Some(finding.fix("systemctl enable --now irqbalance  # or RPS, see NIC queues"))
}

fn mtu(root: &Root, interface: &str) -> Option<Finding> {
    let mtu = root.number(&format!("/sys/class/net/{interface}/mtu"))?;
    let level = if mtu < MTU.0 { Level::Fail } else { judge(mtu >= MTU.1, Level::Warn) };
    let finding = Finding::new("MTU", level, format!("{mtu} at {interface}"), format!("{} or more", MTU.1));
    Some(finding.fix(format!("ip link set {interface} mtu {}  # unless the link is a tunnel", MTU.1)))
}

fn ipv6(root: &Root, config: Option<&Config>) -> Finding {
    let listens = config.is_some_and(|config| {
        config.inbounds.iter().flat_map(|inbound| &inbound.listen).any(SocketAddr::is_ipv6)
    });
    let text = root.read("/proc/net/if_inet6").unwrap_or_default();
    let has_address = root.addresses().iter().any(IpAddr::is_ipv6);
    let routes = root.read("/proc/net/ipv6_route").unwrap_or_default();
    // Destination, prefix length, ..., interface; the kernel's own entry leads to lo.
    let is_default = |line: &str| {
        line.starts_with("00000000000000000000000000000000 00 ") && !line.trim_end().ends_with(" lo")
    };
    let has_route = routes.lines().any(is_default);
    if text.trim().is_empty() && listens {
        let finding =
            Finding::new("IPv6", Level::Fail, "switched off", "on, since an inbound listens on [::]");
        return finding.fix("sysctl -w net.ipv6.conf.all.disable_ipv6=0");
    }
    match (has_address, has_route) {
        (true, true) => Finding::new("IPv6", Level::Pass, "address and route", "address and route"),
        (false, _) => Finding::new("IPv6", Level::Pass, "none; IPv4 alone is used", "none, or with a route"),
        (true, false) => Finding::new("IPv6", Level::Warn, "address, but no default route", "both or none")
            .fix("ip -6 route  # or family = \"ipv4\" in the outbound"),
    }
}

fn name_servers(root: &Root) -> Finding {
    let text = root.read("/etc/resolv.conf").unwrap_or_default();
    let servers: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")).map(str::trim).collect();
    let level = judge(!servers.is_empty(), Level::Fail);
    let found = if servers.is_empty() { "none".to_owned() } else { servers.join(", ") };
    Finding::new("name servers", level, found, "one or more in /etc/resolv.conf")
        .fix("echo nameserver 1.1.1.1 > /etc/resolv.conf")
}

fn firewall(root: &Root, config: &Config) -> Finding {
    let wanted = ports(config);
    let Some(active) = firewall::find(root) else {
        return Finding::new("firewall", Level::Pass, "none found", "lets the inbounds' ports in");
    };
    let rules = ["/etc/ufw/user.rules", "/lib/ufw/user.rules", "/etc/nftables.conf", "/etc/config/firewall"];
    let rules: String = rules.iter().filter_map(|path| root.read(path)).collect();
    let is_named = |port: &u16| {
        let digits = port.to_string();
        rules.split(|c: char| !c.is_ascii_digit()).any(|number| number == digits)
    };
    let missing: Vec<(u16, bool)> = wanted.into_iter().filter(|(port, _)| !is_named(port)).collect();
    let list: Vec<String> = missing.iter().map(|(port, _)| port.to_string()).collect();
    let found = if missing.is_empty() {
        format!("{active:?}, with rules for all ports")
    } else {
        format!("{active:?}, no rule found for {}", list.join(", "))
    };
    let commands = firewall::rules(active, &missing).join("; ");
    Finding::new("firewall", judge(missing.is_empty(), Level::Warn), found, "lets the inbounds' ports in")
        .fix(commands)
}

/// Whether an inbound is for other machines.
pub(super) fn is_public(inbound: &Inbound) -> bool {
    inbound.listen.iter().any(|addr| !addr.ip().is_loopback())
}
