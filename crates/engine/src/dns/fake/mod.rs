//! Fake addresses: names get addresses out of a private range, and a request for such an address is one for its name.
//!
//! ```text
//!   question ─→ Filter ─ faked ─→ Pool: name → number ─→ range of IPv4 + number, range of IPv6 + number
//!                                   │ a new name: Store, before the answer leaves
//!   request for an address ─→ number → name, pinned for as long as the flow lives
//! ```

mod filter;
mod index;
mod pool;
mod store;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use adit_model::rule::AddressRange;
use adit_model::{self as model, FAKE_HEAD, FakeStore, StateFile};
use adit_net::files::suffixed;

pub(crate) use self::filter::{Filter, NameList};
use self::pool::{Pool, PoolSlot};
use self::store::{Records, Store};

pub use self::store::fuzz_fake_store;

pub(crate) use self::pool::MAX_NAME;

/// The fake addresses of the process.
#[derive(Debug)]
pub(crate) struct Fake {
    v4: [u32; 2],
    v6: Option<[u128; 2]>,
    places: u32,
    /// Lifetime of an answer in seconds.
    ttl: AtomicU32,
    state: Mutex<State>,
    filter: RwLock<Arc<Filter>>,
}

#[derive(Debug)]
struct State {
    pool: Pool,
    store: Option<Store>,
    /// Another process takes over.
    away: Option<Away>,
}

/// The state while another process takes over.
#[derive(Debug, Default)]
struct Away {
    /// The file, if there is one.
    path: Option<PathBuf>,
    /// The names since the file was left.
    journal: Vec<(u32, String)>,
    /// The other process has them all: it gives new addresses from now on.
    is_frozen: bool,
}

/// Result of looking at the address of a request.
#[derive(Debug)]
pub(crate) enum FakeLookup {
    /// It is none of ours.
    Other,
    /// It stands for this name, which keeps it while the pin lives.
    Name(Box<str>, FakePin),
    /// It is one of ours without a name.
    Unmapped,
}

/// Holds a name's address for a flow.
#[derive(Debug)]
pub(crate) struct FakePin {
    fake: Arc<Fake>,
    number: u32,
}

impl FakePin {
    /// The number of the name.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for FakePin {
    fn drop(&mut self) {
        self.fake.state().pool.unpin(self.number);
    }
}

impl Fake {
    /// The fake addresses of a configuration, with the names of its file; a warning if that cannot be used. The filter
    /// comes with [`Fake::set_filter`].
    pub(crate) fn open(fake: &model::Fake, state: &StateFile) -> (Self, Option<String>) {
        let (v4, v6) = (bounds4(fake.v4), fake.v6.and_then(bounds6));
        let places = fake.places();
        let mut warning = None;
        let opened = store_path(fake, state).and_then(|path| match Store::open(&path, v4) {
            Ok(opened) => Some(opened),
            Err(error) => {
                let path = path.display();
                warning = Some(format!(
                    "cannot use {path} for fake addresses: {error}; names will have other addresses after a restart"
                ));
                None
            }
        });
        let (store, records) = opened.map_or((None, Vec::new()), |(store, records)| (Some(store), records));
        let pool = Pool::load(places, Records(&records));
        let mut state = State { pool, store, away: None };
        state.tidy();
        let ttl = AtomicU32::new(seconds(fake));
        let (state, filter) = (Mutex::new(state), RwLock::default());
        (Self { v4, v6, places, ttl, state, filter }, warning)
    }

    /// From now on these names get fake addresses.
    pub(crate) fn set_filter(&self, filter: Filter) {
        *self.filter.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(filter);
    }

    /// Lifetime of an answer in seconds.
    pub(super) fn ttl(&self) -> u32 {
        self.ttl.load(Ordering::Relaxed)
    }

    /// From now on answers live as long as `fake` says, and these names get fake addresses. Its ranges and its file are not
    /// followed.
    pub(crate) fn follow(&self, fake: &model::Fake, filter: Filter) {
        self.ttl.store(seconds(fake), Ordering::Relaxed);
        self.set_filter(filter);
    }

    /// Whether a name in lower case gets a fake address.
    pub(crate) fn is_faked(&self, name: &str) -> bool {
        is_fakeable(name) && self.filter.read().unwrap_or_else(PoisonError::into_inner).is_faked(name)
    }

    /// The number of a name in lower case; `None` if flows hold every number.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        let mut state = self.state();
        if state.away.as_ref().is_some_and(|away| away.is_frozen) {
            return state.pool.known(name);
        }
        match state.pool.place(name) {
            PoolSlot::Known(number) => Some(number),
            PoolSlot::New(number) => {
                if let Some(away) = &mut state.away {
                    away.journal.push((number, name.to_owned()));
                }
                if let Some(store) = &mut state.store {
                    store.append(number, name);
                }
                state.tidy();
                Some(number)
            }
            PoolSlot::Full => None,
        }
    }

    /// The address of IPv4 with this number.
    pub(crate) fn v4(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.v4[0] + FAKE_HEAD + number)
    }

    /// The address of IPv6 with this number, if there is a range.
    pub(crate) fn v6(&self, number: u32) -> Option<Ipv6Addr> {
        self.v6.map(|[first, _]| Ipv6Addr::from_bits(first + u128::from(FAKE_HEAD + number)))
    }

    /// Whether an address lies in one of the ranges.
    pub(crate) fn holds(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => (self.v4[0]..=self.v4[1]).contains(&ip.to_bits()),
            IpAddr::V6(ip) => self.v6.is_some_and(|[first, last]| (first..=last).contains(&ip.to_bits())),
        }
    }

    /// The name of an address in a range, for a question.
    pub(crate) fn name_of(&self, ip: IpAddr) -> Option<Box<str>> {
        let number = self.number_of(ip)?;
        self.state().pool.name(number).map(Into::into)
    }

    /// The name behind the address of a request, which keeps the address until the pin is dropped.
    pub(crate) fn look(self: &Arc<Self>, ip: IpAddr) -> FakeLookup {
        if !self.holds(ip) {
            return FakeLookup::Other;
        }
        let Some(number) = self.number_of(ip) else { return FakeLookup::Unmapped };
        let name = self.state().pool.pin(number).map(Box::from);
        match name {
            Some(name) => FakeLookup::Name(name, FakePin { fake: self.clone(), number }),
            None => FakeLookup::Unmapped,
        }
    }

    /// Leaves the file to another process. Names that are new from now on are noted.
    pub(crate) fn release(&self) {
        let mut state = self.state();
        let State { pool, store, away } = &mut *state;
        let path = store.take().map(|store| store.path().to_owned());
        // The other process finds them nowhere else.
        let all = || pool.entries().map(|(number, name)| (number, name.to_owned())).collect();
        let journal = if path.is_none() { all() } else { Vec::new() };
        *away = Some(Away { path, journal, is_frozen: false });
    }

    /// The names since [`Fake::release`]. New names have to ask the other process from now on.
    pub(crate) fn hand_over(&self) -> Vec<(u32, String)> {
        let mut state = self.state();
        let Some(away) = &mut state.away else { return Vec::new() };
        away.is_frozen = true;
        away.journal.clone()
    }

    /// The other process is gone: the file is this one's again. A file that cannot be had costs a warning.
    pub(crate) fn resume(&self) {
        let mut state = self.state();
        let State { pool, store, away } = &mut *state;
        let Some(Away { path: Some(path), .. }) = away.take() else { return };
        match Store::open(&path, self.v4) {
            Ok((mut opened, _)) => {
                opened.rewrite(pool.entries());
                *store = Some(opened);
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(
                    "cannot use {path} for fake addresses: {error}; names will have other addresses after a restart"
                );
            }
        }
    }

    /// Learns names of another process, before there are any flows here.
    pub(crate) fn learn(&self, entries: &[(u32, String)]) {
        let is_good = |(_, name): &&(u32, String)| is_fakeable(name);
        let learned = || entries.iter().filter(is_good).map(|(number, name)| (*number, &**name));
        let mut state = self.state();
        let State { pool, store, .. } = &mut *state;
        let mut all: Vec<(u32, String)> =
            pool.entries().map(|(number, name)| (number, name.to_owned())).collect();
        all.extend(learned().map(|(number, name)| (number, name.to_owned())));
        *pool = Pool::load(self.places, all.iter().map(|(number, name)| (*number, &**name)));
        if let Some(store) = store {
            learned().for_each(|(number, name)| store.append(number, name));
        }
    }

    /// Forgets all names that no flow holds.
    pub(crate) fn flush(&self) {
        let mut state = self.state();
        state.pool.flush();
        let State { pool, store, .. } = &mut *state;
        if let Some(store) = store {
            store.rewrite(pool.entries());
        }
    }

    fn number_of(&self, ip: IpAddr) -> Option<u32> {
        let offset = match ip.to_canonical() {
            IpAddr::V4(ip) => ip.to_bits().checked_sub(self.v4[0]),
            IpAddr::V6(ip) => {
                ip.to_bits().checked_sub(self.v6?[0]).and_then(|offset| u32::try_from(offset).ok())
            }
        };
        offset?.checked_sub(FAKE_HEAD).filter(|number| *number < self.places)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        super::shared::lock(&self.state)
    }
}

impl State {
    /// Writes the file anew if most of it is of no use.
    fn tidy(&mut self) {
        let Self { pool, store, .. } = self;
        if let Some(store) = store
            && store.is_long(pool.len(), pool.text_len())
        {
            store.rewrite(pool.entries());
        }
    }
}

/// A pool with these names, in lower case, for measuring its memory.
#[doc(hidden)]
pub fn fake_names<'n>(capacity: u32, names: impl Iterator<Item = &'n str>) -> Box<dyn std::any::Any> {
    let mut pool = Pool::new(capacity);
    for name in names {
        pool.place(name);
    }
    Box::new(pool)
}

/// Whether a name in lower case can have a fake address: one of hosts, that is no address in text. Others are asked for.
pub(crate) fn is_fakeable(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_good);
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= MAX_NAME && name.split('.').all(is_label) && !name.rsplit('.').next().is_some_and(is_number)
}

fn seconds(fake: &model::Fake) -> u32 {
    u32::try_from(fake.ttl.as_secs()).unwrap_or(u32::MAX)
}

fn bounds4(range: model::FakeRange) -> [u32; 2] {
    match range.network().range() {
        AddressRange::V4(first, last) => [first, last],
        AddressRange::V6(..) => unreachable!("the range of IPv4 is one of IPv4"),
    }
}

fn bounds6(range: model::FakeRange) -> Option<[u128; 2]> {
    match range.network().range() {
        AddressRange::V4(..) => None,
        AddressRange::V6(first, last) => Some([first, last]),
    }
}

/// The file of a configuration: as it says, or beside its state file.
fn store_path(fake: &model::Fake, state: &StateFile) -> Option<PathBuf> {
    let beside = |path: &Path| suffixed(path, ".fake");
    match (&fake.store, state) {
        (FakeStore::Off, _) | (FakeStore::Usual, StateFile::Usual | StateFile::Off) => None,
        (FakeStore::At(path), _) => Some(path.clone()),
        (FakeStore::Usual, StateFile::At(path) | StateFile::Try { path, .. }) => Some(beside(path)),
    }
}

#[cfg(test)]
mod tests;
