//! Counters and limits of one user; every core adds to them.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use adit_model::{Day, Expiry, UserLimits};
use adit_net::rt;

use super::addresses::{Origins, Presence, Seat};
use super::last_limit::{LastLimit, Line};
use super::ledger::Alarm;
use crate::counters::{Counter, RefusedCounters, Traffic};
use crate::errors::LastError;

/// A user with a rate may have been idle for this long, in ns, and then use what that has left, in one go.
const BURST_NS: u64 = 100_000_000;
/// And this much in any case, in bytes: a read that brings less is not worth its call.
const MIN_BURST: u64 = 16 * 1024;
/// A user is online for so long after the last byte, in seconds.
const ONLINE_S: u32 = 60;
/// The bits of [`Account::activity`] for seconds without a byte, and so many of them at most.
const QUIET: u32 = 0xff;
/// The counters before the value in an `Arc`, in bytes.
const ARC_HEAD: usize = 2 * size_of::<usize>();
/// Stands for no quota.
const NO_QUOTA: u64 = u64::MAX;
/// Stands for a service without an end: times end with the year 9999.
const NEVER: u64 = u64::MAX;
const NANOS: u64 = 1_000_000_000;

/// A direction, seen from the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserDirection {
    /// From the user.
    Up,
    /// To the user.
    Down,
}

/// Why a user gets no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserLimit {
    /// The bytes of the period are used up.
    Quota,
    /// The service has ended.
    Expired,
    /// As many connections as may be are open.
    Connections,
    /// As many source addresses as may be are in use.
    Addresses,
    /// The user is no longer one of the configuration.
    Removed,
}

impl UserLimit {
    /// The counter of the connections that it refuses.
    pub(crate) fn counter(self, refused: &RefusedCounters) -> &Counter {
        match self {
            Self::Quota => &refused.limit_quota,
            Self::Expired | Self::Removed => &refused.limit_expired,
            Self::Connections => &refused.limit_connections,
            Self::Addresses => &refused.limit_addresses,
        }
    }
}

impl fmt::Display for UserLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quota => "quota used up",
            Self::Expired => "account expired",
            Self::Connections => "too many connections",
            Self::Addresses => "too many source addresses",
            Self::Removed => "user removed",
        })
    }
}

/// The part that outlives the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AccountRecord {
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) requests: u64,
    /// Bytes, both ways together, when the period began.
    pub(crate) base: u64,
    /// The period, as [`Day::period`] counts; 0 where there is one for ever.
    pub(crate) period: u64,
}

/// [`UserLimits`] in two thirds of the room: the number that no limit has stands for none.
#[derive(Debug, Clone, Copy)]
struct Kept {
    quota: u64,
    expires: u64,
    rate: u64,
    connections: u32,
    addresses: u32,
    reset_day: u8,
}

impl From<UserLimits> for Kept {
    fn from(limits: UserLimits) -> Self {
        Self {
            quota: limits.quota.unwrap_or(NO_QUOTA),
            expires: limits.expires.map_or(NEVER, Expiry::unix_s),
            rate: limits.rate.unwrap_or(0),
            connections: limits.connections.unwrap_or(0),
            addresses: limits.addresses.unwrap_or(0),
            reset_day: limits.reset_day.unwrap_or(0),
        }
    }
}

impl From<Kept> for UserLimits {
    fn from(kept: Kept) -> Self {
        Self {
            quota: Some(kept.quota).filter(|quota| *quota != NO_QUOTA),
            expires: Some(kept.expires).filter(|expires| *expires != NEVER).map(Expiry::at),
            rate: Some(kept.rate).filter(|rate| *rate != 0),
            connections: Some(kept.connections).filter(|most| *most != 0),
            addresses: Some(kept.addresses).filter(|most| *most != 0),
            reset_day: Some(kept.reset_day).filter(|day| *day != 0),
        }
    }
}

/// A user's account.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) name: Arc<str>,
    limits: RwLock<Kept>,
    /// Of the limits, those that every read asks for: bytes, [`NO_QUOTA`] for none.
    quota: AtomicU64,
    /// Bytes at which half of an allowance is used, [`NO_QUOTA`] for no allowance.
    half: AtomicU64,
    /// Bytes a second, 0 for none.
    rate: AtomicU64,
    is_limited: AtomicBool,
    /// The user is no longer one of the configuration.
    is_removed: AtomicBool,
    /// Payload bytes, since there is an account.
    pub(crate) traffic: Traffic,
    /// Requests served, since there is an account.
    pub(crate) requests: Counter,
    /// Connections that are open.
    open: AtomicU32,
    /// Source addresses, where they are limited; nothing for a user who is not there.
    origins: Mutex<Option<Box<Origins>>>,
    /// Bytes of the period, both ways together, with what is reserved.
    spent: AtomicI64,
    base: AtomicU64,
    period: AtomicU32,
    expired: AtomicBool,
    /// The last 24 bits of the number of bytes at the latest look, and 8 bits of the seconds without a byte before it.
    activity: AtomicU32,
    /// The ledger knows that the quota is used up.
    is_told: AtomicBool,
    trouble: LastLimit,
    alarm: Option<Arc<Alarm>>,
    /// When what has been taken will have been earned, per direction, in ns since `since`.
    earned_at: [AtomicU64; 2],
    since: Instant,
}

impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Answer of [`Account::grant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// So many bytes are reserved, at least 1.
    Bytes(usize),
    /// The rate leaves nothing for so long.
    Wait(Duration),
    /// No more.
    Over(UserLimit),
}

impl Account {
    pub(crate) fn new(
        name: impl Into<Arc<str>>,
        limits: UserLimits,
        record: AccountRecord,
        now: Instant,
        unix_s: u64,
    ) -> Self {
        let account = Self {
            name: name.into(),
            limits: RwLock::new(limits.into()),
            quota: AtomicU64::new(NO_QUOTA),
            half: AtomicU64::new(NO_QUOTA),
            rate: AtomicU64::new(0),
            is_limited: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            traffic: Traffic::default(),
            requests: Counter::default(),
            open: AtomicU32::new(0),
            origins: Mutex::default(),
            spent: AtomicI64::new(0),
            base: AtomicU64::new(record.base),
            period: AtomicU32::new(u32::try_from(record.period).unwrap_or(u32::MAX)),
            expired: AtomicBool::new(false),
            activity: AtomicU32::new(0),
            is_told: AtomicBool::new(false),
            trouble: LastLimit::default(),
            alarm: None,
            earned_at: [const { AtomicU64::new(0) }; 2],
            since: now,
        };
        account.traffic.up.add(record.up);
        account.traffic.down.add(record.down);
        account.requests.add(record.requests);
        account.set_limits(limits, unix_s);
        account.activity.store(account.total_bits() | QUIET, Ordering::Relaxed);
        account
    }

    /// The same, which rings `alarm` once when the quota is used up.
    pub(super) fn with_alarm(self, alarm: Arc<Alarm>) -> Self {
        Self { is_told: AtomicBool::new(self.over().is_some()), alarm: Some(alarm), ..self }
    }

    /// The limits at this time.
    pub(crate) fn limits(&self) -> UserLimits {
        (*self.limits.read().unwrap_or_else(PoisonError::into_inner)).into()
    }

    /// Other limits from now on, for open connections too. Bytes that have been used stay used.
    pub(crate) fn set_limits(&self, limits: UserLimits, unix_s: u64) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits.into();
        self.quota.store(limits.quota.unwrap_or(NO_QUOTA), Ordering::Relaxed);
        self.rate.store(limits.rate.unwrap_or(0), Ordering::Relaxed);
        let is_limited = limits.quota.is_some() || limits.rate.is_some() || limits.expires.is_some();
        self.is_limited.store(is_limited, Ordering::Relaxed);
        self.spent.store(signed(self.used()), Ordering::Relaxed);
        self.tick(unix_s);
        self.is_told.store(self.over().is_some(), Ordering::Relaxed);
    }

    /// The user is no longer one of the configuration: its connections end within a second.
    pub(crate) fn remove(&self) {
        self.is_removed.store(true, Ordering::Relaxed);
        self.is_limited.store(true, Ordering::Relaxed);
    }

    /// The user is one of the configuration again.
    pub(crate) fn restore(&self) {
        self.is_removed.store(false, Ordering::Relaxed);
    }

    /// Holds the user to so many bytes more in the place of the rest of its quota, or to the quota again.
    pub(crate) fn allow(&self, allowance: Option<u64>) {
        let Some(quota) = self.limits().quota else { return };
        let used = self.used();
        let most = allowance.map_or(quota, |bytes| used.saturating_add(bytes).min(quota));
        let half = allowance.map_or(NO_QUOTA, |bytes| used.saturating_add(bytes / 2));
        self.quota.store(most, Ordering::Relaxed);
        self.half.store(half, Ordering::Relaxed);
        self.is_told.store(self.over().is_some(), Ordering::Relaxed);
    }

    /// Whether half of the allowance is used.
    pub(super) fn is_hurried(&self) -> bool {
        let half = self.half.load(Ordering::Relaxed);
        half != NO_QUOTA && self.used() > half
    }

    fn quota(&self) -> Option<u64> {
        Some(self.quota.load(Ordering::Relaxed)).filter(|quota| *quota != NO_QUOTA)
    }

    fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate != 0)
    }

    /// The part that is to outlive the process.
    pub(crate) fn record(&self) -> AccountRecord {
        AccountRecord {
            base: self.base.load(Ordering::Relaxed),
            period: self.period.load(Ordering::Relaxed).into(),
            up: self.traffic.up.value(),
            down: self.traffic.down.value(),
            requests: self.requests.value(),
        }
    }

    /// Bytes of the period, both ways together.
    pub(crate) fn used(&self) -> u64 {
        let AccountRecord { up, down, base, .. } = self.record();
        up.saturating_add(down).saturating_sub(base)
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// The source addresses of the open connections, where they are limited.
    pub(crate) fn sources(&self) -> Vec<IpAddr> {
        self.origins().iter().flat_map(|origins| origins.open()).collect()
    }

    fn origins(&self) -> MutexGuard<'_, Option<Box<Origins>>> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A second has passed: sources that have been silent for long count no more.
    pub(super) fn sweep(&self, now: Instant) {
        let Some(most) = self.limits().addresses else { return };
        let mut held = self.origins();
        if let Some(origins) = held.as_mut() {
            origins.sweep(most, self.seconds(now));
            if origins.is_empty() {
                *held = None;
            }
        }
    }

    /// The sources in use, if they are limited and there are any.
    pub(super) fn presence(&self, now: Instant) -> Option<Presence> {
        let most = self.limits().addresses.filter(|most| *most != u32::MAX)?;
        let mut held = self.origins();
        let origins = held.as_mut().filter(|origins| !origins.is_empty())?;
        Some(origins.present(most, self.seconds(now)))
    }

    /// Follows the sources on all nodes; `None` if they are not known.
    pub(super) fn follow(&self, all: Option<(&[(IpAddr, u64)], u64)>, now: Instant) {
        let Some(most) = self.limits().addresses else { return };
        match all {
            Some((all, silent_s)) => {
                let mut held = self.origins();
                held.get_or_insert_default().follow(all, most, silent_s, self.seconds(now));
            }
            None => {
                if let Some(origins) = self.origins().as_mut() {
                    origins.forget_elsewhere();
                }
            }
        }
    }

    /// Seconds since there is an account.
    fn seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs()
    }

    /// A second has passed: ends the service when it is time.
    pub(crate) fn tick(&self, unix_s: u64) {
        let expired = self.limits().expires.is_some_and(|expiry| unix_s >= expiry.unix_s());
        self.expired.store(expired, Ordering::Relaxed);
        // An account that had no periods begins its first one.
        if self.period.load(Ordering::Relaxed) == 0 {
            self.turn(unix_s);
        }
    }

    /// A second has passed: sees whether bytes have moved in it.
    pub(super) fn look(&self) {
        let (before, bits) = (self.activity.load(Ordering::Relaxed), self.total_bits());
        let has_moved = before & !QUIET != bits;
        let quiet = if has_moved { 0 } else { (before & QUIET).saturating_add(1).min(QUIET) };
        self.activity.store(bits | quiet, Ordering::Relaxed);
    }

    /// The last bits of the number of all bytes, in the place that they have in `activity`.
    #[expect(clippy::cast_possible_truncation, reason = "they tell whether the number has changed")]
    fn total_bits(&self) -> u32 {
        (self.traffic.up.value().wrapping_add(self.traffic.down.value()) as u32) << QUIET.count_ones()
    }

    /// Whether bytes have moved in the last [`ONLINE_S`] seconds.
    pub(crate) fn is_online(&self) -> bool {
        self.activity.load(Ordering::Relaxed) & QUIET < ONLINE_S
    }

    /// Memory that the account takes, in bytes, without its records in tables.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.name.len() + 2 * ARC_HEAD
    }

    /// Begins a period when it is time.
    pub(crate) fn turn(&self, unix_s: u64) {
        let Some(first) = self.limits().reset_day else { return };
        let period = Day::of(unix_s).period(first);
        let before = self.period.fetch_max(period, Ordering::Relaxed);
        // An account that had no periods keeps its counters; a clock that is set back gives nothing away.
        if before != 0 && period > before {
            self.base.store(self.traffic.up.value() + self.traffic.down.value(), Ordering::Relaxed);
            self.spent.store(0, Ordering::Relaxed);
            self.is_told.store(false, Ordering::Relaxed);
        }
    }

    /// The limit by which the user is to be cut off, if there is one.
    pub(crate) fn over(&self) -> Option<UserLimit> {
        if self.is_removed.load(Ordering::Relaxed) {
            return Some(UserLimit::Removed);
        }
        if self.expired.load(Ordering::Relaxed) {
            return Some(UserLimit::Expired);
        }
        let spent = self.spent.load(Ordering::Relaxed);
        let is_spent = self.quota().is_some_and(|quota| spent >= signed(quota));
        is_spent.then_some(UserLimit::Quota)
    }

    /// `connections` connections (0 or 1) from `source` begin; the seat of the source, where sources are limited.
    ///
    /// # Errors
    /// The limit that is in the way; nothing has been counted then.
    pub(super) fn enter(&self, source: IpAddr, connections: u32) -> Result<Option<Arc<Seat>>, UserLimit> {
        self.try_enter(source, connections).inspect_err(|limit| self.trouble.note(*limit, rt::unix_time()))
    }

    /// The last limit that was in the way.
    pub(crate) fn last_error(&self) -> Option<LastError> {
        self.trouble.last(self.over())
    }

    /// The line of the log that is due.
    pub(super) fn take_line(&self, unix_s: u64) -> Option<Line> {
        self.trouble.take_line(self, unix_s)
    }

    fn try_enter(&self, source: IpAddr, connections: u32) -> Result<Option<Arc<Seat>>, UserLimit> {
        if let Some(limit) = self.over() {
            return Err(limit);
        }
        let most = self.limits().connections.unwrap_or(u32::MAX);
        let grow =
            |open: u32| open.checked_add(connections).filter(|after| connections == 0 || *after <= most);
        self.open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow)
            .map_err(|_| UserLimit::Connections)?;
        let Some(most) = self.limits().addresses else { return Ok(None) };
        let entered = self.origins().get_or_insert_default().enter(source, most, self.seconds(rt::now()));
        entered.map(Some).map_err(|()| {
            self.open.fetch_sub(connections, Ordering::Relaxed);
            UserLimit::Addresses
        })
    }

    /// Ends what [`Account::enter`] has begun.
    pub(super) fn leave(&self, source: IpAddr, connections: u32, seat: Option<&Arc<Seat>>) {
        self.open.fetch_sub(connections, Ordering::Relaxed);
        let Some(seat) = seat else { return };
        let lingers = self.limits().addresses.is_some_and(|most| most != u32::MAX);
        if let Some(origins) = self.origins().as_mut() {
            origins.leave(source, seat, lingers, self.seconds(rt::now()));
        }
    }

    /// Whether a read has to ask.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Reserves up to `wanted` bytes (at least 1); [`Account::settle`] comes next.
    pub(crate) fn grant(&self, way: UserDirection, wanted: usize, now: Instant) -> Grant {
        if self.is_removed.load(Ordering::Relaxed) {
            return Grant::Over(UserLimit::Removed);
        }
        if self.expired.load(Ordering::Relaxed) {
            return Grant::Over(UserLimit::Expired);
        }
        let mut granted = wanted;
        if let Some(quota) = self.quota() {
            match self.reserve(quota, wanted) {
                0 => return Grant::Over(UserLimit::Quota),
                reserved => granted = reserved,
            }
        }
        let Some(rate) = self.rate() else { return Grant::Bytes(granted) };
        match self.earn(way, rate, granted, now) {
            Ok(earned) => {
                self.give_back(granted - earned);
                Grant::Bytes(earned)
            }
            Err(wait) => {
                self.give_back(granted);
                Grant::Wait(wait)
            }
        }
    }

    /// Of what was granted, `moved` bytes have been used; more than that if they came with bytes of before.
    pub(crate) fn settle(&self, way: UserDirection, granted: usize, moved: usize) {
        self.count(way, moved as u64);
        if let Some(quota) = self.quota() {
            let change =
                i64::try_from(moved).unwrap_or(i64::MAX) - i64::try_from(granted).unwrap_or(i64::MAX);
            let before = self.spent.fetch_add(change, Ordering::Relaxed);
            if before.saturating_add(change) >= signed(quota) {
                self.tell(quota);
            }
        }
        let Some(rate) = self.rate() else { return };
        let earned_at = &self.earned_at[way as usize];
        if moved > granted {
            earned_at.fetch_add(nanos(moved - granted, rate), Ordering::Relaxed);
        } else {
            earned_at.fetch_sub(nanos(granted - moved, rate), Ordering::Relaxed);
        }
    }

    /// Adds what the user has moved and asked for in another process.
    pub(super) fn credit(&self, [up, down, requests]: [u64; 3]) {
        self.count(UserDirection::Up, up);
        self.count(UserDirection::Down, down);
        self.requests.add(requests);
        self.charge(up.saturating_add(down));
    }

    /// The user has moved so many bytes in another process, which counts them.
    pub(super) fn charge(&self, bytes: u64) {
        if let Some(quota) = self.quota() {
            self.spent.fetch_add(signed(bytes), Ordering::Relaxed);
            self.tell(quota);
        }
    }

    /// Has the counters written at once when nothing of the quota is left, so that a kill does not give any of it back.
    fn tell(&self, quota: u64) {
        // Reserved bytes may still be given back.
        if self.used() >= quota
            && !self.is_told.swap(true, Ordering::Relaxed)
            && let Some(alarm) = &self.alarm
        {
            alarm.ring();
        }
    }

    /// Counts bytes, however they came.
    fn count(&self, way: UserDirection, bytes: u64) {
        match way {
            UserDirection::Up => self.traffic.up.add(bytes),
            UserDirection::Down => self.traffic.down.add(bytes),
        }
    }

    fn give_back(&self, bytes: usize) {
        if self.quota().is_some() {
            self.spent.fetch_sub(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
        }
    }

    /// Takes up to `wanted` bytes of what is left of the quota.
    fn reserve(&self, quota: u64, wanted: usize) -> usize {
        let quota = signed(quota);
        let mut spent = self.spent.load(Ordering::Relaxed);
        loop {
            let left = usize::try_from(quota.saturating_sub(spent)).unwrap_or(0).min(wanted);
            let after = spent.saturating_add(i64::try_from(left).unwrap_or(i64::MAX));
            match self.spent.compare_exchange_weak(spent, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return left,
                Err(other) => spent = other,
            }
        }
    }

    /// Takes up to `wanted` bytes of what the rate has earned; how long until there is something, if there is not.
    fn earn(&self, way: UserDirection, rate: u64, wanted: usize, now: Instant) -> Result<usize, Duration> {
        let now = u64::try_from(now.saturating_duration_since(self.since).as_nanos()).unwrap_or(u64::MAX);
        let burst = BURST_NS.max(nanos_of(MIN_BURST, rate));
        let earned_at = &self.earned_at[way as usize];
        let mut at = earned_at.load(Ordering::Relaxed);
        loop {
            let from = at.max(now);
            let room = (now + burst).saturating_sub(from);
            let bytes = usize::try_from(u128::from(room) * u128::from(rate) / u128::from(NANOS));
            let bytes = bytes.unwrap_or(usize::MAX).min(wanted);
            // A quarter of the burst at a time, so that waits are few.
            if room < burst / 4 || bytes == 0 {
                return Err(Duration::from_nanos(
                    (from + burst / 4).saturating_sub(now + burst).max(burst / 8),
                ));
            }
            let after = from + nanos(bytes, rate);
            match earned_at.compare_exchange_weak(at, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(bytes),
                Err(other) => at = other,
            }
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The time in which `rate` earns `bytes`, in ns.
fn nanos(bytes: usize, rate: u64) -> u64 {
    nanos_of(bytes as u64, rate)
}

fn nanos_of(bytes: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(NANOS) / u128::from(rate.max(1))).unwrap_or(u64::MAX / 4)
}
