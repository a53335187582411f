//! A ShadowsocksR server in the same forms.

use std::fmt::Write as _;

use adit_model::{Inbound, InboundProtocol, ObfsClient, OutboundProtocol, SsrClient, SsrServer};
use adit_proto::ssr::{Obfs, SsrProtocol};

use super::forms::{Result, check_host, client_file, complete};
use super::{Form, Host, Inexpressible, Shared, Target, user_name};
use crate::read::value::quote;
use crate::shadowsocksr::link::{self, SsrProfile};

/// A ShadowsocksR server as one of its clients sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowsocksR {
    /// The name that the user reads in a list of servers.
    pub name: Box<str>,
    /// The client that fits.
    pub client: SsrClient,
    /// Whether a plugin listens in its place, whose options for clients are not known here.
    pub plugin: bool,
    /// TCP Fast Open.
    pub fast_open: bool,
}

impl ShadowsocksR {
    /// The servers of an inbound, reached at `host`: one, or one per user; with `user`, that of the user of this name alone.
    /// None for an inbound of another protocol.
    pub fn of(inbound: &Inbound, host: &Host, user: Option<&str>) -> Vec<Self> {
        let InboundProtocol::Ssr(server) = &inbound.protocol else { return Vec::new() };
        let Some(port) = inbound.listen.first().map(std::net::SocketAddr::port) else { return Vec::new() };
        let common = client(server, Target { host: host.clone(), port });
        let one = |name: Box<str>, user| Self {
            name,
            client: SsrClient { user, ..common.clone() },
            plugin: server.plugin.is_some(),
            fast_open: inbound.socket.fast_open,
        };
        let is_wanted = |name: &str| user.is_none_or(|user| user == name);
        if let Some(owner) = server.users.owner() {
            let owner = Some(owner).filter(|owner| is_wanted(&owner.name));
            return owner.map(|owner| one(user_name(&inbound.name, &owner.name), None)).into_iter().collect();
        }
        if server.users.ids().is_empty() && user.is_none() {
            return vec![one((*inbound.name).into(), None)];
        }
        let users = server.users.iter().filter(|(_, user)| is_wanted(&user.name));
        users
            .map(|(id, user)| one(user_name(&inbound.name, &user.name), Some((id, user.key.clone()))))
            .collect()
    }
}

fn client(server: &SsrServer, target: Target) -> SsrClient {
    // The parameter of a server with a TLS obfs is about its clock.
    let obfs_param = match server.obfs {
        Obfs::HttpSimple | Obfs::HttpPost | Obfs::HttpMix => server.obfs_param.clone(),
        Obfs::Plain | Obfs::RandomHead | Obfs::TlsTicketAuth | Obfs::TlsTicketFastauth | Obfs::GoQuiet => {
            Box::default()
        }
    };
    let client = SsrClient::new(target, server.method, server.password.clone(), server.protocol);
    SsrClient {
        obfs: server.obfs,
        obfs_param,
        key_interval_s: server.key_interval_s,
        transports: server.transports,
        ..client
    }
}

/// Writes a ShadowsocksR server in one form.
///
/// # Errors
/// [`Inexpressible`] with the field that the form cannot say.
pub fn share_ssr(form: Form, server: &ShadowsocksR) -> std::result::Result<Shared, Inexpressible> {
    let written = check(server).and_then(|()| match form {
        Form::Surge => Err(("protocol", "it does not speak ShadowsocksR")),
        Form::Mihomo => mihomo(server),
        Form::SingBox => Err(("protocol", "it no longer speaks ShadowsocksR")),
        Form::OpenSnell => Err(("protocol", "it speaks Snell alone")),
        Form::Shadowrocket => link(server),
        Form::Adit => {
            client_file(&server.name, server.fast_open, OutboundProtocol::Ssr(server.client.clone()))
        }
    });
    written.map_err(|(field, why)| Inexpressible { form, field, why })
}

fn check(server: &ShadowsocksR) -> Result<()> {
    if server.plugin {
        return Err(("plugin", "its options for clients are not known here"));
    }
    if !server.client.transports.tcp() {
        return Err(("network", "clients want TCP at least"));
    }
    check_host(&server.name, &server.client.server, &ObfsClient::Off)
}

fn link(server: &ShadowsocksR) -> Result<Shared> {
    let profile = SsrProfile { name: Some(server.name.clone()), group: None, client: server.client.clone() };
    match link::emit(&profile) {
        Ok(link) => Ok(complete(format!("{}\n", *link))),
        Err(link::SsrInexpressible::Plugin) => Err(("plugin", "the link has no place for it")),
        Err(link::SsrInexpressible::Interval) => Err(("key-interval", "the link has no place for it")),
        Err(link::SsrInexpressible::Long) => Err(("password", "the link would be longer than 8192 bytes")),
    }
}

/// Ciphers of mihomo besides those of AES.
const CIPHERS: [&str; 5] = ["none", "rc4-md5", "chacha20", "chacha20-ietf", "xchacha20"];

fn mihomo(server: &ShadowsocksR) -> Result<Shared> {
    use adit_proto::ssr::Chain;

    let SsrClient { method, protocol, obfs, .. } = &server.client;
    let is_aes = method.name().starts_with("aes-")
        && (method.name().ends_with("-ctr") || method.name().ends_with("-cfb"));
    if !is_aes && !CIPHERS.contains(&method.name()) {
        return Err(("method", "it has no such cipher"));
    }
    let is_known = matches!(
        protocol,
        SsrProtocol::Origin
            | SsrProtocol::AuthSha1V4
            | SsrProtocol::AuthAes128Md5
            | SsrProtocol::AuthAes128Sha1
            | SsrProtocol::AuthChain(Chain::A | Chain::B)
    );
    if !is_known {
        return Err(("ssr-protocol", "it has no such protocol"));
    }
    if matches!(obfs, Obfs::HttpMix | Obfs::GoQuiet) {
        return Err(("ssr-obfs", "it has no such obfs"));
    }
    Ok(complete(mihomo_entry(server)))
}

fn mihomo_entry(server: &ShadowsocksR) -> String {
    let client = &server.client;
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let lead = if key == "name" { "- " } else { "  " };
        writeln!(text, "{lead}{key}: {value}").expect("a string takes any text");
    };
    line("name", &quote(&server.name));
    line("type", "ssr");
    line("server", &quote(&client.server.host.to_string()));
    line("port", &client.server.port.to_string());
    line("cipher", client.method.name());
    line("password", &quote(client.password.expose()));
    line("obfs", client.obfs.name());
    if !client.obfs_param.is_empty() {
        line("obfs-param", &quote(&client.obfs_param));
    }
    line("protocol", client.protocol.name());
    if let Some((id, key)) = &client.user {
        line("protocol-param", &quote(&format!("{id}:{}", key.expose())));
    }
    if server.fast_open {
        line("tfo", "true");
    }
    if client.transports.udp() {
        line("udp", "true");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{adit_toml, import};

    const FILE: &str = r#"
        [[inbound]]
        name = "old"
        protocol = "ssr"
        listen = "192.0.2.1:8388"
        method = "aes-128-ctr"
        password = "outer \" é"
        ssr-protocol = "auth_aes128_md5"
        ssr-obfs = "http_simple_compatible"
        ssr-obfs-param = "a.example,b.example"
        users = [{ name = "ann", id = 1001, password = "wonder: \\" }, { name = "bob", id = 1002, password = "b" }]
        network = "tcp-and-udp"
    "#;

    fn servers(text: &str, user: Option<&str>) -> Vec<ShadowsocksR> {
        let config = adit_toml::parse("adit.toml", text).unwrap().config;
        let host = Host::parse(b"2001:db8::1").unwrap();
        ShadowsocksR::of(&config.inbounds[0], &host, user)
    }

    #[test]
    fn every_form_comes_back_as_it_was() {
        assert_eq!(servers(FILE, None).len(), 2);
        let server = &servers(FILE, Some("ann"))[0];
        assert_eq!(&*server.name, "old ann");
        for form in [Form::Mihomo, Form::Shadowrocket, Form::Adit] {
            let text = share_ssr(form, server).unwrap().text;
            let config = if form == Form::Adit {
                adit_toml::parse("adit.toml", &text).unwrap().config
            } else {
                import::parse(None, "shared", &text).unwrap_or_else(|found| panic!("{found}")).config
            };
            let outbound = &config.outbounds[0];
            assert_eq!(outbound.protocol, OutboundProtocol::Ssr(server.client.clone()), "{form}: {text}");
            assert_eq!(&*outbound.name, "old ann");
        }
        for form in [Form::Surge, Form::SingBox, Form::OpenSnell] {
            assert_eq!(share_ssr(form, server).unwrap_err().field, "protocol");
        }
    }

    #[test]
    fn what_mihomo_lacks_is_named() {
        for (right, wrong, field) in [
            ("aes-128-ctr", "rc4", "method"),
            ("auth_aes128_md5", "auth_aes128_fast", "ssr-protocol"),
            ("http_simple_compatible", "go_quiet", "ssr-obfs"),
            ("tcp-and-udp", "udp", "network"),
        ] {
            let server = &servers(&FILE.replace(right, wrong), None)[0];
            assert_eq!(share_ssr(Form::Mihomo, server).unwrap_err().field, field);
        }
        let owned = FILE.replace("users =", "plugin = \"p\"\n#");
        assert_eq!(share_ssr(Form::Shadowrocket, &servers(&owned, None)[0]).unwrap_err().field, "plugin");
    }
}
