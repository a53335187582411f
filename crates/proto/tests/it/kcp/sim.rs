//! Two whole stacks and the path between them, on simulated time.

use std::time::{Duration, Instant};

use adit_proto::kcp::arq;
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::{self, Mux, SmuxEvent, SmuxReceived, SmuxRole, SmuxVersion, StreamId};
use adit_testkit::epoch;
use adit_testkit::netem::{Conditions, Link, Loss};

use super::cubic::{Cubic, PACKET_LEN};
use super::stack::{Carrier, Setup, kcptun};

/// Bytes below a datagram, less the one that says whose it is here.
const OVERHEAD: usize = 27;
/// Owner of a packet: its last byte.
const OURS: u8 = 0;
const RIVAL: u8 = 1;
/// Between two pings.
const PING: Duration = Duration::from_millis(150);

/// Bulk from the server to the client, counted from `from` to `until`.
pub(crate) struct Path {
    pub(crate) mbit: u64,
    pub(crate) rtt_ms: u64,
    pub(crate) loss: Loss,
    /// Bytes.
    pub(crate) queue_len: usize,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    /// A TCP flow that goes the same way, from this time on.
    pub(crate) rival_at: Option<Duration>,
    /// The client's, where the ends differ.
    pub(crate) client: Option<Stack>,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    /// MB/s that the reader got.
    pub(crate) goodput: f64,
    /// Share of the sender's packets that the queue dropped, in percent.
    pub(crate) overflow: f64,
    /// Parity among the sender's packets, in percent.
    pub(crate) parity: f64,
    /// PUSH segments that were sent again, in percent.
    pub(crate) again: f64,
    /// Highest payload held by either end, in MiB.
    pub(crate) held: f64,
    /// Time until the answer to a byte on a stream of its own, in milliseconds: the middle, and the 99th percentile.
    pub(crate) ping: (u128, u128),
    /// Share of the rival, in percent of the link.
    pub(crate) rival: f64,
}

pub(crate) struct End {
    pub(crate) carrier: Carrier,
    mux: Mux,
    pending: Vec<u8>,
    sent: u64,
    overflowed: u64,
}

pub(crate) struct Stack {
    pub(crate) setup: Setup,
    pub(crate) mux: smux::SmuxSettings,
}

impl End {
    fn new(role: SmuxRole, stack: &Stack, now: Instant) -> Self {
        let seed = u64::from(role == SmuxRole::Client);
        Self {
            carrier: Carrier::new(&stack.setup, seed, now),
            mux: Mux::new(role, stack.mux.clone(), now),
            pending: Vec::new(),
            sent: 0,
            overflowed: 0,
        }
    }

    /// From the carrier to the streams, as far as they take it.
    fn read(&mut self) {
        if let Some(round_trip) = self.carrier.arq.round_trip() {
            self.mux.set_round_trip(round_trip);
        }
        while !self.carrier.arq.peek().is_empty() {
            let taken = self.mux.handle_input(self.carrier.arq.peek()).expect("legal frames");
            if taken == 0 {
                break;
            }
            self.carrier.arq.consume(taken);
        }
    }

    /// From the streams to the carrier, as far as that has room.
    fn write(&mut self, now: Instant, link: &mut Link) {
        self.mux.handle_timeout(now);
        loop {
            while self.carrier.arq.room() > 0 {
                if self.pending.is_empty() && !self.mux.poll_transmit(&mut self.pending, 1) {
                    break;
                }
                let sent = self.carrier.arq.send(&self.pending);
                self.pending.drain(..sent);
            }
            let mut any = false;
            let overflowed = link.fates().overflowed;
            self.carrier.transmit(now, |mut datagram| {
                any = true;
                self.sent += 1;
                datagram.push(OURS);
                link.send(datagram, now);
            });
            self.overflowed += link.fates().overflowed - overflowed;
            if !any {
                return;
            }
        }
    }

    fn held(&self) -> usize {
        self.carrier.arq.held() + self.mux.held()
    }
}

/// Everything that there is.
struct World {
    ends: [End; 2],
    links: [Link; 2],
    bulk: StreamId,
    /// The ping that is under way.
    ping: Option<(StreamId, Instant)>,
    pings: Vec<Duration>,
    rival: Option<Cubic>,
    rival_len: usize,
    buffer: Vec<u8>,
}

pub(crate) fn run(stack: &Stack, path: &Path) -> Outcome {
    let start = epoch();
    let mut world = World::new(stack, path, start);
    let mut now = start;
    let mut counted = 0;
    let mut held = 0;
    let mut next_look = start;
    let mut ping_at = start + path.from;
    while now < start + path.until {
        if now >= ping_at {
            ping_at = now + PING;
            world.ping(now);
        }
        let times = [world.step(now), Some(ping_at)].into_iter().flatten();
        now = now.max(times.min().expect("pings go on"));
        world.start_rival(path, start, now);
        let is_counted = now >= start + path.from;
        let read = world.receive(now, is_counted);
        if is_counted {
            counted += read;
        }
        if now >= next_look {
            next_look = now + Duration::from_millis(100);
            held = held.max(world.ends.iter().map(End::held).max().unwrap_or(0));
        }
    }
    world.outcome(path, counted, held)
}

impl World {
    fn new(stack: &Stack, path: &Path, start: Instant) -> Self {
        let conditions = Conditions {
            rate: path.mbit * 1_000_000,
            queue_len: path.queue_len,
            overhead: OVERHEAD,
            delay: Duration::from_millis(path.rtt_ms) / 2,
            loss: path.loss,
            ..Conditions::default()
        };
        let mut ends = [
            End::new(SmuxRole::Client, path.client.as_ref().unwrap_or(stack), start),
            End::new(SmuxRole::Server, stack, start),
        ];
        let bulk = ends[0].mux.open().expect("the first stream");
        ends[0].mux.send(bulk, b"get");
        Self {
            ends,
            links: [Link::new(conditions, 1), Link::new(conditions, 2)],
            bulk,
            ping: None,
            pings: Vec::new(),
            rival: None,
            rival_len: 0,
            buffer: vec![0; 64 << 10],
        }
    }

    fn ping(&mut self, now: Instant) {
        if self.ping.is_none() {
            let id = self.ends[0].mux.open().expect("few streams");
            self.ends[0].mux.send(id, b"?");
            self.ping = Some((id, now));
        }
    }

    fn start_rival(&mut self, path: &Path, start: Instant, now: Instant) {
        if self.rival.is_none() && path.rival_at.is_some_and(|at| now >= start + at) {
            self.rival = Some(Cubic::new(now));
        }
    }

    /// Everybody sends; returns when something happens next.
    fn step(&mut self, now: Instant) -> Option<Instant> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        self.ends[1].mux.send(self.bulk, &ZEROS);
        for (end, link) in self.ends.iter_mut().zip(&mut self.links) {
            end.write(now, link);
        }
        if let Some(rival) = &mut self.rival {
            rival.handle_timeout(now);
            while let Some(number) = rival.poll_send(now) {
                self.links[1].send(packet(number, PACKET_LEN - OVERHEAD), now);
            }
        }
        let times = self.ends.iter().flat_map(|end| [end.carrier.arq.poll_timeout(), end.mux.poll_timeout()]);
        let rival = self.rival.as_ref().map(Cubic::timeout);
        times.chain(self.links.iter().map(Link::poll_timeout)).chain([rival]).flatten().min()
    }

    /// Takes what has arrived; returns how much of the bulk was read.
    fn receive(&mut self, now: Instant, is_counted: bool) -> usize {
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(mut datagram) = self.links[from].poll(now) {
                match (datagram.pop(), to) {
                    (Some(OURS), _) => self.ends[to].carrier.handle(datagram, now),
                    (_, 0) => {
                        self.rival_len += if is_counted { PACKET_LEN } else { 0 };
                        datagram.truncate(8);
                        self.links[0].send(packet(number(&datagram), 13), now);
                    }
                    _ => {
                        let rival = self.rival.as_mut().expect("it has sent");
                        rival.handle_ack(number(&datagram), now);
                    }
                }
            }
            self.ends[to].read();
        }
        self.answer(now);
        while self.ends[0].mux.poll_event().is_some() {}
        if let Some((id, asked_at)) = self.ping
            && self.recv(0, id, now) > 0
        {
            self.pings.push(now - asked_at);
            self.ends[0].mux.close(id);
            self.ping = None;
        }
        self.recv(0, self.bulk, now)
    }

    /// The server answers pings.
    fn answer(&mut self, now: Instant) {
        while let Some(event) = self.ends[1].mux.poll_event() {
            if let SmuxEvent::Readable(id) = event
                && id != self.bulk
                && self.recv(1, id, now) > 0
            {
                self.ends[1].mux.send(id, b"!");
                self.ends[1].mux.finish(id);
                self.ends[1].mux.close(id);
            }
        }
    }

    fn recv(&mut self, end: usize, id: StreamId, now: Instant) -> usize {
        let mut read = 0;
        while let SmuxReceived::Bytes(len) = self.ends[end].mux.recv(id, &mut self.buffer, now) {
            read += len;
        }
        read
    }

    #[expect(clippy::cast_precision_loss, reason = "for a table")]
    fn outcome(mut self, path: &Path, counted: usize, held: usize) -> Outcome {
        let sender = &self.ends[1];
        let stats = sender.carrier.arq.stats();
        let seconds = (path.until - path.from).as_secs_f64();
        self.pings.sort_unstable();
        let rank = |percent: usize| {
            self.pings.get((self.pings.len() * percent / 100).min(self.pings.len().saturating_sub(1)))
        };
        let [middle, last] = [50, 99].map(|percent| rank(percent).map_or(0, Duration::as_millis));
        Outcome {
            goodput: counted as f64 / seconds / 1e6,
            overflow: 100.0 * sender.overflowed as f64 / sender.sent as f64,
            parity: 100.0 * sender.carrier.parity as f64 / sender.sent as f64,
            again: 100.0 * stats.sent_again as f64 / stats.sent as f64,
            held: held as f64 / f64::from(1 << 20),
            ping: (middle, last),
            rival: 100.0 * self.rival_len as f64 * 8e-6 / seconds / path.mbit as f64,
        }
    }
}

fn packet(number: u64, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[..8].copy_from_slice(&number.to_le_bytes());
    packet[len - 1] = RIVAL;
    packet
}

fn number(packet: &[u8]) -> u64 {
    u64::from_le_bytes(*packet.first_chunk().expect("a number"))
}

/// kcptun 20210922 as it comes: mode fast, windows of 1024 and 512, FEC 10/3, smux 1 (a window of 4 MiB here).
pub(crate) fn defaults() -> Stack {
    Stack {
        setup: Setup {
            method: KcpMethod::Aes128,
            shards: Shards::new(10, 3),
            follows: false,
            mtu: 1350,
            arq: kcptun(false, 30, 1024, 512),
        },
        mux: smux::SmuxSettings { version: SmuxVersion::V1, ..smux::SmuxSettings::default() },
    }
}

/// The setting that reaches the link by flooding it.
pub(crate) fn flooding() -> Stack {
    Stack {
        setup: Setup {
            method: KcpMethod::Aes128,
            shards: None,
            follows: false,
            mtu: 1400,
            arq: arq::ArqSettings { resend: 0, ..kcptun(false, 10, 65_535, 65_535) },
        },
        mux: smux::SmuxSettings { version: SmuxVersion::V1, ..smux::SmuxSettings::default() },
    }
}

/// adit's stack without flags, with 32 MiB for a session.
pub(crate) fn tuned() -> Stack {
    const MEMORY: usize = 32 << 20;
    Stack {
        setup: Setup {
            method: KcpMethod::Aes128,
            shards: Shards::new(10, 3),
            follows: true,
            mtu: 1350,
            arq: arq::ArqSettings {
                ack_delay: Duration::from_millis(2),
                tuning: Some(32 << 20),
                max_recv_window: u16::try_from(MEMORY / 1350).expect("16 bits"),
                ..kcptun(false, 30, 65_535, 1024)
            },
        },
        mux: smux::SmuxSettings {
            receive_buffer: MEMORY,
            max_stream_window: 32 << 20,
            ..smux::SmuxSettings::default()
        },
    }
}
