//! Check 13: proxies that adit does not speak, and groups of them, refuse, and no packet leaves on their account. The test runs in
//! a network of its own that counts packets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use adit_testkit::{unused_localhost, wait_for};

use crate::clash_api::{ask, get, is_about_adit, is_connected, mihomo};
use crate::support::{Dir, PATIENCE, finish, is_within_namespace, within_namespace};

/// All of them carry datagrams by the file's word: those for one that does not go to the next rule, as in mihomo.
const PROXIES: &str = "\
dns: {enable: true, nameserver: [192.0.2.53]}
proxies:
- {name: vm, type: vmess, server: 192.0.2.10, port: 443, uuid: 7f2c1f3e-0000-4000-8000-000000000001, alterId: 0, cipher: auto, udp: true}
- {name: vm-name, type: vmess, server: far.example, port: 443, uuid: 7f2c1f3e-0000-4000-8000-000000000001, alterId: 0, cipher: auto, udp: true}
- {name: plug, type: ss, server: 192.0.2.11, port: 443, cipher: aes-128-gcm, password: pw, plugin: nosuch, udp: true}
- {name: many, type: ss, server: 192.0.2.12, port: 443, cipher: aes-128-gcm, password: pw, smux: {enabled: true}, udp: true}
proxy-groups:
- {name: chosen, type: select, proxies: [vm, DIRECT]}
- {name: fastest, type: url-test, proxies: [vm, plug, many], url: 'http://192.0.2.20/', interval: 1, lazy: false}
- {name: first, type: fallback, proxies: [vm-name, plug], url: 'http://192.0.2.20/', interval: 1, lazy: false}
- {name: spread, type: load-balance, proxies: [plug, many], url: 'http://192.0.2.20/', interval: 1, lazy: false}
- {name: empty, type: select, include-all-proxies: true, filter: 'no such name'}
- {name: outer, type: select, proxies: [fastest]}
rules:
";

const NAMES: [&str; 10] =
    ["vm", "vm-name", "plug", "many", "chosen", "fastest", "first", "spread", "empty", "outer"];

/// The table that notes each packet to an address beyond this machine.
const TABLE: &str = "table inet away { set seen { type ipv4_addr; flags dynamic; size 1000; }; \
    chain out { type filter hook output priority 0; \
    ip daddr != 127.0.0.0/8 add @seen { ip daddr } counter; ip6 daddr != ::1 counter; }; }";

/// Packets to other addresses, and the table with these addresses.
fn packets(dir: &Dir) -> (u64, String) {
    let (status, table, err) = finish(dir.command("nft", &["list", "table", "inet", "away"]), "");
    assert_eq!(status, 0, "{err}");
    let counts = table.split("counter packets ").skip(1);
    let counts = counts.map(|rest| rest.split(' ').next().unwrap().parse::<u64>().unwrap());
    (counts.sum(), table)
}

/// Every address of the network is one of this machine there, so that a connection is refused and not lost.
#[test]
fn unsupported_entries_send_nothing() {
    let before = format!(
        "ip link set lo up && ip route add local 0.0.0.0/0 dev lo \
         && {{ ip -6 route add local default dev lo || true; }} && nft '{TABLE}'"
    );
    if !within_namespace("clash_dead::in_a_network_that_counts", &before) {
        adit_testkit::skipped("it takes the right to make a network, and nft(8)");
    }
}

#[test]
#[ignore = "unsupported_entries_send_nothing runs it within a network of its own"]
fn in_a_network_that_counts() {
    if !is_within_namespace() {
        return;
    }
    // mihomo does not start with an unknown type, and speaks plain Shadowsocks to an unknown plugin.
    if is_about_adit() {
        return;
    }
    let (dir, at, mixed) = (Dir::new(), unused_localhost(), unused_localhost());
    let rules: String = NAMES.iter().map(|name| format!("- DOMAIN,{name}.test,{name}\n")).collect();
    dir.file(
        "config.yaml",
        &format!(
            "mixed-port: {}\nexternal-controller: {at}\nsecret: s3cret\n{PROXIES}{rules}- MATCH,DIRECT\n",
            mixed.port()
        ),
    );
    assert_eq!(packets(&dir).0, 0);
    let running = mihomo(&dir, &[]);
    running.line("RESTful API listening at");
    running.line("proxy listening at");
    // It starts, and names them.
    let log = running.log();
    for word in ["2 proxies of type vmess are dead", "vm, vm-name", "nosuch", "plug", "many"] {
        assert!(log.contains(word), "{word}: {log}");
    }
    for name in NAMES {
        let host = format!("{name}.test");
        assert!(!is_connected(mixed, &host, 443), "{name}");
        send_datagram(mixed, &host);
    }
    for name in &NAMES[..4] {
        let url = format!("/proxies/{name}/delay?url=http://192.0.2.20/&timeout=2000");
        let answer = ask(at, "GET", &url, &[("Authorization", "Bearer s3cret")], "");
        assert_eq!(answer.status, 503, "{name}: {}", answer.body);
        assert_eq!(get(at, &format!("/proxies/{name}"))["alive"], false, "{name}");
    }
    // Rounds of tests of the three groups.
    thread::sleep(Duration::from_millis(2500));
    let (count, table) = packets(&dir);
    assert_eq!(count, 0, "{table}{}", running.log());
    // The table counts: a request that goes out directly.
    let mut stream = TcpStream::connect(mixed).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream.write_all(&[5, 1, 0, 1, 198, 51, 100, 7, 1, 187]).unwrap();
    wait_for("packets of a direct connection", || packets(&dir).1.contains("198.51.100.7"));
}

/// A datagram to a name through the port; there is no answer to wait for.
fn send_datagram(mixed: SocketAddr, host: &str) {
    let mut control = TcpStream::connect(mixed).unwrap();
    control.set_read_timeout(Some(PATIENCE)).unwrap();
    control.write_all(&[5, 1, 0]).unwrap();
    control.read_exact(&mut [0; 2]).unwrap();
    control.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 10];
    control.read_exact(&mut reply).unwrap();
    assert_eq!(reply[1], 0, "an association");
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([reply[8], reply[9]])));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let len = u8::try_from(host.len()).unwrap();
    let datagram = [&[0, 0, 0, 3, len][..], host.as_bytes(), &443_u16.to_be_bytes(), b"hello"].concat();
    client.send_to(&datagram, relay).unwrap();
    // The program has taken the datagram before it sees the end of the association.
    thread::sleep(Duration::from_millis(50));
}
