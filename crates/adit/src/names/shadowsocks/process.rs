//! The process's own affairs: its number in a file, its user.

use std::fs;
use std::path::{Path, PathBuf};

use adit_formats::shadowsocks::Process;
use adit_net::{User, background};
use anyhow::Context as _;

use crate::log;

/// A file with the number of this process, removed when dropped.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    pub(super) fn write(path: &Path) -> anyhow::Result<Self> {
        fs::write(path, number()).with_context(|| format!("cannot write pid file {}", path.display()))?;
        Ok(Self(std::path::absolute(path)?))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another process may have put its own there.
        if fs::read_to_string(&self.0).is_ok_and(|text| text == number()) {
            fs::remove_file(&self.0).ok();
        }
    }
}

fn number() -> String {
    format!("{}\n", std::process::id())
}

/// Things that are held until the end: the file, and everything that was started before it.
pub(super) struct Settled<T> {
    _control: T,
    _pid_file: Option<PidFile>,
}

/// The last steps of a start, once the ports are open: the file, the user, and the report to the starting process.
pub(super) fn settle<T>(program: &str, process: &Process, control: T) -> anyhow::Result<Settled<T>> {
    let pid_file = process.pid_file.as_deref().map(PidFile::write).transpose()?;
    if let Some(name) = &process.user {
        let user = User::find(name).and_then(|user| user.assume().map(|()| user));
        user.with_context(|| format!("cannot become user {name}"))?;
    }
    if process.daemonize && background::is_background() {
        log::to_system(program);
        background::is_up().context("cannot detach from the terminal")?;
    }
    Ok(Settled { _control: control, _pid_file: pid_file })
}

/// Says what was asked for and is not done.
pub(super) fn warn(process: &Process) {
    if let Some(files) = process.open_files
        && let Ok((_, limit)) = adit_net::raise_fd_limit()
        && limit < files
    {
        tracing::warn!(asked = files, limit, "fewer open files than asked for: the hard limit is lower");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::load::supported::is_user;

    #[test]
    fn own_user() {
        let own = fs::metadata("/proc/self").unwrap().uid();
        assert!(is_user(&own.to_string()));
        assert!(!is_user(&(own + 1).to_string()) && !is_user("no-such-user") && !is_user(""));
    }
}
