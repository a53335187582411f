//! Check 12: users of a list of 10,000 change under 1,000 connections a second, and nobody else notices.
//!
//! A debug build does not serve that many: the rate and the times are held to with the release binary alone.
//!
//! ```text
//!   ADIT_FLEET_BINARY=/path/to/release/adit cargo test -p adit --test program -- --ignored --nocapture fleet::changes
//! ```

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::support::{Hooks, binary, echoed, program, wait_for};
use crate::support::{Dir, Running, echo, socks5};

const SERVER: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
/// Users: one is removed, one gets another key, one another speed, and one is new.
const REMOVED: u32 = 10;
const REKEYED: u32 = 11;
const SLOWED: u32 = 12;
const ADDED: u32 = 20_000;
/// The key that `REKEYED` gets.
const OTHER: u32 = 30_000;
/// Threads of the others, and connections a second that they make together: a tenth more than is asked for.
const OTHERS: u32 = 8;
const RATE: u32 = 1100;

/// A change holds a second after the list has come; a debug build has four times that.
fn bound() -> Duration {
    Duration::from_secs(if binary().is_none() && cfg!(debug_assertions) { 4 } else { 1 })
}

/// A key of 32 bytes.
fn key(n: u32) -> String {
    format!("{n:08}{}=", "A".repeat(35))
}

fn row(n: u32, of: u32, more: &str) -> String {
    format!("{{\"id\":\"{n}\",\"secret\":\"s\",\"key\":\"{}\"{more}}}", key(of))
}

/// A client with a local port for each of these keys.
fn client(server: SocketAddr, keys: &[u32]) -> (Running, Dir) {
    let (dir, mut text) = (Dir::new(), String::new());
    for n in keys {
        text += &format!(
            "[[inbound]]\nname = \"l{n}\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\noutbound = \"o{n}\"\n\
             [[outbound]]\nname = \"o{n}\"\nprotocol = \"shadowsocks\"\nserver = \"{server}\"\n\
             method = \"2022-blake3-aes-256-gcm\"\npassword = \"{SERVER}:{}\"\n",
            key(*n)
        );
    }
    dir.file("client.toml", &text);
    let running = Running::start(program(&dir, &["run", "-c", "client.toml"]));
    running.line(&format!("inbound=l{} ", keys[keys.len() - 1]));
    (running, dir)
}

fn port(client: &Running, key: u32) -> SocketAddr {
    let line = client.line(&format!("inbound=l{key} "));
    line.split("address=").nth(1).unwrap().trim().parse().unwrap()
}

/// Others: connections one after the other, and one that stays, until they are told to stop.
struct Others {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<u64>>,
}

impl Others {
    fn start(ports: &[SocketAddr], target: SocketAddr) -> Self {
        let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut threads = Vec::new();
        for at in ports.iter().cycle().take(OTHERS as usize) {
            let (at, until, count) = (*at, stop.clone(), count.clone());
            threads.push(thread::spawn(move || {
                let connect = || socks5(at, "127.0.0.1", target.port());
                let (mut held, mut failed, mut next) = (connect(), 0, Instant::now());
                while !until.load(Ordering::Relaxed) {
                    next = Instant::now().max(next + Duration::from_secs(1) * OTHERS / RATE);
                    failed += u64::from(!echoed(&mut connect(), 500)) + u64::from(!echoed(&mut held, 500));
                    count.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
                failed
            }));
        }
        Self { stop, count, threads }
    }

    /// Connections so far.
    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Ends them; the number of failures.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    }
}

/// Times of ten scrapes, the shortest first.
fn scrapes(metrics: SocketAddr) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..10)
        .map(|_| {
            let asked = Instant::now();
            let text = super::get(metrics, "/metrics");
            let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count();
            assert!((1..2000).contains(&series), "{series}");
            asked.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

#[test]
#[ignore = "takes 10,000 users"]
fn changes_of_users_touch_nobody_else() {
    let usual = |n: u32| row(n, n, "");
    let before: Vec<String> = (0..10_000).map(usual).collect();
    let panel = Hooks::start(&before);
    let (dir, server) = (Dir::new(), adit_testkit::unused_addr());
    let metrics = adit_testkit::unused_addr();
    dir.file(
        "adit.toml",
        &format!(
            "[admin]\nsocket = \"adit.sock\"\nhttp = \"{metrics}\"\n\
             [[panel]]\nname = \"home\"\nkind = \"hooks\"\nurl = \"http://{}\"\ntoken = \"t\"\nnode = \"17\"\n\
             pull = \"1s\"\npush = \"1s\"\n\
             [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"{server}\"\n\
             method = \"2022-blake3-aes-256-gcm\"\npassword = \"{SERVER}\"\n\
             outbound = \"direct\"\npanel = \"home\"\nallow-private = true\n\
             [[outbound]]\nname = \"direct\"\nprotocol = \"direct\"\n",
            panel.at
        ),
    );
    let node = Running::start(program(&dir, &["run", "-c", "adit.toml"]));
    wait_for("the users are served", || node.log().contains("lists are in use"));
    let (client, _folder) = client(server, &[0, 1, 2, 3, REMOVED, REKEYED, SLOWED, ADDED, OTHER]);
    let target = echo();
    let connect = |key: u32| socks5(port(&client, key), "127.0.0.1", target.port());
    let mut held: Vec<TcpStream> = [REMOVED, REKEYED, SLOWED].map(connect).into();
    assert!(held.iter_mut().all(|stream| echoed(stream, 100)));
    let ports: Vec<SocketAddr> = (0..4).map(|key| port(&client, key)).collect();
    let (others, since) = (Others::start(&ports, target), Instant::now());
    // The others are served as usual.
    thread::sleep(Duration::from_secs(3));
    // Check 15: metrics of 10,000 users, while there are others to serve.
    let times = scrapes(metrics);
    println!("scrapes: {:?} to {:?}, {:?} in the middle", times[0], times[9], times[5]);
    assert!(times[5] < Duration::from_millis(if binary().is_some() { 20 } else { 200 }), "{times:?}");
    let mut after: Vec<String> = (0..10_000).filter(|n| *n != REMOVED).map(usual).collect();
    after.retain(|row| !row.contains(&key(REKEYED)) && !row.contains(&key(SLOWED)));
    after.extend([row(REKEYED, OTHER, ""), row(SLOWED, SLOWED, ",\"rate\":20000"), usual(ADDED)]);
    panel.list(&after);
    wait_for("the list is told", || panel.told_at().is_some());
    let told_at = panel.told_at().unwrap();
    let mut ended = Vec::new();
    for (name, stream) in
        ["the removed user's connection ends", "that of the old key ends"].iter().zip(&mut held)
    {
        wait_for(name, || !echoed(stream, 10));
        println!("{name}: {:?} after the list", told_at.elapsed());
        ended.push(told_at.elapsed());
    }
    assert!(ended[0] < bound(), "{ended:?}");
    assert!(echoed(&mut connect(ADDED), 100) && echoed(&mut connect(OTHER), 100), "new ones are served");
    for gone in [REMOVED, REKEYED] {
        assert!(!echoed(&mut connect(gone), 100), "old ones are not");
    }
    // The connection of the slowed user goes on, at 20 kB/s: a burst, then 30,000 bytes take a second and more.
    let slow = Instant::now();
    assert!((0..6).all(|_| echoed(&mut held[2], 10_000)));
    assert!(slow.elapsed() > Duration::from_millis(1500), "{:?}", slow.elapsed());
    let rate = others.count() as f64 / since.elapsed().as_secs_f64();
    println!("{rate:.0} connections a second");
    assert!(binary().is_none() || rate >= 1000.0, "{rate}");
    assert_eq!(others.stop(), 0, "others notice nothing");
}
