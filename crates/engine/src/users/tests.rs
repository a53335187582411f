//! Accounts, the ledger and trials, without sockets.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_model::{Secret, SnellMode, SnellVersion, SnellVersions, StateFile as Place, User, UserLimits};
use adit_net::rt::{self, Cores};
use adit_proto::snell::{SnellClientStream, SnellCommand, SnellPsk, SnellRequest};
use adit_proto::wire::{Layer, Rng};

use super::account::{Account, AccountRecord, Grant, UserDirection, UserLimit};
use super::key_search::{KeySearch, KeySearchResult};
use super::search_counters::Searches;
use super::{AccountLedger, Lease, StateError, state_file_name};
use crate::protocols::snell::format::{accepts, format};
use crate::rng::OsRng;

const DAY: u64 = 86_400;

fn ip(n: u32) -> IpAddr {
    IpAddr::V4(n.into())
}

fn account(limits: UserLimits, now: Instant) -> Account {
    Account::new("ann", limits, AccountRecord::default(), now, 0)
}

#[test]
fn a_quota_gives_what_is_left_and_no_more() {
    let now = rt::now();
    let account = account(UserLimits { quota: Some(1000), ..UserLimits::default() }, now);
    assert_eq!(account.grant(UserDirection::Up, 600, now), Grant::Bytes(600));
    assert_eq!(
        account.grant(UserDirection::Down, 600, now),
        Grant::Bytes(400),
        "what is reserved is not there"
    );
    account.settle(UserDirection::Up, 600, 100);
    assert_eq!(account.grant(UserDirection::Up, 600, now), Grant::Bytes(500));
    account.settle(UserDirection::Up, 500, 500);
    account.settle(UserDirection::Down, 400, 400);
    assert_eq!(account.grant(UserDirection::Down, 1, now), Grant::Over(UserLimit::Quota));
    assert_eq!((account.traffic.up.value(), account.traffic.down.value(), account.used()), (600, 400, 1000));
    assert_eq!(account.over(), Some(UserLimit::Quota));
    assert!(Lease::begin(&Arc::new(account), ip(1)).is_err());
}

#[test]
fn many_threads_share_a_quota_to_the_byte() {
    let now = rt::now();
    let account = account(UserLimits { quota: Some(1_000_003), ..UserLimits::default() }, now);
    std::thread::scope(|scope| {
        for n in 0..4_usize {
            let account = &account;
            scope.spawn(move || {
                while let Grant::Bytes(granted) = account.grant(UserDirection::Up, 100 + n, now) {
                    account.settle(UserDirection::Up, granted, granted.div_ceil(2));
                }
            });
        }
    });
    assert_eq!(account.used(), 1_000_003);
}

#[test]
fn a_period_begins_on_its_day_and_service_ends_on_its_own() {
    let limits = UserLimits {
        quota: Some(10),
        reset_day: Some(2),
        expires: "1970-03-01".parse().ok(),
        ..UserLimits::default()
    };
    let now = rt::now();
    let account = account(limits, now);
    account.settle(UserDirection::Up, 0, 10);
    for (day, over) in [(0, Some(UserLimit::Quota)), (1, None), (31, None)] {
        account.tick(day * DAY);
        account.turn(day * DAY);
        assert_eq!(account.over(), over, "day {day}");
    }
    account.settle(UserDirection::Down, 0, 9);
    account.tick(32 * DAY - 1);
    account.turn(32 * DAY - 1);
    assert_eq!((account.over(), account.used()), (None, 9));
    account.settle(UserDirection::Down, 0, 1);
    assert_eq!(account.over(), Some(UserLimit::Quota));
    account.tick(10 * DAY);
    account.turn(10 * DAY);
    assert_eq!(account.over(), Some(UserLimit::Quota), "a clock that is set back gives nothing");
    account.tick(32 * DAY);
    account.turn(32 * DAY);
    assert_eq!((account.over(), account.used()), (None, 0));
    account.tick(59 * DAY);
    account.turn(59 * DAY);
    assert_eq!(account.over(), None);
    account.tick(60 * DAY);
    account.turn(60 * DAY);
    assert_eq!(account.over(), Some(UserLimit::Expired));
    assert_eq!(account.grant(UserDirection::Up, 1, now), Grant::Over(UserLimit::Expired));
    let again = Account::new("ann", limits, account.record(), now, 33 * DAY);
    assert_eq!((again.used(), again.record()), (0, account.record()));
}

#[test]
fn a_rate_holds_over_time_in_each_direction() {
    let start = rt::now();
    let account = account(UserLimits { rate: Some(1_000_000), ..UserLimits::default() }, start);
    let mut moved = 0;
    for millis in 0..10_000 {
        let now = start + Duration::from_millis(millis);
        while let Grant::Bytes(granted) = account.grant(UserDirection::Down, 20_000, now) {
            // Not every read brings all that it may.
            account.settle(UserDirection::Down, granted, granted / 2);
            moved += granted / 2;
        }
    }
    assert!((9_900_000..=10_110_000).contains(&moved), "{moved}");
    assert!(
        matches!(account.grant(UserDirection::Up, 20_000, start), Grant::Bytes(20_000)),
        "the other way is another"
    );
}

#[test]
fn a_slow_rate_waits_and_then_gives() {
    let start = rt::now();
    let account = account(UserLimits { rate: Some(1), ..UserLimits::default() }, start);
    let Grant::Bytes(first) = account.grant(UserDirection::Up, 1 << 20, start) else {
        panic!("a burst at first")
    };
    account.settle(UserDirection::Up, first, first);
    let Grant::Wait(wait) = account.grant(UserDirection::Up, 1 << 20, start) else {
        panic!("nothing is left")
    };
    assert!(matches!(account.grant(UserDirection::Up, 1 << 20, start + wait), Grant::Bytes(1..)), "{wait:?}");
}

#[test]
fn connections_and_addresses_are_counted_while_they_last() {
    let limits = UserLimits { connections: Some(3), addresses: Some(2), ..UserLimits::default() };
    let account = Arc::new(account(limits, rt::now()));
    let first = [1, 1, 2].map(|n| Lease::begin(&account, ip(n)).unwrap());
    assert_eq!(Lease::begin(&account, ip(1)).unwrap_err(), UserLimit::Connections);
    assert_eq!(account.open(), 3);
    let [_one, two, three] = first;
    drop(two);
    assert_eq!(Lease::begin(&account, ip(3)).unwrap_err(), UserLimit::Addresses);
    assert_eq!(account.open(), 2, "a refusal holds no place");
    drop(three);
    assert_eq!(Lease::begin(&account, ip(3)).unwrap_err(), UserLimit::Addresses, "its source may come again");
    let same: IpAddr = "::ffff:0.0.0.2".parse().unwrap();
    let _same = Lease::begin(&account, same).unwrap();
}

#[test]
fn many_addresses_of_one_network_are_one_source() {
    let limits = UserLimits { addresses: Some(1), ..UserLimits::default() };
    let account = Arc::new(account(limits, rt::now()));
    let of = |network: u16, n: u16| IpAddr::from([0x2001, 0xdb8, 0, network, n, n, n, n]);
    let leases: Vec<_> = (0..50).map(|n| Lease::begin(&account, of(1, n)).unwrap()).collect();
    assert_eq!((account.open(), account.sources()), (50, vec![of(1, 0)]));
    assert_eq!(Lease::begin(&account, of(2, 0)).unwrap_err(), UserLimit::Addresses);
    drop(leases);
}

#[test]
fn connections_of_a_source_that_gives_way_end() {
    let limits = UserLimits { addresses: Some(1), ..UserLimits::default() };
    let account = Arc::new(account(limits, rt::now()));
    let lease = Lease::begin(&account, ip(1)).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(lease.poll_grant(UserDirection::Up, 1, rt::now(), &mut cx), Poll::Ready(Ok(1))));
    // On another node there was one before.
    account.follow(Some((&[(ip(9), 0), (ip(1), 0)], 0)), rt::now());
    assert_eq!(lease.over(), Some(UserLimit::Addresses));
    let granted = lease.poll_grant(UserDirection::Up, 1, rt::now(), &mut cx);
    assert!(
        matches!(granted, Poll::Ready(Err(UserLimit::Addresses)))
            && !lease.grant_whole(UserDirection::Up, 1, rt::now())
    );
    assert_eq!(Lease::begin(&account, ip(1)).unwrap_err(), UserLimit::Addresses);
    account.follow(None, rt::now());
    let _again = Lease::begin(&account, ip(1)).unwrap();
    drop(lease);
    assert_eq!(account.sources(), [ip(1)]);
}

#[test]
fn a_user_is_online_for_a_minute_after_a_byte() {
    let record = AccountRecord { up: 1 << 40, down: 5, ..AccountRecord::default() };
    let account = Account::new("ann", UserLimits::default(), record, rt::now(), 0);
    account.look();
    assert!(!account.is_online(), "bytes of before the start");
    account.settle(UserDirection::Down, 1, 1);
    assert!(!account.is_online(), "nobody has looked");
    for second in 0..300 {
        account.look();
        assert_eq!(account.is_online(), second < 60, "{second}");
    }
    account.settle(UserDirection::Up, 1 << 20, 1 << 20);
    account.look();
    assert!(account.is_online());
}

#[test]
fn without_limits_bytes_are_counted_and_nothing_is_asked() {
    let account = Arc::new(account(UserLimits::default(), rt::now()));
    let lease = Lease::begin(&account, ip(1)).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(lease.poll_grant(UserDirection::Up, 77, rt::now(), &mut cx).is_ready());
    lease.settle(UserDirection::Up, 77, 5);
    lease.settle(UserDirection::Down, 0, 6);
    assert_eq!((account.traffic.up.value(), account.traffic.down.value()), (5, 6));
}

/// Opens a state file as soon as it is free.
pub(super) fn once_free<T>(open: impl FnMut() -> Result<T, StateError>) -> Result<T, StateError> {
    adit_testkit::once_free(open, |error| matches!(error, StateError::Busy))
}

/// A folder of a test, which goes with it.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("adit-users-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn user(name: &str, key: &str) -> User {
    User::from((name.into(), Secret::new(key)))
}

/// Users whose keys are their names.
fn named(names: &[&str]) -> Vec<User> {
    names.iter().map(|name| user(name, name)).collect()
}

fn open(path: &Path, names: &[&str]) -> (Arc<AccountLedger>, super::Accounts, Option<String>) {
    let (ledger, warning) = once_free(|| AccountLedger::open(path, &path.with_extension("none"))).unwrap();
    let accounts = ledger.accounts("in", &named(names)).unwrap();
    (ledger, accounts, warning)
}

#[test]
fn accounts_go_on_where_they_were() {
    let dir = Folder::new("on");
    let path = dir.path().join("users.state");
    let (ledger, accounts, warning) = open(&path, &["ann", "bob"]);
    assert_eq!(warning, None);
    accounts[1].settle(UserDirection::Up, 0, 5);
    ledger.flush();
    let busy = AccountLedger::open(&path, &path).unwrap_err();
    assert!(busy.to_string().starts_with("another process uses it: stop that one"), "{busy}");
    // The same process makes the inbound anew, as for another configuration.
    let again = ledger.accounts("in", &named(&["bob"])).unwrap();
    assert!(Arc::ptr_eq(&again[0], &accounts[1]), "connections of before count for the same account");
    let limits = UserLimits { connections: Some(1), ..UserLimits::default() };
    let again = ledger.accounts("in", &[User { limits, ..user("bob", "bob") }]).unwrap();
    assert_eq!((again[0].record(), again[0].limits()), (accounts[1].record(), limits));
    again[0].settle(UserDirection::Down, 0, 7);
    again[0].requests.add(1);
    ledger.flush();
    end(ledger);
    let (ledger, accounts, _) = open(&path, &["new", "bob", "ann"]);
    let record = accounts[1].record();
    assert_eq!((record.up, record.down, record.requests), (5, 7, 1));
    assert_eq!(
        (accounts[0].record(), accounts[2].record()),
        (AccountRecord::default(), AccountRecord::default())
    );
    end(ledger);
}

#[test]
fn a_new_key_begins_anew_and_an_old_one_goes_on() {
    let dir = Folder::new("key");
    let path = dir.path().join("users.state");
    let used = |key: &str, inbound: &str, more: usize| {
        let (ledger, _) = once_free(|| AccountLedger::open(&path, &path)).unwrap();
        let accounts = ledger.accounts(inbound, &[user("ann", key)]).unwrap();
        let before = accounts[0].record().up;
        accounts[0].settle(UserDirection::Up, 0, more);
        ledger.flush();
        end(ledger);
        before
    };
    assert_eq!(used("old", "in", 100), 0);
    assert_eq!(used("old", "in", 10), 100);
    assert_eq!(used("new", "in", 1), 0, "another key is another user");
    assert_eq!(used("old", "in", 0), 110, "and the first is still known");
    assert_eq!(used("old", "other", 0), 0, "another inbound has users of its own");
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.windows(3).any(|part| part == b"ann"));
    assert!(!bytes.windows(3).any(|part| part == b"old" || part == b"new"), "no key is in the file");
}

#[test]
fn records_of_users_that_are_gone_are_kept_for_a_while() {
    let dir = Folder::new("gone");
    let path = dir.path().join("users.state");
    let today = u32::try_from(rt::unix_time() / DAY).unwrap();
    let mut opened = super::state::StateFile::open(&path, 0).unwrap();
    let mut image = super::image::tests::image(3, 1);
    for (saved, days) in image.users.values_mut().zip([0, 92, 93]) {
        saved.day = today - days;
    }
    opened.file.save(&image).unwrap();
    drop(opened);
    let (ledger, accounts, _) = open(&path, &["ann"]);
    accounts[0].settle(UserDirection::Up, 0, 1);
    ledger.flush();
    end(ledger);
    let image = super::image::Image::parse(&std::fs::read(&path).unwrap()).unwrap();
    let names: Vec<&str> = image.users.keys().map(|key| &*key.user).collect();
    assert_eq!(names, ["ann", "user0", "user1"]);
}

#[test]
fn the_first_start_takes_the_store_of_earlier_versions_over() {
    let dir = Folder::new("earlier");
    let earlier = dir.path().join("users.db");
    std::fs::write(&earlier, super::lmdb::tests::SMALL).unwrap();
    for name in ["one.state", "two.state"] {
        let path = dir.path().join(name);
        let (ledger, warning) = once_free(|| AccountLedger::open(&path, &earlier)).unwrap();
        assert_eq!(warning, None);
        let accounts = ledger.accounts("snell", &[user("ann", "key 1"), user("new", "key 2")]).unwrap();
        let record = accounts[0].record();
        assert_eq!((record.up, record.down, record.requests, record.base), (4 * 1_000_003, 28, 4, 12));
        assert_eq!(accounts[1].record(), AccountRecord::default());
        ledger.flush();
        end(ledger);
        // Once: another key, and a user that was not there, begin anew.
        let (ledger, _) = once_free(|| AccountLedger::open(&path, &earlier)).unwrap();
        let accounts = ledger.accounts("snell", &[user("ann", "key 3"), user("bob", "key 4")]).unwrap();
        assert!(accounts.iter().all(|account| account.record() == AccountRecord::default()));
        let again = ledger.accounts("snell", &[user("ann", "key 1")]).unwrap();
        assert_eq!(again[0].record().requests, 4);
        end(ledger);
        assert_eq!(std::fs::read(&earlier).unwrap(), super::lmdb::tests::SMALL, "others may read it, too");
    }
}

#[test]
fn a_store_of_earlier_versions_that_is_named_makes_room() {
    let dir = Folder::new("named");
    let path = dir.path().join("users.db");
    let place = Place::At(path.clone());
    std::fs::write(&path, super::lmdb::tests::SMALL).unwrap();
    let start = || AccountLedger::start(Some(&place)).unwrap().0;
    let ledger = start();
    assert_eq!(ledger.accounts("in two", &[user("ann", "k")]).unwrap()[0].record().requests, 3);
    // As if the process had been killed before it wrote anything.
    end(ledger);
    let ledger = start();
    let accounts = ledger.accounts("in two", &[user("ann", "k")]).unwrap();
    assert_eq!(accounts[0].record().requests, 3);
    ledger.flush();
    end(ledger);
    assert_eq!(std::fs::read(dir.path().join("users.db.lmdb")).unwrap(), super::lmdb::tests::SMALL);
    let ledger = start();
    assert_eq!(ledger.accounts("in two", &[user("ann", "k")]).unwrap()[0].record().requests, 3);
    assert_eq!(ledger.accounts("snell", &[user("bob", "k")]).unwrap()[0].record(), AccountRecord::default());
    end(ledger);
}

#[test]
fn a_file_that_cannot_be_had_is_said_in_plain_words() {
    let dir = Folder::new("refused");
    let path = dir.path().join("users.state");
    let place = Place::Try { path: path.clone(), earlier: path.clone() };
    let (first, _) = AccountLedger::start(Some(&place)).unwrap();
    let (_, warning) = AccountLedger::start(Some(&place)).unwrap();
    let shown = path.display();
    assert_eq!(
        warning.unwrap(),
        format!(
            "state file {shown} is used by another process with this configuration; user counters of this process \
             will be lost when it ends; stop the other process, or name another file with `state`"
        )
    );
    drop(first);
    std::fs::write(dir.path().join("file"), "").unwrap();
    let path = dir.path().join("file/users.state");
    let place = Place::Try { path: path.clone(), earlier: path.clone() };
    let (_, warning) = AccountLedger::start(Some(&place)).unwrap();
    let (warning, shown) = (warning.unwrap(), path.display());
    let begins = warning.starts_with(&format!("cannot open state file {shown}: "));
    assert!(begins && warning.ends_with("; user counters will be lost on restart"), "{warning}");
    assert!(AccountLedger::start(Some(&Place::At(path))).is_err(), "a file that is named must be had");
    assert!(AccountLedger::start(Some(&Place::Off)).unwrap().1.is_none());
}

/// A kill right behind the last byte of a quota must not give any of it back.
#[test]
fn a_quota_that_is_used_up_is_written_at_once() {
    adit_testkit::in_time(used_up_quota_is_written_at_once);
}

fn used_up_quota_is_written_at_once() {
    let dir = Folder::new("at-once");
    let path = dir.path().join("users.state");
    let (ledger, _) = once_free(|| AccountLedger::open(&path, &path)).unwrap();
    let limits = UserLimits { quota: Some(1000), ..UserLimits::default() };
    let account = ledger.accounts("in", &[User { limits, ..user("ann", "k") }]).unwrap()[0].clone();
    let saved = || {
        let image = super::image::Image::parse(&std::fs::read(&path).unwrap_or_default());
        image.and_then(|image| image.users.values().next().map(|saved| saved.record.up)).unwrap_or(0)
    };
    // The thread wakes of its own accord once a second: begin right behind that.
    account.settle(UserDirection::Up, 0, 1);
    wait_for(|| saved() == 1);
    let since = rt::now();
    let now = rt::now();
    assert_eq!(account.grant(UserDirection::Up, 2000, now), Grant::Bytes(999));
    account.settle(UserDirection::Up, 999, 999);
    wait_for(|| saved() == 1000);
    assert!(since.elapsed() < Duration::from_millis(800), "{:?}", since.elapsed());
    end(ledger);
}

fn wait_for(condition: impl Fn() -> bool) {
    let until = rt::now() + Duration::from_secs(120);
    while !condition() {
        assert!(rt::now() < until, "it never comes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_service_ends_at_its_instant() {
    let limits = UserLimits { expires: "1970-01-01T00:01:40Z".parse().ok(), ..UserLimits::default() };
    let account = account(limits, rt::now());
    for (unix_s, over) in
        [(0, None), (99, None), (100, Some(UserLimit::Expired)), (1 << 40, Some(UserLimit::Expired))]
    {
        account.tick(unix_s);
        assert_eq!(account.over(), over, "{unix_s}");
    }
}

#[test]
fn each_configuration_has_a_state_file_of_its_own() {
    let name = |paths: &[&str]| state_file_name(&paths.iter().map(Path::new).collect::<Vec<_>>());
    let one = name(&["/etc/adit/my home.toml"]);
    assert!(one.starts_with("my_home-") && one.ends_with(".state") && one.len() == 8 + 16 + 6, "{one}");
    assert_eq!(one, name(&["/etc/adit/my home.toml"]));
    let others =
        [&["/etc/my home.toml"][..], &["/etc/adit/my home.toml", "/b"], &["/etc/adit/my home.toml/b"], &[]];
    assert!(others.iter().all(|paths| name(paths) != one));
    assert_ne!(name(&["ab", "c"]), name(&["a", "bc"]));
    assert!(name(&[&"x".repeat(300)]).len() < 100);
}

/// Waits until the thread of a ledger has let go of its file.
fn end(ledger: Arc<AccountLedger>) {
    let weak = Arc::downgrade(&ledger);
    drop(ledger);
    wait_for(|| weak.strong_count() == 0);
}

fn users(count: usize) -> Vec<User> {
    (0..count).map(|n| user(&format!("user{n}"), &format!("the key of user {n}"))).collect()
}

fn trial(count: usize, versions: SnellVersions) -> Arc<KeySearch> {
    KeySearch::start(&users(count), &Arc::default(), |psk| accepts(versions, psk)).unwrap()
}

/// The first segment of a client.
pub(super) fn first(key: &str, version: SnellVersion) -> Vec<u8> {
    let psk = SnellPsk::new(key.as_bytes());
    let own = psk.derive_own(&mut OsRng);
    let mut client = SnellClientStream::speaking(format(version, &psk), psk, &own, &mut OsRng);
    client.start(&SnellRequest { command: SnellCommand::Udp, client_id: Vec::new() });
    let mut block = vec![0; 8192];
    let at = client.plan(rt::now()).first.head;
    let sealed = client.seal(&mut block, at..at, rt::now()).unwrap();
    block[sealed].to_vec()
}

fn try_all(trial: &KeySearch, source: u32, first: &[u8]) -> Option<KeySearchResult> {
    Cores::block_on(async {
        trial.attempt(ip(source)).try_all(first, &Arc::<Searches>::default().begin()).await
    })
    .unwrap()
}

#[test]
fn everybody_is_found_among_many_and_then_known() {
    const COUNT: usize = 300;
    for (versions, speaks) in [
        (SnellVersions::default(), SnellVersion::V5),
        (SnellVersions::Auto, SnellVersion::V5),
        (SnellVersions::Auto, SnellVersion::V6(SnellMode::Default)),
        (SnellVersions::Only(SnellVersion::V2), SnellVersion::V2),
    ] {
        let trial = trial(COUNT, versions);
        for user in [0, COUNT / 2, COUNT - 1] {
            let bytes = first(&format!("the key of user {user}"), speaks);
            let source = u32::try_from(user).unwrap() + 1;
            assert!(!trial.attempt(ip(source)).is_warm(bytes.len()));
            let Some(KeySearchResult::Opened(found, _)) = try_all(&trial, source, &bytes) else {
                panic!("{speaks:?}: {user}")
            };
            assert_eq!(found, user);
            trial.note(ip(source), user);
            let mut attempt = trial.attempt(ip(source));
            assert!(attempt.is_warm(bytes.len()));
            assert_eq!(attempt.try_known(&bytes).map(|(user, _)| user), Some(user));
            assert_eq!(trial.known(ip(source))[0].0, user);
            let other = trial.take_key(user);
            assert_ne!(other.salt(), trial.take_key(user).salt());
        }
        let mut attempt = trial.attempt(ip(1));
        assert!(attempt.try_known(&first("nobody's key at all", speaks)).is_none());
        assert!(!attempt.is_warm(4096), "none is tried twice");
        let weak = Arc::downgrade(&trial);
        drop(trial);
        let until = rt::now() + Duration::from_secs(120);
        while weak.strong_count() > 0 {
            assert!(rt::now() < until, "the thread keeps its trial alive");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Derivations are what a trial costs. On a port of several versions a client of any of them costs no more than one for
/// each user and a tenth, though each user has two keys that could open.
#[test]
fn a_client_of_any_version_costs_a_derivation_per_user_at_most() {
    const COUNT: usize = 300;
    let shaped = SnellVersion::V6(SnellMode::Default);
    let trial = trial(COUNT, SnellVersions::Auto);
    for user in [0, COUNT / 2, COUNT - 1] {
        let key = format!("the key of user {user}");
        let cost = trial.cost(&first(&key, SnellVersion::V5));
        assert!((user + 1..=user + 1 + COUNT / 10).contains(&cost), "v5 of user {user}: {cost}");
        let cost = trial.cost(&first(&key, SnellVersion::V6(SnellMode::Unshaped)));
        assert!(cost <= user + 1 + COUNT / 10, "unshaped of user {user}: {cost}");
        let cost = trial.cost(&first(&key, shaped));
        assert!(cost <= COUNT / 3, "v6 of user {user}: {cost}");
    }
    let pinned = super::tests::trial(COUNT, SnellVersions::Only(shaped));
    let cost = pinned.cost(&first("the key of user 299", shaped));
    assert!(cost <= COUNT / 3, "v6 alone: {cost}");
}

#[test]
fn garbage_is_nobodys_and_its_source_comes_last() {
    let trial = trial(50, SnellVersions::default());
    let mut bytes = vec![0; 100];
    OsRng.fill(&mut bytes);
    let Some(KeySearchResult::Nothing(tried)) = try_all(&trial, 1, &bytes) else { panic!("it opens") };
    assert_eq!(tried, 50);
    let Some(KeySearchResult::Nothing(0)) = try_all(&trial, 2, &bytes[..38]) else {
        panic!("too short to be tried")
    };
    // Many at once: the queue has an end, and who comes from elsewhere is still found.
    let clients = Cores::block_on(async {
        let attempts: Vec<_> = (0..200).map(|n| trial.attempt(ip(100 + n / 50))).collect();
        let mut refused = 0;
        let mut waiting: Vec<_> = Vec::new();
        for mut attempt in attempts {
            let bytes = bytes.clone();
            waiting.push(Box::pin(async move {
                attempt.try_all(&bytes, &Arc::<Searches>::default().begin()).await
            }));
        }
        let mut cx = Context::from_waker(Waker::noop());
        waiting.retain_mut(|waiting| match waiting.as_mut().poll(&mut cx) {
            Poll::Ready(seen) => {
                refused += usize::from(seen.is_none());
                false
            }
            Poll::Pending => true,
        });
        let good = first("the key of user 49", SnellVersion::V5);
        let found = trial.attempt(ip(7)).try_all(&good, &Arc::<Searches>::default().begin()).await;
        assert!(matches!(found, Some(KeySearchResult::Opened(49, _))), "{found:?}");
        (waiting.len(), refused)
    });
    let (waiting, refused) = clients.unwrap();
    assert!(waiting <= 4 * 2 + 4 && refused >= 180, "{waiting} wait, {refused} are refused");
}

/// Cost of a trial of 10,000 keys, and of a known user beside it: prints the figures of docs/snell.md.
#[test]
#[ignore = "measures for some seconds"]
fn ten_thousand_users() {
    const COUNT: usize = 10_000;
    let since = rt::now();
    let trial = trial(COUNT, SnellVersions::default());
    println!("start: {:?}", since.elapsed());
    let psk = SnellPsk::new(b"any key");
    let since = rt::now();
    for n in 0..2000_u16 {
        let mut salt = [0; 16];
        salt[..2].copy_from_slice(&n.to_le_bytes());
        std::hint::black_box(psk.derive(&salt));
    }
    let derivation = since.elapsed() / 2000;
    let last = first(&format!("the key of user {}", COUNT - 1), SnellVersion::V5);
    let since = rt::now();
    assert!(matches!(try_all(&trial, 1, &last), Some(KeySearchResult::Opened(9999, _))));
    let cold = since.elapsed();
    trial.note(ip(1), COUNT - 1);
    let since = rt::now();
    for _ in 0..2000 {
        assert!(trial.attempt(ip(1)).try_known(&last).is_some());
    }
    let warm = since.elapsed() / 2000;
    // Four parts of wall time are one of work.
    let work = cold / 4;
    let keys = work.as_secs_f64() / derivation.as_secs_f64();
    println!(
        "derivation {derivation:?}, known user {warm:?}, trial {cold:?} = {work:?} of work = {keys:.0} derivations"
    );
    assert!(warm < derivation * 3, "{warm:?}");
    drop(trial);
    let trial = super::tests::trial(COUNT, SnellVersions::Auto);
    for (name, version) in [("v5", SnellVersion::V5), ("v6", SnellVersion::V6(SnellMode::Default))] {
        let costs: Vec<usize> =
            (0..20).map(|n| trial.cost(&first(&format!("the key of user {}", 9999 - n), version))).collect();
        println!("all versions, derivations of the last users, {name}: {costs:?}");
    }
    let mut bytes = vec![0; 600];
    OsRng.fill(&mut bytes);
    println!("all versions, garbage: {}", trial.cost(&bytes));
}
