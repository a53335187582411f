//! The names that are told from the others, in the manner of mihomo's `fake-ip-filter`.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};

use adit_model::entries::{Entries, Scope, Sets};
use adit_model::{self as model, FakeFilter, FakeMode, USUAL_FILTER};
use regex::RegexSetBuilder;

use super::index::Index;

/// Memory of all regular expressions together, in bytes.
const MAX_REGEX: usize = 1 << 20;

/// The names that get fake addresses.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    mode: FakeMode,
    names: Names,
    patterns: Vec<Pattern>,
    words: Vec<Box<str>>,
    regexes: Option<regex::RegexSet>,
    /// Names of the configured servers, which keep their real addresses in every mode.
    own: BTreeSet<Box<str>>,
}

/// The names of one list.
#[derive(Debug, Default)]
pub(crate) struct NameList(Filter);

impl NameList {
    /// The names of `list`; none if it is not there.
    pub(crate) fn new(list: &str, sets: &Sets) -> Self {
        let fake = model::Fake { filter: vec![FakeFilter::Set(list.into())], ..model::Fake::default() };
        Self(Filter::new(&fake, sets, BTreeSet::new()))
    }

    /// Whether a name in lower case is one of them.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.0.holds(name)
    }
}

/// A pattern with `*` for some of its labels, from the last label on.
#[derive(Debug)]
struct Pattern {
    labels: Vec<Box<str>>,
    scope: Scope,
}

impl Filter {
    /// The filter of a configuration, with the sets that it names. `own` are the names of the servers that are to be
    /// reached, in lower case.
    pub(crate) fn new(fake: &model::Fake, sets: &Sets, own: BTreeSet<Box<str>>) -> Self {
        let mut filter = Self { mode: fake.mode, own, ..Self::default() };
        let mut regexes: Vec<&str> = Vec::new();
        for entry in &fake.filter {
            match entry {
                FakeFilter::Usual => USUAL_FILTER.iter().for_each(|pattern| filter.add_pattern(pattern)),
                FakeFilter::Pattern(pattern) => filter.add_pattern(pattern),
                FakeFilter::Set(name) => {
                    let Some(entries) = sets.list(name) else { continue };
                    filter.add_entries(entries);
                    regexes.extend(entries.regexes.iter().map(|regex| &**regex));
                }
            }
        }
        if !regexes.is_empty() {
            let mut builder = RegexSetBuilder::new(regexes);
            match builder.case_insensitive(true).unicode(false).size_limit(MAX_REGEX).build() {
                Ok(all) => filter.regexes = Some(all),
                Err(error) => tracing::warn!("regular expressions of dns.fake.filter are left out: {error}"),
            }
        }
        filter
    }

    /// Whether a name in lower case gets a fake address.
    pub(crate) fn is_faked(&self, name: &str) -> bool {
        if self.own.contains(name) {
            return false;
        }
        self.holds(name) == (self.mode == FakeMode::Whitelist)
    }

    fn holds(&self, name: &str) -> bool {
        self.names.holds(name)
            || self.patterns.iter().any(|pattern| pattern.holds(name))
            || self.words.iter().any(|word| name.contains(&**word))
            || self.regexes.as_ref().is_some_and(|regexes| regexes.is_match(name))
    }

    fn add_pattern(&mut self, text: &str) {
        let (scope, name) = match (text.strip_prefix("+."), text.strip_prefix('.')) {
            (Some(name), _) => (Scope::Tree, name),
            (None, Some(name)) => (Scope::Below, name),
            (None, None) => (Scope::Exact, text),
        };
        if name.contains('*') {
            let labels = name.rsplit('.').map(Into::into).collect();
            self.patterns.push(Pattern { labels, scope });
        } else {
            self.names.add(name, scope);
        }
    }

    fn add_entries(&mut self, entries: &Entries) {
        for (name, scope) in entries.names() {
            self.names.add(name, scope);
        }
        self.words.extend(entries.keywords.iter().map(|word| word.to_lowercase().into()));
    }
}

impl Pattern {
    fn holds(&self, name: &str) -> bool {
        let mut labels = name.rsplit('.');
        let is_end = self.labels.iter().all(|wanted| match labels.next() {
            Some(label) => **wanted == *"*" || **wanted == *label,
            None => false,
        });
        let has_more = labels.next().is_some();
        is_end
            && match self.scope {
                Scope::Exact => !has_more,
                Scope::Tree => true,
                Scope::Below => has_more,
            }
    }
}

/// Names with what they stand for, in one block of text.
#[derive(Debug, Default)]
struct Names {
    text: String,
    entries: Vec<Entry>,
    index: Index,
    hasher: RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    len: u8,
    is_exact: bool,
    is_below: bool,
}

impl Names {
    fn add(&mut self, name: &str, scope: Scope) {
        let (Ok(start), Ok(len)) = (u32::try_from(self.text.len()), u8::try_from(name.len())) else { return };
        let number = match self.find(name) {
            Some(number) => number,
            None => {
                let Ok(number) = u32::try_from(self.entries.len()) else { return };
                self.text.push_str(name);
                self.entries.push(Entry { start, len, is_exact: false, is_below: false });
                let Self { text, entries, index, hasher } = self;
                let hash_of = |number: u32| hasher.hash_one(text_of(text, &entries[number as usize]));
                index.insert(number, hasher.hash_one(name), hash_of);
                number
            }
        };
        let entry = &mut self.entries[number as usize];
        entry.is_exact |= scope != Scope::Below;
        entry.is_below |= scope != Scope::Exact;
    }

    fn holds(&self, name: &str) -> bool {
        if self.find(name).is_some_and(|number| self.entries[number as usize].is_exact) {
            return true;
        }
        let mut rest = name;
        while let Some((_, below)) = rest.split_once('.') {
            rest = below;
            if self.find(rest).is_some_and(|number| self.entries[number as usize].is_below) {
                return true;
            }
        }
        false
    }

    fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.index.find(hash, |number| *text_of(&self.text, &self.entries[number as usize]) == *name)
    }
}

fn text_of<'t>(text: &'t str, entry: &Entry) -> &'t str {
    let start = entry.start as usize;
    &text[start..start + usize::from(entry.len)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(mode: FakeMode, patterns: &[&str]) -> Filter {
        let filter = patterns.iter().map(|text| match *text {
            "default" => FakeFilter::Usual,
            text => match text.strip_prefix("rule-set:") {
                Some(name) => FakeFilter::Set(name.into()),
                None => FakeFilter::Pattern(model::fake_pattern(text).unwrap()),
            },
        });
        let fake = model::Fake { mode, filter: filter.collect(), ..model::Fake::default() };
        let mut entries = Entries::default();
        entries.add_name("set.test", Scope::Tree);
        entries.keywords.push("Word".into());
        entries.regexes.push("^re[0-9]+\\.test$".into());
        let mut sets = Sets::default();
        sets.insert("own".into(), entries);
        Filter::new(&fake, &sets, ["server.example".into()].into())
    }

    #[test]
    fn patterns_hold_what_they_hold_in_mihomo() {
        let all = [
            "exact.test",
            "+.tree.test",
            ".below.test",
            "*.one.test",
            "a.*.two.test",
            "+.b.*",
            "rule-set:own",
        ];
        let black = filter(FakeMode::Blacklist, &all);
        let white = filter(FakeMode::Whitelist, &all);
        for (name, holds) in [
            ("exact.test", true),
            ("x.exact.test", false),
            ("tree.test", true),
            ("x.y.tree.test", true),
            ("nottree.test", false),
            ("below.test", false),
            ("x.below.test", true),
            ("x.one.test", true),
            ("x.y.one.test", false),
            ("one.test", false),
            ("a.x.two.test", true),
            ("b.x.two.test", false),
            ("b.test", true),
            ("x.b.test", true),
            ("set.test", true),
            ("x.set.test", true),
            ("awordb.net", true),
            ("re12.test", true),
            ("re.test", false),
            ("com", false),
        ] {
            assert_eq!((black.is_faked(name), white.is_faked(name)), (!holds, holds), "{name}");
        }
        assert!(!black.is_faked("server.example") && !white.is_faked("server.example"), "a server of ours");
        assert!(!filter(FakeMode::Whitelist, &["server.example"]).is_faked("server.example"));
    }

    #[test]
    fn the_usual_names_are_real() {
        let filter = filter(FakeMode::Blacklist, &["default"]);
        for name in [
            "nas.lan",
            "printer.local",
            "1.0.168.192.in-addr.arpa",
            "stun.example.com",
            "stun.a.example.com",
            "time.apple.com",
            "2.debian.pool.ntp.org",
            "captive.apple.com",
            "xbox.ipv6.microsoft.com",
            "g1234.srv.nintendo.net",
        ] {
            assert!(!filter.is_faked(name), "{name}");
        }
        for name in ["example.com", "www.example.com", "a.b.lan", "stunt.example.com", "timeline.example.com"]
        {
            assert!(filter.is_faked(name), "{name}");
        }
    }
}
