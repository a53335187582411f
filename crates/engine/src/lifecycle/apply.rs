//! From one configuration to the next.
//!
//! ```text
//!   check and prepare (nothing has changed yet): outbounds built, sockets bound, keys derived, plugins started
//!   ──→ inbounds that need an address of their own predecessor: that is closed, and opened again if the new one fails
//!   ──→ one order per core: outbounds put, inbounds closed, updated, moved to other addresses and opened
//!   ──→ groups get their members ──→ a second order: outbounds removed
//! ```
//!
//! An inbound that keeps an address, or goes from one to the wildcard of its port or back, and is otherwise the same,
//! moves: its new sockets are bound beside those that go, which then take what waits at them and close. Its connections,
//! flows and sessions go on. An address that more clients reach than any of the new ones closes even where a new one
//! cannot be had ([`moves`](super::moves)).

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use adit_model::map::Map;
use adit_model::{self as model, Config, Tag};
use adit_net::listen::SharedPorts;
use adit_net::rt;

use super::command::{LoopCommand, Update};
use super::moves::{Moving, beside, can_move, overlap, wait_for, without_wide};
use super::running::{Prepared, RunningInbound, RunningOutbound, takes};
use super::{Engine, Extensions, StartError, State};
use crate::dns::{Filter, NameList, PolicyNames, Trusted};
use crate::groups::choice::{ChoiceShared, Choices};
use crate::observe::status::View;
use crate::outbound;
use crate::protocols::registry;
use crate::routing::Router;
use crate::transparent::{self, Active, CaptureError};
use crate::users::Account;

/// The differences that [`Running::apply`](super::Running::apply) has made, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Inbounds that are new, or were closed and opened anew.
    pub opened: Vec<Tag>,
    /// Inbounds that kept their connections, with other users, limits, outbound or addresses of the same port.
    pub updated: Vec<Tag>,
    /// Inbounds that are gone, or were closed and opened anew.
    pub closed: Vec<Tag>,
    /// Outbounds that are new or are built anew; what is open over the one before goes on until it ends.
    pub outbounds_put: Vec<Tag>,
    /// Outbounds that are gone; what is open over them goes on until it ends.
    pub outbounds_removed: Vec<Tag>,
    /// Groups that have other members.
    pub groups_changed: Vec<Tag>,
    /// Settings that stay as they were until the process starts again.
    pub needs_restart: Vec<&'static str>,
    /// Options that the system does not give, and methods that should not be used.
    pub warnings: Vec<String>,
    /// Addresses that cannot be listened on, where those before them are closed all the same: fewer clients were to reach
    /// them.
    pub errors: Vec<String>,
}

/// The fate of an inbound of the new configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InboundAction {
    Keep,
    Update,
    /// It listens elsewhere; its connections go on.
    Move,
    Open,
}

/// All that is prepared before anything changes.
#[derive(Default)]
pub(super) struct ReloadPlan {
    pub(super) changes: Changes,
    outbounds: Map<Tag, RunningOutbound>,
    inbounds: Vec<Prepared>,
    updates: Vec<(Tag, Arc<model::Inbound>)>,
    pub(super) moves: Vec<Moving>,
    /// Has the sockets that go share their ports with those that follow.
    pub(super) beside: SharedPorts,
    /// Inbounds of the new configuration that need an address of an inbound that is open.
    overlapping: Vec<Arc<model::Inbound>>,
}

/// Addresses at which this process answers questions itself.
fn own_dns_ports(config: &Config) -> Vec<SocketAddr> {
    let answers = |inbound: &&model::Inbound| inbound.protocol.as_dns().is_some();
    config.inbounds.iter().filter(answers).flat_map(|inbound| inbound.listen.iter().copied()).collect()
}

impl Engine {
    /// Has everything run as `wanted` says; what is the same in both is not touched.
    ///
    /// # Errors
    /// When a part cannot be had; everything is as it was then.
    pub(super) fn apply(&self, wanted: &Config) -> Result<Changes, StartError> {
        let mut changes = self.apply_parts(wanted)?;
        if let Some(handle) = self.http.get() {
            // It answers about the state, which is not locked any more.
            let http = self.state().config.admin_http.clone();
            let followed = handle.follow(&http).map_err(|error| format!("admin.http: {error}"));
            changes.errors.extend(followed.err());
        }
        Ok(changes)
    }

    fn apply_parts(&self, wanted: &Config) -> Result<Changes, StartError> {
        let mut state = self.state();
        let state = &mut *state;
        if self.is_ending() {
            return Err(StartError::Ending);
        }
        let mut draft = ReloadPlan::default();
        let mut config = effective(state, wanted, &mut draft.changes.needs_restart)?;
        self.prepare_capture(state, &config)?;
        check_dns(&config)?;
        let (router, names) = compile(&config, &self.extensions)?;
        // The tables have all of them by now.
        config.lists.clear();
        let config = Arc::new(config);
        draft.changes.warnings.extend(state.open_ledger(&config)?);
        draft.changes.warnings.extend(state.open_salts(&config.state, &config.inbounds));
        draft.changes.warnings.extend(self.open_choices(&config));
        self.prepare_outbounds(state, &config, &mut draft)?;
        let prepared = self.prepare_inbounds(state, &config, &mut draft);
        // All that may fail comes before the first inbound is closed.
        let prepared = prepared.and_then(|()| renew(state, &draft.updates));
        let room = prepared.and_then(|renewed| Ok((renewed, self.make_room(state, &config, &mut draft)?)));
        let (renewed, gone) = match room {
            Ok(made) => made,
            Err(error) => {
                drop(draft);
                self.close_wide(state, &config, &error);
                return Err(error);
            }
        };
        if let (Some(fake), Some(filter), Some(settings)) = (self.dns.fake(), names.filter, &config.dns.fake)
        {
            fake.follow(settings, filter);
        }
        if let Some(trusted) = names.trusted {
            self.dns.set_trusted(trusted);
        }
        self.dns.set_named(names.named);
        self.dns.set_own_ports(own_dns_ports(&config));
        let is_start = state.config.outbounds.is_empty();
        if is_start {
            state.interfaces = (config.admin_http.is_some(), config.manage.is_some());
        }
        let mut changes = self.commit(state, config, draft, gone, renewed, router)?;
        match self.follow_capture(state) {
            Err(error) if is_start => return Err(StartError::Capture(error)),
            // Connections and listeners have changed already: what was captured before is captured still.
            Err(error) => changes.warnings.push(format!("the capture stays as it was: {error}")),
            Ok(()) => {}
        }
        Ok(changes)
    }

    /// A capture that cannot be had is told before anything changes.
    fn prepare_capture(&self, state: &State, config: &Config) -> Result<(), StartError> {
        if let Some(capture) = &config.capture {
            let is_held = state.capture.is_some() || state.inherited.capture.is_some();
            transparent::check(capture, is_held).map_err(StartError::Capture)?;
            // All that is dialled from now on is exempt.
            adit_net::set_common_mark(Some(capture.own_mark));
        } else if state.capture.is_none() {
            adit_net::set_common_mark(None);
        }
        Ok(())
    }

    fn prepare_outbounds(
        &self,
        state: &State,
        config: &Config,
        draft: &mut ReloadPlan,
    ) -> Result<(), StartError> {
        for model in &config.outbounds {
            let old = state.outbounds.get(&model.name);
            if old.is_some_and(|old| is_same_outbound(&old.model, model)) {
                continue;
            }
            let metrics = old.map(|old| old.metrics.clone());
            let held = RunningOutbound::new(self, model, config, metrics)?;
            draft.changes.warnings.extend(outbound::warnings(model));
            draft.changes.outbounds_put.push(model.name.clone());
            draft.outbounds.insert(model.name.clone(), held);
        }
        Ok(())
    }

    fn prepare_inbounds(
        &self,
        state: &State,
        config: &Config,
        draft: &mut ReloadPlan,
    ) -> Result<(), StartError> {
        let mut fates = Vec::new();
        for model in &config.inbounds {
            let takes = takes(model, config);
            let takes = takes.map_err(|source| StartError::Build { name: model.name.clone(), source })?;
            fates.push((model, fate(state.inbounds.get(&model.name), model, takes)));
        }
        let anew = |name: &Tag| {
            fates.iter().any(|(model, fate)| model.name == *name && *fate == InboundAction::Open)
        };
        let goes =
            |held: &&RunningInbound| config.inbound(&held.model.name).is_none() || anew(&held.model.name);
        // Addresses of inbounds that go, which have to be closed first.
        let going: Vec<SocketAddr> =
            state.inbounds.values().filter(goes).flat_map(|held| held.model.listen.clone()).collect();
        let moving = fates.iter().filter(|(_, fate)| *fate == InboundAction::Move);
        let moving: Vec<&model::Inbound> = moving.map(|(model, _)| *model).collect();
        draft.beside = beside(state, &moving);
        for (model, fate) in fates {
            match fate {
                InboundAction::Keep => {}
                InboundAction::Update => {
                    draft.changes.updated.push(model.name.clone());
                    draft.updates.push((model.name.clone(), Arc::new(model.clone())));
                }
                InboundAction::Move => {
                    draft.changes.updated.push(model.name.clone());
                    draft.updates.push((model.name.clone(), Arc::new(model.clone())));
                    self.prepare_move(state, model, &going, draft)?;
                }
                InboundAction::Open => {
                    draft.changes.opened.push(model.name.clone());
                    let overlaps =
                        model.listen.iter().any(|addr| going.iter().any(|other| overlap(*addr, *other)));
                    let has_unix = |held: &RunningInbound| {
                        model.socket.unix.is_some() && held.model.socket.unix == model.socket.unix
                    };
                    let has_device =
                        |held: &RunningInbound| held.model.interface_name() == model.interface_name();
                    let shares_device =
                        model.interface_name().is_some() && state.inbounds.values().any(has_device);
                    if overlaps || shares_device || state.inbounds.values().any(has_unix) {
                        draft.overlapping.push(Arc::new(model.clone()));
                    } else {
                        let prepared = self.prepare(state, model.clone().into(), config, &draft.beside)?;
                        draft.inbounds.push(prepared);
                    }
                }
            }
        }
        Ok(())
    }

    /// Binds an inbound, counting in the place of the one of its name.
    fn prepare(
        &self,
        state: &State,
        model: Arc<model::Inbound>,
        config: &Config,
        beside: &SharedPorts,
    ) -> Result<Prepared, StartError> {
        let metrics = state.inbounds.get(&model.name).map(|held| held.metrics.clone());
        Prepared::new(self, model, config, state, metrics, &beside.sockets())
    }

    /// Closes the inbounds that are gone or opened anew, where a new one needs an address of theirs, and binds that.
    /// Gives the names of all that are to be closed.
    ///
    /// # Errors
    /// When an address cannot be had; those that were closed are open again then, without the connections they had, unless
    /// fewer clients were to reach them.
    fn make_room(
        &self,
        state: &mut State,
        config: &Config,
        draft: &mut ReloadPlan,
    ) -> Result<Vec<Tag>, StartError> {
        let opened: BTreeSet<&Tag> = draft.changes.opened.iter().collect();
        let is_gone = |name: &&Tag| opened.contains(name) || config.inbound(name).is_none();
        let gone: Vec<Tag> = state.inbounds.keys().filter(is_gone).cloned().collect();
        draft.changes.closed.clone_from(&gone);
        if draft.overlapping.is_empty() && !draft.moves.iter().any(|moving| moving.needs_room) {
            return Ok(gone);
        }
        let before = state.config.clone();
        let closed: Vec<RunningInbound> =
            gone.iter().filter_map(|name| state.inbounds.remove(name)).collect();
        let metrics: Map<Tag, _> =
            closed.iter().map(|held| (held.model.name.clone(), held.metrics.clone())).collect();
        let models: Vec<Arc<model::Inbound>> = closed.iter().map(|held| held.model.clone()).collect();
        closed.into_iter().for_each(|held| held.close(self));
        let beside = draft.beside.sockets();
        let open = |model: Arc<model::Inbound>, config: &Config, state: &State| {
            let metrics = metrics.get(&model.name).cloned();
            Prepared::new(self, model, config, state, metrics, &beside)
        };
        let moved = self.move_late(state, draft);
        let mut overlapping = std::mem::take(&mut draft.overlapping).into_iter();
        let opened = moved.and_then(|()| {
            overlapping.try_for_each(|model| open(model, config, state).map(|made| draft.inbounds.push(made)))
        });
        if let Err(error) = opened {
            draft.inbounds.clear();
            self.undo_moves(state, draft);
            let mut orders = self.orders();
            for model in models.into_iter().filter_map(|model| without_wide(model, config)) {
                match open(model.clone(), &before, state) {
                    Ok(prepared) => {
                        let held = prepared.open(&mut orders);
                        state.inbounds.insert(held.model.name.clone(), held);
                    }
                    Err(error) => {
                        tracing::error!(inbound = &*model.name, %error, "inbound could not be opened again");
                    }
                }
            }
            self.send(orders);
            self.show(state);
            return Err(error);
        }
        Ok(Vec::new())
    }

    /// Nothing can fail from here on but the process itself.
    fn commit(
        &self,
        state: &mut State,
        config: Arc<Config>,
        draft: ReloadPlan,
        gone: Vec<Tag>,
        renewed: Vec<(Tag, registry::InboundShared)>,
        router: Arc<Router>,
    ) -> Result<Changes, StartError> {
        let ReloadPlan { mut changes, outbounds, inbounds, updates, moves, beside, .. } = draft;
        // All is bound. A socket that goes has to close with its last connection, so nothing may hold a copy.
        drop(beside);
        let closed: Vec<RunningInbound> =
            gone.iter().filter_map(|name| state.inbounds.remove(name)).collect();
        let mut removed: Vec<Arc<Account>> =
            closed.iter().flat_map(|held| held.shared.users().to_vec()).collect();
        let mut orders = self.orders();
        let names = (state.config.dns != config.dns).then(|| self.dns.change(&config.dns, rt::now()));
        for order in &mut orders {
            order.config = Some((config.clone(), router.clone()));
            order.names.clone_from(&names);
        }
        let (groups, others): (Vec<_>, Vec<_>) =
            outbounds.into_iter().partition(|(_, held)| held.shared.group().is_some());
        for (name, held) in others.into_iter().chain(groups) {
            held.put(&mut orders);
            if let Some(old) = state.outbounds.insert(name, held) {
                state.retired.push(old.plugins);
            }
        }
        for prepared in inbounds {
            changes.warnings.extend(prepared.warnings.iter().cloned());
            let held = prepared.open(&mut orders);
            state.inbounds.insert(held.model.name.clone(), held);
        }
        for ((name, model), (_, shared)) in updates.into_iter().zip(renewed) {
            let Some(held) = state.inbounds.get_mut(&name) else { continue };
            removed.extend(held.shared.users().iter().cloned());
            for order in &mut orders {
                let (model, shared) = (model.clone(), shared.clone());
                order.update.push(Update { id: held.id, model, shared });
            }
            (held.model, held.shared) = (model, shared);
        }
        let moved = moves.into_iter().flat_map(|moving| moving.put(state, &mut orders, &mut changes));
        let left = moved.collect();
        if !self.send_and_wait(orders) {
            return Err(StartError::Ending);
        }
        wait_for(left);
        closed.into_iter().for_each(|held| held.close(self));
        for account in removed {
            let stays =
                |held: &RunningInbound| held.shared.users().iter().any(|other| Arc::ptr_eq(other, &account));
            if !state.inbounds.values().any(stays) {
                account.remove();
            }
        }
        self.follow_groups(state, &config, &mut changes);
        self.remove_outbounds(state, &config, &mut changes);
        self.board.retain(|name| state.outbounds.contains_key(name));
        state.config = config;
        self.show(state);
        Ok(changes)
    }

    /// Reads the members that people chose, if they are kept in another file than before.
    fn open_choices(&self, config: &Config) -> Option<String> {
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if choices.path() == config.choices.as_deref() {
            return None;
        }
        let (opened, warning) = Choices::open(config.choices.as_deref());
        *choices = opened;
        warning
    }

    /// The state that cores share of a group whose members are chosen.
    pub(super) fn choice(
        &self,
        name: &Tag,
        choice: &model::Choice,
        config: &Config,
    ) -> registry::OutboundShared {
        let wanted = self.choices.lock().unwrap_or_else(PoisonError::into_inner).find(name);
        let wanted = wanted.filter(|_| choice.policy.is_selectable());
        registry::OutboundShared::Choice(Arc::new(ChoiceShared::new(
            name,
            choice,
            config,
            &self.board,
            wanted,
        )))
    }

    /// Groups that are not built anew get the members that there are.
    fn follow_groups(&self, state: &State, config: &Config, changes: &mut Changes) {
        for model in &config.outbounds {
            if let (Some(choice), Some(held)) = (model.protocol.as_choice(), state.outbounds.get(&model.name))
                && let Some(shared) = held.shared.choice()
                && shared.change(choice, config)
                && !changes.outbounds_put.contains(&model.name)
            {
                changes.groups_changed.push(model.name.clone());
            }
            let (Some(group), Some(held)) = (model.protocol.as_group(), state.outbounds.get(&model.name))
            else {
                continue;
            };
            let is_changed = |member: &model::Member| changes.outbounds_put.contains(&member.outbound);
            let is_new = changes.outbounds_put.contains(&model.name);
            let has_others = state.config.outbound(&model.name) != Some(model);
            if !is_new
                && (has_others || group.members.iter().any(is_changed))
                && let Some(shared) = held.shared.group()
            {
                shared.replace_fixed(group, config, rt::now());
                changes.groups_changed.push(model.name.clone());
            }
        }
    }

    fn remove_outbounds(&self, state: &mut State, config: &Config, changes: &mut Changes) {
        let is_gone = |name: &&Tag| config.outbound(name).is_none();
        let gone: Vec<Tag> = state.outbounds.keys().filter(is_gone).cloned().collect();
        for name in &gone {
            state.retired.extend(state.outbounds.remove(name).map(|held| held.plugins));
        }
        if !gone.is_empty() {
            self.tell(|_| LoopCommand { remove: gone.clone(), ..LoopCommand::default() });
        }
        changes.outbounds_removed = gone;
    }

    /// Lets status see what runs.
    pub(super) fn show(&self, state: &State) {
        let inbounds = state.config.inbounds.iter().filter_map(|model| state.inbounds.get(&model.name));
        let outbounds = state.config.outbounds.iter().filter_map(|model| state.outbounds.get(&model.name));
        let groups = outbounds.clone().filter_map(|held| held.shared.group()).cloned().collect();
        let view = View {
            inbounds: inbounds.map(RunningInbound::view).collect(),
            outbounds: outbounds.map(RunningOutbound::view).collect(),
            groups,
            memory: None,
            ledger: Some(state.ledger()),
            salts: state.salts.clone(),
        };
        let all = state.config.outbounds.iter().filter_map(|model| state.outbounds.get(&model.name));
        let all = all.map(|held| (held.model.clone(), held.shared.choice().cloned()));
        self.showcase.set(state.config.clone(), all.collect());
        let has_carrier = view.inbounds.iter().any(|inbound| inbound.carrier.is_some())
            || view.outbounds.iter().any(|outbound| outbound.carrier.is_some());
        self.directory.set(View { memory: has_carrier.then(|| self.memory.clone()), ..view });
    }
}

/// The lists that the DNS service refers to, as tables.
pub(super) struct NameLists {
    /// The names that get fake addresses, if there are any.
    filter: Option<Filter>,
    /// The networks that a fallback trusts, if there is one.
    trusted: Option<Trusted>,
    /// The names of the lists that policies are about.
    named: PolicyNames,
}

/// The rules of a configuration as tables, with the files that they refer to, and the lists of its names.
pub(super) fn compile(
    config: &Config,
    extensions: &Extensions,
) -> Result<(Arc<Router>, NameLists), StartError> {
    let sets = (extensions.load_sets)(config).map_err(StartError::Sets)?;
    let filter = config.dns.fake.as_ref().map(|fake| Filter::new(fake, &sets, config.server_names()));
    let trusted = config.dns.fallback.as_ref().map(|fallback| Trusted::new(fallback, &sets));
    let policies = (1..).zip(&config.dns.policy);
    let named = policies.filter_map(|(number, policy)| Some((number, NameList::new(policy.set()?, &sets))));
    let named = named.collect();
    let router = Router::compile(config, sets).map_err(StartError::Rules)?;
    Ok((Arc::new(router), NameLists { filter, trusted, named }))
}

/// Whether a configuration can run as far as that can be told without its sockets and files.
///
/// # Errors
/// When rules or names cannot be followed, or the capture needs something that is not there.
pub(super) fn check(config: &Config, extensions: &Extensions) -> Result<(), StartError> {
    let mut config = config.clone();
    transparent::with_inbounds(&mut config).map_err(StartError::Capture)?;
    if let Some(capture) = &config.capture {
        // Another process may hold the capture still: its end, or its hand-over, comes later.
        transparent::check(capture, true).map_err(StartError::Capture)?;
    }
    check_dns(&config)?;
    compile(&config, extensions).map(drop)
}

/// `wanted` with what cannot change while the process runs as it is in `current`; the names of that.
///
/// # Errors
/// When the capture needs something that is not there.
pub(super) fn effective(
    state: &State,
    wanted: &Config,
    needs_restart: &mut Vec<&'static str>,
) -> Result<Config, StartError> {
    let (mut config, current) = (wanted.clone(), &state.config);
    transparent::with_inbounds(&mut config).map_err(StartError::Capture)?;
    if current.outbounds.is_empty() {
        return Ok(config);
    }
    let mut fix = |name: &'static str, is_same: bool| {
        if !is_same {
            needs_restart.push(name);
        }
    };
    // The level and the destinations follow at once.
    let (level, destinations) = (wanted.log.level, wanted.log.destinations);
    let log = model::Log { level, destinations, ..current.log.clone() };
    fix("log", log == wanted.log);
    fix("admin.socket", current.admin == wanted.admin);
    // Those that were there at the start follow.
    let (has_http, has_manage) = state.interfaces;
    fix("admin.http", has_http || wanted.admin_http.is_none());
    fix("admin.manage", has_manage || wanted.manage.is_none());
    // The file is opened for the first users or salts.
    let is_open = state.ledger.is_some() || state.salts.is_some();
    fix("state", !is_open || current.state == wanted.state);
    fix("cores", current.cores == wanted.cores);
    fix("udp", current.udp == wanted.udp);
    fix("dns.fake", keep_fake(&current.dns, &mut config.dns));
    fix("limits.carrier-memory", current.limits.carrier_memory == wanted.limits.carrier_memory);
    config.log = log;
    config.admin.clone_from(&current.admin);
    config.admin_http = config.admin_http.filter(|_| has_http);
    config.manage = config.manage.filter(|_| has_manage);
    if is_open {
        config.state.clone_from(&current.state);
    }
    config.cores = current.cores;
    config.udp.clone_from(&current.udp);
    config.limits.carrier_memory = current.limits.carrier_memory;
    Ok(config)
}

/// Keeps the ranges and the file of the fake addresses that run, whose names applications hold; whether they are the same.
fn keep_fake(current: &model::Dns, wanted: &mut model::Dns) -> bool {
    match (&current.fake, &mut wanted.fake) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            let is_same = (&old.v4, &old.v6, &old.store) == (&new.v4, &new.v6, &new.store);
            (new.v4, new.v6) = (old.v4, old.v6);
            new.store.clone_from(&old.store);
            is_same
        }
        (old, new) => {
            new.clone_from(old);
            false
        }
    }
}

impl Engine {
    /// Has the capture follow the configuration that runs now. It waits while the server cannot be reached.
    pub(super) fn follow_capture(&self, state: &mut State) -> Result<(), CaptureError> {
        let config = state.config.clone();
        self.capture_waits.store(false, Ordering::Relaxed);
        let Some(settings) = &config.capture else {
            if state.capture.take().is_some() {
                adit_net::set_common_mark(None);
            }
            return Ok(());
        };
        let addresses = |inbound: &model::Inbound| {
            state.inbounds.get(&inbound.name).map(RunningInbound::addresses).unwrap_or_default()
        };
        let ways = transparent::ways(settings, &config, &addresses);
        if let Some(active) = &mut state.capture {
            return active.follow(settings, &config, &ways);
        }
        if let Some(lent) = state.inherited.capture.take() {
            state.capture = Some(Active::adopt(lent, settings, &config, &ways)?);
            return Ok(());
        }
        if let Some((server, error)) = transparent::unreachable(settings, &config) {
            self.capture_waits.store(true, Ordering::Relaxed);
            tracing::warn!(
                server,
                %error,
                hint = "strict = true captures all the same",
                "nothing is captured yet, for the server cannot be reached: it is tried again every 5 s"
            );
            return Ok(());
        }
        state.capture = Some(Active::start(settings, &config, &ways)?);
        Ok(())
    }
}

/// Refuses name servers behind an outbound that could only be reached with their help.
pub(super) fn check_dns(config: &Config) -> Result<(), StartError> {
    let Some(found) = config.dns.find_loop(&config.outbounds) else { return Ok(()) };
    let model::DnsLoop { outbound, host, upstream, through } = found;
    let problem = format!(
        "its server {host} is looked up by the name server {upstream}, which is reached through {through}"
    );
    Err(StartError::Build { name: outbound, source: io::Error::new(io::ErrorKind::InvalidInput, problem) })
}

/// Whether an outbound goes on as it is; a group's members are another matter.
pub(super) fn is_same_outbound(old: &model::Outbound, new: &model::Outbound) -> bool {
    let (old_group, new_group) = (old.protocol.as_group(), new.protocol.as_group());
    if let Some((a, b)) = old_group.zip(new_group) {
        return a.check == b.check && a.grows == b.grows;
    }
    old.protocol.as_choice().is_some() && new.protocol.as_choice().is_some() || old == new
}

pub(super) fn fate(old: Option<&RunningInbound>, new: &model::Inbound, takes: bool) -> InboundAction {
    let Some(old) = old.filter(|old| old.takes == takes) else { return InboundAction::Open };
    if !old.listens_as(new) {
        let is_elsewhere = model::Inbound { listen: new.listen.clone(), ..(*old.model).clone() };
        let is_movable = can_move(old, new) && is_elsewhere.differs_in_users_alone(new);
        return if is_movable { InboundAction::Move } else { InboundAction::Open };
    }
    if *old.model == *new {
        InboundAction::Keep
    } else if old.model.differs_in_users_alone(new) {
        InboundAction::Update
    } else {
        InboundAction::Open
    }
}

/// The shared parts of inbounds with other users, in the order of `updates`.
fn renew(
    state: &State,
    updates: &[(Tag, Arc<model::Inbound>)],
) -> Result<Vec<(Tag, registry::InboundShared)>, StartError> {
    let (ledger, salts) = (state.ledger(), state.salts());
    let renew = |(name, model): &(Tag, Arc<model::Inbound>)| {
        let held = &state.inbounds[name];
        let shared = held.shared.renewed(model, &ledger, &salts);
        let shared = shared.map_err(|source| StartError::Build { name: name.clone(), source })?;
        Ok((name.clone(), shared))
    };
    updates.iter().map(renew).collect()
}
