//! Parts of the machine that a configuration names and that are not there: interfaces, plugins, folders.

use std::path::Path;
use std::sync::Arc;

use adit_config::diagnostic::Diagnostic;
use adit_config::model::{Config, ControlSocket, Plugin};

use super::doctor::config::plugins;
use crate::machine::Root;

/// A warning for each of them. It may come later, so that none of these is an error.
pub(super) fn find(root: &Root, config: &Config) -> Vec<Diagnostic> {
    let file: Arc<str> = "configuration".into();
    let warning = |key: String, problem: String| Diagnostic::warning(&file, key, problem);
    let mut found = Vec::new();
    for (key, interface) in interfaces(config) {
        if root.has("/sys/class/net") && !root.has(&format!("/sys/class/net/{interface}")) {
            let problem = format!("no such interface on this machine: {interface}");
            found.push(warning(key, problem).hint("`ip link` lists the interfaces"));
        }
    }
    for plugin in plugins(config).into_iter().filter(|plugin| !is_installed(root, plugin)) {
        let problem = format!("not found in the folders of PATH: {}", plugin.program);
        found.push(warning("plugin".into(), problem).hint("install it, or write its path"));
    }
    if let ControlSocket::At(path) = &config.admin
        && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        && !root.at(folder).is_dir()
    {
        let problem = format!("no such folder: {}", folder.display());
        let hint = format!("`mkdir -p {}`, or leave the key out", folder.display());
        found.push(warning("admin.socket".into(), problem).hint(hint));
    }
    found
}

/// Whether the plugin is in PATH, or where its path says.
pub(super) fn is_installed(root: &Root, plugin: &Plugin) -> bool {
    let program = &*plugin.program;
    if program.contains('/') {
        return root.has(program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_in = |folder: &Path| root.at(folder.join(program)).exists();
    std::env::split_paths(&path).any(|folder| is_in(&folder)) || root.has_program(program)
}

/// The interfaces that sockets are bound to, with the part that names each.
fn interfaces(config: &Config) -> impl Iterator<Item = (String, &str)> {
    let inbounds = config.inbounds.iter().filter_map(|inbound| {
        Some((format!("inbound {}: interface", inbound.name), inbound.socket.interface.as_deref()?))
    });
    let outbounds = config.outbounds.iter().filter_map(|outbound| {
        Some((format!("outbound {}: interface", outbound.name), outbound.dial.egress.interface.as_deref()?))
    });
    inbounds.chain(outbounds)
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
            let config = adit_config::dialect::native::parse("f", &text).unwrap().config;
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
        std::fs::remove_dir_all(folder).unwrap();
    }
}
