//! The tables of figures in README.md, written from the stored results of `adit bench run`.
//!
//! README.md holds one block for each table: a line `<!-- figures NAME -->`, the text, a line `<!-- figures end -->`.
//! `cargo xtask figures` writes the text of each block again. A test fails while the two differ.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;

/// The document with the blocks, from the root of the workspace.
const DOCUMENT: &str = "README.md";
/// The stored results: the raw data of one run, as `--json` writes it, packed by gzip.
const RESULTS: &str = "bench/results/readme.json.gz";
const END: &str = "<!-- figures end -->";

/// One table: a row for each figure, a column for each subject.
struct Table {
    /// The word in the mark of the block.
    name: &'static str,
    /// Heading and subject of each column; the first is adit.
    columns: &'static [(&'static str, &'static str)],
    rows: &'static [Row],
}

/// One figure of the results.
struct Row {
    label: &'static str,
    measure: &'static str,
    key: &'static str,
    decimals: usize,
}

const fn row(label: &'static str, measure: &'static str, key: &'static str, decimals: usize) -> Row {
    Row { label, measure, key, decimals }
}

const STREAMS: &[Row] = &[
    row("processor time, 1 download, ns per KB", "down1", "cpu_ns_per_kb", 0),
    row("processor time, 8 downloads, ns per KB", "down8", "cpu_ns_per_kb", 0),
    row("processor time, 8 uploads, ns per KB", "up8", "cpu_ns_per_kb", 0),
    row("processor time per fresh connection, us", "conn", "cpu_us_per_conn", 0),
    row("first byte of a fresh connection, median, us", "first-byte", "p50_us", 0),
    row("the same beside 2 downloads at full speed, us", "busy-connect2", "p50_us", 0),
    row("fresh server, resident MB", "base", "rss_mb_server", 1),
    row("idle connection, server, KiB", "idle1000", "kib_per_conn_server", 1),
    row("idle connection, client, KiB", "idle1000", "kib_per_conn_client", 1),
];

const TABLES: &[Table] = &[
    Table {
        name: "snell",
        columns: &[
            ("adit", "adit-snell"),
            ("floor", "floor-aead"),
            ("sing-box", "sing-box-snell5"),
            ("OpenSnell", "opensnell"),
        ],
        rows: STREAMS,
    },
    Table {
        name: "shadowsocks",
        columns: &[
            ("adit", "adit-ss:aes-128-gcm"),
            ("shadowsocks-rust", "ss-rust:aes-128-gcm"),
            ("sing-box", "sing-box-ss:aes-128-gcm"),
            ("shadowsocks-libev", "ss-libev:aes-128-gcm"),
        ],
        rows: STREAMS,
    },
];

/// Writes the blocks of the document; with `--check` it only says whether they hold the stored results.
pub(crate) fn figures(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let path = root.join(DOCUMENT);
    let before = std::fs::read_to_string(&path).with_context(|| format!("read {DOCUMENT}"))?;
    let after = written(&before, &results(root)?)?;
    match args {
        [] => std::fs::write(&path, after).with_context(|| format!("write {DOCUMENT}")),
        ["--check"] => {
            ensure!(
                before == after,
                "{DOCUMENT} differs from {RESULTS}\nhint: `cargo xtask figures` writes it"
            );
            Ok(())
        }
        _ => anyhow::bail!("unknown option: {}\nhint: --check", args.join(" ")),
    }
}

fn results(root: &Path) -> anyhow::Result<Value> {
    let file = std::fs::File::open(root.join(RESULTS)).with_context(|| format!("open {RESULTS}"))?;
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).with_context(|| format!("unpack {RESULTS}"))?;
    serde_json::from_str(&text).with_context(|| format!("parse {RESULTS}"))
}

/// The document with each block written from the results.
fn written(document: &str, results: &Value) -> anyhow::Result<String> {
    let mut text = document.to_owned();
    for table in TABLES {
        let mark = format!("<!-- figures {} -->\n", table.name);
        let start = text.find(&mark).with_context(|| format!("{DOCUMENT} has no line {}", mark.trim()))?;
        let start = start + mark.len();
        let len =
            text[start..].find(END).with_context(|| format!("{} has no {END} after it", mark.trim()))?;
        text.replace_range(start..start + len, &block(table, results)?);
    }
    Ok(text)
}

/// The text of one block: where the figures hold, and the table.
fn block(table: &Table, results: &Value) -> anyhow::Result<String> {
    let mut text = format!("{}\n\n| |", conditions(results)?);
    for (heading, _) in table.columns {
        text += &format!(" {heading} |");
    }
    text += "\n|---|";
    text += &"--:|".repeat(table.columns.len());
    text.push('\n');
    for row in table.rows {
        text += &format!("| {} |", row.label);
        for (_, subject) in table.columns {
            let figure = median(results, subject, row);
            text +=
                &figure.map_or_else(|| " - |".to_owned(), |figure| format!(" {figure:.*} |", row.decimals));
        }
        text.push('\n');
    }
    Ok(text)
}

fn conditions(results: &Value) -> anyhow::Result<String> {
    let machine = &results["machine"];
    let word =
        |key: &str| machine[key].as_str().with_context(|| format!("{RESULTS}: machine.{key}: no text"));
    let number = |value: &Value, key: &str| {
        value[key].as_u64().with_context(|| format!("{RESULTS}: {key}: no number"))
    };
    Ok(format!(
        "Congestion control {}; {} cores ({}), Linux {}; medians of {} interleaved rounds.",
        word("congestion_control")?.to_uppercase(),
        number(machine, "cores")?,
        word("cpu")?,
        word("kernel")?.split('-').next().unwrap_or_default(),
        number(results, "rounds")?,
    ))
}

/// The median of one figure, `None` if it was not measured for this subject.
fn median(results: &Value, subject: &str, row: &Row) -> Option<f64> {
    let same = |figure: &&Value| {
        figure["subject"] == subject && figure["measure"] == row.measure && figure["key"] == row.key
    };
    results["figures"].as_array()?.iter().find(same)?["summary"]["median"].as_f64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_block_has_each_figure_and_a_dash_for_one_that_was_not_measured() {
        let results = json!({
            "machine": { "congestion_control": "cubic", "cores": 2, "cpu": "CPU", "kernel": "6.1.2-x" },
            "rounds": 5,
            "figures": [{ "subject": "a", "measure": "down1", "key": "k", "summary": { "median": 736.4 } }],
        });
        let table = Table {
            name: "t",
            columns: &[("adit", "a"), ("other", "b")],
            rows: const { &[row("one", "down1", "k", 0)] },
        };
        let expected = "Congestion control CUBIC; 2 cores (CPU), Linux 6.1.2; medians of 5 interleaved rounds.\n\n\
                        | | adit | other |\n|---|--:|--:|\n| one | 736 | - |\n";
        assert_eq!(block(&table, &results).unwrap(), expected);
    }

    #[test]
    fn the_readme_holds_the_stored_results() {
        figures(&crate::workspace_root(), &["--check"]).unwrap();
    }
}
