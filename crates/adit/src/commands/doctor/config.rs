//! The configuration's files and plugins.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use adit_formats::advice::advise;
use adit_model::{Config, Plugin};

use super::network::is_public;
use super::{Finding, Level, judge};
use crate::load::missing_parts::{self, is_installed};
use crate::load::readable::{beside, quoted};
use crate::machine::Root;

pub(super) fn checks(root: &Root, config: &Config) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        missing_parts::plugins(config).iter().map(|plugin| installed(root, plugin)).collect();
    found.extend(modes_beside(root, config));
    for finding in missing_parts::find(root, config) {
        // Plugins have a finding of their own.
        if finding.key == "plugin" {
            continue;
        }
        let text = format!("{}: {}", finding.key, finding.problem);
        let hint = finding.hint.clone().unwrap_or_default();
        found.push(Finding::new("parts of the machine", Level::Warn, text, "there").fix(hint));
    }
    for finding in &advise("", config, &root.addresses(), adit_net::rt::unix_time()) {
        let text = format!("{}: {}", finding.key, finding.problem);
        let hint = finding.hint.clone().unwrap_or_default();
        found.push(Finding::new("keys and loops", Level::Warn, text, "none").fix(hint));
    }
    if !config.inbounds.iter().any(is_public) && config.inbounds.iter().all(is_server) {
        let text = "every inbound listens on loopback";
        found.push(
            Finding::new("listen", Level::Warn, text, "an address that clients reach").fix("adit share"),
        );
    }
    found
}

fn is_server(inbound: &adit_model::Inbound) -> bool {
    !inbound.protocol.is_client_side()
}

/// Whether others can read the keys in a file.
pub(super) fn mode(path: &Path) -> Finding {
    let wanted = "0600: the file holds keys";
    match std::fs::metadata(path) {
        Ok(data) => {
            let mode = data.permissions().mode() & 0o777;
            let found = format!("{mode:04o} {}", path.display());
            Finding::new("file mode", judge(mode & 0o077 == 0, Level::Warn), found, wanted)
                .fix(format!("chmod 600 {}", quoted(&path.to_string_lossy())))
        }
        Err(error) => Finding::new("file mode", Level::Fail, format!("{}: {error}", path.display()), wanted)
            .fix(format!("ls -l {}", quoted(&path.to_string_lossy()))),
    }
}

/// Whether others can read the files with keys that a configuration names.
fn modes_beside(root: &Root, config: &Config) -> Vec<Finding> {
    beside(config).map(|path| root.at(path)).filter(|path| path.is_file()).map(|path| mode(&path)).collect()
}

/// The finding about a plugin: in PATH, or where its path says.
fn installed(root: &Root, plugin: &Plugin) -> Finding {
    let program = &*plugin.program;
    let is_there = is_installed(root, plugin);
    let found = if is_there { program.to_owned() } else { format!("{program} is not in PATH") };
    Finding::new("plugin", judge(is_there, Level::Fail), found, "installed").fix(
        if crate::answers_to(program) {
            format!("ln -s $(command -v adit) /usr/local/bin/{program}")
        } else {
            format!("apt-get install {}", package(program))
        },
    )
}

/// The package of Debian that has a plugin.
fn package(program: &str) -> &str {
    match program {
        "v2ray-plugin" | "ss-v2ray-plugin" => "shadowsocks-v2ray-plugin",
        other => other,
    }
}
