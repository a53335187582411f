//! Whole ways of datagrams: clients and targets are plain sockets, everything between them runs as in the program.

mod marks;
mod measure;
mod overhead;
mod pairs;
mod replays;
mod sessions;
mod snell;
mod users;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use adit_model::{
    Config, Dial, Inbound, InboundProtocol, KeyForm, Local, LocalProtocols, Outbound, OutboundProtocol,
    ReplayPolicy, Reply, Secret, ServerCover, ShadowsocksClient, ShadowsocksKey, ShadowsocksServer,
    ShadowsocksServerKey, SocketOptions, Transports,
};
use adit_proto::wire::Target;

use crate::{DatagramStatus, Running, start};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[expect(clippy::disallowed_methods, reason = "clients and targets of the tests are plain sockets")]
fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

fn addr(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

/// A target that sends everything back, until the test ends.
fn echo() -> SocketAddr {
    let socket = socket();
    let at = addr(&socket);
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..len], from).unwrap();
        }
    });
    at
}

fn config(inbound: InboundProtocol, outbound: OutboundProtocol, cores: usize) -> Config {
    Config {
        cores: Some(cores),
        inbounds: vec![Inbound {
            name: "in".into(),
            listen: vec![LOOPBACK],
            socket: SocketOptions::default(),
            outbound: "out".into(),
            allow_private: true,
            protocol: inbound,
        }],
        outbounds: vec![Outbound { name: "out".into(), dial: Dial::default(), protocol: outbound }],
        ..Config::default()
    }
}

fn run(inbound: InboundProtocol, outbound: OutboundProtocol, cores: usize) -> (Running, SocketAddr) {
    let running = start(&config(inbound, outbound, cores)).unwrap();
    let at = running.addresses()[0].1;
    (running, at)
}

fn tunnel(target: SocketAddr) -> InboundProtocol {
    InboundProtocol::Tunnel { target: target.into(), transports: Transports::Udp }
}

fn local() -> InboundProtocol {
    let accepts = LocalProtocols::Socks;
    InboundProtocol::Local(Local { accepts, users: Vec::new(), reply: Reply::Early, open_to: Vec::new() })
}

fn key(method: &str) -> ShadowsocksKey {
    let method: adit_proto::shadowsocks::ShadowsocksMethod = method.parse().unwrap();
    let text = match method.name() {
        name if name.contains("2022-blake3-aes-128") => "AAECAwQFBgcICQoLDA0ODw==",
        name if name.contains("2022") => "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "none" => "",
        _ => "a password",
    };
    ShadowsocksKey::new(method, Secret::new(text), KeyForm::Password).unwrap()
}

fn server(method: &str) -> InboundProtocol {
    InboundProtocol::Shadowsocks(ShadowsocksServer {
        key: ShadowsocksServerKey::new(key(method)).unwrap(),
        transports: Transports::Udp,
        cover: ServerCover::default(),
        replay: ReplayPolicy::default(),
    })
}

fn client(method: &str, server: SocketAddr) -> OutboundProtocol {
    OutboundProtocol::Shadowsocks(ShadowsocksClient {
        server: server.into(),
        key: key(method),
        transports: Transports::Udp,
        cover: adit_model::ClientCover::default(),
    })
}

fn seen(running: &Running) -> DatagramStatus {
    running.status().inbounds[0].datagrams.clone().unwrap_or_default()
}

/// Asks again until `what` holds: counters are brought up to date at the end of a turn.
fn eventually(running: &Running, what: impl Fn(&DatagramStatus) -> bool) -> DatagramStatus {
    for _ in 0..6000 {
        let status = seen(running);
        if what(&status) {
            return status;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {:?}", seen(running));
}

/// Sends datagrams of all kinds of lengths and expects them back, in order.
fn check_echo(client: &UdpSocket, via: SocketAddr, lens: &[usize]) {
    let mut bytes = vec![0; 65_536];
    for burst in lens.chunks(16) {
        for (n, len) in burst.iter().enumerate() {
            let payload = vec![u8::try_from(n).unwrap(); *len];
            client.send_to(&payload, via).unwrap();
        }
        for (n, len) in burst.iter().enumerate() {
            let (got, from) = client.recv_from(&mut bytes).unwrap();
            assert_eq!((got, from), (*len, via));
            assert!(bytes[..got].iter().all(|byte| usize::from(*byte) == n), "datagram {n} of {len} bytes");
        }
    }
}

fn mixed_lens() -> Vec<usize> {
    let mut lens = vec![0, 1, 1400, 1400, 1400, 64, 64, 1, 0, 9000, 30_000];
    lens.extend((0..200).map(|n| if n % 5 == 0 { 1200 } else { 60 + n % 3 }));
    lens
}
