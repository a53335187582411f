//! The old process behind the hand-over: it reports to the new one until its last connection has ended.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_net::handover::HandoverLink;

use super::wire::{self, Message, SuccessorMessage};
use crate::replay::{Arbiter, Print};
use crate::users::AccountLedger;

/// Time between two reports.
const EVERY: Duration = Duration::from_secs(1);
/// Time for an answer about a salt, during which the event loop waits.
const VERDICT: Duration = Duration::from_millis(500);

/// Asks the new process about salts.
#[derive(Debug)]
pub(super) struct Verdicts(Mutex<HandoverLink>);

impl Verdicts {
    pub(super) fn new(link: HandoverLink) -> Self {
        Self(Mutex::new(link))
    }

    fn ask(&self, print: Print) -> io::Result<bool> {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        link.send(&print.emit(), &[])?;
        let (answer, _) = link.receive(Some(VERDICT))?;
        Ok(answer == [1])
    }
}

impl Arbiter for Verdicts {
    /// Without an answer a salt counts as known: what is refused so are connections that had not authenticated when the new
    /// process took over, and then lost it.
    fn admits(&self, print: Print) -> bool {
        self.ask(print).unwrap_or_else(|error| {
            tracing::warn!(%error, "the new process does not answer: a connection is refused");
            false
        })
    }
}

/// Reports what users do here.
#[derive(Debug)]
pub(in crate::lifecycle) struct DrainingProcess {
    reports: Arc<Reports>,
    /// Ends the thread.
    end: Sender<()>,
}

#[derive(Debug)]
struct Reports {
    ledger: Arc<AccountLedger>,
    /// `None` once the new process is gone.
    link: Mutex<Option<HandoverLink>>,
    /// The log says that the file is another process's.
    is_told: AtomicBool,
}

impl DrainingProcess {
    /// Starts to report.
    pub(super) fn start(ledger: Arc<AccountLedger>, link: HandoverLink) -> Self {
        let reader = link.try_clone();
        let reports =
            Arc::new(Reports { ledger, link: Mutex::new(Some(link)), is_told: AtomicBool::new(false) });
        let (end, ended) = channel();
        let follow = reports.clone();
        let run = move || {
            if let Ok(reader) = reader {
                // It ends with the link.
                let changes = follow.clone();
                let read = move || changes.read(&reader);
                drop(std::thread::Builder::new().name("adit-changes".into()).spawn(read));
            }
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                follow.report();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("adit-reports".into()).spawn(run) {
            tracing::error!(%error, "no thread for reports: the bytes of users are told at the end");
        }
        Self { reports, end }
    }

    /// Reports for the last time.
    pub(in crate::lifecycle) fn finish(self) {
        // The thread may have ended.
        self.end.send(()).ok();
        self.reports.report();
        if let Some(link) = &*self.reports.link() {
            wire::send(link, &Message::Bye, &[]).ok();
        }
    }
}

impl Reports {
    fn link(&self) -> MutexGuard<'_, Option<HandoverLink>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what has been counted since the last time, or writes it if nobody takes it.
    fn report(&self) {
        let mut link = self.link();
        let Some(open) = &*link else {
            // Another process may still hold the file: the next second tries again.
            if let Err(error) = self.ledger.resume()
                && !self.is_told.swap(true, Ordering::Relaxed)
            {
                tracing::warn!(%error, "the state file cannot be taken back yet: it is tried again every second");
            }
            return;
        };
        let credits = self.ledger.credits();
        if credits.is_empty() {
            return;
        }
        if let Err(error) = wire::send(open, &Message::Credits { users: credits.clone() }, &[]) {
            self.ledger.take_back(&credits);
            self.lose(&mut link, &error);
        }
    }

    fn lose(&self, link: &mut Option<HandoverLink>, error: &io::Error) {
        if link.take().is_some() {
            tracing::warn!(%error, "the process that took over is gone: this one writes the counters of its users again");
        }
    }

    /// Follows changes until the new process is gone.
    fn read(&self, link: &HandoverLink) {
        loop {
            match wire::receive(link, None) {
                Ok((SuccessorMessage::Changes { users }, _)) => self.ledger.follow(&users),
                Ok(_) => {}
                Err(error) => return self.lose(&mut self.link(), &error),
            }
        }
    }
}
