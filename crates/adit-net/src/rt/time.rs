use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;

/// A deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("deadline passed")]
pub struct Elapsed;

/// The monotonic clock.
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970, by the wall clock; 0 for a clock before that.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Stops the whole event loop for `duration`: nothing else on this core runs. For a fraction of a millisecond at most.
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Waits for `duration`.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits until `at`.
pub async fn sleep_until(at: Instant) {
    tokio::time::sleep_until(at.into()).await;
}

/// Drives `future`, for `duration` at most.
///
/// # Errors
/// [`Elapsed`] when the time is over first; `future` is dropped then.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    tokio::time::timeout(duration, future).await.map_err(|_| Elapsed)
}

/// Drives both futures until one of them is ready; `left` is asked first. The other one is dropped.
pub async fn race<T>(left: impl Future<Output = T>, right: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        value = left => value,
        value = right => value,
    }
}
