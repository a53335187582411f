use adit_proto::shadowsocks::client_packets;

use super::super::near::{Near, Opened};
use super::*;
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

    let mut near = Near::shadowsocks(&ShadowsocksServerKey::new(key).unwrap().derive(), Arc::default());
    let (_, opened) = near.open(LOOPBACK, &mut block[up.clone()], NOW).unwrap();
    let mut session = match opened {
        Opened::Plain(..) => None,
        Opened::Sealed(header) => near.new_session(&header),
    };
    let down = near.seal(session.as_deref_mut(), &mut block, at, &target, NOW).unwrap();
    let room = near.room(session.as_deref(), &target);
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
