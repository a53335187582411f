//! Shared parts of the tests of several crates: vectors ([`load`], [`hex`]), a random source that repeats itself
//! ([`FixedRng`]), a start of time ([`epoch`]), drivers for stream layers ([`layers`]), a link for
//! datagrams ([`netem`]), other programs ([`peer`]), what is logged ([`Lines`]), and the parts of a machine that a test
//! needs ([`has_ipv6`], [`in_own_network`]): without them it is [`skipped`].
//!
//! Unit tests of `adit-proto` cannot use the parts that name its types, since they would meet a second copy of
//! them; tests that need those live in `crates/proto/tests`.

#![forbid(unsafe_code)]

pub mod layers;
pub mod peer;

mod lines;
mod needs;
mod rng;
mod vectors;

pub use adit_netem as netem;
pub use lines::Lines;
pub use needs::{descriptors, has_ipv6, has_nftables, has_tun, in_own_network, may_make_networks, skipped};
pub use rng::{FixedRng, ScriptedRng};
pub use vectors::{hex, load, pattern, text};

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Some instant to begin a test with; tests count on from it instead of looking at the clock.
#[expect(clippy::disallowed_methods, reason = "the standard library offers no other way to an Instant")]
pub fn epoch() -> Instant {
    Instant::now()
}

/// An address of this machine that nothing listens on and that nothing else is given, since no program picks its
/// ports there by itself: each call takes another address of the loopback block. Ports that the kernel hands out
/// would not do, for a test beside this one may get the same.
pub fn unused_addr() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [.., process_high, process] = std::process::id().to_be_bytes();
    // Processes that follow one another differ in the low bits.
    let ip = Ipv4Addr::new(127, 64 + (process & 127), process_high.wrapping_add(high), low);
    SocketAddr::from((ip, 20_000))
}

/// As [`unused_addr`], but of 127.0.0.1, for programs that listen there. The ports lie below those that the kernel
/// hands out, and each call takes another.
///
/// # Panics
/// If all are taken.
pub fn unused_localhost() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, unused_at(Ipv4Addr::LOCALHOST)))
}

/// A port of the same kind that is free on every address, for programs that listen on one address and then on all.
///
/// # Panics
/// If all are taken.
pub fn unused_port() -> u16 {
    unused_at(Ipv4Addr::UNSPECIFIED)
}

#[expect(clippy::disallowed_methods, reason = "whether the port is free, no more")]
fn unused_at(ip: Ipv4Addr) -> u16 {
    const PORTS: std::ops::Range<u32> = 10_000..18_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(97);
    let ports = PORTS.map(|_| {
        let step = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        u16::try_from(PORTS.start + step % (PORTS.end - PORTS.start)).expect("a port of the range")
    });
    let is_free = |port: &u16| TcpListener::bind((ip, *port)).is_ok() && UdpSocket::bind((ip, *port)).is_ok();
    ports.into_iter().find(is_free).expect("a free port")
}

/// Runs a test that expects something within a time, up to five times until it holds. A machine that is busy with other
/// things may be late in one run; code that is slow is so in all of them.
///
/// # Panics
/// As the last run.
pub fn in_time(test: impl Fn()) {
    for left in (0..5).rev() {
        match catch_unwind(AssertUnwindSafe(&test)) {
            Ok(()) => return,
            Err(panic) if left == 0 => resume_unwind(panic),
            Err(_) => {}
        }
    }
}

/// Opens a file as soon as no other process has its lock, for up to a minute: a test beside this one that starts a process
/// holds it as well, from the fork to the exec.
///
/// # Errors
/// The last one, if it is another than `is_busy` says or a minute is over.
pub fn once_free<T, E>(mut open: impl FnMut() -> Result<T, E>, is_busy: impl Fn(&E) -> bool) -> Result<T, E> {
    let until = epoch() + Duration::from_secs(60);
    loop {
        match open() {
            Err(error) if is_busy(&error) && epoch() < until => thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

/// Waits until `condition` holds, for up to two minutes.
///
/// # Panics
/// If it does not, with `what` was waited for.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = epoch() + Duration::from_secs(120);
    while !condition() {
        assert!(epoch() < until, "still not true: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
