//! The contents of lists that rules refer to: names, words, regular expressions and addresses.

use std::sync::Arc;

use super::Tag;
use super::rule::{AddressRange, Country};
use crate::map::Map;

/// Longest name in a list, in bytes; no target has a longer one.
pub const MAX_NAME: usize = 255;

/// Everything that rules refer to, by name.
#[derive(Debug, Clone, Default)]
pub struct Sets {
    lists: Map<Tag, Arc<Entries>>,
    countries: Map<Country, Entries>,
}

/// Names, words, regular expressions and addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries {
    /// All names, one behind the other.
    text: String,
    names: Vec<Name>,
    /// Words that names of any case hold.
    pub keywords: Vec<Box<str>>,
    /// Regular expressions, which are looked for in names of any case.
    pub regexes: Vec<Box<str>>,
    /// Ranges of IPv4 addresses, both ends included, in any order.
    pub v4: Vec<(u32, u32)>,
    /// Ranges of IPv6 addresses, both ends included, in any order.
    pub v6: Vec<(u128, u128)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    start: u32,
    len: u8,
    scope: Scope,
}

/// The names that an entry stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The name alone.
    Exact,
    /// The name and all below it.
    Tree,
    /// All below the name.
    Below,
}

impl Entries {
    /// Adds a name in lower case without a trailing dot. A name that is empty or longer than [`MAX_NAME`] is left out,
    /// since no target can have it.
    pub fn add_name(&mut self, name: &str, scope: Scope) {
        let (Ok(len), Ok(start)) = (u8::try_from(name.len()), u32::try_from(self.text.len())) else { return };
        if len > 0 {
            self.text.push_str(name);
            self.names.push(Name { start, len, scope });
        }
    }

    /// Adds addresses.
    pub fn add_range(&mut self, range: AddressRange) {
        match range {
            AddressRange::V4(first, last) => self.v4.push((first, last)),
            AddressRange::V6(first, last) => self.v6.push((first, last)),
        }
    }

    /// All names, in the order in which they were added.
    pub fn names(&self) -> impl ExactSizeIterator<Item = (&str, Scope)> {
        self.names.iter().map(|name| {
            let start = name.start as usize;
            (&self.text[start..start + usize::from(name.len)], name.scope)
        })
    }

    /// Whether names can be in it.
    pub fn has_names(&self) -> bool {
        !self.names.is_empty() || !self.keywords.is_empty() || !self.regexes.is_empty()
    }

    /// Whether addresses can be in it.
    pub fn has_addresses(&self) -> bool {
        !self.v4.is_empty() || !self.v6.is_empty()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.names.len() + self.keywords.len() + self.regexes.len() + self.v4.len() + self.v6.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Sets {
    /// Sets with these lists.
    pub fn of(lists: Map<Tag, Arc<Entries>>) -> Self {
        Self { lists, countries: Map::new() }
    }

    /// Sets the addresses of all countries.
    pub fn set_countries(&mut self, countries: Map<Country, Entries>) {
        self.countries = countries;
    }

    /// Adds a list that others have too, in the place of one of that name.
    pub fn insert_shared(&mut self, name: Tag, entries: Arc<Entries>) {
        self.lists.insert(name, entries);
    }

    /// The same lists and countries with their words and regular expressions alone, for a test of rules.
    #[must_use]
    pub fn without_tables(mut self) -> Self {
        for list in self.lists.values_mut() {
            let (keywords, regexes) = (list.keywords.clone(), list.regexes.clone());
            *list = Arc::new(Entries { keywords, regexes, ..Entries::default() });
        }
        self.countries.values_mut().for_each(|entries| *entries = Entries::default());
        self
    }

    /// Adds a list, in the place of one of that name.
    pub fn insert(&mut self, name: Tag, entries: Entries) {
        self.lists.insert(name, Arc::new(entries));
    }

    /// The list of a name.
    pub fn list(&self, name: &str) -> Option<&Entries> {
        self.lists.get(name).map(|entries| &**entries)
    }

    /// The list of a name, with that name.
    pub fn named(&self, name: &str) -> Option<(&str, &Entries)> {
        self.lists.get_key_value(name).map(|(name, entries)| (&**name, &**entries))
    }

    /// The addresses of a country.
    pub fn country(&self, code: Country) -> Option<&Entries> {
        self.countries.get(&code)
    }
}
