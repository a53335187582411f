//! Bulk by iperf3, whose control connection and datagrams go through one tunnel.

use std::net::SocketAddr;
use std::process::Command;

use adit_model::Transports;
use adit_testkit::unused_addr;
use serde_json::Value;

use super::support::{Peer, addrs, client, has, method, password, run_servers, run_tunnel, server};

/// 2,000 datagrams of 1200 bytes per second, for 2 s, towards the server or back. Gives how many were sent and the
/// share in percent that did not arrive.
fn iperf(port: SocketAddr, back: bool) -> (u64, f64) {
    let mut command = Command::new("iperf3");
    command.args(["-c", &port.ip().to_string(), "-p", &port.port().to_string()]);
    command.args(["-u", "-b", "19200K", "-l", "1200", "-t", "2", "--json", "--connect-timeout", "20000"]);
    if back {
        command.arg("--reverse");
    }
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = &report["end"]["sum"];
    let numbers = sum["packets"].as_u64().zip(sum["lost_percent"].as_f64());
    numbers.unwrap_or_else(|| panic!("{report}"))
}

#[test]
#[ignore = "needs iperf3"]
fn interop_iperf_both_ways() {
    if !has("iperf3") {
        println!("skipped: iperf3 not found");
        return;
    }
    let at = unused_addr();
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let _iperf = Peer::start(Command::new("iperf3").args(["-s", "-B", &ip, "-p", &port]), at);
    for name in ["2022-blake3-aes-128-gcm", "aes-128-gcm", "chacha20-ietf-poly1305"] {
        let (method, password) = (method(name), password(method(name), 1));
        let mut far = server(method, &password);
        far.transports = Transports::Both;
        let servers = run_servers([far]);
        let tunnel = run_tunnel(client(addrs(&servers)[0], method, &password), at, Transports::Both);
        for back in [false, true] {
            let (packets, lost) = iperf(addrs(&tunnel)[0], back);
            println!("{name}, back: {back}: {packets} datagrams, {lost} % lost");
            assert!(packets >= 3_000, "{packets}");
            // A machine with other work may stand still for longer than the sockets' buffers last.
            assert!(lost < 5.0, "{lost} %");
        }
        tunnel.end();
        servers.end();
    }
}
