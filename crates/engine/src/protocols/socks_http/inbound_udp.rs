//! Datagrams of a SOCKS5 association (RFC 1928, section 7).

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use adit_proto::socks;
use adit_proto::wire::{Room, Target, WireError};

use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, OpenedDatagram, PacketInbound, bare_room,
};
use crate::users::Account;

/// The datagrams of one association.
pub(super) struct AssociationPackets {
    /// The client that asked for it over TCP; others are not served.
    client: IpAddr,
    /// Its user, where there are users.
    account: Option<Arc<Account>>,
}

impl AssociationPackets {
    /// The datagrams of an association that `client` asked for.
    pub(super) fn new(client: IpAddr, account: Option<Arc<Account>>) -> Self {
        Self { client, account }
    }
}

impl PacketInbound for AssociationPackets {
    fn is_sealed(&self) -> bool {
        false
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let from = arrival.peer.at;
        if from.ip() != self.client {
            return Err(WireError::Authentication { what: "address of an associated client" }.into());
        }
        let (target, at) = socks::parse_datagram(datagram)?;
        let client = FlowClient::Address(from);
        Ok(Some(OpenedDatagram::new(client, DatagramTarget::Own(target), at..datagram.len())))
    }

    fn account(&self, _: &FlowClient) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    fn room(&mut self, _: &FlowClient, source: &Target) -> Room {
        Room { head: socks::header_len(source), ..bare_room() }
    }

    fn seal(
        &mut self,
        _: &FlowClient,
        block: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        _: u64,
    ) -> Result<Range<usize>, WireError> {
        let start = payload.start - socks::header_len(source);
        socks::emit_header(source, &mut block[start..payload.start]);
        Ok(start..payload.end)
    }
}
