//! A capture when something goes wrong: a kill in mid-transfer, an interface that is removed, a default route that changes, a
//! server that cannot be reached, a full table of tracked connections. The networks are those of `capture`.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::capture::{C, H, Nets, PORT, R, ip, stop};
use crate::support::{PATIENCE, Running, finish};

/// Tells this program its role when it is started again in one of the networks.
const INSIDE: &str = "ADIT_TEST_CAPTURE_FAULTS";

/// A transfer that goes on until it fails.
pub(crate) fn transfer(nets: &Nets, at: usize) -> Running {
    let running = Running::start(nets.tun_role(at, &format!("stream 10.9.9.9:{PORT}")));
    running.line("streaming");
    running
}

fn straight(nets: &Nets) {
    assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), "10.2.0.1");
    assert_eq!(nets.ask(H, &format!("tcp fd09::9 {PORT}")), "fd02::1");
    assert_eq!(nets.ask(C, &format!("udp 10.9.9.9 {PORT}")), "10.1.0.2");
}

#[test]
fn a_kill_in_mid_transfer_cuts_nobody_off() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    for mode in ["auto", "tun", "tproxy"] {
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = \"hc\""));
        let transfers = [transfer(&nets, H), transfer(&nets, C)];
        running.signal("KILL");
        running.end();
        straight(&nets);
        assert!(!nets.sh(H, "nft list tables").contains("adit"), "{mode}");
        assert!(!nets.sh(H, "ip link").contains("adit0"), "{mode}");
        for transfer in transfers {
            transfer.end();
        }
        let again = nets.capture(&format!("mode = \"{mode}\"\nlan = \"hc\""));
        let line = again.line("an earlier capture was killed");
        assert!(line.contains("routes=") && !line.contains("routes=0"), "{line}");
        nets.assert_captured(H, &["tcp", "udp"]);
        stop(again);
        nets.assert_as(&before, mode);
    }
}

#[test]
fn strict_keeps_an_interface_s_traffic_after_a_kill() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    for mode in ["auto", "tun"] {
        let running = nets.capture(&format!("strict = true\nlan = \"hc\"\nmode = \"{mode}\""));
        assert!(running.line("capturing, ").contains("fail-closed"));
        for at in [H, C] {
            nets.assert_captured(at, &["tcp", "udp"]);
        }
        running.signal("KILL");
        running.end();
        for at in [H, C] {
            for network in ["tcp", "udp"] {
                for target in ["10.9.9.9", "fd09::9"] {
                    let answer = nets.ask(at, &format!("{network} {target} {PORT}"));
                    assert!(answer.starts_with("error: "), "{mode} {network} {target}: {answer}");
                }
            }
        }
        let (status, said) = nets.adit(&["capture", "clean"]);
        assert!(status == 0 && said.starts_with("removed:\n"), "{said}");
        straight(&nets);
        nets.assert_as(&before, mode);
    }
}

#[test]
fn an_interface_that_is_removed_is_made_again() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let index = |nets: &Nets| nets.sh(H, "cat /sys/class/net/adit0/ifindex");
    for mode in ["auto", "tun"] {
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = \"hc\""));
        for round in 0..2 {
            nets.assert_captured(H, &["tcp", "udp"]);
            let first = index(&nets);
            let removed = Instant::now();
            assert!(ip(&format!("-n {} link del adit0", nets.names[H])));
            let text = "interface adit0 is gone, somebody has removed it: it is made again";
            while running.log().matches(text).count() <= round {
                assert!(removed.elapsed() < PATIENCE, "{}", running.log());
                thread::sleep(Duration::from_millis(10));
            }
            assert_ne!(index(&nets), first, "{mode}");
            for at in [H, C] {
                nets.assert_captured(at, &["tcp", "udp"]);
            }
        }
        stop(running);
        nets.assert_as(&before, mode);
    }
}

/// The driver is gone by the time at which adit makes its interface again: a line says so, and nobody is cut off.
#[test]
fn an_interface_that_cannot_be_made_again_is_named() {
    let Some(nets) = Nets::with_peers() else { return };
    for mode in ["auto", "tun"] {
        let running = nets.capture(&format!("mode = \"{mode}\""));
        let away = format!("nsenter -t {} -m mount --bind /dev/null /dev/net/tun", running.pid());
        assert_eq!(nets.sh(H, &away), "");
        assert!(ip(&format!("-n {} link del adit0", nets.names[H])));
        running.line("interface adit0 is gone, and cannot be made again");
        // Redirected connections are captured still, the rest goes straight.
        let from = if mode == "auto" { "10.9.9.9" } else { "10.2.0.1" };
        assert_eq!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")), from, "{mode}");
        assert_eq!(nets.ask(H, &format!("udp 10.9.9.9 {PORT}")), "10.2.0.1", "{mode}");
        stop(running);
    }
}

#[test]
fn a_reload_keeps_the_interface_and_what_is_open() {
    let Some(nets) = Nets::with_peers() else { return };
    let index = |nets: &Nets| nets.sh(H, "cat /sys/class/net/adit0/ifindex");
    for mode in ["auto", "tun"] {
        let running = nets.capture_more(&format!("mode = \"{mode}\""), super::capture_tun::NAMES, "");
        let (before, mut transfer) = (index(&nets), transfer(&nets, H));
        let fake = nets.tun_ask(H, "name udp 8.8.8.8:53 target.test 1");
        let owner = nets.adit(&["capture", "status"]).1;
        let changed = format!(
            "{}{}",
            nets.config(&format!("mode = \"{mode}\"\nexclude-address = \"fd09::9\"")),
            super::capture_tun::NAMES
        );
        nets.dir.file("host.toml", &changed);
        let (status, said) = nets.adit(&["reload", "-c", "host.toml"]);
        assert!(status == 0 && said.contains("settings changed: capture"), "{said}");
        assert_eq!(index(&nets), before, "{mode}: the interface is another one");
        assert!(transfer.is_running(), "{mode}: the transfer has ended");
        assert_eq!(nets.ask(H, &format!("tcp fd09::9 {PORT}")), "fd02::1", "{mode}: new ones go straight");
        assert_eq!(nets.tun_ask(H, "name udp 8.8.8.8:53 target.test 1"), fake, "{mode}");
        let table = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        assert_eq!(table(&nets.adit(&["capture", "status"]).1), table(&owner), "{mode}: another owner");
        transfer.signal("KILL");
        stop(running);
    }
}

#[test]
fn the_default_route_may_change() {
    let Some(nets) = Nets::with_peers() else { return };
    for mode in ["auto", "tun"] {
        let running = nets.capture(&format!("mode = \"{mode}\""));
        let mut transfer = transfer(&nets, H);
        assert!(ip(&format!("-n {} route replace default via 10.1.0.2", nets.names[H])));
        running.line("the default route of IPv4 is now hc via 10.1.0.2: ");
        nets.assert_captured(H, &["tcp", "udp"]);
        if mode == "tun" {
            assert!(ip(&format!("-n {} route del default", nets.names[H])));
            running.line("a default route of IPv4 is gone: hc via 10.1.0.2; ");
            nets.assert_captured(H, &["tcp", "udp"]);
        }
        assert!(transfer.is_running(), "{mode}: the transfer has ended");
        transfer.signal("KILL");
        stop(running);
        ip(&format!("-n {} route replace default via 10.2.0.2", nets.names[H]));
    }
}

/// Another program empties the firewall. It cannot where tables have owners, and nothing is to be told then.
#[test]
fn rules_that_another_program_removes_are_made_again() {
    let Some(nets) = Nets::with_peers() else { return };
    let before = nets.snapshot();
    let text = "the rules of the capture were gone, another program has removed them";
    for variable in ["", "ADIT_TEST_WITHOUT_TABLE_OWNER=1"] {
        let running = nets.capture_with("lan = \"hc\"", variable);
        let mut transfer = transfer(&nets, H);
        nets.sh(H, "nft flush ruleset");
        if variable.is_empty() {
            nets.assert_captured(H, &["tcp", "udp"]);
            assert!(!running.log().contains(text));
            assert!(transfer.is_running(), "the transfer has ended");
        } else {
            // Connections of this moment end with the kernel's translation of their addresses.
            straight(&nets);
            running.line(text);
        }
        for at in [H, C] {
            nets.assert_captured(at, &["tcp", "udp"]);
        }
        transfer.signal("KILL");
        transfer.end();
        stop(running);
        nets.assert_as(&before, variable);
    }
}

#[test]
fn interfaces_that_come_are_known() {
    let Some(nets) = Nets::with_peers() else { return };
    let running = nets.capture("");
    let host = &nets.names[H];
    assert!(
        ip(&format!("-n {host} link add late0 type veth peer name late1"))
            && ip(&format!("-n {host} link set late0 up"))
    );
    let deadline = Instant::now() + PATIENCE;
    while !nets.sh(H, "ip route show table 2024").contains("dev late0") {
        assert!(Instant::now() < deadline, "{}", running.log());
        thread::sleep(Duration::from_millis(50));
    }
    nets.assert_captured(H, &["tcp", "udp"]);
    stop(running);
}

#[test]
fn a_server_that_cannot_be_reached_holds_nobody_up() {
    let Some(mut nets) = Nets::with_peers() else { return };
    // The Shadowsocks server is the first that was started.
    drop(nets.running.remove(0));
    let file = nets.dir.file("host.toml", &nets.config(""));
    let args = ["run", "-c", file.to_str().unwrap()];
    let running = Running::start(nets.command(H, env!("CARGO_BIN_EXE_adit"), &args));
    let line = running.line("nothing is captured yet, for the server cannot be reached");
    assert!(line.contains("10.2.0.2:8388"), "{line}");
    running.line("listening");
    straight(&nets);
    let server = nets.dir.path().join("server.toml");
    nets.start(R, env!("CARGO_BIN_EXE_adit"), &["run", "-c", server.to_str().unwrap()]).line("listening");
    running.line("capturing from now on");
    nets.assert_captured(H, &["tcp", "udp"]);
    stop(running);
    // With `strict` it is captured at once, and fails.
    drop(nets.running.pop());
    let running = nets.capture("strict = true");
    assert!(nets.ask(H, &format!("tcp 10.9.9.9 {PORT}")).starts_with("error: "));
    stop(running);
}

/// Takes some 100 MB of the kernel's memory and a few seconds.
#[test]
#[ignore = "fills the kernel's table of tracked connections"]
fn a_full_table_of_connections_is_named() {
    let Some(nets) = Nets::with_peers() else { return };
    // Connections are tracked from the first capture on.
    let first = nets.capture("");
    let max: u32 = nets.sh(H, "cat /proc/sys/net/netfilter/nf_conntrack_max").trim().parse().unwrap();
    let program = std::env::current_exe().unwrap();
    let args = ["capture_faults::inside", "--exact", "--ignored", "--nocapture"];
    let mut command = nets.command(R, program.to_str().unwrap(), &args);
    command.env(INSIDE, (max + max / 20).to_string());
    let (status, out, err) = finish(command, "");
    assert_eq!(status, 0, "{out}{err}");
    first.line("the kernel's table of tracked connections is nearly full");
    let shown = nets.adit(&["capture", "status"]).1;
    let (count, of) = shown.split_once("tracked connections: ").unwrap().1.split_once(" of ").unwrap();
    assert!(count.parse::<u32>().unwrap() > max / 10 * 9, "{count} of {of}");
    stop(first);
    let running = nets.capture("");
    let line = running.line("the kernel's table of tracked connections is nearly full");
    assert!(line.contains("net.netfilter.nf_conntrack_max"), "{line}");
    nets.assert_captured(H, &["tcp", "udp"]);
    stop(running);
}

/// Sends datagrams by as many ways as the table is to track.
#[test]
#[ignore = "a part of the tests above"]
fn inside() {
    let Some(count) = std::env::var_os(INSIDE) else { return };
    let count: u32 = count.into_string().unwrap().parse().unwrap();
    let mut sent = 0;
    while sent < count {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for port in 1..=60_000_u16 {
            // A refusal of an earlier one is reported here.
            drop(socket.send_to(&[1], SocketAddr::from(([10, 1, 0, 2], port))));
        }
        sent += 60_000;
    }
}
