//! Values as panels send them: numbers as text, `null`, or not at all; and lists that may be of any length.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Most rows of a list.
pub(crate) const MOST_ROWS: usize = 100_000;
/// Deepest nesting of an answer.
const DEEPEST: usize = 32;

/// A value that a panel may leave out: not there (null or an empty text), there, or of another type. A value of
/// another type is never taken for one that is not there unless a reader says so ([`Loose::or_none`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Loose<T> {
    value: Option<T>,
    is_wrong: bool,
}

/// A whole number of any form, and not a negative one.
pub(crate) type Number = Loose<u64>;

/// A text, or a number as one.
pub(crate) type Text = Loose<String>;

/// A number of any form in thousandths, and not a negative one. It is never 0 for a number above 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thousandths(pub(crate) u64);

impl<T> Loose<T> {
    const ABSENT: Self = Self { value: None, is_wrong: false };
    const WRONG: Self = Self { value: None, is_wrong: true };

    fn new(value: Option<T>) -> Self {
        Self { is_wrong: value.is_none(), value }
    }

    /// The value, if it is there; `None` for one of another type.
    pub(crate) fn known(self) -> Option<Option<T>> {
        (!self.is_wrong).then_some(self.value)
    }

    /// Whether it is of another type.
    pub(crate) fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// The value of one that protects nothing: another type is as good as absent.
    pub(crate) fn or_none(self) -> Option<T> {
        self.value
    }
}

impl Text {
    /// The same without taking it.
    pub(crate) fn as_deref(&self) -> Option<&str> {
        self.value.as_deref()
    }
}

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

/// Reads any value as a number in units of which `SCALE` are 1.
struct AnyNumber<const SCALE: u64>;

impl<const SCALE: u64> AnyNumber<SCALE> {
    fn whole(value: u64) -> Loose<u64> {
        Loose::new(value.checked_mul(SCALE))
    }

    fn fraction(value: f64) -> Loose<u64> {
        let scaled = if SCALE == 1 { value } else { (value * SCALE as f64).ceil() };
        // Whole numbers up to 2^53 are exact.
        let is_whole = scaled.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&scaled);
        Loose::new(is_whole.then(|| format!("{scaled:.0}").parse().ok()).flatten())
    }
}

impl<'de, const SCALE: u64> Visitor<'de> for AnyNumber<SCALE> {
    type Value = Loose<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Self::whole(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(u64::try_from(value).map_or(Loose::WRONG, Self::whole))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Self::fraction(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        let value = value.trim();
        if value.is_empty() {
            return Ok(Loose::ABSENT);
        }
        Ok(match value.parse() {
            Ok(whole) => Self::whole(whole),
            Err(_) => value.parse().map_or(Loose::WRONG, Self::fraction),
        })
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Loose::WRONG)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Loose::ABSENT)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_seq(seq).map(|_| Loose::WRONG)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_map(map).map(|_| Loose::WRONG)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber::<1>)
    }
}

impl<'de> Deserialize<'de> for Loose<Thousandths> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Loose { value, is_wrong } = deserializer.deserialize_any(AnyNumber::<1000>)?;
        Ok(Self { value: value.map(Thousandths), is_wrong })
    }
}

struct AnyText;

impl<'de> Visitor<'de> for AnyText {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Text, E> {
        Ok(Loose::new(Some(value.to_owned())))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Text, E> {
        Ok(Loose::new(Some(value.to_string())))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Text, E> {
        Ok(Loose::new(Some(value.to_string())))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Text, E> {
        Ok(Loose::WRONG)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Text, E> {
        Ok(Loose::WRONG)
    }

    fn visit_unit<E: Error>(self) -> Result<Text, E> {
        Ok(Loose::ABSENT)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Text, A::Error> {
        IgnoredAny.visit_seq(seq).map(|_| Loose::WRONG)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Text, A::Error> {
        IgnoredAny.visit_map(map).map(|_| Loose::WRONG)
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
            ("7", Some(Some(7))),
            ("\"7\"", Some(Some(7))),
            ("7.0", Some(Some(7))),
            ("7.5", None),
            ("-7", None),
            ("\"x\"", None),
            ("null", Some(None)),
            ("\"\"", Some(None)),
            ("true", None),
            ("[7]", None),
            ("{\"a\": 7}", None),
            ("1e300", None),
        ] {
            assert_eq!(serde_json::from_str::<Number>(text).unwrap().known(), number, "{text}");
        }
        assert_eq!(serde_json::from_str::<Text>("17").unwrap().as_deref(), Some("17"));
        assert_eq!(serde_json::from_str::<Text>("[1]").unwrap().known(), None);
        let thousandths = serde_json::from_str::<Loose<Thousandths>>("12.0005").unwrap();
        assert_eq!(thousandths.known(), Some(Some(Thousandths(12_001))));
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
