//! The running process that a command is about.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use adit_engine::{ControlAnswer, ControlRequest, Files, Status, ask, ask_status};
use adit_model::ControlSocket;
use anyhow::bail;

use crate::commands::cli::ProcessArgs;
use crate::load::files;
use crate::load::files::FileArgs;
use crate::print::{bytes, seconds};
use crate::run::socket;
use crate::table::{Grid, number, text};

/// There is no such process.
#[derive(Debug)]
pub(super) struct NotRunning(String);

impl fmt::Display for NotRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotRunning {}

/// A process that has answered.
pub(super) struct Found {
    /// Its control socket.
    pub(crate) socket: PathBuf,
    /// Its state.
    pub(super) status: Status,
}

impl Found {
    fn program(&self) -> &str {
        socket::program_of(&self.socket).unwrap_or("adit")
    }
}

/// The control socket of the one process that `args` choose.
///
/// # Errors
/// When there is none ([`NotRunning`]), or more than one.
pub(crate) fn one(args: &ProcessArgs) -> anyhow::Result<PathBuf> {
    if let Some(socket) = &args.socket {
        return Ok(socket.clone());
    }
    if let Some(pid) = args.pid {
        return by_pid(pid);
    }
    of_files(None, &args.files)
}

/// The control socket that is given, else that of the configuration, else that of the only process.
///
/// # Errors
/// When there is none ([`NotRunning`]), or more than one.
pub(super) fn of_files(given: Option<&PathBuf>, args: &FileArgs) -> anyhow::Result<PathBuf> {
    if let Some(socket) = given {
        return Ok(socket.clone());
    }
    if let Some(socket) = of_configuration(args)? {
        return Ok(socket);
    }
    let mut all = running();
    match all.len() {
        0 => Err(NotRunning(nobody()).into()),
        1 => Ok(all.remove(0).socket),
        _ => bail!("several processes run\n{}  hint: choose one with --pid or --socket", list(&all, 80)),
    }
}

/// All processes, for a command that has not been told which.
pub(crate) fn all(args: &ProcessArgs) -> anyhow::Result<Vec<PathBuf>> {
    if args.socket.is_some() || args.pid.is_some() {
        return one(args).map(|socket| vec![socket]);
    }
    if let Some(socket) = of_configuration(&args.files)? {
        return Ok(vec![socket]);
    }
    let all = running();
    if all.is_empty() {
        return Err(NotRunning(nobody()).into());
    }
    Ok(all.into_iter().map(|found| found.socket).collect())
}

fn by_pid(pid: u32) -> anyhow::Result<PathBuf> {
    let found = socket::all().into_iter().find(|path| socket::pid_of(path) == Some(pid));
    // A socket that the configuration names does not tell the process by its name.
    let found =
        found.or_else(|| running().into_iter().find(|found| found.status.pid == pid).map(|f| f.socket));
    found.ok_or_else(|| NotRunning(format!("process {pid} has no socket in {}", places())).into())
}

/// The socket that the configuration names, or that of the process that has read it.
///
/// # Errors
/// When the configuration is no good; [`NotRunning`] when it is named and nobody has read it.
pub(super) fn of_configuration(args: &FileArgs) -> anyhow::Result<Option<PathBuf>> {
    let is_named = !args.config.is_empty();
    let config = match files::load(args) {
        Ok(loaded) => loaded.config,
        Err(found) if is_named => return Err(found.into()),
        Err(_) => return Ok(None),
    };
    if let ControlSocket::At(path) = config.admin
        && (is_named || path.exists())
    {
        return Ok(Some(path));
    }
    let paths = files::paths(args).unwrap_or_default();
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let paths: Vec<PathBuf> = paths.iter().map(absolute).collect();
    let reads_them = |path: &PathBuf| {
        let answer = ask(path, &ControlRequest::Files);
        matches!(answer, Ok(ControlAnswer::Files(Files { paths: theirs, .. })) if theirs == paths)
    };
    let found = socket::all().into_iter().find(reads_them);
    if found.is_none() && is_named {
        return Err(NotRunning(format!("no process that has read {} is found", shown(&paths))).into());
    }
    Ok(found)
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Every process that answers.
fn running() -> Vec<Found> {
    let found = |socket: PathBuf| {
        let status = ask_status(&socket).ok()?;
        Some(Found { socket, status })
    };
    socket::all().into_iter().filter_map(found).collect()
}

fn places() -> String {
    let folders = socket::folders();
    if folders.is_empty() { "/run/adit or /tmp/adit-*".into() } else { shown(&folders) }
}

fn nobody() -> String {
    // A socket that does not let this user in is a process all the same.
    let is_denied =
        |path: &PathBuf| ask_status(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    if let Some(path) = socket::all().into_iter().find(is_denied) {
        return format!(
            "{} belongs to another user\n  hint: run this as that user or as root",
            path.display()
        );
    }
    format!(
        "no running process is found in {}\n  hint: a process of a service with PrivateTmp= needs RuntimeDirectory=adit; \
         --socket names another socket",
        places()
    )
}

/// A line for each process.
pub(crate) fn list(all: &[Found], width: usize) -> String {
    let mut grid = Grid::new(&[
        text("program"),
        number("pid"),
        text("state"),
        number("up"),
        number("open"),
        number("from clients"),
        number("to clients"),
        text("version").rank(2),
        text("socket").rank(1),
    ]);
    for found in all {
        let status = &found.status;
        let sum =
            |count: fn(&adit_engine::InboundStatus) -> u64| status.inbounds.iter().map(count).sum::<u64>();
        grid.row([
            found.program().to_owned(),
            status.pid.to_string(),
            if status.health.is_ready { "ready".into() } else { "not ready".into() },
            seconds(status.uptime_s),
            status.inbounds.iter().map(|inbound| inbound.open).sum::<i64>().to_string(),
            bytes(sum(|inbound| inbound.up_bytes)),
            bytes(sum(|inbound| inbound.down_bytes)),
            status.version.clone(),
            found.socket.display().to_string(),
        ]);
    }
    grid.render(width)
}

/// The state of the process at `socket`.
pub(super) fn ask_at(socket: &Path) -> anyhow::Result<Found> {
    let status = explained(socket, ask_status(socket))?;
    Ok(Found { socket: socket.to_owned(), status })
}

/// An answer, or an error with what to do.
#[allow(clippy::wildcard_enum_match_arm, reason = "the rest of a foreign, growing enum is one case")]
pub(super) fn explained<T>(socket: &Path, answer: io::Result<T>) -> anyhow::Result<T> {
    answer.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => "run this as the user of that process or as root",
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "is it running? `adit status` lists all"
            }
            _ => "is it an adit of this version?",
        };
        anyhow::anyhow!("no answer on {}: {error}\n  hint: {hint}", socket.display())
    })
}
