//! The user of a connection and of its requests.
//!
//! A connection may outlive the users of the configuration that it was opened under, and carry requests for days. It keeps
//! the account of its own user alone: not the keys of all, nor the thread that tries them.

use std::sync::{Arc, Weak};

use adit_proto::snell::{SnellCommand, SnellRequest};
use adit_proto::wire::WireError;

use super::inbound::SnellServerShared;
use super::keys::Keys;
use crate::users::Account;

/// The user or users of a connection.
pub(super) enum Owner {
    /// Nobody in particular.
    Nobody,
    /// The user whose key has opened it.
    User(Arc<Account>),
    /// Each request names its user.
    Named(Box<Named>),
}

/// Users that are named by the client id of a request.
pub(super) struct Named {
    server: Weak<SnellServerShared>,
    /// The client id of the last request, and whose it is.
    last: Option<(Box<[u8]>, Arc<Account>)>,
}

impl Owner {
    /// That of a connection to `shared`; `opened_by` is the user whose key has opened it, where each has one.
    pub(super) fn new(shared: &Arc<SnellServerShared>, opened_by: Option<usize>) -> Self {
        match (&shared.keys, opened_by) {
            (_, Some(user)) => Self::User(shared.accounts[user].clone()),
            (Keys::Common { ids: Some(_), .. }, None) => {
                Self::Named(Box::new(Named { server: Arc::downgrade(shared), last: None }))
            }
            (Keys::Common { ids: None, .. } | Keys::Each(_), None) => Self::Nobody,
        }
    }

    /// The account of a request, if it is anybody's in particular.
    ///
    /// # Errors
    /// When it names nobody, or another user than the request before and the users have changed since.
    pub(super) fn account_of(&mut self, request: &SnellRequest) -> Result<Option<Arc<Account>>, WireError> {
        match self {
            Self::Nobody => Ok(None),
            Self::User(account) => Ok(Some(account.clone())),
            // A ping names nobody (sing-box 1.14.1).
            Self::Named(_) if request.command == SnellCommand::Ping => Ok(None),
            Self::Named(named) => named.find(&request.client_id).map(Some),
        }
    }
}

impl Named {
    fn find(&mut self, client_id: &[u8]) -> Result<Arc<Account>, WireError> {
        if let Some((last, account)) = &self.last
            && **last == *client_id
        {
            return Ok(account.clone());
        }
        let server = self.server.upgrade();
        let user = server.as_ref().and_then(|server| server.keys.user_named(client_id));
        let (Some(server), Some(user)) = (&server, user) else {
            return Err(WireError::Authentication { what: "client id" });
        };
        let account = server.accounts[user].clone();
        self.last = Some((client_id.into(), account.clone()));
        Ok(account)
    }
}
