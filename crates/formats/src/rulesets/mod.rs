//! The lists that rules refer to: files of names and addresses, and the countries of addresses.
//!
//! [`load_sets`] reads everything that the rules of a configuration name. A router turns it into tables, after which
//! it is dropped.

mod dat;
mod file;
mod geo;
mod mrs;
mod srs;
mod succinct;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::Zeroizing;

pub use self::dat::{fuzz_dat, read_geoip, read_geosite};
pub use self::file::{MAX_LEN, fuzz_set, parse};
pub use self::geo::{MAX_GEO_LEN, fuzz_geo, read_codes, read_numbers};
pub use self::mrs::{fuzz_mrs, mrs_patterns, read_mrs, write_mrs_addresses, write_mrs_names};
pub use self::srs::{fuzz_srs, read_srs};
use adit_model::Config;
use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::entries::{Entries, Scope, Sets};
use adit_model::files::{self, FileError};
use adit_model::map::Map;
use adit_model::rule::{Country, FileLine, GeoFile, Matcher, Set, SetFormat};
use adit_model::{Provider, ProviderKind, ProviderSource};

/// Reads the sets of a configuration, and its database of countries if a rule names a country. Paths are relative
/// to the folder of the file that names them.
///
/// # Errors
/// Every file that cannot be read or is wrong, by its place.
pub fn load_sets(config: &Config) -> Result<Sets, Diagnostics> {
    let (mut sets, mut found) = (Sets::of(config.lists.clone()), Diagnostics::new());
    found.append(load_databases(&config.sets, &mut sets));
    for set in config.sets.iter().filter(|set| set.list.is_none()) {
        match load_set(set) {
            Ok(entries) => sets.insert(set.name.clone(), entries),
            Err(errors) => found.append(errors),
        }
    }
    let wanted = countries(config);
    if let Some(first) = wanted.values().next() {
        match &config.geoip {
            Some(file) => match load_countries(file, &wanted) {
                Ok(countries) => sets.set_countries(countries),
                Err(errors) => found.append(errors),
            },
            None => found.push(no_database(first)),
        }
    }
    if found.has_errors() { Err(found) } else { Ok(sets) }
}

/// Adds the lists of databases to `into`; each file is read once.
fn load_databases(all: &[Set], into: &mut Sets) -> Diagnostics {
    let mut found = Diagnostics::new();
    let mut files: Map<(PathBuf, bool), Vec<&Set>> = Map::new();
    for set in all.iter().filter(|set| set.list.is_some()) {
        let key = (beside(&set.at, &set.path), set.format == SetFormat::Addresses);
        files.entry(key).or_default().push(set);
    }
    for ((path, is_addresses), sets) in files {
        let wanted: BTreeSet<String> =
            sets.iter().filter_map(|set| set.list.as_deref()).map(str::to_owned).collect();
        let lists = read(&path, MAX_GEO_LEN).and_then(|bytes| {
            read_lists(bytes, is_addresses, &wanted)
                .map_err(|problem| format!("{}: {problem}", path.display()))
        });
        let hint = "set `path` to a database (GeoSite.dat, GeoIP.dat, .mmdb, .metadb), or leave out `list`";
        let lists = match lists {
            Ok(lists) => lists,
            Err(problem) => {
                found.push(misplaced(&sets[0].at, "set.path", problem, hint));
                continue;
            }
        };
        let lists: Map<String, Arc<Entries>> =
            lists.into_iter().map(|(code, entries)| (code, Arc::new(entries))).collect();
        for set in sets {
            let code = set.list.as_deref().unwrap_or_default();
            if let Some(entries) = lists.get(code) {
                into.insert_shared(set.name.clone(), Arc::clone(entries));
            } else {
                let problem = format!("{} has no list {code}", path.display());
                found.push(misplaced(&set.at, "set.list", problem, "see which lists the database has"));
            }
        }
    }
    found
}

/// The countries that rules name, each with the place of the first rule that does.
fn countries(config: &Config) -> Map<Country, FileLine> {
    let mut wanted = Map::new();
    for rule in &config.rules {
        rule.matcher.visit(&mut |matcher| {
            if let Matcher::GeoIp(codes, _) = matcher {
                for code in codes {
                    wanted.entry(*code).or_insert_with(|| rule.at.clone());
                }
            }
        });
    }
    wanted
}

fn no_database(at: &FileLine) -> Diagnostic {
    let error = Diagnostic::error(&at.file, "geoip", "no database of countries is named");
    place(error, at).hint("add `geoip = \"country.mmdb\"` at the top of the file")
}

/// The lists that are copies of a server's, for keeping them up to date.
pub fn providers(sets: &[Set]) -> Vec<Provider> {
    let provider = |set: &Set| {
        let download = set.download.clone()?;
        let format = SetFormat::ALL.iter().find(|(_, format)| *format == set.format);
        let format = format.map_or("any", |(name, _)| name);
        Some(Provider {
            name: set.name.clone(),
            kind: ProviderKind::Rules { behavior: SET, format, count: 0 },
            source: ProviderSource::Http(download),
            path: Some(beside(&set.at, &set.path)),
            problem: None,
        })
    };
    sets.iter().filter_map(provider).collect()
}

/// The behaviour of a provider that is a set.
pub(crate) const SET: &str = "set";

/// The number of entries in the document of a set.
///
/// # Errors
/// The first problem with it.
pub(crate) fn check(format: &str, bytes: &[u8]) -> Result<usize, String> {
    if let Some(compiled) = compiled(bytes) {
        let entries = compiled?;
        return if entries.is_empty() {
            Err("there is no name or network in it".to_owned())
        } else {
            Ok(entries.len())
        };
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "no text: it holds bytes that are no UTF-8")?;
    let text = &*plain_lines(text);
    let format = SetFormat::ALL.iter().find(|(name, _)| *name == format);
    let format = format.map_or(SetFormat::Any, |(_, format)| *format);
    let entries = parse("list", text, format).map_err(|found| {
        found
            .iter()
            .next()
            .map_or_else(String::new, |first| format!("line {}: {}", first.line, first.problem))
    })?;
    if entries.is_empty() { Err("there is no name or network in it".to_owned()) } else { Ok(entries.len()) }
}

/// The contents of a rule set that mihomo or sing-box compiled; `None` for a file of another kind.
fn compiled(bytes: &[u8]) -> Option<Result<Entries, String>> {
    /// The beginning of a frame of zstd (RFC 8878, section 3.1.1), which is that of `.mrs`.
    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    if bytes.starts_with(ZSTD) {
        return Some(read_mrs(bytes));
    }
    bytes.starts_with(b"SRS").then(|| read_srs(bytes))
}

/// The lines of a list: of one in mihomo's YAML its items, with the number of lines that it has.
fn plain_lines(text: &str) -> std::borrow::Cow<'_, str> {
    let is_head = |line: &str| matches!(line.trim_end(), "payload:" | "rules:");
    if !text.lines().take(MAX_HEAD).any(is_head) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut is_payload = false;
    for line in text.lines() {
        let item = line.trim_start().strip_prefix("- ").map(|item| item.trim().trim_matches(['\'', '"']));
        if let Some(item) = item.filter(|_| is_payload) {
            out.push_str(item);
        }
        is_payload |= is_head(line);
        out.push('\n');
    }
    out.into()
}

/// Lines among which the head of a list in YAML is sought: comments may come before it.
const MAX_HEAD: usize = 100;

/// The lists in `wanted` of a database, which its contents tell; the two in the format of V2Ray are told apart by
/// `is_addresses`.
fn read_lists(
    bytes: Vec<u8>,
    is_addresses: bool,
    wanted: &BTreeSet<String>,
) -> Result<Map<String, Entries>, String> {
    /// The mark of MaxMind's format, which stands in the last 128 KiB of a file.
    const MARK: &[u8] = b"\xab\xcd\xefMaxMind.com";
    let tail = &bytes[bytes.len().saturating_sub(128 << 10)..];
    if !tail.windows(MARK.len()).any(|window| window == MARK) {
        return if is_addresses { read_geoip(&bytes, wanted) } else { read_geosite(&bytes, wanted) };
    }
    let number = |code: &String| code.trim_start_matches("as").parse::<u32>().ok();
    let numbers: BTreeSet<u32> = wanted.iter().filter_map(number).collect();
    if numbers.is_empty() {
        return read_codes(bytes, wanted);
    }
    let mut found = read_numbers(bytes, &numbers)?;
    let lists = wanted.iter().filter_map(|code| Some((code.clone(), found.remove(&number(code)?)?)));
    Ok(lists.collect())
}

fn load_set(set: &Set) -> Result<Entries, Diagnostics> {
    if !set.entries.is_empty() {
        return parse(&set.at.file, &set.entries.join("\n"), set.format);
    }
    let path = beside(&set.at, &set.path);
    // It is fetched once this runs.
    if set.download.is_some() && !files::has_copy(&path) {
        return Ok(Entries::default());
    }
    let hint = "set `path` to a file with one name or network per line";
    let bytes = if set.download.is_some() { read_copy(&path, MAX_LEN) } else { read(&path, MAX_LEN) };
    let bytes = bytes.map_err(|problem| misplaced(&set.at, "set.path", problem, hint))?;
    if let Some(compiled) = compiled(&bytes) {
        let problem = |problem| format!("{}: {problem}", path.display());
        return compiled.map_err(|found| misplaced(&set.at, "set.path", problem(found), hint).into());
    }
    let Ok(text) = String::from_utf8(bytes) else {
        let problem = format!("{} is no text: it holds bytes that are no UTF-8", path.display());
        return Err(misplaced(&set.at, "set.path", problem, hint).into());
    };
    parse(&path.to_string_lossy(), &plain_lines(&text), set.format)
}

fn load_countries(
    file: &GeoFile,
    wanted: &Map<Country, FileLine>,
) -> Result<Map<Country, Entries>, Diagnostics> {
    let path = beside(&file.at, &file.path);
    let hint = "set `geoip` to a database of countries in MaxMind's format (.mmdb)";
    let codes: BTreeSet<Country> = wanted.keys().copied().collect();
    let countries = read(&path, MAX_GEO_LEN)
        .and_then(|bytes| {
            geo::read(bytes, &codes).map_err(|problem| format!("{}: {problem}", path.display()))
        })
        .map_err(|problem| misplaced(&file.at, "geoip", problem, hint))?;
    let mut found = Diagnostics::new();
    for (code, at) in wanted {
        if !countries.contains_key(code) {
            let problem = format!("{} has no address of country {code}", path.display());
            found.push(place(Diagnostic::error(&at.file, "geoip", problem), at));
        }
    }
    if found.has_errors() { Err(found) } else { Ok(countries) }
}

/// `path` as seen from the folder of the file that names it.
pub(crate) fn beside(at: &FileLine, path: &Path) -> PathBuf {
    Path::new(&*at.file).parent().map_or_else(|| path.to_path_buf(), |folder| folder.join(path))
}

/// Adds a line of a list of names as mihomo writes it; false for a line that is none.
///
/// ```text
/// x         the name alone          +.x      the name and all below
/// .x        all below the name      *.x      one label below; `*` stands for any whole label
/// ```
pub fn domain_pattern(entries: &mut Entries, line: &str) -> bool {
    if let Some((name, scope)) = plain_pattern(line) {
        entries.add_name(name, scope);
        return true;
    }
    let line = line.to_lowercase();
    let (scope, name) = match (line.strip_prefix("+."), line.strip_prefix('.')) {
        (Some(name), _) => (Scope::Tree, name),
        (None, Some(name)) => (Scope::Below, name),
        (None, None) => (Scope::Exact, &*line),
    };
    let labels = || name.split('.');
    let is_bad = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    let is_star = |label: &str| !label.contains(['*', '+']) || label == "*";
    if name.contains(is_bad) || !labels().all(|label| !label.is_empty() && is_star(label)) {
        return false;
    }
    if !name.contains('*') {
        entries.add_name(name, scope);
        return true;
    }
    let parts = labels().map(|label| if label == "*" { "[^.]+".to_owned() } else { regex::escape(label) });
    let head = match scope {
        Scope::Exact => "^",
        Scope::Tree => r"^(?:.+\.)?",
        Scope::Below => r"^.+\.",
    };
    entries.regexes.push(format!("{head}{}$", parts.collect::<Vec<_>>().join(r"\.")).into());
    true
}

/// The same for a pattern as nearly all of a list are: letters in lower case, digits, `-`, `_` and single dots. `None` for
/// any other.
fn plain_pattern(line: &str) -> Option<(&str, Scope)> {
    let (scope, name) = match line.as_bytes() {
        [b'+', b'.', ..] => (Scope::Tree, &line[2..]),
        [b'.', ..] => (Scope::Below, &line[1..]),
        _ => (Scope::Exact, line),
    };
    let mut before = b'.';
    for byte in name.bytes() {
        let is_plain =
            matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') || byte == b'.' && before != b'.';
        if !is_plain {
            return None;
        }
        before = byte;
    }
    (before != b'.').then_some((name, scope))
}

/// All bytes of a file beside a configuration, at most `max`.
///
/// # Errors
/// The problem, with the path.
pub fn read_file(path: &Path, max: usize) -> Result<Vec<u8>, String> {
    read(path, max)
}

/// The same for the copy of a list that was fetched.
///
/// # Errors
/// As [`read_file`].
pub fn read_copied(path: &Path, max: usize) -> Result<Vec<u8>, String> {
    read_copy(path, max)
}

/// The first of these files that a folder has, names in any case.
pub fn find_file(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let here: Vec<_> = std::fs::read_dir(folder).ok()?.filter_map(Result::ok).collect();
    names.iter().find_map(|name| {
        let same = |entry: &&std::fs::DirEntry| entry.file_name().eq_ignore_ascii_case(name);
        here.iter().find(same).map(std::fs::DirEntry::path)
    })
}

/// All bytes of a file, at most `max`.
fn read(path: &Path, max: usize) -> Result<Vec<u8>, String> {
    bytes(path, files::read(path, max))
}

/// The same for the copy of a list that was fetched.
fn read_copy(path: &Path, max: usize) -> Result<Vec<u8>, String> {
    bytes(path, files::read_copy(path, max))
}

fn bytes(path: &Path, read: Result<Zeroizing<Vec<u8>>, FileError>) -> Result<Vec<u8>, String> {
    match read {
        Ok(mut bytes) => Ok(std::mem::take(&mut *bytes)),
        Err(FileError::TooLong { max }) => {
            Err(format!("{} is longer than {} MiB", path.display(), max >> 20))
        }
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

fn misplaced(at: &FileLine, key: &str, problem: String, hint: &str) -> Diagnostic {
    place(Diagnostic::error(&at.file, key, problem), at).hint(hint)
}

fn place(diagnostic: Diagnostic, at: &FileLine) -> Diagnostic {
    let FileLine { file, line, column } = at;
    let mut placed = diagnostic.at((*line as usize, *column as usize));
    placed.file = Arc::clone(file);
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_model::rule::{Resolve, Rule, SetFormat, Verdict};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("adit-set-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn config(folder: &Path, path: &str) -> Config {
        let file: Arc<str> = folder.join("adit.toml").to_string_lossy().into();
        let at = FileLine { file, line: 7, column: 8 };
        let set = Set {
            name: "s".into(),
            path: path.into(),
            list: None,
            format: SetFormat::Any,
            download: None,
            entries: Vec::new(),
            at,
        };
        Config { sets: vec![set], ..Config::default() }
    }

    fn problem(config: &Config) -> String {
        load_sets(config).unwrap_err().to_string()
    }

    #[test]
    fn files_that_cannot_be_sets() {
        let folder = folder("bad");
        let long = format!("a.example\n{}\n", "x".repeat(1 << 20));
        for (name, bytes, wants) in [
            ("nul", b"a.example\n\0\0\n".as_slice(), ["nul:2:1: ", "control character"]),
            ("long", long.as_bytes(), ["long:2:1: ", "longer than 255 bytes"]),
            ("binary", b"\xff\xfe\x00".as_slice(), ["adit.toml:7:8: set.path: ", "no UTF-8"]),
        ] {
            std::fs::write(folder.join(name), bytes).unwrap();
            let found = problem(&config(&folder, name));
            assert!(wants.iter().all(|want| found.contains(want)) && found.len() < 1000, "{found}");
        }
        let found = problem(&config(&folder, "absent"));
        assert!(found.contains("adit.toml:7:8: set.path: cannot read "), "{found}");
        assert!(found.contains("hint: "), "{found}");
        let found = problem(&config(&folder, "/dev/zero"));
        assert!(found.contains("/dev/zero is longer than 32 MiB"), "{found}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_fifty_megabytes() {
        let folder = folder("large");
        std::fs::write(folder.join("l"), "name.example\n".repeat(50_000_000 / 13)).unwrap();
        let found = problem(&config(&folder, "l"));
        assert!(found.contains("l is longer than 32 MiB"), "{found}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Lists of mihomo and sing-box are read by their contents.
    #[test]
    fn lists_of_other_programs() {
        let folder = folder("other");
        let mrs = include_bytes!("../../../../testdata/clash/mrs/domain.mrs");
        std::fs::write(folder.join("l"), mrs).unwrap();
        let names = |config: &Config| load_sets(config).unwrap().list("s").unwrap().len();
        assert_eq!(names(&config(&folder, "l")), 5);
        assert_eq!(check("any", mrs), Ok(5));
        assert!(check("any", &mrs[..mrs.len() / 2]).is_err());
        std::fs::write(folder.join("l"), &mrs[..40]).unwrap();
        assert!(problem(&config(&folder, "l")).contains("set.path: "));
        let yaml = "# head\npayload:\n  - '+.a.example'\n  # c\n  - \"10.0.0.0/8\"\n  - b.example\n";
        std::fs::write(folder.join("l"), yaml).unwrap();
        assert_eq!((names(&config(&folder, "l")), check("any", yaml.as_bytes())), (3, Ok(3)));
        std::fs::write(folder.join("l"), "payload:\n  - a b\n").unwrap();
        assert!(problem(&config(&folder, "l")).contains("l:2:1: neither a name nor a network: a b"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn lines_of_the_configuration() {
        let folder = folder("inline");
        let mut config = config(&folder, "");
        config.sets[0].entries = vec!["+.a.example".into(), "10.0.0.0/8".into()];
        assert_eq!(load_sets(&config).unwrap().list("s").unwrap().len(), 2);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn paths_are_relative_to_the_configuration() {
        let folder = folder("beside");
        std::fs::write(folder.join("list"), "a.example\n").unwrap();
        let sets = load_sets(&config(&folder, "list")).unwrap();
        assert_eq!(sets.list("s").unwrap().len(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_country_needs_a_database() {
        let at = FileLine { file: "t.toml".into(), line: 3, column: 1 };
        let matcher = Matcher::GeoIp(vec![Country::parse("de").unwrap()], Resolve::Yes);
        let rules = vec![Rule { matcher, verdict: Verdict::Default, at }];
        let found = problem(&Config { rules, ..Config::default() });
        assert!(
            found.starts_with("t.toml:3:1: geoip: no database of countries is named\n  hint: "),
            "{found}"
        );
    }
}
