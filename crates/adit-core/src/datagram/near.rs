//! The side of the clients.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use adit_net::udp::Batch;
use adit_proto::shadowsocks::aead2022::{Header, Relay, ServerPackets, Session};
use adit_proto::shadowsocks::{
    Key as SsKey, NoFilter, PacketCodec, ServerKey, TOGETHER, UserId, client_packets,
};
use adit_proto::socks;
use adit_proto::wire::{Room, Target, WireError};

use super::exchange::Moved;
use super::relay::QuicPort;
use crate::rng::OsRng;
use crate::user::{Account, Accounts};

/// Whose flow a datagram belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// That of a client's address.
    Peer(SocketAddr),
    /// That of a session, which may change its address.
    Session(u64),
    /// That of a client's address and a target, by the target's hash.
    Pair(SocketAddr, u64),
    /// That of a client's address and a user, by its number.
    Hop(SocketAddr, usize),
    /// That of a client's address, past the tunnel.
    Past(SocketAddr),
}

/// What clients speak.
pub(crate) enum Near {
    /// Nothing but payload, for one target.
    Tunnel(Target),
    /// SOCKS5, of one association.
    Socks {
        /// The client that asked for it over TCP; others are not served.
        client: IpAddr,
        /// The user whose it is, where there are users.
        account: Option<Arc<Account>>,
    },
    /// Shadowsocks up to SIP004: every datagram for itself.
    Packets(Box<dyn PacketCodec>),
    /// Shadowsocks 2022, where datagrams belong to sessions, and those to users if there are any.
    Sessions(Box<ServerPackets>, Accounts),
    /// QUIC behind envelopes, for Snell.
    Quic(QuicPort),
    /// Shadowsocks 2022, passed on unread to the server that it names, each of which is a user here.
    Relay(Relay, Arc<[Target]>, Accounts),
}

/// A client's datagram, as far as it can be opened without its flow.
pub(super) enum Opened {
    /// Wholly: target (`None` for the tunnel's) and payload, as a range into the datagram.
    Plain(Option<Target>, Range<usize>),
    /// Its session has to open it.
    Sealed(Header),
}

impl Near {
    /// A Shadowsocks server's.
    pub(crate) fn shadowsocks(key: &ServerKey, accounts: Accounts) -> Self {
        match key.key() {
            SsKey::Stream(_) | SsKey::Aead(_) => Self::Packets(client_packets(key.key(), &mut OsRng)),
            SsKey::Aead2022(keys) => {
                Self::Sessions(Box::new(ServerPackets::new(keys, key.shared_users())), accounts)
            }
        }
    }

    /// A Shadowsocks relay's, with a server for each user.
    pub(crate) fn relay(relay: Relay, hops: Arc<[Target]>, accounts: Accounts) -> Self {
        Self::Relay(relay, hops, accounts)
    }

    /// Whether datagrams carry their key, so that their size must not exceed the path's.
    pub(super) fn is_tunnel(&self) -> bool {
        matches!(self, Self::Packets(_) | Self::Sessions(..) | Self::Relay(..) | Self::Quic(_))
    }

    /// The only target of a tunnel.
    pub(super) fn fixed_target(&self) -> Option<&Target> {
        match self {
            Self::Tunnel(target) => Some(target),
            Self::Socks { .. } | Self::Packets(_) | Self::Sessions(..) | Self::Relay(..) | Self::Quic(_) => {
                None
            }
        }
    }

    /// The next datagrams of a batch are about to be opened.
    pub(super) fn expect(&mut self, next: &mut dyn Iterator<Item = &[u8]>) {
        if let Self::Packets(codec) = self {
            codec.expect(next);
        }
    }

    /// Whose flow it is, and what can be opened without it.
    pub(super) fn open(
        &mut self,
        from: SocketAddr,
        datagram: &mut [u8],
        unix_s: u64,
    ) -> Result<(Key, Opened), WireError> {
        match self {
            Self::Tunnel(_) | Self::Quic(_) => Ok((Key::Peer(from), Opened::Plain(None, 0..datagram.len()))),
            Self::Socks { client, .. } => {
                if from.ip() != *client {
                    return Err(WireError::Authentication { what: "address of an associated client" });
                }
                let (target, at) = socks::parse_datagram(datagram)?;
                Ok((Key::Peer(from), Opened::Plain(Some(target), at..datagram.len())))
            }
            Self::Packets(codec) => {
                // As in shadowsocks-rust, a datagram that comes twice is passed on twice: UDP does so too.
                let packet = codec.open(datagram, unix_s, &mut NoFilter)?;
                Ok((Key::Peer(from), Opened::Plain(Some(packet.target), packet.payload)))
            }
            Self::Relay(relay, hops, _) => {
                let (UserId(hop), rest) = relay.forward_datagram(datagram)?;
                Ok((Key::Hop(from, hop), Opened::Plain(hops.get(hop).cloned(), rest)))
            }
            Self::Sessions(packets, _) => {
                let header = packets.read_header(datagram)?;
                Ok((Key::Session(header.session_id()), Opened::Sealed(header)))
            }
        }
    }

    /// A session for the sender of `header`.
    pub(super) fn new_session(&self, header: &Header) -> Option<Box<Session>> {
        match self {
            Self::Sessions(packets, _) => Some(Box::new(packets.new_session(header, &mut OsRng))),
            Self::Tunnel(_) | Self::Socks { .. } | Self::Packets(_) | Self::Relay(..) | Self::Quic(_) => None,
        }
    }

    /// The account of the user whose flow it is, by its session or its key.
    pub(super) fn account(&self, key: &Key, session: Option<&Session>) -> Option<&Arc<Account>> {
        match (self, key) {
            (Self::Sessions(_, accounts), _) => accounts.get(session?.user()?.0),
            (Self::Relay(_, _, accounts), Key::Hop(_, user)) => accounts.get(*user),
            (Self::Socks { account, .. }, _) => account.as_ref(),
            _ => None,
        }
    }

    /// What must lie free around an answer from `source`.
    pub(super) fn room(&self, session: Option<&Session>, source: &Target) -> Room {
        match (self, session) {
            (_, Some(session)) => session.room(source),
            (Self::Packets(codec), None) => codec.room(source),
            (Self::Socks { .. }, None) => {
                Room { head: socks::header_len(source), tail: 0, max_payload: usize::from(u16::MAX) }
            }
            (Self::Tunnel(_) | Self::Sessions(..) | Self::Relay(..) | Self::Quic(_), None) => {
                Room { head: 0, tail: 0, max_payload: usize::from(u16::MAX) }
            }
        }
    }

    /// Seals an answer from `source` for the client and returns where the datagram lies.
    pub(super) fn seal(
        &mut self,
        session: Option<&mut Session>,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, WireError> {
        match (self, session) {
            (_, Some(session)) => session.seal(block, payload, source, unix_s, &mut OsRng),
            (Self::Packets(codec), None) => codec.seal(block, payload, source, unix_s, &mut OsRng),
            (Self::Socks { .. }, None) => {
                let start = payload.start - socks::header_len(source);
                socks::emit_header(source, &mut block[start..payload.start]);
                Ok(start..payload.end)
            }
            (Self::Tunnel(_) | Self::Sessions(..) | Self::Relay(..) | Self::Quic(_), None) => Ok(payload),
        }
    }
}

/// The datagrams of `batch` from `at` on, where that many have been opened that the next are to be announced.
pub(super) fn next_together(batch: &Batch, at: usize) -> Option<impl Iterator<Item = &[u8]>> {
    let next = (at..batch.len()).filter_map(|at| batch.get(at));
    at.is_multiple_of(TOGETHER).then_some(next.take(TOGETHER).map(|datagram| &batch.block[datagram.range()]))
}

/// A datagram that reached another core than its session's.
impl Moved {
    pub(super) fn key(&self) -> Key {
        Key::Session(self.header.session_id())
    }
}
