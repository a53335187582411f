//! Open descriptors that go from one process to another: over a unix socket (`SCM_RIGHTS`), or to a child that is started.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::process::Command;

/// Most descriptors of one message. The kernel takes 253.
pub const MAX_PASSED: usize = 64;

/// Room for the control message of [`MAX_PASSED`] descriptors, aligned for its header.
#[repr(C, align(8))]
struct Control([u8; 16 + MAX_PASSED * 4 + 16]);

/// Sends `bytes`, at least one, with descriptors that go along with the first of them. Gives the number of bytes that were
/// sent. The receiver gets descriptors of its own.
///
/// # Errors
/// The error of `sendmsg`; `InvalidInput` for no bytes or more than [`MAX_PASSED`] descriptors.
#[allow(
    clippy::unnecessary_cast,
    clippy::cast_possible_truncation,
    reason = "the fields are narrower elsewhere"
)]
pub fn send_with(socket: &impl AsFd, bytes: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if bytes.is_empty() || passed.len() > MAX_PASSED {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; _]);
    // SAFETY: all fields of the structure are numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !passed.is_empty() {
        let len = size_of::<RawFd>() * passed.len();
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: `CMSG_SPACE` computes with its argument alone.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as _;
        // SAFETY: all fields of the structure are numbers, for which zero is a value.
        let mut head: libc::cmsghdr = unsafe { std::mem::zeroed() };
        (head.cmsg_level, head.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        // SAFETY: `CMSG_LEN` computes with its argument alone.
        head.cmsg_len = unsafe { libc::CMSG_LEN(len) } as _;
        // SAFETY: the control buffer is large enough for one header and its data, and aligned for the header.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: `header` points into `control`, which is long enough and aligned for it.
        unsafe { header.write(head) };
        // SAFETY: `header` points to a whole header.
        let data: *mut RawFd = unsafe { libc::CMSG_DATA(header) }.cast();
        for (at, descriptor) in passed.iter().enumerate() {
            // SAFETY: the data of the message has room for all numbers; their place need not be aligned.
            unsafe { data.wrapping_add(at).write_unaligned(descriptor.as_raw_fd()) };
        }
    }
    // SAFETY: `message` points to `part`, `bytes` and `control`, which outlive the call; it writes to none of them.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes, and adds the descriptors that came along to `passed`; a child does not inherit them. Gives the number of
/// bytes, 0 at the end of a stream.
///
/// # Errors
/// The error of `recvmsg`; `InvalidData` if more descriptors came than [`MAX_PASSED`], all of which are closed then.
#[allow(
    clippy::unnecessary_cast,
    clippy::cast_possible_truncation,
    reason = "the fields are narrower elsewhere"
)]
pub fn receive_with(socket: &impl AsFd, bytes: &mut [u8], passed: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; _]);
    // SAFETY: all fields of the structure are numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    #[cfg(target_os = "linux")]
    let flags = libc::MSG_CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = 0;
    // SAFETY: `message` points to `part`, `bytes` and `control`, which outlive the call and are as long as they say.
    let received = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let before = passed.len();
    // SAFETY: the kernel has filled `message`; the header, if there is one, lies in `control`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: `header` points to a whole header in `control`, which is aligned for it.
        let head = unsafe { header.read() };
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: `CMSG_LEN` computes with its argument alone.
            let front = unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: `header` points to a whole header.
            let data: *const RawFd = unsafe { libc::CMSG_DATA(header) }.cast_const().cast();
            for at in 0..(head.cmsg_len as usize).saturating_sub(front) / size_of::<RawFd>() {
                // SAFETY: the kernel has written that many numbers behind the header.
                let raw = unsafe { data.wrapping_add(at).read_unaligned() };
                // SAFETY: the kernel has just opened this descriptor for us, and nothing else owns it.
                passed.push(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
        // SAFETY: `header` is one of `message`, which the kernel has filled.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        passed.truncate(before);
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors in one message"));
    }
    #[cfg(not(target_os = "linux"))]
    for descriptor in &passed[before..] {
        set_close_on_exec(descriptor.as_raw_fd())?;
    }
    Ok(received)
}

/// Has the child that `command` starts inherit one descriptor under its number here, which the caller keeps open until the
/// child runs. No other child inherits it.
pub fn inherit<'c>(command: &'c mut Command, descriptor: BorrowedFd<'_>) -> &'c mut Command {
    use std::os::unix::process::CommandExt as _;

    let raw = descriptor.as_raw_fd();
    let keep = move || {
        // SAFETY: takes no pointers; the number is that of a descriptor that is open.
        if unsafe { libc::fcntl(raw, libc::F_SETFD, 0) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it makes one system call that is safe after a fork and builds an error
    // from a number, which does not allocate.
    unsafe { command.pre_exec(keep) }
}

/// Takes a descriptor that the process that started this one has left open under this number, so that no child inherits it
/// any more.
///
/// # Errors
/// `NotFound` if there is none. Everything that this process opens itself is closed on exec, so a descriptor that would be is
/// none of those either, and a second call finds none.
pub fn take_inherited(raw: RawFd) -> io::Result<OwnedFd> {
    // The first three belong to the standard library.
    if raw < 3 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: takes no pointers; a number that is not open is an error.
    let flags = unsafe { libc::fcntl(raw, libc::F_GETFD) };
    if flags == -1 || flags & libc::FD_CLOEXEC != 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    set_close_on_exec(raw)?;
    // SAFETY: it is open and was inherited: nothing in this process owns it, since the mark that was just set is on all that
    // this process has opened, and keeps a second call from getting here.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn set_close_on_exec(raw: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers; a number that is not open is an error.
    if unsafe { libc::fcntl(raw, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn flags(raw: RawFd) -> i32 {
        // SAFETY: takes no pointers.
        unsafe { libc::fcntl(raw, libc::F_GETFD) }
    }

    #[test]
    fn descriptors_go_along_with_bytes() {
        let (one, other) = UnixStream::pair().unwrap();
        let pairs: Vec<(UnixStream, UnixStream)> =
            (0..MAX_PASSED).map(|_| UnixStream::pair().unwrap()).collect();
        let ends: Vec<BorrowedFd<'_>> = pairs.iter().map(|(end, _)| end.as_fd()).collect();
        assert_eq!(send_with(&one, b"hello", &ends).unwrap(), 5);
        assert_eq!(send_with(&one, b"!", &[]).unwrap(), 1);
        let (mut bytes, mut passed) = ([0; 16], Vec::new());
        let len = receive_with(&other, &mut bytes, &mut passed).unwrap();
        assert_eq!((&bytes[..len], passed.len()), (&b"hello"[..], MAX_PASSED));
        assert!(passed.iter().all(|passed| flags(passed.as_raw_fd()) & libc::FD_CLOEXEC != 0));
        assert_eq!(receive_with(&other, &mut bytes, &mut passed).unwrap(), 1);
        assert_eq!(passed.len(), MAX_PASSED);
        for (at, passed) in passed.into_iter().enumerate() {
            let number = [u8::try_from(at).unwrap()];
            UnixStream::from(passed).write_all(&number).unwrap();
            let mut got = [0];
            (&pairs[at].1).read_exact(&mut got).unwrap();
            assert_eq!(got, number);
        }
        drop(one);
        assert_eq!(receive_with(&other, &mut bytes, &mut Vec::new()).unwrap(), 0);
        assert!(send_with(&other, b"", &[]).is_err());
        let many = vec![other.as_fd(); MAX_PASSED + 1];
        assert!(send_with(&other, b"x", &many).is_err());
    }

    #[test]
    fn one_child_inherits_what_it_is_to() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let raw = theirs.as_raw_fd();
        let test = format!("test -e /proc/self/fd/{raw}");
        let mut command = Command::new("sh");
        inherit(command.args(["-c", &test]), theirs.as_fd());
        assert!(command.status().unwrap().success());
        assert!(!Command::new("sh").args(["-c", &test]).status().unwrap().success(), "another child");
        assert!(flags(raw) & libc::FD_CLOEXEC != 0);
        drop(ours);
    }

    #[test]
    fn an_inherited_descriptor_is_taken_once() {
        assert!(
            take_inherited(1).is_err() && take_inherited(-1).is_err() && take_inherited(1 << 20).is_err()
        );
        let (own, _other) = UnixStream::pair().unwrap();
        assert!(take_inherited(own.as_raw_fd()).is_err(), "this process has opened it");
        let raw = std::os::fd::IntoRawFd::into_raw_fd(own);
        // SAFETY: takes no pointers.
        assert_eq!(unsafe { libc::fcntl(raw, libc::F_SETFD, 0) }, 0);
        let taken = take_inherited(raw).unwrap();
        assert!(flags(raw) & libc::FD_CLOEXEC != 0);
        assert!(take_inherited(raw).is_err(), "it has an owner now");
        drop(taken);
    }
}
