//! Identifies the client: the keys of a server and of its users.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use adit_model::{self as model, SnellKeys, SnellVersions};
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::snell::udp::envelope::{self, Envelope};
use adit_proto::snell::{
    Accepts, CandidateKey, MAX_LONG_FRAME_LEN, Opening, SnellDirectionKey, SnellPsk, SnellServerStream,
};
use adit_proto::wire::WireError;

use crate::admission::guard::Ticket;
use crate::listener::unauthenticated::{Refusal, next_tick, receive};
use crate::protocols::snell::format::accepts;
use crate::protocols::snell::key_supply::KeySupply;
use crate::relay::Outer;
use crate::users::{KeySearch, KeySearchResult, KnownSources};

/// Bytes that a client may send while its key is looked for. No more than 32 wait for that at a time.
const WHILE_TRYING: usize = 256 << 10;

/// The keys of a server. Users are numbers in the order of the configuration.
#[derive(Debug)]
pub(super) enum Keys {
    /// One for all; with users, the client id of a request says who it is.
    Common { supply: Arc<KeySupply>, accepts: Accepts, ids: Option<HashMap<Box<[u8]>, usize>> },
    /// One for each user.
    Each(Arc<KeySearch>),
}

impl Keys {
    pub(super) fn start(
        keys: &SnellKeys,
        versions: SnellVersions,
        sources: &Arc<KnownSources>,
    ) -> io::Result<Self> {
        let ids = |users: &model::Users| {
            let ids = users.all().iter().enumerate();
            ids.map(|(user, model)| (model.key.expose().as_bytes().into(), user)).collect()
        };
        let (psk, ids) = match keys {
            SnellKeys::Each(users) => {
                return Ok(Self::Each(KeySearch::start(users.all(), sources, |psk| accepts(versions, psk))?));
            }
            SnellKeys::Named(psk, users) => (psk, Some(ids(users))),
            SnellKeys::Common(psk) => (psk, None),
        };
        let psk = SnellPsk::new(psk.expose().as_bytes());
        Ok(Self::Common { accepts: accepts(versions, &psk), supply: KeySupply::start(psk)?, ids })
    }

    /// A fresh key for an answer to `user`.
    pub(super) fn take(&self, user: Option<usize>) -> SnellDirectionKey {
        match (self, user) {
            (Self::Common { supply, .. }, _) => supply.take(),
            (Self::Each(trial), Some(user)) => trial.take_key(user),
            (Self::Each(_), None) => unreachable!("a header was opened, and only a user's key opens one"),
        }
    }

    /// The user that a client id names, where it names one.
    pub(super) fn user_named(&self, client_id: &[u8]) -> Option<usize> {
        match self {
            Self::Common { ids, .. } => ids.as_ref()?.get(client_id).copied(),
            Self::Each(_) => None,
        }
    }

    /// Opens an envelope from `source`, with the user whose it is. A user with a key of its own must have come from
    /// there before, by stream.
    ///
    /// # Errors
    /// When nobody's key opens it, or it names nobody.
    pub(super) fn open_envelope(
        &self,
        source: IpAddr,
        datagram: &mut [u8],
    ) -> Result<(Envelope, Option<usize>), WireError> {
        match self {
            Self::Common { supply, ids, .. } => {
                let opened = envelope::open(supply.psk(), datagram)?;
                let user = self.user_named(&opened.client_id);
                if ids.is_some() && user.is_none() {
                    return Err(WireError::Authentication { what: "client id" });
                }
                Ok((opened, user))
            }
            Self::Each(trial) => {
                for (user, psk) in trial.known(source) {
                    match envelope::open(&psk, datagram) {
                        Err(WireError::Authentication { .. }) => {}
                        opened => return Ok((opened?, Some(user))),
                    }
                }
                Err(WireError::Authentication { what: "envelope of an unknown source" })
            }
        }
    }
}

/// Reads until somebody's key opens the first header, which stays unread in `wire`. `until` is the client's deadline.
pub(super) async fn identify(
    trial: &KeySearch,
    stream: &Stream,
    outer: &mut Outer,
    wire: &mut RecvBuf,
    ticket: &Ticket,
    peer: SocketAddr,
    until: Instant,
) -> Result<(usize, Opening), Refusal> {
    let mut attempt = trial.attempt(peer.ip());
    let mut tried_on = 0;
    loop {
        // More may have come while the keys were tried.
        if wire.unread().len() == tried_on {
            take_more(stream, outer, wire).await?;
        }
        tried_on = wire.unread().len();
        let first = outer.with_opened(wire, |wire| {
            let unread = wire.unread();
            unread[..unread.len().min(CandidateKey::MAX_LEN)].to_vec()
        });
        if attempt.is_warm(first.len()) {
            if !ticket.may_derive(rt::now()) {
                return Err(Refusal::Throttled);
            }
            if let Some(found) = attempt.try_known(&first) {
                return Ok(found);
            }
        }
        let tried = async { Ok(attempt.try_all_in_turn(&first).await) };
        match rt::race(Box::pin(keep_taking(stream, outer, wire, until)), tried).await? {
            // Another connection from there has shown its user: that one's key is tried on the spot.
            None => tried_on = 0,
            Some(KeySearchResult::Opened(user, opening)) => return Ok((user, opening)),
            Some(KeySearchResult::Nothing(_)) if attempt.is_exhausted() => {
                return Err(Refusal::Wire(WireError::Authentication { what: "frame header" }));
            }
            Some(KeySearchResult::Nothing(_)) => {}
        }
    }
}

/// One read behind what is there.
async fn take_more(stream: &Stream, outer: &mut Outer, wire: &mut RecvBuf) -> Result<(), Refusal> {
    let longest = wire.unread().len() + MAX_LONG_FRAME_LEN;
    let received = receive(stream, wire, longest).await?;
    outer.handle_received(wire, received, rt::now()).map_err(Refusal::Obfs)
}

/// Reads on while keys are tried, up to a bound, and returns at the next tick when the client has gone: how long the
/// trial takes must not be seen in when the connection ends. A trial that is over by then is in time.
async fn keep_taking<T>(
    stream: &Stream,
    outer: &mut Outer,
    wire: &mut RecvBuf,
    until: Instant,
) -> Result<T, Refusal> {
    while wire.unread().len() < WHILE_TRYING {
        match take_more(stream, outer, wire).await {
            Ok(()) => {}
            Err(Refusal::Gone) => {
                rt::sleep_until(next_tick(until, rt::now())).await;
                return Err(Refusal::GoneAtTick);
            }
            Err(refusal) => return Err(refusal),
        }
    }
    std::future::pending().await
}

/// The state machine of a connection whose clients all have one key.
pub(super) fn server(accepts: &Accepts, supply: &KeySupply) -> SnellServerStream {
    SnellServerStream::accepting(accepts.clone(), supply.psk().clone())
}
