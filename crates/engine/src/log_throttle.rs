//! Lines that would flood the log if every cause wrote one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause between two lines of one kind.
const EVERY: Duration = Duration::from_secs(60);

/// Lets one line through per minute and counts the causes between them.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<(Option<Instant>, u64)>);

impl LogThrottle {
    /// Number of times that its cause has occurred since the last line, if a line is due now.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, count) = &mut *state;
        *count += 1;
        if at.is_some_and(|at| now.saturating_duration_since(at) < EVERY) {
            return None;
        }
        *at = Some(now);
        Some(std::mem::take(count))
    }
}

/// A line that says which clock is ahead, by how much, and the accepted window. `offset_s` is the lead of `whose`
/// clock over ours, in seconds.
pub(crate) fn skew(whose: &str, offset_s: i64, window_s: u32) -> String {
    let relation = if offset_s > 0 { "ahead of" } else { "behind" };
    let distance = offset_s.unsigned_abs();
    format!("{whose} clock is {distance} s {relation} ours, and no more than {window_s} s are accepted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_minute_tells_of_all() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let now = Instant::now();
        let notice = LogThrottle::default();
        assert_eq!(notice.due(now), Some(1));
        assert_eq!(notice.due(now + EVERY / 2), None);
        assert_eq!(notice.due(now + EVERY), Some(2));
    }

    #[test]
    fn skew_says_who_is_ahead() {
        let behind = "the client's clock is 45 s behind ours, and no more than 30 s are accepted";
        assert_eq!(skew("the client's", -45, 30), behind);
        assert!(skew("the server's", 31, 30).starts_with("the server's clock is 31 s ahead of ours"));
    }
}
