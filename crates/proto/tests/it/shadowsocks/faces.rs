//! Both ends of every method face to face.

use adit_proto::shadowsocks::aead2022::Aead2022ServerPackets;
use adit_proto::shadowsocks::{
    IdentityKeys, MethodKey, NoFilter, PacketCodec, ServerKey, ShadowsocksAcceptor, ShadowsocksClientStream,
    ShadowsocksMethod, ShadowsocksPacket, aead, client_packets, stream,
};
use adit_proto::wire::Target;

use crate::shadowsocks::streams::key;
use crate::shadowsocks::support::{NOW_S, Script, accept_cut, block_for, clock, open_cut, seal_all};

fn targets() -> [Target; 3] {
    ["203.0.113.9:80", "[2001:db8::1]:443", "example.com:8443"].map(|text| text.parse().expect("a target"))
}

/// More than a frame, but not for CFB1 and CFB8, which are slow without optimisation.
fn len(method: ShadowsocksMethod) -> u32 {
    if method.name().ends_with("cfb1") || method.name().ends_with("cfb8") { 12_000 } else { 70_000 }
}

#[test]
fn streams_of_every_method() {
    for (method, i) in ShadowsocksMethod::all().zip(0..) {
        for target in targets().into_iter().skip(i % 3).take(1) {
            let key = key(method);
            let up: Vec<u8> = (0..len(method)).map(|i| i.to_le_bytes()[1]).collect();
            let down: Vec<u8> = up.iter().rev().copied().collect();
            let mut client =
                ShadowsocksClientStream::new(&key, &target, clock(NOW_S), &mut Script::seeded(1));
            // Odd sizes leave the block modes in the middle of a block.
            let request = seal_all(&mut client, &[&up[..7], &up[7..8], &up[8..3_000], &up[3_000..]]);
            let (accepted, plain, mut server) = accept_cut(
                ShadowsocksAcceptor::new(&ServerKey::new(key)),
                &request,
                &[75, 100, 5_001],
                NOW_S,
                &mut NoFilter,
                &mut Script::seeded(2),
            )
            .unwrap_or_else(|error| panic!("{method}: {error}"));
            assert_eq!(accepted.target, target, "{method}");
            assert!(plain == up, "{method}");
            let response = seal_all(&mut server, &[&down[..31], &down[31..9_999], &down[9_999..]]);
            assert!(open_cut(&mut client, &response, &[3, 40, 41, 10_000]) == Ok(down), "{method}");
        }
    }
}

/// A server's end of datagrams: opens one of a client it has not seen before, and seals the answer.
fn answer(key: &MethodKey, datagram: &mut [u8], target: &Target, payload: &[u8]) -> Vec<u8> {
    let mut rng = Script::seeded(datagram.len() as u64);
    let check = |packet: ShadowsocksPacket, datagram: &[u8]| {
        assert_eq!(packet.target, *target);
        assert_eq!(&datagram[packet.payload], payload);
    };
    let mut symmetric = |server: &mut dyn PacketCodec| {
        let packet = server.open(datagram, NOW_S, &mut NoFilter).expect("opened");
        check(packet, datagram);
        let (mut block, range) = block_for(server.room(target), payload);
        let sealed = server.seal(&mut block, range, target, NOW_S, &mut rng).expect("sealed");
        block[sealed].to_vec()
    };
    match key {
        MethodKey::Stream(key) => symmetric(&mut stream::StreamCipherPackets::new(key)),
        MethodKey::Aead(key) => symmetric(&mut aead::AeadPackets::new(key)),
        MethodKey::Aead2022(keys) => {
            let server = Aead2022ServerPackets::new(keys, &IdentityKeys::default().into());
            let header = server.read_header(datagram).expect("a header");
            let mut session = server.new_session(&header, &mut rng);
            let packet = session.open(&header, datagram, NOW_S).expect("opened");
            check(packet, datagram);
            let (mut block, range) = block_for(session.room(target), payload);
            let sealed = session.seal(&mut block, range, target, NOW_S, &mut rng).expect("sealed");
            block[sealed].to_vec()
        }
    }
}

#[test]
fn datagrams_of_every_method() {
    for method in ShadowsocksMethod::all() {
        for target in targets() {
            let key = key(method);
            let mut rng = Script::seeded(3);
            let mut client = client_packets(&key, &mut rng);
            // The second payload meets a server that has begun anew: one current and one previous session.
            for payload in [&b"x"[..], &[8; 1_400]] {
                let (mut block, range) = block_for(client.room(&target), payload);
                let sealed = client.seal(&mut block, range, &target, NOW_S, &mut rng).unwrap();
                let mut answer = answer(&key, &mut block[sealed], &target, payload);
                let packet = client.open(&mut answer, NOW_S, &mut NoFilter);
                let packet = packet.unwrap_or_else(|error| panic!("{method}: {error}"));
                assert_eq!(&answer[packet.payload], payload, "{method}");
                assert_eq!(packet.target, target, "{method}");
            }
        }
    }
}
