//! The measures: what is done to a running subject, and which figures come out.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::load::{self, Path, Streams, Way};
use crate::process::{self, Memory};
use crate::stats::percentile;
use crate::subject::{Entry, Programs, Running, Subject};
use crate::syscalls::Counter;
use crate::target::Target;
use crate::udp::kernel::Kernel;
use crate::{busy, exchange, udp, wire};

/// Time after which streams have filled their buffers and grown their windows.
const WARM_UP: Duration = Duration::from_millis(400);
/// Fresh connections made before those that count.
const WARM_UP_CONNECTIONS: usize = 20;

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Memory of the fresh processes: `base`.
    Base,
    /// Bulk streams: `down1`, `up8`.
    Bulk(Way, usize),
    /// Fresh connections, so many at a time: `conn`, `conn8`.
    Connections(usize),
    /// Time to the first byte over fresh connections one by one: `first-byte`.
    FirstByte,
    /// Idle connections, as many as the scenario says or so many: `idle`, `idle1000`.
    Idle(Option<usize>),
    /// System calls at one bulk download: `calls`.
    Calls,
    /// Segments between the subject's processes during so many downloads at once: `wire1`, `wire8`.
    Wire(usize),
    /// Requests, transfers and pings: `latency`, `get8`, `put1`, `ping1`.
    Exchange(exchange::Measure),
    /// Fresh connections and datagrams beside downloads: `busy-connect2`, `busy-echo16`.
    Busy(busy::Measure),
    /// Datagrams: `udp-...`.
    Udp(udp::Measure),
    /// Use of a link: `path-...`.
    Link(crate::link_measure::Measure),
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name in raw data.
    pub key: &'static str,
    /// Its heading, with the unit.
    pub heading: &'static str,
    /// Whether a ratio to the baseline is shown.
    pub ratio: bool,
    /// Digits after the point.
    pub digits: usize,
}

impl Metric {
    /// Whether it counts something per second, of which more is better.
    #[must_use]
    pub fn is_rate(&self) -> bool {
        self.key.ends_with("_per_s")
    }
}

pub(crate) const fn metric(key: &'static str, heading: &'static str, ratio: bool, digits: usize) -> Metric {
    Metric { key, heading, ratio, digits }
}

impl Measure {
    /// The figures that make the table; raw data may hold more.
    #[must_use]
    pub fn metrics(self) -> &'static [Metric] {
        const BASE: &[Metric] = &[
            metric("rss_mb_server", "server RSS MB", true, 1),
            metric("rss_mb_client", "client RSS MB", false, 1),
        ];
        const BULK: &[Metric] = &[
            metric("cpu_ns_per_kb", "CPU ns/KB", true, 0),
            metric("mb_per_s", "MB/s", false, 0),
            metric("lab_ns_per_kb", "lab ns/KB", false, 0),
        ];
        const CONNECTIONS: &[Metric] =
            &[metric("cpu_us_per_conn", "CPU us/conn", true, 0), metric("conn_per_s", "conn/s", false, 0)];
        const FIRST_BYTE: &[Metric] = &[
            metric("p50_us", "p50 us", true, 0),
            metric("p95_us", "p95 us", false, 0),
            metric("p99_us", "p99 us", false, 0),
        ];
        const IDLE: &[Metric] = &[
            metric("kib_per_conn", "KiB/conn", true, 2),
            metric("kib_per_conn_server", "server", false, 2),
            metric("kib_per_conn_client", "client", false, 2),
            metric("base_mb", "base MB", false, 1),
            metric("held_mb", "held MB", false, 1),
            metric("after_mb", "after MB", false, 1),
        ];
        const CALLS: &[Metric] = &[
            metric("reads_per_mb", "reads/MB", true, 1),
            metric("reads_per_mb_server", "server", false, 1),
            metric("reads_per_mb_client", "client", false, 1),
            metric("writes_per_mb", "writes/MB", false, 1),
            metric("bytes_per_read", "B/read", false, 0),
            metric("bytes_per_write", "B/write", false, 0),
            metric("calls_per_mb", "calls/MB", false, 1),
        ];
        const WIRE: &[Metric] = &[
            metric("empty_acks_up", "empty ACKs up", true, 0),
            metric("data_down", "segments down", true, 0),
            metric("full_down", "full", false, 0),
            metric("bytes_per_segment", "B/segment", false, 0),
            metric("bytes_down", "bytes", false, 0),
            metric("again", "again", false, 0),
            metric("merged_down", "merged", false, 0),
        ];
        match self {
            Self::Base => BASE,
            Self::Bulk(..) => BULK,
            Self::Connections(_) => CONNECTIONS,
            Self::FirstByte => FIRST_BYTE,
            Self::Idle(_) => IDLE,
            Self::Calls => CALLS,
            Self::Wire(_) => WIRE,
            Self::Exchange(measure) => measure.metrics(),
            Self::Busy(measure) => measure.metrics(),
            Self::Udp(measure) => measure.metrics(),
            Self::Link(measure) => measure.metrics(),
        }
    }

    /// One line that says what is done.
    #[must_use]
    pub fn about(self, sizes: &Sizes) -> String {
        match self {
            Self::Base => "fresh processes, 0.5 s after the start, no connection yet".into(),
            Self::Bulk(way, count) => {
                let way = if way == Way::Down { "download" } else { "upload" };
                format!("{count} {way} stream(s), {} s", sizes.window.as_secs_f64())
            }
            Self::Connections(at_once) => {
                format!("{} fresh connections, {at_once} at a time, 200 B each way, close", sizes.connections)
            }
            Self::FirstByte => {
                format!(
                    "connect to first byte of the answer, {} fresh connections one by one",
                    sizes.first_byte
                )
            }
            Self::Idle(_) => {
                format!("{} idle connections after 200 B each way, user space memory (RSS)", self.idle(sizes))
            }
            Self::Calls => {
                "system calls at one download stream, failed ones included, pair unless named".into()
            }
            Self::Wire(count) => {
                let mb = wire::measure::LEN / 1_000_000;
                format!("segments between client and server, {count} download(s) of {mb} MB at once")
            }
            Self::Exchange(measure) => measure.about(sizes),
            Self::Busy(measure) => measure.about(sizes),
            Self::Udp(measure) => measure.about(&sizes.udp),
            Self::Link(measure) => measure.about(sizes),
        }
    }

    /// Connections that it holds.
    pub(crate) fn idle(self, sizes: &Sizes) -> usize {
        if let Self::Idle(count) = self { count.unwrap_or(sizes.idle) } else { 0 }
    }

    /// Rough duration, for the time left.
    #[must_use]
    pub fn estimate(self, sizes: &Sizes) -> Duration {
        let start = Duration::from_millis(400);
        let count = |n: usize, micros: u64| Duration::from_micros(n as u64 * micros);
        start
            + match self {
                Self::Base => Duration::from_millis(500),
                Self::Bulk(..) | Self::Calls => WARM_UP + sizes.window,
                Self::Connections(_) => count(sizes.connections, 900),
                Self::FirstByte => count(sizes.first_byte, 2500),
                Self::Idle(_) => sizes.settle * 2 + count(self.idle(sizes), 500),
                Self::Wire(count) => Duration::from_millis(300) + Duration::from_millis(count as u64 * 60),
                Self::Exchange(measure) => measure.estimate(sizes),
                Self::Busy(measure) => measure.estimate(sizes),
                Self::Udp(measure) => measure.estimate(&sizes.udp),
                Self::Link(measure) => measure.estimate(sizes),
            }
    }

    /// Whether it means anything for `subject`: without processes only times can be taken, streams do not enter
    /// a bare server, and not everything carries datagrams.
    #[must_use]
    pub fn applies(self, subject: &Subject) -> bool {
        let has_processes = !subject.process.is_empty();
        let possible = match self {
            Self::Base => has_processes,
            Self::Wire(_) => subject.process.len() > 1,
            Self::Idle(_) | Self::Calls => has_processes && subject.entry != Entry::Shadowsocks,
            Self::Bulk(..) | Self::Connections(_) | Self::FirstByte | Self::Exchange(_) | Self::Link(_) => {
                subject.entry != Entry::Shadowsocks
            }
            Self::Busy(measure) => {
                subject.entry != Entry::Shadowsocks && (subject.udp || !measure.needs_datagrams())
            }
            Self::Udp(measure) => subject.udp && measure.enters(subject.entry, has_processes),
        };
        possible && !subject.skip.contains_key(&self.to_string())
    }

    /// Why it is not taken of `subject`, where the reason is that `subject` carries streams alone.
    #[must_use]
    pub fn obstacle(self, subject: &Subject) -> Option<String> {
        let Self::Busy(measure) = self else { return None };
        (measure.needs_datagrams() && !subject.udp).then(|| format!("{self}: carries no datagrams"))
    }

    /// Starts `subject`, measures it once and stops it.
    ///
    /// # Errors
    /// If the subject does not start, dies, or does not carry the load.
    pub fn run(
        self,
        subject: &Subject,
        programs: &Programs,
        target: &Target,
        sizes: &Sizes,
    ) -> Result<Values> {
        let mut running = Running::start(subject, programs, target.address())?;
        let result = if let Self::Udp(measure) = self {
            let way = way(&running, subject, target);
            let before = Kernel::read(&running)?;
            let result = measure.drive(&running, &way, &sizes.udp);
            let after = Kernel::read(&running)?;
            result.map(|mut values| {
                after.enter(before, &mut values);
                values
            })
        } else {
            self.drive(&running, subject, target, sizes)
        };
        // A dead process explains more than the broken connection that it left.
        running.alive()?;
        let mut values = result?;
        values.retain(|_, value| value.is_finite());
        Ok(values)
    }

    fn drive(self, running: &Running, subject: &Subject, target: &Target, sizes: &Sizes) -> Result<Values> {
        let path = Path { address: running.address, entry: running.entry, target: target.address() };
        quiet(target);
        match self {
            Self::Base => base(running),
            Self::Bulk(way, count) => bulk(running, &path, way, count, target, sizes),
            Self::Connections(at_once) => connections(running, &path, at_once, target, sizes),
            Self::FirstByte => first_byte(&path, sizes),
            Self::Idle(_) => idle(running, &path, target, self.idle(sizes), sizes.settle),
            Self::Calls => calls(running, &path, target, sizes),
            Self::Wire(count) => wire::measure::drive(&path, running, count),
            Self::Exchange(measure) => measure.drive(running, &path, target, sizes),
            Self::Busy(measure) => {
                measure.drive(running, &path, &way(running, subject, target), target, sizes)
            }
            Self::Link(measure) => measure.drive(running, &path, target, sizes),
            Self::Udp(_) => bail!("datagrams do not go the way of streams"),
        }
    }
}

impl Measure {
    /// Reads a list of names. `busy-connect` and `busy-echo` without a number stand for two measures each.
    ///
    /// # Errors
    /// If there is no measure of such a name.
    pub fn parse_all(names: &[String]) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for name in names {
            match busy::Measure::usual(name) {
                Some(several) => all.extend(several.map(Self::Busy)),
                None => all.push(name.parse()?),
            }
        }
        Ok(all)
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Bulk(Way::Down, count) => write!(f, "down{count}"),
            Self::Bulk(Way::Up, count) => write!(f, "up{count}"),
            Self::Connections(1) => f.write_str("conn"),
            Self::Connections(at_once) => write!(f, "conn{at_once}"),
            Self::FirstByte => f.write_str("first-byte"),
            Self::Idle(None) => f.write_str("idle"),
            Self::Idle(Some(count)) => write!(f, "idle{count}"),
            Self::Calls => f.write_str("calls"),
            Self::Wire(count) => write!(f, "wire{count}"),
            Self::Exchange(measure) => measure.fmt(f),
            Self::Busy(measure) => measure.fmt(f),
            Self::Udp(measure) => measure.fmt(f),
            Self::Link(measure) => measure.fmt(f),
        }
    }
}

impl FromStr for Measure {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let count = |digits: &str| -> Result<usize> {
            match digits.parse() {
                Ok(count) if (1..=1000).contains(&count) => Ok(count),
                _ => bail!("number from 1 to 1000 expected in measure: {text}"),
            }
        };
        Ok(match text {
            "base" => Self::Base,
            "first-byte" => Self::FirstByte,
            "idle" => Self::Idle(None),
            "calls" => Self::Calls,
            "conn" => Self::Connections(1),
            _ if text.starts_with("busy-") => Self::Busy(text.parse()?),
            _ if text.starts_with("udp-") => Self::Udp(text.parse()?),
            _ if text.starts_with("path-") => Self::Link(text.parse()?),
            _ => {
                if let Some(digits) = text.strip_prefix("down") {
                    Self::Bulk(Way::Down, count(digits)?)
                } else if let Some(digits) = text.strip_prefix("up") {
                    Self::Bulk(Way::Up, count(digits)?)
                } else if let Some(digits) = text.strip_prefix("wire") {
                    Self::Wire(count(digits)?)
                } else if let Some(digits) = text.strip_prefix("conn") {
                    Self::Connections(count(digits)?)
                } else if let Some(digits) = text.strip_prefix("idle") {
                    let count = digits.parse().ok().filter(|count| (1..=1_000_000).contains(count));
                    Self::Idle(Some(count.with_context(|| format!("number expected in measure: {text}"))?))
                } else if ["latency", "get", "put", "ping"].iter().any(|word| text.starts_with(word)) {
                    Self::Exchange(text.parse()?)
                } else {
                    bail!(
                        "unknown measure: {text}\nhint: downN, upN, getN, putN, pingN, latency, conn, connN, first-byte, idle, idleN, calls, base, wireN, busy-connectN, busy-echoN, udp-..., path-..."
                    );
                }
            }
        })
    }
}

/// Amounts of everything.
#[derive(Debug, Clone, Serialize)]
pub struct Sizes {
    /// Time over which bulk bytes count.
    pub window: Duration,
    /// Fresh connections.
    pub connections: usize,
    /// Connections for the time to the first byte.
    pub first_byte: usize,
    /// Idle connections.
    pub idle: usize,
    /// Bytes of each transfer.
    pub transfer: u32,
    /// Time after opening and after closing idle connections before memory is read.
    pub settle: Duration,
    /// The counter of system calls.
    pub counter: Option<Counter>,
    /// Sizes of the measures of datagrams.
    pub udp: udp::Sizes,
}

/// The figures of one run by name.
pub type Values = BTreeMap<String, f64>;

/// The address at which the datagrams of a measure enter `running`, and their target.
fn way(running: &Running, subject: &Subject, target: &Target) -> udp::flow::Way {
    let (address, entry, method) = (running.address, running.entry, subject.method.clone());
    udp::flow::Way { address, entry, target: target.address(), method, site: running.site().cloned() }
}

/// Waits, not for long, until the target has no connection left from before.
fn quiet(target: &Target) {
    let deadline = Instant::now() + Duration::from_secs(1);
    let busy = || target.counters().busy.load(std::sync::atomic::Ordering::Relaxed);
    while busy() > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Processor time by role.
pub(crate) fn processor(running: &Running) -> Result<BTreeMap<String, Duration>> {
    let mut times = BTreeMap::new();
    for (role, processes) in running.roles()? {
        let mut sum = Duration::ZERO;
        for pid in processes {
            sum += process::cpu_time(pid)?;
        }
        times.insert(role.to_owned(), sum);
    }
    Ok(times)
}

/// Memory by role.
pub(crate) fn memory(running: &Running) -> Result<BTreeMap<String, Memory>> {
    let mut all = BTreeMap::new();
    for (role, processes) in running.roles()? {
        let mut sum = Memory::default();
        for pid in processes {
            let one = process::memory(pid)?;
            sum.rss += one.rss;
            sum.pss += one.pss;
            sum.private_dirty += one.private_dirty;
        }
        all.insert(role.to_owned(), sum);
    }
    Ok(all)
}

/// Enters the processor time used since `before`, per `unit` and in parts of a second, in total and by role.
pub(crate) fn enter_processor(
    values: &mut Values,
    key: &str,
    before: &BTreeMap<String, Duration>,
    after: &BTreeMap<String, Duration>,
    factor: f64,
) {
    let mut total = 0.0;
    for (role, time) in after {
        let used = time.saturating_sub(before.get(role).copied().unwrap_or_default()).as_secs_f64() * factor;
        values.insert(format!("{key}_{role}"), used);
        total += used;
    }
    if !after.is_empty() {
        values.insert(key.to_owned(), total);
    }
}

fn base(running: &Running) -> Result<Values> {
    thread::sleep(Duration::from_millis(500));
    let mut values = Values::new();
    for (role, memory) in memory(running)? {
        values.insert(format!("rss_mb_{role}"), mb(memory.rss));
        values.insert(format!("pss_mb_{role}"), mb(memory.pss));
        values.insert(format!("private_dirty_mb_{role}"), mb(memory.private_dirty));
    }
    Ok(values)
}

/// KiB as MB of 10^6 bytes.
fn mb(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

fn bulk(
    running: &Running,
    path: &Path,
    way: Way,
    count: usize,
    target: &Target,
    sizes: &Sizes,
) -> Result<Values> {
    let streams = Streams::start(path, way, count, target)?;
    thread::sleep(running.site().map_or(WARM_UP, |site| site.warm_up()));
    let own = process::cpu_time(std::process::id())?;
    let (cpu_before, bytes_before, begin) = (processor(running)?, streams.bytes(target), Instant::now());
    thread::sleep(sizes.window);
    let (bytes, time) = (streams.bytes(target) - bytes_before, begin.elapsed());
    let cpu_after = processor(running)?;
    let own = process::cpu_time(std::process::id())?.saturating_sub(own);
    streams.alive()?;
    ensure!(bytes > 0, "no bytes within {:?}", sizes.window);
    let mut values = Values::new();
    values.insert("mb_per_s".into(), bytes as f64 / 1e6 / time.as_secs_f64());
    values.insert("lab_ns_per_kb".into(), own.as_secs_f64() * 1e12 / bytes as f64);
    enter_processor(&mut values, "cpu_ns_per_kb", &cpu_before, &cpu_after, 1e9 * 1e3 / bytes as f64);
    Ok(values)
}

fn connections(
    running: &Running,
    path: &Path,
    at_once: usize,
    target: &Target,
    sizes: &Sizes,
) -> Result<Values> {
    load::fresh(path, WARM_UP_CONNECTIONS, at_once, Duration::ZERO)?;
    thread::sleep(Duration::from_millis(100));
    let (before, begin) = (processor(running)?, Instant::now());
    load::fresh(path, sizes.connections, at_once, Duration::ZERO)?;
    let time = begin.elapsed();
    // The closing of the last ones is part of their cost.
    quiet(target);
    thread::sleep(Duration::from_millis(100));
    let after = processor(running)?;
    let count = sizes.connections as f64;
    let mut values = Values::new();
    values.insert("conn_per_s".into(), count / time.as_secs_f64());
    enter_processor(&mut values, "cpu_us_per_conn", &before, &after, 1e6 / count);
    Ok(values)
}

fn first_byte(path: &Path, sizes: &Sizes) -> Result<Values> {
    load::fresh(path, WARM_UP_CONNECTIONS, 1, Duration::ZERO)?;
    let times = load::fresh(path, sizes.first_byte, 1, Duration::from_millis(1))?;
    let mut values = Values::new();
    for (key, percent) in [("p50_us", 50), ("p95_us", 95), ("p99_us", 99)] {
        if let Some(value) = percentile(&times, percent) {
            values.insert(key.into(), value);
        }
    }
    Ok(values)
}

fn idle(running: &Running, path: &Path, target: &Target, count: usize, settle: Duration) -> Result<Values> {
    ensure!(running.has_processes(), "cannot measure: the subject has no processes of its own");
    // Code and tables that the first connection brings in are no part of what each one costs.
    load::fresh(path, WARM_UP_CONNECTIONS, 1, Duration::ZERO)?;
    thread::sleep(Duration::from_millis(500));
    let before = memory(running)?;
    let connections = load::hold(path, count)?;
    thread::sleep(settle);
    let held = target.counters().held.load(std::sync::atomic::Ordering::Relaxed);
    ensure!(held >= count, "only {held} of {} connections stayed open", count);
    let during = memory(running)?;
    drop(connections);
    thread::sleep(settle);
    let after = memory(running)?;
    let left = target.counters().held.load(std::sync::atomic::Ordering::Relaxed);

    let mut values = Values::new();
    values.insert("left_open".into(), left as f64);
    let mut pair = [0; 3];
    for (role, memory) in &during {
        let start = before.get(role).copied().unwrap_or_default();
        let end = after.get(role).copied().unwrap_or_default();
        let per_connection = |during: u64, before: u64| during.saturating_sub(before) as f64 / count as f64;
        values.insert(format!("kib_per_conn_{role}"), per_connection(memory.rss, start.rss));
        values.insert(format!("pss_kib_per_conn_{role}"), per_connection(memory.pss, start.pss));
        values.insert(
            format!("dirty_kib_per_conn_{role}"),
            per_connection(memory.private_dirty, start.private_dirty),
        );
        for (name, memory) in [("base", start), ("held", *memory), ("after", end)] {
            values.insert(format!("{name}_mb_{role}"), mb(memory.rss));
            values.insert(format!("{name}_dirty_mb_{role}"), mb(memory.private_dirty));
        }
        pair[0] += start.rss;
        pair[1] += memory.rss;
        pair[2] += end.rss;
    }
    for (name, rss) in ["base_mb", "held_mb", "after_mb"].into_iter().zip(pair) {
        values.insert(name.into(), mb(rss));
    }
    values.insert("kib_per_conn".into(), pair[1].saturating_sub(pair[0]) as f64 / count as f64);
    Ok(values)
}

fn calls(running: &Running, path: &Path, target: &Target, sizes: &Sizes) -> Result<Values> {
    let Some(counter) = sizes.counter else {
        bail!("cannot count system calls: neither perf nor strace works here")
    };
    ensure!(running.has_processes(), "cannot measure: the subject has no processes of its own");
    let streams = Streams::start(path, Way::Down, 1, target)?;
    thread::sleep(WARM_UP);
    let (bytes_before, begin) = (streams.bytes(target), Instant::now());
    let dir = std::env::temp_dir();
    let mut counts = Vec::new();
    for (role, processes) in running.roles()? {
        let file = dir.join(format!("adit-lab-{}-{role}.calls", std::process::id()));
        counts.push((role.to_owned(), counter.start(&processes, sizes.window, &file)?, file));
    }
    thread::sleep(sizes.window);
    let mut values = Values::new();
    let mut done = Vec::new();
    for (role, counting, file) in counts {
        let calls = counting.finish();
        std::fs::remove_file(file).ok();
        done.push((role, calls?));
    }
    // The counter's own start and end lie outside its window: the rate of bytes is steady, so scale it.
    let rate = (streams.bytes(target) - bytes_before) as f64 / begin.elapsed().as_secs_f64();
    streams.alive()?;
    let megabytes = rate * sizes.window.as_secs_f64() / 1e6;
    for (role, calls) in done {
        for (key, count) in [("reads", calls.reads), ("writes", calls.writes), ("calls", calls.all)] {
            let per_mb = count / megabytes;
            values.insert(format!("{key}_per_mb_{role}"), per_mb);
            *values.entry(format!("{key}_per_mb")).or_insert(0.0) += per_mb;
        }
    }
    // The bytes pass each process once.
    let passes = running.roles()?.len() as f64;
    for (per_call, per_mb) in [("bytes_per_read", "reads_per_mb"), ("bytes_per_write", "writes_per_mb")] {
        if let Some(calls) = values.get(per_mb).copied() {
            values.insert(per_call.into(), passes * 1e6 / calls);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_number_stands_for_two_and_sixteen_downloads() {
        let names = ["busy-connect", "conn", "busy-echo"].map(str::to_owned);
        let all: Vec<String> = Measure::parse_all(&names).unwrap().iter().map(Measure::to_string).collect();
        assert_eq!(all, ["busy-connect2", "busy-connect16", "conn", "busy-echo2", "busy-echo16"]);
        assert!(Measure::parse_all(&["busy-".to_owned()]).is_err());
    }

    #[test]
    fn streams_alone_have_no_echo() {
        let subject = |udp| {
            Subject::parse(&format!("name = 'x'\nabout = ''\nentry = 'socks5'\nudp = {udp}\n")).unwrap()
        };
        let echo: Measure = "busy-echo2".parse().unwrap();
        let connect: Measure = "busy-connect2".parse().unwrap();
        assert!(echo.applies(&subject(true)) && echo.obstacle(&subject(true)).is_none());
        assert!(!echo.applies(&subject(false)) && connect.applies(&subject(false)));
        assert_eq!(echo.obstacle(&subject(false)).as_deref(), Some("busy-echo2: carries no datagrams"));
        assert!(connect.obstacle(&subject(false)).is_none());
    }

    #[test]
    fn names_round_trip() {
        for name in [
            "base",
            "down1",
            "down64",
            "up8",
            "conn",
            "conn8",
            "first-byte",
            "idle",
            "idle1000",
            "calls",
            "wire8",
            "latency",
            "get1",
            "get64",
            "put8",
            "ping1",
            "busy-connect2",
            "busy-echo16",
        ] {
            assert_eq!(name.parse::<Measure>().unwrap().to_string(), name);
        }
        for wrong in [
            "",
            "down",
            "down0",
            "upx",
            "conn-1",
            "sideways",
            "get",
            "get0",
            "putx",
            "ping",
            "latency1",
            "idle0",
            "busy-connect",
            "busy-echo0",
            "busy-x2",
        ] {
            assert!(wrong.parse::<Measure>().is_err(), "{wrong}");
        }
    }
}
