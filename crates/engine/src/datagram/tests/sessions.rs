use adit_proto::shadowsocks::{NoFilter, PacketCodec, client_packets};

use super::*;
use crate::rng::OsRng;

const METHOD: &str = "2022-blake3-aes-128-gcm";

/// A client of a Shadowsocks server, down to single datagrams.
pub(super) struct Peer {
    codec: Box<dyn PacketCodec>,
    target: Target,
}

impl Peer {
    pub(super) fn new(method: &str, target: SocketAddr) -> Self {
        Self { codec: client_packets(&key(method).derive(), &mut OsRng), target: target.into() }
    }

    pub(super) fn seal(&mut self, payload: &[u8]) -> Vec<u8> {
        let room = self.codec.room(&self.target);
        let mut block = vec![0; room.head + payload.len() + room.tail];
        let at = room.head..room.head + payload.len();
        block[at.clone()].copy_from_slice(payload);
        let now = adit_net::rt::unix_time();
        let range = self.codec.seal(&mut block, at, &self.target, now, &mut OsRng).unwrap();
        block[range].to_vec()
    }

    fn open(&mut self, mut datagram: Vec<u8>) -> Vec<u8> {
        let now = adit_net::rt::unix_time();
        let packet = self.codec.open(&mut datagram, now, &mut NoFilter).unwrap();
        datagram[packet.payload].to_vec()
    }

    fn ask(&mut self, socket: &UdpSocket, at: SocketAddr, payload: &[u8]) {
        socket.send_to(&self.seal(payload), at).unwrap();
        let mut bytes = [0; 2000];
        let len = socket.recv(&mut bytes).unwrap();
        assert_eq!(self.open(bytes[..len].to_vec()), payload);
    }
}

#[test]
fn a_session_keeps_its_flow_wherever_its_client_goes() {
    // With four cores most of the new addresses reach another one than the session's.
    let (running, at) = run(server(METHOD), OutboundProtocol::Direct, 4);
    let mut peer = Peer::new(METHOD, echo());
    for n in 0..40 {
        peer.ask(&socket(), at, &[n; 100]);
    }
    let status = eventually(&running, |status| status.down == 40);
    assert_eq!((status.up, status.flows, status.begun), (40, 1, 1));
    assert!(status.dropped.is_empty(), "{status:?}");
    running.end();
}

#[test]
fn what_is_replayed_or_forged_is_dropped_and_counted() {
    let (running, at) = run(server(METHOD), OutboundProtocol::Direct, 2);
    let target = socket();
    let mut peer = Peer::new(METHOD, addr(&target));
    let datagram = peer.seal(b"once");
    let client = socket();
    for _ in 0..3 {
        client.send_to(&datagram, at).unwrap();
    }
    let mut forged = peer.seal(b"forged");
    let last = forged.len() - 1;
    forged[last] ^= 1;
    client.send_to(&forged, at).unwrap();
    client.send_to(&datagram[..20], at).unwrap();
    // Cores count for themselves, in no order.
    let all = |status: &DatagramStatus| status.dropped.values().sum::<u64>() == 4 && status.up == 1;
    let status = eventually(&running, all);
    assert_eq!((status.dropped["replay"], status.dropped["authentication"]), (2, 1));
    assert_eq!((status.dropped["malformed"], status.up), (1, 1));
    let mut bytes = [0; 100];
    assert_eq!(target.recv(&mut bytes).unwrap(), 4);
    running.end();
}

/// A link that loses, doubles and swaps datagrams, from a fixed seed.
struct Link(u64);

impl Link {
    fn next(&mut self) -> u64 {
        // The generator of Knuth's MMIX.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn carry(&mut self, datagrams: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut out: Vec<Vec<u8>> = Vec::new();
        for datagram in datagrams {
            match self.next() % 10 {
                0 | 1 => {}
                2 => out.extend([datagram.clone(), datagram]),
                3 if !out.is_empty() => out.insert(out.len() - 1, datagram),
                _ => out.push(datagram),
            }
        }
        out
    }
}

#[test]
fn a_bad_link_loses_datagrams_but_never_doubles_or_changes_one() {
    for method in [METHOD, "2022-blake3-chacha20-poly1305"] {
        let (running, at) = run(server(method), OutboundProtocol::Direct, 1);
        let target = socket();
        let mut peer = Peer::new(method, addr(&target));
        let mut link = Link(1);
        let client = socket();
        let datagrams = (0..200_u8).map(|n| peer.seal(&[n; 50])).collect();
        let carried = link.carry(datagrams);
        let mut distinct = carried.clone();
        distinct.sort();
        distinct.dedup();
        for datagram in &carried {
            client.send_to(datagram, at).unwrap();
        }
        let mut got = Vec::new();
        let mut bytes = [0; 100];
        while got.len() < distinct.len() {
            let len = target.recv(&mut bytes).expect("what the link has carried arrives");
            assert!(len == 50 && bytes[..50].iter().all(|byte| *byte == bytes[0]));
            got.push(bytes[0]);
        }
        target.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        assert!(target.recv(&mut bytes).is_err(), "nothing comes twice");
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), distinct.len());
        let replays = u64::try_from(carried.len() - distinct.len()).unwrap();
        eventually(&running, |status| status.dropped.get("replay") == Some(&replays));
        running.end();
    }
}
