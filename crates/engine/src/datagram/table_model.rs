//! The flow table as the engine uses it, against a naive one: flows of clients over several ways, answers of name
//! servers, rest, new beginnings, a full table.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::table::{FlowTable, FlowTick};

type Key = (u8, u8);

const IDLE: [FlowTick; 3] = [30, 5, 30];
const NORMAL: usize = 0;
const BRIEF: usize = 1;
const RESTING: usize = 2;
const REST_AFTER: FlowTick = 10;

#[derive(Debug, Clone)]
enum Step {
    /// From this client over this way.
    Datagram(Key),
    /// An answer of a name server.
    Brief(Key),
    /// The client begins anew.
    Anew(u8),
    /// Its flow has failed.
    End(Key),
    /// So many seconds.
    Wait(FlowTick),
}

fn key() -> impl Strategy<Value = Key> {
    (0..6_u8, 0..3_u8)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => key().prop_map(Step::Datagram),
        2 => key().prop_map(Step::Brief),
        1 => (0..6_u8).prop_map(Step::Anew),
        1 => key().prop_map(Step::End),
        4 => (1..14_u32).prop_map(Step::Wait),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Flow {
    value: u32,
    class: usize,
    last: FlowTick,
}

/// The table and the model, which take each step together.
struct Pair {
    table: FlowTable<Key, u32, 3>,
    model: BTreeMap<Key, Flow>,
    capacity: usize,
    now: FlowTick,
    next: u32,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        let table = FlowTable::new(capacity, IDLE);
        Self { table, model: BTreeMap::new(), capacity, now: 0, next: 0 }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Datagram(key) => self.datagram(key)?,
            Step::Brief(key) => {
                if let Some(id) = self.table.find(&key) {
                    self.table.set_class(id, BRIEF, self.now);
                }
                let now = self.now;
                self.model.entry(key).and_modify(|flow| (flow.class, flow.last) = (BRIEF, now));
            }
            Step::Anew(client) => {
                let ids = self.table.ids_where(|key| key.0 == client);
                let ended: BTreeSet<Key> =
                    ids.into_iter().filter_map(|id| self.table.remove(id)).map(|(key, _)| key).collect();
                let want: BTreeSet<Key> = self.model.keys().filter(|key| key.0 == client).copied().collect();
                prop_assert_eq!(ended, want);
                self.model.retain(|key, _| key.0 != client);
            }
            Step::End(key) => {
                let gone = self.table.find(&key).and_then(|id| self.table.remove(id));
                prop_assert_eq!(gone.map(|(_, value)| value), self.model.remove(&key).map(|flow| flow.value));
            }
            Step::Wait(ticks) => (0..ticks).try_for_each(|_| self.tick())?,
        }
        self.check()
    }

    fn datagram(&mut self, key: Key) -> Result<(), TestCaseError> {
        let now = self.now;
        if let Some(id) = self.table.find(&key) {
            let flow = self.model.get_mut(&key).ok_or_else(|| TestCaseError::fail("a flow too many"))?;
            // As the engine: any other class goes back to the first.
            if flow.class == NORMAL {
                self.table.touch(id, now)
            } else {
                self.table.set_class(id, NORMAL, now)
            }
            (flow.class, flow.last) = (NORMAL, now);
            return Ok(());
        }
        prop_assert!(!self.model.contains_key(&key));
        self.next += 1;
        let (id, evicted) = self.table.insert(key, self.next, NORMAL, now);
        prop_assert_eq!(self.table.entry(id).map(|(key, value)| (*key, *value)), Some((key, self.next)));
        prop_assert_eq!(evicted.is_some(), self.model.len() >= self.capacity);
        if let Some((gone, value)) = evicted {
            let oldest = self.model.values().map(|flow| flow.last).min();
            let flow = self.model.remove(&gone);
            prop_assert_eq!(flow.map(|flow| (flow.value, Some(flow.last))), Some((value, oldest)));
        }
        self.model.insert(key, Flow { value: self.next, class: NORMAL, last: now });
        Ok(())
    }

    /// A second of the engine: what is over goes, what has been silent rests.
    fn tick(&mut self) -> Result<(), TestCaseError> {
        self.now += 1;
        let now = self.now;
        let expired: BTreeSet<Key> =
            std::iter::from_fn(|| self.table.expire_one(now)).map(|(key, _)| key).collect();
        let is_over = |flow: &Flow| now - flow.last > IDLE[flow.class];
        let want: BTreeSet<Key> =
            self.model.iter().filter(|(_, flow)| is_over(flow)).map(|(key, _)| *key).collect();
        prop_assert_eq!(expired, want);
        self.model.retain(|_, flow| !is_over(flow));
        let mut rested = BTreeSet::new();
        while let Some(id) = self.table.oldest_of(NORMAL, REST_AFTER, now) {
            self.table.demote(id, RESTING);
            rested.extend(self.table.entry(id).map(|(key, _)| *key));
        }
        let rests = |flow: &Flow| flow.class == NORMAL && now - flow.last > REST_AFTER;
        let want: BTreeSet<Key> =
            self.model.iter().filter(|(_, flow)| rests(flow)).map(|(key, _)| *key).collect();
        prop_assert_eq!(rested, want);
        self.model.values_mut().filter(|flow| rests(flow)).for_each(|flow| flow.class = RESTING);
        Ok(())
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.table.len(), self.model.len());
        prop_assert!(self.table.len() <= self.capacity);
        for (key, flow) in &self.model {
            let id = self.table.find(key).ok_or_else(|| TestCaseError::fail("a flow is missing"))?;
            prop_assert_eq!(self.table.get_mut(id).copied(), Some(flow.value));
            prop_assert_eq!(self.table.at(id.index()), Some(id));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn flows_live_and_end_as_in_a_naive_table(
        capacity in 1..16_usize,
        steps in proptest::collection::vec(step(), 0..250),
    ) {
        let mut pair = Pair::new(capacity);
        for step in &steps {
            pair.step(step)?;
        }
    }
}
