//! Bodies of answers: decompressed within a bound, and judged.

use adit_net::call::{CallAnswer, CallError};
use adit_net::fetch::FetchError;
use adit_proto::wire::days;
use serde::Deserialize;

use super::loose::{Number, Text, is_too_deep};
use crate::journal::Verdict;

/// Longest body that is asked for, in bytes: some 100,000 users.
pub(crate) const MAX_BODY: usize = 16 << 20;
/// Errors of v2board that come before anything is done, with status 500 (v2board of 2026-04).
const REFUSALS: [&str; 3] = ["token is null", "token is error", "server is not exist"];
/// Longest text of a panel that is shown, in characters.
const MAX_SHOWN: usize = 120;

/// Why there is nothing to take from a panel. No text of it holds a token.
#[derive(Debug, thiserror::Error)]
pub enum PanelError {
    /// The panel cannot be reached, or the connection broke.
    #[error("panel not reached: {0}")]
    Call(String),
    /// The panel refuses.
    #[error("the panel answers with status {status}{message}")]
    Status {
        /// The status.
        status: u16,
        /// Its words, behind a colon; empty for none.
        message: String,
    },
    /// The body is none of the panel's.
    #[error("the answer is not the panel's: {0}")]
    Foreign(&'static str),
}

impl From<CallError> for PanelError {
    fn from(error: CallError) -> Self {
        Self::Call(chain(&error))
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The parts of an answer that say whether it is one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Saying {
    status: Text,
    ret: Number,
    data: Option<serde_json::Value>,
    message: Text,
    msg: Text,
    ok: Option<bool>,
    seq: Number,
}

/// The body of a good answer, decompressed.
///
/// # Errors
/// [`PanelError`] for other statuses than 200, and for bodies that are too long, too deep or no JSON object or list.
pub(crate) fn body(answer: &CallAnswer) -> Result<Vec<u8>, PanelError> {
    let bytes = plain(answer).ok_or(PanelError::Foreign("the body is too long, or cannot be unpacked"))?;
    if answer.status != 200 {
        return Err(PanelError::Status { status: answer.status, message: message(&bytes) });
    }
    let begin = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if !matches!(begin, Some(b'{' | b'[')) {
        return Err(PanelError::Foreign("it is no JSON"));
    }
    if is_too_deep(&bytes) {
        return Err(PanelError::Foreign("it is nested too deep"));
    }
    Ok(bytes)
}

/// The words of a refusal, without control characters.
fn message(bytes: &[u8]) -> String {
    let Ok(saying) = serde_json::from_slice::<Saying>(bytes) else { return String::new() };
    let text = saying.message.or_none().or_else(|| saying.msg.or_none()).unwrap_or_default();
    if text.is_empty() {
        return text;
    }
    format!(": {}", shown(&text))
}

/// The beginning of a panel's words, without control characters.
pub(super) fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(MAX_SHOWN).collect()
}

/// The bytes of a body as they were before compression; `None` if they would be too long.
fn plain(answer: &CallAnswer) -> Option<Vec<u8>> {
    match answer.coding.as_deref() {
        None | Some("" | "identity") => Some(answer.body.clone()),
        Some("gzip" | "x-gzip") => gunzip(&answer.body),
        Some(_) => None,
    }
}

/// RFC 1952 with one member.
fn gunzip(bytes: &[u8]) -> Option<Vec<u8>> {
    const CRC: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    let (head, mut rest) = bytes.split_first_chunk::<10>()?;
    if head[..3] != [0x1f, 0x8b, 8] {
        return None;
    }
    let flags = head[3];
    if flags & EXTRA != 0 {
        let (len, after) = rest.split_first_chunk::<2>()?;
        rest = after.get(usize::from(u16::from_le_bytes(*len))..)?;
    }
    for flag in [NAME, COMMENT] {
        if flags & flag != 0 {
            let end = rest.iter().position(|byte| *byte == 0)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & CRC != 0 {
        rest = rest.get(2..)?;
    }
    miniz_oxide::inflate::decompress_to_vec_with_limit(rest, MAX_BODY).ok()
}

/// Verdict about a batch of counters, by its answer (fleet notes, 2.3).
pub fn verdict(answer: &Result<CallAnswer, CallError>) -> Verdict {
    let answer = match answer {
        Ok(answer) => answer,
        Err(CallError::Unsent(_)) => return Verdict::NotApplied,
        Err(CallError::Unclear(_)) => return Verdict::InDoubt,
    };
    let saying = plain(answer)
        .filter(|bytes| !is_too_deep(bytes))
        .and_then(|bytes| serde_json::from_slice::<Saying>(&bytes).ok());
    match answer.status {
        200..=299 => match saying {
            Some(saying) => accepted(&saying),
            None => Verdict::InDoubt,
        },
        413 => Verdict::TooLong,
        400 | 401 | 403 | 404 | 422 | 429 | 503 => Verdict::NotApplied,
        500 => {
            let text = saying.and_then(|saying| saying.message.or_none()).unwrap_or_default();
            if REFUSALS.contains(&text.trim()) { Verdict::NotApplied } else { Verdict::InDoubt }
        }
        _ => Verdict::InDoubt,
    }
}

fn accepted(saying: &Saying) -> Verdict {
    if saying.status.as_deref() == Some("fail") || saying.ret.or_none() == Some(0) {
        return Verdict::NotApplied;
    }
    let is_true = saying.data.as_ref().is_some_and(|data| data.as_bool() == Some(true));
    if is_true || saying.ret.or_none() == Some(1) || saying.ok == Some(true) || saying.seq.or_none().is_some()
    {
        return Verdict::Done;
    }
    // The panel's own words for success.
    if saying.status.as_deref() == Some("success") { Verdict::Done } else { Verdict::InDoubt }
}

/// Whether a call failed for want of time.
pub(crate) fn is_late(error: &CallError) -> bool {
    matches!(
        error,
        CallError::Unsent(FetchError::Timeout { .. }) | CallError::Unclear(FetchError::Timeout { .. })
    )
}

/// For the fuzz target of panels: `data` as the body of an answer in each coding and with each kind of status, and as a
/// date.
pub(super) fn fuzz(data: &[u8]) {
    for coding in [None, Some("gzip".to_owned())] {
        for status in [200, 400, 413, 500] {
            let coding = coding.clone();
            let answer =
                CallAnswer { status, version: None, kind: None, coding, date: None, body: data.to_vec() };
            if let Ok(bytes) = body(&answer) {
                assert!(bytes.len() <= MAX_BODY.max(data.len()) && !is_too_deep(&bytes));
            }
            verdict(&Ok(answer));
        }
    }
    if let Some(seconds) = date(&String::from_utf8_lossy(data)) {
        assert!(seconds <= 253_402_473_600, "two days into the year 10000: the 31st of each month passes");
    }
}

/// The seconds since 1970 of a `Date` field: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
pub(crate) fn date(text: &str) -> Option<u64> {
    let mut words = text.split_ascii_whitespace().skip(1);
    let (day, month, year, time) = (words.next()?, words.next()?, words.next()?, words.next()?);
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let mut clock = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> CallAnswer {
        CallAnswer { status, body: body.into(), ..CallAnswer::default() }
    }

    #[test]
    fn verdicts() {
        use Verdict::{Done, InDoubt, NotApplied, TooLong};
        for (status, body, want) in [
            (200, r#"{"data":true}"#, Done),
            (200, r#"{"status":"success","message":"x","data":true,"error":null}"#, Done),
            (200, r#"{"ret":1,"data":"ok"}"#, Done),
            (200, r#"{"ret":"1"}"#, Done),
            (200, r#"{"seq":5}"#, Done),
            (200, r#"{"status":"fail"}"#, NotApplied),
            (200, r#"{"ret":0,"msg":"x"}"#, NotApplied),
            (200, "<html>log in to the network</html>", InDoubt),
            (200, "", InDoubt),
            (200, r#"{"data":false}"#, InDoubt),
            (400, "", NotApplied),
            (401, "", NotApplied),
            (413, "", TooLong),
            (422, r#"{"status":"fail"}"#, NotApplied),
            (429, "", NotApplied),
            (500, r#"{"message":"token is error"}"#, NotApplied),
            (500, r#"{"message":"Server Error"}"#, InDoubt),
            (500, "", InDoubt),
            (502, "", InDoubt),
            (503, "", NotApplied),
            (504, "", InDoubt),
            (302, "", InDoubt),
        ] {
            assert_eq!(verdict(&Ok(answer(status, body))), want, "{status} {body}");
        }
        let late = || FetchError::Timeout { limit: std::time::Duration::ZERO };
        assert_eq!(verdict(&Err(CallError::Unsent(late()))), NotApplied);
        assert_eq!(verdict(&Err(CallError::Unclear(late()))), InDoubt);
    }

    #[test]
    fn bodies_are_unpacked_within_a_bound() {
        let pack = |bytes: &[u8], flags: u8, more: &[u8]| {
            let mut out = vec![0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 3];
            out.extend(more);
            out.extend(miniz_oxide::deflate::compress_to_vec(bytes, 6));
            out.extend([0; 8]);
            out
        };
        let of = |body: Vec<u8>| {
            super::body(&CallAnswer {
                status: 200,
                body,
                coding: Some("gzip".into()),
                ..CallAnswer::default()
            })
        };
        assert_eq!(of(pack(b"{}", 0, b"")).unwrap(), b"{}");
        assert_eq!(of(pack(b"{}", 2 | 4 | 8 | 16, b"\x02\x00xxname\0comment\0cc")).unwrap(), b"{}");
        assert!(of(pack(&vec![b'['; MAX_BODY + 1], 0, b"")).is_err(), "a bomb");
        let whole = pack(b"{\"a\":1}", 8, b"name\0");
        for len in 0..whole.len() - 8 {
            assert!(of(whole[..len].to_vec()).is_err(), "{len} bytes");
        }
        let error = body(&answer(500, "{\"message\":\"token is\\u0007 error\"}")).unwrap_err();
        assert_eq!(error.to_string(), "the panel answers with status 500: token is error");
        assert!(body(&answer(200, "<html>")).is_err());
        assert!(body(&answer(200, &"[".repeat(100))).is_err());
    }

    #[test]
    fn dates() {
        assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(date("Mon, 23 Nov 2026 00:00:00 GMT"), Some(1_795_392_000));
        assert_eq!(date("Tue, 29 Feb 2028 23:59:59 GMT"), Some(1_835_481_599));
        for text in ["", "yesterday", "Sun, 06 Nov 1994", "Sun, 99 Nov 1994 08:49:37 GMT", "a b c d e"] {
            assert_eq!(date(text), None, "{text}");
        }
    }
}
