//! The holders of something, and the order in which they give way when it runs short. No clock, no waker, no socket.
//!
//! The first to give way has the lowest [`EvictionRank`]. A few of it beside many of a higher one are spared, so that clients can come
//! in while others hold everything. Among those of a rank, a source that holds far more than its part comes first;
//! of what is left, the one that has been still for longest, and of equals the one that came first.
//!
//! Activity is looked at only when somebody has to give way: a holder's place in the order is that of its last look, and
//! is corrected then. A byte that moves costs nothing here.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// Ticks of a clock that never steps back, in seconds.
pub(crate) type Tick = u32;

/// The degree of proof that a holder has given, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum EvictionRank {
    /// Has not authenticated yet, or not asked for anything.
    Unauthenticated,
    /// Has asked, and has not been answered.
    Unanswered,
    /// Its target has answered.
    Answered,
}

/// A source with no more holders than this never gives way before others.
const FEW: usize = 8;
/// A source with more than this part of all holders of a rank gives way first.
const PART: usize = 8;
/// A rank with no more than this part of the number of a higher one has few beside it; of those who have proven nothing no
/// more than [`FEW`] are spared.
const RANK_PART: usize = 4;

/// All ranks, in their order.
const RANKS: [EvictionRank; 3] =
    [EvictionRank::Unauthenticated, EvictionRank::Unanswered, EvictionRank::Answered];

/// Slots that an empty ledger keeps; more are given back.
const KEPT: usize = 256;

/// A place in the order: the least gives way first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    rank: EvictionRank,
    at: Tick,
    /// Holders in the order of their arrival; it names one for ever.
    order: u64,
    slot: u32,
}

/// Names a holder; after it has left it names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HolderId {
    order: u64,
    slot: u32,
}

#[derive(Debug)]
struct Entry<H> {
    key: Key,
    source: IpAddr,
    holder: H,
}

/// All holders of one kind on one core.
#[derive(Debug)]
pub(crate) struct EvictionQueue<H> {
    slots: Vec<Option<Entry<H>>>,
    free: Vec<u32>,
    next: u64,
    all: BTreeSet<Key>,
    of_source: HashMap<(EvictionRank, IpAddr), BTreeSet<Key>>,
    /// The number of holders of each source, the most last.
    counts: BTreeSet<(EvictionRank, usize, IpAddr)>,
    by_rank: [usize; 3],
}

impl<H> Default for EvictionQueue<H> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            next: 0,
            all: BTreeSet::new(),
            of_source: HashMap::new(),
            counts: BTreeSet::new(),
            by_rank: [0; 3],
        }
    }
}

impl<H> EvictionQueue<H> {
    /// Enters a holder that was active at `at`.
    pub(crate) fn enter(&mut self, rank: EvictionRank, source: IpAddr, at: Tick, holder: H) -> HolderId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer holders than 2^32")
        });
        let key = Key { rank, at, order: self.next, slot };
        self.next += 1;
        self.slots[slot as usize] = Some(Entry { key, source, holder });
        self.link(key, source);
        HolderId { order: key.order, slot }
    }

    /// A holder leaves; `None` if it has before.
    pub(crate) fn leave(&mut self, id: HolderId) -> Option<H> {
        let key = self.entry(id)?.key;
        let entry = self.slots[id.slot as usize].take()?;
        self.unlink(key, entry.source);
        self.free.push(id.slot);
        if self.all.is_empty() && self.slots.len() > KEPT {
            self.slots = Vec::new();
            self.free = Vec::new();
        }
        Some(entry.holder)
    }

    /// A holder has another rank from now on.
    pub(crate) fn set_rank(&mut self, id: HolderId, rank: EvictionRank) {
        if let Some(key) = self.entry(id).map(|entry| entry.key).filter(|key| key.rank != rank) {
            self.rekey(key, Key { rank, ..key });
        }
    }

    /// Holders of this rank.
    pub(crate) fn count(&self, rank: EvictionRank) -> usize {
        self.by_rank[rank as usize]
    }

    /// Holders of this rank that one source has.
    pub(crate) fn count_of(&self, rank: EvictionRank, source: IpAddr) -> usize {
        self.of_source.get(&(rank, source)).map_or(0, BTreeSet::len)
    }

    /// All holders.
    pub(crate) fn len(&self) -> usize {
        self.by_rank.iter().sum()
    }

    /// All holders, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &H> {
        self.slots.iter().flatten().map(|entry| &entry.holder)
    }

    /// Takes out the holder that gives way first, of those up to `rank`. `active_at` says when a holder was active last.
    pub(crate) fn take_victim(&mut self, rank: EvictionRank, active_at: impl Fn(&H) -> Tick) -> Option<H> {
        let rank = self.first_rank(rank)?;
        let start = Key { rank, at: 0, order: 0, slot: 0 };
        loop {
            let key = match self.heaviest(rank) {
                Some(source) => *self.of_source.get(&(rank, source))?.first()?,
                None => *self.all.range(start..).next()?,
            };
            if let Some(holder) = self.take_if_still(key, &active_at) {
                return Some(holder);
            }
        }
    }

    /// Takes out the holder of one source and rank that gives way first.
    pub(crate) fn take_victim_of(
        &mut self,
        rank: EvictionRank,
        source: IpAddr,
        active_at: impl Fn(&H) -> Tick,
    ) -> Option<H> {
        loop {
            let key = *self.of_source.get(&(rank, source))?.first()?;
            if let Some(holder) = self.take_if_still(key, &active_at) {
                return Some(holder);
            }
        }
    }

    /// The rank whose holders give way first, and how many have it.
    pub(super) fn first(&self) -> Option<(EvictionRank, usize)> {
        self.first_rank(EvictionRank::Answered).map(|rank| (rank, self.count(rank)))
    }

    /// The rank whose holders give way first, of those up to `most`.
    fn first_rank(&self, most: EvictionRank) -> Option<EvictionRank> {
        let mut ranks = RANKS.into_iter().filter(|rank| *rank <= most && self.count(*rank) > 0);
        let mut first = ranks.next()?;
        for rank in ranks {
            if is_few(first, self.count(first), self.count(rank)) {
                first = rank;
            }
        }
        Some(first)
    }

    /// The source that holds far more than its part at this rank.
    fn heaviest(&self, rank: EvictionRank) -> Option<IpAddr> {
        let all = self.by_rank[rank as usize];
        let last = (rank, usize::MAX, IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)));
        let (of, count, source) = self.counts.range(..=last).next_back()?;
        (*of == rank && *count > FEW.max(all / PART)).then_some(*source)
    }

    /// Takes out the holder at `key`, unless it was active since that was its place.
    fn take_if_still(&mut self, key: Key, active_at: impl Fn(&H) -> Tick) -> Option<H> {
        let id = HolderId { order: key.order, slot: key.slot };
        let at = active_at(&self.entry(id)?.holder);
        if at > key.at {
            self.rekey(key, Key { at, ..key });
            return None;
        }
        self.leave(id)
    }

    fn entry(&self, id: HolderId) -> Option<&Entry<H>> {
        self.slots.get(id.slot as usize)?.as_ref().filter(|entry| entry.key.order == id.order)
    }

    fn rekey(&mut self, old: Key, new: Key) {
        let Some(Some(entry)) = self.slots.get_mut(old.slot as usize) else { return };
        entry.key = new;
        let source = entry.source;
        self.unlink(old, source);
        self.link(new, source);
    }

    fn link(&mut self, key: Key, source: IpAddr) {
        self.all.insert(key);
        let keys = self.of_source.entry((key.rank, source)).or_default();
        keys.insert(key);
        let count = keys.len();
        self.counts.remove(&(key.rank, count - 1, source));
        self.counts.insert((key.rank, count, source));
        self.by_rank[key.rank as usize] += 1;
    }

    fn unlink(&mut self, key: Key, source: IpAddr) {
        self.all.remove(&key);
        self.by_rank[key.rank as usize] -= 1;
        let Some(keys) = self.of_source.get_mut(&(key.rank, source)) else { return };
        keys.remove(&key);
        let count = keys.len();
        self.counts.remove(&(key.rank, count + 1, source));
        if count == 0 {
            self.of_source.remove(&(key.rank, source));
        } else {
            self.counts.insert((key.rank, count, source));
        }
    }
}

/// Whether so many holders of a rank are few beside so many of a higher one.
fn is_few(rank: EvictionRank, count: usize, higher: usize) -> bool {
    (rank != EvictionRank::Unauthenticated || count <= FEW) && count * RANK_PART <= higher
}

/// The unit that counts as one source: an IPv4 address, or an IPv6 /64.
pub(crate) fn prefix(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_ledger_gives_its_slots_back() {
        let source = IpAddr::from([192, 0, 2, 1]);
        let mut ledger = EvictionQueue::default();
        let ids: Vec<HolderId> =
            (0..1000).map(|n| ledger.enter(EvictionRank::Answered, source, 0, n)).collect();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(ledger.leave(*id), Some(n));
        }
        assert_eq!((ledger.slots.capacity(), ledger.free.capacity()), (0, 0));
        let next = ledger.enter(EvictionRank::Answered, source, 0, 1000);
        assert_eq!(next.slot, 0, "a slot is used again");
        assert_eq!(ledger.leave(ids[0]), None, "its former holder is not found there");
        assert_eq!(ledger.leave(next), Some(1000));
    }

    /// The model of the ledger, without any thought for speed: a list.
    #[derive(Default)]
    struct Model(Vec<Row>);

    #[derive(Clone, Copy)]
    struct Row {
        order: u64,
        rank: EvictionRank,
        source: u8,
        at: Tick,
    }

    impl Model {
        fn oldest(&self, wanted: impl Fn(&&Row) -> bool) -> Option<u64> {
            self.0.iter().filter(wanted).min_by_key(|row| (row.at, row.order)).map(|row| row.order)
        }

        fn victim(&self, most: EvictionRank) -> Option<u64> {
            let count = |rank: EvictionRank| self.0.iter().filter(|row| row.rank == rank).count();
            let mut rank = self.0.iter().map(|row| row.rank).min().filter(|rank| *rank <= most)?;
            for higher in RANKS {
                let is_higher = higher > rank && higher <= most;
                if is_higher && is_few(rank, count(rank), count(higher)) {
                    rank = higher;
                }
            }
            let mut counts = BTreeMap::<u8, usize>::new();
            for row in self.0.iter().filter(|row| row.rank == rank) {
                *counts.entry(row.source).or_default() += 1;
            }
            let all: usize = counts.values().sum();
            let (source, count) = counts.into_iter().max_by_key(|(source, count)| (*count, *source))?;
            let is_heavy = count > FEW.max(all / PART);
            self.oldest(|row| row.rank == rank && (!is_heavy || row.source == source))
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Enter(usize, u8),
        Leave(usize),
        Rank(usize, usize),
        Touch(usize),
        Wait(Tick),
        Victim(usize),
        VictimOf(usize, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Few sources, one of them with most of the holders at times.
        let source = prop_oneof![2 => Just(0_u8), 3 => 0..12_u8];
        prop_oneof![
            8 => (0..3_usize, source).prop_map(|(rank, source)| Step::Enter(rank, source)),
            2 => any::<usize>().prop_map(Step::Leave),
            2 => (any::<usize>(), 0..3_usize).prop_map(|(at, rank)| Step::Rank(at, rank)),
            3 => any::<usize>().prop_map(Step::Touch),
            2 => (0..5_u32).prop_map(Step::Wait),
            2 => (0..3_usize).prop_map(Step::Victim),
            1 => (0..3_usize, 0..12_u8).prop_map(|(rank, source)| Step::VictimOf(rank, source)),
        ]
    }

    type Holder = (u64, Rc<Cell<Tick>>);

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]
        #[test]
        fn it_does_what_a_list_does(steps in proptest::collection::vec(step(), 0..400)) {
            let mut ledger: EvictionQueue<Holder> = EvictionQueue::default();
            let mut model = Model::default();
            let mut handles: BTreeMap<u64, (HolderId, Rc<Cell<Tick>>)> = BTreeMap::new();
            let mut gone = None;
            let (mut now, mut next) = (0, 0);
            let ip = |source: u8| IpAddr::from([10, 0, 0, source]);
            let active = |holder: &Holder| holder.1.get();
            for step in steps {
                let pick = |model: &Model, at: usize| (!model.0.is_empty()).then(|| at % model.0.len());
                match step {
                    Step::Enter(rank, source) => {
                        let cell = Rc::new(Cell::new(now));
                        let id = ledger.enter(RANKS[rank], ip(source), now, (next, cell.clone()));
                        handles.insert(next, (id, cell));
                        model.0.push(Row { order: next, rank: RANKS[rank], source, at: now });
                        next += 1;
                    }
                    Step::Leave(at) => if let Some(at) = pick(&model, at) {
                        let order = model.0.remove(at).order;
                        let (id, _) = handles.remove(&order).unwrap();
                        prop_assert_eq!(ledger.leave(id).map(|holder| holder.0), Some(order));
                        gone = Some(id);
                    },
                    Step::Rank(at, rank) => if let Some(at) = pick(&model, at) {
                        let row = &mut model.0[at];
                        row.rank = RANKS[rank];
                        ledger.set_rank(handles[&row.order].0, row.rank);
                    },
                    Step::Touch(at) => if let Some(at) = pick(&model, at) {
                        let row = &mut model.0[at];
                        row.at = now;
                        handles[&row.order].1.set(now);
                    },
                    Step::Wait(ticks) => now += ticks,
                    Step::Victim(rank) => {
                        let expected = model.victim(RANKS[rank]);
                        let victim = ledger.take_victim(RANKS[rank], active).map(|holder| holder.0);
                        prop_assert_eq!(victim, expected);
                        model.0.retain(|row| Some(row.order) != victim);
                    }
                    Step::VictimOf(rank, source) => {
                        let expected = model.oldest(|row| row.rank == RANKS[rank] && row.source == source);
                        let victim = ledger.take_victim_of(RANKS[rank], ip(source), active);
                        let victim = victim.map(|holder| holder.0);
                        prop_assert_eq!(victim, expected);
                        model.0.retain(|row| Some(row.order) != victim);
                    }
                }
                if let Some(id) = gone {
                    prop_assert!(ledger.leave(id).is_none(), "an id names nobody twice");
                    ledger.set_rank(id, EvictionRank::Answered);
                }
                for rank in RANKS {
                    let rows = || model.0.iter().filter(|row| row.rank == rank);
                    prop_assert_eq!(ledger.count(rank), rows().count());
                    prop_assert_eq!(ledger.count_of(rank, ip(0)), rows().filter(|row| row.source == 0).count());
                }
                prop_assert_eq!(ledger.iter().count(), model.0.len());
            }
            while let Some(victim) = ledger.take_victim(EvictionRank::Answered, active) {
                prop_assert_eq!(Some(victim.0), model.victim(EvictionRank::Answered));
                model.0.retain(|row| row.order != victim.0);
            }
            prop_assert!(model.0.is_empty());
            prop_assert!(ledger.all.is_empty() && ledger.of_source.is_empty() && ledger.counts.is_empty());
        }
    }

    /// Those who come in while others hold everything are not the ones who leave.
    #[test]
    fn a_few_are_spared_beside_many_that_have_proven_more() {
        let mut ledger = EvictionQueue::default();
        for (rank, count) in [(EvictionRank::Answered, 32), (EvictionRank::Unauthenticated, 9)] {
            for n in 0..count {
                ledger.enter(rank, IpAddr::from([10, 0, 0, n / 4]), 0, (rank, n));
            }
        }
        let mut next = || ledger.take_victim(EvictionRank::Answered, |_| 0);
        assert_eq!(next(), Some((EvictionRank::Unauthenticated, 0)), "nine are more than a few");
        assert_eq!(next(), Some((EvictionRank::Answered, 0)), "eight are not");
        assert_eq!(
            next(),
            Some((EvictionRank::Unauthenticated, 1)),
            "but they are more than a quarter of 31"
        );
        assert_eq!(
            ledger.take_victim(EvictionRank::Unauthenticated, |_| 0),
            Some((EvictionRank::Unauthenticated, 2))
        );
    }

    #[test]
    fn the_one_that_has_proven_least_gives_way() {
        let mut ledger = EvictionQueue::default();
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        for (source, (rank, at, name)) in (0..).zip([
            (EvictionRank::Answered, 1, "idle"),
            (EvictionRank::Answered, 9, "busy"),
            (EvictionRank::Unauthenticated, 8, "new"),
            (EvictionRank::Unauthenticated, 5, "newer"),
            (EvictionRank::Unanswered, 0, "asked"),
        ]) {
            ledger.enter(rank, ip(source), at, name);
        }
        let mut victims = Vec::new();
        while let Some(victim) = ledger.take_victim(EvictionRank::Answered, |_| 0) {
            victims.push(victim);
        }
        assert_eq!(victims, ["newer", "new", "asked", "idle", "busy"]);
    }
}
