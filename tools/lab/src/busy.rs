//! Measures beside downloads at full speed: how long a fresh connection or a datagram waits while bulk is moved.
//!
//! Processor time per KB is taken of the downloads alone, just before the probes: a subject that answers sooner gets more
//! probes per second, and would pay for them.

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};

use crate::load::{self, Path, Streams, Way};
use crate::measure::{Metric, Sizes, Values, enter_processor, metric, processor};
use crate::stats::percentile;
use crate::subject::Running;
use crate::target::Target;
use crate::udp::Echo;
use crate::udp::flow;

/// Downloads beside which a measure without a number is taken, one after the other.
const USUAL: [usize; 2] = [2, 16];
/// Time after which downloads have filled their buffers and grown their windows.
const WARM_UP: Duration = Duration::from_millis(400);
/// Probes before those that count.
const WARM_UP_PROBES: usize = 20;
/// Time from the end of one connection to the begin of the next.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// Time from an answer to the next datagram.
const ECHO_PAUSE: Duration = Duration::from_millis(2);
/// Payload of a datagram in bytes.
const ECHO_LEN: usize = 64;

/// One thing to measure; the number is that of the downloads beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// First byte of fresh connections, one by one: `busy-connect2`.
    Connect(usize),
    /// Echo of one datagram at a time: `busy-echo16`.
    Echo(usize),
}

impl Measure {
    /// The measures that `text` stands for: `busy-connect` is `busy-connect2` and `busy-connect16`.
    #[must_use]
    pub fn usual(text: &str) -> Option<[Self; 2]> {
        match text {
            "busy-connect" => Some(USUAL.map(Self::Connect)),
            "busy-echo" => Some(USUAL.map(Self::Echo)),
            _ => None,
        }
    }

    /// The figures that make the table.
    #[must_use]
    pub fn metrics(self) -> &'static [Metric] {
        const METRICS: &[Metric] = &[
            metric("p50_us", "p50 us", true, 0),
            metric("p99_us", "p99 us", true, 0),
            metric("cpu_ns_per_kb", "CPU ns/KB", true, 0),
            metric("mb_per_s", "bulk MB/s", false, 0),
            metric("mb_per_s_beside", "beside probes", false, 0),
            metric("probes", "probes", false, 0),
            metric("lost", "lost", false, 0),
        ];
        METRICS
    }

    /// One line that says what is done.
    #[must_use]
    pub fn about(self, sizes: &Sizes) -> String {
        match self {
            Self::Connect(count) => format!(
                "connect to first byte of the answer, {} fresh connections one by one beside {count} download(s)",
                sizes.first_byte
            ),
            Self::Echo(count) => format!(
                "round trips of {ECHO_LEN} B datagrams one at a time beside {count} download(s), {} s",
                echo_time(sizes).as_secs_f64()
            ),
        }
    }

    /// Rough duration.
    #[must_use]
    pub fn estimate(self, sizes: &Sizes) -> Duration {
        WARM_UP
            + sizes.window
            + match self {
                Self::Connect(_) => {
                    (CONNECT_PAUSE + Duration::from_millis(3))
                        * u32::try_from(sizes.first_byte).unwrap_or(u32::MAX)
                }
                Self::Echo(_) => echo_time(sizes) + Duration::from_millis(200),
            }
    }

    /// Whether it needs a subject that carries datagrams.
    #[must_use]
    pub fn needs_datagrams(self) -> bool {
        matches!(self, Self::Echo(_))
    }

    /// Measures `running` once. `way` is where datagrams enter.
    ///
    /// # Errors
    /// If the subject does not carry the load.
    pub fn drive(
        self,
        running: &Running,
        path: &Path,
        way: &flow::Way,
        target: &Target,
        sizes: &Sizes,
    ) -> Result<Values> {
        match self {
            Self::Connect(count) => {
                load::fresh(path, WARM_UP_PROBES, 1, Duration::ZERO)?;
                beside(running, path, count, (target, sizes), || {
                    let times = load::fresh(path, sizes.first_byte, 1, CONNECT_PAUSE)?;
                    Ok((times, 0))
                })
            }
            Self::Echo(count) => {
                let mut echo = Echo::open(way, ECHO_LEN)?;
                echo.run(Duration::from_millis(100), ECHO_PAUSE)?;
                beside(running, path, count, (target, sizes), || echo.run(echo_time(sizes), ECHO_PAUSE))
            }
        }
    }
}

/// Time of the datagrams: enough of them for a percentile.
fn echo_time(sizes: &Sizes) -> Duration {
    if sizes.window < Duration::from_secs(1) {
        sizes.window
    } else {
        sizes.window.max(Duration::from_secs(2))
    }
}

/// Runs `probe` beside `count` downloads. It gives the microseconds of each probe and how many were lost.
fn beside(
    running: &Running,
    path: &Path,
    count: usize,
    (target, sizes): (&Target, &Sizes),
    probe: impl FnOnce() -> Result<(Vec<f64>, u64)>,
) -> Result<Values> {
    let streams = Streams::start(path, Way::Down, count, target)?;
    thread::sleep(running.site().map_or(WARM_UP, |site| site.warm_up()));
    let (before, bytes_before, begin) = (processor(running)?, streams.bytes(target), Instant::now());
    thread::sleep(sizes.window);
    let (bytes, time) = (streams.bytes(target) - bytes_before, begin.elapsed());
    let after = processor(running)?;
    ensure!(bytes > 0, "the downloads stood still for {time:?}");
    let (bytes_before, begin) = (streams.bytes(target), Instant::now());
    let (times, lost) = probe()?;
    let beside = (streams.bytes(target) - bytes_before) as f64 / 1e6 / begin.elapsed().as_secs_f64();
    streams.alive()?;
    let mut values = Values::from([
        ("probes".to_owned(), times.len() as f64),
        ("lost".to_owned(), lost as f64),
        ("mb_per_s".to_owned(), bytes as f64 / 1e6 / time.as_secs_f64()),
        ("mb_per_s_beside".to_owned(), beside),
    ]);
    enter_processor(&mut values, "cpu_ns_per_kb", &before, &after, 1e12 / bytes as f64);
    for (key, percent) in [("p50_us", 50), ("p95_us", 95), ("p99_us", 99)] {
        values.insert(key.into(), percentile(&times, percent).context("no answer came back")?);
    }
    Ok(values)
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(count) => write!(f, "busy-connect{count}"),
            Self::Echo(count) => write!(f, "busy-echo{count}"),
        }
    }
}

impl FromStr for Measure {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let count = text[name.len()..].parse().ok().filter(|count| (1..=1000).contains(count));
        let count = || count.with_context(|| format!("number from 1 to 1000 expected in measure: {text}"));
        Ok(match name {
            "busy-connect" => Self::Connect(count()?),
            "busy-echo" => Self::Echo(count()?),
            _ => bail!("unknown measure: {text}"),
        })
    }
}
