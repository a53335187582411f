//! Tables of nftables as a value, as text in the language of nft(8), and as one batch of messages.
//!
//! The kernel takes a batch as a whole or not at all. A table with an owner ends with the socket that made it, however
//! the process ends, and nobody else may change it (Linux 5.12). Source: `include/uapi/linux/netfilter/nf_tables.h`;
//! bytes compared with those of nft 1.0.6 (`golden.txt`).

mod rule;
mod set;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use self::rule::{Action, Match, Rule};
pub use self::set::{Element, Set, SetKind, merge_v4, merge_v6};
use super::{Attributes, Messages, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, Netlink, NetlinkError};

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const DEL_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const NEW_SET: u16 = SUBSYSTEM | 9;
const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
const DEL_ELEMENT: u16 = SUBSYSTEM | 14;

/// `NFPROTO_INET`: IPv4 and IPv6.
const INET: u8 = 1;
/// Header of the family: IPv4 and IPv6 together, version 0, no resource.
const HEAD: [u8; 4] = [INET, 0, 0, 0];
/// Header of the ends of a batch: the subsystem, in network order.
const BATCH_HEAD: [u8; 4] = [0, 0, 0, 10];

const TABLE_FLAG_OWNER: u32 = 2;
const ACCEPT: u32 = 1;

/// A table for IPv4 and IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Whether it ends with the socket that makes it.
    pub has_owner: bool,
    /// Its sets; rules refer to them by name.
    pub sets: Vec<Set>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// A chain that the kernel calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: ChainKind,
    /// Its place on the way of a packet.
    pub hook: Hook,
    /// Its order among the chains of one place.
    pub priority: i32,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// The kind of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Looks at every packet.
    Filter,
    /// The same, and routes a packet again whose mark it has changed.
    Route,
    /// Looks at the first packet of a connection.
    Nat,
}

/// A place on the way of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// As it comes in.
    Prerouting,
    /// On its way to a socket of this machine.
    Input,
    /// On its way through this machine.
    Forward,
    /// As it leaves a socket of this machine.
    Output,
}

impl ChainKind {
    fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Route => "route",
            Self::Nat => "nat",
        }
    }
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table inet {} {{", self.name)?;
        for set in &self.sets {
            writeln!(f, "\t{set}")?;
        }
        for chain in &self.chains {
            write!(f, "{chain}")?;
        }
        writeln!(f, "}}")
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, hook, priority, rules } = self;
        writeln!(f, "\tchain {name} {{")?;
        let (kind, hook) = (kind.name(), hook.name());
        writeln!(f, "\t\ttype {kind} hook {hook} priority {priority}; policy accept;")?;
        for rule in rules {
            writeln!(f, "\t\t{rule}")?;
        }
        writeln!(f, "\t}}")
    }
}

/// One transaction.
#[derive(Debug, Default)]
pub struct NftBatch(Messages);

impl NftBatch {
    /// An empty transaction.
    pub fn new() -> Self {
        let mut messages = Messages::default();
        messages.message((BATCH_BEGIN, 0), "the transaction", &BATCH_HEAD, |_| {});
        Self(messages)
    }

    /// Removes a table that exists.
    pub fn remove_table(&mut self, name: &str) {
        self.0.message((DEL_TABLE, 0), format!("the removal of table {name}"), &HEAD, |m| m.text(1, name));
    }

    /// Adds a table with all it has.
    pub fn add_table(&mut self, table: &Table) {
        let name = table.name;
        let flags = if table.has_owner { TABLE_FLAG_OWNER } else { 0 };
        self.0.message((NEW_TABLE, NLM_F_CREATE), format!("table {name}"), &HEAD, |m| {
            m.text(1, name);
            m.number(2, flags);
        });
        for chain in &table.chains {
            self.add_chain(name, chain);
        }
        for (set, id) in table.sets.iter().zip(1..) {
            set.emit(name, id, &mut self.0);
        }
        for chain in &table.chains {
            for rule in &chain.rules {
                self.add_rule(table, chain.name, rule);
            }
        }
    }

    fn add_chain(&mut self, table: &str, chain: &Chain) {
        self.0.message((NEW_CHAIN, NLM_F_CREATE), format!("chain {}", chain.name), &HEAD, |m| {
            m.text(1, table);
            m.text(3, chain.name);
            m.text(7, chain.kind.name());
            m.nest(4, |m| {
                m.number(1, chain.hook.number());
                m.number(2, chain.priority.cast_unsigned());
            });
            m.number(5, ACCEPT);
        });
    }

    fn add_rule(&mut self, table: &Table, chain: &str, rule: &Rule) {
        let part = format!("rule `{rule}` of chain {chain}");
        self.0.message((NEW_RULE, NLM_F_CREATE | NLM_F_APPEND), part, &HEAD, |m| {
            m.text(1, table.name);
            m.text(2, chain);
            m.nest(4, |m| rule.emit(&table.sets, m));
        });
    }

    /// Adds an address to a set with timeouts.
    pub fn add_address(&mut self, table: &str, set: &str, ip: std::net::IpAddr, lives: Duration) {
        set::emit_address((NEW_ELEMENT, NLM_F_CREATE), table, set, ip, Some(lives), &mut self.0);
    }

    /// Removes an address that is in a set.
    pub fn remove_address(&mut self, table: &str, set: &str, ip: std::net::IpAddr) {
        set::emit_address((DEL_ELEMENT, 0), table, set, ip, None, &mut self.0);
    }

    /// Has the kernel take all of it, or nothing.
    ///
    /// # Errors
    /// The kernel's refusal: `EPERM` without the right or for another owner's table, `EOPNOTSUPP` where it lacks
    /// something.
    pub fn commit(mut self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        // Kernels before 6.10 do not confirm the end of a batch.
        self.0.confirm_last();
        self.0.message((BATCH_END, 0), "the transaction", &BATCH_HEAD, |_| {});
        let mut messages = self.0;
        // The end is never answered, so the last message that is stands for all.
        let end = messages.parts.pop();
        let result = netlink.transact(&messages);
        messages.parts.extend(end);
        result
    }
}

/// A table that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    /// Its name.
    pub name: String,
    /// The port of the socket that owns it, if one does.
    pub owner: Option<u32>,
}

/// The tables for IPv4 and IPv6 that the kernel has.
///
/// # Errors
/// The kernel's refusal.
pub fn tables(netlink: &mut Netlink) -> Result<Vec<FoundTable>, NetlinkError> {
    let mut question = Messages::default();
    question.message((GET_TABLE, NLM_F_DUMP), "the list of tables", &HEAD, |_| {});
    let listed = netlink.list(&question)?;
    Ok(listed.iter().filter_map(|(kind, body)| read_table(*kind, body)).collect())
}

fn read_table(kind: u16, body: &[u8]) -> Option<FoundTable> {
    if kind != NEW_TABLE || body.first() != Some(&INET) {
        return None;
    }
    let mut table = FoundTable { name: String::new(), owner: None };
    for (kind, data) in Attributes::new(body.get(HEAD.len()..)?) {
        match kind {
            1 => table.name = String::from_utf8_lossy(data).trim_end_matches('\0').to_owned(),
            7 => table.owner = data.first_chunk().map(|port| u32::from_be_bytes(*port)),
            _ => {}
        }
    }
    Some(table)
}

pub(super) fn fuzz_tables(kind: u16, body: &[u8]) {
    let name = read_table(kind, body).map_or(0, |table| table.name.len());
    // A byte that is no UTF-8 becomes three.
    assert!(name <= body.len() * 3);
}
