//! When the kernel is asked to merge datagrams of one sender.
//!
//! Merging costs 3 to 6 % where nothing merges and saves up to nine tenths where much does, so it is tried when bulk is
//! seen and given up, for longer each time, when it brought nothing.

/// Messages of one sender in one batch that look like bulk.
const BULK: usize = 16;
/// Messages after which a trial is judged.
const TRIAL: u32 = 64;
/// Batches of bulk before the second trial; doubles from one to the next.
const FIRST_WAIT: u32 = 256;
/// Longest wait in batches: at full speed some seconds.
const LONGEST_WAIT: u32 = 16_384;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gro {
    is_on: bool,
    messages: u32,
    datagrams: u32,
    wait: u32,
    next_wait: u32,
}

impl Default for Gro {
    fn default() -> Self {
        Self { is_on: false, messages: 0, datagrams: 0, wait: 0, next_wait: FIRST_WAIT }
    }
}

impl Gro {
    pub(super) fn is_on(self) -> bool {
        self.is_on
    }

    /// The option is on already.
    pub(super) fn go_on(&mut self) {
        (self.is_on, self.messages, self.datagrams) = (true, 0, 0);
    }

    /// The system has refused the option.
    pub(super) fn refuse(&mut self) {
        *self = Self { wait: u32::MAX, next_wait: u32::MAX, ..Self::default() };
    }

    /// A batch has come: so many messages with so many datagrams, and so many messages in a row of one sender.
    /// Returns true if the option is to be switched to [`Gro::is_on`].
    pub(super) fn note(&mut self, messages: usize, datagrams: usize, of_one_sender: usize) -> bool {
        if !self.is_on {
            if of_one_sender < BULK || self.wait == u32::MAX {
                return false;
            }
            if self.wait > 0 {
                self.wait -= 1;
                return false;
            }
            (self.is_on, self.messages, self.datagrams) = (true, 0, 0);
            return true;
        }
        self.messages = self.messages.saturating_add(u32::try_from(messages).unwrap_or(u32::MAX));
        self.datagrams = self.datagrams.saturating_add(u32::try_from(datagrams).unwrap_or(u32::MAX));
        if self.messages < TRIAL {
            return false;
        }
        let gains = self.datagrams / 5 >= self.messages / 4;
        (self.messages, self.datagrams) = (0, 0);
        if gains {
            self.next_wait = FIRST_WAIT;
            return false;
        }
        self.is_on = false;
        self.wait = self.next_wait;
        self.next_wait = self.next_wait.saturating_mul(2).min(LONGEST_WAIT);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_switches_it_on_and_nothing_to_merge_off() {
        let mut gro = Gro::default();
        assert!(!gro.note(32, 32, 3) && !gro.is_on());
        assert!(gro.note(32, 32, 32) && gro.is_on());
        for _ in 0..100 {
            assert!(!gro.note(8, 8 * 46, 8) && gro.is_on());
        }
        let batches = (1..).find(|_| gro.note(8, 8, 8)).unwrap();
        assert!(batches <= 16 && !gro.is_on(), "{batches}");
        let wait = |gro: &mut Gro| (0..).find(|_| gro.note(32, 32, 32)).unwrap();
        assert_eq!(wait(&mut gro), FIRST_WAIT);
        while !gro.note(8, 8, 8) {}
        assert_eq!(wait(&mut gro), FIRST_WAIT * 2);
        gro.refuse();
        assert!((0..100_000).all(|_| !gro.note(32, 32, 32)) && !gro.is_on());
    }
}
