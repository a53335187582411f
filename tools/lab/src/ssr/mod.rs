//! ShadowsocksR: `adit bench run ssr` measures the rows of the table that the author of the libev fork published.
//!
//! | file | task |
//! |---|---|
//! | `rows` | the rows, with the published figures |
//! | `primitive` | the bare primitives, timed in this process |
//! | `report` | the table, and the raw data |
//!
//! Every round measures each row of each program once, and each primitive. The first program of a round and its first row
//! change from round to round. A published row was one download (`iperf3 -R`) with both ends on one machine; so is ours.

pub(crate) mod matrix;
mod primitive;
mod report;
mod rows;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use self::primitive::Primitive;
use self::report::Report;
use self::rows::{ROWS, Row};
use crate::load::Way;
use crate::measure::{Measure, Sizes, Values};
use crate::subject::{Programs, Subject};
use crate::target::Target;

pub(crate) use self::matrix::run as matrix;

/// The programs that are measured unless others are named.
pub(crate) const PROGRAMS: [&str; 5] =
    ["adit-ssr", "ssr-fork", "ssr-libev", "ssr-native", "ssr-fork@adit-ssr"];
/// The pairs of the matrix unless others are named.
pub(crate) const PAIRS: [&str; 8] = [
    "adit-ssr@ssr-python",
    "ssr-python@adit-ssr",
    "adit-ssr@ssr-fork",
    "ssr-fork@adit-ssr",
    "adit-ssr@ssr-libev",
    "ssr-libev@adit-ssr",
    "adit-ssr@ssr-native",
    "ssr-native@adit-ssr",
];

/// The programs and the extent of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The programs; each takes `METHOD/PROTOCOL/OBFS` as its method.
    pub(crate) subjects: Vec<Subject>,
    /// Number of times that everything is repeated.
    pub(crate) rounds: usize,
    /// Seconds and settings of a download.
    pub(crate) sizes: Sizes,
}

/// One row of one program, or one primitive, measured once.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    /// Name of the program, or `primitive`.
    program: String,
    /// `METHOD/PROTOCOL/OBFS`, or the name of the primitive.
    row: String,
    /// Round, from 0.
    round: usize,
    /// The figures; empty if it failed.
    values: Values,
    /// Why it failed.
    error: Option<String>,
}

/// Measures all rows, prints the table, and writes raw data to `json`.
///
/// # Errors
/// If the target cannot start, nothing can be written, or a row that should run did not.
pub(crate) fn run(plan: &Plan, programs: &Programs, json: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let (subjects, skipped): (Vec<_>, Vec<_>) =
        plan.subjects.iter().partition(|subject| subject.obstacle(programs).is_none());
    ensure!(!subjects.is_empty(), "no program can run: --program NAME=PATH names them");
    let target = Target::start(Duration::from_secs(30))?;
    let mut samples = Vec::new();
    for round in 0..plan.rounds {
        writeln!(std::io::stderr(), "round {}/{}", round + 1, plan.rounds).ok();
        for turn in 0..ROWS.len() * subjects.len() {
            let at = (turn + round) % (ROWS.len() * subjects.len());
            let (row, subject) = (&ROWS[at / subjects.len()], subjects[at % subjects.len()]);
            samples.extend(measure(row, subject, programs, &target, (round, &plan.sizes)));
        }
        for primitive in Primitive::all() {
            let values = Values::from([("ns_per_kb".to_owned(), primitive.time()?)]);
            let (program, row) = ("primitive".to_owned(), primitive.to_string());
            samples.push(Sample { program, row, round, values, error: None });
        }
    }
    let names = subjects.iter().map(|subject| subject.name.clone()).collect();
    let skipped =
        skipped.iter().filter_map(|subject| Some((subject.name.clone(), subject.obstacle(programs)?)));
    let report = Report::new(names, plan, samples, skipped.collect());
    report.print(out)?;
    if let Some(path) = json {
        report.write_json(path)?;
    }
    report.verdict()
}

/// One row of one program; `None` if the program does not know it.
fn measure(
    row: &Row,
    subject: &Subject,
    programs: &Programs,
    target: &Target,
    (round, sizes): (usize, &Sizes),
) -> Option<Sample> {
    let name = row.name();
    let with_row = subject.with_method(&name);
    if with_row.obstacle(programs).is_some() {
        return None;
    }
    let (values, error) = match Measure::Bulk(Way::Down, 1).run(&with_row, programs, target, sizes) {
        Ok(values) => (values, None),
        Err(error) => (Values::new(), Some(format!("{error:#}"))),
    };
    Some(Sample { program: subject.name.clone(), row: name, round, values, error })
}
