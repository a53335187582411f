//! The differences between what runs and another configuration, before anything changes.

use std::collections::HashMap;

use adit_model::rule::Rule;
use adit_model::{Config, Dns, Inbound, OutboundProtocol, Tag, User};

use super::apply::{InboundAction, check_dns, compile, effective, fate, is_same_outbound};
use super::running::{RunningInbound, takes};
use super::{Engine, StartError, State};
use crate::observe::control::{Cut, Differences};

impl Engine {
    /// The changes that applying `wanted` would make.
    ///
    /// # Errors
    /// When rules or names of it cannot be followed.
    pub(super) fn preview(&self, wanted: &Config) -> Result<Differences, StartError> {
        let state = self.state();
        let mut needs_restart = Vec::new();
        let config = effective(&state, wanted, &mut needs_restart)?;
        check_dns(&config)?;
        compile(&config, &self.extensions)?;
        let mut found = Differences {
            needs_restart: needs_restart.into_iter().map(str::to_owned).collect(),
            settings: settings(&state.config, &config),
            ..Differences::default()
        };
        inbounds(&state, &config, &mut found)?;
        outbounds(&state.config, &config, &mut found);
        (found.rules_added, found.rules_removed) = rules(&state.config.rules, &config.rules);
        Ok(found)
    }
}

fn inbounds(state: &State, config: &Config, found: &mut Differences) -> Result<(), StartError> {
    for (name, held) in &state.inbounds {
        if config.inbound(name).is_none() {
            found.inbounds.removed.push(name.to_string());
            users(name, held.model.protocol.users(), &[], found);
            cut(held, found);
        }
    }
    for model in &config.inbounds {
        let takes = takes(model, config);
        let takes = takes.map_err(|source| StartError::Build { name: model.name.clone(), source })?;
        let held = state.inbounds.get(&model.name);
        let before = held.map_or(&[][..], |held| held.model.protocol.users());
        users(&model.name, before, model.protocol.users(), found);
        let name = model.name.to_string();
        match (held, fate(held, model, takes)) {
            (None, _) => found.inbounds.added.push(name),
            (Some(_), InboundAction::Keep) => {}
            (Some(held), InboundAction::Update | InboundAction::Move) => {
                found.inbounds.changed.push(name);
                cut_users(held, model, found);
            }
            (Some(held), InboundAction::Open) => {
                found.inbounds.reopened.push(name);
                cut(held, found);
            }
        }
    }
    Ok(())
}

/// All connections of an inbound end.
fn cut(held: &RunningInbound, found: &mut Differences) {
    let open: i64 = held.metrics.iter().map(|core| core.open.value()).sum();
    let connections = u64::try_from(open).unwrap_or(0);
    if connections > 0 {
        found.cuts.push(Cut { of: held.model.name.to_string(), connections });
    }
}

/// The connections of users end that are gone or have another key.
fn cut_users(held: &RunningInbound, model: &Inbound, found: &mut Differences) {
    let stay: HashMap<&str, &User> = by_name(model.protocol.users());
    for (user, account) in held.model.protocol.users().iter().zip(held.shared.users().iter()) {
        let stays = stay.get(&*user.name).is_some_and(|other| other.key == user.key);
        if !stays && account.open() > 0 {
            let of = format!("{}/{}", model.name, user.name);
            found.cuts.push(Cut { of, connections: account.open().into() });
        }
    }
}

fn by_name(users: &[User]) -> HashMap<&str, &User> {
    users.iter().map(|user| (&*user.name, user)).collect()
}

fn users(inbound: &Tag, before: &[User], after: &[User], found: &mut Differences) {
    let (old, new) = (by_name(before), by_name(after));
    let name = |user: &User| format!("{inbound}/{}", user.name);
    let found = &mut found.users;
    found.removed.extend(before.iter().filter(|user| !new.contains_key(&*user.name)).map(name));
    for user in after {
        match old.get(&*user.name) {
            None => found.added.push(name(user)),
            Some(before) if before.key != user.key => found.rekeyed.push(name(user)),
            Some(before) if before.limits != user.limits => found.limited.push(name(user)),
            Some(_) => {}
        }
    }
}

fn outbounds(before: &Config, after: &Config, found: &mut Differences) {
    let found = &mut found.outbounds;
    let gone = before.outbounds.iter().filter(|outbound| after.outbound(&outbound.name).is_none());
    found.removed.extend(gone.map(|outbound| outbound.name.to_string()));
    for model in &after.outbounds {
        let name = model.name.to_string();
        match before.outbound(&model.name) {
            None => found.added.push(name),
            Some(old) if old == model => {}
            // Other members alone.
            Some(old)
                if matches!(model.protocol, OutboundProtocol::Group(_) | OutboundProtocol::Choice(_))
                    && is_same_outbound(old, model) =>
            {
                found.changed.push(name);
            }
            Some(_) => found.reopened.push(name),
        }
    }
}

/// Rules that are new and rules that are gone. Those that stand in both in another order count as both.
fn rules(before: &[Rule], after: &[Rule]) -> (usize, usize) {
    let same = |(a, b): &(&Rule, &Rule)| a == b;
    let head = before.iter().zip(after).take_while(same).count();
    let (before, after) = (&before[head..], &after[head..]);
    let tail = before.iter().rev().zip(after.iter().rev()).take_while(same).count();
    (after.len() - tail, before.len() - tail)
}

/// Whether `[dns]` is the same but for the parts that have sections of their own.
fn is_same_dns(before: &Dns, after: &Dns) -> bool {
    let Dns { upstreams, policy, hosts, fake, .. } = before.clone();
    Dns { upstreams, policy, hosts, fake, ..after.clone() } == *before
}

/// Settings that change without a restart.
fn settings(before: &Config, after: &Config) -> Vec<String> {
    let all = [
        ("log", before.log == after.log),
        ("admin.http", before.admin_http == after.admin_http),
        ("admin.manage", before.manage == after.manage),
        ("limits", before.limits == after.limits),
        ("dns", is_same_dns(&before.dns, &after.dns)),
        ("dns.upstream", before.dns.upstreams == after.dns.upstreams),
        ("dns.policy", before.dns.policy == after.dns.policy),
        ("dns.hosts", before.dns.hosts == after.dns.hosts),
        ("dns.fake", before.dns.fake == after.dns.fake),
        ("capture", before.capture == after.capture),
        ("state", before.state == after.state),
        ("set", before.sets == after.sets),
        ("geoip", before.geoip == after.geoip),
        ("acl", before.acl == after.acl && before.acl_of == after.acl_of),
    ];
    all.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name.to_owned()).collect()
}
