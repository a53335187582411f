//! `adit panel` and `adit node`: counters in doubt, and a node that joins a panel.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use adit_engine::{ControlAnswer, ControlRequest, DoubtStatus, PanelRequest, ask};
use adit_fleet::panel::{UserList, probe};
use adit_formats::adit_toml;
use adit_model::{InDoubt, Panel, PanelKind, PanelToken, Secret};
use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};

use super::running_process;
use crate::api::outline::ManageFiles;
use crate::commands::cli::SocketArgs;
use crate::load::files;
use crate::load::files::FileArgs;
use crate::print;
use crate::run::state;
use crate::table::{Grid, number, text};

/// Longest token on standard input, in bytes.
const MAX_TOKEN: u64 = 4096;

#[derive(Debug, Subcommand)]
pub(crate) enum PanelCommand {
    /// Show counters that a panel may or may not have; send them again, or give them up
    Doubt(DoubtArgs),
    /// Send counters again that a panel has lost, for instance when it was restored from a backup
    ///
    /// Counters of the last seven days are kept in steps of ten minutes. All that the panel still has counts twice: choose
    /// the time of its backup.
    Replay(ReplayArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DoubtArgs {
    /// Settle the batches of this panel
    panel: Option<String>,
    /// Settle this batch alone
    #[arg(requires = "panel")]
    seq: Option<u64>,
    /// The panel does not have them: send them again
    #[arg(long, requires = "panel", conflicts_with = "drop")]
    resend: bool,
    /// The panel has them, or they are given up
    #[arg(long, requires = "panel")]
    drop: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The panel
    panel: String,
    /// Send what was told to the panel since then: seconds since 1970, or a time before now as 90m, 12h or 3d
    #[arg(long, value_name = "TIME")]
    since: String,
    #[command(flatten)]
    place: SocketArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Make this machine a node of a panel: ask the panel, and write the configuration
    Join(JoinArgs),
    /// Print the access that Outline Manager asks for: the address with its secret, and the digest of the certificate
    ///
    /// The line goes into the field of "Set up Outline anywhere". It needs `manage` and `manage-secret` under `[admin]`. Run it
    /// as the user that adit runs as: the certificate is made if there is none.
    Outline(OutlineArgs),
}

#[derive(Debug, Args)]
pub(crate) struct OutlineArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Name or address by which the Manager reaches this machine; else the one that adit listens on
    #[arg(long)]
    host: Option<String>,
}

/// Interfaces of panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Uniproxy,
    Xboard,
    ModMu,
    Hooks,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// Address of the panel, as `https://panel.example.com`
    #[arg(long, value_name = "URL")]
    panel: String,
    /// File with the token of the node; - for standard input
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Number or code of this node at the panel
    #[arg(long)]
    node: String,
    /// Type of this node at the panel
    #[arg(long = "type", value_name = "TYPE", default_value = "shadowsocks")]
    node_type: String,
    /// Number of this machine at an Xboard panel; the token is then that of the machine
    #[arg(long, value_name = "NUMBER")]
    machine: Option<u64>,
    /// Interface of the panel
    #[arg(long, value_enum, default_value = "uniproxy")]
    kind: Kind,
    /// SHA-256 digest of the panel's certificate, if it has signed its own
    #[arg(long, value_name = "sha256:HEX")]
    pin: Option<String>,
    /// Allow http:// beyond loopback
    #[arg(long)]
    insecure_http: bool,
    /// Port to listen on; else the one that the panel tells clients
    #[arg(long)]
    port: Option<u16>,
    /// File to write the configuration to
    #[arg(long, short, value_name = "FILE", default_value = "/etc/adit/adit.toml")]
    output: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
}

/// Runs `adit panel`.
pub(crate) fn run(command: &PanelCommand) -> anyhow::Result<()> {
    match command {
        PanelCommand::Doubt(args) => doubt(args),
        PanelCommand::Replay(args) => {
            let since = time(&args.since, adit_net::rt::unix_time())?;
            send(&args.place, PanelRequest::Replay { panel: args.panel.clone(), since })?;
            print::text(format_args!("counters of panel {} since {since} are sent again\n", args.panel))
        }
    }
}

/// Runs `adit node`.
pub(super) fn node(command: &NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::Join(args) => join(args),
        NodeCommand::Outline(args) => outline(args),
    }
}

fn outline(args: &OutlineArgs) -> anyhow::Result<()> {
    let mut config = files::load(&args.files)?.config;
    let Some(manage) = config.manage.clone() else {
        bail!(
            "no management interface\n  hint: write manage = \"127.0.0.1:8443\" and a manage-secret under [admin]"
        );
    };
    state::settle(&mut config, &files::paths(&args.files)?);
    let digest = ManageFiles::of(&config)?.digest()?;
    let ip = manage.listen.ip().to_canonical();
    let host = match &args.host {
        Some(host) if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        Some(host) => host.clone(),
        None if ip.is_unspecified() => {
            bail!(
                "adit listens on all addresses\n  hint: --host and the one by which the Manager reaches this machine"
            )
        }
        None if ip.is_ipv6() => format!("[{ip}]"),
        None => ip.to_string(),
    };
    let url = format!("https://{host}:{}/{}", manage.listen.port(), manage.secret.expose());
    let digest: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    print::data(format_args!("{{\"apiUrl\":{},\"certSha256\":\"{digest}\"}}\n", serde_json::to_string(&url)?))
}

fn doubt(args: &DoubtArgs) -> anyhow::Result<()> {
    let of = match &args.panel {
        Some(panel) if args.resend || args.drop => {
            PanelRequest::Settle { panel: panel.clone(), seq: args.seq, resend: args.resend }
        }
        _ => PanelRequest::Doubts,
    };
    let mut doubts = send(&args.place, of)?;
    doubts.retain(|doubt| args.panel.as_ref().is_none_or(|panel| *panel == doubt.panel));
    if args.json {
        return print::data(format_args!("{}\n", serde_json::to_string(&doubts)?));
    }
    if doubts.is_empty() {
        return print::data("no counters are in doubt\n");
    }
    let texts = ["panel", "batch", "sealed at"].map(text);
    let mut table = Grid::new(&[&texts[..], &["users", "up", "down"].map(number)[..]].concat());
    for doubt in &doubts {
        table.row([
            doubt.panel.clone(),
            doubt.seq.to_string(),
            doubt.unix_s.to_string(),
            doubt.users.to_string(),
            print::bytes(doubt.up_bytes),
            print::bytes(doubt.down_bytes),
        ]);
    }
    print::text(table.render(print::width()))
}

fn send(place: &SocketArgs, of: PanelRequest) -> anyhow::Result<Vec<DoubtStatus>> {
    let socket = running_process::of_files(place.socket.as_ref(), &place.files)?;
    match running_process::explained(&socket, ask(&socket, &ControlRequest::Panel { of }))? {
        ControlAnswer::Doubts(doubts) => Ok(doubts),
        ControlAnswer::Error(text) => bail!("{text}"),
        ControlAnswer::Status(_)
        | ControlAnswer::Files(_)
        | ControlAnswer::Kicked(_)
        | ControlAnswer::Differences(_)
        | ControlAnswer::Upgraded { .. }
        | ControlAnswer::Refused(_) => bail!("{} answers something else", socket.display()),
    }
}

/// Seconds since 1970 of a time that is given so, or by how long ago it is.
fn time(text: &str, now: u64) -> anyhow::Result<u64> {
    let wrong = || format!("not a time: {text}\n  hint: write seconds since 1970, or 90m, 12h or 3d");
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(seconds);
    }
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).with_context(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => bail!(wrong()),
    };
    let number: u64 = number.parse().ok().with_context(wrong)?;
    Ok(now.saturating_sub(number.saturating_mul(seconds)))
}

fn join(args: &JoinArgs) -> anyhow::Result<()> {
    let out = &args.output;
    ensure!(args.force || !out.exists(), "{} is there already\n  hint: --force replaces it", out.display());
    let token = token(&args.token_file)?;
    let token_path = out.with_extension("token");
    let text = file(args, &token_path, None);
    // The same checks as at a start come before the panel is asked.
    let name = out.display().to_string();
    let loaded = adit_toml::parse(&name, &text)?;
    let panel = loaded.config.panels.first().context("the panel is gone")?;
    let panel = Panel { token: PanelToken::Text(token.clone()), in_doubt: InDoubt::Hold, ..panel.clone() };
    let list = probe(&panel).with_context(|| format!("panel {}", args.panel))?;
    let text = file(args, &token_path, Some(&list));
    let loaded = adit_toml::parse(&name, &text)?;
    write(&token_path, token.expose(), 0o600).with_context(|| token_path.display().to_string())?;
    write(out, &text, 0o600).with_context(|| name.clone())?;
    let ports: Vec<String> =
        loaded.config.inbounds.iter().flat_map(|it| &it.listen).map(ToString::to_string).collect();
    let users = list.users.len();
    print::data(format_args!(
        "{name} is written: {users} users of {}, listening on {}\nstart it: adit run {name}, or adit service install\n",
        args.panel,
        ports.join(", ")
    ))
}

fn token(path: &Path) -> anyhow::Result<Secret> {
    let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text))
        .with_context(|| path.display().to_string())?;
    let line = text.lines().next().unwrap_or_default().trim();
    ensure!(!line.is_empty(), "{} holds no token", path.display());
    Ok(Secret::new(line))
}

/// The configuration. Everything that came from the panel is quoted, and parsed again before it is written.
fn file(args: &JoinArgs, token: &Path, list: Option<&UserList>) -> String {
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let kind = match args.kind {
        Kind::Uniproxy => PanelKind::UniProxy,
        Kind::Xboard => PanelKind::Xboard,
        Kind::ModMu => PanelKind::ModMu,
        Kind::Hooks => PanelKind::Hooks,
    };
    let kind = adit_toml::panel_kind(kind);
    let method = list.and_then(|list| list.method.as_deref()).unwrap_or("2022-blake3-aes-256-gcm");
    let port = args.port.or_else(|| list.and_then(|list| list.port)).unwrap_or(8388);
    let pin = args.pin.as_deref().map(|pin| format!("pin = {}\n", quote(pin))).unwrap_or_default();
    let machine = args.machine.map(|number| format!("machine = \"{number}\"\n")).unwrap_or_default();
    let insecure = if args.insecure_http { "insecure-http = true\n" } else { "" };
    format!(
        "# Written by `adit node join`. The users, their limits and the key of the server come from the panel.\n\
         [[panel]]\nname = \"panel\"\nkind = \"{kind}\"\nurl = {}\ntoken-file = {}\nnode = {}\nnode-type = {}\n{machine}{pin}{insecure}\n\
         [[inbound]]\nname = \"node\"\nprotocol = \"shadowsocks\"\nlisten = \":{port}\"\nmethod = {}\nnetwork = \"tcp-and-udp\"\npanel = \"panel\"\n",
        quote(&args.panel),
        quote(&token.to_string_lossy()),
        quote(&args.node),
        quote(&args.node_type),
        quote(method)
    )
}

fn write(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = File::options().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_now() {
        for (text, want) in [("90m", 4600), ("1h", 6400), ("10000s", 0), ("77", 77)] {
            assert_eq!(time(text, 10_000).unwrap(), want, "{text}");
        }
        for text in ["", "m", "x", "5y", "-5m"] {
            assert!(time(text, 10_000).is_err(), "{text}");
        }
    }
}
