//! Every key of `adit.toml`, as documentation and messages quote it.
//!
//! The keys are those of the rows in `rows` and `bound`, each of which reads and writes its key as
//! well. There is no other way to name a key: the reader and the writer take rows.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::{rows, schema};

/// The table that a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TomlTable {
    /// At the top of the file.
    Root,
    /// In `[log]`.
    Log,
    /// In `[admin]`.
    Admin,
    /// In `[limits]`.
    Limits,
    /// In `[udp]`.
    Udp,
    /// In `[dns]`.
    Dns,
    /// In `[dns.fake]`.
    DnsFake,
    /// In a `[[dns.upstream]]`.
    DnsUpstream,
    /// In a `[[dns.policy]]`.
    DnsPolicy,
    /// In a `[[dns.hosts]]`.
    DnsHost,
    /// In `[dns.fallback]`.
    DnsFallback,
    /// In `[sniff]`.
    Sniff,
    /// In `[capture]`.
    Capture,
    /// In an `[[inbound]]`.
    Inbound,
    /// In an entry of an inbound's `users`.
    User,
    /// In an `[[outbound]]`.
    Outbound,
    /// In an entry of an outbound's `members`.
    Member,
    /// In a `[[provider]]`.
    Provider,
    /// In a `[[set]]`.
    Set,
    /// In a `[[panel]]`.
    Panel,
    /// In `[store]`.
    Store,
    /// In a `[[rule]]`.
    Rule,
    /// In a table of a rule's `and`, `or` or `not`.
    RulePart,
}

impl TomlTable {
    /// All of them, in the order in which documentation lists them.
    pub const ALL: [Self; 23] = [
        Self::Root,
        Self::Log,
        Self::Admin,
        Self::Limits,
        Self::Udp,
        Self::Dns,
        Self::DnsFake,
        Self::DnsUpstream,
        Self::DnsPolicy,
        Self::DnsHost,
        Self::DnsFallback,
        Self::Sniff,
        Self::Capture,
        Self::Inbound,
        Self::User,
        Self::Outbound,
        Self::Member,
        Self::Provider,
        Self::Set,
        Self::Panel,
        Self::Store,
        Self::Rule,
        Self::RulePart,
    ];

    /// The header, as it stands in a file.
    pub fn header(self) -> &'static str {
        match self {
            Self::Root => "top of the file",
            Self::Log => "[log]",
            Self::Admin => "[admin]",
            Self::Limits => "[limits]",
            Self::Udp => "[udp]",
            Self::Dns => "[dns]",
            Self::DnsFake => "[dns.fake]",
            Self::DnsUpstream => "[[dns.upstream]]",
            Self::DnsPolicy => "[[dns.policy]]",
            Self::DnsHost => "[[dns.hosts]]",
            Self::DnsFallback => "[dns.fallback]",
            Self::Sniff => "[sniff]",
            Self::Capture => "[capture]",
            Self::Inbound => "[[inbound]]",
            Self::User => "users of an [[inbound]]",
            Self::Outbound => "[[outbound]]",
            Self::Member => "members of an [[outbound]]",
            Self::Provider => "[[provider]]",
            Self::Set => "[[set]]",
            Self::Panel => "[[panel]]",
            Self::Store => "[store]",
            Self::Rule => "[[rule]]",
            Self::RulePart => "and, or and not of a [[rule]]",
        }
    }
}

/// One key in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableKey {
    /// Its table.
    pub table: TomlTable,
    /// Its name.
    pub name: &'static str,
    /// The protocols of the inbound or outbound that have it; empty for all.
    pub protocols: &'static [&'static str],
    /// The values it takes, with the unit.
    pub value: &'static str,
    /// The value that holds when it is left out; `required` when it must not be.
    pub default: &'static str,
    /// A value as it stands in a file; another one than the default.
    pub example: &'static str,
    /// Effect of the key, for the reference.
    pub meaning: &'static str,
    /// The name it had; reading takes it with a warning for two releases after the change.
    pub former: Option<&'static str>,
}

impl TableKey {
    /// Whether an inbound or outbound of this protocol has the key.
    pub fn applies_to(&self, protocol: &str) -> bool {
        self.protocols.is_empty() || self.protocols.contains(&protocol)
    }
}

/// The part of a row that names a key and describes it, for each table that has the key.
pub(super) struct Head {
    pub(crate) name: &'static str,
    value: &'static str,
    example: &'static str,
    pub(super) former: Option<&'static str>,
    places: [Option<Place>; 2],
}

/// A key in one table: the parts that differ between tables.
#[derive(Clone, Copy)]
struct Place {
    table: TomlTable,
    protocols: &'static [&'static str],
    default: &'static str,
    meaning: &'static str,
}

/// A key without a table; `value` says what may be written, `example` is such a value.
pub(super) const fn key(name: &'static str, value: &'static str, example: &'static str) -> Head {
    Head { name, value, example, former: None, places: [None, None] }
}

impl Head {
    /// The same key, which stands in `table` as well; in two tables at most.
    pub(super) const fn at(
        mut self,
        table: TomlTable,
        protocols: &'static [&'static str],
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        let place = Some(Place { table, protocols, default, meaning });
        if self.places[0].is_none() {
            self.places[0] = place;
        } else {
            assert!(self.places[1].is_none(), "two tables at most");
            self.places[1] = place;
        }
        self
    }

    /// The same key, which was called `name` before.
    pub(super) const fn formerly(mut self, name: &'static str) -> Self {
        self.former = Some(name);
        self
    }

    /// The key as it is in each of its tables.
    fn keys(&self) -> impl Iterator<Item = TableKey> {
        let Self { name, value, example, former, places } = *self;
        places.into_iter().flatten().map(move |Place { table, protocols, default, meaning }| TableKey {
            table,
            name,
            protocols,
            value,
            default,
            example,
            meaning,
            former,
        })
    }
}

/// The keys of one table.
pub fn of(table: TomlTable) -> impl Iterator<Item = &'static TableKey> {
    all().filter(move |key| key.table == table)
}

/// Every key there is, in the order of [`TomlTable::ALL`] and of the rows.
pub fn all() -> impl Iterator<Item = &'static TableKey> {
    static KEYS: LazyLock<Vec<TableKey>> = LazyLock::new(|| {
        let lists = rows::LISTS.iter().flat_map(|list| list.iter().copied());
        let mut keys: Vec<TableKey> = schema::heads().chain(lists).flat_map(Head::keys).collect();
        keys.sort_by_key(|key| TomlTable::ALL.iter().position(|table| *table == key.table));
        keys
    });
    KEYS.iter()
}

/// The reference of all keys, as Markdown: one table for each of [`TomlTable`].
pub fn markdown() -> String {
    let mut out = String::new();
    for table in TomlTable::ALL {
        let lead = if out.is_empty() { "" } else { "\n" };
        write!(out, "{lead}### {}\n\n", table.header()).expect("a string takes any text");
        out.push_str("| key | of | value | default | example | meaning |\n|---|---|---|---|---|---|\n");
        for key in of(table) {
            let protocols =
                if key.protocols.is_empty() { "all".to_owned() } else { key.protocols.join(", ") };
            let TableKey { name, value, default, example, meaning, former, .. } = key;
            let example = if example.is_empty() { String::new() } else { format!("`{example}`") };
            let former = former.map_or_else(String::new, |old| format!("; before: `{old}`"));
            writeln!(out, "| `{name}` | {protocols} | {value} | {default} | {example} | {meaning}{former} |")
                .expect("a string takes any text");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_within_a_table() {
        for (i, key) in all().enumerate() {
            // Protocols may have different keys of one name, each with its own values.
            let twin = all().take(i).find(|other| {
                let shares =
                    key.protocols.is_empty() || other.protocols.iter().any(|name| key.applies_to(name));
                (other.table, other.name) == (key.table, key.name) && (shares || other.protocols.is_empty())
            });
            assert_eq!(twin, None);
        }
    }

    #[test]
    fn an_old_name_stands_for_one_key() {
        for key in all().filter(|key| key.former.is_some()) {
            let twin = all().find(|other| {
                let shares = other.protocols.iter().any(|name| key.applies_to(name));
                other.table == key.table && Some(other.name) == key.former && shares
            });
            assert_eq!(twin, None, "{}: a file could mean either key", key.name);
        }
        let rule = of(TomlTable::Rule).find(|key| key.name == "network").unwrap();
        assert_eq!(rule.former, None, "the network of a rule is as old as rules");
    }

    #[test]
    fn the_reference_has_a_row_for_each_key() {
        let text = markdown();
        assert!(
            text.contains("\n| `method` | shadowsocks, ssr | name of a method | required | `\"aes-128-ctr\"` | the cipher |\n"),
            "{text}"
        );
        let cells: Vec<usize> =
            text.lines().filter(|l| l.starts_with("| `")).map(|l| l.matches('|').count()).collect();
        assert_eq!(cells, vec![7; all().count()]);
    }

    #[test]
    fn the_reference_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (_, tables) = page.split_once("<!-- adit config docs -->\n\n").expect("the page has the mark");
        assert_eq!(tables, markdown(), "`adit config docs` prints what belongs behind the mark");
    }

    #[test]
    fn defaults_are_those_of_the_model() {
        use crate::read::value::duration;
        use adit_model::{Dial, Limits, Udp};

        let default = |table, name| of(table).find(|key| key.name == name).unwrap().default;
        let limits = Limits::default();
        assert_eq!(duration(default(TomlTable::Limits, "idle")).ok(), limits.idle);
        assert_eq!(duration(default(TomlTable::Limits, "drain")), Ok(limits.drain));
        assert_eq!(duration(default(TomlTable::Outbound, "timeout")), Ok(Dial::default().timeout));
        let udp = Udp::default();
        assert_eq!(duration(default(TomlTable::Udp, "idle")), Ok(udp.idle));
        assert_eq!(default(TomlTable::Udp, "flows"), udp.flows.to_string());
    }

    #[test]
    fn the_example_names_every_key() {
        for key in all() {
            assert!(super::super::EXAMPLE.contains(key.name), "{}", key.name);
        }
    }
}
