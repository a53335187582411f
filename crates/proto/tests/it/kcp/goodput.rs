//! Goodput of whole stacks over the path of the tables of kcptun's users, and the bars that it has to hold.

use std::fmt::Write as _;
use std::time::Duration;

use adit_proto::smux::{self, SmuxVersion};
use adit_testkit::netem::Loss;

use super::sim::{Path, Stack, defaults, flooding, run, tuned};
use super::stack::Setup;

/// The queue of the tables.
const QUEUE_LEN: usize = 1_250_000;

/// A stack's name, and how it is made.
type Named = (&'static str, fn() -> Stack);

fn path(mbit: u64, rtt_ms: u64, loss: Loss, seconds: (u64, u64)) -> Path {
    let (from, until) = (Duration::from_secs(seconds.0), Duration::from_secs(seconds.1));
    Path { mbit, rtt_ms, loss, queue_len: QUEUE_LEN, from, until, rival_at: None, client: None }
}

fn table(paths: &[(u64, u64, Loss)], seconds: (u64, u64), stacks: &[Named]) -> String {
    let mut table = String::from(
        "Mbit/s RTT ms loss             stack     MB/s  overflow %  again %  held MiB  ping ms (50, 99 %)\n",
    );
    for &(mbit, rtt_ms, loss) in paths {
        for (name, stack) in stacks {
            let found = run(&stack(), &path(mbit, rtt_ms, loss, seconds));
            let loss = loss_name(loss);
            let (goodput, overflow, again, held) = (found.goodput, found.overflow, found.again, found.held);
            let (middle, last) = found.ping;
            writeln!(
                table,
                "{mbit:6} {rtt_ms:6} {loss:16} {name:8} {goodput:5.2} {overflow:11.2} {again:8.2} {held:9.2} {middle:8} {last:8}"
            )
            .expect("a string takes everything");
        }
    }
    table
}

fn loss_name(loss: Loss) -> String {
    match loss {
        Loss::None => "0".into(),
        Loss::Random(share) => format!("{} %", share * 100.0),
        Loss::Burst { enter, leave } => format!("burst {enter}/{leave}"),
    }
}

/// Compares a table with the one that is kept: exact numbers, since nothing in them depends on the machine. A change
/// that moves them is to be looked at, and the file written anew.
fn compare(found: &str, known: &str) {
    assert!(found == known, "known:\n{known}\nfound:\n{found}");
}

const LOSSES: [Loss; 3] = [Loss::None, Loss::Random(0.01), Loss::Random(0.05)];
const BURST: Loss = Loss::Burst { enter: 0.002, leave: 0.1 };

/// A narrow link, so that it takes no time.
#[test]
fn narrow_rows() {
    let paths: Vec<_> = [20, 100].into_iter().flat_map(|rtt| LOSSES.map(|loss| (10, rtt, loss))).collect();
    compare(&table(&paths, (2, 5), &[("tuned", tuned)]), include_str!("narrow.txt"));
}

/// The rows of the tables that users know.
#[test]
#[ignore = "minutes without optimisation"]
fn known_rows() {
    let mut paths: Vec<_> =
        [20, 100, 300].into_iter().flat_map(|rtt| LOSSES.map(|loss| (100, rtt, loss))).collect();
    paths.extend([20, 100, 300].map(|rtt| (100, rtt, BURST)));
    let mut found = table(&paths, (3, 13), &[("tuned", tuned)]);
    found += &table(&LOSSES.map(|loss| (100, 100, loss)), (3, 13), &[("defaults", defaults)]);
    // Seconds of it take longer than all the others.
    found += &table(&[(100, 100, Loss::None)], (1, 3), &[("flooding", flooding)]);
    compare(&found, include_str!("known.txt"));
}

/// Paths that are narrower and wider than the tables'.
#[test]
#[ignore = "minutes without optimisation"]
fn other_rows() {
    let paths: Vec<_> = [10, 500]
        .into_iter()
        .flat_map(|mbit| [LOSSES[0], LOSSES[1], LOSSES[2], BURST].map(|loss| (mbit, 100, loss)))
        .collect();
    compare(&table(&paths, (3, 10), &[("tuned", tuned)]), include_str!("other.txt"));
}

/// The share of one TCP flow beside a stack, in percent of the link, with either of them first.
fn shares(mbit: u64, rtt_ms: u64, seconds: (u64, u64)) -> [f64; 2] {
    [0, seconds.0 / 2].map(|rival_at| {
        let rival_at = Some(Duration::from_secs(rival_at));
        run(&tuned(), &Path { rival_at, ..path(mbit, rtt_ms, Loss::None, seconds) }).rival
    })
}

#[test]
fn leaves_room_on_a_narrow_link() {
    let shares = shares(10, 20, (5, 15));
    assert!(shares.iter().all(|share| *share > 30.0), "{shares:?}");
}

#[test]
#[ignore = "minutes without optimisation"]
fn leaves_room() {
    for (mbit, rtt_ms) in [(10, 100), (100, 20), (100, 100)] {
        let shares = shares(mbit, rtt_ms, (10, 40));
        assert!(shares.iter().all(|share| *share > 30.0), "{mbit} Mbit/s, {rtt_ms} ms: {shares:?}");
    }
    // Here a flow that comes later ends its slow start early, and grows no faster than CUBIC does.
    for (mbit, rtt_ms, until) in [(100, 300, 70), (500, 100, 60)] {
        let at = |rival_at, seconds| {
            let rival_at = Some(Duration::from_secs(rival_at));
            run(&tuned(), &Path { rival_at, ..path(mbit, rtt_ms, Loss::None, seconds) }).rival
        };
        let (same, later) = (at(0, (10, 40)), at(5, (40, until)));
        assert!(same > 30.0 && later > 20.0, "{mbit} Mbit/s, {rtt_ms} ms: {same} {later}");
    }
}

/// If the queue is short against the path, nearly everything that is too fast is dropped.
#[test]
#[ignore = "minutes without optimisation"]
fn short_queues() {
    for (rtt_ms, queue_len, loss, least) in [
        (100, 30_000, LOSSES[0], 9.5),
        (100, 100_000, LOSSES[0], 9.5),
        (20, 50_000, LOSSES[0], 11.0),
        (20, 50_000, LOSSES[1], 8.0),
    ] {
        let found = run(&tuned(), &Path { queue_len, ..path(100, rtt_ms, loss, (3, 13)) });
        let most = if queue_len < 50_000 { 10.0 } else { 2.0 };
        assert!(found.goodput > least && found.overflow < most, "{queue_len} bytes, {rtt_ms} ms: {found:?}");
    }
}

/// kcptun reads at the far end of the path of the tables: its window, and not the path, is what limits. Without parity each
/// loss would halve what it gets; on a path without loss there is none.
#[test]
#[ignore = "minutes without optimisation"]
fn parity_follows_the_loss_where_there_is_room() {
    let v1 = |follows| {
        let stack = tuned();
        let setup = Setup { follows, shards: stack.setup.shards.filter(|_| follows), ..stack.setup };
        Stack { setup, mux: smux::SmuxSettings { version: SmuxVersion::V1, ..stack.mux } }
    };
    let mut table = String::from(
        "RTT ms loss             kcptun with itself  adit, no parity  adit, measured  of it parity %\n",
    );
    let paths = [50, 100].into_iter().flat_map(|rtt_ms| LOSSES.map(|loss| (rtt_ms, loss)));
    for (rtt_ms, loss) in paths.chain([(100, BURST), (300, LOSSES[1])]) {
        let at = |client| Path { client, ..path(100, rtt_ms, loss, (3, 23)) };
        let theirs = run(&defaults(), &at(None));
        let [without, with] = [false, true].map(|follows| run(&v1(follows), &at(Some(defaults()))));
        assert!(with.goodput > theirs.goodput * 0.99, "{loss:?}: {with:?} {theirs:?}");
        assert!(with.overflow == 0.0, "{loss:?}: {with:?}");
        let (theirs, without, with, parity) = (theirs.goodput, without.goodput, with.goodput, with.parity);
        let loss = loss_name(loss);
        writeln!(table, "{rtt_ms:6} {loss:16} {theirs:18.2} {without:16.2} {with:15.2} {parity:15.2}")
            .expect("a string takes everything");
    }
    compare(&table, include_str!("parity.txt"));
}

/// kcptun as it comes at the reading end: its window is short, and it acknowledges seldom.
#[test]
fn kcptun_reads_no_slower_than_from_itself() {
    for loss in LOSSES {
        let at = |client| Path { client, ..path(20, 100, loss, (2, 6)) };
        let v1 = Stack { mux: smux::SmuxSettings { version: SmuxVersion::V1, ..tuned().mux }, ..tuned() };
        let (ours, theirs) = (run(&v1, &at(Some(defaults()))), run(&defaults(), &at(None)));
        assert!(ours.goodput >= theirs.goodput, "{loss:?}: {ours:?} {theirs:?}");
    }
}
