//! Prints what each cipher costs; run with
//! `cargo test --release -p adit-proto --test it cipher_speed -- --ignored --nocapture`;
//! the variable `CIPHER_SPEED` picks methods by a part of their names.

use std::time::{Duration, Instant};

use adit_proto::buf::RecvBuf;
use adit_proto::shadowsocks::{
    NoFilter, ServerKey, ShadowsocksAcceptor, ShadowsocksClientStream, ShadowsocksMethod, client_packets,
};
use adit_proto::wire::{Layer, Opened};

use crate::shadowsocks::streams::key;
use crate::shadowsocks::support::{NOW_S, Script, accept_cut, block_for, clock, now, seal_all};

const PAYLOAD: usize = 16 * 1024 - 1;

/// Nanoseconds per call of `step`, the fastest of several rounds.
#[expect(clippy::disallowed_methods, reason = "this measures time")]
fn measure(mut step: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(30) {
            for _ in 0..4 {
                step();
            }
            count += 4;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    }
    best
}

/// One frame of 16 KiB sealed and opened, nanoseconds per KiB each.
fn stream_cost(method: ShadowsocksMethod) -> (f64, f64) {
    let key = key(method);
    let mut client = ShadowsocksClientStream::new(
        &key,
        &"a:1".parse().expect("a target"),
        clock(NOW_S),
        &mut Script::seeded(1),
    );
    seal_all(&mut client, &[b"x"]);
    let (mut block, range) = block_for(client.plan(now()).rest, &[7; PAYLOAD]);
    let seal = measure(|| {
        client.seal(&mut block, range.clone(), now()).expect("sealed");
    });

    // One long response, opened frame by frame; sealed anew when it has run out.
    let mut client = ShadowsocksClientStream::new(
        &key,
        &"a:1".parse().expect("a target"),
        clock(NOW_S),
        &mut Script::seeded(1),
    );
    let request = seal_all(&mut client, &[b"x"]);
    let acceptor = ShadowsocksAcceptor::new(&ServerKey::new(key));
    let accepted = accept_cut(acceptor, &request, &[], NOW_S, &mut NoFilter, &mut Script::seeded(2));
    let mut server = accepted.expect("accepted").2;
    let frames = 64;
    let first = seal_all(&mut server, &[b"x"]);
    let mut wire = RecvBuf::with_len(PAYLOAD + 200);
    wire.extend(&first);
    while let Opened::Payload(_) = client.open(&mut wire, now()).expect("opened") {}
    let mut best = f64::INFINITY;
    for _ in 0..12 {
        let sealed: Vec<Vec<u8>> = (0..frames).map(|_| seal_all(&mut server, &[&[7; PAYLOAD]])).collect();
        let mut spent = Duration::ZERO;
        for frame in &sealed {
            wire.reset();
            wire.extend(frame);
            #[expect(clippy::disallowed_methods, reason = "this measures time")]
            let start = Instant::now();
            let opened = client.open(&mut wire, now()).expect("opened");
            spent += start.elapsed();
            assert!(matches!(opened, Opened::Payload(range) if range.len() == PAYLOAD));
        }
        best = best.min(spent.as_secs_f64() * 1e9 / f64::from(frames));
    }
    (seal / 16.0, best / 16.0)
}

/// One datagram of 1,200 bytes sealed, in nanoseconds.
fn datagram_cost(method: ShadowsocksMethod) -> f64 {
    let target = "203.0.113.9:443".parse().expect("a target");
    let mut codec = client_packets(&key(method), &mut Script::seeded(1));
    let (mut block, range) = block_for(codec.room(&target), &[7; 1_200]);
    let mut rng = Script::seeded(2);
    measure(|| {
        codec.seal(&mut block, range.clone(), &target, NOW_S, &mut rng).expect("sealed");
    })
}

/// A whole handshake without sockets: request sealed and accepted, response sealed and opened, in nanoseconds.
fn connection_cost(method: ShadowsocksMethod) -> f64 {
    let key = key(method);
    let server_key = ServerKey::new(key.clone());
    let target = "203.0.113.9:443".parse().expect("a target");
    let mut rng = Script::seeded(1);
    measure(|| {
        let mut client = ShadowsocksClientStream::new(&key, &target, clock(NOW_S), &mut rng);
        let request = seal_all(&mut client, &[b"hello"]);
        let mut wire = RecvBuf::from_bytes(&request);
        let mut acceptor = ShadowsocksAcceptor::new(&server_key);
        acceptor.accept(&mut wire, NOW_S, &mut NoFilter).expect("accepted");
        let mut server = acceptor.into_server(clock(NOW_S), &mut rng);
        let mut wire = RecvBuf::from_bytes(&seal_all(&mut server, &[b"world"]));
        client.open(&mut wire, now()).expect("opened");
    })
}

#[test]
#[ignore = "measures, takes a minute; meant for release builds"]
fn cipher_speed() {
    println!(
        "method                           seal ns/KiB  open ns/KiB  % of aes-256-ctr  datagram ns  connection ns"
    );
    let reference = stream_cost("aes-256-ctr".parse().unwrap());
    let only = std::env::var("CIPHER_SPEED").unwrap_or_default();
    for method in ShadowsocksMethod::all().filter(|method| method.name().contains(&only)) {
        let (seal, open) = stream_cost(method);
        let percent = 100.0 * (reference.0 + reference.1) / (seal + open);
        println!(
            "{:32} {seal:>11.1}  {open:>11.1}  {percent:>16.0}  {:>11.0}  {:>13.0}",
            method.name(),
            datagram_cost(method),
            connection_cost(method),
        );
    }
}

#[test]
#[ignore = "prints sizes for the memory budget of an idle connection"]
fn sizes() {
    println!(
        "Server {} Client {} Acceptor {} bytes, boxes not counted",
        size_of::<adit_proto::shadowsocks::ShadowsocksServerStream>(),
        size_of::<ShadowsocksClientStream>(),
        size_of::<ShadowsocksAcceptor>()
    );
}
