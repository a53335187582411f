//! Which version an `[[inbound]]` or `[[outbound]]` of protocol snell speaks, and what goes with it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::fields::{Fields, Report, Spanned};
use crate::dialect::value::Problem;
use crate::model::{SNELL_MODES, Secret, SnellVersion, SnellVersions};

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

/// A disguise where the version has none.
pub(super) fn check_obfs(fields: &Fields<'_>, report: &mut Report<'_>, wears: bool, may_wear: bool) {
    if wears && !may_wear {
        let problem = Problem::new("version 6 has no disguise");
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
