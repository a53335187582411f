//! The change from one binary to the next while both run: the process that is started, and the one that starts it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::OnceLock;
use std::time::Duration;

use adit_engine::{Giver, HandedOver, HandoverError, Taking};
use adit_net::handover::{self, Adopted, HandoverLink, Kept, Label};
use anyhow::{Context as _, anyhow};

use crate::print;
use crate::run::supervisor;

/// Time for open connections to finish when a signal asks.
pub(crate) const DRAIN: Duration = Duration::from_secs(600);

/// Time for the next process of a service to serve.
const START: Duration = Duration::from_secs(20);

/// The answer of such a process.
const SERVING: &[u8] = b"serving";

/// The link to the process that this one takes over from.
static PARENT: OnceLock<HandoverLink> = OnceLock::new();
/// The binary that this process was started from: its file may be replaced later.
static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Notes where this process comes from; call it first of all.
pub(crate) fn begin() {
    match handover::from_parent() {
        Ok(Some(link)) => drop(PARENT.set(link)),
        Ok(None) => {}
        Err(error) => print::remark(format_args!("error: nothing to take over: {error}")),
    }
    if let Ok(path) = std::env::current_exe() {
        BINARY.set(path).ok();
    }
}

/// Receives the sockets of the process that this one takes over from, if there is one.
///
/// # Errors
/// When they cannot be used.
pub(crate) fn taking() -> anyhow::Result<Option<Taking>> {
    let Some(link) = PARENT.get() else { return Ok(None) };
    Taking::begin(link).map(Some).context("cannot take over")
}

/// Tells the process that has started this one why it does not take over.
pub(crate) fn failed(error: &anyhow::Error) {
    if let Some(link) = PARENT.get() {
        Taking::fail(link, &format!("{error:#}"));
    }
}

/// Starts `binary`, or this process's own, and hands over to it. Gives its number.
///
/// # Errors
/// The cause; this process goes on as before then.
pub(crate) fn upgrade(
    giver: &Giver,
    binary: Option<&Path>,
    drain: Duration,
    announce: impl FnOnce(u32, &HandedOver),
) -> anyhow::Result<()> {
    let own = BINARY.get().map(PathBuf::as_path);
    let binary =
        binary.or(own).ok_or_else(|| anyhow!("the path of the binary is not known: give --binary"))?;
    tracing::info!(binary = %binary.display(), "upgrade: starting the new process");
    let (ours, theirs) = HandoverLink::pair().context("no descriptor is left")?;
    let args: Vec<OsString> = std::env::args_os().collect();
    let child = handover::spawn(binary, args, &theirs);
    drop(theirs);
    let mut child = child.with_context(|| format!("cannot start {}", binary.display()))?;
    let pid = child.id();
    let mut ended = None;
    let announced = |given: &HandedOver| {
        supervisor::followed_by(pid, &format!("process {pid} serves, version {}", given.program));
        tracing::info!(
            pid,
            version = given.program,
            open = given.open,
            drain_s = drain.as_secs(),
            "upgraded: the new process serves, and this one finishes what is open"
        );
        announce(pid, given);
    };
    let result = giver.give(ours, drain, announced, || ended = Some(end(&mut child)));
    result.map_err(|error| match ended {
        Some(Ok(Some(status))) if matches!(error, HandoverError::Link { .. }) => {
            anyhow!("the new process has ended ({status}); its messages say why")
        }
        _ => anyhow::Error::new(error),
    })
}

/// Starts this process's own binary anew with listening sockets, and returns its number once it serves. This is all that a
/// service without other state hands over.
///
/// # Errors
/// The cause; this process goes on as before then.
pub(crate) fn succeed(kept: Vec<Kept>) -> Result<u32, String> {
    let run = || -> anyhow::Result<u32> {
        let binary = BINARY.get().context("the path of the binary is not known")?;
        let (ours, theirs) = HandoverLink::pair().context("no descriptor is left")?;
        let child = handover::spawn(binary, std::env::args_os(), &theirs);
        drop(theirs);
        let mut child = child.with_context(|| format!("cannot start {}", binary.display()))?;
        let labels: Vec<String> = kept.iter().map(|kept| kept.label().to_string()).collect();
        let sockets: Vec<_> = kept.iter().map(Kept::as_fd).collect();
        let sent = ours.send(labels.join("\n").as_bytes(), &sockets);
        let answer = sent.and_then(|()| ours.receive(Some(START)));
        if answer.as_ref().is_ok_and(|(bytes, _)| bytes == SERVING) {
            let pid = child.id();
            supervisor::followed_by(pid, &format!("process {pid} serves"));
            return Ok(pid);
        }
        Err(match (end(&mut child), answer) {
            (Ok(Some(status)), _) => anyhow!("the new process has ended ({status}); its messages say why"),
            (_, Err(error)) => anyhow::Error::new(error).context("no word of the new process"),
            (_, Ok(_)) => anyhow!("the new process speaks another language"),
        })
    };
    run().map_err(|error| format!("{error:#}"))
}

/// Puts this process's own binary in its place, with the same words and the same number. Returns if that fails.
pub(crate) fn replace_self() -> io::Error {
    match BINARY.get() {
        Some(binary) => handover::replace_self(binary),
        None => io::ErrorKind::NotFound.into(),
    }
}

/// Takes the listening sockets of the process that has started this one, if there is one.
///
/// # Errors
/// When they cannot be used.
pub(crate) fn take_listeners() -> anyhow::Result<()> {
    let Some(link) = PARENT.get() else { return Ok(()) };
    let (bytes, passed) = link.receive(Some(START)).context("cannot take over")?;
    let labels = String::from_utf8(bytes).context("cannot take over")?;
    for (number, (text, socket)) in labels.lines().zip(passed).enumerate() {
        let label = Label::parse(text).context("cannot take over: a socket has no label")?;
        handover::adopt(socket, Adopted { label: Some(label), number }).context("cannot take over")?;
    }
    Ok(())
}

/// Tells the process that has started this one that this one serves.
pub(crate) fn tell_serving() {
    let Some(link) = PARENT.get() else { return };
    handover::leave_rest();
    if let Err(error) = link.send(SERVING, &[]) {
        tracing::warn!(%error, "the process before does not know that this one serves");
    }
}

/// Ends a process that does not take over. Gives its status if it had ended by itself.
fn end(child: &mut Child) -> io::Result<Option<std::process::ExitStatus>> {
    // It may be about to end: its end of the link closes first.
    let mut own = child.try_wait()?;
    for _ in 0..20 {
        if own.is_some() {
            return Ok(own);
        }
        std::thread::sleep(Duration::from_millis(10));
        own = child.try_wait()?;
    }
    child.kill()?;
    child.wait()?;
    Ok(own)
}
