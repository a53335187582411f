//! Several ways out of which the best is used.
//!
//! ```text
//!   request ─→ Group (one per core) ─ the choice ─→ a member's own outbound ─→ server
//!                 │ reads atomics         └ no connection: the next best, before a byte was sent
//!              GroupShared ←─ results ─ prober (on one core) ─ checks ─→ through each member
//! ```
//!
//! [`lane`] decides, on what [`probe`] finds out; [`shared`] is where they meet.

mod lane;
mod packets;
mod probe;
mod state;
mod track;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_model::{Tag, Udp};
use adit_net::rt::{self, Pool};

use crate::connections::record::{EndReason, Side};
use crate::datagram::PacketOutbound;
use crate::dns::Dns;
use crate::outbound::{Connector, OutboundDeps};
use crate::relay::RelayOutcome;
use crate::stream::{
    self, ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle, Outbounds,
};

use self::state::{GroupMember, GroupRoster};

pub(crate) use self::state::{GroupShared, Transport};
pub(crate) use lane::Report;
pub(crate) use packets::GroupPackets;
pub(crate) use probe::{Check, run};
pub(crate) use track::{CheckFailure, MemberHealth};

/// A member that is not connected to within this time is left for the next one; a lost first packet comes again
/// after one second.
const PATIENCE: Duration = Duration::from_secs(2);
/// Members that are tried for one request.
const MAX_TRIES: usize = 3;
/// An application that gives up sooner without an answer says nothing about the server.
const SILENCE: Duration = Duration::from_secs(3);

/// A group on one core.
pub(crate) struct Group {
    shared: Arc<GroupShared>,
    /// The ways out of the configuration.
    leaves: Rc<Outbounds>,
    udp: Udp,
    pool: Pool,
    dns: Rc<Dns>,
    view: RefCell<View>,
}

/// The members as a core has them.
#[derive(Clone)]
struct View {
    roster: Arc<GroupRoster>,
    here: Rc<[Rc<Here>]>,
}

/// One member on one core. Connections hold it until they end, even if the group changes meanwhile.
pub(crate) struct Here {
    member: Arc<GroupMember>,
    leaf: OutboundHandle,
    group: Arc<GroupShared>,
}

/// The member that a connection goes over.
pub(crate) struct MemberConnection {
    here: Rc<Here>,
    since: Instant,
}

impl Group {
    /// The group on a core with these ways out; `leaves` are those of the configuration.
    pub(crate) fn new(
        shared: Arc<GroupShared>,
        leaves: Rc<Outbounds>,
        udp: &Udp,
        pool: &Pool,
        dns: &Rc<Dns>,
    ) -> Self {
        let roster = shared.state().roster.clone();
        let here = view_of(&roster, &[], &leaves, &shared, udp, pool, dns);
        let (udp, pool, dns) = (udp.clone(), pool.clone(), dns.clone());
        Self { view: RefCell::new(View { roster, here }), shared, leaves, udp, pool, dns }
    }

    /// Names, for datagrams whose targets are judged by their addresses.
    pub(crate) fn dns(&self) -> &Rc<Dns> {
        &self.dns
    }

    /// State of the group that all cores share.
    pub(crate) fn shared(&self) -> &Arc<GroupShared> {
        &self.shared
    }

    fn view(&self) -> View {
        let mut view = self.view.borrow_mut();
        if let Some(roster) = self.shared.newer_than(view.roster.generation) {
            let (udp, pool, dns) = (&self.udp, &self.pool, &self.dns);
            let here = view_of(&roster, &view.here, &self.leaves, &self.shared, udp, pool, dns);
            *view = View { roster, here };
        }
        view.clone()
    }

    /// Whether each member is a tunnel.
    fn has_tunnels_only(&self) -> bool {
        self.view().here.iter().all(|here| here.leaf.outbound.is_tunnel())
    }

    /// A connection towards `target` over the member in use, or over the next best if there is none to be had.
    async fn open(&self, to: ConnectTarget<'_>, fresh: bool) -> Result<OpenedConnection, OpenError> {
        self.shared.start(Transport::Tcp, rt::now());
        let view = self.view();
        let chosen = view.roster.chosen(Transport::Tcp).ok_or(OpenError::NoMember)?;
        let first = view.here[chosen].clone();
        let mut usable = view.here.iter().filter(|here| here.member.weights[Transport::Tcp as usize] > 0);
        let patience = usable.nth(1).map(|_| PATIENCE);
        let error = match first.open(to, fresh, patience).await {
            Err(error) if first.leaf.outbound.is_tunnel() => {
                self.note_member(&first, &error);
                error
            }
            result => return result,
        };
        let others = self.shared.order(Transport::Tcp).into_iter();
        let others: Vec<Rc<Here>> = others
            .filter_map(|member| view.here.iter().find(|here| Arc::ptr_eq(&here.member, &member)))
            .filter(|here| !Rc::ptr_eq(here, &first))
            .take(MAX_TRIES - 1)
            .cloned()
            .collect();
        let mut error = error;
        for (i, here) in others.iter().enumerate() {
            let is_last = i + 1 == others.len();
            match here.open(to, fresh, (!is_last).then_some(PATIENCE)).await {
                Err(other) => {
                    self.note_member(here, &other);
                    error = other;
                }
                opened => return opened,
            }
        }
        Err(error)
    }

    /// A member could not be connected to.
    fn note_member(&self, here: &Here, error: &OpenError) {
        if let OpenError::Member { source, .. } = error {
            self.leaves.note_open_error(&*here.leaf.outbound, source);
        }
    }

    /// The member that a new flow of datagrams goes over, with its way out.
    pub(crate) fn pick(&self) -> Option<(Rc<dyn PacketOutbound>, Rc<Here>)> {
        let now = rt::now();
        self.shared.start(Transport::Udp, now);
        let view = self.view();
        let here = view.here[view.roster.chosen(Transport::Udp)?].clone();
        self.shared.note_use(Transport::Udp, &here.member, now);
        Some((here.leaf.packets.clone()?, here))
    }

    fn find(&self, member: &Arc<GroupMember>) -> Option<Rc<Here>> {
        self.view().here.iter().find(|here| Arc::ptr_eq(&here.member, member)).cloned()
    }
}

/// The members of `roster`; what is there already stays.
fn view_of(
    roster: &GroupRoster,
    old: &[Rc<Here>],
    leaves: &Outbounds,
    shared: &Arc<GroupShared>,
    udp: &Udp,
    pool: &Pool,
    dns: &Rc<Dns>,
) -> Rc<[Rc<Here>]> {
    let here = |member: &Arc<GroupMember>| {
        if let Some(same) = old.iter().find(|here| Arc::ptr_eq(&here.member, member)) {
            return same.clone();
        }
        let leaf = match &member.shared {
            None => leaves.find(&member.outbound.name),
            Some(shared) => {
                let model = &member.outbound;
                let connector = Connector::new(model, member.metrics.clone(), None, None, dns);
                shared.on_core(connector, &OutboundDeps { model, udp, pool, dns })
            }
        };
        Rc::new(Here { member: member.clone(), leaf, group: shared.clone() })
    };
    roster.members.iter().map(here).collect()
}

impl Here {
    /// The member's name.
    pub(crate) fn name(&self) -> &Tag {
        self.leaf.outbound.name()
    }

    /// A connection over this member, within `patience`.
    async fn open(
        self: &Rc<Self>,
        to: ConnectTarget<'_>,
        fresh: bool,
        patience: Option<Duration>,
    ) -> Result<OpenedConnection, OpenError> {
        let since = rt::now();
        self.group.note_use(Transport::Tcp, &self.member, since);
        let open = self.leaf.outbound.connect(to, fresh);
        let result = match patience {
            Some(patience) => {
                rt::timeout(patience, open).await.unwrap_or(Err(OpenError::Slow { waited: patience }))
            }
            None => open.await,
        };
        match result {
            Ok(opened) => {
                let passage = MemberConnection { here: self.clone(), since };
                Ok(OpenedConnection { member: Some(Box::new(passage)), ..opened })
            }
            Err(error) => {
                let (outbound, member) = (&**self.group.name(), &**self.name());
                tracing::debug!(outbound, member, error = error.chain(), "server could not be connected to");
                if self.leaf.outbound.is_tunnel() {
                    self.group.note_refusal(&self.member, rt::now());
                }
                Err(OpenError::Member { member: self.name().clone(), source: Box::new(error) })
            }
        }
    }

    /// A datagram has come from this member.
    pub(crate) fn note_datagram(&self) {
        self.group.note_answer(Transport::Udp, &self.member, rt::now());
    }
}

impl MemberConnection {
    /// The member's way out.
    fn outbound(&self) -> &dyn Outbound {
        &*self.here.leaf.outbound
    }

    /// The connection has ended.
    fn note_end(&self, outcome: &RelayOutcome) {
        if !self.outbound().is_tunnel() {
            return;
        }
        let now = rt::now();
        let by_server = matches!(outcome.reason, EndReason::Socket(Side::Far, _) | EndReason::Wire(_));
        let is_answered = outcome.down > 0;
        if is_answered || by_server || now.saturating_duration_since(self.since) >= SILENCE {
            self.here.group.note_end(&self.here.member, is_answered, self.since, now);
        }
    }
}

impl stream::DialledMember for MemberConnection {
    fn name(&self) -> &Tag {
        self.here.name()
    }

    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        self.outbound().has_replied(opened, outcome)
    }

    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool) {
        self.note_end(outcome);
        self.outbound().release(opened, outcome, pool);
    }
}

impl Outbound for Group {
    fn name(&self) -> &Tag {
        self.shared.name()
    }

    fn is_tunnel(&self) -> bool {
        self.has_tunnels_only()
    }

    fn connect<'a>(
        &'a self,
        to: ConnectTarget<'a>,
        fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(self.open(to, fresh))
    }

    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        match opened.member.take() {
            Some(member) => {
                let has_replied = member.has_replied(opened, outcome);
                opened.member = Some(member);
                has_replied
            }
            None => outcome.down > 0,
        }
    }

    fn release(&self, mut opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool) {
        if let Some(member) = opened.member.take() {
            member.release(opened, outcome, pool);
        }
    }

    /// The members are compared once requests come, for streams: datagrams may never come.
    fn begin_use(&self) {
        self.shared.start(Transport::Tcp, rt::now());
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(async move {
            let view = self.view();
            let at = view.roster.chosen(Transport::Tcp).unwrap_or(0);
            view.here.get(at)?.leaf.outbound.lookup(name).await
        })
    }
}
