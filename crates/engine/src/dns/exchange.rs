//! One question to one name server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use adit_model::{AddressFamilies, Dial, DnsTransport, Egress, Tag, Upstream};
use adit_net::dial::Dialer;
use adit_net::https::HttpsClient;
use adit_net::query::QuerySocket;
use adit_net::resolve::ResolveError;
use adit_net::rt::{self, Stream};
use adit_net::tls::{TlsConnector, TlsOrPlain, TlsStream};
use adit_proto::wire::{Host, Rng as _, Target};
use hickory_proto::rr::{Name, RecordType};

use super::message::{DnsAnswer, ReplyKind, question, read_reply};
use super::upstream_connection::{HttpsLink, UpstreamConnection};
use super::{Dns, OwnRoute, Streams};
use crate::rng::OsRng;

/// The longest message (RFC 1035 section 4.2.2).
pub(super) const MAX_MESSAGE: usize = 65_535;
/// Longest datagram in bytes from a server that keeps to the size it was told.
const DATAGRAM_LEN: usize = 4096;
/// A datagram may get lost: the question is sent again after these times.
const RESEND: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Datagrams that are no answer to the question before the question goes to TCP, where guesses do not reach.
const MAX_FOREIGN: usize = 16;
/// The code of a server that does not answer a question (RFC 1035 section 4.1.1).
const REFUSED: u16 = 5;
/// Format error: what servers say that do not know EDNS (RFC 6891 section 7).
const FORMERR: u16 = 1;

/// The connections of one core to name servers.
#[derive(Default)]
pub(super) struct Exchanges {
    streams: RefCell<Option<Rc<dyn Streams>>>,
    links: RefCell<HashMap<Arc<Upstream>, Rc<UpstreamConnection>>>,
    sessions: RefCell<HashMap<Arc<Upstream>, Rc<HttpsLink>>>,
}

impl Exchanges {
    pub(super) fn set_streams(&self, streams: Rc<dyn Streams>) {
        *self.streams.borrow_mut() = Some(streams);
    }

    pub(super) fn streams(&self) -> Option<Rc<dyn Streams>> {
        self.streams.borrow().clone()
    }

    pub(super) fn clear_streams(&self) {
        let streams = self.streams.borrow_mut().take();
        drop(streams);
    }

    /// The kept connection to a server, or one that is being made. There is one for each server.
    fn link(&self, dns: &Rc<Dns>, upstream: &Arc<Upstream>) -> (Rc<UpstreamConnection>, bool) {
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.get(upstream).filter(|link| link.is_open()) {
            return (link.clone(), true);
        }
        links.retain(|_, link| link.is_open());
        let (dns, to) = (dns.clone(), upstream.clone());
        let link = UpstreamConnection::start(async move { connect_link(&dns, &to).await });
        links.insert(upstream.clone(), link.clone());
        (link, false)
    }

    fn session(&self, upstream: &Arc<Upstream>) -> Rc<HttpsLink> {
        self.sessions.borrow_mut().entry(upstream.clone()).or_default().clone()
    }

    /// Connections that are open or being made.
    #[cfg(test)]
    pub(super) fn open_links(&self) -> usize {
        self.links.borrow().values().filter(|link| link.is_open()).count()
    }
}

/// The answer of `upstream`.
///
/// # Errors
/// [`ResolveError`], when it has none.
pub(super) async fn ask(
    dns: &Rc<Dns>,
    upstream: &Arc<Upstream>,
    name: &Name,
    kind: RecordType,
) -> Result<DnsAnswer, ResolveError> {
    match ask_once(dns, upstream, name, kind, true).await? {
        // Once more without the extension.
        ReplyKind::Failed(FORMERR) => result(ask_once(dns, upstream, name, kind, false).await?),
        reply @ (ReplyKind::Answer(_) | ReplyKind::Truncated | ReplyKind::Failed(_) | ReplyKind::Foreign) => {
            result(reply)
        }
    }
}

fn result(reply: ReplyKind) -> Result<DnsAnswer, ResolveError> {
    match reply {
        ReplyKind::Answer(answer) => Ok(answer),
        ReplyKind::Failed(code) => Err(ResolveError::Server(code)),
        ReplyKind::Truncated | ReplyKind::Foreign => {
            Err(ResolveError::Other(Arc::new(io::Error::other("it is not the answer to the question"))))
        }
    }
}

async fn ask_once(
    dns: &Rc<Dns>,
    upstream: &Arc<Upstream>,
    name: &Name,
    kind: RecordType,
    edns: bool,
) -> Result<ReplyKind, ResolveError> {
    match &upstream.transport {
        DnsTransport::Udp if way(dns, upstream).await?.is_none() => {
            let addrs = addresses(dns, upstream).await?;
            let addr = addrs.first().ok_or(ResolveError::NoAddress)?;
            let egress = dns.settings().config.egress.clone();
            match ask_udp(*addr, &egress, name, kind, edns).await? {
                ReplyKind::Truncated | ReplyKind::Foreign => {}
                reply @ (ReplyKind::Answer(_) | ReplyKind::Failed(_)) => return Ok(reply),
            }
            ask_stream(dns, upstream, name, kind, edns).await
        }
        DnsTransport::Udp | DnsTransport::Tcp | DnsTransport::Tls { .. } => {
            ask_stream(dns, upstream, name, kind, edns).await
        }
        // Those of the system are asked in its place.
        DnsTransport::System | DnsTransport::Refused => Ok(ReplyKind::Failed(REFUSED)),
        DnsTransport::Https { authority, path, .. } => {
            // RFC 8484 section 4.1: id 0, so that caches on the way see equal questions as equal.
            let message = question(name, kind, 0, edns)?;
            let session = dns.exchanges.session(upstream);
            let connect = || connect_https(dns, upstream);
            let reply = session.post(connect, (authority, path), &message).await?;
            Ok(read_reply(&reply, name, kind, 0))
        }
    }
}

/// By UDP, from a port of its own; [`ReplyKind::Foreign`] if too much comes that is no answer.
async fn ask_udp(
    server: SocketAddr,
    egress: &Egress,
    name: &Name,
    kind: RecordType,
    edns: bool,
) -> Result<ReplyKind, ResolveError> {
    let id = random_id();
    let message = question(name, kind, id, edns)?;
    let socket = QuerySocket::connect(server, egress)?;
    let mut buffer = vec![0; DATAGRAM_LEN];
    socket.send(&message).await?;
    let mut resend = RESEND.iter();
    let mut foreign = 0;
    loop {
        let receive = socket.recv(&mut buffer);
        let received = match resend.as_slice().first() {
            Some(wait) => match rt::timeout(*wait, receive).await {
                Ok(received) => received,
                Err(rt::Elapsed) => {
                    resend.next();
                    socket.send(&message).await?;
                    continue;
                }
            },
            None => receive.await,
        };
        match read_reply(&buffer[..received?], name, kind, id) {
            ReplyKind::Foreign if foreign < MAX_FOREIGN => foreign += 1,
            reply @ (ReplyKind::Answer(_)
            | ReplyKind::Truncated
            | ReplyKind::Failed(_)
            | ReplyKind::Foreign) => {
                return Ok(reply);
            }
        }
    }
}

/// By a kept connection. One that the server has closed in the meantime is replaced, once.
async fn ask_stream(
    dns: &Rc<Dns>,
    upstream: &Arc<Upstream>,
    name: &Name,
    kind: RecordType,
    edns: bool,
) -> Result<ReplyKind, ResolveError> {
    loop {
        let (link, is_old) = dns.exchanges.link(dns, upstream);
        let id = link.free_id(random_id()).ok_or(ResolveError::Busy)?;
        let message = question(name, kind, id, edns)?;
        match link.exchange(id, &message).await {
            Ok(reply) => return Ok(read_reply(&reply, name, kind, id)),
            Err(error) if is_old => tracing::debug!(%error, "kept connection to a name server"),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn connect_link(dns: &Rc<Dns>, upstream: &Upstream) -> io::Result<TlsOrPlain> {
    let stream = connect(dns, upstream).await?;
    match &upstream.transport {
        DnsTransport::Udp | DnsTransport::Tcp | DnsTransport::System | DnsTransport::Refused => {
            Ok(TlsOrPlain::Plain(stream))
        }
        DnsTransport::Tls { name } | DnsTransport::Https { name, .. } => {
            let connector = dns.shared.tls.dot().map_err(io::Error::other)?;
            Ok(TlsOrPlain::Tls(shake_hands(&connector, name, stream).await?))
        }
    }
}

async fn connect_https(dns: &Rc<Dns>, upstream: &Upstream) -> Result<HttpsClient, ResolveError> {
    let DnsTransport::Https { name, .. } = &upstream.transport else {
        return Err(io::Error::from(io::ErrorKind::Unsupported).into());
    };
    let stream = connect(dns, upstream).await?;
    let connector = dns.shared.tls.https().map_err(io::Error::other)?;
    let tls = shake_hands(&connector, name, stream).await?;
    Box::pin(HttpsClient::new(tls)).await.map_err(|error| ResolveError::Other(Arc::new(error)))
}

/// A TLS session with the server `name`, a domain or an address.
async fn shake_hands(
    connector: &TlsConnector,
    name: &str,
    stream: Stream,
) -> io::Result<Box<TlsStream<Stream>>> {
    let host = name.parse().map_or_else(|_| Host::Name(name.into()), Host::Ip);
    Box::pin(connector.connect(&host, stream)).await.map(Box::new).map_err(io::Error::other)
}

/// A connection to the server, through its outbound if it has one.
async fn connect(dns: &Rc<Dns>, upstream: &Upstream) -> io::Result<Stream> {
    let Some(via) = way(dns, upstream).await? else {
        let addrs = addresses(dns, upstream).await.map_err(io::Error::other)?;
        let egress = dns.settings().config.egress.clone();
        let dialer = Dialer::by_system(&Dial { egress, ..Dial::default() });
        return match dialer.dial_addrs(&addrs).await {
            Ok(stream) => Ok(stream.into()),
            Err(error) => Err(io::Error::other(error)),
        };
    };
    let streams = dns.exchanges.streams.borrow().clone();
    let streams = streams.ok_or_else(|| io::Error::other("outbounds are not there yet"))?;
    // Without servers that know the name, the outbound is given it.
    let to = match (&upstream.server.host, upstream.bootstrap.is_empty()) {
        (Host::Name(_), false) => {
            let addrs = addresses(dns, upstream).await.map_err(io::Error::other)?;
            addrs.first().map_or_else(|| upstream.server.clone(), |addr| Target::from(*addr))
        }
        (Host::Name(_) | Host::Ip(_), _) => upstream.server.clone(),
    };
    streams.connect(&via, &to).await
}

/// The outbound that a server is reached through at this time; `None` for straight.
async fn way(dns: &Rc<Dns>, upstream: &Upstream) -> io::Result<Option<Tag>> {
    let Some(straight) = &upstream.by_rules else { return Ok(upstream.through.clone()) };
    let streams = dns.exchanges.streams();
    let streams = streams.ok_or_else(|| io::Error::other("outbounds are not there yet"))?;
    let mut decided = streams.decide(straight, &upstream.server, None);
    if decided == OwnRoute::NeedsAddresses {
        let addrs = addresses(dns, upstream).await.map_err(io::Error::other)?;
        let ips: Vec<IpAddr> = addrs.iter().map(SocketAddr::ip).collect();
        decided = streams.decide(straight, &upstream.server, Some(&ips));
    }
    let OwnRoute::Outbound(decided) = decided else {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a rule refuses the name server"));
    };
    Ok((decided != *straight).then_some(decided))
}

/// Addresses of a server. If only its name is known, its bootstrap servers are asked, or the system's. These are asked
/// straight by UDP, so that this never leads back here.
async fn addresses(dns: &Rc<Dns>, upstream: &Upstream) -> Result<Vec<SocketAddr>, ResolveError> {
    let port = upstream.server.port;
    match &upstream.server.host {
        Host::Ip(ip) => Ok(vec![SocketAddr::new(*ip, port)]),
        Host::Name(name) => {
            let list = match &*upstream.bootstrap {
                [] => dns.shared.system_list(),
                servers => dns.shared.list_of(servers),
            };
            let family = dns.settings().config.family;
            let family = if family == AddressFamilies::Any { AddressFamilies::PreferV4 } else { family };
            let ips = Box::pin(dns.listed(list, family).lookup(name, family)).await?;
            Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
        }
    }
}

fn random_id() -> u16 {
    let mut id = [0; 2];
    OsRng.fill(&mut id);
    u16::from_ne_bytes(id)
}
