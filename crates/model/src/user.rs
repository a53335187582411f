//! Users of inbounds: one model for every protocol.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::{Expiry, Secret};

/// A user of an inbound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name in logs and status. Its account has the same text.
    pub name: Arc<str>,
    /// The credential. SOCKS and HTTP: the password. Snell: the pre-shared key, or the client id where all users have
    /// one pre-shared key. Shadowsocks 2022: the user's key in base64.
    pub key: Secret,
    /// Its limits.
    pub limits: UserLimits,
}

/// A user without limits.
impl From<(Box<str>, Secret)> for User {
    fn from((name, key): (Box<str>, Secret)) -> Self {
        Self { name: name.into(), key, limits: UserLimits::default() }
    }
}

/// Limits of a user; nothing is limited by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Payload bytes of a period, both directions together.
    pub quota: Option<u64>,
    /// Day of the month on which a period begins, 1 to 28, at midnight UTC; without it there is one period for ever.
    pub reset_day: Option<u8>,
    /// When the service ends: from then on the user is refused, and its connections are reset.
    pub expires: Option<Expiry>,
    /// Payload bytes per second, in each direction; at least 1.
    pub rate: Option<u64>,
    /// Connections at a time; at least 1.
    pub connections: Option<u32>,
    /// Source addresses (IPv4 address, IPv6 /64) at a time; at least 1.
    pub addresses: Option<u32>,
}

/// Users with names and keys of their own; at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct Users(Arc<[User]>);

/// Why users cannot be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UsersError {
    /// There is none.
    #[error("there is none")]
    None,
    /// Two have one name.
    #[error("the name of user {0} is another one's as well")]
    Name(usize),
    /// Two have one key.
    #[error("the key of user {0} is another one's as well")]
    Key(usize),
}

impl Users {
    /// Takes users that can be told apart.
    ///
    /// # Errors
    /// The index, from 0, of the first user that cannot.
    pub fn new(users: Vec<User>) -> Result<Self, UsersError> {
        if users.is_empty() {
            return Err(UsersError::None);
        }
        let (mut names, mut keys) = (HashSet::new(), HashSet::new());
        for (index, user) in users.iter().enumerate() {
            if !names.insert(&*user.name) {
                return Err(UsersError::Name(index));
            }
            if !keys.insert(user.key.expose()) {
                return Err(UsersError::Key(index));
            }
        }
        Ok(Self(users.into()))
    }

    /// All of them, in the order in which they were given.
    pub fn all(&self) -> &[User] {
        &self.0
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Users").field(&self.0.len()).finish()
    }
}

/// The keys of a Snell server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnellKeys {
    /// One pre-shared key for all clients.
    Common(Secret),
    /// One pre-shared key for all clients, which name themselves by a key of their own, the client id of requests.
    Named(Secret, Users),
    /// A pre-shared key for each user.
    Each(Users),
}

impl SnellKeys {
    /// The pre-shared key that all clients have, if they do.
    pub fn common(&self) -> Option<&Secret> {
        match self {
            Self::Common(psk) | Self::Named(psk, _) => Some(psk),
            Self::Each(_) => None,
        }
    }

    /// The users that are told apart.
    pub fn users(&self) -> &[User] {
        match self {
            Self::Common(_) => &[],
            Self::Named(_, users) | Self::Each(users) => users.all(),
        }
    }
}

impl From<Secret> for SnellKeys {
    fn from(psk: Secret) -> Self {
        Self::Common(psk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_apart() {
        let user = |name: &str, key: &str| User::from((name.into(), Secret::new(key)));
        assert_eq!(Users::new(Vec::new()), Err(UsersError::None));
        assert_eq!(Users::new(vec![user("a", "1"), user("a", "2")]), Err(UsersError::Name(1)));
        assert_eq!(Users::new(vec![user("a", "1"), user("b", "1")]), Err(UsersError::Key(1)));
        assert_eq!(Users::new(vec![user("a", "1"), user("b", "2")]).unwrap().all().len(), 2);
    }
}
