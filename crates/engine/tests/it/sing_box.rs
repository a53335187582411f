//! sing-box as the Snell server or client at the other end.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use adit_model::SnellVersion;
use adit_testkit::peer::Peer;
use adit_testkit::unused_addr;

use crate::common::{
    PSK, Target, bulk_both_ways, expect_end, expect_pattern, expect_reset, mix, send_pattern, socks5,
};

/// The fields of a configuration for a version; `as_client` since it is called 4 there and 5 in servers.
pub(crate) fn fields(version: SnellVersion, as_client: bool) -> String {
    match version.mode() {
        Some(mode) => format!(r#""version":6,"mode":"{}""#, mode.name()),
        None => format!(r#""version":{}"#, if as_client { 4 } else { 5 }),
    }
}

/// A running sing-box.
pub(crate) struct SingBox {
    pub(crate) addr: SocketAddr,
    _peer: Peer,
}

impl SingBox {
    fn start(program: &OsString, addr: SocketAddr, config: &str) -> Self {
        Self { addr, _peer: Peer::with_config(program, &["run", "-c"], config, addr) }
    }

    /// A server; `fields` are those of its inbound besides address and key.
    pub(crate) fn server(program: &OsString, fields: &str) -> Self {
        let addr = unused_addr();
        let config = format!(
            r#"{{"log":{{"level":"fatal"}},
            "inbounds":[{{"type":"snell","listen":"{}","listen_port":{},"psk":"{PSK}",{fields}}}],
            "outbounds":[{{"type":"direct"}}]}}"#,
            addr.ip(),
            addr.port()
        );
        Self::start(program, addr, &config)
    }

    /// A client behind a port for SOCKS5; `fields` are those of its outbound besides address, key and reuse.
    pub(crate) fn client(program: &OsString, server: SocketAddr, fields: &str, reuse: bool) -> Self {
        let addr = unused_addr();
        let config = format!(
            r#"{{"log":{{"level":"fatal"}},
            "inbounds":[{{"type":"mixed","listen":"{}","listen_port":{}}}],
            "outbounds":[{{"type":"snell","server":"{}","server_port":{},"psk":"{PSK}","reuse":{reuse},{fields}}}]}}"#,
            addr.ip(),
            addr.port(),
            server.ip(),
            server.port()
        );
        Self::start(program, addr, &config)
    }

    pub(crate) fn tunnel(&self, target: SocketAddr) -> TcpStream {
        let (stream, code) = socks5(self.addr, &target.ip().to_string(), target.port());
        assert_eq!(code, 0);
        stream
    }
}

/// Bulk of `len` bytes both ways, then so many small ones at once.
pub(crate) fn bulk_and_many(tunnel: impl Fn(SocketAddr) -> TcpStream + Sync, len: usize, count: u64) {
    bulk_both_ways(&tunnel, len);
    let target = Target::new(|mut stream| {
        let mut len = [0; 4];
        stream.read_exact(&mut len).unwrap();
        let mut bytes = vec![0; usize::try_from(u32::from_le_bytes(len)).unwrap()];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    thread::scope(|scope| {
        for n in 0..count {
            let (tunnel, target) = (&tunnel, &target);
            scope.spawn(move || {
                let len = usize::try_from(mix(n) % 50_000).unwrap();
                let mut stream = tunnel(target.addr);
                stream.write_all(&u32::try_from(len).unwrap().to_le_bytes()).unwrap();
                send_pattern(&stream, n, len).unwrap();
                expect_pattern(&stream, n, len);
                expect_end(&stream);
            });
        }
    });
}

/// A target that nobody has, asked of adit's client: the application is reset.
pub(crate) fn assert_reset(tunnel: impl Fn(SocketAddr) -> TcpStream) {
    let mut stream = tunnel(unused_addr());
    stream.write_all(b"GET!").unwrap();
    expect_reset(&stream);
}

/// The same, asked of sing-box: an error, or an end.
pub(crate) fn assert_refused(client: &SingBox, what: &str) {
    let dead = unused_addr();
    let (mut stream, code) = socks5(client.addr, &dead.ip().to_string(), dead.port());
    drop(stream.write_all(b"GET!"));
    let end = stream.read(&mut [0; 1]);
    assert!(code != 0 || !matches!(end, Ok(1..)), "{what}: {code} {end:?}");
}
