//! The effect of garbage on users that a server knows: times to the first byte of a warm user of a Snell server whose
//! users have a key each, in a quiet time and while unauthenticated peers send garbage, in turns.
//!
//! ```text
//! cargo run -p adit-lab --example garbage -- --adit target/dist/adit
//! ```

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "the lab owns its sockets and clocks: it measures from outside"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_lab::load::{Path, fresh};
use adit_lab::process::cpu_time;
use adit_lab::random::Random;
use adit_lab::stats::{paired_ratio, percentile, summary};
use adit_lab::subject::{Helper, Programs, Running, Subject};
use adit_lab::target::Target;
use anyhow::{Context, Result, ensure};
use clap::Parser;
use socket2::{Domain, Socket, Type};

/// Bytes that an unauthenticated peer sends: enough for every version to be tried.
const GARBAGE_LEN: usize = 600;
/// Between two connections of the user.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for the first connection, which the server does not know yet.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Parser)]
struct Args {
    /// The adit binary.
    #[arg(long, value_name = "PATH")]
    adit: PathBuf,
    /// Users of the server.
    #[arg(long, default_value_t = 10_000)]
    users: usize,
    /// The versions that the server takes: 4, 5, 6 or auto.
    #[arg(long, default_value = "5")]
    version: String,
    /// Connections with garbage per second, each from a source of its own.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Connections of the user that are timed, each time.
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Number of pairs of a quiet time and one with garbage.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let helper = Helper { program: args.adit.with_file_name("adit-bench") };
    let programs = Programs::new(helper, BTreeMap::from([("adit".to_owned(), args.adit.clone())]));
    let target = Target::start(PATIENCE)?;
    let running = Running::start(&subject(&args)?, &programs, target.address())?;
    let path = Path { address: running.address, entry: running.entry, target: target.address() };
    // The user becomes known.
    fresh(&path, 1, 1, Duration::ZERO).context("the first connection")?;
    let mut out = stdout().lock();
    writeln!(out, "users {}, version {}, garbage {}/s", args.users, args.version, args.rate)?;
    writeln!(out, "round  quiet p50 p90 p99 us   garbage p50 p90 p99 us   server's cores quiet garbage")?;
    let mut p99 = [Vec::new(), Vec::new()];
    for round in 1..=args.rounds {
        let quiet = turn(&args, &running, &path, false)?;
        let garbage = turn(&args, &running, &path, true)?;
        let ([a, b, c], [d, e, f]) = (quiet.times, garbage.times);
        let [quiet_cores, garbage_cores] = [quiet.cores, garbage.cores];
        writeln!(
            out,
            "{round:5} {a:10.0} {b:6.0} {c:6.0} {d:14.0} {e:6.0} {f:6.0} {quiet_cores:18.3} {garbage_cores:9.3}"
        )?;
        p99[0].push(Some(c));
        p99[1].push(Some(f));
    }
    let [quiet, garbage] = &p99;
    let median = |values: &[Option<f64>]| {
        summary(&values.iter().flatten().copied().collect::<Vec<_>>()).map_or(0.0, |all| all.median)
    };
    let ratio = paired_ratio(garbage, quiet).context("a round at least")?;
    writeln!(
        out,
        "p99: median {:.0} quiet, {:.0} with garbage; ratio of rounds {:.2} ({:.2} to {:.2})",
        median(quiet),
        median(garbage),
        ratio.median,
        ratio.min,
        ratio.max
    )?;
    Ok(())
}

/// The figures of one turn, with or without garbage.
struct Turn {
    /// Median, 90th and 99th percentile, in microseconds.
    times: [f64; 3],
    /// Processor time of the server by elapsed time.
    cores: f64,
}

fn turn(args: &Args, running: &Running, path: &Path, with_garbage: bool) -> Result<Turn> {
    let server = running.roles()?.into_iter().find(|(role, _)| *role == "server").context("a server")?.1;
    let server_time = || server.iter().map(|pid| cpu_time(*pid)).sum::<Result<Duration>>();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, running.link()?));
    let ended = AtomicBool::new(false);
    rest(server_time)?;
    thread::scope(|scope| {
        let flood_thread = with_garbage.then(|| scope.spawn(|| flood(address, args.rate, &ended)));
        if with_garbage {
            // The line in front of the trials fills first.
            thread::sleep(Duration::from_secs(2));
        }
        let (before, since) = (server_time()?, Instant::now());
        let times = fresh(path, args.connections, 1, PAUSE);
        let (after, elapsed) = (server_time()?, since.elapsed());
        ended.store(true, Ordering::Relaxed);
        if let Some(flood_thread) = flood_thread {
            flood_thread.join().ok().context("the garbage thread panicked")??;
        }
        let times = times?;
        let at = |percent| percentile(&times, percent).context("a connection at least");
        let cores = (after - before).as_secs_f64() / elapsed.as_secs_f64();
        Ok(Turn { times: [at(50)?, at(90)?, at(99)?], cores })
    })
}

/// Waits until the server has nothing left to do: connections that have closed may still stand in its queue.
fn rest(server_time: impl Fn() -> Result<Duration>) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(500);
    let (since, mut calm) = (Instant::now(), 0);
    loop {
        let before = server_time()?;
        thread::sleep(LOOK);
        calm = if server_time()? - before < LOOK / 50 { calm + 1 } else { 0 };
        if calm == 4 {
            return Ok(());
        }
        ensure!(since.elapsed() < 10 * PATIENCE, "the server does not come to rest");
    }
}

/// Connects from ever new addresses of 127.0.0.0/8, sends garbage, and holds the last thousand connections open.
fn flood(address: SocketAddr, rate: u32, ended: &AtomicBool) -> Result<()> {
    let mut random = Random::new(u64::from(std::process::id()));
    let mut held = std::collections::VecDeque::<TcpStream>::new();
    let (since, mut count) = (Instant::now(), 0);
    while !ended.load(Ordering::Relaxed) {
        let due = since + Duration::from_secs(1) * count / rate;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        count += 1;
        let [a, b, c, ..] = random.next_u64().to_le_bytes();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254)), 0)).into())?;
        socket.connect_timeout(&address.into(), PATIENCE).context("connect to the server")?;
        let mut garbage = [0; GARBAGE_LEN];
        for piece in garbage.chunks_mut(8) {
            piece.copy_from_slice(&random.next_u64().to_le_bytes()[..piece.len()]);
        }
        let mut stream = TcpStream::from(socket);
        stream.write_all(&garbage)?;
        held.push_back(stream);
        if held.len() > 1000 {
            held.pop_front();
        }
    }
    Ok(())
}

/// A server with users, and the last of them.
fn subject(args: &Args) -> Result<Subject> {
    let mut users = String::new();
    for n in 0..args.users {
        writeln!(users, "    {{ name = \"user{n}\", password = \"the key of user {n}\" }},")?;
    }
    let (version, last) = (&args.version, args.users.saturating_sub(1));
    let quoted = if version == "auto" { "\"auto\"" } else { version };
    let client = if version == "auto" { "6" } else { version };
    Subject::parse(&format!(
        r#"
name = "adit-users"
about = "adit with a key for each user"
entry = "socks5"

[[process]]
role = "server"
program = "adit"
args = ["run", "-c", "{{dir}}/server.toml"]
ready = "server"

[process.files]
"server.toml" = '''
[[inbound]]
protocol = "snell"
listen = "127.0.0.1:{{port:server}}"
version = {quoted}
allow-private = true
users = [
{users}]
'''

[[process]]
role = "client"
program = "adit"
args = ["run", "-c", "{{dir}}/client.toml"]
ready = "entry"

[process.files]
"client.toml" = '''
[[inbound]]
protocol = "socks"
listen = "127.0.0.1:{{port:entry}}"

[[outbound]]
protocol = "snell"
server = "127.0.0.1:{{port:server}}"
version = {client}
psk = "the key of user {last}"
reuse = false
'''
"#
    ))
}
