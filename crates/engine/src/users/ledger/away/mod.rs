//! The accounts while another process takes over: one of the two writes the state file, the other one sends it what its users
//! have moved.
//!
//! ```text
//!   old process: release ─→ file ─→ new process: open           one writer at any time
//!   old process: credits ─────────→ new process: credit         once a second, and once at the end
//!   old process: follow  ←───────── new process: changes        bytes towards quotas, users that are gone
//! ```
//!
//! The old process keeps the counters of each account as they were when it sent them last. The next credit is the difference,
//! so every byte is counted once, in the process that moved it.

use std::path::PathBuf;
use std::sync::Arc;

use adit_model::map::Map;
use adit_net::rt;
use serde::{Deserialize, Serialize};

use super::{AccountLedger, Book, DAY_S};
use crate::users::account::{AccountRecord, UserLimit};
use crate::users::image::{Saved, UserKey};
use crate::users::state::{StateError, StateFile};

/// The part of an account that has been told: upwards, downwards, requests.
type Told = [u64; 3];

/// The agreement with the process that has the file.
#[derive(Debug, Default)]
pub(super) struct Away {
    /// The file, if there is one.
    path: Option<PathBuf>,
    told: Map<UserKey, Told>,
}

/// The use of one user in the old process since the last time. Nothing at all asks whether the user is there still.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credit {
    inbound: Box<str>,
    user: Box<str>,
    fingerprint: [u8; 16],
    /// Bytes upwards and downwards, and requests.
    moved: Told,
}

/// A change that concerns a user's connections in the old process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AwayChange {
    inbound: Box<str>,
    user: Box<str>,
    fingerprint: [u8; 16],
    /// Bytes that the user has moved in the new process since the last time; `None` when the user is gone.
    charge: Option<u64>,
}

fn told_of(record: &AccountRecord) -> Told {
    [record.up, record.down, record.requests]
}

fn since(now: Told, before: Told) -> Told {
    std::array::from_fn(|at| now[at].saturating_sub(before[at]))
}

impl Credit {
    fn key(&self) -> UserKey {
        key(&self.inbound, &self.user, self.fingerprint)
    }
}

impl AwayChange {
    fn new(key: &UserKey, charge: Option<u64>) -> Self {
        let UserKey { inbound, user, fingerprint } = key;
        Self { inbound: (**inbound).into(), user: (**user).into(), fingerprint: *fingerprint, charge }
    }
}

fn key(inbound: &str, user: &str, fingerprint: [u8; 16]) -> UserKey {
    UserKey { inbound: inbound.into(), user: user.into(), fingerprint }
}

impl AccountLedger {
    /// Writes everything, and leaves the file to another process. Counting goes on.
    ///
    /// # Errors
    /// When the file cannot be written; it is kept then.
    pub(crate) fn release(&self) -> std::io::Result<()> {
        let mut book = self.book();
        book.save(rt::unix_time())?;
        let path = book.file.take().map(|file| file.path().to_owned());
        // Without a file the other process starts from zero, and gets everything.
        let is_saved = path.is_some();
        let told = book.live.keys().filter_map(|key| Some((key, book.image.users.get(key)?)));
        let told = told.filter(|_| is_saved).map(|(key, saved)| (key.clone(), told_of(&saved.record)));
        let told = told.collect();
        book.away = Some(Away { path, told });
        Ok(())
    }

    /// The use of users since the last time, for the process that has the file.
    pub(crate) fn credits(&self) -> Vec<Credit> {
        let mut book = self.book();
        let Book { live, away, .. } = &mut *book;
        let Some(away) = away else { return Vec::new() };
        let mut credits = Vec::new();
        for (key, account) in &*live {
            let now = told_of(&account.record());
            let moved = since(now, away.told.insert(key.clone(), now).unwrap_or_default());
            if moved != Told::default() || account.open() > 0 {
                let UserKey { inbound, user, fingerprint } = key;
                let (inbound, user, fingerprint) = ((**inbound).into(), (**user).into(), *fingerprint);
                credits.push(Credit { inbound, user, fingerprint, moved });
            }
        }
        // An account that has no other holder counts no more, and all of it has been told.
        live.retain(|_, account| Arc::strong_count(account) > 1);
        credits
    }

    /// These have not reached the other process.
    pub(crate) fn take_back(&self, credits: &[Credit]) {
        let mut book = self.book();
        let Some(away) = &mut book.away else { return };
        for credit in credits {
            if let Some(told) = away.told.get_mut(&credit.key()) {
                *told = since(*told, credit.moved);
            }
        }
    }

    /// The other process is gone: the file is this one's again, with what has been counted there.
    ///
    /// # Errors
    /// When the file cannot be had or written; the next call tries again.
    pub(crate) fn resume(&self) -> Result<(), StateError> {
        let mut book = self.book();
        let Some(away) = book.away.take() else { return Ok(()) };
        let Some(path) = &away.path else { return Ok(()) };
        let unix_s = rt::unix_time();
        let opened = match StateFile::open(path, unix_s) {
            Ok(opened) => opened,
            Err(error) => {
                book.away = Some(away);
                return Err(error);
            }
        };
        if let Some(image) = opened.image {
            for (key, account) in &book.live {
                let saved = image.users.get(key).map(|saved| told_of(&saved.record)).unwrap_or_default();
                let told = away.told.get(key).copied().unwrap_or_default();
                // Counted by the other process, which has been told of this one's part.
                account.credit(since(saved, told));
            }
            book.image = image;
        }
        book.file = Some(opened.file);
        book.save(unix_s).map(drop).map_err(StateError::from)
    }

    /// Adds what users have done in another process. Gives the users that this one does not have.
    pub(crate) fn credit(&self, credits: &[Credit]) -> Vec<AwayChange> {
        let mut book = self.book();
        let today = u32::try_from(rt::unix_time() / DAY_S).unwrap_or(u32::MAX);
        let mut gone = Vec::new();
        for credit in credits {
            let key = credit.key();
            let live = book.live.get(&key);
            if let Some(account) = live {
                account.credit(credit.moved);
            } else if credit.moved != Told::default() {
                let empty = Saved { record: AccountRecord::default(), day: today };
                let saved = book.image.users.entry(key.clone()).or_insert(empty);
                let AccountRecord { up, down, requests, .. } = &mut saved.record;
                for (counter, moved) in [up, down, requests].into_iter().zip(credit.moved) {
                    *counter = counter.saturating_add(moved);
                }
                book.is_unsaved = true;
            }
            let live = book.live.get(&key);
            if live.is_none_or(|account| account.over() == Some(UserLimit::Removed)) {
                gone.push(AwayChange::new(&key, None));
            }
        }
        gone
    }

    /// The use of limited users here since the last time, for the process that had the file before. `told` is kept from
    /// one call to the next.
    pub(crate) fn charges(&self, told: &mut Charged) -> Vec<AwayChange> {
        let book = self.book();
        let mut changes = Vec::new();
        for (key, account) in &book.live {
            if account.limits().quota.is_none() {
                continue;
            }
            let [up, down, _] = told_of(&account.record());
            let now = up.saturating_add(down);
            let before = told.0.insert(key.clone(), now).unwrap_or(now);
            if now > before {
                changes.push(AwayChange::new(key, Some(now - before)));
            }
        }
        changes
    }

    /// Follows the changes that the process with the file tells.
    pub(crate) fn follow(&self, changes: &[AwayChange]) {
        let book = self.book();
        for change in changes {
            let key = key(&change.inbound, &change.user, change.fingerprint);
            let Some(account) = book.live.get(&key) else { continue };
            match change.charge {
                Some(bytes) => account.charge(bytes),
                None => account.remove(),
            }
        }
    }
}

/// The bytes of limited users that the old process knows of.
#[derive(Debug, Default)]
pub(crate) struct Charged(Map<UserKey, u64>);

impl Charged {
    /// The users of these credits moved those bytes over there: they are no news.
    pub(crate) fn note(&mut self, credits: &[Credit]) {
        for credit in credits {
            if let Some(told) = self.0.get_mut(&credit.key()) {
                let [up, down, _] = credit.moved;
                *told = told.saturating_add(up).saturating_add(down);
            }
        }
    }
}

/// Keeps accounts that belong together apart by their name.
#[cfg(test)]
mod tests;
