//! Words and regular expressions that are looked for in names, all of one kind at once.

use std::collections::BTreeMap;

use adit_model::rule::backtracking_regex;
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex::bytes::{RegexSet, RegexSetBuilder};

use super::lists::{NumberedLists, short};

/// Words, looked for together.
#[derive(Debug, Default)]
pub(super) struct Keywords {
    automaton: Option<AhoCorasick>,
    /// The atoms of each word.
    atoms: NumberedLists,
}

/// Regular expressions, looked for together.
#[derive(Debug, Default)]
pub(super) struct Regexes {
    parts: Vec<Part>,
    /// Expressions with look-around or back references, tried one by one.
    slow: Vec<(fancy_regex::Regex, u32)>,
}

#[derive(Debug)]
struct Part {
    set: RegexSet,
    /// The atom of each expression.
    atoms: Box<[u32]>,
}

/// Expressions in one automaton; more of them make it slow.
const PART: usize = 256;

/// Largest automaton of a part before it is divided, in bytes.
const MAX_PART: usize = 4 << 20;

/// Bytes that a part may spend on states it has met, in each thread.
const MAX_CACHE: usize = 256 << 10;

impl Keywords {
    /// A table of words in lower case with their atoms.
    pub(super) fn new(words: &[(Box<str>, u32)]) -> Option<Self> {
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        let mut items = Vec::with_capacity(words.len());
        for (word, atom) in words {
            let next = short(numbers.len());
            items.push((*numbers.entry(word).or_insert(next), *atom));
        }
        let mut patterns = vec![""; numbers.len()];
        for (word, number) in &numbers {
            patterns[*number as usize] = word;
        }
        if patterns.is_empty() {
            return Some(Self::default());
        }
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let automaton = AhoCorasick::builder().kind(kind).build(&patterns).ok()?;
        Some(Self { automaton: Some(automaton), atoms: NumberedLists::grouped(patterns.len(), &items) })
    }

    /// Adds the atoms with a word in `name`, which is in lower case, to `found`.
    pub(super) fn find(&self, name: &str, found: &mut Vec<u32>) {
        let Some(automaton) = &self.automaton else { return };
        for hit in automaton.find_overlapping_iter(name) {
            for atom in self.atoms.of(short(hit.pattern().as_usize())) {
                if !found.contains(atom) {
                    found.push(*atom);
                }
            }
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.automaton.as_ref().map_or(0, AhoCorasick::memory_usage) + self.atoms.memory()
    }
}

impl Regexes {
    /// A table of expressions with their atoms.
    ///
    /// # Errors
    /// The number of an expression that cannot be used.
    pub(super) fn new(all: &[(Box<str>, u32)]) -> Result<Self, usize> {
        let mut regexes = Self::default();
        for (n, part) in all.chunks(PART).enumerate() {
            regexes.add(part).map_err(|at| n * PART + at)?;
        }
        Ok(regexes)
    }

    /// Adds a part, in halves if it is too large.
    fn add(&mut self, part: &[(Box<str>, u32)]) -> Result<(), usize> {
        let mut builder = RegexSetBuilder::new(part.iter().map(|(regex, _)| regex));
        builder.unicode(false).case_insensitive(true).size_limit(MAX_PART).dfa_size_limit(MAX_CACHE);
        match builder.build() {
            Ok(set) => {
                self.parts.push(Part { set, atoms: part.iter().map(|(_, atom)| *atom).collect() });
                Ok(())
            }
            Err(_) if part.len() > 1 => {
                let (left, right) = part.split_at(part.len() / 2);
                self.add(left)?;
                self.add(right).map_err(|at| left.len() + at)
            }
            Err(_) => {
                let [(text, atom), ..] = part else { return Ok(()) };
                let slow = backtracking_regex(text).map_err(|_| 0_usize)?;
                self.slow.push((slow, *atom));
                Ok(())
            }
        }
    }

    /// Adds the atoms with an expression that is found in `name` to `found`.
    pub(super) fn find(&self, name: &str, found: &mut Vec<u32>) {
        for Part { set, atoms } in &self.parts {
            for hit in &set.matches(name.as_bytes()) {
                if !found.contains(&atoms[hit]) {
                    found.push(atoms[hit]);
                }
            }
        }
        self.find_slow(name, found);
    }

    /// Adds those that are tried one by one. An expression that takes too many steps counts as not found.
    fn find_slow(&self, name: &str, found: &mut Vec<u32>) {
        for (regex, atom) in &self.slow {
            if !found.contains(atom) && regex.is_match(name).unwrap_or(false) {
                found.push(*atom);
            }
        }
    }

    /// Bytes of memory beside the automata, which do not tell theirs.
    pub(super) fn memory(&self) -> usize {
        self.parts.iter().map(|part| size_of_val(part) + size_of_val(&*part.atoms)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_expressions() {
        let all = |texts: &[&str]| -> Vec<(Box<str>, u32)> {
            (0..).zip(texts).map(|(n, text)| ((*text).into(), n / 2)).collect()
        };
        let keywords = Keywords::new(&all(&["ads", "tr", "track", "ads", "x"])).unwrap();
        let mut found = Vec::new();
        keywords.find("tracker.ads.example", &mut found);
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2]);
        let regexes = Regexes::new(&all(&["^a[0-9]+\\.", "x$", "TRACK", "y", "^.$"])).unwrap();
        let mut found = Vec::new();
        regexes.find("a12.track.example", &mut found);
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
        let mut many = all(&["a"; 600]);
        assert!(Regexes::new(&many).is_ok());
        many[513].0 = "(".into();
        assert_eq!(Regexes::new(&many).err(), Some(513));
    }
}
