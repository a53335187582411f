//! Changes of the users in a file's text; all else, comments and blanks included, stays as it is.

use adit_model::{Inbound, InboundProtocol, Secret};
use thiserror::Error;
use toml_edit::{Array, Document, DocumentMut, InlineTable, Item, Table, TableLike, Value};
use zeroize::Zeroizing;

use super::parse;
use crate::read::source::Source;

/// Keys of a user that are limits.
const LIMITS: [&str; 6] = ["quota", "reset-day", "expires", "rate", "connections", "addresses"];

/// A limit as it is written: its key, and its value; `None` takes it away.
pub type Limit = (&'static str, Option<String>);

/// A change of one user of an inbound.
#[derive(Debug, Clone)]
pub enum Edit {
    /// A new user, at the end of the list.
    Add {
        /// The key or password.
        key: Secret,
        /// The number by which a client of ShadowsocksR names itself.
        id: Option<u32>,
        /// Its limits.
        limits: Vec<Limit>,
    },
    /// Other limits; those that are not named stay.
    Limit(Vec<Limit>),
    /// Another key.
    Rotate(Secret),
    /// No such user any more.
    Remove,
}

/// Why a text cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EditError {
    /// The text is not one that [`parse`] takes.
    #[error("the file cannot be read")]
    Unreadable,
    /// There is no such inbound.
    #[error("no inbound of that name: {0}")]
    NoInbound(String),
    /// There is no such user.
    #[error("inbound {0} has no user of that name: {1}")]
    NoUser(String, String),
    /// The user is there already.
    #[error("inbound {0} has a user of that name already: {1}")]
    Taken(String, String),
    /// A limit that is no number.
    #[error("{0} is a whole number")]
    NoNumber(&'static str),
}

/// Line and column, from 1, of the inbound or outbound `name` in a text; `None` if it has none, or cannot be read.
pub fn place_of(file: &str, text: &str, name: &str) -> Option<(usize, usize)> {
    let config = parse(file, text).ok()?.config;
    let document = Document::parse(text).ok()?;
    let inbound = config.inbounds.iter().position(|inbound| *inbound.name == *name);
    let outbound = config.outbounds.iter().position(|outbound| *outbound.name == *name);
    let (list, index) = inbound.map(|at| ("inbound", at)).or_else(|| Some(("outbound", outbound?)))?;
    let item = document.as_table().get(list)?;
    let span = match item {
        Item::ArrayOfTables(tables) => tables.get(index)?.span(),
        Item::Value(Value::Array(values)) => values.get(index)?.span(),
        Item::None | Item::Value(_) | Item::Table(_) => None,
    }?;
    Some(Source::new(file, text).locate(span.start))
}

/// The text with a change of `user` of `inbound`. Whether it makes sense is for [`parse`] to say.
///
/// # Errors
/// When there is no such place in it.
pub fn edit_user(text: &str, inbound: &str, user: &str, edit: &Edit) -> Result<Zeroizing<String>, EditError> {
    edit_users(text, inbound, &[(user, edit)])
}

/// The same with several changes, one after another.
///
/// # Errors
/// When there is no such place in it.
pub fn edit_users(
    text: &str,
    inbound: &str,
    edits: &[(&str, &Edit)],
) -> Result<Zeroizing<String>, EditError> {
    let config = parse("", text).map_err(|_| EditError::Unreadable)?.config;
    let mut document: DocumentMut = text.parse().map_err(|_| EditError::Unreadable)?;
    let index = config.inbounds.iter().position(|it| *it.name == *inbound);
    let table = index.and_then(|index| table_at(&mut document, "inbound", index));
    let table = table.ok_or_else(|| EditError::NoInbound(inbound.to_owned()))?;
    if !table.contains_key("users") {
        let key = index.and_then(|index| key_of_all(&config.inbounds[index]));
        begin_users(table, key);
    }
    let users = table.get_mut("users").ok_or(EditError::Unreadable)?;
    for (user, edit) in edits {
        edit_one(users, inbound, user, edit)?;
    }
    Ok(Zeroizing::new(document.to_string()))
}

/// The key of a Snell server that a first user ends: users with keys of their own are ordinary servers to every client,
/// which users of one psk are to few.
fn key_of_all(inbound: &Inbound) -> Option<&'static str> {
    matches!(inbound.protocol, InboundProtocol::Snell(_)).then_some("psk")
}

/// An empty list of users, in the place of `key`, with the comments around that.
fn begin_users(table: &mut dyn TableLike, key: Option<&'static str>) {
    let mut users = Value::Array(Array::new());
    let before = key.and_then(|key| table.key(key)).map(|key| key.leaf_decor().clone());
    let removed = key.and_then(|key| table.remove(key));
    if let Some(Item::Value(old)) = removed {
        *users.decor_mut() = old.decor().clone();
    }
    table.insert("users", Item::Value(users));
    if let (Some(before), Some(mut key)) = (before, table.key_mut("users")) {
        *key.leaf_decor_mut() = before;
    }
}

fn edit_one(users: &mut Item, inbound: &str, user: &str, edit: &Edit) -> Result<(), EditError> {
    let place = place_of_user(users, user);
    match (edit, place) {
        (Edit::Add { .. }, Some(_)) => return Err(EditError::Taken(inbound.into(), user.into())),
        (Edit::Add { key, id, limits }, None) => add(users, user, key, *id, limits)?,
        (Edit::Limit(_) | Edit::Rotate(_) | Edit::Remove, None) => {
            return Err(EditError::NoUser(inbound.into(), user.into()));
        }
        (Edit::Remove, Some(place)) => remove(users, place),
        (Edit::Limit(limits), Some(place)) => {
            let table = entry(users, place).ok_or(EditError::Unreadable)?;
            limits.iter().try_for_each(|limit| put_limit(table, limit))?;
        }
        (Edit::Rotate(key), Some(place)) => {
            let table = entry(users, place).ok_or(EditError::Unreadable)?;
            put(table, "password", Value::from(key.expose()));
        }
    }
    Ok(())
}

/// The text with another inbound behind `inbound`: the same but for its name, its port, and its one `user`.
///
/// # Errors
/// When there is no such place in it, or `inbound` has no address.
pub fn add_port(
    text: &str,
    inbound: &str,
    name: &str,
    port: u16,
    user: &str,
    key: &Secret,
) -> Result<Zeroizing<String>, EditError> {
    let config = parse("", text).map_err(|_| EditError::Unreadable)?.config;
    let mut document: DocumentMut = text.parse().map_err(|_| EditError::Unreadable)?;
    let none = || EditError::NoInbound(inbound.to_owned());
    let index = config.inbounds.iter().position(|it| *it.name == *inbound).ok_or_else(none)?;
    let listen: Array = config.inbounds[index]
        .listen
        .iter()
        .map(|addr| std::net::SocketAddr::new(addr.ip(), port).to_string())
        .collect();
    let fill = |table: &mut dyn TableLike| {
        put(table, "name", name.into());
        table.insert("listen", Item::Value(Value::Array(listen)));
        let mut only = InlineTable::new();
        only.insert("name", user.into());
        only.insert("password", key.expose().into());
        table.insert("users", Item::Value(Value::Array(Array::from_iter([only]))));
    };
    match document.as_table_mut().get_mut("inbound").ok_or_else(none)? {
        Item::ArrayOfTables(tables) => {
            let mut table = tables.get(index).ok_or_else(none)?.clone();
            fill(&mut table);
            table.set_position(None);
            tables.push(table);
        }
        Item::Value(Value::Array(values)) => {
            let mut table = values.get(index).and_then(Value::as_inline_table).ok_or_else(none)?.clone();
            fill(&mut table);
            push(values, table.into());
        }
        Item::None | Item::Value(_) | Item::Table(_) => return Err(EditError::Unreadable),
    }
    Ok(Zeroizing::new(document.to_string()))
}

fn table_at<'d>(document: &'d mut DocumentMut, key: &str, index: usize) -> Option<&'d mut dyn TableLike> {
    entry(document.as_table_mut().get_mut(key)?, index)
}

/// One table of a list, in either form.
fn entry(list: &mut Item, index: usize) -> Option<&mut dyn TableLike> {
    match list {
        Item::ArrayOfTables(tables) => tables.get_mut(index).map(|table| table as &mut dyn TableLike),
        Item::Value(Value::Array(values)) => {
            values.get_mut(index)?.as_inline_table_mut().map(|table| table as &mut dyn TableLike)
        }
        Item::None | Item::Value(_) | Item::Table(_) => None,
    }
}

fn place_of_user(users: &Item, name: &str) -> Option<usize> {
    let is_it = |table: &dyn TableLike| table.get("name").and_then(Item::as_str) == Some(name);
    match users {
        Item::ArrayOfTables(tables) => tables.iter().position(|table| is_it(table)),
        Item::Value(Value::Array(values)) => {
            values.iter().position(|value| value.as_inline_table().is_some_and(|table| is_it(table)))
        }
        Item::None | Item::Value(_) | Item::Table(_) => None,
    }
}

fn add(
    users: &mut Item,
    name: &str,
    key: &Secret,
    id: Option<u32>,
    limits: &[Limit],
) -> Result<(), EditError> {
    fn fill(
        table: &mut dyn TableLike,
        name: &str,
        key: &Secret,
        id: Option<u32>,
        limits: &[Limit],
    ) -> Result<(), EditError> {
        put(table, "name", name.into());
        if let Some(id) = id {
            put(table, "id", i64::from(id).into());
        }
        put(table, "password", key.expose().into());
        limits.iter().try_for_each(|limit| put_limit(table, limit))
    }
    match users {
        Item::ArrayOfTables(tables) => {
            let mut table = Table::new();
            fill(&mut table, name, key, id, limits)?;
            tables.push(table);
        }
        Item::Value(Value::Array(values)) => {
            let mut table = InlineTable::new();
            fill(&mut table, name, key, id, limits)?;
            push(values, table.into());
        }
        Item::None | Item::Value(_) | Item::Table(_) => return Err(EditError::Unreadable),
    }
    Ok(())
}

/// Adds a value at the end, on a line of its own if the one before has one.
fn push(values: &mut Array, mut value: Value) {
    let before =
        values.iter().last().and_then(|last| last.decor().prefix()).and_then(|prefix| prefix.as_str());
    // The last line of it is the indentation; comments before that belong to the value there.
    let prefix = match before.and_then(|prefix| prefix.rsplit_once('\n')) {
        Some((_, blanks)) => format!("\n{blanks}"),
        None if values.is_empty() => String::new(),
        None => " ".to_owned(),
    };
    if let Some(last) = values.iter_mut().last() {
        // A blank before the closing bracket stays there.
        let after = last.decor().suffix().and_then(|suffix| suffix.as_str()).unwrap_or_default();
        if after.trim().is_empty() {
            last.decor_mut().set_suffix("");
        }
    }
    value.decor_mut().set_prefix(prefix);
    values.push_formatted(value);
}

/// Takes an entry away; comments around it stay with what is left.
fn remove(users: &mut Item, place: usize) {
    match users {
        Item::ArrayOfTables(tables) => {
            tables.remove(place);
        }
        Item::Value(Value::Array(values)) => {
            let removed = values.remove(place);
            let prefix = removed.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
            if prefix.contains('#') {
                keep_comments(values, place, prefix);
            } else if let Some(first) = values.get_mut(0).filter(|_| place == 0) {
                first.decor_mut().set_prefix(prefix.to_owned());
            }
        }
        Item::None | Item::Value(_) | Item::Table(_) => {}
    }
}

/// Puts the comments that stood before a value in front of the next one, or of the closing bracket.
fn keep_comments(values: &mut Array, place: usize, comments: &str) {
    let lines = comments.rsplit_once('\n').map_or(comments, |(lines, _)| lines);
    match values.get_mut(place) {
        Some(next) => {
            let own = next.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default().to_owned();
            next.decor_mut().set_prefix(format!("{lines}{}", or_line(&own)));
        }
        None => {
            let own = values.trailing().as_str().unwrap_or_default().to_owned();
            values.set_trailing(format!("{lines}{}", or_line(&own)));
        }
    }
}

/// A comment ends with its line.
fn or_line(blanks: &str) -> String {
    if blanks.contains('\n') { blanks.to_owned() } else { format!("\n{blanks}") }
}

/// Sets a key; what stands around the value that was there stays.
fn put(table: &mut dyn TableLike, key: &str, mut value: Value) {
    match table.get_mut(key) {
        Some(Item::Value(old)) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        Some(Item::None | Item::Table(_) | Item::ArrayOfTables(_)) | None => {
            table.insert(key, Item::Value(value));
        }
    }
}

fn put_limit(table: &mut dyn TableLike, (key, value): &Limit) -> Result<(), EditError> {
    debug_assert!(LIMITS.contains(key), "{key}");
    match value {
        None => {
            table.remove(key);
        }
        Some(text) if matches!(*key, "reset-day" | "connections" | "addresses") => {
            let number: i64 = text.parse().map_err(|_| EditError::NoNumber(key))?;
            put(table, key, number.into());
        }
        Some(text) => put(table, key, text.as_str().into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_model::SnellKeys;

    const HEAD: &str = "# mine\n[[outbound]]\nprotocol = \"direct\"\n\n[[inbound]] # the port\nname = \"in\"\n\
                        protocol = \"snell\"\nlisten = \"127.0.0.1:1\"  # here\n";

    #[test]
    fn another_port_is_the_same_inbound_with_one_user() {
        let head = "[log]\nlevel = \"info\"\n[[inbound]] # mine\nname = \"in\"\nprotocol = \"shadowsocks\"\n\
                    listen = \"127.0.0.1:1\"\nmethod = \"aes-128-gcm\"\n";
        let array = "inbound = [{ name = \"in\", protocol = \"shadowsocks\", listen = \"[::1]:1\", \
                     method = \"aes-128-gcm\", users = [{ name = \"a\", password = \"p\" }] }]\n";
        for text in [
            format!("{head}users = [{{ name = \"ann\", password = \"p\", quota = \"1GB\" }}]\n[udp]\n"),
            format!("{head}[[inbound.users]]\nname = \"ann\"\npassword = \"p\"\n[udp]\n"),
            array.to_owned(),
        ] {
            let key = Secret::new("nobody knows it");
            let new = add_port(&text, "in", "in-77", 77, "none", &key).unwrap();
            let config = parse("new.toml", &new).unwrap().config;
            let [old, added] = &*config.inbounds else { panic!("{}", *new) };
            assert_eq!(*old, parse("", &text).unwrap().config.inbounds[0]);
            assert_eq!((&*added.name, added.listen[0].port()), ("in-77", 77));
            assert_eq!(added.listen[0].ip(), old.listen[0].ip());
            let users: Vec<&str> = added.protocol.users().iter().map(|user| &*user.name).collect();
            assert_eq!(users, ["none"]);
            let again = add_port(&text, "out", "x", 1, "none", &key);
            assert_eq!(again.unwrap_err(), EditError::NoInbound("out".into()));
        }
    }

    fn add(name: &str) -> (String, Edit) {
        let key = Secret::new(format!("{name} has a long key of its own"));
        (name.to_owned(), Edit::Add { key, id: None, limits: vec![("quota", Some("5GB".into()))] })
    }

    fn edited(text: &str, (user, edit): (String, Edit)) -> String {
        let new = edit_user(text, "in", &user, &edit).unwrap();
        parse("new.toml", &new).unwrap();
        (*new).clone()
    }

    #[test]
    fn lists_of_any_form_keep_their_comments() {
        let key = "ann has a long key of its own";
        for users in [
            format!("users = [{{ name = \"ann\", password = \"{key}\" }}] # them\n"),
            format!(
                "users = [\n    # the first\n    {{ name = \"ann\", password = \"{key}\" }}, # her\n    # end\n]\n"
            ),
            format!("users = [\n    {{ name = \"ann\", password = \"{key}\" }}\n]\n"),
            format!("[[inbound.users]] # her\nname = \"ann\" # so\npassword = \"{key}\"\n\n[log]\n# rest\n"),
        ] {
            let text = format!("{HEAD}{users}");
            let more = edited(&text, add("bob"));
            let config = parse("", &more).unwrap().config;
            let names: Vec<_> = config.inbounds[0].protocol.users().iter().map(|user| &*user.name).collect();
            assert_eq!(names, ["ann", "bob"], "{more}");
            assert_eq!(config.inbounds[0].protocol.users()[1].limits.quota, Some(5_000_000_000));
            for comment in text.match_indices('#').map(|(at, _)| text[at..].lines().next().unwrap()) {
                assert!(more.contains(comment), "{comment} of\n{text}\nis not in\n{more}");
            }
            let back = edited(&more, ("bob".into(), Edit::Remove));
            let blank = |text: &str| text.replace([' ', '\n', ','], "");
            assert_eq!(blank(&back), blank(&text), "{back}");
            let without = edited(&more, ("ann".into(), Edit::Remove));
            assert!(!without.contains("\"ann\"") && without.contains("# mine"), "{without}");
        }
    }

    #[test]
    fn one_value_changes_and_no_other_byte() {
        let users = "users = [\n  { name = \"ann\",   password = \"a key that is long enough\", quota = \"1GB\" }, # her\n]\n";
        let text = format!("{HEAD}{users}# end\n");
        let rotate = Edit::Rotate(Secret::new("another key that is long enough"));
        let new = edited(&text, ("ann".into(), rotate));
        assert_eq!(new, text.replace("\"a key that", "\"another key that"));
        let limit = Edit::Limit(vec![("quota", Some("2GB".into())), ("rate", None)]);
        assert_eq!(edited(&text, ("ann".into(), limit)), text.replace("1GB", "2GB"));
        let more = Edit::Limit(vec![("connections", Some("7".into())), ("quota", None)]);
        let new = edited(&text, ("ann".into(), more));
        assert!(new.contains("connections = 7") && !new.contains("quota"), "{new}");
    }

    #[test]
    fn places_that_are_not_there() {
        let (name, edit) = add("ann");
        let text = format!("{HEAD}psk = \"a key that is long enough\"\n");
        let with = edited(&text, (name.clone(), edit.clone()));
        assert!(!with.contains("psk"), "{with}");
        let error =
            |text: &str, inbound, user: &str, edit: &Edit| edit_user(text, inbound, user, edit).unwrap_err();
        assert_eq!(error(&text, "out", &name, &edit), EditError::NoInbound("out".into()));
        assert_eq!(error(&with, "in", "ann", &edit), EditError::Taken("in".into(), "ann".into()));
        assert_eq!(error(&with, "in", "bob", &Edit::Remove), EditError::NoUser("in".into(), "bob".into()));
        let limit = Edit::Limit(vec![("addresses", Some("many".into()))]);
        assert_eq!(error(&with, "in", "ann", &limit), EditError::NoNumber("addresses"));
        assert_eq!(error("x = [", "in", "ann", &edit), EditError::Unreadable);
    }

    #[test]
    fn a_first_user_of_snell_takes_the_place_of_the_key_for_all() {
        let text =
            format!("{HEAD}# the key\npsk = \"a key that is long enough\" # ours\n# rest\nudp = true\n");
        let new = edited(&text, add("ann"));
        let config = parse("", &new).unwrap().config;
        let InboundProtocol::Snell(server) = &config.inbounds[0].protocol else { panic!("{new}") };
        assert!(matches!(server.psk, SnellKeys::Each(_)), "{new}");
        let names: Vec<&str> = config.inbounds[0].protocol.users().iter().map(|user| &*user.name).collect();
        assert_eq!(names, ["ann"]);
        for comment in ["# the key\n", " # ours\n", "# rest\n"] {
            assert!(new.contains(comment), "{comment} is not in\n{new}");
        }
        assert!(!new.contains("long enough\"") && new.contains("udp = true"), "{new}");
    }

    #[test]
    fn parts_have_places() {
        let text = format!("{HEAD}psk = \"a key that is long enough\"\n");
        assert_eq!(place_of("", &text, "in"), Some((5, 1)));
        assert_eq!(place_of("", &text, "direct"), Some((2, 1)));
        assert_eq!(place_of("", &text, "other"), None);
        assert_eq!(place_of("", "x = [", "in"), None);
    }
}
