//! A local port of the engine that leads to the outbound under test, and a SOCKS5 client (RFC 1928) of it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_engine::Running;
use adit_formats::share::{Host, Target};
use adit_model::{
    Config, ControlSocket, Dial, Egress, Inbound, InboundProtocol, Local, LocalProtocols, Reply,
    SocketOptions, StateFile, Tag,
};
use adit_net::dial::Dialer;
use adit_net::query::QuerySocket;
use adit_net::rt::{self, Stream};
use anyhow::Context as _;

/// Longest answer of a name server that is looked at.
const MAX_DATAGRAM: usize = 1500;
/// Commands of a SOCKS5 request.
const CONNECT: u8 = 1;
const ASSOCIATE: u8 = 3;
/// `05`, reply, `00`, type, IPv4 address, port.
const REPLY_LEN: usize = 10;

/// The engine with one local port.
pub(super) struct Engine {
    running: Running,
    at: SocketAddr,
}

/// The way in which a request through the local port ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    /// A byte came back.
    Answered,
    /// The connection was closed first.
    Closed,
    /// Nothing came in time.
    Silent,
}

impl Engine {
    /// Starts the outbounds of `config` and one local port that leads to `outbound`.
    ///
    /// # Errors
    /// When it cannot start.
    pub(super) fn start(config: &Config, outbound: &Tag) -> anyhow::Result<Self> {
        let local = Local {
            accepts: LocalProtocols::Socks,
            users: Vec::new(),
            reply: Reply::Connected,
            open_to: Vec::new(),
        };
        let inbound = Inbound {
            name: "test".into(),
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            socket: SocketOptions::default(),
            outbound: outbound.clone(),
            allow_private: true,
            protocol: InboundProtocol::Local(local),
        };
        let config = Config {
            admin: ControlSocket::Off,
            admin_http: None,
            state: StateFile::Off,
            cores: Some(1),
            acl: None,
            inbounds: vec![inbound],
            rules: Vec::new(),
            sets: Vec::new(),
            geoip: None,
            ..config.clone()
        };
        let running = adit_engine::start_with(&config, &crate::serve::extensions())
            .context("cannot start the engine")?;
        let at = running.addresses().first().map(|(_, at)| *at).context("no local port")?;
        Ok(Self { running, at })
    }

    pub(super) fn end(self) {
        self.running.end();
    }

    /// A stream to `target`; the server's first byte is not waited for.
    ///
    /// # Errors
    /// `ConnectionRefused` when the engine reports a failure, and the system's error.
    pub(super) async fn connect(&self, target: &Target) -> io::Result<Stream> {
        self.request(CONNECT, target).await.map(|(stream, _)| stream)
    }

    async fn request(&self, command: u8, target: &Target) -> io::Result<(Stream, SocketAddr)> {
        let dialer = Dialer::by_system(&Dial::default());
        let tcp = dialer.dial_addrs(&[self.at]).await.map_err(io::Error::other)?;
        let stream = Stream::from(tcp);
        stream.send_all(&[5, 1, 0]).await?;
        receive::<2>(&stream).await?;
        let mut request = vec![5, command, 0];
        push(&mut request, target);
        stream.send_all(&request).await?;
        let reply = receive::<REPLY_LEN>(&stream).await?;
        if reply[1] != 0 {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, socks_error(reply[1])));
        }
        let ip = Ipv4Addr::new(reply[4], reply[5], reply[6], reply[7]);
        Ok((stream, SocketAddr::from((ip, u16::from_be_bytes([reply[8], reply[9]])))))
    }

    /// Sends a datagram to `target` and waits for one from it; true when one came. The question is sent three times.
    ///
    /// # Errors
    /// When the outbound carries none, and the system's error.
    pub(super) async fn exchange(
        &self,
        target: &Target,
        question: &[u8],
        limit: Duration,
    ) -> io::Result<bool> {
        let nowhere = Target::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let (_control, relay) = self.request(ASSOCIATE, &nowhere).await?;
        let socket = QuerySocket::connect(relay, &Egress::default())?;
        let mut datagram = vec![0, 0, 0];
        push(&mut datagram, target);
        datagram.extend_from_slice(question);
        let mut answer = [0; MAX_DATAGRAM];
        for _ in 0..3 {
            socket.send(&datagram).await?;
            if let Ok(received) = rt::timeout(limit / 3, socket.recv(&mut answer)).await {
                return Ok(received? > 0);
            }
        }
        Ok(false)
    }
}

/// Sends a request and waits for the first byte of the answer.
pub(super) async fn fetch(stream: &Stream, request: &[u8], limit: Duration) -> Fetched {
    let exchange = async {
        stream.send_all(request).await?;
        let mut buffer = [0; 512];
        stream.recv(&mut buffer).await
    };
    match rt::timeout(limit, exchange).await {
        Ok(Ok(1..)) => Fetched::Answered,
        Ok(Ok(0) | Err(_)) => Fetched::Closed,
        Err(rt::Elapsed) => Fetched::Silent,
    }
}

async fn receive<const N: usize>(stream: &Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut len = 0;
    while len < N {
        match stream.recv(&mut bytes[len..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
    }
    Ok(bytes)
}

/// A target as SOCKS5 writes it; a name longer than 255 bytes is cut, as none resolves.
fn push(out: &mut Vec<u8>, target: &Target) {
    match &target.host {
        Host::Ip(std::net::IpAddr::V4(ip)) => {
            out.push(1);
            out.extend(ip.octets());
        }
        Host::Ip(std::net::IpAddr::V6(ip)) => {
            out.push(4);
            out.extend(ip.octets());
        }
        Host::Name(name) => {
            let name = &name.as_bytes()[..name.len().min(255)];
            out.push(3);
            out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            out.extend(name);
        }
    }
    out.extend(target.port.to_be_bytes());
}

fn socks_error(code: u8) -> &'static str {
    match code {
        2 => "not allowed",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "timed out",
        7 => "the outbound carries no such traffic",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_as_socks_writes_them() {
        for (text, want) in [
            ("1.2.3.4:258", &[1, 1, 2, 3, 4, 1, 2][..]),
            ("ab:1", &[3, 2, b'a', b'b', 0, 1]),
            ("[::1]:1", &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]),
        ] {
            let mut out = Vec::new();
            push(&mut out, &text.parse().unwrap());
            assert_eq!(out, want, "{text}");
        }
    }
}
