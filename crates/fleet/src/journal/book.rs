//! The books of the journal as a state machine: no file, no clock.

use adit_model::map::Map;
use serde::{Deserialize, Serialize};

/// Bytes up and down by user id.
pub type Rows = Map<Box<str>, [u64; 2]>;

/// Most users of one batch: a panel's own job handles as many at a time (fleet notes, 1.5).
pub const MOST_ROWS: usize = 1000;
/// Rows of done batches are kept together for so long, in seconds, and then go to the archive.
pub const BUCKET_S: u64 = 600;
/// Most batches in doubt of one panel. Beyond that the two oldest become one.
const MOST_DOUBTS: usize = 256;

/// Everything that the journal holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Identity of this node: 32 hex digits, drawn when the journal is made.
    pub node: Box<str>,
    /// Number of starts.
    pub boot: u64,
    /// One book for each panel, by name.
    pub books: Map<Box<str>, Book>,
}

/// The book of one panel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Book {
    /// Totals of each user that have been sealed.
    pub marks: Rows,
    /// All bytes ever sealed, where the panel takes absolute totals.
    pub totals: Rows,
    /// Bytes that are sealed and belong to no batch yet.
    pub pending: Rows,
    /// When the oldest bytes of `pending` were sealed, in seconds since 1970.
    pub pending_since: u64,
    /// The number that the next batch gets.
    pub next: u64,
    /// The one batch that is on its way.
    pub batch: Option<Batch>,
    /// Batches of which nobody knows whether the panel has applied them.
    pub doubts: Vec<Batch>,
    /// Rows of done batches since `recent_from`, for a replay by hand.
    pub recent: Rows,
    /// Start of the bucket, in seconds since 1970; 0 for none.
    pub recent_from: u64,
}

/// A sealed batch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Its number; the order of batches is theirs, never that of time.
    pub seq: u64,
    /// When it was sealed, in seconds since 1970.
    pub at: u64,
    /// Whether its request may have left this machine.
    pub sent: bool,
    /// Its bytes.
    pub rows: Rows,
}

impl Batch {
    /// Bytes of all its users, both ways together.
    pub fn bytes(&self) -> u64 {
        sum(&self.rows)
    }
}

/// Bytes of all rows, both ways together.
pub fn sum(rows: &Rows) -> u64 {
    rows.values().flatten().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// One change of the journal, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalEvent {
    /// The whole state: the first entry of a file.
    Image(Box<State>),
    /// The process has started.
    Started,
    /// A panel is new: bytes up to these totals are none of its business.
    Baseline {
        /// The panel.
        panel: Box<str>,
        /// Totals of its users.
        totals: Rows,
    },
    /// Bytes are sealed.
    Sealed {
        /// The panel.
        panel: Box<str>,
        /// When, in seconds since 1970.
        at: u64,
        /// The new marks of users whose total has changed.
        marks: Rows,
        /// The bytes since their old marks.
        rows: Rows,
        /// Whether the panel takes absolute totals.
        absolute: bool,
    },
    /// A batch is made of the first users that wait.
    Batched {
        /// The panel.
        panel: Box<str>,
        /// When, in seconds since 1970.
        at: u64,
        /// Most users.
        most: usize,
    },
    /// The request of the batch may leave from here on.
    Sent {
        /// The panel.
        panel: Box<str>,
    },
    /// The answer to the batch.
    Judged {
        /// The panel.
        panel: Box<str>,
        /// When, in seconds since 1970.
        at: u64,
        /// The verdict.
        verdict: Verdict,
    },
    /// A person, or `in-doubt`, has decided about a batch in doubt.
    Settled {
        /// The panel.
        panel: Box<str>,
        /// The batch.
        seq: u64,
        /// When, in seconds since 1970.
        at: u64,
        /// The decision.
        how: Decision,
    },
    /// The rows of the bucket that began then are in the archive.
    Archived {
        /// The panel.
        panel: Box<str>,
        /// Start of the bucket.
        from: u64,
    },
    /// Bytes of done batches are to be sent once more: the panel has lost them.
    Replayed {
        /// The panel.
        panel: Box<str>,
        /// When, in seconds since 1970.
        at: u64,
        /// The bytes.
        rows: Rows,
    },
    /// Users that no record knows any more.
    Forgotten {
        /// The panel.
        panel: Box<str>,
        /// Their ids.
        users: Vec<Box<str>>,
    },
}

/// The meaning of the answer to a batch, or of its absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The panel has it.
    Done,
    /// The panel does not have it; it is sent again.
    NotApplied,
    /// The panel does not have it because it is too long: it is sent again in parts.
    TooLong,
    /// Nobody knows.
    InDoubt,
}

/// A decision about a batch in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The panel does not have it: its bytes are sent again.
    Resend,
    /// The panel has it, or its bytes are given up.
    Drop,
}

impl State {
    /// The book of a panel; an empty one for a panel that is not there.
    pub fn book(&self, panel: &str) -> &Book {
        static EMPTY: Book = Book {
            marks: Rows::new(),
            totals: Rows::new(),
            pending: Rows::new(),
            pending_since: 0,
            next: 0,
            batch: None,
            doubts: Vec::new(),
            recent: Rows::new(),
            recent_from: 0,
        };
        self.books.get(panel).unwrap_or(&EMPTY)
    }

    /// Follows an event. After any event no byte is in two places.
    pub fn apply(&mut self, event: &JournalEvent) {
        match event {
            JournalEvent::Image(state) => self.clone_from(state),
            JournalEvent::Started => {
                self.boot += 1;
                // A batch whose request may have left is in doubt from now on.
                for book in self.books.values_mut() {
                    if book.batch.as_ref().is_some_and(|batch| batch.sent) {
                        book.judge(0, Verdict::InDoubt);
                    }
                }
            }
            JournalEvent::Baseline { panel, totals } => {
                self.books.entry(panel.clone()).or_default().marks.clone_from(totals);
            }
            JournalEvent::Sealed { panel, at, marks, rows, absolute } => {
                let book = self.books.entry(panel.clone()).or_default();
                book.marks.extend(marks.iter().map(|(id, mark)| (id.clone(), *mark)));
                book.wait(rows, *at);
                if *absolute {
                    add(&mut book.totals, rows);
                }
            }
            JournalEvent::Batched { panel, at, most } => self.with(panel, |book| book.batch(*at, *most)),
            JournalEvent::Sent { panel } => {
                self.with(panel, |book| book.batch.iter_mut().for_each(|batch| batch.sent = true));
            }
            JournalEvent::Judged { panel, at, verdict } => self.with(panel, |book| book.judge(*at, *verdict)),
            JournalEvent::Settled { panel, seq, at, how } => {
                self.with(panel, |book| book.settle(*seq, *at, *how))
            }
            JournalEvent::Archived { panel, from } => self.with(panel, |book| {
                if book.recent_from == *from {
                    book.recent.clear();
                    book.recent_from = 0;
                }
            }),
            JournalEvent::Replayed { panel, at, rows } => self.with(panel, |book| book.wait(rows, *at)),
            JournalEvent::Forgotten { panel, users } => self.with(panel, |book| {
                for user in users {
                    book.marks.remove(user);
                    book.totals.remove(user);
                }
            }),
        }
    }

    fn with(&mut self, panel: &str, change: impl FnOnce(&mut Book)) {
        if let Some(book) = self.books.get_mut(panel) {
            change(book);
        }
    }
}

impl Book {
    /// The event that seals `totals`: bytes of users whose totals have grown by at least `least`. `None` if there are none.
    ///
    /// A total below its mark comes from a record that began anew: bytes count from there on.
    pub fn seal(
        &self,
        panel: &str,
        totals: &Rows,
        least: u64,
        at: u64,
        absolute: bool,
    ) -> Option<JournalEvent> {
        let (mut marks, mut rows) = (Rows::new(), Rows::new());
        for (id, total) in totals {
            let mark = self.marks.get(id).copied().unwrap_or_default();
            if *total == mark {
                continue;
            }
            if total[0] < mark[0] || total[1] < mark[1] {
                marks.insert(id.clone(), *total);
                continue;
            }
            let new = [total[0] - mark[0], total[1] - mark[1]];
            if new[0].saturating_add(new[1]) >= least.max(1) {
                marks.insert(id.clone(), *total);
                rows.insert(id.clone(), new);
            }
        }
        let panel = panel.into();
        (!marks.is_empty()).then_some(JournalEvent::Sealed { panel, at, marks, rows, absolute })
    }

    /// Bytes that have not reached the panel, without those in doubt.
    pub fn unsent_bytes(&self) -> u64 {
        sum(&self.pending).saturating_add(self.batch.as_ref().map_or(0, Batch::bytes))
    }

    /// Bytes in doubt.
    pub fn in_doubt_bytes(&self) -> u64 {
        self.doubts.iter().fold(0, |sum, batch| sum.saturating_add(batch.bytes()))
    }

    /// When the oldest bytes were sealed that have not reached the panel, in seconds since 1970.
    pub fn oldest_unsent(&self) -> Option<u64> {
        let pending = (!self.pending.is_empty()).then_some(self.pending_since);
        self.batch.as_ref().map(|batch| batch.at).into_iter().chain(pending).min()
    }

    fn wait(&mut self, rows: &Rows, at: u64) {
        if rows.is_empty() {
            return;
        }
        if self.pending.is_empty() {
            self.pending_since = at;
        }
        add(&mut self.pending, rows);
    }

    fn batch(&mut self, at: u64, most: usize) {
        if self.batch.is_some() || self.pending.is_empty() {
            return;
        }
        let rows = split(&mut self.pending, most.clamp(1, MOST_ROWS));
        self.next += 1;
        self.batch = Some(Batch { seq: self.next, at, sent: false, rows });
        self.pending_since = at;
    }

    fn judge(&mut self, at: u64, verdict: Verdict) {
        let Some(mut batch) = self.batch.take() else { return };
        match verdict {
            Verdict::Done => self.note_done(at, &batch.rows),
            Verdict::NotApplied => {
                batch.sent = false;
                self.batch = Some(batch);
            }
            Verdict::TooLong => {
                let half = batch.rows.len().div_ceil(2);
                let first = split(&mut batch.rows, half);
                let at = batch.at;
                self.wait(&batch.rows, at);
                self.batch = Some(Batch { sent: false, rows: first, ..batch });
            }
            Verdict::InDoubt => {
                self.doubts.push(batch);
                if self.doubts.len() > MOST_DOUBTS {
                    let oldest = self.doubts.remove(0);
                    add(&mut self.doubts[0].rows, &oldest.rows);
                }
            }
        }
    }

    fn settle(&mut self, seq: u64, at: u64, how: Decision) {
        let Some(index) = self.doubts.iter().position(|batch| batch.seq == seq) else { return };
        let batch = self.doubts.remove(index);
        match how {
            Decision::Resend => self.wait(&batch.rows, at),
            Decision::Drop => {}
        }
    }

    fn note_done(&mut self, at: u64, rows: &Rows) {
        if self.recent_from == 0 {
            self.recent_from = (at - at % BUCKET_S).max(1);
        }
        add(&mut self.recent, rows);
    }

    /// Whether the bucket of done rows is over.
    pub fn bucket_is_over(&self, at: u64) -> bool {
        self.recent_from != 0 && at >= self.recent_from.saturating_add(BUCKET_S)
    }
}

/// Adds rows to others.
pub fn add(to: &mut Rows, rows: &Rows) {
    for (id, [up, down]) in rows {
        let own = to.entry(id.clone()).or_default();
        *own = [own[0].saturating_add(*up), own[1].saturating_add(*down)];
    }
}

/// Takes the first `most` rows.
fn split(rows: &mut Rows, most: usize) -> Rows {
    let mut all = std::mem::take(rows).into_iter();
    let first = all.by_ref().take(most).collect();
    *rows = all.collect();
    first
}
