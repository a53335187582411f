//! Tables with one row per cipher and one column per program.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::measure::Measure;
use crate::rounds::Report;
use crate::stats::{paired_ratio, summary};

/// Figure in which methods are compared.
const KEY: &str = "cpu_ns_per_kb";

/// Speed of each method per processor time in percent of `reference`, the ratio taken within each round and
/// program. `None` unless `measure` has that figure and several methods ran.
pub(crate) fn table(report: &Report, measure: Measure, reference: &str) -> Option<Table> {
    if !measure.metrics().iter().any(|metric| metric.key == KEY) {
        return None;
    }
    let (programs, methods) = axes(report, measure);
    if methods.len() < 2 {
        return None;
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec![Cell::new("method")];
    for program in &programs {
        header.push(right(format!("{program} ns/KB")));
        header.push(right("%".to_owned()));
    }
    table.set_header(header);
    for method in methods {
        let mut row = vec![Cell::new(method)];
        for program in &programs {
            let ours = report.column(&format!("{program}:{method}"), measure, KEY);
            let full = report.column(&format!("{program}:{reference}"), measure, KEY);
            let present: Vec<f64> = ours.iter().copied().flatten().collect();
            row.push(right(summary(&present).map_or_else(|| "-".to_owned(), |s| format!("{:.0}", s.median))));
            let percent = paired_ratio(&full, &ours).map(|ratio| ratio.median * 100.0);
            row.push(right(percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0}"))));
        }
        table.add_row(row);
    }
    Some(table)
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// The programs and the methods that were measured, in the order in which they came first.
fn axes(report: &Report, measure: Measure) -> (Vec<&str>, Vec<&str>) {
    let (mut programs, mut methods) = (Vec::new(), Vec::new());
    let measure = measure.to_string();
    for sample in report.samples.iter().filter(|sample| sample.measure == measure && sample.round == 0) {
        if let Some((program, method)) = sample.subject.split_once(':') {
            for (list, name) in [(&mut programs, program), (&mut methods, method)] {
                if !list.contains(&name) {
                    list.push(name);
                }
            }
        }
    }
    (programs, methods)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::Machine;
    use crate::measure::{Sizes, Values};
    use crate::rounds::Sample;

    fn report(figures: &[(&str, usize, f64)]) -> Report {
        let sample = |&(subject, round, value): &(&str, usize, f64)| Sample {
            subject: subject.into(),
            measure: "down1".into(),
            round,
            values: Values::from([(KEY.to_owned(), value)]),
            error: None,
        };
        Report {
            machine: Machine::read(),
            link: None,
            sizes: Sizes {
                window: Duration::from_secs(1),
                connections: 1,
                first_byte: 1,
                idle: 1,
                transfer: 1,
                settle: Duration::ZERO,
                counter: None,
                udp: crate::udp::Sizes::usual(Duration::from_secs(1)),
            },
            baselines: Vec::new(),
            rounds: 2,
            samples: figures.iter().map(sample).collect(),
            skipped: Vec::new(),
            figures: Vec::new(),
            limits: Vec::new(),
            comparisons: Vec::new(),
            versions: Vec::new(),
        }
    }

    #[test]
    fn percent_is_taken_within_a_round() {
        // Round 2 ran on a machine half as fast.
        let report = report(&[
            ("a:aes-256-ctr", 0, 100.0),
            ("a:rc4-md5", 0, 400.0),
            ("a:aes-256-ctr", 1, 200.0),
            ("a:rc4-md5", 1, 800.0),
        ]);
        let text = table(&report, "down1".parse().unwrap(), "aes-256-ctr").unwrap().to_string();
        let row = text.lines().find(|line| line.contains("rc4-md5")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[1..4], ["rc4-md5", "600", "25"]);
    }

    #[test]
    fn one_method_is_no_table() {
        assert!(
            table(&report(&[("a:aes-256-ctr", 0, 1.0)]), "down1".parse().unwrap(), "aes-256-ctr").is_none()
        );
        assert!(table(&report(&[("a:x", 0, 1.0), ("a:y", 0, 1.0)]), Measure::Idle(None), "x").is_none());
    }
}
