//! Values as panels send them: numbers as text, `null`, or not at all; and lists that may be of any length.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

/// Most rows of a list.
pub(crate) const MOST_ROWS: usize = 100_000;
/// Deepest nesting of an answer.
const DEEPEST: usize = 32;

/// A number of any form; `None` for everything that is none, and for negative ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) Option<u64>);

/// A text, or a number as one; `None` for everything else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) Option<String>);

/// A list of at most [`MOST_ROWS`] rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Whether a text of JSON is nested deeper than any answer should be.
pub(crate) fn is_too_deep(json: &[u8]) -> bool {
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => {
                depth += 1;
                if depth > DEEPEST {
                    return true;
                }
            }
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

struct AnyNumber;

impl<'de> Visitor<'de> for AnyNumber {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Number, E> {
        Ok(Number(Some(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Number, E> {
        Ok(Number(u64::try_from(value).ok()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Number, E> {
        // Whole numbers up to 2^53 are exact.
        let is_whole = value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&value);
        Ok(Number(is_whole.then(|| format!("{value:.0}").parse().ok()).flatten()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Number, E> {
        Ok(Number(value.trim().parse().ok()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Number, E> {
        Ok(Number(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Number, E> {
        Ok(Number(None))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber)
    }
}

struct AnyText;

impl<'de> Visitor<'de> for AnyText {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Text, E> {
        Ok(Text(Some(value.to_owned())))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Text, E> {
        Ok(Text(Some(value.to_string())))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Text, E> {
        Ok(Text(Some(value.to_string())))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyText)
    }
}

struct Rows<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Rows<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
        let mut rows = Vec::new();
        while let Some(row) = seq.next_element()? {
            if rows.len() >= MOST_ROWS {
                return Err(A::Error::custom(format_args!("more than {MOST_ROWS} rows")));
            }
            rows.push(row);
        }
        Ok(List(rows))
    }

    fn visit_unit<E: Error>(self) -> Result<List<T>, E> {
        Ok(List::default())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Rows(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_form() {
        for (text, number) in [
            ("7", Some(7)),
            ("\"7\"", Some(7)),
            ("7.0", Some(7)),
            ("7.5", None),
            ("-7", None),
            ("\"x\"", None),
            ("null", None),
            ("true", None),
            ("1e300", None),
        ] {
            assert_eq!(serde_json::from_str::<Number>(text).unwrap().0, number, "{text}");
        }
        assert_eq!(serde_json::from_str::<Text>("17").unwrap().0.as_deref(), Some("17"));
        assert_eq!(serde_json::from_str::<Text>("[1]").unwrap().0, None);
    }

    #[test]
    fn lists_and_nesting_are_bounded() {
        let many = format!("[{}1]", "1,".repeat(MOST_ROWS));
        assert!(serde_json::from_str::<List<Number>>(&many).is_err());
        assert_eq!(serde_json::from_str::<List<Number>>("null").unwrap().0, []);
        assert!(is_too_deep("[".repeat(33).as_bytes()) && !is_too_deep("[".repeat(32).as_bytes()));
        assert!(!is_too_deep(format!("\"{}\\\"{}\"", "[".repeat(40), "[".repeat(40)).as_bytes()));
    }
}
