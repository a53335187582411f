//! Users with a key each, and the order in which their keys are tried: that of their last activity.
//!
//! A user is active when its key has opened something of a source. A client that is unknown by its source is more likely one of
//! the users of the last hours than any of a long list, so their keys come first; all others follow in the order of the
//! configuration. Every search tries every key once, so one without a key costs the same in any order.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::known_sources::KnownSources;
use crate::admission::prefix;

/// The users of one inbound, shared by its cores. They are numbers in the order of the configuration.
#[derive(Debug)]
pub(crate) struct Activity {
    names: Vec<Arc<str>>,
    index: HashMap<Arc<str>, u32>,
    sources: Arc<KnownSources>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When each user was active last, by a count of such events; 0 for never.
    last: Vec<u64>,
    count: u64,
    /// The newest order and one before it. An order that nobody walks is written anew in its place.
    orders: [KeyOrder; 2],
    /// The count up to which the newest order goes.
    upto: u64,
}

/// All users, the one that was active last first.
#[derive(Debug, Clone)]
pub(crate) struct KeyOrder {
    users: Arc<[u32]>,
    active: usize,
}

impl KeyOrder {
    /// All users.
    pub(crate) fn all(&self) -> &[u32] {
        &self.users
    }

    /// Those that have been active.
    pub(crate) fn active(&self) -> &[u32] {
        &self.users[..self.active]
    }
}

impl Activity {
    /// The users `names`. The order is that of the users before them, `earlier`, and of those who have come from `sources`.
    pub(super) fn new(sources: &Arc<KnownSources>, names: Vec<Arc<str>>, earlier: Option<&Self>) -> Self {
        let index: HashMap<Arc<str>, u32> = names.iter().cloned().zip(0..).collect();
        let users: Arc<[u32]> = (0..names.len()).map(number).collect();
        let order = KeyOrder { users: users.clone(), active: 0 };
        let other = KeyOrder { users: users.iter().copied().collect(), active: 0 };
        let mut state = State { last: vec![0; names.len()], count: 0, orders: [order, other], upto: 0 };
        let known = sources.users();
        let active = earlier.map(Self::active_names).unwrap_or_default();
        for user in known.iter().rev().chain(active.iter().rev()).filter_map(|name| index.get(name)) {
            state.note(*user);
        }
        Self { names, index, sources: sources.clone(), state: Mutex::new(state) }
    }

    /// The sources of users.
    pub(crate) fn sources(&self) -> &Arc<KnownSources> {
        &self.sources
    }

    /// The users that have come from `source`, most recent first.
    pub(crate) fn known(&self, source: IpAddr) -> Vec<u32> {
        let names = self.sources.find(prefix(source));
        names.iter().filter_map(|name| self.index.get(name).copied()).collect()
    }

    /// `user` has shown itself at `source`.
    pub(crate) fn note(&self, source: IpAddr, user: usize) {
        self.sources.note(prefix(source), &self.names[user]);
        self.state().note(number(user));
    }

    /// The order in which keys are tried. It stays as it is while it is walked, however active users are meanwhile.
    pub(crate) fn order(&self) -> KeyOrder {
        self.state().order()
    }

    fn active_names(&self) -> Vec<Arc<str>> {
        self.order().active().iter().map(|user| self.names[*user as usize].clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, user: u32) {
        self.count += 1;
        self.last[user as usize] = self.count;
    }

    /// The newest order. While searches walk both, it is the one that the last of them began with.
    fn order(&mut self) -> KeyOrder {
        let Self { last, count, orders: [newest, spare], upto } = self;
        if *count > *upto && renew(last, *upto, newest, spare) {
            *upto = *count;
            std::mem::swap(newest, spare);
        }
        newest.clone()
    }
}

/// Writes to `spare` the order of `newest`, with those that were active after `upto` in front; false if it is walked.
fn renew(last: &[u64], upto: u64, newest: &KeyOrder, spare: &mut KeyOrder) -> bool {
    let Some(target) = Arc::get_mut(&mut spare.users) else { return false };
    let (mut front, mut back) = (0, target.len());
    for user in newest.users.iter().rev() {
        if last[*user as usize] > upto {
            target[front] = *user;
            front += 1;
        } else {
            back -= 1;
            target[back] = *user;
        }
    }
    target[..front].sort_unstable_by_key(|user| std::cmp::Reverse(last[*user as usize]));
    let stayed = newest.active().iter().filter(|user| last[**user as usize] <= upto).count();
    spare.active = front + stayed;
    true
}

/// Users are counted in 32 bits.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<Arc<str>> {
        numbers.into_iter().map(|n| n.to_string().into()).collect()
    }

    #[test]
    fn those_active_last_come_first_and_everybody_comes_once() {
        let activity = Activity::new(&Arc::default(), names(0..6), None);
        assert_eq!((activity.order().all(), activity.order().active()), (&[0, 1, 2, 3, 4, 5][..], &[][..]));
        for user in [4, 2, 4, 5] {
            activity.note(ip(1), user);
        }
        let order = activity.order();
        assert_eq!((order.all(), order.active()), (&[5, 4, 2, 0, 1, 3][..], &[5, 4, 2][..]));
        // An order that is walked stays; a new one is written beside it, and there are two at most.
        activity.note(ip(1), 2);
        let second = activity.order();
        assert_eq!((order.all()[0], second.all()), (5, &[2, 5, 4, 0, 1, 3][..]));
        activity.note(ip(1), 3);
        assert_eq!(activity.order().all(), second.all(), "both are walked");
        drop(order);
        let third = activity.order();
        assert_eq!((third.all(), third.active().len()), (&[3, 2, 5, 4, 0, 1][..], 4));
    }

    #[test]
    fn an_order_is_that_of_a_model() {
        let activity = Activity::new(&Arc::default(), names(0..50), None);
        let mut model: Vec<u32> = (0..50).collect();
        let mut held = Vec::new();
        let mut random = 7_usize;
        for round in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005_usize & usize::MAX).wrapping_add(12_345);
            let user = random / 65_536 % 50;
            activity.note(ip(1), user);
            model.retain(|other| *other as usize != user);
            model.insert(0, u32::try_from(user).unwrap());
            if round % 7 == 0 {
                held.clear();
            }
            if round % 3 == 0 {
                let order = activity.order();
                let mut all = order.all().to_vec();
                if held.len() < 2 {
                    assert_eq!(all, model);
                }
                all.sort_unstable();
                assert!(all.iter().copied().eq(0..50), "everybody once");
                held.push(order);
            }
        }
    }

    #[test]
    fn another_list_of_users_keeps_the_order() {
        let sources = Arc::new(KnownSources::default());
        let first = sources.activity(names(0..6));
        for user in [1, 3, 5] {
            first.note(ip(1), user);
        }
        // User 3 is gone, and user 9 is new.
        let second = sources.activity(names([0, 1, 2, 4, 5, 9]));
        assert_eq!((second.order().all(), second.order().active().len()), (&[4, 1, 0, 2, 3, 5][..], 2));
        // After a restart there are the sources alone.
        drop((first, second));
        let third = sources.activity(names(0..6));
        assert_eq!(third.order().active(), [5, 3, 1]);
        assert_eq!(third.known(ip(1)), [5, 3, 1]);
    }
}
