//! Keys of our own directions, derived ahead of need.
//!
//! An end chooses its own salts, so the memory-hard derivation need not wait for a connection: a thread keeps a
//! small stock per pre-shared key. A burst that empties it derives in place, one connection at a time, with the
//! loop's other tasks in between.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adit_proto::snell::{DirectionKey, Psk};

use crate::rng::OsRng;

/// Keys in stock: about a millisecond's work.
const STOCK: usize = 64;
/// The thread looks whether its owner is still there this often.
const CHECK: Duration = Duration::from_secs(5);

/// A stock of keys for one pre-shared key, shared by all cores.
#[derive(Debug)]
pub(crate) struct KeySupply {
    psk: Psk,
    stock: Mutex<VecDeque<DirectionKey>>,
    low: Condvar,
}

impl KeySupply {
    /// Starts the thread that fills the stock; it ends when the supply is dropped.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub(crate) fn start(psk: Psk) -> io::Result<Arc<Self>> {
        let supply = Arc::new(Self { psk, stock: Mutex::default(), low: Condvar::new() });
        let weak = Arc::downgrade(&supply);
        std::thread::Builder::new().name("adit-keys".into()).spawn(move || fill(&weak))?;
        Ok(supply)
    }

    /// The pre-shared key.
    pub(crate) fn psk(&self) -> &Psk {
        &self.psk
    }

    /// A fresh salt with its key.
    pub(crate) fn take(&self) -> DirectionKey {
        let mut stock = self.stock();
        let key = stock.pop_front();
        if stock.len() == STOCK / 2 || key.is_none() {
            self.low.notify_one();
        }
        drop(stock);
        key.unwrap_or_else(|| self.psk.derive_own(&mut OsRng))
    }

    fn stock(&self) -> MutexGuard<'_, VecDeque<DirectionKey>> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fill(supply: &Weak<KeySupply>) {
    while let Some(supply) = supply.upgrade() {
        while supply.stock().len() < STOCK {
            let key = supply.psk.derive_own(&mut OsRng);
            supply.stock().push_back(key);
        }
        let stock = supply.stock();
        drop(supply.low.wait_timeout_while(stock, CHECK, |stock| stock.len() > STOCK / 2));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_never_repeat_and_the_thread_ends() {
        let supply = KeySupply::start(Psk::new(b"key")).unwrap();
        let salts: HashSet<_> = (0..500).map(|_| *supply.take().salt()).collect();
        assert_eq!(salts.len(), 500);
        let key = supply.take();
        assert_eq!(format!("{:?}", supply.psk.derive(key.salt())), "DirectionKey(..)");
        let weak = Arc::downgrade(&supply);
        drop(supply);
        for _ in 0..100 {
            if weak.strong_count() == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("the thread keeps its supply alive");
    }
}
