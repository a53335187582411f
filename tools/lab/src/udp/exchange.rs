//! Measures of time: round trips, latency, jitter, and flows at rest.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::datagram::Kind;
use super::flow::{Flow, Way};
use super::generator::{Generator, Offer};
use super::measure::{Sizes, WINDOW, greet, open};
use super::sink::{Reading, Sink};
use crate::measure::{Values, enter_processor, memory, processor};
use crate::stats::percentile;
use crate::subject::{Entry, Running};

const WARM_UP: Duration = Duration::from_millis(200);
/// An answer that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Payload of a voice-like flow, and its datagrams per second.
const VOICE_LEN: usize = 200;
const VOICE_RATE: f64 = 50.0;

/// Round trips that were made.
#[derive(Debug, Default)]
struct Trips {
    /// Microseconds of each.
    times: Vec<f64>,
    sent: u64,
    lost: u64,
}

impl Trips {
    fn enter(&self, values: &mut Values, prefix: &str) {
        for (name, percent) in [("p50", 50), ("p95", 95), ("p99", 99)] {
            if let Some(time) = percentile(&self.times, percent) {
                values.insert(format!("{prefix}{name}_us"), time);
            }
        }
    }
}

/// Keeps `window` datagrams under way for `time`.
fn trips(flow: &mut Flow, len: usize, window: usize, time: Duration) -> Result<Trips> {
    flow.socket.set_read_timeout(Some(PATIENCE))?;
    let mut trips = Trips::default();
    let end = Instant::now() + time;
    let mut under_way = 0;
    while Instant::now() < end {
        while under_way < window {
            flow.send(len, Kind::Echo)?;
            trips.sent += 1;
            under_way += 1;
        }
        match flow.receive()? {
            Some((_, nanos)) => {
                trips.times.push(nanos as f64 / 1e3);
                under_way = under_way.saturating_sub(1);
            }
            None => {
                trips.lost += under_way as u64;
                under_way = 0;
            }
        }
    }
    while under_way > 0
        && let Some((_, nanos)) = flow.receive()?
    {
        trips.times.push(nanos as f64 / 1e3);
        under_way -= 1;
    }
    trips.lost += under_way as u64;
    Ok(trips)
}

/// A flow whose datagrams are sent back, one at a time.
#[derive(Debug)]
pub(crate) struct Echo {
    flow: Flow,
    len: usize,
    _sink: Sink,
}

impl Echo {
    /// Opens a flow with payloads of `len` bytes and waits for its first answer.
    ///
    /// # Errors
    /// If the subject does not carry datagrams.
    pub(crate) fn open(way: &Way, len: usize) -> Result<Self> {
        let epoch = Instant::now();
        let sink = way.sink(Reading::Prompt, epoch)?;
        let mut flow = Flow::open(way, 0, way.target, epoch)?;
        greet(&sink, &mut flow, len)?;
        Ok(Self { flow, len, _sink: sink })
    }

    /// Sends for `time`, each datagram `pause` after the last answer. Gives the microseconds of each round trip and how
    /// many datagrams were lost: those without an answer within a second.
    ///
    /// # Errors
    /// If a wrong answer comes, or the socket fails.
    pub(crate) fn run(&mut self, time: Duration, pause: Duration) -> Result<(Vec<f64>, u64)> {
        self.flow.socket.set_read_timeout(Some(PATIENCE))?;
        let (mut times, mut lost) = (Vec::new(), 0);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let number = self.flow.made();
            self.flow.send(self.len, Kind::Echo)?;
            // A late answer belongs to a datagram that counts as lost.
            let answer = loop {
                match self.flow.receive()? {
                    Some((datagram, _)) if datagram.number != number => {}
                    answer => break answer,
                }
            };
            match answer {
                Some((_, nanos)) => times.push(nanos as f64 / 1e3),
                None => lost += 1,
            }
            std::thread::sleep(pause);
        }
        Ok((times, lost))
    }
}

/// Round trips with a full window.
pub(super) fn echo(running: &Running, way: &Way, len: usize, sizes: &Sizes) -> Result<Values> {
    let epoch = Instant::now();
    let sink = way.sink(Reading::Prompt, epoch)?;
    let mut flow = Flow::open(way, 0, way.target, epoch)?;
    greet(&sink, &mut flow, len)?;
    trips(&mut flow, len, WINDOW, WARM_UP.min(sizes.window))?;
    let (cpu_before, begin) = (processor(running)?, Instant::now());
    let made = trips(&mut flow, len, WINDOW, sizes.window)?;
    let (cpu_after, seconds) = (processor(running)?, begin.elapsed().as_secs_f64());
    let count = made.times.len() as f64;
    ensure!(count > 0.0, "no answer came back");
    let mut values = Values::new();
    enter_processor(&mut values, "cpu_us_per_round_trip", &cpu_before, &cpu_after, 1e6 / count);
    values.insert("round_trips_per_s".into(), count / seconds);
    values.insert("loss_percent".into(), made.lost as f64 / made.sent as f64 * 100.0);
    made.enter(&mut values, "");
    Ok(values)
}

/// Round trips one by one, through the subject and without it.
pub(super) fn latency(way: &Way, len: usize, sizes: &Sizes) -> Result<Values> {
    let epoch = Instant::now();
    let sink = way.sink(Reading::Prompt, epoch)?;
    let direct = way.straight();
    let mut values = Values::new();
    for (way, prefix) in [(&direct, "direct_"), (way, "")] {
        let mut flow = Flow::open(way, 0, way.target, epoch)?;
        greet(&sink, &mut flow, len)?;
        trips(&mut flow, len, 1, WARM_UP.min(sizes.window))?;
        let made = trips(&mut flow, len, 1, sizes.window)?;
        ensure!(!made.times.is_empty(), "no answer came back");
        made.enter(&mut values, prefix);
        values.insert(format!("{prefix}lost"), made.lost as f64);
    }
    for name in ["p50_us", "p99_us"] {
        let added = values[name] - values[&format!("direct_{name}")];
        values.insert(format!("added_{name}"), added.max(0.0));
    }
    Ok(values)
}

/// Time of a voice-like flow: enough datagrams for a percentile.
pub(super) fn voice_time(sizes: &Sizes) -> Duration {
    if sizes.window < Duration::from_secs(1) {
        sizes.window
    } else {
        sizes.window.max(Duration::from_secs(5))
    }
}

/// Regularity of a voice-like flow while a bulk flow runs.
pub(super) fn jitter(way: &Way, len: usize, sizes: &Sizes) -> Result<Values> {
    let epoch = Instant::now();
    let sink = way.sink(Reading::Prompt, epoch)?;
    let mut flows = open(way, 2, epoch)?;
    if way.entry != Entry::Shadowsocks {
        for flow in &mut flows {
            greet(&sink, flow, VOICE_LEN)?;
        }
    }
    let voice = flows.split_off(1);
    let bulk = Offer { len, rate: sizes.rate / 2.0, gso: false, kind: Kind::Bulk };
    let bulk = Generator::start(flows, bulk)?;
    std::thread::sleep(WARM_UP.min(sizes.window));
    let (bulk_before, begin) = (sink.arrived().received(), Instant::now());
    let made = voice[0].made();
    let offer = Offer { len: VOICE_LEN, rate: VOICE_RATE, gso: false, kind: Kind::Voice };
    let voice = Generator::start(voice, offer)?;
    std::thread::sleep(voice_time(sizes));
    let voice = voice.stop()?;
    let (bulk_after, seconds) = (sink.arrived().received(), begin.elapsed().as_secs_f64());
    let bulk = bulk.stop()?;
    sink.settle(bulk[0].made() + voice[0].made());
    sink.verify()?;
    let arrived = sink.arrived();
    let tally = arrived.flows.get(&1).cloned().unwrap_or_default();
    let sent = voice[0].made() - made;
    ensure!(!tally.delays.is_empty(), "no datagram of the voice-like flow arrived");
    let trips = Trips { times: tally.delays.iter().map(|nanos| nanos / 1e3).collect(), sent, lost: 0 };
    let mut values = Values::new();
    trips.enter(&mut values, "");
    let lost = sent - tally.between(made, made + sent);
    values.insert("jitter_us".into(), values["p99_us"] - values["p50_us"]);
    values.insert("loss_percent".into(), lost as f64 / sent as f64 * 100.0);
    values.insert("bulk_per_s".into(), (bulk_after - bulk_before) as f64 / seconds);
    Ok(values)
}

/// Memory of flows that have had an answer and are at rest.
pub(super) fn idle(running: &Running, way: &Way, sizes: &Sizes) -> Result<Values> {
    let epoch = Instant::now();
    let sink = way.sink(Reading::Prompt, epoch)?;
    // Memory that the first flow allocates for all flows is not the flow's.
    let mut first = Flow::open(way, 0, way.target, epoch)?;
    greet(&sink, &mut first, 512)?;
    std::thread::sleep(Duration::from_millis(500));
    let before = memory(running)?;
    let mut flows = Vec::new();
    for number in 1..=sizes.idle_flows {
        let mut flow = Flow::open(way, number, way.target, epoch)?;
        greet(&sink, &mut flow, 512)?;
        flows.push(flow);
    }
    std::thread::sleep(Duration::from_secs(1));
    let mut values = Values::new();
    let mut sum = 0.0;
    for (role, during) in memory(running)? {
        let start = before.get(&role).copied().unwrap_or_default();
        let per_flow = |now: u64, start: u64| now.saturating_sub(start) as f64 / f64::from(sizes.idle_flows);
        values.insert(format!("kib_per_flow_{role}"), per_flow(during.rss, start.rss));
        let dirty = per_flow(during.private_dirty, start.private_dirty);
        values.insert(format!("dirty_kib_per_flow_{role}"), dirty);
        sum += per_flow(during.rss, start.rss);
    }
    values.insert("kib_per_flow".into(), sum);
    Ok(values)
}
