//! The measures of datagrams: names, columns, how long they take.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::Serialize;

use super::flow::{Flow, Way};
use super::sink::Sink;
use super::{exchange, rates};
use crate::measure::{Metric, Values, metric};
use crate::subject::{Entry, Running};

/// One thing to measure with datagrams; the number is the payload in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// One flow at a fixed rate: `udp-bulk64`, with a batching source and sink `udp-bulk64-gso`.
    Bulk(usize, bool),
    /// The highest rate without loss: `udp-max64`, `udp-max64-gso`.
    Max(usize, bool),
    /// One flow at a low rate: `udp-low64`.
    Low(usize),
    /// Many flows to many targets: `udp-scatter512`.
    Scatter(usize),
    /// Round trips, 64 at a time: `udp-echo64`.
    Echo(usize),
    /// Round trips one by one, against direct ones: `udp-latency64`.
    Latency(usize),
    /// A flow of 50 per second beside a bulk flow of this payload: `udp-jitter1400`.
    Jitter(usize),
    /// 200 and 400 percent of the highest rate: `udp-over64`.
    Overload(usize),
    /// Memory of flows that are at rest: `udp-idle`.
    Idle,
}

/// Amounts of everything.
#[derive(Debug, Clone, Serialize)]
pub struct Sizes {
    /// Time over which datagrams count.
    pub window: Duration,
    /// Datagrams per second of bulk flows.
    pub rate: f64,
    /// Datagrams per second of low flows.
    pub low_rate: f64,
    /// Flows, and targets, of scattered load.
    pub flows: u32,
    /// Flows at rest.
    pub idle_flows: u32,
    /// Highest rate that is tried.
    pub most: f64,
}

impl Sizes {
    /// The sizes that decide the project's bars.
    #[must_use]
    pub fn usual(window: Duration) -> Self {
        Self { window, rate: 40_000.0, low_rate: 5_000.0, flows: 100, idle_flows: 3_000, most: 4e6 }
    }
}

/// Loss up to which a rate counts as free of loss.
pub(super) const FREE_OF_LOSS: f64 = 0.001;
/// Datagrams under way at once in [`Measure::Echo`].
pub(super) const WINDOW: usize = 64;

impl Measure {
    /// The figures that make the table.
    #[must_use]
    pub fn metrics(self) -> &'static [Metric] {
        const COST: &[Metric] = &[
            metric("cpu_us_per_datagram", "CPU us/dgram", true, 2),
            metric("loss_percent", "loss %", false, 2),
            metric("delivered_per_s", "delivered/s", false, 0),
            metric("offered_per_s", "offered/s", false, 0),
            metric("socket_drops", "socket drops", false, 0),
            metric("fragments", "fragments", false, 0),
            metric("tracked", "conntrack", false, 0),
        ];
        const MAX: &[Metric] = &[
            metric("max_per_s", "most/s at <= 0.1 % loss", true, 0),
            metric("cpu_us_per_datagram", "CPU us/dgram there", true, 2),
            metric("source_is_limit", "1: the source is the limit", false, 0),
        ];
        const ECHO: &[Metric] = &[
            metric("cpu_us_per_round_trip", "CPU us/round trip", true, 2),
            metric("round_trips_per_s", "round trips/s", false, 0),
            metric("p50_us", "p50 us", false, 0),
            metric("p99_us", "p99 us", false, 0),
            metric("loss_percent", "loss %", false, 2),
        ];
        const LATENCY: &[Metric] = &[
            metric("added_p99_us", "added p99 us", true, 1),
            metric("added_p50_us", "added p50 us", true, 1),
            metric("p50_us", "p50 us", false, 1),
            metric("p99_us", "p99 us", false, 1),
        ];
        const JITTER: &[Metric] = &[
            metric("jitter_us", "p99 - p50 us", true, 0),
            metric("p50_us", "p50 us", false, 0),
            metric("p99_us", "p99 us", false, 0),
            metric("loss_percent", "loss %", false, 2),
            metric("bulk_per_s", "bulk/s", false, 0),
        ];
        const OVERLOAD: &[Metric] = &[
            metric("peak_per_s", "peak/s", true, 0),
            metric("kept200_percent", "at 200 %: % of possible", false, 1),
            metric("kept400_percent", "at 400 %: % of possible", false, 1),
            metric("offered200_per_s", "offered/s at 200 %", false, 0),
            metric("offered400_per_s", "offered/s at 400 %", false, 0),
            metric("lost", "lost", false, 0),
            metric("kernel_drops", "kernel drops (messages)", false, 0),
            metric("own_drops", "drops it counted", false, 0),
            metric("uncounted_percent", "uncounted % of lost", false, 1),
        ];
        const IDLE: &[Metric] = &[
            metric("kib_per_flow", "KiB/flow", true, 2),
            metric("kib_per_flow_server", "server", false, 2),
            metric("kib_per_flow_client", "client", false, 2),
        ];
        match self {
            Self::Bulk(..) | Self::Low(_) | Self::Scatter(_) => COST,
            Self::Max(..) => MAX,
            Self::Echo(_) => ECHO,
            Self::Latency(_) => LATENCY,
            Self::Jitter(_) => JITTER,
            Self::Overload(_) => OVERLOAD,
            Self::Idle => IDLE,
        }
    }

    /// One line that says what is done.
    #[must_use]
    pub fn about(self, sizes: &Sizes) -> String {
        let source = |gso| if gso { "GSO source, GRO sink" } else { "plain source and sink" };
        match self {
            Self::Bulk(len, gso) => {
                format!("one flow of {len} B datagrams, {}/s offered, {}", sizes.rate, source(gso))
            }
            Self::Max(len, gso) => {
                format!("one flow of {len} B datagrams, highest rate by bisection, {}", source(gso))
            }
            Self::Low(len) => format!("one flow of {len} B datagrams, {}/s offered", sizes.low_rate),
            Self::Scatter(len) => format!(
                "{n} flows to {n} targets in turn, {len} B datagrams, {rate}/s offered in all",
                n = sizes.flows,
                rate = sizes.rate / 2.0
            ),
            Self::Echo(len) => format!("round trips of {len} B datagrams, {WINDOW} at a time"),
            Self::Latency(len) => {
                format!("round trips of {len} B datagrams one by one, less direct ones just before")
            }
            Self::Jitter(len) => format!(
                "one way of 200 B datagrams, 50/s, beside a flow of {len} B datagrams, {}/s",
                sizes.rate / 2.0
            ),
            Self::Overload(len) => format!(
                "{len} B datagrams at 200 and 400 % of the highest rate without loss, GSO source, subject on one core"
            ),
            Self::Idle => format!("{} flows at rest after one answer each, RSS", sizes.idle_flows),
        }
    }

    /// Rough duration.
    #[must_use]
    pub fn estimate(self, sizes: &Sizes) -> Duration {
        match self {
            Self::Bulk(..) | Self::Low(_) | Self::Scatter(_) => sizes.window + Duration::from_secs(1),
            Self::Echo(_) => sizes.window + Duration::from_millis(500),
            Self::Latency(_) => sizes.window * 2,
            Self::Jitter(_) => exchange::voice_time(sizes) + Duration::from_secs(1),
            Self::Max(..) => (sizes.window + Duration::from_millis(300)) * 14,
            Self::Overload(_) => (sizes.window + Duration::from_millis(300)) * 20,
            Self::Idle => Duration::from_secs(3),
        }
    }

    /// Whether it can be done through `entry`.
    #[must_use]
    pub fn enters(self, entry: Entry, has_processes: bool) -> bool {
        match self {
            Self::Bulk(..) | Self::Max(..) | Self::Low(_) | Self::Jitter(_) => true,
            Self::Overload(_) => has_processes,
            // A tunnel has one target; answers of a server are sealed, and the lab only seals.
            Self::Scatter(_) => entry != Entry::Tunnel,
            Self::Echo(_) | Self::Latency(_) => entry != Entry::Shadowsocks,
            Self::Idle => has_processes && entry != Entry::Shadowsocks,
        }
    }

    /// Measures `running` once.
    ///
    /// # Errors
    /// If it does not carry datagrams, or carries wrong ones.
    pub fn drive(self, running: &Running, way: &Way, sizes: &Sizes) -> Result<Values> {
        match self {
            Self::Bulk(len, gso) => rates::steady(running, way, len, sizes.rate, gso, sizes),
            Self::Low(len) => rates::steady(running, way, len, sizes.low_rate, false, sizes),
            Self::Scatter(len) => rates::scatter(running, way, len, sizes),
            Self::Max(len, gso) => rates::highest(running, way, len, gso, sizes),
            Self::Overload(len) => rates::overload(running, way, len, sizes),
            Self::Echo(len) => exchange::echo(running, way, len, sizes),
            Self::Latency(len) => exchange::latency(way, len, sizes),
            Self::Jitter(len) => exchange::jitter(way, len, sizes),
            Self::Idle => exchange::idle(running, way, sizes),
        }
    }
}

/// Opens the flows `0..count`, each to its own target if there are several.
pub(super) fn open(way: &Way, count: u32, epoch: Instant) -> Result<Vec<Flow>> {
    let several = count > 1 && way.entry != Entry::Tunnel;
    let target = |number| if several { super::wrap::target(way.target, number) } else { way.target };
    (0..count).map(|number| Flow::open(way, number, target(number), epoch)).collect()
}

/// As [`Flow::greet`]; what arrived wrong explains more than the answer that is missing.
pub(super) fn greet(sink: &Sink, flow: &mut Flow, len: usize) -> Result<()> {
    let greeted = flow.greet(len);
    sink.verify()?;
    greeted
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gso = |gso: &bool| if *gso { "-gso" } else { "" };
        match self {
            Self::Bulk(len, batched) => write!(f, "udp-bulk{len}{}", gso(batched)),
            Self::Max(len, batched) => write!(f, "udp-max{len}{}", gso(batched)),
            Self::Low(len) => write!(f, "udp-low{len}"),
            Self::Scatter(len) => write!(f, "udp-scatter{len}"),
            Self::Echo(len) => write!(f, "udp-echo{len}"),
            Self::Latency(len) => write!(f, "udp-latency{len}"),
            Self::Jitter(len) => write!(f, "udp-jitter{len}"),
            Self::Overload(len) => write!(f, "udp-over{len}"),
            Self::Idle => f.write_str("udp-idle"),
        }
    }
}

impl FromStr for Measure {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (rest, gso) = text.strip_suffix("-gso").map_or((text, false), |rest| (rest, true));
        let name = rest.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &rest[name.len()..];
        if name == "udp-idle" && digits.is_empty() && !gso {
            return Ok(Self::Idle);
        }
        let len = digits.parse().unwrap_or(0);
        ensure!(
            (super::datagram::MIN_LEN..=1472).contains(&len),
            "payload from {} to 1472 bytes expected in measure: {text}",
            super::datagram::MIN_LEN
        );
        Ok(match (name, gso) {
            ("udp-bulk", gso) => Self::Bulk(len, gso),
            ("udp-max", gso) => Self::Max(len, gso),
            ("udp-low", false) => Self::Low(len),
            ("udp-scatter", false) => Self::Scatter(len),
            ("udp-echo", false) => Self::Echo(len),
            ("udp-latency", false) => Self::Latency(len),
            ("udp-jitter", false) => Self::Jitter(len),
            ("udp-over", false) => Self::Overload(len),
            _ => bail!("unknown measure: {text}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in [
            "udp-bulk64",
            "udp-bulk1400-gso",
            "udp-max64",
            "udp-max512-gso",
            "udp-low64",
            "udp-scatter512",
            "udp-echo1400",
            "udp-latency64",
            "udp-jitter1400",
            "udp-over64",
            "udp-idle",
        ] {
            assert_eq!(name.parse::<Measure>().unwrap().to_string(), name);
        }
        for wrong in
            ["udp-bulk", "udp-bulk8", "udp-bulk9000", "udp-echo64-gso", "udp-idle5", "udp-", "udp-x64"]
        {
            assert!(wrong.parse::<Measure>().is_err(), "{wrong}");
        }
    }
}
