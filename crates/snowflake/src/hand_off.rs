//! A place for one value that somebody waits for.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Empty, then full, then taken. One task at a time waits.
#[derive(Debug)]
pub(super) struct HandOff<T>(RefCell<State<T>>);

#[derive(Debug)]
enum State<T> {
    Empty(Option<Waker>),
    Full(T),
    Taken,
}

impl<T> Default for HandOff<T> {
    fn default() -> Self {
        Self(RefCell::new(State::Empty(None)))
    }
}

impl<T> HandOff<T> {
    /// Puts the value in; false if there has been one.
    pub(super) fn put(&self, value: T) -> bool {
        let mut state = self.0.borrow_mut();
        let State::Empty(waker) = &mut *state else { return false };
        let waker = waker.take();
        *state = State::Full(value);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// The value, once there is one. A value that was taken does not come again.
    pub(super) async fn take(&self) -> T {
        poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            match std::mem::replace(&mut *state, State::Taken) {
                State::Full(value) => Poll::Ready(value),
                State::Empty(_) => {
                    *state = State::Empty(Some(cx.waker().clone()));
                    Poll::Pending
                }
                State::Taken => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use adit_net::rt::{self, Cores};

    use super::*;

    #[test]
    fn one_value_for_one_taker() {
        Cores::block_on(async {
            let slot = Rc::new(HandOff::default());
            let other = slot.clone();
            rt::spawn_local(async move {
                // The taker is there first.
                rt::sleep(Duration::from_millis(10)).await;
                assert!(other.put(7));
                assert!(!other.put(8));
            });
            assert_eq!(slot.take().await, 7);
            assert!(!slot.put(9));
            assert!(rt::timeout(Duration::from_millis(10), slot.take()).await.is_err());
        })
        .unwrap();
    }
}
