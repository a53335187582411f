//! A node with 10,000 users of Snell that have a key each is started anew: everybody who was online is served at once, since
//! their sources are in a file.
//!
//! ```text
//!   ADIT_FLEET_BINARY=/path/to/release/adit cargo test -p adit --test program -- --ignored --nocapture fleet::restart
//! ```

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use super::support::{echoed, program};
use crate::support::{Dir, Running, echo, socks5};

const USERS: usize = 10_000;
const SOURCES: usize = 2_000;
/// Sources of a client: a file may have 256 inbounds.
const OF_CLIENT: usize = 250;
/// All keys would be tried for 0.15 s at a quarter of a core, for each source: 20 minutes.
const BOUND: Duration = Duration::from_secs(30);

fn key(user: usize) -> String {
    format!("the own key of user {user}")
}

/// The user of a source.
fn user(source: usize) -> usize {
    source * 5 + 4
}

fn address(source: usize) -> Ipv4Addr {
    let [high, low] = [source / OF_CLIENT, source % OF_CLIENT + 1].map(|part| u8::try_from(part).unwrap());
    Ipv4Addr::new(127, 77, high, low)
}

/// A client with a local port for each of its sources, and these ports.
fn client(server: SocketAddr, sources: std::ops::Range<usize>) -> (Running, Dir, Vec<SocketAddr>) {
    let (dir, mut text) = (Dir::new(), String::new());
    for source in sources.clone() {
        write!(
            text,
            "[[inbound]]\nname = \"l{source}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"o{source}\"\n\
             [[outbound]]\nname = \"o{source}\"\nprotocol = \"snell\"\nserver = \"{server}\"\npsk = \"{}\"\n\
             bind-address = \"{}\"\n",
            key(user(source)),
            address(source)
        )
        .unwrap();
    }
    dir.file("client.toml", &text);
    let running = Running::start(program(&dir, &["run", "-c", "client.toml"]));
    running.line(&format!("inbound=l{} ", sources.end - 1));
    let log = running.log();
    let port = |source: usize| {
        let line = log.lines().find(|line| line.contains(&format!("inbound=l{source} "))).unwrap();
        line.split("address=").nth(1).unwrap().trim().parse().unwrap()
    };
    let ports = sources.map(port).collect();
    (running, dir, ports)
}

/// The file of the node, with the sources of before: each one's user has come from there after another one.
fn write_files(dir: &Dir, port: SocketAddr, metrics: SocketAddr) {
    let users: Vec<String> =
        (0..USERS).map(|user| format!("{{ name = \"u{user}\", password = \"{}\" }}", key(user))).collect();
    dir.file(
        "adit.toml",
        &format!(
            "state = \"n.state\"\n[admin]\nhttp = \"{metrics}\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"snell\"\nlisten = \"{port}\"\noutbound = \"direct\"\n\
             allow-private = true\nusers = [\n{}\n]\n[[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
            users.join(",\n")
        ),
    );
    let line = |source| {
        let (address, user) = (address(source), user(source));
        format!("[\"in\",\"{address}\",[\"u{}\",\"u{user}\"]]\n", user - 1)
    };
    dir.file("n.state.sources", &(0..SOURCES).map(line).collect::<String>());
}

/// The clients for whom keys were tried, and those whose user was known.
fn searches(metrics: SocketAddr) -> [u64; 2] {
    let text = super::get(metrics, "/metrics");
    ["miss", "hit"].map(|result| {
        let name = format!("adit_trial_cache_total{{inbound=\"in\",result=\"{result}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    })
}

#[test]
#[ignore = "takes 10,000 users and 2,000 sources"]
fn two_thousand_sources_are_served_after_a_restart() {
    let (dir, target) = (Dir::new(), echo());
    let (port, metrics) = (adit_testkit::unused_addr(), adit_testkit::unused_addr());
    write_files(&dir, port, metrics);
    let parts = (0..SOURCES).step_by(OF_CLIENT).map(|from| client(port, from..from + OF_CLIENT));
    let clients: Vec<_> = parts.collect();
    for start in ["the file of before", "the file that it has written"] {
        let since = Instant::now();
        let node = Running::start(program(&dir, &["run", "-c", "adit.toml"]));
        node.line("inbound=in");
        let ready = since.elapsed();
        let serve = |ports: &[SocketAddr]| {
            ports.iter().all(|at| echoed(&mut socks5(*at, "127.0.0.1", target.port()), 500))
        };
        let all = thread::scope(|scope| {
            let parts: Vec<_> = clients.iter().map(|(.., ports)| scope.spawn(|| serve(ports))).collect();
            parts.into_iter().all(|part| part.join().unwrap())
        });
        assert!(all, "everybody is served");
        println!(
            "{start}: {SOURCES} sources are served {:?} after the start, ready {ready:?}",
            since.elapsed()
        );
        assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
        assert_eq!(searches(metrics), [0, SOURCES as u64], "no key of others was tried");
        node.signal("TERM");
        assert!(node.end().0.success());
    }
}
