//! Ranges of numbers (addresses, ports), cut where the answer changes.
//!
//! The table holds the first number of each piece, sorted, with the list of atoms that hold the piece. If ranges of
//! many atoms overlap, there are more pairs of piece and atom than anybody has memory for; the atoms with the most
//! pieces are then kept with their own ranges and tested one by one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use adit_model::entries::Entries;

use super::lists::{Interner, NumberedLists};

/// Ranges of one kind of number.
#[derive(Debug)]
pub(super) struct Ranges<T> {
    /// First number of each piece, ascending.
    starts: Box<[T]>,
    /// The list of each piece.
    list_of: Box<[u32]>,
    lists: NumberedLists,
    /// Atoms that are in no piece, with their ranges.
    wide: Box<[Wide<T>]>,
}

#[derive(Debug)]
struct Wide<T> {
    atom: u32,
    ranges: Box<[(T, T)]>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self {
            starts: Box::default(),
            list_of: Box::default(),
            lists: NumberedLists::default(),
            wide: Box::default(),
        }
    }
}

/// A number with a successor.
pub(super) trait Number: Copy + Ord {
    /// The next number.
    fn next(self) -> Option<Self>;
}

macro_rules! number {
    ($($type:ty)*) => {
        $(impl Number for $type {
            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }
        })*
    };
}
number!(u16 u32 u128);

/// An atom with the first and last number of a range.
type Range<T> = (u32, T, T);

/// Ranges with their atoms, on the way to a table.
pub(super) struct RangeTableBuilder<T>(Vec<Range<T>>);

impl<T> Default for RangeTableBuilder<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Number> RangeTableBuilder<T> {
    /// Adds a range, both ends included, for an atom.
    pub(super) fn add(&mut self, atom: u32, first: T, last: T) {
        if first <= last {
            self.0.push((atom, first, last));
        }
    }

    /// The table of all ranges.
    pub(super) fn finish(self) -> Ranges<T> {
        let merged = merge(self.0);
        let mut points: Vec<T> = Vec::with_capacity(merged.len() * 2);
        for (_, first, last) in &merged {
            points.push(*first);
            points.extend(last.next());
        }
        points.sort_unstable();
        points.dedup();
        let (narrow, wide) = divide(&merged, &points);
        let mut events: Vec<(usize, bool, u32)> = Vec::with_capacity(narrow.len() * 2);
        for (atom, first, last) in narrow {
            events.push((points.partition_point(|point| *point < first), true, atom));
            if let Some(end) = last.next() {
                events.push((points.partition_point(|point| *point < end), false, atom));
            }
        }
        events.sort_unstable();
        sweep(&points, &events, wide)
    }
}

/// The same ranges, ascending by atom, those of one atom apart from each other.
fn merge<T: Number>(mut all: Vec<Range<T>>) -> Vec<Range<T>> {
    all.sort_unstable();
    let mut merged: Vec<Range<T>> = Vec::with_capacity(all.len());
    for (atom, first, last) in all {
        match merged.last_mut() {
            Some(before) if before.0 == atom && before.2.next().is_none_or(|end| first <= end) => {
                before.2 = before.2.max(last);
            }
            _ => merged.push((atom, first, last)),
        }
    }
    merged
}

/// Keeps the atoms apart that fill too many pieces.
fn divide<T: Number>(merged: &[Range<T>], points: &[T]) -> (Vec<Range<T>>, Box<[Wide<T>]>) {
    // Lists of ranges that do not overlap need one pair per range; this leaves room for four such layers.
    let room = 4 * points.len() + 65_536;
    let pieces = |(_, first, last): &Range<T>| {
        points.partition_point(|p| p <= last) - points.partition_point(|p| p < first)
    };
    let atoms = merged.chunk_by(|a, b| a.0 == b.0);
    let mut sized: Vec<(usize, &[Range<T>])> =
        atoms.map(|ranges| (ranges.iter().map(pieces).sum(), ranges)).collect();
    sized.sort_by_key(|(pieces, _)| *pieces);
    let (mut narrow, mut wide, mut used) = (Vec::new(), Vec::new(), 0_usize);
    for (pieces, ranges) in sized {
        used = used.saturating_add(pieces);
        if used <= room {
            narrow.extend_from_slice(ranges);
        } else {
            let atom = ranges[0].0;
            wide.push(Wide { atom, ranges: ranges.iter().map(|(_, first, last)| (*first, *last)).collect() });
        }
    }
    (narrow, wide.into())
}

/// The pieces between `points`; an event adds an atom at a point or takes it away.
fn sweep<T: Number>(points: &[T], events: &[(usize, bool, u32)], wide: Box<[Wide<T>]>) -> Ranges<T> {
    let (mut active, mut lists) = (BTreeSet::new(), Interner::default());
    let (mut starts, mut list_of) = (Vec::new(), Vec::new());
    for at in events.chunk_by(|a, b| a.0 == b.0) {
        for (_, begins, atom) in at {
            if *begins {
                active.insert(*atom);
            } else {
                active.remove(atom);
            }
        }
        let list = lists.id(active.iter().copied());
        if list_of.last() != Some(&list) {
            starts.push(points[at[0].0]);
            list_of.push(list);
        }
    }
    Ranges { starts: starts.into(), list_of: list_of.into(), lists: lists.finish(), wide }
}

impl<T: Number> Ranges<T> {
    /// Adds the atoms that hold `number` to `found`.
    pub(super) fn find(&self, number: T, found: &mut Vec<u32>) {
        if let Some(piece) = self.starts.partition_point(|start| *start <= number).checked_sub(1) {
            found.extend_from_slice(self.lists.of(self.list_of[piece]));
        }
        for Wide { atom, ranges } in &self.wide {
            let after = ranges.partition_point(|(first, _)| *first <= number);
            if after > 0 && number <= ranges[after - 1].1 {
                found.push(*atom);
            }
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let wide: usize = self.wide.iter().map(|wide| size_of_val(wide) + size_of_val(&*wide.ranges)).sum();
        size_of_val(&*self.starts) + size_of_val(&*self.list_of) + self.lists.memory() + wide
    }
}

/// Addresses of both families.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

/// Addresses with their atoms, on the way to a table.
#[derive(Default)]
pub(super) struct AddressBuilder {
    v4: RangeTableBuilder<u32>,
    v6: RangeTableBuilder<u128>,
}

impl AddressBuilder {
    /// Adds all addresses of a list for an atom.
    pub(super) fn add(&mut self, atom: u32, entries: &Entries) {
        entries.v4.iter().for_each(|(first, last)| self.v4.add(atom, *first, *last));
        entries.v6.iter().for_each(|(first, last)| self.v6.add(atom, *first, *last));
    }

    /// The table of all addresses.
    pub(super) fn finish(self) -> Addresses {
        Addresses { v4: self.v4.finish(), v6: self.v6.finish() }
    }
}

impl Addresses {
    /// Adds the atoms that hold `ip` to `found`. An IPv4-mapped address is one of IPv4.
    pub(super) fn find(&self, ip: IpAddr, found: &mut Vec<u32>) {
        match ip.to_canonical() {
            IpAddr::V4(ip) => self.v4.find(ip.to_bits(), found),
            IpAddr::V6(ip) => self.v6.find(ip.to_bits(), found),
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found<T: Number>(ranges: &Ranges<T>, number: T) -> Vec<u32> {
        let mut found = Vec::new();
        ranges.find(number, &mut found);
        found.sort_unstable();
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_table_is_a_list(
            all in proptest::collection::vec((0_u32..6, 0_u16..40, 0_u16..12), 0..30),
            at_end: bool,
        ) {
            let base = if at_end { u16::MAX - 51 } else { 0 };
            let all: Vec<_> = all.into_iter().map(|(atom, first, len)| (atom, base + first, base + first + len)).collect();
            let mut builder = RangeTableBuilder::default();
            all.iter().for_each(|(atom, first, last)| builder.add(*atom, *first, *last));
            let ranges = builder.finish();
            for number in base..=base + 51 {
                let hit = all.iter().filter(|(_, first, last)| (*first..=*last).contains(&number));
                let want: BTreeSet<u32> = hit.map(|(atom, ..)| *atom).collect();
                prop_assert_eq!(found(&ranges, number), Vec::from_iter(want), "{}", number);
            }
        }
    }

    /// 20,000 ranges that all overlap would make 200 million pairs.
    #[test]
    fn overlapping_ranges_are_bounded() {
        const COUNT: u32 = 20_000;
        let mut builder = RangeTableBuilder::default();
        for atom in 0..COUNT {
            builder.add(atom, atom, 2 * COUNT - atom);
        }
        let ranges = builder.finish();
        assert!(ranges.memory() < 8 << 20, "{}", ranges.memory());
        assert_eq!(found(&ranges, 0), [0]);
        assert_eq!(found(&ranges, 5), [0, 1, 2, 3, 4, 5]);
        assert_eq!(found(&ranges, COUNT).len(), COUNT as usize);
        assert_eq!(found(&ranges, 2 * COUNT), [0]);
        assert!(found(&ranges, 2 * COUNT + 1).is_empty());
    }
}
