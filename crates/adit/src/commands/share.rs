//! `adit share` prints a server for its clients; `adit import` reads such lines.

use adit_formats::share::{self, Deployment, Form, Host, Inexpressible, Shadowsocks, ShadowsocksR, Shared};
use adit_model::shown;
use adit_model::{Config, Inbound};
use anyhow::{Context as _, bail, ensure};

use crate::commands::cli::ShareArgs;
use crate::load::files;
use crate::machine::Root;
use crate::print;

pub(crate) fn run(args: &ShareArgs) -> anyhow::Result<()> {
    let config = files::load(&args.files.given())?.config;
    let user = args.user.as_deref();
    let servers = servers(&config, args.inbound.as_deref(), user)?;
    let (mut out, mut count, mut last) = (String::new(), 0_usize, None);
    for inbound in servers {
        let host = host(inbound, args.host.as_deref())?;
        for server in forms_of(inbound, &host, user)? {
            match args.form {
                Some(form) => match server.share(form) {
                    Ok(shared) => {
                        count += 1;
                        out.push_str(&shared.text);
                    }
                    Err(error) => {
                        out.push_str(&format!("{} {}: {error}\n", comment(form), shown::line(&inbound.name)));
                        last = Some(error);
                    }
                },
                None => out.push_str(&server.all(&Form::ALL)),
            }
            if let Some(background) = args.qr {
                match server.share(Form::Shadowrocket) {
                    Ok(link) => out.push_str(&print::qr(link.text.trim_end(), background)?),
                    Err(error) => {
                        out.push_str(&format!("# {}: no QR code: {error}\n", shown::line(&inbound.name)))
                    }
                }
            }
        }
    }
    match last {
        Some(error) if count == 0 => Err(error.into()),
        _ => print::data(out),
    }
}

/// The sign that begins a comment in a form.
fn comment(form: Form) -> &'static str {
    if form == Form::SingBox { "//" } else { "#" }
}

/// The line for Surge, the link and its picture for one user of an inbound.
pub(super) fn of_user(
    inbound: &Inbound,
    given: Option<&str>,
    user: &str,
    has_picture: bool,
) -> anyhow::Result<String> {
    let host = host(inbound, given)?;
    let mut out = String::new();
    for server in forms_of(inbound, &host, Some(user))? {
        out.push_str(&server.all(&[Form::Surge, Form::Shadowrocket]));
        if let Ok(link) = server.share(Form::Shadowrocket)
            && has_picture
        {
            out.push_str(&print::qr(link.text.trim_end(), print::Background::Auto)?);
        }
    }
    Ok(out)
}

/// A server that can be shared.
pub(crate) enum Server {
    Snell(Deployment),
    Shadowsocks(Shadowsocks),
    Ssr(ShadowsocksR),
}

/// The servers of an inbound: one, or one per user, or that of `user`.
pub(super) fn forms_of(inbound: &Inbound, host: &Host, user: Option<&str>) -> anyhow::Result<Vec<Server>> {
    // A name is for people to read, in lists of programs that may show it as it is.
    let plain = |name: Box<str>| shown::without_hidden(&name).into_boxed_str();
    let snell = Deployment::of(inbound, host, user).into_iter();
    let snell = snell.map(|server| Server::Snell(Deployment { name: plain(server.name.clone()), ..server }));
    let shadowsocks = Shadowsocks::of(inbound, host, user)
        .into_iter()
        .map(|server| Server::Shadowsocks(Shadowsocks { name: plain(server.name.clone()), ..server }));
    let ssr = ShadowsocksR::of(inbound, host, user).into_iter();
    let ssr = ssr.map(|server| Server::Ssr(ShadowsocksR { name: plain(server.name.clone()), ..server }));
    let servers: Vec<Server> = snell.chain(shadowsocks).chain(ssr).collect();
    ensure!(
        !servers.is_empty(),
        "inbound {} cannot be shared: its users go on to other servers, whose keys clients need",
        inbound.name
    );
    Ok(servers)
}

impl Server {
    /// The server in one form.
    pub(crate) fn share(&self, form: Form) -> Result<Shared, Inexpressible> {
        match self {
            Self::Snell(deployment) => share::share(form, deployment),
            Self::Shadowsocks(server) => share::share_shadowsocks(form, server),
            Self::Ssr(server) => share::share_ssr(form, server),
        }
    }

    /// Every form under its heading.
    pub(crate) fn all(&self, forms: &[Form]) -> String {
        all_by(forms, |form| self.share(form))
    }
}

/// The inbounds that clients connect to: all, or that of one name, or those that have a user of one name.
fn servers<'a>(
    config: &'a Config,
    name: Option<&str>,
    user: Option<&str>,
) -> anyhow::Result<Vec<&'a Inbound>> {
    let mut servers: Vec<&Inbound> = config
        .inbounds
        .iter()
        .filter(|inbound| is_server(inbound))
        .filter(|inbound| name.is_none_or(|name| *inbound.name == *name))
        .collect();
    match name {
        Some(name) => ensure!(!servers.is_empty(), "no server inbound of that name: {name}"),
        None => ensure!(!servers.is_empty(), "the configuration has no server to share"),
    }
    if let Some(user) = user {
        servers.retain(|inbound| has_user(inbound, user));
        ensure!(!servers.is_empty(), "no user of that name: {user}");
    }
    Ok(servers)
}

/// Whether an inbound is a server that can be shared.
pub(super) fn is_server(inbound: &Inbound) -> bool {
    inbound.protocol.is_shared()
}

fn has_user(inbound: &Inbound, name: &str) -> bool {
    is_server(inbound) && inbound.protocol.users().iter().any(|user| *user.name == *name)
}

/// As given, else the one address that the server listens on, if it stands for one place.
fn host(inbound: &Inbound, given: Option<&str>) -> anyhow::Result<Host> {
    if let Some(given) = given {
        return Host::parse(given.as_bytes()).with_context(|| format!("bad host: {given}"));
    }
    match inbound.listen.first().map(|addr| addr.ip()) {
        Some(ip) if !ip.is_unspecified() => {
            if ip.is_loopback() {
                print::remark(format_args!(
                    "warning: inbound {} listens on {ip}: other machines cannot reach it",
                    inbound.name
                ));
            }
            Ok(Host::Ip(ip))
        }
        _ => bail!(
            "inbound {} listens on every address, so its host is not known\n  hint: --host and the name or address \
             by which clients reach this machine{}",
            inbound.name,
            own_addresses()
        ),
    }
}

/// The machine's addresses for the hint, at most four.
fn own_addresses() -> String {
    let own: Vec<String> = Root::new(None).addresses().iter().take(4).map(ToString::to_string).collect();
    if own.is_empty() { String::new() } else { format!("; its own addresses: {}", own.join(", ")) }
}

/// Every form under its heading; in place of a form that cannot express the server stands the reason.
pub(crate) fn all(deployment: &Deployment, forms: &[Form]) -> String {
    all_by(forms, |form| share::share(form, deployment))
}

fn all_by(forms: &[Form], share: impl Fn(Form) -> Result<Shared, Inexpressible>) -> String {
    let mut out = String::new();
    for form in forms {
        out.push_str(&format!("# {}\n", heading(*form)));
        match share(*form) {
            Ok(shared) => out.push_str(&shared.text),
            Err(error) => out.push_str(&format!("# {error}\n")),
        }
        out.push('\n');
    }
    out
}

fn heading(form: Form) -> &'static str {
    match form {
        Form::Surge => "Surge: a line of [Proxy]",
        Form::Mihomo => "mihomo, Clash: an entry of proxies",
        Form::SingBox => "sing-box 1.14 and newer: an object of outbounds",
        Form::OpenSnell => "OpenSnell: snell-client.conf",
        Form::Shadowrocket => "Shadowrocket: a link",
        Form::Adit => "adit: adit.toml of a client",
    }
}
