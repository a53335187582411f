//! Mixed load for a long time: `adit bench soak`.
//!
//! A server takes Shadowsocks (TCP and UDP), Snell 5 and Shadowsocks over KCP, and a client leads to each of them. Streams
//! both ways, fresh connections, idle ones, flows of datagrams and KCP sessions are under way all the time; both programs
//! are reloaded with another configuration every half minute. Samples are written as they are taken, so that a run that is
//! stopped keeps its data. The last half of the run tells whether memory, descriptors or latency rise.

mod load;
mod site;
mod trend;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use comfy_table::{Table, presets};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde::Serialize;

use self::load::{Counts, Mix, Part};
use self::site::{Both, Site};
use self::trend::{Trend, Verdict};
use crate::held::Usage;
use crate::machine::Machine;
use crate::stats::percentile;
use crate::svg::scatter;
use crate::target::{Target, datagram_echo};
use crate::{ProgramArgs, html};

/// Between two samples.
const SAMPLE: Duration = Duration::from_secs(5);
/// Between two reloads.
const RELOAD: Duration = Duration::from_secs(30);
/// Longest wait of the target for anything.
const PATIENCE: Duration = Duration::from_secs(20);
const HOUR: f64 = 3600.0;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Duration of the run; stopping it earlier keeps the data.
    #[arg(long, default_value_t = 0.75, value_parser = parse_hours)]
    hours: f64,
    /// Write each sample to this file as it is taken, one JSON object a line.
    #[arg(long, value_name = "FILE", default_value = "adit-soak.jsonl")]
    json: PathBuf,
    /// Write table and plots as one page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    mix: Mix,
    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

fn parse_hours(text: &str) -> Result<f64> {
    let hours: f64 = text.parse().context("a number of hours expected, such as 0.75")?;
    ensure!((0.01..=10_000.0).contains(&hours), "from 0.01 to 10000 hours expected");
    Ok(hours)
}

/// The programs and the load at one moment; counts are since the start.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    seconds: f64,
    #[serde(flatten)]
    both: Both,
    /// Microseconds to the first byte of fresh connections since the last sample.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    requests: u64,
    transfers: u64,
    failed: u64,
    datagrams_sent: u64,
    datagrams_back: u64,
    reloads: u64,
}

/// Runs the load, prints what it has shown, and writes the page.
///
/// # Errors
/// If a program does not start or dies, a file cannot be written, something failed, or a figure rises.
pub(crate) fn run(args: &Args, adit: &Path) -> Result<()> {
    if args.html.is_some() {
        args.programs.require_dist(adit)?;
    }
    let samples = measure(args, adit)?;
    let rows = judge(&samples);
    show(&samples, &rows)?;
    if let Some(path) = &args.html {
        let page = page(&samples, &rows)?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let rising: Vec<&str> =
        rows.iter().filter(|row| row.verdict == Verdict::Rises).map(|row| row.name).collect();
    ensure!(rising.is_empty(), "it rises: {}", rising.join(", "));
    let failed = samples.last().map_or(0, |last| last.failed);
    ensure!(failed == 0, "{failed} requests or transfers failed");
    Ok(())
}

/// Blocks interrupts, for this thread and those that it starts, and gives what tells of them.
fn interrupts() -> Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().context("block signals")?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

fn measure(args: &Args, adit: &Path) -> Result<Vec<Sample>> {
    let interrupts = interrupts()?;
    let target = Target::start(PATIENCE)?;
    let mut site = Site::start(adit, datagram_echo()?)?;
    let mut file =
        File::create(&args.json).with_context(|| format!("cannot write {}", args.json.display()))?;
    let time = Duration::from_secs_f64(args.hours * HOUR);
    let term = console::Term::stderr();
    term.write_line(&format!(
        "{:.0} minutes of mixed load; samples: {}",
        args.hours * 60.0,
        args.json.display()
    ))?;
    let (paths, tunnel, counts) = (site.paths(target.address()), site.tunnel, Counts::default());
    let samples = thread::scope(|scope| {
        load::start(scope, &counts, &args.mix, paths, tunnel);
        let mut is_stopped = || !matches!(interrupts.read_signal(), Ok(None));
        let pause = args.mix.has(Part::Reloads).then_some(RELOAD);
        let samples = watch((&mut site, pause), &counts, time, &mut file, &mut is_stopped);
        counts.stop();
        samples
    });
    if let Some(error) = counts.first_error() {
        term.write_line(&format!("the first failure: {error}"))?;
    }
    samples
}

/// Takes samples until `time` is over or somebody stops it, and reloads with a pause between two if one is given.
fn watch(
    (site, pause): (&mut Site, Option<Duration>),
    counts: &Counts,
    time: Duration,
    file: &mut File,
    is_stopped: &mut dyn FnMut() -> bool,
) -> Result<Vec<Sample>> {
    let (begin, mut samples, mut reloads) = (Instant::now(), Vec::new(), 0);
    let term = console::Term::stderr();
    while begin.elapsed() < time {
        let next = begin + SAMPLE * u32::try_from(samples.len() + 1)?;
        while Instant::now() < next {
            if is_stopped() {
                return Ok(samples);
            }
            thread::sleep(Duration::from_millis(50));
        }
        if pause.is_some_and(|pause| begin.elapsed() >= pause * (reloads + 1)) {
            site.reload()?;
            reloads += 1;
        }
        let sample = sample(begin.elapsed(), site, counts, reloads.into())?;
        serde_json::to_writer(&mut *file, &sample)?;
        file.write_all(b"\n")?;
        samples.push(sample);
        if term.is_term() {
            let left = time.saturating_sub(begin.elapsed()).as_secs() / 60;
            term.clear_line()?;
            term.write_str(&format!(
                "{left} minutes left, {} requests, {} failed",
                sample.requests, sample.failed
            ))?;
        }
    }
    if term.is_term() {
        term.clear_line()?;
    }
    Ok(samples)
}

fn sample(time: Duration, site: &Site, counts: &Counts, reloads: u64) -> Result<Sample> {
    let times = counts.take_times();
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Ok(Sample {
        seconds: time.as_secs_f64(),
        both: site.usage()?,
        p50_us: percentile(&times, 50),
        p99_us: percentile(&times, 99),
        requests: count(&counts.requests),
        transfers: count(&counts.transfers),
        failed: count(&counts.failed),
        datagrams_sent: count(&counts.datagrams_sent),
        datagrams_back: count(&counts.datagrams_back),
        reloads,
    })
}

/// One figure over the last half of the run.
struct Row {
    name: &'static str,
    trend: Option<Trend>,
    verdict: Verdict,
}

/// A figure of a sample, if it has one.
type Pick = fn(&Sample) -> Option<f64>;

/// The figures that must not rise, with the most that they may: percent of their mean in an hour.
const FIGURES: [(&str, f64, Pick); 8] = [
    ("server, RSS KiB", 1.0, |sample| Some(rss(sample.both.server))),
    ("client, RSS KiB", 1.0, |sample| Some(rss(sample.both.client))),
    ("server, anonymous KiB", 1.0, |sample| Some(anonymous(sample.both.server))),
    ("client, anonymous KiB", 1.0, |sample| Some(anonymous(sample.both.client))),
    ("server, descriptors", 1.0, |sample| Some(sample.both.server.descriptors as f64)),
    ("client, descriptors", 1.0, |sample| Some(sample.both.client.descriptors as f64)),
    ("first byte, p50 us", 5.0, |sample| sample.p50_us),
    ("first byte, p99 us", 20.0, |sample| sample.p99_us),
];

fn rss(usage: Usage) -> f64 {
    usage.rss_kib as f64
}

fn anonymous(usage: Usage) -> f64 {
    usage.anonymous_kib as f64
}

fn judge(samples: &[Sample]) -> Vec<Row> {
    let end = samples.last().map_or(0.0, |last| last.seconds);
    let half: Vec<&Sample> = samples.iter().filter(|sample| sample.seconds * 2.0 >= end).collect();
    let row = |(name, most, pick): (&'static str, f64, Pick)| {
        let points: Vec<(f64, f64)> =
            half.iter().filter_map(|sample| Some((sample.seconds / HOUR, pick(sample)?))).collect();
        let trend = Trend::of(&points);
        Row { name, trend, verdict: Verdict::of(trend, most) }
    };
    FIGURES.into_iter().map(row).collect()
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["last half", "mean", "% an hour", "+-", ""]);
    for Row { name, trend, verdict } in rows {
        let [mean, slope, error] = trend.map_or(["-".to_owned(), "-".to_owned(), "-".to_owned()], |trend| {
            [format!("{:.0}", trend.mean), format!("{:.2}", trend.slope), format!("{:.2}", trend.error)]
        });
        table.add_row([(*name).to_owned(), mean, slope, error, verdict.text().to_owned()]);
    }
    table
}

/// One line on what was done.
fn done(samples: &[Sample]) -> String {
    let Some(last) = samples.last() else { return "stopped before the first sample".to_owned() };
    let lost = last.datagrams_sent.saturating_sub(last.datagrams_back);
    format!(
        "{:.1} minutes: {} fresh connections, {} transfers of 4 MiB, {} datagrams ({lost} not back), {} reloads, {} failed",
        last.seconds / 60.0,
        last.requests,
        last.transfers,
        last.datagrams_sent,
        last.reloads,
        last.failed
    )
}

fn show(samples: &[Sample], rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}\n{}", done(samples), table(rows))?;
    Ok(())
}

fn page(samples: &[Sample], rows: &[Row]) -> Result<String> {
    let plot = |title: &str, unit: &str, names: [&str; 2], picks: [Pick; 2], part: f64| {
        let points: Vec<(f64, f64, usize)> = (picks.into_iter().enumerate())
            .flat_map(|(class, pick)| {
                let point = move |sample: &Sample| Some((sample.seconds / 60.0, pick(sample)? / part, class));
                samples.iter().filter_map(point)
            })
            .collect();
        scatter(title, ("minutes", unit), &points, &names)
    };
    let [rss, client_rss, heap, client_heap, descriptors, client_descriptors, p50, p99] =
        FIGURES.map(|figure| figure.2);
    let ends = ["server", "client"];
    let body = [
        html::about(&Machine::read(), &done(samples)),
        html::table(&table(rows)),
        plot("memory", "RSS MiB", ends, [rss, client_rss], 1024.0),
        plot("memory without files", "anonymous MiB", ends, [heap, client_heap], 1024.0),
        plot("descriptors", "open", ends, [descriptors, client_descriptors], 1.0),
        plot("first byte of fresh connections", "ms", ["p50", "p99"], [p50, p99], 1000.0),
    ];
    Ok(html::document("adit bench soak", &body.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, rss_kib: u64) -> Sample {
        let usage = |rss_kib| Usage { rss_kib, anonymous_kib: rss_kib / 2, descriptors: 300 };
        Sample {
            seconds,
            both: Both { server: usage(rss_kib), client: usage(20_000) },
            p50_us: Some(300.0),
            p99_us: None,
            requests: 1,
            transfers: 1,
            failed: 0,
            datagrams_sent: 5,
            datagrams_back: 3,
            reloads: 0,
        }
    }

    #[test]
    fn only_the_last_half_counts() {
        // Memory grows for half an hour and stays.
        let all: Vec<Sample> =
            (1..=720).map(|n| sample(f64::from(n) * 5.0, 10_000 + n.min(350) as u64)).collect();
        let rows = judge(&all);
        assert!(rows.iter().all(|row| row.verdict != Verdict::Rises), "{}", table(&rows));
        // It goes on growing by two percent an hour.
        let all: Vec<Sample> = (1..=720).map(|n| sample(f64::from(n) * 5.0, 20_000 + n as u64 / 2)).collect();
        let rows = judge(&all);
        let rising: Vec<&str> =
            rows.iter().filter(|row| row.verdict == Verdict::Rises).map(|row| row.name).collect();
        assert_eq!(rising, ["server, RSS KiB", "server, anonymous KiB"], "{}", table(&rows));
        assert!(page(&all, &rows).unwrap().contains("2 not back"));
    }

    #[test]
    fn hours_are_checked() {
        assert_eq!(parse_hours("0.75").unwrap(), 0.75);
        for wrong in ["0", "-1", "NaN", "inf", "x", ""] {
            assert!(parse_hours(wrong).is_err(), "{wrong}");
        }
    }
}
