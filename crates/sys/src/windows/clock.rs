//! The time of day as the people at this machine read it, and the processor time of a thread.

use std::time::Duration;

/// Hour, minute and second of a time in seconds since 1970, in UTC.
pub fn local_time(unix_s: u64) -> (u8, u8, u8) {
    let second_of_day = unix_s % 86_400;
    let part = |seconds: u64| u8::try_from(seconds).unwrap_or_default();
    (part(second_of_day / 3600), part(second_of_day / 60 % 60), part(second_of_day % 60))
}

/// Processor time that all threads of this process have used: nothing, as it is not asked for here.
pub fn process_time() -> Duration {
    Duration::ZERO
}

/// Time in microseconds by which the source of the machine's time is ahead of its clock, which this system does not say.
pub fn kernel_offset_us() -> Option<i64> {
    None
}

/// Processor time that the calling thread has used: nothing, as it is not asked for here.
pub fn thread_time() -> Duration {
    Duration::ZERO
}
