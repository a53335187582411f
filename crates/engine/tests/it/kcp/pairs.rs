//! adit at both ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroU64;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use adit_model::{Kcp, KcpClient, KcpPace, KcpParity};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::SmuxVersion;
use adit_testkit::unused_addr;

use super::support::{
    Lines, addr, client, client_status, connect, destination, echo, kcp, round_trip, server, server_at,
    server_status, server_with, service, wait_for,
};

/// Both ends with the same settings.
fn exercise(kcp: &Kcp, sizes: &[usize]) {
    let servers = server(kcp, echo());
    let clients = client(KcpClient::new(kcp.clone(), destination(addr(&servers))));
    for &len in sizes {
        round_trip(addr(&clients), len, true);
    }
    clients.end();
    servers.end();
}

#[test]
fn every_crypt() {
    for crypt in KcpMethod::ALL {
        exercise(&kcp(crypt), &[1, 100_000]);
    }
}

#[test]
fn every_shape_of_the_stack() {
    for version in [None, Some(SmuxVersion::V1), Some(SmuxVersion::V2)] {
        for compression in [false, true] {
            let fixed = [(10, 3), (1, 1)].map(|(k, m)| KcpParity::Fixed(Shards::new(k, m).unwrap()));
            for parity in [KcpParity::Off, KcpParity::Measured].into_iter().chain(fixed) {
                let kcp = Kcp { version, compression, parity, ..kcp(KcpMethod::Aes128) };
                exercise(&kcp, &[5, 300_000]);
            }
        }
    }
}

#[test]
fn fixed_windows_pads_and_the_old_congestion_window() {
    let pace = KcpPace { congestion: true, nodelay: true, interval: Duration::from_millis(10), resend: 2 };
    for kcp in [
        Kcp { send_window: Some(32), recv_window: Some(32), ..kcp(KcpMethod::Salsa20) },
        Kcp {
            stream_buffer: Some(4096),
            receive_buffer: Some(65_536),
            frame_len: 512,
            ..kcp(KcpMethod::None)
        },
        Kcp { pads: Some(61), compression: true, ..kcp(KcpMethod::Null) },
        Kcp { pace, ..kcp(KcpMethod::Xor) },
        Kcp { mtu: 200, ack_no_delay: true, ..kcp(KcpMethod::Aes128Gcm) },
    ] {
        exercise(&kcp, &[3, 200_000]);
    }
}

/// Many streams over few sessions, and what both ends count of them.
#[test]
fn many_streams_share_sessions() {
    let kcp = kcp(KcpMethod::Aes128);
    let servers = server(&kcp, echo());
    let settings = KcpClient { sessions: 3, ..KcpClient::new(kcp, destination(addr(&servers))) };
    let clients = client(settings);
    let port = addr(&clients);
    let streams: Vec<_> =
        (0..24_usize).map(|i| thread::spawn(move || round_trip(port, 1 + i * 9_000, i % 2 == 0))).collect();
    streams.into_iter().for_each(|stream| stream.join().unwrap());
    let (ours, theirs) = (client_status(&clients), server_status(&servers));
    assert_eq!((ours.totals.active_opens, ours.totals.sessions), (3, 3));
    assert_eq!((theirs.totals.passive_opens, theirs.totals.most_sessions), (3, 3));
    assert!(ours.totals.sent > 2_400_000 && theirs.totals.sent > 2_400_000, "{ours:?}");
    wait_for("sessions are reported", || server_status(&servers).sessions.len() == 3);
    assert!(server_status(&servers).sessions.iter().all(|session| session.rtt_us < 10_000_000));
    clients.end();
    servers.end();
}

/// A direction ends and the other goes on.
#[test]
fn half_close_passes_both_ways() {
    let count = service(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        stream.write_all(format!("{} bytes", all.len()).as_bytes())
    });
    let kcp = kcp(KcpMethod::Aes256);
    let servers = server(&kcp, count);
    let clients = client(KcpClient::new(kcp, destination(addr(&servers))));
    let mut stream = connect(addr(&clients));
    stream.write_all(&[7; 70_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "70000 bytes");
    clients.end();
    servers.end();
}

/// Streams that nobody reads hold no more than their buffers, and others of the same session go on.
#[test]
fn a_reader_that_stands_still_stops_nobody_else() {
    let mut kcp = kcp(KcpMethod::Aes128);
    kcp.stream_buffer = Some(65_536);
    kcp.receive_buffer = Some(1 << 20);
    let deaf = service(|stream| {
        // Open and unread, until the process ends.
        static HELD: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());
        HELD.lock().unwrap().push(stream);
        Ok(())
    });
    let (good, bad) = (server(&kcp, echo()), server(&kcp, deaf));
    let clients = client(KcpClient::new(kcp.clone(), destination(addr(&good))));
    let stuck = client(KcpClient::new(kcp, destination(addr(&bad))));
    // More than all sockets on the way hold.
    let port = addr(&stuck);
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = connect(port);
            thread::spawn(move || while stream.write(&[1; 65_536]).is_ok() {})
        })
        .collect();
    wait_for("the limit is told", || {
        client_status(&stuck).sessions.iter().any(|session| session.limit == "peer-stream-window")
    });
    let held = client_status(&stuck).sessions.iter().map(|session| session.held).max().unwrap();
    assert!(held < 2 << 20, "{held} bytes held");
    round_trip(addr(&clients), 50_000, true);
    for running in [clients, stuck, good, bad] {
        running.end();
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

/// Peers that open sessions and never read what they ask for, or ask for what is never read, make the process hold no
/// more than it may: they are slow, or refused, and others go on.
#[test]
fn all_sessions_together_hold_no_more_than_the_process_may() {
    const MOST: usize = 16 << 20;
    let kcp = Kcp { stream_buffer: Some(8 << 20), ..kcp(KcpMethod::Xor) };
    // The first bytes of a connection say how it is served.
    let target = service(|mut stream| {
        static HELD: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());
        let mut order = [0];
        stream.read_exact(&mut order)?;
        match order[0] {
            b'e' => loop {
                let mut block = [0; 4096];
                let len = stream.read(&mut block)?;
                if len == 0 {
                    return Ok(());
                }
                stream.write_all(&block[..len])?;
            },
            b'p' => while stream.write(&[2; 65_536]).is_ok() {},
            _ => {}
        }
        HELD.lock().unwrap().push(stream);
        Ok(())
    });
    let server = server_with(&kcp, target, |config| config.limits.carrier_memory = Some(MOST));
    let clients =
        |sessions| client(KcpClient { sessions, ..KcpClient::new(kcp.clone(), destination(addr(&server))) });
    let (stuck, good, many) = (clients(6), clients(1), clients(150));
    let held = || server.status().carrier_memory.unwrap();
    let mut stream = connect(addr(&good));
    stream.write_all(b"e").unwrap();
    wait_for("the session has begun", || server_status(&server).totals.passive_opens > 0);
    // One half is never read from, the other never reads.
    let port = addr(&stuck);
    let mut deaf = Vec::new();
    let mut writers = Vec::new();
    for at in 0..6 {
        let mut stream = connect(port);
        if at % 2 == 0 {
            stream.write_all(b"p").unwrap();
            deaf.push(stream);
        } else {
            stream.write_all(b"s").unwrap();
            writers.push(thread::spawn(move || while stream.write(&[1; 65_536]).is_ok() {}));
        }
    }
    wait_for("memory is short", || held().used > MOST - MOST / 8);
    // More sessions than there is room for, and one that is read.
    let port = addr(&many);
    let crowd: Vec<TcpStream> = (0..150)
        .map(|_| {
            let mut stream = connect(port);
            stream.write_all(b"e").unwrap();
            stream
        })
        .collect();
    wait_for("sessions are refused", || server_status(&server).totals.refused > 0);
    // One that was there before goes on all the same.
    stream.write_all(&[3; 50_000]).unwrap();
    let mut back = vec![0; 50_000];
    stream.read_exact(&mut back).unwrap();
    assert!(back == [3; 50_000]);
    assert!(held().used > MOST / 2 && held().peak <= MOST, "{:?}", held());
    for running in [stuck, many, good, server] {
        running.end();
    }
    drop((deaf, crowd));
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
fn a_limited_rate_is_kept() {
    let mut kcp = kcp(KcpMethod::Aes128);
    kcp.rate_limit = NonZeroU64::new(400_000);
    let servers = server(&kcp, echo());
    let clients = client(KcpClient::new(kcp, destination(addr(&servers))));
    let start = Instant::now();
    round_trip(addr(&clients), 400_000, true);
    // Both directions overlap; a burst is free.
    assert!(start.elapsed() > Duration::from_millis(700), "{:?}", start.elapsed());
    clients.end();
    servers.end();
}

/// Data that was written before a drain arrives, although it waits in the session when the connection is over.
#[test]
fn a_drain_sends_what_waits() {
    let source = service(|mut stream| {
        let mut request = [0];
        stream.read_exact(&mut request)?;
        stream.write_all(&[9; 120_000])
    });
    let mut kcp = kcp(KcpMethod::Aes128);
    kcp.rate_limit = NonZeroU64::new(200_000);
    let servers = server(&kcp, source);
    let clients = client(KcpClient::new(kcp, destination(addr(&servers))));
    let mut stream = connect(addr(&clients));
    stream.write_all(&[1]).unwrap();
    let mut answer = vec![0; 1000];
    stream.read_exact(&mut answer).unwrap();
    let drained = thread::spawn(move || servers.drain());
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 120_000);
    drained.join().unwrap();
    clients.end();
}

/// A server that was started anew knows none of its sessions: new streams work long before signs of life would have
/// been missed.
#[test]
fn a_restarted_server_is_noticed() {
    let lines = Lines::from_here();
    let (listen, kcp) = (unused_addr(), kcp(KcpMethod::Aes128));
    let servers = server_at(listen, &kcp, echo());
    let clients = client(KcpClient::new(kcp.clone(), destination(listen)));
    round_trip(addr(&clients), 6, true);
    // No datagram that was sent before is under way any more.
    thread::sleep(Duration::from_millis(2500));
    round_trip(addr(&clients), 5, true);
    servers.end();
    let servers = server_at(listen, &kcp, echo());
    wait_for("a stream of a new session", || {
        let mut stream = connect(addr(&clients));
        stream.write_all(b"after").is_ok() && stream.read_exact(&mut [0; 5]).is_ok()
    });
    lines.wait_for("the server was started anew");
    clients.end();
    servers.end();
}

/// Both logs say what may be wrong, and nothing says it on the wire.
#[test]
fn a_wrong_key_is_told_on_both_ends() {
    let lines = Lines::from_here();
    let servers = server(&kcp(KcpMethod::Aes128), echo());
    let wrong = Kcp { key: adit_model::Secret::new("another"), ..kcp(KcpMethod::Aes128) };
    let clients = client(KcpClient::new(wrong, destination(addr(&servers))));
    let mut stream = connect(addr(&clients));
    stream.write_all(b"hello").unwrap();
    lines.wait_for("datagrams do not open: key or crypt differ");
    lines.wait_for("the server does not answer");
    let counted = server_status(&servers);
    assert!(counted.totals.unopened > 0 && counted.totals.out_datagrams == 0, "{counted:?}");
    clients.end();
    servers.end();
}

#[test]
fn compression_or_version_that_differs_is_told() {
    let lines = Lines::from_here();
    for (theirs, ours) in [
        (kcp(KcpMethod::Aes128), Kcp { compression: true, ..kcp(KcpMethod::Aes128) }),
        (Kcp { compression: true, ..kcp(KcpMethod::Aes128) }, kcp(KcpMethod::Aes128)),
        (Kcp { version: Some(SmuxVersion::V1), ..kcp(KcpMethod::Aes128) }, kcp(KcpMethod::Aes128)),
    ] {
        let servers = server(&theirs, echo());
        let clients = client(KcpClient::new(ours, destination(addr(&servers))));
        let mut stream = connect(addr(&clients));
        stream.write_all(b"hello").unwrap();
        wait_for("the session is over", || {
            let totals = server_status(&servers).totals;
            totals.passive_opens > 0 && totals.sessions == 0
        });
        clients.end();
        servers.end();
    }
    lines.wait_for("compression, smux version or QPP differ");
}

/// Sessions that have served their time make room for fresh ones, and keep their streams.
#[test]
fn expired_sessions_are_replaced() {
    let kcp = kcp(KcpMethod::Aes128);
    let servers = server(&kcp, echo());
    let settings = KcpClient {
        expire: Some(Duration::from_millis(50)),
        ..KcpClient::new(kcp, destination(addr(&servers)))
    };
    let clients = client(settings);
    let mut first = connect(addr(&clients));
    first.write_all(b"a").unwrap();
    first.read_exact(&mut [0]).unwrap();
    wait_for("a second session", || {
        round_trip(addr(&clients), 10, true);
        client_status(&clients).totals.active_opens > 1
    });
    first.write_all(b"b").unwrap();
    first.read_exact(&mut [0]).unwrap();
    drop(first);
    wait_for("the first session is over", || client_status(&clients).totals.sessions <= 2);
    clients.end();
    servers.end();
}
