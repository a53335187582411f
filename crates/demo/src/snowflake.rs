//! Snowflake's programs on this machine, and real bytes through them.
//!
//! ```text
//! load ── SOCKS5 ──> client ── WebRTC ──> proxy ── WebSocket ──> server ── TCP ──> site
//!                       └──── broker ────────┘
//! ```
//!
//! Each is a process of its own under the flags that an operator gives it.

use std::fs::{self, DirBuilder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Load;
use super::child::{Launch, Running};
use super::rig::Rig;
use super::site::Site;
use crate::process::{cpu_time, memory};
use crate::stats::percentile;

/// The programs, in the order of their figures.
const ROLES: [&str; 4] = ["client", "proxy", "server", "broker"];
/// Longest wait for a proxy at the broker.
const POLL: Duration = Duration::from_secs(15);
/// The bridge that clients ask for if they name none.
const BRIDGE: &str = "2B280B23E1107BB62ABFC40DDCC8824814F80A72";
/// The proxy polls often, as each connection takes a poll of its own.
const INTERVALS: &str =
    "{\"open_poll_interval\":500,\"moderate_poll_interval\":500,\"strict_poll_interval\":500}";

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnowflakeFigures {
    /// From the site to the local side.
    pub down: Direction,
    /// From the local side to the site.
    pub up: Direction,
    /// Milliseconds from connecting to the client until the first byte of the site's answer, median: each connection
    /// finds a proxy of its own.
    pub first_byte_ms: f64,
    /// Connections behind that median.
    pub connections: usize,
    /// Resident memory of each program after all this.
    pub memory: Vec<ProgramMemory>,
}

/// One direction of bulk data on one connection; every byte was compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Direction {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Seconds from the first to the last.
    pub seconds: f64,
    /// Bytes per second.
    pub rate: f64,
    /// The cost of each program, that of finding the proxy included.
    pub roles: Vec<Cost>,
}

/// The cost of a program in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// The program.
    pub role: &'static str,
    /// Milliseconds of processor time, user and system, per 10^6 bytes.
    pub cpu_ms_per_mb: f64,
    /// 10^6 bytes per second of processor time; none for the broker, through which no payload goes.
    pub mb_per_cpu_s: Option<f64>,
}

/// The memory of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProgramMemory {
    /// The program.
    pub role: &'static str,
    /// Resident, in KiB.
    pub resident_kib: u64,
}

/// Client, proxy, server, broker and site, which run until they are dropped. The server dials the site for any target that an
/// application names.
pub struct Snowflake(Rig);

impl Deref for Snowflake {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.0
    }
}

impl DerefMut for Snowflake {
    fn deref_mut(&mut self) -> &mut Rig {
        &mut self.0
    }
}

impl Snowflake {
    /// Starts everything; the client listens on `listen`.
    ///
    /// # Errors
    /// When a process does not start, with its last lines.
    pub fn start(listen: SocketAddr) -> Result<Self> {
        let site = Site::start().context("start the site")?;
        let start = |words: &[&str], ready| Running::start(&Launch { words, input: "", ready });
        let target = site.address.to_string();
        let words = ["snowflake-server", "-disable-tls", "-listen", "127.0.0.1:0", "-target", &target];
        let server = start(&words, listens).context("start the server")?;
        let broker = broker(&server, &start).context("start the broker")?;
        let (url, relay) = (format!("http://{}/", broker.address), format!("ws://{}/", server.address));
        let proxy = start(&proxy_words(&url, &relay), reached).context("start the proxy")?;
        let listen = listen.to_string();
        let words = ["snowflake-client", "-socks", &listen, "-url", &url, "-keep-local-addresses"];
        let client = start(&words, offers).context("start the client")?;
        let programs = ROLES.into_iter().zip([client, proxy, server, broker]).collect();
        Ok(Self(Rig { programs, site }))
    }

    /// Moves bytes both ways and times first bytes; `progress` is told of bytes as they go.
    ///
    /// # Errors
    /// When a connection fails or brings wrong bytes.
    pub fn measure(&mut self, load: &Load, progress: &dyn Fn(u64)) -> Result<SnowflakeFigures> {
        let mut times = Vec::new();
        for number in 0..load.connections {
            self.wait_for_proxy()?;
            times.push(self.way().first_byte().with_context(|| format!("connection {number}"))?);
        }
        let down = self.direction(load, || self.way().download(load, progress)).context("download")?;
        let up = self.direction(load, || self.way().upload(load, progress)).context("upload")?;
        self.alive()?;
        let mut kept = Vec::new();
        for (pid, role) in self.pids().into_iter().zip(ROLES) {
            kept.push(ProgramMemory { role, resident_kib: memory(pid)?.rss });
        }
        Ok(SnowflakeFigures {
            down,
            up,
            first_byte_ms: percentile(&times, 50).context("no connection to time")?,
            connections: load.connections,
            memory: kept,
        })
    }

    /// The rate and the cost of one direction.
    fn direction(&self, load: &Load, run: impl FnOnce() -> Result<(u64, Duration)>) -> Result<Direction> {
        self.wait_for_proxy()?;
        let cpu = || self.pids().into_iter().map(cpu_time).collect::<Result<Vec<_>>>();
        let before = cpu()?;
        let (bytes, took) = run()?;
        let after = cpu()?;
        ensure!(bytes > 0, "no bytes within {:?}", load.limit);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let count = bytes as f64;
        let cost = |((role, before), after): ((&'static str, Duration), Duration)| {
            let spent = after.saturating_sub(before).as_secs_f64().max(1e-9);
            let mb_per_cpu_s = (role != "broker").then_some(count / 1e6 / spent);
            Cost { role, cpu_ms_per_mb: spent * 1e3 / (count / 1e6), mb_per_cpu_s }
        };
        let roles = ROLES.into_iter().zip(before).zip(after).map(cost).collect();
        let seconds = took.as_secs_f64().max(1e-6);
        Ok(Direction { bytes, seconds, rate: count / seconds, roles })
    }

    fn broker(&self) -> SocketAddr {
        self.programs[3].1.address
    }

    /// Waits until a proxy's poll waits at the broker: a client that finds none tries again after 2 s only.
    fn wait_for_proxy(&self) -> Result<()> {
        let deadline = Instant::now() + POLL;
        while available(self.broker()).context("ask the broker")? == 0 {
            ensure!(Instant::now() < deadline, "no proxy has asked the broker for {POLL:?}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Finds the address of a program in a line of its log.
type Find = fn(&str) -> Option<SocketAddr>;

/// Starts the broker. Its files are gone once it has read them.
fn broker(server: &Running, start: &dyn Fn(&[&str], Find) -> Result<Running>) -> Result<Running> {
    let folder = Folder::new()?;
    let relay = server.address;
    let bridges = format!(
        "{{\"displayName\":\"demo\",\"webSocketAddress\":\"ws://{relay}/\",\"fingerprint\":\"{BRIDGE}\"}}"
    );
    let (bridges, polls) = (folder.file("bridges", &bridges)?, folder.file("polls", INTERVALS)?);
    let words = ["snowflake-broker", "-addr", "127.0.0.1:0", "-disable-tls", "-disable-geoip"];
    let files = ["-bridge-list-path", &*bridges, "-poll-interval-filepath", &*polls];
    start(&[&words[..], &files].concat(), listens)
}

/// A proxy that takes clients and relays of this machine, which one for the public refuses.
fn proxy_words<'a>(broker: &'a str, relay: &'a str) -> Vec<&'a str> {
    let mut words = vec!["snowflake-proxy", "-broker", broker, "-relay", relay];
    words.extend(["-stun", "", "-nat-probe-server", "", "-nat-type-force-unrestricted"]);
    words.extend(["-allow-non-tls-relay", "-allowed-relay-hostname-pattern", "$"]);
    words.extend(["-allow-proxying-to-private-addresses", "-keep-local-addresses"]);
    words.extend(["-covertdtls-config", "disable", "-disable-stats-logger", "-nat-retest-interval", "0s"]);
    words.extend(["-verbose", "-unsafe-logging"]);
    words
}

/// A folder for files that a program reads as it starts.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("adit-demo-{}", std::process::id()));
        // One that is there already may be another user's.
        DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.0.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        path.to_str().map(str::to_owned).context("the folder for temporary files has no name in UTF-8")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(Path::new(&self.0)).ok();
    }
}

/// Proxies whose polls wait at a broker.
fn available(broker: SocketAddr) -> Result<usize> {
    let mut stream = TcpStream::connect(broker)?;
    stream.set_read_timeout(Some(POLL))?;
    stream.write_all(b"GET /debug HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    count(&text).context("its answer has no number of proxies")
}

fn count(text: &str) -> Option<usize> {
    text.lines().find_map(|line| line.strip_prefix("current snowflakes available: ")?.trim().parse().ok())
}

/// Server and broker.
fn listens(line: &str) -> Option<SocketAddr> {
    behind(line, " listening on ")
}

/// The client.
fn offers(line: &str) -> Option<SocketAddr> {
    behind(line, "SOCKS listener at ")
}

/// The proxy, which names its relay.
fn reached(line: &str) -> Option<SocketAddr> {
    behind(line, " connected to relay: ws://")
}

fn behind(line: &str, words: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(words)?;
    rest.split([' ', '/']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_that_count() {
        let at = Some("127.0.0.1:5".parse().unwrap());
        assert_eq!(listens("2026/11/21 01:09:51 listening on 127.0.0.1:5"), at);
        assert_eq!(offers("SOCKS listener at 127.0.0.1:5"), at);
        assert_eq!(reached("2026/11/21 01:09:51 connected to relay: ws://127.0.0.1:5/"), at);
        for line in ["", "listening on 127.0.0.1:5", "x listening on y", "connected to relay: [scrubbed]"] {
            assert_eq!((listens(line), offers(line), reached(line)), (None, None, None), "{line}");
        }
        assert_eq!(count("HTTP/1.1 200 OK\r\n\r\ncurrent snowflakes available: 3\n\tx: 1\n"), Some(3));
        assert_eq!(count("HTTP/1.1 404 Not Found\r\n\r\n"), None);
    }

    #[test]
    fn a_folder_ends_with_its_use() {
        let folder = Folder::new().unwrap();
        let file = folder.file("a", "b").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"b");
        assert!(Folder::new().is_err(), "one that is there is not taken");
        drop(folder);
        assert!(!Path::new(&file).exists());
    }
}
