//! A name server on loopback for the tests of this crate.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

/// Record types: 1 is A, 28 is AAAA.
pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;

/// How the server treats a question.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
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
    /// Nothing at all.
    Silence,
}

/// A running name server. Questions without an entry get [`Reply::Missing`]. It ends when dropped.
pub(crate) struct NameServer {
    pub(crate) addr: SocketAddr,
    shared: Rc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    replies: RefCell<HashMap<(String, u16), Reply>>,
    asked: RefCell<Vec<(String, u16)>>,
}

impl NameServer {
    pub(crate) async fn start(ip: &str) -> Self {
        let socket = Rc::new(UdpSocket::bind((ip, 0)).await.unwrap());
        let (addr, shared) = (socket.local_addr().unwrap(), Rc::<Shared>::default());
        let task = spawn_local(serve(socket, Rc::clone(&shared)));
        Self { addr, shared, task }
    }

    pub(crate) fn set(&self, name: &str, kind: u16, reply: Reply) {
        self.shared.replies.borrow_mut().insert((name.to_owned(), kind), reply);
    }

    /// Sets addresses of either kind with a minute to live.
    pub(crate) fn set_ips(&self, name: &str, kind: u16, ips: &[&str]) {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        self.set(name, kind, Reply::Ips(ips, 60));
    }

    /// How often it was asked this, or (kind 0) anything about the name.
    pub(crate) fn asked(&self, name: &str, kind: u16) -> usize {
        let asked = self.shared.asked.borrow();
        asked.iter().filter(|(known, of)| known == name && (kind == 0 || kind == *of)).count()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: Rc<UdpSocket>, shared: Rc<Shared>) {
    let mut buffer = [0; 1500];
    loop {
        let Ok((len, peer)) = socket.recv_from(&mut buffer).await else { return };
        let (name, kind, question_end) = read_question(&buffer[..len]);
        shared.asked.borrow_mut().push((name.clone(), kind));
        let known = shared.replies.borrow().get(&(name, kind)).cloned();
        let (head, socket) = (buffer[..question_end].to_vec(), Rc::clone(&socket));
        spawn_local(async move {
            let mut reply = known.unwrap_or(Reply::Missing(60));
            if let Reply::Late(delay, inner) = reply {
                sleep(delay).await;
                reply = *inner;
            }
            if let Some(packet) = write_reply(head, &reply) {
                socket.send_to(&packet, peer).await.unwrap();
            }
        });
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

/// RFC 1035 section 4: `head` is header and question of the query; records name the question by a pointer (C0 0C).
fn write_reply(mut head: Vec<u8>, reply: &Reply) -> Option<Vec<u8>> {
    let (code, answers, authorities) = match reply {
        Reply::Ips(ips, _) => (0, ips.len(), 0),
        Reply::Empty(_) => (0, 0, 1),
        Reply::Missing(_) => (3, 0, 1),
        Reply::Code(code) => (*code, 0, 0),
        Reply::Late(..) | Reply::Silence => return None,
    };
    head[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    let counts = [1, u8::try_from(answers).unwrap(), authorities, 0].map(|count| [0, count]);
    head[4..12].copy_from_slice(counts.as_flattened());
    match reply {
        Reply::Ips(ips, ttl) => {
            for ip in ips {
                let (kind, data) = match ip {
                    IpAddr::V4(ip) => (A, ip.octets().to_vec()),
                    IpAddr::V6(ip) => (AAAA, ip.octets().to_vec()),
                };
                write_record(&mut head, kind, *ttl, &data);
            }
        }
        Reply::Empty(ttl) | Reply::Missing(ttl) => {
            // SOA: two root names, then serial, refresh, retry, expire and minimum.
            let numbers = [1, 60, 60, 60, *ttl].map(u32::to_be_bytes);
            write_record(&mut head, 6, *ttl, &[&[0, 0], numbers.as_flattened()].concat());
        }
        Reply::Code(_) | Reply::Late(..) | Reply::Silence => {}
    }
    Some(head)
}

fn write_record(packet: &mut Vec<u8>, kind: u16, ttl: u32, data: &[u8]) {
    packet.extend([0xc0, 0x0c]);
    packet.extend(kind.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(ttl.to_be_bytes());
    packet.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    packet.extend(data);
}

/// Runs a test that looks at the clock, on an event loop of its own; again if it fails, see [`adit_testkit::in_time`].
pub(crate) fn in_time(test: impl AsyncFn()) {
    adit_testkit::in_time(|| {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(tokio::runtime::LocalOptions::default()).unwrap();
        runtime.block_on(test());
    });
}
