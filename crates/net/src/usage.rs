//! The use that this process makes of the machine, and what the kernel knows of the machine's clock.

use std::time::Duration;

/// Bytes of memory that the process holds; 0 where the system does not say.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmRSS:")
        .and_then(|kilobytes| kilobytes.strip_suffix(" kB")?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Processor time of all threads.
pub fn processor_time() -> Duration {
    adit_sys::clock::process_time()
}

/// Time in microseconds by which the source of the machine's time is ahead of its clock, as the kernel knows it; `None` where
/// the clock follows none, and under a filter of system calls, which may end a process for the question.
pub fn kernel_offset_us() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_unfiltered(&status).then(adit_sys::clock::kernel_offset_us).flatten()
}

/// Whether no filter of system calls holds: `Seccomp:` is 0.
fn is_unfiltered(status: &str) -> bool {
    field(status, "Seccomp:") == Some("0")
}

/// The value of a field of `/proc/self/status`.
fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let status = "Name:\tadit\nVmRSS:\t    7144 kB\nSeccomp:\t0\nSeccomp_filters:\t3\n";
        assert_eq!(field(status, "VmRSS:"), Some("7144 kB"));
        assert!(is_unfiltered(status) && !is_unfiltered("Seccomp:\t2\n") && !is_unfiltered(""));
        assert!(resident() > 1 << 20 && processor_time() > Duration::ZERO);
    }
}
