//! Texts in which every mapping with known keys begins with a mark, for tests that walk these keys.

use adit_model::diagnostic::{Diagnostic, Diagnostics};

/// A text with a line in the place of a key of the mapping behind a mark, and the number of that line. All other lines keep
/// their numbers.
///
/// Keys of a mapping stand in one column, each on a line; its contents are indented, but for items and closing brackets.
pub(super) fn with(text: &str, mark: &str, key: &str, line: &str) -> (String, usize) {
    let lines: Vec<&str> = text.lines().collect();
    let is_mark = |line: &&str| line.trim().trim_start_matches(['#', '/']).strip_prefix('@') == Some(mark);
    let at = lines.iter().position(is_mark).unwrap_or_else(|| panic!("no mark {mark}"));
    let indent = |line: &str| line.len() - line.trim_start().len();
    let own = indent(lines[at]);
    let mut out: Vec<String> = lines[..at].iter().map(|line| (*line).to_owned()).collect();
    out.push(format!("{}{line}", " ".repeat(own)));
    let (mut is_inside, mut is_gone) = (true, false);
    for line in &lines[at + 1..] {
        is_inside &= indent(line) >= own;
        let begins = line.trim_start().trim_start_matches('"');
        if indent(line) == own && !begins.starts_with(['-', ']', '}']) {
            is_gone = begins.split([':', '"']).next() == Some(key);
        }
        out.push(if is_inside && is_gone { String::new() } else { (*line).to_owned() });
    }
    (out.join("\n") + "\n", at + 1)
}

/// Whether a finding names a key at its line.
pub(super) fn names(found: &Diagnostics, key: &str, line: usize) -> bool {
    let dashed = key.replace('_', "-");
    let says = |text: &str| text.contains(key) || text.contains(&dashed);
    let is_here = |one: &Diagnostic| one.line == line && (says(&one.key) || says(&one.problem));
    // Those without effect stand in one finding.
    let listed = format!("{key} ({line}:");
    found.iter().any(|one| is_here(one) || one.problem.contains(&listed))
}

#[test]
fn a_line_takes_the_place_of_a_key() {
    let text = "a: 1\nm:\n  #@M\n  x:\n  - 1\n  y:\n    z: 2\nb: 3\n";
    assert_eq!(with(text, "M", "x", "x: 7"), ("a: 1\nm:\n  x: 7\n\n\n  y:\n    z: 2\nb: 3\n".to_owned(), 3));
    assert_eq!(with(text, "M", "y", "#").0, "a: 1\nm:\n  #\n  x:\n  - 1\n\n\nb: 3\n");
    let text = "{\n//@M\n\"x\": [\n  1,\n],\n\"y\": 2,\n}\n";
    assert_eq!(with(text, "M", "x", "\"x\": 7,").0, "{\n\"x\": 7,\n\n\n\n\"y\": 2,\n}\n");
}
