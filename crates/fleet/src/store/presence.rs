//! Sources of users over all nodes: those of this node go to the store, those of all nodes come back in order of arrival.
//!
//! A user is told when its sources have changed, once more when those that came before have been told on all nodes, every [`REFRESH`], at each synchronisation while it has as many sources as
//! it may, and at once when a source has been refused because of other nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_model::map::Map;
use adit_net::rt;

use super::link::{LIMIT, StoreError};
use super::links::Request;
use super::resp::Value;
use super::script::{MOST_KEYS, MOST_SOURCES, SOURCES, bucket, source_key};
use super::sync::{Everywhere, Sync, UserSources};
use crate::jitter::MOST_JITTER;

/// Time after which sources that stay the same are told again: the store forgets them after 120 s.
const REFRESH: Duration = Duration::from_secs(60);
/// Sources that were told so long ago are told again together with older ones of their bucket. Half of the time brings all
/// users of a bucket together within two minutes.
const JOINS: Duration = Duration::from_secs(30);
/// A source on another node may seem silent for this much longer than the time between two synchronisations.
const SLACK_S: u64 = 2;

/// A user as the store was told of.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    sources: Vec<IpAddr>,
    most: u32,
    at: Instant,
    /// When it is told again, since other nodes may have had sources that came before and were told later.
    again: Option<Instant>,
    /// As many sources are in use as may be.
    is_full: bool,
}

impl Sync {
    /// Tells sources, and has those on all nodes followed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn tell_sources(&mut self, is_due: bool) -> Result<(), StoreError> {
        let all = self.host.sources();
        if is_due {
            self.seen.retain(|user, _| all.contains_key(user));
        }
        let now = rt::now();
        let buckets = self.wanted_sources(&all, is_due, now);
        let parts: Vec<&[(&str, &UserSources)]> =
            buckets.values().flat_map(|users| users.chunks(MOST_KEYS)).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let requests: Vec<Request> = parts.iter().map(|part| request(&self.store.fleet, part)).collect();
        let answers = self.call("sources", &requests).await?;
        let mut found = Everywhere::new();
        for (part, answer) in parts.into_iter().zip(answers) {
            let Value::List(lists) = answer else { return Err(StoreError::Other) };
            if lists.len() != part.len() {
                return Err(StoreError::Other);
            }
            for ((user, own), list) in part.iter().zip(&lists) {
                let everywhere = read(list).ok_or(StoreError::Other)?;
                let sources = own.sources.iter().map(|(source, ..)| *source).collect();
                let is_full = is_full(&everywhere, own.most);
                let again = self.again(user, own, now);
                self.seen.insert((*user).into(), Seen { sources, most: own.most, at: now, again, is_full });
                found.insert((*user).into(), everywhere);
            }
        }
        let silent_s = self.store.every.as_secs() + SLACK_S;
        self.host.follow_sources(Some(&found), silent_s);
        Ok(())
    }

    /// The users to tell, by bucket.
    ///
    /// Users whose sources stay the same are told together with the first of their bucket: each call costs the store as much
    /// as some users in it.
    fn wanted_sources<'a>(
        &self,
        all: &'a Map<Arc<str>, UserSources>,
        is_due: bool,
        now: Instant,
    ) -> Map<u16, Vec<(&'a str, &'a UserSources)>> {
        let has_age =
            |user: &str, age: Duration| self.seen.get(user).is_some_and(|seen| now >= seen.at + age);
        let refreshed: BTreeSet<u16> = all
            .iter()
            .filter(|(user, own)| is_due && !own.sources.is_empty() && has_age(user, REFRESH))
            .map(|(user, _)| bucket(user))
            .collect();
        let joins = |user: &str, own: &UserSources| {
            !refreshed.is_empty()
                && own.most as usize <= MOST_SOURCES
                && !own.sources.is_empty()
                && has_age(user, JOINS)
                && refreshed.contains(&bucket(user))
        };
        let mut buckets = Map::<u16, Vec<(&str, &UserSources)>>::new();
        for (user, own) in all {
            if self.is_wanted(user, own, is_due, now) || joins(user, own) {
                buckets.entry(bucket(user)).or_default().push((&**user, own));
            }
        }
        buckets
    }

    fn is_wanted(&self, user: &str, own: &UserSources, is_due: bool, now: Instant) -> bool {
        let fits = own.most as usize <= MOST_SOURCES;
        let seen = self.seen.get(user);
        let is_late = |seen: &Seen| seen.is_full || is_changed(seen, own) || now >= seen.at + REFRESH;
        let is_late = || !own.sources.is_empty() && seen.is_none_or(is_late);
        let is_again = seen.and_then(|seen| seen.again).is_some_and(|again| now >= again);
        fits && (own.is_waiting || is_again && !own.sources.is_empty() || is_due && is_late())
    }

    /// Every node has told the sources that came before the youngest one here, if it reaches the store, an interval after
    /// that one came. The times of arrival are whole seconds.
    fn again(&self, user: &str, own: &UserSources, now: Instant) -> Option<Instant> {
        if self.seen.get(user).is_some_and(|seen| !is_changed(seen, own)) {
            return None;
        }
        let youngest = own.sources.iter().map(|(.., age)| Duration::from_secs(*age)).min()?;
        let told = self.store.every.mul_f64(MOST_JITTER) + Duration::from_secs(1) + LIMIT;
        told.checked_sub(youngest).map(|left| now + left)
    }
}

fn is_changed(seen: &Seen, own: &UserSources) -> bool {
    seen.most != own.most || !own.sources.iter().map(|(source, ..)| source).eq(&seen.sources)
}

fn request(fleet: &str, part: &[(&str, &UserSources)]) -> Request {
    let keys: Vec<String> = part.iter().map(|(user, _)| source_key(fleet, user)).collect();
    let words = part.iter().flat_map(|(_, own)| {
        // Several inbounds may name a source.
        let most = 2 * MOST_SOURCES;
        let sources = own.sources.iter().take(most);
        let words = sources
            .flat_map(|(source, silent, age)| [source.to_string(), silent.to_string(), age.to_string()]);
        [own.sources.len().min(most).to_string()].into_iter().chain(words)
    });
    Request::script(SOURCES, &keys, words)
}

/// Sources in order of arrival, with the seconds of their silence.
fn read(list: &Value) -> Option<Vec<(IpAddr, u64)>> {
    let Value::List(words) = list else { return None };
    words.chunks_exact(2).map(|pair| Some((pair[0].text()?.parse().ok()?, pair[1].number()?))).collect()
}

fn is_full(sources: &[(IpAddr, u64)], most: u32) -> bool {
    let v6 = sources.iter().filter(|(source, _)| source.is_ipv6()).count();
    v6.max(sources.len() - v6) >= most as usize
}

#[cfg(test)]
mod tests {
    use adit_model::{Secret, Store, StoreAway};

    use super::super::link::Place;
    use super::super::script::BUCKETS;
    use super::super::tests::support::Node;
    use super::*;

    /// 2,000 users with one source each: a call for each bucket a minute, and no user is told later than before.
    #[test]
    fn users_of_a_bucket_are_told_together() {
        const EVERY: Duration = Duration::from_secs(5);
        const USERS: u64 = 2000;
        const MINUTES: u64 = 10;
        let store = Store {
            url: Secret::new("unix:///nowhere"),
            fleet: "f".into(),
            away: StoreAway::Allowance,
            every: EVERY,
            sentinel: None,
            users_key: None,
            replay: None,
        };
        let place = Place::new(&store).unwrap();
        let node = Box::new(Node::default());
        let mut sync = Sync::new(store, place, "a".into(), 1, Arc::default(), node);
        let source: IpAddr = "192.0.2.1".parse().unwrap();
        let own = UserSources { most: 2, sources: vec![(source, 0, 1)], is_waiting: false };
        let all: Map<Arc<str>, UserSources> =
            (0..USERS).map(|user| (format!("home/{user}").into(), own.clone())).collect();
        // They have come over a minute.
        let start = rt::now() + Duration::from_secs(60);
        for (number, user) in (0_u32..).zip(all.keys()) {
            let at = start - Duration::from_secs(u64::from(number * 37 % 60));
            let seen = Seen { sources: vec![source], most: 2, at, again: None, is_full: false };
            sync.seen.insert(user.clone(), seen);
        }
        let (mut calls, mut users) = (0, 0);
        for round in 0..MINUTES * 12 {
            let now = start + EVERY * u32::try_from(round).unwrap();
            let wanted = sync.wanted_sources(&all, true, now);
            assert!(sync.wanted_sources(&all, false, now).is_empty(), "each synchronisation alone");
            // The first half is for coming together.
            if round >= MINUTES * 6 {
                calls += wanted.len() as u64;
                users += wanted.values().map(Vec::len).sum::<usize>() as u64;
            }
            for (user, _) in wanted.values().flatten() {
                sync.seen.get_mut(*user).unwrap().at = now;
            }
            assert!(sync.seen.values().all(|seen| now < seen.at + REFRESH), "nobody is late");
        }
        let minutes = MINUTES / 2;
        assert!(calls <= u64::from(BUCKETS) * minutes * 11 / 10, "{calls}");
        assert!((USERS * minutes..USERS * minutes * 11 / 10).contains(&users), "{users}");
    }

    #[test]
    fn answers_of_the_script() {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let list = Value::List(vec![text("192.0.2.1"), text("3"), text("2001:db8::"), text("0")]);
        let sources = read(&list).unwrap();
        assert_eq!(sources, [("192.0.2.1".parse().unwrap(), 3), ("2001:db8::".parse().unwrap(), 0)]);
        assert!(is_full(&sources, 1) && !is_full(&sources, 2));
        assert_eq!(read(&Value::List(vec![text("x"), text("3")])), None);
        assert_eq!(read(&Value::Nil), None);
    }
}
