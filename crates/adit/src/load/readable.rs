//! Files with keys that other users of the machine may read.

use crate::load::findings;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{Config, PanelToken, StateFile, TlsFiles};

/// The files of the configuration of this process.
static NAMED: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Notes the files that the configuration of this process comes from.
pub(crate) fn note(files: &[PathBuf]) {
    // A process has one configuration; a later call is about the same files.
    NAMED.get_or_init(|| files.to_vec());
}

/// The warnings about this process's files, for a start.
pub(crate) fn at_start(config: &Config) -> Diagnostics {
    find(NAMED.get().map_or(&[][..], Vec::as_slice), config)
}

/// The warnings about `files`, from which `config` was read, and the files with keys that it names.
pub(crate) fn find(files: &[PathBuf], config: &Config) -> Diagnostics {
    let own = files.iter().map(PathBuf::as_path).filter(|_| config.holds_keys());
    let mut found = Diagnostics::default();
    for path in own.chain(beside(config)) {
        if let Some(warning) = judge(path) {
            found.push(warning);
        }
    }
    found
}

/// The files with keys or names of users that a configuration names.
pub(crate) fn beside(config: &Config) -> impl Iterator<Item = &Path> {
    let state = match &config.state {
        StateFile::At(path) | StateFile::Try { path, .. } => Some(path.as_path()),
        StateFile::Usual | StateFile::Off => None,
    };
    let tokens = config.panels.iter().filter_map(|panel| match &panel.token {
        PanelToken::File(path) => Some(path.as_path()),
        PanelToken::Text(_) => None,
    });
    let lists = config.outbound_lists.iter().filter_map(|list| list.path.as_deref());
    let ports =
        config.inbounds.iter().filter_map(|inbound| inbound.socket.carrier.as_ref()?.snowflake.as_ref());
    let certificates = ports.filter_map(|port| Some(port.tls.as_ref()?.key.as_path()));
    state.into_iter().chain(tokens).chain(lists).chain(certificates)
}

/// Logs the warning about the private key of a server without a [`Config`], if others may read it.
pub(crate) fn warn_of_key(tls: Option<&TlsFiles>) {
    if let Some(warning) = tls.and_then(|files| judge(&files.key)) {
        findings::log_findings(&warning.into());
    }
}

/// The warning about a file with keys, if others may read or change it.
pub(crate) fn judge(path: &Path) -> Option<Diagnostic> {
    let data = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let mode = data.permissions().mode() & 0o777;
    if mode & 0o006 == 0 {
        return None;
    }
    let name = path.to_string_lossy();
    let problem = format!("every user of this machine can read it, and it holds keys: mode {mode:04o}");
    let warning = Diagnostic::warning(&(&*name).into(), "", problem);
    Some(warning.hint(format!("chmod 600 {}", quoted(&name))))
}

/// A word of a command line as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,=%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_line() {
        for (word, want) in [
            ("/etc/adit/adit.toml", "/etc/adit/adit.toml"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), want);
        }
    }

    #[test]
    fn files_that_others_may_read_are_named_if_they_hold_keys() {
        let dir = std::env::temp_dir().join(format!("adit-readable-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (file, state) = (dir.join("a b.toml"), dir.join("state"));
        std::fs::write(&state, "x").unwrap();
        let keyed =
            "[[inbound]]\nprotocol = \"snell\"\nlisten = \"127.0.0.1:1\"\npsk = \"a long key of a test\"\n";
        let plain = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n";
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let warnings = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let text = format!("state = \"{}\"\n{text}", state.display());
            let config = adit_formats::adit_toml::parse("f", &text).unwrap().config;
            find(std::slice::from_ref(&file), &config).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for (text, mode, of_state, count) in [
            (keyed, 0o644, 0o600, 1),
            (keyed, 0o604, 0o600, 1),
            (keyed, 0o602, 0o600, 1),
            (keyed, 0o640, 0o600, 0),
            (keyed, 0o600, 0o600, 0),
            (keyed, 0o600, 0o644, 1),
            (keyed, 0o644, 0o644, 2),
            (plain, 0o644, 0o600, 0),
        ] {
            std::fs::write(&file, text).unwrap();
            set(&file, mode);
            set(&state, of_state);
            let found = warnings(text);
            assert_eq!(found.len(), count, "{mode:o} {of_state:o}: {found:?}");
        }
        set(&file, 0o644);
        let found =
            find(std::slice::from_ref(&file), &adit_formats::adit_toml::parse("f", keyed).unwrap().config);
        let shown = found.to_string();
        assert!(shown.contains("mode 0644") && shown.contains("chmod 600 '"), "{shown}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
