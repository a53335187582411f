//! Accounts as a fleet sees them.

use std::sync::Arc;

use adit_model::{Expiry, Secret, SnellVersion, SnellVersions, User, UserLimits};
use adit_net::rt;

use super::account::{Account, AccountRecord, UserDirection, UserLimit};
use super::key_search::KeySearch;
use super::tests::{Folder, once_free};
use super::{AccountLedger, KnownSources};
use crate::protocols::snell::format::accepts;

const DAY: u64 = 86_400;

fn user(name: &str, key: &str, limits: UserLimits) -> User {
    User { name: name.into(), key: Secret::new(key), limits }
}

#[test]
fn totals_are_those_on_disk_over_inbounds_and_keys() {
    let dir = Folder::new("totals");
    let path = dir.path().join("a.state");
    let (ledger, _) = once_free(|| AccountLedger::open(&path, &path.with_extension("none"))).unwrap();
    let none = UserLimits::default();
    let old = ledger.accounts("ss", &[user("home/5", "old key", none), user("ann", "k", none)]).unwrap();
    old[0].settle(UserDirection::Up, 0, 100);
    old[1].settle(UserDirection::Up, 0, 7);
    assert_eq!(ledger.saved_totals("home/").unwrap(), [("5".into(), [100, 0])].into());
    drop(old);
    let new = ledger.accounts("ss", &[user("home/5", "new key", none)]).unwrap();
    let other = ledger.accounts("snell", &[user("home/5", "new key", none)]).unwrap();
    new[0].settle(UserDirection::Down, 0, 10);
    other[0].settle(UserDirection::Up, 0, 1);
    // The record of the old key stays, and what is told is in the file.
    assert_eq!(ledger.saved_totals("home/").unwrap(), [("5".into(), [101, 10])].into());
    drop((new, other, ledger));
    let again = || once_free(|| AccountLedger::open(&path, &path.with_extension("none")));
    let until = rt::now() + std::time::Duration::from_secs(20);
    let ledger = loop {
        match again() {
            Ok((ledger, _)) => break ledger,
            Err(error) => assert!(rt::now() < until, "{error}"),
        }
    };
    assert_eq!(ledger.saved_totals("home/").unwrap(), [("5".into(), [101, 10])].into());
    assert!(ledger.saved_totals("none/").unwrap().is_empty());
}

/// 10,000 users stand in a list while few of them are there.
#[test]
fn an_account_is_small_and_shares_its_name() {
    let all = UserLimits {
        quota: Some(5),
        reset_day: Some(3),
        expires: Some(Expiry::at(4_000_000_000)),
        rate: Some(6),
        connections: Some(7),
        addresses: Some(u32::MAX),
    };
    let users = [user("p/1", "a", all), user("p/2", "b", UserLimits::default())];
    let ledger = Arc::<AccountLedger>::default();
    let accounts = ledger.accounts("in", &users).unwrap();
    for ((user, account), known) in users.iter().zip(accounts.iter()).zip(ledger.names()) {
        assert!(Arc::ptr_eq(&user.name, &account.name) && Arc::ptr_eq(&user.name, &known));
        assert_eq!(account.limits(), user.limits);
    }
    assert!(size_of::<Account>() <= 224, "{}", size_of::<Account>());
}

#[test]
fn an_allowance_ends_before_the_quota_and_can_grow() {
    let limits = UserLimits { quota: Some(1000), ..UserLimits::default() };
    let account = Account::new("ann", limits, AccountRecord::default(), rt::now(), 0);
    account.settle(UserDirection::Up, 0, 300);
    account.allow(Some(100));
    assert_eq!(account.over(), None);
    account.settle(UserDirection::Up, 0, 100);
    assert_eq!(account.over(), Some(UserLimit::Quota));
    account.allow(Some(0));
    assert_eq!(account.over(), Some(UserLimit::Quota));
    account.allow(Some(u64::MAX));
    assert_eq!(account.over(), None);
    account.settle(UserDirection::Up, 0, 600);
    assert_eq!(account.over(), Some(UserLimit::Quota), "never more than the quota");
    account.allow(None);
    assert_eq!((account.used(), account.over()), (1000, Some(UserLimit::Quota)));
}

#[test]
fn a_period_waits_while_clocks_differ() {
    let limits = UserLimits { quota: Some(10), reset_day: Some(1), ..UserLimits::default() };
    let account = Account::new("ann", limits, AccountRecord::default(), rt::now(), 5 * DAY);
    account.settle(UserDirection::Up, 0, 10);
    // The clock says that it is March. Ticks alone begin no period.
    account.tick(70 * DAY);
    assert_eq!(account.over(), Some(UserLimit::Quota));
    // A start with that clock does not either.
    let started = Account::new("ann", limits, account.record(), rt::now(), 70 * DAY);
    assert_eq!(started.over(), Some(UserLimit::Quota));
    started.turn(70 * DAY);
    assert_eq!(started.over(), None);
}

#[test]
fn users_who_were_seen_are_tried_before_the_others() {
    let users: Vec<User> = (0..200)
        .map(|n| user(&format!("user{n}"), &format!("the key of user {n}"), UserLimits::default()))
        .collect();
    let sources = Arc::new(KnownSources::default());
    let start = || {
        KeySearch::start(&users, &sources, |psk| accepts(SnellVersions::Only(SnellVersion::V5), psk)).unwrap()
    };
    let cost = |trial: &KeySearch, n: usize| {
        trial.cost(&super::tests::first(users[n].key.expose(), SnellVersion::V5))
    };
    let trial = start();
    assert!(cost(&trial, 199) > 150);
    trial.note("192.0.2.1".parse().unwrap(), 199);
    trial.note("192.0.2.2".parse().unwrap(), 150);
    assert!(cost(&trial, 150) <= 2 && cost(&trial, 199) <= 3);
    // Another list of users, or a restart with the sources, remembers both, and where they came from.
    let trial = start();
    assert!(cost(&trial, 150) <= 3 && cost(&trial, 199) <= 3);
    assert_eq!(trial.known("192.0.2.1".parse().unwrap()).first().map(|(user, _)| *user), Some(199));
}
