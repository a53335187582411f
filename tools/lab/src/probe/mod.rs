//! Active probes of a server: its reaction to bytes that no honest client sends.
//!
//! Lengths and thresholds (Frolov and others, NDSS 2020, "Detecting Probe-resistant Proxies"), replays of a recorded first
//! flight, whole and changed (Alice and others, IMC 2020, "How China Detects and Blocks Shadowsocks"), and reflection of
//! bytes that the server itself had sent.

pub mod reaction;
pub mod recording;
pub(crate) mod table;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::random::Random;
use crate::stats::percentile;
use reaction::{End, Reaction, Shape, provoke};
use recording::Flight;

/// Bytes that are sent one by one, at most.
const ONE_BY_ONE: usize = 300;
/// Two reactions that come further apart than this, and than half of the longer one, are two kinds.
const APART: Duration = Duration::from_secs(1);

/// Extent of the probes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Connections for each probe.
    pub connections: usize,
    /// Time for which a server is watched behind the last byte.
    pub patience: Duration,
    /// Lengths of random bytes.
    pub lengths: Vec<usize>,
    /// Connections at once.
    pub at_once: usize,
    /// Start of the random bytes: a server that remembers earlier bytes must not know them.
    pub seed: u64,
}

/// Every length up to 64 bytes, where salts and headers end, and some beyond.
#[must_use]
pub fn usual_lengths() -> Vec<usize> {
    const FURTHER: [usize; 29] = [
        66, 73, 80, 82, 83, 90, 100, 115, 128, 150, 180, 200, 220, 221, 222, 256, 300, 400, 512, 700, 1000,
        1400, 1460, 2000, 4096, 16_384, 40_000, 65_536, 131_072,
    ];
    (0..=64).chain(FURTHER).collect()
}

/// The content of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// So many random bytes.
    Random(usize),
    /// Random bytes one by one.
    OneByOne,
    /// So many random bytes, and the end of the direction.
    Ended(usize),
    /// A request of HTTP/1.1.
    Http,
    /// The hello of a TLS client.
    Tls,
    /// A recorded first flight.
    Replay,
    /// The same with one byte changed: at this place.
    Changed(usize),
    /// The same with its last byte changed.
    ChangedLast,
    /// The same without its last byte.
    Cut,
    /// Bytes that the server had sent.
    Reflection,
}

/// The outcome of the connections of one probe.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Connections.
    pub connections: usize,
    /// Those still open when the time was over.
    pub open: usize,
    /// Those that the server ended.
    pub fin: usize,
    /// Those that the server reset.
    pub rst: usize,
    /// Those that it did not take.
    pub refused: usize,
    /// Those on which anything came back.
    pub answered: usize,
    /// Bytes that came back: least and most.
    pub received: (u64, u64),
    /// Milliseconds from the last byte to the end that the server chose: least, median, most.
    pub closed_after_ms: Option<(f64, f64, f64)>,
    /// Bytes that had been sent when the server ended the connection: least and most.
    pub closed_at: Option<(usize, usize)>,
}

/// The most common outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usual {
    Answer,
    Open,
    Fin,
    Rst,
    Refused,
}

impl Tally {
    fn of(reactions: &[Reaction]) -> Self {
        let ended = |end: End| reactions.iter().filter(|reaction| reaction.end == end).count();
        let closed = || reactions.iter().filter(|reaction| matches!(reaction.end, End::Fin | End::Rst));
        let times: Vec<f64> = closed().map(|reaction| reaction.after.as_secs_f64() * 1e3).collect();
        let time = |percent| percentile(&times, percent);
        let range = |values: &mut dyn Iterator<Item = u64>| {
            values.fold(None, |range: Option<(u64, u64)>, value| {
                Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
            })
        };
        let places = closed().map(|reaction| (reaction.sent, reaction.sent));
        Self {
            connections: reactions.len(),
            open: ended(End::Open),
            fin: ended(End::Fin),
            rst: ended(End::Rst),
            refused: ended(End::Refused),
            answered: reactions.iter().filter(|reaction| reaction.received > 0).count(),
            received: range(&mut reactions.iter().map(|reaction| reaction.received)).unwrap_or_default(),
            closed_after_ms: time(0).zip(time(50)).zip(time(100)).map(|((a, b), c)| (a, b, c)),
            closed_at: places.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))),
        }
    }

    /// The reaction that came most often, and its share of the connections.
    fn usual(&self) -> (Usual, f64) {
        let counts = [
            (Usual::Answer, self.answered),
            (Usual::Open, self.open),
            (Usual::Fin, self.fin),
            (Usual::Rst, self.rst),
            (Usual::Refused, self.refused),
        ];
        // The first of equals: an answer counts more than how the connection stands after it.
        let most = counts.into_iter().rev().max_by_key(|(_, count)| *count).unwrap_or((Usual::Refused, 0));
        (most.0, most.1 as f64 / self.connections.max(1) as f64)
    }

    /// Whether a prober would take the two for one reaction: shares that differ by less than a half, and where nearly
    /// all connections were ended, at about the same time. Ciphers without authentication take one probe of many for a
    /// request, so that a single connection says nothing.
    fn is_like(&self, other: &Self) -> bool {
        const APART_SHARE: f64 = 0.5;
        const NEARLY_ALL: f64 = 0.9;
        let share = |tally: &Self, count: usize| count as f64 / tally.connections.max(1) as f64;
        let shares = |tally: &Self| {
            [tally.answered, tally.open, tally.fin, tally.rst].map(|count| share(tally, count))
        };
        let alike = shares(self).iter().zip(shares(other)).all(|(a, b)| (a - b).abs() < APART_SHARE);
        let ended = |tally: &Self| share(tally, tally.fin + tally.rst) >= NEARLY_ALL && tally.answered == 0;
        let median = |tally: &Self| tally.closed_after_ms.map_or(0.0, |(_, median, _)| median);
        let (ours, theirs) = (median(self), median(other));
        let soon = (ours - theirs).abs() <= (APART.as_secs_f64() * 1e3).max(ours.max(theirs) / 2.0);
        alike && (soon || !ended(self) || !ended(other))
    }
}

/// One probe and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The probe that was sent.
    pub kind: Kind,
    /// Bytes that were sent, at most.
    pub sent: usize,
    /// The outcome.
    pub tally: Tally,
    /// Number of times that the server went on to the target of the replayed request, if that can be told.
    pub dialled: Option<u64>,
    #[serde(skip)]
    reactions: Vec<Reaction>,
}

/// All probes of one server.
#[derive(Debug, Clone, Serialize)]
pub struct Probed {
    /// The server.
    pub server: SocketAddr,
    /// Seconds for which it was watched behind the last byte of each probe.
    pub patience_s: f64,
    /// Connections whose first flight was sent again.
    pub recorded: usize,
    /// The probes, random bytes by length first.
    pub rows: Vec<Row>,
}

/// Probes `server` with random bytes and with the recorded `flights`. `dialled` counts the connections that the target
/// of those flights has seen, if it can be asked.
///
/// # Errors
/// If the server takes no connection at all.
pub fn run(
    server: SocketAddr,
    plan: &Plan,
    flights: &[Flight],
    dialled: &dyn Fn() -> Option<u64>,
) -> Result<Probed> {
    let mut random = Random::new(plan.seed);
    let mut rows = unrecorded(server, plan, &mut random);
    let refused = rows.iter().all(|row| row.tally.refused == row.tally.connections);
    ensure!(!refused, "no connection to the server to be probed: {server}");
    for kind in
        [Kind::Replay, Kind::Changed(0), Kind::Changed(16), Kind::ChangedLast, Kind::Cut, Kind::Reflection]
    {
        let shapes: Vec<Shape> =
            flights.iter().filter_map(|flight| shape(kind, flight, &mut random)).collect();
        if shapes.is_empty() {
            continue;
        }
        let before = dialled();
        let jobs: Vec<(usize, Shape)> =
            shapes.iter().cycle().take(plan.connections).map(|shape| (0, shape.clone())).collect();
        let reactions: Vec<Reaction> =
            provoke_all(server, plan, &jobs).into_iter().map(|(_, one)| one).collect();
        let dialled = before.zip(dialled()).map(|(before, after)| after.saturating_sub(before));
        let sent = jobs.iter().map(|(_, shape)| shape.bytes.len()).max().unwrap_or_default();
        rows.push(Row { kind, sent, tally: Tally::of(&reactions), dialled, reactions });
    }
    Ok(Probed { server, patience_s: plan.patience.as_secs_f64(), recorded: flights.len(), rows })
}

/// The probes that take no recording, mixed with each other, so that a slow moment does not fall on one length.
fn unrecorded(server: SocketAddr, plan: &Plan, random: &mut Random) -> Vec<Row> {
    let kinds = plan.lengths.iter().map(|len| Kind::Random(*len));
    let others = [Kind::OneByOne, Kind::Ended(0), Kind::Ended(16), Kind::Ended(100), Kind::Http, Kind::Tls];
    let kinds: Vec<Kind> = kinds.chain(others).collect();
    let mut jobs: Vec<(usize, Shape)> = (0..plan.connections)
        .flat_map(|_| 0..kinds.len())
        .filter_map(|at| Some((at, shape(kinds[at], &Flight::default(), random)?)))
        .collect();
    for last in (1..jobs.len()).rev() {
        let other = random.below(u32::try_from(last + 1).unwrap_or(u32::MAX)) as usize;
        jobs.swap(last, other);
    }
    let mut reactions = vec![Vec::new(); kinds.len()];
    for (at, reaction) in provoke_all(server, plan, &jobs) {
        reactions[at].push(reaction);
    }
    let rows = kinds.into_iter().zip(reactions).map(|(kind, reactions)| {
        let sent = reactions.iter().map(|reaction| reaction.sent).max().unwrap_or_default();
        Row { kind, sent, tally: Tally::of(&reactions), dialled: None, reactions }
    });
    rows.collect()
}

/// Sends each shape over a connection of its own.
fn provoke_all(server: SocketAddr, plan: &Plan, jobs: &[(usize, Shape)]) -> Vec<(usize, Reaction)> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    thread::scope(|scope| {
        for _ in 0..plan.at_once.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some((at, shape)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let reaction = provoke(server, shape, plan.patience);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((*at, reaction));
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes to send for `kind`, from the recorded flight where `kind` needs one; `None` if that is too short.
fn shape(kind: Kind, flight: &Flight, random: &mut Random) -> Option<Shape> {
    let mut bytes =
        |len: usize| -> Vec<u8> { (0..len).map(|_| random.next_u64().to_le_bytes()[0]).collect() };
    let mut up = flight.up.clone();
    match kind {
        Kind::Random(len) => return Some(Shape::whole(bytes(len))),
        Kind::Ended(len) => return Some(Shape { ends: true, ..Shape::whole(bytes(len)) }),
        Kind::OneByOne => return Some(Shape { one_by_one: true, ..Shape::whole(bytes(ONE_BY_ONE)) }),
        Kind::Http => up = b"GET / HTTP/1.1\r\nHost: www.example.com\r\nAccept: */*\r\n\r\n".to_vec(),
        Kind::Tls => up = hello(&bytes(32)),
        Kind::Replay => {}
        Kind::Changed(at) => *up.get_mut(at)? ^= 0x10,
        Kind::ChangedLast => *up.last_mut()? ^= 0x10,
        Kind::Cut => drop(up.pop()?),
        Kind::Reflection => up.clone_from(&flight.down),
    }
    (!up.is_empty()).then(|| Shape::whole(up))
}

/// A TLS 1.2 hello (RFC 5246, section 7.4.1.2) with one cipher and one curve.
fn hello(random: &[u8]) -> Vec<u8> {
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0, 0, 13, 0, 4, 0, 2, 4, 3];
    let ciphers = [0, 2, 0xc0, 0x2b, 1, 0, 0, extensions.len().to_le_bytes()[0]];
    let body = [&[3, 3][..], random, &[0], &ciphers, &extensions].concat();
    let len = u16::try_from(body.len()).unwrap_or(0);
    let [high, low] = len.to_be_bytes();
    let [record_high, record_low] = (len + 4).to_be_bytes();
    [&[0x16, 3, 1, record_high, record_low, 1, 0, high, low][..], &body].concat()
}

#[cfg(test)]
mod tests;
