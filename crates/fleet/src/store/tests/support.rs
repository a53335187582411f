//! Redis servers, and nodes without traffic.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use adit_model::map::Map;
use adit_model::{Secret, Store, StoreAway};
use adit_net::rt::OrderSender;

use super::super::*;

pub(super) const QUOTA: u64 = 300_000_000;

/// A redis-server of its own, on a unix socket.
pub(super) struct Redis {
    child: Child,
    dir: PathBuf,
}

impl Redis {
    /// A server in a folder of its own: tests with one name may run at once.
    pub(super) fn start(name: &str) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("adit-redis-{name}-{}-{number}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).unwrap();
        let child = Self::spawn(&dir);
        Self { child, dir }
    }

    fn spawn(dir: &PathBuf) -> Child {
        let socket = dir.join("r.sock");
        drop(std::fs::remove_file(&socket));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--appendonly", "yes", "--appendfsync", "everysec", "--unixsocket"]);
        let child = command.arg(&socket).arg("--dir").arg(dir).stdout(Stdio::null()).spawn().unwrap();
        wait_for("redis", || socket.exists());
        child
    }

    pub(super) fn restart(&mut self) {
        self.stop();
        // It is away for a while.
        thread::sleep(Duration::from_millis(700));
        self.child = Self::spawn(&self.dir);
    }

    pub(super) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn cli(&self, args: &[&str]) -> String {
        let out =
            Command::new("redis-cli").arg("-s").arg(self.dir.join("r.sock")).args(args).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    pub(super) fn total(&self, user: &str) -> u64 {
        self.cli(&["HGET", &script::key("f", user, None, 0), user]).parse().unwrap_or(0)
    }

    pub(super) fn store(&self) -> Store {
        Store {
            url: Secret::new(format!("unix://{}", self.dir.join("r.sock").display())),
            fleet: "f".into(),
            away: StoreAway::Allowance,
            every: Duration::from_secs(1),
            sentinel: None,
            users_key: None,
            replay: None,
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// Accounts of one node: bytes that were used, and that may be.
#[derive(Default)]
pub(crate) struct Accounts {
    pub(super) used: Map<Arc<str>, u64>,
    may: Map<Arc<str>, u64>,
    half: Map<Arc<str>, u64>,
    pub(super) skews: Vec<i64>,
    pub(super) here: Map<Arc<str>, UserSources>,
    pub(super) everywhere: Everywhere,
    pub(super) is_alone: bool,
    /// Lists of users that were put to use.
    pub(super) lists: u32,
    /// Salts that wait to be told, and those that were learned, with whether they carried their time.
    pub(super) salts: GroupSalts,
    pub(super) learned: BTreeSet<(bool, u64)>,
}

impl Accounts {
    /// Bytes up to which a user may go, once the store has answered.
    pub(super) fn may(&self, user: &str) -> Option<u64> {
        self.may.get(user).copied()
    }
}

#[derive(Clone, Default)]
pub(crate) struct Node(pub(super) Arc<Mutex<Accounts>>);

impl Node {
    /// Uses up to `bytes` more; the bytes that were left.
    pub(super) fn spend(&self, user: &str, bytes: u64) -> u64 {
        let mut accounts = self.0.lock().unwrap();
        let may = accounts.may.get(user).copied().unwrap_or(QUOTA);
        let used = accounts.used.entry(user.into()).or_default();
        let spent = bytes.min(may.saturating_sub(*used));
        *used += spent;
        spent
    }

    pub(super) fn used(&self, user: &str) -> u64 {
        self.0.lock().unwrap().used.get(user).copied().unwrap_or(0)
    }
}

impl StoreHost for Node {
    fn uses(&mut self, is_hurried: bool) -> Map<Arc<str>, Use> {
        let accounts = self.0.lock().unwrap();
        let half = |user: &str| accounts.half.get(user).copied().unwrap_or(u64::MAX);
        let usage = |used: &u64| Use { quota: QUOTA, used: *used, reset_day: None, period: 0 };
        let wanted = accounts.used.iter().filter(|(user, used)| !is_hurried || **used > half(user));
        wanted.map(|(user, used)| (user.clone(), usage(used))).collect()
    }

    fn allow(&mut self, allowances: &Map<Arc<str>, Option<u64>>) {
        let mut accounts = self.0.lock().unwrap();
        for (user, allowance) in allowances {
            let used = accounts.used.get(user).copied().unwrap_or(0);
            let may = allowance.map_or(QUOTA, |bytes| (used + bytes).min(QUOTA));
            accounts.may.insert(user.clone(), may);
            accounts.half.insert(user.clone(), allowance.map_or(u64::MAX, |bytes| used + bytes / 2));
        }
    }

    fn sources(&mut self) -> Map<Arc<str>, UserSources> {
        self.0.lock().unwrap().here.clone()
    }

    fn follow_sources(&mut self, all: Option<&Everywhere>, _: u64) {
        let mut accounts = self.0.lock().unwrap();
        accounts.is_alone = all.is_none();
        for (user, sources) in all.into_iter().flatten() {
            accounts.everywhere.insert(user.clone(), sources.clone());
        }
    }

    fn users_changed(&mut self) {
        self.0.lock().unwrap().lists += 1;
    }

    fn take_salts(&mut self, most: usize) -> GroupSalts {
        let mut accounts = self.0.lock().unwrap();
        let mut salts = GroupSalts::default();
        let some = most.min(accounts.salts.recent.len());
        salts.recent = accounts.salts.recent.drain(..some).collect();
        let rest = (most - salts.recent.len()).min(accounts.salts.lasting.len());
        salts.lasting = accounts.salts.lasting.drain(..rest).collect();
        salts
    }

    fn learn_salts(&mut self, salts: &GroupSalts) {
        let mut accounts = self.0.lock().unwrap();
        accounts.learned.extend(salts.recent.iter().map(|print| (true, *print)));
        accounts.learned.extend(salts.lasting.iter().map(|print| (false, *print)));
    }

    fn group_counts(&mut self) -> GroupCounts {
        let accounts = self.0.lock().unwrap();
        let queued = (accounts.salts.recent.len() + accounts.salts.lasting.len()) as u64;
        GroupCounts { queued, ..GroupCounts::default() }
    }

    fn skew(&mut self, seconds: i64) {
        self.0.lock().unwrap().skews.push(seconds);
    }
}

/// Time that only a hang takes, on a machine with other work too.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = adit_net::rt::now() + LIMIT;
    while !condition() {
        assert!(adit_net::rt::now() < until, "still not true: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

pub(super) fn begin(redis: &Redis, node: &Node, id: &str) -> (Arc<StoreShared>, OrderSender<()>) {
    begin_at(redis.store(), node, id)
}

pub(super) fn begin_at(store: Store, node: &Node, id: &str) -> (Arc<StoreShared>, OrderSender<()>) {
    let shared = Arc::new(StoreShared::default());
    let copy = std::env::temp_dir().join(format!("adit-store-users-{id}-{}", std::process::id()));
    let stop = start(store, id.into(), 1, copy, shared.clone(), node.clone()).unwrap();
    (shared, stop)
}
