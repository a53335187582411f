use std::fs;
use std::path::Path;

use super::*;

/// A recorded machine: two cores, one queue, small buffers, a full connection table.
const TREE: &[(&str, &str)] = &[
    (
        "proc/self/limits",
        "Limit  Soft  Hard  Units\nMax open files            1024                 4000                 files     \n",
    ),
    ("proc/sys/net/core/rmem_max", "212992\n"),
    ("proc/sys/net/core/wmem_max", "8388608\n"),
    ("proc/sys/net/core/netdev_max_backlog", "1000\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t33554432\n"),
    ("proc/sys/net/ipv4/udp_mem", "5000\t6000\t7000\n"),
    ("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("proc/sys/net/netfilter/nf_conntrack_max", "30000\n"),
    ("proc/sys/net/netfilter/nf_conntrack_count", "29000\n"),
    ("proc/sys/net/netfilter/nf_conntrack_udp_timeout", "10\n"),
    ("proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream", "120\n"),
    (
        "proc/net/stat/nf_conntrack",
        "entries  insert_failed drop early_drop\n00007148  00000001 0000000f 00000000\n00007148  00000000 00000000 00000002\n",
    ),
    ("proc/sys/kernel/osrelease", "4.19.0-27-amd64\n"),
    ("proc/stat", "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 1\n"),
    ("proc/softirqs", "                    CPU0       CPU1\n      NET_RX:    9900000     100000\n"),
    ("proc/net/route", "Iface\tDestination\tGateway\neth0\t00000000\t0100A8C0\n"),
    ("proc/net/if_inet6", "20010db8000000000000000000000001 02 40 00 80 eth0\n"),
    (
        "proc/net/ipv6_route",
        "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n",
    ),
    ("sys/class/net/eth0/mtu", "1200\n"),
    ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n"),
    ("etc/resolv.conf", "search x\n"),
    ("etc/ufw/ufw.conf", "ENABLED=yes\n"),
    ("etc/ufw/user.rules", "-A ufw-user-input -p tcp --dport 20000 -j ACCEPT\n"),
    (
        "etc/adit/adit.toml",
        "[[inbound]]\nprotocol = \"snell\"\nlisten = [\"0.0.0.0:20000\", \"[::]:20000\"]\npsk = \"short\"\ntcp-fast-open = true\n\
      [[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \"0.0.0.0:20001\"\nmethod = \"aes-128-gcm\"\npassword = \"TwentyFourCharactersLong\"\n\
      plugin = \"no-such-plugin\"\n",
    ),
    ("proc/sys/net/ipv4/tcp_fastopen", "1\n"),
];

fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("adit-doctor-{name}-{}", std::process::id()));
    for (path, text) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn findings(dir: &Path) -> Vec<Finding> {
    let root = Root::new(Some(dir));
    let args = DoctorArgs {
        peer: None,
        files: FileArgs::default(),
        time_server: String::new(),
        offline: true,
        all: false,
        json: false,
        root: Some(dir.to_owned()),
    };
    let mut found = Vec::new();
    let config = config(&args, &root, &mut found);
    found.extend(kernel::checks(&root, config.as_ref()));
    found.extend(network::checks(&root, config.as_ref()));
    found.extend(config.iter().flat_map(|config| config::checks(&root, config)));
    found
}

#[test]
fn a_bad_machine_is_seen_through() {
    let dir = tree("bad", TREE);
    let found = findings(&dir);
    fs::remove_dir_all(&dir).unwrap();
    for (check, level, value, command) in [
        ("descriptor limit", Level::Fail, "4000", "LimitNOFILE"),
        ("rmem_max", Level::Warn, "212992", "sysctl -w net.core.rmem_max=4194304"),
        ("wmem_max", Level::Pass, "8388608", ""),
        ("netdev_max_backlog", Level::Warn, "1000", "net.core.netdev_max_backlog=4096"),
        ("tcp_rmem", Level::Warn, "6291456", "net.ipv4.tcp_rmem=\"4096 131072 16777216\""),
        ("tcp_wmem", Level::Pass, "33554432", ""),
        ("udp_mem", Level::Warn, "7000 pages", "net.ipv4.udp_mem=\"5000 6000 16384\""),
        ("congestion control", Level::Warn, "cubic", "tcp_congestion_control=bbr"),
        ("local ports", Level::Pass, "32768 to 60999", ""),
        ("tcp_fastopen", Level::Warn, "1", "tcp_fastopen=3"),
        ("conntrack size", Level::Fail, "29000 of 30000 (96 %)", "nf_conntrack_max=65536"),
        ("conntrack growth", Level::Warn, "18 packets", "nf_conntrack_max"),
        ("conntrack UDP timeout", Level::Warn, "10", "nf_conntrack_udp_timeout=30"),
        ("conntrack UDP stream timeout", Level::Pass, "120", ""),
        ("UDP offload", Level::Warn, "GSO on, GRO off", "uname"),
        ("NIC queues", Level::Warn, "1 for 2 cores", "echo 3 > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
        ("interrupt cores", Level::Warn, "core 0 takes 99 %", "irqbalance"),
        ("MTU", Level::Fail, "1200 at eth0", "mtu 1500"),
        ("IPv6", Level::Warn, "no default route", "ip -6 route"),
        ("name servers", Level::Fail, "none", "nameserver"),
        ("firewall", Level::Warn, "no rule found for 20001", "ufw allow 20001/tcp"),
        ("plugin", Level::Fail, "no-such-plugin is not in PATH", "apt-get install no-such-plugin"),
        ("keys and loops", Level::Warn, "the key is short", "adit key snell"),
        ("configuration", Level::Pass, "no errors", ""),
    ] {
        let finding = found.iter().find(|finding| finding.check == check);
        let finding = finding.unwrap_or_else(|| panic!("no check {check}: {found:#?}"));
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.found.contains(value), "{finding:?}");
        assert_eq!(finding.command.is_some(), level != Level::Pass, "{finding:?}");
        assert!(finding.command.as_deref().unwrap_or("").contains(command), "{finding:?}");
    }
    let text = text(&found, false);
    let wide: Vec<&str> =
        text.lines().filter(|line| line.chars().count() > 80 && !line.starts_with("     $")).collect();
    let is_path = |line: &&str| line.contains("adit-doctor-") || line.contains("keys and loops");
    assert!(wide.iter().all(is_path), "{wide:#?}");
    assert!(text.starts_with("FAIL ") && text.contains("PASS ") && text.contains(" failed, "), "{text}");
}

#[test]
fn an_empty_machine_causes_no_panic_and_few_claims() {
    let dir = tree("empty", &[("x", "")]);
    let found = findings(&dir);
    fs::remove_dir_all(&dir).unwrap();
    let failed: Vec<&str> =
        found.iter().filter(|finding| finding.level != Level::Pass).map(|finding| finding.check).collect();
    assert_eq!(failed, ["name servers"]);
}

#[test]
fn damaged_files_are_as_good_as_none() {
    for text in ["", "x", "-1", "99999999999999999999999", "1 2", "\0\0\0"] {
        let files: Vec<(&str, &str)> = TREE.iter().map(|(path, _)| (*path, text)).collect();
        let dir = tree("damaged", &files);
        findings(&dir);
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn clocks_and_offload() {
    for (offset, level) in
        [(0, Level::Pass), (-1999, Level::Pass), (2001, Level::Warn), (-300_000, Level::Fail)]
    {
        assert_eq!(live::judge_clock(offset).level, level, "{offset}");
    }
    assert!(live::judge_clock(-300_000).found.contains("300.000 s ahead"));
    assert_eq!(live::judge_clock(i64::MIN).level, Level::Fail);
    let off = "generic-segmentation-offload: on\ngeneric-receive-offload: off [requested on]\n";
    let finding = network::offload_of("eth0", off);
    assert_eq!((finding.level, finding.command.as_deref()), (Level::Warn, Some("ethtool -K eth0 gro on")));
    assert_eq!(network::offload_of("eth0", &off.replace("off", "on")).level, Level::Pass);
}
