//! A link between the two networks: an interface in each, and a thread per direction that carries packets through the
//! model.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit_netem::{Conditions, Fate, Link};
use adit_sys::{process, tun};
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl;
use nix::sys::time::TimeSpec;
use serde::Serialize;

use super::network::{self, FAR, INTERFACE, NEAR, Network};
use super::spec::Spec;

/// Least and most time between two looks at a direction where packets pass: waking up is most of what they cost. A
/// packet leaves at most half of it early or late, and is taken for at most half of it older or younger than it is.
const TURN: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(250));
/// What a look may be off, as a part of the round trip.
const TURNS_PER_TRIP: u32 = 400;
/// Packets read before those that are due are looked at again.
const BATCH: usize = 256;
/// Longest sleep, so that the end is noticed.
const LONGEST: Duration = Duration::from_millis(50);

/// What became of packets of one kind in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Packets that came to the link.
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets that were lost behind the queue.
    pub lost: u64,
}

/// One direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets of TCP.
    pub tcp: Count,
    /// Datagrams of UDP, and their fragments.
    pub udp: Count,
    /// All others.
    pub other: Count,
    /// Most bytes that waited for the rate since the last [`Emulator::take_peaks`].
    pub queue_peak: usize,
    /// Packets that left.
    pub delivered: u64,
    /// Those that left a millisecond after their time or later.
    pub late: u64,
    /// How late the latest left, in microseconds.
    pub latest_us: u64,
    /// Packets that the interface did not take.
    pub refused: u64,
}

impl Count {
    fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            overflowed: self.overflowed - before.overflowed,
            lost: self.lost - before.lost,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            overflowed: self.overflowed + other.overflowed,
            lost: self.lost + other.lost,
        }
    }
}

impl Counts {
    /// What came on top of `before`; peaks are those of now.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            tcp: self.tcp.since(before.tcp),
            udp: self.udp.since(before.udp),
            other: self.other.since(before.other),
            delivered: self.delivered - before.delivered,
            late: self.late - before.late,
            refused: self.refused - before.refused,
            ..self
        }
    }

    /// Packets of all kinds.
    #[must_use]
    pub fn all(self) -> Count {
        self.tcp.plus(self.udp).plus(self.other)
    }

    fn of(&mut self, packet: &[u8]) -> &mut Count {
        match protocol(packet) {
            Some(6) => &mut self.tcp,
            Some(17) => &mut self.udp,
            _ => &mut self.other,
        }
    }
}

/// The protocol that an IP packet carries.
fn protocol(packet: &[u8]) -> Option<u8> {
    match packet.first()? >> 4 {
        4 => packet.get(9).copied(),
        6 => packet.get(6).copied(),
        _ => None,
    }
}

/// A running link; dropping it takes the interfaces away.
#[derive(Debug)]
pub struct Emulator {
    spec: Spec,
    up: Arc<Shared>,
    down: Arc<Shared>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared(Mutex<Counts>);

impl Shared {
    fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Emulator {
    /// Joins the two networks by a link as `spec` says.
    ///
    /// # Errors
    /// Without the right, or if the kernel has no TUN interfaces.
    pub fn start(network: &Network, spec: &Spec) -> Result<Self> {
        let open = |address| -> Result<File> {
            let file = tun::open(INTERFACE).context(
                "open a TUN interface\nhint: it takes root, and a kernel with CONFIG_TUN and /dev/net/tun",
            )?;
            network::ip(&["link", "set", INTERFACE, "mtu", &spec.mtu.to_string()])?;
            network::address_and_up(address)?;
            Ok(file)
        };
        let near = Arc::new(network.near.within(|| open(NEAR))?);
        let far = Arc::new(network.far.within(|| open(FAR))?);
        let mut emulator = Self {
            spec: spec.clone(),
            up: Arc::default(),
            down: Arc::default(),
            stopped: Arc::default(),
            threads: Vec::new(),
        };
        let (up, down) = (Arc::clone(&emulator.up), Arc::clone(&emulator.down));
        // The directions draw from generators that lie far apart.
        emulator.carry("up", (&near, &far), up, spec.seed)?;
        emulator.carry("down", (&far, &near), down, !spec.seed)?;
        Ok(emulator)
    }

    fn carry(
        &mut self,
        name: &str,
        ends: (&Arc<File>, &Arc<File>),
        counts: Arc<Shared>,
        seed: u64,
    ) -> Result<()> {
        let (from, to, stopped) = (Arc::clone(ends.0), Arc::clone(ends.1), Arc::clone(&self.stopped));
        let (conditions, turn) =
            (self.spec.conditions(), (self.spec.rtt / TURNS_PER_TRIP).clamp(TURN.0, TURN.1));
        let work = move || Direction::new(&from, &to, conditions, seed, turn).run(&counts, &stopped);
        self.threads.push(thread::Builder::new().name(format!("link {name}")).spawn(work)?);
        Ok(())
    }

    /// What the link is like.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What became of packets so far: those from near to far, and those from far to near.
    #[must_use]
    pub fn counts(&self) -> (Counts, Counts) {
        (self.up.with(|counts| *counts), self.down.with(|counts| *counts))
    }

    /// Forgets how full the queues were and how late packets left.
    pub fn take_peaks(&self) {
        for shared in [&self.up, &self.down] {
            shared.with(|counts| (counts.queue_peak, counts.latest_us) = (0, 0));
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

struct Direction<'f> {
    from: &'f File,
    to: &'f File,
    link: Link,
    turn: Duration,
    /// How long what is read has waited at most.
    waited: Duration,
    buffer: Vec<u8>,
}

impl<'f> Direction<'f> {
    fn new(from: &'f File, to: &'f File, conditions: Conditions, seed: u64, turn: Duration) -> Self {
        let (link, buffer) = (Link::new(conditions, seed), vec![0; 65_536]);
        Self { from, to, link, turn, waited: Duration::ZERO, buffer }
    }

    fn run(&mut self, shared: &Shared, stopped: &AtomicBool) {
        // Late packets are counted; where neither call is allowed there are more of them.
        process::run_first().ok();
        prctl::set_timerslack(1).ok();
        while !stopped.load(Ordering::Relaxed) {
            let moved = shared.with(|counts| {
                let moved = self.take(counts) + self.deliver(counts);
                counts.queue_peak = counts.queue_peak.max(self.link.take_queue_peak());
                moved
            });
            if moved > 0 {
                thread::sleep(self.turn);
                self.waited = self.turn;
            } else {
                self.rest();
                self.waited = Duration::ZERO;
            }
        }
    }

    /// Takes what waits, and says how many packets.
    fn take(&mut self, counts: &mut Counts) -> usize {
        for number in 0..BATCH {
            let Ok(len) = self.from.read(&mut self.buffer) else { return number };
            let packet = &self.buffer[..len];
            let count = counts.of(packet);
            count.packets += 1;
            count.bytes += len as u64;
            match self.link.send(packet.to_vec(), Instant::now() - self.waited / 2) {
                Fate::Carried => {}
                Fate::Overflowed => count.overflowed += 1,
                Fate::Lost => count.lost += 1,
            }
        }
        BATCH
    }

    /// Passes on what is due, and says how many packets.
    fn deliver(&mut self, counts: &mut Counts) -> usize {
        let mut number = 0;
        while let Some(at) = self.link.poll_timeout() {
            let now = Instant::now();
            let Some(packet) = self.link.poll(now + self.turn / 2) else { break };
            let late = now.saturating_duration_since(at);
            counts.delivered += 1;
            counts.late += u64::from(late >= Duration::from_millis(1));
            counts.latest_us = counts.latest_us.max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX));
            counts.refused += u64::from(self.to.write(&packet).is_err());
            number += 1;
        }
        number
    }

    /// Sleeps until something comes or is due.
    fn rest(&self) {
        let due_in = |at: Instant| at.saturating_duration_since(Instant::now() + self.turn / 2);
        let wait = self.link.poll_timeout().map_or(LONGEST, |at| due_in(at).min(LONGEST));
        let mut fds = [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)];
        ppoll(&mut fds, Some(TimeSpec::from_duration(wait)), None).ok();
    }
}
