//! Thousands of connections of every kind at once: no wrong byte, nothing left behind.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]
#![allow(clippy::disallowed_methods, reason = "clients and targets of this test are plain ones")]
#![allow(dead_code, reason = "the helpers serve several tests")]

#[path = "it/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use adit_model::HalfClose;
use common::{
    Obfs, Pair, Pattern, Setup, Target, expect_end, expect_pattern, mix, reset, send_pattern, wait_for,
    within,
};

const CONNECTIONS: u64 = 10_000;
const THREADS: u64 = 50;

/// The plan of one connection, as a request of 26 bytes tells the target.
#[derive(Debug, Clone, Copy)]
struct Plan {
    seed: u64,
    up: usize,
    down: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Up, end, and only then down.
    HalfClose,
    /// Both at once.
    Both,
    /// Down only; the target ends.
    Down,
    /// The client resets in the middle.
    ClientAborts,
    /// The target resets in the middle.
    TargetAborts,
}

impl Plan {
    fn new(n: u64) -> Self {
        let size = |n: u64| match n % 100 {
            0..60 => n % 2_000,
            60..95 => n % 100_000,
            _ => n % 2_000_000,
        };
        let kind = match mix(n) % 10 {
            0..3 => Kind::HalfClose,
            3..6 => Kind::Both,
            6..8 => Kind::Down,
            8 => Kind::ClientAborts,
            _ => Kind::TargetAborts,
        };
        let len = |salt: u64| usize::try_from(size(mix(n ^ salt) >> 8)).unwrap();
        Self { seed: n, up: len(1 << 40), down: len(1 << 41), kind }
    }

    fn emit(self) -> [u8; 25] {
        let mut out = [0; 25];
        out[..8].copy_from_slice(&self.seed.to_le_bytes());
        out[8..16].copy_from_slice(&(self.up as u64).to_le_bytes());
        out[16..24].copy_from_slice(&(self.down as u64).to_le_bytes());
        out[24] = match self.kind {
            Kind::HalfClose => 0,
            Kind::Both => 1,
            Kind::Down => 2,
            Kind::ClientAborts => 3,
            Kind::TargetAborts => 4,
        };
        out
    }

    fn read(mut stream: &TcpStream) -> Option<Self> {
        let mut bytes = [0; 25];
        stream.read_exact(&mut bytes).ok()?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let kind = match bytes[24] {
            0 => Kind::HalfClose,
            1 => Kind::Both,
            2 => Kind::Down,
            3 => Kind::ClientAborts,
            _ => Kind::TargetAborts,
        };
        let len = |at: usize| usize::try_from(number(at)).unwrap();
        Some(Self { seed: number(0), up: len(8), down: len(16), kind })
    }

    fn at_target(stream: TcpStream) {
        let Some(plan) = Self::read(&stream) else { return };
        let receive = || {
            expect_pattern(&stream, plan.seed, plan.up);
            expect_end(&stream);
        };
        match plan.kind {
            Kind::HalfClose => {
                receive();
                send_pattern(&stream, !plan.seed, plan.down).unwrap();
            }
            Kind::Both => thread::scope(|scope| {
                scope.spawn(receive);
                send_pattern(&stream, !plan.seed, plan.down).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }),
            Kind::Down => {
                send_pattern(&stream, !plan.seed, plan.down).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                expect_end(&stream);
            }
            Kind::ClientAborts => {
                drop(send_pattern(&stream, !plan.seed, plan.down + 1));
                drop((&stream).read_to_end(&mut Vec::new()));
            }
            Kind::TargetAborts => {
                drop(send_pattern(&stream, !plan.seed, plan.down));
                reset(stream);
            }
        }
    }

    fn at_client(self, pair: &Pair, target: &Target) {
        let stream = pair.client.tunnel(target.addr);
        (&stream).write_all(&self.emit()).unwrap();
        let receive = || {
            expect_pattern(&stream, !self.seed, self.down);
            expect_end(&stream);
        };
        let send = || {
            send_pattern(&stream, self.seed, self.up).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        };
        match self.kind {
            Kind::HalfClose => {
                send();
                receive();
            }
            Kind::Both => thread::scope(|scope| {
                scope.spawn(send);
                receive();
            }),
            Kind::Down => {
                expect_pattern(&stream, !self.seed, self.down);
                // An end without a reset only.
                expect_end(&stream);
            }
            Kind::ClientAborts => reset(stream),
            Kind::TargetAborts => {
                // The bytes that come are right, and the end is no orderly one.
                (&stream).write_all(b"x").unwrap();
                let mut received = Vec::new();
                let end = (&stream).read_to_end(&mut received);
                assert!(end.is_err(), "{self:?}: an orderly end after {} bytes", received.len());
                assert!(received == Pattern::bytes(!self.seed, received.len()), "{self:?}: wrong bytes");
            }
        }
    }
}

fn soak(setup: &Setup, connections: u64) {
    // Opens the things that the process opens once, and keeps.
    drop(setup.pair());
    let before = descriptors();
    let pair = setup.pair();
    let target = Target::new(Plan::at_target);
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= connections {
                        return;
                    }
                    Plan::new(n).at_client(&pair, &target);
                }
            });
        }
    });
    pair.wait_until_idle();
    let status = pair.server.running().status();
    assert_eq!(status.inbounds[0].refused.values().sum::<u64>(), 0, "{:?}", status.inbounds[0].refused);
    assert_eq!((pair.client.out().early_closes, target.panics()), (0, 0));
    drop((pair, target));
    wait_for("all descriptors are closed", || descriptors() <= before);
}

#[test]
fn a_short_mix() {
    within(100, || soak(&Setup { cores: 2, half_close: HalfClose::On, ..Setup::default() }, 300));
}

#[test]
#[ignore = "takes a minute"]
fn soak_ten_thousand_with_reuse() {
    within(300, || soak(&Setup { cores: 2, half_close: HalfClose::On, ..Setup::default() }, CONNECTIONS));
}

#[test]
#[ignore = "takes a minute"]
fn soak_ten_thousand_without_reuse_under_obfs() {
    for obfs in [Obfs::Http, Obfs::Tls] {
        let setup = Setup { cores: 2, obfs, reuse: false, half_close: HalfClose::On, ..Setup::default() };
        within(300, move || soak(&setup, CONNECTIONS / 2));
    }
}

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
