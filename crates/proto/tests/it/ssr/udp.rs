//! Datagrams: recorded ones, and both ends face to face.

use adit_proto::ssr::udp::{SsrClientUdp, SsrServerUdp};
use adit_proto::ssr::{SsrMethod, SsrProtocol};
use adit_proto::wire::Target;

use crate::ssr::support::{Script, Setup, hex, read, rows, split, target, text};

fn seal(
    payload: &[u8],
    room: adit_proto::wire::Room,
    seal: impl FnOnce(&mut [u8], std::ops::Range<usize>) -> std::ops::Range<usize>,
) -> Vec<u8> {
    let mut block = vec![0xa5; room.head];
    block.extend_from_slice(payload);
    block.resize(block.len() + room.tail, 0xa5);
    let range = seal(&mut block, room.head..room.head + payload.len());
    block[range].to_vec()
}

#[test]
fn recorded_datagrams() {
    let payload = read("ssr", "payload.json");
    let (up, down) = (hex(text(&payload, "c2s"))[..48].to_vec(), hex(text(&payload, "s2c"))[..300].to_vec());
    let mut count = 0;
    for row in rows("ssr", "udp.json") {
        let name = format!(
            "{} {} {}",
            text(&row, "protocol"),
            text(&row, "protocol_param_client"),
            text(&row, "client")
        );
        let mut setup = Setup::new(text(&row, "method"), text(&row, "protocol"), "plain");
        let has_user = !text(&row, "protocol_param_client").is_empty();
        if has_user {
            setup = setup.with_users(Some((1002, "bob-key")), &[(1001, "alice-key"), (1002, "bob-key")]);
        }
        let client = SsrClientUdp::new(&setup.client_config(), &mut Script::seeded(1));
        let server = SsrServerUdp::new(&setup.server_config());
        let (to, _) = split(&hex(text(&row, "target")));
        for packet in row["packets"].as_array().unwrap() {
            let mut datagram = hex(packet[1].as_str().unwrap());
            let is_up = packet[0] == "c2s";
            let opened = if is_up { server.open(&mut datagram) } else { client.open(&mut datagram) };
            let opened = opened.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
            assert_eq!(opened.target, to, "{name}");
            assert!(&datagram[opened.payload] == if is_up { &up[..] } else { &down[..] }, "{name}");
            assert_eq!(opened.user, (is_up && has_user).then_some(1002), "{name}");
            count += 1;
        }
    }
    assert_eq!(count, 44);
}

#[test]
fn both_ways() {
    let from: Target = "[2001:db8::1]:53".parse().unwrap();
    for protocol in SsrProtocol::all() {
        for method in SsrMethod::all() {
            let mut setup = Setup::new(method.name(), protocol.name(), "plain");
            let user = protocol.has_users().then_some(7);
            if user.is_some() {
                setup = setup.with_users(Some((7, "seven")), &[(7, "seven"), (8, "eight")]);
            }
            let mut rng = Script::seeded(3);
            let client = SsrClientUdp::new(&setup.client_config(), &mut rng);
            let server = SsrServerUdp::new(&setup.server_config());
            for len in [0, 1, 500, 1400] {
                let payload = vec![7; len];
                let mut up = seal(&payload, client.room(&target()), |block, range| {
                    client.seal(block, range, &target(), &mut rng).unwrap()
                });
                let opened = server.open(&mut up).unwrap();
                assert_eq!((&opened.target, opened.user), (&target(), user), "{protocol} {method}");
                assert_eq!(up[opened.payload], payload);
                let mut down = seal(&payload, server.room(&from), |block, range| {
                    server.seal(block, range, &from, opened.user, &mut rng).unwrap()
                });
                let opened = client.open(&mut down).unwrap();
                assert_eq!(opened.target, from, "{protocol} {method}");
                assert_eq!(down[opened.payload], payload);
            }
        }
    }
}

#[test]
fn bad_datagrams() {
    for protocol in SsrProtocol::all() {
        let mut setup = Setup::new("none", protocol.name(), "plain");
        if protocol.has_users() {
            setup = setup.with_users(Some((7, "seven")), &[(7, "seven")]);
        }
        let mut rng = Script::seeded(5);
        let client = SsrClientUdp::new(&setup.client_config(), &mut rng);
        let server = SsrServerUdp::new(&setup.server_config());
        let good = seal(&[1; 40], client.room(&target()), |block, range| {
            client.seal(block, range, &target(), &mut rng).unwrap()
        });
        let mut accepted = 0;
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            accepted += usize::from(server.open(&mut bad).is_ok());
            if at < good.len() - 1 {
                // No panic, for every remaining length; without a tag a shorter one may pass.
                for opened in [server.open(&mut good[..at].to_vec()), client.open(&mut good[..at].to_vec())] {
                    assert!(opened.map_or(true, |packet| packet.payload.end <= at));
                }
            }
        }
        let has_tag = protocol.has_users() || protocol == SsrProtocol::AuthAes128;
        // The tag of a chain has 8 bits.
        let is_chain = matches!(protocol, SsrProtocol::AuthChain(_));
        let limit = if is_chain {
            good.len() / 32 + 2
        } else if has_tag {
            0
        } else {
            good.len()
        };
        assert!(accepted <= limit, "{protocol}: {accepted} of {}", good.len());
    }
}
