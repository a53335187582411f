//! The keys of rates.

use adit_model::Pace;

use super::fields::{TomlFields, TomlReport};
use super::keys::Head;
use super::rows::link as rows;
use super::write::TableEntries;
use crate::read::value::Problem;

/// The rate of what speaks to servers or clients of a tunnel; `is_carried` if that is by streams of a carrier.
pub(crate) fn read(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    is_carried: bool,
) -> Option<Pace> {
    let both = fields.has(&rows::PACING) && fields.has(&rows::BRUTAL);
    let pacing = fields.read(report, &rows::PACING);
    let brutal = fields.read(report, &rows::BRUTAL);
    let gain = fields.read(report, &rows::GAIN);
    let mut refuse = |key: &'static Head, problem: &str, hint: &str| {
        if fields.has(key) {
            fields.wrong(report, key, Problem::new(problem).hint(hint));
        }
    };
    if both {
        refuse(&rows::PACING, "`brutal-mbps` sets the same", "keep one of them");
    }
    if !fields.has(&rows::BRUTAL) {
        refuse(
            &rows::GAIN,
            "no rate is set, so this key has no effect",
            "write brutal-mbps too, or leave it out",
        );
    }
    if is_carried {
        refuse(&rows::PACING, "a carrier has a pace of its own", "leave it out");
        refuse(&rows::BRUTAL, "a carrier has a pace of its own", "leave it out");
    }
    match (brutal, pacing) {
        (Some(mbps), _) => Some(Pace { mbps, brutal: Some(gain.unwrap_or(Pace::GAIN)) }),
        (None, Some(mbps)) => Some(Pace { mbps, brutal: None }),
        (None, None) => None,
    }
}

pub(super) fn write(out: &mut TableEntries, pace: Option<Pace>) {
    match pace {
        Some(Pace { mbps, brutal: None }) => out.put(&rows::PACING, &mbps),
        Some(Pace { mbps, brutal: Some(gain) }) => {
            out.put(&rows::BRUTAL, &mbps);
            out.put(&rows::GAIN, &gain);
        }
        None => {}
    }
}
