//! One server, one client and one small site on this machine, and real bytes through them.
//!
//! ```text
//! load ── SOCKS5 ──> client process ── Snell over loopback ──> server process ── TCP ──> site
//! ```
//!
//! Server and client are processes of their own, so that what the kernel counts for them is theirs alone. Each
//! reads its configuration from standard input and reports where it listens in JSON log lines on standard error.

mod child;
mod site;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::child::Running;
use self::site::{Pattern, Site};
use crate::load::Path;
use crate::process::{cpu_time, memory};
use crate::stats::percentile;
use crate::subject::Entry;

/// Longest wait for a single answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes per read and write.
const CHUNK: usize = 256 * 1024;

/// The plan of a run.
pub struct Plan<'a> {
    /// Words between this program and its configuration on standard input.
    pub words: &'a [&'a str],
    /// Words between this program and the lab's own subcommands.
    pub prefix: &'a [&'a str],
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
pub struct Demo {
    client: Running,
    server: Running,
    site: Site,
}

impl Demo {
    /// Starts everything.
    ///
    /// # Errors
    /// When a process does not start, with its last lines.
    pub fn start(plan: &Plan<'_>) -> Result<Self> {
        let site = Site::start().context("start the site")?;
        let server = Running::start(plan, plan.server).context("start the server")?;
        let client = Running::start(plan, &(plan.client)(server.address)).context("start the client")?;
        Ok(Self { client, server, site })
    }

    /// Address that the local proxy listens on.
    #[must_use]
    pub fn proxy(&self) -> SocketAddr {
        self.client.address
    }

    /// The address of the site, as a link.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.site.address)
    }

    /// Fails when one of the processes has ended.
    ///
    /// # Errors
    /// The name of a program that has ended, with its last lines.
    pub fn alive(&mut self) -> Result<()> {
        self.server.alive().context("the server ended")?;
        self.client.alive().context("the client ended")
    }

    /// Moves bytes both ways and times first bytes; `progress` is told of bytes as they go.
    ///
    /// # Errors
    /// When a connection fails or brings wrong bytes.
    pub fn measure(&mut self, load: &Load, progress: &dyn Fn(u64)) -> Result<Figures> {
        let mut times = Vec::new();
        for number in 0..load.connections {
            times.push(self.first_byte().with_context(|| format!("connection {number}"))?);
        }
        let down = self.bulk(load, || self.download(load, progress)).context("download")?;
        let up = self.bulk(load, || self.upload(load, progress)).context("upload")?;
        self.alive()?;
        Ok(Figures {
            down,
            up,
            first_byte_ms: percentile(&times, 50).context("no connection to time")?,
            connections: load.connections,
            server_memory_kib: memory(self.server.pid())?.rss,
            client_memory_kib: memory(self.client.pid())?.rss,
        })
    }

    fn path(&self) -> Path {
        Path { address: self.client.address, entry: Entry::Socks5, target: self.site.address }
    }

    fn first_byte(&self) -> Result<f64> {
        let begin = Instant::now();
        let mut stream = self.path().dial(PATIENCE)?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: demo\r\n\r\n")?;
        let mut byte = [0];
        stream.read_exact(&mut byte).context("no answer")?;
        let took = begin.elapsed();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
        ensure!(rest.ends_with(b"</html>\n"), "the page is cut");
        Ok(took.as_secs_f64() * 1e3)
    }

    /// The cost of one direction.
    fn bulk(&self, load: &Load, run: impl FnOnce() -> Result<(u64, Duration)>) -> Result<Bulk> {
        let pids = [self.server.pid(), self.client.pid()];
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

    fn download(&self, load: &Load, progress: &dyn Fn(u64)) -> Result<(u64, Duration)> {
        let mut stream = self.path().dial(PATIENCE)?;
        let head = format!("GET /bytes/{} HTTP/1.1\r\nHost: demo\r\n\r\n", load.size);
        stream.write_all(head.as_bytes())?;
        site::read_head(&mut stream)?;
        let (pattern, mut chunk) = (Pattern::new(), vec![0; CHUNK]);
        let (begin, mut bytes) = (Instant::now(), 0);
        while bytes < load.size && begin.elapsed() < load.limit {
            let len = stream.read(&mut chunk)?;
            ensure!(len > 0, "the stream is cut after {bytes} bytes");
            ensure!(pattern.matches(bytes, &chunk[..len]), "wrong bytes after {bytes}");
            bytes += len as u64;
            progress(len as u64);
        }
        Ok((bytes, begin.elapsed()))
    }

    fn upload(&self, load: &Load, progress: &dyn Fn(u64)) -> Result<(u64, Duration)> {
        let mut stream = self.path().dial(PATIENCE)?;
        let head = format!("POST /upload HTTP/1.1\r\nHost: demo\r\nContent-Length: {}\r\n\r\n", load.size);
        stream.write_all(head.as_bytes())?;
        let (pattern, before) = (Pattern::new(), self.site.uploaded());
        let (begin, mut sent) = (Instant::now(), 0);
        while sent < load.size && begin.elapsed() < load.limit {
            let most = usize::try_from(load.size - sent).unwrap_or(usize::MAX).min(CHUNK);
            let piece = pattern.piece(sent, most);
            stream.write_all(piece)?;
            sent += piece.len() as u64;
            progress(piece.len() as u64);
        }
        if sent == load.size {
            answer(&mut stream).context("the site's answer")?;
        }
        let (bytes, took) = (self.site.uploaded() - before, begin.elapsed());
        ensure!(!self.site.saw_wrong_bytes(), "the site got wrong bytes");
        Ok((bytes, took))
    }
}

/// The end of an upload: the site says whether every byte was right.
fn answer(stream: &mut TcpStream) -> Result<()> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200 "), "{}", text.lines().next().unwrap_or("nothing"));
    Ok(())
}
