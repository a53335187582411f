//! Tables that fit the terminal: columns that matter less go first, then long texts are cut.

use adit_model::shown;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Space between two columns.
const GAP: usize = 2;
/// A text is not cut to fewer columns than this.
const MIN_TEXT: usize = 8;
/// A text is cut to this before a column goes.
const FAIR_TEXT: usize = 18;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    is_number: bool,
    /// Those with the highest rank go first; 0 stays.
    rank: u8,
}

/// A column of texts that stays.
pub(crate) const fn text(title: &'static str) -> Column {
    Column { title, is_number: false, rank: 0 }
}

/// A column of numbers that stays, on the right.
pub(crate) const fn number(title: &'static str) -> Column {
    Column { title, is_number: true, rank: 0 }
}

impl Column {
    /// The same, which goes if there is no room, the higher `rank` the sooner.
    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// A table without frames.
#[derive(Debug)]
pub(crate) struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A table with these columns and no rows.
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one text for each column; each text stays in its cell.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.push(cells.into());
    }

    /// The same where the columns differ from call to call.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.into_iter().map(|cell| shown::line(&cell).into_owned()).collect());
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, each at most `width` wide as far as columns can be left out and texts be cut; no lines without rows.
    pub(crate) fn render(&self, width: usize) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let mut widths: Vec<usize> = shown.iter().map(|at| self.width_of(*at)).collect();
        let total = |shown: &[usize], widths: &[usize]| {
            shown.iter().map(|at| widths[*at]).sum::<usize>() + GAP * shown.len().saturating_sub(1)
        };
        let fair: Vec<usize> = (0..widths.len())
            .map(|at| if self.columns[at].is_number { widths[at] } else { widths[at].min(FAIR_TEXT) })
            .collect();
        while total(&shown, &fair) > width {
            let last = shown.iter().copied().filter(|at| self.columns[*at].rank > 0);
            let Some(last) = last.max_by_key(|at| self.columns[*at].rank) else { break };
            shown.retain(|at| *at != last);
        }
        while total(&shown, &widths) > width {
            let texts =
                shown.iter().copied().filter(|at| !self.columns[*at].is_number && widths[*at] > MIN_TEXT);
            let Some(widest) = texts.max_by_key(|at| widths[*at]) else { break };
            widths[widest] -= 1;
        }
        let head: Vec<String> = self.columns.iter().map(|column| column.title.to_owned()).collect();
        let mut out = String::new();
        for row in [&head].into_iter().chain(&self.rows) {
            let cells = shown.iter().map(|at| padded(&row[*at], widths[*at], self.columns[*at].is_number));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    fn width_of(&self, at: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[at].width());
        cells.max().unwrap_or(0).max(self.columns[at].title.width())
    }
}

/// A text of exactly `width` columns.
fn padded(text: &str, width: usize, on_the_right: bool) -> String {
    let text = cut(text, width);
    let gap = " ".repeat(width.saturating_sub(text.width()));
    if on_the_right { gap + &text } else { text + &gap }
}

/// A text of at most `width` columns, with a sign at its end if it was cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used + 1 > width {
            break;
        }
        out.push(c);
    }
    if width > 0 { out + "…" } else { out }
}

/// A text in lines of at most `width` columns, broken at blanks; all but the first are indented. A longer word stays whole.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let (mut out, mut used) = (String::new(), 0);
    for word in text.split_inclusive(' ') {
        let len = word.trim_end().width();
        if !out.trim().is_empty() && used + len > width {
            out.truncate(out.trim_end().len());
            out.push_str("\n    ");
            used = 4;
        }
        out.push_str(word);
        used += word.width();
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let mut grid = Grid::new(&[text("name"), text("target"), number("bytes"), number("extra").rank(1)]);
        grid.row(["ann".into(), "a-long-name.example.com:443".into(), "12 MB".into(), "1".into()]);
        grid.row(["李雷".into(), "b:1".into(), "3 B".into(), "22".into()]);
        grid
    }

    #[test]
    fn long_lines_break_at_blanks() {
        assert_eq!(wrapped("one two three", 80), "one two three\n");
        assert_eq!(wrapped("one two three", 7), "one two\n    three\n");
        assert_eq!(wrapped("  one-long-word x", 6), "  one-long-word\n    x\n");
        assert_eq!(wrapped("a b", usize::MAX), "a b\n");
    }

    #[test]
    fn a_table_fits_or_loses_what_matters_least() {
        let wide = grid().render(usize::MAX);
        assert_eq!(
            wide,
            "name  target                       bytes  extra\n\
             ann   a-long-name.example.com:443  12 MB      1\n\
             李雷  b:1                            3 B     22\n"
        );
        let narrow = grid().render(30);
        let gap = |len| " ".repeat(len);
        let want = [
            format!("name  target{}bytes", gap(13)),
            "ann   a-long-name.exam…  12 MB".to_owned(),
            format!("李雷  b:1{}3 B", gap(18)),
        ];
        assert_eq!(narrow.lines().collect::<Vec<_>>(), want);
        for width in 0..60 {
            let widest = grid().render(width).lines().map(|line| line.width()).max().unwrap();
            assert!(widest <= width.max(4 + 2 + MIN_TEXT + 2 + 5), "{width}: {widest}");
        }
        assert_eq!(Grid::new(&[text("x")]).render(80), "");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        for (text, width, want) in
            [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("李雷", 3, "李…"), ("李雷", 2, "…"), ("ab", 0, "")]
        {
            assert_eq!(cut(text, width), want);
        }
    }
}
