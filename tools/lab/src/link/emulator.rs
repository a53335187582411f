//! A link between the two networks: an interface in each, and a thread per direction that carries packets through the
//! model.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit_netem::{Fate, Link};
use adit_sys::udp::set_receive_buffer;
use adit_sys::{packet, process, tun};
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl;
use nix::sys::time::TimeSpec;
use serde::Serialize;

use super::network::{self, FAR, INTERFACE, NEAR, Namespace, Network};
use super::spec::Spec;

/// Least and most time between two looks at a direction where packets pass: waking up is most of what they cost. A
/// packet leaves at most half of it early or late, and is taken for at most half of it older or younger than it is.
const TURN: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(250));
/// Most that a look may be late or early, as a part of the round trip.
const TURNS_PER_TRIP: u32 = 400;
/// Packets read before those that are due are looked at again.
const BATCH: usize = 256;
/// Longest sleep, so that the end is noticed.
const LONGEST: Duration = Duration::from_millis(50);

/// The fate of packets of one kind in one direction.
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
    /// Packets of TCP without payload that came to the link.
    pub empty: u64,
    /// Most bytes that waited for the rate since the last [`Emulator::take_peaks`].
    pub queue_peak: usize,
    /// Packets that left.
    pub delivered: u64,
    /// Those that left a millisecond after their time or later.
    pub late: u64,
    /// Greatest delay of a departure, in microseconds.
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
    /// The increase since `before`; peaks are the current ones.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            tcp: self.tcp.since(before.tcp),
            udp: self.udp.since(before.udp),
            other: self.other.since(before.other),
            empty: self.empty - before.empty,
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

/// Whether a packet of TCP over IPv4 has headers alone.
fn is_empty(packet: &[u8]) -> bool {
    let Some(ip) = packet.first().filter(|first| **first >> 4 == 4) else { return false };
    let ip_len = usize::from(ip & 15) * 4;
    packet.get(ip_len + 12).is_some_and(|offset| packet.len() == ip_len + usize::from(offset >> 4) * 4)
}

/// A running link; dropping it takes the interfaces away.
#[derive(Debug)]
pub struct Emulator {
    spec: Spec,
    up: Arc<Shared>,
    down: Arc<Shared>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Namespace of the other ends of the interfaces, if these are pairs.
    _middle: Option<Namespace>,
}

/// The kind of the link's interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Interfaces whose other end is this process.
    Tun,
    /// Pairs of Ethernet interfaces with packet sockets at their other ends: where the kernel has no TUN. They cost more.
    Pairs,
}

/// Both interfaces, as files that packets are read from and written to.
struct Ends {
    near: File,
    far: File,
    /// Bytes in front of each packet.
    header: usize,
    middle: Option<Namespace>,
}

impl Ends {
    fn tun(network: &Network, spec: &Spec) -> Result<Self> {
        let open = |address| -> Result<File> {
            let file = tun::open(INTERFACE).context("open a TUN interface\nhint: it takes root")?;
            network::ip(&["link", "set", INTERFACE, "mtu", &spec.mtu.to_string()])?;
            network::address_and_up(address)?;
            Ok(file)
        };
        let (near, far) = (network.near.within(|| open(NEAR))?, network.far.within(|| open(FAR))?);
        Ok(Self { near, far, header: 0, middle: None })
    }

    fn pairs(network: &Network, spec: &Spec) -> Result<Self> {
        let (middle, mtu) = (Namespace::new()?, spec.mtu.to_string());
        let path = middle.path();
        let path = path.to_str().context("path of a network")?;
        let end = |side: &Namespace, own: (Ipv4Addr, &str), other: (Ipv4Addr, &str), name: &str| {
            side.within(|| {
                let pair = ["type", "veth", "peer", "name", name, "mtu", &mtu, "netns", path];
                network::ip(
                    &[["link", "add", INTERFACE, "address", own.1, "mtu", &mtu].as_slice(), &pair].concat(),
                )?;
                tun::turn_offload_off(INTERFACE).context("turn offload off")?;
                network::address_and_up(own.0)?;
                // Nothing asks over the link who is there.
                let to = other.0.to_string();
                network::ip(&["neigh", "add", &to, "lladdr", other.1, "dev", INTERFACE, "nud", "permanent"])
            })?;
            middle.within(|| {
                tun::turn_offload_off(name).context("turn offload off")?;
                network::ip(&["link", "set", name, "up"])?;
                let file = packet::open_end(name).context("open a packet socket\nhint: it takes root")?;
                set_receive_buffer(&file, 64 << 20)?;
                Ok(file)
            })
        };
        let (near, far) = ((NEAR, "02:00:00:00:00:02"), (FAR, "02:00:00:00:00:01"));
        let files = (end(&network.near, near, far, "near")?, end(&network.far, far, near, "far")?);
        Ok(Self { near: files.0, far: files.1, header: ETHERNET, middle: Some(middle) })
    }
}

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

#[derive(Debug, Default)]
struct Shared(Mutex<Counts>);

impl Shared {
    fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Emulator {
    /// Joins the two networks by a link as `spec` says, by TUN interfaces if the kernel has them.
    ///
    /// # Errors
    /// Without the right, or if the kernel has neither TUN nor pairs of Ethernet interfaces.
    pub fn start(network: &Network, spec: &Spec) -> Result<Self> {
        let kind = if Path::new("/dev/net/tun").exists() { Kind::Tun } else { Kind::Pairs };
        Self::start_with(network, spec, kind)
    }

    /// As [`Self::start`], by interfaces of that kind.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(network: &Network, spec: &Spec, kind: Kind) -> Result<Self> {
        let ends = match kind {
            Kind::Tun => Ends::tun(network, spec)?,
            Kind::Pairs => Ends::pairs(network, spec)?,
        };
        let (near, far) = (Arc::new(ends.near), Arc::new(ends.far));
        let mut emulator = Self {
            spec: spec.clone(),
            up: Arc::default(),
            down: Arc::default(),
            stopped: Arc::default(),
            threads: Vec::new(),
            _middle: ends.middle,
        };
        let (up, down) = (Arc::clone(&emulator.up), Arc::clone(&emulator.down));
        // The directions draw from generators that lie far apart.
        emulator.carry("up", (&near, &far), ends.header, up, spec.seed)?;
        emulator.carry("down", (&far, &near), ends.header, down, !spec.seed)?;
        Ok(emulator)
    }

    fn carry(
        &mut self,
        name: &str,
        ends: (&Arc<File>, &Arc<File>),
        header: usize,
        counts: Arc<Shared>,
        seed: u64,
    ) -> Result<()> {
        let (from, to, stopped) = (Arc::clone(ends.0), Arc::clone(ends.1), Arc::clone(&self.stopped));
        let turn = (self.spec.rtt / TURNS_PER_TRIP).clamp(TURN.0, TURN.1);
        let link = Link::new(self.spec.conditions(), seed);
        let work = move || {
            let (waited, buffer) = (Duration::ZERO, vec![0; 65_536]);
            let mut direction = Direction { from: &from, to: &to, header, link, turn, waited, buffer };
            direction.run(&counts, &stopped);
        };
        self.threads.push(thread::Builder::new().name(format!("link {name}")).spawn(work)?);
        Ok(())
    }

    /// The link's properties.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The fate of packets so far: those from near to far, and those from far to near.
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

/// A packet with what goes before it on the interface, which does not count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    frame: Vec<u8>,
    header: usize,
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        self.frame.get(self.header..).unwrap_or_default()
    }
}

struct Direction<'f> {
    from: &'f File,
    to: &'f File,
    header: usize,
    link: Link<Packet>,
    turn: Duration,
    /// Longest time that a packet has waited after it was read.
    waited: Duration,
    buffer: Vec<u8>,
}

impl Direction<'_> {
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
            let Some(packet) = self.buffer[..len].get(self.header..) else { continue };
            counts.empty += u64::from(protocol(packet) == Some(6) && is_empty(packet));
            let count = counts.of(packet);
            count.packets += 1;
            count.bytes += packet.len() as u64;
            let packet = Packet { frame: self.buffer[..len].to_vec(), header: self.header };
            match self.link.send(packet, Instant::now() - self.waited / 2) {
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
            counts.refused += u64::from(self.to.write(&packet.frame).is_err());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_told_apart() {
        let mut packet = vec![0; 52];
        (packet[0], packet[9], packet[32]) = (0x45, 6, 0x80);
        assert_eq!(protocol(&packet), Some(6));
        assert!(is_empty(&packet));
        packet.push(0);
        assert!(!is_empty(&packet));
        (packet[0], packet[6]) = (0x60, 17);
        assert_eq!(protocol(&packet), Some(17));
        for len in 0..packet.len() {
            let (_, _) = (protocol(&packet[..len]), is_empty(&packet[..len]));
        }
        assert_eq!(protocol(&[0x10; 20]), None);
    }

    #[test]
    fn counts_are_differences_but_peaks_are_not() {
        let mut before = Counts { queue_peak: 7, delivered: 5, ..Counts::default() };
        before.of(&[0x45, 0, 0, 0, 0, 0, 0, 0, 0, 17]).packets = 2;
        let mut after = Counts { queue_peak: 9, delivered: 8, ..before };
        after.udp.packets = 6;
        let since = after.since(before);
        assert_eq!((since.udp.packets, since.delivered, since.queue_peak, since.all().packets), (4, 3, 9, 4));
    }
}
