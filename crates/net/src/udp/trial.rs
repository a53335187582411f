//! Whether the system keeps what it says: tried once, on loopback, before the first socket relies on it.
//!
//! A kernel in user space or an old one may take the options for segments and merging, and then send one long
//! datagram, or lose where one ends. The result holds for every socket; a device or route that refuses segments is
//! noticed later, by the socket that meets it.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::OnceLock;

use adit_sys::udp::{self as sys, Head, Receiver, Sender};

use super::Ability;

/// Features that work in the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trial {
    pub(super) ability: Ability,
    /// Datagrams that it merges can be told apart.
    pub(super) merges: bool,
}

/// Lengths of the datagrams of one message; the last one is shorter, as it may be.
const LENS: [usize; 3] = [100, 100, 50];
const SEGMENT: u16 = 100;

/// The result of the trial, which the first caller makes.
pub(super) fn result() -> Trial {
    static RESULT: OnceLock<Trial> = OnceLock::new();
    *RESULT.get_or_init(|| {
        let trial = run();
        if trial.ability < Ability::Segments {
            let most = trial.ability;
            tracing::info!(?most, "the system does not send or receive datagrams in the fastest way");
        }
        trial
    })
}

/// Tries.
pub(super) fn run() -> Trial {
    let none = Trial { ability: Ability::Single, merges: false };
    let Ok(pair) = Pair::new() else { return none };
    let batches = Trial { ability: Ability::Batches, merges: false };
    match pair.separate() {
        Ok(true) => {}
        Ok(false) | Err(_) => return none,
    }
    match pair.segments() {
        Ok(true) => {}
        Ok(false) | Err(_) => return batches,
    }
    let merges = pair.merged().unwrap_or(false);
    Trial { ability: Ability::Segments, merges }
}

/// Two sockets on loopback, where what is sent has arrived when the call returns.
struct Pair {
    from: UdpSocket,
    to: UdpSocket,
}

impl Pair {
    #[expect(clippy::disallowed_methods, reason = "this crate opens sockets")]
    fn new() -> io::Result<Self> {
        let to = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let from = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        to.connect(from.local_addr()?)?;
        from.connect(to.local_addr()?)?;
        to.set_nonblocking(true)?;
        Ok(Self { from, to })
    }

    /// One message per datagram, many per call.
    fn separate(&self) -> io::Result<bool> {
        let datagrams = datagrams();
        let head = Head { to: None, from: None, class: 0, segment: None };
        let messages = datagrams.iter().map(|bytes| (head, std::iter::once(&bytes[..])));
        let sent = Sender::new(LENS.len()).send(&self.from, messages)?;
        Ok(sent == LENS.len() && self.receive()? == datagrams)
    }

    /// One message for all, which the kernel cuts.
    fn segments(&self) -> io::Result<bool> {
        self.send_segments()?;
        Ok(self.receive()? == datagrams())
    }

    /// The same, merged again by the receiver.
    fn merged(&self) -> io::Result<bool> {
        sys::set_gro(&self.to, true)?;
        self.send_segments()?;
        Ok(self.receive()? == datagrams())
    }

    fn send_segments(&self) -> io::Result<()> {
        let datagrams = datagrams();
        let head = Head { to: None, from: None, class: 0, segment: Some(SEGMENT) };
        let message = (head, datagrams.iter().map(|bytes| &bytes[..]));
        Sender::new(1).send(&self.from, std::iter::once(message)).map(drop)
    }

    /// Everything that waits, cut where the kernel says.
    fn receive(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut receiver = Receiver::new(LENS.len() + 1);
        let mut buffers = vec![vec![0; 1000]; LENS.len() + 1];
        let count = receiver.receive(&self.to, buffers.iter_mut().map(|buffer| &mut buffer[..]))?;
        let mut all = Vec::new();
        for (at, buffer) in buffers.iter().enumerate().take(count) {
            let Some(meta) = receiver.meta(at) else { continue };
            let stride = meta.stride.map_or_else(|| meta.len.max(1), usize::from);
            all.extend(buffer[..meta.len.min(buffer.len())].chunks(stride).map(<[u8]>::to_vec));
        }
        Ok(all)
    }
}

fn datagrams() -> Vec<Vec<u8>> {
    (1..).zip(LENS).map(|(byte, len)| vec![byte; len]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_system_does_everything_rightly() {
        assert_eq!(run(), Trial { ability: Ability::Segments, merges: true });
    }
}
