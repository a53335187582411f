//! The control interface: a unix socket that only the user who runs adit may open.
//!
//! One request per connection: a line with a JSON object, `{"command":"status"}`; one answer: a line with a JSON
//! object, `{"status":{..}}` or `{"error":".."}`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_net::rt::{self, Cores, Stop, UnixListener, UnixStream};
use serde::{Deserialize, Serialize};

use crate::api::status::{Directory, Status};

/// Longest request in bytes.
const MAX_REQUEST: usize = 64 * 1024;
/// Longest answer that [`ask_status`] reads.
const MAX_ANSWER: usize = 16 << 20;
/// Time for a request and its answer.
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
enum Request {
    Status,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Status(Box<Status>),
    Error(String),
}

/// Serves the control interface at `path` on an event loop of its own, until the process drains.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn start(
    cores: &mut Cores,
    path: &Path,
    directory: Arc<Directory>,
    mut stop: Stop,
) -> io::Result<()> {
    let (ready, made) = std::sync::mpsc::channel();
    let path = path.to_owned();
    cores.start("adit-admin".into(), move || async move {
        let listener = match UnixListener::listen(&path) {
            Ok(listener) => listener,
            Err(error) => return drop(ready.send(Err(error))),
        };
        drop(ready.send(Ok(())));
        rt::race(stop.draining(), accept(listener, directory)).await;
        let removed = Removed(path);
        drop(removed);
    })?;
    made.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

/// Takes the socket's file away.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

async fn accept(listener: UnixListener, directory: Arc<Directory>) {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let directory = directory.clone();
                rt::spawn_local(async move {
                    drop(rt::timeout(DEADLINE, serve(stream, &directory)).await);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "control connection not accepted");
                rt::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(mut stream: UnixStream, directory: &Directory) -> io::Result<()> {
    let line = read_line(&mut stream, MAX_REQUEST).await?;
    let answer = match serde_json::from_slice(&line) {
        Ok(Request::Status) => Answer::Status(Box::new(directory.status(rt::now()))),
        Err(error) => Answer::Error(format!("bad request: {error}")),
    };
    let mut bytes = serde_json::to_vec(&answer).map_err(io::Error::other)?;
    bytes.push(b'\n');
    stream.send_all(&bytes).await
}

async fn read_line(stream: &mut UnixStream, max: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut bytes = vec![0; 4096];
    loop {
        let len = stream.recv(&mut bytes).await?;
        line.extend(&bytes[..len]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
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
    let ask = async {
        let mut stream = UnixStream::dial(path).await?;
        let mut request = serde_json::to_vec(&Request::Status).map_err(io::Error::other)?;
        request.push(b'\n');
        stream.send_all(&request).await?;
        let line = read_line(&mut stream, MAX_ANSWER).await?;
        match serde_json::from_slice(&line).map_err(io::Error::other)? {
            Answer::Status(status) => Ok(*status),
            Answer::Error(text) => Err(io::Error::other(text)),
        }
    };
    Cores::block_on(async { rt::timeout(DEADLINE, ask).await })?
        .unwrap_or_else(|rt::Elapsed| Err(io::ErrorKind::TimedOut.into()))
}
