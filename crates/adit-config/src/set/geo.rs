//! Databases that tell the country of an address, in MaxMind's format.
//!
//! A record is a map with `country.iso_code` (GeoLite2, GeoIP2, DB-IP), a text (sing-geoip), or a text or a list of
//! texts (Meta-geoip0); texts are country codes in lower case. Other codes than two letters are passed over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use maxminddb::{Reader, WithinOptions};
use serde::Deserialize;

use super::Entries;
use crate::model::rule::{Cidr, Country};

/// Longest database, in bytes; GeoLite2-City has 60 MB.
pub const MAX_GEO_LEN: usize = 128 << 20;

/// Most networks that are read; GeoLite2-City has five million.
const MAX_NETWORKS: usize = 1 << 24;

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
) -> Result<BTreeMap<Country, Entries>, maxminddb::MaxMindDbError> {
    let reader = Reader::from_source(bytes)?;
    let mut countries: BTreeMap<Country, Entries> = BTreeMap::new();
    // Millions of networks share some hundred records.
    let mut known: HashMap<usize, Vec<Country>> = HashMap::new();
    for found in reader.networks(WithinOptions::default())?.take(MAX_NETWORKS) {
        let found = found?;
        let Some(offset) = found.offset() else { continue };
        if let std::collections::hash_map::Entry::Vacant(vacant) = known.entry(offset) {
            vacant.insert(codes(found.decode()?, wanted));
        }
        let codes = &known[&offset];
        if codes.is_empty() {
            continue;
        }
        let network = found.network()?;
        let Some(cidr) = of_database(network.ip(), network.prefix()) else { continue };
        for code in codes {
            countries.entry(*code).or_default().add_range(cidr.range());
        }
    }
    Ok(countries)
}

/// The networks of each text in `wanted` (countries and other codes, in lower case); those without any are left out.
///
/// # Errors
/// The problem with the database.
pub fn read_codes(bytes: Vec<u8>, wanted: &BTreeSet<String>) -> Result<BTreeMap<String, Entries>, String> {
    read_by(bytes, |record: Option<Record>| {
        let texts = texts(record).into_iter().map(|text| text.to_lowercase());
        texts.filter(|text| wanted.contains(text)).collect()
    })
}

/// The networks of each number of an autonomous system in `wanted`; those without any are left out.
///
/// # Errors
/// The problem with the database.
pub fn read_numbers(bytes: Vec<u8>, wanted: &BTreeSet<u32>) -> Result<BTreeMap<u32, Entries>, String> {
    read_by(bytes, |record: Option<System>| {
        let named = |text: String| text.trim_start_matches("AS").parse().ok();
        let number = record.and_then(|record| record.number.or_else(|| record.asn.and_then(named)));
        number.into_iter().filter(|number| wanted.contains(number)).collect()
    })
}

/// The networks of a database by the keys that `keys` finds in a record.
fn read_by<R: for<'a> Deserialize<'a>, K: Ord + Clone>(
    bytes: Vec<u8>,
    keys: impl Fn(Option<R>) -> Vec<K>,
) -> Result<BTreeMap<K, Entries>, String> {
    let bad = |error: maxminddb::MaxMindDbError| error.to_string();
    let reader = Reader::from_source(bytes).map_err(bad)?;
    let mut lists: BTreeMap<K, Entries> = BTreeMap::new();
    let mut known: HashMap<usize, Vec<K>> = HashMap::new();
    for found in reader.networks(WithinOptions::default()).map_err(bad)?.take(MAX_NETWORKS) {
        let found = found.map_err(bad)?;
        let Some(offset) = found.offset() else { continue };
        if let std::collections::hash_map::Entry::Vacant(vacant) = known.entry(offset) {
            vacant.insert(keys(found.decode().map_err(bad)?));
        }
        if known[&offset].is_empty() {
            continue;
        }
        let network = found.network().map_err(bad)?;
        let Some(cidr) = of_database(network.ip(), network.prefix()) else { continue };
        for key in &known[&offset] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::rule::AddressRange;

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
