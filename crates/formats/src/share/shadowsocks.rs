//! A Shadowsocks server in the same forms.

use std::fmt::Write as _;

use adit_model::{
    ClientCover, Inbound, InboundProtocol, KeyForm, ObfsClient, ObfsServer, OutboundProtocol, Plugin, Secret,
    ServerCover, ShadowsocksClient, ShadowsocksKey, ShadowsocksServer, Transports, User,
};
use serde::Serialize;

use super::forms::{CONTROL, Result, check_host, client_file, complete, obfs, surge_name};
use super::{Form, Host, Inexpressible, Shared, Target, user_name};
use crate::read::value::quote;
use crate::shadowsocks::{ShadowsocksProfile, sip002};

/// A Shadowsocks server as one of its clients sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shadowsocks {
    /// The name that the user reads in a list of servers.
    pub name: Box<str>,
    /// Its address or name, as clients reach it, and its port.
    pub server: Target,
    /// Method and password; with identities in front where the server has users.
    pub key: ShadowsocksKey,
    /// The obfs that it expects.
    pub obfs: ObfsClient,
    /// Whether a plugin listens in its place, whose options for clients are not known here.
    pub plugin: bool,
    /// TCP Fast Open.
    pub fast_open: bool,
    /// The transports that it serves.
    pub transports: Transports,
}

impl Shadowsocks {
    /// The servers of an inbound, reached at `host`: one, or one per user; with `user`, that of the user of this name alone.
    /// None for an inbound of another protocol, and for a relay, whose clients need the keys of the servers behind it.
    pub fn of(inbound: &Inbound, host: &Host, user: Option<&str>) -> Vec<Self> {
        let InboundProtocol::Shadowsocks(server) = &inbound.protocol else { return Vec::new() };
        let Some(port) = inbound.listen.first().map(std::net::SocketAddr::port) else { return Vec::new() };
        if !server.key.hops().is_empty() {
            return Vec::new();
        }
        let host_text: Box<str> = host.to_string().into();
        let obfs = match &server.cover {
            ServerCover::Obfs(ObfsServer::Http) => ObfsClient::Http(host_text),
            ServerCover::Obfs(ObfsServer::Tls) => ObfsClient::Tls(host_text),
            ServerCover::Obfs(ObfsServer::Off) | ServerCover::Plugin(_) => ObfsClient::Off,
        };
        let one = |(name, key): (Box<str>, ShadowsocksKey)| Self {
            name,
            server: Target { host: host.clone(), port },
            key,
            obfs: obfs.clone(),
            plugin: matches!(server.cover, ServerCover::Plugin(_)),
            fast_open: inbound.socket.fast_open,
            transports: server.transports,
        };
        keys(&inbound.name, server, user).into_iter().map(one).collect()
    }
}

/// The key of the server, or those of its users, or of one of them, with names.
fn keys(name: &str, server: &ShadowsocksServer, only: Option<&str>) -> Vec<(Box<str>, ShadowsocksKey)> {
    let own = server.key.key();
    if server.key.users().is_empty() && only.is_none() {
        return vec![(name.into(), own.clone())];
    }
    let with_identity = |user: &User| {
        let text = Secret::new(format!("{}:{}", own.text().expose(), user.key.expose()));
        let key = ShadowsocksKey::new(own.method(), text, KeyForm::Password).ok()?;
        Some((user_name(name, &user.name), key))
    };
    let users = server.key.users().iter().filter(|user| only.is_none_or(|only| *user.name == *only));
    users.filter_map(with_identity).collect()
}

/// Writes a Shadowsocks server in one form.
///
/// # Errors
/// [`Inexpressible`] with the field that the form cannot say.
pub fn share_shadowsocks(form: Form, server: &Shadowsocks) -> std::result::Result<Shared, Inexpressible> {
    let written = check(server).and_then(|()| match form {
        Form::Surge => surge(server),
        Form::Mihomo => mihomo(server),
        Form::SingBox => sing_box(server),
        Form::OpenSnell => Err(("protocol", "it speaks Snell alone")),
        Form::Shadowrocket => link(server),
        Form::Adit => adit(server),
    });
    written.map_err(|(field, why)| Inexpressible { form, field, why })
}

fn check(server: &Shadowsocks) -> Result<()> {
    if server.plugin {
        return Err(("plugin", "its options for clients are not known here"));
    }
    if server.key.form() != KeyForm::Password {
        return Err(("key", "clients want a password"));
    }
    if !server.transports.tcp() {
        return Err(("network", "clients want TCP at least"));
    }
    check_host(&server.name, &server.server, &server.obfs)
}

fn surge(server: &Shadowsocks) -> Result<Shared> {
    let name = surge_name(&server.name)?;
    let password = server.key.text().expose();
    if password.contains(['"', '\\']) {
        return Err(("password", "it holds a double quote or a backslash"));
    }
    if password.contains(char::is_control) {
        return Err(("password", CONTROL));
    }
    let Target { host, port } = &server.server;
    let method = server.key.method().name();
    let mut text = format!("{name} = ss, {host}, {port}, encrypt-method={method}, password=\"{password}\"");
    if let Some((mode, host)) = obfs(&server.obfs) {
        text.push_str(&format!(", obfs={mode}, obfs-host={host}"));
    }
    if server.fast_open {
        text.push_str(", tfo=true");
    }
    if server.transports.udp() {
        text.push_str(", udp-relay=true");
    }
    text.push('\n');
    Ok(complete(text))
}

fn mihomo(server: &Shadowsocks) -> Result<Shared> {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let lead = if key == "name" { "- " } else { "  " };
        writeln!(text, "{lead}{key}: {value}").expect("a string takes any text");
    };
    line("name", &quote(&server.name));
    line("type", "ss");
    line("server", &quote(&server.server.host.to_string()));
    line("port", &server.server.port.to_string());
    line("cipher", server.key.method().name());
    line("password", &quote(server.key.text().expose()));
    if let Some((mode, host)) = obfs(&server.obfs) {
        line("plugin", "obfs");
        line("plugin-opts", &format!("{{ mode: {mode}, host: {} }}", quote(host)));
    }
    if server.fast_open {
        line("tfo", "true");
    }
    if server.transports.udp() {
        line("udp", "true");
    }
    Ok(complete(text))
}

#[derive(Serialize)]
struct Outbound<'a> {
    r#type: &'static str,
    tag: &'a str,
    server: String,
    server_port: u16,
    method: &'static str,
    password: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin_opts: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tcp_fast_open: bool,
}

fn sing_box(server: &Shadowsocks) -> Result<Shared> {
    let plugin_opts = obfs(&server.obfs).map(|(mode, host)| format!("obfs={mode};obfs-host={host}"));
    let outbound = Outbound {
        r#type: "shadowsocks",
        tag: &server.name,
        server: server.server.host.to_string(),
        server_port: server.server.port,
        method: server.key.method().name(),
        password: server.key.text().expose(),
        plugin: plugin_opts.is_some().then_some("obfs-local"),
        plugin_opts,
        network: (!server.transports.udp()).then_some("tcp"),
        tcp_fast_open: server.fast_open,
    };
    let mut text = serde_json::to_string_pretty(&outbound).expect("texts, numbers and switches are JSON");
    text.push('\n');
    Ok(complete(text))
}

fn link(server: &Shadowsocks) -> Result<Shared> {
    let plugin = obfs(&server.obfs).map(|(mode, host)| Plugin {
        program: "obfs-local".into(),
        options: format!("obfs={mode};obfs-host={host}").into(),
        args: Vec::new(),
        transports: Transports::Tcp,
    });
    let profile = ShadowsocksProfile {
        name: Some(server.name.clone()),
        id: None,
        server: server.server.clone(),
        key: server.key.clone(),
        plugin,
    };
    let link = sip002::emit(&profile).map_err(|_| ("password", "the link would be too long"))?;
    Ok(Shared {
        text: format!("{}\n", *link),
        left_out: if server.fast_open { vec!["tcp-fast-open"] } else { Vec::new() },
    })
}

fn adit(server: &Shadowsocks) -> Result<Shared> {
    let client = ShadowsocksClient {
        server: server.server.clone(),
        key: server.key.clone(),
        transports: server.transports,
        cover: ClientCover::Obfs(server.obfs.clone()),
    };
    client_file(&server.name, server.fast_open, OutboundProtocol::Shadowsocks(client))
}
