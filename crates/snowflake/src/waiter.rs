use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A note from one task of an event loop to another: something has changed.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    is_set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Waiter {
    /// Leaves the note.
    pub(super) fn wake(&self) {
        self.is_set.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Returns once there is a note, and takes it.
    pub(super) async fn wait(&self) {
        poll_fn(|cx| {
            if self.is_set.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
