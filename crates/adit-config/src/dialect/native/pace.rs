//! The keys of rates.

use super::fields::{Fields, Report};
use crate::dialect::value::Problem;
use crate::model::Pace;

const PACING: &str = "pacing-mbps";
const BRUTAL: &str = "brutal-mbps";
const GAIN: &str = "brutal-cwnd-gain";

/// The rate of what speaks to servers or clients of a tunnel; `is_carried` if that is by streams of a carrier.
pub(super) fn read(fields: &mut Fields<'_>, report: &mut Report<'_>, is_carried: bool) -> Option<Pace> {
    let both = fields.has(PACING) && fields.has(BRUTAL);
    let pacing = mbps(fields, report, PACING);
    let brutal = mbps(fields, report, BRUTAL);
    let (least, most) = (*Pace::GAINS.start() as usize, *Pace::GAINS.end() as usize);
    let gain = fields.integer(report, GAIN, least..=most).and_then(|gain| u32::try_from(gain).ok());
    let mut refuse = |key: &str, problem: &str, hint: &str| {
        if fields.has(key) {
            report.error(&fields.place(key), fields.path(key), Problem::new(problem).hint(hint));
        }
    };
    if both {
        refuse(PACING, "`brutal-mbps` sets the same", "keep one of them");
    }
    if !fields.has(BRUTAL) {
        refuse(GAIN, "no rate is set, so this key has no effect", "write brutal-mbps too, or leave it out");
    }
    if is_carried {
        for key in [PACING, BRUTAL] {
            refuse(key, "a carrier has a pace of its own", "leave it out");
        }
    }
    match (brutal, pacing) {
        (Some(mbps), _) => Some(Pace { mbps, brutal: Some(gain.unwrap_or(Pace::GAIN)) }),
        (None, Some(mbps)) => Some(Pace { mbps, brutal: None }),
        (None, None) => None,
    }
}

fn mbps(fields: &mut Fields<'_>, report: &mut Report<'_>, key: &'static str) -> Option<u32> {
    let (least, most) = (*Pace::MBPS.start() as usize, *Pace::MBPS.end() as usize);
    fields.integer(report, key, least..=most).and_then(|mbps| u32::try_from(mbps).ok())
}
