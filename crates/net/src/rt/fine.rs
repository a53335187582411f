use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adit_sys::timer::Timer;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A timer for times below the millisecond that [`sleep`](super::sleep) knows, on the event loop that made it. The loop
/// waits for it as for a socket.
#[derive(Debug)]
pub struct FineTimer(AsyncFd<Timer>);

impl FineTimer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::Unsupported`] if it has no such timer.
    pub fn new() -> io::Result<Self> {
        #[expect(deprecated, reason = "sound for a timer that owns its descriptor; the successor is unsafe")]
        AsyncFd::try_with_interest(Timer::new()?, Interest::READABLE).map(Self).map_err(Into::into)
    }

    /// Sets the timer to `duration` from now. It must not be set while [`FineTimer::poll`] is pending.
    ///
    /// # Errors
    /// The system's error.
    pub fn set(&mut self, duration: Duration) -> io::Result<()> {
        self.0.get_ref().set(duration)
    }

    /// Ready once after the time is over, or if the runtime is about to end.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Setting the timer again makes it unreadable: it is never read.
        if let Ok(mut guard) = ready!(self.0.poll_read_ready(cx)) {
            guard.clear_ready();
        }
        Poll::Ready(())
    }
}
