//! `adit migrate`: other programs' services, run by adit from now on.
//!
//! Unit, file, flags, keys and ports stay as they are. A drop-in (`UNIT.d/adit.conf`) names adit in the place of the old
//! program, under which name adit takes the same flags and files. To undo it is to remove the drop-in.

mod judge;
mod unit;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use adit_model::shown;
use adit_net::tool;
use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde::Serialize;

use self::judge::Judgement;
use self::unit::ForeignService;
use crate::machine::{self, Root};
use crate::print;

/// The line by which drop-ins of this command are known.
const MARK: &str = "# written by `adit migrate`; `adit migrate --undo` removes it";
/// Place of drop-ins.
const UNITS: &str = "/etc/systemd/system";
/// Name of a drop-in.
const DROP_IN: &str = "adit.conf";
/// Looks at a service after its start, and the time between them.
const LOOKS: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(200);

/// Files of other programs, with the command that runs each.
const FILES: &[(&str, &str)] = &[
    ("/etc/snell/snell-server.conf", "adit snell-server -c"),
    ("/etc/snell-server/snell-server.conf", "adit snell-server -c"),
    ("/etc/shadowsocks-libev/config.json", "adit ss-server -c"),
    ("/etc/shadowsocks-rust/config.json", "adit ssserver -c"),
    ("/etc/shadowsocks.json", "adit ss-server -c"),
    ("/etc/kcptun/server.json", "adit kcptun-server -c"),
    ("/etc/kcptun/config.json", "adit kcptun-server -c"),
    ("/etc/shadowsocksr/user-config.json", "adit ssr-server -c"),
    ("/etc/shadowsocks-r/config.json", "adit ssr-server -c"),
];

/// Flags of `adit migrate`.
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// Switch the services over, check them, and switch back if the check fails
    #[arg(long, conflicts_with = "undo")]
    apply: bool,
    /// Give the services back to the old programs
    #[arg(long)]
    undo: bool,
    /// Write for a program
    #[arg(long, conflicts_with_all = ["apply", "undo"])]
    json: bool,
    /// Directory that stands for /
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
    /// The program that starts and stops services
    #[arg(long, value_name = "PROGRAM", hide = true)]
    systemctl: Option<String>,
}

/// A service that was found.
#[derive(Debug, Serialize)]
struct Found {
    #[serde(flatten)]
    unit: ForeignService,
    #[serde(flatten)]
    judgement: Judgement,
}

pub(crate) fn run(args: &MigrateArgs) -> anyhow::Result<()> {
    let root = Root::new(args.root.as_deref());
    let control = Control::new(args, &root);
    if args.undo {
        return undo(&root, &control);
    }
    let found: Vec<Found> = unit::find(&root)
        .into_iter()
        .map(|unit| Found { judgement: judge::judge(&root, &unit), unit })
        .collect();
    let files = loose_files(&root, &found);
    if args.json {
        return print::data(format_args!("{}\n", serde_json::json!({ "services": found, "files": files })));
    }
    print::text(table(&found, &files))?;
    if !args.apply {
        if found.iter().any(|found| found.can_move()) {
            print::data("nothing was changed; `adit migrate --apply` switches these services over\n")?;
        }
        return Ok(());
    }
    let ready: Vec<&Found> = found.iter().filter(|found| found.can_move()).collect();
    ensure!(!ready.is_empty(), "there is no service that adit can take over");
    apply(&root, &control, &ready)
}

impl Found {
    fn can_move(&self) -> bool {
        self.unit.enabled && !self.unit.moved && self.judgement.unsupported.is_empty()
    }
}

/// Known files that none of the services reads, with the command that runs each.
fn loose_files(root: &Root, found: &[Found]) -> Vec<(&'static str, &'static str)> {
    let is_read = |path: &str| found.iter().any(|found| found.judgement.file.as_deref() == Some(path));
    FILES.iter().copied().filter(|(path, _)| root.has(path) && !is_read(path)).collect()
}

fn table(found: &[Found], files: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for Found { unit, judgement } in found {
        let state = match (unit.moved, unit.enabled) {
            (true, _) => "runs adit already",
            (_, true) => "enabled",
            (_, false) => "not enabled, left alone",
        };
        let (name, program) = (shown::line(&unit.name), shown::line(&unit.program));
        out.push_str(&format!("{name}: {program} ({state})\n"));
        for (word, lines) in [
            ("kept", &judgement.kept),
            ("changed", &judgement.changed),
            ("not supported", &judgement.unsupported),
        ] {
            lines.iter().for_each(|line| out.push_str(&format!("  {word:<14} {}\n", shown::line(line))));
        }
    }
    for (path, command) in files {
        out.push_str(&format!("{path}: a file without a service\n  try            {command} {path}\n"));
    }
    if out.is_empty() {
        out.push_str("no service or file of Snell, Shadowsocks, ShadowsocksR or kcptun found\n");
    }
    out
}

fn apply(root: &Root, control: &Control, ready: &[&Found]) -> anyhow::Result<()> {
    let program = super::service::own_program()?;
    let program = program.to_str().context("the path of this program is not UTF-8")?;
    ensure!(!program.contains(char::is_whitespace), "a unit cannot use the path {program:?}");
    for found in ready {
        let unit = &found.unit;
        let place = format!("{UNITS}/{}.d/{DROP_IN}", unit.name);
        let path = root.at(&place);
        ensure!(
            fs::symlink_metadata(&path).is_err(),
            "{place} is there already\n  hint: adit migrate --undo"
        );
        machine::make_folder(path.parent().context("place of the drop-in")?, 0o755)?;
        // The unit's own limit may allow core files, which would hold the keys.
        let text = format!("{MARK}\n[Service]\nLimitCORE=0\nExecStart=\nExecStart={}\n", unit.with(program));
        machine::write(&path, 0o644, &text).with_context(|| format!("cannot write {place}"))?;
        print::text(format_args!("wrote {place}\n"))?;
        if let Err(error) = control.restart(root, found) {
            remove(root, &unit.name)?;
            control.reload()?;
            let back = control.run(&["restart", &unit.name]);
            let state = if back.is_ok() {
                "the old program runs again"
            } else {
                "the old program does not start either"
            };
            bail!("{}: {error:#}; undone: {state}", unit.name);
        }
        print::text(format_args!("{} runs adit\n", unit.name))?;
    }
    Ok(())
}

fn undo(root: &Root, control: &Control) -> anyhow::Result<()> {
    let mut count = 0;
    for name in root.names(UNITS) {
        let Some(unit) = name.strip_suffix(".d") else { continue };
        let text = root.read(format!("{UNITS}/{name}/{DROP_IN}"));
        if !text.is_some_and(|text| text.starts_with(MARK)) {
            continue;
        }
        remove(root, unit)?;
        count += 1;
        control.reload()?;
        control.run(&["restart", unit])?;
        print::text(format_args!("{unit} runs the old program again\n"))?;
    }
    if count == 0 { print::data("nothing to undo\n") } else { Ok(()) }
}

/// Removes a drop-in, and its folder if nothing else is in it.
fn remove(root: &Root, unit: &str) -> anyhow::Result<()> {
    let path = root.at(format!("{UNITS}/{unit}.d/{DROP_IN}"));
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    if let Some(folder) = path.parent() {
        // It stays if there are other drop-ins.
        fs::remove_dir(folder).ok();
    }
    Ok(())
}

/// The program that starts and stops services; none for a tree that is no running machine.
struct Control(Option<String>);

impl Control {
    fn new(args: &MigrateArgs, root: &Root) -> Self {
        let runs = root.is_machine() && root.has("/run/systemd/system");
        Self(args.systemctl.clone().or_else(|| runs.then(|| "systemctl".to_owned())))
    }

    fn run(&self, args: &[&str]) -> anyhow::Result<()> {
        let Some(program) = &self.0 else { return Ok(()) };
        let ran = tool::run(program, args).with_context(|| format!("cannot run {program}"))?;
        ensure!(ran.ok, "{program} {} failed: {}", args.join(" "), ran.text);
        Ok(())
    }

    fn reload(&self) -> anyhow::Result<()> {
        self.run(&["daemon-reload"])
    }

    /// Restarts a service and looks at it for two seconds: it must stay active, and listen on its ports.
    fn restart(&self, root: &Root, found: &Found) -> anyhow::Result<()> {
        self.reload()?;
        self.run(&["restart", &found.unit.name])?;
        if self.0.is_none() {
            return Ok(());
        }
        for _ in 0..LOOKS {
            thread::sleep(BETWEEN);
            self.run(&["is-active", "--quiet", &found.unit.name])
                .with_context(|| format!("it does not stay up (journalctl -u {} -n 20)", found.unit.name))?;
        }
        let missing = judge::silent_ports(root, &found.judgement.ports);
        ensure!(missing.is_empty(), "it does not listen on port {missing:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
