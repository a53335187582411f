//! Inbounds that go from one address to the wildcard of its port, or back, or get and lose addresses beside one that stays.
//!
//! New sockets are bound while those that go are open still, so that a client meets one or the other. If the system does
//! not allow that (the sockets that go belong to another user, or came from a service manager), those that go close first.
//!
//! An address has a reach: this machine, the networks of one address, everybody. If the reach gets smaller, the address
//! before closes whether or not the new one can be had: a listener that was taken back must not stay open.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use adit_model::{self as model, Config};
use adit_net::handover::Kept;
use adit_net::listen::SharedPorts;

use super::apply::{Changes, ReloadPlan};
use super::command::{LoopCommand, Relisten};
use super::running::{BoundPart, ListeningPart, RunningInbound};
use super::sockets::{self, ListenTerms, Wanted, wanted_by};
use super::{Engine, StartError, State};
use crate::errors::ConfigPart;
use crate::observe::service::reach;
use crate::stream::chain;

/// About addresses that are listened on no more although their successors cannot be had.
const CLOSED_ALL_THE_SAME: &str = "closed all the same, for fewer clients were to reach the port";

/// An inbound that listens elsewhere.
pub(super) struct Moving {
    model: Arc<model::Inbound>,
    takes: bool,
    /// The addresses that are not listened on yet.
    missing: Vec<Wanted>,
    bound: Vec<BoundPart>,
    /// The parts that go, by their numbers.
    leaving: Vec<(u64, Wanted)>,
    /// Addresses that have been closed already.
    closed: Vec<Wanted>,
    /// All that is missing was to be listened on before, too, and could not be had.
    was_missing: bool,
    /// Other sockets have to close before its own can be bound.
    pub(super) needs_room: bool,
    errors: Vec<String>,
}

/// Whether an inbound can move to where `new` listens. It has to keep an address, or one that overlaps it: with others it is
/// another port. A plugin listens itself, and so does the system for streams that only look like TCP.
pub(super) fn can_move(held: &RunningInbound, new: &model::Inbound) -> bool {
    let carrier = new.socket.carrier.as_ref();
    if new.plugin().is_some() || carrier.is_some_and(|carrier| carrier.raw_tcp || carrier.has_streams()) {
        return false;
    }
    // An address that could not be had counts, too.
    let mut before = held.parts.iter().filter_map(|part| part.wanted).chain(wanted_by(&held.model));
    let new = wanted_by(new);
    before.any(|(old, _)| new.iter().any(|(addr, _)| overlap(old, *addr)))
}

/// Whether sockets on both addresses may be in each other's way.
pub(super) fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let (ip, other) = (a.ip().to_canonical(), b.ip().to_canonical());
    a.port() != 0 && a.port() == b.port() && (ip == other || ip.is_unspecified() || other.is_unspecified())
}

/// Whether `old` gives way to addresses that fewer reach: those of the same port among `new`, or all of them.
fn narrows(old: SocketAddr, new: &[SocketAddr]) -> bool {
    let has_port = new.iter().any(|addr| addr.port() == old.port());
    let mut successors = new.iter().filter(|addr| !has_port || addr.port() == old.port()).peekable();
    successors.peek().is_some() && successors.all(|addr| reach(*addr) < reach(old))
}

/// The inbound without addresses that give way in `config` to others that fewer reach; `None` if none is left.
pub(super) fn without_wide(mut inbound: Arc<model::Inbound>, config: &Config) -> Option<Arc<model::Inbound>> {
    let new: Vec<SocketAddr> = config.inbounds.iter().flat_map(|other| other.listen.clone()).collect();
    let is_wide = |addr: &SocketAddr| new.iter().any(|other| overlap(*addr, *other)) && narrows(*addr, &new);
    let (wide, stay): (Vec<SocketAddr>, Vec<SocketAddr>) =
        inbound.listen.iter().partition(|addr| is_wide(addr));
    if wide.is_empty() {
        return Some(inbound);
    }
    tracing::error!(inbound = &*inbound.name, addresses = ?wide, "{CLOSED_ALL_THE_SAME}");
    let is_left = !stay.is_empty();
    Arc::make_mut(&mut inbound).listen = stay;
    is_left.then_some(inbound)
}

/// Has the parts that go of the inbounds that become `moving` share their ports.
pub(super) fn beside(state: &State, moving: &[&model::Inbound]) -> SharedPorts {
    let parts = moving.iter().filter_map(|model| Some((state.inbounds.get(&model.name)?, *model)));
    SharedPorts::new(parts.flat_map(|(held, model)| leaving(held, model).flat_map(|part| &part.kept)))
}

/// The parts whose addresses are not those of `model`.
fn leaving<'a>(
    held: &'a RunningInbound,
    model: &model::Inbound,
) -> impl Iterator<Item = &'a ListeningPart> + use<'a> {
    let wanted: BTreeSet<Wanted> = wanted_by(model).into_iter().collect();
    held.parts.iter().filter(move |part| part.wanted.is_some_and(|of| !wanted.contains(&of)))
}

/// Waits until the sockets of parts are closed.
pub(super) fn wait_for(parts: Vec<ListeningPart>) {
    parts.into_iter().for_each(ListeningPart::wait);
}

impl Engine {
    /// Binds what an inbound that becomes `model` is to listen on, unless addresses in `going` are in the way.
    ///
    /// # Errors
    /// When an address cannot be had, and those before it may stay.
    pub(super) fn prepare_move(
        &self,
        state: &State,
        model: &model::Inbound,
        going: &[SocketAddr],
        draft: &mut ReloadPlan,
    ) -> Result<(), StartError> {
        let Some(held) = state.inbounds.get(&model.name) else { return Ok(()) };
        let has: BTreeSet<Wanted> = held.parts.iter().filter_map(|part| part.wanted).collect();
        let missing: Vec<Wanted> = wanted_by(model).into_iter().filter(|of| !has.contains(of)).collect();
        let before = wanted_by(&held.model);
        let mut moving = Moving {
            was_missing: missing.iter().all(|of| before.contains(of)),
            model: Arc::new(model.clone()),
            takes: held.takes,
            leaving: leaving(held, model).filter_map(|part| Some((part.id, part.wanted?))).collect(),
            bound: Vec::new(),
            closed: Vec::new(),
            needs_room: missing.iter().any(|(addr, _)| going.iter().any(|other| overlap(*addr, *other))),
            missing,
            errors: Vec::new(),
        };
        if !moving.needs_room {
            let beside = draft.beside.sockets();
            moving.bind(self, &beside, true)?;
        }
        draft.moves.push(moving);
        Ok(())
    }

    /// Binds what the inbounds listen on that had to wait until others are closed; their own parts that go close first.
    ///
    /// # Errors
    /// When an address cannot be had, and those before it may stay.
    pub(super) fn move_late(&self, state: &mut State, draft: &mut ReloadPlan) -> Result<(), StartError> {
        for moving in &mut draft.moves {
            if !std::mem::take(&mut moving.needs_room) {
                continue;
            }
            let Some(held) = state.inbounds.get_mut(&moving.model.name) else { continue };
            let numbers: Vec<u64> = moving.leaving.iter().map(|(id, _)| *id).collect();
            draft.beside.release(
                held.parts.iter().filter(|part| numbers.contains(&part.id)).flat_map(|part| &part.kept),
            );
            moving.closed = self.close_parts(held, &numbers);
            moving.bind(self, &Arc::default(), false)?;
        }
        Ok(())
    }

    /// Takes moves back that another part of the change does not let happen. Those that had to close something listen
    /// there again, or at the new address if fewer clients reach that.
    pub(super) fn undo_moves(&self, state: &mut State, draft: &mut ReloadPlan) {
        let mut orders = self.orders();
        for moving in std::mem::take(&mut draft.moves) {
            let Some(held) = state.inbounds.get_mut(&moving.model.name) else { continue };
            if moving.closed.is_empty() {
                continue;
            }
            if moving.narrows() {
                moving.bound.into_iter().for_each(|bound| open_part(held, bound, &mut orders));
                continue;
            }
            // It may be in the way.
            drop(moving.bound);
            for wanted in moving.closed {
                match self.bind_part(&held.model, held.takes, wanted, &Arc::default()) {
                    Ok(bound) => open_part(held, bound, &mut orders),
                    Err(error) => {
                        let inbound = &*held.model.name;
                        tracing::error!(inbound, %error, "inbound could not be opened again");
                    }
                }
            }
        }
        self.send(orders);
    }

    /// Has the parts of an inbound with these numbers close, while its connections go on. Gives their addresses.
    fn close_parts(&self, held: &mut RunningInbound, numbers: &[u64]) -> Vec<Wanted> {
        let left = held.take_parts(numbers);
        let addresses = left.iter().filter_map(|part| part.wanted).collect();
        let relisten = || Relisten { id: held.id, open: Vec::new(), close: numbers.to_vec() };
        self.tell(|_| LoopCommand { relisten: vec![relisten()], ..LoopCommand::default() });
        wait_for(left);
        addresses
    }

    fn bind_part(
        &self,
        model: &model::Inbound,
        takes: bool,
        wanted: Wanted,
        beside: &Arc<[u64]>,
    ) -> Result<BoundPart, StartError> {
        // An inbound with a plugin does not move.
        let mut plugins = self.plugins(&Config::default(), ConfigPart::Inbound);
        let terms = ListenTerms { takes, cores: self.cores(), beside };
        Ok(BoundPart::new(self, sockets::listen_at(model, wanted, &terms, &mut plugins)?))
    }

    /// Closes the wide addresses of the inbound that could not be opened as `config` has it, if fewer clients were to reach
    /// it then.
    pub(super) fn close_wide(&self, state: &mut State, config: &Config, error: &StartError) {
        let (StartError::Listen { name, .. } | StartError::Build { name, .. }) = error else { return };
        let (Some(held), Some(wanted)) = (state.inbounds.get_mut(name), config.inbound(name)) else { return };
        let is_wide = |part: &&ListeningPart| {
            part.wanted
                .is_some_and(|(addr, _)| !wanted.listen.contains(&addr) && narrows(addr, &wanted.listen))
        };
        let wide: Vec<u64> = held.parts.iter().filter(is_wide).map(|part| part.id).collect();
        if wide.is_empty() {
            return;
        }
        for (addr, _) in self.close_parts(held, &wide) {
            tracing::error!(inbound = &**name, address = %addr, "{CLOSED_ALL_THE_SAME}");
        }
        self.show(state);
    }
}

/// Adds a part to an inbound and to what each core is told.
fn open_part(held: &mut RunningInbound, bound: BoundPart, orders: &mut [LoopCommand]) {
    let (part, serve) = bound.split();
    for (order, serving) in orders.iter_mut().zip(serve) {
        order.relisten.push(Relisten { id: held.id, open: vec![(serving, None)], close: Vec::new() });
    }
    held.parts.push(part);
}

/// The part whose readers of datagrams go over to `addr`: one of the same port, and with the same clients as far as that
/// goes. The IPv6 wildcard has those of IPv4 in the main.
fn predecessor(addr: SocketAddr, parts: &[(u64, Wanted)]) -> Option<usize> {
    let is_v4 = |addr: &SocketAddr| addr.is_ipv4() || addr.ip().is_unspecified();
    let same = parts.iter().enumerate().filter(|(_, (_, (other, _)))| other.port() == addr.port());
    let rank = |other: &SocketAddr| (is_v4(other) != is_v4(&addr), other.is_ipv6());
    same.min_by_key(|(_, (_, (other, _)))| rank(other)).map(|(at, _)| at)
}

impl Moving {
    /// Whether fewer clients are to reach it.
    fn narrows(&self) -> bool {
        self.leaving.iter().any(|(_, (addr, _))| narrows(*addr, &self.model.listen))
    }

    /// Whether a part that goes may keep an address from being bound.
    fn is_in_the_way(&self, (addr, _): Wanted) -> bool {
        self.leaving.iter().any(|(_, (other, _))| overlap(addr, *other))
    }

    /// Binds the addresses that are missing. If one is taken and it `may_wait`, that is left for later.
    ///
    /// # Errors
    /// When an address cannot be had, and those before it may stay.
    fn bind(&mut self, engine: &Engine, beside: &Arc<[u64]>, may_wait: bool) -> Result<(), StartError> {
        for wanted in self.missing.clone() {
            match engine.bind_part(&self.model, self.takes, wanted, beside) {
                Ok(bound) => self.bound.push(bound),
                Err(StartError::Listen { source, .. })
                    if may_wait && source.is_taken() && self.is_in_the_way(wanted) =>
                {
                    self.bound.clear();
                    self.needs_room = true;
                    return Ok(());
                }
                Err(error) if self.was_missing || self.narrows() => self.errors.push(self.error(&error)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn error(&self, error: &StartError) -> String {
        let text = chain(error);
        if self.leaving.is_empty() {
            return text;
        }
        let closed: Vec<String> = self.leaving.iter().map(|(_, (addr, _))| addr.to_string()).collect();
        format!("{text}; {}: {CLOSED_ALL_THE_SAME}", closed.join(", "))
    }

    /// Adds the move to what each core is told. Gives the parts that go.
    pub(super) fn put(
        self,
        state: &mut State,
        orders: &mut [LoopCommand],
        changes: &mut Changes,
    ) -> Vec<ListeningPart> {
        let Self { model, bound, leaving, errors, .. } = self;
        let Some(held) = state.inbounds.get_mut(&model.name) else { return Vec::new() };
        changes.errors.extend(errors);
        let close: Vec<u64> = leaving.iter().map(|(id, _)| *id).collect();
        let mut all: Vec<Relisten> =
            orders.iter().map(|_| Relisten { id: held.id, open: Vec::new(), close: close.clone() }).collect();
        let mut before = leaving;
        for bound in bound {
            changes.warnings.extend(bound.warnings.iter().cloned());
            let same = bound.part.wanted.and_then(|(addr, _)| predecessor(addr, &before));
            let before = same.map(|at| before.remove(at).0);
            let (part, serve) = bound.split();
            for (relisten, serving) in all.iter_mut().zip(serve) {
                relisten.open.push((serving, before));
            }
            held.parts.push(part);
        }
        for (order, relisten) in orders.iter_mut().zip(all) {
            order.relisten.push(relisten);
        }
        // Those that follow are open: nobody is to meet these any more.
        let going = held.parts.iter().filter(|part| close.contains(&part.id));
        going.flat_map(|part| &part.kept).for_each(Kept::hide);
        let left = held.take_parts(&close);
        // In the order of the configuration, for those who list them.
        let wanted = wanted_by(&model);
        held.parts
            .sort_by_key(|part| part.wanted.and_then(|of| wanted.iter().position(|other| *other == of)));
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_that_are_in_each_others_way() {
        for (a, b, want) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("127.0.0.1:80", "[::]:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::1]:80", "[::]:80", true),
            ("0.0.0.0:0", "0.0.0.0:0", false),
        ] {
            assert_eq!((overlap(addr(a), addr(b)), overlap(addr(b), addr(a))), (want, want), "{a} {b}");
        }
    }

    #[test]
    fn fewer_clients_reach_the_new_addresses() {
        for (old, new, want) in [
            ("0.0.0.0:80", &["127.0.0.1:80"][..], true),
            ("[::]:80", &["127.0.0.1:80", "[::1]:80"], true),
            ("[::]:80", &["192.0.2.1:80"], true),
            ("192.0.2.1:80", &["[::1]:80"], true),
            ("0.0.0.0:80", &["127.0.0.1:81"], true),
            ("0.0.0.0:80", &["127.0.0.1:80", "0.0.0.0:81"], true),
            ("0.0.0.0:80", &["127.0.0.1:81", "0.0.0.0:82"], false),
            ("[::]:80", &["0.0.0.0:80"], false),
            ("127.0.0.1:80", &["0.0.0.0:80"], false),
            ("127.0.0.1:80", &["127.0.0.2:80"], false),
            ("0.0.0.0:80", &[], false),
        ] {
            let new: Vec<SocketAddr> = new.iter().map(|text| addr(text)).collect();
            assert_eq!(narrows(addr(old), &new), want, "{old} {new:?}");
        }
    }
}
