//! The mixed load: each kind on threads of its own, at a steady rate.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use clap::ValueEnum;

use crate::exchange;
use crate::load::{Path, Way, fresh, hold};

/// Bytes of a transfer: one down and one up by each path in each [`CYCLE`].
const TRANSFER: u32 = 4 << 20;
const CYCLE: Duration = Duration::from_secs(1);
/// Between two fresh connections.
const PAUSE: Duration = Duration::from_millis(20);
/// Idle connections: so many groups of so many, of which one is replaced in each [`TURN`].
const GROUPS: usize = 10;
const GROUP: usize = 30;
const TURN: Duration = Duration::from_secs(5);
/// Flows of datagrams, one of which is replaced in each [`TURN`]; each sends one in each [`PAUSE`].
const FLOWS: usize = 16;
const DATAGRAM: usize = 1_200;

/// A part of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Downloads and uploads.
    Transfers,
    /// Fresh connections one by one.
    Fresh,
    /// Idle connections that are replaced.
    Idle,
    /// Flows of datagrams.
    Datagrams,
    /// Another configuration every half minute.
    Reloads,
}

/// A protocol between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Protocol {
    Shadowsocks,
    Snell,
    Kcp,
}

/// The parts and protocols of a run.
#[derive(Debug, clap::Args)]
pub(super) struct Mix {
    /// Parts of the load; all unless given.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    load: Vec<Part>,
    /// Protocols of streams; all unless given, and fresh and idle connections leave KCP out.
    #[arg(long, value_name = "PROTOCOL", value_delimiter = ',')]
    over: Vec<Protocol>,
}

impl Mix {
    pub(super) fn has(&self, part: Part) -> bool {
        self.load.is_empty() || self.load.contains(&part)
    }

    /// Of `paths` by protocol, those that are asked for, or those of `usual`.
    fn paths(&self, paths: [Path; 3], usual: &[Protocol]) -> Vec<Path> {
        let protocols = if self.over.is_empty() { usual } else { &self.over };
        protocols.iter().map(|protocol| paths[*protocol as usize]).collect()
    }
}

/// The load since the start, in numbers.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: AtomicU64,
    pub(super) transfers: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) datagrams_sent: AtomicU64,
    pub(super) datagrams_back: AtomicU64,
    /// Microseconds to the first byte, since they were taken last.
    times: Mutex<Vec<f64>>,
    first_error: Mutex<Option<String>>,
    over: AtomicBool,
}

impl Counts {
    /// The times to the first byte since the last call.
    pub(super) fn take_times(&self) -> Vec<f64> {
        std::mem::take(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why a request or a transfer failed first.
    pub(super) fn first_error(&self) -> Option<String> {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all threads of the load.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn fail(&self, what: &str, error: &Error) {
        // The programs may be gone before the load.
        if self.goes_on() {
            self.failed.fetch_add(1, Ordering::Relaxed);
            let mut first = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| format!("{what}: {error:#}"));
        }
    }
}

/// Begins the parts of `mix` on threads of `scope`; [`Counts::stop`] ends them. `paths` are in the order of [`Protocol`].
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    counts: &'scope Counts,
    mix: &Mix,
    paths: [Path; 3],
    tunnel: SocketAddr,
) {
    let over_tcp = mix.paths(paths, &[Protocol::Shadowsocks, Protocol::Snell]);
    if mix.has(Part::Transfers) {
        for path in mix.paths(paths, Protocol::value_variants()) {
            scope.spawn(move || transfers(counts, &path));
        }
    }
    if mix.has(Part::Fresh) {
        let paths = over_tcp.clone();
        scope.spawn(move || connections(counts, &paths));
    }
    if mix.has(Part::Idle) {
        scope.spawn(move || idle(counts, &over_tcp));
    }
    if mix.has(Part::Datagrams) {
        scope.spawn(move || {
            if let Err(error) = datagrams(counts, tunnel) {
                counts.fail("datagrams", &error);
            }
        });
    }
}

/// One download and one upload in each cycle.
fn transfers(counts: &Counts, path: &Path) {
    while counts.goes_on() {
        let begin = Instant::now();
        for way in [Way::Down, Way::Up] {
            match exchange::transfer(path, way, TRANSFER) {
                Ok(()) => drop(counts.transfers.fetch_add(1, Ordering::Relaxed)),
                Err(error) => counts.fail("transfer", &error),
            }
        }
        thread::sleep(CYCLE.saturating_sub(begin.elapsed()));
    }
}

/// Fresh connections one by one, by each of `paths` in turn.
fn connections(counts: &Counts, paths: &[Path]) {
    for path in paths.iter().cycle() {
        if !counts.goes_on() {
            return;
        }
        match fresh(path, 1, 1, Duration::ZERO) {
            Ok(times) => {
                counts.requests.fetch_add(1, Ordering::Relaxed);
                counts.times.lock().unwrap_or_else(PoisonError::into_inner).extend(times);
            }
            Err(error) => counts.fail("fresh connection", &error),
        }
        thread::sleep(PAUSE);
    }
}

/// Connections that are held idle, the oldest of them replaced.
fn idle(counts: &Counts, paths: &[Path]) {
    let mut held = VecDeque::new();
    for path in paths.iter().cycle() {
        match hold(path, GROUP) {
            Ok(group) => held.push_back(group),
            Err(error) => counts.fail("idle connections", &error),
        }
        if held.len() > GROUPS {
            held.pop_front();
            rest(counts, TURN);
        }
        if !counts.goes_on() {
            return;
        }
    }
}

/// Sleeps, unless the load is stopped.
fn rest(counts: &Counts, time: Duration) {
    let until = Instant::now() + time;
    while counts.goes_on() && Instant::now() < until {
        thread::sleep(PAUSE);
    }
}

/// Flows that send and take back, the oldest of them replaced.
fn datagrams(counts: &Counts, tunnel: SocketAddr) -> Result<()> {
    let open = || -> Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(tunnel)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let mut flows = (0..FLOWS).map(|_| open()).collect::<Result<VecDeque<_>>>()?;
    let (mut buffer, mut since) = ([7; DATAGRAM + 1], Instant::now());
    while counts.goes_on() {
        for flow in &flows {
            loop {
                match flow.recv(&mut buffer) {
                    Ok(_) => drop(counts.datagrams_back.fetch_add(1, Ordering::Relaxed)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            flow.send(&buffer[..DATAGRAM])?;
            counts.datagrams_sent.fetch_add(1, Ordering::Relaxed);
        }
        if since.elapsed() >= TURN {
            since = Instant::now();
            flows.pop_front();
            flows.push_back(open()?);
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
