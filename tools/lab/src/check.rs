//! The integrity check: many mixed connections, every byte verified, nothing left behind.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::load::Path;
use crate::process;
use crate::random::{Random, Stream};
use crate::subject::{Programs, Running, Subject};
use crate::target::{Command, GOOD, Request, Target};

/// The plan of a check.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Connections in all.
    pub connections: usize,
    /// Connections at once.
    pub concurrency: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Largest payload per direction in bytes.
    pub max_size: u32,
    /// Whether clients shut down their direction and the target answers after that.
    pub half_close: bool,
    /// Whether either end resets connections.
    pub aborts: bool,
    /// Longest wait on one socket call; a connection that waits longer is stuck.
    pub patience: Duration,
    /// Time for descriptors to return to what they were.
    pub settle: Duration,
}

/// The outcome.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// Connections by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Payload bytes that arrived at the client and were compared.
    pub bytes_down: u64,
    /// Connections with wrong bytes, either end.
    pub wrong: u64,
    /// Connections that ended before all bytes came, either end.
    pub cut: u64,
    /// Connections on which one end waited too long.
    pub stuck: u64,
    /// Connections that failed otherwise although nobody aborted them.
    pub failed: u64,
    /// Descriptors and threads per process before and after.
    pub processes: Vec<Footprint>,
    /// The first few failures in words.
    pub examples: Vec<String>,
    /// Seconds that the connections took.
    pub seconds: f64,
}

/// Descriptors and threads of one role's processes.
#[derive(Debug, Clone, Serialize)]
pub struct Footprint {
    /// The role.
    pub role: String,
    /// Descriptors before and after.
    pub descriptors: (usize, usize),
    /// Threads before and after.
    pub threads: (usize, usize),
    /// Resident memory before and after in KiB.
    pub rss: (u64, u64),
}

impl Outcome {
    /// Whether all streams carried what they should.
    pub(crate) fn has_right_bytes(&self) -> bool {
        self.wrong == 0 && self.cut == 0 && self.stuck == 0 && self.failed == 0
    }

    /// Whether nothing was wrong. Threads are reported, but a runtime may keep those that it started.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.has_right_bytes() && self.processes.iter().all(|one| one.descriptors.1 <= one.descriptors.0)
    }
}

/// Behaviour of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Both,
    HalfClose,
    ClientAborts,
    TargetAborts,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Both => "both ways at once",
            Self::HalfClose => "half-close, then answer",
            Self::ClientAborts => "reset by the client",
            Self::TargetAborts => "reset by the target",
        }
    }
}

/// Why a connection is not right.
enum Fault {
    Wrong(String),
    Cut(String),
    Stuck(String),
    Failed(String),
}

/// Starts `subject` and drives it by `plan`. `done` is told after each connection.
///
/// # Errors
/// If the subject does not start or dies.
pub fn run(subject: &Subject, programs: &Programs, plan: &Plan, done: &(dyn Fn() + Sync)) -> Result<Outcome> {
    let target = Target::start(plan.patience)?;
    let mut running = Running::start(subject, programs, target.address())?;
    let path = Path { address: running.address, entry: running.entry, target: target.address() };
    let half_close = plan.half_close && subject.half_close;

    // The first connections make the lasting descriptors and threads of a runtime.
    let warm_up = Plan { connections: 4, aborts: false, ..plan.clone() };
    drive(&path, &warm_up, false, &Ledger::default(), &|| {});
    thread::sleep(Duration::from_millis(500));
    running.alive()?;
    let before = footprints(&running)?;

    let begin = Instant::now();
    let ledger = Ledger::default();
    drive(&path, plan, half_close, &ledger, done);
    let seconds = begin.elapsed().as_secs_f64();

    let deadline = Instant::now() + plan.settle;
    let mut after = footprints(&running)?;
    while after.iter().zip(&before).any(|(after, before)| after.1 > before.1) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
        after = footprints(&running)?;
    }
    running.alive()?;

    let mut outcome = ledger.outcome();
    outcome.seconds = seconds;
    outcome.wrong += target.counters().wrong.load(Ordering::Relaxed);
    outcome.wrong += target.counters().bad_requests.load(Ordering::Relaxed);
    outcome.cut += target.counters().cut.load(Ordering::Relaxed);
    outcome.stuck += target.counters().stuck.load(Ordering::Relaxed);
    outcome.processes = before
        .into_iter()
        .zip(after)
        .map(|(before, after)| Footprint {
            role: before.0,
            descriptors: (before.1, after.1),
            threads: (before.2, after.2),
            rss: (before.3, after.3),
        })
        .collect();
    Ok(outcome)
}

/// Starts `subject` and drives it by `plan`, without a look at descriptors.
///
/// # Errors
/// If the subject does not start or dies.
pub(crate) fn streams(subject: &Subject, programs: &Programs, plan: &Plan) -> Result<Outcome> {
    let target = Target::start(plan.patience)?;
    let mut running = Running::start(subject, programs, target.address())?;
    let path = Path { address: running.address, entry: running.entry, target: target.address() };
    let ledger = Ledger::default();
    drive(&path, plan, plan.half_close && subject.half_close, &ledger, &|| {});
    running.alive()?;
    Ok(ledger.outcome())
}

fn footprints(running: &Running) -> Result<Vec<(String, usize, usize, u64)>> {
    let mut all = Vec::new();
    for (role, processes) in running.roles()? {
        let mut sum = (role.to_owned(), 0, 0, 0);
        for pid in processes {
            sum.1 += process::descriptors(pid)?;
            sum.2 += process::threads(pid)?;
            sum.3 += process::memory(pid)?.rss;
        }
        all.push(sum);
    }
    Ok(all)
}

#[derive(Default)]
struct Ledger {
    kinds: Mutex<BTreeMap<Kind, u64>>,
    bytes: AtomicU64,
    wrong: AtomicU64,
    cut: AtomicU64,
    stuck: AtomicU64,
    failed: AtomicU64,
    examples: Mutex<Vec<String>>,
}

impl Ledger {
    fn note(&self, number: usize, request: &Request, kind: Kind, result: Result<u64, Fault>) {
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_insert(0) += 1;
        let (counter, what) = match result {
            Ok(bytes) => {
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                return;
            }
            Err(Fault::Wrong(what)) => (&self.wrong, what),
            Err(Fault::Cut(what)) => (&self.cut, what),
            Err(Fault::Stuck(what)) => (&self.stuck, what),
            Err(Fault::Failed(what)) => (&self.failed, what),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let mut examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
        if examples.len() < 10 {
            let (up, down) = (request.up, request.down);
            examples.push(format!("connection {number} ({}, {up} B up, {down} B down): {what}", kind.name()));
        }
    }

    fn outcome(self) -> Outcome {
        let kinds = self.kinds.into_inner().unwrap_or_else(PoisonError::into_inner);
        Outcome {
            kinds: kinds.into_iter().map(|(kind, count)| (kind.name().to_owned(), count)).collect(),
            bytes_down: self.bytes.into_inner(),
            wrong: self.wrong.into_inner(),
            cut: self.cut.into_inner(),
            stuck: self.stuck.into_inner(),
            failed: self.failed.into_inner(),
            examples: self.examples.into_inner().unwrap_or_else(PoisonError::into_inner),
            ..Outcome::default()
        }
    }
}

fn drive(path: &Path, plan: &Plan, half_close: bool, ledger: &Ledger, done: &(dyn Fn() + Sync)) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..plan.concurrency.min(plan.connections) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= plan.connections {
                        return;
                    }
                    let (kind, request) = draw(plan, half_close, number);
                    ledger.note(number, &request, kind, connection(path, plan, kind, &request));
                    done();
                }
            });
        }
    });
}

/// The work of connection `number`: a function of the seed alone, so that a failure can be repeated.
fn draw(plan: &Plan, half_close: bool, number: usize) -> (Kind, Request) {
    let mut random = Random::new(plan.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let kind = match random.below(100) {
        0..=29 if half_close => Kind::HalfClose,
        30..=37 if plan.aborts => Kind::ClientAborts,
        38..=44 if plan.aborts => Kind::TargetAborts,
        _ => Kind::Both,
    };
    let mut request = Request::new(Command::Check);
    request.seed = random.next_u64();
    request.up = size(&mut random, plan.max_size);
    request.down = size(&mut random, plan.max_size);
    request.half_close = kind == Kind::HalfClose;
    request.client_aborts = kind == Kind::ClientAborts;
    request.target_aborts = kind == Kind::TargetAborts;
    (kind, request)
}

/// Mostly small, sometimes anything up to `max`, sometimes nothing, sometimes about a record's size.
fn size(random: &mut Random, max: u32) -> u32 {
    let bound = match random.below(20) {
        0 => return 0,
        1 => max,
        2 => return (16_384 - 20 + random.below(40)).min(max),
        3..=5 => 64 * 1024,
        6..=9 => 8 * 1024,
        _ => 500,
    };
    random.below(bound.min(max).saturating_add(1))
}

fn connection(path: &Path, plan: &Plan, kind: Kind, request: &Request) -> Result<u64, Fault> {
    let stream = path.dial(plan.patience).map_err(|error| fault("connect", &error))?;
    (&stream).write_all(&request.emit()).map_err(|error| fault("send the request", &error))?;
    let mut sent = Stream::new(request.seed);
    let mut expected = Stream::new(!request.seed);
    let up = u64::from(request.up);
    match kind {
        Kind::ClientAborts => {
            // An error here would be the subject's own business only if it were stuck.
            let result = sent
                .send(&stream, up / 2)
                .and_then(|()| socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)));
            result.map_err(|error| fault("send before the reset", &error)).map(|()| 0)
        }
        Kind::TargetAborts => {
            // Bytes may get lost with the reset, but none may be wrong, and an end must come.
            match expected.receive(&stream, u64::MAX) {
                Ok(received) if !received.right => Err(Fault::Wrong("wrong bytes before the reset".into())),
                Ok(received) => Ok(received.bytes),
                Err(error) if waited(&error) => Err(fault("wait for the reset", &error)),
                Err(_) => Ok(0),
            }
        }
        Kind::HalfClose => {
            sent.send(&stream, up).map_err(|error| fault("send", &error))?;
            stream.shutdown(Shutdown::Write).map_err(|error| fault("shut down", &error))?;
            receive(&stream, &mut expected, request)
        }
        Kind::Both => thread::scope(|scope| {
            let sender = thread::Builder::new()
                .stack_size(128 * 1024)
                .spawn_scoped(scope, || sent.send(&stream, up))
                .map_err(|error| fault("spawn", &error))?;
            let received = receive(&stream, &mut expected, request);
            if received.is_err() {
                stream.shutdown(Shutdown::Both).ok();
            }
            let sent = sender.join();
            let bytes = received?;
            match sent {
                Ok(Ok(())) => Ok(bytes),
                Ok(Err(error)) => Err(fault("send", &error)),
                Err(_) => Err(Fault::Failed("sender panicked".into())),
            }
        }),
    }
}

/// The target's bytes, its verdict, and nothing behind it.
fn receive(stream: &TcpStream, expected: &mut Stream, request: &Request) -> Result<u64, Fault> {
    let down = u64::from(request.down);
    let received = expected.receive(stream, down).map_err(|error| fault("receive", &error))?;
    if !received.right {
        return Err(Fault::Wrong(format!("wrong bytes within the first {}", received.bytes)));
    }
    if received.bytes < down {
        return Err(Fault::Cut(format!("ended after {} bytes", received.bytes)));
    }
    let mut verdict = [0; 2];
    let mut stream = stream;
    stream.read_exact(&mut verdict[..1]).map_err(|error| fault("receive the verdict", &error))?;
    if verdict[0] != GOOD {
        return Err(Fault::Wrong("the target got wrong bytes".into()));
    }
    match stream.read(&mut verdict) {
        Ok(0) => Ok(received.bytes),
        Ok(_) => Err(Fault::Wrong("bytes behind the end".into())),
        Err(error) => Err(fault("wait for the end", &error)),
    }
}

fn waited(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn fault(what: &str, error: &io::Error) -> Fault {
    if waited(error) {
        Fault::Stuck(format!("{what}: no progress"))
    } else if error.kind() == io::ErrorKind::UnexpectedEof {
        Fault::Cut(format!("{what}: ended"))
    } else {
        Fault::Failed(format!("{what}: {error}"))
    }
}

/// The outcome for people.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(outcome: &Outcome, subject: &str, out: &mut dyn Write) -> Result<()> {
    let total: u64 = outcome.kinds.values().sum();
    writeln!(out, "{subject}: {total} connections in {:.1} s", outcome.seconds)?;
    for (kind, count) in &outcome.kinds {
        writeln!(out, "  {count:>7}  {kind}")?;
    }
    writeln!(out, "  {:>7.1}  MB down compared", outcome.bytes_down as f64 / 1e6)?;
    writeln!(out, "  {:>7}  with wrong bytes", outcome.wrong)?;
    writeln!(out, "  {:>7}  cut short", outcome.cut)?;
    writeln!(out, "  {:>7}  stuck", outcome.stuck)?;
    writeln!(out, "  {:>7}  failed", outcome.failed)?;
    for one in &outcome.processes {
        writeln!(
            out,
            "  {}: descriptors {} -> {}, threads {} -> {}, RSS {} -> {} KiB",
            one.role,
            one.descriptors.0,
            one.descriptors.1,
            one.threads.0,
            one.threads.1,
            one.rss.0,
            one.rss.1
        )?;
    }
    for example in &outcome.examples {
        writeln!(out, "  {example}")?;
    }
    writeln!(out, "  {}", if outcome.passed() { "passed" } else { "FAILED" }).context("write")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_a_function_of_seed_and_number() {
        let plan = Plan {
            connections: 1,
            concurrency: 1,
            seed: 9,
            max_size: 1 << 20,
            half_close: true,
            aborts: true,
            patience: Duration::from_secs(1),
            settle: Duration::ZERO,
        };
        let all: Vec<_> = (0..2000).map(|number| draw(&plan, true, number)).collect();
        assert_eq!(all[77], draw(&plan, true, 77));
        for kind in [Kind::Both, Kind::HalfClose, Kind::ClientAborts, Kind::TargetAborts] {
            assert!(all.iter().filter(|(drawn, _)| *drawn == kind).count() > 50, "{kind:?}");
        }
        assert!(all.iter().all(|(_, request)| request.up <= 1 << 20));
        assert!(all.iter().any(|(_, request)| request.down > 300_000));
        assert!(!all.iter().any(|(_, request)| request.half_close && request.client_aborts));
        assert!((0..2000).all(|number| draw(&plan, false, number).0 != Kind::HalfClose));
    }
}
