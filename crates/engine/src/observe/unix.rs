//! The control interface: a unix socket that only the user who runs adit may open.
//!
//! One request per connection: a line with a JSON object, `{"command":"status"}`; one answer: a line with a JSON
//! object, `{"status":{..}}` or `{"error":".."}`. The others are in [`control`](super::control).

use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_net::handover::{self, Admission, Kept};
use adit_net::rt::{self, Cores, UnixListener, UnixStream};

use crate::admission::{Crowd, CrowdPlace, EvictionRank};
use crate::observe::control::{ControlAnswer, ControlReply, ControlRequest, Follower};
use crate::observe::status::{CounterDirectory, Status};

/// Longest request in bytes: the files of a configuration, with every character escaped in two.
const MAX_REQUEST: usize = 33 << 20;
/// Longest answer that [`ask`] reads.
const MAX_ANSWER: usize = 16 << 20;
/// Interval at which it is looked whether a process that drains has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Time for the last answers when the process ends.
const LAST: Duration = Duration::from_millis(500);
/// The answer of a socket that shows the state alone.
const READ_ONLY: &str =
    "this socket shows the state alone (hint: [admin] socket in an adit.toml takes changes)";
/// Clients at a time; the oldest without a whole request makes room. Fewer where descriptors are scarce.
const MOST_CLIENTS: usize = 64;
/// Time for a request to arrive, and for the state.
const DEADLINE: Duration = Duration::from_secs(5);
/// Time for a change of the configuration: its plugins are started, and closed ports are waited for.
const CHANGED: Duration = Duration::from_secs(60);

/// Rights of those who open a control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They may look at the state and change the configuration.
    Full,
    /// They may look at the state.
    ReadOnly,
}

/// Serves the control interface at `path` on an event loop of its own, until the other loops have ended. Gives a copy of its
/// socket for the process that takes over, if that `is_handed_over`; else it ends with this process's turn.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn start(
    cores: &mut Cores,
    path: &Path,
    directory: Arc<CounterDirectory>,
    follower: Option<Arc<Follower>>,
    is_handed_over: bool,
) -> io::Result<Option<Kept>> {
    let (ready, made) = std::sync::mpsc::channel();
    let path = path.to_owned();
    cores.start("adit-admin".into(), move || async move {
        let listener = match UnixListener::listen(&path) {
            Ok(listener) => listener,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let kept = is_handed_over.then(|| listener.keep(&path)).transpose();
        if kept.is_err() {
            return drop(ready.send(kept));
        }
        drop(ready.send(kept));
        let removed = Removed { path, is_handed_over };
        if !is_handed_over {
            // The other process has one of its own.
            let path = removed.path.clone();
            rt::spawn_local(async move {
                handover::committed().await;
                drop(std::fs::remove_file(path));
            });
        }
        let serving = Rc::new(Cell::new(0));
        rt::race(ended(&directory), accept(listener, directory.clone(), follower, &serving)).await;
        drop(removed);
        // An answer that is on its way arrives.
        let last = async {
            while serving.get() > 0 {
                rt::sleep(LOOK).await;
            }
        };
        rt::timeout(LAST, last).await.ok();
    })?;
    made.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

/// Returns when the cores have ended.
pub(crate) async fn ended(directory: &CounterDirectory) {
    directory.draining().await;
    while !directory.has_ended() {
        rt::sleep(LOOK).await;
    }
}

/// Returns when the cores have ended, or another process serves in the place of this one, and clients have their answers.
pub(crate) async fn replaced(directory: &CounterDirectory) {
    rt::race(ended(directory), handover::committed()).await;
    farewell().await;
}

/// Time for clients that this process has accepted, where another one takes the next.
pub(crate) async fn farewell() {
    if handover::is_committed() {
        rt::sleep(LAST).await;
    }
}

/// Takes the socket's file away.
struct Removed {
    path: PathBuf,
    is_handed_over: bool,
}

impl Drop for Removed {
    fn drop(&mut self) {
        // Another process listens there.
        if !(self.is_handed_over && handover::is_committed()) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

async fn accept(
    listener: UnixListener,
    directory: Arc<CounterDirectory>,
    follower: Option<Arc<Follower>>,
    serving: &Rc<Cell<usize>>,
) {
    let mut admission = Admission::default();
    let crowd = Crowd::new(adit_net::share(MOST_CLIENTS));
    loop {
        let Some(accepted) = admission.admit(listener.accept()).await else { continue };
        match accepted {
            Ok(stream) => {
                let (directory, follower, serving) = (directory.clone(), follower.clone(), serving.clone());
                serving.set(serving.get() + 1);
                let place = crowd.enter(EvictionRank::Unauthenticated, Ipv4Addr::LOCALHOST.into());
                rt::spawn_local(async move {
                    let served = Box::pin(serve(stream, &directory, follower.as_deref(), &place));
                    place.unless_out(served).await;
                    serving.set(serving.get() - 1);
                });
                // One that has made room ends before the next one is accepted.
                rt::yield_now().await;
            }
            Err(error) => {
                tracing::debug!(%error, "control connection not accepted");
                rt::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(
    mut stream: UnixStream,
    directory: &CounterDirectory,
    follower: Option<&Follower>,
    place: &CrowdPlace,
) -> io::Result<()> {
    let line = rt::timeout(DEADLINE, read_line(&mut stream, MAX_REQUEST)).await;
    let line = line.unwrap_or_else(|rt::Elapsed| Err(io::ErrorKind::TimedOut.into()))?;
    place.set_rank(EvictionRank::Answered);
    let answer = match serde_json::from_slice(&line) {
        Ok(ControlRequest::Status) => ControlAnswer::Status(Box::new(directory.status(rt::now()))),
        Ok(ControlRequest::Snapshot) => ControlAnswer::Status(Box::new(directory.snapshot(rt::now()).await)),
        Ok(ControlRequest::Kick { of }) if follower.is_some() => {
            ControlAnswer::Kicked(directory.kick(of).await)
        }
        Ok(request) => match follower {
            Some(follower) => changed(request, follower).await,
            None => ControlAnswer::Error(READ_ONLY.into()),
        },
        Err(error) => ControlAnswer::Error(format!("bad request: {error}")),
    };
    let mut bytes = serde_json::to_vec(&answer).map_err(io::Error::other)?;
    bytes.push(b'\n');
    let sent = rt::timeout(DEADLINE, stream.send_all(&bytes)).await;
    sent.unwrap_or_else(|rt::Elapsed| Err(io::ErrorKind::TimedOut.into()))
}

/// The answer of the one who changes the configuration.
async fn changed(request: ControlRequest, follower: &Follower) -> ControlAnswer {
    let Some(control) = follower.get() else {
        return ControlAnswer::Error("this process has no file to read again".into());
    };
    let (reply, mut answers) = ControlReply::new();
    control.follow(request, reply);
    match rt::timeout(CHANGED, answers.next()).await {
        Ok(Some(answer)) => answer,
        Ok(None) => ControlAnswer::Error("the process is ending".into()),
        Err(rt::Elapsed) => {
            ControlAnswer::Error("it takes longer than a minute; the log will tell how it ends".into())
        }
    }
}

async fn read_line(stream: &mut UnixStream, max: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut bytes = vec![0; 16 << 10];
    loop {
        let len = stream.recv(&mut bytes).await?;
        let end = bytes[..len].iter().position(|byte| *byte == b'\n');
        line.extend(&bytes[..end.unwrap_or(len)]);
        if end.is_some() {
            return Ok(line);
        }
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.len() > max {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Asks the process whose control socket is at `path` for its status.
///
/// # Errors
/// When nobody answers there, or not as expected.
pub fn ask_status(path: &Path) -> io::Result<Status> {
    ask_for_status(path, &ControlRequest::Status)
}

/// The same with the open connections.
///
/// # Errors
/// When nobody answers there, or not as expected.
pub fn ask_snapshot(path: &Path) -> io::Result<Status> {
    ask_for_status(path, &ControlRequest::Snapshot)
}

fn ask_for_status(path: &Path, request: &ControlRequest) -> io::Result<Status> {
    match ask(path, request)? {
        ControlAnswer::Status(status) => Ok(*status),
        ControlAnswer::Error(text) => Err(io::Error::other(text)),
        ControlAnswer::Kicked(_)
        | ControlAnswer::Files(_)
        | ControlAnswer::Differences(_)
        | ControlAnswer::Refused(_)
        | ControlAnswer::Doubts(_)
        | ControlAnswer::Upgraded { .. } => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Asks the process whose control socket is at `path`; it waits for a change as long as that takes, but no longer than a
/// minute.
///
/// # Errors
/// When nobody answers there, or not as expected.
pub fn ask(path: &Path, request: &ControlRequest) -> io::Result<ControlAnswer> {
    let ask = async {
        let mut stream = UnixStream::dial(path).await?;
        let mut bytes = serde_json::to_vec(request).map_err(io::Error::other)?;
        bytes.push(b'\n');
        stream.send_all(&bytes).await?;
        let line = read_line(&mut stream, MAX_ANSWER).await?;
        serde_json::from_slice(&line).map_err(io::Error::other)
    };
    let is_look = matches!(
        request,
        ControlRequest::Status
            | ControlRequest::Snapshot
            | ControlRequest::Kick { .. }
            | ControlRequest::Files
    );
    let patience = if is_look { DEADLINE } else { CHANGED + DEADLINE };
    Cores::block_on(async { rt::timeout(patience, ask).await })?
        .unwrap_or_else(|rt::Elapsed| Err(io::ErrorKind::TimedOut.into()))
}
