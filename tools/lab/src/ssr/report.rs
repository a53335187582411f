//! The table of ShadowsocksR's rows, and its raw data.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use super::rows::{REFERENCE, ROWS, Row};
use super::{Plan, Sample};
use crate::machine::Machine;
use crate::stats::{paired_ratio, summary};

/// Mbit/s for each MB/s.
const MBIT: f64 = 8.0;

/// A finished run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    programs: Vec<String>,
    rounds: usize,
    seconds: f64,
    samples: Vec<Sample>,
    skipped: Vec<(String, String)>,
    figures: Vec<Figure>,
}

/// One row of the table: medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Figure {
    program: String,
    row: String,
    published_mbit_s: u32,
    published_percent: u32,
    mbit_s: Option<f64>,
    /// Processor time of both ends, and of each, in nanoseconds per KB (1000 bytes).
    cpu_ns_per_kb: Option<f64>,
    cpu_ns_per_kb_client: Option<f64>,
    cpu_ns_per_kb_server: Option<f64>,
    /// Bytes per processor time in percent of `aes-256-ctr`, the ratio taken within each round.
    percent: Option<f64>,
    /// The bare primitive at both ends, in nanoseconds per KB.
    primitive_ns_per_kb: Option<f64>,
    /// The cost of the row above the same method with `origin` and `plain`, in times the primitive at both ends; the
    /// ratio taken within each round.
    above_by_primitive: Option<f64>,
}

impl Report {
    pub(super) fn new(
        programs: Vec<String>,
        plan: &Plan,
        samples: Vec<Sample>,
        skipped: Vec<(String, String)>,
    ) -> Self {
        let columns = Columns { samples: &samples, rounds: plan.rounds };
        let figures = programs.iter().flat_map(|program| ROWS.iter().map(|row| columns.figure(program, row)));
        let figures = figures.collect();
        let seconds = plan.sizes.window.as_secs_f64();
        Self { machine: Machine::read(), programs, rounds: plan.rounds, seconds, samples, skipped, figures }
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> Result<()> {
        write!(out, "{}", self.machine.text())?;
        writeln!(
            out,
            "{} rounds, interleaved; medians; one download of {} s; 1 KB = 1000 B\n\
             CPU = user + system time; % = bytes per processor time, aes-256-ctr is 100\n\
             above/bare = what a row costs above the same method with origin and plain, by the bare primitive at both ends\n\
             published = README of the libev fork, another machine",
            self.rounds, self.seconds
        )?;
        for program in &self.programs {
            writeln!(out, "\n{program}\n{}", self.table(program))?;
        }
        for (name, reason) in &self.skipped {
            writeln!(out, "\nskipped: {name}: {reason}")?;
        }
        for sample in &self.samples {
            if let Some(error) = &sample.error {
                writeln!(
                    out,
                    "\nfailed: {} {} in round {}: {error}",
                    sample.program,
                    sample.row,
                    sample.round + 1
                )?;
            }
        }
        Ok(())
    }

    fn table(&self, program: &str) -> Table {
        const HEADINGS: [&str; 11] = [
            "row",
            "published Mbit/s",
            "%",
            "Mbit/s",
            "CPU ns/KB",
            "client",
            "server",
            "%",
            "bare",
            "bare ns/KB",
            "above/bare",
        ];
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table
            .set_header(HEADINGS.iter().enumerate().map(|(at, heading)| cell((*heading).to_owned(), at > 0)));
        for (row, figure) in ROWS.iter().zip(self.figures.iter().filter(|figure| figure.program == program)) {
            let number = |value: Option<f64>, digits: usize| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let cells = [
                figure.row.clone(),
                figure.published_mbit_s.to_string(),
                figure.published_percent.to_string(),
                number(figure.mbit_s, 0),
                number(figure.cpu_ns_per_kb, 0),
                number(figure.cpu_ns_per_kb_client, 0),
                number(figure.cpu_ns_per_kb_server, 0),
                number(figure.percent, 0),
                row.primitive.map_or_else(|| "-".to_owned(), |primitive| primitive.to_string()),
                number(figure.primitive_ns_per_kb, 0),
                number(figure.above_by_primitive, 2),
            ];
            table.add_row(cells.into_iter().enumerate().map(|(at, text)| cell(text, at > 0)));
        }
        table
    }

    pub(super) fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(super) fn verdict(&self) -> Result<()> {
        let failed = self.samples.iter().filter(|sample| sample.error.is_some()).count();
        ensure!(failed == 0, "{failed} of {} measurements failed", self.samples.len());
        Ok(())
    }
}

fn cell(text: String, is_number: bool) -> Cell {
    Cell::new(text).set_alignment(if is_number { CellAlignment::Right } else { CellAlignment::Left })
}

/// Values by round.
struct Columns<'a> {
    samples: &'a [Sample],
    rounds: usize,
}

impl Columns<'_> {
    fn column(&self, program: &str, row: &str, key: &str) -> Vec<Option<f64>> {
        let mut column = vec![None; self.rounds];
        for sample in self.samples.iter().filter(|sample| sample.program == program && sample.row == row) {
            column[sample.round] = sample.values.get(key).copied();
        }
        column
    }

    fn figure(&self, program: &str, row: &Row) -> Figure {
        let name = row.name();
        let of = |key: &str| median(&self.column(program, &name, key));
        let cpu = self.column(program, &name, "cpu_ns_per_kb");
        let reference = self.column(program, REFERENCE, "cpu_ns_per_kb");
        let plain = self.column(program, &row.plain(), "cpu_ns_per_kb");
        let both = row.primitive.map(|primitive| {
            let one = self.column("primitive", &primitive.to_string(), "ns_per_kb");
            one.into_iter().map(|value| value.map(|value| 2.0 * value)).collect::<Vec<_>>()
        });
        let above: Vec<Option<f64>> =
            cpu.iter().zip(&plain).map(|(cpu, plain)| Some((*cpu)? - (*plain)?)).collect();
        Figure {
            program: program.to_owned(),
            published_mbit_s: row.published,
            published_percent: row.percent,
            mbit_s: of("mb_per_s").map(|rate| rate * MBIT),
            cpu_ns_per_kb: median(&cpu),
            cpu_ns_per_kb_client: of("cpu_ns_per_kb_client"),
            cpu_ns_per_kb_server: of("cpu_ns_per_kb_server"),
            percent: paired_ratio(&reference, &cpu).map(|ratio| ratio.median * 100.0),
            primitive_ns_per_kb: both.as_ref().and_then(|both| median(both)),
            above_by_primitive: both.and_then(|both| paired_ratio(&above, &both)).map(|ratio| ratio.median),
            row: name,
        }
    }
}

fn median(column: &[Option<f64>]) -> Option<f64> {
    let present: Vec<f64> = column.iter().copied().flatten().collect();
    summary(&present).map(|summary| summary.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Values;

    #[test]
    fn a_row_is_compared_within_its_round() {
        let sample = |program: &str, row: &str, round, key: &str, value| Sample {
            program: program.into(),
            row: row.into(),
            round,
            values: Values::from([(key.to_owned(), value)]),
            error: None,
        };
        let mut samples = Vec::new();
        for (round, pace) in [1.0, 3.0].into_iter().enumerate() {
            let cpu = "cpu_ns_per_kb";
            samples.push(sample("adit-ssr", REFERENCE, round, cpu, 500.0 * pace));
            samples.push(sample("adit-ssr", "aes-256-ctr/auth_aes128_md5/plain", round, cpu, 1000.0 * pace));
            samples.push(sample("primitive", "HMAC-MD5", round, "ns_per_kb", 500.0 * pace));
        }
        let columns = Columns { samples: &samples, rounds: 2 };
        let row = ROWS.iter().find(|row| row.protocol == "auth_aes128_md5").unwrap();
        let figure = columns.figure("adit-ssr", row);
        assert_eq!(figure.percent, Some(50.0));
        assert_eq!(figure.above_by_primitive, Some(0.5));
        assert_eq!(figure.primitive_ns_per_kb, Some(2000.0));
        assert_eq!(figure.mbit_s, None);
    }
}
