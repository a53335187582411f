//! The user of the process.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Longest entry of the user database that is read, in bytes.
const MAX_ENTRY: usize = 1 << 20;

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

impl User {
    /// The user of that name, or else of that number.
    ///
    /// # Errors
    /// `NotFound`, and what the user database reports.
    pub fn find(name: &str) -> io::Result<Self> {
        let text = CString::new(name).map_err(|_| io::ErrorKind::NotFound)?;
        let by_name = read_entry(|entry, buffer, len, found| {
            // SAFETY: every pointer is valid for the call, `len` is the length behind `buffer`.
            unsafe { libc::getpwnam_r(text.as_ptr(), entry, buffer, len, found) }
        })?;
        if let Some(user) = by_name {
            return Ok(user);
        }
        let uid: libc::uid_t = name.parse().map_err(|_| io::ErrorKind::NotFound)?;
        let by_number = read_entry(|entry, buffer, len, found| {
            // SAFETY: as above.
            unsafe { libc::getpwuid_r(uid, entry, buffer, len, found) }
        })?;
        by_number.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Its number.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether this process runs as that user.
    pub fn is_current(&self) -> bool {
        // SAFETY: takes no pointers and cannot fail.
        let own = unsafe { libc::geteuid() };
        own == self.uid
    }

    /// Makes the child that `command` starts run as that user, with the user's own group alone. Nothing is done if this
    /// process runs as that user already.
    pub fn run_child(&self, command: &mut Command) {
        if !self.is_current() {
            command.uid(self.uid).gid(self.gid);
        }
    }

    /// Turns the whole process, every thread of it, into that user, with the user's groups and for good. Nothing is
    /// done if it runs as that user already.
    ///
    /// # Errors
    /// The error of the system call. The process must end then: it may be neither one user nor the other.
    pub fn assume(&self) -> io::Result<()> {
        if self.is_current() {
            return Ok(());
        }
        // SAFETY: the name is a string that ends in NUL and outlives the call.
        #[cfg(not(target_vendor = "apple"))]
        check(unsafe { libc::initgroups(self.name.as_ptr(), self.gid) })?;
        // SAFETY: as above; Darwin takes the same number as a signed one.
        #[cfg(target_vendor = "apple")]
        check(unsafe { libc::initgroups(self.name.as_ptr(), self.gid.cast_signed()) })?;
        // SAFETY: takes no pointers. The C library changes all threads.
        check(unsafe { libc::setgid(self.gid) })?;
        // SAFETY: as above.
        check(unsafe { libc::setuid(self.uid) })?;
        // SAFETY: as above.
        let back = unsafe { libc::setuid(0) };
        if self.uid != 0 && back == 0 {
            return Err(io::Error::other("the old privileges are still there"));
        }
        Ok(())
    }
}

/// The number of the group of that name.
///
/// # Errors
/// `NotFound`, and what the group database reports.
pub fn find_group(name: &str) -> io::Result<u32> {
    let text = CString::new(name).map_err(|_| io::ErrorKind::NotFound)?;
    let mut buffer: Vec<c_char> = vec![0; 1024];
    loop {
        // SAFETY: all of its fields are numbers and pointers, for which zero is a value.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (room, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: every pointer is valid for the call, `len` is the length behind `room`.
        let error = unsafe { libc::getgrnam_r(text.as_ptr(), &raw mut entry, room, len, &raw mut found) };
        if error == libc::ERANGE && len < MAX_ENTRY {
            buffer.resize(len * 2, 0);
            continue;
        }
        return if found.is_null() { Err(io::ErrorKind::NotFound.into()) } else { Ok(entry.gr_gid) };
    }
}

type Read<'a> = dyn Fn(*mut libc::passwd, *mut c_char, usize, *mut *mut libc::passwd) -> libc::c_int + 'a;

fn read_entry(
    read: impl Fn(*mut libc::passwd, *mut c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
) -> io::Result<Option<User>> {
    let read: &Read<'_> = &read;
    let mut buffer: Vec<c_char> = vec![0; 1024];
    loop {
        // SAFETY: all of its fields are numbers and pointers, for which zero is a value.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let error = read(&raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found);
        if error == libc::ERANGE && buffer.len() < MAX_ENTRY {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        if found.is_null() {
            // "Not found" is reported in several ways, see getpwnam(3).
            let is_absent = matches!(error, 0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM);
            return if is_absent { Ok(None) } else { Err(io::Error::from_raw_os_error(error)) };
        }
        // SAFETY: the call has succeeded, so the name is a string that ends in NUL, inside `buffer`.
        let name = unsafe { CStr::from_ptr(entry.pw_name) }.to_owned();
        return Ok(Some(User { name, uid: entry.pw_uid, gid: entry.pw_gid }));
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_number() {
        crate::names::pin_services();
        let root = User::find("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(User::find("0").unwrap(), root);
        for name in ["no-such-user", "", "4294967295x", "a\0b", "-1"] {
            assert_eq!(User::find(name).unwrap_err().kind(), io::ErrorKind::NotFound, "{name}");
        }
    }

    #[test]
    fn groups_by_name() {
        crate::names::pin_services();
        let root = if cfg!(target_os = "macos") { "wheel" } else { "root" };
        assert_eq!(find_group(root).unwrap(), 0);
        assert_eq!(find_group("no-such-group").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn becoming_oneself_is_nothing() {
        crate::names::pin_services();
        // SAFETY: takes no pointers and cannot fail.
        let own = unsafe { libc::geteuid() };
        if let Ok(user) = User::find(&own.to_string()) {
            assert!(user.is_current());
            user.assume().unwrap();
        }
    }
}
