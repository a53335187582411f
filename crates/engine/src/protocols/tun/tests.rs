//! The interface without a kernel: packets go in and come out of a pair of sockets that keep their boundaries.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;

use adit_net::rt::Cores;
use adit_net::tun::TunSocket;
use adit_net::udp::{DatagramBatch, Outgoing};
use adit_proto::ip::{self, IpHeader, icmp, offload, tcp, udp};
use adit_proto::wire::Target;

use super::inbound_udp::{AnswerSources, TunPackets};
use super::port::TunPort;
use super::*;
use crate::counters::InboundMetrics;
use crate::datagram::{DatagramPort as _, DropReason, FlowClient, PacketInbound as _, Peer};

const CLIENT: &str = "198.18.0.1:40000";
const TARGET: &str = "203.0.113.7:443";
const CLIENT6: &str = "[fdad:17:ad17::1]:40000";
const TARGET6: &str = "[2001:db8::7]:443";
const LISTENER: &str = "198.18.0.1:5555";
const LISTENER6: &str = "[fdad:17:ad17::1]:6666";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The port, the kernel's side of it, and what the two share.
struct Bench {
    port: TunPort,
    kernel: UnixDatagram,
    shared: Arc<Shared>,
    sources: AnswerSources,
    metrics: Arc<InboundMetrics>,
    batch: DatagramBatch,
}

impl Bench {
    fn new(has_header: bool) -> Self {
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        kernel.set_nonblocking(true).unwrap();
        let shared = TunFactory::new(model::Tun::default()).0;
        let (sources, metrics) = (AnswerSources::default(), Arc::<InboundMetrics>::default());
        let socket = TunSocket::over(ours, has_header).unwrap();
        let listening = [addr(LISTENER), addr(LISTENER6)];
        let name = model::Tag::from("tun");
        let port = TunPort::new(
            socket,
            shared.clone(),
            &listening,
            name,
            metrics.clone(),
            sources.clone(),
            Own::default(),
        );
        Self { port, kernel, shared, sources, metrics, batch: DatagramBatch::new() }
    }

    /// Has the port read a packet with this header of offload, if it has any.
    async fn feed(&mut self, offload: Option<[u8; offload::LEN]>, packet: &[u8]) {
        let head = offload.map_or(Vec::new(), Vec::from);
        self.kernel.send(&[&head, packet].concat()).unwrap();
        let receive = poll_fn(|cx| self.port.poll_receive(cx, &mut self.batch, &mut 0));
        receive.await.unwrap();
    }

    /// The next packet that the port has written, with its header of offload.
    fn written(&self, has_header: bool) -> Option<(Option<offload::Offload>, Vec<u8>)> {
        let mut block = vec![0; 70_000];
        let len = self.kernel.recv(&mut block).ok()?;
        block.truncate(len);
        if !has_header {
            return Some((None, block));
        }
        let packet = block.split_off(offload::LEN);
        Some((Some(offload::Offload::parse(block.first_chunk().unwrap())), packet))
    }

    fn malformed(&self) -> u64 {
        self.metrics.datagrams.dropped.malformed.value()
    }
}

/// A segment with whole checksums.
fn segment(from: &str, to: &str, flags: u8, data: &[u8]) -> Vec<u8> {
    let (from, to) = (addr(from), addr(to));
    // The header of a datagram has the same addresses and ports.
    let mut out = vec![0; udp::MAX_HEADERS];
    let len = tcp::HEADER_LEN + data.len();
    let ip_len = udp::emit_headers(&mut out, from, to, 0, 0, len - udp::HEADER_LEN).unwrap();
    out.truncate(ip_len);
    if from.is_ipv4() {
        out[9] = ip::TCP;
        out[10..12].copy_from_slice(&[0, 0]);
        let sum = ip::checksum::finish(ip::checksum::sum(&out));
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        out[6] = ip::TCP;
    }
    out.extend([from.port().to_be_bytes(), to.port().to_be_bytes()].concat());
    out.extend([0, 0, 0, 9, 0, 0, 0, 0, 5 << 4, flags, 1, 0, 0, 0, 0, 0]);
    out.extend(data);
    let pseudo = ip::checksum::pseudo(from.ip(), to.ip(), ip::TCP, len);
    let sum = ip::checksum::finish(pseudo + ip::checksum::sum(&out[ip_len..]));
    out[ip_len + 16..ip_len + 18].copy_from_slice(&sum.to_be_bytes());
    out
}

fn datagram(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; udp::MAX_HEADERS];
    let ip_len = udp::emit_headers(&mut out, addr(from), addr(to), 0, 0, payload.len()).unwrap();
    out.truncate(ip_len + udp::HEADER_LEN);
    udp::complete(&mut out, ip_len, payload);
    out.extend(payload);
    out
}

/// Sender and receiver of a segment whose checksum is right.
fn ends(packet: &[u8]) -> (SocketAddr, SocketAddr) {
    let header = IpHeader::parse(packet).unwrap();
    assert!(tcp::is_intact(packet, &header));
    tcp::TcpSegment::parse(packet, &header).unwrap().ends(&header)
}

const SYN: u8 = 2;
const ACK: u8 = 16;
const SYN_ACK: u8 = 18;

const PAIRS: [(&str, &str, &str, &str); 2] = [
    (CLIENT, TARGET, LISTENER, "198.18.0.2:10000"),
    (CLIENT6, TARGET6, LISTENER6, "[fdad:17:ad17::2]:10000"),
];

#[test]
fn segments_reach_the_listener_and_its_answers_the_client() {
    Cores::block_on(async {
        let mut bench = Bench::new(false);
        for (client, target, listener, mapped) in PAIRS {
            for flags in [SYN, SYN, ACK] {
                bench.feed(None, &segment(client, target, flags, b"")).await;
                let (_, packet) = bench.written(false).unwrap();
                assert_eq!(ends(&packet), (addr(mapped), addr(listener)));
            }
            bench.feed(None, &segment(listener, mapped, SYN_ACK, b"")).await;
            let (_, packet) = bench.written(false).unwrap();
            assert_eq!(ends(&packet), (addr(target), addr(client)));
            let found = Mapped::find(&bench.shared, addr(mapped)).unwrap();
            assert_eq!((found.client, found.target), (addr(client), addr(target)));
            let other = SocketAddr::new(addr(target).ip(), addr(mapped).port());
            assert!(Mapped::find(&bench.shared, other).is_none(), "not from the neighbour");
        }
        assert!(bench.batch.is_empty() && bench.malformed() == 0);
    })
    .unwrap();
}

#[test]
fn segments_without_a_mapping_are_reset_within_a_rate() {
    Cores::block_on(async {
        let mut bench = Bench::new(true);
        let one = Some([0; offload::LEN]);
        for (client, target, _, mapped) in PAIRS {
            let neighbour = addr(mapped).ip();
            let to_neighbour = SocketAddr::new(neighbour, 80).to_string();
            let to_port_0 = SocketAddr::new(addr(target).ip(), 0).to_string();
            for (to, flags) in [(target, ACK), (target, SYN_ACK), (&*to_neighbour, SYN), (&*to_port_0, SYN)] {
                bench.feed(one, &segment(client, to, flags, b"")).await;
                let (offload, packet) = bench.written(true).unwrap();
                assert_eq!(offload, Some(offload::Offload::default()));
                assert_eq!(ends(&packet), (addr(to), addr(client)));
                let header = IpHeader::parse(&packet).unwrap();
                assert!(tcp::TcpSegment::parse(&packet, &header).unwrap().is_reset());
            }
            bench.feed(one, &segment(client, target, 4, b"")).await;
            assert!(bench.written(true).is_none(), "a reset is not answered");
        }
        let mut count = 8;
        let stray = segment(CLIENT, TARGET, ACK, b"");
        for _ in 0..1500 {
            bench.feed(one, &stray).await;
            count += usize::from(bench.written(true).is_some());
        }
        assert_eq!(count, 1000, "no more in one second");
        bench.port.tick(1);
        assert!(bench.port.take_gone(), "a pair of sockets is no interface");
        bench.feed(one, &stray).await;
        assert!(bench.written(true).is_some(), "another second");
    })
    .unwrap();
}

#[test]
fn a_super_packet_is_written_unsplit() {
    Cores::block_on(async {
        let mut bench = Bench::new(true);
        let of_segments = {
            let [a, b] = 1448_u16.to_ne_bytes();
            let ([c, d], [e, f], [g, h]) =
                (9000_u16.to_ne_bytes(), 20_u16.to_ne_bytes(), 16_u16.to_ne_bytes());
            [1, 1, c, d, a, b, e, f, g, h]
        };
        bench.feed(Some([0; offload::LEN]), &segment(CLIENT, TARGET, SYN, b"")).await;
        bench.written(true).unwrap();
        let data = vec![7; 50_000];
        bench.feed(Some(of_segments), &segment(CLIENT, TARGET, ACK, &data)).await;
        let (offload, packet) = bench.written(true).unwrap();
        let offload = offload.unwrap();
        assert_eq!((offload.kind(), offload.segment_len), (offload::OffloadKind::Tcp, 1448));
        assert_eq!(
            u16::from_ne_bytes([offload.emit()[2], offload.emit()[3]]),
            40,
            "the kernel's length was wrong"
        );
        assert!(packet.ends_with(&data));
        let header = IpHeader::parse(&packet).unwrap();
        let neighbour = addr("198.18.0.2:10000");
        let partial = ip::checksum::fold(ip::checksum::pseudo(
            neighbour.ip(),
            addr(LISTENER).ip(),
            ip::TCP,
            header.payload.len(),
        ));
        assert_eq!(packet[36..38], partial.to_be_bytes(), "the kernel completes it");
        // A checksum of something else than the segment is none that could be completed.
        let mut wrong = of_segments;
        wrong[8..].copy_from_slice(&6_u16.to_ne_bytes());
        bench.feed(Some(wrong), &segment(CLIENT, TARGET, ACK, &data)).await;
        assert!(bench.written(true).is_none() && bench.malformed() == 1);
    })
    .unwrap();
}

#[test]
fn datagrams_go_to_the_engine_and_answers_get_headers() {
    Cores::block_on(async {
        for has_header in [false, true] {
            let mut bench = Bench::new(has_header);
            let head = has_header.then_some([0; offload::LEN]);
            for (client, target) in [(CLIENT, TARGET), (CLIENT6, TARGET6)] {
                bench.feed(head, &datagram(client, target, b"question")).await;
                let found = bench.batch.get(0).unwrap();
                assert_eq!(&bench.batch.block[found.range()], b"question");
                let to = (found.to, found.original);
                let target_at = addr(target);
                assert_eq!((found.from, to), (addr(client), (Some(target_at.ip()), Some(target_at))));
                // Two answers of one length and a shorter one, from two sources.
                let mut packets = TunPackets::new(bench.sources.clone());
                let other = SocketAddr::new(addr(target).ip(), 99);
                let (start, mut outgoing) = (found.start, Vec::new());
                for (at, source) in [addr(target), addr(target), addr(target), other].into_iter().enumerate()
                {
                    let payload = start + 10 * at..start + 10 * at + if at == 2 { 4 } else { 10 };
                    let (client, block) = (FlowClient::Address(addr(client)), &mut bench.batch.block);
                    let sealed = packets.seal(&client, block, payload, &Target::from(source), 0).unwrap();
                    let len = sealed.len();
                    outgoing.push(Outgoing {
                        key: 0,
                        to: found.from,
                        from: None,
                        class: 0,
                        start: sealed.start,
                        len,
                    });
                }
                // One that was sealed and goes nowhere does not shift the others.
                outgoing.remove(1);
                let sent = bench.port.send(&mut bench.batch, &outgoing);
                assert_eq!((sent.sent, sent.failed), (3, 0));
                let mut seen = Vec::new();
                while let Some((offload, packet)) = bench.written(has_header) {
                    let header = IpHeader::parse(&packet).unwrap();
                    let found = udp::UdpDatagram::parse(&packet, &header).unwrap();
                    assert!(has_header || found.is_intact(&packet, &header));
                    assert_eq!(found.ends(&header).1, addr(client));
                    let segment = offload.map_or(0, |offload| offload.segment_len);
                    seen.push((found.ends(&header).0.port(), found.payload.len(), segment));
                }
                let port = addr(target).port();
                let wanted = if has_header {
                    vec![(port, 14, 10), (99, 10, 0)]
                } else {
                    vec![(port, 10, 0), (port, 4, 0), (99, 10, 0)]
                };
                assert_eq!(seen, wanted);
            }
        }
    })
    .unwrap();
}

#[test]
fn a_packet_of_many_datagrams_is_cut() {
    Cores::block_on(async {
        let mut bench = Bench::new(true);
        let head = offload::Offload::datagrams(20, 100).emit();
        bench.feed(Some(head), &datagram(CLIENT, TARGET, &[7; 250])).await;
        let lens: Vec<usize> =
            (0..bench.batch.len()).map(|at| bench.batch.get(at).unwrap().range().len()).collect();
        assert_eq!(lens, [100, 100, 50]);
        let mut none = head;
        none[4..6].copy_from_slice(&[0, 0]);
        bench.feed(Some(none), &datagram(CLIENT, TARGET, &[7; 250])).await;
        assert!(bench.batch.is_empty() && bench.malformed() == 1, "pieces of no length");
    })
    .unwrap();
}

#[test]
fn what_nobody_can_carry_is_dropped_or_refused() {
    Cores::block_on(async {
        let mut bench = Bench::new(true);
        let one = Some([0; offload::LEN]);
        for (from, to) in [
            (CLIENT, "224.0.0.251:5353"),
            (CLIENT, "255.255.255.255:67"),
            ("0.0.0.0:68", TARGET),
            (CLIENT6, "[ff02::2]:1"),
        ] {
            bench.feed(one, &datagram(from, to, b"x")).await;
            assert!(bench.batch.is_empty() && bench.written(true).is_none(), "{to}");
        }
        let mut broken = datagram(CLIENT, TARGET, b"some bytes");
        *broken.last_mut().unwrap() ^= 1;
        bench.feed(one, &broken).await;
        assert!(bench.batch.is_empty() && bench.malformed() == 1, "a wrong checksum is not made a right one");
        let mut fragment = datagram(CLIENT, TARGET, b"some bytes");
        fragment[6] = 0x20;
        bench.feed(one, &fragment).await;
        assert!(bench.batch.is_empty() && bench.written(true).is_none());
        bench.feed(one, &[0x75; 40]).await;
        bench.kernel.send(&[1, 2, 3]).unwrap();
        poll_fn(|cx| bench.port.poll_receive(cx, &mut bench.batch, &mut 0)).await.unwrap();
        assert_eq!(bench.malformed(), 3);

        for (client, target) in [(CLIENT, TARGET), (CLIENT6, TARGET6)] {
            let peer = Peer { at: addr(client), local: Some(addr(target).ip()) };
            let target = Target::from(addr(target));
            bench.port.refuse(peer, &target, &DropReason::Limited);
            assert!(bench.written(true).is_none(), "only what will never pass is refused");
            bench.port.refuse(peer, &target, &DropReason::Rule);
            let (_, packet) = bench.written(true).unwrap();
            let header = IpHeader::parse(&packet).unwrap();
            assert!(header.destination == addr(client).ip() && icmp::is_intact(&packet, &header));
            let message = &packet[header.payload.clone()];
            assert_eq!(message[..2], if header.is_v6() { [1, 4] } else { [3, 3] });
            let quoted = IpHeader::parse(&message[8..]).unwrap();
            let quoted = udp::UdpDatagram::parse(&message[8..], &quoted).unwrap();
            assert_eq!(quoted.from_port, addr(client).port());
        }
    })
    .unwrap();
}

#[test]
fn echoes_are_answered_for_own_prefixes_alone() {
    /// A question of ICMP as a kernel sends it.
    fn question(to: [u8; 4]) -> Vec<u8> {
        let mut out = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 1, 0, 0, 198, 18, 0, 1];
        out.extend(to);
        let sum = ip::checksum::finish(ip::checksum::sum(&out));
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut message = [8, 0, 0, 0, 0, 1, 0, 2, b'd', b'a', b't', b'a'];
        let sum = ip::checksum::finish(ip::checksum::sum(&message));
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        out.extend(message);
        out
    }
    Cores::block_on(async {
        let mut bench = Bench::new(true);
        for (to, kind) in [([198, 18, 0, 2], 0), ([203, 0, 113, 7], 3)] {
            bench.feed(Some([0; offload::LEN]), &question(to)).await;
            let (_, packet) = bench.written(true).unwrap();
            let header = IpHeader::parse(&packet).unwrap();
            assert!(icmp::is_intact(&packet, &header));
            assert_eq!((header.source, packet[20]), (IpAddr::from(to), kind));
        }
    })
    .unwrap();
}
