//! Datagrams of a port with one fixed target.

use std::ops::Range;
use std::rc::Rc;

use adit_proto::wire::{Room, Target, WireError};

use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, OpenedDatagram, PacketInbound, bare_room,
};

/// Nothing but payload, for one target.
pub(super) struct TunnelPackets(Rc<Target>);

impl TunnelPackets {
    /// The datagrams of a port whose target is `target`.
    pub(crate) fn new(target: Target) -> Self {
        Self(Rc::new(target))
    }
}

impl PacketInbound for TunnelPackets {
    fn is_sealed(&self) -> bool {
        false
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let client = FlowClient::Address(arrival.peer.at);
        Ok(Some(OpenedDatagram::new(client, DatagramTarget::Shared(self.0.clone()), 0..datagram.len())))
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
