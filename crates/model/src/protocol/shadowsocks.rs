//! Settings of Shadowsocks: keys that fit their method, and the cover of the stream.

use std::sync::Arc;

use adit_proto::shadowsocks::{Generation, IdentityKeys, KeyError, MethodKey, ServerKey, ShadowsocksMethod};
use adit_proto::wire::Target;

use crate::{ObfsClient, ObfsServer, Secret, User, UserLimits};

/// A Shadowsocks server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowsocksServer {
    /// Method and key, and the users where it has several.
    pub key: ShadowsocksServerKey,
    /// The transports that it serves.
    pub transports: Transports,
    /// Obfs or plugin of the stream. Behind a plugin, the inbound's addresses are those that the plugin listens on.
    pub cover: ServerCover,
    /// Policy for a salt that was seen before.
    pub replay: ReplayPolicy,
}

/// A Shadowsocks client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowsocksClient {
    /// The server.
    pub server: Target,
    /// Method and key, identity keys included.
    pub key: ShadowsocksKey,
    /// The transports that it is used for; others are refused.
    pub transports: Transports,
    /// Obfs or plugin of the stream.
    pub cover: ClientCover,
}

/// A method with a key that fits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowsocksKey {
    method: ShadowsocksMethod,
    text: Secret,
    form: KeyForm,
}

/// Form of the text of a [`ShadowsocksKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// A password; for 2022 methods, base64 keys between colons: identities first, the own key last.
    Password,
    /// Base64 of the key itself, where a password would be usual.
    Base64,
}

impl ShadowsocksKey {
    /// The key that `text` stands for.
    ///
    /// # Errors
    /// [`KeyError`] if it is none for `method`.
    pub fn new(method: ShadowsocksMethod, text: Secret, form: KeyForm) -> Result<Self, KeyError> {
        derive(method, &text, form)?;
        Ok(Self { method, text, form })
    }

    /// The method.
    pub fn method(&self) -> ShadowsocksMethod {
        self.method
    }

    /// The text, as it was written.
    pub fn text(&self) -> &Secret {
        &self.text
    }

    /// Form of the text.
    pub fn form(&self) -> KeyForm {
        self.form
    }

    /// The key itself.
    pub fn derive(&self) -> MethodKey {
        derive(self.method, &self.text, self.form).expect("it was checked when it was made")
    }
}

fn derive(method: ShadowsocksMethod, text: &Secret, form: KeyForm) -> Result<MethodKey, KeyError> {
    match form {
        KeyForm::Password => MethodKey::from_password(method, text.expose()),
        KeyForm::Base64 => MethodKey::from_base64(method, text.expose()),
    }
}

/// A server's key, and its users where identity headers tell them apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowsocksServerKey {
    key: ShadowsocksKey,
    /// Shared by the copies of a configuration.
    users: Arc<[User]>,
    /// One for each user, or none.
    hops: Vec<Target>,
    /// Each user has a key of its own, and the server none.
    is_each: bool,
}

impl ShadowsocksServerKey {
    /// A server with one key for all its clients.
    ///
    /// # Errors
    /// [`KeyError`] if the key has identities in front, which only clients have.
    pub fn new(key: ShadowsocksKey) -> Result<Self, KeyError> {
        Self::with_users(key, Vec::<User>::new())
    }

    /// A server whose clients name themselves: `users` have base64 keys. Without any it is as [`Self::new`].
    ///
    /// # Errors
    /// [`KeyError`] if the method has no users, or a user's key does not fit or is there twice.
    pub fn with_users(key: ShadowsocksKey, users: Vec<impl Into<User>>) -> Result<Self, KeyError> {
        let users: Arc<[User]> = users.into_iter().map(Into::into).collect();
        derive_server(&key, &users)?;
        Ok(Self { key, users, hops: Vec::new(), is_each: false })
    }

    /// A server without a key of its own: each user has one, of an AEAD method up to SIP004, and is found by trial.
    ///
    /// # Errors
    /// [`KeyError`] if a key does not fit, there is no user, or the method is of another generation.
    pub fn each(method: ShadowsocksMethod, users: Vec<User>) -> Result<Self, KeyError> {
        let is_aead = method.generation() == Generation::Aead;
        let Some(first) = users.first().filter(|_| is_aead) else {
            return Err(KeyError::Identities { method: method.name(), got: 1 + users.len() });
        };
        let key = ShadowsocksKey::new(method, first.key.clone(), KeyForm::Password)?;
        for user in &users {
            MethodKey::from_password(method, user.key.expose())?;
        }
        Ok(Self { key, users: users.into(), hops: Vec::new(), is_each: true })
    }

    /// Whether each user has a key of its own, and the server none.
    pub fn is_each(&self) -> bool {
        self.is_each
    }

    /// A relay (SIP023): it takes off the outermost identity of a client and passes everything else on to the server
    /// of that identity, unread. `hops` are names, base64 keys and servers, at least one.
    ///
    /// # Errors
    /// As [`Self::with_users`].
    pub fn with_hops(key: ShadowsocksKey, hops: Vec<(Box<str>, Secret, Target)>) -> Result<Self, KeyError> {
        let (users, hops) = hops.into_iter().map(|(name, key, server)| ((name, key), server)).unzip();
        Ok(Self { hops, ..Self::with_users(key, users)? })
    }

    /// The same with limits for its first users, in their order.
    pub fn with_limits(mut self, limits: Vec<UserLimits>) -> Self {
        for (user, limits) in Arc::make_mut(&mut self.users).iter_mut().zip(limits) {
            user.limits = limits;
        }
        self
    }

    /// The servers that the users' connections are passed on to, in the order of users; empty for a server of its own.
    pub fn hops(&self) -> &[Target] {
        &self.hops
    }

    /// The method.
    pub fn method(&self) -> ShadowsocksMethod {
        self.key.method
    }

    /// The server's own key.
    pub fn key(&self) -> &ShadowsocksKey {
        &self.key
    }

    /// The users, in the order in which they were given.
    pub fn users(&self) -> &[User] {
        &self.users
    }

    /// The key itself, with the table of users.
    pub fn derive(&self) -> ServerKey {
        let users: &[User] = if self.is_each { &[] } else { &self.users };
        derive_server(&self.key, users).expect("it was checked when it was made")
    }
}

fn derive_server(key: &ShadowsocksKey, users: &[User]) -> Result<ServerKey, KeyError> {
    let (method, key) = (key.method, key.derive());
    let MethodKey::Aead2022(keys) = &key else {
        if users.is_empty() {
            return Ok(ServerKey::new(key));
        }
        return Err(KeyError::Identities { method: method.name(), got: 1 + users.len() });
    };
    if keys.identities() > 0 {
        return Err(KeyError::Identities { method: method.name(), got: 1 + keys.identities() });
    }
    if users.is_empty() {
        return Ok(ServerKey::new(key));
    }
    let table = IdentityKeys::new(keys.method(), users.iter().map(|user| (&*user.name, user.key.expose())))?;
    Ok(ServerKey::with_users(Arc::clone(keys), Arc::new(table)))
}

/// The transports that a server or client carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transports {
    /// Streams.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
    /// Both.
    Both,
}

impl Transports {
    /// Whether streams are carried.
    pub fn tcp(self) -> bool {
        self != Self::Udp
    }

    /// Whether datagrams are carried.
    pub fn udp(self) -> bool {
        self != Self::Tcp
    }

    /// The transports that both carry, if there are any.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Both, other) | (other, Self::Both) => Some(other),
            (one, other) => (one == other).then_some(one),
        }
    }
}

/// Policy for a connection whose salt was seen before. Methods of 2022 always refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplayPolicy {
    /// It is refused.
    #[default]
    Refuse,
    /// It is served, and named in the log.
    Report,
    /// It is served.
    Ignore,
}

/// Obfs or plugin of a server's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCover {
    /// Built-in obfs, or none.
    Obfs(ObfsServer),
    /// By another program.
    Plugin(Plugin),
}

impl Default for ServerCover {
    fn default() -> Self {
        Self::Obfs(ObfsServer::Off)
    }
}

/// Obfs or plugin of a client's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCover {
    /// Built-in obfs, or none.
    Obfs(ObfsClient),
    /// By another program.
    Plugin(Plugin),
}

impl Default for ClientCover {
    fn default() -> Self {
        Self::Obfs(ObfsClient::Off)
    }
}

/// A program that carries the stream (SIP003).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Its name, looked up like a shell does, or its path.
    pub program: Box<str>,
    /// Its options, verbatim; empty for none.
    pub options: Box<str>,
    /// Its arguments.
    pub args: Vec<Box<str>>,
    /// Transports that go through it; the other one goes as it would without a plugin.
    pub transports: Transports,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = "AAAAAAAAAAAAAAAAAAAAAA==";
    const OTHER: &str = "AQAAAAAAAAAAAAAAAAAAAA==";

    fn key(method: &str, text: &str) -> Result<ShadowsocksKey, KeyError> {
        ShadowsocksKey::new(method.parse().unwrap(), Secret::new(text), KeyForm::Password)
    }

    fn users(keys: &[&str]) -> Vec<(Box<str>, Secret)> {
        let names = (0..).map(|n| format!("user{n}").into_boxed_str());
        names.zip(keys).map(|(name, key)| (name, Secret::new(*key))).collect()
    }

    #[test]
    fn keys_fit_their_methods() {
        assert!(key("aes-128-gcm", "any password").is_ok());
        assert!(key("2022-blake3-aes-128-gcm", SHORT).is_ok());
        assert!(key("2022-blake3-aes-256-gcm", SHORT).is_err());
        assert!(key("none", "").is_ok());
        assert!(key("rc4-md5", "").is_err());
    }

    #[test]
    fn servers_take_users_where_the_method_has_them() {
        let with = |method: &str, text: &str, keys: &[&str]| {
            ShadowsocksServerKey::with_users(key(method, text).unwrap(), users(keys))
        };
        let server = with("2022-blake3-aes-128-gcm", SHORT, &[OTHER]).unwrap();
        assert_eq!(server.derive().users().len(), 1);
        assert!(with("2022-blake3-aes-128-gcm", SHORT, &[]).unwrap().derive().users().is_empty());
        assert!(with("2022-blake3-aes-128-gcm", SHORT, &[OTHER, OTHER]).is_err());
        assert!(with("aes-128-gcm", "p", &[OTHER]).is_err());
        let identity = format!("{SHORT}:{OTHER}");
        assert!(with("2022-blake3-aes-128-gcm", &identity, &[]).is_err(), "identities are for clients");
    }
}
