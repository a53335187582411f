//! The addresses at which a plugin listens, and those to which it connects.

use std::net::SocketAddr;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_proto::wire::Target;
use zeroize::Zeroizing;

use super::PluginProgram;
use crate::read::value::{self, MAX_LISTEN, excerpt};

/// Name of the environment in messages.
const FILE: &str = "environment";

/// The variables of SIP003.
#[derive(Clone)]
pub struct PluginEnvironment {
    local: (String, String),
    remote: (String, String),
    options: Zeroizing<String>,
}

/// Options may hold a key.
impl std::fmt::Debug for PluginEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").field("local", &self.local).field("remote", &self.remote).finish()
    }
}

impl PluginEnvironment {
    /// Reads the variables; `None` unless a Shadowsocks program has started this one.
    ///
    /// # Errors
    /// When some of them are missing.
    pub fn read(mut variable: impl FnMut(&str) -> Option<String>) -> Result<Option<Self>, Diagnostics> {
        let mut get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let names = ["SS_LOCAL_HOST", "SS_LOCAL_PORT", "SS_REMOTE_HOST", "SS_REMOTE_PORT"];
        let values = names.map(&mut get);
        if values[0].is_none() && values[2].is_none() {
            return Ok(None);
        }
        let mut found = Diagnostics::new();
        for (name, _) in names.iter().zip(&values).filter(|(_, value)| value.is_none()) {
            let error = Diagnostic::error(&FILE.into(), *name, "missing");
            found.push(error.hint("a Shadowsocks program sets all four variables when it starts a plugin"));
        }
        let options = Zeroizing::new(get("SS_PLUGIN_OPTIONS").unwrap_or_default());
        let [Some(local), Some(local_port), Some(remote), Some(remote_port)] = values else {
            return Err(found);
        };
        Ok(Some(Self { local: (local, local_port), remote: (remote, remote_port), options }))
    }

    /// Both ends on loopback.
    pub(super) fn fixed(options: &str) -> Self {
        let end = |port: &str| ("127.0.0.1".to_owned(), port.to_owned());
        Self { local: end("1"), remote: end("2"), options: Zeroizing::new(options.to_owned()) }
    }

    /// The options as they are written.
    pub fn options(&self) -> &str {
        &self.options
    }
}

/// The addresses at which a program listens, and the targets that it connects to, at least one each.
pub(super) struct PluginAddresses {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) targets: Vec<Target>,
}

impl PluginAddresses {
    pub(super) fn of_plugin(
        program: PluginProgram,
        environment: &PluginEnvironment,
    ) -> Result<Self, Diagnostics> {
        let file = FILE.into();
        let PluginEnvironment { local, remote, .. } = environment;
        let (local, remote) =
            (("SS_LOCAL_HOST", &*local.0, &*local.1), ("SS_REMOTE_HOST", &*remote.0, &*remote.1));
        let (near, far) = if program.is_server() { (remote, local) } else { (local, remote) };
        let listen = several(near.1, |host| listen(&file, near.0, host, near.2))?;
        let targets = several(far.1, |host| target(&file, far.0, host, far.2))?;
        Ok(Self { listen, targets })
    }
}

fn several<T>(hosts: &str, read: impl Fn(&str) -> Result<T, Diagnostics>) -> Result<Vec<T>, Diagnostics> {
    hosts.split('|').take(MAX_LISTEN).map(read).collect()
}

/// A host with a port to listen on.
pub(super) fn listen(file: &Arc<str>, key: &str, host: &str, port: &str) -> Result<SocketAddr, Diagnostics> {
    value::listen(&format!("{host}:{port}")).map_err(|problem| {
        let error = Diagnostic::error(file, key, problem.text);
        error.hint("give an address of this machine and a port").into()
    })
}

/// A host with a port to connect to.
pub(super) fn target(file: &Arc<str>, key: &str, host: &str, port: &str) -> Result<Target, Diagnostics> {
    let wrong = |text: String| Diagnostics::from(Diagnostic::error(file, key, text));
    let host = host.trim().trim_start_matches('[').trim_end_matches(']');
    let port = port.trim().parse().ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| wrong("bad port".to_owned()))?;
    Target::new(host.as_bytes(), port).map_err(|error| wrong(format!("{error}: {}", excerpt(host))))
}
