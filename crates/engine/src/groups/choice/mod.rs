//! Groups whose member is chosen by a person, by a test of delays, in order, or by turns.
//!
//! ```text
//!   request ─→ Choice (one per core) ─ pick ─→ name of a member ─→ the outbound of that name ─→ ...
//!                 │ roster by generation                              └ may be a group again
//!              ChoiceShared ←─ marks of the Board ←─ checker (first core) ─ HEAD through each member
//! ```
//!
//! A member is looked up by its name for each request, so that groups may hold groups, and an outbound that is replaced is
//! in use at once. A member that fails is not replaced by another one for that request: the tests decide who is used.

mod board;
mod check;
mod packets;
mod pick;
mod state;
mod store;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use adit_model::rule::Network;
use adit_model::{Policy, Tag};
use adit_net::dial::DialError;
use adit_net::rt::{self, Pool};

use crate::relay::RelayOutcome;
use crate::stream::{
    self, ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle, Outbounds,
};

use self::state::{ChoiceMember, ChoiceRoster, MemberKind};

pub(crate) use self::state::ChoiceShared;
pub use self::state::ChoiceView;
pub(crate) use board::Board;
pub use board::{DelayHistory, DelaySample};
pub use check::DelayError;
pub(crate) use check::{CheckRequest, Tester, check_group, check_list, test_group};
pub(crate) use packets::ChoicePackets;
pub(crate) use store::Choices;
pub use store::fuzz_choices;

/// A group on one core.
pub(crate) struct Choice {
    shared: Arc<ChoiceShared>,
    /// The outbounds of the configuration.
    leaves: Rc<Outbounds>,
    roster: RefCell<Arc<ChoiceRoster>>,
}

/// The connection of a member.
struct ChoiceConnection {
    leaf: OutboundHandle,
    /// The outbound at the end of all groups.
    name: Tag,
    /// The member of the group that this member is.
    inner: Cell<Option<Box<dyn stream::DialledMember>>>,
    /// Names from the leaf to the outermost member.
    chain: Vec<Tag>,
}

impl Choice {
    /// The group on a core with these outbounds.
    pub(crate) fn new(shared: Arc<ChoiceShared>, leaves: Rc<Outbounds>) -> Self {
        let roster = RefCell::new(shared.roster());
        Self { shared, leaves, roster }
    }

    /// State of the group that all cores share.
    pub(crate) fn shared(&self) -> &Arc<ChoiceShared> {
        &self.shared
    }

    fn roster(&self) -> Arc<ChoiceRoster> {
        let mut roster = self.roster.borrow_mut();
        if let Some(newer) = self.shared.newer_than(roster.generation) {
            *roster = newer;
        }
        roster.clone()
    }

    /// The outbound of a member; `None` once the configuration has no such outbound.
    fn leaf(&self, member: &ChoiceMember) -> Option<OutboundHandle> {
        self.leaves.get(&member.name)
    }

    /// The outbound that requests take at this time, where that is one for all.
    fn current(&self) -> Option<OutboundHandle> {
        let roster = self.roster();
        self.leaf(&roster.members[roster.now()?])
    }

    async fn open(&self, to: ConnectTarget<'_>, fresh: bool) -> Result<OpenedConnection, OpenError> {
        let now = rt::now();
        self.shared.note_use(now);
        let roster = self.roster();
        let place = self.shared.pick(&roster, to.target, to.source, now).ok_or(OpenError::NoMember)?;
        let leaf = self.leaf(&roster.members[place]).ok_or(OpenError::NoMember)?;
        match leaf.outbound.connect(to, fresh).await {
            Ok(opened) => Ok(ChoiceConnection::over(leaf, opened)),
            Err(error) => {
                if let Some(is_refused) = counts(&error) {
                    self.shared.note_failure(is_refused, rt::now());
                }
                let member = leaf.outbound.name().clone();
                Err(OpenError::Member { member, source: Box::new(error) })
            }
        }
    }
}

/// Whether a failure speaks against a member, and whether nobody listened there.
fn counts(error: &OpenError) -> Option<bool> {
    match error {
        OpenError::Rejected
        | OpenError::Blocked(_)
        | OpenError::Unmapped
        | OpenError::Lost
        | OpenError::Dead { .. }
        | OpenError::NoMember => None,
        // A group within counts its own.
        OpenError::Member { .. } => None,
        OpenError::Dial(DialError::Private { .. }) => None,
        OpenError::Dial(error) => Some(matches!(error, DialError::Refused { .. })),
        OpenError::Through { .. } | OpenError::Handshake(_) | OpenError::Slow { .. } => Some(false),
    }
}

impl ChoiceConnection {
    /// `opened` as the connection of a member.
    fn over(leaf: OutboundHandle, opened: OpenedConnection) -> OpenedConnection {
        let OpenedConnection { far, policy, member, is_watched } = opened;
        let own = leaf.outbound.name().clone();
        let (name, mut chain) = match &member {
            Some(inner) => (inner.name().clone(), inner.chain()),
            None => (own.clone(), Vec::new()),
        };
        chain.push(own);
        let passage = Self { leaf, name, inner: Cell::new(member), chain };
        OpenedConnection { far, policy, member: Some(Box::new(passage)), is_watched }
    }
}

impl stream::DialledMember for ChoiceConnection {
    fn name(&self) -> &Tag {
        &self.name
    }

    fn chain(&self) -> Vec<Tag> {
        self.chain.clone()
    }

    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        opened.member = self.inner.take();
        let has_replied = self.leaf.outbound.has_replied(opened, outcome);
        self.inner.set(opened.member.take());
        has_replied
    }

    fn release(&self, mut opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool) {
        opened.member = self.inner.take();
        self.leaf.outbound.release(opened, outcome, pool);
    }
}

impl Outbound for Choice {
    fn name(&self) -> &Tag {
        self.shared.name()
    }

    fn is_tunnel(&self) -> bool {
        if let Some(leaf) = self.current() {
            return leaf.outbound.is_tunnel();
        }
        let roster = self.roster();
        let mut leaves = roster.members.iter().filter_map(|member| self.leaf(member));
        !roster.members.is_empty() && leaves.all(|leaf| leaf.outbound.is_tunnel())
    }

    fn wants_first_bytes(&self) -> bool {
        self.current().is_some_and(|leaf| leaf.outbound.wants_first_bytes())
    }

    fn passes(&self, network: Network) -> bool {
        let roster = self.roster();
        let is_udp = network == Network::Udp;
        if is_udp && !roster.model.udp {
            return true;
        }
        if matches!(roster.model.policy, Policy::LoadBalance(_)) {
            return false;
        }
        let Some(member) = roster.now().map(|at| &roster.members[at]) else { return false };
        match member.nature {
            MemberKind::Group => self.leaf(member).is_some_and(|leaf| leaf.outbound.passes(network)),
            MemberKind::Pass => true,
            MemberKind::Refusing => false,
            MemberKind::Dead { udp } | MemberKind::Leaf { udp } => is_udp && !udp,
        }
    }

    fn connect<'a>(
        &'a self,
        to: ConnectTarget<'a>,
        fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(self.open(to, fresh))
    }

    fn has_replied(&self, opened: &mut OpenedConnection, outcome: &RelayOutcome) -> bool {
        let Some(member) = opened.member.take() else { return outcome.down > 0 };
        let has_replied = member.has_replied(opened, outcome);
        opened.member = Some(member);
        has_replied
    }

    fn release(&self, mut opened: OpenedConnection, outcome: &RelayOutcome, pool: &Pool) {
        if let Some(member) = opened.member.take() {
            member.release(opened, outcome, pool);
        }
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(async move {
            let first = || {
                let roster = self.roster();
                roster.members.first().and_then(|member| self.leaf(member))
            };
            self.current().or_else(first)?.outbound.lookup(name).await
        })
    }
}
