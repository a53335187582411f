//! Users with a key each, of AEAD methods up to SIP004: the user is the one whose key opens the first chunk.
//!
//! Keys of users who have come from the same source are tried first. The others are tried in small turns, with rests that
//! are three times as long, so that an unauthenticated client never takes more than a quarter of a core. Few are tried at a time:
//! one who finds no place meets the same silence as one without a key.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use adit_config::model;
use adit_net::rt;
use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::{Acceptor, Key, NoFilter, PacketCodec, ServerKey, client_packets};
use adit_proto::wire::{Room, Target, WireError};

use crate::guard::{Ticket, prefix};
use crate::inbound::unauthenticated::Refusal;
use crate::packet::{Arrival, Client, Destination, DropReason, Opened, PacketInbound, bare_room};
use crate::rng::OsRng;
use crate::user::{Account, Accounts, Sources};

/// Keys that are tried between two rests.
const CHUNK: usize = 32;
/// A rest is so many times as long as the work before it.
const REST: u32 = 3;
/// Unauthenticated clients that are tried at a time.
const MOST_TRIALS: usize = 16;
/// Bytes of the first chunk's length with its tag.
const LENGTH_LEN: usize = 2 + 16;
/// With more users, a datagram from an unknown source is dropped: its user must have come by stream before.
const MOST_OF_DATAGRAM: usize = 256;
/// Datagrams of unknown sources that are tried in one second, on one core.
const DATAGRAMS_PER_SECOND: u32 = 200;
/// Peers of datagrams whose user is known.
const MOST_PEERS: usize = 65_536;

/// The keys of an inbound's users.
#[derive(Debug)]
pub(super) struct Each {
    keys: Vec<ServerKey>,
    names: Vec<Arc<str>>,
    index: HashMap<Arc<str>, usize>,
    sources: Arc<Sources>,
    /// Bytes that tell a key.
    first_len: usize,
    trials: AtomicUsize,
}

impl Each {
    /// Of a server whose users have a key each; `None` for others.
    pub(super) fn new(config: &model::ShadowsocksServerKey, sources: &Arc<Sources>) -> Option<Self> {
        if !config.is_each() {
            return None;
        }
        let method = config.method();
        let key = |user: &model::User| Key::from_password(method, user.key.expose()).map(ServerKey::new);
        let keys = config.users().iter().map(key).collect::<Result<_, _>>().ok()?;
        let names: Vec<Arc<str>> = config.users().iter().map(|user| user.name.clone()).collect();
        let index = names.iter().cloned().zip(0..).collect();
        let first_len = method.salt_len() + LENGTH_LEN;
        Some(Self { keys, names, index, sources: sources.clone(), first_len, trials: AtomicUsize::new(0) })
    }

    /// The key of a user.
    pub(super) fn key(&self, user: usize) -> &ServerKey {
        &self.keys[user]
    }

    /// The bytes that tell the key, once they are there.
    pub(super) fn first(&self, unread: &[u8]) -> Option<Vec<u8>> {
        unread.get(..self.first_len).map(<[u8]>::to_vec)
    }

    fn opens(&self, user: usize, first: &[u8]) -> bool {
        let mut acceptor = Acceptor::new(&self.keys[user]);
        // The bytes are opened where they lie, so each key has a copy. A length that opens leaves the acceptor waiting for
        // the rest of the chunk.
        acceptor.accept(&mut RecvBuf::from_bytes(first), 0, &mut NoFilter).is_ok()
    }

    fn known(&self, source: IpAddr) -> Vec<usize> {
        let names = self.sources.find(prefix(source));
        names.iter().filter_map(|name| self.index.get(name).copied()).collect()
    }

    fn note(&self, source: IpAddr, user: usize) {
        self.sources.note(prefix(source), &self.names[user]);
    }

    /// The user whose key opens `first`.
    ///
    /// # Errors
    /// When there is none, or too many unauthenticated clients are tried already.
    pub(super) async fn find(&self, source: IpAddr, first: &[u8], ticket: &Ticket) -> Result<usize, Refusal> {
        let known = self.known(source);
        let found = match known.iter().copied().find(|user| self.opens(*user, first)) {
            Some(user) => {
                self.sources.searches().note_known();
                Some(user)
            }
            None => self.try_others(&known, first, ticket).await?,
        };
        let user = found.ok_or(Refusal::Wire(WireError::Authentication { what: "first chunk" }))?;
        self.note(source, user);
        Ok(user)
    }

    async fn try_others(
        &self,
        known: &[usize],
        first: &[u8],
        ticket: &Ticket,
    ) -> Result<Option<usize>, Refusal> {
        if !ticket.may_derive(rt::now()) {
            return Err(Refusal::Throttled);
        }
        let search = self.sources.searches().begin();
        let Some(_place) = Place::take(&self.trials) else { return Err(Refusal::Throttled) };
        search.take_place();
        let mut at = 0;
        while at < self.keys.len() {
            let since = rt::now();
            let until = (at + CHUNK).min(self.keys.len());
            if let Some(user) = (at..until).find(|user| !known.contains(user) && self.opens(*user, first)) {
                return Ok(Some(user));
            }
            at = until;
            rt::sleep((rt::now() - since) * REST).await;
        }
        Ok(None)
    }
}

/// A place among the unauthenticated clients that are tried; leaving it is dropping it.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(trials: &'a AtomicUsize) -> Option<Self> {
        let take = |count| (count < MOST_TRIALS).then_some(count + 1);
        trials.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| Self(trials))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Datagrams of users with a key each, every one for itself.
pub(super) struct EachPackets {
    each: Arc<Each>,
    accounts: Accounts,
    codecs: HashMap<usize, Box<dyn PacketCodec>>,
    peers: HashMap<SocketAddr, usize>,
    /// A second, and the datagrams of unknown sources that were tried in it.
    tried: (u64, u32),
}

impl EachPackets {
    pub(super) fn new(each: Arc<Each>, accounts: Accounts) -> Self {
        Self { each, accounts, codecs: HashMap::new(), peers: HashMap::new(), tried: (0, 0) }
    }

    fn codec(&mut self, user: usize) -> &mut dyn PacketCodec {
        let key = self.each.key(user);
        &mut **self.codecs.entry(user).or_insert_with(|| client_packets(key.key(), &mut OsRng))
    }

    /// The users whose datagram it may be, best first.
    fn candidates(&mut self, arrival: &Arrival) -> Vec<usize> {
        if let Some(user) = self.peers.get(&arrival.peer.at) {
            return vec![*user];
        }
        let mut users = self.each.known(arrival.peer.at.ip());
        if self.tried.0 != arrival.unix_s {
            self.tried = (arrival.unix_s, 0);
        }
        if self.each.keys.len() <= MOST_OF_DATAGRAM && self.tried.1 < DATAGRAMS_PER_SECOND {
            self.tried.1 += 1;
            let others: Vec<usize> = (0..self.each.keys.len()).filter(|user| !users.contains(user)).collect();
            users.extend(others);
        }
        users
    }
}

impl PacketInbound for EachPackets {
    fn is_sealed(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<Opened>, DropReason> {
        let at = arrival.peer.at;
        for user in self.candidates(arrival) {
            let mut copy = datagram.to_vec();
            let Ok(packet) = self.codec(user).open(&mut copy, arrival.unix_s, &mut NoFilter) else {
                continue;
            };
            datagram.copy_from_slice(&copy);
            if self.peers.len() >= MOST_PEERS {
                self.peers.clear();
            }
            if self.peers.insert(at, user) != Some(user) {
                self.each.note(at.ip(), user);
            }
            let client = Client::User(at, user);
            return Ok(Some(Opened::new(client, Destination::Own(packet.target), packet.payload)));
        }
        // The address may be another user's from now on.
        self.peers.remove(&at);
        Err(DropReason::Wire(WireError::Authentication { what: "datagram" }))
    }

    fn account(&self, client: &Client) -> Option<&Arc<Account>> {
        let Client::User(_, user) = client else { return None };
        self.accounts.get(*user)
    }

    fn room(&mut self, client: &Client, source: &Target) -> Room {
        let Client::User(_, user) = client else { return bare_room() };
        self.codec(*user).room(source)
    }

    fn seal(
        &mut self,
        client: &Client,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, WireError> {
        let Client::User(_, user) = client else {
            return Err(WireError::Authentication { what: "client without a user" });
        };
        self.codec(*user).seal(block, payload, source, unix_s, &mut OsRng)
    }
}

#[cfg(test)]
mod tests {
    use adit_proto::shadowsocks::{Client as StreamClient, WallClock};
    use adit_proto::wire::Layer as _;

    use super::*;

    fn config(count: usize) -> model::ShadowsocksServerKey {
        let user = |n: usize| {
            model::User::from((format!("user{n}").into(), model::Secret::new(format!("password {n}"))))
        };
        let method = "chacha20-ietf-poly1305".parse().unwrap();
        model::ShadowsocksServerKey::each(method, (0..count).map(user).collect()).unwrap()
    }

    fn key(n: usize) -> Key {
        Key::from_password("chacha20-ietf-poly1305".parse().unwrap(), &format!("password {n}")).unwrap()
    }

    fn each(count: usize) -> Arc<Each> {
        Arc::new(Each::new(&config(count), &Arc::default()).unwrap())
    }

    /// The first bytes of a stream of user `n`.
    fn request(n: usize) -> Vec<u8> {
        let target = Target::new(b"192.0.2.1", 443).unwrap();
        let mut client = StreamClient::new(&key(n), &target, WallClock::new(rt::now(), 0), &mut OsRng);
        let mut block = vec![0; 4096];
        let range = 1000..1005;
        block[range.clone()].copy_from_slice(b"hello");
        let sealed = client.seal(&mut block, range, rt::now()).unwrap();
        block[sealed].to_vec()
    }

    #[test]
    fn the_first_chunk_tells_the_user() {
        let each = each(40);
        for n in [0, 7, 39] {
            let wire = request(n);
            assert_eq!(each.first(&wire[..each.first_len - 1]), None);
            let first = each.first(&wire).unwrap();
            let found: Vec<usize> = (0..40).filter(|user| each.opens(*user, &first)).collect();
            assert_eq!(found, [n]);
            let mut wrong = first.clone();
            wrong[each.first_len - 1] ^= 1;
            assert!(!(0..40).any(|user| each.opens(user, &wrong)));
        }
    }

    #[test]
    fn datagrams_tell_the_user_and_answers_are_theirs() {
        let mut server = EachPackets::new(each(40), Arc::default());
        let target = Target::new(b"192.0.2.1", 443).unwrap();
        let peer = |port: u16| {
            let at = SocketAddr::from(([192, 0, 2, 7], port));
            Arrival {
                peer: crate::packet::Peer { at, local: None },
                original: None,
                class: 0,
                now: 0,
                unix_s: 9,
            }
        };
        let mut clients: Vec<_> = [3, 33].iter().map(|n| client_packets(&key(*n), &mut OsRng)).collect();
        for (port, n) in [(1, 0), (2, 1), (1, 0), (1, 1)] {
            let mut block = vec![0; 4096];
            block[1000..1005].copy_from_slice(b"hello");
            let sealed = clients[n].seal(&mut block, 1000..1005, &target, 9, &mut OsRng).unwrap();
            let mut datagram = block[sealed].to_vec();
            // A peer that changes its user is taken for the other one at its second datagram.
            let opened = server.open(&peer(port), &mut datagram.clone());
            let opened = opened.or_else(|_| server.open(&peer(port), &mut datagram)).unwrap().unwrap();
            assert_eq!(opened.client, Client::User(peer(port).peer.at, [3, 33][n]));
            let mut block = vec![0; 4096];
            block[1000..1003].copy_from_slice(b"you");
            let sealed = server.seal(&opened.client, &mut block, 1000..1003, &target, 9).unwrap();
            let mut answer = block[sealed].to_vec();
            let packet = clients[n].open(&mut answer, 9, &mut NoFilter).unwrap();
            assert_eq!(&answer[packet.payload], b"you");
        }
        let mut noise = vec![7; 100];
        assert!(server.open(&peer(9), &mut noise).is_err());
    }

    #[test]
    fn unknown_sources_of_datagrams_are_bounded() {
        let mut server = EachPackets::new(each(MOST_OF_DATAGRAM + 1), Arc::default());
        let arrival = |port: u16| {
            let at = SocketAddr::from(([192, 0, 2, 7], port));
            Arrival {
                peer: crate::packet::Peer { at, local: None },
                original: None,
                class: 0,
                now: 0,
                unix_s: 9,
            }
        };
        assert!(server.candidates(&arrival(1)).is_empty(), "too many users");
        server.each.note("192.0.2.7".parse().unwrap(), 5);
        assert_eq!(server.candidates(&arrival(1)), [5]);
        let mut server = EachPackets::new(each(3), Arc::default());
        for _ in 0..DATAGRAMS_PER_SECOND {
            assert_eq!(server.candidates(&arrival(1)).len(), 3);
        }
        assert!(server.candidates(&arrival(1)).is_empty());
    }
}
