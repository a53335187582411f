//! `GeoSite.dat` and `GeoIP.dat`: lists of names and of networks by code, as messages of protocol buffers.
//!
//! ```text
//! GeoSiteList { 1: entry { 1: code, 2: domain { 1: kind, 2: value, 3: attribute { 1: key } } } }
//! GeoIPList   { 1: entry { 1: code, 2: cidr { 1: 4 or 16 bytes, 2: prefix }, 3: reverse } }
//! kind: 0 word, 1 regular expression, 2 name and all below, 3 name
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use adit_model::entries::{Entries, Scope};
use adit_model::map::Map;
use adit_model::rule::Cidr;

use super::succinct::Input;

/// The value of a field.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The next field of a message, with its number; `None` at the end.
fn field<'a>(input: &mut Input<'a>) -> Result<Option<(u64, Field<'a>)>, String> {
    if input.0.is_empty() {
        return Ok(None);
    }
    let cut = || "the file is cut off".to_owned();
    let key = input.varint().ok_or_else(cut)?;
    let value = match key & 7 {
        0 => Field::Number(input.varint().ok_or_else(cut)?),
        1 => Field::Bytes(input.take(8).ok_or_else(cut)?),
        2 => {
            let len = input.short_count(1).ok_or_else(cut)?;
            Field::Bytes(input.take(len).ok_or_else(cut)?)
        }
        5 => Field::Bytes(input.take(4).ok_or_else(cut)?),
        _ => return Err("no list of names or networks by code".to_owned()),
    };
    Ok(Some((key >> 3, value)))
}

/// Calls `visit` with the fields of each entry whose code, in lower case, is wanted.
fn entries(
    bytes: &[u8],
    is_wanted: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(&str, Input<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut list = Input(bytes);
    while let Some((number, value)) = field(&mut list)? {
        let (1, Field::Bytes(entry)) = (number, value) else { continue };
        let mut fields = Input(entry);
        let mut code = String::new();
        while let Some((number, value)) = field(&mut fields)? {
            if let (1, Field::Bytes(text)) = (number, value) {
                code = String::from_utf8_lossy(text).to_lowercase();
                break;
            }
        }
        if is_wanted(&code) {
            visit(&code, Input(entry))?;
        }
    }
    Ok(())
}

/// One line of a list of names.
struct Domain<'a> {
    kind: u64,
    value: &'a str,
    attributes: Vec<String>,
}

fn domain<'a>(bytes: &'a [u8]) -> Result<Domain<'a>, String> {
    let mut input = Input(bytes);
    let mut found = Domain { kind: 0, value: "", attributes: Vec::new() };
    while let Some((number, value)) = field(&mut input)? {
        match (number, value) {
            (1, Field::Number(kind)) => found.kind = kind,
            (2, Field::Bytes(text)) => {
                found.value = std::str::from_utf8(text).map_err(|_| "a name that is no text")?;
            }
            (3, Field::Bytes(attribute)) => {
                let mut attribute = Input(attribute);
                while let Some((number, value)) = field(&mut attribute)? {
                    if let (1, Field::Bytes(key)) = (number, value) {
                        found.attributes.push(String::from_utf8_lossy(key).to_lowercase());
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The lists of names that are wanted: `code`, or `code@attribute@attribute` for the names that have all of them. All in
/// lower case. Lists that the file does not have are left out.
///
/// # Errors
/// The problem with the file.
pub fn read_geosite(bytes: &[u8], wanted: &BTreeSet<String>) -> Result<Map<String, Entries>, String> {
    let code_of = |wanted: &str| wanted.split('@').next().unwrap_or_default().trim().to_owned();
    let codes: BTreeSet<String> = wanted.iter().map(|wanted| code_of(wanted)).collect();
    let mut found: Map<String, Entries> = Map::new();
    entries(bytes, &|code| codes.contains(code), &mut |code, mut fields| {
        let lists: Vec<&String> = wanted.iter().filter(|wanted| code_of(wanted) == code).collect();
        for list in &lists {
            found.entry((*list).clone()).or_default();
        }
        while let Some((number, value)) = field(&mut fields)? {
            let (2, Field::Bytes(bytes)) = (number, value) else { continue };
            let domain = domain(bytes)?;
            for list in &lists {
                let mut attributes = list.split('@').skip(1).map(str::trim);
                if attributes.all(|attribute| domain.attributes.iter().any(|has| has == attribute)) {
                    add(found.entry((*list).clone()).or_default(), &domain)?;
                }
            }
        }
        Ok(())
    })?;
    Ok(found)
}

fn add(entries: &mut Entries, domain: &Domain<'_>) -> Result<(), String> {
    let name = domain.value.to_lowercase();
    match domain.kind {
        0 => entries.keywords.push(name.into()),
        1 => entries.regexes.push(domain.value.into()),
        2 => entries.add_name(&name, Scope::Tree),
        3 => entries.add_name(&name, Scope::Exact),
        kind => return Err(format!("unknown kind of name: {kind}")),
    }
    Ok(())
}

/// The networks of the codes that are wanted, in lower case. Codes that the file does not have are left out.
///
/// # Errors
/// The problem with the file.
pub fn read_geoip(bytes: &[u8], wanted: &BTreeSet<String>) -> Result<Map<String, Entries>, String> {
    let mut found: Map<String, Entries> = Map::new();
    entries(bytes, &|code| wanted.contains(code), &mut |code, mut fields| {
        let list = found.entry(code.to_owned()).or_default();
        while let Some((number, value)) = field(&mut fields)? {
            match (number, value) {
                (2, Field::Bytes(bytes)) => list.add_range(network(bytes)?.range()),
                (3, Field::Number(1..)) => return Err(format!("list {code} is reversed, which is not read")),
                _ => {}
            }
        }
        Ok(())
    })?;
    Ok(found)
}

fn network(bytes: &[u8]) -> Result<Cidr, String> {
    let mut input = Input(bytes);
    let (mut ip, mut prefix) = (None, 0);
    while let Some((number, value)) = field(&mut input)? {
        match (number, value) {
            (1, Field::Bytes(bytes)) => {
                let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
                ip = v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from));
            }
            (2, Field::Number(bits)) => prefix = u8::try_from(bits).unwrap_or(u8::MAX),
            _ => {}
        }
    }
    ip.and_then(|ip| Cidr::new(ip, prefix)).ok_or_else(|| "a bad network".to_owned())
}

/// Fuzz target: any bytes are read within bounds.
#[doc(hidden)]
pub fn fuzz_dat(data: &[u8]) {
    let wanted = BTreeSet::from(["cn".to_owned(), "shop@ads".to_owned(), String::new()]);
    for lists in [read_geosite(data, &wanted), read_geoip(data, &wanted)].into_iter().flatten() {
        assert!(lists.keys().all(|list| wanted.contains(list)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITES: &[u8] = include_bytes!("../../../../testdata/clash/geo/GeoSite.dat");
    const NETWORKS: &[u8] = include_bytes!("../../../../testdata/clash/geo/GeoIP.dat");

    fn wanted(codes: &[&str]) -> BTreeSet<String> {
        codes.iter().map(|code| (*code).to_owned()).collect()
    }

    #[test]
    fn lists_by_code() {
        let found = read_geosite(SITES, &wanted(&["cn", "shop@ads", "shop", "none"])).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["cn", "shop", "shop@ads"]);
        let cn = &found["cn"];
        let names: Vec<_> = cn.names().collect();
        assert_eq!(names, [("geocn.test", Scope::Tree), ("exact.geofull.test", Scope::Exact)]);
        assert_eq!((&*cn.keywords, cn.regexes.len()), (&["geoplain".into()][..], 1));
        let ads: Vec<_> = found["shop@ads"].names().collect();
        assert_eq!(ads, [("shop.test", Scope::Tree), ("ads.clean.test", Scope::Exact)]);
        assert_eq!(found["shop"].len(), 3);
        let found = read_geoip(NETWORKS, &wanted(&["cn", "private"])).unwrap();
        assert_eq!((found["cn"].v4.len(), found["cn"].v6.len(), found["private"].v4.len()), (1, 1, 1));
    }

    #[test]
    fn cut_and_broken_files() {
        for file in [SITES, NETWORKS] {
            for len in 0..file.len() {
                fuzz_dat(&file[..len]);
            }
            for at in 0..file.len() * 8 {
                let mut broken = file.to_vec();
                broken[at / 8] ^= 1 << (at % 8);
                fuzz_dat(&broken);
            }
        }
        assert!(read_geosite(&SITES[..SITES.len() - 1], &wanted(&["private"])).is_err());
    }
}
