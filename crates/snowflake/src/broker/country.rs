//! Countries of addresses, from Tor's files: `low,high,CC` per line, numbers for IPv4 and addresses for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use adit_net::files;

use super::MAX_FILE;

/// The country of an address that is in no range.
pub(super) const UNKNOWN: &str = "??";

/// A range of addresses and its country.
type Range<T> = (T, T, [u8; 2]);

/// Ranges, sorted by their first address.
#[derive(Debug, Default)]
pub(super) struct Countries {
    v4: Vec<Range<u32>>,
    v6: Vec<Range<u128>>,
}

impl Countries {
    /// Reads both files.
    ///
    /// # Errors
    /// The file that cannot be read or holds a wrong line, and why.
    pub(super) fn load(v4: &Path, v6: &Path) -> Result<Self, (String, String)> {
        let read = |path: &Path| {
            files::read_text(path, MAX_FILE).map_err(|error| (path.display().to_string(), error.to_string()))
        };
        let wrong = |path: &Path| {
            let path = path.display().to_string();
            move |problem| (path, problem)
        };
        let ranges = (parse(&read(v4)?, number_v4), parse(&read(v6)?, number_v6));
        Ok(Self { v4: ranges.0.map_err(wrong(v4))?, v6: ranges.1.map_err(wrong(v6))? })
    }

    pub(super) fn find(&self, address: Option<IpAddr>) -> &str {
        let found = match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => lookup(&self.v4, u32::from(address)),
            Some(IpAddr::V6(address)) => lookup(&self.v6, u128::from(address)),
            None => None,
        };
        found.unwrap_or(UNKNOWN)
    }
}

fn number_v4(text: &str) -> Option<u32> {
    text.parse().ok().or_else(|| text.parse::<Ipv4Addr>().ok().map(u32::from))
}

fn number_v6(text: &str) -> Option<u128> {
    text.parse::<Ipv6Addr>().ok().map(u128::from)
}

/// For the fuzz target: `text` as each of the files. The country of an address is that of the last range that begins at it
/// or before.
pub(super) fn fuzz(text: &str) {
    fn each<T: Ord + Copy>(ranges: &[Range<T>]) {
        for (low, ..) in ranges {
            let (_, high, country) = ranges.iter().rfind(|(first, ..)| first <= low).expect("this one does");
            assert_eq!(lookup(ranges, *low).map(str::as_bytes), (low <= high).then_some(&country[..]));
        }
    }
    each(&parse(text, number_v4).unwrap_or_default());
    each(&parse(text, number_v6).unwrap_or_default());
}

fn parse<T: Ord + Copy>(text: &str, number: impl Fn(&str) -> Option<T>) -> Result<Vec<Range<T>>, String> {
    let mut out = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut parts = line.split(',');
        let mut part = || parts.next().unwrap_or_default();
        let range = (number(part()), number(part()), <[u8; 2]>::try_from(part().as_bytes()).ok());
        let (Some(low), Some(high), Some(country)) = range else {
            return Err(format!("line {}: not low,high,CC", at + 1));
        };
        if !country.is_ascii() {
            return Err(format!("line {}: country of two letters expected", at + 1));
        }
        out.push((low, high, country));
    }
    out.sort_unstable();
    Ok(out)
}

fn lookup<T: Ord + Copy>(ranges: &[Range<T>], address: T) -> Option<&str> {
    let at = ranges.partition_point(|(low, ..)| *low <= address).checked_sub(1)?;
    let (_, high, country) = &ranges[at];
    if address > *high { None } else { std::str::from_utf8(country).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_tor() {
        let folder = std::env::temp_dir();
        let [v4, v6] = [4, 6].map(|n| folder.join(format!("adit-geoip{n}-{}", std::process::id())));
        std::fs::write(&v4, "# comment\n16777216,16777471,AU\n3221225984,3221226239,DE\n").unwrap();
        std::fs::write(&v6, "2001:db8::,2001:db8::ffff,FR\n").unwrap();
        let found = Countries::load(&v4, &v6).unwrap();
        for (address, want) in [
            ("1.0.0.0", "AU"),
            ("1.0.0.255", "AU"),
            ("1.0.1.0", "??"),
            ("0.255.255.255", "??"),
            ("192.0.2.7", "DE"),
            ("::ffff:192.0.2.7", "DE"),
            ("2001:db8::5", "FR"),
            ("2001:db8:1::", "??"),
        ] {
            assert_eq!(found.find(Some(address.parse().unwrap())), want, "{address}");
        }
        assert_eq!(found.find(None), "??");
        std::fs::write(&v6, "2001:db8::,FR\n").unwrap();
        let (path, problem) = Countries::load(&v4, &v6).unwrap_err();
        assert!(path.contains("geoip6") && problem == "line 1: not low,high,CC", "{path} {problem}");
        std::fs::remove_file(&v4).unwrap();
        assert!(Countries::load(&v4, &v6).unwrap_err().0.contains("geoip4"));
        std::fs::remove_file(&v6).unwrap();
    }
}
