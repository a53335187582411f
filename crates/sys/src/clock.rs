//! The time of day as the people at this machine read it, what the system knows of its error, and processor time.

use std::time::Duration;

/// Hour, minute and second of a time in seconds since 1970, in the zone of the machine (`TZ`, `/etc/localtime`); UTC
/// where the system does not say.
pub fn local_time(unix_s: u64) -> (u8, u8, u8) {
    let time = libc::time_t::try_from(unix_s).unwrap_or_default();
    // SAFETY: an all-zero `tm` is a valid value of this plain structure of numbers and a pointer.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that outlive the call.
    let is_known = !unsafe { libc::localtime_r(&raw const time, &raw mut parts) }.is_null();
    if !is_known {
        let second_of_day = unix_s % 86_400;
        let part = |seconds: u64| u8::try_from(seconds).unwrap_or_default();
        return (part(second_of_day / 3600), part(second_of_day / 60 % 60), part(second_of_day % 60));
    }
    let part = |part: libc::c_int| u8::try_from(part).unwrap_or_default();
    (part(parts.tm_hour), part(parts.tm_min), part(parts.tm_sec))
}

/// Processor time that the calling thread has used; nothing where the system does not say.
pub fn thread_time() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time that all threads of this process have used; nothing where the system does not say.
pub fn process_time() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Time in microseconds by which the source of the machine's time (NTP, PTP) is ahead of its clock, as the kernel knows it;
/// `None` while the clock follows no source, or where the system does not say.
///
/// A filter of system calls may end a process for this call: do not call it under one.
#[cfg(target_os = "linux")]
#[allow(clippy::useless_conversion, reason = "the fields are narrower elsewhere")]
pub fn kernel_offset_us() -> Option<i64> {
    // SAFETY: an all-zero `timex` is a valid value of this plain structure of numbers; without modes it asks.
    let mut time: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local, which the call fills in.
    let state = unsafe { libc::adjtimex(&raw mut time) };
    if state < 0 || state == libc::TIME_ERROR || time.status & libc::STA_UNSYNC != 0 {
        return None;
    }
    let offset = i64::from(time.offset);
    Some(if time.status & libc::STA_NANO != 0 { offset / 1000 } else { offset })
}

/// The same, which this system does not say.
#[cfg(not(target_os = "linux"))]
pub fn kernel_offset_us() -> Option<i64> {
    None
}

fn read(clock: libc::clockid_t) -> Duration {
    // SAFETY: an all-zero `timespec` is a valid value of this plain structure of numbers.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local, which the call fills in.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Duration::ZERO;
    }
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_uses_time_and_one_that_sleeps_does_not() {
        let begin = thread_time();
        // Takes no time of a processor.
        std::thread::sleep(Duration::from_millis(50));
        let slept = thread_time() - begin;
        assert!(slept < Duration::from_millis(40), "{slept:?}");
        let until = begin + slept + Duration::from_millis(5);
        while thread_time() < until {
            std::hint::spin_loop();
        }
        assert!(std::thread::spawn(thread_time).join().unwrap() < until);
        assert!(process_time() >= thread_time());
    }

    #[test]
    fn a_clock_that_follows_a_source_is_near_it() {
        assert!(kernel_offset_us().is_none_or(|offset| offset.abs() < 1_000_000));
    }

    #[test]
    fn times_of_day_differ_by_the_clock() {
        let (_, minute, second) = local_time(1_795_392_000);
        assert!(minute < 60 && second < 61);
        let (_, later, _) = local_time(1_795_392_000 + 60);
        assert_eq!((minute + 1) % 60, later);
    }
}
