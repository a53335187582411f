//! Cost of a datagram. Run with `--release -- --ignored --nocapture --test-threads 1`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::*;

/// Nanoseconds of processor time that the event loops of this process have used.
fn loops_ns() -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let used = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        if name.starts_with("adit-") {
            sum += used.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// A target that counts.
fn sink() -> (SocketAddr, Arc<AtomicU64>) {
    let socket = socket();
    // Only the relays are to lose datagrams.
    adit_sys::udp::set_receive_buffer(&socket, 4 << 20).unwrap();
    let (at, count) = (addr(&socket), Arc::new(AtomicU64::new(0)));
    let counted = count.clone();
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while socket.recv(&mut bytes).is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    (at, count)
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn bulk(via: SocketAddr, count: &AtomicU64, len: usize, rate: f64) -> String {
    let client = socket();
    client.connect(via).unwrap();
    let payload = vec![7; len];
    let (before, ns, since) = (count.load(Ordering::Relaxed), loops_ns(), Instant::now());
    let mut sent = 0_u32;
    while since.elapsed() < Duration::from_secs(3) {
        if f64::from(sent) < since.elapsed().as_secs_f64() * rate {
            // Bursts of 16, as a sender paced by a timer of a millisecond has them.
            for _ in 0..16 {
                client.send(&payload).unwrap();
            }
            sent += 16;
        } else {
            thread::sleep(Duration::from_micros(100));
        }
    }
    // The last ones arrive; those that do not count as lost.
    thread::sleep(Duration::from_millis(200));
    let (got, ns) = (count.load(Ordering::Relaxed) - before, loops_ns() - ns);
    let loss = 100.0 * (1.0 - got as f64 / f64::from(sent));
    format!("{len:5} B {rate:8.0}/s: {:5} ns of all relays per datagram, {loss:.2} % lost", ns / got.max(1))
}

#[test]
#[ignore = "measures"]
fn processor_time_per_datagram() {
    let (target, count) = sink();
    let (direct, at) = run(tunnel(target), OutboundProtocol::Direct, 1);
    for len in [64, 1400] {
        for rate in [5_000.0, 40_000.0] {
            println!("tunnel, direct           {}", bulk(at, &count, len, rate));
        }
    }
    direct.end();
    for method in ["aes-128-gcm", "2022-blake3-aes-128-gcm"] {
        let (far, server_at) = run(server(method), OutboundProtocol::Direct, 1);
        let (near, at) = run(tunnel(target), client(method, server_at), 1);
        for len in [64, 1400] {
            for rate in [5_000.0, 40_000.0] {
                println!("{method:24} {}", bulk(at, &count, len, rate));
            }
        }
        println!("near {:?}\nfar {:?}", seen(&near).dropped, seen(&far).dropped);
        near.end();
        far.end();
    }
}

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "takes a minute"]
fn a_million_short_flows_do_not_grow_the_process() {
    let target = echo();
    let (running, at) = run(tunnel(target), OutboundProtocol::Direct, 1);
    let mut bytes = [0; 100];
    let mut after_warm_up = 0;
    for n in 0..1_000_000_u32 {
        let client = socket();
        client.send_to(&n.to_be_bytes(), at).unwrap();
        let len = client.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..len], n.to_be_bytes());
        if n == 100_000 {
            after_warm_up = resident_kib();
        }
    }
    let (status, now) = (seen(&running), resident_kib());
    println!("{status:?}, {after_warm_up} KiB after 100,000 flows, {now} KiB after 1,000,000");
    assert!(status.flows <= 4096 && now < after_warm_up + 4096);
    running.end();
}

/// Memory of the process per flow that is still.
#[test]
#[ignore = "measures; needs 4,000 descriptors"]
fn memory_per_idle_flow() {
    for method in ["aes-128-gcm", "2022-blake3-aes-128-gcm"] {
        let (target, _) = sink();
        let (running, at) = run(server(method), OutboundProtocol::Direct, 1);
        let open = |count: u64| {
            for _ in 0..count {
                let mut peer = sessions::Peer::new(method, target);
                socket().send_to(&peer.seal(b"hello"), at).unwrap();
                thread::sleep(Duration::from_micros(100));
            }
        };
        open(100);
        let first = eventually(&running, |status| status.up == 100).begun;
        let before = resident_kib();
        open(3000);
        // Some of the clients had the same port one after the other.
        let flows = eventually(&running, |status| status.up == 3100).begun - first;
        let fresh = (resident_kib() - before) * 1024 / flows;
        // Memory that flows give up at rest goes to new ones, so that the process does not shrink: it grows less.
        thread::sleep(Duration::from_secs(13));
        let rested = resident_kib();
        open(900);
        let more = eventually(&running, |status| status.up == 4000).begun - first - flows;
        let each = (resident_kib().saturating_sub(rested) * 1024) / more;
        println!("{method}: {fresh} bytes per new flow, {each} more for those after a rest");
        assert!(fresh <= 3072, "{method}: {fresh}");
        running.end();
    }
}

/// Datagrams that arrive when far more is offered than can be relayed, and the place where the others were lost.
#[test]
#[ignore = "measures"]
fn overload_is_counted() {
    let (target, count) = sink();
    let (running, at) = run(tunnel(target), OutboundProtocol::Direct, 1);
    for rate in [50_000.0, 100_000.0, 200_000.0, 400_000.0] {
        let (kernel, got) = (seen(&running), count.load(Ordering::Relaxed));
        println!("tunnel, direct {}", bulk(at, &count, 1400, rate));
        let (status, got) = (seen(&running), count.load(Ordering::Relaxed) - got);
        println!("  arrived {got}, relayed {}, dropped {:?}", status.up - kernel.up, status.dropped);
    }
    running.end();
}

/// Of a flood from one client and a trickle from another, the trickle arrives.
#[test]
fn a_flood_leaves_room_for_others() {
    let target = echo();
    let (running, at) = run(tunnel(target), OutboundProtocol::Direct, 1);
    let over = Arc::new(AtomicBool::new(false));
    let flood = {
        let (over, client) = (over.clone(), socket());
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                client.send_to(&[0; 1000], at).unwrap();
            }
        })
    };
    let client = socket();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // The machine decides how many are lost; without room all are. Each try waits up to 200 ms.
    let (mut sent, mut answered) = (0_u32, 0_u32);
    while answered < 10 && sent < 600 {
        client.send_to(b"x", at).unwrap();
        let mut bytes = [0; 10];
        sent += 1;
        answered += u32::from(client.recv(&mut bytes).is_ok());
    }
    over.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    assert!(answered >= 10, "{answered} of {sent}");
    running.end();
}
