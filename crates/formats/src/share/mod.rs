//! One server, of Snell, Shadowsocks or ShadowsocksR, written as its clients want to read it.
//!
//! ```text
//! Surge        home = snell, 192.0.2.1, 6160, psk="...", version=5, reuse=true
//! mihomo       - name: "home"              entry of `proxies`; from version 1.19.26
//! sing-box     { "type": "snell", ... }    entry of `outbounds`; from version 1.14
//! OpenSnell    [snell-client] ...          a whole file
//! Shadowrocket snell://..., ss://..., ssr://...   a link
//! adit         [[inbound]] ...             a whole file
//! ```
//!
//! A value that a form cannot express is refused by name when the connection depends on it ([`Inexpressible`]), and
//! otherwise listed in [`Shared::left_out`]. A text that comes out is read by its client as exactly the values that
//! went in.

mod forms;
mod fuzz;
mod shadowsocks;
mod ssr;

use std::fmt;
use std::str::FromStr;

pub use adit_proto::wire::{Host, Rng, Target};
pub use fuzz::fuzz_share;
pub use shadowsocks::{Shadowsocks, share_shadowsocks};
pub use ssr::{ShadowsocksR, share_ssr};
use thiserror::Error;

use adit_model::{
    Inbound, InboundProtocol, ObfsClient, ObfsServer, Secret, SnellKeys, SnellVersion, SnellVersions, User,
};

/// A server as its clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// The name that the user reads in a list of servers.
    pub name: Box<str>,
    /// Its address or name, as clients reach it, and its port.
    pub server: Target,
    /// The pre-shared key.
    pub psk: Secret,
    /// The id of the user among others with the same pre-shared key.
    pub client_id: Option<Secret>,
    /// The obfs that it expects.
    pub obfs: ObfsClient,
    /// Whether clients keep connections for further requests.
    pub reuse: bool,
    /// The version that is announced.
    pub version: SnellVersion,
    /// TCP Fast Open.
    pub fast_open: bool,
    /// Whether it serves datagrams.
    pub udp: bool,
    /// Whether it takes QUIC on its UDP port.
    pub quic: bool,
}

impl Deployment {
    /// The servers of an inbound, reached at `host`: one, or one per user; none for an inbound that is none. With `user`,
    /// that of the user of this name alone.
    ///
    /// The port is that of the first address it listens on, obfs names `host`, and reuse is on where the
    /// version leaves the choice. A port that takes several versions is shared as version 5.
    pub fn of(inbound: &Inbound, host: &Host, user: Option<&str>) -> Vec<Self> {
        let InboundProtocol::Snell(server) = &inbound.protocol else { return Vec::new() };
        let Some(port) = inbound.listen.first().map(std::net::SocketAddr::port) else { return Vec::new() };
        let obfs_host: Box<str> = host.to_string().into();
        let version = match server.versions {
            SnellVersions::Only(version) => version,
            // Every client knows version 5.
            SnellVersions::Auto => SnellVersion::V5,
        };
        let one = |(name, psk, client_id): (Box<str>, &Secret, Option<&Secret>)| Self {
            name,
            server: Target { host: host.clone(), port },
            psk: psk.clone(),
            client_id: client_id.cloned(),
            obfs: match server.obfs {
                ObfsServer::Off => ObfsClient::Off,
                ObfsServer::Http => ObfsClient::Http(obfs_host.clone()),
                ObfsServer::Tls => ObfsClient::Tls(obfs_host.clone()),
            },
            reuse: version.fixed_reuse().unwrap_or(true),
            version,
            fast_open: inbound.socket.fast_open,
            udp: server.udp,
            quic: server.quic,
        };
        keys(&inbound.name, &server.psk, user).into_iter().map(one).collect()
    }
}

/// The keys of a server, or of its users, or of one of them, with names.
fn keys<'k>(
    name: &str,
    keys: &'k SnellKeys,
    only: Option<&str>,
) -> Vec<(Box<str>, &'k Secret, Option<&'k Secret>)> {
    if let (SnellKeys::Common(psk), None) = (keys, only) {
        return vec![(name.into(), psk, None)];
    }
    let users = keys.users().iter().filter(|user| only.is_none_or(|only| *user.name == *only));
    let with_key = |user: &'k User| match keys.common() {
        Some(psk) => (user_name(name, &user.name), psk, Some(&user.key)),
        None => (user_name(name, &user.name), &user.key, None),
    };
    users.map(with_key).collect()
}

/// The name that the user reads in a list of servers.
fn user_name(inbound: &str, user: &str) -> Box<str> {
    format!("{inbound} {user}").into()
}

/// A way of writing a server down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A line for `[Proxy]` of Surge.
    Surge,
    /// An entry for `proxies` of mihomo and other Clash kernels.
    Mihomo,
    /// An object for `outbounds` of sing-box.
    SingBox,
    /// A file for OpenSnell's `snell-client`.
    OpenSnell,
    /// A link for Shadowrocket.
    Shadowrocket,
    /// A file for adit, which is told that the server is adit as well (`half-close = "on"`).
    Adit,
}

impl Form {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 6] =
        [Self::Surge, Self::Mihomo, Self::SingBox, Self::OpenSnell, Self::Shadowrocket, Self::Adit];

    /// The name of the form, as a person writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Surge => "surge",
            Self::Mihomo => "mihomo",
            Self::SingBox => "sing-box",
            Self::OpenSnell => "opensnell",
            Self::Shadowrocket => "shadowrocket",
            Self::Adit => "adit",
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No form has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no such form; there are surge, mihomo, sing-box, opensnell, shadowrocket and adit")]
pub struct UnknownForm;

/// By [`Form::name`]; `clash` is another name of mihomo.
impl FromStr for Form {
    type Err = UnknownForm;

    fn from_str(name: &str) -> Result<Self, UnknownForm> {
        let name = if name == "clash" { "mihomo" } else { name };
        Self::ALL.into_iter().find(|form| form.name() == name).ok_or(UnknownForm)
    }
}

/// A server in one form.
#[derive(Clone, PartialEq, Eq)]
pub struct Shared {
    /// The text, ready to be pasted. It holds the key.
    pub text: String,
    /// Fields that the form has no place for, and without which the connection works all the same.
    pub left_out: Vec<&'static str>,
}

/// Without the text, which holds the key.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}

/// A form has no way to say a field that the connection depends on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{form} has no form for {field}: {why}")]
pub struct Inexpressible {
    /// The form.
    pub form: Form,
    /// The field of [`Deployment`], [`Shadowsocks`] or [`ShadowsocksR`].
    pub field: &'static str,
    /// The reason.
    pub why: &'static str,
}

/// Writes a server in one form.
///
/// # Errors
/// [`Inexpressible`] with the field that the form cannot say.
pub fn share(form: Form, deployment: &Deployment) -> Result<Shared, Inexpressible> {
    let refuse = |(field, why)| Inexpressible { form, field, why };
    forms::check(deployment).map_err(refuse)?;
    let write = match form {
        Form::Surge => forms::surge,
        Form::Mihomo => forms::mihomo,
        Form::SingBox => forms::sing_box,
        Form::OpenSnell => forms::opensnell,
        Form::Shadowrocket => forms::shadowrocket,
        Form::Adit => forms::adit,
    };
    write(deployment).map_err(refuse)
}

/// Length of a generated key unless told otherwise: 32 of 62 letters and digits are 190 bits.
pub const KEY_LEN: usize = 32;

/// Shortest and longest key that is generated: 22 letters and digits are the first to hold 128 bits.
pub const KEY_LENGTHS: std::ops::RangeInclusive<usize> = 22..=255;

/// Letters and digits alone: no form, shell or file needs to quote them.
const KEY_ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// A new key of `len` letters and digits from a cryptographically secure source.
pub fn generate_key(rng: &mut dyn Rng, len: usize) -> Secret {
    let bound = u32::try_from(KEY_ALPHABET.len()).expect("62 fits");
    let letter = |_| char::from(KEY_ALPHABET[rng.below(bound) as usize]);
    Secret::new((0..len).map(letter).collect::<String>())
}

#[cfg(test)]
mod tests;
