//! Users with a key each, of AEAD methods up to SIP004: the user is the one whose key opens the first chunk.
//!
//! Keys of users who have come from the same source are tried first. The others are tried in the order of their last
//! activity, in small turns with rests that are three times as long, so that an unauthenticated client never takes more than
//! a quarter of a core. The order never shortens a search in vain: it tries every key. Few are tried at a time:
//! one who finds no place meets the same silence as one without a key. A thread tries datagrams of unknown sources, unless
//! the users are few.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use adit_model as model;
use adit_net::rt;
use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::{
    MethodKey, NoFilter, PacketCodec, ServerKey, ShadowsocksAcceptor, client_packets,
};
use adit_proto::wire::{Room, Target, WireError};

use super::key_search_queue::{KeySearchQueue, Unknown, submit};
use crate::admission::guard::Ticket;
use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, Moved, OpenedDatagram, PacketInbound, SessionOwners,
    bare_room,
};
use crate::listener::unauthenticated::Refusal;
use crate::rng::OsRng;
use crate::users::{Account, Accounts, Activity, KeyOrder, KnownSources, Searches};

/// Keys that are tried between two rests.
const CHUNK: usize = 32;
/// A rest is so many times as long as the work before it.
const REST: u32 = 3;
/// Unauthenticated clients that are tried at a time.
const MOST_TRIALS: usize = 16;
/// Bytes of the first chunk's length with its tag.
const LENGTH_LEN: usize = 2 + 16;
/// With more users, a datagram from an unknown source is not tried on the spot.
const MOST_OF_DATAGRAM: usize = 256;
/// Longest datagram whose user is looked for.
const LONGEST_UNKNOWN: usize = 2048;
/// Datagrams of unknown sources that are tried on the spot in one second, on one core.
const DATAGRAMS_PER_SECOND: u32 = 200;
/// Peers of datagrams whose user is known.
const MOST_PEERS: usize = 65_536;

/// The keys of an inbound's users.
#[derive(Debug)]
pub(super) struct MultiKeyUsers {
    keys: Vec<ServerKey>,
    activity: Arc<Activity>,
    /// Bytes that tell a key.
    first_len: usize,
    trials: AtomicUsize,
    unknowns: KeySearchQueue,
    /// Keys that have been tried.
    #[cfg(test)]
    tried: AtomicUsize,
}

impl MultiKeyUsers {
    /// Of a server whose users have a key each; `None` for others.
    pub(super) fn new(config: &model::ShadowsocksServerKey, sources: &Arc<KnownSources>) -> Option<Self> {
        if !config.is_each() {
            return None;
        }
        let method = config.method();
        let key =
            |user: &model::User| MethodKey::from_password(method, user.key.expose()).map(ServerKey::new);
        let keys = config.users().iter().map(key).collect::<Result<_, _>>().ok()?;
        let activity = sources.activity(config.users().iter().map(|user| user.name.clone()).collect());
        let first_len = method.salt_len() + LENGTH_LEN;
        let (trials, unknowns) = (AtomicUsize::new(0), KeySearchQueue::default());
        Some(Self {
            keys,
            activity,
            first_len,
            trials,
            unknowns,
            #[cfg(test)]
            tried: AtomicUsize::new(0),
        })
    }

    /// Number of users.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Datagrams whose user is looked for.
    pub(super) fn unknowns(&self) -> &KeySearchQueue {
        &self.unknowns
    }

    /// Counters of searches.
    pub(super) fn searches(&self) -> &Arc<Searches> {
        self.activity.sources().searches()
    }

    /// The order in which keys are tried.
    pub(super) fn order(&self) -> KeyOrder {
        self.activity.order()
    }

    /// The key of a user.
    pub(super) fn key(&self, user: usize) -> &ServerKey {
        &self.keys[user]
    }

    /// The bytes that tell the key, once they are there.
    pub(super) fn first(&self, unread: &[u8]) -> Option<Vec<u8>> {
        unread.get(..self.first_len).map(<[u8]>::to_vec)
    }

    /// Whether `first` is `user`'s; `copy`, as long, is where it is opened.
    fn opens(&self, user: usize, first: &[u8], copy: &mut RecvBuf) -> bool {
        #[cfg(test)]
        self.tried.fetch_add(1, Ordering::Relaxed);
        copy.reset();
        copy.extend(first);
        // A length that opens leaves the acceptor waiting for the rest of the chunk.
        ShadowsocksAcceptor::new(&self.keys[user]).accept(copy, 0, &mut NoFilter).is_ok()
    }

    /// Whether a datagram is `user`'s; `copy` is where it is opened.
    pub(super) fn opens_datagram(&self, user: usize, datagram: &[u8], copy: &mut Vec<u8>) -> bool {
        #[cfg(test)]
        self.tried.fetch_add(1, Ordering::Relaxed);
        copy.clear();
        copy.extend_from_slice(datagram);
        client_packets(self.keys[user].key(), &mut OsRng).open(copy, 0, &mut NoFilter).is_ok()
    }

    /// The users that have come from `source`, most recent first.
    pub(super) fn known(&self, source: IpAddr) -> Vec<u32> {
        self.activity.known(source)
    }

    /// `user` has come from `source`.
    pub(super) fn note(&self, source: IpAddr, user: usize) {
        self.activity.note(source, user);
    }

    /// The user whose key opens `first`.
    ///
    /// # Errors
    /// When there is none, or too many unauthenticated clients are tried already.
    pub(super) async fn find(&self, source: IpAddr, first: &[u8], ticket: &Ticket) -> Result<usize, Refusal> {
        let known = self.known(source);
        let mut copy = RecvBuf::with_len(first.len());
        let found = match numbers(&known).find(|user| self.opens(*user, first, &mut copy)) {
            Some(user) => {
                self.searches().note_known();
                Some(user)
            }
            None => self.try_others(&known, first, &mut copy, ticket).await?,
        };
        let user = found.ok_or(Refusal::Wire(WireError::Authentication { what: "first chunk" }))?;
        self.note(source, user);
        Ok(user)
    }

    async fn try_others(
        &self,
        known: &[u32],
        first: &[u8],
        copy: &mut RecvBuf,
        ticket: &Ticket,
    ) -> Result<Option<usize>, Refusal> {
        if !ticket.may_derive(rt::now()) {
            return Err(Refusal::Throttled);
        }
        let search = self.searches().begin();
        let Some(_place) = Place::take(&self.trials) else { return Err(Refusal::Throttled) };
        search.take_place();
        search.note_keys(known.len());
        let order = self.order();
        for users in order.all().chunks(CHUNK) {
            let since = rt::now();
            let mut tried = 0;
            let mut opens = |user: &usize| {
                tried += 1;
                self.opens(*user, first, copy)
            };
            let found = others(users, known).find(&mut opens);
            search.note_keys(tried);
            if found.is_some() {
                search.note_found();
                return Ok(found);
            }
            rt::sleep((rt::now() - since) * REST).await;
        }
        Ok(None)
    }
}

/// Users as indices.
fn numbers(users: &[u32]) -> impl Iterator<Item = usize> {
    users.iter().map(|user| *user as usize)
}

/// Those of `users` who are not among `known`.
pub(super) fn others(users: &[u32], known: &[u32]) -> impl Iterator<Item = usize> {
    users.iter().filter(|user| !known.contains(user)).map(|user| *user as usize)
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
    each: Arc<MultiKeyUsers>,
    accounts: Accounts,
    codecs: HashMap<usize, Box<dyn PacketCodec>>,
    peers: HashMap<SocketAddr, usize>,
    /// A second, and the datagrams of unknown sources that were tried in it.
    tried: (u64, u32),
    /// A datagram is opened here where its user may be one of several: a key that does not open it may change it.
    copy: Vec<u8>,
    exchange: (Arc<SessionOwners>, usize),
}

impl EachPackets {
    /// No clients yet. `exchange` is what the cores of the listener share, with the number of this core.
    pub(super) fn new(
        each: Arc<MultiKeyUsers>,
        accounts: Accounts,
        exchange: (Arc<SessionOwners>, usize),
    ) -> Self {
        let (codecs, peers) = (HashMap::new(), HashMap::new());
        Self { each, accounts, codecs, peers, tried: (0, 0), copy: Vec::new(), exchange }
    }

    fn codec(&mut self, user: usize) -> &mut dyn PacketCodec {
        let key = self.each.key(user);
        &mut **self.codecs.entry(user).or_insert_with(|| client_packets(key.key(), &mut OsRng))
    }

    /// Whether a datagram of an unknown source may be tried with everybody's key on the spot: users are few, and so are such
    /// datagrams.
    fn may_try_everybody(&mut self, unix_s: u64) -> bool {
        if self.tried.0 != unix_s {
            self.tried = (unix_s, 0);
        }
        let may = self.each.len() <= MOST_OF_DATAGRAM && self.tried.1 < DATAGRAMS_PER_SECOND;
        self.tried.1 += u32::from(may);
        may
    }

    /// Opens a datagram with the key of one of `users`.
    fn open_as_any(
        &mut self,
        mut users: impl Iterator<Item = usize>,
        arrival: &Arrival,
        datagram: &mut [u8],
    ) -> Option<OpenedDatagram> {
        let mut copy = std::mem::take(&mut self.copy);
        let opened = users.find_map(|user| {
            copy.clear();
            copy.extend_from_slice(datagram);
            self.open_as(user, arrival, &mut copy)
        });
        if opened.is_some() {
            datagram.copy_from_slice(&copy);
        }
        self.copy = copy;
        opened
    }

    /// Opens a datagram in place with the key of `user`.
    fn open_as(&mut self, user: usize, arrival: &Arrival, datagram: &mut [u8]) -> Option<OpenedDatagram> {
        let at = arrival.peer.at;
        let packet = self.codec(user).open(datagram, arrival.unix_s, &mut NoFilter).ok()?;
        if self.peers.len() >= MOST_PEERS {
            self.peers.clear();
        }
        if self.peers.insert(at, user) != Some(user) {
            self.each.note(at.ip(), user);
        }
        Some(OpenedDatagram::new(
            FlowClient::User(at, user),
            DatagramTarget::Own(packet.target),
            packet.payload,
        ))
    }

    /// Has the user of a datagram looked for, which comes back then.
    fn look_for(&self, arrival: &Arrival, datagram: &[u8]) -> Result<(), DropReason> {
        if datagram.len() < self.each.first_len {
            return Err(DropReason::Wire(WireError::Truncated { what: "a datagram" }));
        }
        if datagram.len() > LONGEST_UNKNOWN {
            return Err(DropReason::TooBig);
        }
        let (peer, class) = (arrival.peer, arrival.class);
        let unknown = Unknown { peer, class, bytes: datagram.to_vec(), exchange: self.exchange.clone() };
        if submit(&self.each, unknown) { Ok(()) } else { Err(DropReason::Mailbox) }
    }
}

fn no_key() -> DropReason {
    DropReason::Wire(WireError::Authentication { what: "datagram" })
}

impl PacketInbound for EachPackets {
    fn is_sealed(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let at = arrival.peer.at;
        if let Some(user) = self.peers.get(&at).copied() {
            let opened = self.open_as(user, arrival, datagram);
            if opened.is_none() {
                // The address may be another user's from now on.
                self.peers.remove(&at);
            }
            return opened.map(Some).ok_or_else(no_key);
        }
        let known = self.each.known(at.ip());
        if let Some(opened) = self.open_as_any(numbers(&known), arrival, datagram) {
            return Ok(Some(opened));
        }
        if !self.may_try_everybody(arrival.unix_s) {
            return self.look_for(arrival, datagram).map(|()| None);
        }
        let order = self.each.order();
        self.open_as_any(others(order.all(), &known), arrival, datagram).map(Some).ok_or_else(no_key)
    }

    fn next_moved(&mut self, waker: &Waker) -> Option<Moved> {
        let (exchange, core) = &self.exchange;
        exchange.take(*core, waker)
    }

    fn open_moved(
        &mut self,
        _: &Moved,
        arrival: &Arrival,
        datagram: &mut [u8],
    ) -> Result<OpenedDatagram, DropReason> {
        // The users may be others since: the source says who it is.
        let known = self.each.known(arrival.peer.at.ip());
        self.open_as_any(numbers(&known), arrival, datagram).ok_or_else(no_key)
    }

    fn account(&self, client: &FlowClient) -> Option<&Arc<Account>> {
        let FlowClient::User(_, user) = client else { return None };
        self.accounts.get(*user)
    }

    fn room(&mut self, client: &FlowClient, source: &Target) -> Room {
        let FlowClient::User(_, user) = client else { return bare_room() };
        self.codec(*user).room(source)
    }

    fn seal(
        &mut self,
        client: &FlowClient,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, WireError> {
        let FlowClient::User(_, user) = client else {
            return Err(WireError::Authentication { what: "client without a user" });
        };
        self.codec(*user).seal(block, payload, source, unix_s, &mut OsRng)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use adit_net::rt::Cores;
    use adit_proto::shadowsocks::{ShadowsocksClientStream, WallClock};
    use adit_proto::wire::Layer as _;

    use super::*;
    use crate::admission::Places;
    use crate::admission::guard::Guard;
    use crate::datagram::Peer;
    use crate::protocols::shadowsocks::key_search_queue::{WAITING, WAITING_PER_SOURCE};

    fn config(count: usize) -> model::ShadowsocksServerKey {
        let user = |n: usize| {
            model::User::from((format!("user{n}").into(), model::Secret::new(format!("password {n}"))))
        };
        let method = "chacha20-ietf-poly1305".parse().unwrap();
        model::ShadowsocksServerKey::each(method, (0..count).map(user).collect()).unwrap()
    }

    fn key(n: usize) -> MethodKey {
        MethodKey::from_password("chacha20-ietf-poly1305".parse().unwrap(), &format!("password {n}")).unwrap()
    }

    fn each(count: usize) -> Arc<MultiKeyUsers> {
        Arc::new(MultiKeyUsers::new(&config(count), &Arc::default()).unwrap())
    }

    /// The first bytes of a stream of user `n`.
    fn request(n: usize) -> Vec<u8> {
        let target = Target::new(b"192.0.2.1", 443).unwrap();
        let mut client =
            ShadowsocksClientStream::new(&key(n), &target, WallClock::new(rt::now(), 0), &mut OsRng);
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
            let mut copy = RecvBuf::with_len(first.len());
            let found: Vec<usize> = (0..40).filter(|user| each.opens(*user, &first, &mut copy)).collect();
            assert_eq!(found, [n]);
            let mut wrong = first.clone();
            wrong[each.first_len - 1] ^= 1;
            assert!(!(0..40).any(|user| each.opens(user, &wrong, &mut copy)));
        }
    }

    fn ip(n: u8) -> IpAddr {
        [198, 51, 100, n].into()
    }

    /// The user whose stream comes from `source`, and the number of keys that were tried.
    fn find(each: &MultiKeyUsers, source: IpAddr, first: &[u8]) -> (Option<usize>, usize) {
        let guard = Rc::new(Guard::new(10, 10, Places::unbounded(), rt::now()));
        let ticket = guard.enter(source, rt::now());
        each.tried.store(0, Ordering::Relaxed);
        let found = Cores::block_on(each.find(source, first, &ticket)).unwrap();
        (found.ok(), each.tried.load(Ordering::Relaxed))
    }

    /// A user who moves to another address is found by the last activity, in streams and datagrams. One without a key costs every
    /// key once, in any order, or the time would tell who is active.
    #[test]
    fn keys_are_tried_in_order_of_last_activity() {
        const COUNT: usize = MOST_OF_DATAGRAM + 44;
        let mut server = packets(COUNT);
        let each = server.each.clone();
        let first = |n: usize| each.first(&request(n)).unwrap();
        let garbage = vec![7; each.first_len];
        assert_eq!(find(&each, ip(1), &garbage), (None, COUNT));
        assert_eq!(find(&each, ip(1), &first(290)), (Some(290), 291));
        assert_eq!(find(&each, ip(2), &first(150)), (Some(150), 152), "behind 290");
        assert_eq!(find(&each, ip(3), &first(290)), (Some(290), 2));
        assert_eq!(find(&each, ip(3), &first(150)), (Some(150), 2), "who is known there comes first, once");
        assert_eq!(find(&each, ip(3), &garbage), (None, COUNT));
        assert_eq!(find(&each, ip(4), &garbage), (None, COUNT));
        let mut look = |n: usize, source: u8, expected: usize| {
            let peer = Peer { at: (ip(source), 1).into(), local: None };
            let mut wire = datagram(&mut *client_packets(&key(n), &mut OsRng));
            each.tried.store(0, Ordering::Relaxed);
            assert!(server.open(&Arrival { peer, ..arrival(1) }, &mut wire).unwrap().is_none());
            assert_eq!(come_back(&mut server).1.is_ok(), n < COUNT);
            assert_eq!(each.tried.load(Ordering::Relaxed), expected, "{n}");
        };
        look(150, 5, 1);
        look(290, 6, 2);
        look(299, 7, COUNT);
        look(299, 8, 1);
        look(COUNT, 9, COUNT);
    }

    /// Datagrams of few users are tried on the spot, in the same order.
    #[test]
    fn few_users_are_tried_in_order_of_last_activity_too() {
        let mut server = packets(40);
        for (source, n, codecs) in [(1, 30, 31), (2, 38, 39), (3, 30, 2)] {
            server.codecs.clear();
            let peer = Peer { at: (ip(source), 1).into(), local: None };
            let mut wire = datagram(&mut *client_packets(&key(n), &mut OsRng));
            let opened = server.open(&Arrival { peer, ..arrival(1) }, &mut wire).unwrap().unwrap();
            assert_eq!((opened.client, server.codecs.len()), (FlowClient::User(peer.at, n), codecs));
        }
    }

    /// Cost of clients of unknown sources among 10,000 users of whom a fifth is active: prints the figures of docs/fleet.md.
    #[test]
    #[ignore = "measures for some seconds"]
    fn ten_thousand_keys_a_fifth_active() {
        const COUNT: usize = 10_000;
        const ACTIVE: usize = 2000;
        let each = each(COUNT);
        // Any of the active ones, spread over the configuration.
        let user = |n: usize| n * 7919 % ACTIVE * (COUNT / ACTIVE);
        let positions = |user: usize| each.order().all().iter().position(|other| *other as usize == user);
        let mut tried = 0;
        let mut random = 1_usize;
        let mut next = || {
            random = random * 1_103_515_245 % 2_147_483_648 + 12_345;
            user(random / 64)
        };
        for _ in 0..ACTIVE * 4 {
            each.activity.note(ip(1), next());
        }
        for _ in 0..ACTIVE {
            let user = next();
            tried += positions(user).unwrap() + 1;
            each.activity.note(ip(1), user);
        }
        let mean = |sum: usize| sum / ACTIVE;
        let in_file: usize = (0..ACTIVE).map(|n| user(n) + 1).sum();
        let first = each.first(&request(1)).unwrap();
        let mut copy = RecvBuf::with_len(first.len());
        let since = rt::now();
        let found = (0..COUNT).filter(|user| each.opens(*user, &first, &mut copy)).count();
        let per_key = (rt::now() - since) / u32::try_from(COUNT).unwrap();
        let since = rt::now();
        for n in 0..100 {
            each.activity.note(ip(1), n);
            std::hint::black_box(each.order());
        }
        let renewal = (rt::now() - since) / 100;
        println!(
            "{found} of {COUNT} keys opens, {per_key:?} per key; keys tried: {} by activity, {} in the file's order; \
             a new order: {renewal:?}",
            mean(tried),
            mean(in_file)
        );
        assert!(mean(tried) * 3 < mean(in_file));
    }

    fn packets(count: usize) -> EachPackets {
        EachPackets::new(each(count), Arc::default(), (Arc::new(SessionOwners::new(1)), 0))
    }

    fn arrival(port: u16) -> Arrival {
        let at = SocketAddr::from(([192, 0, 2, 7], port));
        Arrival { peer: Peer { at, local: None }, original: None, class: 0, now: 0, unix_s: 9 }
    }

    /// A datagram of a client.
    fn datagram(codec: &mut dyn PacketCodec) -> Vec<u8> {
        let target = Target::new(b"192.0.2.1", 443).unwrap();
        let mut block = vec![0; 4096];
        block[1000..1005].copy_from_slice(b"hello");
        let sealed = codec.seal(&mut block, 1000..1005, &target, 9, &mut OsRng).unwrap();
        block[sealed].to_vec()
    }

    #[test]
    fn datagrams_tell_the_user_and_answers_are_theirs() {
        let mut server = packets(40);
        let target = Target::new(b"192.0.2.1", 443).unwrap();
        let mut clients: Vec<_> = [3, 33].iter().map(|n| client_packets(&key(*n), &mut OsRng)).collect();
        for (port, n) in [(1, 0), (2, 1), (1, 0), (1, 1)] {
            let mut datagram = datagram(&mut *clients[n]);
            // A peer that changes its user is taken for the other one at its second datagram.
            let opened = server.open(&arrival(port), &mut datagram.clone());
            let opened = opened.or_else(|_| server.open(&arrival(port), &mut datagram)).unwrap().unwrap();
            assert_eq!(opened.client, FlowClient::User(arrival(port).peer.at, [3, 33][n]));
            let mut block = vec![0; 4096];
            block[1000..1003].copy_from_slice(b"you");
            let sealed = server.seal(&opened.client, &mut block, 1000..1003, &target, 9).unwrap();
            let mut answer = block[sealed].to_vec();
            let packet = clients[n].open(&mut answer, 9, &mut NoFilter).unwrap();
            assert_eq!(&answer[packet.payload], b"you");
        }
        let mut noise = vec![7; 100];
        assert!(server.open(&arrival(9), &mut noise).is_err());
    }

    #[test]
    fn datagrams_that_are_tried_on_the_spot_are_few() {
        assert!(!packets(MOST_OF_DATAGRAM + 1).may_try_everybody(9));
        let mut server = packets(3);
        for _ in 0..DATAGRAMS_PER_SECOND {
            assert!(server.may_try_everybody(9));
        }
        assert!(!server.may_try_everybody(9) && server.may_try_everybody(10));
    }

    /// The next datagram whose user has been looked for.
    fn come_back(server: &mut EachPackets) -> (Moved, Result<OpenedDatagram, DropReason>) {
        let until = rt::now() + Duration::from_secs(60);
        loop {
            if let Some(moved) = server.next_moved(Waker::noop()) {
                let arrival = Arrival { peer: moved.peer, ..arrival(1) };
                let opened = server.open_moved(&moved, &arrival, &mut moved.bytes.clone());
                return (moved, opened);
            }
            assert!(rt::now() < until, "the datagram has not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_datagram_of_an_unknown_source_comes_back_with_its_user() {
        const COUNT: usize = MOST_OF_DATAGRAM + 44;
        for n in [0, COUNT - 1] {
            let mut server = packets(COUNT);
            let wire = datagram(&mut *client_packets(&key(n), &mut OsRng));
            assert!(server.open(&arrival(1), &mut wire.clone()).unwrap().is_none(), "it is looked for");
            let (moved, opened) = come_back(&mut server);
            let opened = opened.unwrap();
            assert_eq!((moved.bytes, opened.client), (wire, FlowClient::User(arrival(1).peer.at, n)));
            // From then on the source is known, and another port of it too.
            for port in [1, 2] {
                let mut wire = datagram(&mut *client_packets(&key(n), &mut OsRng));
                let opened = server.open(&arrival(port), &mut wire).unwrap().unwrap();
                assert_eq!(opened.client, FlowClient::User(arrival(port).peer.at, n));
            }
            let status = server.each.searches().status().unwrap();
            assert_eq!((status.begun, status.waiting), (1, 0));
        }
    }

    #[test]
    fn garbage_of_one_source_leaves_a_place_for_others() {
        const COUNT: usize = MOST_OF_DATAGRAM + 44;
        let mut server = packets(COUNT);
        let mut kept = 0;
        for _ in 0..500 {
            kept += usize::from(server.open(&arrival(1), &mut [7; 100]).is_ok());
            let (_, own) = server.each.unknowns().waiting(arrival(1).peer.at.ip());
            assert!(own <= WAITING_PER_SOURCE, "{own}");
        }
        assert!(kept >= WAITING_PER_SOURCE);
        let other = Arrival { peer: Peer { at: ([192, 0, 2, 8], 1).into(), local: None }, ..arrival(1) };
        let mut wire = datagram(&mut *client_packets(&key(COUNT - 1), &mut OsRng));
        assert!(server.open(&other, &mut wire).unwrap().is_none());
        for _ in 0..kept {
            assert!(come_back(&mut server).1.is_err());
        }
        let (moved, opened) = come_back(&mut server);
        assert_eq!(
            (moved.peer, opened.unwrap().client),
            (other.peer, FlowClient::User(other.peer.at, COUNT - 1))
        );
        // Of many sources few wait, and no search is begun for bytes that are too few or too many.
        for n in 0..1000_u16 {
            let [high, low] = n.to_be_bytes();
            let peer = Peer { at: ([198, 18, high, low], 1).into(), local: None };
            drop(server.open(&Arrival { peer, ..arrival(1) }, &mut [7; 1400]));
            assert!(server.each.unknowns().waiting(peer.at.ip()).0 <= WAITING);
        }
        assert!(matches!(server.open(&arrival(3), &mut [7; 3000]), Err(DropReason::TooBig)));
        assert!(matches!(server.open(&arrival(3), &mut [7; 40]), Err(DropReason::Wire(_))));
    }
}
