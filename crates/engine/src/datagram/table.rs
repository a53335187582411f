//! The one table of datagram flows: who sent lately, and what belongs to them.
//!
//! A flow begins with a datagram and has no end of its own; it is forgotten when nothing moved for its class's time,
//! or when the table is full. Then flows of the classes that have proven nothing make room first, oldest first, as long as
//! they hold a quarter of the table: so much is left to newcomers. Otherwise the flow that was still for longest goes.
//! Every class keeps its flows in the order of their last datagram, so the
//! next one to expire is always the last of a list: entering, touching, expiring and evicting take constant time, and
//! nothing is allocated but when the table grows to its largest size since it was empty.
//!
//! ```text
//!   key → index ─┐      class 0:  newest ⇄ .. ⇄ oldest      (300 s)
//!                ▼      class 1:  newest ⇄ .. ⇄ oldest      (10 s)
//!   slots: [ generation | class, last tick, neighbours | key, value ] ..        free → free → ..
//! ```

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Ticks of a clock that never steps back.
pub(crate) type FlowTick = u32;

/// Names a flow for as long as it lives, and nothing afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowId {
    index: u32,
    generation: u32,
}

impl FlowId {
    /// The slot, for keying what lasts no longer than the flow.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}

/// A bounded table of flows with `CLASSES` idle times.
#[derive(Debug)]
pub(crate) struct FlowTable<K, V, const CLASSES: usize> {
    index: HashMap<K, u32>,
    slots: Vec<Slot<K, V>>,
    /// First of the free slots, which form a list by `older`.
    free: u32,
    lists: [List; CLASSES],
    /// Classes whose flows make room first, in this order.
    unproven: &'static [usize],
    capacity: usize,
    /// The flow of the last datagram: most of the time also that of the next one.
    last: u32,
    /// Generation of a new slot: no flow has had it before.
    born: u32,
}

/// No slot.
const NONE: u32 = u32::MAX;
/// Slots that an empty table keeps; more are given back.
const KEPT: usize = 256;

#[derive(Debug, Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    idle: FlowTick,
    len: usize,
}

#[derive(Debug)]
struct Slot<K, V> {
    generation: u32,
    class: usize,
    last_at: FlowTick,
    newer: u32,
    older: u32,
    entry: Option<(K, V)>,
}

impl<K: Hash + Eq + Clone, V, const CLASSES: usize> FlowTable<K, V, CLASSES> {
    /// A table for at most `capacity` flows, which are forgotten when they have been still for longer than the time of
    /// their class.
    ///
    /// # Panics
    /// If there is room for none, or for 2^32 - 1 or more.
    pub(crate) fn new(capacity: usize, idle: [FlowTick; CLASSES]) -> Self {
        assert!(
            capacity > 0 && u32::try_from(capacity).is_ok_and(|capacity| capacity < NONE),
            "{capacity} flows"
        );
        Self {
            index: HashMap::new(),
            slots: Vec::new(),
            free: NONE,
            lists: idle.map(|idle| List { newest: NONE, oldest: NONE, idle, len: 0 }),
            unproven: &[],
            capacity,
            last: NONE,
            born: 0,
        }
    }

    /// The same with classes whose flows make room first, in this order.
    pub(crate) fn with_unproven(self, unproven: &'static [usize]) -> Self {
        Self { unproven, ..self }
    }

    /// Flows in the table.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether a further flow takes the place of another one.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// The flow of `key`. Does not count as a datagram.
    pub(crate) fn find<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<FlowId>
    where
        K: Borrow<Q>,
    {
        let last = self.slots.get(self.last as usize).and_then(|slot| slot.entry.as_ref());
        let index = match last {
            Some((last, _)) if last.borrow() == key => self.last,
            _ => *self.index.get(key)?,
        };
        self.last = index;
        Some(FlowId { index, generation: self.slots[index as usize].generation })
    }

    /// The value of a flow, if the flow still lives.
    pub(crate) fn get_mut(&mut self, id: FlowId) -> Option<&mut V> {
        let slot = self.slots.get_mut(id.index as usize)?;
        let entry = if slot.generation == id.generation { slot.entry.as_mut() } else { None };
        entry.map(|(_, value)| value)
    }

    /// A flow's key, and what belongs to it, if it still lives.
    pub(crate) fn entry(&mut self, id: FlowId) -> Option<(&K, &mut V)> {
        let slot = self.slots.get_mut(id.index as usize)?;
        let entry = if slot.generation == id.generation { slot.entry.as_mut() } else { None };
        entry.map(|(key, value)| (&*key, value))
    }

    /// The flows whose key is as wanted.
    pub(crate) fn ids_where(&self, mut wanted: impl FnMut(&K) -> bool) -> Vec<FlowId> {
        let slots = (0..).zip(&self.slots);
        let live = slots.filter(|(_, slot)| slot.entry.as_ref().is_some_and(|(key, _)| wanted(key)));
        live.map(|(index, slot)| FlowId { index, generation: slot.generation }).collect()
    }

    /// All flows, with the tick of their last datagram.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (FlowId, &K, &V, FlowTick)> {
        let slots = (0..).zip(&self.slots);
        slots.filter_map(|(index, slot)| {
            let (key, value) = slot.entry.as_ref()?;
            Some((FlowId { index, generation: slot.generation }, key, value, slot.last_at))
        })
    }

    /// The flow that lives in a slot.
    pub(crate) fn at(&self, index: u32) -> Option<FlowId> {
        let slot = self.slots.get(index as usize)?;
        slot.entry.as_ref().map(|_| FlowId { index, generation: slot.generation })
    }

    /// A datagram of this flow has come or gone at `now`.
    pub(crate) fn touch(&mut self, id: FlowId, now: FlowTick) {
        if let Some(slot) = self.live(id) {
            let class = slot.class;
            slot.last_at = now;
            if self.lists[class].newest != id.index {
                self.unlink(id.index);
                self.link(id.index);
            }
        }
    }

    /// Moves a flow to another class, as if a datagram had come at `now`.
    pub(crate) fn set_class(&mut self, id: FlowId, class: usize, now: FlowTick) {
        debug_assert!(class < CLASSES);
        if self.live(id).is_some() {
            self.unlink(id.index);
            let slot = &mut self.slots[id.index as usize];
            (slot.class, slot.last_at) = (class, now);
            self.link(id.index);
        }
    }

    /// The flow of `class` that has been still for longest, if that is longer than `age`.
    pub(crate) fn oldest_of(&self, class: usize, age: FlowTick, now: FlowTick) -> Option<FlowId> {
        let index = self.lists[class].oldest;
        self.at(index).filter(|_| self.age(index, now).is_some_and(|still| still > age))
    }

    /// Moves the flow that [`FlowTable::oldest_of`] its class to the front of another class, without a datagram. To be
    /// done oldest first, with flows that were not still for longer than those that are there, which keeps the order.
    pub(crate) fn demote(&mut self, id: FlowId, class: usize) {
        debug_assert!(class < CLASSES);
        if self.live(id).is_some() {
            self.unlink(id.index);
            self.slots[id.index as usize].class = class;
            self.link(id.index);
        }
    }

    /// Enters a flow. If the table is full, another one makes room and is returned; if the key is there, its flow makes
    /// room.
    pub(crate) fn insert(
        &mut self,
        key: K,
        value: V,
        class: usize,
        now: FlowTick,
    ) -> (FlowId, Option<(K, V)>) {
        debug_assert!(class < CLASSES);
        let evicted = match self.find(&key) {
            Some(id) => self.remove(id),
            None if self.len() >= self.capacity => self.next_out(now).and_then(|id| self.remove(id)),
            None => None,
        };
        let index = if self.free == NONE {
            let index = u32::try_from(self.slots.len()).expect("capacity is below 2^32");
            let (newer, older) = (NONE, NONE);
            self.slots.push(Slot { generation: self.born, class, last_at: now, newer, older, entry: None });
            index
        } else {
            let index = self.free;
            self.free = self.slots[index as usize].older;
            index
        };
        let slot = &mut self.slots[index as usize];
        (slot.class, slot.last_at, slot.entry) = (class, now, Some((key.clone(), value)));
        let id = FlowId { index, generation: slot.generation };
        self.index.insert(key, index);
        self.link(index);
        (id, evicted)
    }

    /// Forgets the flow that would be the first to make room in a full table.
    pub(crate) fn evict(&mut self, now: FlowTick) -> Option<(K, V)> {
        self.oldest(now).and_then(|id| self.remove(id))
    }

    /// Forgets a flow.
    pub(crate) fn remove(&mut self, id: FlowId) -> Option<(K, V)> {
        self.live(id)?;
        self.unlink(id.index);
        let slot = &mut self.slots[id.index as usize];
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.older = self.free;
        self.free = id.index;
        self.index.remove(&entry.0);
        if self.index.is_empty() && self.slots.len() > KEPT {
            self.give_back();
        }
        Some(entry)
    }

    /// Frees the memory of an empty table. The next flows get names that none has had.
    fn give_back(&mut self) {
        self.born = self.slots.iter().map(|slot| slot.generation).max().unwrap_or(self.born);
        (self.slots, self.index) = (Vec::new(), HashMap::new());
        (self.free, self.last) = (NONE, NONE);
    }

    /// Forgets the flow that is to make room first, if there is one that has proven nothing.
    pub(crate) fn evict_one_unanswered(&mut self) -> Option<(K, V)> {
        let id = self.first_unproven()?;
        self.remove(id)
    }

    /// Forgets one flow that has been still for longer than its class allows; to be called until there is none.
    pub(crate) fn expire_one(&mut self, now: FlowTick) -> Option<(K, V)> {
        let expired =
            self.lists.iter().find(|list| self.age(list.oldest, now).is_some_and(|age| age > list.idle));
        let index = expired?.oldest;
        self.remove(self.at(index)?)
    }

    /// Forgets all flows.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        for (index, slot) in (0..).zip(&mut self.slots) {
            if slot.entry.take().is_some() {
                slot.generation = slot.generation.wrapping_add(1);
                slot.older = self.free;
                self.free = index;
            }
        }
        for list in &mut self.lists {
            (list.newest, list.oldest, list.len) = (NONE, NONE, 0);
        }
    }

    fn live(&mut self, id: FlowId) -> Option<&mut Slot<K, V>> {
        let slot = self.slots.get_mut(id.index as usize)?;
        (slot.generation == id.generation && slot.entry.is_some()).then_some(slot)
    }

    /// The flow that makes room.
    fn next_out(&self, now: FlowTick) -> Option<FlowId> {
        let unproven: usize = self.unproven.iter().map(|class| self.lists[*class].len).sum();
        if unproven >= self.capacity.div_ceil(4) {
            return self.first_unproven();
        }
        self.oldest(now).or_else(|| self.first_unproven())
    }

    fn first_unproven(&self) -> Option<FlowId> {
        self.unproven.iter().find_map(|class| self.at(self.lists[*class].oldest))
    }

    /// The proven flow nearest to its end: the one that has used up the largest part of its time would be another choice,
    /// but the longest silence is what a person expects.
    fn oldest(&self, now: FlowTick) -> Option<FlowId> {
        let lists = (0..).zip(&self.lists).filter(|(class, _)| !self.unproven.contains(class));
        let ends = lists.filter_map(|(_, list)| Some((self.age(list.oldest, now)?, list.oldest)));
        let (_, index) = ends.max_by_key(|(age, _)| *age)?;
        self.at(index)
    }

    fn age(&self, index: u32, now: FlowTick) -> Option<FlowTick> {
        self.slots.get(index as usize).map(|slot| now.wrapping_sub(slot.last_at))
    }

    fn link(&mut self, index: u32) {
        let class = self.slots[index as usize].class;
        let newest = self.lists[class].newest;
        let slot = &mut self.slots[index as usize];
        (slot.newer, slot.older) = (NONE, newest);
        match self.slots.get_mut(newest as usize) {
            Some(next) => next.newer = index,
            None => self.lists[class].oldest = index,
        }
        self.lists[class].newest = index;
        self.lists[class].len += 1;
    }

    fn unlink(&mut self, index: u32) {
        let Slot { class, newer, older, .. } = self.slots[index as usize];
        self.lists[class].len -= 1;
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.lists[class].newest = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.lists[class].oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDLE: [FlowTick; 2] = [30, 5];

    /// Reference model of the table, written without any thought for speed.
    #[derive(Default)]
    struct Model {
        /// Key, value, class, last tick, and the number of the last touch, which orders equal ticks.
        flows: HashMap<u8, (u32, usize, FlowTick, u64)>,
        touches: u64,
    }

    impl Model {
        fn stamp(&mut self) -> u64 {
            self.touches += 1;
            self.touches
        }

        fn oldest(&self) -> Option<u8> {
            self.flows.iter().min_by_key(|(_, flow)| (flow.2, flow.3)).map(|(key, _)| *key)
        }

        #[expect(clippy::iter_over_hash_type, reason = "the result is sorted")]
        fn expired(&mut self, now: FlowTick) -> Vec<u8> {
            let mut gone: Vec<u8> = Vec::new();
            for (key, flow) in &self.flows {
                if now - flow.2 > IDLE[flow.1] {
                    gone.push(*key);
                }
            }
            gone.sort_unstable();
            self.flows.retain(|key, _| !gone.contains(key));
            gone
        }
    }

    #[test]
    fn an_empty_table_gives_its_slots_back_and_names_nobody_twice() {
        let mut table: FlowTable<u32, u32, 2> = FlowTable::new(1000, IDLE);
        let fill = |table: &mut FlowTable<u32, u32, 2>| -> Vec<FlowId> {
            (0..1000).map(|key| table.insert(key, key, 0, 0).0).collect()
        };
        let first = fill(&mut table);
        assert_eq!(table.remove(first[0]), Some((0, 0)));
        table.insert(0, 0, 0, 0);
        while table.evict(1).is_some() {}
        assert_eq!((table.slots.capacity(), table.index.capacity()), (0, 0));
        let second = fill(&mut table);
        assert!(first.iter().all(|id| table.get_mut(*id).is_none() && !second.contains(id)));
        assert!((0..).zip(&second).all(|(key, id)| table.get_mut(*id).copied() == Some(key)));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Datagram(u8, usize),
        Class(u8, usize),
        End(u8),
        Wait(FlowTick),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..20u8, 0..2usize).prop_map(|(key, class)| Step::Datagram(key, class)),
            1 => (0..20u8, 0..2usize).prop_map(|(key, class)| Step::Class(key, class)),
            1 => (0..20u8).prop_map(Step::End),
            3 => (0..12u32).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn it_does_what_a_naive_table_does(capacity in 1..12usize, steps in proptest::collection::vec(step(), 0..300)) {
            let mut table: FlowTable<u8, u32, 2> = FlowTable::new(capacity, IDLE);
            let mut model = Model::default();
            let mut dead = Vec::new();
            let mut now = 0;
            let mut value = 0;
            for step in steps {
                match step {
                    Step::Datagram(key, class) => {
                        let found = table.find(&key);
                        prop_assert_eq!(found.is_some(), model.flows.contains_key(&key));
                        let stamp = model.stamp();
                        if let Some(id) = found {
                            table.touch(id, now);
                            let flow = model.flows.get_mut(&key).unwrap();
                            (flow.2, flow.3) = (now, stamp);
                            prop_assert_eq!(table.get_mut(id).copied(), Some(flow.0));
                        } else {
                            let oldest = model.oldest();
                            value += 1;
                            let (id, evicted) = table.insert(key, value, class, now);
                            prop_assert_eq!(table.get_mut(id).copied(), Some(value));
                            if model.flows.len() >= capacity {
                                let expected = oldest.map(|key| (key, model.flows.remove(&key).unwrap()));
                                // Flows of equal age in two classes have no order.
                                let (key, gone) = evicted.unwrap();
                                let (expected_key, expected) = expected.unwrap();
                                if key != expected_key {
                                    let other = model.flows.remove(&key).unwrap();
                                    prop_assert_eq!((gone, other.2), (other.0, expected.2));
                                    prop_assert_ne!(other.1, expected.1);
                                    model.flows.insert(expected_key, expected);
                                }
                            } else {
                                prop_assert_eq!(evicted, None);
                            }
                            model.flows.insert(key, (value, class, now, stamp));
                        }
                    }
                    Step::Class(key, class) => {
                        let stamp = model.stamp();
                        if let Some(id) = table.find(&key) {
                            table.set_class(id, class, now);
                            let flow = model.flows.get_mut(&key).unwrap();
                            (flow.1, flow.2, flow.3) = (class, now, stamp);
                        }
                    }
                    Step::End(key) => {
                        let found = table.find(&key);
                        let gone = found.and_then(|id| { dead.push(id); table.remove(id) });
                        prop_assert_eq!(gone.map(|gone| gone.1), model.flows.remove(&key).map(|flow| flow.0));
                    }
                    Step::Wait(ticks) => {
                        now += ticks;
                        let mut gone = Vec::new();
                        while let Some((key, _)) = table.expire_one(now) {
                            gone.push(key);
                        }
                        gone.sort_unstable();
                        prop_assert_eq!(gone, model.expired(now));
                    }
                }
                prop_assert_eq!(table.len(), model.flows.len());
                prop_assert!(table.slots.len() <= capacity);
                for id in &dead {
                    prop_assert_eq!(table.get_mut(*id), None, "a name outlives its flow");
                }
            }
            table.clear();
            prop_assert_eq!((table.len(), table.expire_one(now + 1000)), (0, None));
            prop_assert!((0..20u8).all(|key| table.find(&key).is_none()));
        }
    }

    #[test]
    fn flows_that_have_proven_nothing_make_room_first() {
        // Class 0 is proven; 2 makes room before 1.
        let mut table: FlowTable<u32, (), 3> = FlowTable::new(8, [100; 3]).with_unproven(&[2, 1]);
        let proven = table.insert(0, (), 0, 0).0;
        for n in 1..8 {
            assert_eq!(table.insert(n, (), if n < 4 { 1 } else { 2 }, n).1, None);
        }
        assert_eq!(table.insert(10, (), 2, 8).1, Some((4, ())), "the oldest of its class");
        let evicted: Vec<u32> = (11..15).map(|n| table.insert(n, (), 1, 9).1.unwrap().0).collect();
        assert_eq!(evicted, [5, 6, 7, 10]);
        assert_eq!(table.insert(15, (), 1, 10).1, Some((1, ())), "then of the next");
        assert_eq!(table.evict_one_unanswered(), Some((2, ())));
        for n in 20..30_000 {
            table.insert(n, (), 1, 11);
        }
        assert!(table.get_mut(proven).is_some(), "however many there are");
        // A quarter is left to newcomers, and no more.
        for n in 1..7 {
            let id = table.insert(40_000 + n, (), 1, 12 + n).0;
            table.set_class(id, 0, 12 + n);
        }
        assert_eq!(table.insert(50_000, (), 1, 30).1, Some((0, ())), "newcomers had less than a quarter");
        assert_eq!(table.insert(50_001, (), 1, 31).1, Some((29_999, ())));
        assert_eq!(table.insert(50_002, (), 1, 32).1, Some((50_000, ())));
    }

    #[test]
    fn demoted_flows_keep_their_time() {
        let mut table: FlowTable<u8, (), 2> = FlowTable::new(3, [30, 30]);
        let one = table.insert(1, (), 0, 0).0;
        let two = table.insert(2, (), 0, 4).0;
        assert_eq!((table.oldest_of(0, 9, 9), table.oldest_of(0, 9, 10)), (None, Some(one)));
        table.demote(one, 1);
        table.insert(3, (), 0, 12);
        assert_eq!(table.insert(4, (), 0, 12).1, Some((1, ())), "the one that was still for longest");
        assert_eq!(table.oldest_of(0, 9, 14), Some(two));
        table.demote(two, 1);
        assert_eq!((table.expire_one(34), table.expire_one(35)), (None, Some((2, ()))));
    }

    #[test]
    fn a_million_short_flows_leave_no_trace() {
        let mut table: FlowTable<u32, [u8; 16], 2> = FlowTable::new(1000, IDLE);
        let mut evicted = 0;
        for n in 0..1_000_000 {
            evicted += u32::from(table.insert(n, [0; 16], 0, n / 10_000).1.is_some());
        }
        assert_eq!((table.len(), evicted), (1000, 999_000));
        assert_eq!(table.slots.len(), 1000);
        assert!(table.index.capacity() < 4000, "{}", table.index.capacity());
        while table.expire_one(1000).is_some() {}
        assert_eq!(table.len(), 0);
    }
}
