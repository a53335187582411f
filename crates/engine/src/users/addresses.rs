//! The source addresses of one user: which of them are in use, which one gives way, and those on other nodes.
//!
//! A source is an IPv4 address or an IPv6 /64. The larger of the numbers of both families counts, so that a device with both
//! is one. A source is in use while it moves bytes, [`QUIET_S`] and [`LINGER_S`] after the last one, and [`LINGER_S`] after
//! its last connection ended: a reconnect is no new source. At the limit the source that has been silent longest gives way
//! to a new one, once it has been silent for [`SILENT_S`].

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_model::map::Map;

/// A source with an open connection is quiet for so long before it counts as gone, in seconds.
const QUIET_S: u64 = 60;
/// A source counts for so long after that, and after its last connection ended, in seconds.
const LINGER_S: u64 = 30;
/// A source that has been silent for so long gives way, in seconds.
const SILENT_S: u64 = 10;
/// Seconds by which two nodes may differ about the silence of a source: each rounds it.
const ROUNDING_S: u64 = 2;

/// A source, as its connections share it.
#[derive(Debug, Default)]
pub(super) struct Seat {
    has_moved: AtomicBool,
    is_cut: AtomicBool,
}

impl Seat {
    /// Bytes have moved.
    pub(super) fn note(&self) {
        // A line that is only read stays with every core.
        if !self.has_moved.load(Ordering::Relaxed) {
            self.has_moved.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the source has given way: its connections end.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }
}

/// A source that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Present {
    /// IPv4 address, or the first address of an IPv6 /64.
    pub source: IpAddr,
    /// Seconds since its last byte.
    pub silent_s: u64,
    /// Seconds since it came.
    pub age_s: u64,
}

/// The sources of a user with a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence {
    /// The limit.
    pub most: u32,
    /// Those on this node.
    pub sources: Vec<Present>,
    /// A source has been refused here because of sources on other nodes.
    pub is_waiting: bool,
}

#[derive(Debug)]
struct Origin {
    seat: Arc<Seat>,
    /// Connections and flows.
    open: u32,
    since: u64,
    moved_at: u64,
    left_at: u64,
}

/// The sources of a user. Times are in seconds of any clock that goes on evenly.
#[derive(Debug)]
pub(super) struct Origins {
    here: Map<IpAddr, Origin>,
    /// Those on other nodes, with the seconds for which they had been silent when they were told.
    elsewhere: Map<IpAddr, u64>,
    /// A source that has been silent for so long gives way, in seconds.
    silent_s: u64,
    is_waiting: bool,
}

impl Default for Origins {
    fn default() -> Self {
        Self { here: Map::new(), elsewhere: Map::new(), silent_s: SILENT_S, is_waiting: false }
    }
}

impl Origins {
    /// A connection from `source` begins, of at most `most` sources.
    ///
    /// # Errors
    /// `()` when there are as many, and none of them gives way.
    pub(super) fn enter(&mut self, source: IpAddr, most: u32, now: u64) -> Result<Arc<Seat>, ()> {
        let is_here = self.here.get_mut(&source).is_some_and(|origin| {
            origin.fold(now);
            origin.lives(now)
        });
        if !is_here && !self.elsewhere.contains_key(&source) {
            self.make_room(source, most, now)?;
        }
        let origin = self.here.entry(source).or_insert_with(|| Origin::new(now));
        if !origin.lives(now) {
            (origin.since, origin.moved_at) = (now, now);
        }
        origin.open += 1;
        Ok(origin.seat.clone())
    }

    /// A connection from `source` ends. Its source lingers if there is a limit.
    pub(super) fn leave(&mut self, source: IpAddr, seat: &Arc<Seat>, lingers: bool, now: u64) {
        let Some(origin) = self.here.get_mut(&source) else { return };
        // One that has given way, and come again, is another one.
        if !Arc::ptr_eq(&origin.seat, seat) {
            return;
        }
        origin.fold(now);
        origin.open = origin.open.saturating_sub(1);
        origin.left_at = now;
        if origin.open == 0 && !lingers {
            self.here.remove(&source);
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.here.is_empty() && self.elsewhere.is_empty()
    }

    /// Those with open connections.
    pub(super) fn open(&self) -> impl Iterator<Item = IpAddr> {
        self.here.iter().filter(|(_, origin)| origin.open > 0).map(|(source, _)| *source)
    }

    /// A second has passed: sources that have come to life again stand behind those that were in use meanwhile.
    pub(super) fn sweep(&mut self, most: u32, now: u64) {
        self.fold(now);
        self.here.retain(|_, origin| origin.open > 0 || origin.lives(now));
        self.enforce(most, now);
    }

    /// Those in use here, the longest first.
    pub(super) fn present(&mut self, most: u32, now: u64) -> Presence {
        self.fold(now);
        let living = self.here.iter().filter(|(_, origin)| origin.lives(now));
        let sources = living.map(|(source, origin)| Present {
            source: *source,
            silent_s: now.saturating_sub(origin.moved_at),
            age_s: now.saturating_sub(origin.since),
        });
        Presence { most, sources: sources.collect(), is_waiting: std::mem::take(&mut self.is_waiting) }
    }

    /// Follows the sources on all nodes, in order of their arrival, with the seconds for which they have been silent. The
    /// first `most` of each family stay, and those that have been silent for `silent_s` come last. Sources here that are not
    /// among `all` have come since, and stay until the next time.
    ///
    /// A new source waits a little longer for one that is silent, so that it is not sent away again by another node's word.
    pub(super) fn follow(&mut self, all: &[(IpAddr, u64)], most: u32, silent_s: u64, now: u64) {
        self.fold(now);
        let silent_s = silent_s.max(SILENT_S - ROUNDING_S);
        self.silent_s = silent_s + ROUNDING_S;
        let (active, silent): (Vec<_>, Vec<_>) = all.iter().partition(|(_, silence)| *silence < silent_s);
        let mut left = [most; 2];
        self.elsewhere.clear();
        for (source, silence) in active.into_iter().chain(silent) {
            let left = &mut left[usize::from(source.is_ipv6())];
            let is_here = self.here.contains_key(&source);
            match (left.checked_sub(1), is_here) {
                (Some(rest), true) => *left = rest,
                (Some(rest), false) => {
                    *left = rest;
                    self.elsewhere.insert(source, silence);
                }
                (None, true) => self.release(source),
                (None, false) => {}
            }
        }
    }

    /// Those on other nodes are not known any more.
    pub(super) fn forget_elsewhere(&mut self) {
        self.elsewhere.clear();
        (self.silent_s, self.is_waiting) = (SILENT_S, false);
    }

    /// Those of a family in use, with their silence.
    fn living(&self, is_v6: bool, now: u64) -> impl Iterator<Item = (IpAddr, u64)> {
        let here = self.here.iter().filter(move |(_, origin)| origin.lives(now));
        let here = here.map(move |(source, origin)| (*source, now.saturating_sub(origin.moved_at)));
        let elsewhere = self.elsewhere.iter().filter(|(source, _)| !self.here.contains_key(*source));
        here.chain(elsewhere.map(|(source, silence)| (*source, *silence)))
            .filter(move |(source, _)| source.is_ipv6() == is_v6)
    }

    fn make_room(&mut self, source: IpAddr, most: u32, now: u64) -> Result<(), ()> {
        if self.here.len() + self.elsewhere.len() < most as usize {
            return Ok(());
        }
        self.fold(now);
        if self.living(source.is_ipv6(), now).count() < most as usize {
            return Ok(());
        }
        let silent = self.living(source.is_ipv6(), now).max_by_key(|(_, silence)| *silence);
        let Some((silent, _)) = silent.filter(|(_, silence)| *silence >= self.silent_s) else {
            self.is_waiting |= !self.elsewhere.is_empty();
            return Err(());
        };
        self.release(silent);
        Ok(())
    }

    /// Sources here that came last are released, until no more than `most` of a family are in use.
    fn enforce(&mut self, most: u32, now: u64) {
        for is_v6 in [false, true] {
            // Those elsewhere that are silent have given way, or will.
            let stays = |(source, silence): &(IpAddr, u64)| {
                self.here.contains_key(source) || silence + ROUNDING_S < self.silent_s
            };
            let count = self.living(is_v6, now).filter(stays).count();
            let Some(beyond) = count.checked_sub(most as usize).filter(|beyond| *beyond > 0) else {
                continue;
            };
            let of_family = self.here.iter().filter(|(source, _)| source.is_ipv6() == is_v6);
            let mut last: Vec<(u64, IpAddr)> = of_family
                .filter(|(_, origin)| origin.lives(now))
                .map(|(source, origin)| (origin.since, *source))
                .collect();
            last.sort_unstable();
            last.into_iter().rev().take(beyond).for_each(|(_, source)| self.release(source));
        }
    }

    fn release(&mut self, source: IpAddr) {
        self.elsewhere.remove(&source);
        if let Some(origin) = self.here.remove(&source) {
            origin.seat.is_cut.store(true, Ordering::Relaxed);
        }
    }

    fn fold(&mut self, now: u64) {
        self.here.values_mut().for_each(|origin| origin.fold(now));
    }
}

impl Origin {
    fn new(now: u64) -> Self {
        Self { seat: Arc::default(), open: 0, since: now, moved_at: now, left_at: now }
    }

    /// Takes over whether bytes have moved since the last time.
    fn fold(&mut self, now: u64) {
        if self.seat.has_moved.swap(false, Ordering::Relaxed) {
            if !self.lives(now) {
                self.since = now;
            }
            self.moved_at = now;
        }
    }

    /// Whether it counts.
    fn lives(&self, now: u64) -> bool {
        let until = self.moved_at + QUIET_S + LINGER_S;
        now < if self.open > 0 { until } else { until.min(self.left_at + LINGER_S) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    fn v6(n: u16) -> IpAddr {
        [0x2001, 0xdb8, 0, n, 0, 0, 0, 0].into()
    }

    #[test]
    fn a_device_with_both_families_is_one() {
        let mut origins = Origins::default();
        for source in [v4(1), v6(1)] {
            origins.enter(source, 1, 0).unwrap();
        }
        assert!(origins.enter(v4(2), 1, 1).is_err() && origins.enter(v6(2), 1, 1).is_err());
        assert_eq!(origins.open().count(), 2);
    }

    #[test]
    fn reconnects_are_one_source_and_a_new_one_waits_for_silence() {
        let mut origins = Origins::default();
        for second in 0..100 {
            let seat = origins.enter(v4(1), 1, second).unwrap();
            seat.note();
            origins.leave(v4(1), &seat, true, second);
        }
        let refused = (100..120).take_while(|now| origins.enter(v4(2), 1, *now).is_err()).count();
        assert_eq!(refused, 9, "the last byte was at 99");
        assert!(origins.enter(v4(1), 1, 110).is_err(), "the other one has its place");
    }

    #[test]
    fn a_silent_source_is_released_and_its_connections_end() {
        let mut origins = Origins::default();
        let wifi = origins.enter(v4(1), 1, 0).unwrap();
        wifi.note();
        assert!(origins.enter(v4(2), 1, 9).is_err());
        // The note was folded at 9.
        assert!(origins.enter(v4(2), 1, 18).is_err());
        let mobile = origins.enter(v4(2), 1, 19).unwrap();
        assert!(wifi.is_cut() && !mobile.is_cut());
        origins.leave(v4(1), &wifi, true, 20);
        assert_eq!(origins.open().collect::<Vec<_>>(), [v4(2)]);
    }

    #[test]
    fn a_source_that_wakes_stands_behind_the_others() {
        let mut origins = Origins::default();
        let old = origins.enter(v4(1), 2, 0).unwrap();
        origins.sweep(2, 91);
        // It has been silent for so long that it does not count.
        let [a, b] = [2, 3].map(|n| origins.enter(v4(n), 2, 91).unwrap());
        for seat in [&a, &b] {
            seat.note();
        }
        origins.sweep(2, 95);
        assert!(!old.is_cut(), "an idle connection harms nobody");
        old.note();
        origins.sweep(2, 96);
        assert!(old.is_cut() && !a.is_cut() && !b.is_cut());
    }

    #[test]
    fn of_all_nodes_the_first_stay() {
        let mut origins = Origins::default();
        let seats = [5, 6].map(|n| origins.enter(v4(n), 2, 0).unwrap());
        origins.follow(&[(v4(1), 0), (v4(5), 0), (v4(6), 0)], 2, 0, 1);
        assert!(!seats[0].is_cut() && seats[1].is_cut());
        assert!(origins.enter(v4(7), 2, 2).is_err(), "one here and one elsewhere");
        assert!(origins.present(2, 2).is_waiting && !origins.present(2, 2).is_waiting);
        // The one elsewhere is silent: it gives way, and stays behind when another node rounds otherwise.
        origins.follow(&[(v4(1), 10), (v4(5), 0)], 2, 0, 3);
        let new = origins.enter(v4(7), 2, 3).unwrap();
        // An answer of before it came does not send it away.
        origins.follow(&[(v4(1), 10), (v4(5), 0)], 2, 0, 4);
        origins.sweep(2, 4);
        origins.follow(&[(v4(1), 9), (v4(5), 0), (v4(7), 0)], 2, 0, 5);
        assert!(!seats[0].is_cut() && !new.is_cut());
        // Another family has places of its own; without the store there are those of this node alone.
        origins.enter(v6(1), 2, 5).unwrap();
        origins.follow(&[(v4(1), 0), (v4(2), 0)], 2, 0, 6);
        assert!(!new.is_cut(), "the store has not been told of it");
        origins.forget_elsewhere();
        assert_eq!(origins.open().count(), 3);
    }

    #[test]
    fn sources_without_a_limit_go_with_their_connections() {
        let mut origins = Origins::default();
        let seat = origins.enter(v4(1), u32::MAX, 0).unwrap();
        origins.leave(v4(1), &seat, false, 0);
        assert!(origins.is_empty());
    }
}
