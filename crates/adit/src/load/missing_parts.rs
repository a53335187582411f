//! Parts of the machine that a configuration names and that are not there: interfaces, users, groups, plugins, folders.

use std::path::Path;
use std::sync::Arc;

use adit_model::diagnostic::Diagnostic;
use adit_model::{Capture, Config, ControlSocket, Inbound, Outbound, Owner, Plugin};

use crate::load::readable::quoted;
use crate::machine::Root;

/// The place of these warnings: several files may make the configuration.
const FILE: &str = "configuration";

/// A warning for each of them. It may come later, so that none of these is an error.
pub(crate) fn find(root: &Root, config: &Config) -> Vec<Diagnostic> {
    let mut found = sockets(root, config);
    found.extend(config.capture.iter().flat_map(|capture| captured(root, capture)));
    let file: Arc<str> = FILE.into();
    let warning = |key: String, problem: String| Diagnostic::warning(&file, key, problem);
    for plugin in plugins(config).iter().filter(|plugin| !is_installed(root, plugin)) {
        let problem = format!("not found in the folders of PATH: {}", plugin.program);
        found.push(warning("plugin".into(), problem).hint("install it, or write its path"));
    }
    if let ControlSocket::At(path) = &config.admin
        && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        && !root.at(folder).is_dir()
    {
        let problem = format!("no such folder: {}", folder.display());
        let hint = format!("`mkdir -p {}`, or leave the key out", quoted(&folder.to_string_lossy()));
        found.push(warning("admin.socket".into(), problem).hint(hint));
    }
    found
}

/// The warnings about interfaces that sockets are bound to. Those that a capture names it watches by itself.
pub(crate) fn sockets(root: &Root, config: &Config) -> Vec<Diagnostic> {
    interfaces(config).filter_map(|(key, name)| no_interface(root, key, name)).collect()
}

/// The warnings about interfaces, users and groups that a capture names.
fn captured(root: &Root, capture: &Capture) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = capture
        .interfaces()
        .filter_map(|(key, name)| no_interface(root, format!("capture.{key}"), name))
        .collect();
    let (exclude, include) = (&capture.exclude, &capture.include);
    for (key, what, owners) in [
        ("exclude-uid", "user", &exclude.users),
        ("include-uid", "user", &include.users),
        ("exclude-gid", "group", &exclude.groups),
        ("include-gid", "group", &include.groups),
    ] {
        for owner in owners {
            let Owner::Name(name) = owner else { continue };
            let is_there = match (what, root.is_machine()) {
                ("user", true) => adit_net::uid_of(name).is_ok(),
                ("user", false) => root.user(name).is_some(),
                (_, true) => adit_net::gid_of(name).is_ok(),
                (_, false) => root.has_group(name),
            };
            if !is_there {
                let problem =
                    format!("no such {what} on this machine: {name}; adit does not start without it");
                let hint = format!("`getent {}` lists them", if what == "user" { "passwd" } else { "group" });
                let warning = Diagnostic::warning(&FILE.into(), format!("capture.{key}"), problem);
                found.push(warning.hint(hint));
            }
        }
    }
    found
}

fn no_interface(root: &Root, key: String, name: &str) -> Option<Diagnostic> {
    let is_absent = root.has("/sys/class/net") && !root.has(&format!("/sys/class/net/{name}"));
    let problem = || format!("no such interface on this machine: {name}");
    is_absent
        .then(|| Diagnostic::warning(&FILE.into(), key, problem()).hint("`ip link` lists the interfaces"))
}

/// Whether the plugin is in PATH, or where its path says.
pub(crate) fn is_installed(root: &Root, plugin: &Plugin) -> bool {
    let program = &*plugin.program;
    if program.contains('/') {
        return root.has(program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_in = |folder: &Path| root.at(folder.join(program)).exists();
    std::env::split_paths(&path).any(|folder| is_in(&folder)) || root.has_program(program)
}

/// The interfaces that sockets are bound to, with the part that names each. A key for all nodes of a list makes one entry.
fn interfaces(config: &Config) -> impl Iterator<Item = (String, &str)> {
    let inbounds = config.inbounds.iter().filter_map(|inbound| {
        Some((format!("inbound {}: interface", inbound.name), inbound.socket.interface.as_deref()?))
    });
    let mut of: Vec<(&str, &str, usize)> = Vec::new();
    for outbound in &config.outbounds {
        let Some(interface) = outbound.dial.egress.interface.as_deref() else { continue };
        match of.iter_mut().find(|(_, known, _)| *known == interface) {
            Some((.., others)) => *others += 1,
            None => of.push((&outbound.name, interface, 0)),
        }
    }
    let outbounds = of.into_iter().map(|(name, interface, others)| {
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        (format!("outbound {name}{more}: interface"), interface)
    });
    inbounds.chain(outbounds)
}

/// The plugins that a configuration starts.
pub(crate) fn plugins(config: &Config) -> Vec<Plugin> {
    let servers = config.inbounds.iter().filter_map(Inbound::plugin);
    servers.chain(config.outbounds.iter().filter_map(Outbound::plugin).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_not_there() {
        let folder = std::env::temp_dir().join(format!("adit-absent-{}", std::process::id()));
        for name in ["sys/class/net/eth0", "run/adit", "usr/bin/there"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        let warnings = |interface: &str, socket: &str, plugin: &str| {
            let text = format!(
                "[admin]\nsocket = \"{socket}/s\"\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n\
                 interface = \"{interface}\"\n[[outbound]]\nprotocol = \"shadowsocks\"\nserver = \"h:1\"\n\
                 method = \"aes-128-gcm\"\npassword = \"p\"\nplugin = \"{plugin}\"\n"
            );
            let config = adit_formats::adit_toml::parse("f", &text).unwrap().config;
            let found = find(&Root::new(Some(&folder)), &config);
            found.iter().map(|one| format!("{}: {}", one.key, one.problem)).collect::<Vec<_>>()
        };
        assert_eq!(warnings("eth0", "/run/adit", "there"), Vec::<String>::new());
        let all = warnings("nosuch0", "/nodir", "adit-no-such-plugin");
        assert_eq!(
            all,
            [
                "inbound mixed: interface: no such interface on this machine: nosuch0",
                "plugin: not found in the folders of PATH: adit-no-such-plugin",
                "admin.socket: no such folder: /nodir",
            ]
        );
        std::fs::create_dir_all(folder.join("etc")).unwrap();
        std::fs::write(folder.join("etc/passwd"), "ann:x:1000:1000::/:/bin/sh\n").unwrap();
        std::fs::write(folder.join("etc/group"), "staff:x:50:\n").unwrap();
        let capture = |text: &str| {
            let text = format!("[capture]\n{text}\n[[outbound]]\nname = \"o\"\nprotocol = \"direct\"\n");
            let config = adit_formats::adit_toml::parse("f", &text).unwrap().config;
            let found = find(&Root::new(Some(&folder)), &config);
            found.iter().map(|one| one.key.clone()).collect::<Vec<_>>()
        };
        let good = "lan = [\"eth0\"]\nexclude-interface = \"eth0\"\nexclude-uid = [1, \"ann\"]\ninclude-gid = \"staff\"";
        assert_eq!(capture(good), Vec::<String>::new());
        assert_eq!(capture("lan = \"*\"\nexclude-lan = \"br9\""), ["capture.exclude-lan"]);
        let bad = "lan = [\"eth0\", \"br9\"]\nexclude-interface = \"wg9\"\ninclude-interface = \"wg8\"\n\
                   exclude-uid = \"bob\"\ninclude-uid = \"eve\"\nexclude-gid = \"a\"\ninclude-gid = \"b\"";
        let keys = [
            "lan",
            "exclude-interface",
            "include-interface",
            "exclude-uid",
            "include-uid",
            "exclude-gid",
            "include-gid",
        ];
        assert_eq!(capture(bad), keys.map(|key| format!("capture.{key}")));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
