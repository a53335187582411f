//! Servers, clients and targets on loopback.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use adit_engine::{KcpStatus, Running, start};
use adit_model::{
    Config, Dial, Inbound, InboundProtocol, Kcp, KcpClient, KcpParity, Limits, Outbound, OutboundProtocol,
    Secret, SocketOptions, Transports,
};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::smux::SmuxVersion;
use adit_proto::wire::Target;
use adit_testkit::peer::Peer;
pub(crate) use adit_testkit::peer::has;
use adit_testkit::unused_addr;
pub(crate) use adit_testkit::{Lines, wait_for};

pub(crate) use crate::common::connect;
use crate::common::{inbound, outbound};

pub(crate) const KEY: &str = "loopback key";

pub(crate) fn kcp(crypt: KcpMethod) -> Kcp {
    Kcp::new(Secret::new(KEY), crypt)
}

pub(crate) fn destination(addr: SocketAddr) -> Target {
    Target::new(addr.ip().to_string().as_bytes(), addr.port()).unwrap()
}

pub(crate) fn tunnel(target: SocketAddr) -> InboundProtocol {
    InboundProtocol::Tunnel { target: destination(target), transports: Transports::Tcp }
}

pub(crate) fn config(
    inbound: InboundProtocol,
    socket: SocketOptions,
    outbound: OutboundProtocol,
    dial: Dial,
) -> Config {
    Config {
        cores: Some(1),
        limits: Limits {
            drain: Duration::from_secs(5),
            unauthenticated_per_source: Some(4096),
            ..Limits::default()
        },
        inbounds: vec![Inbound { socket, ..self::inbound("in", "out", inbound) }],
        outbounds: vec![Outbound { dial, ..self::outbound("out", outbound) }],
        ..Config::default()
    }
}

/// Takes sessions and leads each stream to `target`.
pub(crate) fn server(kcp: &Kcp, target: SocketAddr) -> Running {
    server_at("127.0.0.1:0".parse().unwrap(), kcp, target)
}

/// The same at an address of the caller's.
pub(crate) fn server_at(listen: SocketAddr, kcp: &Kcp, target: SocketAddr) -> Running {
    server_with(kcp, target, |config| config.inbounds[0].listen = vec![listen])
}

/// The same with a configuration that differs.
pub(crate) fn server_with(kcp: &Kcp, target: SocketAddr, change: impl FnOnce(&mut Config)) -> Running {
    let socket = SocketOptions { carrier: Some(Box::new(kcp.clone())), ..SocketOptions::default() };
    let mut config = config(tunnel(target), socket, OutboundProtocol::Direct, Dial::default());
    change(&mut config);
    start(&config).unwrap()
}

/// Makes sessions with `server` and leads connections there.
pub(crate) fn client(client: KcpClient) -> Running {
    let nowhere = "127.0.0.1:9".parse().unwrap();
    let dial = Dial { carrier: Some(Box::new(client)), ..Dial::default() };
    start(&config(tunnel(nowhere), SocketOptions::default(), OutboundProtocol::Direct, dial)).unwrap()
}

pub(crate) fn addr(running: &Running) -> SocketAddr {
    running.addresses()[0].1
}

pub(crate) fn server_status(running: &Running) -> KcpStatus {
    running.status().inbounds[0].carrier.clone().unwrap()
}

pub(crate) fn client_status(running: &Running) -> KcpStatus {
    running.status().outbounds[0].carrier.clone().unwrap()
}

/// A server for the proxies to reach: a thread per connection, until the process ends.
pub(crate) fn service(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    addr
}

/// Sends back what comes.
pub(crate) fn echo() -> SocketAddr {
    service(|stream| {
        crate::common::echo(stream);
        Ok(())
    })
}

/// Bytes without a short period; the second half compresses well.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = |i: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if i < len / 2 { state.to_be_bytes()[0] } else { b'a' }
    };
    (0..len).map(&mut next).collect()
}

/// Sends `len` bytes through a port that leads to an echo and expects them back; with `ends` the end too.
pub(crate) fn round_trip(port: SocketAddr, len: usize, ends: bool) {
    let mut stream = connect(port);
    let data = pattern(len);
    let (mut writer, sent) = (stream.try_clone().unwrap(), data.clone());
    let write = thread::spawn(move || {
        writer.write_all(&sent)?;
        if ends { writer.shutdown(Shutdown::Write) } else { Ok(()) }
    });
    let mut back = vec![0; len];
    stream.read_exact(&mut back).unwrap_or_else(|error| panic!("{len} bytes through {port}: {error}"));
    write.join().unwrap().unwrap();
    assert!(back == data, "{len} bytes through {port} came back changed");
    if ends {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "an orderly end");
    }
}

/// Debian's client of the server at `to`, and where it listens.
pub(crate) fn kcptun_client(to: SocketAddr, kcp: &Kcp) -> (Peer, SocketAddr) {
    let listen = unused_addr();
    let mut command = Command::new("kcptun-client");
    command.args(["-l", &listen.to_string(), "-r", &to.to_string()]);
    flags(&mut command, kcp);
    (Peer::start(&mut command, listen), listen)
}

/// Debian's server, which leads each stream to `target`, and where it listens.
pub(crate) fn kcptun_server(target: SocketAddr, kcp: &Kcp) -> (Peer, SocketAddr) {
    let listen = unused_addr();
    let mut command = Command::new("kcptun-server");
    command.args(["-l", &listen.to_string(), "-t", &target.to_string()]);
    flags(&mut command, kcp);
    (Peer::start_udp(&mut command, listen), listen)
}

/// Our client of such a server: ends are held back.
pub(crate) fn client_of_kcptun(kcp: &Kcp, server: SocketAddr) -> Running {
    client(KcpClient { half_close: false, ..KcpClient::new(kcp.clone(), destination(server)) })
}

fn flags(command: &mut Command, kcp: &Kcp) {
    let (data, parity) = match kcp.parity {
        KcpParity::Fixed(shards) => (shards.data(), shards.parity()),
        KcpParity::Off | KcpParity::Measured => (0, 0),
    };
    command.args(["-key", KEY, "-crypt", kcp.crypt.name()]);
    command.args(["-datashard", &data.to_string(), "-parityshard", &parity.to_string()]);
    command.args(["-smuxver", if kcp.version == Some(SmuxVersion::V1) { "1" } else { "2" }]);
    if !kcp.compression {
        command.arg("-nocomp");
    }
}
