//! The file that keeps the counters of users, when the configuration does not say it.

use std::env::var_os;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use adit_engine::state_file_name;
use adit_model::{Config, FakeStore, Inbound, Outbound, OutboundProtocol, StateFile};

/// Folder of the state files, in the state directory.
const FOLDER: &str = "users";
/// Folder of the choices of members, likewise.
const CHOICES: &str = "choices";
/// Name of the store of earlier versions, one for all configurations.
const EARLIER: &str = "users.db";

/// Gives `config`, which was read from `files`, a state file of its own if it asks for one. Whether there are users is looked
/// at later.
pub(crate) fn settle(config: &mut Config, files: &[PathBuf]) {
    if config.state != StateFile::Usual {
        return;
    }
    config.state = match usual().and_then(|(dir, is_own)| make(&dir, is_own).map(|()| dir)) {
        Ok(dir) => {
            let identity = identity(config, files);
            let identity: Vec<&Path> = identity.iter().map(PathBuf::as_path).collect();
            let path = dir.join(FOLDER).join(state_file_name(&identity));
            StateFile::Try { path, earlier: dir.join(EARLIER) }
        }
        Err(error) => {
            tracing::warn!(
                "no state directory: {error}; user counters and the memory of replays will be lost on restart; name a file with `state`"
            );
            StateFile::Off
        }
    };
}

/// Gives `config`, which was read from `files`, a file that keeps the members that people choose, if it has groups to choose
/// from and names no such file.
pub(crate) fn settle_choices(config: &mut Config, files: &[PathBuf]) {
    let is_choice = |outbound: &Outbound| matches!(outbound.protocol, OutboundProtocol::Choice(_));
    if config.choices.is_some() || !config.outbounds.iter().any(is_choice) {
        return;
    }
    let made = usual().and_then(|(dir, is_own)| {
        let dir = dir.join(CHOICES);
        make(&dir, is_own)?;
        if !is_own {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        }
        Ok(dir)
    });
    match made {
        Ok(dir) => {
            let identity = identity(config, files);
            let identity: Vec<&Path> = identity.iter().map(PathBuf::as_path).collect();
            config.choices = Some(dir.join(state_file_name(&identity)));
        }
        Err(error) => {
            tracing::warn!("no state directory: {error}; choices of members will be lost on restart");
        }
    }
}

/// The identity of a configuration across restarts and edits: the paths of its files, and its ports where it comes from
/// standard input. Links are not followed, since many deployments replace a file by switching a link.
fn identity(config: &Config, files: &[PathBuf]) -> Vec<PathBuf> {
    let mut identity: Vec<PathBuf> = files.iter().map(|path| absolute(path)).collect();
    if files.iter().any(|path| path == Path::new("-")) {
        let ports = config.inbounds.iter().flat_map(|inbound| &inbound.listen);
        identity.extend(ports.map(|port| PathBuf::from(port.to_string())));
    }
    identity
}

/// The path from the root, without `.` and `..`.
fn absolute(path: &Path) -> PathBuf {
    if path == Path::new("-") {
        return path.to_owned();
    }
    let mut plain = PathBuf::new();
    for component in std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(component),
        }
    }
    plain
}

/// The state directory, and whether it is for adit alone to make: systemd makes the one of a unit (`StateDirectory=`),
/// else it is that of the XDG base directories.
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
    let home = path("HOME").ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "HOME is not set"))?;
    Ok((PathBuf::from(home).join(".local/state/adit"), true))
}

fn make(dir: &Path, is_own: bool) -> io::Result<()> {
    if is_own { fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) } else { Ok(()) }
}

/// Whether a configuration has something that outlives a restart: names of access keys, accounts of users, salts that were seen, or names with
/// fake addresses.
pub(crate) fn has_state(config: &Config) -> bool {
    let of_inbound =
        |inbound: &Inbound| !inbound.protocol.users().is_empty() || inbound.protocol.remembers_salts();
    config.manage.is_some()
        || config.inbounds.iter().any(of_inbound)
        || config.dns.fake.as_ref().is_some_and(|fake| fake.store == FakeStore::Usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_known_by_the_paths_of_its_files() {
        let here = std::env::current_dir().unwrap();
        let of = |paths: &[&str]| {
            identity(&Config::default(), &paths.iter().map(PathBuf::from).collect::<Vec<_>>())
        };
        assert_eq!(of(&["a/./b/../c.toml", "/x"]), [here.join("a/c.toml"), PathBuf::from("/x")]);
        assert_eq!(of(&["/../../x//y"]), [PathBuf::from("/x/y")]);
        assert_eq!(of(&["-"]), [PathBuf::from("-")]);
    }
}
