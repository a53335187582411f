//! One row per key: its name, its documentation, an example, how it is read and how it is written.
//!
//! [`TomlFields`](super::fields::TomlFields) and [`TableEntries`](super::write::TableEntries) take rows in the place of names, so that
//! a key which is read or written has a row, and the reference has all rows. A test reads, writes and reads again
//! the example of each row, in each table and protocol that has the key.
//!
//! Rows say what a value is. Rules about several keys together stand where the table is read.

pub(super) mod capture;
pub(crate) mod choice;
pub(super) mod dns;
pub(super) mod fleet;
pub(super) mod link;
pub(crate) mod port_keys;
pub(super) mod root;
pub(super) mod rule;
pub(super) mod sniff;
pub(super) mod snowflake;

use std::fmt::Display;
use std::ops::Deref;
use std::time::Duration;

use adit_model::{AddressFamilies, Level, LogFormat, ObfsServer, ReplayPolicy, Secret, Transports};

use super::fields::{TomlField, TomlReport};
use super::keys::{Head, TomlTable};
use crate::read::value::{Problem, duration_text, quote, text_of};

/// A key that is read as an `R` and written from a `W`.
pub(super) struct Row<R: 'static, W: ?Sized + 'static = R> {
    head: Head,
    read: fn(&TomlField<'_>, &mut TomlReport<'_>) -> Option<R>,
    write: fn(&W) -> String,
}

impl<R, W: ?Sized> Row<R, W> {
    pub(super) const fn head(&self) -> &Head {
        &self.head
    }

    /// The value of a field of this key; `None` if it is wrong, which is reported.
    pub(crate) fn read(&self, field: &TomlField<'_>, report: &mut TomlReport<'_>) -> Option<R> {
        (self.read)(field, report)
    }

    /// A value as it stands in a file.
    pub(crate) fn text(&self, value: &W) -> String {
        (self.write)(value)
    }
}

impl<R, W: ?Sized> Deref for Row<R, W> {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// A key with a table of keys, or with a list of at most `max` tables.
pub(super) struct Tables {
    head: Head,
    pub(super) kind: TomlTable,
    pub(super) max: usize,
}

impl Deref for Tables {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// Declares rows, and the list of their heads in the same order.
macro_rules! rows {
    ($list:ident; $($id:ident: $kind:ty = $row:expr;)*) => {
        $(pub(in crate::adit_toml) static $id: $kind = $row;)*
        pub(in crate::adit_toml) static $list: &[&$crate::adit_toml::keys::Head] = &[$(&$id.head),*];
    };
}
use rows;

/// The heads of all rows.
pub(super) static LISTS: &[&[&Head]] = &[
    root::ROOT,
    root::ADMIN,
    root::ADMIN_HTTP,
    root::CONTROLLER,
    root::MANAGEMENT,
    root::SET,
    dns::DNS,
    capture::CAPTURE,
    port_keys::ENDS,
    choice::CHOICE,
    choice::PROVIDER,
    link::LINKS,
    snowflake::SNOWFLAKE,
    snowflake::ACME,
    rule::RULE,
    sniff::SNIFF,
    fleet::FLEET,
];

/// The protocols of a key that has no limits.
pub(super) const ALL: &[&str] = &[];

pub(super) const LEVELS: &[(&str, Level)] = &[
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];

pub(super) const FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];

pub(super) const ON_OFF: &[(&str, bool)] = &[("on", true), ("off", false)];

pub(super) const FAMILIES: &[(&str, AddressFamilies)] = &[
    ("any", AddressFamilies::Any),
    ("prefer-ipv4", AddressFamilies::PreferV4),
    ("ipv4-only", AddressFamilies::V4Only),
    ("ipv6-only", AddressFamilies::V6Only),
];

pub(super) const OBFS: &[(&str, ObfsServer)] =
    &[("off", ObfsServer::Off), ("http", ObfsServer::Http), ("tls", ObfsServer::Tls)];

pub(super) const TRANSPORTS: &[(&str, Transports)] =
    &[("tcp", Transports::Tcp), ("udp", Transports::Udp), ("tcp-and-udp", Transports::Both)];

pub(super) const REPLAY: &[(&str, ReplayPolicy)] =
    &[("refuse", ReplayPolicy::Refuse), ("report", ReplayPolicy::Report), ("ignore", ReplayPolicy::Ignore)];

/// Longest name of an inbound, outbound, set or server of names, in characters.
pub(super) const MAX_NAME: usize = 64;

const fn row<R, W: ?Sized>(
    head: Head,
    read: fn(&TomlField<'_>, &mut TomlReport<'_>) -> Option<R>,
    write: fn(&W) -> String,
) -> Row<R, W> {
    Row { head, read, write }
}

/// `true` or `false`.
const fn flag(head: Head) -> Row<bool> {
    row(head, |field, report| field.flag(report), ToString::to_string)
}

/// A name in the manner of [`name`].
const fn named(head: Head) -> Row<Box<str>, str> {
    row(head, |field, report| field.parsed(report, name), quote)
}

/// Any text; it is judged together with other keys.
const fn any_text(head: Head) -> Row<Box<str>, str> {
    row(head, |field, report| field.parsed(report, |text| Ok(text.into())), quote)
}

/// A duration.
const fn span(head: Head) -> Row<Duration> {
    row(head, |field, report| field.duration(report), |span| quote(&duration_text(*span)))
}

/// A table, or a list of at most `max`.
const fn tables(head: Head, kind: TomlTable, max: usize) -> Tables {
    Tables { head, kind, max }
}

/// The name of an inbound or outbound.
pub(crate) fn name(text: &str) -> Result<Box<str>, Problem> {
    if text.chars().count() > MAX_NAME {
        return Err(Problem::new(format!("longer than {MAX_NAME} characters")));
    }
    text_of(text, MAX_NAME * 4)
}

/// The name of a value in its table, which has them all.
pub(super) fn name_of<'c, T: PartialEq>(choices: &[(&'c str, T)], value: &T) -> &'c str {
    let (name, _) = choices.iter().find(|(_, v)| v == value).expect("the table has every value");
    name
}

/// The name of a value in its table, in quotes.
fn chosen<T: PartialEq>(choices: &[(&str, T)], value: &T) -> String {
    quote(name_of(choices, value))
}

/// Something in the words of its `Display`, in quotes.
fn quoted(value: &impl Display) -> String {
    quote(&value.to_string())
}

/// A secret as it was given, in quotes.
fn exposed(secret: &Secret) -> String {
    quote(secret.expose())
}

/// One value, or a list where there is another number of them.
fn one_or_list(values: impl Iterator<Item = String>) -> String {
    let mut values: Vec<String> = values.collect();
    match values.len() {
        1 => values.remove(0),
        _ => format!("[{}]", values.join(", ")),
    }
}

/// [`one_or_list`] of texts in quotes.
fn all_quoted<T: Display>(values: &[T]) -> String {
    one_or_list(values.iter().map(quoted))
}

#[cfg(test)]
mod tests;
