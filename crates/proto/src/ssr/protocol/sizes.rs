//! Lengths of the paddings of `auth_chain_*`: a generator that both ends seed alike, and lists drawn from the key.
//!
//! Source: `docs/protocols/ssr.md`, 2.8.

use crate::ssr::Chain;
use crate::ssr::key::first_16;

/// Longest padding of a packet, in bytes.
pub(super) const MAX_PADDING: usize = 1440;

/// xorshift128+ as the protocol has it.
#[derive(Debug, Clone, Copy)]
struct Generator(u64, u64);

impl Generator {
    fn new(seed: &[u8; 16]) -> Self {
        let (words, _) = seed.as_chunks();
        Self(u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))
    }

    /// Seeded with `seed` whose first two bytes are replaced by `len`.
    fn with_len(seed: &[u8; 16], len: u16) -> Self {
        let mut seed = *seed;
        seed[..2].copy_from_slice(&len.to_le_bytes());
        let mut generator = Self::new(&seed);
        for _ in 0..4 {
            generator.next();
        }
        generator
    }

    fn next(&mut self) -> u64 {
        let Self(mut x, y) = *self;
        x ^= x << 23;
        x ^= y ^ (x >> 17) ^ (y >> 26);
        *self = Self(y, x);
        x.wrapping_add(y)
    }

    /// The next number, modulo `bound`.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    /// The variants' rule for payloads that fit no list.
    fn tail(&mut self, len: usize) -> usize {
        self.below(match len {
            0..=400 => 1021,
            401..=900 => 521,
            901..=1300 => 127,
            _ => 31,
        })
    }

    /// A sorted list of sizes.
    fn list(&mut self, len: usize) -> Vec<usize> {
        let mut list: Vec<usize> = (0..len).map(|_| self.size()).collect();
        list.sort_unstable();
        list
    }

    fn size(&mut self) -> usize {
        usize::try_from(self.next() % 2340 % 2040 % 1440).expect("below 1440")
    }
}

/// Length of the padding of a datagram, from its keyed hash: 0 to 126 bytes.
pub(super) fn udp_padding(hash: &[u8; 16]) -> usize {
    Generator::new(hash).below(127)
}

/// The paddings of one connection.
#[derive(Debug)]
pub(super) struct Sizes {
    letter: Chain,
    overhead: usize,
    first: Box<[usize]>,
    second: Box<[usize]>,
}

impl Sizes {
    /// Lists from `key`; for `auth_chain_f` also from the client's time and the interval, in seconds (never 0).
    pub(super) fn new(letter: Chain, key: &[u8], overhead: u16, utc: u64, interval_s: u64) -> Self {
        let mut seed = first_16(key);
        if letter == Chain::F {
            let period = (utc / interval_s).to_be_bytes();
            seed.iter_mut().zip(period).for_each(|(byte, period)| *byte ^= period);
        }
        let mut generator = Generator::new(&seed);
        let (first, second) = match letter {
            Chain::A => (Vec::new(), Vec::new()),
            Chain::B => {
                let len = generator.below(8) + 4;
                let first = generator.list(len);
                let len = generator.below(16) + 8;
                (first, generator.list(len))
            }
            Chain::C => {
                let len = generator.below(24) + 12;
                (generator.list(len), Vec::new())
            }
            Chain::D | Chain::E | Chain::F => (long_list(&mut generator), Vec::new()),
        };
        Self { letter, overhead: overhead.into(), first: first.into(), second: second.into() }
    }

    /// Length of the padding of a packet with `len` bytes of payload (below 65536) behind the hash `last`, and how much
    /// of it stands in front of the payload.
    pub(super) fn padding(&self, len: usize, last: &[u8; 16]) -> (usize, usize) {
        let mut generator = Generator::with_len(last, u16::try_from(len).unwrap_or(u16::MAX));
        let padding = self.padding_len(len, &mut generator);
        if len == 0 || padding == 0 {
            return (padding, 0);
        }
        let start = generator.next() % 8_589_934_609 % padding as u64;
        (padding, usize::try_from(start).expect("below the padding"))
    }

    fn padding_len(&self, len: usize, generator: &mut Generator) -> usize {
        let outer = len + self.overhead;
        let list = &self.first;
        let is_long = |list: &[usize]| list.last().is_none_or(|last| outer >= *last);
        match self.letter {
            Chain::A if len > MAX_PADDING => 0,
            Chain::A => generator.tail(len),
            Chain::B if len >= MAX_PADDING => 0,
            Chain::B => self.padding_of_two_lists(len, generator),
            Chain::C if is_long(list) && outer >= MAX_PADDING => 0,
            Chain::C if is_long(list) => generator.tail(outer),
            Chain::D | Chain::E | Chain::F if is_long(list) => 0,
            Chain::C | Chain::D => {
                let at = list.partition_point(|size| *size < outer);
                list[at + generator.below(list.len() - at)] - outer
            }
            Chain::E | Chain::F => list[list.partition_point(|size| *size < outer)] - outer,
        }
    }

    fn padding_of_two_lists(&self, len: usize, generator: &mut Generator) -> usize {
        let outer = len + self.overhead;
        let (first, second) = (&self.first, &self.second);
        let at = first.partition_point(|size| *size < outer) + generator.below(first.len());
        if let Some(size) = first.get(at) {
            return size - outer;
        }
        let start = second.partition_point(|size| *size < outer);
        let at = start + generator.below(second.len());
        match second.get(at) {
            Some(size) => size - outer,
            None if at < start + second.len() - 1 => 0,
            None => generator.tail(len),
        }
    }
}

/// The list of the later variants: longer, until its last item is a long one.
fn long_list(generator: &mut Generator) -> Vec<usize> {
    let len = generator.below(24) + 12;
    let mut list = generator.list(len);
    while list.last().is_some_and(|last| *last < 1300) && list.len() < 64 {
        list.push(generator.size());
    }
    list.sort_unstable();
    list
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::ssr::SsrProtocol;
    use crate::ssr::ssr_fuzz::testing::{hex, vectors};

    fn key16(value: &Value) -> [u8; 16] {
        first_16(&hex(value.as_str().unwrap()))
    }

    fn numbers(value: &Value) -> Vec<u64> {
        value.as_array().unwrap().iter().map(|n| n.as_str().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn generator() {
        for row in vectors("xorshift128plus.json") {
            let seed = key16(&row["seed"]);
            let mut generator = Generator::new(&seed);
            assert!(numbers(&row["init_from_bin"]).into_iter().all(|n| generator.next() == n));
            for (len, expected) in row["init_from_bin_len"].as_object().unwrap() {
                let mut generator = Generator::with_len(&seed, len.parse().unwrap());
                assert!(numbers(expected).into_iter().all(|n| generator.next() == n), "{len}");
            }
        }
    }

    #[test]
    fn lists() {
        let list = |value: &Value| -> Vec<usize> { serde_json::from_value(value.clone()).unwrap() };
        for row in vectors("chain_data_size_lists.json") {
            let key = hex(row["key"].as_str().unwrap());
            let sizes = |letter, utc, interval| Sizes::new(letter, &key, 4, utc, interval);
            let b = sizes(Chain::B, 0, 1);
            assert_eq!(b.first[..], list(&row["auth_chain_b"]["list1"]));
            assert_eq!(b.second[..], list(&row["auth_chain_b"]["list2"]));
            for (letter, name) in
                [(Chain::C, "auth_chain_c"), (Chain::D, "auth_chain_d"), (Chain::E, "auth_chain_e")]
            {
                assert_eq!(sizes(letter, 0, 1).first[..], list(&row[name]["list0"]), "{name}");
            }
            for row in row["auth_chain_f"].as_array().unwrap() {
                let number = |name: &str| row[name].as_u64().unwrap();
                let f = sizes(Chain::F, number("utc_time"), number("interval"));
                assert_eq!(f.first[..], list(&row["list0"]));
            }
        }
    }

    #[test]
    fn paddings() {
        for row in vectors("chain_rand_len.json") {
            let SsrProtocol::AuthChain(letter) = row["protocol"].as_str().unwrap().parse().unwrap() else {
                panic!("not a chain")
            };
            let key = hex(row["key"].as_str().unwrap());
            let overhead = row["overhead"].as_u64().unwrap().try_into().unwrap();
            let utc = row["utc_time"].as_u64().unwrap_or(0);
            let sizes = Sizes::new(letter, &key, overhead, utc, 86_400);
            let last = key16(&row["last_hash"]);
            for sample in row["size_randlen_startpos"].as_array().unwrap() {
                let [len, padding, start]: [usize; 3] = serde_json::from_value(sample.clone()).unwrap();
                // Without payload nothing stands behind the front.
                let start = if len == 0 { 0 } else { start };
                assert_eq!(sizes.padding(len, &last), (padding, start), "{letter:?} {len}");
            }
        }
        for row in vectors("chain_udp_rand_len.json") {
            let expected = row["udp_rnd_data_len"].as_u64().unwrap();
            assert_eq!(udp_padding(&key16(&row["md5data"])) as u64, expected);
        }
    }
}
