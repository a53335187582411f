//! Compiled rule sets of mihomo (`.mrs`), version 1. Observed of mihomo (Alpha, February 2025).
//!
//! ```text
//! one zstd stream of: "MRS" 1 | behaviour u8 | rules i64 | length i64, that many bytes | set
//! behaviour 0, names      1 | n i64, n leaves u64 | n i64, n words of the bitmap u64 | n i64, n labels
//! behaviour 1, addresses  1 | n i64, n x (first, last), 16 bytes each, IPv4 as ::ffff:a.b.c.d
//! ```
//!
//! Integers have their highest byte first. A key of names ends with `.+` for all below, and holds `*` for one label.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_model::entries::{Entries, Scope};
use adit_model::rule::AddressRange;

use super::domain_pattern;
use super::succinct::{Input, Tree};

/// Longest set once it is decompressed, in bytes.
const MAX_PLAIN: u64 = 64 << 20;

/// Largest window of the compression, in bytes.
const MAX_WINDOW: u64 = 16 << 20;

/// Behaviours of a set.
const NAMES: u8 = 0;
const ADDRESSES: u8 = 1;

/// Reads a set.
///
/// # Errors
/// The problem with it.
pub fn read_mrs(bytes: &[u8]) -> Result<Entries, String> {
    read_plain(&decompress(bytes)?)
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(bytes, MAX_WINDOW);
    let decoder = decoder.map_err(|error| format!("bad compression: {error}"))?;
    let mut plain = Vec::new();
    decoder
        .take(MAX_PLAIN + 1)
        .read_to_end(&mut plain)
        .map_err(|error| format!("bad compression: {error}"))?;
    if plain.len() as u64 > MAX_PLAIN {
        return Err(format!("longer than {} MiB once it is decompressed", MAX_PLAIN >> 20));
    }
    Ok(plain)
}

fn read_plain(plain: &[u8]) -> Result<Entries, String> {
    let mut input = Input(plain);
    if input.take(4) != Some(b"MRS\x01") {
        return Err("no rule set of version 1".to_owned());
    }
    let behaviour = input.byte();
    let _rules = input.long();
    let extra = input.count(1);
    let version = extra.and_then(|extra| input.take(extra)).and_then(|_| input.byte());
    match (behaviour, version) {
        (_, None) => Err(CUT.to_owned()),
        (Some(NAMES), Some(1)) => names(&mut input),
        (Some(ADDRESSES), Some(1)) => addresses(&mut input).ok_or_else(|| CUT.to_owned()),
        (Some(NAMES | ADDRESSES), Some(version)) => Err(format!("unknown version of the set: {version}")),
        (behaviour, _) => Err(format!("unknown behaviour: {}", behaviour.unwrap_or_default())),
    }
}

const CUT: &str = "the file is cut off";

fn tree(input: &mut Input<'_>) -> Option<Tree> {
    let count = input.count(8)?;
    let leaves = input.longs(count)?;
    let count = input.count(8)?;
    let bitmap = input.longs(count)?;
    let count = input.count(1)?;
    Some(Tree { leaves, bitmap, labels: input.take(count)?.to_vec() })
}

fn names(input: &mut Input<'_>) -> Result<Entries, String> {
    let tree = tree(input).ok_or(CUT)?;
    let mut entries = Entries::default();
    tree.keys(&mut |key| {
        let name: Vec<u8> = key.iter().rev().copied().collect();
        let Ok(name) = String::from_utf8(name) else { return };
        match name.strip_prefix("+.") {
            Some(below) if !below.contains('*') => entries.add_name(below, Scope::Below),
            Some(below) => {
                domain_pattern(&mut entries, &format!(".{below}"));
            }
            None => {
                domain_pattern(&mut entries, &name);
            }
        }
    })?;
    Ok(entries)
}

fn addresses(input: &mut Input<'_>) -> Option<Entries> {
    let mut entries = Entries::default();
    let count = input.count(32)?;
    for _ in 0..count {
        let mut next = || Some(u128::from_be_bytes(input.take(16)?.try_into().ok()?));
        let (first, last) = (next()?, next()?);
        let ip = |bits| IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical();
        match (ip(first), ip(last)) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                entries.add_range(AddressRange::V4(first.to_bits(), last.to_bits()));
            }
            _ => entries.add_range(AddressRange::V6(first, last)),
        }
    }
    Some(entries)
}

/// The patterns of a set of names, as a text has them: `+.x` for a name with all below it.
///
/// # Errors
/// The problem with the set; `None` for one of addresses.
pub fn mrs_patterns(bytes: &[u8]) -> Result<Option<Vec<String>>, String> {
    let plain = decompress(bytes)?;
    if plain.get(4) != Some(&NAMES) {
        return Ok(None);
    }
    let mut input = Input(&plain[5..]);
    let _rules = input.long();
    let extra = input.count(1);
    extra.and_then(|extra| input.take(extra)).and_then(|_| input.byte()).ok_or(CUT)?;
    let mut all = BTreeSet::new();
    tree(&mut input).ok_or(CUT)?.keys(&mut |key| {
        all.extend(String::from_utf8(key.iter().rev().copied().collect()));
    })?;
    // `+.x` is kept as `x` and all below it, which alone would be `.x`.
    let pattern = |name: &String| match name.strip_prefix("+.") {
        Some(below) if all.contains(below) => Some(name.clone()),
        Some(below) => Some(format!(".{below}")),
        None if all.contains(&format!("+.{name}")) => None,
        None => Some(name.clone()),
    };
    Ok(Some(all.iter().filter_map(pattern).collect()))
}

/// A set of names from such patterns. It is not compressed.
pub fn write_mrs_names(patterns: &[String]) -> Vec<u8> {
    let mut keys = BTreeSet::new();
    for pattern in patterns {
        let reversed = |name: &str| name.bytes().rev().collect::<Vec<u8>>();
        match (pattern.strip_prefix("+."), pattern.starts_with('.')) {
            (Some(name), _) => keys.extend([reversed(name), reversed(pattern)]),
            (None, true) => drop(keys.insert(reversed(&format!("+{pattern}")))),
            (None, false) => drop(keys.insert(reversed(pattern))),
        }
    }
    let keys: Vec<Vec<u8>> = keys.into_iter().filter(|key| !key.is_empty()).collect();
    let tree = Tree::of(&keys);
    let mut out = head(NAMES, patterns.len());
    for words in [&tree.leaves, &tree.bitmap] {
        out.extend((words.len() as u64).to_be_bytes());
        words.iter().for_each(|word| out.extend(word.to_be_bytes()));
    }
    out.extend((tree.labels.len() as u64).to_be_bytes());
    out.extend(&tree.labels);
    compressed(&out)
}

/// A set of addresses from the ranges of `entries`, of which there were `rules`. It is not compressed.
pub fn write_mrs_addresses(entries: &Entries, rules: usize) -> Vec<u8> {
    let mapped = |bits: u32| Ipv4Addr::from_bits(bits).to_ipv6_mapped().to_bits();
    let v4 = entries.v4.iter().map(|(first, last)| (mapped(*first), mapped(*last)));
    let mut ranges: Vec<(u128, u128)> = v4.chain(entries.v6.iter().copied()).collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let joins = next.0 <= kept.1.saturating_add(1);
        if joins {
            kept.1 = kept.1.max(next.1);
        }
        joins
    });
    let mut out = head(ADDRESSES, rules);
    out.extend((ranges.len() as u64).to_be_bytes());
    for (first, last) in ranges {
        out.extend(first.to_be_bytes());
        out.extend(last.to_be_bytes());
    }
    compressed(&out)
}

/// Everything in front of a set of version 1, and its version.
fn head(behaviour: u8, rules: usize) -> Vec<u8> {
    let mut out = b"MRS\x01".to_vec();
    out.push(behaviour);
    out.extend((rules as u64).to_be_bytes());
    out.extend([0; 8]);
    out.push(1);
    out
}

/// A frame of zstd (RFC 8878) with the bytes as they are.
fn compressed(plain: &[u8]) -> Vec<u8> {
    /// The longest block, and the window.
    const BLOCK: usize = 1 << 17;
    let mut out = 0xfd2f_b528_u32.to_le_bytes().to_vec();
    // No length, no checksum; a window of 2^(10 + 7) bytes.
    out.extend([0, 7 << 3]);
    let last = plain.len().div_ceil(BLOCK).saturating_sub(1);
    for (n, block) in plain.chunks(BLOCK).enumerate() {
        let head = block.len() << 3 | usize::from(n == last);
        out.extend(&head.to_le_bytes()[..3]);
        out.extend(block);
    }
    out
}

/// Fuzz target: any bytes are read within bounds, as a file and as its contents.
#[doc(hidden)]
pub fn fuzz_mrs(data: &[u8]) {
    for entries in [read_mrs(data), read_plain(data)].into_iter().flatten() {
        assert!(
            entries.names().all(|(name, _)| !name.is_empty() && name.len() <= adit_model::entries::MAX_NAME)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by mihomo (Alpha, February 2025) out of `domain.yaml` and `ipcidr.txt` beside them.
    const DOMAIN: &[u8] = include_bytes!("../../../../testdata/clash/mrs/domain.mrs");
    const ADDRESS: &[u8] = include_bytes!("../../../../testdata/clash/mrs/ipcidr.mrs");

    /// The names of `domain.yaml`: a.test, +.b.test, *.c.test, .d.test.
    fn plain() -> Vec<u8> {
        let mut plain = b"MRS\x01\x00".to_vec();
        plain.extend([0, 0, 0, 0, 0, 0, 0, 4]);
        plain.extend([0; 8]);
        plain.push(1);
        plain.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        plain.extend(0xe0c0_u64.to_be_bytes());
        plain.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        plain.extend(0x7aaa_c2aa_u64.to_be_bytes());
        plain.extend([0, 0, 0, 0, 0, 0, 0, 15]);
        plain.extend(b"tset.abcd...+*+");
        plain
    }

    #[test]
    fn files_of_mihomo() {
        let found = read_mrs(DOMAIN).unwrap();
        let mut names: Vec<_> = found.names().map(|(name, scope)| format!("{name} {scope:?}")).collect();
        names.sort();
        assert_eq!(names, ["a.test Exact", "b.test Below", "b.test Exact", "d.test Below"]);
        assert_eq!(found.regexes, [r"^[^.]+\.c\.test$".into()]);
        assert_eq!(read_plain(&plain()).unwrap(), found);
        let found = read_mrs(ADDRESS).unwrap();
        let range = |text: &str| match adit_model::rule::Cidr::parse(text).unwrap().range() {
            AddressRange::V4(first, last) => (first, last),
            AddressRange::V6(..) => panic!("no IPv4"),
        };
        assert_eq!(found.v4, [range("198.18.4.0/23")]);
        assert_eq!(found.v6, [(0x2001_0db8 << 96, (0x2001_0db9 << 96) - 1)]);
    }

    #[test]
    fn cut_and_broken_files() {
        for file in [DOMAIN, ADDRESS] {
            for len in 0..file.len() - 4 {
                assert!(read_mrs(&file[..len]).is_err(), "{len}");
            }
        }
        let plain = plain();
        for len in 0..plain.len() {
            assert!(read_plain(&plain[..len]).is_err(), "{len}");
        }
        for at in 0..plain.len() * 8 {
            let mut broken = plain.clone();
            broken[at / 8] ^= 1 << (at % 8);
            fuzz_mrs(&broken);
        }
        let mut huge = plain.clone();
        huge[22..30].fill(0xff);
        assert_eq!(read_plain(&huge), Err(CUT.to_owned()));
    }

    #[test]
    fn a_tree_that_leads_back() {
        let tree = Tree { leaves: vec![0], bitmap: vec![0b1101], labels: b"ab".to_vec() };
        assert!(tree.keys(&mut |_| ()).is_err());
    }
}
