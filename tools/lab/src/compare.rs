//! Two runs of one scenario side by side: whether their ratios agree.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

/// Measure, figure, subject and baseline of a ratio.
type Name = (String, String, String, String);

/// A ratio's median, and what holds it with 90 percent confidence.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratio {
    median: f64,
    interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Whether the two intervals have a value in common; not known without both.
    fn agrees(&self, other: &Self) -> Option<bool> {
        let ((low, high), (other_low, other_high)) = self.interval.zip(other.interval)?;
        Some(low <= other_high && other_low <= high)
    }

    fn text(&self) -> String {
        let interval = self.interval.map(|(low, high)| format!(" [{low:.2}-{high:.2}]")).unwrap_or_default();
        format!("{:.2}{interval}", self.median)
    }
}

/// Prints the ratios that both files hold.
///
/// # Errors
/// If a file cannot be read, they have no ratio in common, or ratios disagree.
pub(crate) fn run(first: &Path, second: &Path, out: &mut dyn Write) -> Result<()> {
    let (first, second) = (read(first)?, read(second)?);
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["measure", "figure", "subject", "against", "first", "second", "agree"]);
    let (mut rows, mut apart) = (0, 0);
    for ((measure, figure, subject, base), one) in &first {
        let name = (measure.clone(), figure.clone(), subject.clone(), base.clone());
        let Some(other) = second.get(&name).filter(|_| subject != base) else { continue };
        let agrees = one.agrees(other);
        let verdict = agrees.map_or("five rounds of both decide", |agrees| if agrees { "yes" } else { "no" });
        table.add_row([measure, figure, subject, base, &one.text(), &other.text(), verdict]);
        rows += 1;
        apart += usize::from(agrees == Some(false));
    }
    ensure!(rows > 0, "the two runs have no ratio in common");
    writeln!(out, "{table}")?;
    ensure!(apart == 0, "{apart} of {rows} ratios disagree: their intervals do not meet");
    Ok(())
}

fn read(path: &Path) -> Result<BTreeMap<Name, Ratio>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Value =
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
    ratios(&report).with_context(|| format!("{}: not the raw data of a run", path.display()))
}

fn ratios(report: &Value) -> Option<BTreeMap<Name, Ratio>> {
    let mut all = BTreeMap::new();
    for figure in report.get("figures")?.as_array()? {
        let word = |key: &str| figure.get(key)?.as_str().map(str::to_owned);
        for (base, ratio) in figure.get("ratios")?.as_object()? {
            let end = |at: usize| ratio.get("interval")?.get(at)?.as_f64();
            let median = ratio.get("summary")?.get("median")?.as_f64()?;
            let name = (word("measure")?, word("key")?, word("subject")?, base.clone());
            all.insert(name, Ratio { median, interval: end(0).zip(end(1)) });
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(low: f64, high: f64) -> Value {
        serde_json::json!({"figures": [{
            "subject": "a", "measure": "down1", "key": "cpu_ns_per_kb", "summary": {"median": 5.0},
            "ratios": {"b": {"summary": {"median": low}, "interval": [low, high], "inconclusive": false}},
        }]})
    }

    #[test]
    fn intervals_that_meet_agree() {
        let one = |low, high| *ratios(&report(low, high)).unwrap().values().next().unwrap();
        assert_eq!(one(0.5, 0.6).agrees(&one(0.6, 0.7)), Some(true));
        assert_eq!(one(0.5, 0.6).agrees(&one(0.61, 0.7)), Some(false));
        assert_eq!(one(0.61, 0.7).agrees(&one(0.5, 0.6)), Some(false));
        let short = Ratio { interval: None, ..one(0.5, 0.6) };
        assert_eq!(short.agrees(&one(0.5, 0.6)), None);
        assert!(ratios(&serde_json::json!({"figures": [{"ratios": {"b": 5}}]})).is_none());
    }

    #[test]
    fn files_are_compared() {
        let dir = std::env::temp_dir().join(format!("adit-lab-compare-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, value: &Value| {
            let path = dir.join(name);
            fs::write(&path, value.to_string()).unwrap();
            path
        };
        let (near, far) = (write("near", &report(0.5, 0.6)), write("far", &report(0.8, 0.9)));
        let mut text = Vec::new();
        run(&near, &near, &mut text).unwrap();
        assert!(String::from_utf8(text).unwrap().contains("0.50 [0.50-0.60]"));
        let error = run(&near, &far, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("1 of 1 ratios disagree"), "{error}");
        let nothing = write("nothing", &serde_json::json!({"figures": []}));
        assert!(run(&near, &nothing, &mut Vec::new()).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
