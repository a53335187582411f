//! A timer that is a descriptor (`timerfd`), for times below the event loop's own millisecond.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A timer on the monotonic clock. Its descriptor is readable from when the time is over until it is set again.
#[derive(Debug)]
pub struct Timer(File);

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// The error of `timerfd_create`; [`io::ErrorKind::Unsupported`] where there is none.
    #[cfg(target_os = "linux")]
    pub fn new() -> io::Result<Self> {
        use std::os::fd::{FromRawFd as _, OwnedFd};

        // SAFETY: the call takes no pointers.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self(fd.into()))
    }

    /// As on Linux.
    ///
    /// # Errors
    /// Always: there is no such timer.
    #[cfg(not(target_os = "linux"))]
    pub fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sets the timer to `duration` from now, once; a time that was set before is forgotten. A duration below one
    /// nanosecond counts as one.
    ///
    /// # Errors
    /// The error of `timerfd_settime`.
    #[cfg(target_os = "linux")]
    pub fn set(&self, duration: Duration) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;

        let duration = duration.max(Duration::from_nanos(1));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: duration.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            // Below a thousand million, which every `long` holds.
            tv_nsec: i32::try_from(duration.subsec_nanos()).unwrap_or(0).into(),
        };
        let time = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: `time` is a valid `itimerspec` that outlives the call, which only reads it; the old value is not asked for.
        let result =
            unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const time, std::ptr::null_mut()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// As on Linux.
    ///
    /// # Errors
    /// Always: there is no such timer.
    #[cfg(not(target_os = "linux"))]
    pub fn set(&self, duration: Duration) -> io::Result<()> {
        let _ = duration;
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for Timer {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}
