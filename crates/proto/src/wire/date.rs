const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `unix_time`, seconds after 1970, as HTTP writes dates (RFC 9110, "Date/Time Formats"):
/// `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(unix_time: u64) -> String {
    let (days, second) = (unix_time / 86_400, unix_time % 86_400);
    let weekday = DAYS[(days % 7) as usize];
    let (year, month, day) = civil(days);
    let month = MONTHS[usize::try_from(month).expect("one of 0..12")];
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// `unix_time`, seconds after 1970, as `YYYY-MM-DD HH:MM:SS`, UTC.
pub fn plain_date(unix_time: u64) -> String {
    let (days, second) = (unix_time / 86_400, unix_time % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02}", month + 1)
}

/// Year, month from 0 and day from 1 of a day after 1970-01-01.
///
/// Counts in years that begin in March, so that the leap day is the last of its year, and in cycles of 400 years,
/// which all have the same 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 0000-03-01
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 31, 30, 31, 30, 31 days in turn, 153 in each group of five.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let next_year = u64::from(month >= 10);
    (cycle * 400 + year + next_year, (month + 2) % 12, day)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar, with month and day from 1; `None` before.
pub fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    // The year begins in March, as for `civil`.
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day - 1;
    let all = year * 365 + year / 4 - year / 100 + year / 400 + of_year;
    all.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_found_again() {
        for at in (0..3_000_000).step_by(37).chain([0, 11_016, 11_017, 47_540, 47_541]) {
            let (year, month, day) = civil(at);
            assert_eq!(days(year, month + 1, day), Some(at));
        }
        assert_eq!((days(1969, 12, 31), days(0, 1, 1)), (None, None));
    }

    #[test]
    fn dates() {
        for (unix_time, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_795_223_665, "Sat, 21 Nov 2026 01:14:25 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(http_date(unix_time), text);
        }
    }

    #[test]
    fn plain_dates() {
        for (unix, text) in [
            (0, "1970-01-01 00:00:00"),
            (1_709_164_799, "2024-02-28 23:59:59"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_795_223_529, "2026-11-21 01:12:09"),
        ] {
            assert_eq!(plain_date(unix), text);
        }
    }
}
