//! Rates of clients: the bytes arrive, and together they are no faster than they may be.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_engine::Running;
use adit_model::{HalfClose, InboundProtocol, ObfsServer, OutboundProtocol, Pace, Secret, SnellServer};
use adit_testkit::unused_addr;

use crate::common::{PSK, Proxy, Setup, Target, exchange, within};

fn server(pace: Option<Pace>) -> Proxy {
    let setup = Setup { cores: 2, ..Setup::default() };
    let snell = SnellServer {
        psk: Secret::new(PSK).into(),
        versions: setup.versions,
        obfs: ObfsServer::Off,
        udp: true,
        quic: false,
    };
    let mut config =
        setup.config(InboundProtocol::Snell(snell), vec![unused_addr()], OutboundProtocol::Direct);
    config.inbounds[0].socket.pace = pace;
    Proxy::start(&config)
}

fn client(server: &Proxy, pace: Option<Pace>) -> Proxy {
    let setup = Setup { half_close: HalfClose::On, ..Setup::default() };
    let mut config = setup.config(setup.local(), vec![unused_addr()], setup.snell_out(server.addr));
    config.outbounds[0].dial.pace = pace;
    Proxy::start(&config)
}

fn has_module() -> bool {
    let names = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    names.is_ok_and(|names| names.split_whitespace().any(|name| name == "brutal"))
}

#[test]
fn paced_connections_move_their_bytes() {
    within(100, || {
        for brutal in [None, Some(Pace::GAIN)] {
            let pace = Some(Pace { mbps: 800, brutal });
            let server = server(pace);
            let (client, target) = (client(&server, pace), Target::echo());
            for seed in 0..3 {
                exchange(&client.tunnel(target.addr), (seed, 1 << 20), (seed, 1 << 20));
            }
            let warns = |running: &Running| {
                running
                    .warnings()
                    .iter()
                    .filter(|warning| warning.contains("brutal is not to be had"))
                    .count()
            };
            let expected = usize::from(brutal.is_some() && !has_module());
            assert_eq!([warns(server.running()), warns(client.running())], [expected; 2]);
        }
    });
}

/// Bytes per second by which `moved` grows over some seconds after the first.
fn rate(moved: &AtomicU64) -> f64 {
    // The beginning is not measured.
    thread::sleep(Duration::from_secs(2));
    let (from, since) = (moved.load(Ordering::Relaxed), Instant::now());
    // The time over which it is measured.
    thread::sleep(Duration::from_secs(5));
    (moved.load(Ordering::Relaxed) - from) as f64 / since.elapsed().as_secs_f64()
}

/// Reads until the end and counts.
fn drink(mut stream: &TcpStream, moved: &AtomicU64) {
    let mut block = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = stream.read(&mut block) {
        moved.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// Writes until it is refused.
fn pour(mut stream: &TcpStream) {
    let block = vec![7; 64 * 1024];
    while stream.write_all(&block).is_ok() {}
}

/// Data of targets arrives at the rate, over any number of connections, on any number of cores; and so does the data
/// that they receive. Rates are of payload; frames and headers take some per cent more.
#[test]
#[ignore = "measures for more than a minute"]
fn connections_of_one_client_share_its_rate() {
    within(200, || {
        for (mbps, count) in [(40, 1), (40, 8), (400, 1), (400, 8), (10, 4)] {
            let pace = Pace { mbps, brutal: None };
            let moved = [Arc::new(AtomicU64::new(0)), Arc::default()];
            let (down, up) = (moved[0].clone(), moved[1].clone());
            let (source, sink) =
                (Target::new(|stream| pour(&stream)), Target::new(move |stream| drink(&stream, &up)));
            let server = server(Some(pace));
            let client = client(&server, Some(pace));
            let mut parts = Vec::new();
            for (target, moved) in [(&source, &moved[0]), (&sink, &moved[1])] {
                let streams: Vec<TcpStream> = (0..count).map(|_| client.tunnel(target.addr)).collect();
                let rate = thread::scope(|scope| {
                    for stream in &streams {
                        let down = &down;
                        let is_down = target.addr == source.addr;
                        scope.spawn(move || if is_down { drink(stream, down) } else { pour(stream) });
                    }
                    let rate = rate(moved);
                    streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                    rate
                });
                parts.push(rate / pace.bytes_per_second() as f64);
            }
            println!("{mbps} Mbit/s over {count}: down {:.2} of the rate, up {:.2}", parts[0], parts[1]);
            for part in parts {
                assert!((0.4..1.4).contains(&part), "{mbps} Mbit/s over {count}: {part:.2} of the rate");
            }
        }
    });
}
