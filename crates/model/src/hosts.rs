//! Names with fixed addresses, and names that stand for other names.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Dns;
use super::rule::normal_name;

/// Most names that lead to one another.
const MAX_CHAIN: usize = 16;

/// Names with fixed addresses and names that stand for others, by name and by pattern.
///
/// `x` is a name, `+.x` a name and all below it, `.x` all below it; `*` is one label. A label that is written goes before
/// a `*`, and that before `+` and a leading dot, from the last label on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostTable {
    exact: HashMap<Box<str>, Entry>,
    patterns: Vec<(Box<str>, Entry)>,
    has_aliases: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Entry {
    Addresses(Box<[IpAddr]>),
    Name(Box<str>),
}

impl HostTable {
    /// The table of [`Dns::hosts`] and [`Dns::aliases`].
    pub fn new(dns: &Dns) -> Self {
        let mut table = Self { has_aliases: !dns.aliases.is_empty(), ..Self::default() };
        for (name, ips) in &dns.hosts {
            table.add(name, Entry::Addresses(ips.as_slice().into()));
        }
        for (name, other) in &dns.aliases {
            table.add(name, Entry::Name(normal_name(other).into()));
        }
        table
    }

    fn add(&mut self, name: &str, entry: Entry) {
        let name = normal_name(name);
        if is_pattern(&name) {
            self.patterns.push((name.into(), entry));
        } else {
            self.exact.insert(name.into(), entry);
        }
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        if let Some(entry) = self.exact.get(name) {
            return Some(entry);
        }
        let found = self.patterns.iter().filter_map(|(pattern, entry)| Some((rank(pattern, name)?, entry)));
        found.min_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, entry)| entry)
    }

    /// The addresses of `name`, in lower case and without a dot at the end: its own, or those of the name that it stands
    /// for.
    pub fn addresses(&self, name: &str) -> Option<&[IpAddr]> {
        let mut entry = self.find(name)?;
        for _ in 0..MAX_CHAIN {
            match entry {
                Entry::Addresses(ips) => return Some(ips),
                Entry::Name(other) => entry = self.find(other)?,
            }
        }
        None
    }

    /// The name that `name` stands for, which may stand for another one.
    pub fn alias(&self, name: &str) -> Option<&str> {
        if !self.has_aliases {
            return None;
        }
        match self.find(&normal_name(name))? {
            Entry::Name(other) => Some(other),
            Entry::Addresses(_) => None,
        }
    }

    /// The name at the end of all that `name` stands for, if it stands for one.
    pub fn last_alias(&self, name: &str) -> Option<&str> {
        let mut found = self.alias(name)?;
        for _ in 0..MAX_CHAIN {
            match self.alias(found) {
                Some(next) => found = next,
                None => return Some(found),
            }
        }
        None
    }
}

/// Whether a name stands for more than one.
pub fn is_pattern(name: &str) -> bool {
    name.starts_with(['+', '.']) || name.contains('*')
}

/// The fit of a pattern to a name: a number per label from the last one on, least for a label that is written. `None` if
/// it does not fit.
fn rank(pattern: &str, name: &str) -> Option<Vec<u8>> {
    let (with_name, with_below, rest) = match (pattern.strip_prefix("+."), pattern.strip_prefix('.')) {
        (Some(rest), _) => (true, true, rest),
        (None, Some(rest)) => (false, true, rest),
        (None, None) => (true, false, pattern),
    };
    let (mut labels, mut rank) = (name.rsplit('.'), Vec::new());
    for wanted in rest.rsplit('.') {
        let label = labels.next()?;
        match wanted {
            "*" => rank.push(1),
            wanted if wanted == label => rank.push(0),
            _ => return None,
        }
    }
    if labels.next().is_some() {
        rank.push(2);
        with_below.then_some(rank)
    } else {
        with_name.then_some(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> HostTable {
        let ip = |last: u8| vec![IpAddr::from([192, 0, 2, last])];
        HostTable::new(&Dns {
            hosts: vec![
                ("a.test".into(), ip(1)),
                ("*.a.test".into(), ip(2)),
                ("+.b.test".into(), ip(3)),
                (".c.test".into(), ip(4)),
                ("x.*.c.test".into(), ip(5)),
            ],
            aliases: vec![
                ("one.test".into(), "Two.test".into()),
                ("two.test".into(), "a.test".into()),
                ("far.test".into(), "elsewhere.test".into()),
                ("loop.test".into(), "pool.test".into()),
                ("pool.test".into(), "loop.test".into()),
                ("y.a.test".into(), "far.test".into()),
            ],
            ..Dns::default()
        })
    }

    #[test]
    fn the_closest_pattern_counts() {
        let table = table();
        for (name, last) in [
            ("a.test", Some(1)),
            ("q.a.test", Some(2)),
            ("q.q.a.test", None),
            ("b.test", Some(3)),
            ("q.q.b.test", Some(3)),
            ("c.test", None),
            ("q.c.test", Some(4)),
            ("x.q.c.test", Some(5)),
            ("y.q.c.test", Some(4)),
            ("one.test", Some(1)),
            ("far.test", None),
            ("loop.test", None),
            ("y.a.test", None),
        ] {
            let found = table.addresses(name).map(|ips| ips[0]);
            assert_eq!(found, last.map(|last: u8| IpAddr::from([192, 0, 2, last])), "{name}");
        }
    }

    #[test]
    fn names_stand_for_others() {
        let table = table();
        for (name, first, last) in [
            ("ONE.test.", Some("two.test"), Some("a.test")),
            ("far.test", Some("elsewhere.test"), Some("elsewhere.test")),
            ("y.a.test", Some("far.test"), Some("elsewhere.test")),
            ("q.a.test", None, None),
            ("loop.test", Some("pool.test"), None),
        ] {
            assert_eq!((table.alias(name), table.last_alias(name)), (first, last), "{name}");
        }
        assert_eq!(HostTable::default().alias("one.test"), None);
    }
}
