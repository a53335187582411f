//! The capture's own connections, its fake addresses and its interface, sentence by sentence: own traffic carries the mark
//! wherever a name leads, fake addresses of both families lead to their names or nowhere, a strict filter of sources is met.
//! The networks are those of `capture`.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use crate::capture::{C, H, Nets, PORT, R, TARGETS, ip, stop};
use crate::capture_faults::transfer;
use crate::capture_tun::{A, AAAA, NAME, NAMES, RESOLVER};
use crate::support::{PATIENCE, Running};

/// Addresses of the pools that no name has.
const UNMAPPED: [&str; 2] = ["198.18.255.1:7", "[fd00:adf::fff0]:7"];

impl Nets {
    /// Peers of the host's sockets to the server's port, and whether each socket has the mark of own traffic.
    fn own_sockets(&self) -> Vec<(String, bool)> {
        let shown = self.sh(H, "ss -tuaneHO");
        let peer = |line: &str| line.split_whitespace().nth(5)?.strip_suffix(":8388").map(str::to_owned);
        shown.lines().filter_map(|line| Some((peer(line)?, line.contains("fwmark:0x2024")))).collect()
    }

    /// Connections that the host's inbounds have accepted.
    fn accepted(&self) -> u64 {
        let (status, out) = self.adit(&["status", "--json", "--socket", "host.sock"]);
        assert_eq!(status, 0, "{out}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let all = json["inbounds"].as_array().unwrap().iter();
        all.map(|inbound| inbound["accepted"].as_u64().unwrap()).sum()
    }

    fn rp_filter(&self, name: &str) -> String {
        self.sh(H, &format!("cat /proc/sys/net/ipv4/conf/{name}/rp_filter")).trim().to_owned()
    }
}

fn names6(more: &str) -> String {
    NAMES.replace("[dns.fake]\n", &format!("[dns.fake]\nrange6 = \"fd00:adf::/64\"\n{more}"))
}

/// The server's name leads to two addresses in turns, each for a second.
#[test]
fn own_connections_have_the_mark_wherever_a_name_leads() {
    let Some(nets) = Nets::with_peers() else { return };
    let names = Running::start(nets.tun_role(R, "names 10.9.9.9:53"));
    names.line("serving");
    let upstream = "[[dns.upstream]]\nserver = \"10.9.9.9\"\n";
    for mode in ["redirect", "auto", "tun", "tproxy"] {
        let networks: &[&str] = if mode == "redirect" { &["tcp"] } else { &["tcp", "udp"] };
        let config = nets.config(&format!("mode = \"{mode}\""));
        let config = config.replace("10.2.0.2:8388", &format!("moving.{mode}.test:8388"));
        let running = nets.capture_text(&format!("{config}{upstream}{NAMES}"), "");
        let (mut peers, mut asked) = (BTreeSet::new(), 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while peers.len() < 2 || asked < 9 {
            assert!(Instant::now() < deadline, "{mode}: the server is always at {peers:?}");
            let open = transfer(&nets, H);
            nets.assert_captured(H, networks);
            asked += 1 + TARGETS.len() as u64;
            let own = nets.own_sockets();
            assert!(!own.is_empty() && own.iter().all(|(_, has_mark)| *has_mark), "{mode}: {own:?}");
            peers.extend(own.into_iter().map(|(peer, _)| peer));
            open.signal("KILL");
            open.end();
            thread::sleep(Duration::from_millis(1100));
        }
        assert_eq!(nets.accepted(), asked, "{mode}: those of applications alone");
        stop(running);
    }
}

/// The server's address without the host's mark: a plugin is another program. A reload moves the server to another address.
#[test]
fn connections_of_a_plugin_are_never_captured() {
    let Some(nets) = Nets::with_peers() else { return };
    let plugin = nets.plugin();
    assert!(ip(&format!("-n {} addr add 10.9.9.8/32 dev lo", nets.names[R])));
    for (mode, networks) in [
        ("redirect", &["tcp"][..]),
        ("auto", &["tcp", "udp"]),
        ("tun", &["tcp", "udp"]),
        ("tproxy", &["tcp", "udp"]),
    ] {
        let config = nets.config(&format!("mode = \"{mode}\"")) + &format!("plugin = {plugin:?}\n");
        let running = nets.capture_text(&config, "");
        let mut asked = 0;
        for server in ["10.2.0.2", "10.9.9.8"] {
            if server != "10.2.0.2" {
                nets.dir.file("host.toml", &config.replace("10.2.0.2:8388", &format!("{server}:8388")));
                let (status, said) = nets.adit(&["reload", "-c", "host.toml"]);
                assert_eq!(status, 0, "{mode}: {said}");
            }
            nets.assert_captured(H, networks);
            let open = transfer(&nets, H);
            asked += 1 + TARGETS.len() as u64;
            let own = nets.own_sockets();
            assert!(own.contains(&(server.to_owned(), false)), "{mode}: not by the plugin: {own:?}");
            open.signal("KILL");
            open.end();
        }
        assert_eq!(nets.accepted(), asked, "{mode}: those of applications alone");
        stop(running);
    }
}

#[test]
fn fake_addresses_of_both_families_lead_to_their_names_or_nowhere() {
    let Some(nets) = Nets::with_peers() else { return };
    // Packets to the pools would pass by here, if any left the host.
    let watch = "nft 'add table inet seen; add chain inet seen pools { type filter hook prerouting priority -400; }; \
                 add rule inet seen pools ip daddr 198.18.0.0/15 counter; \
                 add rule inet seen pools ip6 daddr fd00:adf::/64 counter'";
    assert_eq!(nets.sh(R, watch), "");
    for (mode, variable) in
        [("auto", ""), ("tun", ""), ("tproxy", ""), ("auto", "ADIT_TEST_WITHOUT_TABLES=1")]
    {
        let when = |at: usize, what: &str| format!("{mode} {variable} {at}: {what}");
        let running = nets.capture_more(&format!("mode = \"{mode}\"\nlan = \"hc\""), &names6(""), variable);
        for at in [H, C] {
            let fakes = [A, AAAA].map(|kind| {
                let fake = nets.tun_ask(at, &format!("name udp {RESOLVER} {NAME} {kind}"));
                let other = nets.tun_ask(at, &format!("name tcp {RESOLVER} TARGET.Test {kind}"));
                assert_eq!(fake, other, "{}", when(at, "letters of either case"));
                fake
            });
            assert!(fakes[0].starts_with("198.18.1") && fakes[1].starts_with("fd00:adf::"), "{fakes:?}");
            for fake in fakes {
                for network in ["tcp", "udp"] {
                    let from = nets.ask(at, &format!("{network} {fake} {PORT}"));
                    assert!(TARGETS.contains(&&*from), "{}", when(at, &format!("{network} {fake}: {from}")));
                }
            }
            for target in UNMAPPED {
                let took = nets.tun_ask(at, &format!("refused {target}"));
                let millis: u64 = took.parse().unwrap_or_else(|_| panic!("{}", when(at, &took)));
                assert!(millis < 1000, "{}", when(at, &format!("{target} after {millis} ms")));
                let answer = nets.tun_ask(at, &format!("unreachable {target}"));
                if mode == "tproxy" {
                    assert!(answer.starts_with("error: "), "{}", when(at, &format!("{target}: {answer}")));
                } else {
                    let millis = answer.parse::<u64>().ok().filter(|millis| *millis < 1000);
                    assert!(millis.is_some(), "{}", when(at, &format!("{target}: {answer}")));
                }
            }
        }
        stop(running);
    }
    let seen = nets.sh(R, "nft list table inet seen");
    assert_eq!(seen.matches("counter packets 0 bytes 0").count(), 2, "{seen}");
}

/// The application asks once. Its address leads to the name after a kill, where names are kept; else it is refused.
#[test]
fn a_fake_address_outlives_a_kill_where_names_are_kept() {
    let Some(nets) = Nets::with_peers() else { return };
    for mode in ["auto", "tun"] {
        for store in ["names.fake", "off"] {
            let path = nets.dir.path().join(format!("{mode}.{store}"));
            let path = if store == "off" { store.to_owned() } else { path.display().to_string() };
            let begin = || {
                let settings = format!("mode = \"{mode}\"");
                nets.capture_more(&settings, &names6(&format!("store = \"{path}\"\n")), "")
            };
            let running = begin();
            let fakes = [A, AAAA].map(|kind| nets.tun_ask(H, &format!("name udp {RESOLVER} {NAME} {kind}")));
            running.signal("KILL");
            running.end();
            let running = begin();
            for fake in fakes {
                if store == "off" {
                    let at = if fake.contains(':') { format!("[{fake}]") } else { fake };
                    let millis: u64 = nets.tun_ask(H, &format!("refused {at}:{PORT}")).parse().unwrap();
                    assert!(millis < 1000, "{mode} {at}: {millis} ms");
                } else {
                    let from = nets.ask(H, &format!("tcp {fake} {PORT}"));
                    assert!(TARGETS.contains(&&*from), "{mode} {fake}: {from}");
                }
            }
            stop(running);
        }
    }
}

/// `all` is strict, and so is what a new interface begins with: the capture's own is loose, also when it is made again.
#[test]
fn the_interface_is_loose_where_all_others_are_strict() {
    let Some(nets) = Nets::with_peers() else { return };
    for name in ["all", "default", "hc", "hr"] {
        assert!(nets.set(H, &format!("ipv4/conf/{name}/rp_filter"), "1"), "{name}");
    }
    let before = nets.snapshot();
    for mode in ["auto", "tun"] {
        let running = nets.capture(&format!("mode = \"{mode}\"\nlan = \"hc\""));
        let check = |when: &str| {
            let values = ["adit0", "all", "hc", "hr"].map(|name| nets.rp_filter(name));
            assert_eq!(values, ["2", "1", "1", "1"], "{mode} {when}");
            for at in [H, C] {
                nets.assert_captured(at, &["tcp", "udp"]);
            }
        };
        check("at first");
        assert!(ip(&format!("-n {} link del adit0", nets.names[H])));
        running.line("somebody has removed it: it is made again");
        let deadline = Instant::now() + PATIENCE;
        while nets.rp_filter("adit0") != "2" {
            assert!(Instant::now() < deadline, "{mode}: {}", nets.rp_filter("adit0"));
            thread::sleep(Duration::from_millis(20));
        }
        check("made again");
        stop(running);
        nets.assert_as(&before, mode);
    }
    // A setting that becomes strict later.
    assert!(nets.set(H, "ipv4/conf/all/rp_filter", "0"));
    let running = nets.capture("lan = \"hc\"");
    assert!(nets.set(H, "ipv4/conf/all/rp_filter", "1"));
    nets.assert_captured(H, &["tcp", "udp"]);
    nets.assert_captured(C, &["tcp", "udp"]);
    stop(running);
}
