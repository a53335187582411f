//! Looking things up in a tree whose keys have the types of their tables; see [`kinds`](crate::read::kinds).
//!
//! Scalars are texts there, truth values among them `true` or `false`, and lists are lists. A key that cannot be looked up
//! here is not written: one with a value of another type was reported and taken out.

use crate::read::json::{JsonMember, JsonValue, Node};

/// The members of a mapping; none of anything else.
pub(crate) fn members(value: &JsonValue) -> &[JsonMember] {
    if let Node::Object(members) = &value.node { members } else { &[] }
}

/// The items of a list; none of anything else.
pub(crate) fn items(value: &JsonValue) -> &[JsonValue] {
    if let Node::Array(items) = &value.node { items } else { &[] }
}

/// Whether a value is a list.
pub(crate) fn is_list(value: &JsonValue) -> bool {
    matches!(value.node, Node::Array(_))
}

/// The value of a key that is not null. In keys of entries `_` and `-` are the same.
pub(crate) fn get<'v>(value: &'v JsonValue, key: &str) -> Option<&'v JsonValue> {
    let same = |other: &str| other.bytes().map(|b| if b == b'_' { b'-' } else { b }).eq(key.bytes());
    let member = members(value).iter().find(|member| same(&member.key))?;
    (member.value.node != Node::Null).then_some(&member.value)
}

/// The text of a scalar.
pub(crate) fn text(value: &JsonValue) -> Option<&str> {
    if let Node::Text(text) = &value.node { Some(text) } else { None }
}

/// The text of a key.
pub(crate) fn text_of<'v>(value: &'v JsonValue, key: &str) -> Option<&'v str> {
    get(value, key).and_then(text)
}

/// The texts of a key: of a list, or the one that there is.
pub(crate) fn texts_of<'v>(value: &'v JsonValue, key: &str) -> Vec<(&'v str, usize)> {
    let Some(found) = get(value, key) else { return Vec::new() };
    let one = text(found).map(|text| (text, found.at));
    let all = items(found).iter().filter_map(|item| Some((text(item)?, item.at)));
    one.into_iter().chain(all).collect()
}

/// Whether a key says yes.
pub(crate) fn is_on(value: &JsonValue, key: &str) -> bool {
    text_of(value, key) == Some("true")
}

/// Whether a key says no.
pub(crate) fn is_off(value: &JsonValue, key: &str) -> bool {
    text_of(value, key) == Some("false")
}

/// The place of a key's value; of the mapping, if it has no such key.
pub(crate) fn at(value: &JsonValue, key: &str) -> usize {
    get(value, key).map_or(value.at, |found| found.at)
}

/// A whole number.
pub(crate) fn number_of(value: &JsonValue, key: &str) -> Option<u64> {
    text_of(value, key)?.parse().ok()
}
