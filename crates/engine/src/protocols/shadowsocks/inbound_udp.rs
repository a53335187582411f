//! Datagrams of Shadowsocks clients: each for itself up to SIP004, in sessions with 2022 methods, and passed on unread
//! by a relay.

use std::ops::Range;
use std::sync::Arc;

use adit_model as model;
use adit_proto::shadowsocks::aead2022::{Aead2022ServerPackets, Relay};
use adit_proto::shadowsocks::{MethodKey, NoFilter, PacketCodec, TOGETHER, UserId, client_packets};
use adit_proto::wire::{Room, Target, WireError};

use super::inbound::relay_of;
use super::sessions::SessionPackets;
use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, OpenedDatagram, PacketInbound, SessionOwners, bare_room,
};
use crate::rng::OsRng;
use crate::users::{Account, Accounts};

/// The datagram protocol of a server with this `key`. `exchange` is shared by the cores of the listener, with the
/// number of this core.
pub(crate) fn packets(
    key: &model::ShadowsocksServerKey,
    accounts: Accounts,
    exchange: (Arc<SessionOwners>, usize),
) -> Box<dyn PacketInbound> {
    if let Some((relay, hops)) = relay_of(key) {
        return Box::new(RelayPackets { relay, hops, accounts });
    }
    let key = key.derive();
    match key.key() {
        MethodKey::Stream(_) | MethodKey::Aead(_) => {
            Box::new(SinglePackets(client_packets(key.key(), &mut OsRng)))
        }
        MethodKey::Aead2022(keys) => {
            let packets = Aead2022ServerPackets::new(keys, key.shared_users());
            Box::new(SessionPackets::new(packets, accounts, exchange))
        }
    }
}

/// Every datagram for itself.
struct SinglePackets(Box<dyn PacketCodec>);

impl PacketInbound for SinglePackets {
    fn is_sealed(&self) -> bool {
        true
    }

    fn together(&self) -> usize {
        TOGETHER
    }

    fn expect(&mut self, next: &mut dyn Iterator<Item = &[u8]>) {
        self.0.expect(next);
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        // As in shadowsocks-rust, a datagram that comes twice is passed on twice: UDP does so too.
        let packet = self.0.open(datagram, arrival.unix_s, &mut NoFilter)?;
        let client = FlowClient::Address(arrival.peer.at);
        Ok(Some(OpenedDatagram::new(client, DatagramTarget::Own(packet.target), packet.payload)))
    }

    fn room(&mut self, _: &FlowClient, source: &Target) -> Room {
        self.0.room(source)
    }

    fn seal(
        &mut self,
        _: &FlowClient,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        unix_s: u64,
    ) -> Result<Range<usize>, WireError> {
        self.0.seal(block, payload, source, unix_s, &mut OsRng)
    }
}

/// Datagrams that name the next server in their first identity header (SIP023); all else passes unread. Each of those
/// servers is a user here.
struct RelayPackets {
    relay: Relay,
    hops: Arc<[Target]>,
    accounts: Accounts,
}

impl PacketInbound for RelayPackets {
    fn is_sealed(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let (UserId(hop), rest) = self.relay.forward_datagram(datagram)?;
        let target = self.hops.get(hop).ok_or(DropReason::Gone)?.clone();
        let client = FlowClient::User(arrival.peer.at, hop);
        Ok(Some(OpenedDatagram::new(client, DatagramTarget::Own(target), rest)))
    }

    fn account(&self, client: &FlowClient) -> Option<&Arc<Account>> {
        let FlowClient::User(_, user) = client else { return None };
        self.accounts.get(*user)
    }

    fn room(&mut self, _: &FlowClient, _: &Target) -> Room {
        bare_room()
    }

    fn seal(
        &mut self,
        _: &FlowClient,
        _: &mut [u8],
        payload: Range<usize>,
        _: &Target,
        _: u64,
    ) -> Result<Range<usize>, WireError> {
        Ok(payload)
    }
}
