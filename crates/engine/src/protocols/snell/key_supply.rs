//! Keys of our own directions, derived ahead of need.
//!
//! An end chooses its own salts, so the memory-hard derivation need not wait for a connection: a thread keeps a
//! small stock per pre-shared key. A burst that empties it derives in place, one connection at a time, with the
//! loop's other tasks in between.
//!
//! A server's thread is there from the start. That of a client begins with the second of two keys that are taken shortly
//! after each other, and ends when none is taken for a while: a list of servers may hold thousands, of which one is used.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use adit_net::rt;
use adit_proto::snell::{SnellDirectionKey, SnellPsk};

use crate::rng::OsRng;

/// Keys in stock: about a millisecond's work.
const STOCK: usize = 64;
/// The thread looks whether its owner is still there this often.
const CHECK: Duration = Duration::from_secs(5);
/// Two keys that are taken within this time of each other are worth a stock.
const CLOSE: Duration = Duration::from_secs(10);
/// Looks without a key taken after which a client's thread ends.
const IDLE_LOOKS: u32 = 12;

/// A stock of keys for one pre-shared key, shared by all cores.
#[derive(Debug)]
pub(crate) struct KeySupply {
    psk: SnellPsk,
    stock: Mutex<VecDeque<SnellDirectionKey>>,
    low: Condvar,
    this: Weak<Self>,
    /// Whether the thread stays while no key is taken.
    stays: bool,
    has_thread: AtomicBool,
    /// When a key was last taken that was not in stock.
    missed_at: Mutex<Option<Instant>>,
}

impl KeySupply {
    /// Starts the thread that fills the stock; it ends when the supply is dropped.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub(crate) fn start(psk: SnellPsk) -> io::Result<Arc<Self>> {
        let supply = Self::new(psk, true);
        supply.begin()?;
        Ok(supply)
    }

    /// A supply whose thread begins once keys are taken shortly after each other.
    pub(crate) fn on_demand(psk: SnellPsk) -> Arc<Self> {
        Self::new(psk, false)
    }

    fn new(psk: SnellPsk, stays: bool) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            psk,
            stock: Mutex::default(),
            low: Condvar::new(),
            this: this.clone(),
            stays,
            has_thread: AtomicBool::new(false),
            missed_at: Mutex::new(None),
        })
    }

    /// Starts the thread, unless there is one.
    fn begin(&self) -> io::Result<()> {
        if self.has_thread.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let weak = self.this.clone();
        let begun = std::thread::Builder::new().name("adit-keys".into()).spawn(move || fill(&weak));
        if begun.is_err() {
            self.has_thread.store(false, Ordering::Relaxed);
        }
        begun.map(drop)
    }

    /// A key was taken that was not in stock.
    fn note_missed(&self) {
        let now = rt::now();
        let before = self.missed_at.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if before.is_some_and(|before| now.saturating_duration_since(before) < CLOSE) {
            // Without a thread each key is derived in place.
            self.begin().ok();
        }
    }

    /// The pre-shared key.
    pub(crate) fn psk(&self) -> &SnellPsk {
        &self.psk
    }

    /// A fresh salt with its key.
    pub(crate) fn take(&self) -> SnellDirectionKey {
        let mut stock = self.stock();
        let key = stock.pop_front();
        if stock.len() == STOCK / 2 || key.is_none() {
            self.low.notify_one();
        }
        drop(stock);
        key.unwrap_or_else(|| {
            self.note_missed();
            self.psk.derive_own(&mut OsRng)
        })
    }

    fn stock(&self) -> MutexGuard<'_, VecDeque<SnellDirectionKey>> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fill(supply: &Weak<KeySupply>) {
    let mut idle = 0;
    while let Some(supply) = supply.upgrade() {
        let mut is_used = false;
        while supply.stock().len() < STOCK {
            let key = supply.psk.derive_own(&mut OsRng);
            supply.stock().push_back(key);
            is_used = true;
        }
        idle = if is_used { 0 } else { idle + 1 };
        if !supply.stays && idle >= IDLE_LOOKS {
            supply.has_thread.store(false, Ordering::Relaxed);
            return;
        }
        let stock = supply.stock();
        drop(supply.low.wait_timeout_while(stock, CHECK, |stock| stock.len() > STOCK / 2));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A thousand servers of a list cost no thread until one is used.
    #[test]
    fn a_stock_on_demand() {
        let supply = KeySupply::on_demand(SnellPsk::new(b"key"));
        drop(supply.take());
        assert!(!supply.has_thread.load(Ordering::Relaxed) && supply.stock().is_empty());
        drop(supply.take());
        assert!(supply.has_thread.load(Ordering::Relaxed));
        adit_testkit::wait_for("the stock is full", || supply.stock().len() == STOCK);
    }

    #[test]
    fn keys_never_repeat_and_the_thread_ends() {
        let supply = KeySupply::start(SnellPsk::new(b"key")).unwrap();
        let salts: HashSet<_> = (0..500).map(|_| *supply.take().salt()).collect();
        assert_eq!(salts.len(), 500);
        let key = supply.take();
        assert_eq!(format!("{:?}", supply.psk.derive(key.salt())), "DirectionKey(..)");
        let weak = Arc::downgrade(&supply);
        drop(supply);
        adit_testkit::wait_for("the thread lets its supply go", || weak.strong_count() == 0);
    }
}
