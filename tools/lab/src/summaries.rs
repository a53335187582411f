//! Every figure of a run summarised for other programs, and whether the load generator was fast enough.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::exchange;
use crate::measure::Measure;
use crate::rounds::{Plan, Sample, baseline_of, column};
use crate::stats::{Summary, interval, is_undecided, ratios, summary};

/// Factor by which the load generator must move more than any subject for its figures to be the subjects' own.
const HEADROOM: f64 = 1.5;

/// One figure of one subject over all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Name of the subject.
    pub subject: String,
    /// Name of the measure.
    pub measure: String,
    /// Name of the figure.
    pub key: String,
    /// Median and range.
    pub summary: Summary,
    /// Range that holds the median with 90 percent confidence; from five rounds on.
    pub interval: Option<(f64, f64)>,
    /// Ratios to the baselines, taken within each round.
    pub ratios: BTreeMap<String, Ratio>,
}

/// A ratio to a baseline.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// Median and range.
    pub summary: Summary,
    /// Range that holds the median with 90 percent confidence; from five rounds on.
    pub interval: Option<(f64, f64)>,
    /// Whether the rounds lie too far apart to say on which side of 1 it is.
    pub inconclusive: bool,
}

/// The load generator's rate without a subject, against the fastest subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Name of the measure.
    pub measure: String,
    /// MB/s of the lab alone.
    pub direct: f64,
    /// The fastest subject, and its MB/s.
    pub fastest: (String, f64),
    /// Whether that is enough.
    pub suffices: bool,
}

/// All figures of all tables.
pub(crate) fn figures(plan: &Plan, samples: &[Sample]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for &measure in &plan.measures {
        for subject in plan.subjects.iter().filter(|subject| measure.applies(subject)) {
            for metric in measure.metrics() {
                let ours = column(samples, plan.rounds, &subject.name, measure, metric.key);
                let present: Vec<f64> = ours.iter().copied().flatten().collect();
                let Some(summary) = summary(&present) else { continue };
                let ratio = |base: &String| {
                    let base_name = baseline_of(&subject.name, base);
                    let theirs = column(samples, plan.rounds, &base_name, measure, metric.key);
                    Some((base.clone(), ratio(&ratios(&ours, &theirs))?))
                };
                figures.push(Figure {
                    subject: subject.name.clone(),
                    measure: measure.to_string(),
                    key: metric.key.to_owned(),
                    summary,
                    interval: interval(&present),
                    ratios: plan.baselines.iter().filter(|_| metric.ratio).filter_map(ratio).collect(),
                });
            }
        }
    }
    figures
}

fn ratio(ratios: &[f64]) -> Option<Ratio> {
    let summary = summary(ratios)?;
    Some(Ratio { summary, interval: interval(ratios), inconclusive: is_undecided(ratios) })
}

/// If the lab ran alone as well, the comparison with it.
pub(crate) fn limits(plan: &Plan, samples: &[Sample]) -> Vec<Limit> {
    let moves = |measure: &&Measure| {
        matches!(measure, Measure::Bulk(..) | Measure::Exchange(exchange::Measure::Transfer(..)))
    };
    let speed = |name: &str, measure: Measure| {
        let column = column(samples, plan.rounds, name, measure, "mb_per_s");
        summary(&column.into_iter().flatten().collect::<Vec<f64>>()).map(|summary| summary.median)
    };
    let limit = |measure: &Measure| {
        let (alone, others): (Vec<_>, Vec<_>) =
            plan.subjects.iter().partition(|subject| subject.process.is_empty());
        let direct = speed(&alone.first()?.name, *measure)?;
        let others =
            others.iter().filter_map(|subject| Some((subject.name.clone(), speed(&subject.name, *measure)?)));
        let fastest = others.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let suffices = direct >= HEADROOM * fastest.1;
        Some(Limit { measure: measure.to_string(), direct, fastest, suffices })
    };
    plan.measures.iter().filter(moves).filter_map(limit).collect()
}

impl Limit {
    /// A line for people.
    #[must_use]
    pub fn text(&self) -> String {
        let (name, speed) = &self.fastest;
        let times = self.direct / speed.max(f64::MIN_POSITIVE);
        let verdict =
            if self.suffices { "" } else { ": MB/s may be the lab's own limit, trust CPU figures alone" };
        format!("{}: the lab alone moves {times:.2} x the fastest subject ({name}){verdict}", self.measure)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::measure::{Sizes, Values};
    use crate::subject::{Subject, builtin};
    use crate::udp;

    pub(crate) fn plan() -> Plan {
        let subjects: Vec<Subject> = builtin()
            .into_iter()
            .filter(|subject| ["direct", "floor-plain", "floor-aead"].contains(&subject.name.as_str()))
            .collect();
        assert_eq!(subjects.len(), 3);
        let second = Duration::from_secs(1);
        let sizes = Sizes {
            window: second,
            connections: 1,
            first_byte: 1,
            idle: 1,
            transfer: 1,
            settle: second,
            counter: None,
            udp: udp::Sizes::usual(second),
        };
        let measures = vec!["down1".parse().unwrap(), "conn".parse().unwrap()];
        Plan {
            subjects,
            measures,
            rounds: 5,
            baselines: vec!["floor-aead".into()],
            by_method: None,
            families: Vec::new(),
            sizes,
        }
    }

    fn samples(direct: f64) -> Vec<Sample> {
        let mut samples = Vec::new();
        for round in 0..5 {
            for (subject, speed) in [("direct", direct), ("floor-plain", 1000.0), ("floor-aead", 400.0)] {
                let factor = 1.0 + round as f64 / 100.0;
                let values = Values::from([
                    ("mb_per_s".to_owned(), speed * factor),
                    ("cpu_ns_per_kb".to_owned(), 1e6 / speed),
                ]);
                let (subject, measure) = (subject.to_owned(), "down1".to_owned());
                samples.push(Sample { subject, measure, round, values, error: None });
            }
        }
        samples
    }

    #[test]
    fn figures_have_intervals_and_ratios() {
        let figures = figures(&plan(), &samples(5000.0));
        let find = |subject: &str, key: &str| {
            figures.iter().find(|figure| figure.subject == subject && figure.key == key).unwrap()
        };
        let speed = find("floor-plain", "mb_per_s");
        assert_eq!((speed.summary.median, speed.summary.count), (1020.0, 5));
        assert_eq!(speed.interval, Some((1000.0, 1040.0)));
        assert!(speed.ratios.is_empty());
        let ratio = &find("floor-plain", "cpu_ns_per_kb").ratios["floor-aead"];
        assert_eq!(
            (ratio.summary.median, ratio.interval, ratio.inconclusive),
            (0.4, Some((0.4, 0.4)), false)
        );
        assert!(!figures.iter().any(|figure| figure.measure == "conn"), "nothing was measured of it");
    }

    #[test]
    fn a_lab_that_is_hardly_faster_is_named() {
        let enough = limits(&plan(), &samples(1500.0));
        assert_eq!(enough.len(), 1);
        assert!(enough[0].suffices && enough[0].fastest.0 == "floor-plain");
        let short = limits(&plan(), &samples(1499.0));
        assert!(!short[0].suffices && short[0].text().contains("may be the lab's own limit"));
    }
}
