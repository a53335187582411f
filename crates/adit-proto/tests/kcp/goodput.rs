//! Goodput of whole stacks over the path of the tables of kcptun's users, on simulated time.

use std::time::{Duration, Instant};

use adit_proto::kcp::arq;
use adit_proto::kcp::crypt::Method;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::{self, Mux, Received, Role, StreamId, Version};
use adit_testkit::epoch;
use adit_testkit::netem::{Conditions, Link, Loss};

use super::stack::{Carrier, Setup, kcptun};

/// Bulk in one direction, counted from `from` to `until`.
struct Path {
    mbit: u64,
    rtt_ms: u64,
    loss: Loss,
    queue_len: usize,
    from: Duration,
    until: Duration,
}

struct Outcome {
    /// MB/s that the reader got.
    goodput: f64,
    /// Share of the sender's packets that the queue dropped, in percent.
    overflow: f64,
    /// PUSH segments that were sent again, in percent.
    again: f64,
    /// Highest payload held by either end, in MiB.
    held: f64,
    /// Longest round trip that a packet sent now would see: delay and queue, at the end.
    rtt_ms: u128,
}

struct End {
    carrier: Carrier,
    mux: Mux,
    pending: Vec<u8>,
}

struct Stack {
    setup: Setup,
    mux: smux::Settings,
}

impl End {
    fn new(role: Role, stack: &Stack, now: Instant) -> Self {
        let seed = u64::from(role == Role::Client);
        Self {
            carrier: Carrier::new(&stack.setup, seed, now),
            mux: Mux::new(role, stack.mux.clone(), now),
            pending: Vec::new(),
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
            self.carrier.transmit(now, |datagram| {
                any = true;
                link.send(datagram, now);
            });
            if !any {
                return;
            }
        }
    }
}

fn run(stack: &Stack, path: &Path) -> Outcome {
    let start = epoch();
    let conditions = Conditions {
        rate: path.mbit * 1_000_000,
        queue_len: path.queue_len,
        overhead: 28,
        delay: Duration::from_millis(path.rtt_ms) / 2,
        loss: path.loss,
        ..Conditions::default()
    };
    let mut links = [Link::new(conditions, 1), Link::new(conditions, 2)];
    let mut ends = [End::new(Role::Client, stack, start), End::new(Role::Server, stack, start)];
    let id = ends[0].mux.open().expect("the first stream");
    ends[0].mux.send(id, b"get");
    let mut now = start;
    let mut counted = 0;
    let mut held = 0;
    let mut next_look = start;
    while now < start + path.until {
        fill(&mut ends[1].mux, id);
        for (end, link) in ends.iter_mut().zip(&mut links) {
            end.write(now, link);
        }
        let times = ends.iter().flat_map(|end| [end.carrier.arq.poll_timeout(), end.mux.poll_timeout()]);
        let times = times.chain(links.iter().map(Link::poll_timeout)).flatten();
        now = now.max(times.min().expect("keep-alives go on"));
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(datagram) = links[from].poll(now) {
                ends[to].carrier.handle(datagram, now);
            }
            ends[to].read();
        }
        let read = drain(&mut ends[0].mux, id, now);
        if now >= start + path.from {
            counted += read;
        }
        if now >= next_look {
            next_look = now + Duration::from_millis(100);
            held =
                held.max(ends.iter().map(|end| end.carrier.arq.held() + end.mux.held()).max().unwrap_or(0));
        }
    }
    outcome(&ends[1], links[1].fates(), counted, held, path)
}

#[expect(clippy::cast_precision_loss, reason = "for a table")]
fn outcome(
    sender: &End,
    fates: adit_testkit::netem::Fates,
    counted: usize,
    held: usize,
    path: &Path,
) -> Outcome {
    let stats = sender.carrier.arq.stats();
    Outcome {
        goodput: counted as f64 / (path.until - path.from).as_secs_f64() / 1e6,
        overflow: 100.0 * fates.overflowed as f64 / fates.sent as f64,
        again: 100.0 * stats.sent_again as f64 / stats.sent as f64,
        held: held as f64 / f64::from(1 << 20),
        rtt_ms: sender.carrier.arq.round_trip().unwrap_or_default().as_millis(),
    }
}

/// The server's source never runs dry.
fn fill(mux: &mut Mux, id: StreamId) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while mux.poll_event().is_some() {}
    mux.send(id, &ZEROS);
}

fn drain(mux: &mut Mux, id: StreamId, now: Instant) -> usize {
    while mux.poll_event().is_some() {}
    let mut out = vec![0; 64 << 10];
    let mut read = 0;
    while let Received::Bytes(len) = mux.recv(id, &mut out, now) {
        read += len;
    }
    read
}

/// kcptun 20210922 as it comes: mode fast, windows of 1024 and 512, FEC 10/3, smux 1 (a window of 4 MiB here).
fn defaults() -> Stack {
    Stack {
        setup: Setup {
            method: Method::Aes128,
            shards: Shards::new(10, 3),
            mtu: 1350,
            arq: kcptun(false, 30, 1024, 512),
        },
        mux: smux::Settings { version: Version::V1, ..smux::Settings::default() },
    }
}

/// The setting that reaches the link by flooding it.
fn flooding() -> Stack {
    Stack {
        setup: Setup {
            method: Method::Aes128,
            shards: None,
            mtu: 1400,
            arq: arq::Settings { resend: 0, ..kcptun(false, 10, 65_535, 65_535) },
        },
        mux: smux::Settings { version: Version::V1, ..smux::Settings::default() },
    }
}

/// What adit does without flags.
fn tuned() -> Stack {
    Stack {
        setup: Setup {
            method: Method::Aes128,
            shards: None,
            mtu: 1350,
            arq: arq::Settings {
                ack_delay: Duration::from_millis(2),
                tuning: Some(64 << 20),
                ..kcptun(false, 30, 65_535, 65_535)
            },
        },
        mux: smux::Settings {
            receive_buffer: 64 << 20,
            max_stream_window: 64 << 20,
            ..smux::Settings::default()
        },
    }
}

/// A stack's name, and how it is made.
type Named = (&'static str, fn() -> Stack);

fn table(paths: &[(u64, u64, Loss)], seconds: (u64, u64), stacks: &[Named]) -> String {
    let mut table = String::from(
        "Mbit/s RTT ms loss                     stack     MB/s  overflow %  again %  held MiB  srtt ms\n",
    );
    for (mbit, rtt_ms, loss) in paths {
        let (mbit, rtt_ms, loss) = (*mbit, *rtt_ms, *loss);
        let (from, until) = (Duration::from_secs(seconds.0), Duration::from_secs(seconds.1));
        let path = Path { mbit, rtt_ms, loss, queue_len: 1_250_000, from, until };
        for (name, stack) in stacks {
            let Outcome { goodput, overflow, again, held, rtt_ms: srtt } = run(&stack(), &path);
            let loss = match loss {
                Loss::None => "0".into(),
                Loss::Random(share) => format!("{} %", share * 100.0),
                Loss::Burst { enter, leave } => format!("burst {enter}/{leave}"),
            };
            table += &format!(
                "{mbit:6} {rtt_ms:6} {loss:24} {name:8} {goodput:5.2} {overflow:11.2} {again:8.2} {held:9.2} {srtt:8}\n"
            );
        }
    }
    table
}

/// Compares a table with the one that is kept: exact numbers, since nothing in them depends on the machine. A change
/// that moves them is to be looked at, and the file written anew.
fn compare(found: &str, known: &str) {
    assert!(found == known, "known:\n{known}\nfound:\n{found}");
}

const LOSSES: [Loss; 3] = [Loss::None, Loss::Random(0.01), Loss::Random(0.05)];

/// A narrow link, so that it takes no time.
#[test]
fn narrow_rows() {
    let paths: Vec<_> = [20, 100].into_iter().flat_map(|rtt| LOSSES.map(|loss| (10, rtt, loss))).collect();
    compare(&table(&paths, (2, 5), &[("tuned", tuned)]), include_str!("narrow.txt"));
}

/// The rows of the tables that users know.
#[test]
#[ignore = "a minute without optimisation"]
fn known_rows() {
    let paths: Vec<_> =
        [20, 100, 300].into_iter().flat_map(|rtt| LOSSES.map(|loss| (100, rtt, loss))).collect();
    let stacks: [Named; 3] = [("defaults", defaults), ("flooding", flooding), ("tuned", tuned)];
    compare(&table(&paths, (3, 15), &stacks), include_str!("known.txt"));
}

#[test]
#[ignore = "prints a table; half a minute with optimisation"]
fn tuned_grid() {
    let burst = Loss::Burst { enter: 0.002, leave: 0.1 };
    let mut paths = Vec::new();
    for loss in [Loss::None, Loss::Random(0.01), Loss::Random(0.05), burst] {
        for rtt in [20, 100, 300] {
            paths.push((100, rtt, loss));
        }
        paths.push((10, 100, loss));
        paths.push((500, 100, loss));
    }
    println!("{}", table(&paths, (3, 15), &[("tuned", tuned)]));
}

#[test]
#[ignore = "prints a table; half a minute in release mode"]
fn whole_grid() {
    let burst = Loss::Burst { enter: 0.002, leave: 0.1 };
    let mut paths = Vec::new();
    for loss in [Loss::None, Loss::Random(0.01), Loss::Random(0.05), burst] {
        for rtt in [20, 100, 300] {
            paths.push((100, rtt, loss));
        }
        paths.push((10, 100, loss));
        paths.push((500, 100, loss));
    }
    println!(
        "{}",
        table(&paths, (3, 15), &[("defaults", defaults), ("flooding", flooding), ("tuned", tuned)])
    );
}
