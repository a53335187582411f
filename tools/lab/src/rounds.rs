//! Interleaved rounds and the tables made of them.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::families::{self, Comparison};
use crate::machine::Machine;
use crate::measure::{Measure, Metric, Sizes, Values};
use crate::methods;
use crate::stats::{Summary, is_undecided, ratios, summary};
use crate::subject::{Programs, Subject};
use crate::summaries::{self, Figure, Limit};
use crate::syscalls::Counter;
use crate::target::Target;
use crate::versions::{self, Version};

/// The plan of a run.
#[derive(Debug)]
pub struct Plan {
    /// The subjects in the order of the tables.
    pub subjects: Vec<Subject>,
    /// The measures in the order of the tables.
    pub measures: Vec<Measure>,
    /// Number of repetitions of everything.
    pub rounds: usize,
    /// The subjects to which the others are compared: names, without a method if each method has its own.
    pub baselines: Vec<String>,
    /// The method that is 100 percent in tables of methods.
    pub by_method: Option<String>,
    /// Names of subjects that do the same work; the first of each is compared with the others.
    pub families: Vec<Vec<String>>,
    /// Amounts of everything.
    pub sizes: Sizes,
}

/// One subject, measured once.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Name of the subject.
    pub subject: String,
    /// Name of the measure.
    pub measure: String,
    /// Round, from 0.
    pub round: usize,
    /// The figures; empty if it failed.
    pub values: Values,
    /// Why it failed.
    pub error: Option<String>,
}

/// A finished run: all raw data.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The machine that it ran on.
    pub machine: Machine,
    /// Amounts of everything that was done, and the program that counted system calls.
    pub sizes: Sizes,
    /// The link between the halves of each subject, if there was one.
    pub link: Option<String>,
    /// The subjects to which the others are compared.
    pub baselines: Vec<String>,
    /// Number of rounds.
    pub rounds: usize,
    /// Every single measurement in the order in which it was taken.
    pub samples: Vec<Sample>,
    /// Subjects that were left out, and why.
    pub skipped: Vec<(String, String)>,
    /// Every figure over all rounds, with confidence intervals.
    pub figures: Vec<Figure>,
    /// Whether the load generator was fast enough, where it ran alone as well.
    pub limits: Vec<Limit>,
    /// The first of each family against the others.
    pub comparisons: Vec<Comparison>,
    /// The programs of all subjects.
    pub versions: Vec<Version>,
}

/// Runs everything: rounds outermost, then measures, then subjects, so that values that are compared lie
/// close together in time. The order of the subjects turns by one from round to round.
///
/// # Errors
/// If the target cannot be started. A subject that fails is noted in its sample.
pub fn run(plan: &Plan, programs: &Programs, skipped: Vec<(String, String)>) -> Result<Report> {
    let machine = Machine::read();
    let versions = versions::read(&plan.subjects, programs);
    let patience = Duration::from_secs(30);
    let target = match programs.site() {
        Some(site) => Target::start_far(&site.network, patience)?,
        None => Target::start(patience)?,
    };
    let progress = Progress::new(plan);
    let mut samples = Vec::new();
    for round in 0..plan.rounds {
        for &measure in &plan.measures {
            for turn in 0..plan.subjects.len() {
                let subject = &plan.subjects[(turn + round) % plan.subjects.len()];
                if !measure.applies(subject) {
                    continue;
                }
                progress.begin(round, measure, subject);
                let result = measure.run(subject, programs, &target, &plan.sizes);
                let (values, error) = match result {
                    Ok(values) => (values, None),
                    Err(error) => (Values::new(), Some(format!("{error:#}"))),
                };
                let (subject, measure) = (subject.name.clone(), measure.to_string());
                samples.push(Sample { subject, measure, round, values, error });
                progress.end(measure_of(&samples), &plan.sizes);
            }
        }
    }
    progress.finish();
    let (baselines, rounds, sizes) = (plan.baselines.clone(), plan.rounds, plan.sizes.clone());
    let emulator = programs.site().and_then(|site| site.emulator.as_ref());
    let link = emulator.map(|emulator| emulator.spec().to_string());
    let (figures, limits) = (summaries::figures(plan, &samples), summaries::limits(plan, &samples));
    let comparisons = families::compare(plan, &samples);
    Ok(Report {
        machine,
        sizes,
        link,
        baselines,
        rounds,
        samples,
        skipped,
        figures,
        limits,
        comparisons,
        versions,
    })
}

fn measure_of(samples: &[Sample]) -> Option<Measure> {
    samples.last()?.measure.parse().ok()
}

/// Progress on stderr: a bar on a terminal, a line per round elsewhere.
struct Progress {
    bar: ProgressBar,
    begin: Instant,
    rounds: usize,
    total: Duration,
    last_line: std::cell::Cell<Option<usize>>,
}

impl Progress {
    fn new(plan: &Plan) -> Self {
        let pairs = plan.measures.iter().flat_map(|&measure| {
            plan.subjects.iter().filter(move |subject| measure.applies(subject)).map(move |_| measure)
        });
        let rounds = u32::try_from(plan.rounds).unwrap_or(u32::MAX);
        let total = pairs.map(|measure| measure.estimate(&plan.sizes)).sum::<Duration>() * rounds;
        let bar = ProgressBar::with_draw_target(Some(millis(total)), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {eta} left  {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, begin: Instant::now(), rounds: plan.rounds, total, last_line: std::cell::Cell::new(None) }
    }

    fn begin(&self, round: usize, measure: Measure, subject: &Subject) {
        let text = format!("round {}/{} {measure} {}", round + 1, self.rounds, subject.name);
        if self.bar.is_hidden() {
            if self.last_line.replace(Some(round)) != Some(round) {
                let left = self.left();
                writeln!(std::io::stderr(), "round {}/{}, about {left} s left", round + 1, self.rounds).ok();
            }
        } else {
            self.bar.set_message(text);
        }
    }

    /// Seconds left, corrected by how the estimate fared so far.
    fn left(&self) -> u64 {
        let (done, total) = (self.bar.position() as f64, millis(self.total) as f64);
        let pace = if done > 0.0 { self.begin.elapsed().as_secs_f64() * 1e3 / done } else { 1.0 };
        Duration::from_secs_f64((total - done).max(0.0) * pace / 1e3).as_secs()
    }

    fn end(&self, measure: Option<Measure>, sizes: &Sizes) {
        if let Some(measure) = measure {
            self.bar.inc(millis(measure.estimate(sizes)));
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Report {
    /// The values of one figure by round.
    pub(crate) fn column(&self, subject: &str, measure: Measure, key: &str) -> Vec<Option<f64>> {
        column(&self.samples, self.rounds, subject, measure, key)
    }

    /// Writes the tables.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(&self, plan: &Plan, out: &mut dyn Write) -> Result<()> {
        write!(out, "{}", self.machine.text())?;
        for version in &self.versions {
            writeln!(out, "program: {}: {}", version.program, version.text)?;
        }
        if let Some(remark) = versions::remark(&self.versions) {
            writeln!(out, "{remark}")?;
        }
        writeln!(out, "{}", self.method())?;
        for &measure in &plan.measures {
            writeln!(out, "\n{measure}: {}", measure.about(&plan.sizes))?;
            if measure == Measure::Calls {
                writeln!(out, "counted by {}", self.sizes.counter.map_or("nothing", Counter::name))?;
            }
            writeln!(out, "{}", self.table(plan, measure))?;
            if let Some(reference) = &plan.by_method
                && let Some(table) = methods::table(self, measure, reference)
            {
                writeln!(out, "\n{measure}: speed per processor time in percent of {reference}\n{table}")?;
            }
        }
        if !self.limits.is_empty() {
            writeln!(out)?;
        }
        for limit in &self.limits {
            writeln!(out, "{}", limit.text())?;
        }
        families::print(&self.comparisons, out)?;
        for (subject, reason) in &self.skipped {
            writeln!(out, "\nskipped: {subject}: {reason}")?;
        }
        for sample in self.samples.iter().filter(|sample| sample.error.is_some()) {
            let error = sample.error.as_deref().unwrap_or_default();
            writeln!(
                out,
                "\nfailed: {} of {} in round {}: {error}",
                sample.measure,
                sample.subject,
                sample.round + 1
            )?;
        }
        Ok(())
    }

    /// The method by which the figures were made, for people.
    pub(crate) fn method(&self) -> String {
        let ratio = if self.baselines.is_empty() {
            String::new()
        } else {
            format!("ratio to {}: median of the ratios per round; ", self.baselines.join(", "))
        };
        let link = self.link.as_ref().map_or_else(String::new, |link| format!("link: {link}\n"));
        format!(
            "{link}{} rounds, interleaved; median [min-max]; {ratio}\
             1 KB = 1000 B\nCPU = user + system time of the subject's processes together",
            self.rounds
        )
    }

    pub(crate) fn table(&self, plan: &Plan, measure: Measure) -> Table {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        let metrics = measure.metrics();
        let mut header = vec![Cell::new("subject")];
        for metric in metrics {
            header.push(Cell::new(metric.heading).set_alignment(CellAlignment::Right));
            for heading in self.ratio_headings(metric) {
                header.push(Cell::new(heading).set_alignment(CellAlignment::Right));
            }
        }
        table.set_header(header);
        for subject in plan.subjects.iter().filter(|subject| measure.applies(subject)) {
            let mut row = vec![Cell::new(&subject.name)];
            for metric in metrics {
                let ours = self.column(&subject.name, measure, metric.key);
                let present: Vec<f64> = ours.iter().copied().flatten().collect();
                row.push(cell(summary(&present), metric.digits));
                for base in self.baselines.iter().filter(|_| metric.ratio) {
                    let theirs = self.column(&baseline_of(&subject.name, base), measure, metric.key);
                    row.push(ratio_cell(&ratios(&ours, &theirs)));
                }
            }
            table.add_row(row);
        }
        table
    }

    fn ratio_headings(&self, metric: &Metric) -> Vec<String> {
        match self.baselines.as_slice() {
            _ if !metric.ratio => Vec::new(),
            [_] => vec!["ratio".to_owned()],
            several => several.iter().map(|base| format!("/ {base}")).collect(),
        }
    }

    /// Writes all raw data as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_json(&self, path: &std::path::Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Fails if any sample did, or there is none.
    ///
    /// # Errors
    /// Says how many.
    pub fn verdict(&self) -> Result<()> {
        let failed = self.samples.iter().filter(|sample| sample.error.is_some()).count();
        ensure!(failed == 0, "{failed} of {} measurements failed", self.samples.len());
        ensure!(!self.samples.is_empty(), "nothing was measured");
        Ok(())
    }
}

/// The values of one figure by round.
pub(crate) fn column(
    samples: &[Sample],
    rounds: usize,
    subject: &str,
    measure: Measure,
    key: &str,
) -> Vec<Option<f64>> {
    let mut column = vec![None; rounds];
    let measure = measure.to_string();
    for sample in samples.iter().filter(|sample| sample.subject == subject && sample.measure == measure) {
        column[sample.round] = sample.values.get(key).copied();
    }
    column
}

/// The subject that `subject` is compared with: `base` with the same method, if both have one.
pub(crate) fn baseline_of(subject: &str, base: &str) -> String {
    match subject.split_once(':') {
        Some((_, method)) if !base.contains(':') => format!("{base}:{method}"),
        _ => base.to_owned(),
    }
}

/// A ratio, unless the rounds lie too far apart to say on which side of 1 it is.
fn ratio_cell(ratios: &[f64]) -> Cell {
    match summary(ratios) {
        Some(s) if is_undecided(ratios) => {
            let text = format!("inconclusive [{:.2}-{:.2}]", s.min, s.max);
            Cell::new(text).set_alignment(CellAlignment::Right)
        }
        summary => cell(summary, 2),
    }
}

fn cell(summary: Option<Summary>, digits: usize) -> Cell {
    let text = summary.map_or_else(
        || "-".to_owned(),
        |s| match s.count {
            1 => format!("{:.digits$}", s.median),
            _ => format!("{:.digits$} [{:.digits$}-{:.digits$}]", s.median, s.min, s.max),
        },
    );
    Cell::new(text).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baselines_follow_the_method() {
        assert_eq!(baseline_of("adit-ss:aes-128-gcm", "ss-rust"), "ss-rust:aes-128-gcm");
        assert_eq!(baseline_of("adit-ss:aes-128-gcm", "ss-rust:none"), "ss-rust:none");
        assert_eq!(baseline_of("adit-snell", "floor-aead"), "floor-aead");
    }
}
