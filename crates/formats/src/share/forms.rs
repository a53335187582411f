//! The forms, one function each. An error is the field that stands in the way, and why.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use adit_model::{
    Config, Dial, HalfClose, Inbound, InboundProtocol, Local, LocalProtocols, ObfsClient, Outbound,
    OutboundProtocol, Quic, Reply, Secret, SnellClient, SnellMode, SnellVersion, SocketOptions,
};
use adit_proto::wire::{Host, Target};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::{Deployment, Shared};
use crate::adit_toml;
use crate::read::value::{self, quote};

pub(super) type Result<T> = std::result::Result<T, (&'static str, &'static str)>;

pub(super) const CONTROL: &str = "it holds a control character";

/// Checks the values that every form needs.
pub(super) fn check(deployment: &Deployment) -> Result<()> {
    if value::psk(deployment.psk.expose()).is_err() {
        return Err(("psk", "it is empty or no key of a server"));
    }
    let version = deployment.version;
    if !version.psk_lens().contains(&deployment.psk.expose().len()) {
        return Err(("psk", "version 6 wants 12 to 255 bytes"));
    }
    if let Some(id) = &deployment.client_id
        && value::secret(id.expose(), value::MAX_CREDENTIAL).is_err()
    {
        return Err(("user-key", "it is no text of 1 to 255 bytes"));
    }
    if deployment.obfs != ObfsClient::Off && !version.has_obfs() {
        return Err(("obfs", "version 6 has no obfs"));
    }
    if version.fixed_reuse().is_some_and(|fixed| fixed != deployment.reuse) {
        return Err(("reuse", "the version fixes this setting"));
    }
    check_host(&deployment.name, &deployment.server, &deployment.obfs)
}

/// Checks the values that servers of every protocol have.
pub(super) fn check_host(name: &str, server: &Target, client_obfs: &ObfsClient) -> Result<()> {
    if name.is_empty() {
        return Err(("name", "it is empty"));
    }
    if server.port == 0 {
        return Err(("server", "port 0 cannot be dialled"));
    }
    let host = match &server.host {
        Host::Name(name) => &**name,
        Host::Ip(_) => "",
    };
    if !host.chars().all(is_host) {
        return Err(("server", "it holds characters that no host name has"));
    }
    match obfs(client_obfs) {
        Some((_, host)) if host.is_empty() || !host.chars().all(|c| is_host(c) || c == ':') => {
            Err(("obfs-host", "it is no host name"))
        }
        _ => Ok(()),
    }
}

fn is_host(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-' | '_')
}

/// Mode and host of an obfs.
pub(super) fn obfs(obfs: &ObfsClient) -> Option<(&'static str, &str)> {
    match obfs {
        ObfsClient::Off => None,
        ObfsClient::Http(host) => Some(("http", host)),
        ObfsClient::Tls(host) => Some(("tls", host)),
    }
}

/// Mode and host for clients that know no other obfs than HTTP.
fn http_obfs(deployment: &Deployment) -> Result<Option<&str>> {
    match &deployment.obfs {
        ObfsClient::Off => Ok(None),
        ObfsClient::Http(host) => Ok(Some(host)),
        ObfsClient::Tls(_) => Err(("obfs", "it supports only http for versions 4 and 5")),
    }
}

/// For clients that do not say which user they are.
fn no_user(deployment: &Deployment) -> Result<()> {
    match deployment.client_id {
        Some(_) => Err(("user-key", "it has no place for a key beside the psk")),
        None => Ok(()),
    }
}

/// For clients that know none but these versions.
fn known(deployment: &Deployment, versions: std::ops::RangeInclusive<u8>) -> Result<u8> {
    let number = deployment.version.number();
    if versions.contains(&number) { Ok(number) } else { Err(("version", "it has no such version")) }
}

pub(super) fn complete(text: String) -> Shared {
    Shared { text, left_out: Vec::new() }
}

/// `name = snell, host, port, key=value, ...`. Values may stand in double quotes, in which nothing can be escaped.
pub(super) fn surge(deployment: &Deployment) -> Result<Shared> {
    no_user(deployment)?;
    let obfs_host = http_obfs(deployment)?;
    let name = surge_name(&deployment.name)?;
    let psk = deployment.psk.expose();
    if psk.contains(['"', '\\']) {
        return Err(("psk", "it holds a double quote or a backslash"));
    }
    if psk.contains(char::is_control) {
        return Err(("psk", CONTROL));
    }
    let mut text = format!(
        "{name} = snell, {}, {}, psk=\"{psk}\", version={}",
        deployment.server.host,
        deployment.server.port,
        deployment.version.number()
    );
    if let Some(mode) = deployment.version.mode() {
        text.push_str(&format!(", mode={}", mode.name()));
    }
    // Versions 1 to 3 have no such key.
    if deployment.reuse && deployment.version.fixed_reuse().is_none() {
        text.push_str(", reuse=true");
    }
    if let Some(host) = obfs_host {
        text.push_str(&format!(", obfs=http, obfs-host={host}"));
    }
    if deployment.fast_open {
        text.push_str(", tfo=true");
    }
    if deployment.udp {
        text.push_str(", udp-relay=true");
        // Version 5 alone has a way for QUIC that is better than none.
        if deployment.quic && deployment.version == SnellVersion::V5 {
            text.push_str(", block-quic=off");
        }
    }
    text.push('\n');
    Ok(complete(text))
}

pub(super) fn surge_name(name: &str) -> Result<&str> {
    let comment = name.starts_with(['#', ';', '[']) || name.starts_with("//");
    if comment || name.trim() != name {
        return Err(("name", "it starts like a comment or a section, or with a space, or ends with one"));
    }
    if name.contains(['=', ',', '"']) || name.contains(char::is_control) {
        return Err(("name", "it holds a comma, an equals sign, a double quote or a control character"));
    }
    Ok(name)
}

pub(super) fn mihomo(deployment: &Deployment) -> Result<Shared> {
    no_user(deployment)?;
    let version = known(deployment, 1..=5)?;
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let lead = if key == "name" { "- " } else { "  " };
        writeln!(text, "{lead}{key}: {value}").expect("a string takes any text");
    };
    line("name", &quote(&deployment.name));
    line("type", "snell");
    line("server", &quote(&deployment.server.host.to_string()));
    line("port", &deployment.server.port.to_string());
    line("psk", &quote(deployment.psk.expose()));
    line("version", &version.to_string());
    if deployment.reuse && deployment.version.fixed_reuse().is_none() {
        line("reuse", "true");
    }
    if let Some((mode, host)) = obfs(&deployment.obfs) {
        line("obfs-opts", &format!("{{ mode: {mode}, host: {} }}", quote(host)));
    }
    if deployment.fast_open {
        line("tfo", "true");
    }
    if deployment.udp {
        line("udp", "true");
    }
    Ok(complete(text))
}

#[derive(Serialize)]
struct SingBoxOutbound<'a> {
    r#type: &'static str,
    tag: &'a str,
    server: String,
    server_port: u16,
    version: u8,
    psk: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    userkey: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reuse: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    obfs_mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    obfs_host: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tcp_fast_open: bool,
}

/// Version 4 stands for 5 too: sing-box has no client of version 5, whose TCP is the same.
pub(super) fn sing_box(deployment: &Deployment) -> Result<Shared> {
    let version = known(deployment, 4..=6)?;
    let obfs_host = http_obfs(deployment)?;
    let outbound = SingBoxOutbound {
        r#type: "snell",
        tag: &deployment.name,
        server: deployment.server.host.to_string(),
        server_port: deployment.server.port,
        version: if version == 5 { 4 } else { version },
        psk: deployment.psk.expose(),
        userkey: deployment.client_id.as_ref().map(Secret::expose),
        mode: deployment.version.mode().map(SnellMode::name),
        reuse: deployment.reuse,
        obfs_mode: obfs_host.map(|_| "http"),
        obfs_host,
        tcp_fast_open: deployment.fast_open,
    };
    let mut text = serde_json::to_string_pretty(&outbound).expect("texts, numbers and switches are JSON");
    text.push('\n');
    Ok(complete(text))
}

pub(super) fn opensnell(deployment: &Deployment) -> Result<Shared> {
    no_user(deployment)?;
    let version = known(deployment, 4..=5)?;
    let mut text = String::from("[snell-client]\nlisten = 127.0.0.1:1080\n");
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key} = {value}").expect("a string takes any text");
    };
    line("server", &deployment.server.to_string());
    line("psk", &ini_value(deployment.psk.expose())?);
    if let Some((mode, host)) = obfs(&deployment.obfs) {
        line("obfs", mode);
        line("obfs-host", host);
    }
    line("reuse", if deployment.reuse { "true" } else { "false" });
    line("version", &version.to_string());
    if deployment.fast_open {
        line("tfo", "true");
    }
    Ok(Shared { text, left_out: vec!["name"] })
}

/// A key for the INI dialect of OpenSnell: as it is where that is safe, else between backquotes.
fn ini_value(psk: &str) -> Result<String> {
    if psk.contains(char::is_control) {
        return Err(("psk", CONTROL));
    }
    if psk.contains("%(") {
        return Err(("psk", "it holds `%(`, which puts another value in"));
    }
    let quoted = psk.starts_with(['"', '\'', '`']);
    let plain = !quoted && !psk.contains(['#', ';']) && !psk.ends_with('\\') && psk.trim() == psk;
    if plain {
        return Ok(psk.to_owned());
    }
    if psk.contains('`') {
        return Err(("psk", "it needs quotes and holds a backquote itself"));
    }
    Ok(format!("`{psk}`"))
}

/// `snell://BASE64?tfo=0&version=5#name` with `chacha20-ietf-poly1305:PSK@HOST:PORT` inside.
pub(super) fn shadowrocket(deployment: &Deployment) -> Result<Shared> {
    no_user(deployment)?;
    if deployment.obfs != ObfsClient::Off {
        return Err(("obfs", "the link has no place for it"));
    }
    let (psk, version) = (deployment.psk.expose(), known(deployment, 1..=5)?);
    if psk.contains('@') {
        return Err(("psk", "it holds `@`, which ends the key in the link"));
    }
    if psk.contains(char::is_control) {
        return Err(("psk", CONTROL));
    }
    let inside = STANDARD.encode(format!("chacha20-ietf-poly1305:{psk}@{}", deployment.server));
    let text = format!(
        "snell://{inside}?tfo={}&version={}#{}\n",
        u8::from(deployment.fast_open),
        version,
        percent(&deployment.name)
    );
    Ok(Shared {
        text,
        left_out: if deployment.reuse && deployment.version.fixed_reuse().is_none() {
            vec!["reuse"]
        } else {
            Vec::new()
        },
    })
}

/// RFC 3986, 2.1: everything but the unreserved characters as `%XX`.
fn percent(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("a string takes any text");
        }
    }
    out
}

pub(super) fn adit(deployment: &Deployment) -> Result<Shared> {
    let client = SnellClient {
        server: deployment.server.clone(),
        psk: deployment.psk.clone(),
        client_id: deployment.client_id.clone(),
        version: deployment.version,
        obfs: deployment.obfs.clone(),
        reuse: deployment.reuse,
        half_close: HalfClose::On,
        udp: deployment.udp,
        quic: if deployment.quic { Quic::On } else { Quic::Off },
    };
    client_file(&deployment.name, deployment.fast_open, OutboundProtocol::Snell(client))
}

/// A file of adit's with a local port and one way out.
pub(super) fn client_file(name: &str, fast_open: bool, protocol: OutboundProtocol) -> Result<Shared> {
    let name = adit_toml::name(name);
    let name = name.map_err(|_| ("name", "it is longer than 64 characters or holds a control character"))?;
    let local =
        Local { accepts: LocalProtocols::Mixed, users: Vec::new(), reply: Reply::Early, open_to: Vec::new() };
    let config = Config {
        inbounds: vec![Inbound {
            name: "local".into(),
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 1080))],
            socket: SocketOptions::default(),
            outbound: (*name).into(),
            allow_private: true,
            protocol: InboundProtocol::Local(local),
        }],
        outbounds: vec![Outbound {
            name: (*name).into(),
            dial: Dial { fast_open, ..Dial::default() },
            protocol,
        }],
        ..Config::default()
    };
    Ok(complete(adit_toml::to_toml(&config)))
}
