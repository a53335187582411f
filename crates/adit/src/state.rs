//! Where the counters of users outlive the process, when the file does not say it.

use std::env::var_os;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use adit_config::model::{Config, StateFile};

/// Name of the file.
const FILE: &str = "users.db";

/// Puts the usual file into `config`, if that asks for it; what keeps it from being had is said, and then nothing outlives
/// the process. Whether there are users is looked at later.
pub(crate) fn settle(config: &mut Config) {
    if config.state != StateFile::Usual {
        return;
    }
    config.state = match usual().and_then(|(dir, is_own)| make(&dir, is_own).map(|()| dir)) {
        Ok(dir) => StateFile::Try(dir.join(FILE)),
        Err(error) => {
            tracing::warn!(
                %error,
                "the counters of users end with the process: state = \"...\" names a file for them"
            );
            StateFile::Off
        }
    };
}

/// The folder, and whether it is for adit alone to make: systemd makes the one of a unit (`StateDirectory=`), else it is
/// that of the XDG base directories.
fn usual() -> io::Result<(PathBuf, bool)> {
    let path = |name| var_os(name).filter(|value| !value.is_empty());
    if let Some(dirs) = path("STATE_DIRECTORY") {
        // Several are separated by colons.
        let first = std::env::split_paths(&dirs).next().unwrap_or_default();
        return Ok((first, false));
    }
    if let Some(dir) = path("XDG_STATE_HOME") {
        return Ok((PathBuf::from(dir).join("adit"), true));
    }
    let home = path("HOME").ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no HOME"))?;
    Ok((PathBuf::from(home).join(".local/state/adit"), true))
}

fn make(dir: &Path, is_own: bool) -> io::Result<()> {
    if is_own { fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) } else { Ok(()) }
}
