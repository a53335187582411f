//! Requests of the control interface, their answers, and the one who follows those that change something.

use std::path::PathBuf;
use std::sync::OnceLock;

use adit_net::rt::{OrderSender, Orders, orders};
use serde::{Deserialize, Serialize};

use crate::connections::listing::Kicked;
use crate::observe::fleet::{DoubtStatus, PanelRequest};
use crate::observe::status::Status;

/// A request over the control socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum ControlRequest {
    /// The present state.
    Status,
    /// The present state with the open connections.
    Snapshot,
    /// End connections.
    Kick {
        /// The connections.
        of: Kicked,
    },
    /// The files that the process reads when it reloads.
    Files,
    /// Read these files again, and run as they say.
    Reload,
    /// Start a binary, and let it take over.
    Upgrade {
        /// The binary; the one that this process was started from without it.
        #[serde(default)]
        binary: Option<PathBuf>,
        /// Time for open connections to finish, in seconds.
        drain_s: u64,
    },
    /// The differences between what runs and a configuration; nothing changes.
    Diff {
        /// Its files; none stands for those that the process reads itself.
        files: Vec<GivenFile>,
    },
    /// A question or an order about panels.
    Panel {
        /// It.
        of: PanelRequest,
    },
}

/// A file that is sent along.
#[derive(Serialize, Deserialize)]
pub struct GivenFile {
    /// Its path from the root, by which findings call it, and by which paths in it are resolved.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// The text may hold keys.
impl std::fmt::Debug for GivenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GivenFile").field(&self.name).finish()
    }
}

/// Fuzz target: `data` as a line of the control socket. A request that is understood is written and read to the same again.
#[doc(hidden)]
pub fn fuzz_control(data: &[u8]) {
    let Ok(request) = serde_json::from_slice::<ControlRequest>(data) else { return };
    let written = serde_json::to_vec(&request).expect("a request that was read can be written");
    let read: ControlRequest =
        serde_json::from_slice(&written).expect("a request that was written can be read");
    assert_eq!(serde_json::to_vec(&read).expect("as before"), written);
    if let ControlRequest::Diff { files } = &request {
        let shown = format!("{request:?}");
        assert!(files.iter().all(|file| file.text.len() < 64 || !shown.contains(&file.text)));
    }
}

/// The answer to a [`ControlRequest`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlAnswer {
    /// To [`ControlRequest::Status`] and [`ControlRequest::Snapshot`].
    Status(Box<Status>),
    /// To [`ControlRequest::Kick`]: so many connections end.
    Kicked(u64),
    /// To [`ControlRequest::Files`].
    Files(Files),
    /// To [`ControlRequest::Reload`]: the changes that were made. To [`ControlRequest::Diff`]: those that would be.
    Differences(Box<Differences>),
    /// To [`ControlRequest::Upgrade`]: another process serves.
    Upgraded {
        /// Its number.
        pid: u32,
        /// Its version.
        version: String,
        /// Connections that are left to this process, and flows of datagrams.
        open: u64,
    },
    /// To [`ControlRequest::Panel`]: the batches in doubt, as they are afterwards.
    Doubts(Vec<DoubtStatus>),
    /// Nothing has changed: the findings, one text for each, with file, line and column where they have a place.
    Refused(Vec<String>),
    /// The request makes no sense here.
    Error(String),
}

/// The files of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Their paths from the root.
    pub paths: Vec<PathBuf>,
    /// Whether they are of the form of adit.toml.
    pub is_native: bool,
}

/// The differences between what runs and a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Differences {
    /// Inbounds, by name.
    pub inbounds: ChangedParts,
    /// Outbounds, by name.
    pub outbounds: ChangedParts,
    /// Users, as `inbound/user`.
    pub users: UserDifferences,
    /// Rules that are new.
    pub rules_added: usize,
    /// Rules that are gone.
    pub rules_removed: usize,
    /// Settings of the process that change at once.
    pub settings: Vec<String>,
    /// Settings that stay as they are until the process starts again.
    pub needs_restart: Vec<String>,
    /// Connections that end.
    pub cuts: Vec<Cut>,
    /// Things that do not work as they are written, or are unwise.
    pub warnings: Vec<String>,
    /// Addresses that cannot be listened on, while those before them are closed all the same.
    pub errors: Vec<String>,
}

/// Parts of a configuration that differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangedParts {
    /// New ones.
    pub added: Vec<String>,
    /// Those that are gone.
    pub removed: Vec<String>,
    /// Those that change and keep their connections.
    pub changed: Vec<String>,
    /// Those that are closed and opened anew.
    pub reopened: Vec<String>,
}

/// Users that differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserDifferences {
    /// New ones.
    pub added: Vec<String>,
    /// Those that are gone.
    pub removed: Vec<String>,
    /// Those with another key.
    pub rekeyed: Vec<String>,
    /// Those with other limits.
    pub limited: Vec<String>,
}

/// Connections that end by a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The inbound, or `inbound/user`.
    pub of: String,
    /// Its connections that are open now.
    pub connections: u64,
}

impl Differences {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        let (warnings, errors) = (self.warnings.clone(), self.errors.clone());
        *self == Self { warnings, errors, ..Self::default() }
    }
}

/// Follows requests that change something; it may take its time, on a thread of its own.
pub trait Control: Send + Sync {
    /// Begins to follow `request`.
    fn follow(&self, request: ControlRequest, reply: ControlReply);
}

/// Takes one answer.
#[derive(Debug)]
pub struct ControlReply(OrderSender<ControlAnswer>);

impl ControlReply {
    /// A place for an answer, and the end where it comes out.
    pub(crate) fn new() -> (Self, Orders<ControlAnswer>) {
        let (sender, answers) = orders();
        (Self(sender), answers)
    }

    /// Answers. Nobody may wait any more, which is no matter.
    pub fn answer(self, answer: ControlAnswer) {
        let _is_heard: bool = self.0.send(answer);
    }
}

/// The one who follows requests, once somebody does.
#[derive(Default)]
pub(crate) struct Follower(OnceLock<Box<dyn Control>>);

impl Follower {
    /// Has `control` follow requests from now on; the first one stays.
    pub(crate) fn set(&self, control: Box<dyn Control>) {
        drop(self.0.set(control));
    }

    pub(crate) fn get(&self) -> Option<&dyn Control> {
        self.0.get().map(|control| &**control)
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Follower").field(&self.0.get().is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_as_they_are_written() {
        let of =
            |text: &str| serde_json::from_str::<ControlRequest>(text).map(|request| format!("{request:?}"));
        assert_eq!(of(r#"{"command":"status"}"#).unwrap(), "Status");
        assert_eq!(of(r#"{"command":"reload"}"#).unwrap(), "Reload");
        let diff = of(r#"{"command":"diff","files":[{"name":"/a","text":"psk = \"secret\""}]}"#).unwrap();
        assert!(diff.contains("/a") && !diff.contains("secret"), "{diff}");
        assert!(of(r#"{"command":"stop"}"#).is_err() && of(r#"{"command":"diff"}"#).is_err());
    }

    #[test]
    fn a_warning_is_no_difference() {
        let mut differences = Differences { warnings: vec!["x".into()], ..Differences::default() };
        assert!(differences.is_empty());
        differences.needs_restart.push("cores".into());
        assert!(!differences.is_empty());
    }
}
