//! The socket pair between two processes, and the start of the second one.
//!
//! A frame is its length (u32, little-endian) and its bytes; descriptors go along with the length.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use adit_sys::pass::{self, MAX_PASSED};

/// Names the descriptor of the link and the process that has started this one: `FD:PID`.
const VARIABLE: &str = "ADIT_HANDOVER";
/// Longest frame in bytes: the addresses of some 400,000 clients.
const MAX_FRAME: usize = 16 << 20;
/// Time for the other side to take a frame, or to send the rest of one.
const WRITE: Duration = Duration::from_secs(10);

/// One end of the link.
#[derive(Debug)]
pub struct HandoverLink(pub(super) UnixStream);

impl HandoverLink {
    /// Both ends.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(WRITE))?;
        Ok(Self(stream))
    }

    /// The same end for another thread.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().and_then(Self::new)
    }

    /// Sends a frame of at most 16 MiB with up to 64 descriptors.
    ///
    /// # Errors
    /// `InvalidInput` for more than that; else the system's error: the other side is gone or does not read.
    pub fn send(&self, bytes: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MAX_FRAME);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?.to_le_bytes();
        let sent = pass::send_with(&self.0, &len, passed)?;
        (&self.0).write_all(&len[sent..])?;
        (&self.0).write_all(bytes)
    }

    /// The next frame, for which it waits so long; `None` for ever.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other side is gone, `InvalidData` for a frame that is too long, `TimedOut`, and the system's
    /// error.
    pub fn receive(&self, patience: Option<Duration>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.0.set_read_timeout(patience)?;
        let (mut head, mut passed) = ([0; 4], Vec::new());
        self.fill(&mut head[..1], &mut passed)?;
        // A frame that has begun is read to its end: the next frame must not begin in the middle of this one.
        self.0.set_read_timeout(Some(WRITE))?;
        self.fill(&mut head[1..], &mut passed)?;
        let len = usize::try_from(u32::from_le_bytes(head)).unwrap_or(usize::MAX);
        if len > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
        }
        let mut bytes = Vec::new();
        // Bytes that have been announced need not come: memory grows with the bytes that do.
        while bytes.len() < len {
            let at = bytes.len();
            bytes.resize(len.min(at + (64 << 10)), 0);
            self.fill(&mut bytes[at..], &mut passed)?;
        }
        Ok((bytes, passed))
    }

    fn fill(&self, mut bytes: &mut [u8], passed: &mut Vec<OwnedFd>) -> io::Result<()> {
        while !bytes.is_empty() {
            match pass::receive_with(&self.0, bytes, passed) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => bytes = &mut bytes[len..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
            if passed.len() > MAX_PASSED {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "too many descriptors with one frame",
                ));
            }
        }
        Ok(())
    }
}

impl AsFd for HandoverLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for HandoverLink {
    /// One end of a pair that came with a frame.
    fn from(end: OwnedFd) -> Self {
        Self(end.into())
    }
}

/// Starts `binary` with the arguments of this process, their first one included, and with `link` as its end of the link.
///
/// # Errors
/// When it cannot be started.
pub fn spawn(
    binary: &Path,
    args: impl IntoIterator<Item = OsString>,
    link: &HandoverLink,
) -> io::Result<Child> {
    let mut args = args.into_iter();
    let name = args.next().unwrap_or_else(|| binary.as_os_str().to_owned());
    let mut command = Command::new(binary);
    command.arg0(name).args(args).stdin(Stdio::null());
    command.env(VARIABLE, format!("{}:{}", link.0.as_raw_fd(), std::process::id()));
    // They are about the process that the service manager has started.
    for name in ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(name);
    }
    pass::inherit(&mut command, link.0.as_fd()).spawn()
}

/// Puts `binary` in the place of this process, with the same arguments and the same number. Open descriptors are closed.
/// Returns if that fails.
pub fn replace_self(binary: &Path) -> io::Error {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| binary.as_os_str().to_owned());
    Command::new(binary).arg0(name).args(args).env_remove(VARIABLE).exec()
}

/// The link to the process that has started this one to take over from it; `None` in any other process.
///
/// # Errors
/// When the descriptor that it names is not there.
pub fn from_parent() -> io::Result<Option<HandoverLink>> {
    let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let Some(raw) = number_of(&value, std::os::unix::process::parent_id()) else { return Ok(None) };
    pass::take_inherited(raw).and_then(|fd| HandoverLink::new(fd.into())).map(Some)
}

/// The descriptor, if the variable is from this parent and not from one of its own.
fn number_of(value: &OsStr, parent: u32) -> Option<i32> {
    let (raw, pid) = value.to_str()?.split_once(':')?;
    (pid.parse() == Ok(parent)).then(|| raw.parse().ok()).flatten()
}
