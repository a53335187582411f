//! Settings of ShadowsocksR.

use std::collections::HashSet;
use std::sync::Arc;

use adit_proto::goquiet;
use adit_proto::ssr::obfs::SessionId;
use adit_proto::ssr::{Obfs, SsrKey, SsrMethod, SsrProtocol, obfs, protocol};
use adit_proto::wire::{Rng, Target};
use thiserror::Error;

use crate::{Plugin, Redirect, Secret, Tag, Transports, User};

/// A ShadowsocksR server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsrServer {
    /// The cipher.
    pub method: SsrMethod,
    /// The password, not empty.
    pub password: Secret,
    /// The protocol inside the cipher.
    pub protocol: SsrProtocol,
    /// Whether clients with protocol `origin` are served too (`_compatible`).
    pub protocol_compatible: bool,
    /// The obfs around the cipher.
    pub obfs: Obfs,
    /// Whether clients with obfs `plain` are served too (`_compatible`).
    pub obfs_compatible: bool,
    /// HTTP: hosts that are accepted, separated by commas. TLS: how far a client's clock may be off, in seconds.
    pub obfs_param: Box<str>,
    /// The users; empty for every client with the password.
    pub users: SsrUsers,
    /// Most clients of one user at a time, at least 1.
    pub max_clients: usize,
    /// Seconds between two lists of sizes of `auth_chain_f`, at least 1.
    pub key_interval_s: u64,
    /// The transports that it serves.
    pub transports: Transports,
    /// Fallback servers for streams of peers that do not authenticate; empty for none, where such peers are left alone.
    pub redirect: Vec<Redirect>,
    /// The program that listens in the place of this server, beneath obfs and cipher.
    pub plugin: Option<Plugin>,
    /// The name under which the accounts of its users are kept, with those of other servers of this name; `None` for that of
    /// the inbound.
    pub accounts: Option<Tag>,
}

impl SsrServer {
    /// A server for every client with the password, without obfs.
    pub fn new(method: SsrMethod, password: Secret, protocol: SsrProtocol) -> Self {
        Self {
            method,
            password,
            protocol,
            protocol_compatible: false,
            obfs: Obfs::Plain,
            obfs_compatible: false,
            obfs_param: Box::default(),
            users: SsrUsers::default(),
            max_clients: adit_proto::ssr::Clients::DEFAULT_MAX_ACTIVE,
            key_interval_s: protocol::DEFAULT_INTERVAL_S,
            transports: Transports::Both,
            redirect: Vec::new(),
            plugin: None,
            accounts: None,
        }
    }
}

/// The users of a ShadowsocksR server: each with an id, or one to whom the whole port belongs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SsrUsers {
    /// Shared by the copies of a configuration.
    users: Arc<[User]>,
    ids: Vec<u32>,
}

/// Why a ShadowsocksR server or client cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SsrError {
    /// The protocol does not tell users apart.
    #[error("protocol {0} has no users; use auth_aes128_md5 or auth_chain_a, for instance")]
    NoUsers(SsrProtocol),
    /// Two users have one id.
    #[error("user id {0} is given to two users")]
    Id(u32),
    /// Two users have one name.
    #[error("two users are called {0}")]
    Name(Box<str>),
    /// The obfs cannot name what the parameter says.
    #[error("obfs {obfs}: {why}")]
    Parameter {
        /// The obfs.
        obfs: Obfs,
        /// The problem.
        why: String,
    },
}

impl SsrUsers {
    /// Users of `protocol`, each with its id; none are fine with every protocol.
    ///
    /// # Errors
    /// [`SsrError`] if the protocol has none, or two have one id or name.
    pub fn new(protocol: SsrProtocol, users: Vec<(u32, User)>) -> Result<Self, SsrError> {
        if !users.is_empty() && !protocol.has_users() {
            return Err(SsrError::NoUsers(protocol));
        }
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());
        for (id, user) in &users {
            if !ids.insert(*id) {
                return Err(SsrError::Id(*id));
            }
            if !names.insert(&*user.name) {
                return Err(SsrError::Name((&*user.name).into()));
            }
        }
        let (ids, users): (_, Vec<User>) = users.into_iter().unzip();
        Ok(Self { users: users.into(), ids })
    }

    /// The one user whom everybody is who has the server's password; its key should be that password.
    pub fn common(user: User) -> Self {
        Self { users: Arc::new([user]), ids: Vec::new() }
    }

    /// The user to whom the whole port belongs.
    pub fn owner(&self) -> Option<&User> {
        self.users.first().filter(|_| self.ids.is_empty())
    }

    /// The users, in the order in which they were given; the key is the secret.
    pub fn users(&self) -> &[User] {
        &self.users
    }

    /// The ids, in the same order.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Ids with their users; nothing for a port that belongs to one user.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &User)> {
        self.ids.iter().copied().zip(&*self.users)
    }
}

/// A ShadowsocksR client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsrClient {
    /// The server.
    pub server: Target,
    /// The cipher.
    pub method: SsrMethod,
    /// The password, not empty.
    pub password: Secret,
    /// The protocol inside the cipher.
    pub protocol: SsrProtocol,
    /// Id and secret, at a server that tells its users apart.
    pub user: Option<(u32, Secret)>,
    /// The obfs around the cipher.
    pub obfs: Obfs,
    /// Host names to choose from, separated by commas; empty for the server's own. HTTP: lines of the head behind a `#`.
    pub obfs_param: Box<str>,
    /// Seconds between two lists of sizes of `auth_chain_f`, at least 1.
    pub key_interval_s: u64,
    /// The transports that it is used for; others are refused.
    pub transports: Transports,
    /// Whether datagrams travel in streams to the server, inside obfs, cipher and protocol ("UDP over TCP").
    pub datagrams_over_tcp: bool,
    /// The program that connects to the server, beneath obfs and cipher.
    pub plugin: Option<Plugin>,
}

impl SsrClient {
    /// A client without user and obfs.
    pub fn new(server: Target, method: SsrMethod, password: Secret, protocol: SsrProtocol) -> Self {
        Self {
            server,
            method,
            password,
            protocol,
            user: None,
            obfs: Obfs::Plain,
            obfs_param: Box::default(),
            key_interval_s: protocol::DEFAULT_INTERVAL_S,
            transports: Transports::Both,
            datagrams_over_tcp: false,
            plugin: None,
        }
    }

    /// State of the obfs that all its connections share, but for `go_quiet`; `rng` draws the identity of this process.
    ///
    /// # Errors
    /// [`SsrError::Parameter`].
    pub fn obfs(&self, key: &SsrKey, rng: &mut dyn Rng) -> Result<obfs::SsrObfsClientConfig, SsrError> {
        let session = SessionId::draw(rng).into();
        let host = self.server.host.to_string();
        obfs::SsrObfsClientConfig::new(self.obfs, key, &self.obfs_param, &host, self.server.port, session)
            .map_err(|error| self.bad_parameter(error.to_string()))
    }

    /// The same for `go_quiet`.
    ///
    /// # Errors
    /// [`SsrError::Parameter`].
    pub fn go_quiet(&self, rng: &mut dyn Rng) -> Result<goquiet::GoQuietClientConfig, SsrError> {
        let host = self.server.host.to_string();
        let name = if self.obfs_param.is_empty() { &*host } else { &*self.obfs_param };
        let key = goquiet::GoQuietKey::new(self.password.expose().as_bytes());
        let ticket_s = goquiet::DEFAULT_TICKET_S;
        goquiet::GoQuietClientConfig::new(key, goquiet::Browser::Chrome, name, ticket_s, rng)
            .map_err(|error| self.bad_parameter(error.to_string()))
    }

    /// Whether the parameter of the obfs can be used.
    ///
    /// # Errors
    /// [`SsrError::Parameter`].
    pub fn check(&self) -> Result<(), SsrError> {
        match self.obfs {
            Obfs::GoQuiet => self.go_quiet(&mut Zeros).map(drop),
            Obfs::Plain
            | Obfs::HttpSimple
            | Obfs::HttpPost
            | Obfs::HttpMix
            | Obfs::RandomHead
            | Obfs::TlsTicketAuth
            | Obfs::TlsTicketFastauth => {
                let key = SsrKey::from_password(SsrMethod::None, b"");
                self.obfs(&key, &mut Zeros).map(drop)
            }
        }
    }

    fn bad_parameter(&self, why: String) -> SsrError {
        SsrError::Parameter { obfs: self.obfs, why }
    }
}

/// For checks alone.
struct Zeros;

impl Rng for Zeros {
    fn fill(&mut self, out: &mut [u8]) {
        out.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_ids_of_their_own() {
        let user = |id, name: &str| (id, User::from((name.into(), Secret::new("secret"))));
        let new = |protocol: &str, users| SsrUsers::new(protocol.parse().unwrap(), users);
        assert_eq!(new("auth_aes128_md5", vec![user(1, "a"), user(2, "b")]).unwrap().ids(), [1, 2]);
        assert_eq!(new("auth_chain_a", vec![user(1, "a"), user(1, "b")]), Err(SsrError::Id(1)));
        assert_eq!(new("auth_chain_a", vec![user(1, "a"), user(2, "a")]), Err(SsrError::Name("a".into())));
        assert_eq!(new("auth_sha1_v4", vec![user(1, "a")]), Err(SsrError::NoUsers(SsrProtocol::AuthSha1V4)));
        assert!(new("origin", Vec::new()).is_ok());
    }

    #[test]
    fn parameters_that_break_a_head_are_refused() {
        let client = |obfs: &str, parameter: &str| {
            let method = "aes-256-ctr".parse().unwrap();
            let server = "server.example:443".parse().unwrap();
            let client = SsrClient::new(server, method, Secret::new("p"), SsrProtocol::Origin);
            SsrClient { obfs: obfs.parse().unwrap(), obfs_param: parameter.into(), ..client }
        };
        assert_eq!(client("http_simple", "a.example,b.example").check(), Ok(()));
        assert_eq!(client("go_quiet", "").check(), Ok(()));
        assert!(client("http_simple", "a\r\nb").check().is_err());
        assert!(client("go_quiet", &"a".repeat(600)).check().is_err());
    }
}
