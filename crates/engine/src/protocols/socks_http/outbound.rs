//! Through a SOCKS5 or HTTP proxy: a connection to it for each request, with TLS around it if the proxy asks for that.

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{Dial, ProxyClient, ProxyKind, Secret, Tag, Verify};
use adit_net::rt::{self, Pool, Stream};
use adit_net::tls::{self, Accepts, Roots, TlsConnector};
use adit_proto::buf::RecvBuf;
use adit_proto::http::{HeadScanner, MAX_HEAD_LEN, ResponseHead};
use adit_proto::socks::{ClientEvent, SocksClient, SocksCommand};
use adit_proto::wire::{Credentials, Host, Target};
use base64::Engine as _;

use super::outbound_udp::SocksPackets;
use crate::datagram::PacketOutbound;
use crate::outbound::connector::end_of_cut;
use crate::outbound::{Connector, OutboundDeps, OutboundFactory};
use crate::relay::{Endpoint, HalfClose, Policy, RelayOutcome};
use crate::stream::{ConnectTarget, Future, OpenError, OpenedConnection, Outbound, OutboundHandle};

/// Longest answer of a SOCKS5 proxy, in bytes: its messages are shorter.
const SOCKS_LEN: usize = 1024;
/// Status codes in front of which a proxy may send interim responses.
const MAX_INTERIM: usize = 8;

/// State that the client of a proxy shares over all cores.
#[derive(Debug)]
pub(crate) struct ProxyShared {
    pub(super) client: ProxyClient,
    /// The connector with the name that the certificate must have.
    tls: Option<(TlsConnector, Host)>,
    /// Time for the handshakes.
    pub(super) timeout: Duration,
}

impl ProxyShared {
    /// # Errors
    /// When TLS cannot be had.
    pub(crate) fn start(dial: &Dial, client: &ProxyClient) -> io::Result<Self> {
        let tls = match &client.tls {
            None => None,
            Some(tls) => {
                let connector = match tls.verify {
                    Verify::Chain => TlsConnector::new(&Roots::System, &[]),
                    Verify::Fingerprint(digest) => TlsConnector::accepting(Accepts::Fingerprint(digest), &[]),
                    Verify::Nothing => TlsConnector::accepting(Accepts::Any, &[]),
                };
                let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "sni is no name");
                let host = match &tls.name {
                    Some(name) => Host::parse(name.as_bytes()).map_err(invalid)?,
                    None => client.server.host.clone(),
                };
                Some((connector.map_err(io::Error::other)?, host))
            }
        };
        Ok(Self { client: client.clone(), tls, timeout: dial.timeout })
    }

    pub(super) fn credentials(&self) -> Option<Credentials> {
        let (user, password) = self.client.credentials.as_ref()?;
        Some(Credentials::new(user.as_bytes(), password.expose().as_bytes()))
    }

    /// A stream to the proxy, inside TLS if there is to be such.
    pub(super) async fn begin(&self, connector: &Connector) -> Result<Stream, OpenError> {
        let stream = connector.dial(&self.client.server).await?;
        let Some((tls, host)) = &self.tls else { return Ok(stream) };
        let stream = Box::pin(tls.connect(host, stream)).await;
        let stream = stream.map_err(|error| OpenError::Handshake(io::Error::other(error)))?;
        tls::carry(Box::new(stream)).map_err(OpenError::Handshake)
    }

    /// A stream to `target`, with what the target has sent already.
    async fn open(&self, connector: &Connector, target: &Target) -> Result<(Stream, Vec<u8>), OpenError> {
        let open = async {
            let stream = self.begin(connector).await?;
            let tail = match &self.client.kind {
                ProxyKind::Socks5 { .. } => {
                    let asked =
                        socks(&stream, SocksCommand::Connect, target.clone(), self.credentials()).await;
                    asked.map(|(_, tail)| tail)
                }
                ProxyKind::Http { headers } => self.tunnel(&stream, target, headers).await,
            };
            Ok((stream, tail.map_err(OpenError::Handshake)?))
        };
        let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "the proxy does not answer");
        let open = rt::timeout(self.timeout, Box::pin(open)).await;
        open.unwrap_or_else(|rt::Elapsed| Err(OpenError::Handshake(timed_out())))
    }

    /// CONNECT (RFC 9110, section 9.3.6); returns the bytes behind the head of the response.
    async fn tunnel(
        &self,
        stream: &Stream,
        target: &Target,
        headers: &[(Box<str>, Secret)],
    ) -> io::Result<Vec<u8>> {
        let mut request = Vec::new();
        write!(request, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n")?;
        if let Some((user, password)) = &self.client.credentials {
            let pair = format!("{user}:{}", password.expose());
            let pair = base64::engine::general_purpose::STANDARD.encode(pair);
            write!(request, "Proxy-Authorization: Basic {pair}\r\n")?;
        }
        for (name, value) in headers {
            write!(request, "{name}: {}\r\n", value.expose())?;
        }
        request.extend_from_slice(b"\r\n");
        stream.send_all(&request).await?;
        let mut wire = RecvBuf::with_len(MAX_HEAD_LEN);
        for _ in 0..MAX_INTERIM {
            let status = response(stream, &mut wire).await?;
            match status {
                200..=299 => return Ok(wire.unread().to_vec()),
                100..=199 => {}
                407 => return Err(io::Error::other("the proxy wants another user name or password (407)")),
                status => return Err(io::Error::other(format!("the proxy answers with status {status}"))),
            }
        }
        Err(io::Error::other("the proxy sends interim responses alone"))
    }
}

/// The status of the next response head, which is consumed.
async fn response(stream: &Stream, wire: &mut RecvBuf) -> io::Result<u16> {
    let mut scanner = HeadScanner::new();
    loop {
        if let Some(len) = scanner.scan(wire.unread()).map_err(io::Error::other)? {
            let status = ResponseHead::parse(&wire.unread()[..len]).map_err(io::Error::other)?.status();
            wire.consume(len);
            return Ok(status);
        }
        wire.compact();
        receive(stream, wire).await?;
    }
}

async fn receive(stream: &Stream, wire: &mut RecvBuf) -> io::Result<()> {
    if wire.free_mut().is_empty() {
        return Err(io::Error::other("the proxy's answer is too long"));
    }
    match stream.recv(wire.free_mut()).await? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the proxy closed without an answer")),
        received => {
            wire.filled(received);
            Ok(())
        }
    }
}

/// Asks a SOCKS5 proxy; returns the address that it names, and the bytes behind its answer.
pub(super) async fn socks(
    stream: &Stream,
    command: SocksCommand,
    target: Target,
    credentials: Option<Credentials>,
) -> io::Result<(Target, Vec<u8>)> {
    let mut client = SocksClient::new(command, target, credentials);
    let mut out = Vec::new();
    client.start(&mut out);
    let mut wire = RecvBuf::with_len(SOCKS_LEN);
    loop {
        if !out.is_empty() {
            stream.send_all(&out).await?;
            out.clear();
        }
        receive(stream, &mut wire).await?;
        match client.advance(&mut wire, &mut out).map_err(io::Error::other)? {
            ClientEvent::NeedMore => wire.compact(),
            ClientEvent::Established { bound } => return Ok((bound, wire.unread().to_vec())),
        }
    }
}

impl OutboundFactory for Arc<ProxyShared> {
    fn on_core(&self, connector: Connector, around: &OutboundDeps<'_>) -> OutboundHandle {
        let outbound = Rc::new(Proxied { connector, shared: self.clone() });
        let packets = self
            .client
            .udp()
            .then(|| Rc::new(SocksPackets::new(outbound.clone(), around)) as Rc<dyn PacketOutbound>);
        OutboundHandle { outbound, packets }
    }
}

/// The client of a proxy on one core.
pub(super) struct Proxied {
    pub(super) connector: Connector,
    pub(super) shared: Arc<ProxyShared>,
}

impl Outbound for Proxied {
    fn name(&self) -> &Tag {
        &self.connector.name
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn connect<'a>(
        &'a self,
        to: ConnectTarget<'a>,
        _fresh: bool,
    ) -> Future<'a, Result<OpenedConnection, OpenError>> {
        Box::pin(async move {
            let (stream, tail) = self.shared.open(&self.connector, to.target).await?;
            let policy =
                Policy { half_close: HalfClose::AtOnce, keep_for_replay: false, carrier_drops: false };
            let opened = OpenedConnection::new(Endpoint { stream, stack: None, tail }, policy);
            Ok(self.connector.settle(opened))
        })
    }

    fn release(&self, opened: OpenedConnection, outcome: &RelayOutcome, _pool: &Pool) {
        end_of_cut(&opened, outcome);
    }

    fn lookup<'a>(&'a self, name: &'a str) -> Future<'a, Option<Vec<IpAddr>>> {
        Box::pin(self.connector.lookup(name))
    }
}
