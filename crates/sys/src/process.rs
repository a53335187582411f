//! Limits of the process, and children that do not outlive it.

use std::io;
use std::os::fd::AsRawFd as _;
use std::process::Command;

/// The monotonic clock in microseconds, as a service manager compares it.
#[allow(clippy::useless_conversion, reason = "the fields are narrower elsewhere")]
pub fn monotonic_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid `timespec` that outlives the call, which only writes it.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) } != 0 {
        return 0;
    }
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(time.tv_sec.into()) * 1_000_000 + part(time.tv_nsec.into()) / 1000
}

/// The number of the effective user of this process.
pub fn effective_uid() -> u32 {
    // SAFETY: takes no pointers and cannot fail.
    unsafe { libc::geteuid() }
}

/// Soft and hard limit of open descriptors.
///
/// # Errors
/// The error of `getrlimit`.
pub fn fd_limit() -> io::Result<(u64, u64)> {
    let limit = read_limit()?;
    Ok((widen(limit.rlim_cur), widen(limit.rlim_max)))
}

/// Sets the soft limit of open descriptors; above the hard limit it fails.
///
/// # Errors
/// The error of `setrlimit`.
#[allow(clippy::useless_conversion, reason = "rlim_t is signed or narrower elsewhere")]
pub fn set_fd_limit(soft: u64) -> io::Result<()> {
    let mut limit = read_limit()?;
    limit.rlim_cur = soft.try_into().unwrap_or(libc::RLIM_INFINITY);
    // SAFETY: `limit` is a valid `rlimit` that outlives the call, which only reads it.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })
}

/// Raises the soft limit of open descriptors to the hard one and returns the soft limit before and after. Never
/// lowers it.
///
/// # Errors
/// The error of `getrlimit` or `setrlimit`.
pub fn raise_fd_limit() -> io::Result<(u64, u64)> {
    let (old, hard) = fd_limit()?;
    // Darwin reports no hard limit but refuses more than OPEN_MAX.
    let want = if cfg!(target_vendor = "apple") { hard.min(10_240) } else { hard };
    if want <= old {
        return Ok((old, old));
    }
    set_fd_limit(want)?;
    Ok((old, fd_limit()?.0))
}

/// Has the kernel write no core files of this process and its children, by the soft limit: a process's memory holds its
/// keys. The hard limit stays, so that an administrator can allow them while it runs (prlimit(1)).
///
/// # Errors
/// The error of `getrlimit` or `setrlimit`.
pub fn write_no_core_files() -> io::Result<()> {
    let mut limit = read(libc::RLIMIT_CORE)?;
    limit.rlim_cur = 0;
    // SAFETY: `limit` is a valid `rlimit` that outlives the call, which only reads it.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) })
}

/// Makes the child that `command` starts receive SIGTERM when its parent ends, however that ends.
///
/// The kernel's parent is the *thread* that spawns: spawn from one that lives as long as the child is to live.
/// Linux only; elsewhere the command is left as it is.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;

        // SAFETY: takes no pointers and cannot fail.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the closure runs between fork and exec; it makes two system calls that are safe after a fork and
        // builds errors from numbers, which does not allocate.
        unsafe { command.pre_exec(move || ask_for_death_signal(parent)) };
    }
    command
}

/// Asks a child to end (SIGTERM). It must not have been waited for: its number may be another process's by then.
///
/// # Errors
/// The error of `kill`; `InvalidInput` for a number that is no process.
pub fn terminate(pid: u32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: takes no pointers; a positive number names one process.
    check(unsafe { libc::kill(pid, libc::SIGTERM) })
}

/// Returns when the process that started this one has ended. A process that was handed over to another one before the call
/// waits for that one.
///
/// Linux tells by a descriptor of the process (5.3 and later). Elsewhere this looks once a second.
pub fn wait_for_parent() {
    let parent = std::os::unix::process::parent_id();
    #[cfg(target_os = "linux")]
    if wait_for_process(parent) {
        return;
    }
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// Waits for the end of a process; false if the system does not tell.
#[cfg(target_os = "linux")]
fn wait_for_process(pid: u32) -> bool {
    use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: `pidfd_open` takes two integers: the process, and no flags.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Some(raw) = RawFd::try_from(opened).ok().filter(|raw| *raw >= 0) else { return false };
    // SAFETY: the call has just opened this descriptor, and nothing else owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    // The number may have become another process's before it was opened.
    if u32::try_from(pid).ok() != Some(std::os::unix::process::parent_id()) {
        return true;
    }
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: the pointer is to one local `pollfd`, which outlives the call; -1 waits without an end.
        let ready = unsafe { libc::poll(&raw mut poll, 1, -1) };
        if ready > 0 {
            return true;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

/// Makes the child that `command` starts the leader of a session of its own: no terminal is left that could end it.
pub fn in_new_session(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;

    let leave = || {
        // SAFETY: takes no pointers.
        check(unsafe { libc::setsid() })
    };
    // SAFETY: the closure runs between fork and exec; it makes one system call that is safe after a fork and builds an
    // error from a number, which does not allocate.
    unsafe { command.pre_exec(leave) }
}

/// Puts `/dev/null` in the place of standard input, output and error.
///
/// # Errors
/// The error of `open` or `dup2`.
pub fn silence_stdio() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for stream in 0..=2 {
        // SAFETY: takes no pointers; the number of an open file takes the place of one that nothing owns.
        check(unsafe { libc::dup2(null.as_raw_fd(), stream) })?;
    }
    Ok(())
}

/// Lets the calling thread run before all that have no priority of this kind (SCHED_FIFO, the lowest), whenever it has
/// something to do.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_NICE` or a limit that allows it.
#[cfg(target_os = "linux")]
pub fn run_first() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a local that the call only reads; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) })
}

/// Lets the calling thread run behind the others where they compete for a core (ten steps of niceness): it gets a tenth of
/// what one of them gets. Linux only; elsewhere niceness is the whole process's, and nothing happens.
pub fn run_behind() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: takes no pointers. On Linux it concerns the calling thread alone, and going back needs a right that
        // going forth does not.
        unsafe { libc::nice(10) };
    }
}

#[cfg(target_os = "linux")]
fn ask_for_death_signal(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes one integer, passed as the unsigned long that the kernel reads.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong) })?;
    // A parent that ended before the request took effect sends no signal: do not start at all then.
    // SAFETY: takes no pointers and cannot fail.
    let now = unsafe { libc::getppid() };
    if now == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

fn read_limit() -> io::Result<libc::rlimit> {
    read(libc::RLIMIT_NOFILE)
}

/// The type that numbers of limits have in this C library.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Resource = libc::__rlimit_resource_t;
/// As above.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
type Resource = libc::c_int;

fn read(resource: Resource) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid `rlimit` that outlives the call, which fills it.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) })?;
    Ok(limit)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "rlim_t is signed or narrower elsewhere"
)]
fn widen(limit: libc::rlim_t) -> u64 {
    limit as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let (soft, hard) = fd_limit().unwrap();
        assert!(soft <= hard);
        // Well above what the other tests of this process need.
        let lower = (soft / 2).max(256).min(soft);
        set_fd_limit(lower).unwrap();
        let (old, new) = raise_fd_limit().unwrap();
        assert_eq!(old, lower);
        assert!(new >= soft);
        assert_eq!(raise_fd_limit().unwrap(), (new, new));
    }

    #[test]
    fn core_files_are_off_and_can_be_allowed_again() {
        let before = read(libc::RLIMIT_CORE).unwrap();
        write_no_core_files().unwrap();
        let after = read(libc::RLIMIT_CORE).unwrap();
        assert_eq!((after.rlim_cur, after.rlim_max), (0, before.rlim_max));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_thread_alone_runs_behind() {
        let niceness = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            fields.split_whitespace().nth(16).unwrap().parse::<i32>().unwrap()
        };
        let before = niceness();
        let behind = std::thread::spawn(move || {
            run_behind();
            niceness()
        });
        assert_eq!(behind.join().unwrap(), (before + 10).min(19));
        assert_eq!(niceness(), before);
    }

    #[test]
    fn a_child_is_asked_to_end() {
        use std::os::unix::process::ExitStatusExt;

        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        terminate(child.id()).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(terminate(0).is_err() && terminate(u32::MAX).is_err(), "never a group");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_end_of_a_process_is_told() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        // Not the parent, so that it does not wait for it.
        assert!(wait_for_process(pid));
        assert!(child.try_wait().unwrap().is_none());
        terminate(pid).unwrap();
        child.wait().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_ends_with_the_thread_that_spawned_it() {
        use std::os::unix::process::ExitStatusExt;
        use std::thread;

        let mut child = thread::spawn(|| end_with_parent(Command::new("sleep").arg("60")).spawn().unwrap())
            .join()
            .unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
