//! One-way load: what a datagram costs at a rate, the highest rate without loss, and what is beyond it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::datagram::Kind;
use super::flow::{Flow, Way};
use super::generator::{Generator, Offer};
use super::measure::{FREE_OF_LOSS, Sizes, greet, open};
use super::sink::{Reading, Sink};
use crate::measure::{Values, enter_processor, processor};
use crate::process;
use crate::subject::{Entry, Running};

/// Load before that which counts.
const WARM_UP: Duration = Duration::from_millis(400);
/// Relative width at which the bisection ends.
const PRECISION: f64 = 0.03;
/// A source that reaches less than this part of the rate is the limit itself.
const SOURCE_KEEPS: f64 = 0.95;

/// Number of tries of a rate before it counts as too high.
const TRIES: usize = 3;

/// The result of a run at one rate.
struct Outcome {
    values: Values,
    loss: f64,
    offered_per_s: f64,
    delivered_per_s: f64,
    offered: u64,
    delivered: u64,
    /// Messages that the datagrams were sent in.
    messages: u64,
}

/// Sends `offer` over `flows` and counts what arrives and what it costs.
fn run(
    running: &Running,
    sink: &Sink,
    flows: Vec<Flow>,
    offer: Offer,
    window: Duration,
) -> Result<(Outcome, Vec<Flow>)> {
    let made = |flows: &[Flow]| flows.iter().map(Flow::made).sum::<u64>();
    let before = (made(&flows), sink.arrived().received());
    let generator = Generator::start(flows, offer)?;
    std::thread::sleep(WARM_UP.min(window));
    let cpu_before = processor(running)?;
    let (sent, received, begin) = (generator.sent(), sink.arrived().received(), Instant::now());
    std::thread::sleep(window);
    let cpu_after = processor(running)?;
    let (sent_after, received_after) = (generator.sent(), sink.arrived().received());
    let seconds = begin.elapsed().as_secs_f64();
    let messages = generator.messages();
    let flows = generator.stop()?;
    let all_sent = made(&flows) - before.0;
    let all_received = sink.settle(before.1 + all_sent) - before.1;
    sink.verify()?;
    ensure!(all_received > 0, "no datagram arrived");
    let (sent, received) = ((sent_after - sent) as f64, (received_after - received) as f64);
    let loss = 1.0 - all_received as f64 / all_sent as f64;
    let mut values = Values::new();
    enter_processor(&mut values, "cpu_us_per_datagram", &cpu_before, &cpu_after, 1e6 / received);
    values.insert("loss_percent".into(), loss * 100.0);
    values.insert("offered_per_s".into(), sent / seconds);
    values.insert("delivered_per_s".into(), received / seconds);
    let outcome = Outcome {
        values,
        loss,
        offered_per_s: sent / seconds,
        delivered_per_s: received / seconds,
        offered: all_sent,
        delivered: all_received,
        messages,
    };
    Ok((outcome, flows))
}

/// A sink and flows that are known to work.
fn ready(way: &Way, count: u32, len: usize, gso: bool) -> Result<(Sink, Vec<Flow>)> {
    let epoch = Instant::now();
    let sink = way.sink(if gso { Reading::Merged } else { Reading::Rested }, epoch)?;
    let mut flows = open(way, count, epoch)?;
    for flow in &mut flows {
        if way.entry == Entry::Shadowsocks {
            flow.send(len, Kind::Bulk)?;
        } else {
            greet(&sink, flow, len)?;
        }
    }
    Ok((sink, flows))
}

/// One flow at a rate that everything should carry.
pub(super) fn steady(
    running: &Running,
    way: &Way,
    len: usize,
    rate: f64,
    gso: bool,
    sizes: &Sizes,
) -> Result<Values> {
    let (sink, flows) = ready(way, 1, len, gso)?;
    let (outcome, _) = run(running, &sink, flows, Offer { len, rate, gso, kind: Kind::Bulk }, sizes.window)?;
    Ok(outcome.values)
}

/// Many flows, each to a target of its own, a datagram each in turn.
pub(super) fn scatter(running: &Running, way: &Way, len: usize, sizes: &Sizes) -> Result<Values> {
    let (sink, flows) = ready(way, sizes.flows, len, false)?;
    let offer = Offer { len, rate: sizes.rate / 2.0, gso: false, kind: Kind::Bulk };
    let (outcome, _) = run(running, &sink, flows, offer, sizes.window)?;
    let seen = sink.arrived().flows.len();
    ensure!(seen == sizes.flows as usize, "only {seen} of {} flows arrived", sizes.flows);
    Ok(outcome.values)
}

/// The search for the highest rate without loss.
struct Search<'a> {
    running: &'a Running,
    sink: &'a Sink,
    offer: Offer,
    window: Duration,
    flows: Vec<Flow>,
}

/// The verdict on a rate.
enum Verdict {
    Free(Outcome),
    Lossy,
    /// The lab itself does not reach it.
    Beyond(Outcome),
}

impl Search<'_> {
    fn run(&mut self, rate: f64) -> Result<Outcome> {
        let offer = Offer { rate, ..self.offer };
        let flows = std::mem::take(&mut self.flows);
        let (outcome, flows) = run(self.running, self.sink, flows, offer, self.window)?;
        self.flows = flows;
        Ok(outcome)
    }

    /// A rate is lossy, or beyond the source, if it was so several times: the machine has other work as well.
    fn judge(&mut self, rate: f64) -> Result<Verdict> {
        let mut verdict = Verdict::Lossy;
        for _ in 0..TRIES {
            let outcome = self.run(rate)?;
            if outcome.loss <= FREE_OF_LOSS {
                if outcome.offered_per_s >= rate * SOURCE_KEEPS {
                    return Ok(Verdict::Free(outcome));
                }
                verdict = Verdict::Beyond(outcome);
            }
        }
        Ok(verdict)
    }

    /// Doubles the rate until there is loss, then halves the interval.
    fn highest(&mut self, most: f64) -> Result<Outcome> {
        let mut rate = 10_000.0_f64.min(most);
        let mut best = None;
        let mut lossy = loop {
            match self.judge(rate)? {
                Verdict::Free(outcome) if rate < most => {
                    best = Some(outcome);
                    rate = (rate * 1.7).min(most);
                }
                Verdict::Free(mut outcome) | Verdict::Beyond(mut outcome) => {
                    outcome.values.insert("source_is_limit".into(), 1.0);
                    return Ok(outcome);
                }
                Verdict::Lossy if best.is_none() && rate > 200.0 => rate /= 4.0,
                Verdict::Lossy => break rate,
            }
        };
        let mut free = best.context("datagrams are lost at every rate")?;
        while lossy / free.offered_per_s > 1.0 + PRECISION {
            let middle = (lossy * free.offered_per_s).sqrt();
            match self.judge(middle)? {
                Verdict::Free(outcome) | Verdict::Beyond(outcome)
                    if outcome.offered_per_s > free.offered_per_s =>
                {
                    free = outcome;
                }
                Verdict::Free(_) | Verdict::Beyond(_) | Verdict::Lossy => lossy = middle,
            }
        }
        Ok(free)
    }
}

/// The highest rate without loss.
pub(super) fn highest(running: &Running, way: &Way, len: usize, gso: bool, sizes: &Sizes) -> Result<Values> {
    let (sink, flows) = ready(way, 1, len, gso)?;
    let offer = Offer { len, rate: 0.0, gso, kind: Kind::Bulk };
    let mut search = Search { running, sink: &sink, offer, window: sizes.window, flows };
    let outcome = search.highest(sizes.most)?;
    let mut values = outcome.values;
    values.insert("max_per_s".into(), outcome.offered_per_s);
    Ok(values)
}

/// The share of the peak that is left when more is offered than can be carried, and the counters of the losses.
pub(super) fn overload(running: &Running, way: &Way, len: usize, sizes: &Sizes) -> Result<Values> {
    let _pinned = Pinned::new(running)?;
    let (sink, flows) = ready(way, 1, len, true)?;
    let offer = Offer { len, rate: 0.0, gso: true, kind: Kind::Bulk };
    let mut search = Search { running, sink: &sink, offer, window: sizes.window, flows };
    let free = search.highest(sizes.most)?;
    let rate = free.offered_per_s;
    let mut peak = free.delivered_per_s;
    let mut values = Values::from([("free_of_loss_per_s".to_owned(), rate)]);
    let before = Losses::read(running, &sink)?;
    let mut runs = Vec::new();
    for at in [200, 400] {
        let outcome = search.run(rate * f64::from(at) / 100.0)?;
        values.insert(format!("offered{at}_per_s"), outcome.offered_per_s);
        values.insert(format!("delivered{at}_per_s"), outcome.delivered_per_s);
        peak = peak.max(outcome.delivered_per_s);
        runs.push((at, outcome));
    }
    // Further datagrams, with which the kernel tells the subject what it dropped before.
    search.run(1000.0)?;
    let after = Losses::read(running, &sink)?;
    values.insert("peak_per_s".into(), peak);
    for (at, outcome) in &runs {
        // The source has its own limit, and the highest rate without loss is less than what can be carried.
        let possible = peak.min(outcome.offered_per_s);
        values.insert(format!("kept{at}_percent"), outcome.delivered_per_s / possible * 100.0);
    }
    let lost: u64 = runs.iter().map(|(_, run)| run.offered - run.delivered.min(run.offered)).sum();
    let datagrams: u64 = runs.iter().map(|(_, run)| run.offered).sum();
    let messages: u64 = runs.iter().map(|(_, run)| run.messages).sum();
    let per_message = datagrams as f64 / messages.max(1) as f64;
    after.since(&before).enter(&mut values, lost as f64, per_message);
    Ok(values)
}

/// Counts of losses, by the place that knows them.
struct Losses {
    /// The kernel, at the subject's sockets. A message that it had merged counts once.
    kernel: f64,
    /// The kernel, at the lab's sink.
    sink: f64,
    /// The subject, those included that the kernel told it of; `None` if it does not say.
    own: Option<f64>,
}

impl Losses {
    fn read(running: &Running, sink: &Sink) -> Result<Self> {
        let kernel = kernel_drops(running)? as f64;
        Ok(Self { kernel, sink: sink.arrived().dropped as f64, own: running.dropped()? })
    }

    fn since(&self, before: &Self) -> Self {
        let own = self.own.zip(before.own).map(|(after, before)| after - before);
        Self { kernel: self.kernel - before.kernel, sink: self.sink - before.sink, own }
    }

    /// Of `lost` datagrams, what nobody counted. Each drop of the kernel may stand for a message of `per_message`.
    fn enter(&self, values: &mut Values, lost: f64, per_message: f64) {
        values.insert("lost".into(), lost);
        values.insert("kernel_drops".into(), self.kernel);
        values.insert("sink_drops".into(), self.sink);
        if let Some(own) = self.own {
            let from_kernel = own.min(self.kernel);
            let counted = self.sink + (own - from_kernel) + from_kernel * per_message;
            values.insert("own_drops".into(), own);
            values.insert("uncounted_percent".into(), (lost - counted).max(0.0) / lost.max(1.0) * 100.0);
        }
    }
}

/// Keeps the subject on the last core and the calling thread, and those it starts, on the others.
struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    fn new(running: &Running) -> Result<Self> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        let cores: Vec<usize> =
            (0..CpuSet::count()).filter(|core| before.is_set(*core).unwrap_or(false)).collect();
        let (Some(last), true) = (cores.last(), cores.len() > 1) else {
            return Ok(Self { before: None });
        };
        let (mut subject, mut others) = (CpuSet::new(), before);
        subject.set(*last)?;
        others.unset(*last)?;
        for (_, processes) in running.roles()? {
            for pid in processes {
                for thread in process::thread_ids(pid)? {
                    sched_setaffinity(Pid::from_raw(thread), &subject)
                        .context("choose the subject's core")?;
                }
            }
        }
        sched_setaffinity(Pid::from_raw(0), &others).context("choose the lab's cores")?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            sched_setaffinity(Pid::from_raw(0), before).ok();
        }
    }
}

fn kernel_drops(running: &Running) -> Result<u64> {
    let mut sum = 0;
    for (_, processes) in running.roles()? {
        for pid in processes {
            sum += process::datagram_drops(pid)?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_accounted_for() {
        let percent = |kernel, own, lost| {
            let mut values = Values::new();
            Losses { kernel, sink: 10.0, own: Some(own) }.enter(&mut values, lost, 64.0);
            values["uncounted_percent"]
        };
        // 5 messages of 64 dropped by the kernel, 30 datagrams by the subject, 10 by the sink.
        assert_eq!(percent(5.0, 35.0, 360.0), 0.0);
        assert_eq!(percent(5.0, 35.0, 720.0), 50.0);
        // A subject that does not hear of the kernel's drops counts its own alone.
        assert_eq!(percent(5.0, 0.0, 100.0), 90.0);
    }
}
