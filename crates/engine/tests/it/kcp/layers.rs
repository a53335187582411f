//! Protocols of adit over streams of KCP in the place of TCP.

use adit_engine::start;
use adit_model::{
    ClientCover, Dial, HalfClose, InboundProtocol, KcpClient, KeyForm, ObfsClient, ObfsServer,
    OutboundProtocol, Quic, ReplayPolicy, Secret, ServerCover, ShadowsocksClient, ShadowsocksKey,
    ShadowsocksServer, ShadowsocksServerKey, SnellClient, SnellServer, SnellVersion, SnellVersions,
    SocketOptions, Transports,
};
use adit_proto::kcp::crypt;
use adit_proto::shadowsocks::ShadowsocksMethod;
use adit_proto::wire::Target;

use super::support::{addr, client_status, config, destination, echo, kcp, round_trip, tunnel};

/// A pair that speaks a protocol over KCP, from a tunnel's port to an echo.
fn exercise(served: InboundProtocol, dialled: impl FnOnce(Target) -> OutboundProtocol) {
    let kcp = kcp(crypt::KcpMethod::Aes128Gcm);
    let socket = SocketOptions { carrier: Some(Box::new(kcp.clone())), ..SocketOptions::default() };
    let servers = start(&config(served, socket, OutboundProtocol::Direct, Dial::default())).unwrap();
    let server = destination(addr(&servers));
    let carrier = Some(Box::new(KcpClient::new(kcp, server.clone())));
    let dial = Dial { carrier, ..Dial::default() };
    let local = tunnel(echo());
    let clients = start(&config(local, SocketOptions::default(), dialled(server), dial)).unwrap();
    for len in [1, 70_000, 1_000_000] {
        round_trip(addr(&clients), len, true);
    }
    assert!(client_status(&clients).totals.sent > 1_000_000);
    clients.end();
    servers.end();
}

#[test]
fn snell() {
    let psk = || Secret::new("a key above the carrier's");
    let served = SnellServer {
        psk: psk().into(),
        versions: SnellVersions::default(),
        obfs: ObfsServer::Off,
        udp: false,
        quic: false,
    };
    exercise(InboundProtocol::Snell(served), |server| {
        OutboundProtocol::Snell(SnellClient {
            server,
            psk: psk(),
            client_id: None,
            version: SnellVersion::default(),
            obfs: ObfsClient::Off,
            reuse: true,
            half_close: HalfClose::On,
            udp: false,
            quic: Quic::Off,
        })
    });
}

#[test]
fn shadowsocks() {
    let key = || {
        let method: ShadowsocksMethod = "aes-128-gcm".parse().unwrap();
        ShadowsocksKey::new(method, Secret::new("a key above the carrier's"), KeyForm::Password).unwrap()
    };
    let served = ShadowsocksServer {
        key: ShadowsocksServerKey::new(key()).unwrap(),
        transports: Transports::Tcp,
        cover: ServerCover::default(),
        replay: ReplayPolicy::Refuse,
    };
    exercise(InboundProtocol::Shadowsocks(served), |server| {
        OutboundProtocol::Shadowsocks(ShadowsocksClient {
            server,
            key: key(),
            transports: Transports::Tcp,
            cover: ClientCover::default(),
        })
    });
}
