//! The treatment of connections until they have authenticated.
//!
//! The reaction is the same silence for every kind of wrong bytes: nothing is sent, bytes are read and
//! thrown away up to a bound, and one deadline per process start, which data does not move, closes the connection.
//! HTTP obfuscation answers like the web server it claims to be.

use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use adit_model::ObfsServer;
use adit_model::codes::{self, Code};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::http;
use adit_proto::wire::{Rng, WireError};

use super::Inbound;
use crate::admission::guard::Ticket;
use crate::counters::RefusedCounters;
use crate::errors::{ConfigPart, Fault, Tell};
use crate::log_throttle::skew;
use crate::relay::discard::{discard_all, discard_bytes, discard_received};
use crate::rng::OsRng;

/// Range of the deadline of unauthenticated connections in seconds; the deadline is drawn once per start.
const DEADLINE_S: (u64, u64) = (60, 180);
/// Bytes of an unauthenticated connection that are read and thrown away at any rate; beyond them the core's rate counts.
const DISCARD_LEN: usize = 1 << 20;
/// Bytes that may wait in the system when a refused connection ends: more than a receive buffer of Linux holds.
const RECEIVED_LEN: usize = 16 << 20;
/// A refused connection ends at a whole number of these before its deadline, so that the time of its end does not tell
/// what was tried.
const GRID: Duration = Duration::from_millis(5);
/// First size of a request's buffer in bytes: a first segment fits.
pub(crate) const FIRST_READ: usize = 2048;
/// Time that a last message has to reach the client before the connection closes.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// Why an unauthenticated connection is not served.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Its bytes are wrong.
    Wire(WireError),
    /// It has shown the key, for the first time with this salt, and asks for something that does not exist. It learns so at
    /// once, by the end of the connection: nobody else can make such bytes, and a recording of them is none for the first time.
    Request(WireError),
    /// Its obfuscation is wrong.
    Obfs(WireError),
    /// Its source has used up its key derivations.
    Throttled,
    /// It ended, or broke, before it had said anything.
    Gone,
    /// The same, and the time at which that may show has come.
    GoneAtTick,
    /// It took too long.
    Late,
    /// It had to make room for another one.
    Evicted,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) | Self::Request(error) => error.fmt(f),
            Self::Obfs(error) => write!(f, "obfs: {error}"),
            Self::Throttled => f.write_str("too many failed keys from this source"),
            Self::Gone | Self::GoneAtTick => f.write_str("it closed before a request"),
            Self::Late => f.write_str("no request in time"),
            Self::Evicted => f.write_str("it made room for others"),
        }
    }
}

/// Draws the time after which unauthenticated connections are closed, 60 to 180 s; to be called once per start.
pub(crate) fn draw_deadline() -> Duration {
    let (min, max) = DEADLINE_S;
    let spread = u32::try_from((max - min) * 1000).expect("minutes");
    Duration::from_secs(min) + Duration::from_millis(OsRng.below(spread).into())
}

/// Returns when the connection has to make room.
pub(crate) async fn evicted(ticket: &Ticket) {
    poll_fn(|cx| if ticket.poll_evicted(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Drives `handshake` until it ends, the deadline `until` passes, or the connection is evicted.
pub(crate) async fn in_time<T>(
    ticket: &Ticket,
    until: Instant,
    handshake: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let late = async {
        rt::sleep_until(until).await;
        Err(Refusal::Late)
    };
    let evicted = async {
        evicted(ticket).await;
        Err(Refusal::Evicted)
    };
    rt::race(rt::race(late, evicted), handshake).await
}

/// Reads once, behind the unread bytes. A buffer that is full is replaced by one of `longest` bytes.
pub(crate) async fn receive(stream: &Stream, wire: &mut RecvBuf, longest: usize) -> Result<usize, Refusal> {
    if wire.free_mut().is_empty() {
        let mut larger = RecvBuf::with_len(longest);
        larger.extend(wire.unread());
        *wire = larger;
    }
    let received = stream.recv(wire.free_mut()).await.map_err(|_| Refusal::Gone)?;
    if received == 0 {
        return Err(Refusal::Gone);
    }
    wire.filled(received);
    Ok(received)
}

/// The uniform reaction to a connection that did not authenticate. `obfs` is the inbound's obfuscation.
pub(crate) async fn leave_alone(
    inbound: &Inbound,
    stream: &Stream,
    ticket: &Ticket,
    refusal: &Refusal,
    obfs: ObfsServer,
    until: Instant,
) {
    note(inbound, ticket, refusal, true);
    hold(inbound, stream, ticket, refusal, obfs, until).await;
}

/// The same for a client that is noted already.
pub(crate) async fn hold(
    inbound: &Inbound,
    stream: &Stream,
    ticket: &Ticket,
    refusal: &Refusal,
    obfs: ObfsServer,
    until: Instant,
) {
    count(&inbound.metrics.refused, refusal);
    match refusal {
        Refusal::Gone | Refusal::GoneAtTick | Refusal::Late | Refusal::Evicted | Refusal::Request(_) => {}
        Refusal::Obfs(_) if obfs == ObfsServer::Http => {
            // The answer of a web server to bytes that are not HTTP.
            let mut answer = Vec::new();
            http::emit_error(http::Status::BadRequest, http::HttpVersion::Http11, false, false, &mut answer);
            if stream.send_all(&answer).await.is_ok() {
                drop(stream.shutdown_write());
                let discard = async {
                    discard_bytes(stream, &inbound.core.pool, DISCARD_LEN).await;
                };
                rt::timeout(LINGER, rt::race(evicted(ticket), discard)).await.ok();
            }
        }
        Refusal::Wire(_) | Refusal::Obfs(_) | Refusal::Throttled => {
            let stop = rt::race(rt::sleep_until(until), evicted(ticket));
            let delay = |len| inbound.guard.delay_discard(len, rt::now());
            rt::race(stop, discard_all(stream, &inbound.core.pool, DISCARD_LEN, delay)).await;
        }
    }
    if !ticket.is_evicted() && !matches!(refusal, Refusal::GoneAtTick | Refusal::Request(_)) {
        rt::sleep_until(next_tick(until, rt::now())).await;
    }
    // The end is a FIN, even if bytes have come that nobody has read.
    drop(stream.shutdown_write());
    discard_received(stream, &inbound.core.pool, RECEIVED_LEN).await;
}

/// The next time at which a refused connection with the deadline `until` may end.
pub(crate) fn next_tick(until: Instant, now: Instant) -> Instant {
    let left = until.saturating_duration_since(now).as_nanos();
    let ticks = u32::try_from(left / GRID.as_nanos()).unwrap_or(u32::MAX);
    until.checked_sub(GRID * ticks).unwrap_or(now).max(now)
}

/// Notes a client that is refused as the inbound's last error, with a line of the log if nobody else writes one: a failure
/// of its key has a line for each source.
pub(crate) fn note(inbound: &Inbound, ticket: &Ticket, refusal: &Refusal, has_line: bool) {
    let source = ticket.source();
    let (code, tell, why) = match refusal {
        Refusal::Gone | Refusal::GoneAtTick | Refusal::Late | Refusal::Evicted => return,
        Refusal::Throttled | Refusal::Wire(WireError::Authentication { .. }) | Refusal::Obfs(_) => {
            let why = "no key opens its first bytes: wrong key, method or version, or a probe".to_owned();
            (codes::AUTH_CLIENT, Tell::Nothing, why)
        }
        Refusal::Wire(WireError::Clock { offset_s, window_s }) => {
            let why =
                format!("{}, or an old connection was replayed", skew("the client's", *offset_s, *window_s));
            (codes::CLOCK_CLIENT, Tell::Warn, why)
        }
        Refusal::Wire(error @ WireError::Replayed { .. }) => {
            (codes::AUTH_REPLAY, Tell::Info, error.to_string())
        }
        Refusal::Wire(error) | Refusal::Request(error) => {
            (codes::AUTH_REQUEST, Tell::Info, error.to_string())
        }
    };
    note_as(inbound, source, code, &why, if has_line { tell } else { Tell::Nothing });
}

/// Counts and notes the request of a client that has authenticated, and that has its answer from the protocol.
pub(crate) fn refuse_request(inbound: &Inbound, source: IpAddr, error: &WireError) {
    count_error(&inbound.metrics.refused, error);
    note_as(inbound, source, codes::AUTH_REQUEST, &error.to_string(), Tell::Info);
}

fn note_as(inbound: &Inbound, source: impl fmt::Display, code: Code, why: &str, tell: Tell) {
    let fault = Fault::new(code, format!("client {source} refused: {why}"));
    let part = ConfigPart::Inbound(inbound.name.clone());
    inbound.origin.live.outbounds().watches().faults().note_as(&part, fault, rt::now(), tell);
}

pub(crate) fn count(refused: &RefusedCounters, refusal: &Refusal) {
    let counter = match refusal {
        Refusal::Throttled => &refused.authentication,
        Refusal::Gone | Refusal::GoneAtTick => &refused.aborted,
        Refusal::Late => &refused.deadline,
        Refusal::Evicted => &refused.overload,
        Refusal::Wire(error) | Refusal::Obfs(error) | Refusal::Request(error) => {
            return count_error(refused, error);
        }
    };
    counter.add(1);
}

fn count_error(refused: &RefusedCounters, error: &WireError) {
    let counter = match error {
        WireError::Authentication { .. } => &refused.authentication,
        WireError::Replayed { .. } => &refused.replay,
        WireError::Clock { .. } => &refused.clock,
        WireError::Unsupported { .. } => &refused.unsupported,
        WireError::Malformed { .. }
        | WireError::Truncated { .. }
        | WireError::Remote { .. }
        | WireError::Exhausted { .. } => &refused.malformed,
    };
    counter.add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_lie_on_a_grid_that_the_arrival_sets() {
        let arrival = rt::now();
        let until = arrival + draw_deadline();
        let mut ticks = std::collections::BTreeSet::new();
        for us in (0..20_000).step_by(37) {
            let now = arrival + Duration::from_micros(us);
            let tick = next_tick(until, now);
            assert!(tick >= now && tick < now + GRID);
            ticks.insert(tick);
        }
        assert!(ticks.len() <= 5, "{}", ticks.len());
        assert_eq!(next_tick(until, until), until);
        let late = until + Duration::from_secs(1);
        assert_eq!(next_tick(until, late), late, "never in the past");
    }
}
