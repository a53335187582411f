//! A Rust file seen the way the rules need it: code without comments and literals, literals without code, the
//! lines that are test code, and every path that is named.
//!
//! This is a scan, not a parser: it knows comments, literals, brackets and `use` trees, which is enough for
//! names. It does not see through macros or renames: the reviewer does.

use std::collections::BTreeSet;

/// One Rust file.
#[derive(Debug)]
pub(super) struct Source {
    /// Path from the workspace root, with `/`.
    pub(super) path: String,
    tokens: Vec<Token>,
    literals: String,
    comment_lines: BTreeSet<usize>,
    test_lines: Vec<bool>,
    text: String,
}

/// A path as named in code, `use` trees flattened: `use a::{b, c::D}` names `a::b` and `a::c::D`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// Line, from 1.
    pub(super) line: usize,
    /// The identifiers of the path.
    pub(super) segments: Vec<String>,
    /// Role of the path in the code.
    pub(super) role: Role,
}

/// Role of a path in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// In a `use` declaration.
    Import,
    /// Followed by `!`.
    Macro,
    /// `.name()`, without arguments.
    BareMethod,
    /// Anything else.
    Other,
}

/// A type or a trait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) name: String,
    /// Line of its name, from 1.
    pub(super) line: usize,
    /// Whether more than its module can name it.
    pub(super) is_visible: bool,
}

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// Line of the `fn`, from 1.
    pub(super) line: usize,
    /// Lines from `fn` to the closing brace; rows of tables in test code do not count.
    pub(super) lines: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    line: usize,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Ident(String),
    /// `::`
    Path,
    Punct(char),
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let Masks { code, literals, comment_lines } = mask(text);
        let tokens = tokenize(&code);
        let mut test_lines = vec![is_test_path(path); text.lines().count() + 1];
        mark_test_items(&tokens, &mut test_lines);
        Self { path: path.into(), tokens, literals, comment_lines, test_lines, text: text.into() }
    }

    /// Whether line `line` (from 1) is test code.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }

    /// Lines with the contents of string literals only, numbered from 1.
    pub(super) fn literal_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.literals.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The lines of the file that are no test code, comments included, numbered from 1.
    pub(super) fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(line, _)| !self.is_test(*line))
    }

    /// Lines of the file, rows of tables in test code left out.
    pub(super) fn counted_lines(&self) -> usize {
        self.counted(1, self.text.lines().count())
    }

    /// Every path named in code, in order.
    pub(super) fn names(&self) -> Vec<Name> {
        let mut names = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            match self.ident(at) {
                Some("use") if self.starts_use(at) => at = self.use_tree(at + 1, &[], &mut names),
                Some(_) => at = self.plain_name(at, &mut names),
                None => at += 1,
            }
        }
        names
    }

    /// Whether the file says `#![forbid(unsafe_code)]`.
    pub(super) fn forbids_unsafe(&self) -> bool {
        (0..self.tokens.len()).any(|at| {
            self.punct(at) == Some('#')
                && self.punct(at + 1) == Some('!')
                && self.ident(at + 3) == Some("forbid")
                && self.ident(at + 5) == Some("unsafe_code")
        })
    }

    /// Number of lines of the file.
    pub(super) fn line_count(&self) -> usize {
        self.text.lines().count()
    }

    /// Every definition of a type or a trait.
    pub(super) fn definitions(&self) -> Vec<Definition> {
        let mut definitions = Vec::new();
        for at in 0..self.tokens.len() {
            let Some("struct" | "enum" | "union" | "trait" | "type") = self.ident(at) else { continue };
            // An associated type has a parent that is indented less; its name is not one of the module's.
            let is_associated = self.ident(at) == Some("type") && self.is_indented(self.tokens[at].line);
            let Some(name) = self.ident(at + 1).filter(|name| name.starts_with(char::is_uppercase)) else {
                continue;
            };
            if is_associated
                || !matches!(self.punct(at + 2), Some('{' | '(' | '<' | ';' | ':' | '='))
                    && self.ident(at + 2) != Some("where")
            {
                continue;
            }
            let before = |back: usize| at.checked_sub(back);
            let is_visible =
                before(1).is_some_and(|at| self.ident(at) == Some("pub") || self.punct(at) == Some(')'));
            definitions.push(Definition { name: name.into(), line: self.tokens[at].line, is_visible });
        }
        definitions
    }

    fn is_indented(&self, line: usize) -> bool {
        self.text.lines().nth(line - 1).is_some_and(|text| text.starts_with(' '))
    }

    /// Every function that has a body, nested ones included.
    pub(super) fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for at in 0..self.tokens.len() {
            let (Some("fn"), Some(name)) = (self.ident(at), self.ident(at + 1)) else { continue };
            let Some(end) = item_end(&self.tokens, at).filter(|&end| self.punct(end) == Some('}')) else {
                continue;
            };
            let (first, last) = (self.tokens[at].line, self.tokens[end].line);
            functions.push(Function { name: name.into(), line: first, lines: self.counted(first, last) });
        }
        functions
    }

    /// Lines of the calls of `sleep` and `sleep_until` that are outside of every loop's body.
    pub(super) fn sleeps_outside_loops(&self) -> Vec<usize> {
        // Whether each open bracket is the body of a loop, and how many were open at the keyword of the next such body.
        let (mut is_body, mut header): (Vec<bool>, Option<usize>) = (Vec::new(), None);
        let mut lines = Vec::new();
        for at in 0..self.tokens.len() {
            match self.punct(at) {
                Some('(' | '[') => is_body.push(false),
                Some('{') => is_body.push(header.take_if(|depth| *depth == is_body.len()).is_some()),
                Some(')' | ']' | '}') => {
                    is_body.pop();
                }
                _ if self.is_loop(at) => header = Some(is_body.len()),
                _ if self.is_sleep(at) && !is_body.contains(&true) => lines.push(self.tokens[at].line),
                _ => {}
            }
        }
        lines
    }

    /// Whether a comment is on the line, or alone on the one above.
    pub(super) fn is_explained(&self, line: usize) -> bool {
        let above = line.checked_sub(2).and_then(|above| self.text.lines().nth(above));
        self.comment_lines.contains(&line) || above.is_some_and(|above| above.trim_start().starts_with("//"))
    }

    /// `loop`, `while`, or `for` unless it is that of an `impl` or of a bound.
    fn is_loop(&self, at: usize) -> bool {
        let is_of_type = || {
            let is_behind_type = at.checked_sub(1).is_some_and(|before| {
                self.ident(before).is_some()
                    || self.punct(before) == Some('>') && before > 0 && self.punct(before - 1) != Some('=')
            });
            is_behind_type || self.punct(at + 1) == Some('<')
        };
        match self.ident(at) {
            Some("loop" | "while") => true,
            Some("for") => !is_of_type(),
            _ => false,
        }
    }

    fn is_sleep(&self, at: usize) -> bool {
        let is_defined = at > 0 && self.ident(at - 1) == Some("fn");
        matches!(self.ident(at), Some("sleep" | "sleep_until"))
            && self.punct(at + 1) == Some('(')
            && !is_defined
    }

    fn counted(&self, first: usize, last: usize) -> usize {
        let lines = self.text.lines().enumerate().skip(first - 1).take(last + 1 - first);
        lines.filter(|(index, line)| !(self.is_test(index + 1) && is_table_row(line))).count()
    }

    fn ident(&self, at: usize) -> Option<&str> {
        match &self.tokens.get(at)?.kind {
            Kind::Ident(name) => Some(name),
            Kind::Path | Kind::Punct(_) => None,
        }
    }

    fn punct(&self, at: usize) -> Option<char> {
        punct(&self.tokens, at)
    }

    fn is_path(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|token| token.kind == Kind::Path)
    }

    /// `use<'a>` in a bound is no import.
    fn starts_use(&self, at: usize) -> bool {
        self.punct(at + 1) != Some('<')
    }

    fn plain_name(&self, start: usize, names: &mut Vec<Name>) -> usize {
        let mut segments = vec![self.ident(start).expect("called at an identifier").to_string()];
        let mut at = start + 1;
        while self.is_path(at) {
            let Some(segment) = self.ident(at + 1) else { break };
            segments.push(segment.into());
            at += 2;
        }
        let after_dot = start > 0 && self.punct(start - 1) == Some('.');
        let role = if self.punct(at) == Some('!') && self.punct(at + 1) != Some('=') {
            Role::Macro
        } else if after_dot && self.punct(at) == Some('(') && self.punct(at + 1) == Some(')') {
            Role::BareMethod
        } else {
            Role::Other
        };
        names.push(Name { line: self.tokens[start].line, segments, role });
        at
    }

    /// Flattens one `use` tree that starts at `at`; returns where it ends (on `,`, `}` or `;`).
    fn use_tree(&self, mut at: usize, prefix: &[String], names: &mut Vec<Name>) -> usize {
        let mut segments = prefix.to_vec();
        let mut line = self.tokens.get(at).map_or(0, |token| token.line);
        loop {
            if let Some(segment) = self.ident(at) {
                if segment == "as" {
                    at += 2;
                    continue;
                }
                line = self.tokens[at].line;
                segments.push(segment.into());
                at += 1;
            } else if self.is_path(at) || self.punct(at) == Some('*') {
                at += 1;
            } else if self.punct(at) == Some('{') {
                at += 1;
                while at < self.tokens.len() && !matches!(self.punct(at), Some('}' | ';')) {
                    at = self.use_tree(at, &segments, names);
                    at += usize::from(self.punct(at) == Some(','));
                }
                return at + 1;
            } else {
                break;
            }
        }
        if segments.len() > prefix.len() {
            names.push(Name { line, segments, role: Role::Import });
            return at;
        }
        // Nothing was read: step over this token, so that the caller's loop ends.
        if matches!(self.punct(at), Some(',' | '}' | ';')) { at } else { at + 1 }
    }
}

impl Name {
    /// Whether `pattern` (`a::b`) stands somewhere in the path, whole segments.
    pub(super) fn contains(&self, pattern: &str) -> bool {
        let pattern: Vec<&str> = pattern.split("::").collect();
        self.segments.windows(pattern.len()).any(|window| window.iter().eq(&pattern))
    }

    /// Whether the path goes into the crate or module `first`.
    pub(super) fn goes_into(&self, first: &str) -> bool {
        self.segments[0] == first && (self.segments.len() > 1 || self.role == Role::Import)
    }
}

/// Whether a whole file is test code.
pub(super) fn is_test_path(path: &str) -> bool {
    path.starts_with("tools/testkit/")
        || path.ends_with("_tests.rs")
        || path.split('/').any(|part| matches!(part, "tests" | "benches" | "tests.rs" | "fuzz"))
}

fn punct(tokens: &[Token], at: usize) -> Option<char> {
    match tokens.get(at)?.kind {
        Kind::Punct(c) => Some(c),
        Kind::Path | Kind::Ident(_) => None,
    }
}

/// A line that is one row of a literal table: it starts with a bracket, a literal or `b"`.
fn is_table_row(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches('&');
    line.starts_with(['(', '[', '{', ')', ']', '}', '"', '\''])
        || line.starts_with("b\"")
        || line.starts_with(|c: char| c.is_ascii_digit())
}

/// Index of the token that ends the item around `start`: its `;`, or the brace that closes its body.
fn item_end(tokens: &[Token], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut braces = 0_usize;
    for at in start..tokens.len() {
        match punct(tokens, at) {
            Some('(' | '[') => depth += 1,
            Some(')' | ']') => depth = depth.saturating_sub(1),
            Some(';') if depth == 0 && braces == 0 => return Some(at),
            Some('{') if depth == 0 => braces += 1,
            Some('}') if depth == 0 => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Marks the lines of every item behind `#[cfg(test)]`, and of the whole file behind `#![cfg(test)]`.
fn mark_test_items(tokens: &[Token], lines: &mut [bool]) {
    for at in 0..tokens.len() {
        if punct(tokens, at) != Some('#') {
            continue;
        }
        let inner = punct(tokens, at + 1) == Some('!');
        let open = at + 1 + usize::from(inner);
        if punct(tokens, open) != Some('[') {
            continue;
        }
        let Some(close) = (open..tokens.len()).find(|&i| punct(tokens, i) == Some(']')) else { continue };
        let has = |name: &str| {
            tokens[open..close].iter().any(|token| matches!(&token.kind, Kind::Ident(ident) if ident == name))
        };
        if !(has("cfg") && has("test")) || has("not") {
            continue;
        }
        if inner {
            lines.fill(true);
            return;
        }
        let Some(end) = item_end(tokens, close + 1) else { continue };
        for line in tokens[at].line..=tokens[end].line {
            lines[line - 1] = true;
        }
    }
}

fn tokenize(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            if let Some((name, len)) = raw_identifier(rest) {
                tokens.push(Token { line: index + 1, kind: Kind::Ident(name.into()) });
                rest = &rest[len..];
                continue;
            }
            let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let (kind, len) = if c.is_whitespace() {
                rest = &rest[c.len_utf8()..];
                continue;
            } else if c.is_ascii_digit() {
                (Kind::Punct('0'), word)
            } else if word > 0 {
                (Kind::Ident(rest[..word].into()), word)
            } else if rest.starts_with("::") {
                (Kind::Path, 2)
            } else {
                (Kind::Punct(c), c.len_utf8())
            };
            tokens.push(Token { line: index + 1, kind });
            rest = &rest[len..];
        }
    }
    tokens
}

/// `r#use` at the start of `text`, as it stands there, so that it is no keyword; and its length in bytes.
fn raw_identifier(text: &str) -> Option<(&str, usize)> {
    let word = text.strip_prefix("r#")?;
    let len = word.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(word.len());
    (len > 0).then(|| (&text[..2 + len], 2 + len))
}

struct Masks {
    /// The text with comments and the contents of literals blanked.
    code: String,
    /// The text with everything but the contents of string literals blanked.
    literals: String,
    /// Lines on which a comment begins, from 1.
    comment_lines: BTreeSet<usize>,
}

/// The kind of a stretch of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stretch {
    Code,
    Comment,
    Literal,
}

fn mask(text: &str) -> Masks {
    let (code, literals, comment_lines) = (String::new(), String::new(), BTreeSet::new());
    let mut masks = Masks { code, literals, comment_lines };
    let mut line = 1;
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < chars.len() {
        let (stretch, len) = next_stretch(&chars, at);
        if chars[at] == '/' && stretch == Stretch::Comment {
            masks.comment_lines.insert(line);
        }
        for &c in &chars[at..at + len] {
            let keep = |wanted| if c == '\n' || stretch == wanted { c } else { ' ' };
            masks.code.push(keep(Stretch::Code));
            masks.literals.push(keep(Stretch::Literal));
            line += usize::from(c == '\n');
        }
        at += len;
    }
    masks
}

/// The stretch that starts at `at`, at least one character long.
fn next_stretch(chars: &[char], at: usize) -> (Stretch, usize) {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => {
            let len = rest.iter().position(|&c| c == '\n').unwrap_or(rest.len());
            (Stretch::Comment, len)
        }
        ['/', '*', ..] => (Stretch::Comment, block_comment_len(rest)),
        ['"', ..] => (Stretch::Literal, string_len(rest)),
        ['\'', '\\', ..] => {
            let close = rest.iter().skip(3).position(|&c| c == '\'').map_or(rest.len(), |close| close + 4);
            (Stretch::Comment, close)
        }
        ['\'', _, '\'', ..] => (Stretch::Comment, 3),
        ['r' | 'b' | 'c', ..] if at == 0 || !is_word(chars[at - 1]) => raw_string(rest),
        _ => (Stretch::Code, 1),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `r"…"`, `br#"…"#` and the like; one character of code when it is nothing of the kind.
fn raw_string(rest: &[char]) -> (Stretch, usize) {
    let prefix = rest.iter().take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    let hashes = rest[prefix..].iter().take_while(|&&c| c == '#').count();
    let open = prefix + hashes;
    if prefix > 2 || rest[prefix - 1] != 'r' || rest.get(open) != Some(&'"') {
        return (Stretch::Code, 1);
    }
    let closes = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    let end = (open + 1..rest.len()).find(closes).map_or(rest.len(), |at| at + 1 + hashes);
    (Stretch::Literal, end)
}

/// Length of the string literal that starts `rest`, quotes included.
fn string_len(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn block_comment_len(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        Source::new("a.rs", text).names().into_iter().map(|name| name.segments.join("::")).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "a // b\n/* c /* d */ e */ f \"g \\\" h\" 'i' '\\'' r#\"j\" k\"# br\"l\" m 'n: b\"o\"";
        let Masks { code, literals, .. } = mask(text);
        let words = |text: &str| {
            text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(&code), "a f m n b");
        assert_eq!(words(&literals), "g h r j k br l o");
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn use_trees_are_flattened() {
        assert_eq!(paths("use a::{b, c::{self, D as E}, f::*};"), ["a::b", "a::c::self", "a::c::D", "a::f"]);
        assert_eq!(paths("pub(crate) use x::y;"), ["pub", "crate", "x::y"]);
        assert_eq!(paths("use {a::b, c};\nfn f() {}"), ["a::b", "c", "fn", "f"]);
        assert_eq!(paths("use a::{"), Vec::<String>::new());
        assert_eq!(paths("use a::{r#use, b};"), ["a::r#use", "a::b"]);
        assert_eq!(paths("fn r#use() { a; }"), ["fn", "r#use", "a"]);
        assert_eq!(paths("use { a; }"), ["a"]);
    }

    #[test]
    fn roles() {
        let source = Source::new("a.rs", "todo!(); x.elapsed(); x.elapsed(1); a != b; use q;");
        let role = |name: &str| source.names().into_iter().find(|n| n.contains(name)).unwrap().role;
        assert_eq!(role("todo"), Role::Macro);
        assert_eq!(role("elapsed"), Role::BareMethod);
        assert_eq!(role("a"), Role::Other);
        assert_eq!(role("q"), Role::Import);
    }

    #[test]
    fn test_items_are_known() {
        let source = Source::new("a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n");
        let marked: Vec<bool> = (1..=6).map(|line| source.is_test(line)).collect();
        assert_eq!(marked, [false, true, true, true, true, false]);
        assert!(!Source::new("a.rs", "#[cfg(not(test))]\nfn a() {}").is_test(2));
        assert!(Source::new("a.rs", "#![cfg(test)]\nfn a() {}").is_test(2));
        assert!(Source::new("crates/x/src/tests.rs", "fn a() {}").is_test(1));
    }

    #[test]
    fn sleeps_outside_loops_are_known() {
        let lines = |text: &str| Source::new("a.rs", text).sleeps_outside_loops();
        for out in [
            "fn f() { sleep(x); }",
            "fn f() { rt::sleep_until(x).await }",
            "impl<T> A<T> for B<T> { fn f() { thread::sleep(x) } }",
            "impl A for B { fn f() { thread::sleep(x) } }",
            "fn f(a: &dyn for<'a> Fn(&'a u8)) { sleep(x) }",
            "fn f() { for x in y { } sleep(x) }",
            "fn f() { while x(|| { sleep(y) }) { } }",
            "fn f() { wait_for(|| { sleep(y) }) }",
        ] {
            assert_eq!(lines(out), [1], "{out}");
        }
        for within in [
            "fn f() { for x in y { sleep(x) } }",
            "fn f() { match x { y => for x in y { sleep(x) } } }",
            "fn f() { while x(|| { y }) { sleep(x) } }",
            "fn f() { 'a: loop { match x { None => sleep(x), Some(y) => break } } }",
            "fn f() { loop { g(|| { sleep(x) }) } }",
            "fn sleep(x: u8) { asleep(x); sleep; }",
            "fn f() { \"sleep(x)\" } // sleep(x)",
        ] {
            assert_eq!(lines(within), [0; 0], "{within}");
        }
    }

    #[test]
    fn comments_explain_their_line_and_the_next_one() {
        let source = Source::new("a.rs", "// a\nb;\nc; // d\ne;\n\"// f\";\n'/'; g;\nh; /* i */\n");
        let explained: Vec<usize> = (1..=7).filter(|line| source.is_explained(*line)).collect();
        assert_eq!(explained, [1, 2, 3, 7]);
    }

    #[test]
    fn functions_are_measured() {
        let text = "fn a(x: [u8; 2]) -> u8 {\n  if x {\n  }\n}\ntrait T { fn b(); }\n";
        let functions = Source::new("a.rs", text).functions();
        assert_eq!(functions, [Function { name: "a".into(), line: 1, lines: 4 }]);
        let table = "fn t() {\n  let x = [\n    (1, 2),\n    (3, 4),\n  ];\n}\n";
        assert_eq!(Source::new("a.rs", table).functions()[0].lines, 6);
        assert_eq!(Source::new("tests.rs", table).functions()[0].lines, 2);
    }
}
