//! A process that reads its configuration from standard input and says when it is ready.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longest wait for the line that says that a process is ready.
const START: Duration = Duration::from_secs(10);
/// Longest wait for an orderly end.
const END: Duration = Duration::from_secs(1);
/// Lines kept for an error message.
const KEPT: usize = 10;

/// A running process. Dropping it ends it.
pub(super) struct Running {
    child: Child,
    /// Address that the line of its readiness names: for most the one that they listen on.
    pub(super) address: SocketAddr,
    lines: Lines,
}

/// The start of a process.
pub(super) struct Launch<'a> {
    /// Words behind this program.
    pub(super) words: &'a [&'a str],
    /// Its standard input.
    pub(super) input: &'a str,
    /// The address in the line that says that it is ready.
    pub(super) ready: Ready,
}

/// The address in a line of a log, if the line is the one that counts.
pub(super) type Ready = fn(&str) -> Option<SocketAddr>;

/// The last lines that a process wrote.
type Lines = Arc<Mutex<VecDeque<String>>>;

/// A child that ends when this does.
struct Ending(Option<Child>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Running {
    pub(super) fn start(launch: &Launch<'_>) -> Result<Self> {
        let Launch { words, input, ready } = *launch;
        let program = std::env::current_exe().context("path of this program")?;
        // The guard sees to it that the process dies with this thread, for any cause.
        let mut command = Command::new(&program);
        command.args(["guard", "--"]).arg(&program).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().with_context(|| format!("run {}", program.display()))?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let mut ending = Ending(Some(child));
        stdin
            .context("standard input")?
            .write_all(input.as_bytes())
            .context("hand over its configuration")?;
        let lines = Lines::default();
        let (found, address) = mpsc::channel();
        let (stderr, kept) = (stderr.context("standard error")?, lines.clone());
        let read = move || follow(stderr, &kept, &found, ready);
        thread::Builder::new().name("child log".into()).spawn(read)?;
        let address = match address.recv_timeout(START) {
            Ok(address) => address,
            Err(RecvTimeoutError::Disconnected) => bail!("it ended{}", tail(&lines)),
            Err(RecvTimeoutError::Timeout) => bail!("it is not ready after {START:?}{}", tail(&lines)),
        };
        let child = ending.0.take().context("no process")?;
        Ok(Self { child, address, lines })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{status}{}", tail(&self.lines)),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
        }
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Reads log lines to their end; the first that says that the process is ready is reported.
fn follow(stderr: impl Read, kept: &Lines, found: &Sender<SocketAddr>, ready: Ready) {
    let mut found = Some(found.clone());
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        if let Some(address) = found.as_ref().and_then(|_| ready(&line))
            && let Some(found) = found.take()
        {
            found.send(address).ok();
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(line);
    }
}

/// The address of a listener in a log of JSON.
pub(super) fn listening(line: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok()?;
    (line["message"] == "listening").then(|| line["address"].as_str()?.parse().ok())?
}

fn tail(lines: &Lines) -> String {
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    if lines.is_empty() {
        return "; it wrote nothing".to_owned();
    }
    lines.iter().fold(String::from("; it wrote:"), |text, line| text + "\n" + line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_counts() {
        let line = r#"{"level":"info","message":"listening","inbound":"a","address":"127.0.0.1:5"}"#;
        assert_eq!(listening(line), Some("127.0.0.1:5".parse().unwrap()));
        for line in
            ["", "error: no", r#"{"message":"listening"}"#, r#"{"message":"x","address":"127.0.0.1:5"}"#]
        {
            assert_eq!(listening(line), None, "{line}");
        }
    }
}
