//! Nothing is allocated for datagrams that pass, in streams, raw, or of Shadowsocks users with a key each.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]
#![allow(clippy::disallowed_methods, reason = "clients and targets of this test are plain ones")]
#![allow(dead_code, reason = "the helpers serve several tests")]

#[path = "it/common/mod.rs"]
mod common;

use std::net::UdpSocket;
use std::time::Duration;

use adit_model::{
    ClientCover, HalfClose, InboundProtocol, KeyForm, OutboundProtocol, Quic, ReplayPolicy, Secret,
    ServerCover, ShadowsocksClient, ShadowsocksKey, ShadowsocksServer, ShadowsocksServerKey, Transports,
    User,
};
use adit_sys::CountingAlloc;
use adit_sys::alloc::total_allocations;
use adit_testkit::unused_addr;
use common::{Proxy, Setup, datagram_echo, loopback, within};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

const WARM_UP: usize = 2_000;
const MEASURED: usize = 20_000;

/// Round trips in bursts of eight; what the kernel loses is not waited for.
fn round_trips(client: &UdpSocket, count: usize) -> usize {
    let (payload, mut bytes, mut came) = ([0x43; 1200], [0; 2000], 0);
    for _ in 0..count / 8 {
        for _ in 0..8 {
            client.send(&payload).unwrap();
        }
        for _ in 0..8 {
            came += usize::from(client.recv(&mut bytes).is_ok());
        }
    }
    came
}

fn check(quic: Quic) {
    let setup = Setup { quic_port: true, quic, half_close: HalfClose::Auto, ..Setup::default() };
    let config = setup.config(setup.snell_in(), vec![unused_addr()], OutboundProtocol::Direct);
    let server = Proxy::start(&config);
    let client = setup.snell_out(server.addr);
    let tunnel =
        InboundProtocol::Tunnel { target: datagram_echo(loopback()).into(), transports: Transports::Udp };
    let near = Proxy::start(&setup.config(tunnel, vec![loopback()], client));
    let client = UdpSocket::bind(loopback()).unwrap();
    client.connect(near.addr).unwrap();
    client.set_read_timeout(Some(common::IO_LIMIT)).unwrap();
    // A first packet of QUIC, which decides how the flow travels.
    let mut initial = vec![0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e];
    initial.resize(1200, 7);
    client.send(&initial).unwrap();
    client.recv(&mut [0; 2000]).unwrap();
    let streams = server.running().status().inbounds[0].accepted;
    assert_eq!(streams == 0, quic == Quic::On, "{streams} streams");
    count(&client, &format!("{quic:?}"));
}

/// Round trips cost next to no allocation.
fn count(client: &UdpSocket, what: &str) {
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    round_trips(client, WARM_UP);
    let before = total_allocations();
    let came = round_trips(client, MEASURED);
    let calls = total_allocations() - before;
    assert!(came > MEASURED / 2, "{came} of {MEASURED} came back");
    // The event loops allocate a little every second, and a busy machine takes its time.
    assert!(calls < 1_000, "{what}: {calls} allocations for {came} round trips");
}

/// Users with a key each, whose datagrams tell by their key alone whose they are.
fn check_users() {
    let (setup, method) = (Setup::default(), "chacha20-ietf-poly1305".parse().unwrap());
    let users = ["ann", "bob"].map(|name| User::from((name.into(), Secret::new(format!("key of {name}")))));
    let server = InboundProtocol::Shadowsocks(ShadowsocksServer {
        key: ShadowsocksServerKey::each(method, users.into()).unwrap(),
        transports: Transports::Both,
        cover: ServerCover::default(),
        replay: ReplayPolicy::Refuse,
    });
    let server = Proxy::start(&setup.config(server, vec![loopback()], OutboundProtocol::Direct));
    let client = OutboundProtocol::Shadowsocks(ShadowsocksClient {
        server: server.addr.into(),
        key: ShadowsocksKey::new(method, Secret::new("key of bob"), KeyForm::Password).unwrap(),
        transports: Transports::Both,
        cover: ClientCover::default(),
    });
    let tunnel =
        InboundProtocol::Tunnel { target: datagram_echo(loopback()).into(), transports: Transports::Udp };
    let near = Proxy::start(&setup.config(tunnel, vec![loopback()], client));
    let client = UdpSocket::bind(loopback()).unwrap();
    client.connect(near.addr).unwrap();
    count(&client, "users with a key each");
}

/// One test alone in this file: others would be counted as well.
#[test]
fn datagrams_pass_without_allocations() {
    within(110, || {
        check(Quic::On);
        check(Quic::Off);
        check_users();
    });
}
