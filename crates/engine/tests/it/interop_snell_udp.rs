//! Datagrams against real peers, over loopback: sing-box's Snell 5 server and Snell 4 client, and OpenSnell's server,
//! which takes QUIC too.
//!
//! The programs are `$ADIT_SING_BOX` (or `sing-box` in the path) and `$ADIT_SNELL_SERVER`; where there is none these
//! tests say so and pass.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use adit_model::{Quic, SnellVersion};
use adit_proto::socks;
use adit_proto::wire::Target;
use adit_testkit::peer::{Peer, program_of, sing_box};
use adit_testkit::unused_addr;

use crate::common::{PSK, Proxy, Setup, connect, datagram_echo, loopback, within};
use crate::sing_box::{SingBox, fields};

fn open_snell_server(program: &OsString) -> (Peer, SocketAddr) {
    let at = unused_addr();
    let config = format!("[snell-server]\nlisten = {at}\npsk = {PSK}\nudp = true\nquic = true\n");
    (Peer::with_config(program, &["-c"], &config, at), at)
}

fn adit_client(server: SocketAddr, quic: Quic) -> Proxy {
    let setup = Setup { quic, ..Setup::default() };
    Proxy::start(&setup.config(setup.local(), vec![unused_addr()], setup.snell_out(server)))
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(loopback()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

fn associate(at: SocketAddr) -> (TcpStream, SocketAddr) {
    let mut stream = connect(at);
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply[..2]).unwrap();
    stream.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], [5, 0, 0, 1]);
    let ip = Ipv4Addr::new(reply[4], reply[5], reply[6], reply[7]);
    (stream, SocketAddr::from((ip, u16::from_be_bytes([reply[8], reply[9]]))))
}

/// Datagrams of many lengths to several targets, by address and by name, and an answer from another address.
fn check(local: SocketAddr, lens: &[usize]) {
    let (_stream, port) = associate(local);
    let client = socket();
    let mut bytes = vec![0; 65_536];
    let targets = [datagram_echo(loopback()), datagram_echo(loopback())];
    for (n, len) in lens.iter().enumerate() {
        let target = targets[n % 2];
        let payload = vec![u8::try_from(n % 256).unwrap(); *len];
        client.send_to(&datagram(&target.into(), &payload), port).unwrap();
        let got = client.recv(&mut bytes).unwrap();
        let (source, start) = socks::parse_datagram(&bytes[..got]).unwrap();
        assert_eq!((source, got - start), (target.into(), *len));
        assert!(bytes[start..got] == payload, "{len}");
    }
    let name = Target::new(b"localhost", targets[0].port()).unwrap();
    client.send_to(&datagram(&name, b"by name"), port).unwrap();
    let got = client.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[got - 7..got], b"by name");
    let (target, other) = (socket(), socket());
    client.send_to(&datagram(&target.local_addr().unwrap().into(), b"knock"), port).unwrap();
    let (_, outside) = target.recv_from(&mut bytes).unwrap();
    other.send_to(b"hello", outside).unwrap();
    let got = client.recv(&mut bytes).unwrap();
    let (source, start) = socks::parse_datagram(&bytes[..got]).unwrap();
    assert_eq!((source, &bytes[start..got]), (other.local_addr().unwrap().into(), &b"hello"[..]));
}

fn datagram(target: &Target, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; socks::header_len(target)];
    socks::emit_header(target, &mut bytes);
    bytes.extend(payload);
    bytes
}

/// All lengths that fit a frame.
fn lens() -> Vec<usize> {
    [0, 9000, 16_374].into_iter().chain(modest_lens()).collect()
}

/// sing-box 1.14 cuts answers off behind 1402 bytes and passes no empty ones on, between two of its own as well.
fn modest_lens() -> Vec<usize> {
    (0..200).map(|n| 1 + n * 7).collect()
}

#[test]
#[ignore = "needs sing-box"]
fn interop_adit_client_sing_box_server() {
    let Some(program) = sing_box() else { return };
    within(100, move || {
        let server = SingBox::server(&program, &fields(SnellVersion::V5, false));
        check(adit_client(server.addr, Quic::Off).addr, &modest_lens());
    });
}

#[test]
#[ignore = "needs sing-box"]
fn interop_sing_box_client_adit_server() {
    let Some(program) = sing_box() else { return };
    within(100, move || {
        let server = Setup::default().server();
        let client = SingBox::client(&program, server.addr, &fields(SnellVersion::V5, true), false);
        check(client.addr, &modest_lens());
    });
}

#[test]
#[ignore = "needs OpenSnell"]
fn interop_adit_client_open_snell_server() {
    let Some(program) = program_of("ADIT_SNELL_SERVER") else { return };
    within(100, move || {
        let (_peer, at) = open_snell_server(&program);
        check(adit_client(at, Quic::Off).addr, &lens());
    });
}

#[test]
#[ignore = "needs OpenSnell"]
fn interop_quic_adit_client_open_snell_server() {
    let Some(program) = program_of("ADIT_SNELL_SERVER") else { return };
    within(100, move || {
        let (_peer, at) = open_snell_server(&program);
        let client = adit_client(at, Quic::On);
        let (_stream, port) = associate(client.addr);
        let (app, target) = (socket(), datagram_echo(loopback()));
        let mut initial = vec![0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e];
        initial.resize(1200, 7);
        let mut bytes = vec![0; 2000];
        for payload in [&initial[..], b"\x43short header", &initial, b""] {
            app.send_to(&datagram(&target.into(), payload), port).unwrap();
            let got = app.recv(&mut bytes).unwrap();
            let (source, start) = socks::parse_datagram(&bytes[..got]).unwrap();
            assert_eq!((source, &bytes[start..got]), (target.into(), payload));
        }
        assert_eq!(client.out().dialled, 0, "no stream was needed");
    });
}
