//! Names and their numbers, which are addresses: the least recently used name makes room, unless a flow holds it.
//!
//! ```text
//!   number 0, 1, 2 ..    slots: [ name | neighbours | pins ] ..    index: hash of name → number
//!   without pins:        newest ⇄ .. ⇄ oldest, by the last question or connection
//!   free:                free → free → ..
//! ```
//!
//! A slot is 32 bytes. With the slack of its growth and the index an entry takes 64 bytes at most beyond the name.

use std::hash::{BuildHasher as _, RandomState};

use super::index::Index;

/// No slot.
const NONE: u32 = u32::MAX;

/// Longest name in bytes: of its text form, without the dot of the root (RFC 1035 section 2.3.4).
pub(crate) const MAX_NAME: usize = 253;

/// Names by number.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Vec<Slot>,
    index: Index,
    hasher: RandomState,
    capacity: u32,
    newest: u32,
    oldest: u32,
    free: u32,
    /// Bytes of all names.
    text_len: usize,
    len: usize,
}

#[derive(Debug)]
struct Slot {
    /// Empty for a free slot.
    name: Box<str>,
    newer: u32,
    older: u32,
    pins: u32,
}

/// A place for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolSlot {
    /// It had this number.
    Known(u32),
    /// It has got this number.
    New(u32),
    /// Every number is held by a flow.
    Full,
}

impl Pool {
    /// A pool of so many numbers from 0 on.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            slots: Vec::new(),
            index: Index::default(),
            hasher: RandomState::new(),
            capacity,
            newest: NONE,
            oldest: NONE,
            free: NONE,
            text_len: 0,
            len: 0,
        }
    }

    /// The number of a name in lower case, which may take the place of the one that was used least recently.
    pub(super) fn place(&mut self, name: &str) -> PoolSlot {
        if let Some(number) = self.find(name) {
            self.touch(number);
            return PoolSlot::Known(number);
        }
        let number = if self.free != NONE {
            let number = self.free;
            self.free = self.slots[at(number)].older;
            number
        } else if self.slots.len() < at(self.capacity) {
            let number = u32::try_from(self.slots.len()).unwrap_or(NONE);
            self.push_free();
            number
        } else {
            if self.oldest == NONE {
                return PoolSlot::Full;
            }
            self.take_out(self.oldest)
        };
        self.put_in(number, name);
        PoolSlot::New(number)
    }

    /// The number of a name that has one; a use of it.
    pub(super) fn known(&mut self, name: &str) -> Option<u32> {
        let number = self.find(name)?;
        self.touch(number);
        Some(number)
    }

    /// A pool of so many numbers with these names, of which a later one takes the number or the name of an earlier one.
    /// Names with a number that there is not are left out.
    pub(super) fn load<'e>(capacity: u32, entries: impl Iterator<Item = (u32, &'e str)>) -> Self {
        let mut pool = Self::new(capacity);
        for (number, name) in entries.filter(|(number, _)| *number < capacity) {
            if let Some(other) = pool.find(name) {
                pool.take_out(other);
            }
            while pool.slots.len() <= at(number) {
                pool.push_free();
            }
            if !pool.slots[at(number)].name.is_empty() {
                pool.take_out(number);
            }
            pool.put_in(number, name);
        }
        for (number, at) in (0..capacity).zip(0..pool.slots.len()).rev() {
            if pool.slots[at].name.is_empty() {
                pool.set_free(number);
            }
        }
        pool
    }

    /// The name of a number; a use of it.
    pub(super) fn name(&mut self, number: u32) -> Option<&str> {
        self.slots.get(at(number)).filter(|slot| !slot.name.is_empty())?;
        self.touch(number);
        Some(&self.slots[at(number)].name)
    }

    /// The name of a number, which keeps it until as many calls of [`Pool::unpin`].
    pub(super) fn pin(&mut self, number: u32) -> Option<&str> {
        let slot = self.slots.get_mut(at(number)).filter(|slot| !slot.name.is_empty())?;
        slot.pins = slot.pins.saturating_add(1);
        if slot.pins == 1 {
            self.unlink(number);
        }
        Some(&self.slots[at(number)].name)
    }

    /// A flow of this number has ended.
    pub(super) fn unpin(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(at(number)).filter(|slot| slot.pins > 0) else { return };
        slot.pins -= 1;
        if slot.pins == 0 {
            self.link(number);
        }
    }

    /// Forgets all names that no flow holds.
    pub(super) fn flush(&mut self) {
        while self.oldest != NONE {
            let number = self.take_out(self.oldest);
            self.set_free(number);
        }
        if self.len == 0 {
            self.index.clear();
        }
    }

    /// All names with their numbers: least recently used first, and those that flows hold last.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, &str)> {
        let next = |number: &u32| Some(self.slots[at(*number)].newer).filter(|number| *number != NONE);
        let first = Some(self.oldest).filter(|number| *number != NONE);
        let linked = std::iter::successors(first, next);
        let pinned = (0..).zip(&self.slots).filter(|(_, slot)| slot.pins > 0).map(|(number, _)| number);
        linked.chain(pinned).map(|number| (number, &*self.slots[at(number)].name))
    }

    /// Names in the pool.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all names together.
    pub(super) fn text_len(&self) -> usize {
        self.text_len
    }

    fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.index.find(hash, |number| *self.slots[at(number)].name == *name)
    }

    fn put_in(&mut self, number: u32, name: &str) {
        self.slots[at(number)].name = name.into();
        let Self { slots, hasher, index, .. } = self;
        let hash_of = |number: u32| hasher.hash_one(&*slots[at(number)].name);
        index.insert(number, hasher.hash_one(name), hash_of);
        self.text_len += name.len();
        self.len += 1;
        self.link(number);
    }

    /// Takes the name of a number away, and gives the number back.
    fn take_out(&mut self, number: u32) -> u32 {
        if self.slots[at(number)].pins == 0 {
            self.unlink(number);
        }
        let Self { slots, hasher, index, .. } = self;
        let hash_of = |number: u32| hasher.hash_one(&*slots[at(number)].name);
        index.remove(number, hash_of(number), hash_of);
        let name = std::mem::take(&mut self.slots[at(number)].name);
        self.slots[at(number)].pins = 0;
        self.text_len -= name.len();
        self.len -= 1;
        number
    }

    /// Grows by an eighth at a time: doubling would leave half of the slots unused.
    fn push_free(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(self.slots.len() / 8 + 64);
        }
        self.slots.push(Slot { name: "".into(), newer: NONE, older: NONE, pins: 0 });
    }

    fn set_free(&mut self, number: u32) {
        self.slots[at(number)].older = self.free;
        self.free = number;
    }

    fn touch(&mut self, number: u32) {
        if self.newest != number && self.slots[at(number)].pins == 0 {
            self.unlink(number);
            self.link(number);
        }
    }

    fn link(&mut self, number: u32) {
        let newest = self.newest;
        let slot = &mut self.slots[at(number)];
        (slot.newer, slot.older) = (NONE, newest);
        match self.slots.get_mut(at(newest)) {
            Some(next) => next.newer = number,
            None => self.oldest = number,
        }
        self.newest = number;
    }

    fn unlink(&mut self, number: u32) {
        let Slot { newer, older, .. } = self.slots[at(number)];
        match self.slots.get_mut(at(newer)) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(at(older)) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }
}

/// The place of a number; that of [`NONE`] is behind every slot.
fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
