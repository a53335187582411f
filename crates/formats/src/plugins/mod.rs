//! Programs that are plugins of Shadowsocks (SIP003): those of simple-obfs and GoQuiet, and the client of ShadowsocksR's libev
//! fork in that role. A Shadowsocks program starts them, and says by variables what they are to do.
//!
//! ```text
//!   client   SS_LOCAL_HOST:SS_LOCAL_PORT, where it listens     SS_REMOTE_HOST:SS_REMOTE_PORT, the server
//!   server   SS_REMOTE_HOST:SS_REMOTE_PORT, where it listens   SS_LOCAL_HOST:SS_LOCAL_PORT, the Shadowsocks server
//!   SS_PLUGIN_OPTIONS, `key=value;switch`
//! ```
//!
//! `SS_REMOTE_HOST` may be several hosts, separated by `|`. The programs of GoQuiet and simple-obfs also run by themselves, by
//! flags. Observed from simple-obfs 0.0.5, GoQuiet 013cdfd and the SSR libev fork e82f6d1; `docs/protocols/goquiet.md`.

mod addresses;
mod options;
pub mod plugin_flags;
mod plugin_to_model;

use std::path::PathBuf;

use zeroize::Zeroizing;

pub use self::addresses::PluginEnvironment;
pub use self::plugin_flags::{PluginFlags, PluginInvocation, flags, usage};
pub use self::plugin_to_model::{load_flags, load_plugin};

/// The status that the programs exit with when they cannot start.
pub const EXIT_FAILURE: u8 = 1;

/// One of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginProgram {
    /// The client of the SSR libev fork, as a plugin alone.
    SsrLocal,
    /// simple-obfs' client.
    ObfsLocal,
    /// simple-obfs' server.
    ObfsServer,
    /// GoQuiet's client.
    GqClient,
    /// GoQuiet's server.
    GqServer,
}

impl PluginProgram {
    pub(crate) const ALL: [Self; 5] =
        [Self::SsrLocal, Self::ObfsLocal, Self::ObfsServer, Self::GqClient, Self::GqServer];

    /// The program of that name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|program| program.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::SsrLocal => "ssr-local",
            Self::ObfsLocal => "obfs-local",
            Self::ObfsServer => "obfs-server",
            Self::GqClient => "gq-client",
            Self::GqServer => "gq-server",
        }
    }

    fn is_server(self) -> bool {
        matches!(self, Self::ObfsServer | Self::GqServer)
    }

    /// The file that `options` name in the place of options, for a program that takes one.
    pub fn file(self, options: &str) -> Option<PathBuf> {
        match self {
            // A list is what holds both; the original takes anything else as the path of a file.
            Self::GqClient | Self::GqServer => {
                (!(options.contains(';') && options.contains('='))).then(|| PathBuf::from(options))
            }
            Self::SsrLocal | Self::ObfsLocal | Self::ObfsServer => None,
        }
    }
}

/// A file of options, by its name.
#[derive(Debug, Clone)]
pub struct OptionsFile {
    /// Its path, for messages.
    pub name: String,
    /// Its text.
    pub text: Zeroizing<String>,
}

/// Fuzz target: any options and any file make a configuration that can run, or findings that show no key.
#[doc(hidden)]
pub fn fuzz_plugin(data: &[u8]) {
    let Some((&first, text)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    let program = PluginProgram::ALL[usize::from(first) % PluginProgram::ALL.len()];
    let environment = PluginEnvironment::fixed(&text);
    let file = (first >= 128)
        .then(|| OptionsFile { name: "fuzz.json".into(), text: Zeroizing::new(text.to_string()) });
    match load_plugin(program, &environment, file.as_ref()) {
        Ok(loaded) => {
            let toml = crate::adit_toml::to_toml(&loaded.config);
            let again = crate::adit_toml::parse("again.toml", &toml);
            assert_eq!(again.map(|again| again.config).as_ref(), Ok(&loaded.config), "{toml}");
        }
        Err(found) if file.is_some() => crate::read::loaded::assert_inside(&text, &found),
        Err(found) => assert!(found.has_errors()),
    }
}

#[cfg(test)]
mod tests;
