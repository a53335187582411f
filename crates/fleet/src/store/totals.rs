//! Totals of quotas: own ones go to the store, those over all nodes come back and become allowances.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use adit_model::map::Map;
use adit_net::rt;

use super::allowance::allowance;
use super::link::StoreError;
use super::links::Request;
use super::resp::Value;
use super::script::{MERGE, MOST_USERS};
use super::sync::{Sync, Use};

/// Bytes beyond which a Lua number rounds.
const EXACT: u64 = 1 << 53;
/// Most users of whom the store has lost something that are told again at a time: all nodes do it together.
const MOST_BEHIND: usize = 1000;

/// Keys live for 62 days, and a node renews one that it uses after this.
const RENEWED: Duration = Duration::from_secs(3600);
/// Most keys whose renewal is remembered: buckets, days of the month on which periods begin, and periods.
const MOST_KEYS: usize = 4096;

/// Users of one call.
type Part<'a> = &'a [(Arc<str>, Use)];

/// The last word of the store about a user.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// Own bytes that it has, without `offset`.
    used: u64,
    /// The total over all nodes.
    total: u64,
    /// Own bytes that it had from before, and that are not in the accounts: a copy of the state was older.
    offset: u64,
    /// Own bytes when the allowance was given, and the allowance.
    from: u64,
    may: u64,
    /// The period that all of this is about.
    period: u64,
}

impl Sync {
    /// Tells all users that have moved, or those whose allowance is half used, and gives them their allowances.
    ///
    /// # Errors
    /// [`StoreError`]; what has been told stays told.
    pub(super) async fn tell_totals(
        &mut self,
        uses: &Map<Arc<str>, Use>,
        is_due: bool,
    ) -> Result<(), StoreError> {
        let mut wanted = self.wanted(uses, is_due);
        if is_due {
            wanted.extend(self.behind.iter().take(MOST_BEHIND).cloned());
        }
        let lost = self.merge(uses, &wanted).await?;
        self.behind.retain(|user| !wanted.contains(user));
        let is_lost =
            |user: &str, usage: &Use| lost.contains(&self.key(user, usage)) && !wanted.contains(user);
        let lost = uses.iter().filter(|(user, usage)| is_lost(user, usage)).map(|(user, _)| user.clone());
        let lost = lost.collect();
        self.tell_again(lost);
        Ok(())
    }

    fn wanted(&self, uses: &Map<Arc<str>, Use>, is_due: bool) -> BTreeSet<Arc<str>> {
        let is_wanted = |user: &str, usage: &Use| match self.told.get(user) {
            None => is_due,
            Some(told) if told.period != usage.period => is_due,
            Some(told) if is_due => told.used != usage.used,
            Some(told) => usage.used.saturating_sub(told.from) > told.may / 2,
        };
        uses.iter().filter(|(user, usage)| is_wanted(user, usage)).map(|(user, _)| user.clone()).collect()
    }

    /// The keys in which the store has lost something.
    async fn merge(
        &mut self,
        uses: &Map<Arc<str>, Use>,
        wanted: &BTreeSet<Arc<str>>,
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut buckets = Map::<String, Vec<(Arc<str>, Use)>>::new();
        for user in wanted {
            let Some(usage) = uses.get(user).filter(|usage| usage.used < EXACT) else { continue };
            buckets.entry(self.key(user, usage)).or_default().push((user.clone(), *usage));
        }
        let parts: Vec<(&String, Part<'_>)> = buckets
            .iter()
            .flat_map(|(key, users)| users.chunks(MOST_USERS).map(move |part| (key, part)))
            .collect();
        let mut lost = BTreeSet::new();
        if parts.is_empty() {
            return Ok(lost);
        }
        let requests: Vec<Request> = parts.iter().map(|(key, part)| self.merge_request(key, part)).collect();
        let answers = self.call("merge", &requests).await?;
        for ((key, part), answer) in parts.into_iter().zip(answers) {
            let Value::List(numbers) = answer else { return Err(StoreError::Other) };
            let numbers: Vec<u64> =
                numbers.iter().map(Value::number).collect::<Option<_>>().ok_or(StoreError::Other)?;
            if numbers.len() != part.len() * 2 {
                return Err(StoreError::Other);
            }
            self.note_renewed(key);
            if self.take(part, &numbers) {
                lost.insert(key.clone());
            }
        }
        Ok(lost)
    }

    fn merge_request(&self, key: &str, part: Part<'_>) -> Request {
        let own = |user: &str, usage: &Use| {
            let known = self.told.get(user).filter(|told| told.period == usage.period);
            usage.used + known.map_or(0, |told| told.offset)
        };
        let pairs = part.iter().flat_map(|(user, usage)| [user.to_string(), own(user, usage).to_string()]);
        let is_old = self.renewed.get(key).is_none_or(|at| rt::now() >= *at + RENEWED);
        merge_request(key, &self.node, pairs.chain(is_old.then(|| "1".to_owned())))
    }

    fn note_renewed(&mut self, key: &str) {
        let now = rt::now();
        if self.renewed.get(key).is_some_and(|at| now < *at + RENEWED) {
            return;
        }
        if self.renewed.len() >= MOST_KEYS {
            self.renewed.clear();
        }
        self.renewed.insert(key.into(), now);
    }

    /// Whether the store has lost something of these users.
    fn take(&mut self, part: Part<'_>, numbers: &[u64]) -> bool {
        let (mut allowances, mut is_lost) = (Map::new(), false);
        for ((user, usage), answer) in part.iter().zip(numbers.chunks_exact(2)) {
            let (old, own) = (answer[0], answer[1]);
            let before = self.told.get(user).copied().filter(|told| told.period == usage.period);
            let (mut used, mut offset) = (usage.used, before.map_or(0, |before| before.offset));
            let total = old.saturating_add((used + offset).saturating_sub(own));
            let began = self.began.remove(user).filter(|(_, period)| *period == usage.period);
            let began = began.map_or(usage.used, |(bytes, _)| bytes.min(usage.used));
            match before {
                // The store was further than this copy of the state: bytes since the start count on top, and are told the
                // next time.
                None if own > began => (used, offset) = (began, own - began),
                None => {}
                Some(before) => is_lost |= old < before.total && own < before.used + before.offset,
            }
            let may = allowance(usage.quota, total);
            let told = Told { used, total, offset, from: usage.used, may, period: usage.period };
            self.told.insert(user.clone(), told);
            allowances.insert(user.clone(), Some(may));
        }
        self.host.allow(&allowances);
        is_lost
    }
}

/// The call for one key: pairs of users and their own totals on `node`.
pub(super) fn merge_request(key: &str, node: &str, pairs: impl IntoIterator<Item = String>) -> Request {
    Request::script(MERGE, &[key.to_owned()], [node.to_owned()].into_iter().chain(pairs))
}
