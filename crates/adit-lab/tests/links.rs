//! The emulator against its specification, with real packets.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![expect(clippy::disallowed_methods, reason = "tests look at real time and open sockets")]

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_lab::link::{Counts, Emulator, FAR, NEAR, Network, Spec};

/// What came of datagrams that were sent from near to far.
struct Outcome {
    /// Milliseconds on the way of each number that came.
    delays: Vec<(u32, f64)>,
    counts: Counts,
}

/// Sends `count` datagrams of `len` bytes in packets, `gap` apart, in networks and over a link of its own.
fn send(spec: &str, count: u32, len: usize, gap: Duration) -> Outcome {
    let spec: Spec = spec.parse().unwrap();
    // The thread takes its networks with it.
    thread::spawn(move || {
        let network = Network::enter().unwrap();
        let emulator = Emulator::start(&network, &spec).unwrap();
        let bind = |ip: std::net::Ipv4Addr| Ok(UdpSocket::bind((ip, 0))?);
        let (near, far) = (bind(NEAR).unwrap(), network.far.within(|| bind(FAR)).unwrap());
        adit_sys::udp::set_receive_buffer(&far, 32 << 20).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let to: SocketAddr = far.local_addr().unwrap();
        let begin = Instant::now();
        let reader = thread::spawn(move || {
            let mut delays = Vec::new();
            let mut bytes = [0; 2048];
            while let Ok(len) = far.recv(&mut bytes) {
                assert!(len >= 12);
                let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                let sent = u64::from_le_bytes(bytes[4..12].try_into().unwrap());
                let now = u64::try_from(begin.elapsed().as_nanos()).unwrap();
                delays.push((number, (now - sent) as f64 / 1e6));
            }
            delays
        });
        // IPv4 and UDP headers.
        let mut bytes = vec![0; len - 28];
        for number in 0..count {
            let due = gap * number;
            while begin.elapsed() < due {
                thread::sleep((due.saturating_sub(begin.elapsed())).min(Duration::from_micros(200)));
            }
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            let now = u64::try_from(begin.elapsed().as_nanos()).unwrap();
            bytes[4..12].copy_from_slice(&now.to_le_bytes());
            near.send_to(&bytes, to).unwrap();
        }
        let delays = reader.join().unwrap();
        Outcome { delays, counts: emulator.counts().0 }
    })
    .join()
    .unwrap()
}

fn percentile(outcome: &Outcome, percent: usize) -> f64 {
    let mut delays: Vec<f64> = outcome.delays.iter().map(|(_, delay)| *delay).collect();
    delays.sort_by(f64::total_cmp);
    delays[(delays.len() - 1) * percent / 100]
}

#[test]
#[ignore = "needs root and a quiet machine"]
fn the_delay_is_that_of_the_link() {
    for spec in ["rtt=10ms", "100mbit,rtt=100ms"] {
        let outcome = send(spec, 2000, 500, Duration::from_micros(1000));
        let expected = if spec.contains("100ms") { 50.0 } else { 5.0 };
        let (p50, p99) = (percentile(&outcome, 50), percentile(&outcome, 99));
        println!("{spec}: p50 {p50:.3} ms, p99 {p99:.3} ms, {:?}", outcome.counts);
        assert_eq!(outcome.delays.len(), 2000);
        assert!((expected - 0.1..expected + 0.3).contains(&p50), "{p50}");
        assert!(p99 < expected + 1.0, "{p99}");
    }
}
