//! The keys of an `[[inbound]]` of protocol snell, and what goes with a version, for an `[[outbound]]` as well.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use adit_model::{
    HalfClose, ObfsServer, Quic, Secret, SnellClient, SnellKeys, SnellServer, SnellVersion, SnellVersions,
    Users, nobody,
};

use super::fields::{Spanned, TomlFields, TomlReport};
use super::outbound::write_obfs;
use super::rows::port_keys as rows;
use super::users::{self, MAX_CREDENTIAL, RawUser, check_lens, read_users, told_apart};
use super::write::TableEntries;
use crate::read::value::{Problem, text_of};

/// A server.
pub(crate) fn server(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    listen: &[Spanned<SocketAddr>],
) -> Option<SnellServer> {
    let psk = fields.read(report, &rows::PSK);
    let users = read_users(fields, report, "snell", |text| text_of(text, MAX_CREDENTIAL));
    let versions = server_versions(fields, report);
    check_psk(fields, report, psk.as_ref(), &versions.psk_lens());
    let psk = keys(fields, report, psk, users, versions);
    let obfs = fields.read(report, &rows::OBFS_MODE).unwrap_or(ObfsServer::Off);
    check_obfs(fields, report, obfs != ObfsServer::Off, versions.has_obfs());
    check_exposure(fields, report, versions, listen);
    let udp = fields.read(report, &rows::UDP).unwrap_or(true);
    let quic = fields.read(report, &rows::SERVER_QUIC).unwrap_or(true);
    Some(SnellServer { psk: psk?, versions, obfs, udp, quic })
}

/// One key for all, or those of the users.
fn keys(
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    psk: Option<Spanned<Secret>>,
    users: Vec<RawUser>,
    versions: SnellVersions,
) -> Option<SnellKeys> {
    if fields.has(&rows::PANEL_OF) {
        let nobody = Users::new(vec![nobody(32)]).ok()?;
        if psk.is_none() && !versions.is_sealed() {
            let problem = Problem::new("unsafe-raw uses no key, so keys cannot identify users");
            fields.wrong(
                report,
                &rows::PANEL_OF,
                problem.hint("write a psk, which makes the users' keys client ids"),
            );
        }
        return Some(match psk {
            Some(psk) => SnellKeys::Named(psk.value, nobody),
            None => SnellKeys::Each(nobody),
        });
    }
    if !fields.has(&rows::USERS) || fields.is_empty_list(&rows::USERS) {
        if !fields.has(&rows::PSK) {
            report.error(&fields.at, fields.path(&rows::PSK), Problem::new("missing"));
        }
        return psk.map(|psk| psk.value.into());
    }
    if fields.has(&rows::PSK) {
        return Some(SnellKeys::Named(psk?.value, told_apart(fields, report, users)?));
    }
    if !versions.is_sealed() {
        let problem = Problem::new("unsafe-raw uses no key, so keys cannot identify users");
        let hint = "write a psk, which makes the passwords client ids";
        fields.wrong(report, &rows::USERS, problem.hint(hint));
    }
    check_lens(fields, report, &users, &versions.psk_lens());
    Some(SnellKeys::Each(told_apart(fields, report, users)?))
}

/// The versions of an inbound.
fn server_versions(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> SnellVersions {
    let number = match fields.read(report, &rows::SERVER_VERSION) {
        Some(None) => {
            if fields.read(report, &rows::MODE).is_some() {
                let problem = Problem::new("version = \"auto\" takes default and unshaped");
                fields.wrong(report, &rows::MODE, problem.hint("leave it out, or write version = 6"));
            }
            return SnellVersions::Auto;
        }
        Some(number) => number,
        None => None,
    };
    SnellVersions::Only(version(fields, report, number))
}

/// One version, from its number and `mode`.
pub(super) fn version(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    number: Option<u8>,
) -> SnellVersion {
    let mode = fields.read(report, &rows::MODE);
    let version = number.and_then(|number| SnellVersion::new(number, mode.unwrap_or_default()));
    if mode.is_some() && version.is_none_or(|version| version.mode().is_none()) {
        let problem = Problem::new("only version 6 has modes");
        fields.wrong(report, &rows::MODE, problem.hint("write version = 6 as well"));
    }
    version.unwrap_or_default()
}

/// A key that other programs of the version refuse.
pub(super) fn check_psk(
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    psk: Option<&Spanned<Secret>>,
    lens: &RangeInclusive<usize>,
) {
    let Some(psk) = psk.filter(|psk| !lens.contains(&psk.value.expose().len())) else { return };
    let problem = Problem::new(format!("version 6 wants {} to {} bytes", lens.start(), lens.end()));
    report.error(&psk.at, fields.path(&rows::PSK), problem.hint("`adit key` prints a good one"));
}

/// Reports obfs where the version has none.
pub(super) fn check_obfs(
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    has_obfs: bool,
    may_have: bool,
) {
    if has_obfs && !may_have {
        let problem = Problem::new("version 6 has no obfs");
        fields.wrong(report, &rows::OBFS_MODE, problem.hint("leave it out"));
    }
}

/// Whether connections are kept.
pub(super) fn reuse(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>, version: SnellVersion) -> bool {
    let wanted = fields.read(report, &rows::REUSE);
    match (version.fixed_reuse(), wanted) {
        (None, wanted) => wanted.unwrap_or(false),
        (Some(fixed), Some(wanted)) if fixed != wanted => {
            let always = if fixed { "always" } else { "never" };
            let problem = Problem::new(format!("version {} {always} reuses connections", version.number()));
            fields.wrong(report, &rows::REUSE, problem.hint("leave it out"));
            fixed
        }
        (Some(fixed), _) => fixed,
    }
}

/// Without a seal everybody who reaches the port can use it, so beyond loopback it must be wanted.
pub(super) fn check_exposure(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    versions: SnellVersions,
    listen: &[Spanned<SocketAddr>],
) {
    let allow_lan = fields.read(report, &rows::ALLOW_LAN).unwrap_or(false);
    if versions.is_sealed() || allow_lan {
        return;
    }
    for addr in listen.iter().filter(|addr| !addr.value.ip().to_canonical().is_loopback()) {
        let problem =
            format!("unsafe-raw asks for no key: everybody who reaches {} could use it", addr.value);
        let hint = "listen on 127.0.0.1, or write allow-lan = true";
        report.error(&addr.at, fields.path(&rows::LISTEN), Problem::new(problem).hint(hint));
    }
}

pub(super) fn write_server(out: &mut TableEntries, server: &SnellServer, is_open: bool) {
    out.put_some(&rows::PSK, server.psk.common());
    users::write(out, server.psk.users().iter().map(|user| (user, users::More::default())));
    match server.versions {
        SnellVersions::Only(version) => {
            out.put(&rows::SERVER_VERSION, &Some(version.number()));
            out.put_some(&rows::MODE, version.mode().as_ref());
        }
        SnellVersions::Auto => out.put(&rows::SERVER_VERSION, &None),
    }
    out.put_unless(&rows::ALLOW_LAN, &(is_open && !server.versions.is_sealed()), &false);
    out.put_unless(&rows::OBFS_MODE, &server.obfs, &ObfsServer::Off);
    out.put(&rows::UDP, &server.udp);
    out.put_unless(&rows::SERVER_QUIC, &server.quic, &true);
}

pub(super) fn write_client(out: &mut TableEntries, client: &SnellClient) {
    out.put(&rows::SERVER, &client.server);
    out.put(&rows::PSK, &client.psk);
    out.put_some(&rows::USER_KEY, client.client_id.as_ref());
    out.put(&rows::VERSION, &client.version.number());
    out.put_some(&rows::MODE, client.version.mode().as_ref());
    write_obfs(out, &client.obfs);
    out.put(&rows::REUSE, &client.reuse);
    out.put_unless(&rows::HALF_CLOSE, &client.half_close, &HalfClose::default());
    out.put(&rows::UDP, &client.udp);
    match client.quic {
        Quic::Block => out.put(&rows::BLOCK_QUIC, &client.quic),
        Quic::Auto | Quic::On | Quic::Off => {
            out.put_unless(&rows::CLIENT_QUIC, &client.quic, &Quic::default());
        }
    }
}
