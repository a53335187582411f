//! Measures of subjects on a link: goodput, drops of its queue, the delay and the share of others.

use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use crate::link::emulator::{Counts, Emulator};
use crate::link::{FAR, Site};
use crate::load::{Path, Streams, Way};
use crate::measure::{Metric, Sizes, Values, enter_processor, metric, processor};
use crate::stats::percentile;
use crate::subject::{Entry, Running};
use crate::target::{Command, Request, Target};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pings one by one on an idle link.
const IDLE_PINGS: usize = 20;
/// Streams that ping at once beside a bulk stream, and the pause after each answer: some hundred pings in ten seconds.
const PINGERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// One thing to measure over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Bulk streams: `path-down1`, `path-up8`.
    Bulk(Way, usize),
    /// One byte there and back beside a bulk download: `path-ping`.
    Ping,
    /// A download beside one of plain TCP with CUBIC: `path-share`.
    Share,
}

impl Measure {
    /// The figures that make the table.
    #[must_use]
    pub fn metrics(self) -> &'static [Metric] {
        const BULK: &[Metric] = &[
            metric("mb_per_s", "MB/s", true, 2),
            metric("link_percent", "% of link", false, 1),
            metric("dropped_percent", "queue dropped %", false, 2),
            metric("dropped_percent_steady", "after the start %", false, 2),
            metric("queue_peak_kb", "queue kB", false, 0),
            metric("overhead_percent", "on top %", false, 1),
            metric("empty_per_mb", "empty ACKs/MB", false, 0),
            metric("cpu_ns_per_kb", "CPU ns/KB", true, 0),
            metric("latest_us", "latest us", false, 0),
        ];
        const PING: &[Metric] = &[
            metric("idle_p50_ms", "idle p50 ms", false, 1),
            metric("p50_ms", "p50 ms", false, 1),
            metric("p99_ms", "p99 ms", true, 1),
            metric("p99_per_idle", "p99 / idle", false, 2),
            metric("pings", "pings", false, 0),
            metric("mb_per_s", "bulk MB/s", false, 2),
        ];
        const SHARE: &[Metric] = &[
            metric("cubic_percent", "CUBIC's % of link", false, 1),
            metric("mb_per_s", "MB/s", true, 2),
            metric("cubic_mb_per_s", "CUBIC's MB/s", false, 2),
            metric("dropped_percent", "queue dropped %", false, 2),
            metric("queue_peak_kb", "queue kB", false, 0),
        ];
        match self {
            Self::Bulk(..) => BULK,
            Self::Ping => PING,
            Self::Share => SHARE,
        }
    }

    /// One line that says what is done.
    #[must_use]
    pub fn about(self, sizes: &Sizes) -> String {
        let seconds = sizes.window.as_secs_f64();
        match self {
            Self::Bulk(way, count) => {
                let way = if way == Way::Down { "download" } else { "upload" };
                format!("{count} {way} stream(s) over the link, {seconds} s")
            }
            Self::Ping => format!("1 byte there and back beside a download over the link, {seconds} s"),
            Self::Share => format!(
                "a download beside one over plain TCP with CUBIC, {} s once both have run for as long",
                seconds
            ),
        }
    }

    /// Rough duration on a link of 100 ms.
    #[must_use]
    pub fn estimate(self, sizes: &Sizes) -> Duration {
        let start = Duration::from_secs(4);
        match self {
            Self::Bulk(..) => start + sizes.window,
            Self::Ping => start + sizes.window + Duration::from_secs(3),
            Self::Share => start + sizes.window * 2,
        }
    }

    /// Measures `running` once.
    ///
    /// # Errors
    /// Without a link, or if the subject does not carry the load.
    pub fn drive(self, running: &Running, path: &Path, target: &Target, sizes: &Sizes) -> Result<Values> {
        let site = running.site().context("this is measured over a link alone\nhint: --link")?;
        let emulator =
            site.emulator.as_ref().context("this is measured over an emulated link alone\nhint: --link")?;
        let over = Over { running, path, target, sizes, site, emulator };
        match self {
            Self::Bulk(way, count) => over.bulk(way, count),
            Self::Ping => over.ping(),
            Self::Share => over.share(),
        }
    }
}

/// The means of a measurement.
struct Over<'a> {
    running: &'a Running,
    path: &'a Path,
    target: &'a Target,
    sizes: &'a Sizes,
    site: &'a Arc<Site>,
    emulator: &'a Emulator,
}

impl Over<'_> {
    fn bulk(&self, way: Way, count: usize) -> Result<Values> {
        let first = self.emulator.counts();
        let streams = Streams::start(self.path, way, count, self.target)?;
        thread::sleep(self.site.warm_up());
        self.emulator.take_peaks();
        let (cpu_before, before) = (processor(self.running)?, self.emulator.counts());
        let mut bytes = Meter::start(&streams, self.target);
        thread::sleep(self.sizes.window);
        let rate = bytes.rate(&streams, self.target);
        let (cpu_after, after) = (processor(self.running)?, self.emulator.counts());
        streams.alive()?;
        ensure!(rate > 0.0, "no bytes within {:?}", self.sizes.window);
        let mut values = Values::new();
        self.enter_rate(&mut values, "", rate);
        enter_processor(&mut values, "cpu_ns_per_kb", &cpu_before, &cpu_after, 1e9 * 1e3 / bytes.moved);
        enter_counts(&mut values, way, &first, &before, &after, bytes.moved);
        Ok(values)
    }

    fn ping(&self) -> Result<Values> {
        let idle = pings(self.path, Pings::Count(IDLE_PINGS)).context("ping an idle link")?;
        let streams = Streams::start(self.path, Way::Down, 1, self.target)?;
        thread::sleep(self.site.warm_up());
        let mut bytes = Meter::start(&streams, self.target);
        let until = Instant::now() + self.sizes.window;
        let beside = thread::scope(|scope| -> Result<Vec<f64>> {
            let threads: Vec<_> =
                (0..PINGERS).map(|_| scope.spawn(|| pings(self.path, Pings::Until(until)))).collect();
            let mut all = Vec::new();
            for thread in threads {
                all.extend(thread.join().map_err(|_| anyhow!("ping panicked"))??);
            }
            Ok(all)
        })
        .context("ping beside a bulk stream")?;
        let rate = bytes.rate(&streams, self.target);
        streams.alive()?;
        let mut values = Values::new();
        self.enter_rate(&mut values, "", rate);
        let figures = [
            ("idle_p50_ms", &idle, 50),
            ("idle_p99_ms", &idle, 99),
            ("p50_ms", &beside, 50),
            ("p99_ms", &beside, 99),
        ];
        for (key, times, percent) in figures {
            values.insert(key.into(), percentile(times, percent).context("no ping came back")?);
        }
        values.insert("p99_per_idle".into(), values["p99_ms"] / values["idle_p50_ms"]);
        values.insert("pings".into(), beside.len() as f64);
        Ok(values)
    }

    fn share(&self) -> Result<Values> {
        let first = self.emulator.counts();
        let streams = Streams::start(self.path, Way::Down, 1, self.target)?;
        thread::sleep(self.site.warm_up());
        let straight = std::net::SocketAddr::from((FAR, self.target.address().port()));
        let beside = Path { address: straight, entry: Entry::Tunnel, target: straight };
        let cubic = Streams::start_cubic(&beside, self.target)?;
        thread::sleep(self.site.warm_up() + self.sizes.window);
        self.emulator.take_peaks();
        let before = self.emulator.counts();
        let mut bytes = Meter::start(&streams, self.target);
        let mut cubic_bytes = Meter::start(&cubic, self.target);
        thread::sleep(self.sizes.window);
        let (rate, cubic_rate) = (bytes.rate(&streams, self.target), cubic_bytes.rate(&cubic, self.target));
        let after = self.emulator.counts();
        streams.alive()?;
        cubic.alive()?;
        let mut values = Values::new();
        self.enter_rate(&mut values, "", rate);
        self.enter_rate(&mut values, "cubic_", cubic_rate);
        if let Some(percent) = values.get("cubic_link_percent").copied() {
            values.insert("cubic_percent".into(), percent);
        }
        enter_counts(&mut values, Way::Down, &first, &before, &after, bytes.moved);
        Ok(values)
    }

    fn enter_rate(&self, values: &mut Values, key: &str, rate: f64) {
        values.insert(format!("{key}mb_per_s"), rate / 1e6);
        let link = self.emulator.spec().rate;
        if link > 0 {
            values.insert(format!("{key}link_percent"), 100.0 * rate * 8.0 / link as f64);
        }
    }
}

/// Enters what the link did in the direction of the data: since the streams began (`first`) and in the window.
fn enter_counts(
    values: &mut Values,
    way: Way,
    first: &(Counts, Counts),
    before: &(Counts, Counts),
    after: &(Counts, Counts),
    moved: f64,
) {
    let of = |counts: &(Counts, Counts)| if way == Way::Down { counts.1 } else { counts.0 };
    let back = |counts: &(Counts, Counts)| if way == Way::Down { counts.0 } else { counts.1 };
    let whole = of(after).since(of(first));
    let steady = of(after).since(of(before));
    // A subject over UDP is answerable for its datagrams alone, not for a competitor's segments.
    let own = |counts: Counts| if counts.udp.packets > 0 { counts.udp } else { counts.tcp };
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let (all, window) = (own(whole), own(steady));
    values.insert("dropped_percent".into(), percent(all.overflowed, all.packets));
    values.insert("dropped_percent_steady".into(), percent(window.overflowed, window.packets));
    values.insert("lost_percent".into(), percent(window.lost, window.packets));
    values.insert("dropped".into(), all.overflowed as f64);
    values.insert("packets".into(), all.packets as f64);
    values.insert("overhead_percent".into(), 100.0 * (window.bytes as f64 / moved.max(1.0) - 1.0));
    let answers = own(back(after).since(back(before)));
    values.insert("back_percent".into(), 100.0 * answers.bytes as f64 / moved.max(1.0));
    let empty = back(after).since(back(before)).empty;
    values.insert("empty_per_mb".into(), empty as f64 / moved.max(1.0) * 1e6);
    values.insert("queue_peak_kb".into(), of(after).queue_peak as f64 / 1e3);
    values.insert("latest_us".into(), of(after).latest_us.max(back(after).latest_us) as f64);
    values.insert("late_percent".into(), percent(steady.late, steady.delivered));
    values.insert("refused".into(), steady.refused as f64);
}

/// Bytes over time.
struct Meter {
    bytes: u64,
    begin: Instant,
    /// Bytes between the start and the last look.
    moved: f64,
}

impl Meter {
    fn start(streams: &Streams, target: &Target) -> Self {
        Self { bytes: streams.bytes(target), begin: Instant::now(), moved: 0.0 }
    }

    /// Bytes per second since the start.
    fn rate(&mut self, streams: &Streams, target: &Target) -> f64 {
        let (bytes, time) = (streams.bytes(target) - self.bytes, self.begin.elapsed());
        self.moved = bytes as f64;
        self.moved / time.as_secs_f64()
    }
}

/// Number of pings.
#[derive(Clone, Copy)]
enum Pings {
    Count(usize),
    Until(Instant),
}

/// Milliseconds of one byte there and back over one stream, one after the other.
fn pings(path: &Path, many: Pings) -> Result<Vec<f64>> {
    let mut stream = path.dial(PATIENCE)?;
    stream.write_all(&Request::new(Command::Echo).emit())?;
    let mut times = Vec::new();
    let mut is_first = true;
    loop {
        let enough = match many {
            Pings::Count(count) => times.len() >= count,
            Pings::Until(until) => Instant::now() >= until,
        };
        if enough {
            return Ok(times);
        }
        let begin = Instant::now();
        stream.write_all(b"p")?;
        let mut answer = [0];
        stream.read_exact(&mut answer).context("wait for an answer")?;
        // The first one waits for the stream to be opened.
        if !is_first {
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        is_first = false;
        thread::sleep(PAUSE);
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bulk(Way::Down, count) => write!(f, "path-down{count}"),
            Self::Bulk(Way::Up, count) => write!(f, "path-up{count}"),
            Self::Ping => f.write_str("path-ping"),
            Self::Share => f.write_str("path-share"),
        }
    }
}

impl FromStr for Measure {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let count = |digits: &str| digits.parse().ok().filter(|count| (1..=1000).contains(count));
        let bulk = |prefix, way| Some(Self::Bulk(way, count(text.strip_prefix(prefix)?)?));
        match text {
            "path-ping" => Ok(Self::Ping),
            "path-share" => Ok(Self::Share),
            _ => match bulk("path-down", Way::Down).or_else(|| bulk("path-up", Way::Up)) {
                Some(measure) => Ok(measure),
                None => bail!("unknown measure: {text}\nhint: path-downN, path-upN, path-ping, path-share"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["path-down1", "path-up8", "path-ping", "path-share"] {
            assert_eq!(name.parse::<Measure>().unwrap().to_string(), name);
        }
        for wrong in ["path-", "path-down", "path-down0", "path-up-1", "path-ping2"] {
            assert!(wrong.parse::<Measure>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn drops_are_those_of_the_subject() {
        let mut after = Counts::default();
        (after.udp.packets, after.udp.overflowed, after.udp.bytes) = (1000, 10, 1_200_000);
        (after.tcp.packets, after.tcp.overflowed) = (1000, 500);
        let none = (Counts::default(), Counts::default());
        let mut values = Values::new();
        enter_counts(&mut values, Way::Down, &none, &none, &(Counts::default(), after), 1_000_000.0);
        assert_eq!((values["dropped_percent"], values["dropped"]), (1.0, 10.0));
        assert!((values["overhead_percent"] - 20.0).abs() < 1e-9, "{values:?}");
    }
}
