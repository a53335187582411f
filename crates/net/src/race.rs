//! A handful of futures of which the next to finish is wanted.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Futures that run side by side within one task. Each wake polls all of them: meant for a handful.
pub struct Race<'a, T>(Vec<Pin<Box<dyn Future<Output = T> + 'a>>>);

impl<'a, T> Race<'a, T> {
    /// No future yet.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a future; it is polled by the next [`Race::poll_next`].
    pub fn push(&mut self, future: impl Future<Output = T> + 'a) {
        self.0.push(Box::pin(future));
    }

    /// Whether there is none left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The output of the next future that finishes; `None` when there are none left. Cancelling this loses nothing.
    pub async fn next(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Race::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        for at in 0..self.0.len() {
            if let Poll::Ready(output) = self.0[at].as_mut().poll(cx) {
                drop(self.0.remove(at));
                return Poll::Ready(Some(output));
            }
        }
        if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl<T> Default for Race<'_, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Race<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Race").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(flavor = "local")]
    async fn the_first_to_finish_comes_first_and_none_is_lost() {
        let mut race = Race::new();
        assert_eq!(race.next().await, None);
        let finish = [(); 3].map(|()| {
            let (finish, finished) = oneshot::channel();
            race.push(async { finished.await.unwrap() });
            finish
        });
        let [first, second, third] = finish;
        second.send(2).unwrap();
        assert_eq!(race.next().await, Some(2));
        assert!(timeout(Duration::from_millis(1), race.next()).await.is_err());
        third.send(3).unwrap();
        assert_eq!(race.next().await, Some(3));
        first.send(1).unwrap();
        assert_eq!(race.next().await, Some(1));
        assert!(race.is_empty());
    }
}
