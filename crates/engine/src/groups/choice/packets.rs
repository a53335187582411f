//! Datagrams over a group: each flow over the member that is chosen when it begins.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;

use adit_model::{Dial, Tag};
use adit_net::reach::Reach;
use adit_net::rt;
use adit_proto::wire::Target;

use super::Choice;
use crate::datagram::{
    CarrierChoice, DropReason, FlowClass, FlowLookup, FlowTick, PacketFlow, PacketOutbound,
};
use crate::dns::{Dns, Scope};

/// The way out for datagrams over a group, on one core.
pub(crate) struct ChoicePackets {
    group: Rc<Choice>,
    names: Scope,
    /// The reach of members that dial targets themselves.
    reach: Reach,
}

impl ChoicePackets {
    /// The way out over `group`.
    pub(crate) fn new(group: Rc<Choice>, dns: &Rc<Dns>) -> Self {
        Self { group, names: dns.scope(&Dial::default()), reach: Reach::Anywhere }
    }

    /// The member for datagrams that go to `target`, with its way out.
    fn pick(&self, target: &Target) -> Option<(Tag, Rc<dyn PacketOutbound>)> {
        let group = &self.group;
        let now = rt::now();
        group.shared.note_use(now);
        let roster = group.roster();
        if !roster.model.udp {
            return None;
        }
        // The client of a flow is not known here: a sticky group goes by the target alone.
        let place = group.shared.pick(&roster, target, None, now)?;
        let leaf = group.leaf(&roster.members[place])?;
        Some((leaf.outbound.name().clone(), leaf.packets?))
    }

    fn current(&self) -> Option<Rc<dyn PacketOutbound>> {
        self.group.current()?.packets
    }
}

impl PacketOutbound for ChoicePackets {
    fn begin(
        self: Rc<Self>,
        first: &Target,
        lane: FlowClass,
        now: FlowTick,
    ) -> Result<PacketFlow, DropReason> {
        let (name, outbound) = self.pick(first).ok_or(DropReason::Unresolved)?;
        let mut flow = outbound.within(self.reach).unwrap_or(outbound).begin(first, lane, now)?;
        flow.chain.push(name);
        Ok(flow)
    }

    /// Flows ask their member instead.
    fn find(&self, target: &Target, at: Option<IpAddr>, waker: Option<&Waker>, _: FlowTick) -> FlowLookup {
        match at {
            Some(ip) => FlowLookup::Addr(SocketAddr::new(ip, target.port)),
            None => FlowLookup::find(&self.names, target, waker),
        }
    }

    fn address_of(&self, target: &Target, waker: Option<&Waker>, now: FlowTick) -> Option<FlowLookup> {
        self.current()?.address_of(target, waker, now)
    }

    fn within(&self, reach: Reach) -> Option<Rc<dyn PacketOutbound>> {
        let (group, names) = (self.group.clone(), self.names.clone());
        (reach != self.reach).then(|| Rc::new(Self { group, names, reach }) as Rc<dyn PacketOutbound>)
    }

    fn has_lanes(&self) -> bool {
        self.current().is_some_and(|current| current.has_lanes())
    }

    fn lane(&self, target: &Target, payload: &[u8], now: FlowTick) -> CarrierChoice {
        self.current().map_or(CarrierChoice::Common, |current| current.lane(target, payload, now))
    }
}
