//! Snowflake in a network of its own: clients and proxies of Debian and of adit, Tor, and `carrier = "snowflake"`.

mod carrier;
mod servers;
mod tor;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use adit_testkit::skipped;

use crate::support::{Dir, Running};
use crate::upgrade::wait_until;

/// Addresses that no program takes for private ones.
const BROKER: &str = "203.0.113.1:8080";
const SERVER: &str = "203.0.113.2:8081";
const RELAY: &str = "ws://203.0.113.2:8081/";
const TARGET: &str = "203.0.113.3:9000";
const STUN: [&str; 2] = ["203.0.113.4", "203.0.113.5"];
/// The STUN server as clients name it.
const ICE: &str = "stun:203.0.113.4:3478";
/// The bridge that clients ask for if they name none.
const FINGERPRINT: &str = "2B280B23E1107BB62ABFC40DDCC8824814F80A72";
/// A poll each second.
const POLLS: &str =
    "{\"open_poll_interval\":1000,\"moderate_poll_interval\":1000,\"strict_poll_interval\":1000}";
/// Bytes of a transfer.
const LEN: usize = 6_000_000;

/// Whether all these programs are there. Says so if not.
fn has(programs: &[&str]) -> bool {
    let has_all = programs.iter().all(|path| Path::new(path).exists());
    if !has_all {
        skipped(format_args!("{programs:?} are not all there"));
    }
    has_all
}

/// Addresses 203.0.113.1 to 203.0.113.`last`, in a network where nothing is up yet.
fn network(last: u8) {
    let run = |args: &str| {
        let status = Command::new("ip").args(args.split(' ')).status().unwrap();
        assert!(status.success(), "ip {args}");
    };
    run("link set lo up");
    run("link add d0 type veth peer name d1");
    run("link set d0 up");
    run("link set d1 up");
    for last in 1..=last {
        run(&format!("addr add 203.0.113.{last}/24 dev d0"));
    }
}

/// A broker that sends clients to the bridge of this fingerprint at `relay`: adit, or upstream's.
fn start_broker(dir: &Dir, program: &Path, relay: &str, fingerprint: &str) -> Running {
    let bridge = format!(
        "{{\"displayName\":\"t\",\"webSocketAddress\":\"{relay}\",\"fingerprint\":\"{fingerprint}\"}}"
    );
    let (bridges, polls) = (dir.file("bridges", &bridge), dir.file("polls", POLLS));
    let flags = ["-addr", BROKER, "-disable-tls", "-disable-geoip", "-bridge-list-path"];
    let mut command = dir.command(program, &flags);
    command.arg(&bridges).arg("-poll-interval-filepath").arg(&polls);
    let broker = Running::start(command);
    // Upstream's says nothing.
    wait_until("a broker", || TcpStream::connect(BROKER).is_ok());
    broker
}

/// A STUN server with two addresses, by which a client finds out that it is not behind a NAT.
fn start_stun(dir: &Dir) -> Running {
    let flags = ["--stun-only", "-n", "--log-file", "stdout", "-L", STUN[0], "-L", STUN[1]];
    Running::start(dir.command("turnserver", &flags))
}

/// A program of Debian's, or adit under its name.
fn command_of(dir: &Dir, whose: &str, name: &str, flags: &[&str]) -> Command {
    match whose {
        "debian" => dir.command(name, flags),
        _ => dir.adit(&[&[name], flags].concat()),
    }
}

/// The command of a proxy whose own relay is `relay`.
fn proxy(dir: &Dir, whose: &str, relay: &str) -> Command {
    let mut flags = vec!["-broker", "http://203.0.113.1:8080/", "-stun", ICE, "-relay", relay];
    flags.extend(["-allow-non-tls-relay", "-allowed-relay-hostname-pattern", "$", "-verbose"]);
    flags.extend(["-unsafe-logging", "-nat-retest-interval", "0s"]);
    command_of(dir, whose, "snowflake-proxy", &flags)
}

/// A proxy that knows its kind of NAT, and polls.
fn start_proxy(command: Command) -> Running {
    let proxy = Running::start(command);
    proxy.line("NAT type");
    proxy
}

fn byte(at: usize) -> u8 {
    u8::try_from((at * 7 + at / 251) % 256).unwrap()
}

/// The target: sends back all that it gets.
fn serve() {
    let listener = TcpListener::bind(TARGET).unwrap();
    let answer = |stream: TcpStream| {
        let mut writer = stream.try_clone().unwrap();
        std::io::copy(&mut &stream, &mut writer).ok();
    };
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer(stream));
        }
    });
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
