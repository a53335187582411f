//! kcptun as Debian has it, at either end of a path that loses packets: with its parity, which repairs here, and without.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use adit_model::{Kcp, KcpParity};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::SmuxVersion;

use super::support::{
    addr, client_of_kcptun, client_status, echo, has, kcp, kcptun_client, kcptun_server, round_trip, server,
    server_status,
};

/// One way.
const DELAY: Duration = Duration::from_millis(20);
/// One packet in so many is lost.
const LOSE: u64 = 33;
/// Time within which every repair shows.
const LIMIT: Duration = Duration::from_secs(60);

/// Leads one client's datagrams to `server` and back, late and with losses, until the process ends.
fn path(server: SocketAddr) -> SocketAddr {
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        socket
    };
    let (near, far) = (socket(), socket());
    let addr = near.local_addr().unwrap();
    thread::spawn(move || {
        let mut on_the_way: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
        let mut client = None;
        let mut number = 1_u64;
        let mut buffer = [0; 2048];
        loop {
            for (queue, socket) in on_the_way.iter_mut().zip([&near, &far]) {
                while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    if from != server {
                        client = Some(from);
                    }
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    if !(number >> 33).is_multiple_of(LOSE) {
                        queue.push_back((Instant::now() + DELAY, buffer[..len].to_vec()));
                    }
                    if queue.front().is_some_and(|(at, _)| *at <= Instant::now()) {
                        break;
                    }
                }
            }
            for (queue, (socket, to)) in on_the_way.iter_mut().zip([(&far, Some(server)), (&near, client)]) {
                while let Some(to) = to
                    && queue.front().is_some_and(|(at, _)| *at <= Instant::now())
                    && let Some((_, datagram)) = queue.pop_front()
                {
                    drop(socket.send_to(&datagram, to));
                }
            }
        }
    });
    addr
}

/// kcptun's two kinds of receivers, and both versions of smux.
fn shapes() -> impl Iterator<Item = (SmuxVersion, bool)> {
    [SmuxVersion::V1, SmuxVersion::V2].into_iter().flat_map(|version| [(version, true), (version, false)])
}

fn measured(version: SmuxVersion) -> Kcp {
    Kcp { version: Some(version), parity: KcpParity::Measured, ..kcp(KcpMethod::Aes128) }
}

/// Options for kcptun: its usual parity, or none.
fn theirs(version: SmuxVersion, parity: bool) -> Kcp {
    let parity = if parity { KcpParity::Fixed(Shards::USUAL) } else { KcpParity::Off };
    Kcp { parity, ..measured(version) }
}

/// Sends text there and back, and goes on until `repaired` says that something has been computed from parity.
fn exercise(port: SocketAddr, parity: bool, repaired: impl Fn() -> u64) {
    let until = Instant::now() + LIMIT;
    round_trip(port, 300_000, false);
    while parity && repaired() == 0 {
        assert!(Instant::now() < until, "nothing has been repaired");
        round_trip(port, 300_000, false);
    }
}

#[test]
#[ignore = "needs kcptun-client"]
fn their_client_our_server_with_losses() {
    if !has("kcptun-client") {
        return;
    }
    let echo = echo();
    for (version, parity) in shapes() {
        println!("their client: {version:?}, parity {parity}");
        let servers = server(&measured(version), echo);
        let (_peer, local) = kcptun_client(path(addr(&servers)), &theirs(version, parity));
        exercise(local, parity, || server_status(&servers).totals.recovered);
        servers.end();
    }
}

#[test]
#[ignore = "needs kcptun-server"]
fn our_client_their_server_with_losses() {
    if !has("kcptun-server") {
        return;
    }
    let echo = echo();
    for (version, parity) in shapes() {
        println!("our client: {version:?}, parity {parity}");
        let (_peer, listen) = kcptun_server(echo, &theirs(version, parity));
        let clients = client_of_kcptun(&measured(version), path(listen));
        exercise(addr(&clients), parity, || client_status(&clients).totals.recovered);
        clients.end();
    }
}
