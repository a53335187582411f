//! Clients and proxies of Debian and of adit, in every pairing, through adit's broker and server, in a network of their
//! own.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::skipped;

use crate::support::{Dir, Running, link};

/// The variable that tells this program its role when it is started again in the network.
const INSIDE: &str = "ADIT_TEST_INSIDE_SNOWFLAKE";
/// Bytes of a transfer.
const LEN: usize = 6_000_000;
/// Addresses that no program takes for private ones.
const BROKER: &str = "203.0.113.1:8080";
const SERVER: &str = "203.0.113.2:8081";
const TARGET: &str = "203.0.113.3:9000";
const STUN: [&str; 2] = ["203.0.113.4", "203.0.113.5"];
const BRIDGES: &str = "{\"displayName\":\"t\",\"webSocketAddress\":\"ws://203.0.113.2:8081/\",\
    \"fingerprint\":\"2B280B23E1107BB62ABFC40DDCC8824814F80A72\"}";

#[test]
#[ignore = "interop: needs root, iproute2, and snowflake-client, snowflake-proxy and coturn of Debian"]
fn every_byte_passes_and_a_lost_proxy_is_replaced() {
    let needed = ["/usr/bin/snowflake-client", "/usr/bin/snowflake-proxy", "/usr/bin/turnserver"];
    if !needed.iter().all(|path| Path::new(path).exists()) {
        skipped(format_args!("{needed:?} are not all there"));
        return;
    }
    for pair in ["debian debian", "adit debian", "debian adit", "adit adit"] {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--"]).arg(program);
        command
            .args(["interop_snowflake_servers::inside", "--exact", "--ignored", "--nocapture"])
            .env(INSIDE, pair);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{pair}: {out}\n{err}");
        let pauses = out.lines().filter(|line| line.contains("longest pause"));
        println!("client and proxy {pair}: {}", pauses.collect::<Vec<_>>().join("; "));
    }
}

#[test]
#[ignore = "is started by the other one"]
fn inside() {
    let Ok(pair) = std::env::var(INSIDE) else { return };
    let (client_of, proxy_of) = pair.split_once(' ').unwrap();
    network();
    let dir = Dir::new();
    let (bridges, polls) = (dir.file("bridges", BRIDGES), dir.file("polls", POLLS));
    let broker = link(&dir, "snowflake-broker");
    let flags = ["-addr", BROKER, "-disable-tls", "-disable-geoip", "-bridge-list-path"];
    let mut command = dir.command(&broker, &flags);
    command.arg(&bridges).arg("-poll-interval-filepath").arg(&polls);
    let broker = Running::start(command);
    broker.line("listening on");
    let server = start_server(&dir);
    let stun = dir
        .command("turnserver", &["--stun-only", "-n", "--log-file", "stdout", "-L", STUN[0], "-L", STUN[1]]);
    let _stun = Running::start(stun);
    thread::spawn(serve);
    let first = start_proxy(&dir, proxy_of);
    let flags = ["-url", "http://203.0.113.1:8080/", "-ice", "stun:203.0.113.4:3478"];
    let mut command = command_of(&dir, client_of, "snowflake-client", &flags);
    command.env("TOR_PT_MANAGED_TRANSPORT_VER", "1").env("TOR_PT_CLIENT_TRANSPORTS", "snowflake");
    let client = Running::start(command);
    let line = client.line("CMETHOD snowflake socks5 ");
    let port = line.rsplit(' ').next().unwrap().to_owned();
    let mut stream = socks(&port);
    let usual = exchange(&mut stream, None);
    // The proxy goes in the middle of a download; another one is there.
    let second = start_proxy(&dir, proxy_of);
    let pause = exchange(&mut stream, Some(&first));
    println!("{LEN} bytes there and back: longest pause {usual:?}, with a proxy killed {pause:?}");
    // Debian's client looks after 20 s, and collects each 10 s.
    assert!(client_of == "debian" || pause <= Duration::from_secs(6), "a pause of {pause:?}");
    drop((second, stream));
    server.signal("TERM");
    let (status, log) = server.end();
    assert!(status.success(), "{log}");
}

/// A poll each second.
const POLLS: &str =
    "{\"open_poll_interval\":1000,\"moderate_poll_interval\":1000,\"strict_poll_interval\":1000}";

fn network() {
    let run = |args: &str| {
        let status = Command::new("ip").args(args.split(' ')).status().unwrap();
        assert!(status.success(), "ip {args}");
    };
    run("link set lo up");
    run("link add d0 type veth peer name d1");
    run("link set d0 up");
    run("link set d1 up");
    for last in 1..=5 {
        run(&format!("addr add 203.0.113.{last}/24 dev d0"));
    }
}

fn start_server(dir: &Dir) -> Running {
    let mut command = dir.command(link(dir, "snowflake-server"), &["-disable-tls"]);
    command.env("TOR_PT_MANAGED_TRANSPORT_VER", "1").env("TOR_PT_SERVER_TRANSPORTS", "snowflake");
    command.env("TOR_PT_SERVER_BINDADDR", format!("snowflake-{SERVER}")).env("TOR_PT_ORPORT", TARGET);
    command.env("TOR_PT_SERVER_TRANSPORT_OPTIONS", "snowflake:num-turbotunnel=2");
    let server = Running::start(command);
    server.line("VERSION 1");
    assert_eq!(server.line("SMETHOD snowflake"), format!("SMETHOD snowflake {SERVER} ARGS:tls=no"));
    server.line("SMETHODS DONE");
    server
}

/// A program of Debian's, or adit under its name.
fn command_of(dir: &Dir, whose: &str, name: &str, flags: &[&str]) -> Command {
    match whose {
        "debian" => dir.command(name, flags),
        _ => dir.command(env!("CARGO_BIN_EXE_adit"), &[&[name], flags].concat()),
    }
}

fn start_proxy(dir: &Dir, whose: &str) -> Running {
    let flags = [
        "-broker",
        "http://203.0.113.1:8080/",
        "-stun",
        "stun:203.0.113.4:3478",
        "-relay",
        "ws://203.0.113.2:8081/",
        "-allow-non-tls-relay",
        "-allowed-relay-hostname-pattern",
        "$",
        "-verbose",
        "-unsafe-logging",
        "-nat-retest-interval",
        "0s",
    ];
    let proxy = Running::start(command_of(dir, whose, "snowflake-proxy", &flags));
    proxy.line("NAT type");
    proxy
}

fn socks(port: &str) -> TcpStream {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream.write_all(&[5, 1, 0, 1, 192, 0, 2, 3, 0, 80]).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

fn byte(at: usize) -> u8 {
    u8::try_from((at * 7 + at / 251) % 256).unwrap()
}

/// The target: sends back what it gets.
fn serve() {
    let listener = TcpListener::bind(TARGET).unwrap();
    for stream in listener.incoming().map_while(Result::ok) {
        thread::spawn(move || {
            let mut writer = stream.try_clone().unwrap();
            std::io::copy(&mut &stream, &mut writer).ok();
        });
    }
}

/// Sends the pattern, and reads it back; `victim` is killed in the middle. Returns the longest pause.
fn exchange(stream: &mut TcpStream, victim: Option<&Running>) -> Duration {
    let mut writer = stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        let block: Vec<u8> = (0..LEN).map(byte).collect();
        writer.write_all(&block).unwrap();
    });
    let (mut got, mut buffer, mut is_killed) = (0, vec![0; 64 << 10], false);
    let mut longest = Duration::ZERO;
    while got < LEN {
        let began = Instant::now();
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "the end after {got} bytes");
        longest = longest.max(began.elapsed());
        for byte_read in &buffer[..len] {
            assert_eq!(*byte_read, byte(got), "byte {got}");
            got += 1;
        }
        if let Some(victim) = victim.filter(|_| !is_killed && got > LEN / 3) {
            is_killed = true;
            victim.signal("KILL");
        }
    }
    sender.join().unwrap();
    longest
}
