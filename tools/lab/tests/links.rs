//! The emulator against its specification, with real packets.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![expect(clippy::disallowed_methods, reason = "tests look at real time and open sockets")]

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use adit_lab::link::{Counts, Emulator, FAR, Kind, NEAR, Network, Spec};
use adit_testkit::in_time;

/// The fate of datagrams that were sent from near to far.
struct Outcome {
    /// Number, milliseconds from the first sending to the arrival, milliseconds on the way; in the order of arrival.
    arrivals: Vec<(u32, f64, f64)>,
    counts: Counts,
}

impl Outcome {
    fn delay(&self, percent: usize) -> f64 {
        let mut delays: Vec<f64> = self.arrivals.iter().map(|(_, _, delay)| *delay).collect();
        delays.sort_by(f64::total_cmp);
        delays[(delays.len() - 1) * percent / 100]
    }
}

/// Sends `count` datagrams in packets of `len` bytes, `gap` apart, in networks and over a link of its own.
fn send(spec: &str, count: u32, len: usize, gap: Duration) -> Outcome {
    send_over(Kind::Tun, spec, count, len, gap)
}

fn send_over(kind: Kind, spec: &str, count: u32, len: usize, gap: Duration) -> Outcome {
    let spec: Spec = spec.parse().unwrap();
    // The thread takes its networks with it.
    thread::spawn(move || {
        let network = Network::enter().unwrap();
        let emulator = Emulator::start_with(&network, &spec, kind).unwrap();
        let bind = |ip: Ipv4Addr| Ok(UdpSocket::bind((ip, 0))?);
        let (near, far) = (bind(NEAR).unwrap(), network.far.within(|| bind(FAR)).unwrap());
        adit_sys::udp::set_receive_buffer(&far, 32 << 20).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let to = far.local_addr().unwrap();
        let begin = Instant::now();
        let millis = move || begin.elapsed().as_secs_f64() * 1e3;
        let reader = thread::spawn(move || {
            let (mut arrivals, mut bytes) = (Vec::new(), [0; 2048]);
            while far.recv(&mut bytes).is_ok() {
                let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                let sent = f64::from_le_bytes(bytes[4..12].try_into().unwrap());
                let now = millis();
                arrivals.push((number, now, now - sent));
            }
            arrivals
        });
        // IPv4 and UDP headers.
        let mut bytes = vec![0; len - 28];
        for number in 0..count {
            let due = gap * number;
            while begin.elapsed() < due {
                thread::sleep(due.saturating_sub(begin.elapsed()));
            }
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            bytes[4..12].copy_from_slice(&millis().to_le_bytes());
            near.send_to(&bytes, to).unwrap();
        }
        let arrivals = reader.join().unwrap();
        Outcome { arrivals, counts: emulator.counts().0 }
    })
    .join()
    .unwrap()
}

#[test]
#[ignore = "needs root, and time"]
fn the_delay_is_that_of_the_link() {
    in_time(|| {
        for (spec, expected) in
            [("rtt=10ms", 5.0), ("100mbit,rtt=100ms", 50.0), ("rtt=20ms,jitter=4ms", 12.0)]
        {
            let outcome = send(spec, 1000, 500, Duration::from_millis(1));
            let half = outcome.delay(50);
            assert_eq!(outcome.arrivals.len(), 1000, "{spec}");
            // Half a millisecond is the stated tolerance; waking the reader is in it.
            assert!((expected - 0.5..expected + 0.5).contains(&half), "{spec}: {half}");
            assert!(outcome.counts.late * 50 < outcome.counts.delivered, "{spec}: {:?}", outcome.counts);
        }
    });
}

#[test]
#[ignore = "needs root, and time"]
fn pairs_of_interfaces_do_the_same() {
    in_time(|| {
        let outcome =
            send_over(Kind::Pairs, "10mbit,rtt=20ms,queue=50kB", 2500, 1000, Duration::from_micros(400));
        let count = outcome.counts.udp;
        assert_eq!((count.packets, count.bytes), (2500, 2_500_000));
        assert_eq!(outcome.arrivals.len() as u64, count.packets - count.overflowed);
        assert!((49.0..51.0).contains(&outcome.delay(90)), "{}", outcome.delay(90));
        assert_eq!(outcome.counts.refused, 0);
    });
}

#[test]
#[ignore = "needs root, and time"]
fn the_rate_and_the_queue_are_those_of_the_link() {
    in_time(|| {
        // Twice what the link carries, for a second.
        let outcome = send("10mbit,rtt=20ms,queue=50kB", 2500, 1000, Duration::from_micros(400));
        let (count, arrivals) = (outcome.counts.udp, &outcome.arrivals);
        assert_eq!((count.packets, count.bytes, count.lost), (2500, 2_500_000, 0));
        assert_eq!(arrivals.len() as u64, count.packets - count.overflowed);
        assert!((49_000..=50_000).contains(&outcome.counts.queue_peak), "{:?}", outcome.counts);
        let time = arrivals[arrivals.len() - 1].1 - arrivals[0].1;
        let rate = (arrivals.len() - 1) as f64 * 8e3 / time / 1e3;
        assert!((9.8..10.2).contains(&rate), "{rate} Mbit/s");
        // A full queue takes 40 ms to leave.
        assert!((49.0..51.0).contains(&outcome.delay(90)), "{}", outcome.delay(90));
    });
}

/// The draws depend on the seed and the number of packets alone: 20,000 of them, and the kernel may add a few.
#[test]
#[ignore = "needs root, and time"]
fn loss_order_and_repeats_are_those_of_the_link() {
    let gap = Duration::from_micros(50);
    let outcome = send("rtt=2ms,loss=5%", 20_000, 200, gap);
    let lost = outcome.counts.udp.lost;
    assert!((900..1100).contains(&lost), "{lost}");
    assert_eq!(outcome.arrivals.len() as u64, 20_000 - lost);

    let outcome = send("rtt=2ms,loss=5%,burst=8", 20_000, 200, gap);
    let bursts = outcome.arrivals.windows(2).filter(|pair| pair[1].0 > pair[0].0 + 1).count() as u64;
    let lost = outcome.counts.udp.lost;
    assert!((700..1300).contains(&lost) && (5 * bursts..11 * bursts).contains(&lost), "{lost} in {bursts}");

    let outcome = send("rtt=2ms,reorder=10%,reorder-by=3ms,dup=5%", 20_000, 200, gap);
    assert!((20_900..21_100).contains(&outcome.arrivals.len()), "{}", outcome.arrivals.len());
    let behind = outcome.arrivals.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
    assert!((1000..4000).contains(&behind), "{behind}");
}

const BENCH: &str = env!("CARGO_BIN_EXE_adit-bench");

fn bench(program: &Path, link: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--rounds", "1", "--baseline", "none", "--seconds", "30", "--link", link]);
    command.args(["--subjects", "floor-plain", "--measures", "path-down1"]);
    command
}

#[test]
#[ignore = "needs root, to give it up"]
fn without_rights_there_is_a_clear_error() {
    // Others may not reach the folder that it was built in.
    let copy = std::env::temp_dir().join(format!("adit-lab-links-{}", std::process::id()));
    fs::copy(BENCH, &copy).unwrap();
    let output = bench(&copy, "100mbit").uid(65_534).current_dir("/").output();
    fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("it takes root"), "{text}");
}

/// The network of each process, by the kernel's name for it.
fn networks() -> Vec<(u32, PathBuf)> {
    let of = |entry: std::io::Result<fs::DirEntry>| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some((pid, fs::read_link(format!("/proc/{pid}/ns/net")).ok()?))
    };
    fs::read_dir("/proc").unwrap().filter_map(of).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[test]
#[ignore = "needs root, and time"]
fn nothing_is_left_of_a_lab_that_is_killed() {
    let mut lab =
        bench(Path::new(BENCH), "100mbit").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    // Server and client of the subject, in two networks, neither of them ours.
    let theirs: BTreeSet<PathBuf> = loop {
        let of_children = networks().into_iter().filter(|(pid, _)| parent(*pid) == Some(lab.id()));
        let theirs: BTreeSet<PathBuf> =
            of_children.map(|(_, network)| network).filter(|it| *it != own).collect();
        if theirs.len() == 2 {
            break theirs;
        }
        assert!(Instant::now() < deadline && lab.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(50));
    };
    lab.kill().unwrap();
    lab.wait().unwrap();
    while networks().iter().any(|(_, network)| theirs.contains(network)) {
        assert!(Instant::now() < deadline, "{:?}", networks());
        thread::sleep(Duration::from_millis(50));
    }
}
