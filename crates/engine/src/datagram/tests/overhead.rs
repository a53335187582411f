use adit_proto::shadowsocks::client_packets;

use super::super::{Arrival, Peer, SessionOwners};
use super::*;
use crate::protocols::shadowsocks::inbound_udp::packets as shadowsocks_packets;
use crate::rng::OsRng;

const DOCUMENT: &str = include_str!("../../../../../docs/udp.md");
const NOW: u64 = 1_800_000_000;
const PAYLOAD: usize = 100;

/// Bytes that a method adds to a datagram to the server, and to one to the client.
fn overhead(method: &str) -> (usize, usize) {
    let key = key(method);
    let target = Target::new(b"192.0.2.1", 443).unwrap();
    let mut client = client_packets(&key.derive(), &mut OsRng);
    let mut block = vec![0; 4096];
    let at = 2000..2000 + PAYLOAD;
    let up = client.seal(&mut block, at.clone(), &target, NOW, &mut OsRng).unwrap();

    let key = ShadowsocksServerKey::new(key).unwrap();
    let mut server = shadowsocks_packets(&key, Arc::default(), (Arc::new(SessionOwners::new(1)), 0));
    let arrival =
        Arrival { peer: Peer { at: LOOPBACK, local: None }, original: None, class: 0, now: 0, unix_s: NOW };
    let opened = server.open(&arrival, &mut block[up.clone()]).unwrap().unwrap();
    assert_eq!((opened.payload.len(), &*opened.target), (PAYLOAD, &target), "{method}");
    server.hold(&opened.client).unwrap();
    let down = server.seal(&opened.client, &mut block, at, &target, NOW).unwrap();
    let room = server.room(&opened.client, &target);
    assert_eq!(room.head + PAYLOAD + room.tail, down.len(), "{method}: the room is exact");
    (up.len() - PAYLOAD, down.len() - PAYLOAD)
}

#[test]
fn the_documented_overhead_is_what_the_codecs_add() {
    let mut rows = 0;
    for line in DOCUMENT.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, method, rest @ .., _] = &cells[..] else { continue };
        let Ok(numbers) = rest.iter().map(|cell| cell.parse()).collect::<Result<Vec<usize>, _>>() else {
            continue;
        };
        let (up, down) = overhead(method);
        assert_eq!(numbers, [up, 1472 - up, down, 1472 - down], "{method}");
        rows += 1;
    }
    assert_eq!(rows, 9, "rows of the table");
}
