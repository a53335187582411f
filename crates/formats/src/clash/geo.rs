//! Databases that rules name lists of, in the home folder: `GeoSite.dat`, those of countries, and `ASN.mmdb`.
//!
//! ```text
//! file is there and good ──────────────────────→ lists
//! file is not there ─┬─ geox-url, or geo-auto-update: true ─→ fetched before anything starts, then read
//!                    └─ neither ───────────────→ an error at the first rule that needs it
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_model::diagnostic::Diagnostic;
use adit_model::entries::Entries;
use adit_model::files;
use adit_model::map::Map;
use adit_model::{DatabaseFormat, Download, Provider, ProviderKind, ProviderSource, Secret};

use super::Context;
use super::subscription::{Address, address};
use crate::read::json::JsonValue;
use crate::read::value::Problem;
use crate::read::yaml_access;
use crate::rulesets::{self, MAX_GEO_LEN};

/// Hours between two fetches, if the file does not say how many.
const INTERVAL: u64 = 24;
/// Most hours between two fetches: a year.
const MAX_INTERVAL: u64 = 365 * 24;
/// The folder of the databases that mihomo fetches (documented default of `geox-url`).
const DEFAULTS: &str = "https://github.com/MetaCubeX/meta-rules-dat/releases/download/latest";

/// One kind of database.
struct Kind {
    database: DatabaseFormat,
    /// The rules that need it, and the beginning of the names of its lists.
    rules: &'static str,
    list: &'static str,
    /// Names of its file, in any case; it is fetched under the first.
    files: &'static [&'static str],
    /// Its key in `geox-url`, and the name of its file at [`DEFAULTS`].
    key: &'static str,
    default: &'static str,
}

const SITES: Kind = Kind {
    database: DatabaseFormat::Sites,
    rules: "GEOSITE",
    list: "geosite",
    files: &["GeoSite.dat"],
    key: "geosite",
    default: "geosite.dat",
};
const ADDRESSES: Kind = Kind {
    database: DatabaseFormat::Addresses,
    rules: "GEOIP",
    list: "geoip",
    files: &["GeoIP.dat"],
    key: "geoip",
    default: "geoip.dat",
};
const COUNTRIES: Kind = Kind {
    database: DatabaseFormat::Countries,
    rules: "GEOIP",
    list: "geoip",
    files: &["geoip.metadb", "geoip.db", "Country.mmdb"],
    key: "mmdb",
    default: "geoip.metadb",
};
const NUMBERS: Kind = Kind {
    database: DatabaseFormat::Numbers,
    rules: "IP-ASN",
    list: "asn",
    files: &["ASN.mmdb"],
    key: "asn",
    default: "GeoLite2-ASN.mmdb",
};

/// The part of a file that is being read: the first one that names a list is shown when there is no such list.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    /// Its path.
    pub(super) path: String,
    /// The item of a list that it is at.
    pub(crate) item: Option<usize>,
    pub(crate) at: usize,
}

/// The first part of a file that names a list.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) path: String,
    pub(crate) at: usize,
}

/// Lists that are named, by database.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) sites: Map<String, Wish>,
    pub(super) countries: Map<String, Wish>,
    pub(super) numbers: Map<String, Wish>,
}

impl Reading {
    /// The place of a wish that is made here.
    pub(super) fn wish(&self) -> Wish {
        let path = match self.item {
            Some(item) => format!("{}[{item}]", self.path),
            None => self.path.clone(),
        };
        Wish { path, at: self.at }
    }
}

/// A database that is not there and is fetched before anything starts.
#[derive(Debug, Clone)]
pub struct Missing {
    /// The database, as it is kept up to date later.
    pub provider: Provider,
    /// The error at the first part of the file that needs it.
    pub error: Diagnostic,
}

/// Addresses and times of fetches.
struct Fetches<'a> {
    urls: Option<&'a JsonValue>,
    interval: Option<Duration>,
}

impl<'a> Fetches<'a> {
    /// The fetches that a file asks for; `None` if it asks for none.
    fn read(context: &mut Context<'_>, root: &'a JsonValue) -> Option<Self> {
        let hours = match yaml_access::get(root, "geo-update-interval") {
            None => Some(INTERVAL),
            Some(value) => {
                let hours = yaml_access::number_of(root, "geo-update-interval").filter(|hours| *hours > 0);
                if hours.is_none() {
                    context.error(value.at, "geo-update-interval", "expected a number of hours, 1 at least");
                }
                hours
            }
        };
        let interval = hours.map(|hours| Duration::from_secs(hours.min(MAX_INTERVAL) * 3600));
        let interval = interval.filter(|_| yaml_access::is_on(root, "geo-auto-update"));
        let urls = yaml_access::get(root, "geox-url").filter(|urls| !yaml_access::members(urls).is_empty());
        for member in urls.map(yaml_access::members).unwrap_or_default() {
            let path = format!("geox-url.{}", member.key);
            let is_known = ["geoip", "mmdb", "asn", "geosite"].contains(&&*member.key);
            match yaml_access::text(&member.value) {
                _ if !is_known => context.remark(member.at, path, "unknown key, left out", ""),
                Some(url) => {
                    if let Err(problem) = address(url) {
                        context.error(member.at, path, problem);
                    }
                }
                None => context.error(member.at, path, "expected an address"),
            }
        }
        (urls.is_some() || interval.is_some()).then_some(Self { urls, interval })
    }

    /// The document of one database; `None` for an address that is none.
    fn download(&self, kind: &Kind, agent: &str) -> Option<Download> {
        let given =
            self.urls.and_then(|urls| yaml_access::text_of(urls, kind.key)).filter(|url| !url.is_empty());
        let default = || format!("{DEFAULTS}/{}", kind.default);
        let Address { url, mut headers } = address(&given.map_or_else(default, str::to_owned)).ok()?;
        headers.push(("User-Agent".into(), Secret::new(agent)));
        Some(Download { url, interval: self.interval, through: None, headers, max_len: MAX_GEO_LEN })
    }
}

/// Reads the databases that rules need; gives those that are to be fetched first.
pub(crate) fn read(context: &mut Context<'_>, root: &JsonValue, geodata: bool) -> Vec<Missing> {
    let Wishes { sites, countries, numbers } = std::mem::take(&mut context.wishes);
    let fetches = Fetches::read(context, root);
    let of_countries =
        if geodata || yaml_access::is_on(root, "geodata-mode") { ADDRESSES } else { COUNTRIES };
    let all = [(SITES, sites), (of_countries, countries), (NUMBERS, numbers)];
    let wanted = all.into_iter().filter(|(_, wishes)| !wishes.is_empty());
    wanted.filter_map(|(kind, wishes)| read_one(context, &kind, &wishes, fetches.as_ref())).collect()
}

/// Reads one database, or says that it is to be fetched.
fn read_one(
    context: &mut Context<'_>,
    kind: &Kind,
    wishes: &Map<String, Wish>,
    fetches: Option<&Fetches<'_>>,
) -> Option<Missing> {
    let first = context.home.join(kind.files[0]);
    let found = rulesets::find_file(context.home, kind.files);
    let found = found.or_else(|| files::stand_in(&first).map(|_| first.clone()));
    let wanted: BTreeSet<String> = wishes.keys().cloned().collect();
    let lists = match &found {
        Some(path) => read_database(path).and_then(|bytes| {
            lists_of(kind.database, bytes, &wanted)
                .map_err(|problem| format!("{}: {problem}", path.display()))
        }),
        None => Err(format!(
            "{} rules need {} in {}, which is not there",
            kind.rules,
            kind.files.join(" or "),
            if context.home.as_os_str().is_empty() { Path::new(".") } else { context.home }.display()
        )),
    };
    let path = found.unwrap_or(first);
    let provider = fetches.and_then(|fetches| {
        let download = fetches.download(kind, &context.agent)?;
        Some(provider(kind, path, wanted, download))
    });
    context.listed.extend(provider.clone());
    let lacking = |lists: &Map<String, Entries>| wishes.iter().find(|(code, _)| !lists.contains_key(*code));
    let (first, problem) = match lists {
        // A newer one may have the list.
        Ok(lists)
            if provider.is_some() && kind.database == DatabaseFormat::Sites && lacking(&lists).is_some() =>
        {
            let (code, wish) = lacking(&lists)?;
            (wish, format!("{},{code}: the database has no such list", kind.rules))
        }
        Ok(lists) => {
            add(context, kind, wishes, lists);
            return None;
        }
        Err(problem) => (wishes.values().min_by_key(|wish| wish.at)?, problem),
    };
    // Nothing runs until it is there.
    add_lists(context, kind, wishes, Map::new());
    if let Some(provider) = provider {
        let remark = format!("{problem}; it is fetched when this starts");
        context.remark(first.at, first.path.clone(), remark, "");
        let error = Diagnostic::error(&context.source.file, first.path.clone(), problem);
        return Some(Missing { provider, error: error.at(context.source.locate(first.at)) });
    }
    if let Some(at) = context.fallback.filter(|_| kind.list == "geoip") {
        let problem =
            "it needs the database of countries, as GEOIP rules do; fallback-filter: {geoip: false} does not";
        context.error(at, "dns.fallback", problem);
    }
    let problem = Problem::new(problem);
    let hint =
        "put it there; or write `geo-auto-update: true`, or `geox-url` with its address, to have it fetched";
    context.report.error(first.at, first.path.clone(), problem.hint(hint));
    None
}

/// A database, or the one that a trial has in its place.
fn read_database(path: &Path) -> Result<Vec<u8>, String> {
    match files::stand_in(path) {
        Some(bytes) => Ok(bytes.to_vec()),
        None => rulesets::read_file(path, MAX_GEO_LEN),
    }
}

fn provider(kind: &Kind, path: PathBuf, lists: BTreeSet<String>, download: Download) -> Provider {
    Provider {
        name: kind.files[0].into(),
        kind: ProviderKind::Database { database: kind.database, lists },
        source: ProviderSource::Http(Box::new(download)),
        path: Some(path),
        problem: None,
    }
}

/// Names each list that the database does not have, and adds all.
fn add(context: &mut Context<'_>, kind: &Kind, wishes: &Map<String, Wish>, lists: Map<String, Entries>) {
    for (code, wish) in wishes.iter().filter(|(code, _)| !lists.contains_key(*code)) {
        let problem = format!("{},{code}: the database has no such list", kind.rules);
        if kind.database == DatabaseFormat::Sites {
            context.error(wish.at, wish.path.clone(), problem);
        } else {
            context.remark(wish.at, wish.path.clone(), format!("{problem}; such rules match nothing"), "");
        }
    }
    add_lists(context, kind, wishes, lists);
}

fn add_lists(
    context: &mut Context<'_>,
    kind: &Kind,
    wishes: &Map<String, Wish>,
    mut lists: Map<String, Entries>,
) {
    for code in wishes.keys() {
        let entries = lists.remove(code).unwrap_or_default();
        context.lists.insert(format!("{} {code}", kind.list).into(), Arc::new(entries));
    }
}

/// The lists of these codes that are in a database.
fn lists_of(
    database: DatabaseFormat,
    bytes: Vec<u8>,
    wanted: &BTreeSet<String>,
) -> Result<Map<String, Entries>, String> {
    match database {
        DatabaseFormat::Sites => rulesets::read_geosite(&bytes, wanted),
        DatabaseFormat::Addresses => rulesets::read_geoip(&bytes, wanted),
        DatabaseFormat::Countries => rulesets::read_codes(bytes, wanted),
        DatabaseFormat::Numbers => {
            let numbers = wanted.iter().filter_map(|code| code.parse().ok()).collect();
            let found = rulesets::read_numbers(bytes, &numbers)?;
            Ok(found.into_iter().map(|(number, entries)| (number.to_string(), entries)).collect())
        }
    }
}

/// The number of entries of the lists in a database that is to take the place of another one.
///
/// # Errors
/// When it is none, or when rules name lists that it does not have.
pub(super) fn check(
    database: DatabaseFormat,
    wanted: &BTreeSet<String>,
    bytes: &[u8],
) -> Result<usize, String> {
    let lists = lists_of(database, bytes.to_vec(), wanted)?;
    match wanted.iter().find(|code| !lists.contains_key(*code)) {
        Some(code) if database == DatabaseFormat::Sites || lists.is_empty() => {
            Err(format!("the database has no list {code}"))
        }
        _ => Ok(lists.values().map(Entries::len).sum()),
    }
}
