//! A handful of futures of which the next to finish is wanted.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Futures that run side by side within one task. Each wake polls all of them: meant for a handful.
pub(crate) struct Race<'a, T>(Vec<Pin<Box<dyn Future<Output = T> + 'a>>>);

impl<'a, T> Race<'a, T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, future: impl Future<Output = T> + 'a) {
        self.0.push(Box::pin(future));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The output of the next future that finishes; `None` when there are none left. Cancelling this loses nothing.
    pub(crate) async fn next(&mut self) -> Option<T> {
        poll_fn(|context| {
            for at in 0..self.0.len() {
                if let Poll::Ready(output) = self.0[at].as_mut().poll(context) {
                    drop(self.0.remove(at));
                    return Poll::Ready(Some(output));
                }
            }
            if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
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
