use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pin_project_lite::pin_project;
use thiserror::Error;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::Sleep;

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
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    seconds.saturating_add_signed(SHIFT.load(Ordering::Relaxed))
}

/// Seconds that [`unix_time`] is moved by.
static SHIFT: AtomicI64 = AtomicI64::new(0);

/// Moves [`unix_time`] by `seconds` in the whole process, to find out if a server's clock differs. The wall clock of the
/// system stays as it is.
pub fn shift_unix_time(seconds: i64) {
    SHIFT.store(seconds, Ordering::Relaxed);
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
pub fn timeout<F: Future>(duration: Duration, future: F) -> impl Future<Output = Result<F::Output, Elapsed>> {
    Within { duration, future, deadline: None }
}

/// Drives both futures until one of them is ready; `left` is asked first. The other one is dropped with the race.
pub fn race<T>(left: impl Future<Output = T>, right: impl Future<Output = T>) -> impl Future<Output = T> {
    Race { left, right }
}

// Structs, since an `async fn` keeps its arguments twice: as it was given them, and as it awaits them.
pin_project! {
    struct Within<F> {
        duration: Duration,
        #[pin]
        future: F,
        // Made at the first poll. A future that uses up its turn must not keep the deadline from being seen.
        #[pin]
        deadline: Option<Unconstrained<Sleep>>,
    }
}

impl<F: Future> Future for Within<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut within = self.project();
        if within.deadline.is_none() {
            arm(within.deadline.as_mut(), *within.duration);
        }
        if let Poll::Ready(output) = within.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        overdue(within.deadline, cx).map(|()| Err(Elapsed))
    }
}

type Deadline = Option<Unconstrained<Sleep>>;

/// Apart from [`Within`], which there are many kinds of.
#[inline(never)]
fn arm(mut deadline: Pin<&mut Deadline>, duration: Duration) {
    deadline.set(Some(unconstrained(tokio::time::sleep(duration))));
}

#[inline(never)]
fn overdue(deadline: Pin<&mut Deadline>, cx: &mut Context<'_>) -> Poll<()> {
    deadline.as_pin_mut().expect("armed before").poll(cx)
}

pin_project! {
    struct Race<L, R> {
        #[pin]
        left: L,
        #[pin]
        right: R,
    }
}

impl<T, L: Future<Output = T>, R: Future<Output = T>> Future for Race<L, R> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let race = self.project();
        match race.left.poll(cx) {
            Poll::Ready(value) => Poll::Ready(value),
            Poll::Pending => race.right.poll(cx),
        }
    }
}
