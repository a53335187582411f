//! What the process itself does: its number in a file, its user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use adit_config::dialect::shadowsocks::Process;
use anyhow::Context as _;

/// A file with the number of this process, removed when dropped.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    pub(super) fn write(path: &Path) -> anyhow::Result<Self> {
        fs::write(path, number()).with_context(|| format!("cannot write pid file {}", path.display()))?;
        Ok(Self(path.to_path_buf()))
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

/// Whether this process runs as that user, by name or number; `false` where it cannot be known.
pub(super) fn is_user(user: &str) -> bool {
    let Ok(own) = fs::metadata("/proc/self") else { return false };
    let of_name = |users: String| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let is = fields.next() == Some(user);
            fields.nth(1).filter(|_| is).and_then(|uid| uid.parse().ok())
        })
    };
    let named = fs::read_to_string("/etc/passwd").ok().and_then(of_name);
    named.or_else(|| user.parse().ok()) == Some(own.uid())
}

/// Says what was asked for and is not done.
pub(super) fn warn(process: &Process) {
    if process.daemonize {
        let hint = "let a service manager start it, or put & behind it";
        tracing::warn!(hint, "going into the background is not in this build: adit stays in the foreground");
    }
    if process.syslog {
        tracing::warn!("the system's log is not in this build: lines go to standard error");
    }
    if let Some(files) = process.open_files
        && let Ok((_, limit)) = adit_net::raise_fd_limit()
        && limit < files
    {
        tracing::warn!(asked = files, limit, "fewer open files than asked for: the hard limit is lower");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_user() {
        let own = fs::metadata("/proc/self").unwrap().uid();
        assert!(is_user(&own.to_string()));
        assert!(!is_user(&(own + 1).to_string()) && !is_user("no-such-user") && !is_user(""));
    }
}
