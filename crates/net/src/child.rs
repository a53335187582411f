//! Commands for children: other programs, and helpers of this one.
//!
//! A child gets the environment of this process without the part that is about this process alone. The service manager's
//! socket would let a child speak for the service, and the folder of credentials holds keys.
//!
//! Successors of this process are no children in this sense: they take its part and need its environment
//! ([`crate::handover`], [`crate::background`]).

use std::ffi::{OsStr, OsString};
use std::process::Command;

/// Beginnings of the names of variables that are about this process alone: adit's own, and those of systemd.exec(5) and
/// sd_listen_fds(3).
const PREFIXES: [&str; 3] = ["ADIT_", "LISTEN_", "WATCHDOG_"];

/// Names of further ones. The log's stream is not the child's: its output is read here, or goes nowhere.
const NAMES: [&str; 9] = [
    "CREDENTIALS_DIRECTORY",
    "ENCRYPTED_CREDENTIALS_DIRECTORY",
    "FDSTORE",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "NOTIFY_SOCKET",
    "SYSTEMD_EXEC_PID",
];

/// A command that starts `program`, found in `PATH` unless it has a folder, without the variables of this process alone.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in own(std::env::vars_os().map(|(name, _)| name)) {
        command.env_remove(name);
    }
    command
}

/// The names that a child does not get.
fn own(names: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    names.filter(|name| {
        let bytes = name.as_encoded_bytes();
        NAMES.iter().any(|own| own.as_bytes() == bytes)
            || PREFIXES.iter().any(|prefix| bytes.starts_with(prefix.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_all_variables_but_those_of_this_process() {
        let kept = [
            "PATH",
            "HOME",
            "LANG",
            "SS_REMOTE_HOST",
            "XADIT_",
            "LISTEN",
            "NOTIFY_SOCKETS",
            "STATE_DIRECTORY",
        ];
        let lost = [
            "ADIT_HANDOVER",
            "ADIT_",
            "LISTEN_FDS",
            "LISTEN_PID",
            "LISTEN_FDNAMES",
            "LISTEN_PIDFDID",
            "WATCHDOG_USEC",
            "WATCHDOG_PID",
            "NOTIFY_SOCKET",
            "CREDENTIALS_DIRECTORY",
        ];
        let all = kept.iter().chain(&lost).map(OsString::from);
        assert_eq!(own(all).collect::<Vec<_>>(), lost.map(OsString::from));
    }

    /// Cargo gives tests variables of their own; one of ours is only there in a process of its own.
    #[test]
    #[ignore = "the other half of another test"]
    fn tool_with_variables() {
        let ran = crate::tool::run("env", &[]).unwrap();
        println!("{}", ran.text);
    }

    #[cfg(unix)]
    #[test]
    fn tools_do_not_get_them() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "child::tests::tool_with_variables"])
            .envs([("ADIT_X", "own1"), ("NOTIFY_SOCKET", "own2"), ("OTHER", "kept3")])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("OTHER=kept3") && text.contains("PATH="), "{text}");
        assert!(!text.contains("own1") && !text.contains("own2"), "{text}");
    }
}
