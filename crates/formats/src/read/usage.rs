//! Help texts of the programs that adit replaces, within 80 columns.

/// Columns of a terminal.
const WIDTH: usize = 80;

/// The first lines: how the program is called, whose place it takes, and what it is.
pub(crate) fn head(name: &str, peer: &str) -> String {
    format!("usage: {name} [flags]\n{}\n", version(name, peer))
}

/// The name and version of a program: `ss-server (adit 0.1.0), in the place of shadowsocks-libev 3.3.5`.
pub(crate) fn version(name: &str, peer: &str) -> String {
    format!("{name} (adit {}), in the place of {peer}\n", env!("CARGO_PKG_VERSION"))
}

/// The lines of a flag: its names and value, and from column `column` on what it does.
pub(crate) fn flag(left: &str, what: &str, column: usize) -> String {
    let left = format!("  {left}");
    let body = wrapped(what, WIDTH - column);
    let indent = " ".repeat(column);
    let mut lines = body.lines();
    // Two spaces part the names from the rest.
    let mut out = if left.chars().count() + 2 > column {
        format!("{left}\n")
    } else {
        format!("{left:<column$}{}\n", lines.next().unwrap_or_default())
    };
    for line in lines {
        out.push_str(&format!("{indent}{line}\n"));
    }
    out
}

/// A paragraph.
pub(crate) fn paragraph(text: &str) -> String {
    wrapped(text, WIDTH)
}

/// The words of a text in lines of at most `width` characters, unless a word is longer.
fn wrapped(text: &str, width: usize) -> String {
    let (mut out, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if used > 0 && used + 1 + len > width {
            out.push('\n');
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += len;
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_short() {
        assert_eq!(flag("-c FILE", "the file", 12), "  -c FILE   the file\n");
        let long = flag("--a-rather-long-flag VALUE", "a word", 12);
        assert_eq!(long, "  --a-rather-long-flag VALUE\n            a word\n");
        let text = flag("-x", &"word ".repeat(40), 20);
        assert_eq!(text.matches("word").count(), 40);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(20))), "{text}");
        assert!(!text.contains("word  word"), "{text}");
        assert!(paragraph(&"word ".repeat(40)).lines().all(|line| line.len() <= WIDTH));
    }
}
