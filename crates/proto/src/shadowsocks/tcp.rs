use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{
    Accept, IdentityKeys, MethodKey, NoFilter, SaltFilter, ServerKey, WallClock, aead, aead2022, stream,
};
use crate::buf::RecvBuf;
use crate::wire::{Layer, Opened, Plan, Rng, Target, WireError};

/// The client's end of a stream, of any generation.
#[derive(Debug)]
pub struct ShadowsocksClientStream(ClientKind);

#[derive(Debug)]
enum ClientKind {
    Stream(stream::StreamCipherClientStream),
    Aead(aead::AeadClientStream),
    Aead2022(aead2022::Aead2022ClientStream),
}

/// The server's end before the target is known, of any generation.
#[derive(Debug)]
pub struct ShadowsocksAcceptor(AcceptorKind);

#[derive(Debug)]
enum AcceptorKind {
    Stream(stream::StreamCipherAcceptor),
    Aead(aead::AeadAcceptor),
    Aead2022(aead2022::Aead2022Acceptor),
}

/// The server's end of a stream, of any generation.
#[derive(Debug)]
pub struct ShadowsocksServerStream(ServerKind);

#[derive(Debug)]
enum ServerKind {
    Stream(stream::StreamCipherServerStream),
    Aead(aead::AeadServerStream),
    Aead2022(aead2022::Aead2022ServerStream),
}

impl ShadowsocksClientStream {
    /// A stream to `target`. The request waits for the first payload and leaves with it; seal an empty one to send it
    /// alone. Salt and padding come from `rng`.
    pub fn new(key: &MethodKey, target: &Target, clock: WallClock, rng: &mut dyn Rng) -> Self {
        Self(match key {
            MethodKey::Stream(key) => {
                ClientKind::Stream(stream::StreamCipherClientStream::new(key, target, rng))
            }
            MethodKey::Aead(key) => ClientKind::Aead(aead::AeadClientStream::new(key, target, rng)),
            MethodKey::Aead2022(keys) => {
                ClientKind::Aead2022(aead2022::Aead2022ClientStream::new(keys, target, clock, rng))
            }
        })
    }

    /// The salt of the request until it has left, where the request itself could pass for an answer: the caller
    /// remembers it together with those of servers.
    pub fn own_salt(&self) -> Option<&[u8]> {
        match &self.0 {
            ClientKind::Aead(client) => client.own_salt(),
            ClientKind::Stream(_) | ClientKind::Aead2022(_) => None,
        }
    }

    /// The server's salt (or IV), from its first opened payload on: the caller may check that it does not repeat.
    pub fn peer_salt(&self) -> Option<&[u8]> {
        match &self.0 {
            ClientKind::Stream(client) => client.peer_salt(),
            ClientKind::Aead(client) => client.peer_salt(),
            ClientKind::Aead2022(client) => client.peer_salt(),
        }
    }
}

impl ShadowsocksAcceptor {
    /// Waits for a client under `key`.
    pub fn new(key: &ServerKey) -> Self {
        let users: &Arc<IdentityKeys> = &key.users;
        Self(match &key.key {
            MethodKey::Stream(key) => AcceptorKind::Stream(stream::StreamCipherAcceptor::new(key)),
            MethodKey::Aead(key) => AcceptorKind::Aead(aead::AeadAcceptor::new(key)),
            MethodKey::Aead2022(keys) => AcceptorKind::Aead2022(aead2022::Aead2022Acceptor::new(keys, users)),
        })
    }

    /// See [`aead2022::Aead2022Acceptor::with_split_header`]; no effect on other generations.
    #[must_use]
    pub fn with_split_header(self) -> Self {
        Self(match self.0 {
            AcceptorKind::Aead2022(acceptor) => AcceptorKind::Aead2022(acceptor.with_split_header()),
            other @ (AcceptorKind::Stream(_) | AcceptorKind::Aead(_)) => other,
        })
    }

    /// True once a part of the request has authenticated. A peer that fails before is unauthenticated or a prober;
    /// a peer that fails after holds the key. Never for methods without authentication.
    pub fn is_authenticated(&self) -> bool {
        match &self.0 {
            AcceptorKind::Stream(_) => false,
            AcceptorKind::Aead(acceptor) => acceptor.is_authenticated(),
            AcceptorKind::Aead2022(acceptor) => acceptor.is_authenticated(),
        }
    }

    /// Reads the request. `filter` is asked about the salt after authentication (where there is any) and before the
    /// return; it sees each salt once.
    ///
    /// # Errors
    /// An error in the peer's bytes; the acceptor is of no use afterwards.
    pub fn accept(
        &mut self,
        wire: &mut RecvBuf,
        unix_s: u64,
        filter: &mut dyn SaltFilter,
    ) -> Result<Accept, WireError> {
        match &mut self.0 {
            AcceptorKind::Stream(acceptor) => acceptor.accept(wire, filter),
            AcceptorKind::Aead(acceptor) => acceptor.accept(wire, filter),
            AcceptorKind::Aead2022(acceptor) => acceptor.accept(wire, unix_s, filter),
        }
    }

    /// Goes on after [`Accept::Accepted`]; the salt of the answer comes from `rng`.
    ///
    /// # Panics
    /// Before that, for SIP022 methods.
    pub fn into_server(self, clock: WallClock, rng: &mut dyn Rng) -> ShadowsocksServerStream {
        ShadowsocksServerStream(match self.0 {
            AcceptorKind::Stream(acceptor) => ServerKind::Stream(acceptor.into_server(rng)),
            AcceptorKind::Aead(acceptor) => ServerKind::Aead(acceptor.into_server(rng)),
            AcceptorKind::Aead2022(acceptor) => ServerKind::Aead2022(acceptor.into_server(clock, rng)),
        })
    }
}

impl ShadowsocksServerStream {
    /// Salt or IV of the answer until it has left, where a recording of the answer could pass for a request: the
    /// caller remembers it together with those of clients.
    pub fn own_salt(&self) -> Option<&[u8]> {
        match &self.0 {
            ServerKind::Stream(server) => server.own_salt(),
            ServerKind::Aead(server) => server.own_salt(),
            ServerKind::Aead2022(_) => None,
        }
    }
}

macro_rules! delegate {
    ($kind:ident, $self:ident, $layer:ident => $call:expr) => {
        match $self {
            $kind::Stream($layer) => $call,
            $kind::Aead($layer) => $call,
            $kind::Aead2022($layer) => $call,
        }
    };
}

macro_rules! layer {
    ($name:ident, $kind:ident) => {
        impl Layer for $name {
            fn plan(&self, now: Instant) -> Plan {
                let kind = &self.0;
                delegate!($kind, kind, layer => layer.plan(now))
            }

            fn seal(
                &mut self,
                block: &mut [u8],
                payload: Range<usize>,
                now: Instant,
            ) -> Result<Range<usize>, WireError> {
                let kind = &mut self.0;
                delegate!($kind, kind, layer => layer.seal(block, payload, now))
            }

            fn has_pending(&self) -> bool {
                let kind = &self.0;
                delegate!($kind, kind, layer => layer.has_pending())
            }

            fn open(&mut self, wire: &mut RecvBuf, now: Instant) -> Result<Opened, WireError> {
                let kind = &mut self.0;
                delegate!($kind, kind, layer => layer.open(wire, now))
            }

            fn handle_transport_end(&mut self, unread: usize) -> Result<(), WireError> {
                let kind = &mut self.0;
                delegate!($kind, kind, layer => layer.handle_transport_end(unread))
            }
        }
    };
}

layer!(ShadowsocksClientStream, ClientKind);
layer!(ShadowsocksServerStream, ServerKind);

/// Feeds `bytes` in pieces of `split` and calls `step` until it asks for more than there is or fails.
fn fuzz_feed(bytes: &[u8], split: usize, mut step: impl FnMut(&mut RecvBuf) -> Option<usize>) {
    let mut wire = RecvBuf::with_len(bytes.len());
    for piece in bytes.chunks(split.max(1)) {
        wire.extend(piece);
        loop {
            let before = wire.unread().len();
            match step(&mut wire) {
                None => return,
                Some(0) => assert!(wire.unread().len() <= before, "opening adds no bytes"),
                Some(_) => break,
            }
        }
    }
}

/// Fuzz target: a server that is fed `bytes` in pieces of `split`.
#[doc(hidden)]
pub fn fuzz_accept(key: &ServerKey, clock: WallClock, now: Instant, bytes: &[u8], split: usize) {
    let mut acceptor = ShadowsocksAcceptor::new(key).with_split_header();
    fuzz_feed(bytes, split, |wire| match acceptor.accept(wire, clock.unix_s(now), &mut NoFilter) {
        Ok(Accept::NeedMore(missing)) => {
            assert!(missing > 0, "asks for something");
            Some(missing)
        }
        Ok(Accept::Accepted(accepted)) => {
            assert!(accepted.payload.end <= wire.capacity(), "payload lies in the block");
            None
        }
        Err(_) => None,
    });
}

/// Fuzz target: a client that is answered with `bytes` in pieces of `split`.
#[doc(hidden)]
pub fn fuzz_response(mut client: ShadowsocksClientStream, now: Instant, bytes: &[u8], split: usize) {
    fuzz_feed(bytes, split, |wire| match client.open(wire, now) {
        Ok(Opened::NeedMore(missing)) => {
            assert!(missing > 0, "asks for something");
            Some(missing)
        }
        Ok(Opened::Payload(payload)) => {
            assert!(payload.end <= wire.capacity(), "payload lies in the block");
            Some(0)
        }
        Ok(Opened::End) | Err(_) => None,
    });
}
