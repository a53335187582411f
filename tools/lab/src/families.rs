//! Families of subjects that do the same work: the first of each against every other one.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::measure::{Measure, Metric};
use crate::rounds::{Plan, Sample, column};
use crate::stats::{Summary, ratios, summary};

/// Verdict of the rounds about the first one of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It was better in every round.
    Ahead,
    /// It was better in some rounds and worse in others.
    Level,
    /// It was worse in every round.
    Behind,
}

/// One figure of the first one of a family, beside that of another one.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The first one of the family.
    pub first: String,
    /// The other one.
    pub other: String,
    /// Name of the measure.
    pub measure: String,
    /// Heading of the figure.
    pub figure: &'static str,
    /// The first one's value by the other's, within each round: median and range.
    pub ratio: Summary,
    /// The better one of the two.
    pub verdict: Verdict,
    /// Whether it counts processor time.
    pub is_processor: bool,
}

/// Every figure of which tables show ratios, of all families.
pub(crate) fn compare(plan: &Plan, samples: &[Sample]) -> Vec<Comparison> {
    let mut found = Vec::new();
    for family in &plan.families {
        let Some((first, others)) = family.split_first() else { continue };
        for &measure in &plan.measures {
            for metric in measure.metrics().iter().filter(|metric| metric.ratio) {
                let each =
                    others.iter().filter_map(|other| one(plan, samples, (first, other), measure, metric));
                found.extend(each);
            }
        }
    }
    found
}

fn one(
    plan: &Plan,
    samples: &[Sample],
    (first, other): (&str, &str),
    measure: Measure,
    metric: &Metric,
) -> Option<Comparison> {
    let of = |subject: &str| column(samples, plan.rounds, subject, measure, metric.key);
    let ratio = summary(&ratios(&of(first), &of(other)))?;
    let (is_below, is_above) = (ratio.max < 1.0, ratio.min > 1.0);
    let verdict = match (is_below, is_above) {
        (false, false) => Verdict::Level,
        _ if is_above == metric.is_rate() => Verdict::Ahead,
        _ => Verdict::Behind,
    };
    Some(Comparison {
        first: first.to_owned(),
        other: other.to_owned(),
        measure: measure.to_string(),
        figure: metric.heading,
        ratio,
        verdict,
        is_processor: metric.key.starts_with("cpu_"),
    })
}

/// The sentence on top: the first family's processor time at the first measure that counts it, against the best of the
/// others.
pub(crate) fn headline(all: &[Comparison]) -> Option<String> {
    let first = all.iter().find(|one| one.is_processor)?;
    let same = all.iter().filter(|one| {
        one.is_processor
            && (&one.first, &one.measure, one.figure) == (&first.first, &first.measure, first.figure)
    });
    let hardest = same.max_by(|one, other| one.ratio.median.total_cmp(&other.ratio.median))?;
    Some(format!(
        "{} takes {:.2} of the processor time of {}, the best of the others ({}, {}; lower is better)",
        hardest.first, hardest.ratio.median, hardest.other, hardest.measure, hardest.figure
    ))
}

/// One comparison as a line.
pub(crate) fn line(one: &Comparison) -> String {
    let Summary { median, min, max, .. } = one.ratio;
    format!(
        "{}, {}: {} has {median:.2} [{min:.2}-{max:.2}] of {}",
        one.measure, one.figure, one.first, one.other
    )
}

/// The comparisons with this verdict, under a heading.
pub(crate) fn sections(all: &[Comparison]) -> impl Iterator<Item = (&'static str, Vec<&Comparison>)> {
    let headings = [
        (Verdict::Behind, "worse in every round"),
        (Verdict::Level, "better in some rounds, worse in others"),
        (Verdict::Ahead, "better in every round"),
    ];
    headings.into_iter().map(|(verdict, heading)| {
        (heading, all.iter().filter(|one| one.verdict == verdict).collect::<Vec<_>>())
    })
}

/// Writes the headline and all comparisons, the lost ones first; nothing without families.
///
/// # Errors
/// If `out` cannot be written.
pub(crate) fn print(all: &[Comparison], out: &mut dyn Write) -> Result<()> {
    let Some(headline) = headline(all) else { return Ok(()) };
    writeln!(out, "\n{headline}")?;
    for (heading, ones) in sections(all) {
        writeln!(out, "\n{heading}: {}", ones.len())?;
        for one in ones {
            writeln!(out, "  {}", line(one))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Values;
    use crate::summaries::tests::plan;

    const BYTES: (&str, &str) = ("down1", "cpu_ns_per_kb");
    const RATE: (&str, &str) = ("udp-max64", "max_per_s");

    fn sample(subject: &str, measure: &str, round: usize, (key, value): (&str, f64)) -> Sample {
        let values = Values::from([(key.to_owned(), value)]);
        Sample { subject: subject.into(), measure: measure.into(), round, values, error: None }
    }

    fn found(measure: &str, key: &str, rounds: [(f64, f64); 3]) -> Vec<Comparison> {
        let families = vec![vec!["floor-plain".to_owned(), "floor-aead".to_owned(), "direct".to_owned()]];
        let measures = vec![measure.parse().unwrap()];
        let plan = Plan { families, measures, rounds: 3, ..plan() };
        let samples: Vec<Sample> = rounds
            .into_iter()
            .enumerate()
            .flat_map(|(round, (first, other))| {
                [
                    sample("floor-plain", measure, round, (key, first)),
                    sample("floor-aead", measure, round, (key, other)),
                ]
            })
            .collect();
        compare(&plan, &samples)
    }

    #[test]
    fn the_first_is_ahead_behind_or_level() {
        let cases = [
            (BYTES, [(1.0, 2.0), (1.0, 3.0), (1.0, 1.5)], Verdict::Ahead),
            (BYTES, [(3.0, 2.0), (4.0, 3.0), (2.0, 1.5)], Verdict::Behind),
            (BYTES, [(3.0, 2.0), (1.0, 3.0), (2.0, 1.5)], Verdict::Level),
            (BYTES, [(1.0, 1.0), (1.0, 2.0), (1.0, 2.0)], Verdict::Level),
            (RATE, [(3.0, 2.0), (4.0, 3.0), (2.0, 1.5)], Verdict::Ahead),
            (RATE, [(1.0, 2.0), (2.0, 3.0), (1.0, 1.5)], Verdict::Behind),
        ];
        for ((measure, key), rounds, verdict) in cases {
            let all = found(measure, key, rounds);
            assert_eq!(all.len(), 1, "a subject that did not run is not compared: {all:?}");
            assert_eq!(all[0].verdict, verdict, "{key} {rounds:?}");
        }
    }

    #[test]
    fn what_is_lost_stands_first() {
        let mut out = Vec::new();
        print(&found(BYTES.0, BYTES.1, [(3.0, 2.0), (3.0, 2.0), (3.0, 2.0)]), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("floor-plain takes 1.50 of the processor time of floor-aead"), "{text}");
        assert!(
            text.contains("worse in every round: 1\n  down1, CPU ns/KB: floor-plain has 1.50 [1.50-1.50]"),
            "{text}"
        );
        assert!(text.contains("better in every round: 0\n"), "{text}");
    }

    #[test]
    fn without_families_nothing_is_said() {
        let mut out = Vec::new();
        print(&[], &mut out).unwrap();
        assert!(out.is_empty());
    }
}
