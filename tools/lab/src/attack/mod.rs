//! The effect of attacks on those who have a key: `adit bench run attack`.
//!
//! A server takes Shadowsocks (aes-128-gcm, TCP and UDP), Snell 5 and Shadowsocks over KCP, in a control group of 128 MB
//! where one can be made. Users fetch one byte from a target through it, over and over, while the attack runs: idle
//! connections, garbage, readers that never read, replayed datagrams, and more peers than there are descriptors. Rows of
//! `LAN` attack a gateway that captures what it forwards (`lan`).

mod lan;
mod peers;
mod site;
mod users;

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::{Table, presets};
use serde::Serialize;

use self::lan::{Flood, Mode};
pub(crate) use self::peers::{connect, garbage};
use self::site::{Client, Server};
use self::users::{FOR_EVER, Target, Users};
use crate::held::{Held, Usage};

/// Memory of the server's control group in bytes.
const MEMORY: u64 = 128 << 20;
/// Idle connections, and connections with garbage.
const CROWD: usize = 20_000;
/// Of a crowd, so many are held open at a time: what the descriptors of this process allow.
const HELD: usize = 15_000;
/// Readers that never read.
const READERS: usize = 2_400;
/// Replayed datagrams, each from an address of its own.
const REPLAYS: usize = 30_000;
/// Connections at the HTTP ports.
const HTTP: usize = 10_000;
/// Limits of descriptors under which three times as many peers come.
const LIMITS: [u64; 3] = [256, 1_024, 4_096];
/// Users go on for so long behind an attack.
const AFTER: Duration = Duration::from_secs(5);
/// By then memory and descriptors are back.
const BACK: Duration = Duration::from_secs(60);
/// Above the figures from before the attack by so much counts as back.
const BACK_RSS_KIB: u64 = 24 << 10;
const BACK_DESCRIPTORS: usize = 24;
/// The bars: parts of a thousand that are served, and milliseconds.
const SERVED: usize = 990;
const P99_MS: f64 = 300.0;

/// One attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    Nothing,
    Idle(usize),
    Garbage(usize),
    Readers,
    /// So many connections of those who have a key, without a byte.
    Users(usize),
    Shadowsocks,
    Kcp,
    /// So many connections at the ports for metrics and control, of which a half have begun a request.
    Http(usize),
    /// A neighbour's, at a gateway that captures what it forwards.
    Lan(Mode, Flood),
}

/// The figures of one attack.
#[derive(Debug, Serialize)]
struct Figures {
    name: String,
    requests: usize,
    served: usize,
    p50_ms: f64,
    p99_ms: f64,
    rss_kib: u64,
    group_bytes: Option<u64>,
    descriptors: usize,
    back_s: Option<f64>,
    alive: bool,
}

impl Figures {
    /// Whether all bars hold.
    fn is_good(&self) -> bool {
        let served = self.served * 1000 >= self.requests * SERVED;
        self.requests > 0 && served && self.p99_ms <= P99_MS && self.back_s.is_some() && self.alive
    }
}

/// Runs all attacks, or those whose name contains one of `only`; raw data go to `json`.
///
/// # Errors
/// If a program does not start, a file cannot be written, or a bar is missed.
pub(crate) fn run(adit: &Path, only: &[String], json: Option<&Path>) -> Result<()> {
    let mut all = vec![
        ("nothing".to_owned(), None, Attack::Nothing),
        (format!("{CROWD} idle"), None, Attack::Idle(CROWD)),
        (format!("{CROWD} garbage"), None, Attack::Garbage(CROWD)),
        (format!("{READERS} readers"), None, Attack::Readers),
        (format!("{REPLAYS} shadowsocks replays"), None, Attack::Shadowsocks),
        (format!("{REPLAYS} kcp replays"), None, Attack::Kcp),
    ];
    for limit in LIMITS {
        let peers = usize::try_from(limit)? * 3;
        all.push((format!("nofile {limit}, {peers} idle"), Some(limit), Attack::Idle(peers)));
        all.push((format!("nofile {limit}, {peers} garbage"), Some(limit), Attack::Garbage(peers)));
    }
    all.push(("nofile 1024, 3072 idle users".to_owned(), Some(1_024), Attack::Users(3_072)));
    all.push((format!("nofile 1024, {REPLAYS} shadowsocks replays"), Some(1_024), Attack::Shadowsocks));
    all.push((format!("nofile 1024, {HTTP} at the HTTP ports"), Some(1_024), Attack::Http(HTTP)));
    for mode in Mode::ALL {
        for flood in Flood::ALL {
            all.push((format!("LAN, {}: {}", mode.name(), flood.name()), None, Attack::Lan(mode, flood)));
        }
    }
    all.retain(|(name, ..)| only.is_empty() || only.iter().any(|word| name.contains(word.as_str())));
    ensure!(!all.is_empty(), "no attack has such a name");
    let mut figures = Vec::new();
    for (name, limit, attack) in all {
        console::Term::stderr().write_line(&format!("attack: {name}"))?;
        figures.push(measure(adit, name, limit, attack)?);
    }
    show(&figures)?;
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&figures)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let missed: Vec<&str> =
        figures.iter().filter(|figures| !figures.is_good()).map(|figures| &*figures.name).collect();
    ensure!(
        missed.is_empty(),
        "missed the bars of {SERVED} ‰, {P99_MS} ms and {BACK:?}: {}",
        missed.join(", ")
    );
    Ok(())
}

fn measure(adit: &Path, name: String, limit: Option<u64>, attack: Attack) -> Result<Figures> {
    if let Attack::Lan(mode, flood) = attack {
        return lan::measure(adit, name, mode, flood);
    }
    let target = Target::start(Ipv4Addr::LOCALHOST, None)?;
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let recorders = [UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?];
    let server = Server::start(adit, limit, Some(MEMORY))?;
    let client = Client::start(adit, &server, sink.local_addr()?, &recorders)?;
    let users = Users { entries: client.users, target: target.address };
    // Keys are derived, and the client's server is known.
    users.once().context("the first request")?;
    let strike = || strike(attack, &server, &client, &target, &recorders);
    observe(name, &server.held, |over| users.run(over), strike)
}

/// The figures of an attack on `held`, while `load` asks until it is told to stop.
fn observe(
    name: String,
    held: &Held,
    load: impl FnOnce(&AtomicBool) -> Vec<Option<f64>> + Send,
    strike: impl FnOnce() -> Result<()>,
) -> Result<Figures> {
    let before = held.usage()?;
    let over = &AtomicBool::new(false);
    let (mut outcome, mut peak) = (Vec::new(), before);
    let attacked: Result<()> = thread::scope(|scope| {
        let load = scope.spawn(move || load(over));
        let watch = scope.spawn(|| held.watch(over));
        let result = strike();
        over.store(true, Ordering::Relaxed);
        outcome = load.join().unwrap_or_default();
        peak = watch.join().unwrap_or(before);
        result
    });
    attacked?;
    let back_s = wait_until_back(held, before)?;
    let times: Vec<f64> = outcome.iter().flatten().copied().collect();
    let at = |percent| crate::stats::percentile(&times, percent).unwrap_or(f64::INFINITY);
    Ok(Figures {
        name,
        requests: outcome.len(),
        served: times.len(),
        p50_ms: at(50),
        p99_ms: at(99),
        rss_kib: peak.rss_kib,
        group_bytes: held.group_peak(),
        descriptors: peak.descriptors,
        back_s,
        alive: held.is_alive(),
    })
}

/// Attacks, and returns a while after all has come.
fn strike(
    attack: Attack,
    server: &Server,
    client: &Client,
    target: &Target,
    recorders: &[UdpSocket; 2],
) -> Result<()> {
    match attack {
        Attack::Nothing | Attack::Lan(..) => thread::sleep(AFTER),
        Attack::Idle(count) | Attack::Garbage(count) => {
            let len = if matches!(attack, Attack::Garbage(_)) { 600 } else { 0 };
            let held = peers::crowd(&[server.shadowsocks, server.snell], count, len, HELD)?;
            thread::sleep(AFTER);
            drop(held);
        }
        Attack::Http(count) => {
            let held = peers::halves(server.http, count, HELD)?;
            thread::sleep(AFTER);
            let [metrics, control] = server.http;
            peers::ask(metrics, "/live")?;
            peers::ask(control, "/version")?;
            drop(held);
        }
        Attack::Users(count) => {
            let held = peers::users(client.users[0], target.address, count, None)?;
            thread::sleep(AFTER);
            drop(held);
        }
        Attack::Readers => {
            let held = peers::users(client.users[0], target.address, READERS, Some(FOR_EVER))?;
            thread::sleep(AFTER);
            drop(held);
        }
        Attack::Shadowsocks => {
            let datagram = peers::record_shadowsocks(client, &recorders[0])?;
            peers::replay(&datagram, server.shadowsocks, REPLAYS)?;
            thread::sleep(AFTER);
        }
        Attack::Kcp => {
            let datagram = peers::record_kcp(client, target.address, &recorders[1])?;
            peers::replay(&datagram, server.kcp, REPLAYS)?;
            thread::sleep(AFTER);
        }
    }
    Ok(())
}

/// Seconds until it has given back what the attack took; `None` if it has not in time.
fn wait_until_back(held: &Held, before: Usage) -> Result<Option<f64>> {
    let since = Instant::now();
    while since.elapsed() < BACK {
        if !held.is_alive() {
            return Ok(None);
        }
        let now = held.usage()?;
        if now.rss_kib <= before.rss_kib + BACK_RSS_KIB
            && now.descriptors <= before.descriptors + BACK_DESCRIPTORS
        {
            return Ok(Some(since.elapsed().as_secs_f64()));
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(None)
}

fn show(figures: &[Figures]) -> Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "attack",
        "requests",
        "served %",
        "p50 ms",
        "p99 ms",
        "RSS MB",
        "cgroup MB",
        "descriptors",
        "back s",
        "",
    ]);
    for one in figures {
        let megabytes = |bytes: u64| (bytes >> 20).to_string();
        let served =
            100.0 * f64::from(u32::try_from(one.served)?) / f64::from(u32::try_from(one.requests.max(1))?);
        table.add_row([
            one.name.clone(),
            one.requests.to_string(),
            format!("{served:.1}"),
            format!("{:.1}", one.p50_ms),
            format!("{:.1}", one.p99_ms),
            megabytes(one.rss_kib << 10),
            one.group_bytes.map_or_else(|| "no group".to_owned(), megabytes),
            one.descriptors.to_string(),
            one.back_s.map_or_else(|| "-".to_owned(), |s| format!("{s:.1}")),
            if !one.alive {
                "killed"
            } else if one.is_good() {
                ""
            } else {
                "missed"
            }
            .to_owned(),
        ]);
    }
    console::Term::stdout().write_line(&table.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_told_from_misses() {
        let good = || Figures {
            name: "x".into(),
            requests: 1000,
            served: 990,
            p50_ms: 1.0,
            p99_ms: 300.0,
            rss_kib: 1,
            group_bytes: None,
            descriptors: 1,
            back_s: Some(1.0),
            alive: true,
        };
        assert!(good().is_good());
        assert!(!Figures { served: 989, ..good() }.is_good());
        assert!(!Figures { p99_ms: 301.0, ..good() }.is_good());
        assert!(!Figures { back_s: None, ..good() }.is_good());
        assert!(!Figures { alive: false, ..good() }.is_good());
        assert!(!Figures { requests: 0, served: 0, ..good() }.is_good());
    }
}
