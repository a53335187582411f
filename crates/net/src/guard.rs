//! A second process of this program that outlives the first one, to put things right when that is killed.
//!
//! The two are tied by a pipe: its end says that the first process is gone, a byte in it that there is nothing to do.

use std::io::{self, Read as _, Write as _};
use std::process::{Child, ChildStdin, Stdio};

use crate::child;

/// Says that there is nothing to do.
const DISMISSED: u8 = b'x';

/// The second process, seen from the first.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts this program once more with other arguments, in a session of its own, so that no terminal ends both.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(args: &[&str]) -> io::Result<Self> {
        let mut command = child::command(std::env::current_exe()?);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = adit_sys::process::in_new_session(&mut command).spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Ends it: there is nothing to do.
    pub fn dismiss(mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // A guard that is gone already needs no word.
            drop(pipe.write_all(&[DISMISSED]));
        }
        drop(self.child.wait());
    }

    /// In the second process: waits for the end of the first one; true if there is nothing to do.
    pub fn wait_for_end() -> bool {
        let mut byte = [0];
        loop {
            match io::stdin().read(&mut byte) {
                Ok(read) => return read > 0 && byte[0] == DISMISSED,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}
