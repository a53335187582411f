//! Done rows of the last days, for a replay by hand: a panel that was restored from a backup has lost them.
//!
//! One line of JSON for each panel and bucket of ten minutes: `{"panel":"home","from":1795392000,"rows":{"17":[1,2]}}`.
//! A bucket that a kill has written twice counts once.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use adit_model::map::Map;
use adit_net::files;
use serde::{Deserialize, Serialize};

use super::book::{Rows, add};

/// Days for which lines are kept.
pub const KEPT_DAYS: u64 = 7;
const DAY_S: u64 = 86_400;
/// Longest archive that is read, in bytes.
const MAX_LEN: u64 = 1 << 30;

/// The archive: one file, written at its end, and cut at its front once a day.
#[derive(Debug, Clone)]
pub struct Archive {
    path: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    panel: Box<str>,
    from: u64,
    rows: Rows,
}

impl Archive {
    /// The archive at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Adds a bucket.
    ///
    /// # Errors
    /// The system's error.
    pub fn add(&self, panel: &str, from: u64, rows: &Rows) -> io::Result<()> {
        let line = Line { panel: panel.into(), from, rows: rows.clone() };
        let mut bytes = serde_json::to_vec(&line)?;
        bytes.push(b'\n');
        let mut file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
        file.write_all(&bytes)?;
        file.sync_data()
    }

    /// The bytes of a panel's buckets that began at `since` or later, each bucket once.
    ///
    /// # Errors
    /// The system's error; a missing archive is an empty one.
    pub fn since(&self, panel: &str, since: u64) -> io::Result<Rows> {
        let mut buckets: Map<u64, Rows> = Map::new();
        self.lines(|line| {
            if *line.panel == *panel && line.from >= since {
                buckets.insert(line.from, line.rows);
            }
        })?;
        let mut all = Rows::new();
        buckets.values().for_each(|rows| add(&mut all, rows));
        Ok(all)
    }

    /// Leaves lines out that are older than [`KEPT_DAYS`].
    ///
    /// # Errors
    /// The system's error; the archive is as it was then.
    pub fn trim(&self, now: u64) -> io::Result<()> {
        let oldest = now.saturating_sub(KEPT_DAYS * DAY_S);
        let (mut kept, mut is_old) = (Vec::new(), false);
        self.lines(|line| {
            if line.from < oldest {
                is_old = true;
            } else if let Ok(mut bytes) = serde_json::to_vec(&line) {
                bytes.push(b'\n');
                kept.append(&mut bytes);
            }
        })?;
        if !is_old {
            return Ok(());
        }
        files::replace(&self.path, 0o600, &kept).map(drop)
    }

    fn lines(&self, mut each: impl FnMut(Line)) -> io::Result<()> {
        let file = match files::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file.take(MAX_LEN)).split(b'\n') {
            // A line that was cut by a kill is none.
            if let Some(line) = parse(&line?) {
                each(line);
            }
        }
        Ok(())
    }
}

fn parse(line: &[u8]) -> Option<Line> {
    serde_json::from_slice(line).ok()
}

/// For the fuzz target of the journal: `data` as an archive. A line is written and read to the same again, and adding up
/// never overflows.
pub(super) fn fuzz(data: &[u8]) {
    let mut all = Rows::new();
    for line in data.split(|byte| *byte == b'\n').filter_map(parse) {
        add(&mut all, &line.rows);
        let written = serde_json::to_vec(&line).expect("a line that was read can be written");
        let again = parse(&written).expect("a line that was written can be read");
        assert!(again.panel == line.panel && again.from == line.from && again.rows == line.rows);
    }
}
