//! The target of datagrams: one socket for every loopback address, so that many targets cost one thread.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit_sys::udp::{
    Head, MAX_PAYLOAD, Receiver, Sender, report_destination, report_drops, set_gro, set_receive_buffer,
};
use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::datagram::{Datagram, Kind};
use super::flow::MAX_LEN;
use super::wrap;
use crate::link::FAR;

/// Datagrams, or merged ones, per call.
const BATCH: usize = 64;
const MERGED_BATCH: usize = 8;
/// Datagrams that took longer than this are lost.
const QUIET: Duration = Duration::from_millis(600);
/// Largest number of a datagram that is remembered: two minutes of the fastest flow seen so far, in 64 MiB.
const MAX_NUMBER: u64 = 1 << 29;

/// The way in which the sink reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Looks every half millisecond: it never sleeps in the kernel, so that no relay pays for waking it.
    Rested,
    /// Waits for each datagram, for what is about time.
    Prompt,
    /// As `Rested`, with datagrams merged by the kernel (`UDP_GRO`).
    Merged,
}

/// The datagrams of one flow that arrived.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Different datagrams.
    pub received: u64,
    /// Datagrams that had come before.
    pub twice: u64,
    /// Datagrams that came after a later one.
    pub late: u64,
    /// Datagrams that came to another target than the flow's.
    pub astray: u64,
    /// Nanoseconds on the way, of [`Kind::Voice`].
    pub delays: Vec<f64>,
    seen: Vec<u64>,
    highest: Option<u64>,
}

impl Tally {
    fn note(&mut self, datagram: &Datagram, delay: u64) {
        let (word, bit) = ((datagram.number / 64) as usize, 1 << (datagram.number % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            self.twice += 1;
            return;
        }
        self.seen[word] |= bit;
        self.received += 1;
        self.late += u64::from(self.highest.is_some_and(|highest| highest > datagram.number));
        self.highest = self.highest.max(Some(datagram.number));
        if datagram.kind == Kind::Voice {
            self.delays.push(delay as f64);
        }
    }

    /// Number of the numbers `from..to` that came.
    #[must_use]
    pub fn between(&self, from: u64, to: u64) -> u64 {
        let came = |number: &u64| {
            let word = self.seen.get((*number / 64) as usize).copied().unwrap_or(0);
            word >> (*number % 64) & 1 == 1
        };
        (from..to).filter(came).count() as u64
    }
}

/// Everything that arrived.
#[derive(Debug, Default)]
pub struct Arrived {
    /// By flow.
    pub flows: BTreeMap<u32, Tally>,
    /// Datagrams with a byte that was never sent.
    pub wrong: u64,
    /// Datagrams that the kernel had no room for at the sink: the lab's fault, not the subject's.
    pub dropped: u64,
}

impl Arrived {
    /// Different datagrams of all flows.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.flows.values().map(|tally| tally.received).sum()
    }
}

/// A running sink; dropping it stops it.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    first: SocketAddr,
    epoch: Instant,
    reading: Reading,
    arrived: Mutex<Arrived>,
    stopped: AtomicBool,
}

impl Sink {
    /// Receives what comes to the port of `first` on any loopback address. Times count from `epoch`.
    ///
    /// # Errors
    /// If the port is taken, or the kernel lacks an option.
    pub fn start(first: SocketAddr, reading: Reading, epoch: Instant) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, first.port()))
            .with_context(|| format!("open the target's datagram port {}", first.port()))?;
        set_receive_buffer(&socket, 32 << 20)?;
        report_destination(&socket, false)?;
        report_drops(&socket)?;
        set_gro(&socket, reading == Reading::Merged).context("merge datagrams (UDP_GRO)")?;
        let arrived = Mutex::new(Arrived::default());
        let shared =
            Arc::new(Shared { socket, first, epoch, reading, arrived, stopped: AtomicBool::new(false) });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("sink".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The datagrams that arrived so far.
    pub fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.shared.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `expected` datagrams have come, or none for a while, and gives their number.
    pub fn settle(&self, expected: u64) -> u64 {
        let mut last = self.arrived().received();
        let mut since = Instant::now();
        while last < expected && since.elapsed() < QUIET {
            thread::sleep(Duration::from_millis(5));
            let received = self.arrived().received();
            if received != last {
                (last, since) = (received, Instant::now());
            }
        }
        last
    }

    /// Checks that every datagram that came was sent, once and to the right place.
    ///
    /// # Errors
    /// If not.
    pub fn verify(&self) -> Result<()> {
        let arrived = self.arrived();
        ensure!(arrived.wrong == 0, "{} datagrams with wrong content", arrived.wrong);
        for (flow, tally) in &arrived.flows {
            ensure!(tally.twice == 0, "{} datagrams of flow {flow} came twice", tally.twice);
            ensure!(tally.astray == 0, "{} datagrams of flow {flow} came to a wrong target", tally.astray);
        }
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Shared {
    fn run(&self) {
        let (count, len) =
            if self.reading == Reading::Merged { (MERGED_BATCH, MAX_PAYLOAD + 28) } else { (BATCH, MAX_LEN) };
        let mut receiver = Receiver::new(count);
        let mut sender = Sender::new(1);
        let mut block = vec![0; count * len];
        while !self.stopped.load(Ordering::Relaxed) {
            match receiver.receive(&self.socket, block.chunks_mut(len)) {
                Ok(received) => {
                    self.take(&receiver, &block, len, received, &mut sender);
                    if received < count {
                        self.rest();
                    }
                }
                Err(_) => self.rest(),
            }
        }
    }

    /// The sink's behaviour when nothing waits.
    fn rest(&self) {
        if self.reading == Reading::Prompt {
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(50_u8)).ok();
        } else {
            thread::sleep(Duration::from_micros(500));
        }
    }

    fn take(&self, receiver: &Receiver, block: &[u8], len: usize, count: usize, sender: &mut Sender) {
        let now = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, buffer) in block.chunks(len).take(count).enumerate() {
            let Some(meta) = receiver.meta(at) else { continue };
            if let Some(dropped) = meta.dropped {
                arrived.dropped = dropped.into();
            }
            let bytes = &buffer[..meta.len.min(buffer.len())];
            let stride = meta.stride.map_or(bytes.len(), usize::from).max(1);
            for bytes in bytes.chunks(stride) {
                let datagram = Datagram::parse(bytes).filter(|datagram| datagram.number < MAX_NUMBER);
                let Some(datagram) = datagram.filter(|_| !meta.truncated) else {
                    arrived.wrong += 1;
                    continue;
                };
                if datagram.kind == Kind::Echo {
                    let head = Head { to: Some(meta.from), from: meta.to, class: 0, segment: None };
                    sender.send(&self.socket, std::iter::once((head, std::iter::once(bytes)))).ok();
                    continue;
                }
                let tally = arrived.flows.entry(datagram.flow).or_default();
                if !self.is_place(datagram.flow, meta.to) {
                    tally.astray += 1;
                }
                tally.note(&datagram, now.saturating_sub(datagram.time));
            }
        }
    }

    /// Flows go to the first target, or each to its own.
    fn is_place(&self, flow: u32, to: Option<IpAddr>) -> bool {
        to.is_none_or(|to| to == self.first.ip() || to == FAR || to == wrap::target(self.first, flow).ip())
    }
}

#[cfg(test)]
mod tests {
    use adit_testkit::wait_for;

    use super::*;

    fn datagram(number: u64) -> Datagram {
        Datagram { kind: Kind::Bulk, flow: 0, number, time: 0 }
    }

    #[test]
    fn the_last_datagram_of_a_long_flow_is_right() {
        let sink = Sink::start((Ipv4Addr::LOCALHOST, 0).into(), Reading::Rested, Instant::now()).unwrap();
        let port = sink.shared.socket.local_addr().unwrap().port();
        let mut bytes = [0; 64];
        datagram(300_000_000).emit(&mut bytes);
        let source = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        source.send_to(&bytes, (Ipv4Addr::LOCALHOST, port)).unwrap();
        wait_for("the datagram", || {
            let arrived = sink.arrived();
            arrived.received() + arrived.wrong > 0
        });
        sink.verify().unwrap();
    }

    #[test]
    fn tally_counts_losses_repeats_and_disorder() {
        let mut tally = Tally::default();
        for number in [0, 1, 3, 2, 3, 200] {
            tally.note(&datagram(number), 0);
        }
        assert_eq!((tally.received, tally.twice, tally.late), (5, 1, 1));
        assert_eq!(tally.between(0, 4), 4);
        assert_eq!(tally.between(4, 200), 0);
        assert_eq!(tally.between(3, 1000), 2);
    }
}
