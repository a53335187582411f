//! The names of all rules and sets in one compact tree.
//!
//! A name is read from its end, so that names below one another share their way. Every node lies behind its parent in
//! one block of bytes:
//!
//! ```text
//! children << 1 | has value      varint
//! value                          varint, if there is one
//! length of label                varint
//! label                          bytes that all names of this node go on with
//! first bytes of the children    one each, ascending
//! lengths of the children        varint each, but for the last
//! children
//! ```
//!
//! A name of a list takes 15 to 20 bytes. Looking one up touches some ten nodes.

use std::collections::HashMap;

use adit_model::entries::{MAX_NAME, Scope};

use super::lists::NumberedLists;

/// A tree of names.
#[derive(Debug, Default)]
pub(super) struct NameTree {
    tree: Box<[u8]>,
    values: Vec<Value>,
    lists: NumberedLists,
}

/// Lists of atoms that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Value {
    exact: u32,
    tree: u32,
    below: u32,
}

/// Names with their atoms, on the way to a tree.
#[derive(Default)]
pub(super) struct NameTreeBuilder {
    /// All names reversed, one behind the other.
    text: Vec<u8>,
    names: Vec<Entry>,
}

struct Entry {
    /// The first 16 bytes of the reversed name, as a number that compares as they do: most pairs of names differ there, so
    /// that sorting hardly ever reads the text.
    head: u128,
    start: u32,
    len: u32,
    atom: u32,
    scope: Scope,
}

/// A reversed name with its value.
struct Key<'a> {
    name: &'a [u8],
    /// As that of [`Entry`].
    head: u128,
    value: u32,
}

impl NameTree {
    /// Adds the atoms that hold `name`, which is in lower case, to `found`.
    pub(super) fn find(&self, name: &str, found: &mut Vec<u32>) {
        let (name, tree) = (name.as_bytes(), &*self.tree);
        let mut left = name.len();
        let mut at = 0;
        while at < tree.len() {
            let head = varint(tree, &mut at);
            let value = (head & 1 == 1).then(|| varint(tree, &mut at));
            let label = varint(tree, &mut at);
            let rest = &name[..left];
            let Some(begun) = left.checked_sub(label) else { return };
            if !rest[begun..].iter().rev().eq(&tree[at..at + label]) {
                return;
            }
            at += label;
            left = begun;
            if let Some(value) = value {
                self.visit(value, &name[..left], found);
            }
            let children = head >> 1;
            let Some(byte) = left.checked_sub(1).map(|last| name[last]) else { return };
            let Some(child) = tree[at..at + children].iter().position(|first| *first == byte) else { return };
            at += children;
            left -= 1;
            let mut skip = 0;
            for n in 0..children - 1 {
                let len = varint(tree, &mut at);
                skip += if n < child { len } else { 0 };
            }
            at += skip;
        }
    }

    /// Adds the atoms of a node whose name is followed by `rest`.
    fn visit(&self, value: usize, rest: &[u8], found: &mut Vec<u32>) {
        let Value { exact, tree, below } = self.values[value];
        match rest.last() {
            None => {
                found.extend_from_slice(self.lists.of(exact));
                found.extend_from_slice(self.lists.of(tree));
            }
            Some(b'.') => {
                found.extend_from_slice(self.lists.of(tree));
                found.extend_from_slice(self.lists.of(below));
            }
            Some(_) => {}
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.tree.len() + size_of_val(&*self.values) + self.lists.memory()
    }
}

impl NameTreeBuilder {
    /// Adds a name in lower case for an atom. A name longer than [`MAX_NAME`] is left out, since no target can have it.
    pub(super) fn add(&mut self, name: &str, scope: Scope, atom: u32) {
        if name.len() > MAX_NAME {
            return;
        }
        let (Ok(start), Ok(len)) = (u32::try_from(self.text.len()), u32::try_from(name.len())) else {
            return;
        };
        self.text.extend(name.bytes().rev());
        // The last bytes of the name, the very last one most significant.
        let mut head = [0; 16];
        let tail = &name.as_bytes()[name.len().saturating_sub(16)..];
        head[16 - tail.len()..].copy_from_slice(tail);
        self.names.push(Entry { head: u128::from_le_bytes(head), start, len, atom, scope });
    }

    /// The tree of all names.
    pub(super) fn finish(self) -> NameTree {
        let Self { text, mut names } = self;
        let name = |entry: &Entry| &text[entry.start as usize..(entry.start + entry.len) as usize];
        names.sort_unstable_by(|a, b| {
            let by_name = || a.head.cmp(&b.head).then_with(|| name(a).cmp(name(b)));
            by_name().then_with(|| (a.atom, a.scope as u8).cmp(&(b.atom, b.scope as u8)))
        });
        let mut values = Values::default();
        let is_same = |a: &Entry, b: &Entry| a.head == b.head && name(a) == name(b);
        let keys: Vec<Key<'_>> = names
            .chunk_by(is_same)
            .map(|same| Key { name: name(&same[0]), head: same[0].head, value: values.of(same) })
            .collect();
        let mut tree = Vec::with_capacity(text.len());
        build(&keys, &mut tree);
        tree.reverse();
        tree.shrink_to_fit();
        NameTree { tree: tree.into(), values: values.all, lists: values.lists.finish() }
    }
}

/// The values of names, each once.
#[derive(Default)]
struct Values {
    all: Vec<Value>,
    known: HashMap<Value, u32>,
    /// Those of names that one atom has in one way, which are nearly all, by atom and scope; `u32::MAX` for none yet.
    single: Vec<u32>,
    lists: super::lists::Interner,
}

impl Values {
    /// The number of the value of a name that these entries have.
    fn of(&mut self, same: &[Entry]) -> u32 {
        let key = match same {
            [one] => Some(one.atom as usize * 3 + one.scope as usize),
            _ => None,
        };
        if let Some(id) = key.and_then(|key| self.single.get(key)).filter(|id| **id != u32::MAX) {
            return *id;
        }
        let mut of =
            |scope| self.lists.id(same.iter().filter(|entry| entry.scope == scope).map(|entry| entry.atom));
        let value = Value { exact: of(Scope::Exact), tree: of(Scope::Tree), below: of(Scope::Below) };
        let next = super::lists::short(self.all.len());
        let id = *self.known.entry(value).or_insert(next);
        if id == next {
            self.all.push(value);
        }
        if let Some(key) = key {
            let len = self.single.len().max(key + 1);
            self.single.resize(len, u32::MAX);
            self.single[key] = id;
        }
        id
    }
}

/// A node whose children are known from the last one on, but not all of them.
struct Open {
    /// Bytes that all names of the node agree in.
    end: usize,
    /// Its first child on the stack.
    base: usize,
    /// The first of its bytes.
    start: usize,
}

/// Appends the tree of `keys`, which are sorted and differ, with its last byte first: children come before their lengths are
/// needed, so that nothing is moved. Each key is read once and compared with the one before.
fn build(keys: &[Key<'_>], out: &mut Vec<u8>) {
    let mut open: Vec<Open> = Vec::new();
    // Lengths of children and their first bytes.
    let mut children: Vec<(usize, u8)> = Vec::new();
    for (at, key) in keys.iter().enumerate().rev() {
        let left = at.checked_sub(1).map(|before| keys[before].agreed(key));
        let (name, mut value) = (key.name, Some(key.value));
        let leaf = Open { end: name.len(), base: children.len(), start: out.len() };
        // Names that go on with this one have been seen already: the value is their node's.
        let mut node = open.pop_if(|node| node.end == name.len()).unwrap_or(leaf);
        loop {
            let parent = left.max(open.last().map(|node| node.end));
            let label = &name[parent.map_or(0, |parent| parent + 1)..node.end];
            put_node(out, label, value.take(), children.drain(node.base..));
            let Some(parent) = parent else { break };
            if open.last().is_none_or(|node| node.end < parent) {
                open.push(Open { end: parent, base: children.len(), start: node.start });
            }
            children.push((out.len() - node.start, name[parent]));
            // The key before belongs to the parent, too.
            if left == Some(parent) {
                break;
            }
            node = open.pop().expect("the parent is open");
        }
    }
}

impl Key<'_> {
    /// The number of bytes that two names have in common; their heads tell it for most pairs.
    fn agreed(&self, other: &Self) -> usize {
        let heads = (self.head ^ other.head).leading_zeros() as usize / 8;
        if heads < 16 {
            return heads.min(self.name.len()).min(other.name.len());
        }
        self.name.iter().zip(other.name).take_while(|(a, b)| a == b).count()
    }
}

/// Appends a node behind its children, the last of which comes first.
fn put_node(out: &mut Vec<u8>, label: &[u8], value: Option<u32>, children: std::vec::Drain<'_, (usize, u8)>) {
    let count = children.len();
    // The length of the last child is not needed.
    for (len, _) in children.as_slice().iter().skip(1) {
        put_reversed(out, *len);
    }
    out.extend(children.map(|(_, byte)| byte));
    out.extend(label.iter().rev());
    put_reversed(out, label.len());
    if let Some(value) = value {
        put_reversed(out, value as usize);
    }
    put_reversed(out, count << 1 | usize::from(value.is_some()));
}

/// Appends a number in seven bits to a byte, the lowest first, with its last byte first.
fn put_reversed(out: &mut Vec<u8>, number: usize) {
    let start = out.len();
    put(out, number);
    if number >= 0x80 {
        out[start..].reverse();
    }
}

/// Appends a number, seven bits to a byte, the lowest first.
fn put(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn varint(bytes: &[u8], at: &mut usize) -> usize {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return number;
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scope() -> impl Strategy<Value = Scope> {
        prop_oneof![Just(Scope::Exact), Just(Scope::Tree), Just(Scope::Below)]
    }

    fn naive(entries: &[(String, Scope)], name: &str) -> Vec<u32> {
        let holds = |(entry, scope): &(String, Scope)| {
            let is_below = name.strip_suffix(entry.as_str()).is_some_and(|rest| rest.ends_with('.'));
            match scope {
                Scope::Exact => entry == name,
                Scope::Tree => entry == name || is_below,
                Scope::Below => is_below,
            }
        };
        (0..).zip(entries).filter(|(_, entry)| holds(entry)).map(|(n, _)| n).collect()
    }

    fn found(names: &NameTree, name: &str) -> Vec<u32> {
        let mut found = Vec::new();
        names.find(name, &mut found);
        found.sort_unstable();
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_tree_is_a_list(
            entries in proptest::collection::vec(("[ab]{1,2}(\\.[ab]{1,2}){0,3}", scope()), 0..40),
            asked in proptest::collection::vec("[ab]{0,2}(\\.[ab]{0,2}){0,4}", 1..20),
        ) {
            let mut builder = NameTreeBuilder::default();
            for (n, (name, scope)) in (0..).zip(&entries) {
                builder.add(name, *scope, n);
            }
            let names = builder.finish();
            for name in asked.iter().chain(entries.iter().map(|(name, _)| name)) {
                prop_assert_eq!(found(&names, name), naive(&entries, name), "{}", name);
            }
        }
    }

    #[test]
    fn names_of_every_length() {
        let mut builder = NameTreeBuilder::default();
        for len in 1..=255_u32 {
            builder.add(&"a".repeat(len as usize), Scope::Exact, len);
        }
        let names = builder.finish();
        for len in 1..=255_u32 {
            assert_eq!(found(&names, &"a".repeat(len as usize)), [len]);
        }
        assert!(found(&names, &"a".repeat(256)).is_empty());
        let mut builder = NameTreeBuilder::default();
        for len in 250..=300_u32 {
            builder.add(&"a".repeat(len as usize), Scope::Tree, len);
        }
        let names = builder.finish();
        assert_eq!(found(&names, &format!("b.{}", "a".repeat(250))), [250]);
        assert!(found(&names, &"a".repeat(300)).is_empty());
        assert!(found(&names, "").is_empty());
        assert!(found(&NameTree::default(), "a").is_empty());
    }
}
