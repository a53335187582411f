//! Measures what a prober learns from the time of an end: `adit bench run probe`.
//!
//! A probe sends so many random bytes and the end of its direction, and measures the time until the server's end. For
//! each two lengths, and for each two servers, the figure is the area under the ROC curve (AUC): the chance that a probe of
//! the one takes longer than one of the other. 0.5 says nothing.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::attack::{connect, garbage};
use crate::held::Held;
use crate::random::Random;
use crate::subject::{free_port, loopback};

/// Lengths of probes in bytes: around the thresholds of Snell's formats.
const LENGTHS: [usize; 7] = [1, 20, 38, 39, 60, 300, 600];
/// Probes of each length.
const SAMPLES: usize = 1000;
/// Between two probes of one prober, and probers at the same time.
const APART: Duration = Duration::from_millis(200);
const PROBERS: usize = 8;
/// Users of the server with many.
const MANY: usize = 10_000;
/// Longest wait for an end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The bars: distances from 0.5, between lengths of one server and between servers.
const WITHIN: f64 = 0.05;
const BETWEEN: f64 = 0.1;

/// The times of one server's ends, in microseconds, by length.
#[derive(Debug, Serialize)]
struct Times {
    server: &'static str,
    lengths: Vec<(usize, Vec<f64>)>,
}

/// A server that ends when dropped.
struct Server {
    _held: Held,
    address: SocketAddr,
}

impl Server {
    fn start(adit: &Path, keys: &str) -> Result<Self> {
        let address = loopback(free_port()?);
        let config =
            format!("[[inbound]]\nprotocol = \"snell\"\nlisten = \"{address}\"\nversion = 5\n{keys}\n");
        let held = Held::start(adit, &config, None, None)?;
        held.wait_for_port(address)?;
        Ok(Self { _held: held, address })
    }
}

/// Probes a server with one key and one with many users; `samples` of each length. Raw data go to `json`.
///
/// # Errors
/// If a server does not start, a probe fails, or a bar is missed.
pub(crate) fn run(adit: &Path, samples: Option<usize>, json: Option<&Path>) -> Result<()> {
    let samples = samples.unwrap_or(SAMPLES);
    let mut users = String::from("users = [\n");
    for n in 0..MANY {
        writeln!(users, "{{ name = \"user{n}\", password = \"the key of user {n}\" }},")?;
    }
    users += "]";
    let servers = [Server::start(adit, "psk = \"a key for the lab\"")?, Server::start(adit, &users)?];
    let [one, many] = probe(&servers, samples)?;
    let (mut table, mut missed) = (Table::new(), Vec::new());
    table.load_style(presets::NOTHING);
    table.set_header(["server", "bytes", "p50 us", "p99 us", "AUC to 1 byte", "AUC to one key"]);
    for times in [&one, &many] {
        for (at, (len, samples)) in times.lengths.iter().enumerate() {
            let percentile = |percent| crate::stats::percentile(samples, percent).unwrap_or(f64::NAN);
            table.add_row([
                times.server.to_owned(),
                len.to_string(),
                format!("{:.0}", percentile(50)),
                format!("{:.0}", percentile(99)),
                format!("{:.3}", auc(&times.lengths[0].1, samples)),
                format!("{:.3}", auc(&one.lengths[at].1, samples)),
            ]);
        }
    }
    let pairs = |times: &Times| {
        let all = times.lengths.iter().flat_map(|a| times.lengths.iter().map(move |b| auc(&a.1, &b.1)));
        all.map(|auc| (auc - 0.5).abs()).fold(0.0, f64::max)
    };
    let between = one.lengths.iter().zip(&many.lengths).map(|(a, b)| (auc(&a.1, &b.1) - 0.5).abs());
    for (what, distance, bar) in [
        ("lengths, one key", pairs(&one), WITHIN),
        ("lengths, 10,000 users", pairs(&many), BETWEEN),
        ("one key and 10,000 users", between.fold(0.0, f64::max), BETWEEN),
    ] {
        table.add_row([
            what.to_owned(),
            String::new(),
            String::new(),
            String::new(),
            format!("|AUC - 0.5| {distance:.3}"),
            format!("bar {bar}"),
        ]);
        if distance > bar {
            missed.push(what);
        }
    }
    console::Term::stdout().write_line(&table.to_string())?;
    if let Some(path) = json {
        fs::write(path, serde_json::to_string(&[&one, &many])?)?;
    }
    ensure!(missed.is_empty(), "a prober can tell apart: {}", missed.join("; "));
    Ok(())
}

/// Probes of all lengths to both servers in turn, from several sources at the same time: load on the machine meets them
/// alike.
fn probe(servers: &[Server; 2], samples: usize) -> Result<[Times; 2]> {
    let all = Mutex::new([(); 2].map(|()| LENGTHS.map(|len| (len, Vec::with_capacity(samples)))));
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for prober in 0..PROBERS {
            let (all, failed) = (&all, &failed);
            scope.spawn(move || {
                let mut random = Random::new(prober as u64 + 1);
                for number in 0..(2 * samples * LENGTHS.len()).div_ceil(PROBERS) {
                    let (of, at) = ((number / LENGTHS.len()) % 2, (number + prober) % LENGTHS.len());
                    match time_of_end(&mut random, servers[of].address, LENGTHS[at]) {
                        Ok(time) => all.lock().expect("no prober panics")[of][at].1.push(time),
                        Err(error) => {
                            *failed.lock().expect("no prober panics") = Some(error);
                            return;
                        }
                    }
                    thread::sleep(APART);
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().expect("no prober panics") {
        return Err(error);
    }
    let [one, many] = all.into_inner().expect("no prober panics");
    Ok([("one key", one), ("10,000 users", many)]
        .map(|(server, lengths)| Times { server, lengths: lengths.into() }))
}

/// Microseconds from the end of a probe to the server's.
fn time_of_end(random: &mut Random, server: SocketAddr, len: usize) -> Result<f64> {
    let mut stream = connect(random, server)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The connection has been accepted for some time.
    thread::sleep(Duration::from_micros(1000 + u64::from(random.below(10_000))));
    stream.write_all(&garbage(random, len))?;
    stream.shutdown(Shutdown::Write)?;
    let since = Instant::now();
    let read = stream.read(&mut [0; 16]).context("the server's end")?;
    let time = since.elapsed().as_secs_f64() * 1e6;
    ensure!(read == 0, "{read} bytes came");
    Ok(time)
}

/// The chance that one of `b` is longer than one of `a`; equal ones count half.
fn auc(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|t| (*t, false)).chain(b.iter().map(|t| (*t, true))).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut below, mut wins) = (0.0, 0.0);
    for group in all.chunk_by(|one, next| one.0.total_cmp(&next.0).is_eq()) {
        let ours = group.iter().filter(|(_, is_b)| *is_b).fold(0.0, |sum, _| sum + 1.0);
        let theirs = group.iter().filter(|(_, is_b)| !*is_b).fold(0.0, |sum, _| sum + 1.0);
        wins += ours * (below + theirs / 2.0);
        below += theirs;
    }
    let pairs = below * b.iter().fold(0.0, |sum, _| sum + 1.0);
    if pairs > 0.0 { wins / pairs } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_under_the_curve() {
        assert!((auc(&[1.0, 2.0], &[3.0, 4.0]) - 1.0).abs() < 1e-9);
        assert!(auc(&[3.0, 4.0], &[1.0, 2.0]).abs() < 1e-9);
        assert!((auc(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]) - 0.5).abs() < 1e-9);
        assert!((auc(&[1.0, 3.0], &[2.0, 3.0]) - 0.625).abs() < 1e-9);
        assert!((auc(&[], &[1.0]) - 0.5).abs() < 1e-9);
    }
}
