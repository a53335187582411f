//! Check 10: a clock that is wrong, with those of the store and of a panel as its witnesses.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::support::{Client, Env, Hooks, Node, Redis, echoed, wait_for};
use crate::support::{Dir, echo};

const DAY_S: i64 = 86_400;

/// A node's clock: that of the machine, so many days ahead.
struct Clock {
    dir: Dir,
    library: PathBuf,
}

impl Clock {
    /// `None` where the library that sets clocks is not installed.
    fn new() -> Option<Self> {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let library = places.map(|place| Path::new(place).join("faketime/libfaketime.so.1"));
        let library = library.into_iter().find(|path| path.exists())?;
        let clock = Self { dir: Dir::new(), library };
        clock.set(0);
        Some(clock)
    }

    fn set(&self, days: u32) {
        let new = self.dir.file("new", &format!("+{days}d"));
        std::fs::rename(new, self.dir.path().join("offset")).unwrap();
    }

    fn env(&self) -> Env {
        let file = self.dir.path().join("offset").display().to_string();
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

/// Bytes of ann's period, both ways together.
fn used(node: &Node) -> u64 {
    node.status()["inbounds"][0]["users"][0]["used_bytes"].as_u64().unwrap()
}

fn is_limited(node: &Node) -> bool {
    node.status()["inbounds"][0]["users"][0]["limited"].is_string()
}

/// Seconds by which a witness is ahead of the node, as the node says.
fn skew(node: &Node, witness: &str) -> i64 {
    let status = node.status();
    let skews = status["fleet"]["skews"].as_array().cloned().unwrap_or_default();
    skews.iter().find(|skew| skew[0] == witness).map_or(i64::MAX, |skew| skew[1].as_i64().unwrap())
}

fn is_at(node: &Node, witness: &str, seconds: i64) -> bool {
    (skew(node, witness).saturating_sub(seconds)).abs() <= 1
}

/// The node has `bytes` of its quota used, and goes on to have that for some seconds.
fn stays_at(node: &Node, bytes: u64) {
    for _ in 0..12 {
        assert_eq!(used(node), bytes);
        thread::sleep(Duration::from_millis(400));
    }
}

#[test]
#[ignore = "needs redis-server and libfaketime"]
fn a_wrong_clock_gives_no_quota_away_and_takes_none() {
    let own = Clock::new().expect("libfaketime is installed");
    let (redis, panel) = (Redis::start(), Hooks::start(&[]));
    let more = format!(
        "[[panel]]\nname = \"home\"\nkind = \"hooks\"\nurl = \"http://{}\"\ntoken = \"t\"\nnode = \"17\"\n\
         pull = \"1s\"\npush = \"1s\"\n",
        panel.at
    );
    let limits = "quota = \"2MiB\", reset-day = 15";
    let mut node = Node::under(&redis.url(), limits, &more, own.env());
    let (client, target) = (Client::new(&[&node]), echo());
    let moves = |bytes: usize| echoed(&mut client.connect(0, 0, target), bytes);
    let both_are = |node: &Node, seconds: i64| ["store", "panel"].iter().all(|of| is_at(node, of, seconds));
    wait_for("global", || node.scope() == "global" && both_are(&node, 0));
    assert!(moves(60_000));
    wait_for("counted", || used(&node) == 120_000);
    // 40 days ahead of both, while it runs and over a start: no period begins.
    own.set(40);
    stays_at(&node, 120_000);
    wait_for("the difference", || both_are(&node, -40 * DAY_S));
    assert_eq!(node.status()["fleet"]["periods_held"], true);
    assert!(moves(10_000), "the quota is as it was");
    wait_for("counted", || used(&node) == 140_000);
    node.end("TERM");
    node.start();
    stays_at(&node, 140_000);
    wait_for("global", || node.scope() == "global" && both_are(&node, -40 * DAY_S));
    // No quota is given away: it ends after 2 MiB of the period.
    wait_for("the end of the quota", || !moves(50_000) && used(&node) >= 2 << 20);
    // Bytes that came with others before them are over the end.
    assert!(used(&node) < (2 << 20) + (64 << 10), "{}", used(&node));
    wait_for("the limit is told", || is_limited(&node));
    // And back.
    own.set(0);
    wait_for("no difference", || both_are(&node, 0));
    assert!(is_limited(&node) && !moves(100));
    // The panel says that the month has passed, too: one period begins.
    own.set(40);
    panel.set_clock(40);
    wait_for("a new period", || used(&node) == 0 && !is_limited(&node));
    wait_for("global", || node.scope() == "global" && is_at(&node, "panel", 0));
    assert!(moves(30_000));
    wait_for("counted", || used(&node) == 60_000);
    // Both clocks are set back, and forth again: it stays the same period.
    for days in [0, 40] {
        own.set(days);
        panel.set_clock(days);
        stays_at(&node, 60_000);
        wait_for("no difference", || is_at(&node, "panel", 0));
    }
    assert!(moves(1000));
    wait_for("the store has the new period by itself", || {
        let keys = redis.cli(&["--scan", "--pattern", "adit:test:use:*:d15:*"]);
        let totals = keys.lines().filter_map(|key| redis.cli(&["HGET", key, "ann"]).parse::<u64>().ok());
        totals.filter(|total| *total == 62_000).count() == 1
    });
}
