//! Rule sets in other forms: `.mrs` of mihomo from texts, and back; texts from `.srs` of sing-box.

use std::net::{Ipv4Addr, Ipv6Addr};

use adit_model::entries::{Entries, Scope};
use adit_model::rule::Cidr;

use super::provider::payload;
use crate::rulesets;

/// A rule set in its other form, and the lines that were left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The file.
    pub bytes: Vec<u8>,
    /// Rules in it.
    pub rules: usize,
    /// Lines that are no rule of this kind.
    pub left_out: usize,
}

/// A rule set of `domain` or `ipcidr`: from `yaml` or `text` it becomes `.mrs`, which is not compressed; from `mrs` or `srs`
/// a text of one rule per line.
///
/// # Errors
/// The problem with the words or with the file.
pub fn convert_rules(behavior: &str, format: &str, bytes: &[u8]) -> Result<Converted, String> {
    let is_names = match behavior {
        "domain" => true,
        "ipcidr" => false,
        other => return Err(format!("behavior {other}: only domain and ipcidr have another form")),
    };
    match format {
        "mrs" => match (rulesets::mrs_patterns(bytes)?, is_names) {
            (Some(patterns), true) => Ok(text(patterns)),
            (None, false) => Ok(text(networks(&rulesets::read_mrs(bytes)?))),
            _ => Err(format!("the set is not one of behavior {behavior}")),
        },
        "srs" => of_sing_box(&rulesets::read_srs(bytes)?, is_names),
        "yaml" | "text" => compile(is_names, format, bytes),
        other => Err(format!("unknown format: {other}; yaml, text, mrs or srs")),
    }
}

fn compile(is_names: bool, format: &str, bytes: &[u8]) -> Result<Converted, String> {
    let whole = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let lines: Vec<&str> = match format {
        "yaml" => payload(whole).ok_or("file must have a `payload` field")?.map(|(_, line)| line).collect(),
        _ => whole.lines().collect(),
    };
    let is_rule = |line: &&str| !line.is_empty() && !line.starts_with('#') && !line.starts_with("//");
    let lines = lines.into_iter().map(str::trim).filter(is_rule);
    let (mut entries, mut patterns, mut rules, mut left_out) = (Entries::default(), Vec::new(), 0, 0);
    for line in lines {
        let is_good = if is_names {
            let is_good = rulesets::domain_pattern(&mut entries, line);
            patterns.extend(is_good.then(|| line.to_lowercase()));
            is_good
        } else {
            let network = line.contains('/').then(|| Cidr::parse(line)).flatten();
            network.inspect(|network| entries.add_range(network.range())).is_some()
        };
        rules += usize::from(is_good);
        left_out += usize::from(!is_good);
    }
    if rules == 0 {
        return Err("there is no rule of this kind in the file".to_owned());
    }
    let bytes = if is_names {
        rulesets::write_mrs_names(&patterns)
    } else {
        rulesets::write_mrs_addresses(&entries, rules)
    };
    Ok(Converted { bytes, rules, left_out })
}

fn of_sing_box(entries: &Entries, is_names: bool) -> Result<Converted, String> {
    let lines: Vec<String> = if is_names {
        let line = |(name, scope): (&str, Scope)| match scope {
            Scope::Exact => name.to_owned(),
            Scope::Tree => format!("+.{name}"),
            Scope::Below => format!(".{name}"),
        };
        entries.names().map(line).collect()
    } else {
        networks(entries)
    };
    if lines.is_empty() {
        return Err("there is no rule of this kind in the set".to_owned());
    }
    let rules = lines.len();
    let others = if is_names { entries.keywords.len() + entries.regexes.len() } else { 0 };
    Ok(Converted { bytes: text(lines).bytes, rules, left_out: others })
}

fn text(lines: Vec<String>) -> Converted {
    let bytes = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"]).flatten().copied().collect();
    Converted { bytes, rules: lines.len(), left_out: 0 }
}

/// The fewest networks that are these ranges.
fn networks(entries: &Entries) -> Vec<String> {
    let mut out = Vec::new();
    for (first, last) in &entries.v4 {
        let text = |bits: u128| Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX)).to_string();
        split((*first).into(), (*last).into(), 32, &mut |bits, len| {
            out.push(format!("{}/{len}", text(bits)))
        });
    }
    for (first, last) in &entries.v6 {
        let text = |bits: u128| Ipv6Addr::from_bits(bits).to_string();
        split(*first, *last, 128, &mut |bits, len| out.push(format!("{}/{len}", text(bits))));
    }
    out
}

/// Calls `each` with the networks of a range: first address and length, of addresses of `width` bits.
fn split(first: u128, last: u128, width: u32, each: &mut dyn FnMut(u128, u32)) {
    let mut first = first;
    while first <= last {
        // As large as the first address allows, and as the range has room for.
        let mut bits = first.trailing_zeros().min(width);
        let end = |bits: u32| first | 1_u128.checked_shl(bits).map_or(u128::MAX, |size| size - 1);
        while end(bits) > last {
            bits -= 1;
        }
        each(first, width - bits);
        let Some(next) = end(bits).checked_add(1) else { return };
        first = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(converted: &Converted) -> Vec<&str> {
        std::str::from_utf8(&converted.bytes).unwrap().lines().collect()
    }

    #[test]
    fn names_there_and_back() {
        let text = "a.test\n+.b.test\n*.c.test\n.d.test\n# x\nB.a.test\nbad/line\n";
        let made = convert_rules("domain", "text", text.as_bytes()).unwrap();
        assert_eq!((made.rules, made.left_out), (5, 1));
        let back = convert_rules("domain", "mrs", &made.bytes).unwrap();
        assert_eq!(lines(&back), ["*.c.test", "+.b.test", ".d.test", "a.test", "b.a.test"]);
        let yaml = "payload:\n  - 'a.test'\n  - \"+.b.test\"\n  - '*.c.test'\n  - .d.test\n  - b.a.test\n";
        let same = convert_rules("domain", "yaml", yaml.as_bytes()).unwrap();
        assert_eq!(same.bytes, made.bytes);
        assert!(convert_rules("ipcidr", "mrs", &made.bytes).is_err());
    }

    /// The tree of the format's description: a.test, +.b.test, *.c.test, .d.test.
    #[test]
    fn names_as_mihomo_lays_them_out() {
        let text = "a.test\n+.b.test\n*.c.test\n.d.test\n";
        let made = convert_rules("domain", "text", text.as_bytes()).unwrap();
        let hex: String = made.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let labels: String = "tset.abcd...+*+".bytes().map(|byte| format!("{byte:02x}")).collect();
        for want in ["000000000000e0c0", "000000007aaac2aa", &labels] {
            assert!(hex.contains(want), "{want}: {hex}");
        }
    }

    #[test]
    fn addresses_there_and_back() {
        let text = "192.0.2.0/25\n192.0.2.128/25\n198.51.100.7/32\n2001:db8::/33\n10.0.0.0\n0.0.0.0/1\n";
        let made = convert_rules("ipcidr", "text", text.as_bytes()).unwrap();
        assert_eq!((made.rules, made.left_out), (5, 1));
        let back = convert_rules("ipcidr", "mrs", &made.bytes).unwrap();
        assert_eq!(lines(&back), ["0.0.0.0/1", "192.0.2.0/24", "198.51.100.7/32", "2001:db8::/33"]);
    }

    #[test]
    fn ranges_become_the_fewest_networks() {
        let mut found = Vec::new();
        split(1, 6, 32, &mut |bits, len| found.push((bits, len)));
        assert_eq!(found, [(1, 32), (2, 31), (4, 31), (6, 32)]);
        for (width, last) in [(32, u128::from(u32::MAX)), (128, u128::MAX)] {
            let mut found = Vec::new();
            split(0, last, width, &mut |bits, len| found.push((bits, len)));
            assert_eq!(found, [(0, 0)]);
        }
    }

    /// A set of more than one block.
    #[test]
    fn many_names() {
        let text: String = (0..20_000).map(|n| format!("+.name-{n}.example\n")).collect();
        let made = convert_rules("domain", "text", text.as_bytes()).unwrap();
        assert!(made.bytes.len() > 1 << 17);
        assert_eq!(rulesets::read_mrs(&made.bytes).unwrap().len(), 40_000);
        let back = convert_rules("domain", "mrs", &made.bytes).unwrap();
        assert_eq!(back.rules, 20_000);
    }

    #[test]
    fn bad_words_and_files() {
        for (behavior, format, bytes, want) in [
            ("classical", "text", &b"a"[..], "only domain and ipcidr"),
            ("domain", "json", b"a", "unknown format"),
            ("domain", "yaml", b"a: 1", "payload"),
            ("domain", "text", b"# none", "no rule"),
            ("domain", "mrs", b"\x28\xb5\x2f\xfd", "compression"),
            ("domain", "srs", b"SRS", ""),
        ] {
            let problem = convert_rules(behavior, format, bytes).unwrap_err();
            assert!(problem.contains(want), "{problem}");
        }
    }
}
