//! RESP2, the protocol of Redis and Valkey (their document "RESP protocol spec", version 2).
//!
//! ```text
//!   request:  *N CRLF, then N times  $LEN CRLF bytes CRLF
//!   answer:   +text CRLF | -error CRLF | :number CRLF | $LEN CRLF bytes CRLF | $-1 CRLF | *N CRLF answers | *-1 CRLF
//! ```

/// Deepest nesting of an answer.
const DEEPEST: usize = 8;
/// Longest text, in bytes, and longest list.
const MAX_LEN: usize = 16 << 20;
const MAX_ITEMS: usize = 1 << 20;
/// Longest line in front of a text or list, in bytes.
const MAX_LINE: usize = 64 << 10;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A text.
    Text(Vec<u8>),
    /// A number.
    Number(i64),
    /// Nothing.
    Nil,
    /// Several.
    List(Vec<Self>),
    /// The server's refusal.
    Error(String),
}

impl Value {
    /// The number that this is, or stands for; 0 for nothing.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            Self::Nil => Some(0),
            Self::List(_) | Self::Error(_) => None,
        }
    }

    /// The text that this is.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => std::str::from_utf8(text).ok(),
            Self::Number(_) | Self::Nil | Self::List(_) | Self::Error(_) => None,
        }
    }
}

/// Bytes that are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store's answer is no RESP2")]
pub(super) struct BadAnswer;

/// Adds a request to `out`.
pub(super) fn emit(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The first answer of `bytes` and its length; `None` if more is needed.
///
/// # Errors
/// When it is none.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, BadAnswer> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.value(0) {
        Ok(value) => Ok(Some((value, reader.at))),
        Err(Stop::More) => Ok(None),
        Err(Stop::Bad) => Err(BadAnswer),
    }
}

enum Stop {
    More,
    Bad,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or(Stop::Bad)?;
        let text = std::str::from_utf8(rest).map_err(|_| Stop::Bad)?.to_owned();
        match kind {
            b'+' => Ok(Value::Text(text.into_bytes())),
            b'-' => Ok(Value::Error(text)),
            b':' => text.parse().map(Value::Number).map_err(|_| Stop::Bad),
            b'$' => self.bulk(&text),
            b'*' => self.list(&text, depth),
            _ => Err(Stop::Bad),
        }
    }

    fn line(&mut self) -> Result<Vec<u8>, Stop> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n');
        let Some(end) = end else { return Err(if rest.len() >= MAX_LINE { Stop::Bad } else { Stop::More }) };
        let line = rest[..end].strip_suffix(b"\r").ok_or(Stop::Bad)?.to_vec();
        self.at += end + 1;
        Ok(line)
    }

    fn bulk(&mut self, len: &str) -> Result<Value, Stop> {
        if len == "-1" {
            return Ok(Value::Nil);
        }
        let len: usize = len.parse().ok().filter(|len| *len <= MAX_LEN).ok_or(Stop::Bad)?;
        let rest = &self.bytes[self.at..];
        let Some((text, end)) = rest.get(..len + 2).map(|whole| whole.split_at(len)) else {
            return Err(Stop::More);
        };
        if end != b"\r\n" {
            return Err(Stop::Bad);
        }
        self.at += len + 2;
        Ok(Value::Text(text.to_vec()))
    }

    fn list(&mut self, len: &str, depth: usize) -> Result<Value, Stop> {
        if len == "-1" {
            return Ok(Value::Nil);
        }
        let len: usize = len.parse().ok().filter(|len| *len <= MAX_ITEMS).ok_or(Stop::Bad)?;
        if depth >= DEEPEST {
            return Err(Stop::Bad);
        }
        let mut values = Vec::new();
        for _ in 0..len {
            values.push(self.value(depth + 1)?);
        }
        Ok(Value::List(values))
    }
}

/// Fuzz target: any bytes are an answer, the begin of one, or none; an answer is no longer than the bytes.
#[doc(hidden)]
pub fn fuzz_resp(data: &[u8]) {
    if let Ok(Some((_, len))) = parse(data) {
        assert!(len <= data.len());
        for cut in 0..len.min(64) {
            assert!(!matches!(parse(&data[..cut]), Err(BadAnswer)), "the begin of an answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_at_every_split() {
        let bytes = b"*5\r\n$3\r\na\r\n\r\n:-7\r\n$-1\r\n*1\r\n+OK\r\n-NOSCRIPT no\r\nrest";
        let want = Value::List(vec![
            Value::Text(b"a\r\n".to_vec()),
            Value::Number(-7),
            Value::Nil,
            Value::List(vec![Value::Text(b"OK".to_vec())]),
            Value::Error("NOSCRIPT no".into()),
        ]);
        let whole = bytes.len() - 4;
        assert_eq!(parse(bytes), Ok(Some((want, whole))));
        for len in 0..whole {
            assert_eq!(parse(&bytes[..len]), Ok(None), "{len}");
        }
        fuzz_resp(bytes);
    }

    #[test]
    fn bytes_that_are_no_answer() {
        for bytes in [
            &b"x\r\n"[..],
            b"\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"*9999999999\r\n",
            b":x\r\n",
            b"+a\n",
            b"$1\r\nabc",
        ] {
            assert_eq!(parse(bytes), Err(BadAnswer), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(parse("*1\r\n".repeat(20).as_bytes()), Err(BadAnswer));
        assert_eq!(parse(&[b'+'; MAX_LINE + 1]), Err(BadAnswer));
    }
}
