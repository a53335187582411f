//! Lists of proxies and rules that are kept up to date while a program runs.
//!
//! ```text
//! interval over, or asked ─→ fetch through an outbound ─→ check ─→ the configuration is built of the ─→ copy on disk
//!                              │                           │       same text and the new documents
//!                              └── error: the copy stays ──┴──────────── error: the copy stays
//! ```
//!
//! A copy is written beside its place and moved there, once the whole configuration is in use with it. After an error or a
//! bad document the list that was there before stays. Connections go on: the engine replaces what is other than before, and
//! nothing else.
//!
//! A copy of another time that keeps a configuration from being used is passed over with a warning, and fetched anew
//! ([`passing_over`]).

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use adit_engine::{FetchRoute, ListReply, ListState, ListUpdater, ListUsage, Proxies};
use adit_formats::clash::{self, ClashSetup, Missing};
use adit_model::diagnostic::{Diagnostic, Diagnostics, Severity};
use adit_model::files::Trial;
use adit_model::map::Map;
use adit_model::{
    Config, Dial, Download, ListKind, Outbound, OutboundProtocol, Provider, ProviderSource, Secret, Tag,
    WebUrl,
};
use adit_net::dial::Dialer;
use adit_net::fetch::{Document, FetchError, Wanted, download};
use adit_net::rt::Cores;
use adit_net::tls::Roots;
use adit_net::{files, rt};
use serde::{Deserialize, Serialize};

use crate::print;

/// Time for one fetch; mihomo's.
const LIMIT: Duration = Duration::from_secs(20);
/// Time for the fetch of a database, which is longer than lists are.
const DATABASE_LIMIT: Duration = Duration::from_secs(90);
/// Time for all databases that are fetched before anything starts; service managers wait for 90 s.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Pause after a list that could not be had. It doubles up to the list's own interval, an hour at most.
const PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// Interval at which files of others are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Lists that are replaced at about the same time are put to use together.
const GATHER: Duration = Duration::from_millis(500);
/// Most copies of which each is tried alone; of more all are passed over.
const MAX_TRIED: usize = 32;

/// Reads `upload=1; download=2; total=3; expire=4`: names in any case, fractions cut. `None` if nothing is in it.
fn usage(text: &str) -> Option<ListUsage> {
    let (mut usage, mut is_any) = (ListUsage::default(), false);
    for part in text.split(';') {
        let Some((name, value)) = part.split_once('=') else { continue };
        let place = match name.trim().to_ascii_lowercase().as_str() {
            "upload" => &mut usage.upload,
            "download" => &mut usage.download,
            "total" => &mut usage.total,
            "expire" => &mut usage.expire,
            _ => continue,
        };
        let whole = value.trim().split('.').next().unwrap_or_default();
        if let Ok(number) = whole.parse() {
            (*place, is_any) = (number, true);
        }
    }
    is_any.then_some(usage)
}

/// Fetches the databases that are not there, so that no request is decided without them, and reads the file again.
/// Nothing runs yet: they are fetched as `DIRECT` would.
///
/// # Errors
/// Everything that is wrong with the file, and each database that could not be had, at the place that needs it.
pub(crate) fn complete(
    setup: ClashSetup,
    again: impl FnOnce() -> Result<ClashSetup, Diagnostics>,
) -> Result<ClashSetup, Diagnostics> {
    if setup.missing.is_empty() || setup.refused.has_errors() {
        return Ok(setup);
    }
    let is_direct = |outbound: &&Outbound| outbound.protocol == OutboundProtocol::Direct;
    let direct = setup.config.outbounds.iter().find(is_direct);
    let dial = direct.map(|direct| direct.dial.clone()).unwrap_or_default();
    let (ends_at, mut found) = (rt::now() + START_LIMIT, Diagnostics::new());
    for Missing { provider, error } in &setup.missing {
        let name = &*provider.name;
        if tracing::dispatcher::has_been_set() {
            tracing::info!("can't find {name}, start download");
        } else {
            print::remark(format_args!("{}; fetching it", error.problem));
        }
        let limit = ends_at.saturating_duration_since(rt::now());
        let document = provider.download().ok_or_else(|| "it has no address".to_owned());
        let document = document.and_then(|of| fetch_directly(of, &dial, limit));
        let taken = document.and_then(|document| List::new(provider.clone()).take(document));
        if let Err(problem) = taken {
            let problem = format!("{}, and cannot be fetched: {problem}", error.problem);
            found.push(Diagnostic { problem, ..error.clone() });
        }
    }
    if found.has_errors() { Err(found) } else { again() }
}

/// The text at an address that a person has named, as servers give it to programs of the Clash family.
///
/// # Errors
/// The problem, without the address, which may hold a token.
pub(crate) fn text_at(address: &str, max_len: usize) -> Result<String, String> {
    let (url, headers) = (Secret::new(address), vec![("User-Agent".into(), Secret::new(clash::AGENT))]);
    let download = Download { url, interval: None, through: None, headers, max_len };
    let document = fetch_directly(&download, &Dial::default(), LIMIT)?;
    String::from_utf8(document.bytes)
        .map_err(|_| "it is no text: it holds bytes that are no UTF-8".to_owned())
}

fn fetch_directly(of: &Download, dial: &Dial, limit: Duration) -> Result<Document, String> {
    let url = WebUrl::parse(of.url.expose()).map_err(|error| error.to_string())?;
    let wanted = Wanted { url, headers: of.headers.clone(), max: of.max_len, limit };
    let fetched = Cores::block_on(async {
        let dialer = Dialer::new(dial, adit_engine::resolver(&dial.dns));
        Box::pin(download(&dialer, &Roots::System, &wanted)).await
    });
    let fetched = fetched.map_err(|error| error.to_string())?.map_err(|error| chain(&error))?;
    fetched.ok_or_else(|| "the server says that it is unchanged".to_owned())
}

/// Facts about a list beside its document. They lie in a file beside the copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Beside {
    /// The server's name for the version.
    version: Option<String>,
    /// Length and a number of the copy that it belongs to.
    of: Option<(u64, u32)>,
    usage: Option<ListUsage>,
}

/// Runs `load`. If copies of documents keep it from giving something, it is run without them; they are taken off the disk
/// unless `is_look`. The findings about them are warnings.
///
/// # Errors
/// As `load`, if the copies are not to blame.
pub(crate) fn passing_over<T>(
    is_look: bool,
    mut load: impl FnMut() -> Result<T, Diagnostics>,
) -> Result<(T, Vec<Diagnostic>), Diagnostics> {
    let mut trial = Trial::default();
    let found = match trial.run(&mut load) {
        Ok(loaded) => return Ok((loaded, Vec::new())),
        Err(found) => found,
    };
    let copies: Vec<PathBuf> =
        std::mem::take(&mut trial.asked).into_iter().filter(|path| path.exists()).collect();
    if copies.is_empty() {
        return Err(found);
    }
    trial.documents = copies.iter().map(|path| (path.clone(), None)).collect();
    let Ok(mut loaded) = trial.run(&mut load) else { return Err(found) };
    let mut warnings = Vec::new();
    for path in copies {
        if trial.documents.len() <= MAX_TRIED {
            let absent = trial.documents.remove(&path);
            match trial.run(&mut load) {
                Ok(with) => {
                    loaded = with;
                    continue;
                }
                Err(_) => trial.documents.extend(absent.map(|absent| (path.clone(), absent))),
            }
        }
        let first = found.iter().find(|found| found.severity == Severity::Error);
        let problem = first.map_or("", |first| &first.problem);
        warnings.push(warning_of(&path, problem, is_look));
    }
    Ok((loaded, warnings))
}

/// Takes a copy that cannot be used off the disk unless `is_look`; the warning about it.
pub(crate) fn warning_of(path: &Path, problem: &str, is_look: bool) -> Diagnostic {
    let kept = files::suffixed(path, ".refused");
    let is_aside = !is_look && fs::rename(path, &kept).is_ok();
    let aside = if is_aside { format!(", and kept as {}", kept.display()) } else { String::new() };
    let problem = format!(
        "this copy of a list is passed over{aside}: the configuration cannot be used with it: {problem}"
    );
    Diagnostic::warning(&path.to_string_lossy().into(), "", problem).hint("it is fetched again")
}

/// Copies of documents that `config` is built of.
pub(crate) fn copies(config: &Config) -> Vec<PathBuf> {
    let lists = config.providers.iter().filter(|list| list.download().is_some());
    let lists = lists.filter(|list| list.list_kind() != ListKind::Database);
    lists.filter_map(|list| list.path.clone()).filter(|path| path.exists()).collect()
}

/// A document with the place of its copy.
pub(crate) type Fresh = (PathBuf, Arc<[u8]>);

/// Has the configuration built anew with these documents, and their copies written if it is used; a result for each. Without
/// documents it is built of the copies as they are.
pub(crate) type Refresh = Box<dyn Fn(Vec<Fresh>) -> Vec<Result<(), String>> + Send>;

/// Name and kind of a list.
type Key = (Tag, ListKind);

enum Note {
    Config(Box<(Vec<(Provider, Seen)>, Tag)>),
    Fetched(Key, Result<Option<Document>, FetchError>),
    /// The process ends before the fetch does.
    Lost(Key),
    Update(Key, ListReply),
}

/// Asks the thread that keeps the lists.
#[derive(Clone)]
pub(crate) struct ListKeeper {
    notes: Sender<Note>,
    shown: Arc<Mutex<Map<Key, ListState>>>,
}

impl ListKeeper {
    /// The configuration has changed.
    pub(crate) fn follow(&self, config: &Config) {
        let is_direct = |protocol: &OutboundProtocol| *protocol == OutboundProtocol::Direct;
        let direct = config.outbounds.iter().find(|outbound| is_direct(&outbound.protocol));
        let default = direct.or_else(|| config.outbounds.first()).map(|outbound| outbound.name.clone());
        let default = default.unwrap_or_else(|| "direct".into());
        // Files that change from here on are other than those of this configuration.
        let providers = config.providers.iter().map(|provider| (provider.clone(), seen_of(provider)));
        self.notes.send(Note::Config(Box::new((providers.collect(), default)))).ok();
    }
}

impl ListUpdater for ListKeeper {
    fn update(&self, name: &str, kind: ListKind, reply: ListReply) {
        self.notes.send(Note::Update((name.into(), kind), reply)).ok();
    }

    fn state(&self, name: &str, kind: ListKind) -> Option<ListState> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.get(&(Tag::from(name), kind)).cloned()
    }
}

impl std::fmt::Debug for ListKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// Starts to keep the lists of configurations; `refresh` has the configuration built anew of the copies.
///
/// # Errors
/// When there cannot be another thread.
pub(crate) fn start(proxies: Proxies, refresh: Refresh) -> io::Result<ListKeeper> {
    let (notes, waiting) = channel();
    let keeper = ListKeeper { notes: notes.clone(), shown: Arc::default() };
    proxies.set_lists(Box::new(keeper.clone()));
    let worker = Worker {
        proxies,
        refresh,
        notes,
        shown: keeper.shown.clone(),
        lists: Map::new(),
        default: "direct".into(),
        dirty_at: None,
    };
    // It ends with the process.
    std::thread::Builder::new().name("adit-lists".into()).spawn(move || worker.run(&waiting))?;
    Ok(keeper)
}

struct Worker {
    proxies: Proxies,
    refresh: Refresh,
    notes: Sender<Note>,
    shown: Arc<Mutex<Map<Key, ListState>>>,
    lists: Map<Key, List>,
    default: Tag,
    /// When the first document came that is not in use yet.
    dirty_at: Option<Instant>,
}

struct List {
    provider: Provider,
    /// When it is fetched next; `None` for not by itself.
    next_at: Option<Instant>,
    pause: Duration,
    is_busy: bool,
    beside: Beside,
    /// A document that is not in use yet.
    fresh: Option<Checked>,
    /// A file of somebody else, as it was last.
    seen: Seen,
    error: Option<String>,
    replies: Vec<ListReply>,
}

/// A good document.
struct Checked {
    bytes: Arc<[u8]>,
    beside: Beside,
    entries: usize,
}

impl Worker {
    fn run(mut self, waiting: &Receiver<Note>) {
        loop {
            match waiting.recv_timeout(self.wait(rt::now())) {
                Ok(note) => self.handle(note),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = rt::now();
            self.fetch_due(now);
            self.look();
            let is_due = self.dirty_at.is_some_and(|at| now >= at + GATHER);
            if is_due {
                self.dirty_at = None;
                self.put_to_use();
            }
        }
    }

    fn wait(&self, now: Instant) -> Duration {
        let due = self.lists.values().filter(|list| !list.is_busy).filter_map(|list| list.next_at);
        let due = due.chain(self.dirty_at.map(|at| at + GATHER)).min();
        let watches = self.lists.values().any(|list| list.provider.source == ProviderSource::File);
        let most = if watches { LOOK } else { MAX_PAUSE };
        due.map_or(most, |at| at.saturating_duration_since(now).min(most))
    }

    fn handle(&mut self, note: Note) {
        match note {
            Note::Config(config) => self.follow(config.0, config.1),
            Note::Fetched(key, result) => self.settle(&key, result),
            Note::Lost(key) => {
                if let Some(list) = self.lists.get_mut(&key) {
                    list.is_busy = false;
                }
            }
            Note::Update(key, reply) => match self.lists.get_mut(&key) {
                None => reply(Err("no such provider".to_owned())),
                Some(list) if list.provider.download().is_none() => {
                    self.dirty_at = Some(rt::now());
                    reply(Ok(()));
                }
                Some(list) => {
                    list.replies.push(reply);
                    list.next_at = Some(rt::now());
                }
            },
        }
    }

    fn follow(&mut self, providers: Vec<(Provider, Seen)>, default: Tag) {
        self.default = default;
        let mut before = std::mem::take(&mut self.lists);
        for (provider, seen) in providers {
            let key = (provider.name.clone(), provider.list_kind());
            let old = before
                .remove(&key)
                .filter(|old| old.provider.source == provider.source && old.provider.path == provider.path);
            let list = match old {
                Some(old) => List { provider, ..old },
                None => List { seen, ..List::new(provider) },
            };
            self.lists.insert(key.clone(), list);
            self.show(&key);
        }
        self.shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|key, _| self.lists.contains_key(key));
    }

    fn show(&self, key: &Key) {
        let Some(list) = self.lists.get(key) else { return };
        let updated_at =
            list.provider.path.as_ref().and_then(|path| fs::metadata(path).ok()?.modified().ok());
        let shown = ListState { usage: list.beside.usage, updated_at, error: list.error.clone() };
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), shown);
    }

    fn fetch_due(&mut self, now: Instant) {
        let is_due = |list: &List| !list.is_busy && list.next_at.is_some_and(|at| at <= now);
        let due: Vec<Key> =
            self.lists.iter().filter(|(_, list)| is_due(list)).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.fetch(key);
        }
    }

    fn fetch(&mut self, key: Key) {
        let Some(list) = self.lists.get_mut(&key) else { return };
        let Some(download) = list.provider.download() else {
            list.next_at = None;
            return;
        };
        let via = match &download.through {
            Some(through) => FetchRoute::Outbound(through.clone()),
            None => FetchRoute::Rules(self.default.clone()),
        };
        let Ok(url) = WebUrl::parse(download.url.expose()) else {
            list.next_at = None;
            return;
        };
        let mut headers = download.headers.clone();
        let copy = list.provider.path.as_deref().and_then(read_copy);
        if let (Some(version), Some(copy)) = (&list.beside.version, &copy)
            && list.beside.of == Some(mark(copy))
            && list.provider.problem.is_none()
        {
            headers.push(("If-None-Match".into(), Secret::new(version.as_str())));
        }
        let limit = if key.1 == ListKind::Database { DATABASE_LIMIT } else { LIMIT };
        let wanted = Wanted { url, headers, max: download.max_len, limit };
        list.is_busy = true;
        let answer = Answer { notes: self.notes.clone(), key: Some(key) };
        self.proxies.fetch(via, wanted, move |result| answer.give(result));
    }

    /// A fetch is over.
    fn settle(&mut self, key: &Key, result: Result<Option<Document>, FetchError>) {
        let Some(list) = self.lists.get_mut(key) else { return };
        let result = result.map_err(|error| chain(&error)).and_then(|document| list.check(document));
        match result {
            Ok(Some(fresh)) => {
                // It is busy until the configuration has been judged.
                (list.fresh, list.next_at) = (Some(fresh), None);
                self.dirty_at.get_or_insert_with(rt::now);
            }
            Ok(None) => self.finish(key, Ok(())),
            Err(problem) => self.finish(key, Err(problem)),
        }
    }

    /// Has the configuration built anew with all documents that have come.
    fn put_to_use(&mut self) {
        let waiting = self
            .lists
            .iter_mut()
            .filter_map(|(key, list)| Some((key.clone(), list.provider.path.clone()?, list.fresh.take()?)));
        let waiting: Vec<(Key, PathBuf, Checked)> = waiting.collect();
        let documents = waiting.iter().map(|(_, path, fresh)| (path.clone(), fresh.bytes.clone())).collect();
        let mut results = (self.refresh)(documents).into_iter();
        for (key, _, fresh) in waiting {
            let result = results.next().unwrap_or_else(|| Err("the process is ending".to_owned()));
            if let (Ok(()), Some(list)) = (&result, self.lists.get_mut(&key)) {
                list.saved(fresh);
            }
            self.finish(&key, result);
        }
    }

    /// A fetch is over, and its document in use if there was another one.
    fn finish(&mut self, key: &Key, result: Result<(), String>) {
        let Some(list) = self.lists.get_mut(key) else { return };
        list.is_busy = false;
        let interval = list.provider.download().and_then(|download| download.interval);
        let name = &*key.0;
        match &result {
            Ok(()) => {
                (list.pause, list.error) = (PAUSE, None);
                list.next_at = interval.map(|interval| rt::now() + interval);
                tracing::debug!(provider = name, "list fetched");
            }
            Err(error) => {
                if list.error.as_ref() != Some(error) {
                    tracing::warn!(provider = name, error, "list not updated: the one before stays in use");
                }
                list.error = Some(error.clone());
                let has_copy = list.provider.path.as_deref().is_some_and(Path::exists);
                // A list that is there and is not fetched by time waits until somebody asks.
                let wait = match interval {
                    None if has_copy => None,
                    interval => Some(list.pause.min(interval.unwrap_or(MAX_PAUSE))),
                };
                list.next_at = wait.map(|wait| rt::now() + wait);
                list.pause = list.pause.saturating_mul(2).min(MAX_PAUSE);
            }
        }
        for reply in std::mem::take(&mut list.replies) {
            reply(result.clone());
        }
        self.show(key);
    }

    /// Looks whether somebody has changed a file.
    fn look(&mut self) {
        let mut is_other = false;
        for list in self.lists.values_mut().filter(|list| list.provider.source == ProviderSource::File) {
            let seen = seen_of(&list.provider);
            // A file that is away for a moment is being replaced.
            if seen.is_some() && seen != list.seen {
                is_other = true;
                list.seen = seen;
            }
        }
        if is_other {
            self.dirty_at.get_or_insert_with(rt::now);
        }
    }
}

/// Sends the result of a fetch, or that there will be none.
struct Answer {
    notes: Sender<Note>,
    key: Option<Key>,
}

impl Answer {
    fn give(mut self, result: Result<Option<Document>, FetchError>) {
        if let Some(key) = self.key.take() {
            self.notes.send(Note::Fetched(key, result)).ok();
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.notes.send(Note::Lost(key)).ok();
        }
    }
}

impl List {
    fn new(provider: Provider) -> Self {
        let path = provider.path.as_deref();
        let beside = path.filter(|_| provider.download().is_some()).map(read_beside).unwrap_or_default();
        // Somebody else has written it, or it was not written whole.
        let is_other = |path: &Path| {
            let copy = beside.of.and_then(|of| Some((of, read_copy(path)?)));
            copy.is_some_and(|(of, copy)| of != mark(&copy))
        };
        let next_at = provider.download().and_then(|download| {
            let age = path.and_then(|path| fs::metadata(path).ok()?.modified().ok()?.elapsed().ok());
            let wait = match (age, download.interval) {
                _ if provider.problem.is_some() || path.is_some_and(is_other) => Duration::ZERO,
                (None, _) => Duration::ZERO,
                (Some(_), None) => return None,
                (Some(age), Some(interval)) => interval.saturating_sub(age),
            };
            Some(rt::now() + wait)
        });
        let seen = seen_of(&provider);
        Self {
            provider,
            next_at,
            pause: PAUSE,
            is_busy: false,
            beside,
            fresh: None,
            seen,
            error: None,
            replies: Vec::new(),
        }
    }

    /// Checks a document; `None` if the copy is the same. Without a document it is still right.
    fn check(&mut self, document: Option<Document>) -> Result<Option<Checked>, String> {
        let path = self.provider.path.clone().ok_or("the list has no file")?;
        let Some(Document { bytes, version, usage: subscriber }) = document else {
            touch(&path);
            return Ok(None);
        };
        let entries = clash::check_document(&self.provider, Path::new(""), &bytes)?;
        let usage = subscriber.as_deref().and_then(usage).or(self.beside.usage);
        let beside = Beside { version, of: Some(mark(&bytes)), usage };
        if self.provider.problem.is_none() && read_copy(&path).is_some_and(|copy| copy == bytes) {
            touch(&path);
            self.note(beside)?;
            return Ok(None);
        }
        Ok(Some(Checked { bytes: bytes.into(), beside, entries }))
    }

    /// A document is in use, and its copy written.
    fn saved(&mut self, fresh: Checked) {
        let name = &*self.provider.name;
        tracing::info!(provider = name, entries = fresh.entries, "list is up to date");
        self.provider.problem = None;
        if let Err(error) = self.note(fresh.beside) {
            tracing::warn!(provider = &*self.provider.name, error, "the version of a list is not kept");
        }
    }

    /// Writes the facts about the copy.
    fn note(&mut self, beside: Beside) -> Result<(), String> {
        let path = self.provider.path.as_deref().ok_or("the list has no file")?;
        if beside != self.beside {
            let text = serde_json::to_vec(&beside).map_err(|error| error.to_string())?;
            save(&beside_path(path), &text)?;
            self.beside = beside;
        }
        Ok(())
    }

    /// Takes a document while nothing runs yet.
    fn take(&mut self, document: Document) -> Result<(), String> {
        let path = self.provider.path.clone().ok_or("the list has no file")?;
        if let Some(fresh) = self.check(Some(document))? {
            save(&path, &fresh.bytes)?;
            self.saved(fresh);
        }
        Ok(())
    }
}

/// Writes a copy.
///
/// # Errors
/// The problem, with its place; the copy is as it was then.
pub(crate) fn save(path: &Path, bytes: &[u8]) -> Result<(), String> {
    write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn read_copy(path: &Path) -> Option<Vec<u8>> {
    /// Longest document of all kinds in bytes.
    const MAX: usize = 256 << 20;
    files::read(path, MAX).ok()
}

/// Length and a number of a document.
fn mark(bytes: &[u8]) -> (u64, u32) {
    let number =
        bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (bytes.len() as u64, number)
}

fn beside_path(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".adit");
    beside.into()
}

fn read_beside(path: &Path) -> Beside {
    /// Longest such file in bytes.
    const MAX: usize = 64 * 1024;
    let text = files::read(&beside_path(path), MAX).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// The copy is as of now.
fn touch(path: &Path) {
    let touched =
        files::open(path).and_then(|_| fs::OpenOptions::new().append(true).open(path)).and_then(|file| {
            #[expect(clippy::disallowed_methods, reason = "the time of a file is that of the wall clock")]
            file.set_modified(SystemTime::now())
        });
    if let Err(error) = touched {
        tracing::debug!(%error, "time of a list's copy");
    }
}

/// Writes a file beside its place and moves it there. It may hold keys: nobody else may read it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    files::replace(path, 0o600, bytes).map(drop)
}

/// Time, length and number of a file, by which changes are told.
type Seen = Option<(i64, i64, u64, u64)>;

fn seen_of(provider: &Provider) -> Seen {
    let found = fs::metadata(provider.path.as_deref()?).ok()?;
    Some((found.mtime(), found.mtime_nsec(), found.len(), found.ino()))
}

/// An error with its causes, in one line.
fn chain(error: &FetchError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_subscribers() {
        let whole =
            ListUsage { upload: 455_727_941, download: 6_174_315_083, total: 1 << 40, expire: 1_671_815_872 };
        for (text, want) in [
            ("upload=455727941; download=6174315083; total=1099511627776; expire=1671815872", Some(whole)),
            (
                "Upload=455727941.9;DOWNLOAD=6174315083;total = 1099511627776 ;expire=1671815872.0;x=1",
                Some(whole),
            ),
            ("total=5", Some(ListUsage { total: 5, ..ListUsage::default() })),
            ("upload=-1; total=x", None),
            ("", None),
            ("a page of HTML", None),
        ] {
            assert_eq!(usage(text), want, "{text}");
        }
    }

    #[test]
    fn copies_that_are_to_blame_are_passed_over() {
        let folder = std::env::temp_dir().join(format!("adit-passed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let paths = ["one", "two", "three"].map(|name| folder.join(name));
        let lay = |texts: [&str; 3]| {
            for (path, text) in paths.iter().zip(texts) {
                fs::write(path, text).unwrap();
            }
        };
        // The texts that are read; one that is bad is an error.
        let load = || {
            let read =
                |path: &PathBuf| adit_model::files::read_copy(path, 100).ok().map(|text| text.to_vec());
            let texts: Vec<String> =
                paths.iter().filter_map(read).filter_map(|text| String::from_utf8(text).ok()).collect();
            if texts.iter().any(|text| text == "bad") {
                return Err(Diagnostics::from(Diagnostic::error(&"f".into(), "", "a bad text")));
            }
            Ok(texts.join(" "))
        };
        lay(["a", "b", "c"]);
        assert_eq!(passing_over(false, load).unwrap(), ("a b c".to_owned(), Vec::new()));
        lay(["a", "bad", "c"]);
        let (text, warnings) = passing_over(true, load).unwrap();
        assert_eq!((text.as_str(), warnings.len()), ("a c", 1));
        assert!(
            warnings[0].to_string().contains("two: warning: this copy of a list is passed over: "),
            "{}",
            warnings[0]
        );
        assert!(warnings[0].to_string().contains("a bad text"), "{}", warnings[0]);
        let (text, _) = passing_over(false, load).unwrap();
        assert_eq!((text.as_str(), paths[1].exists()), ("a c", false));
        assert_eq!(fs::read_to_string(folder.join("two.refused")).unwrap(), "bad");
        // Copies are not to blame for an error of another kind.
        let other = || {
            adit_model::files::read_copy(&paths[0], 100).ok();
            Err::<(), _>(Diagnostics::from(Diagnostic::error(&"f".into(), "", "another problem")))
        };
        assert!(passing_over(false, other).unwrap_err().to_string().contains("another problem"));
        assert!(paths[0].exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn copies_are_moved_to_their_place() {
        let folder = std::env::temp_dir().join(format!("adit-lists-{}", std::process::id()));
        let path = folder.join("a/b/list");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let beside = Beside { version: Some("\"v\"".into()), of: Some(mark(b"two")), usage: None };
        write(&beside_path(&path), &serde_json::to_vec(&beside).unwrap()).unwrap();
        assert_eq!(read_beside(&path), beside);
        fs::write(beside_path(&path), "{").unwrap();
        assert_eq!(read_beside(&path), Beside::default());
        fs::remove_dir_all(folder).unwrap();
    }
}
