//! `adit service`: the service of an init system, hardened.
//!
//! systemd, OpenRC and procd are known. Everything that is written begins with, or holds, [`MARK`]; files without it are
//! other people's, and stay.

mod units;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use adit_formats::adit_toml;
use adit_model::{CapturedBy, Config, Inbound};
use adit_net::tool;
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use self::units::ServiceUnit;
use crate::machine::{self, Root};
use crate::print;

/// The line by which files of this command are known.
const MARK: &str = "written by `adit service install`";
/// The system user of the service.
const USER: &str = "adit";
/// The configuration unless another is named.
pub(super) const CONFIG: &str = "/etc/adit/adit.toml";

/// Subcommands of `adit service`.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Write the service, enable it for boot, start it
    Install(ServiceArgs),
    /// Stop and remove what `install` wrote; configuration and keys stay
    Uninstall(ServiceArgs),
    /// Print the service's file
    Print(PrintArgs),
}

/// Choice of a service.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServiceArgs {
    /// For systemd [default: the init system of this machine]
    #[arg(long, group = "init")]
    pub(super) systemd: bool,
    /// For OpenRC
    #[arg(long, group = "init")]
    pub(super) openrc: bool,
    /// For procd, the init system of OpenWrt
    #[arg(long, group = "init")]
    pub(super) procd: bool,
    /// Name of one of several services; its configuration is /etc/adit/NAME.toml
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<String>,
    /// The configuration [default: /etc/adit/adit.toml]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Write and enable it, but do not start it
    #[arg(long)]
    pub(super) no_start: bool,
    /// Directory that stands for /
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) root: Option<PathBuf>,
}

/// The file to print.
#[derive(Debug, Args)]
pub(crate) struct PrintArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// The unit adit@.service, one of which runs each file of /etc/adit
    #[arg(long, conflicts_with_all = ["openrc", "procd", "name", "config"])]
    template: bool,
    /// The program that it starts [default: this one]
    #[arg(long, value_name = "FILE", hide = true)]
    program: Option<PathBuf>,
}

/// An init system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Systemd,
    OpenRc,
    Procd,
}

fn name(text: &str) -> Result<String, &'static str> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let is_name = (1..=32).contains(&text.len()) && text.chars().all(is_good) && !text.starts_with('-');
    is_name.then(|| text.to_owned()).ok_or("1 to 32 letters, digits, - and _")
}

pub(crate) fn run(command: &ServiceCommand) -> anyhow::Result<()> {
    match command {
        ServiceCommand::Install(args) => {
            for line in install(args)? {
                print::data(format_args!("{line}\n"))?;
            }
            Ok(())
        }
        ServiceCommand::Uninstall(args) => uninstall(args),
        ServiceCommand::Print(args) => print::data(text(args)?),
    }
}

/// The text of the file that is to be printed.
fn text(args: &PrintArgs) -> anyhow::Result<String> {
    let root = Root::new(args.service.root.as_deref());
    let manager = manager(&args.service, &root).unwrap_or(Manager::Systemd);
    let mut unit = unit(&args.service, &root)?;
    if let Some(program) = &args.program {
        unit.program.clone_from(program);
    }
    Ok(if args.template { unit.template() } else { unit.text(manager) })
}

/// The init system that is asked for, else that of the machine.
fn manager(args: &ServiceArgs, root: &Root) -> Option<Manager> {
    match (args.systemd, args.openrc, args.procd) {
        (true, ..) => Some(Manager::Systemd),
        (_, true, _) => Some(Manager::OpenRc),
        (.., true) => Some(Manager::Procd),
        _ if root.has("/run/systemd/system") => Some(Manager::Systemd),
        _ if root.has("/sbin/procd") || root.has("/etc/openwrt_release") => Some(Manager::Procd),
        _ if root.has("/sbin/openrc-run") || root.has("/usr/sbin/openrc-run") => Some(Manager::OpenRc),
        _ if root.has("/etc/systemd/system") => Some(Manager::Systemd),
        _ => None,
    }
}

fn unit(args: &ServiceArgs, root: &Root) -> anyhow::Result<ServiceUnit> {
    let name = args.name.as_deref().unwrap_or("adit");
    let default = || match &args.name {
        Some(name) => PathBuf::from(format!("/etc/adit/{name}.toml")),
        None => CONFIG.into(),
    };
    let config = match &args.config {
        Some(path) if path.is_absolute() => path.clone(),
        Some(path) => std::path::absolute(path)?,
        None => default(),
    };
    let program = own_program()?;
    for path in [&config, &program] {
        let text = path.to_str().context("path is not UTF-8")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
        anyhow::ensure!(
            text.chars().all(is_plain),
            "the service cannot use the path {text:?}: it holds other characters than letters, digits and /._-+@"
        );
    }
    let name = if args.name.is_some() { format!("adit-{name}") } else { name.to_owned() };
    let needs =
        root.read(&config).and_then(|text| adit_toml::parse("", &text).ok()).map(|loaded| loaded.config);
    Ok(ServiceUnit { name, program, config, capabilities: capabilities(needs.as_ref()) })
}

/// The path of this program, also in a chroot without /proc, where only the name that it was started by is known.
///
/// # Errors
/// When that name leads to no file.
pub(super) fn own_program() -> anyhow::Result<PathBuf> {
    if let Ok(path) = std::env::current_exe() {
        return Ok(path);
    }
    let name = std::env::args_os().next().unwrap_or_default();
    let folders = std::env::var_os("PATH").unwrap_or_default();
    named(Path::new(&name), &folders)
        .context("cannot find the path of this program\n  hint: mount /proc, or start adit by its whole path")
}

/// The file of this name in the first of these folders, written as in `PATH`, that has one.
pub(super) fn in_folders(name: &Path, folders: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The file that a shell starts for `name`, without links.
fn named(name: &Path, folders: &OsStr) -> Option<PathBuf> {
    let is_path = name.parent().is_some_and(|folder| !folder.as_os_str().is_empty());
    let found = if is_path { Some(name.to_owned()) } else { in_folders(name, folders) };
    found?.canonicalize().ok()
}

/// The capabilities that a configuration needs; ports below 1024 are always allowed.
fn capabilities(config: Option<&Config>) -> Vec<&'static str> {
    let mut found = vec!["CAP_NET_BIND_SERVICE"];
    let Some(config) = config else { return found };
    let raw = config.inbounds.iter().any(|i| i.socket.carrier.as_ref().is_some_and(|kcp| kcp.raw_tcp))
        || config.outbounds.iter().any(|o| o.dial.carrier.as_ref().is_some_and(|kcp| kcp.kcp.raw_tcp));
    let egress = config.outbounds.iter().map(|outbound| &outbound.dial.egress);
    let bound = egress.clone().any(|egress| egress.interface.is_some())
        || config.inbounds.iter().any(|inbound| inbound.socket.interface.is_some());
    if raw || bound {
        found.push("CAP_NET_RAW");
    }
    let captures = |inbound: &Inbound| {
        let captured = inbound.protocol.captured();
        captured.is_some_and(|captured| captured.by == CapturedBy::Tproxy || captured.transports.udp())
            || inbound.interface_name().is_some()
    };
    let captures = config.capture.is_some() || config.inbounds.iter().any(captures);
    // Some kernels take it for the filters of raw TCP.
    if raw || captures || egress.clone().any(|egress| egress.mark.is_some()) {
        found.push("CAP_NET_ADMIN");
    }
    found
}

/// Writes, enables and starts the service; gives the lines that tell of it.
///
/// # Errors
/// When there is no known init system, or a file cannot be written.
pub(super) fn install(args: &ServiceArgs) -> anyhow::Result<Vec<String>> {
    let root = Root::new(args.root.as_deref());
    let Some(manager) = manager(args, &root) else {
        bail!(
            "no known init system on this machine\n  hint: --systemd, --openrc or --procd writes its file anyway"
        );
    };
    let unit = unit(args, &root)?;
    let mut lines = Vec::new();
    let user = if manager == Manager::Procd { None } else { user(&root, &mut lines)? };
    give_config(&root, &unit, user, &mut lines)?;
    let files = unit.files(manager);
    for (path, mode, text) in &files {
        put(&root, path, *mode, text, &mut lines)?;
    }
    for (link, target) in unit.links(manager) {
        let at = root.at(&link);
        if fs::symlink_metadata(&at).is_err() {
            machine::make_folder(at.parent().unwrap_or_else(|| Path::new("/")), 0o755)?;
            symlink(&target, &at).with_context(|| format!("cannot make the link {link}"))?;
        }
    }
    lines.push(format!("enabled for boot: {}", unit.name));
    if !args.no_start && root.is_machine() {
        start(manager, &unit, &mut lines)?;
    }
    Ok(lines)
}

/// Writes one file unless it is the same already.
fn put(root: &Root, path: &str, mode: u32, text: &str, lines: &mut Vec<String>) -> anyhow::Result<()> {
    let at = root.at(path);
    match fs::read_to_string(&at) {
        Ok(before) if before == text => {
            lines.push(format!("kept {path}"));
            return Ok(());
        }
        Ok(before) if !before.contains(MARK) => {
            bail!(
                "{path} is there already, and not from adit\n  hint: remove it, or give this service a --name"
            )
        }
        _ => {}
    }
    machine::make_folder(at.parent().unwrap_or_else(|| Path::new("/")), 0o755)?;
    machine::write(&at, mode, text).with_context(|| format!("cannot write {path}"))?;
    lines.push(format!("wrote {path}"));
    Ok(())
}

/// The user of the service, made if it is not there. None where systemd makes it at boot, from a file.
fn user(root: &Root, lines: &mut Vec<String>) -> anyhow::Result<Option<(u32, u32)>> {
    if let Some(user) = root.user(USER) {
        return Ok(Some(user));
    }
    if !root.is_machine() {
        return Ok(None);
    }
    let useradd: &[&str] = &["--system", "--user-group", "--no-create-home", "--home-dir", "/var/lib/adit"];
    let tools: [(&str, Vec<&str>); 3] = [
        ("useradd", [useradd, &["--shell", "/usr/sbin/nologin", USER]].concat()),
        ("addgroup", vec!["-S", USER]),
        ("adduser", vec!["-S", "-D", "-H", "-h", "/var/lib/adit", "-s", "/sbin/nologin", "-G", USER, USER]),
    ];
    let mut said = Vec::new();
    for (tool, args) in tools {
        match tool::run(tool, &args) {
            Ok(_) if root.user(USER).is_some() => {
                lines.push(format!("made the system user {USER}"));
                return Ok(root.user(USER));
            }
            Ok(ran) => said.push(format!("{tool}: {}", ran.text)),
            Err(error) => said.push(format!("{tool}: {error}")),
        }
    }
    bail!(
        "cannot make the system user {USER}: {}\n  hint: run this as root, or make that user first, and repeat the command",
        said.join("; ")
    )
}

/// Gives configuration and folder to the user of the service: it alone reads the keys.
///
/// A folder that belongs to that user already is left as it is: links that the user has made there would lead the
/// change to other files.
fn give_config(
    root: &Root,
    unit: &ServiceUnit,
    user: Option<(u32, u32)>,
    lines: &mut Vec<String>,
) -> anyhow::Result<()> {
    let path = root.at(&unit.config);
    let (Some((uid, gid)), Ok(data)) = (user, fs::symlink_metadata(&path)) else { return Ok(()) };
    let folder = path.parent().filter(|folder| folder.ends_with("etc/adit"));
    let is_given = folder.and_then(|folder| fs::metadata(folder).ok()).is_some_and(|data| data.uid() == uid);
    if is_given || !data.is_file() {
        if data.uid() != uid {
            lines.push(format!(
                "user {USER} must be able to read it: chown {USER}: {}",
                unit.config.display()
            ));
        }
        return Ok(());
    }
    let refuse = |error: io::Error| {
        // A test's root belongs to a user who gives nothing away.
        if error.kind() == io::ErrorKind::PermissionDenied && !root.is_machine() {
            return Ok(());
        }
        Err(error).with_context(|| format!("cannot give {} to user {USER}", unit.config.display()))
    };
    for (at, mode) in [(Some(path.as_path()), 0o600), (folder, 0o750)] {
        let Some(at) = at else { continue };
        fs::set_permissions(at, fs::Permissions::from_mode(mode))?;
        chown(at, Some(uid), Some(gid)).or_else(refuse)?;
    }
    Ok(())
}

fn start(manager: Manager, unit: &ServiceUnit, lines: &mut Vec<String>) -> anyhow::Result<()> {
    let (name, root) = (&*unit.name, Root::new(None));
    let steps: Vec<Vec<&str>> = match manager {
        Manager::Systemd if root.has("/run/systemd/system") => {
            vec![vec!["systemctl", "daemon-reload"], vec!["systemctl", "restart", name]]
        }
        Manager::OpenRc if root.has("/run/openrc") => vec![vec!["rc-service", name, "restart"]],
        Manager::Procd if root.has("/var/run/ubus") || root.has("/var/run/ubus.sock") => {
            vec![vec!["service", name, "restart"]]
        }
        Manager::Systemd | Manager::OpenRc | Manager::Procd => {
            lines.push(format!(
                "the init system does not run here: `adit run -c {}` starts it by hand",
                unit.config.display()
            ));
            return Ok(());
        }
    };
    for step in steps {
        let ran = tool::run(step[0], &step[1..]).with_context(|| format!("cannot run {}", step[0]))?;
        anyhow::ensure!(
            ran.ok,
            "{} failed: {}\n  hint: journalctl -u {name} -n 20",
            step.join(" "),
            ran.text
        );
    }
    lines.push(format!("started {name}"));
    Ok(())
}

fn uninstall(args: &ServiceArgs) -> anyhow::Result<()> {
    let root = Root::new(args.root.as_deref());
    let Some(manager) = manager(args, &root) else {
        bail!("no known init system on this machine\n  hint: --systemd, --openrc or --procd names it");
    };
    let unit = unit(args, &root)?;
    if root.is_machine() {
        let stop: &[&str] = match manager {
            Manager::Systemd => &["systemctl", "disable", "--now", &unit.name],
            Manager::OpenRc => &["rc-service", &unit.name, "stop"],
            Manager::Procd => &["service", &unit.name, "stop"],
        };
        // A service that does not run, or an init system that does not, is as good as stopped.
        tool::run(stop[0], &stop[1..]).ok();
    }
    let mut removed = 0;
    for (link, _) in unit.links(manager) {
        if fs::symlink_metadata(root.at(&link)).is_ok_and(|link| link.is_symlink()) {
            fs::remove_file(root.at(&link)).with_context(|| format!("cannot remove {link}"))?;
        }
    }
    for (path, ..) in unit.files(manager) {
        match fs::read_to_string(root.at(&path)) {
            Ok(text) if text.contains(MARK) => {
                fs::remove_file(root.at(&path)).with_context(|| format!("cannot remove {path}"))?;
                removed += 1;
                print::data(format_args!("removed {path}\n"))?;
            }
            Ok(_) => print::data(format_args!("kept {path}: it is not from adit\n"))?,
            Err(_) => {}
        }
    }
    if removed == 0 {
        print::data("nothing to remove\n")?;
    } else {
        print::data(format_args!("kept {}\n", unit.config.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
