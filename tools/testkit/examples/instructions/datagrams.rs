//! Codecs of datagrams, and the stages of the carrier.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use adit_proto::kcp::arq::{self, Arq, Arrival};
use adit_proto::kcp::crypt::{Crypt, KcpMethod, KcpSecret};
use adit_proto::kcp::fec::{FecDecoder, FecEncoder, FecPacketKind, HEADER_LEN, Shards};
use adit_proto::shadowsocks::aead::AeadPackets;
use adit_proto::shadowsocks::aead2022::Aead2022ServerPackets;
use adit_proto::shadowsocks::{IdentityKeys, MethodKey, NoFilter, PacketCodec, client_packets};
use adit_proto::smux::{self, Mux, SmuxEvent, SmuxRole};
use adit_proto::wire::Target;
use adit_testkit::{FixedRng, epoch};

use crate::streams::key;

const PAYLOAD: usize = 1200;
const KCP_PAYLOAD: usize = 1350;
const BULK: usize = 64 * 1024;
const UNIX_TIME: u64 = 1_800_000_000;

/// A datagram sealed by a client and opened by a server, and its answer.
pub(crate) fn shadowsocks(rounds: u32, method: &str) {
    let key = key(method);
    let MethodKey::Aead(aead) = &key else { panic!("not SIP004") };
    let (mut client, mut server) = (client_packets(&key, &mut FixedRng::new(1)), AeadPackets::new(aead));
    let (target, mut rng) = (target(), FixedRng::new(2));
    let mut block = vec![0x5a; 2048];
    for _ in 0..rounds {
        exchange(&mut block, &target, &mut rng, client.as_mut(), &mut server);
        exchange(&mut block, &target, &mut rng, &mut server, client.as_mut());
    }
}

fn exchange(
    block: &mut [u8],
    target: &Target,
    rng: &mut FixedRng,
    from: &mut dyn PacketCodec,
    to: &mut dyn PacketCodec,
) {
    let head = from.room(target).head;
    let sealed = from.seal(block, head..head + PAYLOAD, target, UNIX_TIME, rng).expect("sealed");
    let packet = to.open(&mut block[sealed], UNIX_TIME, &mut NoFilter).expect("opened");
    assert_eq!(packet.payload.len(), PAYLOAD);
}

/// The same with sessions.
pub(crate) fn shadowsocks_2022(rounds: u32) {
    let key = key("2022-blake3-aes-128-gcm");
    let MethodKey::Aead2022(keys) = &key else { panic!("not SIP022") };
    let users = IdentityKeys::new(keys.method(), []).expect("no users");
    let server = Aead2022ServerPackets::new(keys, &Arc::new(users));
    let mut client = client_packets(&key, &mut FixedRng::new(1));
    let (target, mut rng, mut session) = (target(), FixedRng::new(2), None);
    let mut block = vec![0x5a; 2048];
    for _ in 0..rounds {
        let head = client.room(&target).head;
        let sealed =
            client.seal(&mut block, head..head + PAYLOAD, &target, UNIX_TIME, &mut rng).expect("sealed");
        let header = server.read_header(&mut block[sealed.clone()]).expect("a header");
        let session = session.get_or_insert_with(|| server.new_session(&header, &mut rng));
        let packet = session.open(&header, &mut block[sealed], UNIX_TIME).expect("opened");
        assert_eq!(packet.payload.len(), PAYLOAD);
        let head = session.room(&target).head;
        let sealed =
            session.seal(&mut block, head..head + PAYLOAD, &target, UNIX_TIME, &mut rng).expect("sealed");
        let packet = client.open(&mut block[sealed], UNIX_TIME, &mut NoFilter).expect("opened");
        assert_eq!(packet.payload.len(), PAYLOAD);
    }
}

fn target() -> Target {
    "203.0.113.9:443".parse().expect("a target")
}

/// 64 KiB through a conversation without loss, acknowledged.
pub(crate) fn kcp(rounds: u32) {
    let mut now = epoch();
    let settings = arq::ArqSettings {
        nodelay: true,
        interval: Duration::from_millis(10),
        congestion: false,
        send_window: 1024,
        recv_window: 1024,
        mtu: KCP_PAYLOAD,
        ..arq::ArqSettings::default()
    };
    let mut ends = [Arq::new(7, settings.clone(), now), Arq::new(7, settings, now)];
    let (data, mut out) = (vec![0x5a; BULK], Vec::with_capacity(2048));
    for _ in 0..rounds {
        let (mut sent, mut received) = (0, 0);
        while received < BULK {
            sent += ends[0].send(&data[sent..]);
            for from in [0, 1] {
                while ends[from].poll_transmit(now, &mut out) {
                    ends[1 - from].handle_datagram(&out, Arrival::Received, now).expect("legal segments");
                    out.clear();
                }
            }
            while !ends[1].peek().is_empty() {
                let len = ends[1].peek().len();
                ends[1].consume(len);
                received += len;
            }
            now += Duration::from_millis(10);
        }
    }
}

/// A group of ten packets with three of parity, of which one was lost.
pub(crate) fn fec(rounds: u32) {
    let (now, shards) = (epoch(), Shards::new(10, 3).expect("shards"));
    let (mut encoder, mut decoder) = (FecEncoder::new(shards), FecDecoder::new(Some(shards)));
    let (mut packet, mut other) = (vec![0x5a; HEADER_LEN + KCP_PAYLOAD], Vec::with_capacity(2048));
    for _ in 0..rounds {
        let mut arrived = 0;
        for place in 0..10 {
            encoder.seal(&mut packet, now);
            if place != 4 {
                let received = decoder.handle(&packet).expect("a legal packet");
                arrived += usize::from(matches!(received, FecPacketKind::Data(_)));
            }
        }
        loop {
            other.clear();
            if !encoder.poll_parity(&mut other) {
                break;
            }
            decoder.handle(&other).expect("a legal packet");
        }
        other.clear();
        while decoder.poll_recovered(&mut other) {
            arrived += 1;
            other.clear();
        }
        assert_eq!(arrived, 10);
    }
}

/// A datagram of the carrier, sealed and opened.
pub(crate) fn crypt(rounds: u32) {
    let crypt = Crypt::new(KcpMethod::Aes128, &KcpSecret::derive(b"key"));
    let (head, tail) = (crypt.method().head_len(), crypt.method().tail_len());
    let (mut packet, mut rng) = (vec![0x5a; head + KCP_PAYLOAD + tail], FixedRng::new(1));
    for _ in 0..rounds {
        crypt.seal(&mut packet, &mut rng);
        let range = crypt.open(&mut packet).expect("opened");
        assert_eq!(range.len(), KCP_PAYLOAD);
    }
}

/// 64 KiB over one stream, read at once.
pub(crate) fn smux(rounds: u32) {
    let now = epoch();
    let settings = smux::SmuxSettings { send_buffer: 1 << 20, ..smux::SmuxSettings::default() };
    let mut ends = [SmuxRole::Client, SmuxRole::Server].map(|role| Mux::new(role, settings.clone(), now));
    let id = ends[0].open().expect("a stream");
    let (data, mut chunk, mut out) = (vec![0x5a; BULK], vec![0; BULK], Vec::with_capacity(2 * BULK));
    for _ in 0..rounds {
        let (mut sent, mut received) = (0, 0);
        while received < BULK {
            sent += ends[0].send(id, &data[sent..]);
            for from in [0, 1] {
                out.clear();
                ends[from].poll_transmit(&mut out, usize::MAX);
                let taken = ends[1 - from].handle_input(&out).expect("legal frames");
                assert_eq!(taken, out.len(), "all frames are taken");
            }
            while let Some(event) = ends[1].poll_event() {
                black_box(event);
                if let SmuxEvent::Readable(id) = event {
                    while let smux::SmuxReceived::Bytes(len) = ends[1].recv(id, &mut chunk, now) {
                        received += len;
                    }
                }
            }
        }
    }
}
