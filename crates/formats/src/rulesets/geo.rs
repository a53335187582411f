//! Databases that tell the country of an address, in MaxMind's format.
//!
//! A record is a map with `country.iso_code` (GeoLite2, GeoIP2, DB-IP), a text (sing-geoip), or a text or a list of
//! texts (Meta-geoip0); texts are country codes in lower case. Other codes than two letters are passed over.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use maxminddb::{Reader, WithinOptions};
use serde::Deserialize;

use adit_model::entries::Entries;
use adit_model::map::Map;
use adit_model::rule::{Cidr, Country};

/// Longest database, in bytes; GeoLite2-City has 60 MB.
pub const MAX_GEO_LEN: usize = 128 << 20;

/// Most networks that are read; GeoLite2-City has five million.
const MAX_NETWORKS: usize = 1 << 24;

/// Visits of a node on the way to all leaves, on average: the networks of IPv4 are reached by some aliases too. In a tree
/// that is none, a hundred nodes may have more ways than there are addresses.
const MAX_VISITS: usize = 16;

#[derive(Deserialize)]
#[serde(untagged)]
enum Record {
    Text(String),
    Texts(Vec<String>),
    Map {
        #[serde(default)]
        country: Option<Named>,
    },
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    iso_code: Option<String>,
}

/// The networks of the countries in `wanted`; those without any are left out.
pub(super) fn read(
    bytes: Vec<u8>,
    wanted: &BTreeSet<Country>,
) -> Result<Map<Country, Entries>, maxminddb::MaxMindDbError> {
    read_by(bytes, |record| codes(record, wanted))
}

/// Whether all ways through the search tree at the front of `bytes` are about as many as its nodes. A node is two numbers
/// of `record_len` bits.
fn is_tree(bytes: &[u8], nodes: usize, record_len: usize) -> bool {
    let mut left = nodes.saturating_mul(MAX_VISITS).saturating_add(1024);
    let mut stack = vec![(0, 0)];
    while let Some((node, depth)) = stack.pop() {
        if node >= nodes || depth >= 128 {
            continue;
        }
        let Some(rest) = left.checked_sub(1) else { return false };
        left = rest;
        let Some(children) = children(bytes, node, record_len) else { return false };
        stack.extend(children.map(|child| (child, depth + 1)));
    }
    true
}

/// The two numbers of a node.
fn children(bytes: &[u8], node: usize, record_len: usize) -> Option<[usize; 2]> {
    let len = record_len / 4;
    let record = bytes.get(node.checked_mul(len)?..)?.get(..len)?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
    match *record {
        // The middle byte holds the highest four bits of both.
        [ref left @ .., middle, a, b, c] if record_len == 28 => {
            let high = |bits: u8| usize::from(bits) << 24;
            Some([high(middle >> 4) | number(left), high(middle & 0xf) | number(&[a, b, c])])
        }
        _ => Some([number(record.get(..len / 2)?), number(record.get(len / 2..)?)]),
    }
}

/// The networks of each text in `wanted` (countries and other codes, in lower case); those without any are left out.
///
/// # Errors
/// The problem with the database.
pub fn read_codes(bytes: Vec<u8>, wanted: &BTreeSet<String>) -> Result<Map<String, Entries>, String> {
    read_by(bytes, |record: Option<Record>| {
        let texts = texts(record).into_iter().map(|text| text.to_lowercase());
        texts.filter(|text| wanted.contains(text)).collect()
    })
    .map_err(|error| error.to_string())
}

/// The networks of each number of an autonomous system in `wanted`; those without any are left out.
///
/// # Errors
/// The problem with the database.
pub fn read_numbers(bytes: Vec<u8>, wanted: &BTreeSet<u32>) -> Result<Map<u32, Entries>, String> {
    read_by(bytes, |record: Option<System>| {
        let named = |text: String| text.trim_start_matches("AS").parse().ok();
        let number = record.and_then(|record| record.number.or_else(|| record.asn.and_then(named)));
        number.into_iter().filter(|number| wanted.contains(number)).collect()
    })
    .map_err(|error| error.to_string())
}

/// The networks of a database by the keys that `keys` finds in a record.
fn read_by<R: for<'a> Deserialize<'a>, K: Ord + Clone>(
    bytes: Vec<u8>,
    keys: impl Fn(Option<R>) -> Vec<K>,
) -> Result<Map<K, Entries>, maxminddb::MaxMindDbError> {
    let reader = Reader::from_source(&bytes)?;
    if !is_tree(&bytes, reader.metadata().node_count as usize, reader.metadata().record_size.into()) {
        return Err(maxminddb::MaxMindDbError::invalid_database(
            "its search tree leads many ways to one place",
        ));
    }
    let mut lists: Map<K, Entries> = Map::new();
    // Millions of networks share some hundred records.
    let mut known: HashMap<usize, Vec<K>> = HashMap::new();
    for found in reader.networks(WithinOptions::default())?.take(MAX_NETWORKS) {
        let found = found?;
        let Some(offset) = found.offset() else { continue };
        if let std::collections::hash_map::Entry::Vacant(vacant) = known.entry(offset) {
            vacant.insert(keys(found.decode()?));
        }
        let keys = &known[&offset];
        if keys.is_empty() {
            continue;
        }
        let network = found.network()?;
        let Some(cidr) = of_database(network.ip(), network.prefix()) else { continue };
        for key in keys {
            lists.entry(key.clone()).or_default().add_range(cidr.range());
        }
    }
    Ok(lists)
}

/// A record of a database of autonomous systems (GeoLite2, DB-IP; ipinfo).
#[derive(Deserialize)]
struct System {
    #[serde(default, rename = "autonomous_system_number")]
    number: Option<u32>,
    #[serde(default)]
    asn: Option<String>,
}

fn texts(record: Option<Record>) -> Vec<String> {
    match record {
        None => Vec::new(),
        Some(Record::Text(text)) => vec![text],
        Some(Record::Texts(texts)) => texts,
        Some(Record::Map { country }) => country.and_then(|named| named.iso_code).into_iter().collect(),
    }
}

fn codes(record: Option<Record>, wanted: &BTreeSet<Country>) -> Vec<Country> {
    texts(record)
        .iter()
        .filter_map(|text| Country::parse(text))
        .filter(|code| wanted.contains(code))
        .collect()
}

/// A database for both families keeps IPv4 below `::/96`.
fn of_database(ip: IpAddr, prefix: u8) -> Option<Cidr> {
    if let (IpAddr::V6(v6), Some(prefix)) = (ip, prefix.checked_sub(96))
        && let Ok(v4) = u32::try_from(v6.to_bits())
    {
        return Cidr::new(IpAddr::V4(v4.into()), prefix);
    }
    Cidr::new(ip, prefix)
}

/// Fuzz target: any bytes are read in bounded time, and give countries that were asked for alone.
#[doc(hidden)]
pub fn fuzz_geo(data: &[u8]) {
    let wanted: BTreeSet<Country> =
        ["cn", "us", "de"].iter().filter_map(|code| Country::parse(code)).collect();
    if let Ok(found) = read(data.to_vec(), &wanted) {
        for (code, entries) in &found {
            assert!(wanted.contains(code));
            assert!(entries.v4.iter().all(|(first, last)| first <= last));
            assert!(entries.v6.iter().all(|(first, last)| first <= last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_model::rule::AddressRange;

    /// A database of Meta-geoip0, made by the encoder of the project's vectors for the Clash API.
    const DATABASE: &[u8] = include_bytes!("../../../../testdata/route/geoip.metadb");

    fn wanted(codes: &[&str]) -> BTreeSet<Country> {
        codes.iter().map(|code| Country::parse(code).unwrap()).collect()
    }

    #[test]
    fn countries_of_a_database() {
        let found = read(DATABASE.to_vec(), &wanted(&["de", "xx", "cn", "us"])).unwrap();
        let v4: Vec<_> = found.iter().map(|(code, entries)| (code.to_string(), entries.v4.clone())).collect();
        let net = |text: &str| match Cidr::parse(text).unwrap().range() {
            AddressRange::V4(first, last) => (first, last),
            AddressRange::V6(..) => panic!("{text}"),
        };
        let want = [
            ("cn".to_owned(), vec![net("127.0.7.0/24"), net("203.0.113.0/26")]),
            ("us".to_owned(), vec![net("203.0.113.128/26")]),
        ];
        assert_eq!(v4, want);
    }

    #[test]
    fn addresses_of_both_families() {
        let range = |ip: &str, prefix| of_database(ip.parse().unwrap(), prefix).map(Cidr::range);
        assert_eq!(range("::192.0.2.0", 120), Some(AddressRange::V4(0xc000_0200, 0xc000_02ff)));
        assert_eq!(range("192.0.2.0", 24), Some(AddressRange::V4(0xc000_0200, 0xc000_02ff)));
        assert!(matches!(range("2001:db8::", 32), Some(AddressRange::V6(..))));
    }

    /// A database of some hundred bytes, each of whose nodes leads twice to the next one. It has 2^100 ways.
    #[test]
    fn a_tree_that_is_none_ends_at_once() {
        const NODES: u32 = 100;
        let marker = DATABASE.windows(14).rposition(|part| part == b"\xab\xcd\xefMaxMind.com").unwrap();
        let mut metadata = DATABASE[marker..].to_vec();
        let at = metadata.windows(11).position(|part| part == b"\x4anode_count").unwrap() + 11;
        let len = usize::from(metadata[at] & 0x1f);
        metadata.splice(at..=at + len, [0xc1, NODES.to_be_bytes()[3]]);
        let at = metadata.windows(12).position(|part| part == b"\x4brecord_size").unwrap() + 12;
        metadata.splice(at..=at + usize::from(metadata[at] & 0x1f), [0xa1, 24]);
        let next = |node: u32| [&(node + 1).to_be_bytes()[1..], &(node + 1).to_be_bytes()[1..]].concat();
        let mut bytes: Vec<u8> = (0..NODES).flat_map(next).collect();
        bytes.extend([0; 16]);
        bytes.extend(metadata);
        let error = read(bytes, &wanted(&["de"])).unwrap_err();
        assert!(error.to_string().contains("many ways"), "{error}");
    }

    #[test]
    fn nodes_of_each_length() {
        let bytes = [0x12, 0x34, 0x56, 0xab, 0x65, 0x43, 0x21, 0x99];
        assert_eq!(children(&bytes, 0, 24), Some([0x12_3456, 0xab_6543]));
        assert_eq!(children(&bytes, 0, 28), Some([0xa12_3456, 0xb65_4321]));
        assert_eq!(children(&bytes, 0, 32), Some([0x1234_56ab, 0x6543_2199]));
        assert_eq!((children(&bytes, 1, 24), children(&bytes, usize::MAX, 32)), (None, None));
    }

    #[test]
    fn databases_that_are_cut_or_changed() {
        let wanted = wanted(&["de", "cn"]);
        for len in (0..DATABASE.len()).step_by(5) {
            read(DATABASE[..len].to_vec(), &wanted).ok();
        }
        for at in (0..DATABASE.len()).step_by(7) {
            let mut changed = DATABASE.to_vec();
            changed[at] ^= 1;
            read(changed, &wanted).ok();
        }
    }
}
