//! Many short lists of numbers in two blocks of memory.

use std::collections::HashMap;

/// Lists by number; list 0 is empty.
#[derive(Debug)]
pub(super) struct NumberedLists {
    /// Start of each list, and end of the last one.
    starts: Box<[u32]>,
    items: Box<[u32]>,
}

impl Default for NumberedLists {
    fn default() -> Self {
        Self { starts: [0, 0].into(), items: Box::default() }
    }
}

impl NumberedLists {
    /// Lists of these items, by the number of each list.
    pub(super) fn grouped(count: usize, items: &[(u32, u32)]) -> Self {
        let mut sorted = items.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let list_of = |item: &(u32, u32)| item.0 as usize;
        let starts = (0..=count).map(|list| short(sorted.partition_point(|item| list_of(item) < list)));
        Self { starts: starts.collect(), items: sorted.iter().map(|(_, item)| *item).collect() }
    }

    /// The items of a list, ascending; none of a list that does not exist.
    pub(super) fn of(&self, list: u32) -> &[u32] {
        match self.starts.get(list as usize..list as usize + 2) {
            Some(&[start, end]) => &self.items[start as usize..end as usize],
            _ => &[],
        }
    }

    /// The smallest item of all.
    pub(super) fn least(&self) -> Option<u32> {
        self.items.iter().copied().min()
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.starts) + size_of_val(&*self.items)
    }
}

/// Gives equal lists one number.
#[derive(Default)]
pub(super) struct Interner {
    known: HashMap<Box<[u32]>, u32>,
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Interner {
    /// The number of a list, sorted and without duplicates.
    pub(super) fn id(&mut self, items: impl Iterator<Item = u32>) -> u32 {
        let mut list: Vec<u32> = items.collect();
        if list.is_empty() {
            return 0;
        }
        list.sort_unstable();
        list.dedup();
        if let Some(id) = self.known.get(&*list) {
            return *id;
        }
        self.starts.push(short(self.items.len()));
        self.items.extend_from_slice(&list);
        let id = short(self.starts.len());
        self.known.insert(list.into(), id);
        id
    }

    /// All lists.
    pub(super) fn finish(self) -> NumberedLists {
        let end = short(self.items.len());
        let starts = std::iter::once(0).chain(self.starts).chain(std::iter::once(end));
        NumberedLists { starts: starts.collect(), items: self.items.into() }
    }
}

/// A number of things that were allocated one by one: four thousand million of them do not fit into the limits of files.
pub(super) fn short(number: usize) -> u32 {
    u32::try_from(number).expect("tables hold fewer than 2^32 entries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lists_are_one() {
        let mut lists = Interner::default();
        let ids = [vec![], vec![3, 1], vec![1, 3, 3], vec![2]].map(|list| lists.id(list.into_iter()));
        assert_eq!(ids, [0, 1, 1, 2]);
        let lists = lists.finish();
        assert_eq!([0, 1, 2, 3].map(|id| lists.of(id)), [&[][..], &[1, 3], &[2], &[]]);
        let grouped = NumberedLists::grouped(3, &[(2, 7), (0, 5), (2, 6), (2, 6)]);
        assert_eq!([0, 1, 2, 3].map(|id| grouped.of(id)), [&[5][..], &[], &[6, 7], &[]]);
        assert_eq!(grouped.least(), Some(5));
        assert!(NumberedLists::default().of(0).is_empty());
    }
}
