//! One server, one client and one small site on this machine, and real bytes through them.
//!
//! ```text
//! load ── SOCKS5 ──> client process ── Snell over loopback ──> server process ── TCP ──> site
//! ```
//!
//! Server and client are processes of their own, so that what the kernel counts for them is theirs alone. Each
//! reads its configuration from standard input and reports where it listens in JSON log lines on standard error.

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "the demo owns its sockets and clocks: it measures from outside"
)]

mod child;
mod guard;
pub mod path;
pub mod process;
pub mod random;
mod rig;
mod site;
pub mod snowflake;
pub mod stats;
mod way;

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::child::{Launch, Running, listening};
pub use self::guard::guard;
pub use self::rig::Rig;
use self::site::Site;
use crate::process::{cpu_time, memory};
use crate::stats::percentile;

/// Bytes per read and write.
const CHUNK: usize = 256 * 1024;

/// The plan of a run.
pub struct Plan<'a> {
    /// Words between this program and its configuration on standard input.
    pub words: &'a [&'a str],
    /// The server's configuration.
    pub server: &'a str,
    /// The client's, given where the server listens.
    pub client: &'a dyn Fn(SocketAddr) -> String,
}

/// Amount of data to move.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Bytes in each direction.
    pub size: u64,
    /// Longest time for each direction.
    pub limit: Duration,
    /// Connections, one after the other, whose first byte is timed.
    pub connections: usize,
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// From the site to the local side.
    pub down: Bulk,
    /// From the local side to the site.
    pub up: Bulk,
    /// Milliseconds from connecting to the local proxy until the first byte of the site's answer, median.
    pub first_byte_ms: f64,
    /// Connections behind that median.
    pub connections: usize,
    /// Resident memory of the server after all this, in KiB.
    pub server_memory_kib: u64,
    /// The same of the client.
    pub client_memory_kib: u64,
}

/// One direction of bulk data on one connection; every byte was compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bulk {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Seconds from the first to the last.
    pub seconds: f64,
    /// Bytes per second.
    pub rate: f64,
    /// Processor seconds of server and client together, user and system, per 10^9 bytes.
    pub cpu_s_per_gb: f64,
}

/// A server, a client and a site that run until they are dropped.
pub struct Demo(Rig);

impl Deref for Demo {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.0
    }
}

impl DerefMut for Demo {
    fn deref_mut(&mut self) -> &mut Rig {
        &mut self.0
    }
}

impl Demo {
    /// Starts everything.
    ///
    /// # Errors
    /// When a process does not start, with its last lines.
    pub fn start(plan: &Plan<'_>) -> Result<Self> {
        let site = Site::start().context("start the site")?;
        let launch = |input: &str| Running::start(&Launch { words: plan.words, input, ready: listening });
        let server = launch(plan.server).context("start the server")?;
        let client = launch(&(plan.client)(server.address)).context("start the client")?;
        Ok(Self(Rig { programs: vec![("client", client), ("server", server)], site }))
    }

    /// Moves bytes both ways and times first bytes; `progress` is told of bytes as they go.
    ///
    /// # Errors
    /// When a connection fails or brings wrong bytes.
    pub fn measure(&mut self, load: &Load, progress: &dyn Fn(u64)) -> Result<Figures> {
        let mut times = Vec::new();
        for number in 0..load.connections {
            times.push(self.way().first_byte().with_context(|| format!("connection {number}"))?);
        }
        let down = self.bulk(load, || self.way().download(load, progress)).context("download")?;
        let up = self.bulk(load, || self.way().upload(load, progress)).context("upload")?;
        self.alive()?;
        Ok(Figures {
            down,
            up,
            first_byte_ms: percentile(&times, 50).context("no connection to time")?,
            connections: load.connections,
            server_memory_kib: memory(self.pids()[1])?.rss,
            client_memory_kib: memory(self.pids()[0])?.rss,
        })
    }

    /// The cost of one direction.
    fn bulk(&self, load: &Load, run: impl FnOnce() -> Result<(u64, Duration)>) -> Result<Bulk> {
        let pids = self.pids();
        let cpu = || -> Result<Duration> { Ok(cpu_time(pids[0])? + cpu_time(pids[1])?) };
        let before = cpu()?;
        let (bytes, took) = run()?;
        let cpu = cpu()?.saturating_sub(before);
        ensure!(bytes > 0, "no bytes within {:?}", load.limit);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let count = bytes as f64;
        let seconds = took.as_secs_f64().max(1e-6);
        Ok(Bulk { bytes, seconds, rate: count / seconds, cpu_s_per_gb: cpu.as_secs_f64() / count * 1e9 })
    }
}
