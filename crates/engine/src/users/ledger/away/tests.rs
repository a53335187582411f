use std::path::Path;
use std::sync::Arc;

use adit_model::{Secret, User, UserLimits};
use adit_net::rt;

use super::super::AccountLedger;
use super::*;
use crate::users::Accounts;
use crate::users::account::{Grant, UserDirection};
use crate::users::tests::{Folder, once_free};

fn user(name: &str, quota: Option<u64>) -> User {
    let limits = UserLimits { quota, ..UserLimits::default() };
    User { name: name.into(), key: Secret::new(format!("key of {name}")), limits }
}

fn open(path: &Path, users: &[User]) -> (Arc<AccountLedger>, Accounts) {
    let (ledger, warning) = once_free(|| AccountLedger::open(path, Path::new("/none"))).unwrap();
    assert_eq!(warning, None);
    let accounts = ledger.accounts("in", users).unwrap();
    (ledger, accounts)
}

fn moves(account: &crate::users::Account, bytes: usize) {
    assert_eq!(account.grant(UserDirection::Up, bytes, rt::now()), Grant::Bytes(bytes));
    account.settle(UserDirection::Up, bytes, bytes);
}

fn up(account: &crate::users::Account) -> u64 {
    account.traffic.up.value()
}

fn as_sent<T: Serialize + serde::de::DeserializeOwned>(sent: &[T]) -> Vec<T> {
    serde_json::from_slice(&serde_json::to_vec(sent).unwrap()).unwrap()
}

#[test]
fn totals_of_two_processes_add_up_to_the_byte() {
    let dir = Folder::new("away-sum");
    let path = dir.path().join("a.state");
    let users = [user("ann", Some(1000)), user("bob", None)];
    let (old, at_old) = open(&path, &users);
    moves(&at_old[0], 100);
    assert!(old.credits().is_empty(), "it has the file itself");
    old.release().unwrap();
    let (new, at_new) = open(&path, &users);
    assert_eq!(up(&at_new[0]), 100, "what was counted before");
    let mut charged = Charged::default();
    assert!(new.charges(&mut charged).is_empty());
    moves(&at_old[0], 20);
    moves(&at_old[1], 7);
    moves(&at_new[0], 300);
    let credits = as_sent(&old.credits());
    assert_eq!(new.credit(&credits), []);
    charged.note(&credits);
    assert_eq!((up(&at_new[0]), up(&at_new[1])), (420, 7));
    assert!(old.credits().is_empty(), "nothing twice");
    // The quota counts what both move.
    let changes = as_sent(&new.charges(&mut charged));
    assert_eq!(changes.len(), 1);
    old.follow(&changes);
    assert!(new.charges(&mut charged).is_empty());
    assert_eq!(at_old[0].grant(UserDirection::Up, 2000, rt::now()), Grant::Bytes(580));
    at_old[0].settle(UserDirection::Up, 580, 580);
    // The rest is sent with the next.
    let lost = old.credits();
    old.take_back(&lost);
    let credits = old.credits();
    assert_eq!(credits, lost);
    new.credit(&credits);
    assert_eq!(at_new[0].grant(UserDirection::Up, 1, rt::now()), Grant::Over(UserLimit::Quota));
    // A user that the new process does not have any more is counted and cut.
    let without = new.accounts("in", &users[..1]).unwrap();
    at_new[1].remove();
    moves(&at_old[1], 5);
    let gone = new.credit(&old.credits());
    assert_eq!(gone.len(), 1);
    old.follow(&gone);
    assert_eq!(at_old[1].over(), Some(UserLimit::Removed));
    new.flush();
    drop((at_new, without, new));
    let (_, last) = open(&path, &users);
    assert_eq!((up(&last[0]), up(&last[1])), (1000, 12));
}

#[test]
fn the_file_comes_back_with_what_was_counted_meanwhile() {
    let dir = Folder::new("away-back");
    let path = dir.path().join("a.state");
    let users = [user("ann", None)];
    let (old, at_old) = open(&path, &users);
    moves(&at_old[0], 10);
    old.release().unwrap();
    let (new, at_new) = open(&path, &users);
    assert!(matches!(old.resume(), Err(StateError::Busy)), "the other process has it");
    moves(&at_old[0], 5);
    new.credit(&old.credits());
    moves(&at_new[0], 1000);
    new.flush();
    // It is killed.
    moves(&at_old[0], 1);
    drop((new, at_new));
    old.resume().unwrap();
    assert_eq!(up(&at_old[0]), 1016);
    moves(&at_old[0], 1);
    old.flush();
    drop((old, at_old));
    let (_, last) = open(&path, &users);
    assert_eq!(up(&last[0]), 1017);
}

#[test]
fn without_a_file_everything_is_handed_over() {
    let (old, new) = (Arc::new(AccountLedger::default()), Arc::new(AccountLedger::default()));
    let users = [user("ann", None)];
    let (at_old, at_new) = (old.accounts("in", &users).unwrap(), new.accounts("in", &users).unwrap());
    moves(&at_old[0], 10);
    old.release().unwrap();
    new.credit(&old.credits());
    assert_eq!(up(&at_new[0]), 10);
    old.resume().unwrap();
}
