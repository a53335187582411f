//! A link in words: `100mbit,rtt=100ms,loss=1%,queue=1250kB`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use adit_netem::{Conditions, Loss};
use anyhow::{Context, Error, Result, bail, ensure};

/// Least queue that is chosen where none is named, in bytes: some forty packets.
const LEAST_QUEUE: usize = 64_000;

/// Both directions of a link, which are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The text that it was parsed from.
    text: String,
    /// Bits per second; 0 is without limit.
    pub rate: u64,
    /// There and back, without the queue.
    pub rtt: Duration,
    /// At most this much more in each direction, evenly spread.
    pub jitter: Duration,
    /// Share of packets that are lost in each direction.
    pub loss: f64,
    /// Packets lost in a row, in the mean; 1: each by itself.
    pub burst: f64,
    /// Bytes that wait for the rate, at most.
    pub queue_len: usize,
    /// Share of packets that come late, and by how much.
    pub reorder: (f64, Duration),
    /// Share of packets that come twice.
    pub duplicates: f64,
    /// Start of the random numbers.
    pub seed: u64,
    /// Largest packet, IP header included.
    pub mtu: u32,
}

impl Spec {
    /// The model's conditions for one direction.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        let loss = match self.loss {
            share if share <= 0.0 => Loss::None,
            share if self.burst <= 1.0 => Loss::Random(share),
            share => {
                let leave = 1.0 / self.burst;
                Loss::Burst { enter: leave * share / (1.0 - share), leave }
            }
        };
        Conditions {
            rate: self.rate,
            queue_len: self.queue_len,
            overhead: 0,
            delay: self.rtt / 2,
            jitter: self.jitter,
            loss,
            duplicates: self.duplicates,
            reordered: self.reorder.0,
            reorder_by: self.reorder.1,
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut spec = Self {
            text: text.to_owned(),
            rate: 0,
            rtt: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            burst: 1.0,
            queue_len: 0,
            reorder: (0.0, Duration::from_millis(5)),
            duplicates: 0.0,
            seed: 1,
            mtu: 1500,
        };
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            spec.set(word).with_context(|| format!("{word:?} in link {text:?}"))?;
        }
        if spec.queue_len == 0 {
            let product = u128::from(spec.rate) * spec.rtt.as_nanos() / 8_000_000_000;
            spec.queue_len = match spec.rate {
                0 => usize::MAX,
                _ => usize::try_from(product).unwrap_or(usize::MAX).max(LEAST_QUEUE),
            };
        }
        Ok(spec)
    }
}

impl Spec {
    fn set(&mut self, word: &str) -> Result<()> {
        let (key, value) = word.split_once('=').unwrap_or(("rate", word));
        match key {
            "rate" => self.rate = rate(value)?,
            "rtt" => self.rtt = time(value)?,
            "delay" => self.rtt = time(value)? * 2,
            "jitter" => self.jitter = time(value)?,
            "loss" => self.loss = share(value)?,
            "burst" => {
                self.burst = value.parse()?;
                ensure!((1.0..=1e4).contains(&self.burst), "1 to 10000 packets expected");
            }
            "queue" => {
                self.queue_len = usize::try_from(scaled(value, BYTES)?)?;
                ensure!(self.queue_len >= 1500, "at least 1500 bytes expected");
            }
            "reorder" => self.reorder.0 = share(value)?,
            "reorder-by" => self.reorder.1 = time(value)?,
            "dup" => self.duplicates = share(value)?,
            "seed" => self.seed = value.parse()?,
            "mtu" => {
                self.mtu = value.parse()?;
                ensure!((576..=65_535).contains(&self.mtu), "576 to 65535 bytes expected");
            }
            _ => bail!(
                "unknown\nhint: rate, rtt, delay, jitter, loss, burst, queue, reorder, reorder-by, dup, seed, mtu"
            ),
        }
        Ok(())
    }
}

/// Names of units and how many of the smallest each is. Longer names come first where one ends with another.
type Units = &'static [(&'static str, u64)];

const BITS: Units = &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];
const NANOS: Units = &[("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
const BYTES: Units = &[("KiB", 1024), ("MiB", 1 << 20), ("kB", 1000), ("MB", 1_000_000), ("B", 1)];

fn scaled(text: &str, units: Units) -> Result<u64> {
    let split = units.iter().find_map(|(name, factor)| Some((text.strip_suffix(name)?, *factor)));
    let (number, factor) = split.with_context(|| {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        format!("a unit expected: {}", names.join(", "))
    })?;
    let value = number.parse::<f64>()? * factor as f64;
    ensure!((0.0..1e15).contains(&value), "out of range");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok(value.round() as u64)
}

fn rate(text: &str) -> Result<u64> {
    let rate = scaled(text, BITS)?;
    ensure!((8000..=100_000_000_000).contains(&rate), "8kbit to 100gbit expected");
    Ok(rate)
}

fn time(text: &str) -> Result<Duration> {
    let time = Duration::from_nanos(scaled(text, NANOS)?);
    ensure!(time <= Duration::from_secs(60), "at most 60s expected");
    Ok(time)
}

fn share(text: &str) -> Result<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>()? / 100.0,
        None => text.parse()?,
    };
    ensure!((0.0..1.0).contains(&share), "a share from 0% to below 100% expected");
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_conditions() {
        let spec: Spec = "100mbit,rtt=100ms,loss=1%,queue=1250kB".parse().unwrap();
        let conditions = spec.conditions();
        assert_eq!((conditions.rate, conditions.queue_len), (100_000_000, 1_250_000));
        assert_eq!((conditions.delay, conditions.loss), (Duration::from_millis(50), Loss::Random(0.01)));
        assert_eq!(spec.to_string(), "100mbit,rtt=100ms,loss=1%,queue=1250kB");

        let spec: Spec =
            "rate=1.5gbit, delay=250us,loss=0.02,burst=8,reorder=3%,reorder-by=2ms,dup=1%".parse().unwrap();
        let conditions = spec.conditions();
        assert_eq!((conditions.rate, conditions.delay), (1_500_000_000, Duration::from_micros(250)));
        assert_eq!((spec.reorder, spec.duplicates), ((0.03, Duration::from_millis(2)), 0.01));
        let Loss::Burst { enter, leave } = conditions.loss else { panic!("{:?}", conditions.loss) };
        assert!((enter / (enter + leave) - 0.02).abs() < 1e-9 && (leave - 0.125).abs() < 1e-9);
    }

    #[test]
    fn the_queue_holds_what_is_on_the_way_unless_named() {
        let queue = |text: &str| text.parse::<Spec>().unwrap().queue_len;
        assert_eq!(queue("100mbit,rtt=100ms"), 1_250_000);
        assert_eq!(queue("10mbit,rtt=1ms"), LEAST_QUEUE);
        assert_eq!(queue("rtt=1ms"), usize::MAX);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, what) in [
            ("100", "a unit expected"),
            ("100mbit,rtt=100", "rtt=100"),
            ("loss=100%", "below 100%"),
            ("loss=-1%", "a share"),
            ("speed=1mbit", "unknown"),
            ("1bit", "8kbit"),
            ("rtt=3e9s", "out of range"),
            ("NaNmbit", "out of range"),
            ("mtu=70000", "576"),
            ("queue=10B", "1500"),
        ] {
            let error = text.parse::<Spec>().unwrap_err();
            assert!(format!("{error:#}").contains(what), "{text}: {error:#}");
        }
    }
}
