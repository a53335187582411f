//! Measures of whole exchanges: how long requests take, how fast transfers of a given size are, how long a byte waits
//! beside bulk.

use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use crate::bulk::{CHUNK, Sink};
use crate::load::{Path, Streams, Way};
use crate::measure::{Metric, Sizes, Values, enter_processor, metric, processor};
use crate::process;
use crate::stats::percentile;
use crate::subject::Running;
use crate::target::{Command, GOOD, Request, Target, send_bulk};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the answer to a request: a page's worth.
const ANSWER: u32 = 16 * 1024;
/// Requests and pings before those that count.
const WARM_UP: usize = 20;
/// Time between two pings.
const PAUSE: Duration = Duration::from_millis(5);
/// Pings one by one without anything beside them.
const IDLE_PINGS: usize = 50;

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Requests one by one: `latency`.
    Latency,
    /// So many transfers of a given size at once: `get8`, `put1`.
    Transfer(Way, usize),
    /// One byte there and back beside so many downloads: `ping1`.
    Ping(usize),
}

impl Measure {
    /// The figures that make the table.
    #[must_use]
    pub fn metrics(self) -> &'static [Metric] {
        const LATENCY: &[Metric] = &[
            metric("connect_p50_us", "connect p50 us", false, 0),
            metric("connect_p95_us", "p95", false, 0),
            metric("connect_p99_us", "p99", false, 0),
            metric("first_p50_us", "first byte p50 us", true, 0),
            metric("first_p95_us", "p95", false, 0),
            metric("first_p99_us", "p99", false, 0),
            metric("total_p50_us", "total p50 us", true, 0),
            metric("total_p95_us", "p95", false, 0),
            metric("total_p99_us", "p99", false, 0),
        ];
        const TRANSFER: &[Metric] = &[
            metric("mb_per_s", "MB/s", true, 0),
            metric("seconds", "s", false, 3),
            metric("cpu_ns_per_kb", "CPU ns/KB", true, 0),
            metric("lab_ns_per_kb", "lab ns/KB", false, 0),
        ];
        const PING: &[Metric] = &[
            metric("idle_p50_us", "idle p50 us", false, 0),
            metric("p50_us", "p50 us", true, 0),
            metric("p95_us", "p95 us", false, 0),
            metric("p99_us", "p99 us", false, 0),
            metric("pings", "pings", false, 0),
            metric("mb_per_s", "bulk MB/s", false, 0),
        ];
        match self {
            Self::Latency => LATENCY,
            Self::Transfer(..) => TRANSFER,
            Self::Ping(_) => PING,
        }
    }

    /// One line that says what is done.
    #[must_use]
    pub fn about(self, sizes: &Sizes) -> String {
        match self {
            Self::Latency => format!(
                "{} requests one by one, each on a fresh connection: until the entry port has answered, until the first \
                 byte, until all {ANSWER} B have come",
                sizes.first_byte
            ),
            Self::Transfer(way, count) => {
                let way = if way == Way::Down { "download" } else { "upload" };
                format!(
                    "{count} {way}(s) of {} B at once, MB/s by wall clock, opening included",
                    sizes.transfer
                )
            }
            Self::Ping(count) => {
                format!("1 byte there and back beside {count} download(s), {} s", sizes.window.as_secs_f64())
            }
        }
    }

    /// Rough duration.
    #[must_use]
    pub fn estimate(self, sizes: &Sizes) -> Duration {
        match self {
            Self::Latency => Duration::from_micros(sizes.first_byte as u64 * 2500),
            Self::Transfer(_, count) => {
                Duration::from_secs_f64(0.05 + count as f64 * f64::from(sizes.transfer) / 400e6)
            }
            Self::Ping(_) => sizes.window + Duration::from_millis(1000),
        }
    }

    /// Measures `running` once.
    ///
    /// # Errors
    /// If the subject does not carry the load.
    pub fn drive(self, running: &Running, path: &Path, target: &Target, sizes: &Sizes) -> Result<Values> {
        match self {
            Self::Latency => latency(path, sizes.first_byte),
            Self::Transfer(way, count) => transfers(running, path, way, count, sizes.transfer),
            Self::Ping(count) => ping(path, target, count, sizes.window),
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency => f.write_str("latency"),
            Self::Transfer(Way::Down, count) => write!(f, "get{count}"),
            Self::Transfer(Way::Up, count) => write!(f, "put{count}"),
            Self::Ping(count) => write!(f, "ping{count}"),
        }
    }
}

impl FromStr for Measure {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "latency" {
            return Ok(Self::Latency);
        }
        let Some((word, digits)) =
            text.split_at_checked(text.trim_end_matches(|c: char| c.is_ascii_digit()).len())
        else {
            bail!("unknown measure: {text}");
        };
        let count = digits.parse().ok().filter(|count| (1..=1000).contains(count));
        let count = || count.with_context(|| format!("number from 1 to 1000 expected in measure: {text}"));
        Ok(match word {
            "get" => Self::Transfer(Way::Down, count()?),
            "put" => Self::Transfer(Way::Up, count()?),
            "ping" => Self::Ping(count()?),
            _ => bail!("unknown measure: {text}"),
        })
    }
}

fn latency(path: &Path, count: usize) -> Result<Values> {
    for _ in 0..WARM_UP {
        request(path)?;
    }
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..count {
        let one = request(path).with_context(|| format!("request {number}"))?;
        for (all, time) in times.iter_mut().zip(one) {
            all.push(time.as_secs_f64() * 1e6);
        }
    }
    let mut values = Values::new();
    for (step, times) in ["connect", "first", "total"].into_iter().zip(&times) {
        for percent in [50, 95, 99] {
            values.insert(format!("{step}_p{percent}_us"), percentile(times, percent).context("no request")?);
        }
    }
    Ok(values)
}

/// One request: time until the entry has answered, until the first byte, until the last.
fn request(path: &Path) -> Result<[Duration; 3]> {
    let request = Request { down: ANSWER, ..Request::new(Command::Get) }.emit();
    let begin = Instant::now();
    let mut stream = path.dial(PATIENCE)?;
    let connected = begin.elapsed();
    stream.write_all(&request)?;
    let mut answer = vec![0; ANSWER as usize];
    let first = stream.read(&mut answer).context("wait for an answer")?;
    let first_byte = begin.elapsed();
    ensure!(first > 0, "closed before the answer");
    stream.read_exact(&mut answer[first..]).context("read the answer")?;
    Ok([connected, first_byte, begin.elapsed()])
}

fn transfers(running: &Running, path: &Path, way: Way, count: usize, len: u32) -> Result<Values> {
    // The first connection's setup is no part of a transfer.
    transfer(path, way, 1)?;
    let (before, own, begin) = (processor(running)?, process::cpu_time(std::process::id())?, Instant::now());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| transfer(path, way, len))).collect();
        let mut ends =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("transfer panicked"))?);
        ends.try_for_each(|end| end)
    })?;
    let (time, after) = (begin.elapsed(), processor(running)?);
    let own = process::cpu_time(std::process::id())?.saturating_sub(own);
    let bytes = count as f64 * f64::from(len);
    let mut values = Values::from([
        ("mb_per_s".to_owned(), bytes / 1e6 / time.as_secs_f64()),
        ("seconds".to_owned(), time.as_secs_f64()),
        ("lab_ns_per_kb".to_owned(), own.as_secs_f64() * 1e12 / bytes),
    ]);
    enter_processor(&mut values, "cpu_ns_per_kb", &before, &after, 1e12 / bytes);
    Ok(values)
}

/// Moves `len` bytes to or from the target over a connection of their own.
///
/// # Errors
/// If the connection fails, or not all bytes arrive.
pub(crate) fn transfer(path: &Path, way: Way, len: u32) -> Result<()> {
    let mut stream = path.dial(PATIENCE).context("open a transfer")?;
    if way == Way::Down {
        stream.write_all(&Request { down: len, ..Request::new(Command::Get) }.emit())?;
        let (mut sink, mut left) = (Sink::new(), len as usize);
        while left > 0 {
            let n = sink.take(&stream, CHUNK).context("download")?;
            ensure!(n > 0 && n <= left, "a download ended {left} bytes early");
            left -= n;
        }
        return Ok(());
    }
    stream.write_all(&Request { up: len, ..Request::new(Command::Put) }.emit())?;
    send_bulk(&stream, len).context("upload")?;
    let mut verdict = [0];
    stream.read_exact(&mut verdict).context("wait for the end of an upload")?;
    ensure!(verdict[0] == GOOD, "the target did not get all of an upload");
    Ok(())
}

fn ping(path: &Path, target: &Target, count: usize, window: Duration) -> Result<Values> {
    let mut stream = path.dial(PATIENCE)?;
    stream.write_all(&Request::new(Command::Echo).emit())?;
    let mut round_trip = || -> Result<f64> {
        let begin = Instant::now();
        stream.write_all(b"p")?;
        let mut answer = [0];
        stream.read_exact(&mut answer).context("wait for a ping")?;
        let time = begin.elapsed();
        thread::sleep(PAUSE);
        Ok(time.as_secs_f64() * 1e6)
    };
    for _ in 0..WARM_UP {
        round_trip()?;
    }
    let idle = (0..IDLE_PINGS).map(|_| round_trip()).collect::<Result<Vec<f64>>>()?;
    let streams = Streams::start(path, Way::Down, count, target)?;
    thread::sleep(Duration::from_millis(400));
    let (bytes, begin) = (streams.bytes(target), Instant::now());
    let mut beside = Vec::new();
    while beside.is_empty() || begin.elapsed() < window {
        beside.push(round_trip()?);
    }
    let rate = (streams.bytes(target) - bytes) as f64 / 1e6 / begin.elapsed().as_secs_f64();
    streams.alive()?;
    let mut values = Values::from([("pings".to_owned(), beside.len() as f64), ("mb_per_s".to_owned(), rate)]);
    let figures = [
        ("idle_p50_us", &idle, 50),
        ("p50_us", &beside, 50),
        ("p95_us", &beside, 95),
        ("p99_us", &beside, 99),
    ];
    for (key, times, percent) in figures {
        values.insert(key.into(), percentile(times, percent).context("no ping came back")?);
    }
    Ok(values)
}
