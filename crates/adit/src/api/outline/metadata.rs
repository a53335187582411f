//! Facts that the configuration has no key for: names, default limit, days of counters. A file beside the state file.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use adit_model::map::Map;
use adit_net::{files, rt};
use serde::{Deserialize, Serialize};

/// Longest file, in bytes.
const MAX_LEN: usize = 64 << 20;
/// Days of counters that are kept: those of Outline's window, and the one before.
pub(super) const DAYS: u64 = 30;

/// The facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Facts {
    /// Id of the server, drawn once.
    pub(super) server_id: String,
    pub(super) name: String,
    pub(super) created_ms: u64,
    pub(super) hostname: Option<String>,
    pub(super) shares_metrics: bool,
    /// The port for new keys, if it is not that of the inbound.
    pub(super) port: Option<u16>,
    /// The id that the next key is tried with.
    pub(super) next: u64,
    /// The limit of keys that have none of their own, in bytes.
    pub(super) limit: Option<u64>,
    /// Own limits, by id, in bytes.
    pub(super) limits: Map<String, u64>,
    /// Names of keys, by id.
    pub(super) names: Map<String, String>,
    /// Inbounds that were added for other ports.
    pub(super) inbounds: BTreeSet<String>,
    /// Totals of keys in bytes, by day since 1970 and by id, as the first look of the day found them.
    pub(super) days: Map<u64, Map<String, u64>>,
    /// Counters that a reader has cleared, by inbound, or by inbound and user.
    pub(super) cleared: Map<String, [u64; 6]>,
}

impl Facts {
    /// Takes the totals of a day, if they are its first; true then.
    pub(super) fn sample(&mut self, day: u64, totals: &Map<String, u64>) -> bool {
        if self.days.contains_key(&day) {
            return false;
        }
        self.days.insert(day, totals.clone());
        // One day that is older than the window is its beginning.
        while self.days.keys().nth(1).is_some_and(|second| second + DAYS <= day) {
            self.days.pop_first();
        }
        true
    }

    /// Bytes of a key in the last 30 days, of its total.
    pub(super) fn recent(&self, day: u64, id: &str, total: u64) -> u64 {
        let first = self.days.iter().next().filter(|(first, _)| **first + DAYS <= day);
        let before = first.and_then(|(_, totals)| totals.get(id)).copied().unwrap_or(0);
        // A key that was replaced counts from zero.
        total.checked_sub(before).unwrap_or(total)
    }
}

/// The facts with their file.
#[derive(Debug)]
pub(super) struct MetadataStore {
    path: PathBuf,
    pub(super) facts: Facts,
}

impl MetadataStore {
    /// Reads the file, or begins one.
    ///
    /// # Errors
    /// When it is there and cannot be read, or cannot be written.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let named = |error: String| anyhow::anyhow!("{}: {error}", path.display());
        let facts = match files::read(path, MAX_LEN) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| named(error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => fresh(),
            Err(error) => return Err(named(error.to_string())),
        };
        let keeper = Self { path: path.to_owned(), facts };
        keeper.save().map_err(|error| named(error.to_string()))?;
        Ok(keeper)
    }

    /// Writes the file in one step.
    ///
    /// # Errors
    /// When that fails; the file is as it was then.
    pub(super) fn save(&self) -> io::Result<()> {
        files::replace(&self.path, 0o600, &serde_json::to_vec(&self.facts)?).map(drop)
    }
}

fn fresh() -> Facts {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    Facts {
        server_id: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        name: "adit".into(),
        created_ms: rt::unix_time() * 1000,
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_window_slides_by_days() {
        let mut facts = Facts::default();
        let totals = |total: u64| Map::from([("0".to_owned(), total)]);
        assert!(facts.sample(100, &totals(50)));
        assert!(!facts.sample(100, &totals(60)), "the first look of a day counts");
        assert_eq!(facts.recent(100, "0", 70), 70, "nothing is known of the time before");
        for day in 101..=135 {
            facts.sample(day, &totals(50 + (day - 100) * 10));
        }
        assert_eq!(facts.days.keys().next(), Some(&105));
        assert_eq!(facts.recent(135, "0", 405), 305);
        assert_eq!(facts.recent(135, "0", 30), 30, "another key by the same id");
        assert_eq!(facts.recent(135, "1", 7), 7);
    }

    #[test]
    fn facts_outlive_a_restart_and_rubbish_is_refused() {
        let path = std::env::temp_dir().join(format!("adit-manage-{}", std::process::id()));
        fs::remove_file(&path).ok();
        let mut first = MetadataStore::open(&path).unwrap();
        assert_eq!(first.facts.server_id.len(), 32);
        first.facts.names.insert("0".into(), "ann".into());
        first.save().unwrap();
        assert_eq!(MetadataStore::open(&path).unwrap().facts, first.facts);
        fs::write(&path, "{").unwrap();
        assert!(MetadataStore::open(&path).unwrap_err().to_string().contains("adit-manage"));
        fs::remove_file(&path).unwrap();
    }
}
