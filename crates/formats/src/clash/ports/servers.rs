//! Listeners that are servers: Shadowsocks and Snell, and `ss-config`.

use std::net::SocketAddr;

use adit_model::{
    InboundProtocol, KeyForm, ObfsServer, ReplayPolicy, Secret, ServerCover, ShadowsocksKey,
    ShadowsocksServer, ShadowsocksServerKey, SnellMode, SnellServer, SnellVersion, SnellVersions, Transports,
};

use super::super::{ClashSetup, Context};
use super::of;
use crate::read::json::JsonValue;
use crate::read::value::excerpt;
use crate::read::yaml_access;

/// Blocks of a listener that cover its stream, or change its protocol; without them it would be another server.
const COVERS: [&str; 6] = ["simple-obfs", "shadow-tls", "res-tls", "jls-config", "kcp-tun", "mux-option"];

/// The transports of a listener: datagrams too, unless it says no.
pub(super) fn transports(item: &JsonValue) -> Transports {
    if yaml_access::is_off(item, "udp") { Transports::Tcp } else { Transports::Both }
}

/// Whether a cover is switched on that adit does not have here; then the listener is left out, and says so.
fn is_covered(context: &mut Context<'_>, item: &JsonValue, path: &str) -> bool {
    let is_on = |key: &&&str| {
        let block = yaml_access::get(item, key);
        block.is_some_and(|block| yaml_access::is_on(block, "enable") || yaml_access::is_on(block, "enabled"))
    };
    let found = COVERS.iter().find(is_on);
    if let Some(key) = found {
        let problem = format!("left out: adit does not listen with {key} here");
        context.remark(yaml_access::at(item, key), path, problem, "");
    }
    found.is_some()
}

/// A server of Shadowsocks.
pub(super) fn shadowsocks(
    context: &mut Context<'_>,
    item: &JsonValue,
    path: &str,
) -> Option<InboundProtocol> {
    if is_covered(context, item, path) {
        return None;
    }
    let cipher = yaml_access::text_of(item, "cipher").unwrap_or_default();
    let password = yaml_access::text_of(item, "password").unwrap_or_default();
    match server(cipher, password, transports(item)) {
        Ok(protocol) => Some(protocol),
        Err((key, problem)) => {
            context.error(yaml_access::at(item, key), format!("{path}.{key}"), problem);
            None
        }
    }
}

/// A server, or the key that is wrong and its problem.
fn server(
    cipher: &str,
    password: &str,
    transports: Transports,
) -> Result<InboundProtocol, (&'static str, String)> {
    let bad = |_| ("cipher", format!("unknown cipher: {}", excerpt(cipher)));
    let method = cipher.parse().map_err(bad)?;
    let key = ShadowsocksKey::new(method, Secret::new(password), KeyForm::Password);
    let key = key.and_then(ShadowsocksServerKey::new);
    let key = key.map_err(|error| ("password", error.to_string()))?;
    let (cover, replay) = (ServerCover::default(), ReplayPolicy::default());
    Ok(InboundProtocol::Shadowsocks(ShadowsocksServer { key, transports, cover, replay }))
}

/// A server of Snell.
pub(super) fn snell(context: &mut Context<'_>, item: &JsonValue, path: &str) -> Option<InboundProtocol> {
    if is_covered(context, item, path) {
        return None;
    }
    let obfs = yaml_access::get(item, "obfs-opts")
        .and_then(|opts| yaml_access::text_of(opts, "mode"))
        .unwrap_or_default();
    let obfs = match obfs {
        "" => ObfsServer::Off,
        "http" => ObfsServer::Http,
        "tls" => ObfsServer::Tls,
        other => {
            let problem = format!("left out: adit does not listen with obfs {} here", excerpt(other));
            context.remark(yaml_access::at(item, "obfs-opts"), format!("{path}.obfs-opts.mode"), problem, "");
            return None;
        }
    };
    let number = yaml_access::text_of(item, "version").unwrap_or("4").parse().ok();
    let version = number.filter(|number| (1..=5).contains(number));
    let Some(version) = version.and_then(|number| SnellVersion::new(number, SnellMode::Default)) else {
        let problem = "no version of Snell from 1 to 5";
        context.error(yaml_access::at(item, "version"), format!("{path}.version"), problem);
        return None;
    };
    let psk = yaml_access::text_of(item, "psk").unwrap_or_default();
    if !version.psk_lens().contains(&psk.len()) || (obfs != ObfsServer::Off && !version.has_obfs()) {
        let problem = "the psk or the obfs does not fit the version of Snell";
        context.error(yaml_access::at(item, "psk"), format!("{path}.psk"), problem);
        return None;
    }
    let udp = version.has_datagrams() && !yaml_access::is_off(item, "udp");
    let versions = SnellVersions::Only(version);
    let psk = Secret::new(psk);
    Some(InboundProtocol::Snell(SnellServer { psk: psk.into(), versions, obfs, udp, quic: false }))
}

/// `ss-config: ss://CIPHER:PASSWORD@ADDRESS:PORT`.
pub(super) fn old(context: &mut Context<'_>, root: &JsonValue, setup: &mut ClashSetup) {
    let Some(value) = yaml_access::get(root, "ss-config") else { return };
    let Some(text) = yaml_access::text(value).filter(|text| !text.is_empty()) else { return };
    let read = || {
        let (secret, address) = text.strip_prefix("ss://")?.rsplit_once('@')?;
        let (cipher, password) = secret.split_once(':')?;
        let every = format!("[::]{address}");
        let address = if address.starts_with(':') { &every } else { address };
        Some((cipher, password, address.parse::<SocketAddr>().ok()?))
    };
    let Some((cipher, password, listen)) = read() else {
        return context.error(value.at, "ss-config", "expected ss://cipher:password@address:port");
    };
    match server(cipher, password, Transports::Both) {
        Ok(protocol) => setup.config.inbounds.push(of("DEFAULT-SHADOWSOCKS", vec![listen], protocol)),
        Err((_, problem)) => context.error(value.at, "ss-config", problem),
    }
}
