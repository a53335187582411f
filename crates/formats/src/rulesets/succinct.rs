//! Names as a tree in bitmaps, the form in which compiled rule sets of mihomo (`.mrs`) and sing-box (`.srs`) keep them.
//!
//! Keys are reversed names, sorted, laid out level by level. A node has one 0 bit per outgoing byte and then a 1 bit;
//! the byte of the k-th 0 bit, from 0, leads to node k + 1. A node at which a key ends is marked in `leaves`.

use std::collections::VecDeque;

/// A tree in bitmaps, lowest bit of a word first.
pub(super) struct Tree {
    pub(super) leaves: Vec<u64>,
    pub(super) bitmap: Vec<u64>,
    pub(super) labels: Vec<u8>,
}

/// Longest key that is looked at, in bytes: a name and its marks.
const MAX_KEY: usize = adit_model::entries::MAX_NAME + 4;

/// Most bytes of all keys together.
const MAX_TEXT: usize = 256 << 20;

fn bit(words: &[u64], at: usize) -> bool {
    words.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
}

fn set(words: &mut Vec<u64>, at: usize) {
    if words.len() <= at / 64 {
        words.resize(at / 64 + 1, 0);
    }
    words[at / 64] |= 1 << (at % 64);
}

impl Tree {
    /// The tree of reversed names, which are sorted and differ; none is empty.
    pub(super) fn of(keys: &[Vec<u8>]) -> Self {
        let mut tree = Self { leaves: Vec::new(), bitmap: Vec::new(), labels: Vec::new() };
        // The keys below each node, and the length of what they have in common.
        let mut nodes = VecDeque::from([(0..keys.len(), 0)]);
        let (mut node, mut bits) = (0, 0);
        while let Some((range, len)) = nodes.pop_front() {
            let mut start = range.start;
            if keys.get(start).is_some_and(|key| key.len() == len) {
                set(&mut tree.leaves, node);
                start += 1;
            }
            while start < range.end {
                let label = keys[start][len];
                let same = keys[start..range.end].iter().take_while(|key| key[len] == label).count();
                tree.labels.push(label);
                nodes.push_back((start..start + same, len + 1));
                bits += 1;
                start += same;
            }
            set(&mut tree.bitmap, bits);
            bits += 1;
            node += 1;
        }
        tree
    }

    /// Calls `visit` with each key, still reversed, in the order of the tree. Keys longer than any name are left out.
    ///
    /// # Errors
    /// The problem with the tree.
    pub(super) fn keys(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), &'static str> {
        let starts = self.starts()?;
        let children = |node: usize| starts[node]..starts[node + 1];
        let (mut key, mut text) = (Vec::new(), 0_usize);
        let mut way = vec![children(0)];
        if bit(&self.leaves, 0) {
            visit(&key);
        }
        while let Some(left) = way.last_mut() {
            let Some(label) = left.next() else {
                way.pop();
                key.pop();
                continue;
            };
            // Every node is the child of one label that lies before it, so that the walk ends.
            let node = label + 1;
            key.push(self.labels[label]);
            if bit(&self.leaves, node) {
                text += key.len();
                if text > MAX_TEXT {
                    return Err("the names are too long together");
                }
                visit(&key);
            }
            way.push(if key.len() < MAX_KEY { children(node) } else { 0..0 });
        }
        Ok(())
    }

    /// The first label of each node, and the end of the last one.
    fn starts(&self) -> Result<Vec<usize>, &'static str> {
        let nodes = self.labels.len() + 1;
        let (mut starts, mut labels) = (vec![0], 0);
        let mut at = 0;
        while starts.len() <= nodes {
            if at >= self.bitmap.len() * 64 {
                return Err("the tree of names is cut off");
            }
            if bit(&self.bitmap, at) {
                starts.push(labels);
            } else {
                // Labels of node n lead to nodes behind it.
                if labels + 1 < starts.len() || labels >= self.labels.len() {
                    return Err("the tree of names leads back to itself");
                }
                labels += 1;
            }
            at += 1;
        }
        if labels == self.labels.len() { Ok(starts) } else { Err("the tree of names has loose ends") }
    }
}

/// Reads numbers and bytes from the front of a text.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// Eight bytes, the highest first.
    pub(super) fn long(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A count of things of `size` bytes each, all of which are there.
    pub(super) fn count(&mut self, size: usize) -> Option<usize> {
        let count = usize::try_from(self.long()?).ok()?;
        (count.checked_mul(size)? <= self.0.len()).then_some(count)
    }

    /// A number in groups of seven bits, the lowest first.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// As [`Input::count`], as a varint.
    pub(super) fn short_count(&mut self, size: usize) -> Option<usize> {
        let count = usize::try_from(self.varint()?).ok()?;
        (count.checked_mul(size)? <= self.0.len()).then_some(count)
    }

    pub(super) fn longs(&mut self, count: usize) -> Option<Vec<u64>> {
        (0..count).map(|_| self.long()).collect()
    }
}
