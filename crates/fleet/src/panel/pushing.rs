//! Counters of a panel: sealed in the journal, sent once, judged by the answer.

use std::io;
use std::time::Duration;

use adit_model::InDoubt;
use adit_net::call::{CallAnswer, CallError};
use adit_net::rt;

use super::answer::{PanelError, body, chain, verdict};
use super::wire::Stamp;
use super::worker::{Shared, Worker, sources};
use crate::journal::{Batch, Decision, JournalEvent, MOST_ROWS, Rows, Verdict};

/// A push that the panel refused is repeated after this, twice as long each time.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Most batches between two pulls.
const MOST_BATCHES: usize = 64;

/// The batch to send, with the rows as the panel takes them.
struct Next {
    batch: Batch,
    rows: Rows,
    boot: u64,
    node: Box<str>,
}

impl Worker {
    pub(super) fn next_pause(&mut self) -> Duration {
        let pause = self.pause.min(self.push_every().max(Duration::from_secs(1)));
        self.pause = self.pause.saturating_mul(2).min(MAX_PAUSE);
        pause.max(Duration::from_millis(500))
    }

    /// Seals what has come, and sends batches. False if the panel has refused one.
    pub(super) async fn push(&mut self) -> bool {
        let sealed = self.seal();
        if let Err(error) = sealed {
            tracing::error!(panel = &*self.panel.name, %error, "cannot write the journal: counters wait in the accounts");
            return false;
        }
        for number in 0..MOST_BATCHES {
            match self.push_one(number == 0).await {
                Ok(Some(Verdict::Done | Verdict::InDoubt | Verdict::TooLong)) => self.pause = PAUSE,
                Ok(Some(Verdict::NotApplied)) => return false,
                Ok(None) => return true,
                Err(error) => {
                    tracing::error!(panel = &*self.panel.name, %error, "cannot write the journal: counters wait");
                    return false;
                }
            }
        }
        true
    }

    /// Begins the book of a new panel: bytes of before it was there are none of its business.
    pub(super) fn begin(&mut self) {
        let panel = self.panel.name.clone();
        let is_new = |shared: &Shared| !shared.journal().state().books.contains_key(&*panel);
        if !is_new(&self.shared) {
            return;
        }
        let begun = self.host.totals(&panel).and_then(|totals| {
            self.shared.journal().commit(JournalEvent::Baseline { panel: (&*panel).into(), totals })
        });
        if let Err(error) = begun {
            tracing::error!(panel = &*panel, %error, "cannot begin the journal of the panel");
        }
    }

    fn seal(&mut self) -> io::Result<()> {
        let panel = self.panel.name.clone();
        let totals = self.host.totals(&panel)?;
        let now = rt::unix_time();
        let mut journal = self.shared.journal();
        let book = journal.state().book(&panel);
        let least = self.desk.current.least_bytes;
        let event = book.seal(&panel, &totals, least, now, self.wire.is_absolute());
        let gone: Vec<Box<str>> = book.marks.keys().filter(|id| !totals.contains_key(*id)).cloned().collect();
        if let Some(event) = event {
            journal.commit(event)?;
        }
        if !gone.is_empty() {
            journal.commit(JournalEvent::Forgotten { panel: (&*panel).into(), users: gone })?;
        }
        Ok(())
    }

    /// Sends the next batch; `None` if there is none.
    async fn push_one(&mut self, is_first: bool) -> io::Result<Option<Verdict>> {
        let panel: Box<str> = (&*self.panel.name).into();
        let Some(Next { batch, rows, boot, node }) = self.next_batch(&panel)? else { return Ok(None) };
        let stamp = Stamp { node: &node, boot, seq: batch.seq };
        let online = (is_first && self.wire.is_merged() && !self.line.is_known())
            .then(|| sources(&mut *self.host, &panel));
        let Some(request) = self.wire.push(&rows, stamp, online.as_ref()) else { return Ok(None) };
        let shared = self.shared.clone();
        let sent = JournalEvent::Sent { panel: panel.clone() };
        let answer = self.call("push", &request, move || shared.journal().commit(sent)).await;
        let verdict = self.judge(verdict(&answer));
        if online.is_some() && verdict == Verdict::Done {
            self.told_addresses_at = Some(rt::now());
        }
        let now = rt::unix_time();
        self.shared.journal().commit(JournalEvent::Judged { panel: panel.clone(), at: now, verdict })?;
        self.tell_verdict(verdict, &batch, answer);
        if verdict == Verdict::InDoubt {
            self.settle_doubts();
        }
        self.archive(&panel, now)?;
        Ok(Some(verdict))
    }

    /// Totals may be repeated as often as one likes.
    fn judge(&self, verdict: Verdict) -> Verdict {
        let is_repeated = verdict == Verdict::InDoubt && self.wire.is_absolute();
        if is_repeated { Verdict::NotApplied } else { verdict }
    }

    fn next_batch(&self, panel: &str) -> io::Result<Option<Next>> {
        let mut journal = self.shared.journal();
        if journal.state().book(panel).batch.is_none() {
            journal.commit(JournalEvent::Batched {
                panel: panel.into(),
                at: rt::unix_time(),
                most: MOST_ROWS,
            })?;
        }
        let state = journal.state();
        let book = state.book(panel);
        let Some(batch) = book.batch.clone() else { return Ok(None) };
        let rows = if self.wire.is_absolute() {
            let ids = batch.rows.keys();
            ids.map(|id| (id.clone(), book.totals.get(id).copied().unwrap_or_default())).collect()
        } else {
            batch.rows.clone()
        };
        Ok(Some(Next { batch, rows, boot: state.boot, node: state.node.clone() }))
    }

    fn tell_verdict(&mut self, verdict: Verdict, batch: &Batch, answer: Result<CallAnswer, CallError>) {
        let (panel, seq, bytes) = (&*self.panel.name, batch.seq, batch.bytes());
        match verdict {
            Verdict::Done => self.tell("push", Ok(())),
            Verdict::TooLong => tracing::info!(panel, seq, "the panel takes shorter batches"),
            Verdict::InDoubt => {
                let why =
                    answer.map_or_else(|error| chain(&error), |answer| format!("status {}", answer.status));
                tracing::error!(
                    panel,
                    seq,
                    bytes,
                    why,
                    "counters are in doubt: the panel may or may not have them; `adit panel doubt` shows them"
                );
            }
            Verdict::NotApplied => {
                let error = match answer {
                    Err(error) => error.into(),
                    Ok(answer) => match body(&answer) {
                        Err(error) => error,
                        Ok(_) => PanelError::Foreign("it refuses the counters"),
                    },
                };
                self.tell("push", Err(error));
            }
        }
    }

    /// Follows `in-doubt`.
    pub(super) fn settle_doubts(&self) {
        let how = match self.panel.in_doubt {
            InDoubt::Hold => return,
            InDoubt::Resend => Decision::Resend,
            InDoubt::Drop => Decision::Drop,
        };
        let panel: Box<str> = (&*self.panel.name).into();
        let mut journal = self.shared.journal();
        let all: Vec<u64> = journal.state().book(&panel).doubts.iter().map(|batch| batch.seq).collect();
        for seq in all {
            let event = JournalEvent::Settled { panel: panel.clone(), seq, at: rt::unix_time(), how };
            if let Err(error) = journal.commit(event) {
                tracing::error!(panel = &*panel, %error, "cannot write the journal");
            }
        }
    }

    /// Moves done rows to the archive when their ten minutes are over.
    fn archive(&self, panel: &str, now: u64) -> io::Result<()> {
        let mut journal = self.shared.journal();
        let book = journal.state().book(panel);
        if !book.bucket_is_over(now) {
            return Ok(());
        }
        let from = book.recent_from;
        self.shared.archive.add(panel, from, &book.recent)?;
        self.shared.archive.trim(now)?;
        journal.commit(JournalEvent::Archived { panel: panel.into(), from })
    }
}
