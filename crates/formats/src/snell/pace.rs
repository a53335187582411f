//! `brutal` of the alpha branch, and `pacing-mbps`, which is adit's own.

use adit_model::Pace;

use super::snell_to_model::Keys;
use crate::read::value::{self, Problem};

const PACING: &str = "pacing-mbps";

impl Keys<'_> {
    /// The rate, if one is asked for. As for OpenSnell, `brutal` without `brutal-mbps` is an error, and what is no number
    /// counts as absent.
    pub(super) fn pace(&mut self) -> Option<Pace> {
        let pacing = self.parsed(PACING, mbps);
        let is_on = self.flag("brutal", false);
        let is_written = self.section.entries.contains_key("brutal");
        for key in ["brutal-mbps", "brutal-cwnd-gain"] {
            if let Some(value) = self.take(key).filter(|_| !is_written) {
                self.warning(value.entry, key, Problem::new("has no effect without brutal = true"));
            }
        }
        let rate = if is_on { self.parsed("brutal-mbps", mbps) } else { None };
        let gain = self.take("brutal-cwnd-gain").filter(|_| is_on).map_or(Pace::GAIN, |value| {
            match value.text.trim().parse::<i64>() {
                Ok(gain) if gain > 0 => {
                    let (least, most) = (i64::from(*Pace::GAINS.start()), i64::from(*Pace::GAINS.end()));
                    if !(least..=most).contains(&gain) {
                        let problem = Problem::new(format!("the module takes {least} to {most}"));
                        self.error(value.entry, "brutal-cwnd-gain", problem);
                    }
                    u32::try_from(gain).unwrap_or(Pace::GAIN)
                }
                _ => {
                    let problem = format!("no number above 0, so {} is used", Pace::GAIN);
                    self.warning(value.entry, "brutal-cwnd-gain", Problem::new(problem));
                    Pace::GAIN
                }
            }
        });
        if !is_on {
            return pacing.map(|mbps| Pace { mbps, brutal: None });
        }
        let brutal = self.take("brutal").map(|value| value.entry)?;
        if rate.is_none() && !self.section.entries.contains_key("brutal-mbps") {
            let problem = Problem::new("there is no rate").hint("write brutal-mbps = 100, for instance");
            self.error(brutal, "brutal", problem);
        }
        if let Some(value) = self.take(PACING) {
            self.error(
                value.entry,
                PACING,
                Problem::new("`brutal-mbps` sets the same").hint("keep one of them"),
            );
        }
        Some(Pace { mbps: rate?, brutal: Some(gain) })
    }
}

fn mbps(text: &str) -> Result<u32, Problem> {
    let mbps = text.trim().parse::<u32>().ok().filter(|mbps| Pace::MBPS.contains(mbps));
    mbps.ok_or_else(|| {
        let (least, most) = (Pace::MBPS.start(), Pace::MBPS.end());
        Problem::new(format!("no rate: {}", value::excerpt(text)))
            .hint(format!("write million bits per second, {least} to {most}"))
    })
}
