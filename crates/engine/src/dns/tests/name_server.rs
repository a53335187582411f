//! A name server on loopback with scripted answers: by UDP, TCP, TLS and HTTPS. It runs on threads of its own.

#![allow(
    clippy::disallowed_methods,
    reason = "this server runs beside the event loops, with sockets of its own"
)]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use adit_net::tls::Roots;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::super::shared::lock;

/// Record types.
pub(super) const A: u16 = 1;
pub(super) const CNAME: u16 = 5;
pub(super) const AAAA: u16 = 28;

/// Makes the messages that answer a question.
type Script = dyn Fn(&[u8]) -> Vec<Vec<u8>> + Send + Sync;

/// The reply to a question.
#[derive(Clone)]
pub(super) enum Reply {
    /// These addresses, with this many seconds to live.
    Ips(Vec<IpAddr>, u32),
    /// No record of this type; with a SOA, so that it may be remembered for this many seconds.
    Empty(u32),
    /// No such name, likewise.
    Missing(u32),
    /// An error code.
    Code(u8),
    /// The reply within, after a while.
    Late(Duration, Box<Self>),
    /// Cut off in a datagram, and the reply within otherwise.
    Cut(Box<Self>),
    /// Nothing at all.
    Silence,
    /// The bytes that this function makes of the question.
    Raw(Arc<Script>),
}

/// A running name server. Questions without an entry get [`Reply::Missing`].
pub(super) struct NameServer {
    pub(super) addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    replies: Mutex<HashMap<(String, u16), Reply>>,
    asked: Mutex<Vec<(String, u16)>>,
    connections: Mutex<usize>,
    /// Number of questions that a connection takes before it is closed.
    patience: Mutex<Option<usize>>,
}

/// The transport of a connection.
#[derive(Clone)]
enum Dress {
    Plain,
    Tls(Arc<ServerConfig>),
    Https(Arc<ServerConfig>),
    Https2(Arc<ServerConfig>),
}

/// An authority that signs certificates.
pub(super) struct Authority {
    root: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { root, issuer: Issuer::new(params, key) }
    }

    pub(super) fn roots(&self) -> Roots {
        let mut store = RootCertStore::empty();
        store.add(self.root.clone()).unwrap();
        Roots::Only(Arc::new(store))
    }

    fn config(&self, name: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![certificate], key.into()).unwrap())
    }
}

impl NameServer {
    /// By UDP and TCP, on one port.
    pub(super) fn start() -> Self {
        let (listener, socket) = std::iter::repeat_with(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = UdpSocket::bind(listener.local_addr().unwrap());
            socket.map(|socket| (listener, socket))
        })
        .find_map(Result::ok)
        .unwrap();
        let server = Self::listen(listener, Dress::Plain);
        let shared = server.shared.clone();
        thread::spawn(move || shared.serve_datagrams(&Arc::new(socket)));
        server
    }

    /// By TLS, with a certificate for `name`.
    pub(super) fn tls(authority: &Authority, name: &str) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), Dress::Tls(authority.config(name)))
    }

    /// By HTTPS, version 1.1.
    pub(super) fn https(authority: &Authority, name: &str) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), Dress::Https(authority.config(name)))
    }

    /// By HTTPS, version 2 alone.
    pub(super) fn https2(authority: &Authority, name: &str) -> Self {
        let mut config = (*authority.config(name)).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), Dress::Https2(Arc::new(config)))
    }

    fn listen(listener: TcpListener, dress: Dress) -> Self {
        let (addr, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let server = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, dress) = (server.clone(), dress.clone());
                thread::spawn(move || shared.serve_connection(stream.unwrap(), dress).ok());
            }
        });
        Self { addr, shared }
    }

    pub(super) fn set(&self, name: &str, kind: u16, reply: Reply) {
        lock(&self.shared.replies).insert((name.to_owned(), kind), reply);
    }

    /// Sets addresses of either kind with a minute to live.
    pub(super) fn set_ips(&self, name: &str, kind: u16, ips: &[&str]) {
        self.set(name, kind, Reply::Ips(ips.iter().map(|ip| ip.parse().unwrap()).collect(), 60));
    }

    /// Number of times that it was asked this, or (kind 0) anything about the name.
    pub(super) fn asked(&self, name: &str, kind: u16) -> usize {
        let asked = lock(&self.shared.asked);
        asked.iter().filter(|(known, of)| known == name && (kind == 0 || kind == *of)).count()
    }

    pub(super) fn connections(&self) -> usize {
        *lock(&self.shared.connections)
    }

    /// Closes connections after so many questions.
    pub(super) fn close_after(&self, questions: usize) {
        *lock(&self.shared.patience) = Some(questions);
    }
}

mod http2;

impl Shared {
    fn serve_datagrams(self: &Arc<Self>, socket: &Arc<UdpSocket>) {
        let mut buffer = [0; 1500];
        loop {
            let Ok((len, peer)) = socket.recv_from(&mut buffer) else { return };
            let (question, shared, socket) = (buffer[..len].to_vec(), self.clone(), socket.clone());
            thread::spawn(move || {
                for message in shared.answer(&question, true) {
                    socket.send_to(&message, peer).ok();
                }
            });
        }
    }

    fn serve_connection(&self, stream: TcpStream, dress: Dress) -> io::Result<()> {
        *lock(&self.connections) += 1;
        stream.set_nodelay(true)?;
        let tls =
            |config| StreamOwned::new(ServerConnection::new(config).unwrap(), stream.try_clone().unwrap());
        match dress {
            Dress::Plain => self.serve_frames(stream),
            Dress::Tls(config) => self.serve_frames(tls(config)),
            Dress::Https(config) => self.serve_requests(tls(config)),
            Dress::Https2(config) => {
                http2::serve(tls(config), |question| self.answer(question, false).concat())
            }
        }
    }

    fn serve_frames(&self, mut stream: impl Read + Write) -> io::Result<()> {
        for served in 1.. {
            let mut len = [0; 2];
            stream.read_exact(&mut len)?;
            let mut question = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut question)?;
            for message in self.answer(&question, false) {
                stream.write_all(&u16::try_from(message.len()).unwrap().to_be_bytes())?;
                stream.write_all(&message)?;
            }
            stream.flush()?;
            if lock(&self.patience).is_some_and(|patience| served >= patience) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn serve_requests(&self, mut stream: impl Read + Write) -> io::Result<()> {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
            assert!(head.starts_with("post /dns-query http/1.1\r\n"), "{head}");
            assert!(head.contains("content-type: application/dns-message"), "{head}");
            let len = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
            let mut question = vec![0; len.parse().unwrap()];
            stream.read_exact(&mut question)?;
            let answer = self.answer(&question, false).concat();
            let len = answer.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/dns-message\r\nContent-Length: {len}\r\n\r\n"
            )?;
            stream.write_all(&answer)?;
            stream.flush()?;
        }
    }

    fn answer(&self, question: &[u8], is_datagram: bool) -> Vec<Vec<u8>> {
        let (name, kind, end) = read_question(question);
        lock(&self.asked).push((name.clone(), kind));
        let known = lock(&self.replies).get(&(name, kind)).cloned();
        let mut reply = known.unwrap_or(Reply::Missing(60));
        loop {
            reply = match reply {
                Reply::Late(delay, inner) => {
                    thread::sleep(delay);
                    *inner
                }
                Reply::Cut(_) if is_datagram => {
                    let mut head = question[..end].to_vec();
                    head[2..4].copy_from_slice(&[0x83, 0x80]);
                    head[4..12].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
                    return vec![head];
                }
                Reply::Cut(inner) => *inner,
                Reply::Raw(script) => return script(&question[..end]),
                other @ (Reply::Ips(..)
                | Reply::Empty(_)
                | Reply::Missing(_)
                | Reply::Code(_)
                | Reply::Silence) => {
                    return write_reply(question[..end].to_vec(), &other).into_iter().collect();
                }
            };
        }
    }
}

/// Name in lower case, type, and where the question ends.
fn read_question(packet: &[u8]) -> (String, u16, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while packet[at] != 0 {
        let end = at + 1 + usize::from(packet[at]);
        labels.push(String::from_utf8(packet[at + 1..end].to_ascii_lowercase()).unwrap());
        at = end;
    }
    (labels.join("."), u16::from_be_bytes([packet[at + 1], packet[at + 2]]), at + 5)
}

/// RFC 1035 section 4: `head` is header and question of the query.
fn write_reply(head: Vec<u8>, reply: &Reply) -> Option<Vec<u8>> {
    let records = |ips: &[IpAddr], ttl: u32| ips.iter().map(|ip| address(ip, ttl)).collect::<Vec<_>>();
    // SOA: two root names, then serial, refresh, retry, expire and minimum.
    let soa = |ttl: u32| {
        record(6, ttl, &[&[0, 0], [1, 60, 60, 60, ttl].map(u32::to_be_bytes).as_flattened()].concat())
    };
    Some(match reply {
        Reply::Ips(ips, ttl) => message(head, 0, &records(ips, *ttl), &[]),
        Reply::Empty(ttl) => message(head, 0, &[], &[soa(*ttl)]),
        Reply::Missing(ttl) => message(head, 3, &[], &[soa(*ttl)]),
        Reply::Code(code) => message(head, *code, &[], &[]),
        Reply::Late(..) | Reply::Cut(_) | Reply::Silence | Reply::Raw(_) => return None,
    })
}

/// A whole answer to the question in `head`.
pub(super) fn message(mut head: Vec<u8>, code: u8, answers: &[Vec<u8>], authorities: &[Vec<u8>]) -> Vec<u8> {
    head[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    let counts = [1, answers.len(), authorities.len(), 0];
    let counts = counts.map(|count| u16::try_from(count).unwrap().to_be_bytes());
    head[4..12].copy_from_slice(counts.as_flattened());
    [&[head], answers, authorities].concat().concat()
}

/// A record about the question's name, which it points to (C0 0C).
pub(super) fn record(kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len()).unwrap().to_be_bytes();
    [&[0xc0, 0x0c], &kind.to_be_bytes()[..], &[0, 1], &ttl.to_be_bytes(), &len, data].concat()
}

pub(super) fn address(ip: &IpAddr, ttl: u32) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => record(A, ttl, &ip.octets()),
        IpAddr::V6(ip) => record(AAAA, ttl, &ip.octets()),
    }
}
