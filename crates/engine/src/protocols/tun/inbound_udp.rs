//! The interface's datagrams, for the packet engine.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

use adit_proto::wire::{Host, Room, Target, WireError};

use crate::datagram::{
    Arrival, DatagramTarget, DropReason, FlowClient, OpenedDatagram, PacketInbound, bare_room,
};

/// Most answers between two sends; a batch has fewer.
const MOST: usize = 4096;

/// The sources of answers that are to be sent, by the start of their payload, in their order.
pub(super) type AnswerSources = Rc<RefCell<VecDeque<(usize, SocketAddr)>>>;

/// Nothing but payload, whose source and target are beside it.
pub(super) struct TunPackets {
    sources: AnswerSources,
}

impl TunPackets {
    /// Datagrams whose answers leave their `sources` for the one who sends them.
    pub(super) fn new(sources: AnswerSources) -> Self {
        Self { sources }
    }
}

impl PacketInbound for TunPackets {
    fn is_sealed(&self) -> bool {
        false
    }

    /// Those of a network that this machine forwards for, which may write any source.
    fn has_foreign_clients(&self) -> bool {
        true
    }

    fn open(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Result<Option<OpenedDatagram>, DropReason> {
        let target = Target::from(arrival.original.ok_or(DropReason::Unresolved)?);
        let client = FlowClient::Address(arrival.peer.at);
        Ok(Some(OpenedDatagram::new(client, DatagramTarget::Own(target), 0..datagram.len())))
    }

    fn room(&mut self, _: &FlowClient, _: &Target) -> Room {
        bare_room()
    }

    fn seal(
        &mut self,
        _: &FlowClient,
        _: &mut [u8],
        payload: Range<usize>,
        source: &Target,
        _: u64,
    ) -> Result<Range<usize>, WireError> {
        let Host::Ip(ip) = source.host else {
            return Err(WireError::Unsupported { what: "name as source of a packet", got: 0 });
        };
        let mut sources = self.sources.borrow_mut();
        if sources.len() == MOST {
            sources.pop_front();
        }
        sources.push_back((payload.start, SocketAddr::new(ip, source.port)));
        Ok(payload)
    }
}
