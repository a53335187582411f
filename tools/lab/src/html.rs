//! The report as one file that opens from disk: tables, plots, raw data.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use comfy_table::Table;

use crate::families;
use crate::machine::Machine;
use crate::measure::{Measure, Metric};
use crate::methods;
use crate::rounds::{Plan, Report};
use crate::stats::summary;
use crate::subject::Subject;
use crate::svg::{Bar, bars, escape};
use crate::versions;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
    table{border-collapse:collapse;margin:.6rem 0;font-size:13px;display:block;overflow-x:auto}\
    th,td{padding:.2rem .6rem;border-bottom:1px solid #ccc;text-align:left}td+td,th+th{text-align:right}\
    pre{background:#f3f3f3;padding:.6rem;overflow-x:auto}svg{max-width:100%;margin:.4rem 0}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#262626}th,td{border-color:#444}}";

/// Writes the report to `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn write(report: &Report, plan: &Plan, path: &Path) -> Result<()> {
    fs::write(path, page(report, plan)?).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes each plot as a file of its own into the folder `dir`.
///
/// # Errors
/// If the folder or a file cannot be written.
pub fn write_plots(report: &Report, plan: &Plan, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for &measure in &plan.measures {
        for metric in measure.metrics().iter().filter(|metric| metric.ratio) {
            let path = dir.join(format!("{measure}-{}.svg", metric.key));
            let text = plot(report, plan, measure, metric);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

fn page(report: &Report, plan: &Plan) -> Result<String> {
    let mut page = String::new();
    if let Some(headline) = families::headline(&report.comparisons) {
        writeln!(page, "<p><b>{}</b></p>", escape(&headline))?;
    }
    for &measure in &plan.measures {
        if let Some(best) = best(report, plan, measure) {
            writeln!(page, "<p><b>{}</b></p>", escape(&best))?;
        }
    }
    page.push_str(&about(&report.machine, &report.method()));
    programs(&mut page, report, plan)?;
    compared(&mut page, report)?;
    for &measure in &plan.measures {
        let about = escape(&measure.about(&plan.sizes));
        writeln!(page, "<h2 id=\"{measure}\">{about}</h2>\n<p>measure {measure}</p>")?;
        page.push_str(&table(&report.table(plan, measure)));
        if let Some(reference) = &plan.by_method
            && let Some(methods) = methods::table(report, measure, reference)
        {
            writeln!(page, "<p>Speed per processor time in percent of {}</p>", escape(reference))?;
            page.push_str(&table(&methods));
        }
        for metric in measure.metrics().iter().filter(|metric| metric.ratio || metric.is_rate()) {
            page.push_str(&plot(report, plan, measure, metric));
        }
    }
    notes(&mut page, report)?;
    // The only place where raw text could end the element early.
    let raw = serde_json::to_string(report)?.replace("</", "<\\/");
    writeln!(page, "<script type=\"application/json\" id=\"raw\">{raw}</script>")?;
    Ok(document("adit bench", &page))
}

/// The versions of the programs, and the command lines of the subjects.
fn programs(page: &mut String, report: &Report, plan: &Plan) -> Result<()> {
    if report.versions.is_empty() {
        return Ok(());
    }
    writeln!(page, "<p>Programs</p>\n<pre>")?;
    for version in &report.versions {
        writeln!(page, "{}: {}", escape(&version.program), escape(&version.text))?;
    }
    if let Some(remark) = versions::remark(&report.versions) {
        writeln!(page, "{}", escape(&remark))?;
    }
    writeln!(page, "</pre>\n<details><summary>Command lines</summary>\n<pre>")?;
    for subject in &plan.subjects {
        for process in &subject.process {
            let line = format!("{}: {} {}", subject.name, process.program, process.args.join(" "));
            writeln!(page, "{}", escape(line.trim_end()))?;
        }
    }
    writeln!(page, "</pre></details>")?;
    Ok(())
}

/// The first of each family against the others: the lost comparisons first, the won ones folded.
fn compared(page: &mut String, report: &Report) -> Result<()> {
    if report.comparisons.is_empty() {
        return Ok(());
    }
    for (heading, ones) in families::sections(&report.comparisons) {
        let lines: String =
            ones.iter().map(|one| format!("<li>{}</li>\n", escape(&families::line(one)))).collect();
        writeln!(
            page,
            "<details><summary>{heading}: {}</summary>\n<ul>\n{lines}</ul></details>",
            ones.len()
        )?;
    }
    Ok(())
}

/// A page that opens from disk.
pub(crate) fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n{body}\n</html>\n"
    )
}

/// When, where and by which command it was measured, and how.
pub(crate) fn about(machine: &Machine, method: &str) -> String {
    let words: Vec<String> = std::env::args().collect();
    let about = format!(
        "date: {}\ncommand: {}\nadit: {}\n{}",
        date(SystemTime::now()),
        words.join(" "),
        env!("CARGO_PKG_VERSION"),
        machine.text()
    );
    format!("<pre>{}</pre>\n<p>{}</p>\n", escape(&about), escape(method))
}

/// The subject with the best value of the first figure of a measure, where there are several.
fn best(report: &Report, plan: &Plan, measure: Measure) -> Option<String> {
    let metric = measure.metrics().first()?;
    let middle = |subject: &Subject| {
        let column = report.column(&subject.name, measure, metric.key);
        let values: Vec<f64> = column.into_iter().flatten().collect();
        Some((summary(&values)?.median, subject.name.clone()))
    };
    let mut found: Vec<(f64, String)> = plan.subjects.iter().filter_map(middle).collect();
    found.sort_by(|one, other| one.0.total_cmp(&other.0));
    if metric.is_rate() {
        found.reverse();
    }
    let [(best, first), .., (worst, last)] = &*found else { return None };
    let Metric { heading, digits, .. } = metric;
    Some(format!(
        "{measure}, {heading}: {first} {best:.digits$} is the best, {last} {worst:.digits$} the last"
    ))
}

/// Day and time of UTC: `2026-01-02 03:04 UTC`.
fn date(now: SystemTime) -> String {
    const MONTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (mut days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for (at, len) in MONTHS.into_iter().enumerate() {
        let len = len + u64::from(at == 1 && is_leap(year));
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, minutes / 60, minutes % 60)
}

fn notes(page: &mut String, report: &Report) -> Result<()> {
    for limit in &report.limits {
        writeln!(page, "<p>{}</p>", escape(&limit.text()))?;
    }
    for (subject, reason) in &report.skipped {
        writeln!(page, "<p>skipped: {}: {}</p>", escape(subject), escape(reason))?;
    }
    for sample in &report.samples {
        if let Some(error) = &sample.error {
            let what =
                format!("failed: {} of {} in round {}", sample.measure, sample.subject, sample.round + 1);
            writeln!(page, "<p>{}</p>\n<pre>{}</pre>", escape(&what), escape(error))?;
        }
    }
    Ok(())
}

fn plot(report: &Report, plan: &Plan, measure: Measure, metric: &Metric) -> String {
    let subjects = plan.subjects.iter().filter(|subject| measure.applies(subject));
    let rows: Vec<Bar> = subjects
        .map(|subject| {
            let column = report.column(&subject.name, measure, metric.key);
            let values: Vec<f64> = column.into_iter().flatten().collect();
            let middle = summary(&values).map(|summary| summary.median);
            Bar { name: subject.name.clone(), values, middle }
        })
        .collect();
    let better = if metric.is_rate() { "more is better" } else { "less is better" };
    bars(&format!("{measure}: {} ({better})", metric.heading), metric.digits, &rows)
}

/// The same table as on the terminal.
pub(crate) fn table(table: &Table) -> String {
    let row = |row: &comfy_table::Row, tag: &str| {
        let cells = row.cell_iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(&cell.content())));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let head = table.header().map_or_else(String::new, |header| row(header, "th"));
    let body: String = table.row_iter().map(|line| row(line, "td")).collect();
    format!("<table>\n{head}{body}</table>\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_and_times() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_799, "2000-02-29 23:59 UTC"),
            (1_767_225_599, "2025-12-31 23:59 UTC"),
            (1_767_225_600, "2026-01-01 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
