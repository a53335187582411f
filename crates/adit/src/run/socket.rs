//! The control socket that each process has without being told, and the way to find it.
//!
//! ```text
//!   $RUNTIME_DIRECTORY         a service of systemd: RuntimeDirectory=
//!   $XDG_RUNTIME_DIR/adit      a session
//!   /run/adit                  root, and the user that it belongs to
//!   /tmp/adit-UID              everybody else
//! ```
//!
//! Its name is `PROGRAM-PID.sock`, its mode 0600. A folder counts if it belongs to the user, and nobody else may write there.
//! A link does not.

use std::env::var_os;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use adit_engine::{Access, Running, ask_status};
use adit_model::{Config, ControlSocket};

/// Most files of a folder that are looked at.
const MOST_FILES: usize = 256;
/// Folder for root.
const ROOTS: &str = "/run/adit";
/// Beginning of the folders for everybody else.
const TEMPORARY: &str = "/tmp/adit-";

/// The name that the program was called by.
static PROGRAM: OnceLock<String> = OnceLock::new();

/// The program goes by this name; without one it has no socket.
pub(crate) fn set_program(name: &str) {
    // The first name stays.
    PROGRAM.set(name.to_owned()).ok();
}

/// Opens the usual socket, if the configuration leaves that to the program. Under the name of another program it shows
/// the state alone.
pub(crate) fn open(config: &Config, running: &mut Running) {
    let (ControlSocket::Usual, Some(program)) = (&config.admin, PROGRAM.get()) else { return };
    let access = if program == "adit" { Access::Full } else { Access::ReadOnly };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for (folder, is_made) in candidates() {
        match open_in(&folder, is_made, program, access, running) {
            Ok(path) => {
                tracing::debug!(socket = %path.display(), "status socket");
                return;
            }
            Err(error) => last = error,
        }
    }
    tracing::debug!(error = %last, "no status socket: `adit status` will not find this process");
}

fn open_in(
    folder: &Path,
    is_made: bool,
    program: &str,
    access: Access,
    running: &mut Running,
) -> io::Result<PathBuf> {
    let own = adit_net::effective_uid();
    if is_made {
        make(folder, own)?;
    } else {
        trusted(folder, own)?;
    }
    remove_stale(folder);
    let path = folder.join(format!("{program}-{}.sock", std::process::id()));
    running.open_socket(&path, access)?;
    Ok(path)
}

/// The folders for the socket of this process, in order, and whether it may make them.
fn candidates() -> Vec<(PathBuf, bool)> {
    let own = adit_net::effective_uid();
    let mut all = Vec::new();
    if let Some(dirs) = named("RUNTIME_DIRECTORY") {
        // Several are separated by colons.
        all.extend(std::env::split_paths(&dirs).next().map(|first| (first, false)));
    }
    all.extend(named("XDG_RUNTIME_DIR").map(|dir| (PathBuf::from(dir).join("adit"), true)));
    all.push((PathBuf::from(ROOTS), own == 0));
    all.push((PathBuf::from(format!("{TEMPORARY}{own}")), true));
    all
}

fn named(variable: &str) -> Option<std::ffi::OsString> {
    var_os(variable).filter(|value| !value.is_empty())
}

fn make(folder: &Path, own: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    trusted(folder, own)
}

/// Refuses a folder in which somebody else could put a file, and a link to one.
fn trusted(folder: &Path, own: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let text = format!("{} is no folder of this user that nobody else may write to", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Takes sockets away whose process is gone without having done so.
fn remove_stale(folder: &Path) {
    for socket in sockets_in(folder) {
        let is_gone = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if pid_of(&socket).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            && ask_status(&socket).is_err_and(is_gone)
        {
            fs::remove_file(socket).ok();
        }
    }
}

/// The sockets of a folder.
fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt as _;
    let Ok(files) = fs::read_dir(folder) else { return Vec::new() };
    let paths = files.flatten().take(MOST_FILES).map(|file| file.path());
    let is_socket = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "sock")
            && fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
    };
    let mut sockets: Vec<PathBuf> = paths.filter(is_socket).collect();
    sockets.sort();
    sockets
}

/// Program and process of `PROGRAM-PID.sock`.
fn parts_of(socket: &Path) -> Option<(&str, u32)> {
    let (program, pid) = socket.file_stem()?.to_str()?.rsplit_once('-')?;
    Some((program, pid.parse().ok()?))
}

/// The process of `PROGRAM-PID.sock`.
pub(crate) fn pid_of(socket: &Path) -> Option<u32> {
    parts_of(socket).map(|(_, pid)| pid)
}

/// The program of `PROGRAM-PID.sock`.
pub(crate) fn program_of(socket: &Path) -> Option<&str> {
    parts_of(socket).map(|(program, _)| program)
}

/// The folders in which sockets of this machine may be.
pub(crate) fn folders() -> Vec<PathBuf> {
    let own = adit_net::effective_uid();
    let mut all: Vec<PathBuf> = Vec::new();
    if let Some(dirs) = named("RUNTIME_DIRECTORY") {
        all.extend(std::env::split_paths(&dirs));
    }
    all.extend(named("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("adit")));
    // Services have folders like /run/adit-NAME.
    all.extend(entries("/run", |name| name == "adit" || name.starts_with("adit-")));
    all.extend(entries("/run/user", |_| true).into_iter().map(|user| user.join("adit")));
    all.extend(entries("/tmp", |name| name.starts_with("adit-") && name[5..].parse::<u32>().is_ok()));
    let mut kept: Vec<PathBuf> = Vec::new();
    for folder in all {
        let owner = fs::symlink_metadata(&folder).map(|found| found.uid());
        // Root asks the processes of everybody, but in their own folders alone.
        let is_known =
            owner.is_ok_and(|owner| own == 0 || owner == own || owner == 0 || folder.starts_with("/run"));
        if is_known && !kept.contains(&folder) {
            kept.push(folder);
        }
    }
    kept
}

fn entries(folder: &str, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
    let named = found.flatten().filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    named.map(|entry| entry.path()).take(MOST_FILES).collect()
}

/// All sockets of this machine that this user may know of.
pub(crate) fn all() -> Vec<PathBuf> {
    folders().iter().flat_map(|folder| sockets_in(folder)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn folders_that_others_may_write_to_are_refused() {
        let dir = std::env::temp_dir().join(format!("adit-socket-{}", std::process::id()));
        let own = adit_net::effective_uid();
        make(&dir, own).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        make(&dir, own).unwrap();
        assert!(trusted(&dir, own + 1).is_err(), "somebody else's");
        for mode in [0o770, 0o702] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert!(make(&dir, own).is_err(), "{mode:o}");
        }
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let link = dir.join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(make(&link, own).is_err(), "a link");
        fs::write(dir.join("adit-1.sock"), "no socket").unwrap();
        assert!(sockets_in(&dir).is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn names_of_sockets() {
        for (path, want) in [
            ("/run/adit/ss-server-17.sock", Some(("ss-server", 17))),
            ("adit-1.sock", Some(("adit", 1))),
            ("/run/adit/adit.sock", None),
            ("x-y.sock", None),
        ] {
            assert_eq!(parts_of(Path::new(path)), want, "{path}");
        }
    }
}
