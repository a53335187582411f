//! The keys of what takes TCP's place.

use std::path::Path;
use std::time::Duration;

use adit_model::{
    Acme, InboundProtocol, KCP_MTU, Kcp, KcpClient, KcpParity, OutboundProtocol, SnowflakeClient,
    SnowflakePort, TlsFiles, WebUrl,
};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec;
use adit_proto::wire::Target;

use super::fields::{TomlFields, TomlReport};
use super::keys::Head;
use super::rows::link::{self as rows, Carrier};
use super::rows::port_keys;
use super::rows::snowflake::{self, PortTls};
use super::write::TableEntries;
use crate::read::value::Problem;
use crate::snowflake::listen::fetched;

/// Keys of one carrier, which mean nothing without it.
struct Settings {
    carrier: Carrier,
    hint: &'static str,
    keys: &'static [&'static Head],
}

static SETTINGS: [Settings; 3] = [
    Settings {
        carrier: Carrier::Kcp,
        hint: "write carrier = \"kcp\" too, or leave it out",
        keys: &[
            rows::CARRIER_KEY.head(),
            rows::CARRIER_CRYPT.head(),
            rows::CARRIER_PARITY.head(),
            rows::CARRIER_MTU.head(),
            rows::CARRIER_COMPRESSION.head(),
            rows::CARRIER_SMUX.head(),
            rows::CARRIER_SERVER.head(),
            rows::CARRIER_SESSIONS.head(),
        ],
    },
    Settings {
        carrier: Carrier::Snowflake,
        hint: "write carrier = \"snowflake\" too, or leave it out",
        keys: snowflake::SNOWFLAKE,
    },
    Settings {
        carrier: Carrier::Snowflake,
        hint: "write carrier = \"snowflake\" too, or leave it out",
        keys: snowflake::ACME,
    },
];

/// The carrier that is named. The keys of others are errors.
fn read(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Carrier {
    let carrier = fields.read(report, &rows::CARRIER).unwrap_or(Carrier::Tcp);
    for settings in SETTINGS.iter().filter(|settings| settings.carrier != carrier) {
        let problem = if carrier == Carrier::Tcp { "no carrier is set" } else { "another carrier is set" };
        for key in settings.keys {
            let at = fields.place(key);
            if fields.take(key).is_some() {
                let problem = Problem::new(format!("{problem}, so this key has no effect"));
                report.error(&at, fields.path(key), problem.hint(settings.hint));
            }
        }
    }
    carrier
}

/// The keys of inbounds.
pub(crate) fn server(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Kcp> {
    match read(fields, report) {
        Carrier::Tcp => None,
        Carrier::Kcp => kcp(fields, report),
        Carrier::Snowflake => {
            let port = SnowflakePort { tls: port_tls(fields, report)? };
            Some(Kcp { snowflake: Some(port), ..Kcp::for_snowflake() })
        }
    }
}

/// The certificate of a port; `Some(None)` for a port without TLS.
fn port_tls(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Option<TlsFiles>> {
    let wanted = fields.read(report, &snowflake::PORT_TLS).unwrap_or(PortTls::Files);
    let files = (wanted == PortTls::Files).then(|| port_files(fields, report));
    let acme = (wanted == PortTls::Acme).then(|| port_acme(fields, report));
    let chosen = format!("snowflake-tls is {}, so this key has no effect", snowflake::name_of_tls(wanted));
    let others: [(bool, &[&Head]); 2] = [
        (files.is_some(), &[snowflake::CERTIFICATE.head(), snowflake::CERTIFICATE_KEY.head()]),
        (acme.is_some(), snowflake::ACME),
    ];
    for (is_read, keys) in others {
        for key in keys.iter().filter(|_| !is_read) {
            if fields.take(key).is_some() {
                fields.wrong(report, key, Problem::new(chosen.clone()));
            }
        }
    }
    match wanted {
        PortTls::Off => Some(None),
        PortTls::Files | PortTls::Acme => files.or(acme)?.map(Some),
    }
}

/// A certificate that somebody else keeps.
fn port_files(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<TlsFiles> {
    let certificate = fields.require(report, &snowflake::CERTIFICATE);
    let key = fields.require(report, &snowflake::CERTIFICATE_KEY);
    Some(TlsFiles { certificate: (*certificate?).into(), key: (*key?).into(), acme: None })
}

/// A certificate that is fetched.
fn port_acme(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<TlsFiles> {
    let names = fields.require(report, &snowflake::ACME_NAMES);
    let folder = fields.require(report, &snowflake::ACME_FOLDER);
    let email = fields.read(report, &snowflake::ACME_EMAIL);
    let directory = fields.read(report, &snowflake::ACME_DIRECTORY);
    let directory = directory.or_else(|| WebUrl::parse(Acme::DIRECTORY).ok());
    let answers = fields.read(report, &snowflake::ACME_HTTP);
    let names: Vec<Box<str>> = names?.into_iter().map(|name| name.value).collect();
    if names.is_empty() {
        fields.wrong(report, &snowflake::ACME_NAMES, Problem::new("no name"));
        return None;
    }
    Some(fetched(Acme { names, email, directory: directory?, answers }, Path::new(&*folder?)))
}

/// The keys of both ends of KCP.
fn kcp(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Kcp> {
    let key = fields.require(report, &rows::CARRIER_KEY);
    let crypt = fields.read(report, &rows::CARRIER_CRYPT).unwrap_or(KcpMethod::Aes128Gcm);
    let parity = fields.read(report, &rows::CARRIER_PARITY).unwrap_or(KcpParity::Measured);
    let mtu = fields.read(report, &rows::CARRIER_MTU).unwrap_or(KCP_MTU);
    let compression = fields.read(report, &rows::CARRIER_COMPRESSION).unwrap_or(false);
    let version = fields.read(report, &rows::CARRIER_SMUX).unwrap_or(None);
    debug_assert!(128 > crypt.head_len() + crypt.tail_len() + fec::HEADER_LEN + 24, "room for data");
    Some(Kcp { parity, mtu, compression, version, ..Kcp::new(key?, crypt) })
}

/// The keys of outbounds.
pub(super) fn client(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    protocol: Option<&OutboundProtocol>,
) -> Option<KcpClient> {
    match read(fields, report) {
        Carrier::Tcp => None,
        Carrier::Kcp => kcp_client(fields, report, protocol),
        Carrier::Snowflake => snowflake_client(fields, report),
    }
}

/// Its own server is the carrier's unless another one is named.
fn kcp_client(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    protocol: Option<&OutboundProtocol>,
) -> Option<KcpClient> {
    let kcp = kcp(fields, report)?;
    let own = match protocol {
        Some(OutboundProtocol::Snell(client)) => Some(client.server.clone()),
        Some(OutboundProtocol::Shadowsocks(client)) => Some(client.server.clone()),
        Some(OutboundProtocol::Ssr(client)) => Some(client.server.clone()),
        Some(OutboundProtocol::Obfs(client)) => client.servers().first().cloned(),
        _ => None,
    };
    let named = match own {
        Some(own) => Some(fields.read(report, &rows::CARRIER_SERVER).unwrap_or(own)),
        None => fields.require(report, &rows::CARRIER_SERVER),
    };
    let server: Target = named?;
    let sessions = fields.read(report, &rows::CARRIER_SESSIONS).unwrap_or(1);
    let linger = Duration::from_secs(600);
    Some(KcpClient { sessions, linger, ..KcpClient::new(kcp, server) })
}

fn snowflake_client(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<KcpClient> {
    let broker = fields.require(report, &snowflake::BROKER);
    let fronts = fields.read(report, &snowflake::FRONTS).unwrap_or_default();
    let ice = fields.read(report, &snowflake::ICE).unwrap_or_default();
    let client = SnowflakeClient {
        fronts: fronts.into_iter().map(|front| front.value).collect(),
        amp_cache: fields.read(report, &snowflake::AMP_CACHE),
        ice: ice.into_iter().map(|server| server.value).collect(),
        max: fields.read(report, &snowflake::MAX).unwrap_or(1),
        fingerprint: fields.read(report, &snowflake::FINGERPRINT),
        keep_local: fields.read(report, &snowflake::KEEP_LOCAL).unwrap_or(false),
        imitates: fields.read(report, &snowflake::IMITATE),
        hides_name: fields.read(report, &snowflake::HIDE_NAME).unwrap_or(false),
        ..SnowflakeClient::default()
    };
    let broker = broker?;
    let server = broker.target.clone();
    Some(KcpClient::through_snowflake(server, SnowflakeClient { broker: Some(broker), ..client }))
}

/// Streams alone go by proxies: an inbound that is to take datagrams, or that a plugin listens for, is an error.
pub(super) fn check_server(
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    kcp: Option<&Kcp>,
    protocol: Option<&InboundProtocol>,
) {
    if let Some(protocol) = protocol.filter(|_| kcp.is_some_and(Kcp::has_streams)) {
        refuse_datagrams(fields, report, protocol.transports().udp());
    }
}

/// The same for an outbound.
pub(super) fn check_client(
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    client: Option<&KcpClient>,
    protocol: Option<&OutboundProtocol>,
) {
    if client.is_some_and(KcpClient::has_streams) && protocol.is_some() {
        let network = match protocol {
            Some(OutboundProtocol::Shadowsocks(client)) => client.transports.udp(),
            Some(OutboundProtocol::Ssr(client)) => client.transports.udp(),
            _ => false,
        };
        refuse_datagrams(fields, report, network);
    }
}

fn refuse_datagrams(fields: &TomlFields<'_>, report: &mut TomlReport<'_>, has_datagrams: bool) {
    if has_datagrams {
        let problem = Problem::new("carrier = \"snowflake\" carries streams alone");
        fields.wrong(report, &port_keys::SERVED, problem.hint("write network = \"tcp\""));
    }
    if fields.has(&port_keys::PLUGIN) {
        let problem = Problem::new("a plugin takes the place of TCP, and so does carrier = \"snowflake\"");
        fields.wrong(report, &port_keys::PLUGIN, problem.hint("leave one of them out"));
    }
}

/// The keys of an inbound's carrier.
pub(super) fn write_server(out: &mut TableEntries, kcp: &Kcp) {
    let Some(port) = &kcp.snowflake else { return write(out, kcp) };
    out.put(&rows::CARRIER, &Carrier::Snowflake);
    match &port.tls {
        None => out.put(&snowflake::PORT_TLS, &PortTls::Off),
        Some(TlsFiles { certificate, acme: Some(acme), .. }) => {
            let folder = certificate.parent().unwrap_or_else(|| Path::new("."));
            out.put(&snowflake::PORT_TLS, &PortTls::Acme);
            out.put(&snowflake::ACME_NAMES, &*acme.names);
            out.put(&snowflake::ACME_FOLDER, &*folder.to_string_lossy());
            out.put_some(&snowflake::ACME_EMAIL, acme.email.as_deref());
            out.put(&snowflake::ACME_DIRECTORY, &acme.directory);
            out.put_some(&snowflake::ACME_HTTP, acme.answers.as_ref());
        }
        Some(TlsFiles { certificate, key, acme: None }) => {
            out.put(&snowflake::CERTIFICATE, &*certificate.to_string_lossy());
            out.put(&snowflake::CERTIFICATE_KEY, &*key.to_string_lossy());
        }
    }
}

/// The keys of an outbound's carrier.
pub(super) fn write_client(out: &mut TableEntries, client: &KcpClient) {
    let Some(given) = &client.snowflake else {
        write(out, &client.kcp);
        out.put(&rows::CARRIER_SERVER, &client.server);
        out.put(&rows::CARRIER_SESSIONS, &client.sessions);
        return;
    };
    out.put(&rows::CARRIER, &Carrier::Snowflake);
    out.put_some(&snowflake::BROKER, given.broker.as_ref());
    out.put_unless(&snowflake::FRONTS, &*given.fronts, &[]);
    out.put_some(&snowflake::AMP_CACHE, given.amp_cache.as_deref());
    out.put_unless(&snowflake::ICE, &*given.ice, &[]);
    out.put_unless(&snowflake::MAX, &given.max, &1);
    out.put_some(&snowflake::FINGERPRINT, given.fingerprint.as_ref());
    out.put_some(&snowflake::IMITATE, given.imitates.as_deref());
    out.put_unless(&snowflake::HIDE_NAME, &given.hides_name, &false);
    out.put_unless(&snowflake::KEEP_LOCAL, &given.keep_local, &false);
}

fn write(out: &mut TableEntries, kcp: &Kcp) {
    out.put(&rows::CARRIER, &Carrier::Kcp);
    out.put(&rows::CARRIER_KEY, &kcp.key);
    out.put(&rows::CARRIER_CRYPT, &kcp.crypt);
    out.put(&rows::CARRIER_PARITY, &kcp.parity);
    out.put(&rows::CARRIER_MTU, &kcp.mtu);
    out.put_unless(&rows::CARRIER_COMPRESSION, &kcp.compression, &false);
    out.put(&rows::CARRIER_SMUX, &kcp.version);
}
