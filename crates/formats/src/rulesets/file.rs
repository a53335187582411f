//! Files of sets.
//!
//! ```text
//! # comment            also behind //; blank lines do not matter
//! example.com          this name alone
//! +.example.com        the name and all below it
//! .example.com         all below the name
//! 192.0.2.1            an address
//! 2001:db8::/32        a network; bits behind the prefix do not matter
//! ```
//!
//! Names are compared in any case. Lists of names in the text format of Clash mean the same here; `*` stands for any whole
//! label. With [`SetFormat::Rules`] lines are those of Clash's and Surge's lists of rules:
//!
//! ```text
//! DOMAIN | DOMAIN-SUFFIX | DOMAIN-KEYWORD | DOMAIN-REGEX | IP-CIDR | IP-CIDR6 , VALUE [,no-resolve]
//! ```

use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::entries::{Entries, MAX_NAME, Scope};
use adit_model::rule::{Cidr, SetFormat, backtracking_regex, normal_name, regex_problem};

/// Longest file, in bytes: more than a million names.
pub const MAX_LEN: usize = 32 << 20;

/// Most characters of a line that a message shows.
const MAX_SHOWN: usize = 60;

/// Reads a file's text; `file` is its name in messages.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(file: &str, text: &str, format: SetFormat) -> Result<Entries, Diagnostics> {
    let file: Arc<str> = file.into();
    let (mut entries, mut found) = (Entries::default(), Diagnostics::new());
    for (number, whole) in text.split('\n').enumerate() {
        let line = whole.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with("//") {
            continue;
        }
        if let Err((problem, hint)) = add(&mut entries, line, format) {
            let column = 1 + whole[..whole.len() - whole.trim_start().len()].chars().count();
            let problem =
                if line.len() > MAX_NAME { problem.into() } else { format!("{problem}: {}", shown(line)) };
            found.push(Diagnostic::error(&file, "", problem).at((number + 1, column)).hint(hint));
            if found.is_full() {
                break;
            }
        }
    }
    if found.has_errors() { Err(found) } else { Ok(entries) }
}

type Problem = (&'static str, &'static str);

fn add(entries: &mut Entries, line: &str, format: SetFormat) -> Result<(), Problem> {
    if line.len() > MAX_NAME {
        return Err(("longer than 255 bytes", "write one name or network per line"));
    }
    if format == SetFormat::Rules {
        return add_rule(entries, line);
    }
    let cidr = Cidr::parse(line);
    match (cidr, format) {
        (Some(cidr), SetFormat::Any | SetFormat::Addresses | SetFormat::Rules) => {
            entries.add_range(cidr.range())
        }
        (Some(_), SetFormat::Domains) => {
            return Err(("an address in a set of names", "leave `format` out to have both in one set"));
        }
        (None, SetFormat::Addresses) => {
            return Err(("no address or network", "write 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32"));
        }
        (None, SetFormat::Any | SetFormat::Domains | SetFormat::Rules) => add_name(entries, line)?,
    }
    Ok(())
}

/// A line of a list of rules. Types that ask for neither a name nor an address are passed over.
fn add_rule(entries: &mut Entries, line: &str) -> Result<(), Problem> {
    let Some((kind, rest)) = line.split_once(',') else {
        return Err(("no rule", "write DOMAIN-SUFFIX,example.com or IP-CIDR,192.0.2.0/24"));
    };
    // A regular expression may hold commas.
    let first = rest.split(',').next().unwrap_or_default().trim();
    let scope = match kind.trim() {
        "DOMAIN" => Scope::Exact,
        "DOMAIN-SUFFIX" => Scope::Tree,
        "DOMAIN-KEYWORD" => {
            check_name(first)?;
            entries.keywords.push(first.to_lowercase().into());
            return Ok(());
        }
        "DOMAIN-REGEX" => {
            if regex_problem(rest.trim()).is_some() && backtracking_regex(rest.trim()).is_err() {
                return Err(("bad regular expression", "see https://docs.rs/regex for its syntax"));
            }
            entries.regexes.push(rest.trim().into());
            return Ok(());
        }
        "IP-CIDR" | "IP-CIDR6" => {
            let network = Cidr::parse(first);
            let network =
                network.ok_or(("no network", "write IP-CIDR,192.0.2.0/24 or IP-CIDR6,2001:db8::/32"))?;
            entries.add_range(network.range());
            return Ok(());
        }
        _ => return Ok(()),
    };
    let name = normal_name(first);
    check_name(&name)?;
    entries.add_name(&name, scope);
    Ok(())
}

fn add_name(entries: &mut Entries, line: &str) -> Result<(), Problem> {
    if line.contains('*') {
        let hint = "`*` stands for a whole label; +.example.com for the name and all below it";
        return super::domain_pattern(entries, line).then_some(()).ok_or(("no pattern of a name", hint));
    }
    let (name, scope) = match (line.strip_prefix("+."), line.strip_prefix('.')) {
        (Some(name), _) => (name, Scope::Tree),
        (None, Some(name)) => (name, Scope::Below),
        (None, None) => (line, Scope::Exact),
    };
    let name = normal_name(name);
    check_name(&name)?;
    entries.add_name(&name, scope);
    Ok(())
}

/// Refuses what no name of a target can be.
fn check_name(name: &str) -> Result<(), Problem> {
    let hint = "write example.com, +.example.com, .example.com, or a network";
    if name.contains(char::is_control) {
        return Err(("holds a control character", hint));
    }
    if name.contains('?') {
        return Err(("wildcards are not known here", "+.example.com stands for the name and all below it"));
    }
    if name
        .contains(|c: char| c.is_whitespace() || matches!(c, '/' | ':' | ',' | '[' | ']' | '"' | '\'' | '@'))
    {
        return Err(("neither a name nor a network", hint));
    }
    if name.split('.').any(str::is_empty) {
        return Err(("a part of the name is empty", hint));
    }
    Ok(())
}

/// The beginning of a line; the message that holds it shows control characters escaped.
fn shown(line: &str) -> String {
    match line.char_indices().nth(MAX_SHOWN) {
        Some((cut, _)) => format!("{}...", &line[..cut]),
        None => line.to_owned(),
    }
}

/// Fuzz target: findings lie inside the text; names come out in lower case, non-empty and no longer than the line.
#[doc(hidden)]
pub fn fuzz_set(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for (_, format) in SetFormat::ALL {
        match parse("fuzz.list", &text, *format) {
            Ok(entries) => {
                assert!(entries.len() <= text.split('\n').count());
                for (name, _) in entries.names() {
                    assert!(!name.is_empty() && name.len() <= MAX_NAME, "{name}");
                    assert_eq!(normal_name(name), name);
                }
                assert!(entries.v4.iter().all(|(first, last)| first <= last));
                assert!(entries.v6.iter().all(|(first, last)| first <= last));
            }
            Err(found) => crate::read::loaded::assert_inside(&text, &found),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines() {
        let text = "# c\r\n// c\n\n A.Example. \r\n+.b.example\n.c.example\n10.0.0.1/8\n::1\n";
        let entries = parse("t", text, SetFormat::Any).unwrap();
        let names: Vec<_> = entries.names().collect();
        assert_eq!(
            names,
            [("a.example", Scope::Exact), ("b.example", Scope::Tree), ("c.example", Scope::Below)]
        );
        assert_eq!((entries.v4, entries.v6), (vec![(0x0a00_0000, 0x0aff_ffff)], vec![(1, 1)]));
    }

    #[test]
    fn bad_lines() {
        for (line, format, want) in [
            ("a b", SetFormat::Any, "t:2:3: neither a name nor a network: a b\n  hint: "),
            ("*x.a", SetFormat::Any, "no pattern of a name: *x.a"),
            ("?.a", SetFormat::Any, "wildcards are not known here: ?.a"),
            ("DOMAIN,a b", SetFormat::Rules, "neither a name nor a network: DOMAIN,a b"),
            ("IP-CIDR,a", SetFormat::Rules, "no network: IP-CIDR,a"),
            ("a.example", SetFormat::Rules, "no rule: a.example"),
            ("a..b", SetFormat::Any, "a part of the name is empty: a..b"),
            ("+.", SetFormat::Any, "a part of the name is empty: +."),
            ("10.0.0.0/33", SetFormat::Any, "neither a name nor a network: 10.0.0.0/33"),
            ("10.0.0.0/8", SetFormat::Domains, "an address in a set of names: 10.0.0.0/8"),
            ("a.example", SetFormat::Addresses, "no address or network: a.example"),
            ("a\0b", SetFormat::Any, "holds a control character: a\\"),
        ] {
            let found = parse("t", &format!("\n  {line}\n"), format).unwrap_err().to_string();
            assert!(found.contains(want), "wanted {want}\nfound {found}");
        }
        // Findings about a file of another kind are few.
        assert!(parse("t", &"a b\n".repeat(100_000), SetFormat::Any).unwrap_err().to_string().len() < 50_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text(text in "([+.a-bA-B0-9/:# \n\0*]|\\.example|é|10\\.0\\.0\\.|::){0,30}") {
            fuzz_set(text.as_bytes());
        }
    }
}
