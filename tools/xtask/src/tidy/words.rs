//! Plain words: the part of CONTRIBUTING.md's rule that a scan can check.

use super::Finding;

/// Words that make a clause of the sentence that they begin. A doc comment begins with the thing or the action.
const CLAUSES: &[&str] = &["How", "What", "Where", "Which", "Who", "Whom", "Whose"];

/// Private words, each with the field's word. A word counts inside of names, too.
const PRIVATE: &[(&str, &str)] = &[
    (concat!("stran", "ger"), "unauthenticated"),
    (concat!("disg", "uise"), "obfs"),
    (concat!("what", "ever"), "any, every"),
    (concat!("who", "ever"), "the peer, the caller"),
    (concat!("which", "ever"), "any, either"),
];

/// Documents that quote the words, or tell of earlier versions.
const EXEMPT: &[&str] = &["CHANGELOG.md", "CONTRIBUTING.md"];

/// Reports private words in code and documents, and comments whose first word makes a clause.
pub(super) fn plain(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let is_rust = path.ends_with(".rs");
    if !is_rust && !path.ends_with(".md") || EXEMPT.contains(&path) {
        return;
    }
    let mut report = |line, what: String| findings.push(Finding::new(path, line, "plain-words", what));
    for (index, line) in text.lines().enumerate() {
        let lower = line.to_ascii_lowercase();
        for (word, plain) in PRIVATE.iter().filter(|(word, _)| lower.contains(word)) {
            report(index + 1, format!("{word:?}: write {plain}"));
        }
        if let Some(word) = comment(line).filter(|_| is_rust).and_then(clause) {
            report(index + 1, format!("{word:?} begins a sentence: begin with the thing or the action"));
        }
    }
}

/// The text of a line that is a comment, without its marks and without the bullet of a list.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim_start();
    Some(text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")).unwrap_or(text))
}

/// The first of [`CLAUSES`] that begins the comment `text`, or a sentence in it.
fn clause(text: &str) -> Option<&str> {
    let sentences =
        std::iter::once(text).chain(text.match_indices(". ").map(|(at, end)| &text[at + end.len()..]));
    sentences
        .filter_map(|sentence| sentence.split(|c: char| !c.is_alphanumeric()).next())
        .find(|word| CLAUSES.contains(word))
}
