//! Nothing is allocated for datagrams that pass, in streams or raw.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]
#![allow(clippy::disallowed_methods, reason = "clients and targets of this test are plain ones")]
#![allow(dead_code, reason = "the helpers serve several tests")]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use adit_config::model::{HalfClose, InboundProtocol, OutboundProtocol, Quic, Transports};
use adit_sys::CountingAlloc;
use adit_sys::alloc::total_allocations;
use adit_testkit::unused_addr;
use common::{Proxy, Setup, loopback, within};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

const WARM_UP: usize = 2_000;
const MEASURED: usize = 20_000;

fn echo() -> SocketAddr {
    let socket = UdpSocket::bind(loopback()).unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..len], from).unwrap();
        }
    });
    at
}

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
    let tunnel = InboundProtocol::Tunnel { target: echo().into(), transports: Transports::Udp };
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
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    round_trips(&client, WARM_UP);
    let before = total_allocations();
    let came = round_trips(&client, MEASURED);
    let calls = total_allocations() - before;
    assert!(came > MEASURED / 2, "{came} of {MEASURED} came back");
    // The event loops allocate a little every second, and a busy machine takes its time.
    assert!(calls < 1_000, "{quic:?}: {calls} allocations for {came} round trips");
}

/// One test alone in this file: others would be counted as well.
#[test]
fn datagrams_pass_without_allocations() {
    within(110, || {
        check(Quic::On);
        check(Quic::Off);
    });
}
