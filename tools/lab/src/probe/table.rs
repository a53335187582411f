//! The probes of a server as a table, and what it shows in words.

use std::fmt;
use std::io::Write;

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};

use super::{Kind, ONE_BY_ONE, Probed, Row, Tally, Usual};

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random(0) => f.write_str("nothing"),
            Self::Random(len) => write!(f, "random, {len} B"),
            Self::OneByOne => f.write_str("random, byte by byte"),
            Self::Ended(0) => f.write_str("FIN alone"),
            Self::Ended(len) => write!(f, "random, {len} B, then FIN"),
            Self::Http => f.write_str("HTTP request"),
            Self::Tls => f.write_str("TLS hello"),
            Self::Replay => f.write_str("replay"),
            Self::Changed(at) => write!(f, "replay, byte {at} changed"),
            Self::ChangedLast => f.write_str("replay, last byte changed"),
            Self::Cut => f.write_str("replay without last byte"),
            Self::Reflection => f.write_str("reflection"),
        }
    }
}

/// Neighbouring lengths of random bytes with one reaction.
struct Run {
    first: usize,
    last: usize,
    tally: Tally,
}

impl Probed {
    /// Writes the table and what it shows.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(&self, name: &str, out: &mut dyn Write) -> Result<()> {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header([
            "probe",
            "connections",
            "open",
            "FIN",
            "RST",
            "refused",
            "answered",
            "bytes back",
            "ended after ms",
            "reached target",
        ]);
        for run in self.runs() {
            let lengths = if run.first == run.last {
                run.first.to_string()
            } else {
                format!("{}-{}", run.first, run.last)
            };
            table.add_row(cells(format!("random, {lengths} B"), &run.tally, None));
        }
        for row in self.rows.iter().filter(|row| !matches!(row.kind, Kind::Random(1..))) {
            table.add_row(cells(row.kind.to_string(), &row.tally, row.dialled));
        }
        writeln!(out, "\nprobes of {name} at {}, watched for {} s each", self.server, self.patience_s)?;
        writeln!(out, "{table}")?;
        for line in self.verdict() {
            writeln!(out, "- {line}")?;
        }
        Ok(())
    }

    /// Random bytes by reaction.
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<(Run, Vec<_>)> = Vec::new();
        for row in &self.rows {
            let Kind::Random(len @ 1..) = row.kind else { continue };
            match runs.last_mut() {
                Some((run, reactions)) if run.tally.is_like(&row.tally) => {
                    reactions.extend(&row.reactions);
                    run.last = len;
                    run.tally = Tally::of(reactions);
                }
                _ => {
                    let run = Run { first: len, last: len, tally: row.tally.clone() };
                    runs.push((run, row.reactions.clone()));
                }
            }
        }
        runs.into_iter().map(|(run, _)| run).collect()
    }

    /// The facts that a prober learns, one per line.
    #[must_use]
    pub fn verdict(&self) -> Vec<String> {
        let runs = self.runs();
        let mut lines = vec![lengths(&runs)];
        for row in &self.rows {
            if row.kind == Kind::OneByOne {
                lines.extend(early(row).map(|(least, most)| {
                    format!("byte by byte, the server ended the connection behind byte {}", span(least, most))
                }));
            }
            if matches!(row.kind, Kind::Replay | Kind::Reflection) {
                lines.push(sent_again(row, random(&runs, row.sent)));
            }
        }
        if self.recorded == 0 {
            lines.push(
                "replay and reflection were not tried: no connection of this server was recorded".into(),
            );
        }
        lines.push(
            "this is what one prober saw from one place in that time; it does not say that the server cannot be told \
             apart by other means"
                .into(),
        );
        lines
    }
}

/// Number of bytes that the server took before it ended the connection, if it did so before it had all.
fn early(row: &Row) -> Option<(usize, usize)> {
    row.tally.closed_at.filter(|(least, _)| *least < ONE_BY_ONE)
}

/// The outcome of random bytes of that length, or of the next longer one that was tried.
fn random(runs: &[Run], len: usize) -> Option<&Tally> {
    runs.iter().find(|run| run.last >= len).or_else(|| runs.last()).map(|run| &run.tally)
}

fn lengths(runs: &[Run]) -> String {
    match runs {
        [] => "no random bytes were sent".into(),
        [one] => format!(
            "no length of {} to {} random bytes made a difference: {}",
            one.first,
            one.last,
            usual(&one.tally)
        ),
        several => {
            let parts: Vec<String> = several
                .iter()
                .map(|run| format!("{} B: {}", span(run.first, run.last), usual(&run.tally)))
                .collect();
            format!("the reaction depends on the length, which a prober can look for: {}", parts.join("; "))
        }
    }
}

fn sent_again(row: &Row, random: Option<&Tally>) -> String {
    let tally = &row.tally;
    let what = if row.kind == Kind::Replay {
        "a recorded first flight, sent again,"
    } else {
        "what the server had sent"
    };
    let reached = row.dialled.filter(|reached| *reached > 0);
    let reached = reached.map_or_else(String::new, |reached| format!(", the target reached {reached} times"));
    if tally.answered > 0 || !reached.is_empty() {
        return format!(
            "{what} was answered on {} of {} connections{reached}",
            tally.answered, tally.connections
        );
    }
    if random.is_some_and(|random| random.is_like(tally)) {
        return format!("{what} met the same reaction as so many random bytes");
    }
    format!("{what} met another reaction than so many random bytes: {}", usual(tally))
}

fn span(least: usize, most: usize) -> String {
    if least == most { least.to_string() } else { format!("{least}-{most}") }
}

/// The most common outcome, with its share if that is not nearly all.
fn usual(tally: &Tally) -> String {
    const NEARLY_ALL: f64 = 0.9;
    let (usual, share) = tally.usual();
    let word = match usual {
        Usual::Answer => "answered",
        Usual::Open => "open",
        Usual::Fin => "FIN",
        Usual::Rst => "RST",
        Usual::Refused => "refused",
    };
    if share >= NEARLY_ALL { word.to_owned() } else { format!("{word} {:.0} %", share * 100.0) }
}

/// One row per server of those that were probed: what a reader compares.
///
/// # Errors
/// If `out` cannot be written.
pub(crate) fn compare<'p>(
    all: impl Iterator<Item = (&'p String, &'p Probed)>,
    out: &mut dyn Write,
) -> Result<()> {
    const REST: [Kind; 9] = [
        Kind::OneByOne,
        Kind::Ended(100),
        Kind::Http,
        Kind::Tls,
        Kind::Replay,
        Kind::Changed(0),
        Kind::Changed(16),
        Kind::ChangedLast,
        Kind::Reflection,
    ];
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec!["of".to_owned(), "random bytes by length".to_owned()];
    header.extend(REST.map(|kind| kind.to_string()));
    table.set_header(header);
    let mut rows = 0;
    for (name, probed) in all {
        let runs = probed.runs();
        let parts = runs.iter().map(|run| format!("{} {}", span(run.first, run.last), usual(&run.tally)));
        let mut row = vec![name.clone(), parts.collect::<Vec<_>>().join("; ")];
        row.extend(REST.map(|kind| {
            probed.rows.iter().find(|row| row.kind == kind).map_or_else(|| "-".to_owned(), brief)
        }));
        table.add_row(row);
        rows += 1;
    }
    if rows > 1 {
        writeln!(out, "\nprobes compared\n{table}")?;
    }
    Ok(())
}

fn brief(row: &Row) -> String {
    let place = early(row).filter(|_| row.kind == Kind::OneByOne);
    match (place, row.dialled) {
        (Some((least, most)), _) => format!("{} behind {}", usual(&row.tally), span(least, most)),
        (None, Some(reached @ 1..)) => {
            format!("{}, target {reached}/{}", usual(&row.tally), row.tally.connections)
        }
        _ => usual(&row.tally),
    }
}

fn cells(name: String, tally: &Tally, dialled: Option<u64>) -> Vec<String> {
    let (least, most) = tally.received;
    let after = tally.closed_after_ms.map(|(low, middle, high)| format!("{middle:.0} [{low:.0}-{high:.0}]"));
    vec![
        name,
        tally.connections.to_string(),
        tally.open.to_string(),
        tally.fin.to_string(),
        tally.rst.to_string(),
        tally.refused.to_string(),
        tally.answered.to_string(),
        if least == most { least.to_string() } else { format!("{least}-{most}") },
        after.unwrap_or_else(|| "-".into()),
        dialled.map_or_else(|| "-".into(), |count| count.to_string()),
    ]
}
