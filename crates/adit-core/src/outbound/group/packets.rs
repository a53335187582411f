//! Datagrams over a group: each flow over the member that is in use when it begins.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;

use adit_config::model::Family;
use adit_net::resolve::Resolver;
use adit_proto::wire::Target;

use super::{Group, Here};
use crate::dispatch::Outbound as _;
use crate::packet::{DropReason, Known, Lane, Names, PacketFlow, PacketOutbound, Tick, Witness};

/// The way out for datagrams over a group, on one core.
pub(crate) struct GroupPackets {
    group: Rc<Group>,
    /// For targets whose addresses are judged before a member is chosen.
    names: Names,
}

impl GroupPackets {
    /// The way out over `group`.
    pub(crate) fn new(group: Rc<Group>) -> Self {
        Self { group, names: Names::new(Resolver::new(&[]), Family::Any) }
    }
}

impl PacketOutbound for GroupPackets {
    fn begin(self: Rc<Self>, first: &Target, lane: Lane, now: Tick) -> Result<PacketFlow, DropReason> {
        let (outbound, member) = self.group.pick().ok_or(DropReason::Unresolved)?;
        let flow = outbound.begin(first, lane, now)?;
        Ok(PacketFlow { witness: Some(member), ..flow })
    }

    /// Flows ask their member instead.
    fn find(&self, target: &Target, at: Option<IpAddr>, waker: Option<&Waker>, now: Tick) -> Known {
        match at {
            Some(ip) => Known::Addr(SocketAddr::new(ip, target.port)),
            None => self.names.find(target, waker, now),
        }
    }

    fn address_of(&self, target: &Target, waker: Option<&Waker>, now: Tick) -> Option<Known> {
        // Servers look names up themselves.
        if self.group.is_tunnel() { None } else { Some(self.names.find(target, waker, now)) }
    }
}

impl Witness for Here {
    fn answered(&self) {
        self.note_datagram();
    }
}
