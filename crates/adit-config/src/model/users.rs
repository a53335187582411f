//! Users of a server, and what each of them may use.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use super::Secret;

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// A user of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name in logs and status.
    pub name: Box<str>,
    /// What tells it from the others.
    pub key: Secret,
    /// What it may use.
    pub limits: UserLimits,
}

/// What a user may use; nothing is limited by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Payload bytes of a period, both directions together.
    pub quota: Option<u64>,
    /// Day of the month on which a period begins, 1 to 28, at midnight UTC; without it there is one period for ever.
    pub reset_day: Option<u8>,
    /// The last day of service, which ends at midnight UTC.
    pub expires: Option<Day>,
    /// Payload bytes per second, in each direction; at least 1.
    pub rate: Option<u64>,
    /// Connections at a time; at least 1.
    pub connections: Option<u32>,
    /// Source addresses (IPv4 address, IPv6 /64) at a time; at least 1.
    pub addresses: Option<u32>,
}

/// Users with names and keys of their own; at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct Users(Arc<[User]>);

/// Why users cannot be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UsersError {
    /// There is none.
    #[error("there is none")]
    None,
    /// Two have one name.
    #[error("the name of user {0} is another one's as well")]
    Name(usize),
    /// Two have one key.
    #[error("the key of user {0} is another one's as well")]
    Key(usize),
}

impl Users {
    /// Takes users that can be told apart.
    ///
    /// # Errors
    /// The index, from 0, of the first user that cannot.
    pub fn new(users: Vec<User>) -> Result<Self, UsersError> {
        if users.is_empty() {
            return Err(UsersError::None);
        }
        let (mut names, mut keys) = (HashSet::new(), HashSet::new());
        for (index, user) in users.iter().enumerate() {
            if !names.insert(&*user.name) {
                return Err(UsersError::Name(index));
            }
            if !keys.insert(user.key.expose()) {
                return Err(UsersError::Key(index));
            }
        }
        Ok(Self(users.into()))
    }

    /// All of them, in the order in which they were given.
    pub fn all(&self) -> &[User] {
        &self.0
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Users").field(&self.0.len()).finish()
    }
}

/// The keys of a Snell server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnellKeys {
    /// One pre-shared key for all clients.
    Common(Secret),
    /// One pre-shared key for all clients, which name themselves by a key of their own, the client id of requests.
    Named(Secret, Users),
    /// A pre-shared key for each user.
    Each(Users),
}

impl SnellKeys {
    /// The pre-shared key that all clients have, if they do.
    pub fn common(&self) -> Option<&Secret> {
        match self {
            Self::Common(psk) | Self::Named(psk, _) => Some(psk),
            Self::Each(_) => None,
        }
    }

    /// The users that are told apart.
    pub fn users(&self) -> &[User] {
        match self {
            Self::Common(_) => &[],
            Self::Named(_, users) | Self::Each(users) => users.all(),
        }
    }
}

impl From<Secret> for SnellKeys {
    fn from(psk: Secret) -> Self {
        Self::Common(psk)
    }
}

/// A day of the calendar, from 1970 to 9999, as days since the first of January 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(u32);

/// A text that is no day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no day of the form 2030-12-31")]
pub struct DayError;

impl Day {
    /// The day of a time, given in seconds since 1970 (UTC).
    pub fn of(unix_s: u64) -> Self {
        Self(u32::try_from(unix_s / DAY_S).unwrap_or(u32::MAX))
    }

    /// Its end, in seconds since 1970 (UTC).
    pub fn ends_at(self) -> u64 {
        (u64::from(self.0) + 1) * DAY_S
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
    fn users_are_told_apart() {
        let user = |name: &str, key: &str| User {
            name: name.into(),
            key: Secret::new(key),
            limits: UserLimits::default(),
        };
        assert_eq!(Users::new(Vec::new()), Err(UsersError::None));
        assert_eq!(Users::new(vec![user("a", "1"), user("a", "2")]), Err(UsersError::Name(1)));
        assert_eq!(Users::new(vec![user("a", "1"), user("b", "1")]), Err(UsersError::Key(1)));
        assert_eq!(Users::new(vec![user("a", "1"), user("b", "2")]).unwrap().all().len(), 2);
    }
}
