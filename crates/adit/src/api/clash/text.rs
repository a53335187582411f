//! Texts of requests and answers: escapes, queries, times, numbers of connections.

use adit_net::web::live::{Given, LiveResponse};
use serde_json::{Value, json};

/// A path or a part of one without its escapes; `None` if it is no UTF-8.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let escaped = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// The value of a key of a query.
pub(super) fn query(query: &str, key: &str) -> Option<String> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(name, _)| decoded(name).as_deref() == Some(key))?;
    decoded(&value.replace('+', " "))
}

/// `2026-11-22T18:16:49Z`, of seconds since 1970 and milliseconds.
pub(super) fn time(unix_s: u64, ms: u64) -> String {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = if ms == 0 { String::new() } else { format!(".{ms:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// The date so many days after 1970-01-01 (Hinnant, chrono-Compatible Low-Level Date Algorithms: `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The number of a connection in the form of a UUID of version 4, which no other process has had.
pub(super) fn uuid(start: u64, id: u64) -> String {
    let start = start & 0xffff_ffff;
    format!("{start:08x}-{:04x}-4000-8000-{:012x}", (id >> 48) & 0xffff, id & 0xffff_ffff_ffff)
}

/// The number that [`uuid`] has written.
pub(super) fn id_of(text: &str) -> Option<u64> {
    let mut parts = text.split('-').map(|part| u64::from_str_radix(part, 16));
    let (_, high) = (parts.next()?.ok()?, parts.next()?.ok()?);
    let (_, _) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some(high << 48 | parts.next()?.ok()?)
}

/// A number of a name, for the `id` of a proxy.
pub(super) fn name_id(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A value as Go writes it: a line, without the letters that a page could take for its own.
pub(super) fn line<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_string(value).unwrap_or_default();
    if text.contains(['<', '>', '&']) {
        text = text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    }
    text.push('\n');
    text.into_bytes()
}

pub(crate) fn json(status: u16, value: &Value) -> Given {
    let fields = vec![("Content-Type", "application/json".to_owned())];
    Given::Whole(LiveResponse { status, fields, body: line(value) })
}

pub(super) fn message(status: u16, text: &str) -> Given {
    json(status, &json!({ "message": text }))
}

pub(super) fn nothing() -> Given {
    Given::Whole(LiveResponse { status: 204, ..LiveResponse::default() })
}

pub(super) fn missing() -> Given {
    message(404, "Resource not found")
}

pub(crate) fn bad() -> Given {
    message(400, "Body invalid")
}
