//! shadowsocks-libev 3.3.5 and shadowsocks-rust 1.25: what their users write, say and paste.
//!
//! | module | what |
//! |---|---|
//! | [`acl`] | access control files |
//! | [`shadowsocks_libev`](crate::shadowsocks_libev) | flags and files of shadowsocks-libev |
//! | [`nat`] | flags of `ss-nat` |
//! | [`manager`] | the text protocol of `ss-manager` and `ssmanager` |
//! | [`shadowsocks_rust`](crate::shadowsocks_rust) | flags and files of shadowsocks-rust |
//! | [`sip002`] | `ss://` links |
//! | [`sip008`] | lists of servers that are fetched |
//! | [`shadowsocksr`](crate::shadowsocksr) | flags, files and links of ShadowsocksR |

pub mod acl;
pub(crate) mod getopt;
pub mod manager;
pub mod nat;
pub(crate) mod option_value;
pub(super) mod setup;
pub mod sip002;
pub mod sip008;

use adit_model::{KeyForm, Plugin, Secret, ShadowsocksKey};
use adit_proto::shadowsocks::KeyError;
pub use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_proto::wire::Target;

pub use self::setup::{Control, Manager, ManagerAddress, Online, Process, ShadowsocksSetup};
use crate::read::value::{self, Problem};

/// The program family whose rules hold where the two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramFamily {
    /// shadowsocks-libev: `ss-local`, `ss-server`, `ss-tunnel`, `ss-redir`, `ss-manager`.
    Libev,
    /// shadowsocks-rust: `sslocal`, `ssserver`, `ssmanager`, `ssservice`, `ssurl`.
    Rust,
}

/// A server as links and lists describe it to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowsocksProfile {
    /// Name for people.
    pub name: Option<Box<str>>,
    /// Identifier in a list (SIP008), to know it again when its address changes.
    pub id: Option<Box<str>>,
    /// Its address; never port 0.
    pub server: Target,
    /// Method and key.
    pub key: ShadowsocksKey,
    /// The program that carries the stream.
    pub plugin: Option<Plugin>,
}

/// Longest password, path of a plugin and options of one, in bytes.
pub(crate) const MAX_TEXT: usize = 4096;

/// The method of this name.
pub(super) fn method(text: &str) -> Result<ShadowsocksMethod, Problem> {
    text.parse().map_err(|_| {
        let problem = Problem::new(format!("unknown method: {}", value::excerpt(text)));
        match value::closest(text, ShadowsocksMethod::all().map(ShadowsocksMethod::name)) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem.hint("write for instance 2022-blake3-aes-128-gcm or chacha20-ietf-poly1305"),
        }
    })
}

/// The key that a password is for a method.
pub(super) fn key(method: ShadowsocksMethod, password: Secret) -> Result<ShadowsocksKey, Problem> {
    if !password.expose().is_empty() {
        value::secret(password.expose(), MAX_TEXT)?;
    }
    ShadowsocksKey::new(method, password, KeyForm::Password).map_err(|error| wrong_key(method, &error))
}

/// The problem of a text that is no key for `method`, with the command that makes one.
pub(crate) fn wrong_key(method: ShadowsocksMethod, error: &KeyError) -> Problem {
    let problem = Problem::new(error.to_string());
    match error {
        KeyError::Length { .. } | KeyError::NotBase64 { .. } => problem.hint(format!(
            "{method} needs {} bytes in base64: `adit key {method}` makes them",
            method.key_len()
        )),
        KeyError::Empty { .. } => problem.hint(format!("`adit key {method}` makes a good one")),
        KeyError::Identities { .. } | KeyError::SameKey { .. } => problem,
    }
}

/// The properties that both dialects keep: findings lie inside the text, and what is accepted can be written as adit's
/// own file and read again.
pub(crate) fn check_setup(text: &str, setup: &ShadowsocksSetup) {
    crate::read::loaded::assert_inside(text, &setup.diagnostics);
    if setup.config.inbounds.is_empty() {
        // A manager begins with nothing, which is no file of adit's.
        return;
    }
    let again = crate::adit_toml::parse("again.toml", &crate::adit_toml::to_toml(&setup.config));
    assert_eq!(again.map(|again| again.config).as_ref(), Ok(&setup.config));
}
