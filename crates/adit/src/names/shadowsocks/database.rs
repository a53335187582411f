//! `mudb.json` while a server runs: it is read again and again, and the traffic of its users is written into it.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use adit_engine::{Applier, Observer, Proxies, Running};
use adit_formats::read::source;
use adit_formats::shadowsocksr::mudb::{MudbDatabase, MudbRow, Rows, Traffic, add_traffic};
use adit_model::Config;
use adit_model::diagnostic::Diagnostics;
use adit_net::rt::{self, Cores, Stopper};
use anyhow::Context as _;
use zeroize::Zeroizing;

use super::beside::BackgroundLoop;
use crate::load::findings;
use crate::load::readable;
use crate::replace::{Seen, replace};

/// Time between two looks at the file, as `UPDATE_TIME` of the Python server has it.
const INTERVAL: Duration = Duration::from_secs(60);
/// The file beside the database that may say another time.
const SETTINGS: &str = "userapiconfig.py";
/// Longest such file in bytes.
const MAX_SETTINGS: usize = 64 << 10;

/// Follows a database until it is dropped; the last traffic is written then.
pub(super) fn start(
    database: MudbDatabase,
    config: &Config,
    running: &Running,
) -> anyhow::Result<BackgroundLoop> {
    if let Some(warning) = readable::judge(database.path()) {
        findings::log_findings(&warning.into());
    }
    let settings = source::read_regular(&database.path().with_file_name(SETTINGS), MAX_SETTINGS);
    let interval = settings.ok().and_then(|text| update_time(&text)).unwrap_or(INTERVAL);
    let (applier, observer, proxies) = (running.applier(), running.observer(), running.proxies());
    let mut follower = Follower::new(database, config.clone(), applier, observer, proxies)?;
    let (stopper, mut stop) = Stopper::new();
    let mut cores = Cores::default();
    cores.start("adit-mudb".into(), move || async move {
        let follow = async {
            loop {
                rt::sleep(interval).await;
                follower.look(true);
            }
        };
        rt::race(stop.ending(), follow).await;
        follower.look(false);
    })?;
    Ok(BackgroundLoop::new(stopper, cores))
}

/// `UPDATE_TIME = 60` of a file in Python: whole seconds, at least 1.
fn update_time(text: &str) -> Option<Duration> {
    let mut lines = text.lines().filter_map(|line| line.split('#').next()?.split_once('='));
    let (_, value) = lines.rfind(|(name, _)| name.trim() == "UPDATE_TIME")?;
    value.trim().parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

fn read(path: &Path) -> Result<Zeroizing<String>, Diagnostics> {
    source::read_regular(path, adit_formats::shadowsocksr::mudb::MAX_LEN).map_err(Diagnostics::from)
}

/// Bytes from and to a user.
type Bytes = (u64, u64);

struct Follower {
    database: MudbDatabase,
    /// The configuration that runs.
    config: Config,
    applier: Applier,
    observer: Observer,
    proxies: Proxies,
    /// The rows that run.
    rows: Rows,
    /// Bytes of each account that are in the file, by name and password.
    written: HashMap<(Box<str>, Box<str>), Bytes>,
    /// The last complaint, which is not repeated.
    said: String,
}

fn account(row: &MudbRow) -> (Box<str>, Box<str>) {
    (row.name.clone(), row.password.expose().into())
}

impl Follower {
    fn new(
        database: MudbDatabase,
        config: Config,
        applier: Applier,
        observer: Observer,
        proxies: Proxies,
    ) -> anyhow::Result<Self> {
        let text = read(database.path())?;
        let (rows, _) = database.read(&text)?;
        let written = HashMap::new();
        Ok(Self { database, config, applier, observer, proxies, rows, written, said: String::new() })
    }

    /// Writes what was carried, and has the rest run as the file says now if that `is_followed`.
    fn look(&mut self, is_followed: bool) {
        let looked = self.write().and_then(|text| if is_followed { self.follow(&text) } else { Ok(()) });
        let Err(error) = looked else { return self.said.clear() };
        let text = format!("{error:#}");
        if text != self.said {
            let file = self.database.path().display();
            tracing::warn!(%file, error = text, "the database of users is not up to date; the next try is in a minute");
            self.said = text;
        }
    }

    /// Adds the traffic since the last time to the file; its text as it is then.
    fn write(&mut self) -> anyhow::Result<Zeroizing<String>> {
        let path = self.database.path();
        let seen = Seen::of(path)?;
        let text = read(path)?;
        let counted = self.counted();
        let (mut traffic, mut written) = (Vec::new(), Vec::new());
        for row in &self.rows {
            let Some(now) = counted.get(&*row.name) else { continue };
            let before = self.written.get(&account(row)).copied().unwrap_or_default();
            let (up, down) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
            if up > 0 || down > 0 {
                traffic.push(Traffic { port: row.port, up, down });
                written.push((account(row), *now));
            }
        }
        if traffic.is_empty() {
            return Ok(text);
        }
        let new = add_traffic(&path.to_string_lossy(), &text, &traffic)?;
        replace(path, &new, &seen).with_context(|| format!("cannot write {}", path.display()))?;
        self.written.extend(written);
        Ok(new)
    }

    /// The bytes that every account has counted, by name.
    fn counted(&self) -> HashMap<Box<str>, Bytes> {
        let users = self.observer.status().inbounds.into_iter().flat_map(|inbound| inbound.users);
        users.map(|user| (user.name.into(), (user.up_bytes, user.down_bytes))).collect()
    }

    fn follow(&mut self, text: &str) -> anyhow::Result<()> {
        let (rows, mut found) = self.database.read(text)?;
        let used = |row: &MudbRow| {
            let (up, down) = self.written.get(&account(row)).copied().unwrap_or_default();
            up.saturating_add(down)
        };
        let (config, of_config) = self.database.config(&rows, &used);
        found.append(of_config);
        // A reload may have read the lists again.
        let running = self.proxies.config();
        self.config.acl.clone_from(&running.acl);
        self.config.acl_of.clone_from(&running.acl_of);
        let Config { plugin_user, acl, acl_of, .. } = self.config.clone();
        let config = Config { plugin_user, acl, acl_of, ..config };
        if config == self.config {
            self.rows = rows;
            return Ok(());
        }
        findings::log_findings(&found);
        let changes = self.applier.apply(&config)?;
        for warning in &changes.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!(ports = config.inbounds.len(), "the database of users has changed");
        (self.rows, self.config) = (rows, config);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_two_looks() {
        let of = |text: &str| update_time(text).map(|time| time.as_secs());
        assert_eq!(of("# x\nUPDATE_TIME = 30 # s\nOTHER = 1\n"), Some(30));
        assert_eq!(of("UPDATE_TIME=5\nUPDATE_TIME = 7"), Some(7));
        for none in ["", "UPDATE_TIME = 0", "UPDATE_TIME = x", "# UPDATE_TIME = 5", "MY_UPDATE_TIME = 5"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
