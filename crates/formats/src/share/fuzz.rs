//! The entry of the fuzzer.

use adit_model::{Config, ObfsClient, OutboundProtocol, SNELL_MODES, Secret, SnellVersion};

use super::{Deployment, Form, share};
use crate::{adit_toml, snell};

/// Every text in a form that adit reads itself, or that has a grammar, comes out as it went in, and a form
/// of one line is one line.
///
/// The first byte sets switches; then, up to a line feed each, name, server and the host of obfs; then the key.
#[doc(hidden)]
pub fn fuzz_share(data: &[u8]) {
    let Some(deployment) = deployment(data) else { return };
    for form in Form::ALL {
        let Ok(shared) = share(form, &deployment) else { continue };
        let text = shared.text;
        match form {
            Form::Adit => {
                let loaded = adit_toml::parse("adit.toml", &text).expect("adit reads its own file");
                assert_client(&loaded.config, &deployment, form);
            }
            Form::OpenSnell => {
                let loaded = snell::parse(snell::SnellProgram::Client, None, "snell-client.conf", &text);
                let loaded = loaded.expect("the file is legal");
                assert!(loaded.diagnostics.is_empty(), "{}", loaded.diagnostics);
                assert_client(&loaded.config, &deployment, form);
            }
            Form::SingBox => {
                let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                assert_eq!(json["psk"], deployment.psk.expose());
                let id = deployment.client_id.as_ref().map(Secret::expose);
                assert_eq!(json["userkey"].as_str(), id);
                assert_eq!(json["tag"], *deployment.name);
                assert_eq!(json["server"], deployment.server.host.to_string());
            }
            Form::Surge | Form::Shadowrocket => assert_eq!(text.lines().count(), 1, "{form}"),
            Form::Mihomo => {
                let keys = text.lines().filter_map(|line| line.get(2..)?.split_once(": "));
                assert_eq!(keys.count(), text.lines().count(), "{form}: every line is a key and a value");
            }
        }
    }
}

fn deployment(data: &[u8]) -> Option<Deployment> {
    let (&switches, rest) = data.split_first()?;
    let text = str::from_utf8(rest).ok()?;
    let mut parts = text.splitn(4, '\n');
    let (name, server, obfs_host, psk) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let obfs = match switches & 3 {
        0 | 1 => ObfsClient::Off,
        2 => ObfsClient::Http(obfs_host.into()),
        _ => ObfsClient::Tls(obfs_host.into()),
    };
    Some(Deployment {
        name: name.into(),
        server: server.parse().ok()?,
        psk: Secret::new(psk),
        client_id: (switches & 128 != 0).then(|| Secret::new(name)),
        obfs,
        reuse: switches & 4 != 0,
        version: version(switches)?,
        fast_open: switches & 16 != 0,
        udp: switches & 32 != 0,
        quic: switches & 64 != 0,
    })
}

/// Bits 3 and 5 to 7 choose a version; for 6, one bit of another switch as well its mode.
fn version(switches: u8) -> Option<SnellVersion> {
    let (_, mode) = SNELL_MODES[usize::from(switches >> 3) % SNELL_MODES.len()];
    match switches >> 5 {
        0 => Some(if switches & 8 != 0 { SnellVersion::V4 } else { SnellVersion::V5 }),
        number => SnellVersion::new(number, mode),
    }
}

fn assert_client(config: &Config, deployment: &Deployment, form: Form) {
    let outbound = config.outbounds.first().expect("one way out");
    let OutboundProtocol::Snell(client) = &outbound.protocol else { panic!("{form}: not Snell") };
    assert_eq!(client.psk.expose(), deployment.psk.expose(), "{form}");
    assert_eq!(client.client_id, deployment.client_id, "{form}");
    assert_eq!(client.server, deployment.server, "{form}");
    assert_eq!(client.obfs, deployment.obfs, "{form}");
    assert_eq!(client.reuse, deployment.reuse, "{form}");
    assert_eq!(client.version, deployment.version, "{form}");
    assert_eq!(outbound.dial.fast_open, deployment.fast_open, "{form}");
}
