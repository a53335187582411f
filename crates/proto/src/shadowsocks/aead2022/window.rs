/// Blocks of 64 bits in the ring.
const BLOCKS: u64 = 128;
/// Distance by which an older packet may be behind the newest one: one block less than the ring, so that the block of
/// the newest never overlaps that of the oldest (RFC 6479; the size of shadowsocks-rust 1.25.0 and sing-box 1.13.2).
pub(super) const WINDOW: u64 = (BLOCKS - 1) * 64;

/// Blocks of a new window: most sessions are short.
const FIRST_BLOCKS: usize = 4;

/// The packet ids that have been seen in a session.
///
/// The ring has a power of two of blocks, and grows to 128 of them before it turns for the first time: until then
/// every id has its bit.
#[derive(Debug, Clone)]
pub(super) struct PacketIdWindow {
    newest: u64,
    ring: Vec<u64>,
}

impl PacketIdWindow {
    pub(super) fn new() -> Self {
        Self { newest: 0, ring: vec![0; FIRST_BLOCKS] }
    }

    /// Is `id` neither too old nor known? Changes nothing: ask before authentication, insert after.
    pub(super) fn is_fresh(&self, id: u64) -> bool {
        if id > self.newest {
            return true;
        }
        let (block, bit) = self.slot(id);
        self.newest - id <= WINDOW && self.ring[block] & bit == 0
    }

    /// Remembers `id`, which is fresh.
    pub(super) fn insert(&mut self, id: u64) {
        if id > self.newest {
            self.make_room(id / 64);
            let first = self.newest / 64 + 1;
            let last = (id / 64).min(self.newest / 64 + BLOCKS);
            for block in first..=last {
                let (block, _) = self.slot(block * 64);
                self.ring[block] = 0;
            }
            self.newest = id;
        }
        let (block, bit) = self.slot(id);
        self.ring[block] |= bit;
    }

    /// Grows the ring so that it does not turn at `block`, as far as it may grow.
    fn make_room(&mut self, block: u64) {
        let len = (block + 1).min(BLOCKS).next_power_of_two();
        let len = usize::try_from(len).expect("at most 128");
        if len > self.ring.len() {
            self.ring.resize(len, 0);
        }
    }

    fn slot(&self, id: u64) -> (usize, u64) {
        // A power of two, so that the remainder costs no division.
        let mask = self.ring.len() - 1;
        let block = usize::try_from(id / 64 % BLOCKS).expect("less than 128");
        (block & mask, 1 << (id % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges() {
        let mut window = PacketIdWindow::new();
        for id in [0, 1, 5, 4, 63, 64, 65] {
            assert!(window.is_fresh(id), "{id}");
            window.insert(id);
            assert!(!window.is_fresh(id), "{id}");
        }
        assert!(window.is_fresh(2));
        let newest = 1_000_000;
        window.insert(newest);
        assert!(window.is_fresh(newest - WINDOW));
        assert!(!window.is_fresh(newest - WINDOW - 1));
        window.insert(newest - WINDOW);
        assert!(!window.is_fresh(newest - WINDOW));
        window.insert(newest + 1);
        assert!(!window.is_fresh(newest - WINDOW));
        window.insert(u64::MAX);
        assert!(!window.is_fresh(u64::MAX));
        assert!(window.is_fresh(u64::MAX - 1));
    }

    #[test]
    fn agrees_with_a_list() {
        let mut window = PacketIdWindow::new();
        let mut seen = std::collections::HashSet::new();
        let (mut newest, mut state) = (0_u64, 1_u64);
        for _ in 0..50_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = (newest + (state >> 33) % 200).saturating_sub((state >> 45) % 9_000);
            let fresh = newest.saturating_sub(id) <= WINDOW && !seen.contains(&id);
            assert_eq!(window.is_fresh(id), fresh, "{id} after {newest}");
            if fresh {
                window.insert(id);
                seen.insert(id);
                newest = newest.max(id);
            }
        }
    }
}
