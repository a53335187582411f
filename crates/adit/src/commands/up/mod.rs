//! `adit up`: from nothing to a running server, without a question, and safe to run twice.

pub(super) mod firewall;

use std::fs;
use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use adit_formats::adit_toml;
use adit_formats::shadowsocks::ShadowsocksMethod;
use adit_formats::shadowsocks_rust;
use adit_formats::share::{Form, Host, KEY_LEN, Rng as _, generate_key};
use adit_model::diagnostic::Diagnostics;
use adit_model::{Config, Inbound, Secret};
use adit_net::listen::free_port;
use anyhow::{Context as _, bail, ensure};
use clap::Args;

use super::service::{self, ServiceArgs};
use super::share;
use crate::load::readable::quoted;
use crate::machine::{self, Root, is_public};
use crate::print;
use crate::random::SystemRng;

/// Ports of a new server, both transports each.
const PORTS: std::ops::RangeInclusive<u16> = 10_000..=60_000;
/// Ports that are tried.
const PORT_TRIES: usize = 100;
/// The file with the lines for clients, beside the configuration.
const CLIENTS: &str = "clients.txt";

/// Flags of `adit up`. None is needed.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Address or name by which clients reach this machine [default: its public address]
    #[arg(long)]
    host: Option<String>,
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = service::CONFIG)]
    config: PathBuf,
    /// Write the configuration alone: no service
    #[arg(long)]
    no_service: bool,
    /// Install the service, but do not start it
    #[arg(long)]
    no_start: bool,
    /// Directory that stands for /
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

pub(crate) fn run(args: &UpArgs) -> anyhow::Result<()> {
    let root = Root::new(args.root.as_deref());
    ensure!(
        args.config.is_absolute() || args.root.is_none(),
        "the configuration must be an absolute path beneath --root"
    );
    let named = std::path::absolute(&args.config)?;
    let path = root.at(&named);
    let is_new = make(&root, &path)?;
    let verb = if is_new { "wrote" } else { "kept" };
    print::data(format_args!("{verb} {} (mode 0600)\n", named.display()))?;
    let config = read(&path)?;
    let host = host(args.host.as_deref(), &root)?;
    let lines = lines(&config, &host.0)?;
    let clients = path.with_file_name(CLIENTS);
    machine::write(&clients, 0o600, &lines.text)
        .with_context(|| format!("cannot write {}", clients.display()))?;
    print::data(format_args!("wrote {} (mode 0600)\n", named.with_file_name(CLIENTS).display()))?;
    if !args.no_service {
        install(args, &named)?;
    }
    print::data(format_args!("\n{}", firewall::hint(&root, &ports(&config))))?;
    if let Some(remark) = host.1 {
        print::data(format_args!("\n{remark}\n"))?;
    }
    show(&config, &lines, &named)
}

/// Makes the configuration with fresh keys, unless there is one; whether it did. Keys that exist are never replaced.
fn make(root: &Root, path: &Path) -> anyhow::Result<bool> {
    if let Ok(data) = fs::symlink_metadata(path) {
        let mode = data.permissions().mode();
        if data.is_file() && mode & 0o077 != 0 {
            fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
        }
        return Ok(false);
    }
    let has_v6 = root.read("/proc/net/if_inet6").is_some_and(|text| !text.trim().is_empty());
    let snell = port(&[])?;
    let shadowsocks = port(&[snell])?;
    let method = ShadowsocksMethod::all().find(|method| method.name() == "2022-blake3-aes-128-gcm");
    let method = method.context("this build lacks its default method")?;
    let psk = generate_key(&mut SystemRng, KEY_LEN);
    let password = shadowsocks_rust::generate_key(method, &mut SystemRng);
    let text = text(has_v6, (snell, &psk), (shadowsocks, method, &password));
    let folder = path.parent().context("the configuration needs a folder")?;
    machine::make_folder(folder, 0o750).with_context(|| format!("cannot make {}", folder.display()))?;
    machine::write(path, 0o600, &text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}

fn text(has_v6: bool, snell: (u16, &Secret), shadowsocks: (u16, ShadowsocksMethod, &Secret)) -> String {
    let listen = |port: u16| {
        let v4 = format!("\"0.0.0.0:{port}\"");
        if has_v6 { format!("[{v4}, \"[::]:{port}\"]") } else { v4 }
    };
    format!(
        "# Written by `adit up`. A second `adit up` keeps this file, its keys and its ports.\n\
         # All keys: `adit config docs`. Errors: `adit check`. Lines for clients: `adit share`.\n\
         \n\
         [[inbound]]\n\
         name = \"snell\"\n\
         protocol = \"snell\"\n\
         version = 5\n\
         listen = {}\n\
         psk = \"{}\"\n\
         # Clients reach public addresses only.\n\
         allow-private = false\n\
         \n\
         [[inbound]]\n\
         name = \"shadowsocks\"\n\
         protocol = \"shadowsocks\"\n\
         listen = {}\n\
         method = \"{}\"\n\
         password = \"{}\"\n\
         network = \"tcp-and-udp\"\n\
         allow-private = false\n\
         \n\
         [[outbound]]\n\
         name = \"direct\"\n\
         protocol = \"direct\"\n",
        listen(snell.0),
        snell.1.expose(),
        listen(shadowsocks.0),
        shadowsocks.1.name(),
        shadowsocks.2.expose(),
    )
}

/// A port of [`PORTS`] that nobody uses, for TCP and UDP.
fn port(taken: &[u16]) -> anyhow::Result<u16> {
    let count = u32::from(PORTS.end() - PORTS.start()) + 1;
    for _ in 0..PORT_TRIES {
        let wanted = PORTS.start() + u16::try_from(SystemRng.below(count)).unwrap_or_default();
        let is_free = free_port(IpAddr::V4(Ipv4Addr::UNSPECIFIED), wanted)?.port() == wanted;
        if is_free && !taken.contains(&wanted) {
            return Ok(wanted);
        }
    }
    bail!("no free port found from {} to {}", PORTS.start(), PORTS.end())
}

fn read(path: &Path) -> anyhow::Result<Config> {
    let text = adit_formats::read::source::read_up_to(path, adit_toml::MAX_LEN).map_err(Diagnostics::from)?;
    Ok(adit_toml::parse(&path.to_string_lossy(), &text)?.config)
}

/// The address that clients are told, and a remark if it is a guess that needs a look.
fn host(given: Option<&str>, root: &Root) -> anyhow::Result<(Host, Option<String>)> {
    if let Some(given) = given {
        let host = Host::parse(given.as_bytes()).with_context(|| format!("bad host: {given}"))?;
        return Ok((host, None));
    }
    let Some(ip) = root.best_address() else {
        let remark = "this machine has no address but loopback: the lines name 127.0.0.1\n  hint: adit up --host ADDRESS";
        return Ok((Host::Ip(Ipv4Addr::LOCALHOST.into()), Some(remark.to_owned())));
    };
    let remark = (!is_public(ip)).then(|| {
        format!(
            "{ip} is a private address: clients elsewhere need the public one\n  hint: adit up --host ADDRESS, and forward \
             the ports to this machine"
        )
    });
    Ok((Host::Ip(ip), remark))
}

/// The lines for clients.
struct Lines {
    text: String,
    /// For each inbound: name, Surge line, link.
    servers: Vec<(String, Option<String>, Option<String>)>,
}

fn lines(config: &Config, host: &Host) -> anyhow::Result<Lines> {
    let mut lines = Lines {
        text: "# Lines for the clients of this server. They hold its keys. Written by `adit up`.\n\n".into(),
        servers: Vec::new(),
    };
    for inbound in config.inbounds.iter().filter(|inbound| share::is_server(inbound)) {
        for server in share::forms_of(inbound, host, None)? {
            lines.text.push_str(&format!("# ---- {} ----\n{}", inbound.name, server.all(&Form::ALL)));
            let form = |form| server.share(form).ok().map(|shared| shared.text.trim_end().to_owned());
            lines.servers.push((inbound.name.to_string(), form(Form::Surge), form(Form::Shadowrocket)));
        }
    }
    ensure!(!lines.servers.is_empty(), "the configuration has no server inbound to share");
    Ok(lines)
}

fn install(args: &UpArgs, config: &Path) -> anyhow::Result<()> {
    let default = config == Path::new(service::CONFIG);
    let service = ServiceArgs {
        config: (!default).then(|| config.to_owned()),
        no_start: args.no_start,
        root: args.root.clone(),
        ..ServiceArgs::default()
    };
    match service::install(&service) {
        Ok(lines) => lines.iter().try_for_each(|line| print::data(format_args!("{line}\n"))),
        // The configuration is of use without a service.
        Err(error) => {
            print::remark(format_args!("warning: no service installed: {error:#}"));
            print::remark(format_args!(
                "  hint: adit run -c {} starts the server by hand",
                quoted(&config.to_string_lossy())
            ));
            Ok(())
        }
    }
}

/// Ports that the world has to reach, with the transports.
pub(super) fn ports(config: &Config) -> Vec<(u16, bool)> {
    let public = |inbound: &&Inbound| share::is_server(inbound);
    let listen = config.inbounds.iter().filter(public).flat_map(|inbound| {
        let of = |addr: &SocketAddr| (!addr.ip().is_loopback()).then(|| (addr.port(), has_udp(inbound)));
        inbound.listen.iter().filter_map(of).collect::<Vec<_>>()
    });
    let mut ports: Vec<(u16, bool)> = listen.collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Whether datagrams come to an inbound.
fn has_udp(inbound: &Inbound) -> bool {
    use adit_model::InboundProtocol as Protocol;
    match &inbound.protocol {
        Protocol::Snell(server) => server.udp && server.quic,
        Protocol::Shadowsocks(server) => server.transports.udp(),
        Protocol::Ssr(_) => true,
        Protocol::Dns(server) => server.transports.udp(),
        Protocol::Obfs(_)
        | Protocol::Local(_)
        | Protocol::Captured(_)
        | Protocol::Tunnel { .. }
        | Protocol::Tun(_) => false,
    }
}

/// Prints lines, links and QR codes on a terminal; elsewhere, where they would stay in a log, the name of their file.
fn show(config: &Config, lines: &Lines, path: &Path) -> anyhow::Result<()> {
    let clients = path.with_file_name(CLIENTS);
    if !io::stdout().is_terminal() {
        return print::data(format_args!(
            "\n{} servers; lines, links and keys for clients: {}\n",
            lines.servers.len(),
            clients.display()
        ));
    }
    for (name, surge, link) in &lines.servers {
        print::text(format_args!("\n{name}\n"))?;
        if let Some(surge) = surge {
            print::data(format_args!("  Surge  {surge}\n"))?;
        }
        if let Some(link) = link {
            print::data(format_args!("  link   {link}\n{}", print::qr(link, print::Background::Auto)?))?;
        }
    }
    let port = config.inbounds.first().and_then(|inbound| inbound.listen.first()).map_or(0, SocketAddr::port);
    print::data(format_args!(
        "\nmore forms (mihomo, sing-box, adit): {}\nnext: `adit doctor` judges this machine; \
         `adit test LINK` on a client tries port {port}\n",
        clients.display()
    ))
}
