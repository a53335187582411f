//! One configuration out of several files.

use std::net::SocketAddr;
use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::rule::{FindProgram, GeoFile, Set};
use adit_model::{
    AdminHttp, Capture, Config, ControlSocket, Controller, Dns, Inbound, Limits, Log, Manage, Outbound,
    Panel, Sniffer, StateFile, Store, Udp,
};

/// Puts the configurations of several files, each valid by itself, together.
///
/// Inbounds, outbounds, sets and rules add up; rules of an earlier file are asked first. An inbound keeps the outbound
/// of its own file. A name stands for one thing;
/// equal outbounds of one name are one outbound. Settings of the whole process (`cores`, `state`,
/// `[log]`, `[admin]`, `[limits]`, `[udp]`, `[dns]`, `[capture]`, `geoip`) may be set in one file, or alike in several.
///
/// # Errors
/// Names that are taken, and settings that contradict each other, by file.
pub fn merge(files: impl IntoIterator<Item = (Arc<str>, Config)>) -> Result<Config, Diagnostics> {
    let mut all = Merged { config: Config::default(), found: Diagnostics::new() };
    for (file, config) in files {
        all.add(&file, config);
    }
    if all.found.has_errors() { Err(all.found) } else { Ok(all.config) }
}

struct Merged {
    config: Config,
    found: Diagnostics,
}

impl Merged {
    fn add(&mut self, file: &Arc<str>, config: Config) {
        let Config {
            log,
            admin,
            admin_http,
            manage,
            controller,
            facade: _,
            watch,
            state,
            cores,
            limits,
            acl: _,
            acl_of: _,
            plugin_user: _,
            udp,
            dns,
            capture,
            inbounds,
            outbounds,
            rules,
            sets,
            geoip,
            lists,
            providers,
            outbound_lists,
            plugins_allowed,
            choices,
            panels,
            panel_of,
            store,
            find_program,
            sniffer,
        } = config;
        self.settle::<Log>(file, "log", log, |config| &mut config.log);
        self.settle::<ControlSocket>(file, "admin.socket", admin, |config| &mut config.admin);
        self.settle::<Option<AdminHttp>>(file, "admin.http", admin_http, |config| &mut config.admin_http);
        self.settle::<Option<Manage>>(file, "admin.manage", manage, |config| &mut config.manage);
        self.settle::<Option<Controller>>(file, "admin.clash", controller, |config| &mut config.controller);
        self.settle::<bool>(file, "admin.watch", watch, |config| &mut config.watch);
        self.settle::<FindProgram>(file, "find-process", find_program, |config| &mut config.find_program);
        self.settle::<Option<Sniffer>>(file, "sniff", sniffer, |config| &mut config.sniffer);
        self.settle::<StateFile>(file, "state", state, |config| &mut config.state);
        self.settle::<Option<usize>>(file, "cores", cores, |config| &mut config.cores);
        self.settle::<Limits>(file, "limits", limits, |config| &mut config.limits);
        self.settle::<Udp>(file, "udp", udp, |config| &mut config.udp);
        self.settle::<Option<Capture>>(file, "capture", capture, |config| &mut config.capture);
        self.settle::<Dns>(file, "dns", dns, |config| &mut config.dns);
        self.settle::<Option<GeoFile>>(file, "geoip", geoip, |config| &mut config.geoip);
        self.config.rules.extend(rules);
        if choices.is_some() {
            self.config.choices = choices;
        }
        self.config.lists.extend(lists);
        self.config.providers.extend(providers);
        self.config.plugins_allowed.extend(plugins_allowed);
        for list in outbound_lists {
            if self.config.outbound_lists.iter().any(|other| other.name == list.name) {
                let key = format!("provider {}", list.name);
                let error = Diagnostic::error(file, key, "another file has a provider of that name");
                self.found.push(error.hint("give it a name of its own"));
            }
            self.config.outbound_lists.push(list);
        }
        self.settle::<Option<Store>>(file, "store", store, |config| &mut config.store);
        self.config.panel_of.extend(panel_of);
        for panel in panels {
            self.panel(file, panel);
        }
        for set in sets {
            self.set(file, set);
        }
        outbounds.into_iter().for_each(|outbound| self.outbound(file, outbound));
        for inbound in inbounds {
            let same = |other: &&Inbound| {
                let taken = |addr: &&SocketAddr| addr.port() != 0 && inbound.listen.contains(addr);
                other.name == inbound.name || other.listen.iter().any(|addr| taken(&addr))
            };
            if let Some(other) = self.config.inbounds.iter().find(same) {
                let problem = format!("another file has an inbound of that name or address: {}", other.name);
                self.found.push(Diagnostic::error(file, format!("inbound {}", inbound.name), problem));
            }
            self.config.inbounds.push(inbound);
        }
    }

    /// Adds a set unless its equal is there.
    fn set(&mut self, file: &Arc<str>, set: Set) {
        match self.config.sets.iter().find(|other| other.name == set.name) {
            Some(other) if *other == set => {}
            Some(_) => {
                let key = format!("set {}", set.name);
                let error = Diagnostic::error(file, key, "another file has another set of that name");
                self.found.push(error.hint("give it a name of its own"));
            }
            None => self.config.sets.push(set),
        }
    }

    /// Adds a panel unless its equal is there.
    fn panel(&mut self, file: &Arc<str>, panel: Panel) {
        match self.config.panels.iter().find(|other| other.name == panel.name) {
            Some(other) if *other == panel => {}
            Some(_) => {
                let key = format!("panel {}", panel.name);
                let error = Diagnostic::error(file, key, "another file has another panel of that name");
                self.found.push(error.hint("give it a name of its own"));
            }
            None => self.config.panels.push(panel),
        }
    }

    /// Adds an outbound unless its equal is there.
    fn outbound(&mut self, file: &Arc<str>, outbound: Outbound) {
        let known = &mut self.config.outbounds;
        if known.contains(&outbound) {
            return;
        }
        if known.iter().any(|other| other.name == outbound.name) {
            let key = format!("outbound {}", outbound.name);
            let error = Diagnostic::error(file, key, "another file has another outbound of that name");
            self.found.push(error.hint("give it a name of its own"));
        }
        known.push(outbound);
    }

    fn settle<T: PartialEq + Default>(
        &mut self,
        file: &Arc<str>,
        key: &str,
        value: T,
        place: fn(&mut Config) -> &mut T,
    ) {
        let kept = place(&mut self.config);
        if value == T::default() || value == *kept {
            return;
        }
        if *kept == T::default() {
            *kept = value;
        } else {
            self.found.push(Diagnostic::error(file, key, "another file sets it to something else"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adit_toml::parse;

    fn file(name: &str, text: &str) -> (Arc<str>, Config) {
        (name.into(), parse(name, text).unwrap().config)
    }

    const ONE: &str = "[log]\nlevel = \"debug\"\n[[inbound]]\nname = \"a\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n";

    #[test]
    fn lists_add_up_and_settings_hold_for_all() {
        let two = "[[inbound]]\nname = \"b\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:2\"\noutbound = \"no\"\n\
                   [[outbound]]\nname = \"no\"\nprotocol = \"reject\"\n[[outbound]]\nprotocol = \"direct\"\n";
        let config = merge([file("one", ONE), file("two", two)]).unwrap();
        assert_eq!(config.log.level, adit_model::Level::Debug);
        assert_eq!(config.outbounds.iter().map(|o| &*o.name).collect::<Vec<_>>(), ["direct", "no"]);
        assert_eq!(config.inbounds.iter().map(|i| &*i.outbound).collect::<Vec<_>>(), ["direct", "no"]);
    }

    #[test]
    fn contradictions_are_named() {
        let two = ONE.replace("debug", "trace");
        let found = merge([file("one", ONE), file("two", &two)]).unwrap_err().to_string();
        assert!(found.contains("two: log: another file sets it"), "{found}");
        assert!(found.contains("two: inbound a: another file has an inbound"), "{found}");
    }
}
