//! Listening on an interface.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use adit_sys::packet;
use adit_sys::udp::set_receive_buffer;
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::file::Captured;
use crate::frame::Link;

/// Largest frame: what offload merges, and loopback's own.
const MOST: usize = 256 * 1024;

/// Link, IP and TCP headers with all their options.
const HEADERS: u16 = 134;

/// Calls `seen` with every frame of `interface` and its length on the wire, until `stop` says so; with `headers_of`,
/// with the headers of the frames of that port alone. Gives how many frames the kernel had no room for.
///
/// # Errors
/// If the interface cannot be opened, or `seen` fails.
pub fn capture(
    interface: &str,
    headers_of: Option<u16>,
    seen: &mut dyn FnMut(&Captured<'_>, usize) -> io::Result<()>,
    stop: &mut dyn FnMut() -> bool,
) -> Result<u64> {
    let socket = packet::open(interface)
        .with_context(|| format!("listen on {interface}\nhint: it takes root, or CAP_NET_RAW"))?;
    if let Some(port) = headers_of {
        packet::keep_port(&socket, port, HEADERS)?;
    }
    set_receive_buffer(&socket, 512 << 20)?;
    let mut buffer = vec![0; MOST];
    while !stop() {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(50_u8)).unwrap_or(0) == 0 {
            continue;
        }
        let frame =
            packet::receive(&socket, &mut buffer).with_context(|| format!("listen on {interface}"))?;
        let captured = Captured { time: frame.time, link: Some(Link::Ethernet), bytes: &buffer[..frame.len] };
        seen(&captured, frame.original)?;
    }
    Ok(packet::take_drops(&socket)?.into())
}

/// As [`capture`], until an interrupt or for `time`; `tick` is called many times a second, with the time since the start.
///
/// # Errors
/// As [`capture`].
pub fn listen(
    interface: &str,
    time: Option<Duration>,
    seen: &mut dyn FnMut(&Captured<'_>, usize) -> io::Result<()>,
    tick: &mut dyn FnMut(Duration),
) -> Result<u64> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().context("block signals")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let begin = Instant::now();
    let mut stop = || {
        tick(begin.elapsed());
        let interrupted = !matches!(signals.read_signal(), Ok(None));
        interrupted || time.is_some_and(|time| begin.elapsed() >= time)
    };
    capture(interface, None, seen, &mut stop)
}
