//! Days and instants of the calendar, in UTC.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// A day of the calendar, from 1970 to 9999, as days since the first of January 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(u32);

/// A text that is no date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a date as 2030-12-31")]
pub struct DayError;

impl Day {
    /// The day of a time, given in seconds since 1970 (UTC).
    pub fn of(unix_s: u64) -> Self {
        Self(u32::try_from(unix_s / DAY_S).unwrap_or(u32::MAX))
    }

    /// 9999-12-31.
    const LAST: Self = Self(2_932_896);

    /// Its beginning, in seconds since 1970 (UTC).
    pub fn begins_at(self) -> u64 {
        u64::from(self.0) * DAY_S
    }

    /// Its end, in seconds since 1970 (UTC).
    pub fn ends_at(self) -> u64 {
        self.begins_at() + DAY_S
    }

    /// Year, month from 1, and day from 1.
    pub fn civil(self) -> (u32, u32, u32) {
        let mut left = self.0;
        let mut year = 1970;
        while left >= year_len(year) {
            left -= year_len(year);
            year += 1;
        }
        let mut month = 1;
        while left >= month_len(year, month) {
            left -= month_len(year, month);
            month += 1;
        }
        (year, month, left + 1)
    }

    fn from_civil(year: u32, month: u32, day: u32) -> Option<Self> {
        let is_legal = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=month_len(year, month)).contains(&day);
        let years = (1970..year).map(year_len).sum::<u32>();
        is_legal.then(|| Self(years + (1..month).map(|month| month_len(year, month)).sum::<u32>() + day - 1))
    }

    /// The first day of the next period, when periods begin on `first`.
    #[must_use]
    pub fn next_period(self, first: u8) -> Self {
        let mut day = Self(self.0 + 1);
        while day.period(first) == self.period(first) {
            day = Self(day.0 + 1);
        }
        day
    }

    /// The number of the month in which it lies, when months begin on `first`; it grows by one with each.
    pub fn period(self, first: u8) -> u32 {
        let (year, month, day) = self.civil();
        year * 12 + month - u32::from(day < u32::from(first))
    }
}

fn is_leap(year: u32) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_len(year: u32) -> u32 {
    365 + u32::from(is_leap(year))
}

fn month_len(year: u32, month: u32) -> u32 {
    match month {
        2 => 28 + u32::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl FromStr for Day {
    type Err = DayError;

    fn from_str(text: &str) -> Result<Self, DayError> {
        let mut parts = [0; 3];
        let mut count = 0;
        for (part, (text, len)) in parts.iter_mut().zip(text.splitn(3, '-').zip([4, 2, 2])) {
            if text.len() != len || !text.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(DayError);
            }
            *part = text.parse().map_err(|_| DayError)?;
            count += 1;
        }
        let [year, month, day] = parts;
        if count < 3 { Err(DayError) } else { Self::from_civil(year, month, day).ok_or(DayError) }
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

/// The instant at which a service ends, in whole seconds (UTC), up to the end of the year 9999.
///
/// Written as a date (`2030-12-31`), it is the end of that day. Written as a date and time (RFC 3339, section 5.6), it is
/// that instant; fractions of a second are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry(u64);

/// A text that is no date and no instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ExpiryError {
    /// The date is none.
    #[error("not a date as 2030-12-31, or a date and time as 2030-12-31T18:00:00Z")]
    Form,
    /// There is a time without a zone.
    #[error("the time zone is missing: write for instance 2030-12-31T18:00:00Z")]
    Zone,
}

/// The last second of the year 9999.
const LAST_S: u64 = 253_402_300_799;

impl Expiry {
    /// The end at `unix_s`, in seconds since 1970 (UTC). Times behind the year 9999 are that of its end.
    pub fn at(unix_s: u64) -> Self {
        Self(unix_s.min(LAST_S))
    }

    /// In seconds since 1970 (UTC). The user is refused from this second on.
    pub fn unix_s(self) -> u64 {
        self.0
    }
}

/// The end of the day.
impl From<Day> for Expiry {
    fn from(day: Day) -> Self {
        Self(day.ends_at())
    }
}

impl FromStr for Expiry {
    type Err = ExpiryError;

    fn from_str(text: &str) -> Result<Self, ExpiryError> {
        const FORM: ExpiryError = ExpiryError::Form;
        let Some((day, rest)) = text.split_at_checked(10) else { return Err(FORM) };
        let day: Day = day.parse().map_err(|DayError| FORM)?;
        if rest.is_empty() {
            return Ok(day.into());
        }
        let time = rest.strip_prefix(['T', 't', ' ']).ok_or(FORM)?;
        let (clock, rest) = time.split_at_checked(8).ok_or(FORM)?;
        let [hour, minute, second] = numbers(clock).ok_or(FORM)?;
        // 60 is a leap second.
        if hour > 23 || minute > 59 || second > 60 {
            return Err(FORM);
        }
        let zone = match rest.strip_prefix('.') {
            Some(rest) => {
                let zone = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
                (zone.len() < rest.len()).then_some(zone).ok_or(FORM)?
            }
            None => rest,
        };
        let local = day.begins_at() + hour * 3600 + minute * 60 + second;
        let at = local.checked_add_signed(-offset(zone)?).ok_or(FORM)?;
        if at > Day::LAST.ends_at() { Err(FORM) } else { Ok(Self(at)) }
    }
}

/// Seconds by which the zone is ahead of UTC.
fn offset(zone: &str) -> Result<i64, ExpiryError> {
    let (sign, rest) = match zone.split_at_checked(1) {
        None => return Err(ExpiryError::Zone),
        Some(("Z" | "z", "")) => return Ok(0),
        Some(("+", rest)) => (1, rest),
        Some(("-", rest)) => (-1, rest),
        Some(_) => return Err(ExpiryError::Form),
    };
    match numbers(rest) {
        Some([hours @ 0..=23, minutes @ 0..=59]) => Ok(sign * (hours * 3600 + minutes * 60).cast_signed()),
        _ => Err(ExpiryError::Form),
    }
}

/// Numbers of two digits between colons.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let mut parts = text.split(':');
    let mut all = [0; N];
    for number in &mut all {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(all)
}

/// A date where the service ends with a day, else a date and time in UTC.
impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (day, second) = (Day::of(self.0), self.0 % DAY_S);
        match self.0.checked_sub(1) {
            Some(before) if second == 0 => Day::of(before).fmt(f),
            _ => write!(f, "{day}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (text, unix_s) in [("1970-01-01", 0), ("2000-02-29", 951_782_400), ("2026-11-22", 1_795_305_600)]
        {
            assert_eq!(text.parse(), Ok(Day::of(unix_s)), "{text}");
            assert_eq!(Day::of(unix_s + DAY_S - 1).to_string(), text);
            assert_eq!(Day::of(unix_s).ends_at(), unix_s + DAY_S);
        }
        for bad in
            ["", "2026-2-1", "2026-02-29", "2026-13-01", "1969-12-31", "2026-01-00", "+026-01-01", "2026-01"]
        {
            assert_eq!(bad.parse::<Day>(), Err(DayError), "{bad}");
        }
        for day in (0..40_000).map(Day) {
            let (year, month, date) = day.civil();
            assert_eq!(Day::from_civil(year, month, date), Some(day));
        }
    }

    #[test]
    fn periods_begin_on_their_day() {
        let period = |text: &str, first| text.parse::<Day>().unwrap().period(first);
        assert_eq!(period("2026-03-01", 1), period("2026-03-31", 1));
        assert_eq!(period("2026-03-14", 15) + 1, period("2026-03-15", 15));
        assert_eq!(period("2025-12-31", 15), period("2026-01-14", 15));
        assert_eq!(period("2025-12-31", 1) + 1, period("2026-01-01", 1));
    }

    #[test]
    fn a_service_ends_with_a_day_or_at_an_instant() {
        for (text, unix_s, shown) in [
            ("1970-01-01", 86_400, "1970-01-01"),
            ("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00Z"),
            ("2026-11-22T10:20:30Z", 1_795_342_830, "2026-11-22T10:20:30Z"),
            ("2026-11-22t10:20:30.999z", 1_795_342_830, "2026-11-22T10:20:30Z"),
            ("2026-11-22 10:20:30+01:30", 1_795_337_430, "2026-11-22T08:50:30Z"),
            ("2026-11-22T23:00:00-01:00", 1_795_392_000, "2026-11-22"),
            ("2026-11-22T23:59:60Z", 1_795_392_000, "2026-11-22"),
            ("9999-12-31", 253_402_300_800, "9999-12-31"),
        ] {
            let expiry: Expiry = text.parse().unwrap();
            assert_eq!((expiry.unix_s(), &*expiry.to_string()), (unix_s, shown), "{text}");
            assert_eq!(shown.parse(), Ok(expiry));
        }
        for bad in [
            "",
            "2026-11",
            "2026-13-01",
            "2026-11-22T",
            "2026-11-22T10:20Z",
            "2026-11-22T24:00:00Z",
            "2026-11-22T10:60:00Z",
            "2026-11-22T10:20:61Z",
            "2026-11-22T10:20:30.Z",
            "2026-11-22T10:20:30+1:00",
            "2026-11-22T10:20:30+24:00",
            "2026-11-22T10:20:30ZZ",
            "2026-11-22T10:20:30 Z",
            "2026-11-2\u{fc}T",
            "1970-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
            "2026-11-22T10:20:3\u{661}Z",
        ] {
            assert_eq!(bad.parse::<Expiry>(), Err(ExpiryError::Form), "{bad}");
        }
        assert_eq!("2026-11-22T10:20:30".parse::<Expiry>(), Err(ExpiryError::Zone));
        assert_eq!(Day::LAST.to_string(), "9999-12-31");
    }
}
