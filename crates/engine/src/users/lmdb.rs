//! Reads the store of earlier versions: an LMDB file with one unnamed database, as adit wrote it up to 0.1.
//!
//! ```text
//!   page:   number u64 | pad u16 | flags u16 | lower u16 | upper u16 | ...          LMDB 0.9, 64 bits, little-endian
//!   meta:   pages 0 and 1, behind the header:
//!             0  4  0xBEEFC0DE    4  4  version 1    8  8  address    16  8  map size
//!            24 48  free pages: page size u32 | flags u16 | depth u16 | 4 counts u64 | root u64
//!            72 48  records, the same                 120  8  last page    128  8  transaction
//!   branch, leaf: u16 offsets of nodes from byte 16 up to `lower`
//!   node:   low u16 | high u16 | flags u16 | key length u16 | key | data
//!           branch: child = low | high << 16 | flags << 32;  leaf: data length = low | high << 16
//! ```
//!
//! Pages are read one at a time, and each at most once: a damaged file costs no more time or memory than a whole one of
//! its length.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

const MAGIC: u32 = 0xBEEF_C0DE;
const HEADER_LEN: usize = 16;
const META_LEN: usize = HEADER_LEN + 136;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const DEEPEST: u32 = 32;
/// Largest file that adit ever made, in bytes.
const MAX_LEN: u64 = 1 << 28;
/// Most records that are read.
const MAX_RECORDS: usize = 1 << 20;

/// A key and its value.
pub(super) type Pair = (Box<[u8]>, Box<[u8]>);

/// Whether the file begins as an LMDB file does.
pub(super) fn is_store(file: &File) -> bool {
    let mut head = [0; HEADER_LEN + 4];
    file.read_exact_at(&mut head, 0).is_ok() && head[HEADER_LEN..] == MAGIC.to_le_bytes()
}

/// All records, and whether that is all of them: of a damaged file, what is left.
pub(super) fn read(file: &File) -> (Vec<Pair>, bool) {
    let len = file.metadata().map_or(0, |metadata| metadata.len()).min(MAX_LEN);
    read_from(len, |at, out: &mut [u8]| file.read_exact_at(out, at).is_ok())
}

/// The same from anything that fills a slice from an offset on, and is `len` bytes long.
fn read_from(len: u64, fill: impl Fn(u64, &mut [u8]) -> bool) -> (Vec<Pair>, bool) {
    let meta = |at| {
        let mut bytes = [0; META_LEN];
        fill(at, &mut bytes).then(|| Meta::parse(&bytes)).flatten()
    };
    let first = meta(0);
    let page_len = first.as_ref().map_or(4096, |meta| meta.page_len);
    let mut metas: Vec<Meta> = first.into_iter().chain(meta(page_len as u64)).collect();
    metas.sort_by_key(|meta| std::cmp::Reverse(meta.transaction));
    let mut best = Vec::new();
    for meta in metas {
        let mut walk = Walk::new(len, &fill, meta.page_len);
        let is_whole =
            meta.root.is_none_or(|root| walk.page(root, 0)) && walk.pairs.len() as u64 == meta.entries;
        if is_whole {
            return (walk.pairs, true);
        }
        // The state before the last change is mostly there as well.
        if walk.pairs.len() > best.len() {
            best = walk.pairs;
        }
    }
    (best, false)
}

struct Meta {
    page_len: usize,
    entries: u64,
    root: Option<u64>,
    transaction: u64,
}

impl Meta {
    fn parse(page: &[u8]) -> Option<Self> {
        let meta = page.get(HEADER_LEN..)?;
        let page_len = u32_at(meta, 24)? as usize;
        let is_meta = u32_at(meta, 0)? == MAGIC
            && u32_at(meta, 4)? == 1
            && page_len.is_power_of_two()
            && (512..=65_536).contains(&page_len);
        let root = u64_at(meta, 112)?;
        let root = (root != u64::MAX).then_some(root);
        let (entries, transaction) = (u64_at(meta, 104)?, u64_at(meta, 128)?);
        is_meta.then_some(Self { page_len, entries, root, transaction })
    }
}

/// One pass over a tree.
struct Walk<'f, F> {
    fill: &'f F,
    page_len: usize,
    seen: Vec<bool>,
    pairs: Vec<Pair>,
}

impl<'f, F: Fn(u64, &mut [u8]) -> bool> Walk<'f, F> {
    fn new(len: u64, fill: &'f F, page_len: usize) -> Self {
        let pages = usize::try_from(len / page_len as u64).unwrap_or(0);
        Self { fill, page_len, seen: vec![false; pages], pairs: Vec::new() }
    }

    /// Reads a page and everything beneath it. False if some of it cannot be read.
    fn page(&mut self, number: u64, depth: u32) -> bool {
        let Some(seen) = usize::try_from(number).ok().and_then(|at| self.seen.get_mut(at)) else {
            return false;
        };
        if std::mem::replace(seen, true) || depth > DEEPEST {
            return false;
        }
        let mut page = vec![0; self.page_len];
        if !(self.fill)(number * self.page_len as u64, &mut page) || u64_at(&page, 0) != Some(number) {
            return false;
        }
        let (flags, lower) = (u16_at(&page, 10).unwrap_or(0), usize::from(u16_at(&page, 12).unwrap_or(0)));
        if !(HEADER_LEN..=self.page_len).contains(&lower) || self.pairs.len() > MAX_RECORDS {
            return false;
        }
        let mut is_whole = true;
        // Records lie side by side: those that share bytes would add up to far more than the page.
        let mut left = self.page_len - lower;
        for at in (HEADER_LEN..lower & !1).step_by(2) {
            let node = u16_at(&page, at).and_then(|at| page.get(usize::from(at)..));
            is_whole &= match (node, flags & (BRANCH | LEAF)) {
                (Some(node), BRANCH) => child(node).is_some_and(|child| self.page(child, depth + 1)),
                (Some(node), LEAF) => pair(node, &mut left).map(|pair| self.pairs.push(pair)).is_some(),
                _ => false,
            };
        }
        is_whole
    }
}

fn child(node: &[u8]) -> Option<u64> {
    let [low, high, flags] = [u16_at(node, 0)?, u16_at(node, 2)?, u16_at(node, 4)?].map(u64::from);
    Some(low | high << 16 | flags << 32)
}

/// A record, which takes its length from the bytes that are `left` of its page. Flags say that it lies elsewhere, which
/// ours never do.
fn pair(node: &[u8], left: &mut usize) -> Option<Pair> {
    let [low, high, flags, key_len] =
        [u16_at(node, 0)?, u16_at(node, 2)?, u16_at(node, 4)?, u16_at(node, 6)?].map(usize::from);
    let (key, rest) = node.get(8..)?.split_at_checked(key_len)?;
    let value = rest.get(..low | high << 16)?;
    *left = left.checked_sub(8 + key_len + value.len())?;
    (flags == 0).then(|| (key.into(), value.into()))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Fuzz target: of any file no more is taken than it holds.
#[doc(hidden)]
pub fn fuzz_lmdb(data: &[u8]) {
    let (pairs, is_whole) = read_from(data.len() as u64, |at, out: &mut [u8]| {
        let from = usize::try_from(at).ok().and_then(|at| data.get(at..)?.get(..out.len()));
        from.is_some_and(|from| {
            out.copy_from_slice(from);
            true
        })
    });
    let taken: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(taken <= data.len(), "{taken} of {}", data.len());
    assert!(!is_whole || data.len() >= META_LEN);
}

/// Files that adit made when it still wrote them with LMDB (heed 0.22.1, LMDB 0.9, Linux on x86-64).
#[cfg(test)]
pub(super) mod tests {
    use super::super::account::AccountRecord;
    use super::*;

    const EMPTY: &[u8] = include_bytes!("../../../../testdata/users/empty.lmdb");
    pub(in crate::users) const SMALL: &[u8] = include_bytes!("../../../../testdata/users/small.lmdb");
    const MANY: &[u8] = include_bytes!("../../../../testdata/users/many.lmdb");

    fn read_bytes(bytes: &[u8]) -> (Vec<Pair>, bool) {
        read_from(bytes.len() as u64, |at, out: &mut [u8]| {
            let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..out.len()));
            from.is_some_and(|from| {
                out.copy_from_slice(from);
                true
            })
        })
    }

    /// The record of number `n` in the fixtures.
    fn record(n: u64) -> AccountRecord {
        AccountRecord { up: n * 1_000_003, down: n * 7, requests: n, base: n * 3, period: n % 2 * 24_323 }
    }

    #[test]
    fn stores_of_earlier_versions_are_read() {
        assert_eq!(read_bytes(EMPTY), (Vec::new(), true));
        let (pairs, is_whole) = read_bytes(SMALL);
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (&**key, AccountRecord::parse(value))).collect();
        let want = [(&b"in two\0ann"[..], 3), (b"snell\0ann", 4), (b"snell\0bob", 2)];
        assert_eq!((pairs, is_whole), (want.map(|(key, n)| (key, Some(record(n)))).to_vec(), true));
        let (pairs, is_whole) = read_bytes(MANY);
        assert!(is_whole);
        let pairs: std::collections::BTreeMap<_, _> = pairs.into_iter().collect();
        assert_eq!(pairs.len(), 400);
        for n in 0..400_u64 {
            let long = if n == 7 { 300 } else { 0 };
            let key = format!("server\0user{n}{}", "x".repeat(long));
            // The last of five rounds that divides it.
            let round = (1..6).rev().find(|round| n % round == 0).unwrap();
            assert_eq!(AccountRecord::parse(&pairs[key.as_bytes()]), Some(record(n + round)), "{n}");
        }
    }

    #[test]
    fn a_damaged_store_gives_what_is_left_and_no_panic() {
        for len in (0..SMALL.len()).step_by(61).chain(SMALL.len() - 20..SMALL.len()) {
            assert!(read_bytes(&SMALL[..len]).0.len() <= 3);
        }
        let mut bytes = SMALL.to_vec();
        for at in 0..bytes.len() {
            for value in [0, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x10] {
                let kept = std::mem::replace(&mut bytes[at], value);
                assert!(read_bytes(&bytes).0.len() <= 600, "{at}");
                bytes[at] = kept;
            }
        }
        // The two bytes that used to end the process: the flags of a leaf.
        let leaf = 0x3000;
        bytes[leaf + 10..leaf + 12].copy_from_slice(&[0xff, 0xff]);
        bytes[leaf + 16..leaf + 18].copy_from_slice(&[0xff, 0xff]);
        let (pairs, is_whole) = read_bytes(&bytes);
        assert!(is_whole && pairs.len() == 3, "the state before the last change");
    }

    /// One page whose 2,000 records are all the same 2,000 bytes: four megabytes out of one page.
    #[test]
    fn records_that_share_their_bytes_are_damage() {
        let mut bytes = SMALL.to_vec();
        let at =
            (0..bytes.len() / 4096).find(|at| u16_at(&bytes, at * 4096 + 10) == Some(LEAF)).unwrap() * 4096;
        let node = [&2000_u16.to_le_bytes()[..], &[0; 6], &[7; 2000]].concat();
        bytes[at + 16..at + 4096].fill(0);
        bytes[at + 2080..at + 2080 + node.len()].copy_from_slice(&node);
        bytes[at + 12..at + 14].copy_from_slice(&2080_u16.to_le_bytes());
        for slot in (at + 16..at + 2080).step_by(2) {
            bytes[slot..slot + 2].copy_from_slice(&2080_u16.to_le_bytes());
        }
        fuzz_lmdb(&bytes);
        let (pairs, _) = read_bytes(&bytes);
        assert!(pairs.iter().filter(|(_, value)| value.len() == 2000).count() <= 1);
    }

    #[test]
    fn a_tree_that_leads_back_ends() {
        let mut bytes = MANY.to_vec();
        let page = |bytes: &[u8], at: usize| u16_at(bytes, at * 4096 + 10) == Some(BRANCH);
        for at in (0..bytes.len() / 4096).filter(|at| page(MANY, *at)) {
            let node = at * 4096 + usize::from(u16_at(&bytes, at * 4096 + 16).unwrap());
            let number = u16::try_from(at).unwrap().to_le_bytes();
            bytes[node..node + 2].copy_from_slice(&number);
        }
        let (pairs, is_whole) = read_bytes(&bytes);
        assert!(!is_whole && !pairs.is_empty() && pairs.len() < 400);
    }
}
