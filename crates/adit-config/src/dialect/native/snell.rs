//! The keys of an `[[inbound]]` of protocol snell, and what goes with a version, for an `[[outbound]]` as well.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::fields::{Fields, Report, Spanned};
use super::obfs_server;
use super::users::{MAX_CREDENTIAL, RawUser, check_lens, read_users, told_apart};
use crate::dialect::value::{self, Problem, text_of};
use crate::model::{ObfsServer, SNELL_MODES, Secret, SnellKeys, SnellServer, SnellVersion, SnellVersions};

/// A server.
pub(super) fn server(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    listen: &[Spanned<SocketAddr>],
) -> Option<SnellServer> {
    let psk = fields.parsed(report, "psk", value::psk);
    let users = read_users(fields, report, "snell", |text| text_of(text, MAX_CREDENTIAL));
    let versions = server_versions(fields, report);
    check_psk(fields, report, psk.as_ref(), &versions.psk_lens());
    let psk = keys(fields, report, psk, users, versions);
    let obfs = fields.parsed(report, "obfs", obfs_server).map_or(ObfsServer::Off, |o| o.value);
    check_obfs(fields, report, obfs != ObfsServer::Off, versions.has_obfs());
    check_exposure(fields, report, versions, listen);
    let udp = fields.flag(report, "udp").unwrap_or(true);
    let quic = fields.flag(report, "quic").unwrap_or(true);
    Some(SnellServer { psk: psk?, versions, obfs, udp, quic })
}

/// One key for all, or those of the users.
fn keys(
    fields: &Fields<'_>,
    report: &mut Report<'_>,
    psk: Option<Spanned<Secret>>,
    users: Vec<RawUser>,
    versions: SnellVersions,
) -> Option<SnellKeys> {
    if !fields.has("users") || fields.is_empty_list("users") {
        if !fields.has("psk") {
            report.error(&fields.at, fields.path("psk"), Problem::new("missing"));
        }
        return psk.map(|psk| psk.value.into());
    }
    if fields.has("psk") {
        return Some(SnellKeys::Named(psk?.value, told_apart(fields, report, users)?));
    }
    if !versions.is_sealed() {
        let problem = Problem::new("unsafe-raw uses no key, so keys cannot identify users");
        let hint = "write a psk, which makes the passwords client ids";
        report.error(&fields.place("users"), fields.path("users"), problem.hint(hint));
    }
    check_lens(fields, report, &users, &versions.psk_lens());
    Some(SnellKeys::Each(told_apart(fields, report, users)?))
}

/// The versions of an inbound.
pub(super) fn server_versions(fields: &mut Fields<'_>, report: &mut Report<'_>) -> SnellVersions {
    if fields.text("version") != Some("auto") {
        return SnellVersions::Only(client_version(fields, report));
    }
    fields.take("version");
    if fields.one_of(report, "mode", SNELL_MODES).is_some() {
        let problem = Problem::new("version = \"auto\" takes default and unshaped");
        report.error(
            &fields.place("mode"),
            fields.path("mode"),
            problem.hint("leave it out, or write version = 6"),
        );
    }
    SnellVersions::Auto
}

/// The version of an outbound, and of an inbound that has one.
pub(super) fn client_version(fields: &mut Fields<'_>, report: &mut Report<'_>) -> SnellVersion {
    let number = fields.integer(report, "version", 1..=6).and_then(|number| u8::try_from(number).ok());
    let mode = fields.one_of(report, "mode", SNELL_MODES);
    let version = number.and_then(|number| SnellVersion::new(number, mode.unwrap_or_default()));
    if mode.is_some() && version.is_none_or(|version| version.mode().is_none()) {
        let problem = Problem::new("only version 6 has modes");
        report.error(&fields.place("mode"), fields.path("mode"), problem.hint("write version = 6 as well"));
    }
    version.unwrap_or_default()
}

/// A key that other programs of the version refuse.
pub(super) fn check_psk(
    fields: &Fields<'_>,
    report: &mut Report<'_>,
    psk: Option<&Spanned<Secret>>,
    lens: &RangeInclusive<usize>,
) {
    let Some(psk) = psk.filter(|psk| !lens.contains(&psk.value.expose().len())) else { return };
    let problem = Problem::new(format!("version 6 wants {} to {} bytes", lens.start(), lens.end()));
    report.error(&psk.at, fields.path("psk"), problem.hint("`adit key` prints a good one"));
}

/// Reports an obfs if the version has none.
pub(super) fn check_obfs(fields: &Fields<'_>, report: &mut Report<'_>, has_obfs: bool, may_have: bool) {
    if has_obfs && !may_have {
        let problem = Problem::new("version 6 has no obfs");
        report.error(&fields.place("obfs"), fields.path("obfs"), problem.hint("leave it out"));
    }
}

/// Whether connections are kept.
pub(super) fn reuse(fields: &mut Fields<'_>, report: &mut Report<'_>, version: SnellVersion) -> bool {
    let wanted = fields.flag(report, "reuse");
    match (version.fixed_reuse(), wanted) {
        (None, wanted) => wanted.unwrap_or(false),
        (Some(fixed), Some(wanted)) if fixed != wanted => {
            let always = if fixed { "always" } else { "never" };
            let problem = Problem::new(format!("version {} {always} reuses connections", version.number()));
            report.error(&fields.place("reuse"), fields.path("reuse"), problem.hint("leave it out"));
            fixed
        }
        (Some(fixed), _) => fixed,
    }
}

/// Without a seal everybody who reaches the port can use it, so beyond loopback it must be wanted.
pub(super) fn check_exposure(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    versions: SnellVersions,
    listen: &[Spanned<SocketAddr>],
) {
    let allow_lan = fields.flag(report, "allow-lan").unwrap_or(false);
    if versions.is_sealed() || allow_lan {
        return;
    }
    for addr in listen.iter().filter(|addr| !addr.value.ip().to_canonical().is_loopback()) {
        let problem =
            format!("unsafe-raw asks for no key: everybody who reaches {} could use it", addr.value);
        let hint = "listen on 127.0.0.1, or write allow-lan = true";
        report.error(&addr.at, fields.path("listen"), Problem::new(problem).hint(hint));
    }
}
