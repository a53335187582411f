//! Datagrams of ShadowsocksR clients. Nothing in them is remembered: one that comes twice is passed on twice.

use std::ops::Range;
use std::sync::Arc;

use adit_net::rt;
use adit_proto::ssr::udp::SsrServerUdp;
use adit_proto::wire::{Room, Target, WireError};

use super::inbound::SsrServerShared;
use super::refusals::Cause;
use crate::connections::refusal_log::RefusalLog;
use crate::datagram::{Arrival, DatagramTarget, DropReason, FlowClient, OpenedDatagram, PacketInbound};
use crate::rng::OsRng;
use crate::users::Account;

/// Opens and seals the datagrams of the clients of one listener.
pub(super) struct SsrServerPackets {
    shared: Arc<SsrServerShared>,
    /// Name of the inbound, for the log.
    inbound: Box<str>,
    refusals: RefusalLog,
    packets: SsrServerUdp,
}

impl SsrServerPackets {
    pub(super) fn new(shared: Arc<SsrServerShared>, inbound: &str, refusals: RefusalLog) -> Self {
        let packets = SsrServerUdp::new(&shared.protocol);
        Self { shared, inbound: inbound.into(), refusals, packets }
    }
}

impl PacketInbound for SsrServerPackets {
    fn is_sealed(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let peer = arrival.peer.at;
        let packet = self.packets.open(datagram).map_err(|refusal| {
            let cause = Cause::Refused(refusal);
            self.refusals.report(&self.inbound, peer, &cause, rt::now());
            DropReason::Wire(cause.error())
        })?;
        let client = match self.shared.user(packet.user) {
            Some(user) => FlowClient::User(peer, user),
            None => FlowClient::Address(peer),
        };
        Ok(Some(OpenedDatagram::new(client, DatagramTarget::Own(packet.target), packet.payload)))
    }

    fn account(&self, client: &FlowClient) -> Option<&Arc<Account>> {
        let FlowClient::User(_, user) = client else { return None };
        self.shared.accounts.get(*user)
    }

    fn room(&mut self, _: &FlowClient, source: &Target) -> Room {
        self.packets.room(source)
    }

    fn seal(
        &mut self,
        client: &FlowClient,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        _: u64,
    ) -> Result<Range<usize>, WireError> {
        let id = match client {
            FlowClient::User(_, user) => self.shared.ids.get(*user).copied(),
            FlowClient::Address(_) | FlowClient::Session(_) => None,
        };
        self.packets.seal(block, payload, source, id, &mut OsRng)
    }
}
