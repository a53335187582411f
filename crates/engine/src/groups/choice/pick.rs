//! The choice among members, on what is known of them. Nothing here does I/O or reads a clock.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use adit_proto::wire::Host;

/// A member as a choice sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberView {
    pub(super) is_alive: bool,
    /// The latest delay in milliseconds; `u32::MAX` for none.
    pub(super) delay: u32,
}

/// Members with a delay: the one with the least, unless `current` is as good within `tolerance` milliseconds.
pub(super) fn least_delay(members: &[MemberView], current: Option<usize>, tolerance: u32) -> Option<usize> {
    let delay = |member: &MemberView| if member.is_alive { member.delay } else { u32::MAX };
    let best = (0..members.len()).min_by_key(|at| (!members[*at].is_alive, delay(&members[*at])))?;
    let current = current.filter(|at| members.get(*at).is_some_and(|member| member.is_alive));
    match current {
        Some(at) if delay(&members[at]) <= delay(&members[best]).saturating_add(tolerance) => Some(at),
        Some(_) | None => Some(best),
    }
}

/// The first member that is alive; the first of all if none is.
pub(super) fn first_alive(members: impl IntoIterator<Item = MemberView>) -> usize {
    members.into_iter().position(|member| member.is_alive).unwrap_or(0)
}

/// The member that a key falls to. As long as it is dead, neighbouring keys are tried, so that the death of a member moves
/// its own keys alone.
pub(super) fn by_key(key: u64, count: usize, is_alive: impl Fn(usize) -> bool) -> usize {
    /// As many as mihomo tries.
    const ATTEMPTS: u64 = 5;
    let tried = (0..ATTEMPTS).map(|n| jump(key.wrapping_add(n), count));
    let found = tried.into_iter().find(|at| is_alive(*at));
    found.or_else(|| (0..count).find(|at| is_alive(*at))).unwrap_or(0)
}

/// Jump consistent hash (Lamping and Veach, 2014): one of `count` places, of which few change when `count` does.
pub(super) fn jump(mut key: u64, count: usize) -> usize {
    const MULTIPLIER: u64 = 2_862_933_555_777_941_757;
    let count = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    let (mut place, mut next) = (0_i64, 0_i64);
    while next < count {
        place = next;
        key = key.wrapping_mul(MULTIPLIER).wrapping_add(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "the definition of the hash is in floating point; a cast ends at the largest number"
        )]
        {
            next = ((place + 1) as f64 * ((1_i64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
        }
    }
    usize::try_from(place).unwrap_or(0)
}

/// A number of a text, the same in every process: FNV-1a, then a mix of its bits.
pub(super) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        // The end of a part counts as well.
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The part of a target by which it is recognised: the registrable domain of a name, or the address.
pub(super) fn target_key(host: &Host) -> String {
    match host {
        Host::Ip(ip) => ip.to_string(),
        Host::Name(name) => domain(&name.to_string().to_ascii_lowercase()).to_owned(),
    }
}

/// Labels under which the registries of countries give out names.
const SECOND: [&str; 14] =
    ["ac", "co", "com", "edu", "gob", "go", "gov", "gv", "mil", "ne", "net", "nom", "or", "org"];

/// The last two labels of a name, or three where a registry of a country gives out names under its second label.
pub(super) fn domain(name: &str) -> &str {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut dots = name.bytes().enumerate().rev().filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
    let (Some(last), Some(second)) = (dots.next(), dots.next()) else { return name };
    let is_registry = name.len() - last - 1 == 2 && SECOND.contains(&&name[second + 1..last]);
    match (is_registry, dots.next()) {
        (false, _) => &name[second + 1..],
        (true, Some(third)) => &name[third + 1..],
        (true, None) => name,
    }
}

/// Keys that keep their member for a while.
#[derive(Debug, Default)]
pub(super) struct Sticky {
    kept: HashMap<u64, (usize, Instant)>,
    /// Keys in the order in which they came.
    order: VecDeque<u64>,
}

/// Keys that are kept, and how long after their latest use; mihomo's numbers.
const MAX_KEPT: usize = 1000;
const KEPT: Duration = Duration::from_secs(600);

impl Sticky {
    /// The member of a key: the one before while that is alive, else the one that `draw` gives.
    pub(super) fn pick(
        &mut self,
        key: u64,
        now: Instant,
        is_alive: impl Fn(usize) -> bool,
        draw: impl FnOnce() -> usize,
    ) -> usize {
        if let Some((place, at)) = self.kept.get_mut(&key)
            && now.saturating_duration_since(*at) < KEPT
            && is_alive(*place)
        {
            *at = now;
            return *place;
        }
        let place = draw();
        if self.kept.insert(key, (place, now)).is_none() {
            self.order.push_back(key);
            if self.order.len() > MAX_KEPT
                && let Some(oldest) = self.order.pop_front()
            {
                self.kept.remove(&oldest);
            }
        }
        place
    }

    /// The members have other places from now on.
    pub(super) fn clear(&mut self) {
        (self.kept, self.order) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn seen(delays: &[u32]) -> Vec<MemberView> {
        // 0 is a dead member.
        delays.iter().map(|delay| MemberView { is_alive: *delay > 0, delay: *delay }).collect()
    }

    /// The order of choices that mihomo makes for these delays with a tolerance of 50 ms.
    #[test]
    fn url_test() {
        let mut current = None;
        let mut taken = Vec::new();
        for delays in [
            [100, 90, 300],
            [100, 90, 30],
            [100, 90, 95],
            [100, 20, 80],
            [30, 90, 81],
            [30, 90, 80],
            [0, 0, 0],
        ] {
            current = least_delay(&seen(&delays), current, 50);
            taken.push(current.unwrap());
        }
        assert_eq!(taken, [1, 2, 2, 1, 0, 0, 0]);
        // A member that dies is left at once, and one that is not tested counts behind all that are.
        assert_eq!(least_delay(&seen(&[0, 400]), Some(0), 50), Some(1));
        let untested = MemberView { is_alive: true, delay: u32::MAX };
        assert_eq!(least_delay(&[untested, MemberView { is_alive: true, delay: 9 }], None, 0), Some(1));
        assert_eq!(least_delay(&[untested, untested], Some(1), 0), Some(1));
        assert_eq!(least_delay(&[], None, 0), None);
        // Within the tolerance nothing changes, one more and it does.
        assert_eq!(least_delay(&seen(&[80, 30]), Some(0), 50), Some(0));
        assert_eq!(least_delay(&seen(&[81, 30]), Some(0), 50), Some(1));
    }

    #[test]
    fn fallback() {
        for (delays, want) in [([9, 9, 9], 0), ([0, 9, 9], 1), ([0, 0, 9], 2), ([0, 0, 0], 0), ([9, 0, 9], 0)]
        {
            assert_eq!(first_alive(seen(&delays)), want);
        }
    }

    /// 1,000 hosts over 4 members: even, stable, and a death moves the dead member's hosts alone.
    #[test]
    fn consistent_hashing() {
        let keys: Vec<u64> = (0..1000).map(|n| hash(&[format!("host-{n}.example").as_bytes()])).collect();
        let all: Vec<usize> = keys.iter().map(|key| by_key(*key, 4, |_| true)).collect();
        for place in 0..4 {
            let count = all.iter().filter(|at| **at == place).count();
            assert!((200..=300).contains(&count), "{place}: {count}");
        }
        for (key, before) in keys.iter().zip(&all) {
            let after = by_key(*key, 4, |place| place != 2);
            assert!(after != 2 && (*before == 2 || after == *before));
            let fifth = by_key(*key, 5, |_| true);
            assert!(fifth == *before || fifth == 4, "a fifth member takes from all");
        }
        assert_eq!(by_key(7, 3, |_| false), 0);
        // The same in every process: these are the values of this build for all time.
        assert_eq!([0, 1, 256, u64::MAX].map(|key| jump(key, 1)), [0; 4]);
        assert_eq!(jump(10_863_919_174_838_991, 11), 6);
        assert_eq!(jump(2_016_238_256_797_177_309, 11), 3);
    }

    #[test]
    fn domains() {
        for (name, want) in [
            ("example.com", "example.com"),
            ("a.b.example.com", "example.com"),
            ("a.example.co.uk", "example.co.uk"),
            ("example.co.uk", "example.co.uk"),
            ("co.uk", "co.uk"),
            ("a.com.example", "com.example"),
            ("localhost", "localhost"),
            ("a.example.", "a.example"),
            ("", ""),
        ] {
            assert_eq!(domain(name), want, "{name}");
        }
        assert_eq!(target_key(&Host::parse(b"WWW.Example.COM").unwrap()), "example.com");
        assert_eq!(target_key(&Host::parse(b"192.0.2.1").unwrap()), "192.0.2.1");
    }

    #[test]
    fn sticky_sessions() {
        let now = adit_net::rt::now();
        let mut sticky = Sticky::default();
        assert_eq!(sticky.pick(1, now, |_| true, || 3), 3);
        assert_eq!(sticky.pick(1, now + KEPT - Duration::from_secs(1), |_| true, || 0), 3);
        // The time begins anew with each use.
        assert_eq!(sticky.pick(1, now + KEPT + Duration::from_secs(500), |_| true, || 0), 3);
        assert_eq!(sticky.pick(1, now + KEPT * 3, |_| true, || 2), 2);
        assert_eq!(sticky.pick(1, now + KEPT * 3, |place| place != 2, || 1), 1);
        for key in 0..5000 {
            sticky.pick(key, now, |_| true, || 0);
        }
        assert_eq!((sticky.kept.len(), sticky.order.len()), (MAX_KEPT, MAX_KEPT));
        let left: BTreeSet<u64> = sticky.kept.keys().copied().collect();
        assert_eq!(left.first(), Some(&4000));
    }
}
