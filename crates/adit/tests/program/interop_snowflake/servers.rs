//! Clients and proxies of Debian and of adit, in every pairing, through adit's broker and server, in a network of their
//! own; and through upstream's, which `ADIT_SNOWFLAKE_UPSTREAM=FOLDER` names: `broker` and `server` lie there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use adit_testkit::skipped;

use super::{
    FINGERPRINT, ICE, LEN, RELAY, SERVER, TARGET, command_of, exchange, has, network, proxy, serve,
    start_broker, start_proxy, start_stun,
};
use crate::support::{Dir, Running, link, socks5};

/// The variable that tells this program its role when it is started again in the network.
const INSIDE: &str = "ADIT_TEST_INSIDE_SNOWFLAKE";
/// Makers of the client and of the proxy.
const PAIRS: [&str; 4] = ["debian debian", "adit debian", "debian adit", "adit adit"];
/// The folder of upstream's broker and server.
const UPSTREAM: &str = "ADIT_SNOWFLAKE_UPSTREAM";

#[test]
#[ignore = "interop: needs root, iproute2, and snowflake-client, snowflake-proxy and coturn of Debian"]
fn every_byte_passes_and_a_lost_proxy_is_replaced() {
    if !has(&["/usr/bin/snowflake-client", "/usr/bin/snowflake-proxy", "/usr/bin/turnserver"]) {
        return;
    }
    for pair in PAIRS {
        println!("{}", through(pair, "adit"));
    }
}

#[test]
#[ignore = "interop: the same, and upstream's broker and server: ADIT_SNOWFLAKE_UPSTREAM=FOLDER"]
fn every_byte_passes_upstreams_broker_and_server() {
    if std::env::var_os(UPSTREAM).is_none() {
        return skipped(format_args!("{UPSTREAM} names no folder"));
    }
    if !has(&["/usr/bin/snowflake-client", "/usr/bin/snowflake-proxy", "/usr/bin/turnserver"]) {
        return;
    }
    for pair in PAIRS {
        println!("{}", through(pair, "upstream"));
    }
}

/// A client and a proxy, through the servers of one program, and how long that took.
fn through(pair: &str, servers: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--"]).arg(program);
    command
        .args(["interop_snowflake::servers::inside", "--exact", "--ignored", "--nocapture"])
        .env(INSIDE, format!("{pair} {servers}"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{pair}: {out}\n{err}");
    let pauses = out.lines().filter(|line| line.contains("longest pause"));
    format!("client and proxy {pair}, the rest {servers}: {}", pauses.collect::<Vec<_>>().join("; "))
}

#[test]
#[ignore = "is started by the other one"]
fn inside() {
    let Ok(whose) = std::env::var(INSIDE) else { return };
    let whose: Vec<&str> = whose.split(' ').collect();
    let [client_of, proxy_of, servers_of] = whose[..] else { panic!("{whose:?}") };
    network(5);
    let dir = Dir::new();
    let _broker = start_broker(&dir, &program_of(&dir, servers_of, "broker"), RELAY, FINGERPRINT);
    let server = start_server(&dir, &program_of(&dir, servers_of, "server"));
    let _stun = start_stun(&dir);
    serve();
    let first = start_proxy(proxy(&dir, proxy_of, RELAY));
    let flags = ["-url", "http://203.0.113.1:8080/", "-ice", ICE];
    let mut command = command_of(&dir, client_of, "snowflake-client", &flags);
    command.env("TOR_PT_MANAGED_TRANSPORT_VER", "1").env("TOR_PT_CLIENT_TRANSPORTS", "snowflake");
    let client = Running::start(command);
    let line = client.line("CMETHOD snowflake socks5 ");
    let port = line.rsplit(' ').next().unwrap();
    let mut stream = socks5(port.parse().unwrap(), "192.0.2.3", 80);
    let usual = exchange(&mut stream, None);
    // The proxy goes in the middle of a download; another one is there.
    let second = start_proxy(proxy(&dir, proxy_of, RELAY));
    let pause = exchange(&mut stream, Some(&first));
    println!("{LEN} bytes there and back: longest pause {usual:?}, with a proxy killed {pause:?}");
    // Debian's client looks after 20 s, and collects each 10 s. Upstream's broker hands out polls of a proxy that has ended, and
    // says so 5 s later.
    let is_theirs = client_of == "debian" || servers_of == "upstream";
    assert!(is_theirs || pause <= Duration::from_secs(6), "a pause of {pause:?}");
    drop((second, stream));
    server.signal("TERM");
    let (status, log) = server.end();
    assert!(status.success(), "{log}");
}

/// Upstream's program, or adit under its name.
fn program_of(dir: &Dir, whose: &str, role: &str) -> PathBuf {
    match whose {
        "upstream" => Path::new(&std::env::var_os(UPSTREAM).unwrap()).join(role),
        _ => link(dir, &format!("snowflake-{role}")),
    }
}

fn start_server(dir: &Dir, program: &Path) -> Running {
    let mut command = dir.command(program, &["-disable-tls"]);
    command.env("TOR_PT_STATE_LOCATION", dir.path());
    command.env("TOR_PT_MANAGED_TRANSPORT_VER", "1").env("TOR_PT_SERVER_TRANSPORTS", "snowflake");
    command.env("TOR_PT_SERVER_BINDADDR", format!("snowflake-{SERVER}")).env("TOR_PT_ORPORT", TARGET);
    command.env("TOR_PT_SERVER_TRANSPORT_OPTIONS", "snowflake:num-turbotunnel=2");
    let server = Running::start(command);
    server.line("VERSION 1");
    assert_eq!(server.line("SMETHOD snowflake"), format!("SMETHOD snowflake {SERVER} ARGS:tls=no"));
    server.line("SMETHODS DONE");
    server
}
