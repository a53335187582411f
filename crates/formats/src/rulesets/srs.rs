//! Compiled rule sets of sing-box (`.srs`), as far as they list names and addresses of targets.
//!
//! ```text
//! "SRS" version | zlib stream of: count varint, rules
//! rule   0 items.. FF invert u8        1 (logical), which is not read
//! item   2 names   version u8 | n, n leaves u64 | n, n words of the bitmap u64 | n, n labels     counts are varints
//!        3 words, 4 regular expressions   n, n x (length, bytes)
//!        6 addresses   1 | n u64, n x (length, first, length, last)
//! ```
//!
//! Integers have their highest byte first. At the end of a reversed name, byte 0A stands for the name and all below it. Byte 0D
//! stands for every ending: behind a dot for all below the name, else for all names that end so.

use std::net::IpAddr;

use adit_model::entries::{Entries, Scope};
use adit_model::rule::AddressRange;

use super::succinct::{Input, Tree};

/// Longest set once it is decompressed, in bytes.
const MAX_PLAIN: usize = 64 << 20;

/// Newest version that is read.
const VERSION: u8 = 4;

/// Marks at the end of a reversed name.
const TREE: u8 = 0x0a;
const ANY: u8 = 0x0d;

const CUT: &str = "the file is cut off";

/// Reads a set.
///
/// # Errors
/// The problem with it, or what it holds beside names and addresses of targets.
pub fn read_srs(bytes: &[u8]) -> Result<Entries, String> {
    let mut input = Input(bytes);
    match (input.take(3), input.byte()) {
        (Some(b"SRS"), Some(1..=VERSION)) => {}
        (Some(b"SRS"), Some(version)) => return Err(format!("unknown version: {version}")),
        _ => return Err("no compiled rule set of sing-box".to_owned()),
    }
    let plain = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(input.0, MAX_PLAIN);
    read_plain(&plain.map_err(|error| format!("bad compression: {error}"))?)
}

fn read_plain(plain: &[u8]) -> Result<Entries, String> {
    let mut input = Input(plain);
    let rules = input.short_count(1).ok_or(CUT)?;
    let mut entries = Entries::default();
    for _ in 0..rules {
        match input.byte().ok_or(CUT)? {
            0 => rule(&mut input, &mut entries)?,
            1 => return Err("and and or of rules are not read".to_owned()),
            kind => return Err(format!("unknown kind of rule: {kind}")),
        }
    }
    Ok(entries)
}

/// All items of one rule, of which one is enough.
fn rule(input: &mut Input<'_>, entries: &mut Entries) -> Result<(), String> {
    loop {
        match input.byte().ok_or(CUT)? {
            2 => names(input, entries)?,
            3 => entries.keywords.extend(texts(input).ok_or(CUT)?),
            4 => entries.regexes.extend(texts(input).ok_or(CUT)?),
            6 => addresses(input, entries).ok_or(CUT)?,
            0xff => {
                let invert = input.byte().ok_or(CUT)?;
                return if invert == 0 { Ok(()) } else { Err("a rule that is turned round".to_owned()) };
            }
            item => {
                return Err(format!("item {item} of a rule is not read: names and addresses of targets are"));
            }
        }
    }
}

fn texts(input: &mut Input<'_>) -> Option<Vec<Box<str>>> {
    let count = input.short_count(1)?;
    let mut one = || {
        let len = input.short_count(1)?;
        std::str::from_utf8(input.take(len)?).ok().map(Into::into)
    };
    (0..count).map(|_| one()).collect()
}

fn tree(input: &mut Input<'_>) -> Option<Tree> {
    let _version = input.byte()?;
    let count = input.short_count(8)?;
    let leaves = input.longs(count)?;
    let count = input.short_count(8)?;
    let bitmap = input.longs(count)?;
    let count = input.short_count(1)?;
    Some(Tree { leaves, bitmap, labels: input.take(count)?.to_vec() })
}

fn names(input: &mut Input<'_>, entries: &mut Entries) -> Result<(), String> {
    let tree = tree(input).ok_or(CUT)?;
    tree.keys(&mut |key| {
        let (key, scope) = match key.split_last() {
            Some((&TREE, key)) => (key, Scope::Tree),
            Some((&ANY, key)) if key.ends_with(b".") => (key, Scope::Below),
            Some((&ANY, key)) => {
                entries.regexes.extend(ending(key));
                return;
            }
            _ => (key, Scope::Exact),
        };
        let name: Vec<u8> = key.iter().rev().copied().collect();
        if let Ok(name) = String::from_utf8(name) {
            entries.add_name(name.trim_start_matches('.'), scope);
        }
    })?;
    Ok(())
}

/// The expression for names that end with a reversed text.
fn ending(key: &[u8]) -> Option<Box<str>> {
    let text = String::from_utf8(key.iter().rev().copied().collect()).ok()?;
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (is_name && text.len() <= adit_model::entries::MAX_NAME)
        .then(|| format!("{}$", text.replace('.', "\\.")).into())
}

fn addresses(input: &mut Input<'_>, entries: &mut Entries) -> Option<()> {
    let _version = input.byte()?;
    let count = input.count(2)?;
    for _ in 0..count {
        let mut next = || {
            let len = input.short_count(1)?;
            let bytes = input.take(len)?;
            let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
            v4.or_else(|| Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)))
        };
        match (next()?, next()?) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                entries.add_range(AddressRange::V4(first.to_bits(), last.to_bits()));
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                entries.add_range(AddressRange::V6(first.to_bits(), last.to_bits()));
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        }
    }
    Some(())
}

/// Fuzz target: any bytes are read within bounds, as a file and as its contents.
#[doc(hidden)]
pub fn fuzz_srs(data: &[u8]) {
    for entries in [read_srs(data), read_plain(data)].into_iter().flatten() {
        assert!(
            entries.names().all(|(name, _)| !name.is_empty() && name.len() <= adit_model::entries::MAX_NAME)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One rule: the word "ad", the names of a tree with `b.a` (and below) and `a`, and 10.0.0.0/8.
    fn plain() -> Vec<u8> {
        let mut plain = vec![1, 0, 3, 1, 2, b'a', b'd', 2, 0];
        // Keys "a" and "a.b\r": nodes 0 -a-> 1 (leaf) -.-> 2 -b-> 3 -\r-> 4 (leaf).
        plain.extend([1]);
        plain.extend(0b1_0010_u64.to_be_bytes());
        plain.extend([1]);
        plain.extend(0b1_1010_1010_u64.to_be_bytes());
        plain.extend([4, b'a', b'.', b'b', TREE]);
        plain.extend([6, 1, 0, 0, 0, 0, 0, 0, 0, 1, 4, 10, 0, 0, 0, 4, 10, 255, 255, 255, 0xff, 0]);
        plain
    }

    #[test]
    fn one_rule() {
        let found = read_plain(&plain()).unwrap();
        let names: Vec<_> = found.names().collect();
        assert_eq!(names, [("a", Scope::Exact), ("b.a", Scope::Tree)]);
        assert_eq!((&*found.keywords, &*found.v4), (&["ad".into()][..], &[(0x0a00_0000, 0x0aff_ffff)][..]));
        let mut file = b"SRS\x01".to_vec();
        file.extend(miniz_oxide::deflate::compress_to_vec_zlib(&plain(), 6));
        assert_eq!(read_srs(&file).unwrap(), found);
    }

    /// Both forms of names, compiled by sing-box: `full.test` alone, `suf.test` with all below it, and all below
    /// `dot.test`.
    #[test]
    fn names_that_sing_box_has_compiled() {
        for file in [
            "5352530178da62646062606400015e0130a36cd5aa45ab844b8a534bf4d2724a4a73f28b4b53f4d2f47879ff3300020000ffffadcc0af7",
            "5352530278da6264606260640001d60630437ad5aa45ab844a8a534bf4d2724a4a73f28b4b53b8d2f478ff3300020000ffffa6870ad2",
        ] {
            let digit = |at: usize| u8::from_str_radix(&file[at..at + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..file.len()).step_by(2).map(digit).collect();
            let found = read_srs(&bytes).unwrap();
            let mut names: Vec<(&str, Scope)> = found.names().collect();
            names.sort_by_key(|(name, scope)| (*name, *scope as u8));
            let is_old = bytes[3] == 1;
            let own = if is_old { vec![Scope::Exact, Scope::Below] } else { vec![Scope::Tree] };
            let mut wanted = vec![("dot.test", Scope::Below), ("full.test", Scope::Exact)];
            wanted.extend(own.into_iter().map(|scope| ("suf.test", scope)));
            assert_eq!(names, wanted, "{file}");
        }
        // Before version 1.9 a suffix was the end of a text.
        assert_eq!(ending(b"tset.fus").as_deref(), Some("suf\\.test$"));
    }

    #[test]
    fn cut_and_broken_files() {
        let plain = plain();
        for len in 0..plain.len() {
            assert!(read_plain(&plain[..len]).is_err(), "{len}");
        }
        for at in 0..plain.len() * 8 {
            let mut broken = plain.clone();
            broken[at / 8] ^= 1 << (at % 8);
            fuzz_srs(&broken);
        }
        assert!(read_plain(&[1, 0, 9, 1, 0, 80, 0xff, 0]).unwrap_err().contains("item 9"));
        assert!(read_plain(&[1, 1]).is_err());
    }
}
