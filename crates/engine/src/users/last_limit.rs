//! The last limit that was in a user's way: in status, and in the log once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_model::codes::{self, Code};
use adit_model::{Day, UserLimits};

use super::account::{Account, UserLimit};
use crate::errors::{Gate, LastError};

/// Pause between two lines about refused connections of one user, in seconds.
const EVERY_S: u64 = 60;

/// The limits that were in the way of one user; nothing for most users.
#[derive(Debug, Default)]
pub(super) struct LastLimit(Mutex<Option<Box<State>>>);

#[derive(Debug, Default)]
struct State {
    last: Option<Last>,
    /// The limit that the log says cuts the user off.
    told: Option<UserLimit>,
    /// Refusals without a line, and when there was one, in seconds since 1970.
    silent: u64,
    told_at: u64,
}

#[derive(Debug)]
struct Last {
    limit: UserLimit,
    count: u64,
    since: u64,
    last: u64,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    code: Code,
    text: String,
}

impl LastLimit {
    fn lock(&self) -> MutexGuard<'_, Option<Box<State>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was refused, or cut.
    pub(super) fn note(&self, limit: UserLimit, unix_s: u64) {
        let mut state = self.lock();
        let state = state.get_or_insert_default();
        if matches!(limit, UserLimit::Connections | UserLimit::Addresses) {
            state.silent += 1;
        }
        match &mut state.last {
            Some(last) if last.limit == limit => (last.count, last.last) = (last.count + 1, unix_s),
            other => *other = Some(Last { limit, count: 1, since: unix_s, last: unix_s }),
        }
    }

    /// The last error, for status.
    pub(super) fn last(&self, over: Option<UserLimit>) -> Option<LastError> {
        let state = self.lock();
        let last = state.as_ref()?.last.as_ref()?;
        Some(LastError {
            code: code(last.limit)?.id.to_owned(),
            text: last.limit.to_string(),
            count: last.count,
            since: last.since,
            last: last.last,
            active: over == Some(last.limit),
        })
    }

    /// The line that is due for `account` at this second.
    pub(super) fn take_line(&self, account: &Account, unix_s: u64) -> Option<Line> {
        let over = account.over().filter(|limit| matches!(limit, UserLimit::Quota | UserLimit::Expired));
        let mut state = self.lock();
        if state.is_none() && over.is_none() {
            return None;
        }
        let state = state.get_or_insert_default();
        if state.told != over {
            let before = std::mem::replace(&mut state.told, over);
            if let Some(limit) = over {
                if state.last.as_ref().is_none_or(|last| last.limit != limit) {
                    state.last = Some(Last { limit, count: 0, since: unix_s, last: unix_s });
                }
                return Some(Line { code: code(limit)?, text: cut_off(limit, &account.limits(), unix_s) });
            }
            return Some(Line { code: code(before?)?, text: "may connect again".to_owned() });
        }
        if state.silent == 0 || unix_s < state.told_at + EVERY_S {
            return None;
        }
        state.told_at = unix_s;
        let count = std::mem::take(&mut state.silent);
        let limit = state.last.as_ref()?.limit;
        Some(Line { code: code(limit)?, text: format!("{limit}: {count} connections refused") })
    }
}

impl Line {
    /// Writes it, if there were not too many this minute.
    pub(super) fn write(&self, inbound: &str, user: &str, gate: &Gate) {
        if gate.passes(adit_net::rt::now()) {
            tracing::info!(inbound, code = self.code.id, "{user}: {}", self.text);
        }
    }
}

fn code(limit: UserLimit) -> Option<Code> {
    match limit {
        UserLimit::Quota => Some(codes::USER_QUOTA),
        UserLimit::Expired => Some(codes::USER_EXPIRED),
        UserLimit::Connections => Some(codes::USER_CONNECTIONS),
        UserLimit::Addresses => Some(codes::USER_ADDRESSES),
        UserLimit::Removed => None,
    }
}

fn cut_off(limit: UserLimit, limits: &UserLimits, unix_s: u64) -> String {
    match limit {
        UserLimit::Quota => {
            let quota = limits.quota.map(size).unwrap_or_default();
            let next = limits.reset_day.map(|first| Day::of(unix_s).next_period(first).to_string());
            format!("{limit} ({quota}); next reset {}", next.as_deref().unwrap_or("never"))
        }
        UserLimit::Expired => {
            let day = limits.expires.map(|expiry| Day::of(expiry.unix_s().saturating_sub(1)).to_string());
            format!("{limit} ({})", day.unwrap_or_default())
        }
        UserLimit::Connections | UserLimit::Addresses | UserLimit::Removed => limit.to_string(),
    }
}

/// A number of bytes in the largest unit that leaves it whole, of 1024 or 1000.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 8] = [
        (1 << 40, "TiB"),
        (1_000_000_000_000, "TB"),
        (1 << 30, "GiB"),
        (1_000_000_000, "GB"),
        (1 << 20, "MiB"),
        (1_000_000, "MB"),
        (1 << 10, "KiB"),
        (1_000, "KB"),
    ];
    let whole = UNITS.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use adit_net::rt;

    use super::super::account::AccountRecord;
    use super::*;

    /// 2026-11-23.
    const NOW: u64 = 1_795_392_000;

    fn account(limits: UserLimits, used: u64) -> Account {
        Account::new("ann", limits, AccountRecord { up: used, ..AccountRecord::default() }, rt::now(), NOW)
    }

    #[test]
    fn a_quota_is_told_once_with_the_next_reset() {
        let limits = UserLimits { quota: Some(500 * 1024), reset_day: Some(5), ..UserLimits::default() };
        let account = account(limits, 500 * 1024);
        let line = account.take_line(NOW).unwrap();
        assert_eq!(
            (line.code, &*line.text),
            (codes::USER_QUOTA, "quota used up (500 KiB); next reset 2026-12-05")
        );
        assert_eq!(account.take_line(NOW + 1), None);
        account.set_limits(UserLimits { quota: Some(1 << 30), ..limits }, NOW);
        assert_eq!(account.take_line(NOW + 2).unwrap().text, "may connect again");
        assert_eq!(account.take_line(NOW + 3), None);
    }

    #[test]
    fn an_account_that_has_expired_names_its_last_day() {
        let expires = Some(Day::of(NOW - 86_400).into());
        let account = account(UserLimits { expires, ..UserLimits::default() }, 0);
        assert_eq!(account.take_line(NOW).unwrap().text, "account expired (2026-11-22)");
        assert_eq!(account.last_error().unwrap().code, "ADIT-USER-02");
    }

    #[test]
    fn refused_connections_have_a_line_a_minute() {
        let account = account(UserLimits { connections: Some(1), ..UserLimits::default() }, 0);
        let source = "192.0.2.1".parse().unwrap();
        account.enter(source, 1).unwrap();
        assert!((0..3).all(|_| account.enter(source, 1).is_err_and(|limit| limit == UserLimit::Connections)));
        assert_eq!(account.take_line(NOW).unwrap().text, "too many connections: 3 connections refused");
        assert!(account.enter(source, 1).is_err());
        assert_eq!(account.take_line(NOW + 59), None);
        assert!(account.take_line(NOW + 60).is_some());
        let last = account.last_error().unwrap();
        assert_eq!((&*last.code, last.count, last.active), ("ADIT-USER-03", 4, false));
    }

    #[test]
    fn sizes_as_people_write_them() {
        for (bytes, text) in
            [(500 * 1024, "500 KiB"), (10_000_000, "10 MB"), (1 << 31, "2 GiB"), (1, "1 bytes")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
